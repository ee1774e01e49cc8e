"""One decode step whose keys are split over PEs (flash decoding, Dao et al., 2023).

PE i of n owns the i-th run of cdiv(tiles, n) tiles of every KV head's keys. Its sweep
gives the partial state of softmax attention over them, for each query head

    m = max_s q . k[s] / sqrt(D),  l = sum_s e^(q . k[s] / sqrt(D) - m),
    acc = sum_s e^(q . k[s] / sqrt(D) - m) v[s]

and two such states of different keys merge into that of all of them:

    m' = max(m1, m2),  l' = l1 e^(m1 - m') + l2 e^(m2 - m'),  acc' likewise.

`_attention.attend` folds a tile in, and `merge` a state. They merge up a binary tree of
messages: 1 into 0, 3 into 2, ..., then 2 into 0, and so on. PE 0 ends with acc / l and,
where it is asked for, the log-sum-exp m + ln l (natural logarithm). With more PEs than
tiles some own no keys. Their state is m = -inf, l = 0, acc = 0, and merging it changes
no bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels import gqa_decode
from kbjax.kernels._shapes import agree


def split_kv_decode(
    tl: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any = None,
    *,
    tile: int = 128,
    buffers: int = 1,
) -> None:
    """q: (HQ, D), k and v: (H, S, D), o: (HQ, D), lse: (HQ,) float32 or None; all PEs
    share them. Query head h reads KV head h // group. Tiles of keys are loaded
    `buffers` - 1 ahead."""
    agree(q=(q, "HQ D"), k=(k, "H S D"), v=(v, "H S D"), o=(o, "HQ D"))
    if lse is not None:
        agree(q=(q, "HQ D"), lse=(lse, "HQ"))
    positive(tile=tile, buffers=buffers)
    splits, split = tl.num_programs(), tl.program_id()
    kv_heads, context, dim = k.shape
    group = attention.group_size(q.shape[0], kv_heads)
    tiles_in_all = tl.cdiv(context, tile)
    most = tl.cdiv(tiles_in_all, splits)  # tiles a split; the last ones have fewer
    count = tl.minimum(tl.maximum(tiles_in_all - split * most, 0), most)
    start = split * most * tile
    keys = tl.ds(start, most * tile)

    position = tl.arange(tile)[None, :] if context % tile else None

    def masked(j: Any, s: Any) -> Any:
        """The scores s of tile j of this split, of keys that lie in the context."""
        inside = position < context - start - j * tile
        return tl.where(inside, s, attention.NEGATIVE_INFINITY)

    def sweep(
        qh: Any, k: Any, v: Any, state: attention.Running, first: Any, end: Any
    ) -> None:
        tiles = attention.tiles(tl, k, v, tile, buffers, first, end)
        for j in tl.range(first, end):
            made = None if position is None else partial(masked, j)
            attention.attend(tl, state, qh, tiles, j, made)

    state = attention.start(tl, q.shape[0], dim)
    for h in tl.range(kv_heads):
        rows = tl.ds(h * group, group)
        with tl.scratch_scope("head"):
            qh = tl.load(q[rows, :])
            mine = attention.Running(*[x[rows] for x in state])
            own = k[h, keys, :], v[h, keys, :]
            attention.in_runs(tl, mine, 0, count, partial(sweep, qh, *own), most)

    distance = 1
    while distance < splits:
        pair = 2 * distance
        with tl.when(split % pair == distance):
            for message in [tl.send(x, -distance) for x in state]:
                message.wait()
        with tl.when((split % pair == 0) & (split + distance < splits)):
            coming = [tl.recv(x.shape, x.dtype, -distance) for x in state]
            other = attention.Running(*[message.wait() for message in coming])
            attention.merge(tl, state, other)
        distance = pair

    with tl.when(split == 0):
        tl.store(o, attention.finish(tl, state).to(o.dtype))
        if lse is not None:  # -inf + -inf = -inf where there are no keys
            tl.store(lse, tl.reshape(state.m + tl.log(state.l), lse.shape))


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """float64; q: (HQ, D), k and v: (H, S, D)."""
    grouped = q.reshape(k.shape[0], -1, q.shape[-1])
    return gqa_decode.reference(grouped, k, v).reshape(q.shape)


def case(
    context: int = 131_072,
    tile: int = 128,
    buffers: int = 1,
    dtype: str = "float32",
    num_pes: int = 8,
    query_heads: int = 8,
    kv_heads: int = 1,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """The keys of one KV head, split over `num_pes` PEs."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(context=context, tile=tile, buffers=buffers, num_pes=num_pes, dim=dim)
    attention.group_size(query_heads, kv_heads)
    cache = (kv_heads, context, dim)
    inputs = Inputs(
        seed, num_pes, dtype, ((query_heads, dim), cache, cache), shared=(0, 1, 2)
    )
    call = kb.kernel_call(
        partial(split_kv_decode, tile=tile, buffers=buffers),
        jax.ShapeDtypeStruct((query_heads, dim), dtype),
        num_pes=num_pes,
        in_axes=None,
        out_axes=None,
        hardware=hardware,
    )
    return Case(call, inputs, reference, allowed)


SMALL = {"context": 150, "tile": 32, "num_pes": 3, "dim": 32, "query_heads": 4,
         "kv_heads": 2}  # fmt: skip
