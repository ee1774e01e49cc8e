"""Loads and stores on HBM arrays: slices with a PE axis, and tails.

An array is (L, *shape) where it is split over PEs, else (*shape), `L` being the PEs of
one device. A start is an integer, a traced int32 scalar, or, of PEs in lockstep that
differ, an (L,) vector. For a PE that runs alone among many the axis of L is one more
axis of the tensor, of which its window shows one row (`Window.of_row`).

JAX clamps a slice that leaves its array and raises nothing, so a span that is not
proven to lie inside (`Span.valid`) is cut at its tail here, and only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kbjax.refs import HbmRef, Span

_MOST_PARTS = 64  # slices that one load is compiled to, however many PEs there are


@dataclass(frozen=True)
class Window:
    """An `HbmRef` with its symbolic integers evaluated.

    Attributes:
      starts: an axis each.
      valid: an axis each: the range of elements that exist, or None where proven.
      sizes: an axis each.
      axes: the tensor axes that the tile shows, in its order.
    """

    starts: tuple[Any, ...]
    valid: tuple[tuple[Any, Any] | None, ...]
    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    @staticmethod
    def of(ref: HbmRef, value: Any, element: Any) -> Window:
        """`value` evaluates an expression; `element` reads a tile of one integer."""

        def at(expression: Any) -> Any:
            return _one_place(value(expression))

        def start(span: Span) -> Any:
            if span.by is None:
                return at(span.start)
            assert span.valid is not None
            low, high = at(span.valid[0]), at(span.valid[1])
            first, found = at(span.start), _one_place(element(span.by))
            # Any int32 may come; what lies wholly outside does so wherever it lies.
            return first + jnp.clip(found, low - span.size - first, high - first)

        return Window(
            tuple(start(span) for span in ref.spans),
            tuple(
                None if span.valid is None else (at(span.valid[0]), at(span.valid[1]))
                for span in ref.spans
            ),
            tuple(span.size for span in ref.spans),
            ref.axes,
        )

    @property
    def varies(self) -> bool:
        """Whether PEs in lockstep look at different places."""
        ends = [end for pair in self.valid if pair is not None for end in pair]
        return any(jnp.ndim(x) for x in (*self.starts, *ends))

    def of_row(self, row: Any) -> Window:
        """The same on row `row` of an array with a PE axis in front."""
        return Window(
            (row, *self.starts),
            (None, *self.valid),
            (1, *self.sizes),
            tuple(axis + 1 for axis in self.axes),
        )

    def batch_axes(self) -> Window:
        """`vmap`'s in_axes: 0 where a field differs by PE."""

        def axis(x: Any) -> int | None:
            return 0 if jnp.ndim(x) else None

        return Window(
            tuple(axis(x) for x in self.starts),
            tuple(None if p is None else (axis(p[0]), axis(p[1])) for p in self.valid),
            self.sizes,
            self.axes,
        )


def _one_place(found: Any) -> Any:
    """In lockstep with itself alone (L = 1): a slice, not a gather."""
    return found[0] if jnp.shape(found) == (1,) else found


def load(
    array: jax.Array,
    window: Window,
    other: jax.Array | None,
    lead: tuple[int, ...],
    dtype: Any,
    *,
    in_parts: bool,
) -> jax.Array:
    """The tile that the window shows: (*lead, *its shape).

    Args:
      array: (*shape) or (L, *shape).
      window: what to load.
      other: a scalar of `dtype` that fills elements that do not exist; None where all
        do.
      lead: the PE axis, (L,), or ().
      dtype: of the tile, which holds every value of the array.
      in_parts: take a slice a PE, up to _MOST_PARTS. Faster (1.5 times) where a matrix
        product reads the tile, which would copy each PE's part again; slower (2.5
        times) where the tile is written to memory at once.
    """
    rank = len(window.sizes)
    split = array.ndim > rank
    if window.varies:
        return jax.vmap(
            lambda a, starts, valid: _load_one(
                a, Window(starts, valid, window.sizes, window.axes), other, dtype, False
            ),
            in_axes=(0 if split else None, *_fields(window)),
        )(array, window.starts, window.valid)
    tile = _load_one(array, window, other, dtype, in_parts)
    if lead and not split:
        tile = jnp.broadcast_to(tile, (*lead, *tile.shape))
    return tile


