"""Symbolic integers: loop indices and program ids, with bounds.

An `Expr` is a linear combination of atoms (variables, and nodes such as ``i // 2``) in
canonical form, so that equal expressions compare equal and ``(i - j) + j`` is ``i``.
`Index` is what a kernel holds: an `Expr` with Python's operators.

Bounds come in two strengths. `bounds` eliminates loop variables from the innermost
outwards (exact for linear expressions in nested and triangular loops, else safe);
`Domain.find` enumerates the iterations that run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbjax import errors, site

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
_MOST_POINTS = 1 << 24  # iterations that one proof may enumerate


@dataclass(frozen=True)
class Var:
    """A loop's iteration number or a program id: ``0 <= var < trip``.

    `uid` grows with nesting: an inner loop's variable has the larger one.
    """

    uid: int
    name: str
    trip: Expr

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return self.uid


@dataclass(frozen=True)
class Node:
    """An operation that is not linear: floordiv, mod, mul, min, max, lt, le, eq, ne,
    and."""

    op: str
    args: tuple[Expr, Expr]

    def __str__(self) -> str:
        a, b = self.args
        if self.op in ("min", "max"):
            return f"{self.op}({a}, {b})"
        return f"({a} {_SYMBOL[self.op]} {b})"


Atom = Var | Node
_SYMBOL = {
    "floordiv": "//", "mod": "%", "mul": "*", "lt": "<", "le": "<=", "eq": "==",
    "ne": "!=", "and": "&",
}  # fmt: skip
_PYTHON: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv, "mod": operator.mod, "mul": operator.mul,
    "min": min, "max": max,
    "lt": lambda a, b: int(a < b), "le": lambda a, b: int(a <= b),
    "eq": lambda a, b: int(a == b), "ne": lambda a, b: int(a != b),
    "and": lambda a, b: int(bool(a) and bool(b)),
}  # fmt: skip
PREDICATES = frozenset({"lt", "le", "eq", "ne", "and"})


@dataclass(frozen=True)
class Expr:
    """``const + sum(coefficient * atom)``; `terms` is sorted and has no zeros."""

    const: int
    terms: tuple[tuple[Atom, int], ...] = ()

    @property
    def is_const(self) -> bool:
        return not self.terms

    def __str__(self) -> str:
        parts = [str(atom) if k == 1 else f"{k}*{atom}" for atom, k in self.terms] + (
            [str(self.const)] if self.const or not self.terms else []
        )
        return " + ".join(parts)


ZERO = Expr(0)


def const(value: int) -> Expr:
    return Expr(int(value))


def _linear(const_: int, terms: Mapping[Atom, int]) -> Expr:
    kept = [(atom, k) for atom, k in terms.items() if k]
    kept.sort(key=lambda term: (isinstance(term[0], Node), _order(term[0])))
    return Expr(const_, tuple(kept))


def _order(atom: Atom) -> tuple[int, str]:
    return (atom.uid, "") if isinstance(atom, Var) else (0, str(atom))


def var(variable: Var) -> Expr:
    return Expr(0, ((variable, 1),))


def add(a: Expr, b: Expr) -> Expr:
    if a.is_const or b.is_const:  # the common case needs no merge
        return Expr(a.const + b.const, a.terms or b.terms)
    terms = dict(a.terms)
    for atom, k in b.terms:
        terms[atom] = terms.get(atom, 0) + k
    return _linear(a.const + b.const, terms)


def scale(a: Expr, k: int) -> Expr:
    if k == 0:
        return ZERO
    return Expr(a.const * k, tuple((atom, c * k) for atom, c in a.terms))


def sub(a: Expr, b: Expr) -> Expr:
    return add(a, scale(b, -1))


def mul(a: Expr, b: Expr) -> Expr:
    if a.is_const:
        return scale(b, a.const)
    if b.is_const:
        return scale(a, b.const)
    return _node("mul", a, b)


def _node(op: str, a: Expr, b: Expr) -> Expr:
    if a.is_const and b.is_const:
        return const(_PYTHON[op](a.const, b.const))
    return Expr(0, ((Node(op, (a, b)), 1),))


def floordiv(a: Expr, b: Expr) -> Expr:
    return a if b == const(1) else _node("floordiv", a, b)


def mod(a: Expr, b: Expr) -> Expr:
    return _node("mod", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    low, high = bounds(sub(b, a))
    return a if low >= 0 else b if high <= 0 else _node("min", a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    low, high = bounds(sub(b, a))
    return b if low >= 0 else a if high <= 0 else _node("max", a, b)


def predicate(op: str, a: Expr, b: Expr) -> Expr:
    return _node(op, a, b)


def trip_count(start: Expr, stop: Expr, step: int) -> Expr:
    """How often ``range(start, stop, step)`` runs."""
    span = sub(stop, start) if step > 0 else sub(start, stop)
    size = abs(step)
    return maximum(ZERO, floordiv(add(span, const(size - 1)), const(size)))


# --- what an expression depends on, and its value ------------------------------------


def variables(*exprs: Expr) -> frozenset[Var]:
    """All variables of the expressions, and of those variables' trip counts."""
    found: set[Var] = set()
    todo = list(exprs)
    while todo:
        for atom, _ in todo.pop().terms:
            if isinstance(atom, Node):
                todo += atom.args
            elif atom not in found:
                found.add(atom)
                todo.append(atom.trip)
    return frozenset(found)


