"""The oracle itself, against values worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import ops
from tests import reference
from tests.helpers import assert_same_bits, assert_same_tcm, live_bytes_mask
from tests.reference import DTYPES, OPS, convert

F32, F16, BF16 = (DTYPES[name] for name in ("float32", "float16", "bfloat16"))
E4M3, E5M2 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]
I32, I16, I8, U8 = (DTYPES[name] for name in ("int32", "int16", "int8", "uint8"))
REDUCED = {"axis": None, "keepdims": False}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """As `reference.run` has it: infinities and NaN are values."""
    with np.errstate(all="ignore"):
        yield


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i8(*values: int) -> np.ndarray:
    return np.array(values, np.int8)


def test_every_op_and_element_type_of_the_table_has_its_oracle() -> None:
    assert set(OPS) == set(ops.TABLE)
    assert set(DTYPES) == {row.name for row in kb.dtypes.TABLE.values()}


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


def test_integers_floor_as_python_does_and_by_zero_give_zero() -> None:
    a, b = i8(7, -7, 7, -7, 5, -128), i8(2, 2, -2, -2, 0, -1)
    assert_same_bits(OPS["floordiv"](a, b), i8(3, -4, -4, 3, 0, -128))
    assert_same_bits(OPS["mod"](a, b), i8(1, 1, -1, -1, 0, 0))
    assert_same_bits(OPS["div"](a[:1], 2), f32(3.5))


def test_floats_floor_as_numpy_does() -> None:
    a, b = f32(-7, 1, -1, 5), f32(2, np.inf, np.inf, 0)
    assert_same_bits(OPS["floordiv"](a, b), f32(-4, 0, -1, np.inf))
    assert_same_bits(OPS["mod"](a, b), f32(1, 1, np.inf, np.nan))
    # 1.0 / 0.1 is 10 in float16, but 0.1 is a little less than float16's 0.1.
    assert OPS["floordiv"](np.array([1], F16), 0.1).astype(float)[0] == 10.0


def test_powers_of_integers_wrap_and_negative_ones_truncate() -> None:
    bases, powers = i8(3, 2, -2, 0, 0, 1, -1, -1, 2), i8(5, 7, 7, 0, -1, -9, -9, -8, -1)
    expected = i8(3**5 - 256, -128, -128, 1, 0, 1, -1, 1, 0)
    assert_same_bits(OPS["pow"](bases, powers), expected)
    big = np.array([3], I32)
    wrapped = (3**1000 + 2**31) % 2**32 - 2**31
    assert_same_bits(OPS["pow"](big, 1000), np.array([wrapped], I32))
    assert OPS["pow"](f32(2), -1)[0] == 0.5


def test_bits_and_signs() -> None:
    assert_same_bits(OPS["and"](i8(6, -1), i8(3, 5)), i8(2, 5))
    assert_same_bits(OPS["or"](i8(6, -1), 1), i8(7, -1))
    assert_same_bits(OPS["invert"](i8(0, 5)), i8(-1, -6))
    flags = np.array([True, False])
    assert_same_bits(OPS["invert"](flags), ~flags)
    assert_same_bits(OPS["and"](flags, i8(3, 3)), i8(1, 0))
    assert_same_bits(OPS["neg"](i8(-128, 1)), i8(-128, -1))
    assert_same_bits(OPS["abs"](i8(-128, -1)), i8(-128, 1))
    assert_same_bits(OPS["neg"](np.array([0.0], BF16)), np.array([-0.0], BF16))


def test_clamp_keeps_nan_and_lets_the_upper_end_win() -> None:
    clamped = OPS["clamp"](f32(-5, 0.5, 5, np.nan), -1, 1.0)
    assert_same_bits(clamped, f32(-1, 0.5, 1, np.nan))
    assert OPS["clamp"](f32(0), 2.0, 1.0)[0] == 1


def rounded(exact: Fraction, dtype: np.dtype) -> float:
    """The finite value of `dtype` nearest to `exact`, even on a tie: by search."""
    near = float(np.array(float(exact)).astype(np.float32).astype(dtype))
    at = np.array([near], dtype)
    around = [at]
    for end in (np.inf, -np.inf):
        around.append(np.nextafter(at, np.array(end, dtype)))
        around.append(np.nextafter(around[-1], np.array(end, dtype)))
    bits = {float(x[0]): int(x.view(f"u{dtype.itemsize}")[0]) for x in around}
    best = min(
        (value for value in bits if np.isfinite(value)),
        key=lambda value: (abs(Fraction(value) - exact), bits[value] % 2),
    )
    return best


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_fma_rounds_once(dtype: np.dtype) -> None:
    """Against exact fractions: random operands, sums that all but cancel, ties that
    something far below breaks, and subnormal results."""
    rng = np.random.default_rng(1)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    eps = float(ml_dtypes.finfo(dtype).eps)
    draws = rng.standard_normal((3, 300))
    draws[2, :100] = -draws[0, :100] * draws[1, :100]
    draws[:, 100:200] *= np.array([[tiny**0.5], [tiny**0.5], [tiny]]) * 8
    draws[:, 200] = 1 + eps, 1 + eps, tiny
    draws[:, 201] = 1 + eps, 0.5 + eps, -tiny  # a product halfway between two
    draws[:, 202] = tiny, 0.5, 1
    draws[:, 203] = tiny, 0.5, tiny  # 1.5: a tie, to even
    draws[:, 204] = tiny, 0.25, tiny
    a, b, c = draws.astype(np.float32).astype(dtype)
    got = OPS["fma"](a, b, c)
    assert got.dtype == dtype
    parts = [[Fraction(float(v)) for v in x] for x in (a, b, c)]
    want = [rounded(x * y + z, dtype) for x, y, z in zip(*parts, strict=True)]
    assert got.astype(float).tolist() == want
    unfused = OPS["add"](OPS["mul"](a, b), c).astype(float)
    assert (unfused != np.array(want)).sum() > 30


def test_fma_of_the_infinite() -> None:
    big = float(np.finfo(np.float32).max)
    a, b, c = f32(np.inf, np.inf, big, big, 0), f32(0, 1, 2, 2, -1), f32(
        1, -np.inf, -np.inf, -big, 0
    )  # fmt: skip
    got = OPS["fma"](a, b, c)
    assert_same_bits(got, f32(np.nan, np.nan, -np.inf, big, 0))


def test_positions_are_of_the_first_and_nan_wins() -> None:
    x = f32(1, 3, 3, -2, -2)
    assert_same_bits(OPS["argmax"](x, **REDUCED), np.array(1, np.int32))
    assert_same_bits(OPS["argmin"](x, **REDUCED), np.array(3, np.int32))
    x[[2, 4]] = np.nan
    for name in ("argmax", "argmin"):
        assert OPS[name](x, **REDUCED) == 2
    flat = OPS["argmax"](i8(1, 2, 9, 0).reshape(2, 2), axis=None, keepdims=True)
    assert_same_bits(flat, np.array([[2]], np.int32))
    rows = OPS["argmin"](np.array([[1, 0], [2, 5]], BF16), axis=1, keepdims=False)
    assert_same_bits(rows, np.array([1, 0], np.int32))


def test_small_integers_sum_in_int32_and_products_wrap() -> None:
    assert_same_bits(OPS["sum"](i8(100, 100), **REDUCED), np.array(200, np.int32))
    with_max = np.full((1, 2), 2**31 - 1, np.int32)
    product = OPS["dot"](with_max, with_max.T, out_dtype=None, transposed=())
    assert_same_bits(product, np.array([[2]], np.int32))


def test_dot_rounds_to_the_accumulator_then_adds_then_rounds_again() -> None:
    a, b = np.array([[2.0**12 + 1]], np.float32), np.array([[2.0**12 + 1]], np.float32)
    exact = 2.0**24 + 2.0**13 + 1  # float32 drops the 1
    product = OPS["dot"](a, b, out_dtype=None)
    assert_same_bits(product, f32(exact - 1).reshape(1, 1))
    added = OPS["dot"](a, b, f32(1).reshape(1, 1), out_dtype=None)
    assert added[0, 0] == exact - 1  # 1 more is a tie, to even
    assert OPS["dot"](a, b, out_dtype="float16").astype(float)[0, 0] == np.inf
    fp8 = OPS["dot"](np.array([[1.5]], E4M3), np.array([[2.0]], E5M2), out_dtype=None)
    assert_same_bits(fp8, f32(3).reshape(1, 1))
    with_int = OPS["dot"](np.array([[1.5]], E4M3), np.array([[3]], I8), out_dtype=None)
    assert_same_bits(with_int, f32(4.5).reshape(1, 1))


def test_promotion_of_tiles() -> None:
    """As `jax.numpy` has it, computed by hand: rows by columns."""
    names = ["bool", "uint8", "int8", "int16", "int32", "bfloat16", "float16"]
    expected = """
        bool     uint8    int8     int16    int32    bfloat16 float16  float32
        uint8    uint8    int16    int16    int32    bfloat16 float16  float32
        int8     int16    int8     int16    int32    bfloat16 float16  float32
        int16    int16    int16    int16    int32    bfloat16 float16  float32
        int32    int32    int32    int32    int32    bfloat16 float16  float32
        bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32  float32
        float16  float16  float16  float16  float16  float32  float16  float32
        float32  float32  float32  float32  float32  float32  float32  float32
    """
    names = [*names, "float32"]
    table = [line.split() for line in expected.strip().splitlines()]
    for a, row in zip(names, table, strict=True):
        for b, common in zip(names, row, strict=True):
            tiles = [np.ones(1, DTYPES[n]) for n in (a, b)]
            met = reference.meet(*tiles)
            assert [x.dtype.name for x in met] == [common, common], (a, b)
    for fp8 in (E4M3, E5M2):
        assert reference.meet(np.ones(1, fp8), True)[0].dtype == fp8
        assert reference.meet(np.ones(1, fp8), 0.5)[1].dtype == fp8
        with pytest.raises(AssertionError, match="do not meet"):
            reference.meet(np.ones(1, fp8), np.ones(1, F32))


def every(dtype: np.dtype) -> np.ndarray:
    """All the values of an element type of 1 or 2 bytes."""
    bits = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")
    return bits.view(dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_one_rounding_to_float8(dtype: np.dtype) -> None:
    """Against the nearest of all values, found by search, even on a tie. Overflow is
    where a larger exponent would have been nearer: inf, or NaN where there is none."""
    values = every(dtype).astype(np.float64)
    finite = np.isfinite(values) & (values >= 0) & ~np.signbit(values)
    table, bits = values[finite], np.flatnonzero(finite)
    beyond = 2 * table[-1] - table[-2]
    lost = float("nan") if dtype == E4M3 else float("inf")
    rng = np.random.default_rng(2)
    middles = (table[:-1] + table[1:]) / 2
    edge = (table[-1] + beyond) / 2
    draws = np.concatenate(
        [
            table, middles, middles * (1 + 2.0**-40), middles * (1 - 2.0**-40),
            np.exp2(rng.uniform(-22, 18, 2000)),
            [edge, edge * (1 - 2.0**-40), edge * (1 + 2.0**-40), np.inf],
        ]
    )  # fmt: skip
    table, bits = [*table, beyond], [*bits, bits[-1] + 1]
    distance = np.abs(np.subtract.outer(draws, table))
    ties = np.where(np.array(bits) % 2 == 0, 0, 1)
    nearest = np.lexsort((np.broadcast_to(ties, distance.shape), distance))[:, 0]
    nearest = np.where(np.isinf(draws), len(table) - 1, nearest)
    want = np.array([*table[:-1], lost])[nearest]
    np.testing.assert_array_equal(convert(draws, dtype).astype(np.float64), want)
    np.testing.assert_array_equal(convert(-draws, dtype).astype(np.float64), -want)


@pytest.mark.parametrize("dtype", [F16, BF16, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("whole", [I32, I16, I8, U8], ids=str)
def test_floats_of_every_type_become_integers(dtype: np.dtype, whole: np.dtype) -> None:
    values, limits = every(dtype), np.iinfo(whole)
    got = convert(values, whole).tolist()
    for x, n in zip(values.astype(float).tolist(), got, strict=True):
        if x != x:
            assert n == 0
        elif abs(x) == np.inf:
            assert n == (limits.max if x > 0 else limits.min)
        else:
            assert n == min(max(int(x), limits.min), limits.max)


def test_integers_wrap_into_smaller_ones() -> None:
    wide = np.array([300, -1, 2**31 - 1, -(2**31)], np.int32)
    assert_same_bits(convert(wide, I8), i8(44, -1, -1, 0))
    assert_same_bits(convert(wide, U8), np.array([44, 255, 255, 0], np.uint8))
    assert_same_bits(convert(i8(-1), U8), np.array([255], np.uint8))
    assert_same_bits(convert(i8(-1, 0), DTYPES["bool"]), np.array([True, False]))


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


@pytest.mark.parametrize("holds", [True, False])
def test_a_when_is_a_scope_that_may_not_run(holds: bool) -> None:
    """Made by hand: `poison` marks what its scope gave back, where it ran."""

    class When(SimpleNamespace):
        pass

    def kernel(tl, x, out):  # type: ignore[no-untyped-def]
        kept = tl.load(x)
        with tl.scratch_scope():
            tl.store(out, kept + 1)

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "float32"))
    program = call.record(f32(1, 2, 3, 4))
    *before, scope = program.commands
    n = SimpleNamespace(const=0, terms=((program.program_id, 1),))
    equal = SimpleNamespace(op="eq", args=(n, SimpleNamespace(const=0, terms=())))
    condition = SimpleNamespace(const=0 if holds else -1, terms=((equal, 1),))
    when = When(body=scope.body, mark_bytes=scope.mark_bytes, condition=condition,
                rewound_bytes=scope.rewound_bytes)  # fmt: skip
    made = SimpleNamespace(
        **{name: getattr(program, name) for name in program.__dataclass_fields__}
        | {"commands": (*before, when)},
        growth_bytes=program.growth_bytes,
    )
    for poison, left in ((False, f32(2, 3, 4, 5)), (True, f32(*[np.nan] * 4))):
        result = reference.run(made, [f32(1, 2, 3, 4)], poison)
        never = f32(*[np.nan] * 4)
        assert_same_bits(result.outputs[0], f32(2, 3, 4, 5) if holds else never)
        assert_same_bits(result.memory[16:32].view(F32), left if holds else never)


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