def _fields(window: Window) -> tuple[Any, Any]:
    axes = window.batch_axes()
    return axes.starts, axes.valid


def _load_one(
    array: jax.Array,
    window: Window,
    other: jax.Array | None,
    dtype: Any,
    in_parts: bool,
) -> jax.Array:
    lead = array.ndim - len(window.sizes)
    lengths = array.shape[lead:]
    sizes = [min(n, length) for n, length in zip(window.sizes, lengths, strict=True)]
    starts = [
        s if valid is None else _clip(s, 0, length - n)
        for s, valid, n, length in zip(
            window.starts, window.valid, sizes, lengths, strict=True
        )
    ]
    block = _slice(array, lead, starts, sizes, in_parts).astype(dtype)
    for axis, valid in enumerate(window.valid):
        if valid is not None:
            assert other is not None
            block = _shift_in(
                block, lead + axis, window.starts[axis] - starts[axis],
                window.sizes[axis], other,
            )  # fmt: skip
            block = _fill_outside(
                block, lead + axis, window.starts[axis], valid, lengths[axis], other
            )
    return _shown(block, window, lead)


def _slice(
    array: jax.Array,
    lead: int,
    starts: Sequence[Any],
    sizes: Sequence[int],
    in_parts: bool = False,
) -> jax.Array:
    whole = (*array.shape[:lead], *sizes)
    if whole == array.shape:
        return array
    if all(isinstance(s, int) for s in starts):
        first = (*(0 for _ in range(lead)), *starts)
        last = tuple(f + n for f, n in zip(first, whole, strict=True))
        return lax.slice(array, first, last)
    at = _int32(lead, starts)
    if not (lead and in_parts):
        return _dynamic_slice(array, at, whole)
    pes = array.shape[0]
    each = -(-pes // _MOST_PARTS)
    parts = [
        _dynamic_slice(array, (jnp.int32(pe), *at[1:]), (min(each, pes - pe), *sizes))
        for pe in range(0, pes, each)
    ]
    return jnp.concatenate(parts)


def _dynamic_slice(
    array: jax.Array, starts: Sequence[jax.Array], sizes: Sequence[int]
) -> jax.Array:
    """Starts are never negative here: they are proven, or clipped."""
    return lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)


def _int32(lead: int, starts: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jnp.int32(s) for s in (*(0 for _ in range(lead)), *starts))


def _clip(x: Any, low: int, high: int) -> Any:
    if isinstance(x, int):
        return min(max(x, low), high)
    return jnp.clip(x, low, high)


def _shift_in(
    block: jax.Array, axis: int, shift: Any, size: int, filler: jax.Array
) -> jax.Array:
    """`size` elements of ``filler.. block filler..`` from `shift` elements into the
    block (a clamped slice put back where it was asked for)."""
    have = block.shape[axis]
    config = [(0, 0, 0)] * block.ndim
    config[axis] = (size, size, 0)
    padded = lax.pad(block, filler, config)
    at = _clip(shift + size, 0, size + have)
    return lax.dynamic_slice_in_dim(padded, jnp.int32(at), size, axis=axis)


def _fill_outside(
    block: jax.Array,
    axis: int,
    start: Any,
    valid: tuple[Any, Any],
    length: int,
    filler: jax.Array,
) -> jax.Array:
    """Filler also where elements exist in the tensor but not in the view."""
    low, high = valid
    if isinstance(low, int) and isinstance(high, int) and (low, high) == (0, length):
        return block
    element = lax.broadcasted_iota(jnp.int32, block.shape, axis) + start
    return jnp.where((element >= low) & (element < high), block, filler)


def _shown(block: jax.Array, window: Window, lead: int) -> jax.Array:
    """(*lead, *tensor axes) -> (*lead, *shown axes), in the view's order."""
    hidden = [axis for axis in range(len(window.sizes)) if axis not in window.axes]
    order = (*range(lead), *(lead + axis for axis in (*hidden, *window.axes)))
    if order != tuple(range(len(order))):
        block = jnp.transpose(block, order)
    shape = tuple(window.sizes[axis] for axis in window.axes)
    return block.reshape(*block.shape[:lead], *shape)


