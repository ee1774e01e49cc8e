"""The scratch arena while a kernel is recorded: bump cursor, save points, lifetimes,
exact peak, and overflow found without running a loop's iterations.

The cursor is that of iteration 0 of every open loop; kbjax.footprint says what the
later iterations do to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kbjax import errors, footprint
from kbjax.dtypes import DType, Shape
from kbjax.expr import Var
from kbjax.footprint import (
    Allocation,
    Event,
    Held,
    LoopTrace,
    Moment,
    ScopeTrace,
    scope_text,
)
from kbjax.hardware import PeTcm
from kbjax.overflow import LiveGroup, LoopStep, OpenScope, Overflow
from kbjax.site import Site


class Lease:
    """Held by a tile and its aliases: while one of them exists, the kernel can use the
    bytes."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True)
class Death:
    """How an allocation's bytes were given back: its scope or loop iteration ended."""

    cause: Literal["scope", "iteration"]
    site: Site
    loop: Var | None = None


@dataclass
class _Level:
    """A block that is being recorded: the kernel, a scope, or a loop's body."""

    start_bytes: int
    first_uid: int
    events: list[Event] = field(default_factory=list)


@dataclass
class _OpenScope(_Level):
    name: str = field(kw_only=True)
    site: Site = field(kw_only=True)

    @property
    def scope(self) -> str:
        return scope_text(self.name, self.site)


@dataclass
class _OpenLoop(_Level):
    index: Var = field(kw_only=True)
    site: Site = field(kw_only=True)
    runs: bool = field(kw_only=True)
    peak_before: int = field(kw_only=True)


