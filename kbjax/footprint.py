"""What a kernel takes of the scratch: a tree of allocations, scopes and rolled loops,
and what follows from it without running a loop's iterations.

A loop body that leaves the cursor g bytes higher moves each later iteration up by g.
What the body needs at its highest, plus g times the last iteration, is the loop's exact
peak, and the first iteration that passes a limit follows by division. Only where an
inner loop does not run in every iteration are iterations enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kbjax import expr
from kbjax.domain import Domain
from kbjax.dtypes import DType, Shape, type_text
from kbjax.expr import Expr, Var
from kbjax.overflow import LiveGroup, LoopStep, OpenScope, Overflow
from kbjax.site import ScopeLine, Site


@dataclass(frozen=True)
class Allocation:
    """A slice of scratch: what one `tl` call was given.

    `cursor_bytes` is its offset in the arena in iteration 0 of every loop around it; a
    loop that grows by g bytes an iteration adds g times its index. `domain` is the
    iterations that make it; `slots` how many tiles a circular buffer is, one after the
    other, and 0 for a tile.
    """

    uid: int
    op: str
    shape: Shape
    dtype: DType
    nbytes: int
    aligned_bytes: int
    cursor_bytes: int
    domain: Domain
    scope_depth: int
    site: Site = field(compare=False)
    slots: int = 0

    @property
    def loops(self) -> tuple[Var, ...]:
        """The loops around it, outermost first."""
        return self.domain.loops

    @property
    def end_bytes(self) -> int:
        """The cursor after it."""
        return self.cursor_bytes + self.aligned_bytes

    highest_bytes = end_bytes

    @property
    def tile(self) -> str:
        """``float32[8,128]``."""
        return type_text(self.shape, self.dtype)


@dataclass(frozen=True)
class ScopeTrace:
    """What was allocated in one `scratch_scope` or `when`, in order; its end goes back
    to `mark_bytes`. `domain` is the iterations that enter it."""

    line: ScopeLine = field(compare=False)
    mark_bytes: int
    events: tuple[Event, ...]
    domain: Domain
    conditional: bool = False

    @cached_property
    def highest_bytes(self) -> int:
        """The highest cursor over all iterations of the loops inside."""
        return highest(self.events)

    @cached_property
    def is_static(self) -> bool:
        """Whether it is always entered, and every loop inside has a static trip
        count."""
        return not self.conditional and _all_static(self.events)


@dataclass(frozen=True)
class LoopTrace:
    """What the body of a rolled loop allocated, in order, and how much higher each
    iteration leaves the cursor."""

    index: Var
    growth_bytes: int
    events: tuple[Event, ...]
    site: Site = field(compare=False)

    @property
    def trip(self) -> int:
        """The trip count; 1 where it is symbolic, since then nothing grows."""
        return self.index.trip.const if self.index.trip.is_const else 1

    @cached_property
    def highest_bytes(self) -> int:
        """The highest cursor over all iterations: exact, or safe where there are too
        many to enumerate."""
        if not self.events:  # it never runs
            return 0
        if self.growth_bytes and not _all_static(self.events):
            return max(
                made.domain.highest(_end(made, path))
                for made, path in _allocations((self,))
            )
        return highest(self.events) + self.growth_bytes * (self.trip - 1)

    @cached_property
    def is_static(self) -> bool:
        """Whether it and every loop inside has a static trip count."""
        return self.index.trip.is_const and _all_static(self.events)


Event = Allocation | ScopeTrace | LoopTrace


def highest(events: Sequence[Event]) -> int:
    """The highest cursor that the events reach, in bytes; 0 where there are none."""
    return max((event.highest_bytes for event in events), default=0)


def _all_static(events: Sequence[Event]) -> bool:
    return all(isinstance(event, Allocation) or event.is_static for event in events)


def walk(events: Sequence[Event]) -> Iterator[Event]:
    """Every event, outer ones before what they enclose."""
    for event in events:
        yield event
        if not isinstance(event, Allocation):
            yield from walk(event.events)


def growths(events: Sequence[Event]) -> dict[Var, int]:
    """How much higher each iteration of each loop leaves the cursor."""
    loops = (event for event in walk(events) if isinstance(event, LoopTrace))
    return {loop.index: loop.growth_bytes for loop in loops}


# --- what holds scratch --------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Slices of scratch that have not been given back: `count` like `made`.

    Attributes:
      made, count: what was allocated, and how many of it.
      usable: at most how many are tiles that the kernel may still use; the others died
        with the loop iteration that made them, or nothing refers to them.
      scope: the innermost scope around them.
    """

    made: Allocation
    count: int
    usable: int
    scope: ScopeLine | None

    @property
    def nbytes(self) -> int:
        return self.made.aligned_bytes * self.count


