"""Drawn kernels that only take scratch, and a bump allocator that runs every iteration
of them: the definition that plans and overflows are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import strategies as st

import kbjax as kb
from kbjax.hardware import PeTcm
from kbjax.overflow import Overflow
from kbjax.plan import Plan
from kbjax.site import ScopeLine

MIB = 1 << 20
HALF = (256, 512)  # float32, 512 KiB
OUT = jax.ShapeDtypeStruct((16,), "bool")  # one aligned slice
Work = Callable[[Any], object]


def call(kernel: Any, scratch_bytes: int = MIB, num_pes: int = 1) -> kb.KernelCall:
    """`kernel(tl, o)` with o: bool[16] a PE and so much scratch."""
    hardware = kb.Hardware(pe_tcm=PeTcm(kernel_scratch_mb=scratch_bytes / MIB))
    return kb.kernel_call(kernel, OUT, num_pes=num_pes, hardware=hardware)


def calling(work: Any, scratch_bytes: int = MIB, num_pes: int = 1) -> kb.KernelCall:
    """`work(tl)`, and then a store of a 16 byte tile that a scope ``io`` rewinds."""

    def kernel(tl: Any, o: Any) -> None:
        work(tl)
        with tl.scratch_scope("io"):
            tl.store(o, tl.full((16,), True, "bool"))

    return call(kernel, scratch_bytes, num_pes)


@dataclass(frozen=True)
class Take:
    """Allocate a tile bool[nbytes]."""

    nbytes: int


@dataclass(frozen=True)
class Scoped:
    """A scope; no two of a tree have the same name."""

    name: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Repeat:
    """A loop that runs `base + of_pe * program_id + of_outer * i` times, i being the
    index of the innermost loop around it."""

    base: int
    body: tuple[Any, ...]
    of_pe: int = 0
    of_outer: int = 0

    def trip(self, pe: Any, outer: Any) -> Any:
        """The trip count; an int where it is one."""
        trip: Any = self.base
        trip = trip + pe * self.of_pe if self.of_pe else trip
        return trip + outer * self.of_outer if self.of_outer else trip


IO = Scoped("io", (Take(16),))


def perform(tl: Any, body: tuple[Any, ...], outer: Any = 0) -> None:
    """The tree as a kernel's body."""
    for item in body:
        if isinstance(item, Take):
            tl.full((item.nbytes,), True, "bool")
        elif isinstance(item, Scoped):
            with tl.scratch_scope(item.name):
                perform(tl, item.body, outer)
        else:
            for i in tl.range(item.trip(tl.program_id(), outer)):
                perform(tl, item.body, i)


@st.composite
def trees(draw: st.DrawFn, symbolic: bool = True) -> tuple[Any, ...]:
    """Up to four levels deep. With `symbolic` some trip counts depend on the PE or on
    the loop around; such a loop's body is one scope."""
    numbers = iter(range(1000))

    def body(depth: int, looped: bool) -> tuple[Any, ...]:
        count = draw(st.integers(1, 3))
        return tuple(item(depth, looped) for _ in range(count))

    def item(depth: int, looped: bool) -> Any:
        kind = draw(st.sampled_from(("take", "scope", "loop") if depth else ("take",)))
        if kind == "take":
            return Take(draw(st.integers(1, 70)))
        if kind == "scope":
            return Scoped(f"s{next(numbers)}", body(depth - 1, looped))
        depends = draw(st.integers(0, 3)) if symbolic else 0
        if not depends:
            return Repeat(draw(st.integers(0, 4)), body(depth - 1, True))
        inside = Scoped(f"s{next(numbers)}", body(depth - 1, True))
        of_outer = draw(st.integers(-1, 1)) if looped else 0
        base, of_pe = draw(st.integers(-2, 3)), draw(st.integers(-1, 1))
        return Repeat(base, (inside,), of_pe, of_outer)

    return body(3, False)


@dataclass
class ScopeRow:
    """What a plan says of one scope, counted on one PE."""

    entered: int = 0
    high_water: int = 0
    live_at_exit: int = 0
    allocated: int = 0


Held = Counter[tuple[str, str]]  # (tile, name of the innermost scope) -> how many


