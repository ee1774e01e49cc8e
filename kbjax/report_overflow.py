"""What a report says of a kernel that does not fit: what overflowed, by how much."""

from __future__ import annotations

from kbjax.errors import ScratchOverflowError
from kbjax.overflow import Overflow
from kbjax.plan import Plan


def headline(error: ScratchOverflowError, at_us: float) -> tuple[str, str, str]:
    """(name, figure, remark): by how much, what and where, and after how long."""
    over = error.overflow
    return "overflows", f"by {over_bytes(over):,} B", f"{what(error)}, {at_us:,.3f} us"


def rows(
    error: ScratchOverflowError, plan: Plan, ops: int, at_us: float
) -> list[tuple[str, str]]:
    """(name, figure with its unit), as of a summary.

    Args:
      error: the first allocation that does not fit.
      plan: of the whole kernel, without a budget.
      ops: how many of the PE's ops are drawn, up to that one.
      at_us: when the last of them ends.
    """
    over = error.overflow
    asked = f"it asks for {over.aligned_bytes:,} B"
    asked += " with its padding" if over.aligned_bytes > over.requested_bytes else ""
    free = f"{max(over.free_bytes, 0):,} of {over.budget_bytes:,} B are free"
    beyond = plan.peak_scratch_bytes - plan.budget_bytes
    fits = "would fit" if over.live_set_fits else "would not fit either"
    found = [
        ("overflows", what(error)),
        ("over the budget by", f"{over_bytes(over):,} B: {asked}, {free}"),
        (
            "still needed",
            f"{over.live_bytes:,} B, with this tile: {fits}; "
            f"{over.dead_bytes:,} B are held by tiles that nothing can use any more",
        ),
        (
            "the whole kernel",
            f"would take {plan.peak_scratch_bytes:,} B, {beyond:,} B over the budget "
            f"({plan.utilisation:.1%} of it)",
        ),
        ("drawn", f"{ops:,} ops up to there, which end at {at_us:,.3f} us"),
    ]
    if not over.proven:
        found.append(("note", "a bound: there are too many iterations to enumerate"))
    return found


def over_bytes(over: Overflow) -> int:
    """How far the cursor would be past the budget."""
    return over.cursor_bytes + over.aligned_bytes - over.budget_bytes


def what(error: ScratchOverflowError) -> str:
    """The allocation that does not fit, its line, and the iterations around it."""
    over = error.overflow
    shape = ",".join(map(str, over.shape))
    tile = f" {over.dtype}[{shape}]" if over.dtype else ""
    parts = [f"{over.op}{tile}" + (f" at {error.site}" if error.site else "")]
    parts += [f"iteration {s.iteration:,} of the loop at {s.site}" for s in over.loops]
    parts += [f"PE {over.pe}"] if over.pe is not None else []
    return ", ".join(parts)
