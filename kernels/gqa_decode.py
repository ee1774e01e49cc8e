"""One decode step of grouped-query attention over a long KV cache.

Each PE owns one KV head and the `group` query heads that share it:

    o[g] = sum_s softmax_s(q[g] . k[s] / sqrt(D)) v[s]

One sweep over tiles of keys with an online softmax, whose state is made by
`_attention.start` and takes in a tile by `attend`. Scratch is O(1) in the context: a
tile's scores and probabilities live in a scope that is rewound (ADR-0063).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels._shapes import agree


def gqa_decode(
    tl: Any, q: Any, k: Any, v: Any, o: Any, *, tile: int = 128, buffers: int = 1
) -> None:
    """q: (G, D), k and v: (S, D), o: (G, D). Tiles of keys are loaded `buffers` - 1
    ahead."""
    agree(q=(q, "G D"), k=(k, "S D"), v=(v, "S D"), o=(o, "G D"))
    positive(tile=tile, buffers=buffers)
    (group, dim), context = q.shape, k.shape[0]
    qh = tl.load(q)
    state = attention.start(tl, group, dim)

    def sweep(state: attention.Running, first: Any, end: Any) -> None:
        tiles = attention.tiles(tl, k, v, tile, buffers, first, end)
        for j in tl.range(first, end):
            attention.attend(tl, state, qh, tiles, j)

    count, rest = divmod(context, tile)
    attention.in_runs(tl, state, 0, count, sweep, most=count)
    if rest:  # the last tile is a smaller one
        last = slice(count * tile, context)
        attention.attend(tl, state, qh, attention.Tiles(tl, k[last], v[last], rest), 0)
    tl.store(o, attention.finish(tl, state).to(o.dtype))


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """float64; q: (..., G, D), k and v: (..., S, D)."""
    lead = q.shape[:-2]
    heads = [attention.attention_reference(q[i], k[i], v[i]) for i in np.ndindex(lead)]
    return np.stack(heads).reshape(q.shape)


def case(
    context: int = 131_072,
    tile: int = 128,
    buffers: int = 1,
    dtype: str = "float32",
    num_pes: int = 8,
    query_heads: int = 64,
    kv_heads: int = 8,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """Llama-70B's decode, one KV head a PE: the first `num_pes` of them."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(context=context, tile=tile, buffers=buffers, num_pes=num_pes, dim=dim)
    group = attention.group_size(query_heads, kv_heads)
    inputs = Inputs(
        seed, num_pes, dtype, ((group, dim), (context, dim), (context, dim))
    )
    call = kb.kernel_call(
        partial(gqa_decode, tile=tile, buffers=buffers),
        jax.ShapeDtypeStruct((group, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, inputs, reference, allowed)


SMALL = {"context": 300, "tile": 64, "num_pes": 2, "dim": 32, "query_heads": 8,
         "kv_heads": 2}  # fmt: skip
