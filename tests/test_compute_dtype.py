"""`compute_dtype="float32"`: what a kernel gives when nothing is rounded before it is
stored, which tells a wrong algorithm from rounding."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from tests.helpers import assert_same_bits

NARROW = ["bfloat16", "float16"]
ROWS, WIDTH = 6, 8


def draw(dtype: str, shape: tuple[int, ...] = (ROWS, WIDTH), seed: int = 0) -> Any:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return values.astype(jnp.dtype(dtype))


def chain(tl: Any, x: Any, o: Any, *, dtype: str, unroll: bool = False) -> None:
    """Every kind of command on tiles of `dtype`."""
    total = tl.zeros((1, WIDTH), dtype)
    parts = tl.full((2, WIDTH), 0.1, dtype)
    for i in (tl.static_range if unroll else tl.range)(ROWS):
        with tl.scratch_scope():
            row = tl.load(x[tl.ds(i, 1), :], other=0.3)
            scaled = row * 0.1 + tl.exp(row) / 3.0
            picked = tl.where(scaled > row, scaled, tl.softmax(row, axis=1))
            product = tl.dot(tl.trans(row), picked, out_dtype=dtype)
            with tl.when(i % 2 == 0):
                tl.copy_to(parts[tl.ds(i % 2, 1)], picked.to("float16").to(dtype))
            grown = total + tl.sum(product, axis=0, keepdims=True)
            tl.copy_to(total, grown - tl.sigmoid(parts[0:1]))
    tl.store(o, total)


@functools.cache  # with what it has compiled
def call(dtype: str, compute_dtype: Any = None, **options: Any) -> kb.KernelCall:
    kernel = functools.partial(chain, dtype=dtype)
    out = jax.ShapeDtypeStruct((1, WIDTH), jnp.dtype(dtype))
    return kb.kernel_call(kernel, out, compute_dtype=compute_dtype, **options)


@pytest.mark.parametrize("dtype", NARROW)
def test_it_is_the_kernel_on_float32_tiles(dtype: str) -> None:
    """Rounded once, when stored."""

    def wide(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((1, WIDTH))
        parts = tl.full((2, WIDTH), 0.1)
        for i in tl.range(ROWS):
            with tl.scratch_scope():
                row = tl.load(x[tl.ds(i, 1), :])
                scaled = row * 0.1 + tl.exp(row) / 3.0
                picked = tl.where(scaled > row, scaled, tl.softmax(row, axis=1))
                product = tl.dot(tl.trans(row), picked)
                with tl.when(i % 2 == 0):
                    tl.copy_to(parts[tl.ds(i % 2, 1)], picked)
                grown = total + tl.sum(product, axis=0, keepdims=True)
                tl.copy_to(total, grown - tl.sigmoid(parts[0:1]))
        tl.store(o, total)

    x = draw(dtype)
    out = jax.ShapeDtypeStruct((1, WIDTH), "float32")
    expected = kb.kernel_call(wide, out)(x.astype(np.float32))
    got = call(dtype, "float32")(x)
    assert_same_bits(got, np.asarray(expected).astype(x.dtype))
    assert (np.asarray(got) != np.asarray(call(dtype)(x))).any(), "rounding shows"


@pytest.mark.parametrize("dtype", NARROW)
def test_every_path_gives_the_same(dtype: str) -> None:
    x = draw(dtype)
    wide = call(dtype, "float32")
    expected = wide(x)
    assert_same_bits(wide.run(x).outputs, expected, "with memory")
    assert_same_bits(jax.jit(wide)(x), expected, "inside jit")
    kernel = functools.partial(chain, dtype=dtype, unroll=True)
    out = jax.ShapeDtypeStruct((1, WIDTH), x.dtype)
    unrolled = kb.kernel_call(kernel, out, compute_dtype="float32")
    assert_same_bits(unrolled(x), expected, "unrolled")


def test_one_pe_among_many() -> None:
    x = np.stack([draw("bfloat16", seed=seed) for seed in range(3)])
    many = call("bfloat16", "float32", num_pes=3)(x)
    for pe in range(3):  # exp of one among many is within 1 ulp; so is a bfloat16
        one = call("bfloat16", "float32")(x[pe])
        a, b = (np.asarray(v).astype(np.float32) for v in (many[pe], one))
        np.testing.assert_allclose(a, b, rtol=2**-8)


@pytest.mark.parametrize("spec", ["float32", np.float32, jnp.float32, np.dtype("f4")])
def test_addresses_footprint_and_times_stay(spec: Any) -> None:
    x = draw("bfloat16")
    plain, wide = call("bfloat16"), call("bfloat16", spec)
    assert str(plain.record(x)) == str(wide.record(x))
    assert str(plain.plan(x)) == str(wide.plan(x))
    assert list(plain.op_log(x)) == list(wide.op_log(x))


def test_the_memory_at_the_end_has_each_tile_in_its_dtype() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(3):
            tl.copy_to(t, t * 1.01)
        tl.store(o, t)

    x = draw("bfloat16")
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    found = kb.kernel_call(kernel, out, compute_dtype="float32").run(x)
    tile = np.asarray(found.tcm.memory)[: x.nbytes].view(ml_dtypes.bfloat16)
    assert_same_bits(tile.reshape(x.shape), found.outputs)


def test_it_tells_a_wrong_algorithm_from_rounding() -> None:
    """A float16 score that overflows is right in float32; a wrong mask is not."""

    def attention(tl: Any, q: Any, k: Any, v: Any, o: Any, *, scale: float) -> None:
        s = tl.dot(tl.load(q), tl.trans(tl.load(k)), out_dtype="float16") * scale
        tl.store(o, tl.dot(tl.softmax(s, axis=1), tl.load(v), out_dtype="float16"))

    q = np.full((1, 128), 256, np.float16)
    k = np.stack([q[0], q[0] - 1])
    v = np.array([[1.0] * 4, [2.0] * 4], np.float16)
    out = jax.ShapeDtypeStruct((1, 4), "float16")
    make = functools.partial(kb.kernel_call, out_shape=out)
    right = functools.partial(attention, scale=128**-0.5)
    wrong = functools.partial(attention, scale=-(128**-0.5))
    assert np.isnan(np.asarray(make(right)(q, k, v))).all()
    assert_same_bits(make(right, compute_dtype="float32")(q, k, v), v[:1])
    assert_same_bits(make(wrong, compute_dtype="float32")(q, k, v), v[1:])


def test_integers_and_casts_to_them_keep_their_dtype() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        n = tl.cast(tl.load(x) * 100.0, "int8")
        tl.store(o, n + n)

    x = np.array([0.1, 1.0, -3.0, np.nan], ml_dtypes.bfloat16)
    out = jax.ShapeDtypeStruct((4,), "int8")
    wide = kb.kernel_call(kernel, out, compute_dtype="float32")(x)
    n = np.array([10, 100, -128, 0], np.int8)  # 0.10009765625 * 100 truncates
    assert_same_bits(wide, n + n)


def test_a_filler_is_no_value_of_the_tensor() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.cast(tl.load(x[tl.ds(2, 4)], other=0.1), "float32"))

    x = draw("float16", (4,))
    out = jax.ShapeDtypeStruct((4,), "float32")
    plain, wide = (
        np.asarray(kb.kernel_call(kernel, out, compute_dtype=c)(x))
        for c in (None, "float32")
    )
    assert_same_bits(wide, np.array([x[2], x[3], 0.1, 0.1], np.float32))
    assert plain[2] == np.float16(0.1)


def test_what_is_refused() -> None:
    x = draw("bfloat16")
    wide = call("bfloat16", "float32")
    with pytest.raises(kb.KernelError, match="live replay"):
        wide.run(x, fidelity="exact")
    with pytest.raises(kb.KernelError, match="poison"):
        wide.run(x, poison=True)
    with pytest.raises(kb.KernelError, match="Make the call without"):
        call("bfloat16", "float32", checks="off")(x)
    for spec in ("bfloat16", "float64", "int32", 32):
        with pytest.raises(kb.DTypeError, match="float32"):
            call("bfloat16", spec)
