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

from kbjax import expr
from kbjax.domain import Domain
from kbjax.dtypes import DType, Shape, type_text
from kbjax.expr import Expr, Var
from kbjax.site import Site


@dataclass(frozen=True)
class Allocation:
    """A slice of scratch: what one `tl` call was given.

    `cursor_bytes` is its offset in the arena in iteration 0 of every loop in `loops`;
    a loop that grows by g bytes an iteration adds g times its index.
    """

    uid: int
    op: str
    shape: Shape
    dtype: DType
    nbytes: int
    aligned_bytes: int
    cursor_bytes: int
    loops: tuple[Var, ...]
    scope_depth: int
    site: Site = field(compare=False)

    @property
    def end_bytes(self) -> int:
        """The cursor after it."""
        return self.cursor_bytes + self.aligned_bytes

    @property
    def tile(self) -> str:
        """``float32[8,128]``."""
        return type_text(self.shape, self.dtype)


@dataclass(frozen=True)
class ScopeTrace:
    """What was allocated in one `scratch_scope`, in order; its end goes back to
    `mark_bytes`."""

    name: str
    mark_bytes: int
    events: tuple[Event, ...]
    site: Site = field(compare=False)

    @property
    def scope(self) -> str:
        """As text."""
        return scope_text(self.name, self.site)


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


Event = Allocation | ScopeTrace | LoopTrace


@dataclass(frozen=True)
class Held:
    """Slices of scratch that have not been given back: `count` like `made`.

    Attributes:
      made, count: what was allocated, and how many of it.
      usable: how many are tiles that the kernel may still use; the others died with
        the loop iteration that made them.
      scope: the innermost scope around them, as text, or "".
    """

    made: Allocation
    count: int
    usable: int
    scope: str

    @property
    def nbytes(self) -> int:
        return self.made.aligned_bytes * self.count


@dataclass(frozen=True)
class Moment:
    """An allocation in one iteration of the loops around it.

    Attributes:
      made: the allocation.
      iterations: the iteration of each loop around it.
      cursor_bytes: the cursor before it, which is the sum of `held`.
      held: what had not been given back before it, in order.
      scopes: (scope, cursor at its start) of the scopes around it, outermost first.
    """

    made: Allocation
    iterations: Mapping[Var, int]
    cursor_bytes: int
    held: tuple[Held, ...]
    scopes: tuple[tuple[str, int], ...]

    @property
    def holding(self) -> tuple[Held, ...]:
        """What holds scratch right after the allocation."""
        scope = self.scopes[-1][0] if self.scopes else ""
        return (*self.held, Held(self.made, 1, 1, scope))


def scope_text(name: str, site: Site) -> str:
    """``'keys' of kernel.py:12``; the name is left out where there is none."""
    return f"{name!r} of {site}" if name else str(site)


def highest(event: Event) -> int:
    """The highest cursor that the event reaches over all iterations, in bytes."""
    if isinstance(event, Allocation):
        return event.end_bytes
    if isinstance(event, ScopeTrace) or not event.events:
        return _highest_of(event.events)
    if not _is_regular(event):
        return max(
            Domain(made.loops).highest(_end(made, path))
            for made, path in _allocations((event,))
        )
    return _highest_of(event.events) + event.growth_bytes * (event.trip - 1)


def _highest_of(events: Sequence[Event]) -> int:
    return max(map(highest, events), default=0)


def _loops(events: Sequence[Event]) -> Iterator[LoopTrace]:
    """The outermost loops among the events, also those inside scopes."""
    for event in events:
        if isinstance(event, LoopTrace):
            yield event
        elif isinstance(event, ScopeTrace):
            yield from _loops(event.events)


def _is_regular(loop: LoopTrace) -> bool:
    """Whether everything that the body allocates runs in each iteration of what
    grows."""
    inner = tuple(_loops(loop.events))
    if loop.growth_bytes and not all(map(_always_runs, inner)):
        return False
    return all(map(_is_regular, inner))


def _always_runs(loop: LoopTrace) -> bool:
    return loop.index.trip.is_const and all(map(_always_runs, _loops(loop.events)))


def left_by(events: Sequence[Event], scope: str = "") -> list[Held]:
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