@dataclass(frozen=True)
class Moment:
    """An allocation in one iteration of the loops around it.

    Attributes:
      made: the allocation.
      iterations: the iteration of each loop around it (0 where it is left out), and the
        PE where that matters.
      cursor_bytes: the cursor before it, which is the sum of `held`.
      held: what had not been given back before it, in order.
      scopes: (scope, cursor at its start) of the scopes around it, outermost first.
      proven: False where there are too many iterations to enumerate, and the limit may
        hold.
    """

    made: Allocation
    iterations: Mapping[Var, int]
    cursor_bytes: int
    held: tuple[Held, ...]
    scopes: tuple[tuple[ScopeLine, int], ...]
    proven: bool = True

    @property
    def holding(self) -> tuple[Held, ...]:
        """What holds scratch right after the allocation."""
        scope = self.scopes[-1][0] if self.scopes else None
        return (*self.held, Held(self.made, 1, 1, scope))


def left_by(events: Sequence[Event], scope: ScopeLine | None = None) -> list[Held]:
    """What the events have not given back when they are over; `scope` is the innermost
    one around them."""
    found: list[Held] = []
    for event in events:
        if isinstance(event, Allocation):
            found.append(Held(event, 1, 1, scope))
        elif isinstance(event, LoopTrace) and event.growth_bytes:
            found += _repeated(left_by(event.events, scope), event.trip)
    return found


def _repeated(held: Sequence[Held], iterations: int) -> list[Held]:
    """What that many iterations have left; their tiles died with them."""
    if not iterations:
        return []
    return [replace(one, count=one.count * iterations, usable=0) for one in held]


def grouped(held: Sequence[Held]) -> tuple[LiveGroup, ...]:
    """By kernel line, op, type and scope, in the order in which they were made."""
    groups: dict[tuple[object, ...], LiveGroup] = {}
    for one in held:
        made = one.made
        key = (made.site, made.op, made.tile, one.scope)
        before = groups.get(key)
        groups[key] = LiveGroup(
            site=made.site,
            op=made.op,
            tile=made.tile,
            count=one.count + (before.count if before else 0),
            nbytes=one.nbytes + (before.nbytes if before else 0),
            usable=one.usable + (before.usable if before else 0),
            scope=one.scope,
        )
    return tuple(groups.values())


def overflow(
    moment_: Moment,
    budget_bytes: int,
    kernel: str,
    sites: Mapping[Var, Site],
    growth_bytes: Mapping[Var, int],
    align_bytes: int,
) -> Overflow:
    """The moment as the event of an overflow.

    Args:
      moment_: of the allocation that does not fit.
      budget_bytes: of the scratch.
      kernel: its name.
      sites: the line of each loop.
      growth_bytes: of the loops whose bodies have been recorded.
      align_bytes: of allocations.
    """
    made, at = moment_.made, moment_.iterations
    return Overflow(
        op=made.op,
        requested_bytes=made.nbytes,
        aligned_bytes=made.aligned_bytes,
        cursor_bytes=moment_.cursor_bytes,
        budget_bytes=budget_bytes,
        kernel=kernel,
        pe=next((number for var, number in at.items() if var.is_pe), None),
        shape=made.shape,
        dtype=made.dtype.name,
        align_bytes=align_bytes,
        proven=moment_.proven,
        nth=1
        + sum(
            one.count
            for one in moment_.held
            if (one.made.site, one.made.op) == (made.site, made.op)
        ),
        loops=tuple(
            LoopStep(sites[loop], at.get(loop, 0), growth_bytes.get(loop))
            for loop in made.loops
        ),
        scopes=tuple(
            OpenScope(scope, moment_.cursor_bytes - mark)
            for scope, mark in moment_.scopes
        ),
        live=grouped(moment_.held),
    )


