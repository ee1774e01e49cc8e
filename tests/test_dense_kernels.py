"""matmul, softmax, rmsnorm and dequant_matmul: drawn odd shapes against float64, exact
against live, and the cases that go wrong in the field."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels.dequant_matmul import dequant_matmul
from kbjax.kernels.matmul import matmul
from kbjax.kernels.rmsnorm import rmsnorm
from kbjax.kernels.softmax import softmax
from tests.helpers import assert_same_bits, assert_same_tcm

NAMES = ("matmul", "softmax", "rmsnorm", "dequant_matmul")
FLOATS = ("float32", "float16", "bfloat16")
INF, NAN = np.inf, np.nan


def run(kernel: Any, out: tuple[tuple[int, ...], str], *arrays: Any) -> np.ndarray:
    """The output, of one PE."""
    return np.asarray(kb.kernel_call(kernel, jax.ShapeDtypeStruct(*out))(*arrays))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- drawn shapes --------------------------------------------------------------------


def drawn(name: str, seed: int) -> dict[str, Any]:
    """Sizes of a case: tiles that do not divide, that are larger, and of size 1."""
    rng = np.random.default_rng([NAMES.index(name), seed])

    def of(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    m = of(1, 20) if seed % 3 else 1
    common = {"m": m, "num_pes": 1 + seed % 2, "seed": seed}
    if name in ("softmax", "rmsnorm"):
        return {**common, "n": of(1, 150), "block": of(1, 9), "tile": of(1, 60)}
    sizes = {**common, "n": of(1, 40), "k": of(1, 120), "buffers": 1 + seed % 3}
    sizes |= {"tile_m": of(1, 17), "tile_n": of(1, 24), "tile_k": 8 * of(1, 6)}
    if name == "dequant_matmul":
        tile = sizes["tile_k"]
        sizes["group"] = (None, tile // 4, 2 * tile)[seed % 3]
    return sizes


WITH_DTYPES = [
    (name, dtype)
    for name in NAMES
    for dtype in (*FLOATS, "int8")
    if dtype != "int8" or name == "matmul"
]
RUNS = [(name, dtype, seed) for seed, (name, dtype) in enumerate(WITH_DTYPES)]
# Each kernel; products of 1 row and of many, 1 PE and 2, float32 and 16-bit floats.
EXACT = {0, 5, 9, 11}


@pytest.mark.parametrize(("name", "dtype", "seed"), RUNS)
def test_drawn_shapes(name: str, dtype: str, seed: int) -> None:
    """Within the bound of float64; where replayed exactly too, exact and live have the
    same bits, those of the final memory included."""
    case = catalogue.make(name, dtype=dtype, **drawn(name, seed))
    if seed not in EXACT:
        assert case.error_of(case.call(*case.arrays)) <= case.tolerance
        return
    live = case.call.run(*case.arrays)
    exact = case.call.run(*case.arrays, fidelity="exact")
    assert case.error_of(live.outputs) <= case.tolerance
    assert_same_bits(live.outputs, np.asarray(exact.outputs))
    assert_same_tcm(case.call.record(*case.arrays), live.tcm.memory, exact.tcm.memory)


def test_what_is_drawn_is_hard() -> None:
    sizes = [(name, drawn(name, seed)) for name, _, seed in RUNS]
    gemms = [one for _, one in sizes if "k" in one]
    rows = [one for _, one in sizes if "tile" in one]
    assert all(sum(one["m"] == 1 for one in some) >= 2 for some in (gemms, rows))
    assert sum(one["num_pes"] > 1 for _, one in sizes) >= 5
    assert {one["buffers"] for one in gemms} == {1, 2, 3}
    for of, tile, some in (
        ("m", "tile_m", gemms),
        ("n", "tile_n", gemms),
        ("k", "tile_k", gemms),
        ("m", "block", rows),
        ("n", "tile", rows),
    ):
        assert sum(one[of] < one[tile] for one in some) >= 1, (of, "below a tile")
        tails = sum(one[of] > one[tile] and one[of] % one[tile] > 0 for one in some)
        assert tails >= 2, (of, "tiles and a tail")
    groups = [one for name, one in sizes if name == "dequant_matmul"]
    kinds = {
        one["group"] and np.sign(one["group"] - one["tile_k"]).item() for one in groups
    }
    assert kinds == {None, -1, 1}


@pytest.mark.parametrize("name", NAMES)
def test_scratch_is_that_of_a_tile(name: str) -> None:
    """Whatever the sizes; and what is left of the budget is at least a quarter."""
    peaks = set()
    for factor in (1, 64):
        sizes = catalogue.sizes_of(name)
        larger = {s: factor * sizes[s] for s in ("m", "n", "k") if s in sizes}
        case = catalogue.make(name, **larger)
        program = case.call.record(*case.inputs.specs)
        peaks.add(program.peak_scratch)
    assert len(peaks) == 1
    assert max(peaks) <= 0.75 * program.hardware.pe_tcm.scratch_bytes


@pytest.mark.parametrize("name", ["matmul", "dequant_matmul"])
def test_prefetching_pays(name: str) -> None:
    times = []
    for buffers in (1, 2):
        case = catalogue.make(name, buffers=buffers)
        times.append(case.call.op_log(*case.inputs.specs).total_ns)
    assert times[0] > 1.2 * times[1]


# --- field cases: matrix products ----------------------------------------------------

TILES_OF_16 = {"tile_m": 16, "tile_n": 16, "tile_k": 16}


@functools.cache
def inside_guards() -> kb.KernelCall:
    """(7, 33) x (33, 5) into the middle of a (10, 9) array, in tiles of 16."""

    def inner(tl: Any, a: Any, b: Any, guards: Any, o: Any) -> None:
        matmul(tl, a, b, o[1:8, 2:7], **TILES_OF_16)

    out = jax.ShapeDtypeStruct((10, 9), "float32")
    return kb.kernel_call(inner, out, input_output_aliases={2: 0})


# An element that is never stored would be NaN, so NaN is no guard here.
GUARDS = np.full((10, 9), 13, np.float32)


def test_tails_of_every_axis_are_exact_and_touch_nothing() -> None:
    a = (np.arange(7 * 33).reshape(7, 33) % 11 - 5).astype(np.float32)
    b = (np.arange(33 * 5).reshape(33, 5) % 7 - 3).astype(np.float32)
    want = GUARDS.copy()
    want[1:8, 2:7] = a @ b
    assert want[1, 2:7].tolist() == [-30, -23, 12, 26, 26]
    assert want[1:8, 2:7].sum() == 77
    np.testing.assert_array_equal(inside_guards()(a, b, GUARDS), want)


@pytest.mark.parametrize("garbage", [NAN, INF])
def test_garbage_stays_in_its_row_and_column(garbage: float) -> None:
    """Of `a` and of `b`; their last rows and columns lie beside a tail."""
    a, b = normal(7, 33), normal(33, 5, seed=1)
    want = np.asarray(inside_guards()(a, b, GUARDS))
    a[2, 32], b[20, 3] = garbage, garbage
    got = np.asarray(inside_guards()(a, b, GUARDS))
    own = np.zeros(GUARDS.shape, bool)
    own[3, 2:7], own[1:8, 5] = True, True
    assert not np.isfinite(got[own]).any()
    assert_same_bits(got[~own], want[~own])


def test_single_k() -> None:
    b = (np.arange(128) - 64).reshape(1, 128).astype(np.float32)
    got = run(
        partial(matmul, **TILES_OF_16),
        ((1, 128), "float32"),
        np.array([[3]], np.float32),
        b,
    )
    np.testing.assert_array_equal(got, 3 * b)
    assert got[0, :3].tolist() == [-192, -189, -186] and got.sum() == -192


@pytest.mark.parametrize("kernel", [softmax, rmsnorm])
def test_row_kernels_touch_nothing_else(kernel: Any) -> None:
    """Seven rows of 5, in blocks of 4 and tiles of 3, in the middle of the guards."""
    x, weight = normal(7, 5), np.ones(5, np.float32)
    more = (weight,) if kernel is rmsnorm else ()

    def inner(tl: Any, x: Any, weight: Any, guards: Any, o: Any) -> None:
        taken = (weight,) if kernel is rmsnorm else ()
        kernel(tl, x, *taken, o[1:8, 2:7], block=4, tile=3)

    out = jax.ShapeDtypeStruct(GUARDS.shape, "float32")
    call = kb.kernel_call(inner, out, input_output_aliases={2: 0})
    want = GUARDS.copy()
    want[1:8, 2:7] = catalogue.kernel_module(kernel.__name__).reference(x, *more)
    got = call(x, weight, GUARDS)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def int8(*shape: int, fill: int) -> np.ndarray:
    return np.full(shape, fill, np.int8)


def test_int8_accumulates_in_int32() -> None:
    """500 and 8,388,608, which int8 does not hold, and 33,032,065, which float32 does
    not (nor the sum of either tile): on the diagonal of one product, filled with 0."""
    a, b = int8(3, 2048, fill=0), int8(2048, 3, fill=0)
    a[0, :2], b[:2, 0] = (10, 20), (10, 20)
    a[1, :512], b[:512, 1] = -128, -128
    a[2], b[:, 2] = 127, 127
    b[1000, 2] = 126
    kernel = partial(matmul, tile_m=2, tile_n=3, tile_k=1100)
    got = run(kernel, ((3, 3), "int32"), a, b)
    assert got.diagonal().tolist() == [500, 8_388_608, 33_032_065]
    assert_same_bits(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("depth", [0, 1])
def test_no_and_one_k(depth: int) -> None:
    a, b = int8(1, depth, fill=-128), int8(depth, 1, fill=127)
    got = run(partial(matmul, tile_m=1, tile_n=1, tile_k=100), ((1, 1), "int32"), a, b)
    assert_same_bits(got, np.array([[-16_256 * depth]], np.int32))


# --- dequantised weights -------------------------------------------------------------


@pytest.mark.parametrize("group", [8, 32])
def test_which_scale_a_weight_has(group: int) -> None:
    """Whole numbers and powers of two: exact, for groups of half a tile of K and of
    two; one of all is in `test_drawn_shapes`."""
    rng = np.random.default_rng(0)
    rows, depth, columns = 3, 41, 20
    x = rng.integers(-3, 4, (rows, depth)).astype(np.float32)
    w = rng.integers(-128, 128, (depth, columns), np.int8)
    each = np.arange(depth) // group
    scale = 2.0 ** rng.integers(-2, 3, (each[-1] + 1, columns)).astype(np.float32)
    kernel = partial(dequant_matmul, group=group, **TILES_OF_16)
    got = run(kernel, ((rows, columns), "float32"), x, w, scale)
    want = np.zeros((rows, columns))
    for k in range(depth):
        want += np.outer(x[:, k], w[k] * scale[each[k]])
    np.testing.assert_array_equal(got, want)


def test_weights_are_rounded_to_the_type_of_x() -> None:
    """127 x (1 + 2^-8) is 127.5 rounded to bfloat16: the dequantised weight, not the
    product, is what is rounded."""
    one = np.ones((1, 1), ml_dtypes.bfloat16)
    w, scale = int8(1, 1, fill=127), np.array([[1 + 2.0**-8]], np.float32)
    kernel = partial(dequant_matmul, tile_m=1, tile_n=1, tile_k=1)
    got = run(kernel, ((1, 1), "float32"), one, w, scale)
    assert got.item() == float(ml_dtypes.bfloat16(127 * (1 + 2.0**-8))) == 127.5


# --- softmax -------------------------------------------------------------------------


def test_softmax_of_rows_that_are_hard() -> None:
    """-inf only, NaN and +inf give NaN; -inf before, between and after tiles gives 0;
    what exp overflows or loses is as good as any; other rows keep their bits. As JAX
    has it."""
    clean = normal(12, 20)
    x = clean.copy()
    x[0] = -INF
    x[1, 13], x[2, 6], x[3, :] = NAN, INF, INF
    x[4, :8], x[5, 8:12], x[6, 12:] = -INF, -INF, -INF  # whole tiles
    x[7], x[8] = 3e38, -3e38
    x[9] += 4096
    call = kb.kernel_call(
        partial(softmax, block=4, tile=4), jax.ShapeDtypeStruct(x.shape, "float32")
    )
    got = np.asarray(call(x))
    assert np.isnan(got[:4]).all()
    assert (got[4, :8] == 0).all() and (got[6, 12:] == 0).all()
    np.testing.assert_allclose(got[7:9], 0.05, rtol=3e-7)
    assert_same_bits(got[10:], np.asarray(call(clean))[10:])
    np.testing.assert_allclose(got, jax.nn.softmax(x), rtol=2e-6)
    with np.errstate(invalid="ignore"):
        want = catalogue.kernel_module("softmax").reference(x)
    np.testing.assert_allclose(got, want, rtol=2e-6)


def test_softmax_of_a_row_longer_than_the_tcm() -> None:
    case = catalogue.make("softmax", m=1, n=300_001, block=1, tile=16_384, num_pes=1)
    (x,) = case.arrays
    program = case.call.record(x)
    assert program.peak_scratch < program.hardware.pe_tcm.scratch_bytes < x.nbytes
    got = np.asarray(case.call(x))
    assert case.error_of(got) <= case.tolerance
    assert got.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_softmax_64x64() -> None:
    case = catalogue.make("softmax", m=64, n=64, block=64, tile=64, num_pes=16)
    got = np.asarray(case.call(*case.arrays))
    assert case.error_of(got) <= case.tolerance
    np.testing.assert_allclose(got.sum(axis=-1), 1, rtol=1e-6)


# --- RMSNorm -------------------------------------------------------------------------


@functools.cache  # tests share a call and what it has compiled
def rms_call(shape: tuple[int, int], eps: float, dtype: str) -> kb.KernelCall:
    kernel = partial(rmsnorm, eps=eps, block=2, tile=128)
    return kb.kernel_call(kernel, jax.ShapeDtypeStruct(shape, dtype))


def rms(x: np.ndarray, eps: float, dtype: str = "float32") -> np.ndarray:
    """With a weight of 1, in tiles of 128 columns."""
    return np.asarray(rms_call(x.shape, eps, dtype)(x, np.ones(x.shape[1], x.dtype)))


def rows(dtype: Any, *values: float) -> np.ndarray:
    """Rows of 512 times one value."""
    return np.repeat(np.array(values, dtype)[:, None], 512, axis=1)


def test_large_float16() -> None:
    """(a) a row of 300, whose squares float16 does not have; (d) one 300."""
    x = rows(np.float16, 300, 0)
    x[1, 300] = 300
    got = rms(x, 1e-5, "float16")
    assert (got[0] == 1).all()
    assert got[1, 300] == np.float16(22.627) and np.count_nonzero(got[1]) == 1


def test_small_float16() -> None:
    """(b) 1e-4, whose square float16 does not have; the output in float32."""
    got = rms(rows(np.float16, 1e-4), 1e-12)
    np.testing.assert_allclose(got, 0.99995, atol=1e-6)


def test_the_whole_range_of_float32() -> None:
    """(c) 1e18 gives 1, and so does the largest number; what is small beside eps is
    scaled, not lost."""
    x = rows(np.float32, 1e18, 3.4028235e38, 1e-3, 1e-18, -1e-30, 0)
    x[2, 511] = -3e38  # the scale changes in the last tile
    got = rms(x, 1e-5)
    assert (got[:2] == 1).all() and (got[5] == 0).all()
    want = catalogue.kernel_module("rmsnorm").reference(x, np.ones(512), 1e-5)
    np.testing.assert_allclose(got[3:5], want[3:5], rtol=1e-6)
    np.testing.assert_allclose(got[2, 511], want[2, 511], rtol=1e-6)
    assert abs(got[2, 0]) <= 1e-37  # 1e-40 is subnormal


def test_rmsnorm_without_eps() -> None:
    """Rows of any magnitude are normalised; a row of 0 is NaN, as 0 / 0 is."""
    x = rows(np.float32, 1e-37, -1e30, 1, 0)
    x[2, :256] = 0  # whole tiles, before any other element
    got = rms(x, 0)
    assert (got[0] == 1).all() and (got[1] == -1).all() and np.isnan(got[3]).all()
    np.testing.assert_allclose(got[2, 256:], np.sqrt(2), rtol=1e-6)
    assert (got[2, :256] == 0).all()


@pytest.mark.parametrize("garbage", [NAN, INF])
def test_rmsnorm_of_rows_that_are_not_finite(garbage: float) -> None:
    clean = normal(6, 512)
    x = clean.copy()
    x[3, 200] = garbage
    want, got = rms(clean, 1e-5), rms(x, 1e-5)
    assert np.isnan(got[3]).all()
    keep = np.arange(6) != 3
    assert_same_bits(got[keep], want[keep])


# --- refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes", "match"),
    [
        ("dequant_matmul", {"group": 24, "tile_k": 16}, "group=24 and tile_k=16"),
        ("dequant_matmul", {"group": 0}, "group is a positive integer"),
        ("rmsnorm", {"eps": -1e-5}, "eps is a number.*0 to 3.4e"),
        ("rmsnorm", {"eps": NAN}, "eps is a number.*0 to 3.4e"),
        ("matmul", {"tile_n": 0}, "tile_n is a positive integer"),
        ("softmax", {"block": 0}, "block is a positive integer"),
    ],
)
def test_sizes_that_are_refused(name: str, sizes: Any, match: str) -> None:
    """Before any data is made."""
    with pytest.raises(kb.ShapeError, match=match):
        case = catalogue.make(name, **sizes)
        case.call.record(*case.inputs.specs)


@pytest.mark.parametrize(
    ("kernel", "shapes", "match"),
    [
        (matmul, [(4, 5), (6, 4)], r"a \(4, 5\), b \(6, 4\).*a \(M, K\), b \(K, N\)"),
        (rmsnorm, [(4, 4), (5,)], r"weight \(5,\).*weight \(N\)"),
        (dequant_matmul, [(4, 5), (6, 4), (1, 4)], r"x \(M, K\), w \(K, N\)"),
        (dequant_matmul, [(4, 5), (5, 4), (2, 4)], "a row of scales for each group"),
    ],
)
def test_shapes_that_do_not_meet(kernel: Any, shapes: Any, match: str) -> None:
    """A tail would hide it: what lies past an end is filled."""
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4, 4), "float32"))
    with pytest.raises(kb.ShapeError, match=match):
        call.record(*specs)
