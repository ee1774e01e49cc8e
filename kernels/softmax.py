"""Softmax of rows of any length, also of rows that the TCM does not hold.

    o[r, c] = exp(x[r, c] - m[r]) / l[r],  m[r] = max_c x[r, c],
    l[r] = sum_c exp(x[r, c] - m[r])

Each PE owns M rows. One sweep over the tiles of a block of rows finds m and l together
(online softmax, Milakov and Gimelshein, 2018), a second one writes. In float32; rounded
once, to the output's type. A row of -inf only is NaN, and so is a row with a NaN or
+inf, as in JAX and PyTorch; other rows are not touched by it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as online
from kbjax.kernels._shapes import agree


def softmax(tl: Any, x: Any, o: Any, *, block: int = 16, tile: int = 2048) -> None:
    """x and o: (M, N). `block` rows at a time, `tile` columns at a time."""
    agree(x=(x, "M N"), o=(o, "M N"))
    positive(block=block, tile=tile)
    rows, columns = x.shape
    tiles = tl.cdiv(columns, tile)

    def here(i: Any, j: Any) -> tuple[Any, Any]:
        return tl.ds(i * block, block), tl.ds(j * tile, tile)

    def loaded(i: Any, j: Any) -> Any:
        return tl.load(x[here(i, j)], other=online.NEGATIVE_INFINITY).to("float32")

    def sweep(i: Any, state: online.Running, first: Any, end: Any) -> None:
        for j in tl.range(first, end):
            with tl.scratch_scope("sum"):
                online.fold(tl, state, loaded(i, j))

    for i in tl.range(tl.cdiv(rows, block)):
        with tl.scratch_scope("rows"):
            state = online.start(tl, block, None)
            online.in_runs(tl, state, 0, tiles, partial(sweep, i), most=tiles)
            for j in tl.range(tiles):
                with tl.scratch_scope("write"):
                    p = tl.exp(loaded(i, j) - state.m) / state.l
                    tl.store(o[here(i, j)], p.to(o.dtype), boundary_check=True)


def reference(x: np.ndarray) -> np.ndarray:
    """float64; x: (..., N)."""
    p = x.astype(np.float64)
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def case(
    m: int = 16,
    n: int = 128_256,
    block: int = 16,
    tile: int = 2048,
    dtype: str = "float32",
    num_pes: int = 8,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """Rows as long as Llama 3's vocabulary, m of them on each PE."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(m=m, n=n, block=block, tile=tile, num_pes=num_pes)
    call = kb.kernel_call(
        partial(softmax, block=block, tile=tile),
        jax.ShapeDtypeStruct((m, n), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, Inputs(seed, num_pes, dtype, ((m, n),)), reference, allowed)


SMALL = {"m": 19, "n": 150, "block": 8, "tile": 64, "num_pes": 2}
