"""What a rolled loop does to the bump cursor, found without running its iterations.

A body that leaves the cursor g bytes higher moves each later iteration up by g. What
the body needs at its highest, plus g times the last iteration, is the loop's exact
peak, and the first iteration that passes the budget follows by division. Only where an
inner loop does not run in every iteration are iterations enumerated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbjax import expr
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.program import Allocation


@dataclass(frozen=True)
class LoopGrowth:
    """A finished rolled loop: what its body allocated, in order, and how much higher
    each iteration leaves the cursor. `scope_depth` is that of the loop itself."""

    index: Var
    events: tuple[Event, ...]
    growth_bytes: int
    scope_depth: int

    @property
    def trip(self) -> int:
        """The trip count; 1 where it is symbolic, since then nothing grows."""
        return self.index.trip.const if self.index.trip.is_const else 1


Event = Allocation | LoopGrowth


@dataclass(frozen=True)
class Overrun:
    """The first allocation that does not fit.

    Attributes:
      made: the allocation.
      iterations: the iteration of each loop around it; 0 where none is given.
      cursor_bytes: the cursor before it.
      held: allocations that the loop has not given back by then, and how many of each.
    """

    made: Allocation
    iterations: Mapping[Var, int]
    cursor_bytes: int
    held: tuple[tuple[Allocation, int], ...]


def highest(event: Event) -> int:
    """The highest cursor that the event reaches over all iterations, in bytes."""
    if isinstance(event, Allocation):
        return event.cursor_bytes + event.aligned_bytes
    if not event.events:
        return 0
    if not _is_regular(event):
        return _enumerated_highest(event)
    return _highest_at_first(event) + event.growth_bytes * (event.trip - 1)


def _highest_at_first(loop: LoopGrowth) -> int:
    return max((highest(event) for event in loop.events), default=0)


def _is_regular(loop: LoopGrowth) -> bool:
    """Whether everything that the body allocates runs in each iteration of what
    grows."""
    inner = [event for event in loop.events if isinstance(event, LoopGrowth)]
    if loop.growth_bytes and not all(_always_runs(event) for event in inner):
        return False
    return all(_is_regular(event) for event in inner)


def _always_runs(loop: LoopGrowth) -> bool:
    if not loop.index.trip.is_const:
        return False
    inner = [event for event in loop.events if isinstance(event, LoopGrowth)]
    return all(_always_runs(event) for event in inner)


def first_overrun(loop: LoopGrowth, budget_bytes: int) -> Overrun:
    """The first allocation of the loop that passes the budget; one does."""
    if not _is_regular(loop):
        return _enumerated_overrun(loop, budget_bytes)
    iterations: dict[Var, int] = {}
    held: list[tuple[Allocation, int]] = []
    shift = 0
    event: Event = loop
    while isinstance(event, LoopGrowth):
        room = budget_bytes - _highest_at_first(event) - shift
        # The first iteration k with highest + k * growth > budget.
        k = 0 if room < 0 else room // event.growth_bytes + 1
        iterations[event.index] = k
        shift += k * event.growth_bytes
        held += held_by(event, k)
        failing = next(e for e in event.events if highest(e) + shift > budget_bytes)
        done = event.events[: event.events.index(failing)]
        held += held_by(dataclasses.replace(event, events=done), 1)
        event = failing
    return Overrun(event, iterations, event.cursor_bytes + shift, tuple(held))


def held_by(loop: LoopGrowth, iterations: int) -> list[tuple[Allocation, int]]:
    """What that many iterations of the loop have not given back: (allocation, how many
    of them)."""
    found: list[tuple[Allocation, int]] = []
    for event in loop.events:
        if event.scope_depth != loop.scope_depth:
            continue  # rewound inside the body
        if isinstance(event, Allocation):
            found.append((event, iterations))
        elif event.growth_bytes:
            found += [(m, n * iterations) for m, n in held_by(event, event.trip)]
    return [(made, n) for made, n in found if n]


# --- loops that do not run alike -----------------------------------------------------


def _allocations(
    loop: LoopGrowth, path: tuple[tuple[LoopGrowth, int], ...] = ()
) -> Iterator[tuple[Allocation, tuple[tuple[LoopGrowth, int], ...]]]:
    """Each allocation with the loops that lead to it and its place in each body."""
    for place, event in enumerate(loop.events):
        here = (*path, (loop, place))
        if isinstance(event, Allocation):
            yield event, here
        else:
            yield from _allocations(event, here)


def _end(made: Allocation, path: Sequence[tuple[LoopGrowth, int]]) -> Expr:
    """The cursor after the allocation, in its loops' indices."""
    total = expr.const(made.cursor_bytes + made.aligned_bytes)
    for loop, _ in path:
        grown = expr.scale(expr.var(loop.index), loop.growth_bytes)
        total = expr.add(total, grown)
    return total


def _enumerated_highest(loop: LoopGrowth) -> int:
    return max(
        Domain(made.loops).highest(_end(made, path))
        for made, path in _allocations(loop)
    )


def _enumerated_overrun(loop: LoopGrowth, budget_bytes: int) -> Overrun:
    found = []
    for made, path in _allocations(loop):
        end = _end(made, path)
        problem = Domain(made.loops).violation(end, expr.const(budget_bytes))
        if problem is None:
            continue
        at: Mapping[Var, int] = problem.iteration or {}
        # Execution order: iteration and place in the body, loop by loop.
        order = [n for step, place in path for n in (at.get(step.index, 0), place)]
        cursor = expr.evaluate(end, {**dict.fromkeys(made.loops, 0), **at})
        found.append((order, Overrun(made, at, cursor - made.aligned_bytes, ())))
    return min(found, key=lambda one: one[0])[1]
