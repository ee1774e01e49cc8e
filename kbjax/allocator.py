"""The scratch arena while a kernel is recorded: bump cursor, save points, lifetimes,
exact peak, and overflow found without running a loop's iterations.

The cursor is that of iteration 0 of every open loop. A rolled loop whose body leaves
the cursor g bytes higher moves each later iteration up by g, so what a body needs at
its highest, plus g times the last iteration, is the loop's exact peak.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kbjax import errors
from kbjax.dtypes import DType
from kbjax.expr import Var
from kbjax.hardware import PeTcm
from kbjax.program import Allocation, Shape
from kbjax.site import Site


@dataclass(frozen=True)
class Death:
    """How an allocation's bytes were given back: its scope or loop iteration ended."""

    cause: Literal["scope", "iteration"]
    site: Site


@dataclass(frozen=True)
class _LoopEvents:
    """What a finished rolled loop did to the cursor."""

    events: tuple[_Event, ...]
    trip: int
    growth_bytes: int
    scope_depth: int
    site: Site

    def highest(self) -> int:
        inner = max((_highest(e) for e in self.events), default=0)
        return inner + self.growth_bytes * (self.trip - 1)


_Event = Allocation | _LoopEvents


def _highest(event: _Event) -> int:
    if isinstance(event, Allocation):
        return event.cursor_bytes + event.aligned_bytes
    return event.highest()


@dataclass
class _OpenLoop:
    index: Var
    site: Site
    events: list[_Event]
    runs: bool
    start_bytes: int
    first_uid: int


