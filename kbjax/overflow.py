"""What a scratch overflow has to say: what was asked, what holds the scratch, what of
it is still needed, and what would help. Sizes in bytes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbjax.site import ScopeLine, Site

_MOST_GROUPS = 8  # kernel lines that a message lists


@dataclass(frozen=True)
class LiveGroup:
    """Tiles that one kernel line made and that hold scratch.

    Attributes:
      site, op, tile: the line, the op and the type (``float32[8,128]``).
      count: how many.
      nbytes: what they hold together, padding included.
      usable: at most how many of them the kernel may still use; nothing can reach the
        others.
      scope: the innermost scope around them.
    """

    site: Site
    op: str
    tile: str
    count: int
    nbytes: int
    usable: int
    scope: ScopeLine | None

    @property
    def each_bytes(self) -> int:
        return self.nbytes // self.count

    @property
    def usable_bytes(self) -> int:
        return self.usable * self.each_bytes

    def __str__(self) -> str:
        where = f"in scope {self.scope}" if self.scope else "outside any scope"
        dead = self.count - self.usable
        shown = f", {dead:,} out of reach" if dead else ""
        return (
            f"{self.count:,} x {self.each_bytes:,} B from {self.site} ({self.op} "
            f"{self.tile}, {where}{shown})"
        )


@dataclass(frozen=True)
class OpenScope:
    """A scope that was open at the overflow; its end gives `held_bytes` back."""

    scope: ScopeLine
    held_bytes: int

    def __str__(self) -> str:
        return f"{self.scope} (gives back {self.held_bytes:,} B at its end)"


@dataclass(frozen=True)
class LoopStep:
    """A rolled loop around the overflow: the iteration, from 0, and how much higher
    each iteration leaves the cursor (None where its body has not been recorded)."""

    site: Site
    iteration: int
    growth_bytes: int | None = None


@dataclass(frozen=True)
class Overflow:
    """The event. It is `proven`, or safe where there are too many iterations to
    enumerate. `kernel` is the kernel's name; `loops` and `scopes` are outermost
    first; `live` holds the groups of tiles in the order in which they were made; `nth`
    counts this line's allocations that hold scratch, from 1."""

    op: str
    requested_bytes: int
    aligned_bytes: int
    cursor_bytes: int
    budget_bytes: int
    align_bytes: int = 16
    proven: bool = True
    kernel: str = ""
    pe: int | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nth: int = 1
    loops: tuple[LoopStep, ...] = ()
    scopes: tuple[OpenScope, ...] = ()
    live: Sequence[LiveGroup] = ()

    @property
    def free_bytes(self) -> int:
        return self.budget_bytes - self.cursor_bytes

    @property
    def iterations(self) -> tuple[tuple[Site, int], ...]:
        return tuple((loop.site, loop.iteration) for loop in self.loops)

    @property
    def live_bytes(self) -> int:
        """At most what the kernel may still use, and this tile."""
        return sum(group.usable_bytes for group in self.live) + self.aligned_bytes

    @property
    def live_set_fits(self) -> bool:
        return self.live_bytes <= self.budget_bytes

    @property
    def dead_bytes(self) -> int:
        """What is held by tiles that nothing can use any more."""
        return sum(group.nbytes - group.usable_bytes for group in self.live)

    @property
    def fitting_shape(self) -> tuple[int, ...] | None:
        """This tile with as many rows as fit in what is not needed by others."""
        if not self.shape:
            return None
        room = self.free_bytes + self.dead_bytes
        room -= room % self.align_bytes
        rows = max(room, 0) // (self.requested_bytes // self.shape[0])
        return (rows, *self.shape[1:]) if 0 < rows < self.shape[0] else None

    def to_dict(self) -> dict[str, Any]:
        """Plain types; sites as ``{"file", "line"}``."""
        derived = ("free_bytes", "live_bytes", "live_set_fits", "dead_bytes")
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in derived},
            "fitting_shape": self.fitting_shape,
        }


