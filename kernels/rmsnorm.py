"""RMSNorm of rows of any length (Zhang and Sennrich, 2019).

    o[r, c] = x[r, c] / sqrt(mean_c(x[r, c]^2) + eps) * weight[c]

Each PE owns M rows; all read the same weight. One sweep over the tiles of a block of
rows sums the squares, a second one writes. In float32; rounded once, to the output's
type.

The squares are of x / scale, where scale is the largest magnitude so far, and at least
sqrt(eps) (as LAPACK's `lassq` sums squares). So they neither overflow nor vanish: every
finite row and every eps that is not negative have the right result, where subnormal
elements count as the 0 that XLA takes them for on a CPU. A row with a NaN is NaN, and
so are a row of 0 where eps is 0 and one with an infinity, whose other elements the
formula makes 0; other rows are not touched.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import (
    LARGEST_FLOAT32,
    Case,
    Inputs,
    between,
    check_dtype,
    positive,
    tolerance,
)
from kbjax.kernels._shapes import agree

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def rmsnorm(
    tl: Any,
    x: Any,
    weight: Any,
    o: Any,
    *,
    eps: float = 1e-5,
    block: int = 16,
    tile: int = 2048,
) -> None:
    """x and o: (M, N), weight: (N,). `block` rows at a time, `tile` columns at a
    time."""
    agree(x=(x, "M N"), weight=(weight, "N"), o=(o, "M N"))
    positive(block=block, tile=tile)
    between(0, LARGEST_FLOAT32, eps=eps)
    eps = float(eps)  # a tile takes no scalar of NumPy's
    rows, columns = x.shape
    tiles = tl.cdiv(columns, tile)
    least = max(math.sqrt(eps), SMALLEST_NORMAL)  # never 0: it is divided by
    for i in tl.range(tl.cdiv(rows, block)):
        with tl.scratch_scope("rows"):
            # All along, scale^2 * total is N eps + the squares so far.
            scale = tl.full((block, 1), least)
            total = tl.full((block, 1), columns * eps / least**2)
            for j in tl.range(tiles):
                with tl.scratch_scope("sum"):
                    here = tl.ds(i * block, block), tl.ds(j * tile, tile)
                    v = tl.load(x[here], other=0.0).to("float32")
                    largest = tl.max(tl.abs(v), axis=1, keepdims=True)
                    scale_new = tl.maximum(scale, largest)
                    v = v / scale_new
                    squares = tl.sum(v * v, axis=1, keepdims=True)
                    shrink = scale / scale_new
                    tl.copy_to(total, total * shrink * shrink + squares)
                    tl.copy_to(scale, scale_new)
            rms = tl.sqrt(total / columns)  # over scale
            for j in tl.range(tiles):
                with tl.scratch_scope("write"):
                    here = tl.ds(i * block, block), tl.ds(j * tile, tile)
                    v = tl.load(x[here], other=0.0).to("float32")
                    w = tl.load(weight[tl.ds(j * tile, tile)], other=0.0).to("float32")
                    normal = v / scale / rms * w
                    tl.store(o[here], normal.to(o.dtype), boundary_check=True)


def reference(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """float64; x: (..., N), weight: (N,)."""
    x = x.astype(np.float64)
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + eps) * weight.astype(np.float64)


def case(
    m: int = 128,
    n: int = 8192,
    eps: float = 1e-5,
    block: int = 16,
    tile: int = 2048,
    dtype: str = "float32",
    num_pes: int = 8,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """Rows as long as Llama-70B's hidden state, m of them on each PE."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(m=m, n=n, block=block, tile=tile, num_pes=num_pes)
    between(0, LARGEST_FLOAT32, eps=eps)
    call = kb.kernel_call(
        partial(rmsnorm, eps=eps, block=block, tile=tile),
        jax.ShapeDtypeStruct((m, n), dtype),
        num_pes=num_pes,
        in_axes=(0, None),
        hardware=hardware,
    )
    inputs = Inputs(seed, num_pes, dtype, ((m, n), (n,)), shared=(1,))
    return Case(call, inputs, partial(reference, eps=eps), allowed)


SMALL = {"m": 19, "n": 150, "block": 8, "tile": 64, "num_pes": 2}