@dataclass
class Arena:
    """The state of one recording's scratch. `cursor` and `peak` are bytes.

    `budget_bytes` is where an allocation overflows: the hardware's scratch, or None
    where only the footprint is asked for. `kernel` is the kernel's name.
    """

    tcm: PeTcm
    budget_bytes: int | None
    kernel: str = ""
    cursor: int = 0
    peak: int = 0
    allocations: dict[int, Allocation] = field(default_factory=dict)
    deaths: dict[int, Death] = field(default_factory=dict)
    loop_sites: dict[Var, Site] = field(default_factory=dict)
    _leases: dict[int, weakref.ref[Lease]] = field(default_factory=dict)
    _next_uid: int = 0
    _levels: list[_Level] = field(default_factory=lambda: [_Level(0, 0)])

    @property
    def _loops(self) -> list[_OpenLoop]:
        return [level for level in self._levels if isinstance(level, _OpenLoop)]

    @property
    def _scopes(self) -> list[_OpenScope]:
        return [level for level in self._levels if isinstance(level, _OpenScope)]

    @property
    def scope_depth(self) -> int:
        return len(self._scopes)

    @property
    def scope_sites(self) -> tuple[Site, ...]:
        return tuple(scope.site for scope in self._scopes)

    @property
    def level_loops(self) -> list[Var | None]:
        """For each open block, the kernel's first, the loop whose body it is."""
        return [
            level.index if isinstance(level, _OpenLoop) else None
            for level in self._levels
        ]

    @property
    def innermost_loop(self) -> Site | None:
        """The line of the loop whose body is being recorded, unless a scope is open
        inside it."""
        level = self._levels[-1]
        return level.site if isinstance(level, _OpenLoop) else None

    @property
    def events(self) -> tuple[Event, ...]:
        """What the kernel took outside all open scopes and loops, as a tree."""
        return tuple(self._levels[0].events)

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
        loop = allocation.loops[-1]
        return Death("iteration", self.loop_sites[loop], loop)

    def allocate(
        self, op: str, shape: Shape, dtype: DType, site: Site
    ) -> tuple[Allocation, Lease]:
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
            if self._overflows(made.end_bytes):
                now = Moment(made, {}, self.cursor, (), self._open_scopes())
                raise self._overflow(self._with_open(now), {})
            self.peak = max(self.peak, made.end_bytes)
            self._levels[-1].events.append(made)
        self.cursor = made.end_bytes
        self.allocations[made.uid] = made
        lease = Lease()
        self._leases[made.uid] = weakref.ref(lease)
        self._next_uid += 1
        return made, lease

    def _overflows(self, end_bytes: int) -> bool:
        return self.budget_bytes is not None and end_bytes > self.budget_bytes

    # --- scopes ----------------------------------------------------------------------

    def enter_scope(self, name: str, site: Site) -> None:
        self._levels.append(
            _OpenScope(self.cursor, self._next_uid, name=name, site=site)
        )

    def exit_scope(self) -> tuple[int, int]:
        """Rewind to the innermost save point; what was allocated since is dead.

        Returns:
          (mark, rewound): the save point, and how many bytes were given back.
        """
        scope = self._levels.pop()
        assert isinstance(scope, _OpenScope)
        rewound = self.cursor - scope.start_bytes
        self.cursor = scope.start_bytes
        self._bury(scope.first_uid, Death("scope", scope.site))
        if self.runs() and scope.events:
            events = tuple(scope.events)
            closed = ScopeTrace(scope.name, scope.start_bytes, events, scope.site)
            self._levels[-1].events.append(closed)
        return scope.start_bytes, rewound

    def _bury(self, first_uid: int, death: Death) -> None:
        for uid in range(first_uid, self._next_uid):
            self.deaths.setdefault(uid, death)

    # --- rolled loops ----------------------------------------------------------------

    def enter_loop(self, index: Var, site: Site, runs: bool) -> None:
        self.loop_sites[index] = site
        self._levels.append(
            _OpenLoop(
                self.cursor, self._next_uid, index=index, site=site, runs=runs,
                peak_before=self.peak,
            )
        )  # fmt: skip

    def end_iteration(self) -> int:
        """End the recorded iteration: its handles die. Gives the growth in bytes."""
        loop = self._loops[-1]
        self._bury(loop.first_uid, Death("iteration", loop.site, loop.index))
        return self.cursor - loop.start_bytes

    def restart_iteration(self) -> None:
        """Back to the iteration's start, to record the body once more alike."""
        loop = self._loops[-1]
        self.cursor = loop.start_bytes
        self._next_uid = loop.first_uid
        for uid in [uid for uid in self.allocations if uid >= loop.first_uid]:
            del self.allocations[uid], self._leases[uid]
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
        closed = LoopTrace(loop.index, growth, tuple(loop.events), loop.site)
        end = footprint.highest(closed)
        if self._overflows(end):
            assert self.budget_bytes is not None
            found = footprint.moment((closed,), self.budget_bytes, self._open_scopes())
            loop.events.clear()
            problem = self._overflow(
                self._with_open(found), footprint.growths((closed,))
            )
            self.abandon_loop()
            raise problem
        self._levels.pop()
        self.cursor = loop.start_bytes
        if closed.events:  # so it runs
            self.peak = max(self.peak, end)
            self.cursor += growth * closed.trip
            self._levels[-1].events.append(closed)
        return growth

    def abandon_loop(self) -> None:
        """Drop the innermost loop, which was refused or left before its end, as if it
        had never been, with what is open inside it."""
        while not isinstance(self._levels[-1], _OpenLoop):
            self._levels.pop()
        self.restart_iteration()
        self.peak = self._loops[-1].peak_before
        self._levels.pop()

    # --- overflow --------------------------------------------------------------------

    def _open_scopes(self) -> tuple[tuple[str, int], ...]:
        return tuple((scope.scope, scope.start_bytes) for scope in self._scopes)

    def _with_open(self, moment: Moment) -> Moment:
        """The moment with the open loops, and what the open levels hold, in front."""
        held: list[Held] = []
        scope = ""
        for level in self._levels:
            scope = level.scope if isinstance(level, _OpenScope) else scope
            held += footprint.left_by(level.events, scope)
        return replace(
            moment,
            iterations={**dict.fromkeys(moment.made.loops, 0), **moment.iterations},
            held=(*map(self._in_reach, held), *moment.held),
        )

    def _in_reach(self, held: Held) -> Held:
        """Whether the kernel still has a name for the tile."""
        lease = self._leases.get(held.made.uid)
        gone = held.made.uid not in self.deaths and lease is not None and not lease()
        return replace(held, usable=0) if gone else held

    def _overflow(
        self, moment: Moment, growths: Mapping[Var, int]
    ) -> errors.ScratchOverflowError:
        made = moment.made
        assert self.budget_bytes is not None
        overflow = Overflow(
            op=made.op,
            requested_bytes=made.nbytes,
            aligned_bytes=made.aligned_bytes,
            cursor_bytes=moment.cursor_bytes,
            budget_bytes=self.budget_bytes,
            kernel=self.kernel,
            shape=made.shape,
            dtype=made.dtype.name,
            nth=1 + sum(h.count for h in moment.held if h.made.site == made.site),
            loops=tuple(
                LoopStep(
                    self.loop_sites[loop], moment.iterations[loop], growths.get(loop, 0)
                )
                for loop in made.loops
            ),
            scopes=tuple(
                OpenScope(scope, moment.cursor_bytes - mark)
                for scope, mark in moment.scopes
            ),
            live=_grouped(moment.held),
        )
        return errors.ScratchOverflowError(overflow, site=made.site)


def _grouped(held: Sequence[Held]) -> tuple[LiveGroup, ...]:
    """By kernel line, op and type."""
    groups: dict[tuple[Site, str, str, str], list[Held]] = {}
    for one in held:
        made = one.made
        key = (made.site, made.op, made.tile, one.scope)
        groups.setdefault(key, []).append(one)
    return tuple(
        LiveGroup(
            site,
            op,
            tile,
            count=sum(one.count for one in members),
            nbytes=sum(one.nbytes for one in members),
            usable=sum(one.usable for one in members),
            scope=scope,
        )
        for (site, op, tile, scope), members in groups.items()
    )
