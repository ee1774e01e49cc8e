"""Reductions as fixed halving trees: a fused reduction of XLA's adds in another order
(cure 3 of kbjax.rounding)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kbjax.sealing import rounded, seal

Array = jax.Array
_TREE_LEVELS_A_FUSION = 3  # a fused tree doubles its code with each level


def extreme(dtype: Any, largest: bool) -> Any:
    """The value of the dtype that no other is beyond."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf if largest else -jnp.inf
    if dtype == jnp.bool_:
        return largest
    info = jnp.iinfo(dtype)
    return info.max if largest else info.min


def reduced(
    combine: Any, neutral: float, x: Array, axis: int | None, keepdims: bool
) -> Array:
    """`combine` over `axis`, or all axes where None; padded with `neutral`."""

    def both(low: tuple[Array, ...], high: tuple[Array, ...]) -> tuple[Array, ...]:
        return (combine(low[0], high[0]),)

    (result,) = _tree(both, (neutral,), (x,), axis, keepdims)
    return rounded(result)


def position(x: Array, axis: int | None, keepdims: bool, largest: bool) -> Array:
    """Where the largest (smallest) element is, int32: the first of equals, the first
    NaN before any number; counted over all elements where `axis` is None."""
    if axis is None:
        counted = jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape)
    else:
        counted = lax.broadcasted_iota(jnp.int32, x.shape, axis % x.ndim)

    def better(low: tuple[Array, ...], high: tuple[Array, ...]) -> tuple[Array, ...]:
        (a, i), (b, j) = low, high
        beyond = (b > a) if largest else (b < a)
        nan_a, nan_b = a != a, b != b
        wins = jnp.where(nan_a | nan_b, nan_b & ~nan_a, beyond)
        equal = jnp.where(nan_a | nan_b, nan_a & nan_b, a == b)
        wins |= equal & (j < i)
        return jnp.where(wins, b, a), jnp.where(wins, j, i)

    last = jnp.iinfo(jnp.int32).max
    neutral = (extreme(x.dtype, largest=not largest), last)
    _, found = _tree(better, neutral, (x, counted), axis, keepdims)
    return found


def _tree(
    combine: Any,
    neutral: tuple[Any, ...],
    xs: tuple[Array, ...],
    axis: int | None,
    keepdims: bool,
) -> tuple[Array, ...]:
    """Halves combined with halves until one is left."""
    if axis is None:
        rank = xs[0].ndim
        shape = (1,) * rank if keepdims else ()
        flat = _tree(combine, neutral, tuple(x.reshape(-1) for x in xs), 0, False)
        return tuple(x.reshape(shape) for x in flat)
    axis %= xs[0].ndim
    size = xs[0].shape[axis]
    width = 1 << (size - 1).bit_length()
    if width != size:
        padding = [(0, 0)] * xs[0].ndim
        padding[axis] = (0, width - size)
        xs = tuple(
            jnp.pad(x, padding, constant_values=jnp.array(fill, x.dtype))
            for x, fill in zip(xs, neutral, strict=True)
        )
    level = 0
    while width > 1:
        width //= 2
        low, high = (
            tuple(lax.slice_in_dim(x, at, at + width, axis=axis) for x in xs)
            for at in (0, width)
        )
        xs = combine(low, high)
        level += 1
        if level % _TREE_LEVELS_A_FUSION == 0:
            xs = seal(xs)
    return xs if keepdims else tuple(jnp.squeeze(x, axis) for x in xs)
