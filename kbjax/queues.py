"""How many tiles each circular buffer has been given and has given back, as symbolic
integers, while a kernel is recorded.

In iteration i of a loop, a buffer has been given what it was before the loop, and what
the iterations 0 .. i - 1 gave it: a sum over them, which `total` writes as an
expression of i. So the slot of a push, its number modulo the depth, is an address like
any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kbjax import expr
from kbjax.allocator import Lease
from kbjax.expr import ZERO, Expr, Node, Var
from kbjax.site import Site


@dataclass(frozen=True)
class Count:
    """Pushes and pops of one buffer before a moment."""

    pushed: Expr = ZERO
    popped: Expr = ZERO

    @property
    def held(self) -> Expr:
        """Tiles that were pushed and not popped."""
        return expr.sub(self.pushed, self.popped)


MOST_LOOKED_AT = 65_536  # iterations of a loop whose conditions are evaluated

Counts = Mapping[int, Count]  # by the uid of the buffer's allocation


class Slot(Lease):
    """Held by a tile in a slot of a circular buffer and its aliases.

    Attributes:
      base: of the whole buffer.
      number: of the push that filled the slot; `depth` pushes later it is filled anew.
      site: where the kernel took the tile.
      body: the recording of the innermost loop body that took it, or None.
      loops: those whose bodies it was taken in.
    """

    __slots__ = ("base", "body", "depth", "loops", "number", "site")

    def __init__(
        self,
        base: Lease,
        number: Expr,
        depth: int,
        site: Site,
        body: object,
        loops: tuple[Var, ...],
    ) -> None:
        self.base, self.number, self.depth, self.site = base, number, depth, site
        self.body, self.loops = body, loops


def where(condition: Expr, before: Counts, inside: Counts) -> Counts:
    """After a block that runs where the condition is not 0, given those of its end."""
    holds = condition
    if not _is_predicate(condition):
        holds = expr.predicate("ne", condition, ZERO)

    def either(old: Expr, new: Expr) -> Expr:
        more = expr.sub(new, old)
        found = expr.add(old, expr.scale(holds, more.const))
        for atom, k in more.terms:
            one = Expr(0, ((atom, 1),))
            both = expr.predicate("and", holds, one)
            one = both if _is_predicate(one) else expr.mul(holds, one)
            found = expr.add(found, expr.scale(one, k))
        return found

    return {
        uid: Count(either(old.pushed, new.pushed), either(old.popped, new.popped))
        for uid, old in before.items()
        for new in [inside[uid]]
    }


@dataclass(frozen=True)
class Iterated:
    """The counts of a loop: in its iteration, and after it. `unknown` are buffers whose
    counts are no expression of the iteration."""

    inside: Counts
    after: Counts
    unknown: tuple[int, ...]


def iterated(
    before: Counts, end: Counts, loop: Var, is_empty: Callable[[Count], bool]
) -> Iterated:
    """Given the counts before the loop, and at the end of an iteration that began with
    these. `is_empty` proves that no iteration of the loop has a tile in the buffer.

    A buffer that is empty between iterations is given as many tiles as it gives back;
    where neither is such an expression, it begins anew in each iteration.
    """
    inside, after, unknown = dict(before), dict(before), []
    for uid, old in before.items():
        new = end[uid]
        pushed = _totals(expr.sub(new.pushed, old.pushed), loop)
        popped = _totals(expr.sub(new.popped, old.popped), loop)
        if pushed is None or popped is None:
            if not (is_empty(old) and is_empty(new)):
                unknown.append(uid)
                continue
            pushed = popped = pushed or popped or (ZERO, ZERO)
        counts = [
            Count(expr.add(old.pushed, a), expr.add(old.popped, b))
            for a, b in zip(pushed, popped, strict=True)
        ]
        inside[uid], after[uid] = counts
    return Iterated(inside, after, tuple(unknown))


def _totals(each: Expr, loop: Var) -> tuple[Expr, Expr] | None:
    """Over the iterations before one, and over all."""
    before, all_ = (total(each, loop, stop) for stop in (expr.var(loop), loop.trip))
    return None if before is None or all_ is None else (before, all_)


def total(each: Expr, loop: Var, stop: Expr) -> Expr | None:
    """The sum of `each`, an expression of the loop's index, over the iterations below
    `stop`, at most its trip count; None where it is no expression that this finds."""
    found = expr.scale(stop, each.const)
    for atom, k in each.terms:
        if loop not in expr.variables(Expr(0, ((atom, 1),))):
            one: Expr | None = expr.mul(Expr(0, ((atom, 1),)), stop)
        elif atom == loop:
            before = expr.sub(stop, expr.const(1))
            one = expr.floordiv(expr.mul(stop, before), expr.const(2))
        else:
            one = _held_for(atom, loop, stop)
        if one is None:
            return None
        found = expr.add(found, expr.scale(one, k))
    return found


def _held_for(atom: expr.Atom, loop: Var, stop: Expr) -> Expr | None:
    """In how many iterations below `stop` a condition holds that is 1 in a range of
    them, or in all others."""
    if isinstance(atom, Node) and atom.op == "ne":
        others = _held_for(Node("eq", atom.args), loop, stop)
        return None if others is None else expr.sub(stop, others)
    ends = _range_of(atom, loop) or _range_found(atom, loop)
    if ends is None:
        return None
    low, high = ends
    last = stop if high is None else expr.minimum(stop, high)
    first = ZERO if low is None else expr.maximum(ZERO, low)
    return expr.maximum(ZERO, expr.sub(last, first))


_Range = tuple[Expr | None, Expr | None]  # from, to (excluded); None: no end


def _range_of(atom: expr.Atom, loop: Var) -> _Range | None:
    """The iterations in which a condition is 1, if they are a range."""
    if not isinstance(atom, Node) or atom.op not in ("lt", "le", "eq", "and"):
        return None
    a, b = atom.args
    if atom.op == "and":
        ranges = [_range_of_value(x, loop) for x in (a, b)]
        return _both(*ranges)
    upper = _not_negative(expr.sub(expr.sub(b, a), expr.const(atom.op == "lt")), loop)
    if atom.op != "eq":
        return upper
    return _both(upper, _not_negative(expr.sub(a, b), loop))


def _range_found(atom: expr.Atom, loop: Var) -> _Range | None:
    """As `_range_of`, of a condition on the loop's index alone, from its values in all
    iterations, if they are few."""
    few = loop.trip.is_const and loop.trip.const <= MOST_LOOKED_AT
    if not few or expr.variables(Expr(0, ((atom, 1),))) != {loop}:
        return None
    if not isinstance(atom, Node) or atom.op not in expr.PREDICATES:
        return None
    iterations = np.arange(loop.trip.const)
    holds = expr.evaluate(Expr(0, ((atom, 1),)), {loop: iterations}, np)
    found = np.flatnonzero(np.broadcast_to(holds, iterations.shape))
    if not found.size:
        return ZERO, ZERO
    low, high = int(found[0]), int(found[-1]) + 1
    if high - low != found.size:
        return None
    return expr.const(low), expr.const(high)


def _range_of_value(value: Expr, loop: Var) -> _Range | None:
    if value.const or len(value.terms) != 1 or value.terms[0][1] != 1:
        return None
    atom = value.terms[0][0]
    if loop not in expr.variables(value):
        return None  # it holds in all iterations, or in none
    return _range_of(atom, loop)


def _both(a: _Range | None, b: _Range | None) -> _Range | None:
    if a is None or b is None:
        return None
    lows = [end for end in (a[0], b[0]) if end is not None]
    highs = [end for end in (a[1], b[1]) if end is not None]
    low = expr.maximum(*lows) if len(lows) == 2 else next(iter(lows), None)
    high = expr.minimum(*highs) if len(highs) == 2 else next(iter(highs), None)
    return low, high


def _not_negative(value: Expr, loop: Var) -> _Range | None:
    """Where ``rest + k * loop`` is at least 0; None where it is not of this form."""
    terms = dict(value.terms)
    k = terms.pop(loop, 0)
    rest = replace(value, terms=tuple(terms.items()))
    if not k or loop in expr.variables(rest):
        return None
    if k > 0:  # from ceil(-rest / k)
        up = expr.sub(expr.const(k - 1), rest)
        return expr.floordiv(up, expr.const(k)), None
    return None, expr.add(expr.floordiv(rest, expr.const(-k)), expr.const(1))


def _is_predicate(value: Expr) -> bool:
    """Whether it is 0 or 1 by its form."""
    if value.is_const:
        return value.const in (0, 1)
    (atom, k), *more = value.terms
    alone = not more and not value.const and k == 1
    return alone and isinstance(atom, Node) and atom.op in expr.PREDICATES
