"""Matrix products that add in an order which the program alone decides.

Cure 4 of kbjax.rounding: XLA picks a product's kernel by the layout of its operands, by
an outer axis of 1, whose matrix-vector kernel adds in an order that depends on what it
is fused with, and by the size of the loop around it: one that touches less than 1 KiB
becomes one function, with products of its own (jax 0.10.2, CPU). Layouts follow from
the program (kbjax.layouts), and small products are padded.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from kbjax.layouts import Layout
from kbjax.sealing import rounded, seal

Array = jax.Array
LEAST_ELEMENTS = 256  # of a product: 1 KiB, too much for a loop of one function


def product(
    a: Array, b: Array, layouts: tuple[Layout, Layout], physical: bool
) -> Array:
    """(M, K) x (K, N) in float32 (int32 of integers), or (P, M, K) x (P, K, N).

    A batched product would be another of XLA's kernels, which rounds otherwise; one
    product a PE is the same as on one PE.

    Args:
      a, b: the operands, of one dtype.
      layouts: how each is taken. An untransposed one is contracted along the axis where
        it was before the transposition.
      physical: whether a transposed operand is a stored copy, whose transposition must
        be made physical for the product to see the layout that it sees where the
        transposition is only a value.
    """
    contract = (
        0 if layouts[0] == "untransposed" else 1,
        1 if layouts[1] == "untransposed" else 0,
    )
    a, b = _laid_out(a, layouts[0], physical), _laid_out(b, layouts[1], physical)
    if a.ndim == 2:
        return _matrix_product(a, b, contract)
    pes = range(a.shape[0])
    return jnp.stack([_matrix_product(a[pe], b[pe], contract) for pe in pes])


def _laid_out(x: Array, layout: Layout, physical: bool) -> Array:
    if layout == "plain":
        return x
    if layout == "untransposed":
        x = jnp.swapaxes(x, -1, -2)
        if not physical:
            return seal(x)  # a cast that fed the product would choose its kernel
    return seal(x.reshape(-1)).reshape(x.shape)


def _matrix_product(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    rows, columns = a.shape[1 - contract[0]], b.shape[1 - contract[1]]
    wide = max(columns, 2)
    tall = max(rows, 2, -(-LEAST_ELEMENTS // wide))
    floating = jnp.issubdtype(a.dtype, jnp.floating)
    a, b = _padded(a, 1 - contract[0], tall), _padded(b, 1 - contract[1], wide)
    # Where q has few rows, (k q^T)^T takes 0.7 times as long as q k^T (XLA's CPU
    # backend, jax 0.10.2).
    swapped = contract == (1, 1) and 2 * tall <= wide
    product_ = lax.dot_general(
        *((b, a) if swapped else (a, b)),
        (((contract[0],), (contract[1],)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32 if floating else jnp.int32,
    )
    # XLA makes a product of one term a multiplication, which a later addition would be
    # fused with (cure 1).
    one_term = floating and a.shape[contract[0]] == 1
    product_ = seal(rounded(product_) if one_term else product_)
    return (product_.T if swapped else product_)[:rows, :columns]


def _padded(x: Array, axis: int, size: int) -> Array:
    """Zeros up to `size` along an outer axis; what they give is dropped."""
    more = size - x.shape[axis]
    if not more:
        return x
    zeros = jnp.zeros([more if n == axis else m for n, m in enumerate(x.shape)])
    return jnp.concatenate([x, zeros.astype(x.dtype)], axis=axis)
