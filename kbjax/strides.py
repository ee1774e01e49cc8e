"""How an expression moves when a loop index advances in equal steps, and for how many
steps it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbjax import expr
from kbjax.expr import Expr, Node, Var

FOREVER = 1 << 62
_Change = Callable[[int, "Stride", "Stride"], tuple[int, int]]


class Stride(NamedTuple):
    """``value + k * change`` for ``k = 0 .. steps``; nothing is said about later k."""

    value: int
    change: int
    steps: int = FOREVER


def stride(value: Expr, env: Mapping[Var, int], index: Var, step: int) -> Stride:
    """How `value` moves from its value in `env` when `index` grows by `step`.

    Exact for every kind of node: the steps end where a comparison turns, a `min` or
    `max` changes sides, or a division carries.
    """
    at, change, steps = value.const, 0, FOREVER
    for atom, k in value.terms:
        if isinstance(atom, Var):
            one = Stride(env[atom], step if atom == index else 0)
        else:
            one = _node(
                atom,
                stride(atom.args[0], env, index, step),
                stride(atom.args[1], env, index, step),
            )
        at, change = at + k * one.value, change + k * one.change
        steps = min(steps, one.steps)
    return Stride(at, change, steps)


def together(value: Expr) -> frozenset[Var]:
    """Variables that share a node: its value is not linear in them jointly."""
    found: set[Var] = set()
    for node in expr.nodes(value):
        inside = expr.variables(*node.args)
        if len(inside) > 1:
            found |= inside
    return frozenset(found)


def _node(node: Node, a: Stride, b: Stride) -> Stride:
    value = expr.PYTHON[node.op](a.value, b.value)
    if a.change == b.change == 0:
        if node.op == "and" and not value:  # one that stays false is enough
            return Stride(value, 0, max(x.steps for x in (a, b) if not x.value))
        return Stride(value, 0, min(a.steps, b.steps))
    change, steps = _CHANGES[node.op](value, a, b)
    return Stride(value, change, min(steps, a.steps, b.steps))


def _divided(value: int, a: Stride, b: Stride) -> tuple[int, int]:
    if b.change or b.value <= 0:
        return 0, 0
    if a.change % b.value == 0:
        return a.change // b.value, FOREVER
    return 0, _until_carry(a, b)


def _remainder(value: int, a: Stride, b: Stride) -> tuple[int, int]:
    if b.change or b.value <= 0:
        return 0, 0
    if a.change % b.value == 0:
        return 0, FOREVER
    return a.change, _until_carry(a, b)


def _until_carry(a: Stride, b: Stride) -> int:
    left = a.value % b.value
    room = b.value - 1 - left if a.change > 0 else left
    return room // abs(a.change)


def _product(value: int, a: Stride, b: Stride) -> tuple[int, int]:
    change = a.value * b.change + b.value * a.change
    return change, 0 if a.change and b.change else FOREVER


def _side(sign: int) -> _Change:
    """`min` (sign 1) or `max` (-1): the chosen side, until the other passes it."""

    def chosen(value: int, a: Stride, b: Stride) -> tuple[int, int]:
        first, other = sorted((a, b), key=lambda x: (sign * x.value, sign * x.change))
        gap = sign * (other.value - first.value)
        closing = sign * (first.change - other.change)
        return first.change, gap // closing if closing > 0 else FOREVER

    return chosen


def _below(slack: int) -> _Change:
    """``a < b`` (slack 1) or ``a <= b`` (0): until it turns."""

    def turns(value: int, a: Stride, b: Stride) -> tuple[int, int]:
        gap, change = b.value - a.value - slack, b.change - a.change
        if gap >= 0:  # holds while it is not negative
            return 0, gap // -change if change < 0 else FOREVER
        return 0, (-gap - 1) // change if change > 0 else FOREVER

    return turns


def _equal(value: int, a: Stride, b: Stride) -> tuple[int, int]:
    gap, change = b.value - a.value, b.change - a.change
    if not change:
        return 0, FOREVER
    if not gap:
        return 0, 0
    meets = -gap % change == 0 and -gap // change > 0
    return 0, -gap // change - 1 if meets else FOREVER


def _both(value: int, a: Stride, b: Stride) -> tuple[int, int]:
    return 0, 0  # of numbers that move; predicates have change 0


_CHANGES: dict[str, _Change] = {
    "floordiv": _divided, "mod": _remainder, "mul": _product, "min": _side(1),
    "max": _side(-1), "lt": _below(1), "le": _below(0), "eq": _equal, "ne": _equal,
    "and": _both,
}  # fmt: skip
