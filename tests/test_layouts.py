"""Products of transposed operands: live and exact give the same bits, however the
transposition came about."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import dtypes
from kbjax.layouts import layouts
from tests.helpers import assert_same_bits

Make = Callable[[Any, Any], Any]


def copied(tl: Any, k: Any) -> Any:
    tile = tl.empty((k.shape[1], k.shape[0]))
    tl.copy_to(tile, tl.trans(tl.load(k)))
    return tile


WAYS: dict[str, Make] = {
    "trans": lambda tl, k: tl.trans(tl.load(k)),
    "view": lambda tl, k: tl.load(k.T),
    "part of a view": lambda tl, k: tl.load(k[tl.ds(0, k.shape[0]), :].T),
    "copy": copied,
    "alias": lambda tl, k: tl.trans(tl.load(k))[tl.ds(0, k.shape[1])],
    "reshape": lambda tl, k: tl.reshape(tl.trans(tl.load(k)), k.shape[::-1]),
    "thrice": lambda tl, k: tl.trans(tl.trans(tl.trans(tl.load(k)))),
    "selected": lambda tl, k: (
        lambda t: tl.where(t > -100.0, t, 0.0)
    )(tl.trans(tl.load(k))),
    "computed": lambda tl, k: tl.trans(tl.load(k)) * 2.0,
}  # fmt: skip


ODD, ONE_ROW, WIDE = (3, 17, 33), (1, 32, 32), (7, 100, 50)


@pytest.mark.parametrize(
    ("way", "shape"),
    [*itertools.product(WAYS, (ODD, ONE_ROW)), ("trans", WIDE), ("view", WIDE)],
)
def test_both_fidelities_agree(way: str, shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    rng = np.random.default_rng(0)
    q = rng.standard_normal((rows, depth), np.float32)
    k = rng.standard_normal((columns, depth), np.float32)

    def kernel(tl: Any, q: Any, k: Any, o: Any) -> None:
        tl.store(o, tl.dot(tl.load(q), WAYS[way](tl, k)))

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((rows, columns), "float32"))
    live, exact = call(q, k), call.run(q, k, fidelity="exact").outputs
    assert_same_bits(live, exact, way)
    scale = 2.0 if way == "computed" else 1.0
    want = q.astype(np.float64) @ k.T.astype(np.float64) * scale
    np.testing.assert_allclose(live, want, rtol=1e-5, atol=1e-4)


def test_an_input_that_an_outer_jit_transposes_is_a_plain_input() -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((7, 50), np.float32)
    k = rng.standard_normal((100, 50), np.float32)

    def kernel(tl: Any, q: Any, k: Any, o: Any) -> None:
        tl.store(o, tl.dot(tl.load(q), tl.load(k)))

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((7, 100), "float32"))
    inside = jax.jit(lambda q, k: call(q, k.T))(q, k)
    assert_same_bits(inside, call(q, np.ascontiguousarray(k.T)))


def test_what_a_program_says() -> None:
    def kernel(tl: Any, k: Any, o: Any) -> None:
        plain = tl.load(k[tl.ds(0, 8), :])  # %0
        made = tl.trans(plain)  # %1
        copy = tl.empty(made.shape)  # %2
        tl.copy_to(copy, made)
        tl.store(o, tl.dot(plain, made) + tl.dot(plain, copy))  # %3, %4, %5

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((8, 8), "float32"))
    found = layouts(call.record(jax.ShapeDtypeStruct((16, 4), "float32")))
    assert found.transposed == {1}
    assert found.lazy == {1, 2}


MIXED = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16"),
         ("float8_e4m3fn", "float32")]  # fmt: skip


@pytest.mark.parametrize("first, second", MIXED)
def test_a_cast_before_a_product_does_not_choose_its_kernel(
    first: str, second: str
) -> None:
    """Operands of two types meet in a common one; the cast of a transposed operand fed
    the product in live only, which then added in another order."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 2)).astype(dtypes.of(first).numpy)
    y = rng.standard_normal((2, 32)).astype(dtypes.of(second).numpy)

    def kernel(tl: Any, x: Any, y: Any, *outs: Any) -> None:
        a, b = tl.load(x), tl.load(y)
        tl.store(outs[0], tl.dot(tl.trans(a), tl.trans(b)))
        tl.store(outs[1], tl.dot(tl.trans(a), a))
        tl.store(outs[2], tl.dot(b, tl.trans(b)))
        tl.store(outs[3], tl.dot(b, a))

    square = jax.ShapeDtypeStruct((2, 2), "float32")
    call = kb.kernel_call(kernel, (square,) * 4)
    live, exact = (call.run(x, y, fidelity=f).outputs for f in ("live", "exact"))
    assert_same_bits(live, exact, "output")