def evaluate(expr: Expr, env: Mapping[Var, Any], xp: Any = None) -> Any:
    """The value where each variable has its value in `env`.

    Args:
      expr: what to evaluate.
      env: integers, or integer arrays of namespace `xp` that broadcast.
      xp: numpy or jax.numpy where `env` holds arrays; None for Python integers.
    """
    total: Any = expr.const
    for atom, k in expr.terms:
        if isinstance(atom, Var):
            value = env[atom]
        else:
            a, b = (evaluate(arg, env, xp) for arg in atom.args)
            value = _PYTHON[atom.op](a, b) if xp is None else _on_arrays(atom, a, b, xp)
        total = total + (value if k == 1 else value * k)
    return total


def _on_arrays(node: Node, a: Any, b: Any, xp: Any) -> Any:
    if node.op in PREDICATES:
        if node.op == "and":
            return ((a != 0) & (b != 0)) * 1
        return getattr(operator, node.op)(a, b) * 1
    if node.op in ("min", "max"):
        return getattr(xp, f"{node.op}imum")(a, b)
    return getattr(operator, node.op)(a, b)


# --- bounds --------------------------------------------------------------------------


def bounds(expr: Expr) -> tuple[int, int]:
    """Safe lowest and highest value over all iterations."""
    return _lowest(expr), -_lowest(scale(expr, -1))


def _lowest(expr: Expr) -> int:
    while True:
        inner: Var | None = None
        for atom, _ in expr.terms:
            if isinstance(atom, Var) and (inner is None or atom.uid > inner.uid):
                inner = atom
        if inner is None:
            break
        # A linear term is lowest at the variable's first or last iteration.
        k = dict(expr.terms)[inner]
        rest = Expr(expr.const, tuple(t for t in expr.terms if t[0] != inner))
        last = sub(inner.trip, const(1))
        if last.is_const:
            last = const(max(last.const, 0))
        expr = rest if k > 0 else add(rest, scale(last, k))
    total = expr.const
    for atom, k in expr.terms:
        assert isinstance(atom, Node)
        low, high = _node_bounds(atom)
        total += min(k * low, k * high)
    return total


