"""The array namespace of the data phase: JAX, made to round as separate instructions.

Inside one jitted function XLA fuses and rewrites across operations, and so changes
roundings. Five cures, each measured on jax 0.10, CPU, and each with a test:

1. `a * b + c` becomes a fused multiply-add, across `optimization_barrier` too. Results
   pass through a select that makes every NaN the same, which no contraction crosses.
   A compiler that proves that there is no NaN drops it, so none knows anything:
   scalars, what tails are filled with, and floats made from integers pass through
   `unknown`.
2. The simplifier turns `a / 3` and `a / broadcast(l)` into products with a reciprocal,
   takes `a + 0` for `a`, and merges constants. Every rounding op ends in an
   `optimization_barrier`, and a divisor passes one after broadcasting.
3. A fused reduction adds in another order. `sum` and `max` are fixed halving trees.
4. `dot` picks its kernel by layout and by M = 1. Its lowering follows from the program
   (kbjax.layouts), and one row is padded to two.
5. `exp` and its kin differ by 1 ulp with what they are fused into (vector lanes, array
   tails, folded constants, a library's fusion). They run in a branch of their own, a
   `cond` whose predicate is always true, which no compiler knows.

Every function takes arrays of the dtypes that the op table says, and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kbjax import dtypes, elementary, fma, products, reductions
from kbjax.dtypes import DType
from kbjax.layouts import Layout
from kbjax.sealing import by_float32, canonical, meet, rounded, seal

Array = jax.Array


@dataclass(frozen=True)
class Rounding:
    """`xp` for the op table's functions.

    Args:
      always: `always_true()`, made once a program.
      physical: whether a transposed operand of `dot` is a stored copy, whose
        transposition must be made physical for `dot` to see the layout that it sees
        where the transposition is only a value (cure 4).
    """

    always: Array
    physical: bool = False

    # --- elementwise -----------------------------------------------------------------

    def add(self, a: Array, b: Array) -> Array:
        return rounded(jnp.add(*meet(a, b)))

    def subtract(self, a: Array, b: Array) -> Array:
        return rounded(jnp.subtract(*meet(a, b)))

    def multiply(self, a: Array, b: Array) -> Array:
        return rounded(jnp.multiply(*meet(a, b)))

    def divide(self, a: Array, b: Array) -> Array:
        a, b = meet(a, b)
        return rounded(jnp.divide(a, seal(b)))

    def floor_divide(self, a: Array, b: Array) -> Array:
        """Rounded down; an integer by 0 is 0, as in NumPy."""
        a, b = meet(a, b)
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return _but_by_zero(jnp.floor_divide, a, b)
        return rounded(by_float32(lambda *xs: self._divmod(*xs)[0], a, b))

    def remainder(self, a: Array, b: Array) -> Array:
        """With the sign of b; an integer by 0 is 0, as in NumPy."""
        a, b = meet(a, b)
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return _but_by_zero(jnp.remainder, a, b)
        return rounded(by_float32(lambda *xs: self._divmod(*xs)[1], a, b))

    def _divmod(self, a: Array, b: Array) -> tuple[Array, Array]:
        """(a // b, a % b) of float32, step by step as NumPy takes them."""
        rest = seal(lax.rem(a, b))
        quotient = self.divide(self.subtract(a, rest), b)
        flips = (rest != 0) & ((b < 0) != (rest < 0))
        quotient = jnp.where(flips, self.subtract(quotient, jnp.ones_like(b)), quotient)
        rest = jnp.where(flips, self.add(rest, b), rest)
        rest = jnp.where(rest == 0, jnp.copysign(jnp.zeros_like(b), b), rest)
        whole = seal(jnp.floor(quotient))
        up = self.subtract(quotient, whole) > 0.5
        whole = jnp.where(up, self.add(whole, jnp.ones_like(b)), whole)
        plain = self.divide(a, b)
        zero = jnp.copysign(jnp.zeros_like(b), plain)
        whole = jnp.where(quotient == 0, zero, whole)
        whole = jnp.where(b == 0, plain, whole)
        rest = jnp.where(b == 0, jnp.array(jnp.nan, b.dtype), rest)
        return whole, rest

    def power(self, a: Array, b: Array) -> Array:
        """Floats by way of float32; integers wrap, and a negative power of theirs is 0,
        but for bases 1 and -1."""
        a, b = meet(a, b)
        if jnp.issubdtype(a.dtype, jnp.floating):
            return self._apart(partial(by_float32, elementary.power), a, b)
        return elementary.integer_power(a, b)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """a * b + c with one rounding to the operands' dtype."""
        a, b, c = meet(a, b, c)
        return rounded(fma.fma(a, b, c))

    def neg(self, x: Array) -> Array:
        return canonical(jnp.negative(x))

    def abs(self, x: Array) -> Array:
        return canonical(jnp.abs(x))

    def invert(self, x: Array) -> Array:
        return jnp.invert(x)

    def bitwise_and(self, a: Array, b: Array) -> Array:
        return jnp.bitwise_and(*meet(a, b))

    def bitwise_or(self, a: Array, b: Array) -> Array:
        return jnp.bitwise_or(*meet(a, b))

    def clamp(self, x: Array, low: Array, high: Array) -> Array:
        return self.minimum(self.maximum(x, low), high)

    def floor(self, x: Array) -> Array:
        return canonical(by_float32(jnp.floor, x))

    def ceil(self, x: Array) -> Array:
        return canonical(by_float32(jnp.ceil, x))

    def maximum(self, a: Array, b: Array) -> Array:
        return canonical(jnp.maximum(*meet(a, b)))

    def minimum(self, a: Array, b: Array) -> Array:
        return canonical(jnp.minimum(*meet(a, b)))

    def less(self, a: Array, b: Array) -> Array:
        return jnp.less(*meet(a, b))

    def less_equal(self, a: Array, b: Array) -> Array:
        return jnp.less_equal(*meet(a, b))

    def greater(self, a: Array, b: Array) -> Array:
        return jnp.greater(*meet(a, b))

    def greater_equal(self, a: Array, b: Array) -> Array:
        return jnp.greater_equal(*meet(a, b))

    def equal(self, a: Array, b: Array) -> Array:
        return jnp.equal(*meet(a, b))

    def not_equal(self, a: Array, b: Array) -> Array:
        return jnp.not_equal(*meet(a, b))

    def where(self, cond: Array, a: Array, b: Array) -> Array:
        cond, a, b = meet(cond, a, b)
        return jnp.where(cond, a, b)

    def exp(self, x: Array) -> Array:
        return self._apart(partial(by_float32, jnp.exp), x)

    def exp2(self, x: Array) -> Array:
        return self._apart(partial(by_float32, elementary.exp2), x)

    def log(self, x: Array) -> Array:
        return self._apart(partial(by_float32, elementary.log), x)

    def log2(self, x: Array) -> Array:
        return self._apart(partial(by_float32, elementary.log2), x)

    def sigmoid(self, x: Array) -> Array:
        return self._apart(partial(by_float32, jax.nn.sigmoid), x)

    def tanh(self, x: Array) -> Array:
        return self._apart(partial(by_float32, jnp.tanh), x)

    def erf(self, x: Array) -> Array:
        return self._apart(partial(by_float32, elementary.erf), x)

    def sqrt(self, x: Array) -> Array:
        return seal(by_float32(jnp.sqrt, x))

    def rsqrt(self, x: Array) -> Array:
        """1 / sqrt(x) in two roundings of float32."""

        def inverse(y: Array) -> Array:
            return self.divide(jnp.ones_like(y), seal(jnp.sqrt(y)))

        return seal(by_float32(inverse, x))

    def _apart(self, function: Any, *xs: Array) -> Array:
        """A function that is fused with nothing (cure 5), and of whose result nothing
        is known (cure 1)."""
        result = jax.eval_shape(function, *xs)
        return seal(
            lax.cond(
                self.always,
                function,
                lambda *_: jnp.zeros(result.shape, result.dtype),
                *seal(xs),
            )
        )

    def unknown(self, x: Array) -> Array:
        """`x`, of whose value no compiler knows anything."""
        return self._apart(lambda y: y, x)

    # --- reductions ------------------------------------------------------------------

    def sum(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        return reductions.reduced(jnp.add, -0.0, x, axis, keepdims)

    def max(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        lowest = reductions.extreme(x.dtype, largest=False)
        return reductions.reduced(jnp.maximum, lowest, x, axis, keepdims)

    def min(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        highest = reductions.extreme(x.dtype, largest=True)
        return reductions.reduced(jnp.minimum, highest, x, axis, keepdims)

    def argmax(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        return reductions.position(x, axis, keepdims, largest=True)

    def argmin(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        return reductions.position(x, axis, keepdims, largest=False)

    def softmax(self, x: Array, axis: int) -> Array:
        shifted = self.subtract(x, self.max(x, axis, True))
        weights = self.exp(shifted)
        return self.divide(weights, self.sum(weights, axis, True))

    # --- matrices --------------------------------------------------------------------

    def transpose(self, x: Array) -> Array:
        return jnp.swapaxes(x, 0, 1)  # no barrier: dot folds it

    def dot(
        self,
        a: Array,
        b: Array,
        acc: Array | None,
        layouts: tuple[Layout, Layout],
        out_dtype: str | None,
    ) -> Array:
        """(M, K) x (K, N) in float32, or int32 of integers; or with a PE axis in front.

        Args:
          a, b: the operands.
          acc: (M, N), added to the product with one more rounding.
          layouts: how each operand is taken (kbjax.layouts).
          out_dtype: of the result.
        """
        result = products.product(a, b, layouts, self.physical)
        if acc is not None:
            result = self.add(acc, result)
        return result if out_dtype is None else self.cast(result, dtypes.of(out_dtype))

    # --- types and creation ----------------------------------------------------------

    def cast(self, x: Array, dtype: DType) -> Array:
        """One rounding; float to integer truncates, saturates, NaN gives 0."""
        if x.dtype == dtype.numpy:
            return x
        if dtype.kind == "bool":
            return _is_nonzero(x)
        if dtype.is_float and not jnp.issubdtype(x.dtype, jnp.floating):
            if dtype.name != "float32" and x.dtype == jnp.int32:
                x = _int_to_odd(x)
            return self._apart(lambda y: y.astype(dtype.numpy), x)
        return seal(x.astype(dtype.numpy))

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        return jnp.broadcast_to(x, shape)

    def full(self, shape: tuple[int, ...], value: Any, dtype: DType) -> Array:
        """Sealed: a folded constant would round as XLA's compiler does, not as its
        code."""
        return seal(jnp.full(shape, value, dtype.numpy))

    def arange(self, start: int, size: int, dtype: DType) -> Array:
        return seal(jnp.arange(start, start + size, dtype=dtype.numpy))


def _but_by_zero(divide: Any, a: Array, b: Array) -> Array:
    """A division of integers that gives 0 where the divisor is 0."""
    by_zero = b == 0
    return jnp.where(by_zero, 0, divide(a, jnp.where(by_zero, 1, b)))


def _is_nonzero(x: Array) -> Array:
    """By bits, for a compiled comparison may take a subnormal for 0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x != 0
    width = jnp.finfo(x.dtype).bits
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{width}"))
    return (bits << 1) != 0


def _int_to_odd(x: Array) -> Array:
    """int32 rounded to 24 bits, to odd where inexact: XLA goes to bfloat16 by way of
    float32, and only so does that round once."""
    high = x & ~0xFF
    sticky = jnp.where(high == x, 0, 0x100)
    fits = jnp.abs(x) < 1 << 24
    return jnp.where(fits, x, high | sticky)
