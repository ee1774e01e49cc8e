"""Prefill: flash attention over blocks of queries, causal or full, grouped queries.

Each PE owns one KV head and the `group` query heads that share it:

    o[g, r] = sum_c softmax_c(q[g, r] . k[c] / sqrt(D)) v[c]

Causal attention is aligned bottom-right: query r sees keys up to r + S - Sq. An outer
scope a block of queries goes around an inner scope a tile of keys (ADR-0063, D4). Tiles
that a block does not see are skipped by a symbolic trip count; only tiles on the
diagonal are masked. A NaN in a key reaches the rows that see it and no others; a NaN
or infinity in a value reaches all rows whose block loads its tile, since one matrix
product folds the tile and 0 x NaN is NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, positive, tolerance
from kbjax.kernels import _attention as attention


def flash_prefill(
    tl: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    *,
    block: int = 128,
    tile: int = 128,
    buffers: int = 1,
    causal: bool = True,
) -> None:
    """q: (G, Sq, D), k and v: (S, D), o: (G, Sq, D). Tiles of keys are loaded `buffers`
    - 1 ahead."""
    (group, queries, dim), keys = q.shape, k.shape[0]
    before = keys - queries  # keys that every query sees but for its own
    column = tl.expand_dims(tl.arange(tile), 0)
    row = tl.expand_dims(tl.arange(block), 1)
    # In tile j a row sees the columns whose distance is at most `limit - j * tile`.
    distance = column - row if causal else column
    for g in tl.range(group):
        for i in tl.range(tl.cdiv(queries, block)):
            limit, seen = keys - 1, keys
            if causal:
                limit = before + i * block
                seen = before + tl.minimum((i + 1) * block, queries)
            whole = tl.maximum(limit + 1, 0) // tile  # tiles that every row sees
            some = tl.cdiv(tl.maximum(seen, 0), tile)  # tiles that some row sees
            with tl.scratch_scope("queries"):
                qh = tl.load(q[g, tl.ds(i * block, block), :], other=0.0)
                state = attention.start(tl, block, dim)
                tiles = attention.tiles(tl, k, v, tile, buffers, some)
                for j in tl.range(whole):
                    attention.attend(tl, state, qh, tiles, j)
                for j in tl.range(whole, some):
                    attention.attend(
                        tl,
                        state,
                        qh,
                        tiles,
                        j,
                        visible=lambda j=j, limit=limit: distance <= limit - j * tile,
                    )
                tl.store(
                    o[g, tl.ds(i * block, block), :],
                    attention.finish(tl, state).to(o.dtype),
                    boundary_check=True,
                )


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = True
) -> np.ndarray:
    """float64; q: (..., G, Sq, D), k and v: (..., S, D)."""
    heads = [
        attention.attention_reference(q[i], k[i[:-1]], v[i[:-1]], causal=causal)
        for i in np.ndindex(q.shape[:-2])
    ]
    return np.stack(heads).reshape(q.shape)


def case(
    context: int = 16_384,
    queries: int = 128,
    tile: int = 128,
    block: int = 128,
    buffers: int = 1,
    dtype: str = "float32",
    num_pes: int = 1,
    causal: bool = True,
    query_heads: int = 64,
    kv_heads: int = 8,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """The last `queries` tokens of a context, one KV head a PE."""
    allowed = tolerance(dtype)
    positive(
        context=context, queries=queries, tile=tile, block=block, buffers=buffers,
        num_pes=num_pes, dim=dim,
    )  # fmt: skip
    if not isinstance(causal, bool):
        raise kb.DTypeError("causal is true or false", got=repr(causal))
    group = attention.group_size(query_heads, kv_heads)
    inputs = Inputs(
        seed, num_pes, dtype, ((group, queries, dim), (context, dim), (context, dim))
    )
    call = kb.kernel_call(
        partial(flash_prefill, block=block, tile=tile, buffers=buffers, causal=causal),
        jax.ShapeDtypeStruct((group, queries, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, inputs, partial(reference, causal=causal), allowed)


SMALL = {"context": 150, "queries": 70, "tile": 32, "block": 16, "num_pes": 2,
         "dim": 32, "query_heads": 4, "kv_heads": 2}  # fmt: skip
