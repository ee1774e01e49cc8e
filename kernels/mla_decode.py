"""One decode step of multi-head latent attention (MLA; DeepSeek-V2, 2024).

All heads share one cache row a token, a latent c of R elements and a rotary key r of P.
With the up-projections of keys and values absorbed into the query and the output, a
head's query has a part for each, and the latents are the values too:

    o[h] = sum_s softmax_s(scale (q_c[h] . c[s] + q_r[h] . r[s])) c[s]

Each PE owns some heads. A tile of the cache is loaded once, and its latents serve the
scores and the values. Scratch is O(1) in the context, as in `gqa_decode`.

The scale is that of the keys before they were compressed: 1 / sqrt(128 + 64) with
DeepSeek-V2's head size and rotary size (section 2.1.3 of the paper: sqrt(d_h + d_h^R)),
not 1 / sqrt(R + P). Models that stretch positions with YaRN multiply it.
"""

from __future__ import annotations

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
from kbjax.kernels import _attention as attention
from kbjax.kernels._shapes import agree


def mla_decode(
    tl: Any,
    q: Any,
    cache: Any,
    o: Any,
    *,
    scale: float = 192**-0.5,
    tile: int = 64,
    buffers: int = 2,
) -> None:
    """q: (H, R + P), cache: (S, R + P), o: (H, R). Tiles of the cache are loaded
    `buffers` - 1 ahead."""
    agree(q=(q, "H C"), cache=(cache, "S C"), o=(o, "H R"))
    positive(tile=tile, buffers=buffers)
    between(-LARGEST_FLOAT32, LARGEST_FLOAT32, scale=scale)
    scale = float(scale)  # a tile takes no scalar of NumPy's
    (heads, rank), context = o.shape, cache.shape[0]
    q_latent, q_rotary = tl.load(q[:, :rank]), tl.load(q[:, rank:])
    state = attention.start(tl, heads, rank)

    rotary, latent = cache[:, rank:], cache[:, :rank]

    def attend(state: attention.Running, tiles: attention.Tiles, j: Any) -> None:
        with tl.scratch_scope("keys"):
            tiles.ahead(j)
            r, c = tiles.keys(j), tiles.values(j)
            s = tl.dot(q_rotary, tl.trans(r))
            s = tl.dot(q_latent, tl.trans(c), acc=s) * scale
            attention.fold(tl, state, s, c)

    def sweep(state: attention.Running, first: Any, end: Any) -> None:
        tiles = attention.tiles(tl, rotary, latent, tile, buffers, first, end)
        for j in tl.range(first, end):
            attend(state, tiles, j)

    count, rest = divmod(context, tile)
    attention.in_runs(tl, state, 0, count, sweep, most=count)
    if rest:  # the last tile is a smaller one
        last = slice(count * tile, context)
        attend(state, attention.Tiles(tl, rotary[last], latent[last], rest), 0)
    tl.store(o, attention.finish(tl, state).to(o.dtype))


def reference(q: np.ndarray, cache: np.ndarray, rank: int, scale: float) -> np.ndarray:
    """float64, (..., H, rank); q: (..., H, R + P), cache: (S, R + P)."""
    keys = cache.astype(np.float64)
    s = q.astype(np.float64) @ keys.T * scale
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p @ keys[:, :rank] / p.sum(axis=-1, keepdims=True)


def case(
    context: int = 16_384,
    tile: int = 64,
    buffers: int = 2,
    dtype: str = "float32",
    num_pes: int = 8,
    heads: int = 16,
    rank: int = 512,
    rotary: int = 64,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """DeepSeek-V2's 128 heads, `heads` a PE. `dim` is the size of a head's key before
    it was compressed, the rotary part left out; it gives the scale."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(
        context=context, tile=tile, buffers=buffers, num_pes=num_pes, heads=heads,
        rank=rank, rotary=rotary, dim=dim,
    )  # fmt: skip
    scale = (dim + rotary) ** -0.5
    width = rank + rotary
    inputs = Inputs(seed, num_pes, dtype, ((heads, width), (context, width)), (1,))
    call = kb.kernel_call(
        partial(mla_decode, scale=scale, tile=tile, buffers=buffers),
        jax.ShapeDtypeStruct((heads, rank), dtype),
        num_pes=num_pes,
        in_axes=(0, None),
        hardware=hardware,
    )
    return Case(call, inputs, partial(reference, rank=rank, scale=scale), allowed)


SMALL = {"context": 100, "tile": 32, "buffers": 1, "num_pes": 2, "heads": 4, "rank": 32,
         "rotary": 8, "dim": 16}  # fmt: skip
