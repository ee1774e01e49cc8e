"""Grouped-query attention over a ring of ranks, one PE each: prefill and decode.

Rank r holds `S` keys and values of one KV head, positions r S to (r + 1) S - 1, and in
prefill the queries of the last `Sq` of them, for the `group` query heads that share it.

- Prefill (ring attention, Liu et al., 2023): tiles of keys and values go around the
  ring while queries stay, each sent on while it is used, but on the last hop. Causal by
  global positions: tiles whose keys are all in a query's future are only passed on.
- Decode: keys and values stay. Each rank folds its own, and the partial results (the
  maximum, the denominator and the numerator) go around.

The state of a sweep is float32 until the output is stored, so the error does not grow
with the ring.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, flags, positive, shard, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels._shapes import agree


def ring_gqa(
    tl: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    *,
    tile: int = 64,
    block: int = 16,
    buffers: int = 1,
    causal: bool = True,
    scoped: bool = True,
) -> None:
    """Prefill. q: (G, Sq, D), k and v: (S, D), o: (G, Sq, D), of one rank.

    Args:
      tile: keys that go around together; divides S.
      block: queries of a head that one round of all keys serves; divides Sq.
      buffers: tiles of keys in flight from HBM, the one in use among them.
      causal: whether a query sees only keys up to its own position.
      scoped: give the scratch of tiles and hops back; without, it overflows soon.
    """
    ranks, rank = tl.num_programs(), tl.program_id()
    agree(q=(q, "G Sq D"), k=(k, "S D"), v=(v, "S D"), o=(o, "G Sq D"))
    positive(tile=tile, block=block, buffers=buffers)
    (group, queries, dim), keys = q.shape, k.shape[0]
    shard("the queries", queries, "block", block)
    shard("the keys of a rank", keys, "tile", tile)
    rows = group * block
    column = tl.expand_dims(tl.arange(tile), 0)
    distance = None
    if causal:
        distance = column - tl.expand_dims(tl.arange(rows) % block, 1)
    here = [tl.empty((tile, dim), x.dtype) for x in (k, v)]  # the tile in use

    scope = tl.scratch_scope if scoped else contextlib.nullcontext

    def seen(limit: Any) -> Any:
        """Where a row sees a column; everywhere without scopes, as a `when` is one."""
        is_asked = causal and scoped
        return tl.when(limit > -block) if is_asked else contextlib.nullcontext()

    def fold(state: attention.Running, qh: Any, own: Any, owner: Any) -> None:
        """The tile in use, one of rank `owner`. In a tile of this rank a row sees the
        columns up to the distance `own`; in one of the rank before, up to `keys` more,
        and so on."""
        limit = own - (owner % ranks - rank) * keys
        with seen(limit), scope("tile"):
            _attend(tl, state, qh, here, distance, limit)

    for b in tl.range(queries // block):
        with scope("queries"):
            loaded = tl.load(q[:, tl.ds(b * block, block), :])
            qh = tl.reshape(loaded, (rows, dim))
            state = attention.start(tl, rows, dim)
            tiles = attention.tiles(tl, k, v, tile, buffers, 0, keys // tile)
            for t in tl.range(keys // tile):
                with scope("own"):
                    tiles.ahead(t)
                    tl.copy_to(here[0], tiles.keys(t))
                    tl.copy_to(here[1], tiles.values(t))
                own = keys - queries + b * block - t * tile
                for hop in tl.range(ranks - 1):
                    with scope("hop"):
                        sent = [tl.send(x, 1) for x in here]
                        coming = [tl.recv(x.shape, x.dtype, 1) for x in here]
                        fold(state, qh, own, rank - hop)
                        for message in sent:
                            message.wait()
                        for x, message in zip(here, coming, strict=True):
                            tl.copy_to(x, message.wait())
                fold(state, qh, own, rank + 1)
            out = attention.finish(tl, state).to(o.dtype)
            tl.store(
                o[:, tl.ds(b * block, block), :], tl.reshape(out, (group, block, dim))
            )


def _attend(
    tl: Any, state: attention.Running, q: Any, here: Any, distance: Any, limit: Any
) -> None:
    """Fold the keys and values that are here into the state: for a row of q those at
    `distance`, (rows, tile), up to the limit; all where it is None. The probabilities
    stay float32, so that the error is that of one rank."""
    s = tl.dot(q, tl.trans(here[0])) * q.shape[1] ** -0.5
    if distance is not None:
        s = tl.where(distance <= limit, s, attention.NEGATIVE_INFINITY)
    attention.fold(tl, state, s, here[1], wide=True)


def ring_gqa_decode(
    tl: Any, q: Any, k: Any, v: Any, o: Any, *, tile: int = 128, buffers: int = 1
) -> None:
    """Decode of one token. q: (G, D), the same on all ranks, k and v: (S, D), o: (G,
    D), on every rank."""
    agree(q=(q, "G D"), k=(k, "S D"), v=(v, "S D"), o=(o, "G D"))
    positive(tile=tile, buffers=buffers)
    (group, dim), keys = q.shape, k.shape[0]
    qh = tl.load(q)
    state = attention.start(tl, group, dim)

    def sweep(state: attention.Running, first: Any, end: Any) -> None:
        tiles = attention.tiles(tl, k, v, tile, buffers, first, end)
        for j in tl.range(first, end):
            attention.attend(tl, state, qh, tiles, j)

    count = shard("the keys of a rank", keys, "tile", tile)
    attention.in_runs(tl, state, 0, count, sweep, most=count)
    passed = [tl.empty(x.shape) for x in state]
    for x, own in zip(passed, state, strict=True):
        tl.copy_to(x, own)
    for _ in tl.range(tl.num_programs() - 1):
        with tl.scratch_scope("hop"):
            sent = [tl.send(x, 1) for x in passed]
            coming = [tl.recv(x.shape, x.dtype, 1) for x in passed]
            other = attention.Running(*[message.wait() for message in coming])
            attention.merge(tl, state, other)
            for message in sent:
                message.wait()
            for x, new in zip(passed, other, strict=True):
                tl.copy_to(x, new)
    tl.store(o, attention.finish(tl, state).to(o.dtype))


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = True
) -> np.ndarray:
    """float64, of all ranks: q: ([R,] G, Sq, D), k and v: ([R,] S, D)."""
    if k.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    ranks, keys, dim = k.shape
    group = q.shape[1]
    every_k, every_v = k.reshape(-1, dim), v.reshape(-1, dim)
    out = np.zeros(q.shape)
    for rank in range(ranks):
        seen = (rank + 1) * keys if causal else ranks * keys
        for g in range(group):
            out[rank, g] = attention.attention_reference(
                q[rank, g], every_k[:seen], every_v[:seen], causal=causal
            )
    return out if ranks > 1 else out[0]


def decode_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """float64, of all ranks: q: (G, D), k and v: ([R,] S, D)."""
    dim = q.shape[-1]
    out = attention.attention_reference(q, k.reshape(-1, dim), v.reshape(-1, dim))
    return np.broadcast_to(out, (*k.shape[:-2], *out.shape))


def case(
    context: int = 8_192,
    queries: int = 16,
    tile: int = 64,
    block: int = 16,
    buffers: int = 1,
    dtype: str = "float32",
    num_pes: int = 8,
    causal: bool = True,
    decode: bool = False,
    scoped: bool = True,
    query_heads: int = 64,
    kv_heads: int = 8,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """`context` tokens over `num_pes` ranks, and the last `queries` of each rank's;
    with `decode`, one token that sees them all."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(
        context=context, queries=queries, tile=tile, block=block, buffers=buffers,
        num_pes=num_pes, dim=dim,
    )  # fmt: skip
    flags(causal=causal, decode=decode, scoped=scoped)
    keys = shard("context", context, "num_pes", num_pes)
    group = attention.group_size(query_heads, kv_heads)
    tile = min(tile, keys)
    shard(f"the {keys} keys of a rank", keys, "tile", tile)
    if decode:
        call = kb.kernel_call(
            partial(ring_gqa_decode, tile=tile, buffers=buffers),
            jax.ShapeDtypeStruct((group, dim), dtype),
            num_pes=num_pes,
            in_axes=(None, 0, 0),
            hardware=hardware,
        )
        shapes = ((group, dim), (keys, dim), (keys, dim))
        inputs = Inputs(seed, num_pes, dtype, shapes, shared=(0,))
        return Case(call, inputs, decode_reference, allowed)
    queries = min(queries, keys)
    block = min(block, queries)
    shard("queries", queries, "block", block)
    call = kb.kernel_call(
        partial(
            ring_gqa,
            tile=tile,
            block=block,
            buffers=buffers,
            causal=causal,
            scoped=scoped,
        ),
        jax.ShapeDtypeStruct((group, queries, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    inputs = Inputs(
        seed, num_pes, dtype, ((group, queries, dim), (keys, dim), (keys, dim))
    )
    return Case(call, inputs, partial(reference, causal=causal), allowed)


SMALL = {"context": 96, "queries": 8, "tile": 8, "block": 4, "num_pes": 3, "dim": 16,
         "query_heads": 4, "kv_heads": 2}  # fmt: skip
