"""Matrix product with int8 weights, dequantised in TCM a tile at a time.

    o[m, n] = sum_k x[m, k] (w[k, n] scale[k // group, n])

Each PE owns N columns of the weights; all read the same x. HBM gives a byte a weight,
which is what decoding waits for. A tile of weights becomes w * scale in float32, is
rounded to the type of x, and multiplied; sums are float32. There is a scale for each
column of `group` rows of K, or for each whole column. Tails are filled with 0.
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


def dequant_matmul(
    tl: Any,
    x: Any,
    w: Any,
    scale: Any,
    o: Any,
    *,
    group: int | None = None,
    tile_m: int = 16,
    tile_n: int = 256,
    tile_k: int = 256,
    buffers: int = 2,
) -> None:
    """x: (M, K) float, w: (K, N) int8, scale: (ceil(K / group), N) float32, o: (M, N).
    One of `group` and `tile_k` divides the other; where `group` is None, all of K is
    one. Tiles of K are loaded `buffers` - 1 ahead."""
    agree(x=(x, "M K"), w=(w, "K N"), scale=(scale, "groups N"), o=(o, "M N"))
    positive(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, buffers=buffers)
    if group is not None:
        positive(group=group)
    rows, columns = o.shape
    for i in tl.range(tl.cdiv(rows, tile_m)):
        for j in tl.range(tl.cdiv(columns, tile_n)):
            with tl.scratch_scope("output"):
                m, n = tl.ds(i * tile_m, tile_m), tl.ds(j * tile_n, tile_n)
                acc = product(tl, x[m, :], w[:, n], scale[:, n], group, tile_k, buffers)
                tl.store(o[m, n], acc.to(o.dtype), boundary_check=True)


def product(
    tl: Any, x: Any, w: Any, scale: Any, group: int | None, tile_k: int, buffers: int
) -> Any:
    """The product of views (rows, K) and (K, columns), in float32."""
    (rows, depth), columns = x.shape, w.shape[1]
    if group and tile_k % group and group % tile_k:
        raise kb.ShapeError(
            "a tile of K holds whole groups, or lies in one",
            got=f"group={group} and tile_k={tile_k}",
            allowed="one divides the other",
        )
    group = group or max(depth, tile_k)
    if scale.shape[0] != tl.cdiv(depth, group):
        raise kb.ShapeError(
            "dequant_matmul needs a row of scales for each group of K",
            got=f"{scale.shape[0]} rows for {depth} of K in groups of {group}",
        )
    steps = tl.cdiv(depth, tile_k)
    groups = max(tile_k // group, 1)  # of which a tile has rows

    def views(k: Any) -> tuple[Any, Any, Any]:
        here = tl.ds(k * tile_k, tile_k)
        return x[:, here], w[here, :], scale[tl.ds(k * tile_k // group, groups), :]

    acc = tl.zeros((rows, columns))
    tiles = LoadedAhead(tl, buffers, steps, views)
    for k in tl.range(steps):
        with tl.scratch_scope("k"):
            x_tile, w_tile, s_tile = tiles.next(k)
            grouped = tl.reshape(w_tile, (groups, tile_k // groups, columns))
            weights = grouped.to("float32") * tl.expand_dims(s_tile, 1)
            weights = tl.reshape(weights, (tile_k, columns)).to(x.dtype)
            tl.copy_to(acc, tl.dot(x_tile, weights, acc))
    return acc


def reference(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, group: int | None = None
) -> np.ndarray:
    """float64; x: (M, K), w: (..., K, N), scale: (..., ceil(K / group), N)."""
    depth = w.shape[-2]
    of = np.arange(depth) // (group or depth)  # the group of each row
    x = x.astype(np.float64)
    out = np.empty((*w.shape[:-2], x.shape[0], w.shape[-1]))
    for i in np.ndindex(w.shape[:-2]):  # one PE's float64 weights at a time
        out[i] = x @ (w[i] * scale[i].astype(np.float64)[of])
    return out


def case(
    m: int = 16,
    n: int = 1024,
    k: int = 8192,
    group: int | None = None,
    tile_m: int = 16,
    tile_n: int = 256,
    tile_k: int = 256,
    buffers: int = 2,
    dtype: str = "float32",
    num_pes: int = 8,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """16 tokens through a layer of Llama-70B's width: (m, k) x (k, n) on each PE,
    `num_pes` * n columns in all. `dtype` is that of x and of the output."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(m=m, n=n, k=k, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k,
             buffers=buffers, num_pes=num_pes)  # fmt: skip
    if group is not None:
        positive(group=group)
    scales = (-(-k // (group or k)), n)
    shapes = (
        (m, k),
        Drawn((k, n), "int8", _weights),
        Drawn(scales, "float32", _scales),
    )
    call = kb.kernel_call(
        partial(dequant_matmul, group=group, tile_m=tile_m, tile_n=tile_n,
                tile_k=tile_k, buffers=buffers),
        jax.ShapeDtypeStruct((m, n), dtype),
        num_pes=num_pes,
        in_axes=(None, 0, 0),
        hardware=hardware,
    )  # fmt: skip
    inputs = Inputs(seed, num_pes, dtype, shapes, shared=(0,))
    return Case(call, inputs, partial(reference, group=group), allowed)


def _weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-127, 128, shape, np.int8)


def _scales(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of weights of up to 0.5 to 1.5 in magnitude."""
    return rng.uniform(0.5 / 127, 1.5 / 127, shape)


SMALL = {"m": 5, "n": 37, "k": 100, "group": 32, "tile_m": 4, "tile_n": 16,
         "tile_k": 16, "num_pes": 2}  # fmt: skip