def _hidden_again(tile: jax.Array, window: Window, lead: int) -> jax.Array:
    """The inverse of `_shown`."""
    rank = len(window.sizes)
    hidden = [axis for axis in range(rank) if axis not in window.axes]
    tile = tile.reshape(*tile.shape[:lead], *(1 for _ in hidden), *tile.shape[lead:])
    order = [*hidden, *window.axes]
    back = [lead + order.index(axis) for axis in range(rank)]
    if back != list(range(lead, lead + rank)):
        tile = jnp.transpose(tile, (*range(lead), *back))
    return tile


def store(
    array: jax.Array,
    window: Window,
    tile: jax.Array,
    mask: Any,
    lead: tuple[int, ...],
) -> jax.Array:
    """`array` with the tile written where the window shows.

    Args:
      array: (*shape) or (L, *shape).
      window: where to write.
      tile: (*lead, *the window's shape).
      mask: (L,) bool, which PEs store, or None for all.
      lead: the PE axis, (L,), or ().
    """
    rank = len(window.sizes)
    if not lead or (array.ndim > rank and not window.varies):
        return _store_one(array, window, tile, mask)
    if array.ndim > rank:

        def one(a: Any, starts: Any, valid: Any, t: Any, m: Any) -> jax.Array:
            return _store_one(a, Window(starts, valid, window.sizes, window.axes), t, m)

        axes = (0, *_fields(window), 0, None if mask is None else 0)
        return jax.vmap(one, in_axes=axes)(
            array, window.starts, window.valid, tile, mask
        )
    return _store_in_turn(array, window, tile, mask)


def _store_in_turn(
    array: jax.Array, window: Window, tile: jax.Array, mask: Any
) -> jax.Array:
    """All PEs of a lockstep write to one array; their ranges are disjoint, so order is
    no matter."""

    def at(x: Any, pe: Any) -> Any:
        return x[pe] if jnp.ndim(x) else x

    def one(pe: Any, written: jax.Array) -> jax.Array:
        mine = Window(
            tuple(at(s, pe) for s in window.starts),
            tuple(
                None if v is None else (at(v[0], pe), at(v[1], pe))
                for v in window.valid
            ),
            window.sizes,
            window.axes,
        )
        return _store_one(written, mine, tile[pe], None if mask is None else mask[pe])

    return lax.fori_loop(0, tile.shape[0], one, array)


def _store_one(
    array: jax.Array, window: Window, tile: jax.Array, mask: Any
) -> jax.Array:
    lead = array.ndim - len(window.sizes)
    lengths = array.shape[lead:]
    if 0 in lengths:
        return array
    tile = _hidden_again(tile, window, lead)
    sizes = [min(n, length) for n, length in zip(window.sizes, lengths, strict=True)]
    starts: list[Any] = list(window.starts)
    tails = [(axis, v) for axis, v in enumerate(window.valid) if v is not None]
    for axis, _ in tails:
        start = window.starts[axis]
        starts[axis] = _clip(start, 0, lengths[axis] - sizes[axis])
        filler = jnp.zeros((), tile.dtype)
        shift = starts[axis] - start
        tile = _shift_in(tile, lead + axis, shift, sizes[axis], filler)
    exists: Any = None
    for axis, valid in tails:
        start = window.starts[axis]
        element = lax.broadcasted_iota(jnp.int32, tile.shape, lead + axis)
        element = element + starts[axis]
        kept = (element >= valid[0]) & (element < valid[1])
        kept &= (element >= start) & (element < start + window.sizes[axis])
        exists = kept if exists is None else exists & kept
    if mask is not None:
        stores = jnp.asarray(mask)
        stores = stores.reshape(stores.shape + (1,) * (tile.ndim - stores.ndim))
        stores = jnp.broadcast_to(stores, tile.shape)
        exists = stores if exists is None else exists & stores
    if exists is not None:
        exists = jnp.broadcast_to(exists, tile.shape)
        tile = jnp.where(exists, tile, _slice(array, lead, starts, sizes))
    if tile.shape == array.shape:
        return tile
    # As the read above: a masked PE writes back what it read, where it read it.
    at = _int32(lead, starts)
    return lax.dynamic_update_slice(array, tile, at, allow_negative_indices=False)


def fresh(
    shape: tuple[int, ...], dtype: Any, value: Any, lead: tuple[int, ...]
) -> jax.Array:
    """An output before any store: NaN, or the smallest integer."""
    return jnp.full((*lead, *shape), value, dtype)
