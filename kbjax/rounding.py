"""The array namespace of the data phase: JAX, made to round as separate instructions.

Inside one jitted function XLA fuses and rewrites across operations, and so changes
roundings. Four cures, each measured on jax 0.10, CPU, and each with a test:

1. `a * b + c` becomes a fused multiply-add, across `optimization_barrier` too. A
   product passes through a NaN-preserving select, which the contraction does not cross.
2. The simplifier turns `a / 3` and `a / broadcast(l)` into products with a reciprocal
   and merges constants. Every rounding op ends in an `optimization_barrier`, and a
   divisor passes one after broadcasting.
3. A fused reduction adds in another order. `sum` is a fixed halving tree.
4. `dot` picks its kernel by layout and by M = 1. Its lowering follows from the program
   (`transposed`), and one row is padded to two.

Every function takes arrays of the dtypes that the op table says, and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kbjax.dtypes import DType

Array = jax.Array
_TREE_LEVELS_A_FUSION = 4  # a fused tree doubles its code with each level


def _seal(x: Array) -> Array:
    """`x`, which no rewrite or constant folding reaches across."""
    return lax.optimization_barrier(x)


def _product(p: Array) -> Array:
    """A product that is rounded before it is used (cure 1)."""
    if jnp.issubdtype(p.dtype, jnp.floating):
        p = jnp.where(p == p, p, jnp.array(jnp.nan, p.dtype))
    return _seal(p)


def _meet(a: Array, b: Array) -> tuple[Array, Array]:
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)


def _in_float32(function: Any, x: Array) -> Array:
    """A function of 16-bit floats by way of float32, rounded once at the end."""
    return _seal(function(x.astype(jnp.float32)).astype(x.dtype))


@dataclass(frozen=True)
class Rounding:
    """`xp` for the op table's functions.

    Args:
      physical: whether a transposed operand of `dot` is a stored copy, whose
        transposition must be made physical for `dot` to see the layout that it sees
        where the transposition is only a value (cure 4).
    """

    physical: bool = False

    # --- elementwise -----------------------------------------------------------------

    def add(self, a: Array, b: Array) -> Array:
        return _seal(jnp.add(*_meet(a, b)))

    def subtract(self, a: Array, b: Array) -> Array:
        return _seal(jnp.subtract(*_meet(a, b)))

    def multiply(self, a: Array, b: Array) -> Array:
        return _product(jnp.multiply(*_meet(a, b)))

    def divide(self, a: Array, b: Array) -> Array:
        a, b = _meet(a, b)
        return _seal(jnp.divide(a, _seal(b)))

    def maximum(self, a: Array, b: Array) -> Array:
        return jnp.maximum(*_meet(a, b))

    def minimum(self, a: Array, b: Array) -> Array:
        return jnp.minimum(*_meet(a, b))

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
        return _in_float32(jnp.exp, x)

    def exp2(self, x: Array) -> Array:
        return _in_float32(jnp.exp2, x)

    def log(self, x: Array) -> Array:
        return _in_float32(jnp.log, x)

    def sqrt(self, x: Array) -> Array:
        return _in_float32(jnp.sqrt, x)

    def rsqrt(self, x: Array) -> Array:
        """1 / sqrt(x) in two roundings of float32."""

        def inverse(y: Array) -> Array:
            return self.divide(jnp.ones_like(y), _seal(jnp.sqrt(y)))

        return _in_float32(inverse, x)

    # --- reductions ------------------------------------------------------------------

    def sum(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        if axis is None:
            shape = (1,) * x.ndim if keepdims else ()
            return self.sum(x.reshape(-1), 0, False).reshape(shape)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
        total = _halving_sum(x, axis % x.ndim)
        return total if keepdims else jnp.squeeze(total, axis)

    def max(self, x: Array, axis: int | None, keepdims: bool) -> Array:
        return jnp.max(x, axis=axis, keepdims=keepdims)

    def softmax(self, x: Array, axis: int) -> Array:
        shifted = self.subtract(x, self.max(x, axis, True))
        weights = self.exp(shifted)
        return self.divide(weights, self.sum(weights, axis, True))

    # --- matrices --------------------------------------------------------------------

    def transpose(self, x: Array) -> Array:
        return jnp.swapaxes(x, 0, 1)  # no barrier: dot folds it

    def dot(self, a: Array, b: Array, transposed: tuple[bool, bool]) -> Array:
        """(M, K) x (K, N) in float32, or (P, M, K) x (P, K, N).

        A batched product would be another of XLA's kernels, which rounds otherwise; one
        product a PE is the same as on one PE.

        Args:
          a, b: the operands.
          transposed: which of them `trans` made; their product is then taken with the
            contracting axis where it was before the transposition.
        """
        contract = (0 if transposed[0] else 1, 1 if transposed[1] else 0)
        a = self._untransposed(a) if transposed[0] else a
        b = self._untransposed(b) if transposed[1] else b
        if a.ndim == 2:
            return _matrix_product(a, b, contract)
        pes = range(a.shape[0])
        return jnp.stack([_matrix_product(a[pe], b[pe], contract) for pe in pes])

    def _untransposed(self, x: Array) -> Array:
        swapped = jnp.swapaxes(x, -1, -2)
        if not self.physical:
            return swapped
        return _seal(swapped.reshape(-1)).reshape(swapped.shape)

    # --- types and creation ----------------------------------------------------------

    def cast(self, x: Array, dtype: DType) -> Array:
        """One rounding; float to integer truncates, saturates, NaN gives 0."""
        if dtype.kind == "bool":
            return x != 0
        return _seal(x.astype(dtype.numpy))

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        return jnp.broadcast_to(x, shape)

    def full(self, shape: tuple[int, ...], value: Any, dtype: DType) -> Array:
        """Sealed: a folded constant would round as XLA's compiler does, not as its
        code."""
        return _seal(jnp.full(shape, value, dtype.numpy))

    def arange(self, start: int, size: int, dtype: DType) -> Array:
        return _seal(jnp.arange(start, start + size, dtype=dtype.numpy))


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


def _halving_sum(x: Array, axis: int) -> Array:
    """Halves added to halves until one is left; -0.0 is the neutral padding."""
    size = x.shape[axis]
    width = 1 << (size - 1).bit_length()
    if width != size:
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, width - size)
        x = jnp.pad(x, padding, constant_values=-0.0)
    level = 0
    while width > 1:
        width //= 2
        low = lax.slice_in_dim(x, 0, width, axis=axis)
        x = low + lax.slice_in_dim(x, width, 2 * width, axis=axis)
        level += 1
        if level % _TREE_LEVELS_A_FUSION == 0:
            x = _seal(x)
    return _seal(x)
