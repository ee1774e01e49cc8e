"""Prefill: flash attention over blocks of queries, causal or full, grouped queries.

Each PE owns one KV head and the `group` query heads that share it:

    o[g, r] = sum_c softmax_c(q[g, r] . k[c] / sqrt(D)) v[c]

Causal attention is aligned bottom-right: query r sees keys up to r + S - Sq. An outer
scope a block of queries goes around an inner scope a tile of keys (ADR-0063, D4). Tiles
that a block does not see are skipped by a symbolic trip count; only tiles on the
diagonal and on the window's edge are masked; where there are many, they are summed in
runs. The online softmax is `_attention`'s: `start`, `attend` with a tile (its scores by
`_scores`), and `finish`.

A NaN in a key reaches the rows that see it and no others; a NaN or infinity in a value
reaches all rows whose block loads its tile, since one matrix product folds the tile and
0 x NaN is NaN.

What models add, alone or together: a soft cap of the scores (Gemma 2), ALiBi (Press et
al., 2022), a sliding window (Mistral) and attention sinks (gpt-oss).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import (
    Case,
    Drawn,
    Inputs,
    check_dtype,
    flags,
    positive,
    tolerance,
)
from kbjax.kernels import _attention as attention
from kbjax.kernels._inputs import with_inputs
from kbjax.kernels._scores import Scores
from kbjax.kernels._shapes import agree


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
    window: int = 0,
    softcap: float = 0.0,
    sinks: Any = None,
    slopes: Any = None,
) -> None:
    """q: (G, Sq, D), k and v: (S, D), o: (G, Sq, D).

    Args:
      block, tile: queries and keys that are worked on together.
      buffers: tiles of keys are loaded `buffers` - 1 ahead.
      causal, window, softcap: as `Scores` has them.
      sinks: (G,) in HBM, a logit a head that is added to the denominator only; -inf is
        none. `with_inputs` makes it and the slopes inputs of the kernel.
      slopes: (G,) in HBM; slope * (key position - query position) is added to a score.
    """
    agree(q=(q, "G Sq D"), k=(k, "S D"), v=(v, "S D"), o=(o, "G Sq D"))
    positive(block=block, tile=tile, buffers=buffers)
    (group, queries, dim), keys = q.shape, k.shape[0]
    scores = Scores(causal, window, softcap).over(max(keys, queries))
    before = keys - queries  # keys that every query sees but for its own
    column = tl.expand_dims(tl.arange(tile), 0)
    row = tl.expand_dims(tl.arange(block), 1)
    positions_matter = causal or scores.window or slopes is not None
    distance = column - row if positions_matter else None
    sinks, slopes = (_per_head(tl, x, q) for x in (sinks, slopes))

    def sweep(
        own: Any, qh: Any, slope: Any, masked: bool, state: Any, first: Any, end: Any
    ) -> None:
        """Tiles of keys `first` to `end` - 1, for queries from position `own` on."""
        tiles = attention.tiles(tl, k, v, tile, buffers, first, end)
        for j in tl.range(first, end):
            shift, last = own - j * tile, keys - 1 - j * tile
            made = partial(
                scores.of, tl, column=column, distance=distance, shift=shift, last=last,
                slope=slope, masked=masked,
            )  # fmt: skip
            attention.attend(tl, state, qh, tiles, j, made)

    for g in tl.range(group):
        sink, slope = (None if x is None else x[tl.ds(g, 1)] for x in (sinks, slopes))
        for i in tl.range(tl.cdiv(queries, block)):
            own = before + i * block  # the position of the block's first query
            end = before + tl.minimum((i + 1) * block, queries)
            spans = scores.spans(tl, own, end, keys, tile)
            with tl.scratch_scope("queries"):
                qh = tl.load(q[g, tl.ds(i * block, block), :], other=0.0)
                state = attention.start(tl, block, dim, sink)
                for first, end, masked in spans:  # most tiles need no mask
                    part = partial(sweep, own, qh, slope, masked)
                    most = 0 if masked else keys // tile
                    attention.in_runs(tl, state, first, end, part, most)
                tl.store(
                    o[g, tl.ds(i * block, block), :],
                    attention.finish(tl, state).to(o.dtype),
                    boundary_check=True,
                )


def _per_head(tl: Any, x: Any, q: Any) -> Any:
    """(G,) of HBM as a float32 tile (G, 1); None as it is."""
    if x is None:
        return None
    agree(q=(q, "G Sq D"), per_head=(x, "G"))
    return tl.reshape(tl.load(x).to("float32"), (q.shape[0], 1))


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *per_head: np.ndarray,
    names: tuple[str, ...] = (),
    **options: Any,
) -> np.ndarray:
    """float64; q: (..., G, Sq, D), k and v: (..., S, D); each of `per_head`, called
    `names` by `attention_reference`: (..., G)."""
    out = np.empty(q.shape)
    for i in np.ndindex(q.shape[:-2]):
        options |= {name: x[i] for name, x in zip(names, per_head, strict=True)}
        out[i] = attention.attention_reference(q[i], k[i[:-1]], v[i[:-1]], **options)
    return out


def case(
    context: int = 16_384,
    queries: int = 128,
    tile: int = 128,
    block: int = 128,
    buffers: int = 1,
    dtype: str = "float32",
    num_pes: int = 1,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: bool = False,
    alibi: bool = False,
    query_heads: int = 64,
    kv_heads: int = 8,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """The last `queries` tokens of a context, one KV head a PE. Sinks are drawn; the
    slopes of ALiBi are those of its paper, 2^(-8 (h + 1) / H) in head h of H."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(
        context=context, queries=queries, tile=tile, block=block, buffers=buffers,
        num_pes=num_pes, dim=dim,
    )  # fmt: skip
    options: dict[str, Any] = {
        "causal": causal, "window": window, "softcap": softcap
    }  # fmt: skip
    Scores(**options)  # refuses what it does not take
    flags(sinks=sinks, alibi=alibi)
    group = attention.group_size(query_heads, kv_heads)
    shapes = [(group, queries, dim), (context, dim), (context, dim)]
    draws = {
        "sinks": lambda rng, shape: rng.standard_normal(shape, np.float32),
        "slopes": lambda _, shape: alibi_slopes(query_heads, shape),
    }
    given = [n for n, flag in (("sinks", sinks), ("slopes", alibi)) if flag]
    per_head = [Drawn((group,), "float32", draws[name]) for name in given]
    inputs = Inputs(seed, num_pes, dtype, (*shapes, *per_head))
    kernel = with_inputs(flash_prefill, *given) if given else flash_prefill
    call = kb.kernel_call(
        partial(kernel, block=block, tile=tile, buffers=buffers, **options),
        jax.ShapeDtypeStruct((group, queries, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    names = tuple(name.removesuffix("s") for name in given)
    return Case(call, inputs, partial(reference, names=names, **options), allowed)


def alibi_slopes(heads: int, shape: tuple[int, ...]) -> np.ndarray:
    """Of the first heads of that many, as float64 of that shape: 2^(-8 (h + 1) / H)."""
    count = np.arange(1, np.prod(shape) + 1).reshape(shape)
    return np.exp2(-8.0 * count / heads)


SMALL = {"context": 150, "queries": 70, "tile": 32, "block": 16, "num_pes": 2,
         "dim": 32, "query_heads": 4, "kv_heads": 2}  # fmt: skip
