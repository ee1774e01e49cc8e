"""Fused multiply-add without an instruction for it: a * b + c with one rounding.

Source: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums:
proved algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008.
Exponents are taken apart first, so that no intermediate result leaves the range.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from kbjax.sealing import flushed, rounded, seal

Array = jax.Array
_SPLIT = 4097.0  # 2**12 + 1: halves of a float32 of 24 bits (Veltkamp)
_FAR = 90  # binary places beyond which a summand only decides a tie


def fma(a: Array, b: Array, c: Array) -> Array:
    """Of one shape and float dtype; subnormal results are those of the backend."""
    kind = a.dtype
    x, y, z = (flushed(v.astype(jnp.float32)) for v in (a, b, c))
    x_part, x_places = jnp.frexp(x)
    y_part, y_places = jnp.frexp(y)
    places = x_places + y_places
    z_part, z_places = jnp.frexp(z)
    distance = z_places - places
    near = jnp.clip(distance, -_FAR, _FAR)
    high, low = _product(x_part, y_part)
    scaled = jnp.ldexp(z_part, near)
    total = _odd_sum(high, low, scaled)
    if kind == jnp.float32:
        small = _plus(*total)
    else:
        small = _to_odd(*total)
    small = jnp.where(distance > _FAR, z_part, small)
    shift = jnp.where(distance > _FAR, z_places, places)
    result = jnp.ldexp(small, shift)
    # A product that overflows is no match for an infinite summand.
    bounded = jnp.isfinite(x) & jnp.isfinite(y) & jnp.isinf(z)
    plain = jnp.where(bounded, z, _plus(rounded(x * y), z))
    regular = jnp.isfinite(x) & jnp.isfinite(y) & jnp.isfinite(z)
    regular &= (x != 0) & (y != 0) & (z != 0)
    return jnp.where(regular, result, plain).astype(kind)


def _plus(a: Array, b: Array) -> Array:
    return rounded(a + b)


def _minus(a: Array, b: Array) -> Array:
    return rounded(a - b)


def _times(a: Array, b: Array) -> Array:
    return rounded(a * b)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e) with s = fl(a + b) and s + e = a + b (Knuth)."""
    s = _plus(a, b)
    b_part = _minus(s, a)
    return s, _plus(_minus(a, _minus(s, b_part)), _minus(b, b_part))


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = _times(jnp.full_like(a, _SPLIT), a)
    high = _minus(scaled, _minus(scaled, a))
    return high, _minus(a, high)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """(p, e) with p = fl(a * b) and p + e = a * b (Dekker)."""
    p = _times(a, b)
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    e = _minus(p, _times(a1, b1))
    e = _minus(_minus(e, _times(a2, b1)), _times(a1, b2))
    return p, _minus(_times(a2, b2), e)


def _odd_sum(high: Array, low: Array, c: Array) -> tuple[Array, Array]:
    """(v, t): v + t is high + low + c, with t rounded to odd."""
    u, u_rest = _two_sum(c, low)
    v, v_rest = _two_sum(high, u)
    return v, _to_odd(*_two_sum(u_rest, v_rest))


def _to_odd(a: Array, rest: Array) -> Array:
    """a + rest rounded to odd, where `a` is its nearest float32: an inexact result
    takes the neighbour whose last bit is 1."""
    s, e = _two_sum(a, rest)
    bits = lax.bitcast_convert_type(seal(s), jnp.int32)
    even = (bits & 1) == 0
    away = (e > 0) == (s > 0)  # the neighbour on that side is larger in magnitude
    other = lax.bitcast_convert_type(bits + jnp.where(away, 1, -1), jnp.float32)
    return jnp.where((e != 0) & even, other, s)
