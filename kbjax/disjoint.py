"""Outputs that all PEs store to: proof that their ranges are disjoint."""

from __future__ import annotations

from collections.abc import Sequence

from kbjax import errors, expr
from kbjax.program import HbmRef, LoadCmd, Program, StoreCmd


def check_shared_outputs(program: Program) -> None:
    """Refuse stores of several PEs to one array unless their ranges are disjoint, and
    loads from it of what another PE may store.

    Proof: along some axis every store and load stays within `width` elements from
    `pe * width + low`, for one `width` and `low`.
    """
    if program.num_pes == 1:
        return
    used: dict[int, list[LoadCmd | StoreCmd]] = {}
    for item in program.walk():
        if isinstance(item, LoadCmd | StoreCmd):
            used.setdefault(item.view.slot, []).append(item)
    for slot, commands in used.items():
        stored = any(isinstance(command, StoreCmd) for command in commands)
        if program.slots[slot].pe_axis is not None or not stored:
            continue
        rank = len(program.slots[slot].shape)
        views = [command.view for command in commands]
        if not any(_disjoint(program, views, axis) for axis in range(rank)):
            raise errors.HazardError(
                f"all PEs store to the shared output {program.slots[slot].name}, and "
                "PE 0 and PE 1 cannot be proven to use different elements of it",
                site=commands[0].site,
                got=f"{commands[0].view}",
                remedy="Start each PE's range at tl.program_id() * size, or give the "
                "output a PE axis with out_axes",
            )


def _disjoint(program: Program, views: Sequence[HbmRef], axis: int) -> bool:
    pe = expr.var(program.program_id)
    starts = [view.spans[axis].start for view in views]
    widths = {dict(start.terms).get(program.program_id, 0) for start in starts}
    if len(widths) != 1:
        return False
    (width,) = widths
    lows, highs = [], []
    for view, start in zip(views, starts, strict=True):
        low, high = expr.bounds(expr.sub(start, expr.scale(pe, width)))
        lows.append(low)
        highs.append(high + view.spans[axis].size)
    return max(highs) - min(lows) <= abs(width)