@dataclass
class Arena:
    """The state of one recording's scratch. `cursor` and `peak` are bytes."""

    tcm: PeTcm
    cursor: int = 0
    peak: int = 0
    allocations: dict[int, Allocation] = field(default_factory=dict)
    deaths: dict[int, Death] = field(default_factory=dict)
    loop_sites: dict[Var, Site] = field(default_factory=dict)
    _next_uid: int = 0
    _scopes: list[tuple[int, int, Site]] = field(default_factory=list)
    _loops: list[_OpenLoop] = field(default_factory=list)

    @property
    def scope_depth(self) -> int:
        return len(self._scopes)

    @property
    def scope_sites(self) -> tuple[Site, ...]:
        return tuple(site for _, _, site in self._scopes)

    def _runs(self) -> bool:
        return all(loop.runs for loop in self._loops)

    def alive(self) -> Iterator[Allocation]:
        return (a for uid, a in self.allocations.items() if uid not in self.deaths)

    def death_of(self, allocation: Allocation) -> Death | None:
        """How `allocation` died, or None while its bytes are its own."""
        if self.allocations.get(allocation.uid) is allocation:
            return self.deaths.get(allocation.uid)
        # It belongs to a recording of a loop body that has been made again since.
        return Death("iteration", self.loop_sites[allocation.loops[-1]])

    def allocate(self, op: str, shape: Shape, dtype: DType, site: Site) -> Allocation:
        """Take the next aligned slice.

        Raises:
          ScratchOverflowError: when the cursor would pass the budget; it stays put.
        """
        nbytes = dtype.nbytes
        for size in shape:
            nbytes *= size
        made = Allocation(
            uid=self._next_uid,
            op=op,
            shape=shape,
            dtype=dtype,
            nbytes=nbytes,
            aligned_bytes=self.tcm.aligned(nbytes),
            cursor_bytes=self.cursor,
            loops=tuple(loop.index for loop in self._loops),
            scope_depth=self.scope_depth,
            site=site,
        )
        if self._runs():
            if _highest(made) > self.tcm.scratch_bytes:
                held = [(other, 1) for other in self.alive()]
                raise self._overflow(made, (), self.cursor, held)
            self.peak = max(self.peak, _highest(made))
            if self._loops:
                self._loops[-1].events.append(made)
        self.cursor += made.aligned_bytes
        self.allocations[made.uid] = made
        self._next_uid += 1
        return made

    # --- scopes ----------------------------------------------------------------------

    def enter_scope(self, site: Site) -> int:
        self._scopes.append((self.cursor, self._next_uid, site))
        return self.cursor

    def exit_scope(self) -> None:
        """Rewind to the innermost save point; what was allocated since is dead."""
        self.cursor, first_uid, site = self._scopes.pop()
        self._bury(first_uid, Death("scope", site))

    def _bury(self, first_uid: int, death: Death) -> None:
        for uid in range(first_uid, self._next_uid):
            self.deaths.setdefault(uid, death)

    # --- rolled loops ----------------------------------------------------------------

    def enter_loop(self, index: Var, site: Site, runs: bool) -> None:
        self.loop_sites[index] = site
        self._loops.append(
            _OpenLoop(index, site, [], runs, self.cursor, self._next_uid)
        )

    def end_iteration(self) -> int:
        """End the recorded iteration: its handles die. Gives the growth in bytes."""
        loop = self._loops[-1]
        self._bury(loop.first_uid, Death("iteration", loop.site))
        return self.cursor - loop.start_bytes

    def restart_iteration(self) -> int:
        """Back to the iteration's start, to record the body once more alike. Gives
        the uid from which on allocations are made anew."""
        loop = self._loops[-1]
        self.cursor = loop.start_bytes
        self._next_uid = loop.first_uid
        for uid in [uid for uid in self.allocations if uid >= loop.first_uid]:
            del self.allocations[uid]
            self.deaths.pop(uid, None)
        loop.events.clear()
        return loop.first_uid

    def exit_loop(self, trip: int | None) -> int:
        """Close the loop; the cursor goes to where its last iteration leaves it.

        Args:
          trip: how often the body runs, or None where that is symbolic; then the
            body must not have grown (the recorder checks it).

        Raises:
          ScratchOverflowError: naming the first allocation and iteration that does
            not fit.
        """
        loop = self._loops[-1]
        growth = self.end_iteration()
        assert growth == 0 or trip is not None, "symbolic loops do not grow"
        self._loops.pop()
        if not (loop.runs and self._runs()):
            self.cursor = loop.start_bytes
            return growth
        closed = _LoopEvents(
            tuple(loop.events), trip or 1, growth, self.scope_depth, loop.site
        )
        if closed.highest() > self.tcm.scratch_bytes:
            self.cursor = loop.start_bytes
            raise self._first_overflow(closed)
        self.peak = max(self.peak, closed.highest() if loop.events else 0)
        self.cursor = loop.start_bytes + growth * closed.trip
        if self._loops:
            self._loops[-1].events.append(closed)
        return growth

    def abandon_loop(self) -> None:
        """Drop the innermost loop, which was left before its end."""
        self.end_iteration()
        self.cursor = self._loops.pop().start_bytes

    # --- overflow --------------------------------------------------------------------

    def _first_overflow(self, loop: _LoopEvents) -> errors.ScratchOverflowError:
        budget = self.tcm.scratch_bytes
        iterations: list[tuple[Site, int]] = []
        held = [(made, 1) for made in self.alive()]
        shift = 0
        event: _Event = loop
        while isinstance(event, _LoopEvents):
            inner = max(_highest(e) for e in event.events) + shift
            room = budget - inner
            # The first iteration k with inner + k * growth > budget.
            k = 0 if room < 0 else room // event.growth_bytes + 1
            iterations.append((event.site, k))
            shift += k * event.growth_bytes
            held += _held(event, k)
            failing = next(e for e in event.events if _highest(e) + shift > budget)
            done = event.events[: event.events.index(failing)]
            held += _held(dataclasses.replace(event, events=done), 1)
            event = failing
        return self._overflow(event, iterations, event.cursor_bytes + shift, held)

    def _overflow(
        self,
        made: Allocation,
        iterations: Sequence[tuple[Site, int]],
        cursor: int,
        held: Sequence[tuple[Allocation, int]],
    ) -> errors.ScratchOverflowError:
        open_loops = [] if iterations else [(loop.site, 0) for loop in self._loops]
        overflow = errors.Overflow(
            op=made.op,
            requested_bytes=made.nbytes,
            aligned_bytes=made.aligned_bytes,
            cursor_bytes=cursor,
            budget_bytes=self.tcm.scratch_bytes,
            iterations=tuple(iterations) or tuple(open_loops),
            scopes=self.scope_sites,
            live=_grouped(held),
        )
        return errors.ScratchOverflowError(overflow, site=made.site)


def _held(loop: _LoopEvents, iterations: int) -> list[tuple[Allocation, int]]:
    """What `iterations` of the loop hold on to: (allocation, how many of them). What
    a scope inside the body has given back is not held."""
    found: list[tuple[Allocation, int]] = []
    for event in loop.events:
        if isinstance(event, _LoopEvents):
            inner = _held(event, event.trip) if event.growth_bytes else []
            found += [(made, n * iterations) for made, n in inner]
        elif event.scope_depth == loop.scope_depth:
            found.append((event, iterations))
    return [(made, n) for made, n in found if n]


def _grouped(
    held: Sequence[tuple[Allocation, int]],
) -> tuple[errors.LiveGroup, ...]:
    """By kernel line and op."""
    groups: dict[tuple[Site, str], list[tuple[Allocation, int]]] = {}
    for made, count in held:
        groups.setdefault((made.site, made.op), []).append((made, count))
    return tuple(
        errors.LiveGroup(
            site,
            op,
            sum(n for _, n in members),
            sum(made.aligned_bytes * n for made, n in members),
            members[0][0].scope_depth > 0,
        )
        for (site, op), members in groups.items()
    )
