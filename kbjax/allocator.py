"""The scratch arena while a kernel is recorded: bump cursor, save points, lifetimes,
and overflow found without running a loop's iterations.

The cursor is that of iteration 0 of every open loop; kbjax.footprint says what the
later iterations do to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from kbjax import errors, footprint
from kbjax.domain import Domain
from kbjax.dtypes import DType, Shape
from kbjax.expr import Expr, Var
from kbjax.footprint import Allocation, Event, Held, LoopTrace, Moment, ScopeTrace
from kbjax.hardware import PeTcm
from kbjax.site import ScopeLine, Site


class Lease:
    """Held by a tile and its aliases: while one of them exists, the kernel can use the
    bytes."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True)
class Death:
    """How an allocation's bytes were given back: its scope or loop iteration ended, or
    the loop that made it was refused. `block` is what ended, as the kernel has it."""

    cause: Literal["scope", "iteration", "refused"]
    site: Site
    loop: Var | None = None
    block: str = ""


@dataclass(eq=False)
class Level:
    """A block that is being recorded: the kernel, a scope (`line`; of a `when` also
    `condition`), or a loop's body (`index`, `site`).

    Attributes:
      start_bytes, first_uid: the cursor and the next allocation where it began.
      domain, scope_depth, runs: the iterations that run it, the open scopes, itself
        among them, and whether there is such an iteration.
      events: what it has allocated so far.
    """

    start_bytes: int = 0
    first_uid: int = 0
    domain: Domain = field(default_factory=Domain)
    scope_depth: int = 0
    runs: bool = True
    line: ScopeLine | None = None
    condition: Expr | None = None
    index: Var | None = None
    site: Site | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """How a kernel writes it, if it is a `with` block."""
        return "scratch_scope" if self.condition is None else "when"


