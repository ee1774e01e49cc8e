"""The array namespace of the data phase: JAX, made to round as separate instructions.

Inside one jitted function XLA fuses and rewrites across operations, and so changes
roundings. Five cures, each measured on jax 0.10, CPU, and each with a test:

1. `a * b + c` becomes a fused multiply-add, across `optimization_barrier` too. Results
   pass through a select that makes every NaN the same, which no contraction crosses.
   A compiler that proves that there is no NaN drops it, so none knows anything: scalars
   and floats made from integers pass through `unknown`.
2. The simplifier turns `a / 3` and `a / broadcast(l)` into products with a reciprocal
   and merges constants. Every rounding op ends in an `optimization_barrier`, and a
   divisor passes one after broadcasting.
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

from kbjax.dtypes import DType
from kbjax.layouts import Layout

Array = jax.Array
_TREE_LEVELS_A_FUSION = 3  # a fused tree doubles its code with each level


def always_true() -> Array:
    """A bool scalar that is true, which no compiler can know: a random number in [0, 1)
    is less than 2."""
    return lax.rng_uniform(jnp.float32(0), jnp.float32(1), shape=()) < 2


def _seal(x: Array) -> Array:
    """`x`, which no rewrite or constant folding reaches across."""
    return lax.optimization_barrier(x)


def _rounded(x: Array) -> Array:
    """A result of arithmetic, rounded before it is used (cures 1 and 2)."""
    return _seal(_canonical(x))


def _canonical(x: Array) -> Array:
    """`x` with every NaN the same one: which operand's NaN an instruction hands on
    depends on how it was compiled. No contraction crosses the select."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jnp.where(x == x, x, jnp.array(jnp.nan, x.dtype))


