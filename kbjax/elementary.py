"""Elementary functions and powers where XLA's own (jax 0.10, CPU) are further from the
right value than need be: log and log2 are within 1 ulp, exp2 is within 1.1.

Source of the logarithms: the reduction and the polynomial of FDLIBM's `e_logf.c`, and
of FreeBSD's `e_log2f.c`, which splits the result for its last product.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kbjax.sealing import canonical, flushed

Array = jax.Array
_SQRT_HALF = np.float32(2**-0.5)
_LN2 = np.float32(0.6931471805599453)
_LN2_HIGH, _LN2_LOW = np.float32(6.9313812256e-01), np.float32(9.0580006145e-06)
_LOG2E_HIGH, _LOG2E_LOW = np.float32(1.4428710938e00), np.float32(-1.7605285393e-04)
_EVEN = (np.float32(0.66666662693), np.float32(0.28498786688))
_ODD = (np.float32(0.40000972152), np.float32(0.24279078841))


def exp2(x: Array) -> Array:
    """2 to the x. XLA's is exp(x * ln 2), whose argument is off by more the larger x is
    (67 ulp): the whole part goes into the exponent instead."""
    bounded = jnp.clip(x, -200.0, 200.0)
    whole = jnp.round(bounded)
    scaled = jnp.exp((bounded - whole) * _LN2)
    return jnp.where(x == x, jnp.ldexp(scaled, whole.astype(jnp.int32)), x)


def log(x: Array) -> Array:
    """Natural logarithm."""
    f, half_square, rest, k = _reduced(x)
    return _of_all(x, k * _LN2_HIGH - ((half_square - (rest + k * _LN2_LOW)) - f))


def log2(x: Array) -> Array:
    """Logarithm to base 2."""
    f, half_square, rest, k = _reduced(x)
    high = _high_half(f - half_square)
    low = (f - high) - half_square + rest
    total = (low + high) * _LOG2E_LOW + low * _LOG2E_HIGH + high * _LOG2E_HIGH + k
    return _of_all(x, total)


def erf(x: Array) -> Array:
    """The error function. XLA's passes 1 by an ulp near 3.7."""
    return jnp.clip(lax.erf(x), -1.0, 1.0)


def power(a: Array, b: Array) -> Array:
    """a ** b. Subnormal operands are zeros, as in all arithmetic of XLA's CPU backend,
    and any NaN to the power of 0 is 1; XLA's own makes exceptions of both."""
    return jnp.power(*(canonical(flushed(x)) for x in (a, b)))


def integer_power(a: Array, b: Array) -> Array:
    """a ** b of integers of one dtype, wrapped; a negative power is 0, but for bases 1
    and -1. XLA's reads 6 bits of the exponent."""
    bits = jnp.iinfo(b.dtype).bits - (jnp.iinfo(b.dtype).min < 0)
    one = jnp.ones_like(a)

    def step(bit: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        result, square = so_far
        taken = (b >> bit.astype(b.dtype)) & 1
        return jnp.where(taken != 0, result * square, result), square * square

    result, _ = lax.fori_loop(0, bits, step, (one, a))
    if jnp.iinfo(b.dtype).min == 0:
        return result
    inverse = jnp.where((a == -1) & ((b & 1) != 0), -one, one)
    inverse = jnp.where(jnp.abs(a) == 1, inverse, jnp.zeros_like(a))
    return jnp.where(b < 0, inverse, result)


def _reduced(x: Array) -> tuple[Array, Array, Array, Array]:
    """(f, f^2 / 2, r, k) with x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), and
    log(1 + f) = f - f^2 / 2 + r."""
    part, places = jnp.frexp(x)
    low = part < _SQRT_HALF
    f = jnp.where(low, part + part, part) - 1
    k = (places - low.astype(jnp.int32)).astype(jnp.float32)
    s = f / (2 + f)
    z = s * s
    w = z * z
    series = z * (_EVEN[0] + w * _EVEN[1]) + w * (_ODD[0] + w * _ODD[1])
    half_square = np.float32(0.5) * f * f
    return f, half_square, s * (half_square + series), k


def _high_half(x: Array) -> Array:
    """The upper 12 bits of the significand."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(bits & ~0xFFF, jnp.float32)


def _of_all(x: Array, regular: Array) -> Array:
    """The logarithm also where x is no positive finite number."""
    negative = jnp.where(x == 0, -jnp.inf, jnp.nan)
    return jnp.where(x > 0, jnp.where(x == jnp.inf, x, regular), negative)
