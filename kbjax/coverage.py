"""Whether every byte that a read wants has been written: decided by enumeration.

Where the ranges of kbjax.written do not decide, each execution of each write to the
tile gets its place in the order of execution, and each byte of the tile its first
write. A byte that is read before it makes the read uninitialised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kbjax import expr
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.footprint import Allocation
from kbjax.program import Loop, Scope, Statement, inside
from kbjax.refs import Ref

_MOST_BYTES = 1 << 22  # granules that all executions together touch
_LAST = Expr(-1)  # pads the order of shallow commands


@dataclass(frozen=True)
class Use:
    """A read or a write of a tile.

    Attributes:
      ref: the bytes.
      domain: the iterations that run it.
      order: its place in execution, level by level: the position in its block, then
        the iteration of the loop that it leads into, or 0.
    """

    ref: Ref
    domain: Domain
    order: tuple[Expr, ...]


@dataclass(frozen=True)
class Level:
    """An open block: what it holds so far, the iterations that run it, and the loop
    whose body it is, if any, with the body's first, complete recording, if there is
    one."""

    block: Sequence[Statement]
    domain: Domain
    loop: Var | None = None
    complete: Sequence[Statement] | None = None


def reading(levels: Sequence[Level], ref: Ref) -> Use:
    """The read of `ref` that would be recorded next, in the innermost level."""
    order: list[Expr] = []
    for level, inner in zip(levels, [*levels[1:], None], strict=True):
        order.append(expr.const(len(level.block)))
        if inner is not None:
            order.append(expr.var(inner.loop) if inner.loop else expr.ZERO)
    return Use(ref, levels[-1].domain, tuple(order))


def writes(levels: Sequence[Level], root: int) -> Iterator[Use]:
    """Every write to the tile so far, also those of earlier iterations of the open
    loops whose bodies are complete."""
    order: tuple[Expr, ...] = ()
    for level, inner in zip(levels, [*levels[1:], None], strict=True):
        if level.complete is not None:  # with all that it encloses
            yield from _writes(level.complete, root, level.domain, order)
            return
        yield from _writes(level.block, root, level.domain, order)
        into = expr.var(inner.loop) if inner is not None and inner.loop else expr.ZERO
        order = (*order, expr.const(len(level.block)), into)


def _writes(
    block: Sequence[Statement],
    root: int,
    domain: Domain,
    order: tuple[Expr, ...],
) -> Iterator[Use]:
    for position, item in enumerate(block):
        here = (*order, expr.const(position))
        if isinstance(item, Loop | Scope):
            into = expr.var(item.index) if isinstance(item, Loop) else expr.ZERO
            yield from _writes(item.body, root, inside(item, domain), (*here, into))
        elif item.writes is not None and item.writes.root == root:
            yield Use(item.writes, domain, here)


def is_covered(
    read: Use, writes_: Sequence[Use], made: Allocation, pe: Var
) -> bool | None:
    """Whether each execution of the read finds every byte written, on every PE; None
    where there are too many executions to tell."""
    uses = [*writes_, read]
    unit = math.gcd(
        *(use.ref.nbytes for use in uses),
        *(k for use in uses for _, k in use.ref.offset.terms),
        *(use.ref.offset.const for use in uses),
    )
    exprs = [value for use in uses for value in (use.ref.offset, *use.order)]
    trips = [loop.trip for use in uses for loop in use.domain.loops]
    conditions = [one for use in uses for one in use.domain.conditions]
    instance = [expr.var(loop) for loop in made.loops]
    if pe in expr.variables(*exprs, *trips, *conditions):  # PEs write other bytes
        instance.append(expr.var(pe))
    depth = max(len(use.order) for use in uses)
    owners, granules, orders, sources = [], [], [], []
    total = 0
    for source, use in enumerate(uses):
        padded = (*use.order, *(_LAST for _ in range(depth - len(use.order))))
        table = use.domain.table(*instance, *padded, use.ref.offset)
        if table is None:
            return None
        columns = np.stack(table, axis=1)
        count = use.ref.nbytes // unit
        total += len(columns) * count
        if total > _MOST_BYTES:
            return None
        columns = np.repeat(columns, count, axis=0)
        within = np.tile(np.arange(count), len(columns) // max(count, 1))
        owners.append(columns[:, : len(instance)])
        orders.append(columns[:, len(instance) : -1])
        granules.append(columns[:, -1] // unit + within)
        sources.append(np.full(len(columns), source == len(uses) - 1))
    reads = np.concatenate(sources)
    place = np.column_stack([np.concatenate(owners), np.concatenate(granules)])
    byte, when = _ranks(place), _ranks(np.concatenate(orders))
    first = np.full(int(byte.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, byte[~reads], when[~reads])
    return bool((first[byte[reads]] < when[reads]).all())


def _ranks(rows: np.ndarray) -> np.ndarray:
    """The place of each row, (n, columns) of integers, in lexicographic order; equal
    rows have equal places."""
    low = rows.min(axis=0, initial=0)
    spans = [int(one) for one in rows.max(axis=0, initial=0) - low + 1]
    if math.prod(spans) < 1 << 62:
        key = np.zeros(len(rows), np.int64)
        for column, span in zip((rows - low).T, spans, strict=True):
            key = key * span + column
        return np.unique(key, return_inverse=True)[1].reshape(-1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
