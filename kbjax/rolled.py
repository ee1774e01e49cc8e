"""A schedule in rolled form: rows, and repeats of rows whose times and numbers are
linear in the step. Its size does not depend on trip counts; `expanded` gives columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kbjax.forms import Form

# Why a row did not start before.
AT_ONCE, ENGINE, OPERAND, HAZARD = range(4)
CAUSE_NAMES = ("", "engine", "operand", "hazard")


class Row(NamedTuple):
    """An executed command. Forms have a component a repeat around the row.

    Attributes:
      work: which of the program's works.
      number: its place in issue order.
      start: ps.
      cause: what it waited for last, one of the names above.
      after: the number of the command that ended when it started; -1 for none.
      waited: ps; by ENGINE from when its operands were ready (0 where it has none), by
        OPERAND that its engine was idle, by HAZARD from when both were ready.
      cost: ps on its engine.
      nbytes: bytes moved or written.
      indices: the iteration of each loop around it, outermost first, at step 0 of the
        repeats.
    """

    work: int
    number: Form
    start: Form
    cause: int
    after: Form
    waited: Form
    cost: int
    nbytes: int
    indices: tuple[int, ...]

    @property
    def rows(self) -> int:
        return 1

    def moved(self, change: Callable[[Form], Form], position: int, by: int) -> Row:
        """With other forms, and the index of loop `position` moved."""
        indices = list(self.indices)
        indices[position] += by
        return self._replace(
            number=change(self.number),
            start=change(self.start),
            after=change(self.after),
            waited=change(self.waited),
            indices=tuple(indices),
        )


@dataclass(frozen=True)
class Repeat:
    """`count` times `nodes`.

    Attributes:
      level: how many repeats are around it; its component of a form is the next.
      position: how many loops are around the loop whose iterations it holds.
      step: iterations of that loop a time.
    """

    nodes: tuple[Node, ...]
    count: int
    level: int
    position: int
    step: int

    @cached_property
    def rows(self) -> int:
        """How many rows it stands for."""
        return sum(node.rows for node in self.nodes) * self.count

    def moved(self, change: Callable[[Form], Form], position: int, by: int) -> Repeat:
        nodes = tuple(n.moved(change, position, by) for n in self.nodes)
        return replace(self, nodes=nodes)

    def one(self, k: int) -> tuple[Node, ...]:
        """The nodes of time `k`, without this repeat around them."""
        at = self.level + 1

        def fixed(form: Form) -> Form:
            return (form[0] + k * form[at], *form[1:at], *form[at + 1 :])

        inner = (n.moved(fixed, self.position, k * self.step) for n in self.nodes)
        return tuple(_raised(n) for n in inner)

    def some(self, first: int, stop: int) -> tuple[Node, ...]:
        """Times `first` to `stop`."""
        if stop - first <= 1:
            return self.one(first) if stop > first else ()
        at = self.level + 1

        def later(form: Form) -> Form:
            return (form[0] + first * form[at], *form[1:])

        by = first * self.step
        nodes = tuple(n.moved(later, self.position, by) for n in self.nodes)
        return (replace(self, nodes=nodes, count=stop - first),)


Node = Row | Repeat


def _raised(node: Node) -> Node:
    """With one repeat less around."""
    if isinstance(node, Row):
        return node
    nodes = tuple(map(_raised, node.nodes))
    return replace(node, nodes=nodes, level=node.level - 1)


def count(nodes: Iterable[Node]) -> int:
    """How many rows the nodes stand for."""
    return sum(node.rows for node in nodes)


def rows(nodes: Iterable[Node]) -> Iterator[tuple[Row, tuple[int, ...]]]:
    """Every row that is kept, with the counts of the repeats around it."""
    for node in nodes:
        if isinstance(node, Row):
            yield node, ()
        else:
            for row, counts in rows(node.nodes):
                yield row, (node.count, *counts)


def total(form: Form, counts: Sequence[int]) -> int:
    """The sum of a form over all times of the repeats around it."""
    times = math.prod(counts)
    found = form[0] * times
    for change, count_ in zip(form[1:], counts, strict=True):
        found += change * (count_ - 1) * times // 2
    return found


def extent(nodes: Iterable[Node]) -> tuple[int, int]:
    """The first start and the last end, in ps; of rows with no repeat around them.

    In steps nothing moves back in time, so they are at the first and the last one.
    """

    def ends(
        nodes: Iterable[Node], counts: tuple[int, ...]
    ) -> Iterator[tuple[int, int]]:
        for node in nodes:
            if isinstance(node, Repeat):
                yield from ends(node.nodes, (*counts, node.count))
                continue
            first, *moves = node.start
            last = sum(k * (n - 1) for k, n in zip(moves, counts, strict=True))
            yield first, first + last + node.cost

    found = list(ends(nodes, ()))
    return min(first for first, _ in found), max(last for _, last in found)


def between(nodes: Iterable[Node], first: int, stop: int) -> Iterator[Node]:
    """The nodes for rows `first` to `stop` of what `nodes` stand for."""
    for node in nodes:
        low, high = max(first, 0), min(stop, node.rows)
        first, stop = first - node.rows, stop - node.rows
        if low >= high:
            continue
        if isinstance(node, Row) or (low, high) == (0, node.rows):
            yield node
            continue
        each = node.rows // node.count
        whole, end = -(-low // each), high // each
        if whole > end:  # within one time
            begin = end * each
            yield from between(node.one(end), low - begin, high - begin)
            continue
        if low < whole * each:
            begin = (whole - 1) * each
            yield from between(node.one(whole - 1), low - begin, each)
        yield from node.some(whole, end)
        if high > end * each:
            yield from between(node.one(end), 0, high - end * each)


def chosen(nodes: Iterable[Node], keep: Callable[[int], bool]) -> Iterator[Node]:
    """The rows whose work is kept."""
    for node in nodes:
        if isinstance(node, Row):
            if keep(node.work):
                yield node
        else:
            inner = tuple(chosen(node.nodes, keep))
            if inner:
                yield replace(node, nodes=inner)


def iterations(
    nodes: Iterable[Node],
    place: Callable[[int], int | None],
    first: int,
    stop: int,
) -> Iterator[Node]:
    """The rows of iterations `first` to `stop` of a loop, which is loop `place(work)`
    around each work (None: not around it)."""
    for node in nodes:
        if isinstance(node, Row):
            at = place(node.work)
            if at is not None and first <= node.indices[at] < stop:
                yield node
            continue
        found = [
            row.indices[node.position]
            for row, _ in rows(node.nodes)
            if place(row.work) == node.position
        ]
        if not found:
            inner = tuple(iterations(node.nodes, place, first, stop))
            if inner:
                yield replace(node, nodes=inner)
            continue
        # Times of which all rows are kept, and one on each side of which some are.
        low = max(-((min(found) - first) // node.step), 0)
        high = min((stop - 1 - max(found)) // node.step + 1, node.count)
        some_low = max(-((max(found) - first) // node.step), 0)
        some_high = min((stop - 1 - min(found)) // node.step + 1, node.count)
        for k in range(some_low, min(low, some_high)):
            yield from iterations(node.one(k), place, first, stop)
        if low < high:
            inner = tuple(chosen(node.nodes, lambda work: place(work) is not None))
            yield from replace(node, nodes=inner).some(low, high)
        for k in range(max(low, high, some_low), some_high):
            yield from iterations(node.one(k), place, first, stop)


# --- columns -------------------------------------------------------------------------

AFFINE = ("number", "start", "after", "waited")
PLAIN = ("work", "cause", "cost", "nbytes")


def expanded(
    nodes: Iterable[Node], fields: Iterable[str], depth: int
) -> dict[str, np.ndarray]:
    """Columns of all rows.

    Args:
      nodes: what to expand, with no repeat around it.
      fields: names of `Row`; "indices" for the loops' iterations.
      depth: the most loops around a row.

    Returns:
      int64 arrays (rows,), `indices` (depth, rows), padded with 0.
    """
    wanted = list(fields)
    found = _columns(tuple(nodes), wanted, depth, 0)
    return {
        name: value[0] if name in AFFINE else value for name, value in found.items()
    }


def _columns(
    nodes: tuple[Node, ...], fields: list[str], depth: int, level: int
) -> dict[str, np.ndarray]:
    """As `expanded`; an affine field is (1 + level, rows)."""
    parts: list[dict[str, np.ndarray]] = []
    flat: list[Row] = []
    for node in nodes:
        if isinstance(node, Row):
            flat.append(node)
            continue
        if flat:
            parts.append(_flat(flat, fields, depth, level))
            flat = []
        parts.append(_repeated(node, fields, depth))
    if flat or not parts:
        parts.append(_flat(flat, fields, depth, level))
    if len(parts) == 1:
        return parts[0]
    return {n: np.concatenate([p[n] for p in parts], axis=-1) for n in fields}


def _flat(
    found: list[Row], fields: list[str], depth: int, level: int
) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name in fields:
        if name == "indices":
            padded = [r.indices + (0,) * (depth - len(r.indices)) for r in found]
            table = np.array(padded, np.int64).reshape(len(found), depth).T
        elif name in AFFINE:
            forms = [getattr(row, name) for row in found]
            table = np.array(forms, np.int64).reshape(len(found), level + 1).T
        else:
            table = np.array([getattr(row, name) for row in found], np.int64)
        columns[name] = table
    return columns


def _repeated(node: Repeat, fields: list[str], depth: int) -> dict[str, np.ndarray]:
    inner = _columns(node.nodes, fields, depth, node.level + 1)
    times = np.arange(node.count, dtype=np.int64)[:, None]

    def moving(base: np.ndarray, change: np.ndarray | int) -> np.ndarray:
        return (base + times * change).reshape(-1)

    columns: dict[str, np.ndarray] = {}
    for name, table in inner.items():
        if name == "indices":
            columns[name] = np.stack(
                [
                    moving(line, node.step)
                    if place == node.position
                    else np.tile(line, node.count)
                    for place, line in enumerate(table)
                ]
            )
        elif name in AFFINE:
            change = table[node.level + 1]
            kept = [np.tile(line, node.count) for line in table[1:-1]]
            columns[name] = np.stack([moving(table[0], change), *kept])
        else:
            columns[name] = np.tile(table, node.count)
    return columns