@dataclass
class Arena:
    """The state of one recording's scratch.

    Attributes:
      tcm: gives the alignment.
      budget_bytes: where an allocation overflows: the hardware's scratch, or None where
        only the footprint is asked for.
      kernel: its name, for messages.
      cursor: bytes.
      allocations: by uid, those of refused loops left out.
      growth_bytes: of each finished loop.
      levels: the open blocks, the kernel's own first.
    """

    tcm: PeTcm
    budget_bytes: int | None
    kernel: str = ""
    cursor: int = 0
    allocations: dict[int, Allocation] = field(default_factory=dict)
    deaths: dict[int, Death] = field(default_factory=dict)
    loop_sites: dict[Var, Site] = field(default_factory=dict)
    growth_bytes: dict[Var, int] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=lambda: [Level()])
    _leases: dict[int, weakref.ref[Lease]] = field(default_factory=dict)
    # Allocations made before the tile was out of reach, by uid.
    _released: dict[int, int] = field(default_factory=dict)
    _next_uid: int = 0

    @property
    def innermost(self) -> Level:
        return self.levels[-1]

    @property
    def events(self) -> tuple[Event, ...]:
        """What the kernel took outside all open scopes and loops, as a tree."""
        return tuple(self.levels[0].events)

    def alive(self) -> Iterator[Allocation]:
        return (a for uid, a in self.allocations.items() if uid not in self.deaths)

    def death_of(self, allocation: Allocation) -> Death | None:
        """How `allocation` died, or None while its bytes are its own."""
        if self.allocations.get(allocation.uid) is allocation:
            return self.deaths.get(allocation.uid)
        # It belongs to a first recording of a loop's body, or to a refused loop.
        loop = allocation.loops[-1]
        closed = loop in self.growth_bytes or loop in self.innermost.domain.loops
        return Death("iteration" if closed else "refused", self.loop_sites[loop], loop)

    def allocate(
        self, op: str, shape: Shape, dtype: DType, site: Site, slots: int = 0
    ) -> tuple[Allocation, Lease]:
        """Take the next aligned slice; `slots` is as in `Allocation`.

        Raises:
          ScratchOverflowError: when the cursor would pass the budget; it stays put.
            What overflows only in a later iteration of an open loop is found when that
            loop ends, since the cursor is not known before.
        """
        nbytes = dtype.nbytes
        for size in shape:
            nbytes *= size
        level = self.levels[-1]
        made = Allocation(
            uid=self._next_uid,
            op=op,
            shape=shape,
            dtype=dtype,
            nbytes=nbytes,
            aligned_bytes=self.tcm.aligned(nbytes),
            cursor_bytes=self.cursor,
            domain=level.domain,
            scope_depth=level.scope_depth,
            site=site,
            slots=slots,
        )
        if level.runs:
            if self._overflows(made.end_bytes):
                at = footprint.first_run(made.domain)
                if not any(at.get(loop, 0) for loop in made.loops):
                    now = Moment(made, at, self.cursor, (), self._open_scopes())
                    raise self._overflow(now, {})
            level.events.append(made)
        self.cursor = made.end_bytes
        self.allocations[made.uid] = made
        lease = Lease()
        self._leases[made.uid] = weakref.ref(lease, partial(self._release, made.uid))
        self._released.pop(made.uid, None)
        self._next_uid += 1
        return made, lease

    def _release(self, uid: int, lease: weakref.ref[Lease]) -> None:
        """The kernel has dropped its last name for a tile."""
        if self._leases.get(uid) is lease:
            self._released[uid] = self._next_uid

    def _overflows(self, end_bytes: int) -> bool:
        return self.budget_bytes is not None and end_bytes > self.budget_bytes

    # --- scopes ----------------------------------------------------------------------

    def enter_scope(self, line: ScopeLine, condition: Expr | None = None) -> Level:
        """Open a scope, which runs where the condition is not 0."""
        outer = self.innermost
        domain, runs = outer.domain, outer.runs
        if condition is not None:
            domain = domain.where(condition)
            runs = runs and not domain.never_runs()
        self.levels.append(
            Level(
                self.cursor,
                self._next_uid,
                domain,
                outer.scope_depth + 1,
                runs,
                line=line,
                condition=condition,
            )
        )
        return self.innermost

    def exit_scope(self) -> tuple[int, int]:
        """Rewind to the innermost save point; what was allocated since is dead.

        Returns:
          (mark, rewound): the save point, and how many bytes were given back.
        """
        scope = self.levels.pop()
        assert scope.line is not None
        rewound = self.cursor - scope.start_bytes
        self.cursor = scope.start_bytes
        death = Death("scope", scope.line.site, block=scope.kind)
        self._bury(scope.first_uid, death)
        if scope.runs:
            closed = ScopeTrace(
                scope.line,
                scope.start_bytes,
                tuple(scope.events),
                scope.domain,
                conditional=scope.condition is not None,
            )
            self.innermost.events.append(closed)
        return scope.start_bytes, rewound

    def _bury(self, first_uid: int, death: Death) -> None:
        for uid in range(first_uid, self._next_uid):
            self.deaths.setdefault(uid, death)

    # --- rolled loops ----------------------------------------------------------------

    def enter_loop(self, index: Var, site: Site, runs: bool) -> Level:
        """Open a loop's body; `runs`: whether it has an iteration at all."""
        outer = self.innermost
        self.loop_sites[index] = site
        self.levels.append(
            Level(
                self.cursor,
                self._next_uid,
                outer.domain.inside(index),
                outer.scope_depth,
                outer.runs and runs,
                index=index,
                site=site,
            )
        )
        return self.innermost

    def end_iteration(self) -> int:
        """End the recorded iteration: its handles die. Gives the growth in bytes."""
        loop = self.innermost
        assert loop.site is not None
        self._bury(loop.first_uid, Death("iteration", loop.site, loop.index))
        return self.cursor - loop.start_bytes

    def restart_iteration(self) -> None:
        """Back to the iteration's start, to record the body once more alike."""
        loop = self.innermost
        self._forget(loop)
        self._next_uid = loop.first_uid

    def _forget(self, level: Level) -> None:
        """What was allocated since the block's start has never been."""
        self.cursor = level.start_bytes
        for uid in range(level.first_uid, self._next_uid):
            self.allocations.pop(uid, None)
            self._leases.pop(uid, None)
            self._released.pop(uid, None)
            self.deaths.pop(uid, None)
        level.events.clear()

    def exit_loop(self) -> int:
        """Close the loop; the cursor goes to where its last iteration leaves it. A body
        that grows has a static trip count (the recorder checks it).

        Returns:
          How much higher each iteration leaves the cursor, in bytes.

        Raises:
          ScratchOverflowError: naming the first allocation and iteration that does
            not fit.
        """
        loop = self.innermost
        assert loop.index is not None and loop.site is not None
        growth = self.end_iteration()
        closed = LoopTrace(loop.index, growth, tuple(loop.events), loop.site)
        if self._overflows(closed.highest_bytes):
            assert self.budget_bytes is not None
            around = self._open_scopes()
            found = footprint.moment((closed,), self.budget_bytes, around)
            at = {**footprint.first_run(found.made.domain), **found.iterations}
            if not any(at.get(open_, 0) for open_ in loop.domain.loops[:-1]):
                loop.events.clear()
                found = replace(found, iterations=at)
                problem = self._overflow(found, footprint.growths((closed,)))
                self.abandon(loop)
                raise problem
        self.levels.pop()
        self.cursor = loop.start_bytes
        self.growth_bytes[loop.index] = growth
        if loop.runs:
            self.cursor += growth * closed.trip
            self.innermost.events.append(closed)
        return growth

    def abandon(self, level: Level) -> None:
        """Drop a block that was refused or left before its end, as if it had never
        been, with what is open inside it. Its allocations' uids are not given again."""
        if level in self.levels:
            self._forget(level)
            del self.levels[self.levels.index(level) :]

    # --- overflow --------------------------------------------------------------------

    def _open_scopes(self) -> tuple[tuple[ScopeLine, int], ...]:
        return tuple((one.line, one.start_bytes) for one in self.levels if one.line)

    def _overflow(
        self, moment: Moment, growths: Mapping[Var, int]
    ) -> errors.ScratchOverflowError:
        """The moment, with what the open levels hold in front."""
        held: list[Held] = []
        scope = None
        for level in self.levels:
            scope = level.line or scope
            held += footprint.left_by(level.events, scope)
        held += moment.held
        at = moment.made.uid
        whole = replace(moment, held=tuple(self._in_reach(one, at) for one in held))
        assert self.budget_bytes is not None
        event = footprint.overflow(
            whole,
            self.budget_bytes,
            self.kernel,
            self.loop_sites,
            growths,
            self.tcm.align,
        )
        return errors.ScratchOverflowError(event, site=moment.made.site)

    def _in_reach(self, held: Held, at: int) -> Held:
        """Whether the kernel still had a name for the tile when allocation `at` was
        made."""
        gone = self._released.get(held.made.uid, at + 1) <= at
        return replace(held, usable=0) if gone else held
