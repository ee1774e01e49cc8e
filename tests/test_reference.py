"""The oracle itself, against values worked out by hand."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from tests import reference
from tests.helpers import assert_same_bits, assert_same_tcm, live_bytes_mask
from tests.reference import DTYPES, OPS, convert

F32, F16, BF16 = (DTYPES[name] for name in ("float32", "float16", "bfloat16"))


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_product_is_rounded_before_it_is_added() -> None:
    """(1 + e)^2 - (1 + 2e) is e^2 if fused, and 0 if the square is rounded first."""
    e = 2.0**-12
    a, minus = f32(1 + e), f32(-(1 + 2 * e))
    assert OPS["add"](OPS["mul"](a, a), minus)[0] == 0.0


def test_division_is_not_by_a_reciprocal() -> None:
    assert OPS["div"](f32(5.0), 3.0)[0] == np.float32(5 / 3)
    assert np.float32(5) * (np.float32(1) / np.float32(3)) != np.float32(5 / 3)


def test_integers_divide_to_float32_and_wrap() -> None:
    ints = np.array([7, 2**31 - 1], np.int32)
    assert_same_bits(OPS["div"](ints, 2), f32(3.5, 2**30))
    assert_same_bits(OPS["add"](ints, 1), np.array([8, -(2**31)], np.int32))


def test_the_sum_is_a_halving_tree() -> None:
    """Of 3, padded to 4: (a + c) + b. Of 5, padded to 8: ((a + e) + c) + (b + d). From
    left to right, or by neighbours, the big number would swallow the ones."""
    big = 2.0**24
    assert OPS["sum"](f32(1, big, 1), axis=0, keepdims=False) == big + 2
    assert OPS["sum"](f32(1, big, 0, 0, 1), axis=None, keepdims=True)[0] == big + 2
    assert OPS["sum"](f32(1, 1, big), axis=0, keepdims=False) == big


def test_sums_of_16_bits_add_in_float32_and_of_bool_in_int32() -> None:
    assert OPS["sum"](np.full((1, 5000), 1, F16), axis=1, keepdims=True) == 5000
    assert_same_bits(
        OPS["sum"](np.ones((2, 300), np.bool_), axis=1, keepdims=False),
        np.array([300, 300], np.int32),
    )
    assert_same_bits(OPS["sum"](f32(-0.0), axis=0, keepdims=False), np.float32(-0.0))


@pytest.mark.parametrize(
    "value, expected",
    [(2.9, 2), (-2.9, -2), (3e9, 2**31 - 1), (-np.inf, -(2**31)), (np.nan, 0)],
)
def test_floats_become_ints_by_truncation_and_saturation(
    value: float, expected: int
) -> None:
    assert convert(f32(value), DTYPES["int32"])[0] == expected


def test_one_rounding_to_bfloat16() -> None:
    """2^24 + 2^16 + 1 lies above the middle of two bfloat16; by way of float32, which
    drops the 1, it would be a tie and round down to even."""
    value = np.array([2**24 + 2**16 + 1], np.int32)
    assert convert(value, BF16).astype(np.float64)[0] == 2**24 + 2**17
    assert convert(f32(1 + 2.0**-8), BF16)[0] == 1.0  # a tie, to even


def test_scalars_are_weak_and_nan_wins() -> None:
    half = np.array([1.0], F16)
    assert_same_bits(OPS["mul"](half, 0.1), np.array([0.1], F16))
    assert OPS["mul"](np.array([3], np.int32), 0.5).dtype == F32
    assert OPS["add"](half, np.array([1], BF16)).dtype == F32
    assert np.isnan(OPS["maximum"](f32(np.nan), 1.0)[0])
    assert np.isnan(OPS["max"](f32(1, np.nan, 3), axis=0, keepdims=False))


def test_a_program_with_a_loop_a_tail_and_rewound_scratch() -> None:
    """Addresses, loops, `other`, dropped elements, and what stays of memory."""

    def kernel(tl, x, total, doubled):  # type: ignore[no-untyped-def]
        acc = tl.zeros((1, 2))
        for i in tl.range(2):
            with tl.scratch_scope():
                rows = tl.load(x[tl.ds(i * 3, 3), :], other=10.0)
                tl.store(doubled[tl.ds(i * 3, 3), :], rows * 2, boundary_check=True)
                tl.copy_to(acc, acc + tl.sum(rows, axis=0, keepdims=True))
        tl.store(total[1:2, :], acc)

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((2, 2), (4, 2))]
    program = kb.kernel_call(kernel, tuple(shapes)).record(
        jax.ShapeDtypeStruct((4, 2), "float32")
    )
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    total, doubled = reference.run(program, [x]).outputs
    memory = reference.run(program, [x]).memory
    assert_same_bits(doubled, x * 2)
    assert_same_bits(total, np.stack([f32(np.nan, np.nan), f32(12 + 20, 16 + 20)]))
    # acc, of 8 bytes padded to 16, then a tile of 3 x 2 from the last iteration.
    assert memory[:8].view(np.float32).tolist() == [32, 36]
    assert memory[8:16].tolist() == [0xFF] * 8
    assert memory[16:40].view(np.float32).tolist() == [6, 7, 10, 10, 10, 10]
    assert np.flatnonzero(live_bytes_mask(program)).tolist() == list(range(8))


def test_the_comparisons_can_fail() -> None:
    """And say where: the first element; the byte, its command and kernel line."""
    nan = f32(np.nan)
    assert_same_bits(nan, -nan)
    with pytest.raises(AssertionError, match=r"1 of 2 .* first at \(1,\): got -0.0"):
        assert_same_bits(f32(1, -0.0), f32(1, 0.0))
    with pytest.raises(AssertionError, match="float16 != bfloat16"):
        assert_same_bits(np.zeros(1, F16), np.zeros(1, ml_dtypes.bfloat16))

    def kernel(tl, x, out):  # type: ignore[no-untyped-def]
        tile = tl.load(x)
        more = tile + 1.0
        tl.store(out, more)

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "float32"))
    program = call.record(f32(1, 2, 3, 4))
    good = reference.run(program, [f32(1, 2, 3, 4)]).memory
    assert_same_tcm(program, good, good)
    bad = good.copy()
    bad[100] ^= 1  # no tile is there
    assert_same_tcm(program, bad, good)
    bad[0x14] = 0x7F
    said = r"command 1 \(add, test_reference.py:\d+\): byte 0x14 is 7f, expected 00"
    with pytest.raises(AssertionError, match=said):
        assert_same_tcm(program, bad, good)
    bad[0x10:0x14], good[0x10:0x14] = nan.view(np.uint8), (-nan).view(np.uint8)
    bad[0x14] = good[0x14]
    assert_same_tcm(program, bad, good, any_nan=True)
    with pytest.raises(AssertionError, match="1 bytes differ"):
        assert_same_tcm(program, bad, good)