# --- the first allocation that ends above a limit ------------------------------------

# Where an allocation stands: the event of each level that it lies in or is, outermost
# first, with what comes before it on that level.
_Path = tuple[tuple[tuple[Event, ...], Event], ...]


def moment(
    events: Sequence[Event], limit_bytes: int, around: Sequence[tuple[str, int]] = ()
) -> Moment:
    """The first allocation, in execution order, that ends above the limit; one does.

    With the peak less one byte as the limit it is the moment of the peak.

    Args:
      events: whose loops, and what they hold, the moment speaks of.
      limit_bytes: a cursor.
      around: the scopes around the events, as in `Moment.scopes`.
    """
    path, iterations = _first_above(tuple(events), limit_bytes)
    held: list[Held] = []
    scopes = list(around)
    shift = 0
    for before, event in path:
        scope = scopes[-1][0] if scopes else ""
        held += left_by(before, scope)
        if isinstance(event, LoopTrace):
            done = iterations[event.index]
            held += _repeated(left_by(event.events, scope), done)
            shift += event.growth_bytes * done
        elif isinstance(event, ScopeTrace):
            scopes.append((event.scope, event.mark_bytes + shift))
    made = path[-1][1]
    assert isinstance(made, Allocation)
    cursor = made.cursor_bytes + shift
    return Moment(made, iterations, cursor, tuple(held), tuple(scopes))


def growths(events: Sequence[Event]) -> dict[Var, int]:
    """How much higher each iteration of each loop leaves the cursor."""
    found: dict[Var, int] = {}
    for event in events:
        if isinstance(event, LoopTrace):
            found[event.index] = event.growth_bytes
        if not isinstance(event, Allocation):
            found |= growths(event.events)
    return found


def _first_above(
    events: tuple[Event, ...], limit_bytes: int
) -> tuple[_Path, dict[Var, int]]:
    path: _Path = ()
    iterations: dict[Var, int] = {}
    while True:
        place = next(n for n, e in enumerate(events) if highest(e) > limit_bytes)
        event = events[place]
        path = (*path, (events[:place], event))
        if isinstance(event, Allocation):
            return path, iterations
        events = event.events
        if isinstance(event, LoopTrace):
            if not _is_regular(event):
                inner, found = _enumerated(event, limit_bytes)
                return path + inner, iterations | found
            room = limit_bytes - _highest_of(events)
            # The first iteration k with highest + k * growth > limit.
            k = 0 if room < 0 else room // event.growth_bytes + 1
            iterations[event.index] = k
            limit_bytes -= k * event.growth_bytes


def _enumerated(loop: LoopTrace, limit_bytes: int) -> tuple[_Path, dict[Var, int]]:
    """The same inside a loop whose inner loops do not run alike."""
    found = []
    for made, path in _allocations((loop,)):
        end = _end(made, path)
        problem = Domain(made.loops).violation(end, expr.const(limit_bytes))
        if problem is None:
            continue
        at = problem.iteration or {}
        inside = [e.index for _, e in path if isinstance(e, LoopTrace)]
        iterations = {index: at.get(index, 0) for index in inside}
        # Execution order: place in each body, and iteration, level by level.
        order = [
            (len(before), iterations[e.index] if isinstance(e, LoopTrace) else 0)
            for before, e in path
        ]
        found.append((order, path[1:], iterations))
    _, path, iterations = min(found, key=lambda one: one[0])
    return path, iterations


def _allocations(
    events: tuple[Event, ...], path: _Path = ()
) -> Iterator[tuple[Allocation, _Path]]:
    """Each allocation with its path."""
    for place, event in enumerate(events):
        here = (*path, (events[:place], event))
        if isinstance(event, Allocation):
            yield event, here
        else:
            yield from _allocations(event.events, here)


def _end(made: Allocation, path: _Path) -> Expr:
    """The cursor after the allocation, in the indices of the path's loops."""
    total = expr.const(made.end_bytes)
    for _, event in path:
        if isinstance(event, LoopTrace):
            grown = expr.scale(expr.var(event.index), event.growth_bytes)
            total = expr.add(total, grown)
    return total
