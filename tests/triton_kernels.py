"""Kernels in Triton that tests launch: here, since Triton's interpreter writes names of
its own into the globals of the module that holds them."""

from __future__ import annotations

from typing import Any

from tests.triton_interpreter import tl


def double_with_a_tail(
    x: Any, o: Any, n: Any, TILE: tl.constexpr, FILL: tl.constexpr
) -> None:
    """o = 2 x tile by tile; each tile's lowest element goes behind the n of o."""
    for j in range(tl.cdiv(n, TILE)):
        at = j * TILE + tl.arange(0, TILE)
        tile = tl.load(x + at, mask=at < n, other=FILL)
        tl.store(o + at, tile * 2.0, mask=at < n)
        tl.store(o + n + j, tl.min(tile, axis=0))


def sum_of_indices(o: Any, first: Any, last: Any, STEP: tl.constexpr) -> None:
    total = tl.zeros((1,), tl.int32)
    trips = tl.zeros((1,), tl.int32)
    for j in range(first, last, STEP):
        total += j
        trips += 1
    tl.store(o + tl.arange(0, 1), total)
    tl.store(o + 1 + tl.arange(0, 1), trips)


def program_numbers(o: Any) -> None:
    here = tl.program_id(0) + tl.arange(0, 1)
    tl.store(o + here, here * 10 + tl.num_programs(0))


def store_nothing(o: Any) -> None:
    at = tl.arange(0, 4)
    tl.store(o + at, at.to(tl.float32), mask=at < 2)


def store_floats(o: Any) -> None:
    tl.store(o + tl.arange(0, 4), tl.full((4,), 1.5, tl.float32))


def where_it_holds(o: Any, n: Any) -> None:
    """Every other index of the odd programs."""
    total = tl.zeros((1,), tl.int32)
    for j in range(0, n):
        if (tl.program_id(0) % 2 == 1) & (j % 2 == 0):
            total += j + 1
    tl.store(o + tl.program_id(0) + tl.arange(0, 1), total)
