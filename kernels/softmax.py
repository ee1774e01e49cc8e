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
from kbjax.kernels._attention import NEGATIVE_INFINITY, raised


def softmax(tl: Any, x: Any, o: Any, *, block: int = 16, tile: int = 2048) -> None:
    """x and o: (M, N). `block` rows at a time, `tile` columns at a time."""
    rows, columns = x.shape
    tiles = tl.cdiv(columns, tile)
    for i in tl.range(tl.cdiv(rows, block)):
        with tl.scratch_scope("rows"):
            m = tl.full((block, 1), NEGATIVE_INFINITY)
            l = tl.zeros((block, 1))  # noqa: E741 - the literature's name
            for j in tl.range(tiles):
                with tl.scratch_scope("sum"):
                    here = tl.ds(i * block, block), tl.ds(j * tile, tile)
                    s = tl.load(x[here], other=NEGATIVE_INFINITY).to("float32")
                    m_new, m_safe = raised(tl, m, tl.max(s, axis=1, keepdims=True))
                    p = tl.exp(s - m_safe)
                    scale = tl.exp(m - m_safe)
                    tl.copy_to(l, l * scale + tl.sum(p, axis=1, keepdims=True))
                    tl.copy_to(m, m_new)
            for j in tl.range(tiles):
                with tl.scratch_scope("write"):
                    here = tl.ds(i * block, block), tl.ds(j * tile, tile)
                    s = tl.load(x[here], other=NEGATIVE_INFINITY).to("float32")
                    p = tl.exp(s - m) / l
                    tl.store(o[here], p.to(o.dtype), boundary_check=True)


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
