"""Matrix product, tiled, of floats or of int8.

    o[m, n] = sum_k a[m, k] b[k, n]

Each PE owns M rows of the left matrix; all read the same right one. A scope a tile of
the output goes around a scope a tile of K. Floats are accumulated in float32 and
rounded once, to the output's type; int8 in int32, exact for K up to 131,071. Tails are
filled with 0, so no size has to be a multiple of its tile. A NaN or infinity reaches
its own row (of `a`) or column (of `b`) of the output and no others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Drawn, Inputs, check_dtype, positive, tolerance
from kbjax.kernels._prefetch import LoadedAhead
from kbjax.kernels._shapes import agree


def matmul(
    tl: Any,
    a: Any,
    b: Any,
    o: Any,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 256,
    buffers: int = 2,
) -> None:
    """a: (M, K), b: (K, N), o: (M, N). Tiles of K are loaded `buffers` - 1 ahead."""
    agree(a=(a, "M K"), b=(b, "K N"), o=(o, "M N"))
    positive(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, buffers=buffers)
    rows, columns = o.shape
    for i in tl.range(tl.cdiv(rows, tile_m)):
        for j in tl.range(tl.cdiv(columns, tile_n)):
            with tl.scratch_scope("output"):
                m, n = tl.ds(i * tile_m, tile_m), tl.ds(j * tile_n, tile_n)
                acc = product(tl, a[m, :], b[:, n], tile_k, buffers)
                tl.store(o[m, n], acc.to(o.dtype), boundary_check=True)


def product(tl: Any, a: Any, b: Any, tile_k: int, buffers: int) -> Any:
    """The product of views (rows, K) and (K, columns), in the accumulator's type."""
    (rows, depth), columns = a.shape, b.shape[1]
    steps = tl.cdiv(depth, tile_k)

    def views(k: Any) -> tuple[Any, Any]:
        here = tl.ds(k * tile_k, tile_k)
        return a[:, here], b[here, :]

    kind = a.dtype if a.dtype.is_float else b.dtype  # an integer is widened to a float
    acc = tl.zeros((rows, columns), kind.accumulator)
    tiles = LoadedAhead(tl, buffers, steps, views)
    for k in tl.range(steps):
        with tl.scratch_scope("k"):
            a_tile, b_tile = tiles.next(k)
            tl.copy_to(acc, tl.dot(a_tile, b_tile, acc))
    return acc


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64; a: (..., M, K), b: (K, N)."""
    return a.astype(np.float64) @ b.astype(np.float64)


def case(
    m: int = 256,
    n: int = 1024,
    k: int = 4096,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 256,
    buffers: int = 2,
    dtype: str = "float32",
    num_pes: int = 8,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """(m, k) x (k, n) on each PE: `num_pes` * m rows in all. int8 matrices give int32,
    which has to be exact."""
    integers = dtype == "int8"
    check_dtype(dtype, "int8")
    allowed = tolerance(dtype)
    positive(m=m, n=n, k=k, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k,
             buffers=buffers, num_pes=num_pes)  # fmt: skip
    shapes = ((m, k), (k, n))
    drawn = tuple(Drawn(shape, dtype, _any_int8) for shape in shapes)
    inputs = Inputs(seed, num_pes, dtype, drawn if integers else shapes, shared=(1,))
    call = kb.kernel_call(
        partial(matmul, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, buffers=buffers),
        jax.ShapeDtypeStruct((m, n), "int32" if integers else dtype),
        num_pes=num_pes,
        in_axes=(0, None),
        hardware=hardware,
    )
    return Case(call, inputs, reference, allowed)


def _any_int8(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-128, 128, shape, np.int8)


SMALL = {"m": 37, "n": 29, "k": 50, "tile_m": 16, "tile_n": 16, "tile_k": 16,
         "num_pes": 2}  # fmt: skip