@dataclass
class Replay:
    """A bump allocator that runs every iteration on one PE.

    Attributes:
      peaks: what is held at each moment of the peak.
      failed: (bytes asked, cursor, iterations, held, scopes) of the overflow; scopes
        as (name, what its end would give back).
      growth: how much higher the first iteration of each open loop left the cursor.
    """

    pe: int = 0
    budget_bytes: int = MIB
    cursor: int = 0
    peak: int = 0
    peaks: list[Held] = field(default_factory=list)
    rows: dict[str, ScopeRow] = field(default_factory=dict)
    failed: tuple[int, int, list[int], Held, list[tuple[str, int]]] | None = None
    growth: list[int | None] = field(default_factory=list)
    _held: list[tuple[str, str]] = field(default_factory=list)
    _open: list[tuple[str, int]] = field(default_factory=list)

    def run(self, body: tuple[Any, ...], iterations: tuple[int, ...] = ()) -> bool:
        """Whether all of it fitted."""
        return all(self._ran(item, iterations) for item in body)

    def _ran(self, item: Any, iterations: tuple[int, ...]) -> bool:
        if isinstance(item, Take):
            return self._took(item.nbytes, iterations)
        if isinstance(item, Scoped):
            mark, count = self.cursor, len(self._held)
            row = self.rows.setdefault(item.name, ScopeRow())
            row.entered += 1
            self._open.append((item.name, mark))
            if not self.run(item.body, iterations):
                return False
            self._open.pop()
            row.live_at_exit = max(row.live_at_exit, self.cursor - mark)
            self.cursor = mark
            del self._held[count:]
            return True
        trip = item.trip(self.pe, iterations[-1] if iterations else 0)
        self.growth.append(None)
        for i in range(trip):
            start = self.cursor
            if not self.run(item.body, (*iterations, i)):
                return False
            if self.growth[-1] is None:
                self.growth[-1] = self.cursor - start
        self.growth.pop()
        return True

    def _took(self, nbytes: int, iterations: tuple[int, ...]) -> bool:
        aligned = -(-nbytes // 16) * 16
        end = self.cursor + aligned
        if end > self.budget_bytes:
            given_back = [(name, self.cursor - mark) for name, mark in self._open]
            held = Counter(self._held)
            at = list(iterations)
            self.failed = (nbytes, self.cursor, at, held, given_back)
            return False
        scope = self._open[-1][0] if self._open else ""
        self._held.append((f"bool[{nbytes}]", scope))
        self.cursor = end
        for name, mark in self._open:
            row = self.rows[name]
            row.high_water = max(row.high_water, end - mark)
            row.allocated += aligned
        if end > self.peak:
            self.peak, self.peaks = end, []
        if end == self.peak:
            self.peaks.append(Counter(self._held))
        return True


def name_of(scope: ScopeLine | None) -> str:
    """The scope's name; nothing where there is none."""
    return scope.name if scope else ""


def merged(replays: list[Replay]) -> dict[str, ScopeRow]:
    """The largest of each figure over PEs."""
    found: dict[str, ScopeRow] = {}
    for name, row in _rows(replays):
        most = found.setdefault(name, ScopeRow())
        for figure, value in vars(row).items():
            setattr(most, figure, max(getattr(most, figure), value))
    return found


def _rows(replays: list[Replay]) -> Iterator[tuple[str, ScopeRow]]:
    for replay in replays:
        yield from replay.rows.items()


# --- overflows -----------------------------------------------------------------------


def two_halves(tl: Any) -> tuple[Any, Any]:
    """All of the default scratch."""
    return tl.zeros(HALF), tl.full(HALF, 1.0)


def refused(work: Work, scratch_bytes: int = MIB) -> kb.ScratchOverflowError:
    """The error of `work(tl)`, with all that holds of every one of them."""
    with pytest.raises(kb.ScratchOverflowError) as caught:
        calling(work, scratch_bytes).record()
    assert_consistent(caught.value.overflow)
    return caught.value


def assert_consistent(o: Overflow) -> None:
    """What is held adds up, and what is asked does not fit on top of it."""
    assert sum(group.nbytes for group in o.live) == o.cursor_bytes
    assert all(0 <= group.usable <= group.count for group in o.live)
    assert o.align_bytes == 16
    assert o.aligned_bytes == -(-o.requested_bytes // 16) * 16
    assert o.cursor_bytes + o.aligned_bytes > o.budget_bytes
    assert o.free_bytes == o.budget_bytes - o.cursor_bytes
    assert o.live_bytes + o.dead_bytes == o.cursor_bytes + o.aligned_bytes
    assert o.live_set_fits == (o.live_bytes <= o.budget_bytes)


def groups(o: Overflow) -> list[tuple[str, str, int, int, int, str]]:
    """What is held, as (op, tile, count, bytes, usable, name of the scope)."""
    return [
        (g.op, g.tile, g.count, g.nbytes, g.usable, name_of(g.scope)) for g in o.live
    ]


def steps(o: Overflow) -> list[tuple[int, int | None]]:
    """The loops, as (iteration, growth in bytes)."""
    return [(loop.iteration, loop.growth_bytes) for loop in o.loops]


# --- the bytes of a replay -----------------------------------------------------------


def assert_plan_is_of_the_bytes(plan: Plan, state: kb.TcmState) -> None:
    """Exact replay ends its cursor at the persistent bytes; it writes the last byte of
    the peak and none above (a float's highest byte is 0xFF in a NaN only)."""
    assert set(np.ravel(state.cursor).tolist()) == {plan.persistent_bytes}
    memory = np.asarray(state.memory).reshape(-1, state.memory.shape[-1])
    written = np.flatnonzero((memory != 0xFF).any(axis=0))
    assert written.max() == plan.peak_scratch_bytes - 1