def headline(o: Overflow, site: Site | None) -> str:
    """What was asked, where, and what was free."""
    at = f" at {site}" if site else ""
    at += f" of kernel {o.kernel}" if o.kernel else ""
    at += f" on PE {o.pe}" if o.pe is not None else ""
    steps = [
        f"iteration {loop.iteration} of the loop at {loop.site}" for loop in o.loops
    ]
    at += f" in {', '.join(steps)}," if steps else ""
    tile = f"{o.dtype}[{','.join(map(str, o.shape))}]" if o.shape else "a slice"
    nth = f", number {o.nth} of this line," if o.nth > 1 and not o.loops else ""
    padding = o.aligned_bytes - o.requested_bytes
    known = "" if o.proven else " (a bound: too many iterations to enumerate)"
    free = max(o.free_bytes, 0)
    return (
        f"TLContext scratch overflow: {o.op}{at} asks for {o.requested_bytes:,} B "
        f"(+{padding} B padding) for {tile}{nth} at cursor {o.cursor_bytes:,} B"
        f"{known}, with {free:,} B free of a budget of {size_text(o.budget_bytes)}."
    )


def message(o: Overflow, site: Site | None) -> str:
    """The whole text but for the remedy; one line a question."""
    lines = [headline(o, site)]
    if o.scopes:
        lines.append(f"Open scopes: {'; '.join(map(str, o.scopes))}.")
    if o.live:
        groups = sorted(o.live, key=lambda group: -group.nbytes)
        lines.append(f"Held, {o.cursor_bytes:,} B, by kernel line:")
        lines += [f"  {group}" for group in groups[:_MOST_GROUPS]]
        rest = groups[_MOST_GROUPS:]
        if rest:
            others = sum(group.nbytes for group in rest)
            lines.append(f"  {others:,} B from {len(rest)} more")
        live = [group for group in groups if group.usable]
        largest = sorted(live, key=lambda group: -group.each_bytes)[:3]
        shown = "; ".join(f"{g.tile} {g.each_bytes:,} B ({g.site})" for g in largest)
        lines += [f"Largest live: {shown}."] if shown else []
        verdict = "would fit" if o.live_set_fits else "would not fit either"
        lines.append(
            f"The live set alone, what can still be used and this tile, is at most "
            f"{o.live_bytes:,} B: it {verdict}."
        )
    return "\n".join(lines)


def remedy(o: Overflow) -> str:
    """What to do, without a full stop: which scope gives back how many bytes, or which
    tile fits."""
    if o.aligned_bytes > o.budget_bytes:
        return f"No scope can help: take a smaller tile{_fitting(o)}, or {_raised(o)}"
    for loop in o.loops:
        growth = loop.growth_bytes or 0
        if loop.iteration and growth:
            return (
                f"Put the body of the loop at {loop.site} inside `with "
                f"tl.scratch_scope():`: it gives back {growth:,} B an iteration, "
                f"{growth * loop.iteration:,} B until here; keep running state in "
                "tiles made before the loop, with tl.copy_to"
            )
    if o.dead_bytes:
        dead = max(o.live, key=lambda group: group.nbytes - group.usable_bytes)
        nested = f", nested in scope {dead.scope}" if dead.scope else ""
        rest = "" if o.live_set_fits else f"; then take a smaller tile{_fitting(o)}"
        return (
            f"Put the work of one tile, {dead.site} among it, inside `with "
            f"tl.scratch_scope():`{nested}: that gives back {o.dead_bytes:,} B which "
            f"nothing can use any more; keep running state outside it with tl.copy_to"
            f"{rest}"
        )
    scope = ""
    if o.scopes:
        scope = f"scope {o.scopes[-1].scope} is rewound only at its end; "
    return (
        f"All that is held can still be used: {scope}take a smaller tile{_fitting(o)}, "
        "or nest a `with tl.scratch_scope():` around what is needed for a part of it "
        f"only, or {_raised(o)}"
    )


def _fitting(o: Overflow) -> str:
    shape = o.fitting_shape
    return f" ({o.dtype}[{','.join(map(str, shape))}] fits)" if shape else ""


def _raised(o: Overflow) -> str:
    needed = (o.cursor_bytes + o.aligned_bytes) / 2**20
    enough = f"{math.ceil(needed * 1000) / 1000:.3f}".rstrip("0").rstrip(".")
    return f"raise kernel_scratch_mb to {enough} or more"


def size_text(nbytes: int) -> str:
    """``1,048,576 B (1 MiB)``."""
    return f"{nbytes:,} B ({nbytes / 2**20:g} MiB)"