def _node_bounds(node: Node) -> tuple[int, int]:
    if node.op in PREDICATES:
        return 0, 1
    (a0, a1), (b0, b1) = bounds(node.args[0]), bounds(node.args[1])
    if node.op == "min":
        return min(a0, b0), min(a1, b1)
    if node.op == "max":
        return max(a0, b0), max(a1, b1)
    if node.op == "mul":
        corners = [a * b for a in (a0, a1) for b in (b0, b1)]
    elif b0 <= 0 <= b1:
        size = max(abs(a0), abs(a1), abs(b0), abs(b1))
        return -size, size
    elif node.op == "floordiv":
        corners = [a // b for a in (a0, a1) for b in (b0, b1)]
    else:
        if b0 == b1 and b0 > 0 and a0 // b0 == a1 // b0:
            return a0 % b0, a1 % b0
        return (0, b1 - 1) if b0 > 0 else (b0 + 1, 0)
    return min(corners), max(corners)


@dataclass(frozen=True)
class Domain:
    """The iterations that run: the enclosing loops, outermost first."""

    loops: tuple[Var, ...] = ()

    def inside(self, loop: Var) -> Domain:
        return Domain((*self.loops, loop))

    def never_runs(self) -> bool:
        """Whether no iteration runs at all (some trip count is always 0)."""
        if all(bounds(loop.trip)[0] > 0 for loop in self.loops):
            return False
        points = self._points(variables(*(loop.trip for loop in self.loops)))
        return points is not None and points.size == 0

    def find(self, bad: Expr) -> tuple[bool, dict[Var, int] | None]:
        """Look for an iteration in which the predicate `bad` is not 0.

        Returns:
          (decided, iteration): decided is False where there are too many iterations
          to enumerate; iteration is the first bad one, or None where there is none.
        """
        if bad.is_const and not self.loops:
            return True, ({} if bad.const else None)
        needed = variables(bad, *(loop.trip for loop in self.loops))
        points = self._points(needed)
        if points is None:
            return False, None
        wrong = np.broadcast_to(
            np.asarray(evaluate(bad, points.columns, np)), (points.size,)
        )
        if not wrong.any():
            return True, None
        first = int(np.argmax(wrong))
        return True, {v: int(column[first]) for v, column in points.columns.items()}

    def _points(self, needed: frozenset[Var]) -> _Points | None:
        points = _Points({}, 1)
        outer = [v for v in needed if v not in self.loops]  # program ids
        for loop in [*sorted(outer, key=lambda v: v.uid), *self.loops]:
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
        return points


@dataclass
class _Points:
    """Rows of iterations: one int64 column a variable."""

    columns: dict[Var, np.ndarray]
    size: int

    def take(self, rows: np.ndarray) -> _Points:
        return _Points({v: c[rows] for v, c in self.columns.items()}, len(rows))


def iteration_text(iteration: Mapping[Var, int] | None) -> str:
    """`` in iteration i = 3, j = 0``, or nothing."""
    if not iteration:
        return ""
    inner = sorted(iteration.items(), key=lambda item: item[0].uid)
    return " in iteration " + ", ".join(f"{v.name} = {i}" for v, i in inner)


# --- what a kernel holds -------------------------------------------------------------


def as_expr(value: object) -> Expr | None:
    """The expression of an `Index` or a Python or NumPy integer; else None."""
    if isinstance(value, Index):
        return value.expr
    if isinstance(value, bool | np.bool_):
        return const(int(value))
    if isinstance(value, int | np.integer):
        return const(int(value))
    return None


class Index:
    """A symbolic integer in a kernel: a loop index, a program id, and what is made
    of them. `+ - * // %`, comparisons, `&`, `tl.minimum` and `tl.maximum` work."""

    __slots__ = ("domain", "expr")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # NumPy scalars defer to the reflected operators here

    def __init__(self, expr: Expr, domain: Domain) -> None:
        self.expr, self.domain = expr, domain

    def _combine(
        self, other: object, make: Callable[[Expr, Expr], Expr], swap: bool = False
    ) -> Any:
        value = as_expr(other)
        if value is None:
            if isinstance(other, float | np.floating):
                raise errors.KernelError(
                    "a symbolic integer and a float make no symbolic number",
                    site=site.here(),
                    got=f"{self} and {other}",
                    remedy="Multiply the tile by the one, then by the other",
                )
            return NotImplemented
        domain = self.domain
        if isinstance(other, Index) and len(other.domain.loops) > len(domain.loops):
            domain = other.domain
        pair = (value, self.expr) if swap else (self.expr, value)
        return Index(checked(make(*pair), domain), domain)

    def __add__(self, other: object) -> Any:
        return self._combine(other, add)

    def __radd__(self, other: object) -> Any:
        return self._combine(other, add)

    def __sub__(self, other: object) -> Any:
        return self._combine(other, sub)

    def __rsub__(self, other: object) -> Any:
        return self._combine(other, sub, swap=True)

    def __mul__(self, other: object) -> Any:
        return self._combine(other, mul)

    def __rmul__(self, other: object) -> Any:
        return self._combine(other, mul)

    def __neg__(self) -> Any:
        return self._combine(-1, mul)

    def __pos__(self) -> Any:
        return self

    def __floordiv__(self, other: object) -> Any:
        return self._divide(other, floordiv)

    def __rfloordiv__(self, other: object) -> Any:
        return self._divide(other, floordiv, swap=True)

    def __mod__(self, other: object) -> Any:
        return self._divide(other, mod)

    def __rmod__(self, other: object) -> Any:
        return self._divide(other, mod, swap=True)

    def _divide(
        self, other: object, make: Callable[[Expr, Expr], Expr], swap: bool = False
    ) -> Any:
        divisor = self.expr if swap else as_expr(other)
        if divisor is not None:
            low, high = bounds(divisor)
            if low <= 0 <= high:
                decided, where = self.domain.find(predicate("eq", divisor, ZERO))
                if not decided or where is not None:
                    raise errors.KernelError(
                        f"division by a symbolic integer that can be 0"
                        f"{iteration_text(where)}",
                        site=site.here(),
                        got=f"divisor {divisor}",
                        remedy="Divide by something that is never 0",
                    )
        return self._combine(other, make, swap)

    def __lt__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("lt", a, b))

    def __le__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("le", a, b))

    def __gt__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("lt", b, a))

    def __ge__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("le", b, a))

    def __eq__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("eq", a, b))

    def __ne__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("ne", a, b))

    def __and__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: predicate("and", a, b))

    __rand__ = __and__

    def minimum(self, other: object) -> Any:
        return self._combine(other, minimum)

    def maximum(self, other: object) -> Any:
        return self._combine(other, maximum)

    def __bool__(self) -> bool:
        raise errors.KernelError(
            f"`if` on the symbolic integer {self}: its value differs by iteration",
            site=site.here(),
            remedy="Use `with tl.when(cond):`, or tl.static_range for an index that "
            "Python can branch on",
        )

    def _as_python(self, *_: object) -> Any:
        raise errors.KernelError(
            f"the symbolic integer {self} has no single Python value",
            site=site.here(),
            remedy="Loop with tl.range, slice with tl.ds(start, size), or unroll with "
            "tl.static_range",
        )

    __index__ = __int__ = __float__ = _as_python

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = __str__


def checked(expr: Expr, domain: Domain) -> Expr:
    """`expr`, refused where an iteration that runs takes it out of int32.

    Raises:
      KernelError: phase 2 computes indices in int32 and would wrap silently.
    """
    low, high = bounds(expr)
    if INT32_MIN <= low and high <= INT32_MAX:
        return expr
    bad = predicate("lt", expr, const(INT32_MIN))
    too_high = predicate("lt", const(INT32_MAX), expr)
    for condition in (bad, too_high):
        decided, where = domain.find(condition)
        if not decided or where is not None:
            raise errors.KernelError(
                f"the symbolic integer {expr} leaves int32{iteration_text(where)}",
                site=site.here(),
                got=f"values from {low:,} to {high:,}",
                allowed=f"{INT32_MIN:,} to {INT32_MAX:,}",
                remedy="Index a leading axis of the array instead of a flat offset",
            )
    return expr
