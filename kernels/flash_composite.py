"""Decode by one `tl.composite`: alternative A2 of ADR-0063.

Each PE owns one KV head and the `group` query heads that share it, as in `gqa_decode`:

    o[g] = sum_s softmax_s(q[g] . k[s] / sqrt(D)) v[s]

The heads are the queries of one flash attention that is not causal, so that keys and
values are loaded once for all of them. The scheduler loads tiles ahead and gives their
scratch back; no scope is written here. The bits are those of `gqa_decode`, but for a
last tile that is not whole: it is padded and masked here, and adds in another order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels.gqa_decode import reference


def flash_composite(
    tl: Any, q: Any, k: Any, v: Any, o: Any, *, tile: int = 128, buffers: int = 2
) -> None:
    """q: (G, D), k and v: (S, D), o: (G, D). Tiles of keys are loaded `buffers` - 1
    ahead."""
    tiles = (q.shape[0], tile)
    tl.composite("flash", q, k, v, o, causal=False, tile=tiles, buffers=buffers)


def case(
    context: int = 131_072,
    tile: int = 128,
    buffers: int = 2,
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
        partial(flash_composite, tile=tile, buffers=buffers),
        jax.ShapeDtypeStruct((group, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, inputs, reference, allowed)


SMALL = {"context": 300, "tile": 64, "num_pes": 2, "dim": 32, "query_heads": 8,
         "kv_heads": 2}  # fmt: skip
