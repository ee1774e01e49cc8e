"""The decode sweep as it is without scratch scopes.

Every tile's intermediates take fresh scratch that is not reclaimed before the kernel
returns, so scratch is O(tiles) and the 1 MiB budget overflows long before a meaningful
context. `gqa_decode` is the same sweep with one scope a tile.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels._shapes import agree
from kbjax.kernels.gqa_decode import reference


def flash_unscoped(tl: Any, q: Any, k: Any, v: Any, o: Any, *, tile: int = 16) -> None:
    """q: (M, D), k and v: (S, D), o: (M, D)."""
    agree(q=(q, "M D"), k=(k, "S D"), v=(v, "S D"), o=(o, "M D"))
    positive(tile=tile)
    (rows, dim), context = q.shape, k.shape[0]
    qh = tl.load(q)
    state = attention.start(tl, rows, dim)

    def attend(keys: Any) -> None:
        s = tl.dot(qh, tl.trans(tl.load(k[keys, :]))) * dim**-0.5
        attention.fold(tl, state, s, tl.load(v[keys, :]))

    for j in tl.range(context // tile):
        attend(tl.ds(j * tile, tile))
    if context % tile:
        attend(slice(context - context % tile, context))
    tl.store(o, attention.finish(tl, state).to(o.dtype))


def case(
    context: int = 256,
    tile: int = 16,
    dtype: str = "float32",
    num_pes: int = 1,
    queries: int = 16,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """A sweep of `context` keys; at the defaults it still fits."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(context=context, tile=tile, num_pes=num_pes, queries=queries, dim=dim)
    inputs = Inputs(
        seed, num_pes, dtype, ((queries, dim), (context, dim), (context, dim))
    )
    call = kb.kernel_call(
        partial(flash_unscoped, tile=tile),
        jax.ShapeDtypeStruct((queries, dim), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, inputs, reference, allowed)


SMALL = {"context": 100, "tile": 16, "num_pes": 2, "queries": 3, "dim": 32}