# --- the first allocation that ends above a limit ------------------------------------

# Where an allocation stands: for each level, outermost first, its events and the place
# of the one that it lies in or is.
_Path = tuple[tuple[Sequence[Event], int], ...]


def first_run(domain: Domain) -> dict[Var, int]:
    """The first iteration that runs; where a loop is left out it is 0."""
    return domain.find(expr.const(1))[1] or {}


def moment(
    events: Sequence[Event],
    limit_bytes: int,
    around: Sequence[tuple[ScopeLine, int]] = (),
) -> Moment:
    """The first allocation, in execution order, that ends above the limit; one does.

    With the peak less one byte as the limit it is the moment of the peak.

    Args:
      events: whose loops, and what they hold, the moment speaks of.
      limit_bytes: a cursor.
      around: the scopes around the events, as in `Moment.scopes`.
    """
    path, iterations, proven = _first_above(events, limit_bytes)
    held: list[Held] = []
    scopes = list(around)
    shift = 0
    for level, place in path:
        event = level[place]
        scope = scopes[-1][0] if scopes else None
        held += left_by(level[:place], scope)
        if isinstance(event, LoopTrace):
            done = iterations.get(event.index, 0)
            held += _repeated(left_by(event.events, scope), done)
            shift += event.growth_bytes * done
        elif isinstance(event, ScopeTrace):
            scopes.append((event.line, event.mark_bytes + shift))
    assert isinstance(event, Allocation)
    cursor = event.cursor_bytes + shift
    return Moment(event, iterations, cursor, tuple(held), tuple(scopes), proven)


def _first_above(
    events: Sequence[Event], limit_bytes: int
) -> tuple[_Path, dict[Var, int], bool]:
    path: _Path = ()
    iterations: dict[Var, int] = {}
    while True:
        place = next(n for n, e in enumerate(events) if e.highest_bytes > limit_bytes)
        path = (*path, (events, place))
        event = events[place]
        if isinstance(event, Allocation):
            return path, iterations, True
        if not event.is_static:
            inner, found, proven = _enumerated(event, limit_bytes)
            return path + inner, iterations | found, proven
        events = event.events
        if isinstance(event, LoopTrace):
            room = limit_bytes - highest(events)
            # The first iteration k with highest + k * growth > limit.
            k = 0 if room < 0 else room // event.growth_bytes + 1
            iterations[event.index] = k
            limit_bytes -= k * event.growth_bytes


def _enumerated(event: Event, limit_bytes: int) -> tuple[_Path, dict[Var, int], bool]:
    """The path from `event` on, where loops inside do not run alike, and whether it is
    proven; what is proven comes first."""
    best: tuple[tuple[bool, list[tuple[int, int]]], _Path, dict[Var, int]] | None = None
    for made, path in _allocations((event,)):
        bad = expr.predicate("lt", expr.const(limit_bytes), _end(made, path))
        decided, at = made.domain.find(bad)
        if decided and at is None:
            continue
        iterations = dict(at or {})
        order = []  # of execution: place and iteration, level by level
        for level, place in path:
            inner = level[place]
            loop = inner.index if isinstance(inner, LoopTrace) else None
            order.append((place, iterations.get(loop, 0) if loop else 0))
        if best is None or (not decided, order) < best[0]:
            best = ((not decided, order), path[1:], iterations)
    assert best is not None
    return best[1], best[2], not best[0][0]


def _allocations(
    events: Sequence[Event], path: _Path = ()
) -> Iterator[tuple[Allocation, _Path]]:
    """Each allocation with its path."""
    for place, event in enumerate(events):
        here = (*path, (events, place))
        if isinstance(event, Allocation):
            yield event, here
        else:
            yield from _allocations(event.events, here)


def _end(made: Allocation, path: _Path) -> Expr:
    """The cursor after the allocation, in the indices of the path's loops."""
    total = expr.const(made.end_bytes)
    for level, place in path:
        event = level[place]
        if isinstance(event, LoopTrace):
            grown = expr.scale(expr.var(event.index), event.growth_bytes)
            total = expr.add(total, grown)
    return total
