"""The iterations that run: what cannot be proven by bounds is proven by enumeration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kbjax import errors, site
from kbjax.expr import (
    Expr,
    Var,
    bounds,
    const,
    evaluate,
    is_nonnegative,
    predicate,
    sub,
    variables,
)
from kbjax.expr import var as expr_var

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
_MOST_POINTS = 1 << 24  # iterations that one proof may enumerate


@dataclass(frozen=True)
class Violation:
    """A bound that does not hold.

    Attributes:
      decided: False where there are too many iterations to enumerate.
      iteration: the first one that goes wrong, where decided.
    """

    decided: bool
    iteration: Mapping[Var, int] | None

    def __str__(self) -> str:
        """`` in iteration j = 3``, or nothing."""
        return iteration_text(self.iteration)


@dataclass(frozen=True)
class Domain:
    """The iterations that run: those of the enclosing loops, outermost first, in which
    no enclosing condition (`tl.when`) is 0."""

    loops: tuple[Var, ...] = ()
    conditions: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        """``in the iterations of i where j < 3``."""
        loops = ", ".join(loop.name for loop in self.loops)
        conditions = " and ".join(map(str, self.conditions))
        inside = f"in the iterations of {loops}" if loops else "outside loops"
        return f"{inside} where {conditions}" if conditions else inside

    def inside(self, loop: Var) -> Domain:
        return Domain((*self.loops, loop), self.conditions)

    def where(self, condition: Expr) -> Domain:
        return Domain(self.loops, (*self.conditions, condition))

    def never_runs(self) -> bool:
        """Whether the nest has no iteration that runs; False where too many to tell."""
        always = all(bounds(loop.trip)[0] > 0 for loop in self.loops)
        if always and not self.conditions:
            return False
        points = self._points(self._trips())
        return points is not None and points.size == 0

    def find(self, bad: Expr) -> tuple[bool, dict[Var, int] | None]:
        """Look for an iteration in which the predicate `bad` is not 0.

        Returns:
          (decided, iteration): decided is False where there are too many iterations
          to enumerate; iteration is the first bad one, or None where there is none.
        """
        if bad.is_const and not self.loops and not self.conditions:
            return True, ({} if bad.const else None)
        points = self._points(self._trips(bad))
        if points is None:
            return False, None
        wrong = np.broadcast_to(
            np.asarray(evaluate(bad, points.columns, np)), (points.size,)
        )
        if not wrong.any():
            return True, None
        first = int(np.argmax(wrong != 0))
        return True, {v: int(column[first]) for v, column in points.columns.items()}

    def highest(self, value: Expr) -> int:
        """The highest value over the iterations that run; 0 where none does. Safe, not
        exact, where there are too many iterations to enumerate."""
        table = self.table(value)
        return bounds(value)[1] if table is None else int(table[0].max(initial=0))

    def table(self, *values: Expr) -> list[np.ndarray] | None:
        """The values, one column each, over the iterations that run and over all PEs
        where they depend on the PE; None where there are too many to enumerate."""
        points = self._points(self._trips(*values))
        if points is None:
            return None
        columns = (np.asarray(evaluate(v, points.columns, np)) for v in values)
        return [np.broadcast_to(c, (points.size,)) for c in columns]

    def counts(self, by: Var) -> np.ndarray | None:
        """How many iterations run for each value of `by` (a program id): (by.trip,)
        int64, or None where there are too many to enumerate or to count."""
        if math.prod(max(bounds(loop.trip)[1], 1) for loop in self.loops) >= 1 << 62:
            return None
        points = self._points(self._trips(expr_var(by)))
        if points is None:
            return None
        runs = np.ones(points.size, np.int64)
        for loop in self.loops:
            if loop not in points.columns:  # its iterations are alike
                trips = np.asarray(evaluate(loop.trip, points.columns, np), np.int64)
                runs = runs * np.maximum(trips, 0)
        total = np.zeros(by.trip.const, np.int64)
        np.add.at(total, points.columns[by], runs)
        return total

    def values(self, value: Expr) -> list[int]:
        """Each value over the iterations that run, once, in order; none where there
        are too many to enumerate."""
        table = self.table(value)
        return [] if table is None else [int(one) for one in np.unique(table[0])]

    def violation(self, low: Expr, high: Expr) -> Violation | None:
        """Where ``low <= high`` does not hold, or None where it is proven."""
        if is_nonnegative(sub(high, low), self.conditions):
            return None
        decided, where = self.find(predicate("lt", high, low))
        return None if decided and where is None else Violation(decided, where)

    def _trips(self, *values: Expr) -> frozenset[Var]:
        """The variables of the values, and of what decides which iterations run."""
        return variables(*values, *(loop.trip for loop in self.loops), *self.conditions)

    def _points(self, needed: frozenset[Var]) -> _Points | None:
        points = _Points({}, 1)
        todo = list(self.conditions)
        points = points.where(todo)
        for loop in sorted({*needed, *self.loops}, key=lambda v: v.uid):
            trips = np.broadcast_to(
                np.asarray(evaluate(loop.trip, points.columns, np), np.int64),
                (points.size,),
            )
            if loop not in needed:  # only whether it runs matters
                points = points.take(np.flatnonzero(trips > 0))
                continue
            total = int(np.maximum(trips, 0).sum())
            if total > _MOST_POINTS:
                return None
            trips = np.maximum(trips, 0)
            rows = np.repeat(np.arange(points.size), trips)
            first = np.cumsum(trips) - trips
            column = np.arange(total) - first[rows]
            points = points.take(rows)
            points.columns[loop] = column
            points = points.where(todo)
        return points


@dataclass
class _Points:
    """Rows of iterations: one int64 column a variable."""

    columns: dict[Var, np.ndarray]
    size: int

    def take(self, rows: np.ndarray) -> _Points:
        return _Points({v: c[rows] for v, c in self.columns.items()}, len(rows))

    def where(self, todo: list[Expr]) -> _Points:
        """The rows in which those conditions hold whose variables are all known; these
        are taken out of `todo`. In order: an inner one may divide by what an outer one
        says is not 0."""
        points = self
        while todo and variables(todo[0]) <= points.columns.keys():
            condition = todo.pop(0)
            holds = np.asarray(evaluate(condition, points.columns, np)) != 0
            points = points.take(np.flatnonzero(np.broadcast_to(holds, (points.size,))))
        return points


def iteration_text(iteration: Mapping[Var, int] | None) -> str:
    """`` in iteration i = 3, j = 0``, or nothing."""
    if not iteration:
        return ""
    inner = sorted(iteration.items(), key=lambda item: item[0].uid)
    return " in iteration " + ", ".join(f"{v.name} = {i}" for v, i in inner)


def nonzero(divisor: Expr, domain: Domain) -> None:
    """Refuse a divisor that an iteration which runs makes 0.

    Raises:
      KernelError: also where it cannot be proven.
    """
    low, high = bounds(divisor)
    if not low <= 0 <= high:
        return
    decided, where = domain.find(predicate("eq", divisor, const(0)))
    if not decided or where is not None:
        raise errors.KernelError(
            f"division by a symbolic integer that can be 0{iteration_text(where)}",
            site=site.here(),
            got=f"divisor {divisor}",
            remedy="Divide by something that is never 0",
        )


def checked(value: Expr, domain: Domain) -> Expr:
    """`value`, refused where an iteration that runs takes it out of int32.

    Raises:
      KernelError: phase 2 computes indices in int32 and would wrap silently.
    """
    for low, high in ((const(INT32_MIN), value), (value, const(INT32_MAX))):
        violation = domain.violation(low, high)
        if violation is not None:
            lowest, highest = bounds(value)
            raise errors.KernelError(
                f"the symbolic integer {value} leaves int32{violation}",
                site=site.here(),
                got=f"values from {lowest:,} to {highest:,}",
                allowed=f"{INT32_MIN:,} to {INT32_MAX:,}",
                remedy="Index a leading axis of the array instead of a flat offset",
            )
    return value
