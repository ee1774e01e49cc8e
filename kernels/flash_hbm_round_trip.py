"""Decode whose temporaries and running state live in HBM: alternative A1 of ADR-0063.

Each PE owns one KV head and the `group` query heads that share it, as in `gqa_decode`:

    o[g] = sum_s softmax_s(q[g] . k[s] / sqrt(D)) v[s]

The online softmax is that of `gqa_decode`, op for op, in one run over all tiles (which
`gqa_decode` splits where there are more than `attention.RUN`). What an op makes goes to
a workspace in HBM at once, and the op that uses it brings it back into a tile that was
allocated before the sweep: the scores (group, tile), the running m, l (group, 1) and
acc (group, D) and all that is between them. A transpose, cast or comparison goes with
the op that it feeds.

That alone does not bound the scratch. A load can name the tile it fills; an op cannot,
and takes a fresh slice for its result, whatever becomes of it, until the kernel
returns. So each op is in a scope of its own, which gives back that one result. Without
(`scoped=False`) scratch is O(tiles), as in `flash_unscoped`, but for the loads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, flags, positive, tolerance
from kbjax.kernels import _attention as attention
from kbjax.kernels._shapes import agree
from kbjax.kernels.gqa_decode import reference


def widths(dim: int, tile: int) -> dict[str, int]:
    """The columns of the workspace, by what they hold: m, l and acc are the state."""
    of_rows = dict.fromkeys(("m", "l", "m_new", "m_safe", "scale", "partial"), 1)
    return {**of_rows, "acc": dim, "product": dim, "scores": tile}


class Workspace:
    """Temporaries in HBM, and the tiles in TCM that they are brought back into."""

    def __init__(
        self, tl: Any, work: Any, keys: Any, dim: int, tile: int, scoped: bool
    ) -> None:
        """work: (rows, sum of `widths`) float32 in HBM; keys: (S, D), of whose type
        tiles are loaded."""
        self.tl, self.columns, start = tl, {}, 0
        for name, width in widths(dim, tile).items():
            self.columns[name] = work[:, start : start + width]
            start += width
        most = work.shape[0] * max(dim, tile)
        self.operands = [tl.empty((most,)) for _ in range(2)]  # no op takes more
        self.rows = tl.empty((tile * dim,), keys.dtype)
        self.scope = tl.scratch_scope if scoped else contextlib.nullcontext

    def __getitem__(self, name: str) -> Any:
        """(rows, width): where the temporary is in HBM."""
        return self.columns[name]

    def scores(self, keys: int) -> Any:
        """(rows, keys): where the scores of a tile of so many keys are in HBM."""
        return self["scores"][:, :keys]

    def op(
        self, out: Any, compute: Callable[..., Any], *operands: Any, rows: Any = None
    ) -> None:
        """Store to the view `out` what `compute` makes of the temporaries at the views
        `operands`, and of the tile of keys or values at the view `rows`."""
        with self.scope("op"):
            tiles = [
                self._fetched(view, into)
                for view, into in zip(operands, self.operands, strict=False)
            ]
            if rows is not None:
                tiles.append(self._fetched(rows, self.rows))
            self.tl.store(out, compute(*tiles))

    def _fetched(self, view: Any, into: Any) -> Any:
        room = into[self.tl.ds(0, math.prod(view.shape))]
        tile = self.tl.reshape(room, view.shape)
        return self.tl.load_async(view, out=tile).wait()


def attend(tl: Any, at: Workspace, q: Any, k: Any, v: Any) -> None:
    """Fold one tile of keys, k and v (tile, D) in HBM, into the state; q is loaded.

    The ops of `attention.attend` and `attention.fold`, in their order.
    """
    s = at.scores(k.shape[0])
    at.op(s, lambda k: tl.dot(q, tl.trans(k)), rows=k)
    at.op(s, lambda s: s * q.shape[1] ** -0.5, s)
    at.op(at["partial"], lambda s: tl.max(s, axis=1, keepdims=True), s)
    at.op(at["m_new"], tl.maximum, at["m"], at["partial"])
    at.op(
        at["m_safe"],
        lambda m: tl.where(m == attention.NEGATIVE_INFINITY, 0.0, m),
        at["m_new"],
    )
    at.op(s, lambda s, m: s - m, s, at["m_safe"])
    at.op(s, tl.exp, s)
    at.op(at["scale"], lambda old, new: old - new, at["m"], at["m_safe"])
    at.op(at["scale"], tl.exp, at["scale"])
    at.op(at["l"], lambda total, scale: total * scale, at["l"], at["scale"])
    at.op(at["partial"], lambda p: tl.sum(p, axis=1, keepdims=True), s)
    at.op(at["l"], lambda total, more: total + more, at["l"], at["partial"])
    at.op(at["acc"], lambda acc, scale: acc * scale, at["acc"], at["scale"])
    at.op(at["product"], lambda p, v: tl.dot(p.to(v.dtype), v), s, rows=v)
    at.op(at["acc"], lambda acc, more: acc + more, at["acc"], at["product"])
    at.op(at["m"], lambda m: m, at["m_new"])


def flash_hbm_round_trip(
    tl: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    work: Any,
    *,
    tile: int = 128,
    scoped: bool = True,
) -> None:
    """q: (G, D), k and v: (S, D), o: (G, D), work: (G, sum of `widths`) float32.

    Args:
      tile: keys that are worked on together.
      scoped: give the result of each op back; without, it overflows soon.

    Raises:
      ShapeError: where the workspace has no room for a tile's scores, or the tensors
        do not belong together.
    """
    agree(q=(q, "G D"), k=(k, "S D"), v=(v, "S D"), o=(o, "G D"), work=(work, "G W"))
    positive(tile=tile)
    (group, dim), context = q.shape, k.shape[0]
    room = tile + work.shape[1] - sum(widths(dim, tile).values())
    if tile > room:
        raise kb.ShapeError(
            "the workspace has no room for the scores of a tile",
            got=f"{tile} keys",
            allowed=f"up to {room}",
        )
    qh = tl.load(q)
    at = Workspace(tl, work, k, dim, tile, scoped)
    with at.scope("start"):
        state = attention.start(tl, group, dim)._asdict()
        for name, value in state.items():
            tl.store(at[name], value)

    for j in tl.range(context // tile):
        keys = tl.ds(j * tile, tile)
        attend(tl, at, qh, k[keys, :], v[keys, :])
    if context % tile:
        last = slice(context - context % tile, context)
        attend(tl, at, qh, k[last], v[last])
    at.op(
        o,
        lambda l, acc: attention.finish(tl, attention.Running(None, l, acc)).to(  # noqa: E741
            o.dtype
        ),
        at["l"],
        at["acc"],
    )


def case(
    context: int = 131_072,
    tile: int = 128,
    dtype: str = "float32",
    num_pes: int = 8,
    scoped: bool = True,
    query_heads: int = 64,
    kv_heads: int = 8,
    dim: int = 128,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """Llama-70B's decode, one KV head a PE: the first `num_pes` of them. The outputs
    are o and the workspace, which has no reference."""
    check_dtype(dtype)
    allowed = tolerance(dtype)
    positive(context=context, tile=tile, num_pes=num_pes, dim=dim)
    flags(scoped=scoped)
    group = attention.group_size(query_heads, kv_heads)
    inputs = Inputs(
        seed, num_pes, dtype, ((group, dim), (context, dim), (context, dim))
    )
    call = kb.kernel_call(
        partial(flash_hbm_round_trip, tile=tile, scoped=scoped),
        (
            jax.ShapeDtypeStruct((group, dim), dtype),
            jax.ShapeDtypeStruct((group, sum(widths(dim, tile).values())), np.float32),
        ),
        num_pes=num_pes,
        hardware=hardware,
    )
    return Case(call, inputs, reference, allowed)


SMALL = {"context": 300, "tile": 64, "num_pes": 2, "dim": 32, "query_heads": 8,
         "kv_heads": 2}  # fmt: skip
