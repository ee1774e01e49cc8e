"""One decode step over a paged KV cache (PagedAttention; vLLM, Kwon et al., 2023).

Keys and values of all sequences lie in one pool of pages of N tokens each. Each PE owns
one sequence of L tokens; its block table says which page holds which of them: token s
is row s mod N of page table[s // N]. With query head h on KV head g = h // group,

    o[h] = sum_{s < L} softmax_s(q[h] . K[g, s] / sqrt(D)) V[g, s]
    K[g, s] = k[table[s // N], g, s mod N],  V likewise

A page is a tile. The pool is laid out (pages, H, N, D), so that the keys of a head in a
page are one run of HBM and one load of a tile as it is used.

As in `ragged_decode`, what lies past the length may not leak: the rest of a page, pages
of other sequences, table entries that name no page. Every PE sweeps its whole table. It
is held in scratch, 4 bytes a page; the rest of the scratch is O(1) in the context.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Drawn, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels import ragged_decode
from kbjax.kernels._shapes import agree


def paged_decode(
    tl: Any,
    length: Any,
    table: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    *,
    buffers: int = 1,
) -> None:
    """length: (1,) int32, clamped to what the table has room for; table: (pages of a
    sequence,) int32; q: (HQ, D), k and v: (pages, H, N, D), shared by all PEs, o: (HQ,
    D). Pages are loaded `buffers` - 1 ahead."""
    agree(
        length=(length, "1"), table=(table, "T"), q=(q, "HQ D"), k=(k, "pages H N D"),
        v=(v, "pages H N D"), o=(o, "HQ D"),
    )  # fmt: skip
    positive(buffers=buffers)
    _, kv_heads, page, _ = k.shape
    group = attention.group_size(q.shape[0], kv_heads)
    count = table.shape[0]
    valid = tl.clamp(tl.load(length), 0, count * page)
    pages = tl.load(table)  # at once: a load of one entry takes a DMA's latency
    for h in tl.range(kv_heads):
        rows = tl.ds(h * group, group)
        with tl.scratch_scope("head"):
            qh = tl.load(q[rows, :])
            pools = k[:, h], v[:, h]
            tiles = partial(attention.tiles, tl, *pools, page, buffers, pages=pages)
            out = ragged_decode.attend_valid(tl, qh, tiles, page, count, valid)
            tl.store(o[rows, :], out.to(o.dtype))


def reference(
    length: np.ndarray, table: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> np.ndarray:
    """float64; length: ([P,] 1), table: ([P,] pages of a sequence), q: ([P,] HQ, D), k
    and v: (pages, H, N, D)."""

    def gathered(pool: np.ndarray) -> np.ndarray:
        """([P,] H, S, D), whatever an unused entry of the table names."""
        pages = pool.take(table, axis=0, mode="clip").swapaxes(-4, -3)
        return pages.reshape(*pages.shape[:-3], -1, pages.shape[-1])

    return ragged_decode.reference(length, q, gathered(k), gathered(v))


def case(
    context: int = 8_192,
    page: int = 128,
    buffers: int = 1,
    dtype: str = "float32",
    num_pes: int = 8,
    query_heads: int = 16,
    kv_heads: int = 2,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """`num_pes` sequences of lengths as in `ragged_decode`, in a pool that has pages
    for `context` tokens of each, in random order."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(context=context, page=page, buffers=buffers, num_pes=num_pes, dim=dim)
    attention.group_size(query_heads, kv_heads)
    count = -(-context // page)

    def permuted(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.permutation(num_pes * count).reshape(shape)

    pool = (num_pes * count, kv_heads, page, dim)
    shapes = (
        ragged_decode.lengths(context, num_pes),
        Drawn((count,), "int32", permuted),
        (query_heads, dim),
        pool,
        pool,
    )
    call = kb.kernel_call(
        partial(paged_decode, buffers=buffers),
        jax.ShapeDtypeStruct((query_heads, dim), dtype),
        num_pes=num_pes,
        in_axes=(0, 0, 0, None, None),
        hardware=hardware,
    )
    inputs = Inputs(seed, num_pes, dtype, shapes, shared=(3, 4))
    return Case(call, inputs, reference, allowed)


SMALL = {"context": 100, "page": 32, "num_pes": 3, "dim": 32, "query_heads": 4,
         "kv_heads": 2}  # fmt: skip
