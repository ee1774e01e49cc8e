"""One decode step of a batch of sequences of different lengths (ragged batching).

Each PE owns one sequence, whose cache has room for S keys and holds L of them. L is
data: the PE reads it from HBM. Query head h shares KV head g = h // group with others:

    o[h] = sum_{s < L} softmax_s(q[h] . k[g, s] / sqrt(D)) v[g, s]

What lies past the length (stale tokens, NaN) may not leak. Scores there become -inf,
which gives weights of 0; values there become 0, since 0 x NaN is NaN. A sequence of
length 0 gives 0.

Trip counts are known when a kernel is recorded, lengths are not: every PE sweeps the
room of S keys, and all take the time of the longest sequence that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Drawn, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels._shapes import agree


def ragged_decode(
    tl: Any,
    length: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    *,
    tile: int = 128,
    buffers: int = 1,
) -> None:
    """length: (1,) int32, outside 0 to S it counts as the nearer of them; q: (HQ, D), k
    and v: (H, S, D), o: (HQ, D). Tiles of keys are loaded `buffers` - 1 ahead."""
    agree(
        length=(length, "1"), q=(q, "HQ D"), k=(k, "H S D"), v=(v, "H S D"),
        o=(o, "HQ D"),
    )  # fmt: skip
    positive(tile=tile, buffers=buffers)
    kv_heads, room, _ = k.shape
    group = attention.group_size(q.shape[0], kv_heads)
    count = tl.cdiv(room, tile)
    valid = tl.clamp(tl.load(length), 0, room)
    for h in tl.range(kv_heads):
        rows = tl.ds(h * group, group)
        with tl.scratch_scope("head"):
            qh = tl.load(q[rows, :])
            tiles = partial(attention.tiles, tl, k[h], v[h], tile, buffers)
            out = attend_valid(tl, qh, tiles, tile, count, valid)
            tl.store(o[rows, :], out.to(o.dtype))


def attend_valid(
    tl: Any,
    q: Any,
    tiles_of: Callable[..., attention.Tiles],
    tile: int,
    count: int,
    valid: Any,
) -> Any:
    """(G, D) float32: attention of q, (G, D), to the first `valid`, (1,) int32, of the
    keys in `count` tiles. What the others hold does not matter.

    Args:
      tiles_of: ``tiles_of(first, end)``: tiles `first` to `end` - 1.
      tile: keys in each.
    """
    group, dim = q.shape
    position = tl.arange(tile)

    def sweep(state: attention.Running, first: Any, end: Any) -> None:
        tiles = tiles_of(first, end)
        for j in tl.range(first, end):
            with tl.scratch_scope("keys"):
                tiles.ahead(j)
                here = position < valid - j * tile
                s = tl.dot(q, tl.trans(tiles.keys(j))) * dim**-0.5
                s = tl.where(here[None, :], s, attention.NEGATIVE_INFINITY)
                values = tl.where(here[:, None], tiles.values(j), 0.0)
                attention.fold(tl, state, s, values)

    state = attention.start(tl, group, dim)
    attention.in_runs(tl, state, 0, count, sweep, most=count)
    return attention.finish(tl, state)


def reference(
    length: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> np.ndarray:
    """float64; length: ([P,] 1), q: ([P,] HQ, D), k and v: ([P,] H, S, D)."""
    out = np.zeros(q.shape)
    group = q.shape[-2] // k.shape[-3]
    for *pe, head in np.ndindex(q.shape[:-1]):
        cache = (*pe, head // group, slice(length[(*pe, 0)]))
        out[(*pe, head)] = attention.attention_reference(
            q[(*pe, slice(head, head + 1))], k[cache], v[cache]
        )[0]
    return out


def lengths(context: int, num_pes: int) -> Drawn:
    """One of 1 to `context` tokens for each PE; of several, the last is 0."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        drawn = rng.integers(1, context, shape, np.int32, endpoint=True)
        if num_pes > 1:
            drawn[-1] = 0
        return drawn

    return Drawn((1,), "int32", draw)


def case(
    context: int = 8_192,
    tile: int = 128,
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
    """`num_pes` sequences of 1 to `context` tokens; of several, the last is empty."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(context=context, tile=tile, buffers=buffers, num_pes=num_pes, dim=dim)
    attention.group_size(query_heads, kv_heads)

    cache = (kv_heads, context, dim)
    shapes = (lengths(context, num_pes), (query_heads, dim), cache, cache)
    call = kb.kernel_call(
        partial(ragged_decode, tile=tile, buffers=buffers),
        jax.ShapeDtypeStruct((query_heads, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, Inputs(seed, num_pes, dtype, shapes), reference, allowed)


SMALL = {"context": 100, "tile": 32, "num_pes": 3, "dim": 32, "query_heads": 4,
         "kv_heads": 2}  # fmt: skip
