"""Every op rounds to its own dtype, whatever XLA would like to make of a chain of them.

DESIGN, section 5: four rewrites of XLA and their cures, over drawn shapes, dtypes and
constants, in a plain call and inside an outer `jax.jit`, where the inputs are arguments
or closed-over constants. Expected bits come from NumPy and ml_dtypes, or from kernels
whose intermediate results go through HBM. `test_the_trap_is_real` runs the same
expressions as plain `jax.numpy`, which XLA does rewrite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from tests.helpers import assert_same_bits

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
SHAPES = [(1, 32), (7, 33), (32, 100), (100, 1)]
MODES = ("call", "jit", "constants", "exact")
Shape = tuple[int, int]


def draw(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Numbers around 1, of several exponents, of both signs; nothing subnormal."""
    x = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-3, 4, shape)
    return (x * rng.choice([-1, 1], shape)).astype(DTYPES[dtype])


def draw_number(rng: np.random.Generator) -> float:
    return float(rng.choice([3.0, 7.0, 0.1, 0.3, 1.1, round(rng.uniform(0.3, 9), 3)]))


def specs(shapes: Sequence[Any], dtypes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(jax.ShapeDtypeStruct, shapes, dtypes))


class Kernel:
    """``o = f(tl, *inputs)`` as a kernel call, in each of the modes."""

    def __init__(self, f: Callable[..., Any], shape: Any, dtype: Any) -> None:
        def kernel(tl: Any, *tensors: Any) -> None:
            *inputs, out = tensors
            tl.store(out, f(tl, *map(tl.load, inputs)))

        self.call = kb.kernel_call(kernel, jax.ShapeDtypeStruct(shape, dtype))

    def __call__(self, mode: str, *arrays: np.ndarray) -> np.ndarray:
        if mode == "call":
            return np.asarray(self.call(*arrays))
        if mode == "exact":
            return np.asarray(self.call.run(*arrays, fidelity="exact").outputs)
        if mode == "jit":
            return np.asarray(jax.jit(self.call)(*arrays))
        constants = [jnp.asarray(x) for x in arrays]
        return np.asarray(jax.jit(lambda: self.call(*constants))())


# --- 1 and 2: contraction and the simplifier -----------------------------------------

# name -> an expression of three tiles and two numbers, in any array namespace: `tl`,
# NumPy or jax.numpy.
EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "a*b+c": lambda xp, a, b, c, k, n: a * b + c,
    "c-a*b": lambda xp, a, b, c, k, n: c - a * b,
    "a*b-b*c": lambda xp, a, b, c, k, n: a * b - b * c,
    "a*k+c": lambda xp, a, b, c, k, n: a * k + c,
    "a/3": lambda xp, a, b, c, k, n: a / 3,
    "a/k": lambda xp, a, b, c, k, n: a / k,
    "a/row": lambda xp, a, b, c, k, n: a / b[:, :1] if xp is not TL else a / b,
    "(a*.1)*.3": lambda xp, a, b, c, k, n: (a * 0.1) * 0.3,
    "(a*k)*n": lambda xp, a, b, c, k, n: (a * k) * n,
    "(a+k)-n": lambda xp, a, b, c, k, n: (a + k) - n,
    "(a/b)/c": lambda xp, a, b, c, k, n: (a / b) / c,
    "(a/k)/n": lambda xp, a, b, c, k, n: (a / k) / n,
    "a/sqrt(b*b)": lambda xp, a, b, c, k, n: a / xp.sqrt(b * b),
    "a*n/b+c": lambda xp, a, b, c, k, n: a * n / b + c,
}
TL = object()  # stands for the namespace of tiles


def expression(name: str, shape: Shape, dtype: str) -> tuple[Any, Any, list[np.ndarray]]:
    """(a function of tiles, one of arrays, arrays), drawn for this case."""
    seed = [sum(map(ord, name)), *shape, sum(map(ord, dtype))]
    rng = np.random.default_rng(seed)
    arrays = [draw(rng, shape, dtype) for _ in range(3)]
    k, n = draw_number(rng), draw_number(rng)
    f = EXPRESSIONS[name]
    if name == "a/row":  # a divisor that is broadcast: one a row
        arrays[1] = np.ascontiguousarray(arrays[1][:, :1])
        return (
            lambda tl, a, b, c: a / b,
            lambda xp, a, b, c: a / b,
            arrays,
        )
    return (
        lambda tl, a, b, c: f(tl, a, b, c, k, n),
        lambda xp, a, b, c: f(xp, a, b, c, k, n),
        arrays,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_chain_is_rounded_op_by_op(name: str, shape: Shape, dtype: str) -> None:
    """Bit for bit NumPy (ml_dtypes), which rounds each op."""
    on_tiles, on_arrays, arrays = expression(name, shape, dtype)
    want = on_arrays(np, *arrays)
    assert want.dtype == DTYPES[dtype]
    kernel = Kernel(on_tiles, shape, DTYPES[dtype])
    for mode in MODES:
        assert_same_bits(kernel(mode, *arrays), want, f"{name} {mode}")


REWRITTEN = ("a*b+c", "c-a*b", "a/3", "a/row", "(a*.1)*.3", "(a/b)/c", "a/sqrt(b*b)")


@pytest.mark.parametrize("name", REWRITTEN)
def test_the_trap_is_real(name: str) -> None:
    """Plain jax.numpy under jit gives other bits in some of the cases above."""
    differs = False
    for shape in SHAPES:
        _, on_arrays, arrays = expression(name, shape, "float32")
        naive = jax.jit(functools.partial(on_arrays, jnp))(*arrays)
        differs |= bool((np.asarray(naive) != on_arrays(np, *arrays)).any())
    assert differs
