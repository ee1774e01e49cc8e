"""What is certain to be written before it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb

X = np.arange(1, 17, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((16,), "float32")


def rows(tl: Any, x: Any, tile: Any, at: Any, count: int = 1) -> None:
    with tl.scratch_scope():
        tl.copy_to(tile[tl.ds(at, count)], tl.load(x[tl.ds(at, count)]))


def part_of_a_tile(tl: Any, x: Any, o: Any) -> None:
    tile = tl.empty((16,))
    rows(tl, x, tile, 0, 8)
    tl.store(o, tile)


def too_few_iterations(tl: Any, x: Any, o: Any) -> None:
    tile = tl.empty((16,))
    for j in tl.range(15):
        rows(tl, x, tile, j)
    tl.store(o, tile)


def the_row_after(tl: Any, x: Any, o: Any) -> None:
    tile = tl.empty((16,))
    for j in tl.range(15):
        rows(tl, x, tile, j)
        tl.store(o[tl.ds(j, 1)], tile[tl.ds(j + 1, 1)])


def a_loop_that_may_not_run(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(4):
        with tl.scratch_scope():
            tile = tl.empty((1,))
            for j in tl.range(3 - i):
                with tl.scratch_scope():
                    tl.copy_to(tile, tl.load(x[tl.ds(j, 1)]))
            tl.store(o[tl.ds(i, 1)], tile)


@pytest.mark.parametrize(
    "kernel",
    [part_of_a_tile, too_few_iterations, the_row_after, a_loop_that_may_not_run],
)
def test_a_read_that_is_not_certain_is_refused(kernel: Callable[..., None]) -> None:
    with pytest.raises(kb.UninitializedReadError, match=r"test_written\.py:"):
        kb.kernel_call(kernel, OUT).record(X)


def test_a_loop_of_no_pe_is_refused() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.empty((16,))
        for _ in tl.range(tl.program_id()):
            with tl.scratch_scope():
                tl.copy_to(tile, tl.load(x))
        tl.store(o, tile)

    with pytest.raises(kb.UninitializedReadError):
        kb.kernel_call(kernel, OUT, num_pes=2).record(np.stack([X, X]))


def in_halves(tl: Any, x: Any, o: Any) -> None:
    tile = tl.empty((16,))
    rows(tl, x, tile, 8, 8)
    rows(tl, x, tile, 0, 8)
    tl.store(o, tile)


def row_by_row(tl: Any, x: Any, o: Any) -> None:
    tile = tl.empty((16,))
    for j in tl.range(16):
        rows(tl, x, tile, j)
    tl.store(o, tile)


def in_a_nest(tl: Any, x: Any, o: Any) -> None:
    tile = tl.empty((16,))
    for i in tl.range(4):
        for j in tl.range(4):
            rows(tl, x, tile, i * 4 + j)
            tl.store(o[tl.ds(i * 4 + j, 1)], tile[tl.ds(i * 4 + j, 1)])
    tl.store(o, tile)


def in_a_body_that_never_runs(tl: Any, x: Any, o: Any) -> None:
    for _ in tl.range(0):
        tl.store(o, tl.empty((16,)))
    tl.store(o, tl.load(x))


@pytest.mark.parametrize(
    "kernel", [in_halves, row_by_row, in_a_nest, in_a_body_that_never_runs]
)
def test_a_certain_read_is_allowed(kernel: Callable[..., None]) -> None:
    np.testing.assert_array_equal(kb.kernel_call(kernel, OUT)(X), X)
