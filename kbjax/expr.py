"""Symbolic integer expressions, their values and bounds.

An `Expr` is a linear combination of atoms (variables, and nodes such as ``i // 2``) in
canonical form, so that equal expressions compare equal and ``(i - j) + j`` is ``i``.
`bounds` eliminates loop variables from the innermost outwards: exact for linear
expressions in nested and triangular loops, safe for others.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Var:
    """A loop's iteration number or a program id: ``0 <= var < trip``.

    `uid` grows with nesting: an inner loop's variable has the larger one.
    """

    uid: int
    name: str
    trip: Expr

    @property
    def is_pe(self) -> bool:
        """Whether it is the program id, whose uid is 0."""
        return self.uid == 0

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

    @functools.cached_property
    def bounds(self) -> tuple[int, int]:
        """Safe lowest and highest value; recording asks for them again and again."""
        return _node_bounds(self)

    def __str__(self) -> str:
        a, b = self.args
        if self.op in ("min", "max"):
            return f"{self.op}({a}, {b})"
        return f"({_grouped(a)} {_SYMBOL[self.op]} {_grouped(b)})"


Atom = Var | Node
_SYMBOL = {
    "floordiv": "//", "mod": "%", "mul": "*", "lt": "<", "le": "<=", "eq": "==",
    "ne": "!=", "and": "&",
}  # fmt: skip
PYTHON: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv, "mod": operator.mod, "mul": operator.mul,
    "min": min, "max": max,
    "lt": lambda a, b: int(a < b), "le": lambda a, b: int(a <= b),
    "eq": lambda a, b: int(a == b), "ne": lambda a, b: int(a != b),
    "and": lambda a, b: int(bool(a) and bool(b)),
}  # fmt: skip
_COMPARE = {name: getattr(operator, name) for name in ("lt", "le", "eq", "ne")}
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


def _grouped(value: Expr) -> str:
    """The text of an operand, in parentheses where it is a sum or a product."""
    simple = value.is_const or (not value.const and value.terms[1:] == ())
    return str(value) if simple and "*" not in str(value) else f"({value})"


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
        return const(PYTHON[op](a.const, b.const))
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
    """``a op b``; what both sides of a comparison add alike is left out, so that
    ``i + 1 < i + n`` does not depend on i."""
    if op != "and":
        common = Expr(0, tuple(term for term in a.terms if term in b.terms))
        a, b = sub(a, common), sub(b, common)
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


def nodes(expr: Expr) -> Iterator[Node]:
    """Every operation in the expression, what it takes before it."""
    for atom, _ in expr.terms:
        if isinstance(atom, Node):
            for arg in atom.args:
                yield from nodes(arg)
            yield atom


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """The expression with other expressions in place of variables."""
    total = const(expr.const)
    for atom, k in expr.terms:
        if isinstance(atom, Var):
            one = values.get(atom, var(atom))
        else:
            one = _node(atom.op, *(substitute(arg, values) for arg in atom.args))
        total = add(total, scale(one, k))
    return total


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
            value = PYTHON[atom.op](a, b) if xp is None else _on_arrays(atom, a, b, xp)
        total = total + (value if k == 1 else value * k)
    return total


def _on_arrays(node: Node, a: Any, b: Any, xp: Any) -> Any:
    if node.op in PREDICATES:
        holds = (a != 0) & (b != 0) if node.op == "and" else _COMPARE[node.op](a, b)
        return xp.where(holds, 1, 0)
    if node.op in ("min", "max"):
        return getattr(xp, f"{node.op}imum")(a, b)
    return getattr(operator, node.op)(a, b)


# --- bounds --------------------------------------------------------------------------


def bounds(expr: Expr) -> tuple[int, int]:
    """Safe lowest and highest value over all iterations."""
    if expr.is_const:
        return expr.const, expr.const
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
        low, high = atom.bounds
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


def is_nonnegative(value: Expr, conditions: Sequence[Expr] = ()) -> bool:
    """Whether bounds prove ``value >= 0`` where none of the conditions is 0: by itself,
    or less a multiple of what one of the conditions says is not negative."""
    if _lowest(value) >= 0:
        return True
    terms = dict(value.terms)
    for fact in (fact for one in conditions for fact in _facts(one)):
        for atom, k in fact.terms:
            other = terms.get(atom, 0)
            if other * k > 0:  # the atom cancels: |k| value - |other| fact
                left = sub(scale(value, abs(k)), scale(fact, abs(other)))
                if _lowest(left) >= 0:
                    return True
    return False


def settled(value: Expr, conditions: Sequence[Expr]) -> Expr:
    """The value where the conditions hold: a min or max of which they say which one it
    is, is that one."""
    found = const(value.const)
    for atom, k in value.terms:
        one = Expr(0, ((atom, 1),))
        if isinstance(atom, Node) and atom.op in ("min", "max"):
            a, b = atom.args
            if is_nonnegative(sub(b, a), conditions):
                one = a if atom.op == "min" else b
            elif is_nonnegative(sub(a, b), conditions):
                one = b if atom.op == "min" else a
        found = add(found, scale(one, k))
    return found


def _facts(condition: Expr) -> Iterator[Expr]:
    """Expressions that are not negative where the condition is not 0."""
    if condition.const or len(condition.terms) != 1:
        return
    node, k = condition.terms[0]
    if k != 1 or not isinstance(node, Node):
        return
    a, b = node.args
    if node.op == "and":
        yield from _facts(a)
        yield from _facts(b)
    elif node.op in ("lt", "le", "eq"):
        yield sub(sub(b, a), const(node.op == "lt"))
        if node.op == "eq":
            yield sub(a, b)