def _meet(a: Array, b: Array) -> tuple[Array, Array]:
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)


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
        return _rounded(jnp.add(*_meet(a, b)))

    def subtract(self, a: Array, b: Array) -> Array:
        return _rounded(jnp.subtract(*_meet(a, b)))

    def multiply(self, a: Array, b: Array) -> Array:
        return _rounded(jnp.multiply(*_meet(a, b)))

    def divide(self, a: Array, b: Array) -> Array:
        a, b = _meet(a, b)
        return _rounded(jnp.divide(a, _seal(b)))

    def maximum(self, a: Array, b: Array) -> Array:
        return _canonical(jnp.maximum(*_meet(a, b)))

    def minimum(self, a: Array, b: Array) -> Array:
        return _canonical(jnp.minimum(*_meet(a, b)))

    def less(self, a: Array, b: Array) -> Array:
        return jnp.less(*_meet(a, b))

    def less_equal(self, a: Array, b: Array) -> Array:
        return jnp.less_equal(*_meet(a, b))

    def greater(self, a: Array, b: Array) -> Array:
        return jnp.greater(*_meet(a, b))

    def greater_equal(self, a: Array, b: Array) -> Array:
        return jnp.greater_equal(*_meet(a, b))

    def equal(self, a: Array, b: Array) -> Array:
        return jnp.equal(*_meet(a, b))

    def not_equal(self, a: Array, b: Array) -> Array:
        return jnp.not_equal(*_meet(a, b))

    def where(self, cond: Array, a: Array, b: Array) -> Array:
        shape = jnp.broadcast_shapes(cond.shape, a.shape, b.shape)
        cond, a, b = (jnp.broadcast_to(x, shape) for x in (cond, a, b))
        return jnp.where(cond, a, b)

    def exp(self, x: Array) -> Array:
        return self._apart(partial(_by_float32, jnp.exp), x)

    def exp2(self, x: Array) -> Array:
        return self._apart(partial(_by_float32, jnp.exp2), x)

    def log(self, x: Array) -> Array:
        return self._apart(partial(_by_float32, jnp.log), x)

    def sqrt(self, x: Array) -> Array:
        return _seal(_by_float32(jnp.sqrt, x))

    def rsqrt(self, x: Array) -> Array:
        """1 / sqrt(x) in two roundings of float32."""

        def inverse(y: Array) -> Array:
            return self.divide(jnp.ones_like(y), _seal(jnp.sqrt(y)))

        return _seal(_by_float32(inverse, x))

    def _apart(self, function: Any, x: Array) -> Array:
        """A function of x that is fused with nothing (cure 5), and of whose result
        nothing is known (cure 1)."""
        result = jax.eval_shape(function, x)
        return _seal(
            lax.cond(
                self.always,
                function,
                lambda y: jnp.zeros(result.shape, result.dtype),
                _seal(x),
            )
        )

    def unknown(self, x: Array) -> Array:
        """`x`, of whose value no compiler knows anything."""
        return self._apart(lambda y: y, x)

    # --- reductions ------------------------------------------------------------------

    def sum(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        return _reduced(jnp.add, -0.0, x, axis, keepdims)

    def max(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        lowest = -jnp.inf if floating else jnp.iinfo(x.dtype).min
        return _reduced(jnp.maximum, lowest, x, axis, keepdims)

    def softmax(self, x: Array, axis: int) -> Array:
        shifted = self.subtract(x, self.max(x, axis, True))
        weights = self.exp(shifted)
        return self.divide(weights, self.sum(weights, axis, True))

    # --- matrices --------------------------------------------------------------------

    def transpose(self, x: Array) -> Array:
        return jnp.swapaxes(x, 0, 1)  # no barrier: dot folds it

    def dot(self, a: Array, b: Array, layouts: tuple[Layout, Layout]) -> Array:
        """(M, K) x (K, N) in float32, or (P, M, K) x (P, K, N).

        A batched product would be another of XLA's kernels, which rounds otherwise; one
        product a PE is the same as on one PE.

        Args:
          a, b: the operands.
          layouts: how each is taken (kbjax.layouts). An untransposed one is contracted
            along the axis where it was before the transposition.
        """
        contract = (
            0 if layouts[0] == "untransposed" else 1,
            1 if layouts[1] == "untransposed" else 0,
        )
        a, b = self._laid_out(a, layouts[0]), self._laid_out(b, layouts[1])
        if a.ndim == 2:
            return _matrix_product(a, b, contract)
        pes = range(a.shape[0])
        return jnp.stack([_matrix_product(a[pe], b[pe], contract) for pe in pes])

    def _laid_out(self, x: Array, layout: Layout) -> Array:
        if layout == "plain":
            return x
        if layout == "untransposed":
            x = jnp.swapaxes(x, -1, -2)
            if not self.physical:
                return x
        return _seal(x.reshape(-1)).reshape(x.shape)

    # --- types and creation ----------------------------------------------------------

    def cast(self, x: Array, dtype: DType) -> Array:
        """One rounding; float to integer truncates, saturates, NaN gives 0."""
        if x.dtype == dtype.numpy:
            return x
        if dtype.kind == "bool":
            return _is_nonzero(x)
        if dtype.kind == "float" and not jnp.issubdtype(x.dtype, jnp.floating):
            if dtype.name == "bfloat16" and x.dtype != jnp.bool_:
                x = _to_odd(x)
            return self._apart(lambda y: y.astype(dtype.numpy), x)
        return _seal(x.astype(dtype.numpy))

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        return jnp.broadcast_to(x, shape)

    def full(self, shape: tuple[int, ...], value: Any, dtype: DType) -> Array:
        """Sealed: a folded constant would round as XLA's compiler does, not as its
        code."""
        return _seal(jnp.full(shape, value, dtype.numpy))

    def arange(self, start: int, size: int, dtype: DType) -> Array:
        return _seal(jnp.arange(start, start + size, dtype=dtype.numpy))


def _is_nonzero(x: Array) -> Array:
    """By bits, for a compiled comparison may take a subnormal for 0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x != 0
    width = jnp.finfo(x.dtype).bits
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{width}"))
    return (bits << 1) != 0


def _by_float32(function: Any, x: Array) -> Array:
    """A function of 16-bit floats by way of float32."""
    return function(x.astype(jnp.float32)).astype(x.dtype)


def _to_odd(x: Array) -> Array:
    """int32 rounded to 24 bits, to odd where inexact: XLA goes to bfloat16 by way of
    float32, and only so does that round once."""
    high = x & ~0xFF
    sticky = jnp.where(high == x, 0, 0x100)
    fits = jnp.abs(x) < 1 << 24
    return jnp.where(fits, x, high | sticky)


def _matrix_product(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    rows, columns = a.shape[1 - contract[0]], b.shape[1 - contract[1]]
    product = lax.dot_general(
        _two_wide(a, 1 - contract[0]),
        _two_wide(b, 1 - contract[1]),
        (((contract[0],), (contract[1],)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return _seal(product)[:rows, :columns]


def _two_wide(x: Array, axis: int) -> Array:
    """An outer axis of 1 padded to 2: XLA's matrix-vector kernel adds in an order that
    depends on what it is fused with."""
    if x.shape[axis] != 1:
        return x
    return jnp.concatenate([x, jnp.zeros_like(x)], axis=axis)


def _reduced(
    combine: Any, neutral: float, x: Array, axis: int | None, keepdims: bool
) -> Array:
    """Halves combined with halves until one is left, padded with `neutral`."""
    if axis is None:
        shape = (1,) * x.ndim if keepdims else ()
        return _reduced(combine, neutral, x.reshape(-1), 0, False).reshape(shape)
    axis %= x.ndim
    size = x.shape[axis]
    width = 1 << (size - 1).bit_length()
    if width != size:
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, width - size)
        x = jnp.pad(x, padding, constant_values=jnp.array(neutral, x.dtype))
    level = 0
    while width > 1:
        width //= 2
        low = lax.slice_in_dim(x, 0, width, axis=axis)
        x = combine(low, lax.slice_in_dim(x, width, 2 * width, axis=axis))
        level += 1
        if level % _TREE_LEVELS_A_FUSION == 0:
            x = _seal(x)
    x = _rounded(x)
    return x if keepdims else jnp.squeeze(x, axis)
