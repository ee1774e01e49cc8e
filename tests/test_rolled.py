"""A rolled schedule against the rows it stands for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kbjax import critical, rolled
from kbjax.rolled import Node, Repeat, Row

FIELDS = [*rolled.AFFINE, *rolled.PLAIN]
DEPTH = 3
PLACES = [(0,), (0, 1), (0, 1, 2), ()]  # the loops around each work


def drawn(rng: random.Random, level: int, outer: tuple[int, ...]) -> list[Node]:
    """Rows and repeats; loop `n` of a row is the one of the repeat at level `n`."""
    nodes: list[Node] = []
    for _ in range(rng.randint(1, 3)):
        if level < DEPTH and rng.random() < 0.5:
            first, step = rng.randint(0, 5), rng.randint(1, 3)
            inner = drawn(rng, level + 1, (*outer, first + rng.randrange(step)))
            repeat = Repeat(tuple(inner), rng.randint(2, 6), level, level, step)
            nodes.append(repeat)
            continue

        def form() -> tuple[int, ...]:
            return tuple(rng.randint(0, 99) for _ in range(level + 1))

        works = [n for n, loops in enumerate(PLACES) if len(loops) == level]
        indices = outer[:level]
        row = Row(
            rng.choice(works), form(), form(), rng.randint(0, 3), form(), form(),
            rng.randint(1, 9), rng.randint(1, 9), indices,
        )  # fmt: skip
        nodes.append(row)
    return nodes


def plainly(nodes: Sequence[Node], times: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Every row by itself, with its figures."""
    found = []
    for node in nodes:
        if isinstance(node, Repeat):
            for k in range(node.count):
                for row in plainly(node.nodes, (*times, k)):
                    row["indices"][node.position] += k * node.step
                    found.append(row)
            continue
        row = {name: getattr(node, name) for name in rolled.PLAIN}
        for name in rolled.AFFINE:
            value, *moves = getattr(node, name)
            row[name] = value + sum(k * m for k, m in zip(times, moves, strict=True))
        row["indices"] = [*node.indices, *[0] * (DEPTH - len(node.indices))]
        found.append(row)
    return found


def rows_of(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    columns = rolled.expanded(nodes, [*FIELDS, "indices"], DEPTH)
    count = len(columns["work"])
    return [
        {
            **{name: int(columns[name][n]) for name in FIELDS},
            "indices": columns["indices"][:, n].tolist(),
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_columns_are_the_rows(seed: int) -> None:
    nodes = drawn(random.Random(seed), 0, ())
    rows = plainly(nodes)
    assert rows_of(nodes) == rows
    assert rolled.count(nodes) == len(rows)
    assert rolled.extent(nodes) == (
        min(r["start"] for r in rows),
        max(r["start"] + r["cost"] for r in rows),
    )
    for name in ("start", "waited"):
        summed = sum(
            rolled.total(getattr(row, name), counts)
            for row, counts in rolled.rows(nodes)
        )
        assert summed == sum(row[name] for row in rows)


@pytest.mark.parametrize("seed", range(40))
def test_some_rows_are_those_of_all(seed: int) -> None:
    rng = random.Random(seed)
    nodes = drawn(rng, 0, ())
    rows = plainly(nodes)
    for _ in range(20):
        first, stop = sorted(rng.randrange(len(rows) + 1) for _ in "ab")
        cut = list(rolled.between(nodes, first, stop))
        assert rows_of(cut) == rows[first:stop]
        again = list(rolled.between(cut, 1, len(rows)))
        assert rows_of(again) == rows[first + 1 : stop]


@pytest.mark.parametrize("seed", range(40))
def test_chosen_rows_are_those_of_all(seed: int) -> None:
    rng = random.Random(seed)
    nodes = drawn(rng, 0, ())
    kept = {n for n in range(len(PLACES)) if rng.random() < 0.5}
    wanted = [row for row in plainly(nodes) if row["work"] in kept]
    assert rows_of(list(rolled.chosen(nodes, kept.__contains__))) == wanted


@pytest.mark.parametrize("loop", range(DEPTH))
@pytest.mark.parametrize("seed", range(25))
def test_iterations_are_those_of_all(seed: int, loop: int) -> None:
    rng = random.Random(seed)
    nodes = drawn(rng, 0, ())

    def place(work: int) -> int | None:
        return loop if loop in PLACES[work] else None

    for _ in range(10):
        first = rng.randrange(12)
        stop = first + rng.randrange(8)
        wanted = [
            row
            for row in plainly(nodes)
            if place(row["work"]) is not None and first <= row["indices"][loop] < stop
        ]
        found = list(rolled.iterations(nodes, place, first, stop))
        assert rows_of(found) == wanted


def test_the_critical_path_is_counted_as_walked() -> None:
    """Two engines in turn: each row after the one two before it, in a nested repeat
    whose numbers count up."""

    def row(work: int, number: tuple[int, ...], after: tuple[int, ...]) -> Row:
        zero = (0,) * len(number)
        return Row(work, number, zero, 1, after, zero, work + 1, 0, ())

    each = 2 * 1000 + 1  # rows of an outer time
    inner = Repeat(
        (row(0, (1, each, 2), (-1, each, 2)), row(1, (2, each, 2), (0, each, 2))),
        1000, 1, 1, 1,
    )  # fmt: skip
    outer = Repeat((row(2, (0, each), (-1, each)), inner), 500, 0, 0, 1)
    nodes = [outer, row(3, (500 * each,), (500 * each - 2,))]
    after = rolled.expanded(nodes, ["after", "work"], 0)
    walked: Counter[int] = Counter()
    number = 500 * each
    while number >= 0:
        walked[int(after["work"][number])] += 1
        number = int(after["after"][number])
    counted = critical.path([nodes], (0, 500 * each), {})
    assert Counter({s.work: n for s, n in counted.items()}) == walked
    assert walked[3] == 1 and max(walked.values()) > 100_000
