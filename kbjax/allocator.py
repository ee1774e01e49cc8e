"""The scratch arena while a kernel is recorded: bump cursor, save points, lifetimes,
exact peak, and overflow found without running a loop's iterations.

The cursor is that of iteration 0 of every open loop; kbjax.growth says what the later
iterations do to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kbjax import errors
from kbjax.dtypes import DType
from kbjax.expr import Var
from kbjax.growth import Event, LoopGrowth, Overrun, first_overrun, held_by, highest
from kbjax.hardware import PeTcm
from kbjax.program import Allocation, Shape
from kbjax.site import Site


@dataclass(frozen=True)
class Death:
    """How an allocation's bytes were given back: its scope or loop iteration ended."""

    cause: Literal["scope", "iteration"]
    site: Site


@dataclass
class _OpenLoop:
    index: Var
    site: Site
    events: list[Event]
    runs: bool
    start_bytes: int
    first_uid: int
    peak_before: int


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
    _finished: list[tuple[int, LoopGrowth]] = field(default_factory=list)

    @property
    def scope_depth(self) -> int:
        return len(self._scopes)

    @property
    def scope_sites(self) -> tuple[Site, ...]:
        return tuple(site for _, _, site in self._scopes)

    def runs(self) -> bool:
        """Whether every open loop has an iteration that runs."""
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
        if self.runs():
            if highest(made) > self.tcm.scratch_bytes:
                raise self._overflow(Overrun(made, {}, self.cursor, ()))
            self.peak = max(self.peak, highest(made))
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
        self._finished = [one for one in self._finished if one[0] < self.cursor]
        self._bury(first_uid, Death("scope", site))

    def _bury(self, first_uid: int, death: Death) -> None:
        for uid in range(first_uid, self._next_uid):
            self.deaths.setdefault(uid, death)

    # --- rolled loops ----------------------------------------------------------------

    def enter_loop(self, index: Var, site: Site, runs: bool) -> None:
        self.loop_sites[index] = site
        self._loops.append(
            _OpenLoop(index, site, [], runs, self.cursor, self._next_uid, self.peak)
        )

    def end_iteration(self) -> int:
        """End the recorded iteration: its handles die. Gives the growth in bytes."""
        loop = self._loops[-1]
        self._bury(loop.first_uid, Death("iteration", loop.site))
        return self.cursor - loop.start_bytes

    def restart_iteration(self) -> None:
        """Back to the iteration's start, to record the body once more alike."""
        loop = self._loops[-1]
        self.cursor = loop.start_bytes
        self._finished = [one for one in self._finished if one[0] < self.cursor]
        self._next_uid = loop.first_uid
        for uid in [uid for uid in self.allocations if uid >= loop.first_uid]:
            del self.allocations[uid]
            self.deaths.pop(uid, None)
        loop.events.clear()

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
        if not (loop.runs and self.runs()):
            self._loops.pop()
            self.cursor = loop.start_bytes
            return growth
        closed = LoopGrowth(loop.index, tuple(loop.events), growth, self.scope_depth)
        if highest(closed) > self.tcm.scratch_bytes:
            self.cursor = loop.start_bytes
            problem = self._overflow(first_overrun(closed, self.tcm.scratch_bytes))
            self.abandon_loop()
            raise problem
        self._loops.pop()
        self.cursor = loop.start_bytes
        self.peak = max(self.peak, highest(closed))
        self.cursor += growth * closed.trip
        if self._loops:
            self._loops[-1].events.append(closed)
        if growth:
            self._finished.append((loop.start_bytes, closed))
        return growth

    def abandon_loop(self) -> None:
        """Drop the innermost loop, which was refused or left before its end, as if it
        had never been."""
        self.restart_iteration()
        self.peak = self._loops.pop().peak_before

    # --- overflow --------------------------------------------------------------------

    def _overflow(self, overrun: Overrun) -> errors.ScratchOverflowError:
        made = overrun.made
        held = [(other, 1) for other in self.alive()]
        for start, loop in self._finished:
            if start < self.cursor:
                held += held_by(loop, loop.trip)
        overflow = errors.Overflow(
            op=made.op,
            requested_bytes=made.nbytes,
            aligned_bytes=made.aligned_bytes,
            cursor_bytes=overrun.cursor_bytes,
            budget_bytes=self.tcm.scratch_bytes,
            iterations=tuple(
                (self.loop_sites[loop], overrun.iterations.get(loop, 0))
                for loop in made.loops
            ),
            scopes=self.scope_sites,
            live=_grouped([*held, *overrun.held]),
        )
        return errors.ScratchOverflowError(overflow, site=made.site)


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
