"""What the attention kernels share: the online-softmax tile, and the reference.

Online softmax (Milakov and Gimelshein, 2018; FlashAttention, Dao et al., 2022): a sweep
over tiles of keys keeps, for each query row, the running maximum m, denominator l and
numerator acc. They live in the persistent arena; a tile's work may live in a scope.
Softmax itself (kernels/softmax.py) has m and l alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import kbjax as kb
from kbjax.kernels import _prefetch

NEGATIVE_INFINITY = float("-inf")
RUN = 64  # tiles whose sums are made for themselves


class Running(NamedTuple):
    """The state of a sweep, float32: m and l (rows, 1), acc (rows, dim) or None."""

    m: Any
    l: Any  # noqa: E741 - the literature's name of the denominator
    acc: Any


def start(tl: Any, rows: int, dim: int | None, sink: Any = None) -> Running:
    """The state before any key: m = -inf, l = 0, acc = 0, or None where `dim` is. An
    attention sink, a (1, 1) float32 logit, is a key of value 0 that every row sees:
    m = sink, l = 1."""
    if sink is not None:
        m, l = tl.broadcast_to(sink, (rows, 1)), tl.full((rows, 1), 1.0)  # noqa: E741
    else:
        m, l = tl.full((rows, 1), NEGATIVE_INFINITY), tl.zeros((rows, 1))  # noqa: E741
    return Running(m, l, None if dim is None else tl.zeros((rows, dim)))


def raised(tl: Any, m: Any, other: Any) -> tuple[Any, Any]:
    """The larger of two maxima, and what to subtract from scores for it: 0 where both
    are -inf, as of a row that has seen no key yet, since -inf - -inf is NaN."""
    m_new = tl.maximum(m, other)
    return m_new, tl.where(m_new == NEGATIVE_INFINITY, 0.0, m_new)


def fold(tl: Any, state: Running, s: Any, v: Any = None, wide: bool = False) -> None:
    """Fold one tile into the state.

    Args:
      tl: the context.
      state: written with copy_to.
      s: (rows, tile) float32 scores, -inf where a row does not see a key.
      v: (tile, dim) values of the tile's keys; None where the state has no acc.
      wide: keep the probabilities in float32, which the product with values of a
        smaller dtype takes longer for; else they are rounded to that of the values.
    """
    m_new, m_safe = raised(tl, state.m, tl.max(s, axis=1, keepdims=True))
    p = tl.exp(s - m_safe)
    scale = tl.exp(state.m - m_safe)
    tl.copy_to(state.l, state.l * scale + tl.sum(p, axis=1, keepdims=True))
    if v is not None:
        weights = p if wide else p.to(v.dtype)
        tl.copy_to(state.acc, state.acc * scale + tl.dot(weights, v))
    tl.copy_to(state.m, m_new)


def merge(tl: Any, state: Running, other: Running) -> None:
    """Fold the state of other keys into the state, which is written with copy_to."""
    m_new, m_safe = raised(tl, state.m, other.m)
    mine, theirs = tl.exp(state.m - m_safe), tl.exp(other.m - m_safe)
    tl.copy_to(state.l, state.l * mine + other.l * theirs)
    if state.acc is not None:
        tl.copy_to(state.acc, state.acc * mine + other.acc * theirs)
    tl.copy_to(state.m, m_new)


def in_runs(
    tl: Any,
    state: Running,
    first: Any,
    end: Any,
    sweep: Callable[[Running, Any, Any], None],
    most: int,
) -> None:
    """Fold tiles `first` to `end` - 1 into the state. The error of a float32 sum grows
    with the root of what is added one after the other: of more than RUN tiles, runs of
    so many have a state each, which is merged into that of all.

    Args:
      first, end: integers; may be symbolic.
      sweep: ``sweep(state, first, end)`` folds tiles `first` to `end` - 1. It has no
        scope for what it loads ahead: a merge that took its bytes would hold up the
        loads of the next run.
      most: how many tiles there are at most; of up to RUN no runs are made, also where
        their number is symbolic.
    """
    if most > RUN:
        runs = tl.maximum(end - first, 0) // RUN
        for i in tl.range(runs):
            with tl.scratch_scope("run"):
                dim = None if state.acc is None else state.acc.shape[1]
                part = start(tl, state.m.shape[0], dim)
                sweep(part, first + i * RUN, first + (i + 1) * RUN)
                merge(tl, state, part)
        first = first + runs * RUN
    is_empty = isinstance(first, int) and isinstance(end, int) and first == end
    if not is_empty:
        with tl.scratch_scope("tiles"):
            sweep(state, first, end)


class Tiles:
    """Tiles of keys and values, loaded where they are used."""

    def __init__(self, tl: Any, k: Any, v: Any, tile: int, pages: Any = None) -> None:
        """k, v: (S, D), in HBM. With `pages`, a tile of int32, they are pools of pages,
        (pages, tile, D), and tile j is page pages[j] of them. What does not exist is
        loaded as 0."""
        self.tl, self.k, self.v, self.tile, self.pages = tl, k, v, tile, pages

    def ahead(self, j: Any) -> None:
        """Begin the loads that are due at tile j."""

    def keys(self, j: Any) -> Any:
        """(tile, D): the keys of tile j."""
        return self.tl.load(self._rows(self.k, j), other=0.0)

    def values(self, j: Any) -> Any:
        """(tile, D): their values."""
        return self.tl.load(self._rows(self.v, j), other=0.0)

    def _rows(self, array: Any, j: Any) -> Any:
        if self.pages is not None:
            return array[self.pages[self.tl.ds(j, 1)]]
        return array[self.tl.ds(j * self.tile, self.tile), :]


class Prefetched(Tiles):
    """The same, loaded `depth - 1` tiles ahead into circular buffers of `depth` slots.
    Tiles `first` to `end` - 1 are used, each once, in order."""

    def __init__(
        self,
        tl: Any,
        k: Any,
        v: Any,
        tile: int,
        depth: int,
        first: Any,
        end: Any,
        pages: Any = None,
    ) -> None:
        super().__init__(tl, k, v, tile, pages)
        self.loads = _prefetch.LoadedAhead(
            tl,
            depth,
            end,
            lambda j: (self._rows(k, j), self._rows(v, j)),
            first,
            tl.cdiv(k.shape[0], tile) if pages is None else None,
        )

    def ahead(self, j: Any) -> None:
        self.loads.ahead(j)

    def keys(self, j: Any) -> Any:
        return self.loads.pop(0)

    def values(self, j: Any) -> Any:
        return self.loads.pop(1)


def tiles(
    tl: Any,
    k: Any,
    v: Any,
    tile: int,
    buffers: int,
    first: Any,
    end: Any,
    pages: Any = None,
) -> Tiles:
    """Tiles `first` to `end` - 1 of k and v, in HBM, with `buffers` slots for each;
    `pages` as of `Tiles`."""
    if buffers == 1:
        return Tiles(tl, k, v, tile, pages)
    return Prefetched(tl, k, v, tile, buffers, first, end, pages)


def attend(
    tl: Any,
    state: Running,
    q: Any,
    tiles: Tiles,
    j: Any,
    scores: Callable[[Any], Any] | None = None,
) -> None:
    """Sweep tile j of the keys in a scope of its own.

    Args:
      tl: the context.
      state: of the queries; lives outside the scope.
      q: (rows, D), loaded.
      tiles: of keys and values.
      j: which one, an integer; may be symbolic.
      scores: makes them of the (rows, tile) scaled products, -inf where a row does not
        see a key; the products are the scores where None.
    """
    with tl.scratch_scope("keys"):
        tiles.ahead(j)
        s = tl.dot(q, tl.trans(tiles.keys(j))) * q.shape[1] ** -0.5
        if scores is not None:
            s = scores(s)
        fold(tl, state, s, tiles.values(j))


def finish(tl: Any, state: Running) -> Any:
    """(rows, dim) float32 output; 0 in rows that have seen no key."""
    return tl.where(state.l == 0.0, 0.0, state.acc / state.l)


def group_size(query_heads: int, kv_heads: int) -> int:
    """Query heads that share one KV head: head h reads KV head h // group.

    Raises:
      ShapeError: when the counts do not divide.
    """
    if kv_heads < 1 or query_heads < 1 or query_heads % kv_heads:
        raise kb.ShapeError(
            "query heads are a multiple of KV heads",
            got=f"{query_heads} query heads and {kv_heads} KV heads",
        )
    return query_heads // kv_heads


def attention_reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sink: float = -np.inf,
    slope: float = 0.0,
) -> np.ndarray:
    """softmax(scores) v in float64, a block of queries and keys at a time.

    The scores are q k^T / sqrt(D), then softcap * tanh(score / softcap) where softcap
    is not 0, then plus slope * (key position - query position). Query r is at the
    position of key r + N - M (aligned bottom-right).

    Args:
      q: (M, D). k, v: (N, D). Any float dtype.
      causal: a query sees keys up to its own position.
      window: a query sees keys less than this far from its own position; 0: all.
      sink: a logit that is added to the denominator only.

    Returns:
      (M, D) float64; 0 in rows that see no key.
    """
    (rows, dim), keys = q.shape, k.shape[0]
    out = np.zeros((rows, dim))
    step = max(1, min(rows, (1 << 21) // max(keys, 1)))
    # Small products stay on one thread: on a busy machine those of BLAS wait for each
    # other, which took 5 times as long.
    chunk = max(128, (1 << 18) // max(step * dim, 1))
    widened = np.empty((chunk, max(dim, v.shape[1])))

    def wide(part: np.ndarray) -> np.ndarray:
        found = widened[: len(part), : part.shape[1]]
        found[...] = part
        return found

    for row in range(0, rows, step):
        block = q[row : row + step].astype(np.float64) / np.sqrt(dim)
        s = np.empty((len(block), keys))
        for key in range(0, keys, chunk):
            s[:, key : key + chunk] = block @ wide(k[key : key + chunk]).T
        if softcap:
            s = softcap * np.tanh(s / softcap)
        own = np.arange(row, row + len(block))[:, None] + keys - rows
        after = np.arange(keys)[None, :] - own
        if slope:
            s += slope * after
        if causal:
            s[after > 0] = -np.inf
        if window:
            s[np.abs(after) >= window] = -np.inf
        m = s.max(axis=1, keepdims=True, initial=sink)
        m = np.where(np.isneginf(m), 0.0, m)
        p = np.exp(s - m)
        total = p.sum(axis=1, keepdims=True) + np.exp(sink - m)
        for key in range(0, keys, chunk):
            values = wide(v[key : key + chunk])
            out[row : row + step] += p[:, key : key + chunk] @ values
        seen = total != 0
        np.divide(out[row : row + step], total, out=out[row : row + step], where=seen)
    return out
