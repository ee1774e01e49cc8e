"""What stops XLA from rewriting across operations (kbjax.rounding says why)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def always_true() -> Array:
    """A bool scalar that is true, which no compiler can know: a random number in [0, 1)
    is less than 2."""
    return lax.rng_uniform(jnp.float32(0), jnp.float32(1), shape=()) < 2


def seal(x: Any) -> Any:
    """`x`, which no rewrite or constant folding reaches across."""
    return lax.optimization_barrier(x)


def zero_of(mask: Array) -> Array:
    """An int32 zero that no compiler knows to be one, from bools of any shape.

    What is read and written at a start that is not constant is updated in place; XLA's
    CPU backend writes the whole array anew where a slice of it at a constant start is
    fused with the update (jax 0.10.2: 20 times slower for a 1 MiB scratchpad)."""
    return mask.reshape(-1)[0].astype(jnp.int32) >> 1


def rounded(x: Array) -> Array:
    """A result of arithmetic, rounded before it is used (cures 1 and 2)."""
    return seal(canonical(x))


def canonical(x: Array) -> Array:
    """`x` with every NaN the same one: which operand's NaN an instruction hands on
    depends on how it was compiled. No contraction crosses the select."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jnp.where(x == x, x, jnp.array(jnp.nan, x.dtype))


def flushed(x: Array) -> Array:
    """float32 `x` with its subnormal numbers made zeros of their sign. By bits, for
    compiled code takes them as equal to 0 now, now not, and folds what relies on it."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    zero = bits & jnp.iinfo(jnp.int32).min
    kept = jnp.where(bits & 0x7F800000 == 0, zero, bits)
    return lax.bitcast_convert_type(kept, jnp.float32)


def meet(*operands: Array) -> tuple[Array, ...]:
    """The operands broadcast to their common shape."""
    shape = jnp.broadcast_shapes(*(x.shape for x in operands))
    return tuple(jnp.broadcast_to(x, shape) for x in operands)


def by_float32(function: Any, *xs: Array) -> Array:
    """A function of 16-bit floats, all of one dtype, by way of float32."""
    wide = (x.astype(jnp.float32) for x in xs)
    return function(*wide).astype(xs[0].dtype)
