"""kbjax against Triton's own semantics: one expression, handed to both `tl`, on the
same data.

What both define must be the same bits, or within a stated number of ulps where both
round a function that IEEE 754 does not. Each known difference is a test that asserts
both values, so that docs/triton.md, which explains them, stays true. Where Triton's
interpreter departs from Triton on a GPU, the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from tests import triton_interpreter, triton_kernels
from tests.helpers import assert_same_bits
from tests.triton_interpreter import TRITON_NAMES, launch, numpy_dtype, torch

Expression = Callable[..., Any]
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "int16", "int8", "uint8")


@dataclass(frozen=True)
class Pair:
    """An expression of kbjax and, where it is spelled otherwise, Triton's."""

    ours: Expression
    triton: Expression | None = None

    @property
    def theirs(self) -> Expression:
        return self.triton or self.ours


class _Seen(Exception):
    """Ends a recording that was only made to see what its expressions give."""


def run_all(
    expressions: dict[str, Expression], *arrays: np.ndarray
) -> dict[str, np.ndarray]:
    """Each expression in kbjax, all in one kernel: compiling is what costs."""

    def kernel(tl: Any, *refs: Any, store: bool) -> None:
        tiles = [tl.load(ref) for ref in refs[: len(arrays)]]
        results = [expression(tl, *tiles) for expression in expressions.values()]
        if not store:
            raise _Seen([jax.ShapeDtypeStruct(r.shape, r.dtype.numpy) for r in results])
        for ref, result in zip(refs[len(arrays) :], results, strict=True):
            tl.store(ref, result)

    unknown = [jax.ShapeDtypeStruct((1,), "float32")]
    with pytest.raises(_Seen) as seen:
        kb.kernel_call(partial(kernel, store=False), tuple(unknown)).record(*arrays)
    outs = kb.kernel_call(partial(kernel, store=True), tuple(seen.value.args[0]))
    results = (np.asarray(out) for out in outs(*arrays))
    return dict(zip(expressions, results, strict=True))


def both(
    ours: Expression, *arrays: np.ndarray, triton: Expression | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What kbjax and what Triton give."""
    mine = run_all({"it": ours}, *arrays)["it"]
    return mine, triton_interpreter.run(triton or ours, *arrays)


def compare(pairs: dict[str, Pair], *arrays: np.ndarray) -> None:
    """Each pair gives the same bits."""
    ours = run_all({name: pair.ours for name, pair in pairs.items()}, *arrays)
    for name, pair in pairs.items():
        theirs = triton_interpreter.run(pair.theirs, *arrays)
        assert_same_bits(ours[name], theirs, name)


def ulps(a: np.ndarray, b: np.ndarray) -> int:
    """The most float32 values between an element of `a` and that of `b`."""
    assert a.dtype == b.dtype == np.float32 and a.shape == b.shape
    both_nan = np.isnan(a) & np.isnan(b)
    places = [np.where(both_nan, 0, x).view(np.int32).astype(np.int64) for x in (a, b)]
    low, high = (np.where(p < 0, -(p & 0x7FFFFFFF), p) for p in places)
    return int(np.abs(low - high).max())


def special(dtype: str, *values: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(values).astype(numpy_dtype(dtype))


def refused_by_triton(message: str, expression: Expression, *arrays: Any) -> None:
    with pytest.raises(triton_interpreter.TritonError, match=message):
        triton_interpreter.run(expression, *arrays)


def grid(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of `values`."""
    return np.repeat(values, values.size), np.tile(values, values.size)


def nan_wins(tl: Any) -> dict[str, Any]:
    return {"propagate_nan": tl.PropagateNan.ALL}


# --- elementwise ---------------------------------------------------------------------

COMPARISONS = {
    "lt": Pair(lambda tl, a, b: a < b),
    "le": Pair(lambda tl, a, b: a <= b),
    "gt": Pair(lambda tl, a, b: a > b),
    "ge": Pair(lambda tl, a, b: a >= b),
    "eq": Pair(lambda tl, a, b: a == b),
    "ne": Pair(lambda tl, a, b: a != b),
    "and of bools": Pair(lambda tl, a, b: (a > 0) & (b > 0)),
    "or of bools": Pair(lambda tl, a, b: (a > 0) | (b > 0)),
    "not": Pair(lambda tl, a, b: ~(a > b)),
    "where": Pair(lambda tl, a, b: tl.where(a < b, a, b)),
    "where scalar": Pair(lambda tl, a, b: tl.where(a < b, 1, b)),
}
ARITHMETIC = {
    "add": Pair(lambda tl, a, b: a + b),
    "sub": Pair(lambda tl, a, b: a - b),
    "mul": Pair(lambda tl, a, b: a * b),
    "neg": Pair(lambda tl, a, b: -a),
    "abs": Pair(lambda tl, a, b: tl.abs(a)),
    "scalar": Pair(lambda tl, a, b: 3 - a),
    **COMPARISONS,
}
FLOAT_ARITHMETIC = {
    **ARITHMETIC,
    "weak float": Pair(lambda tl, a, b: a * 0.1),
    "fma": Pair(lambda tl, a, b: tl.fma(a, b, a)),
    "div": Pair(  # Triton divides in float32, and gives that
        lambda tl, a, b: a / b, lambda tl, a, b: (a / b).to(a.dtype)
    ),
    # Which zero is the larger is unspecified: + 0.0 leaves one.
    "maximum": Pair(
        lambda tl, a, b: tl.maximum(a, b) + 0.0,
        lambda tl, a, b: tl.maximum(a, b, **nan_wins(tl)) + 0.0,
    ),
    "minimum": Pair(
        lambda tl, a, b: tl.minimum(a, b) + 0.0,
        lambda tl, a, b: tl.minimum(a, b, **nan_wins(tl)) + 0.0,
    ),
    "clamp": Pair(
        lambda tl, a, b: tl.clamp(a, -1.5, 3.0),
        lambda tl, a, b: tl.clamp(a, -1.5, 3.0, **nan_wins(tl)),
    ),
    "mod of like signs": Pair(
        lambda tl, a, b: tl.clamp(tl.abs(a), 0.0, 900.0) % 0.75,
        lambda tl, a, b: (tl.clamp(tl.abs(a), 0.0, 900.0, **nan_wins(tl)) % 0.75).to(
            a.dtype
        ),
    ),
}
FLOAT32_ONLY = {  # Triton takes float32 and float64
    "floor": Pair(lambda tl, a, b: tl.floor(a)),
    "ceil": Pair(lambda tl, a, b: tl.ceil(a)),
    "sqrt": Pair(lambda tl, a, b: tl.sqrt(a)),
    "rsqrt": Pair(lambda tl, a, b: tl.rsqrt(a)),
}
INTEGER_ARITHMETIC = {
    **ARITHMETIC,
    "and": Pair(lambda tl, a, b: a & b),
    "or": Pair(lambda tl, a, b: a | b),
    "invert": Pair(lambda tl, a, b: ~a),
    "maximum": Pair(lambda tl, a, b: tl.maximum(a, b)),
    "minimum": Pair(lambda tl, a, b: tl.minimum(a, b)),
    "clamp": Pair(lambda tl, a, b: tl.clamp(a, 1, 5)),
    "weak float": Pair(lambda tl, a, b: a * 0.1),
    "div": Pair(lambda tl, a, b: a / tl.where(b == 0, 1, b)),
    "floordiv by 0": Pair(lambda tl, a, b: a // (b - b)),
    "mod by 0": Pair(lambda tl, a, b: a % (b - b)),
    # Both round down where no sign is negative.
    "floordiv": Pair(lambda tl, a, b: tl.maximum(a, 0) // tl.maximum(b, 1)),
    "mod": Pair(lambda tl, a, b: tl.maximum(a, 0) % tl.maximum(b, 1)),
}
SMALL_INTEGER_ARITHMETIC = {  # a choice: compiling is what costs
    name: INTEGER_ARITHMETIC[name]
    for name in ("add sub mul neg abs lt invert maximum clamp div floordiv mod".split())
}
ELEMENTWISE: dict[str, dict[str, Pair]] = {
    "float32": {**FLOAT_ARITHMETIC, **FLOAT32_ONLY},
    "float16": {
        name: pair
        for name, pair in FLOAT_ARITHMETIC.items()
        if name in ("lt", "not", "where") or name not in COMPARISONS
    },
    "int32": {
        name: pair
        for name, pair in INTEGER_ARITHMETIC.items()
        if name in ("le", "eq", "and of bools") or name not in COMPARISONS
    },
    **dict.fromkeys(("int8", "uint8"), SMALL_INTEGER_ARITHMETIC),
}
# No product or quotient of these is a subnormal float32 (see the test of those).
_SPECIAL = (0.0, -0.0, 1, -1, 0.5, -2.5, 3, 7, -7, 0.1, 255.9, np.inf, -np.inf, np.nan)
OPERANDS = {
    "float32": special("float32", *_SPECIAL, 1e30, -1e-30),
    "float16": special("float16", *_SPECIAL, 6e4, -6e-8),
    **{
        name: np.array(
            [np.iinfo(name).min, np.iinfo(name).max, 0, 1, 2, 3, 7, 100]
        ).astype(name)
        for name in ("int32", "int8", "uint8")
    },
}
OPERANDS["int32"][4:7] *= -1
OPERANDS["int8"][4:7] *= -1


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_elementwise_to_the_bit(dtype: str) -> None:
    """All pairs of extreme values, NaN and infinities among them."""
    compare(ELEMENTWISE[dtype], *grid(OPERANDS[dtype]))


# --- functions that IEEE 754 does not round ------------------------------------------

# Name -> ulps between kbjax (XLA) and the interpreter (NumPy; erf from the C library).
FUNCTIONS = {"exp": 3, "exp2": 2, "log": 3, "log2": 3, "sigmoid": 5, "erf": 5}


def arguments() -> np.ndarray:
    """4096 float32 whose exp is no subnormal, and extreme values."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-20, 20, 3072), rng.uniform(-85, 88, 1024)])
    x[:9] = 0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 130, 1e-30
    return x.astype(np.float32)


def test_functions_within_ulps() -> None:
    calls = {n: lambda tl, x, n=n: getattr(tl, n)(x) for n in FUNCTIONS}
    ours = run_all(calls, arguments())
    for name, bound in FUNCTIONS.items():
        theirs = triton_interpreter.run(calls[name], arguments())
        assert ulps(ours[name], theirs) <= bound, name


# --- reductions ----------------------------------------------------------------------

REDUCTIONS = {
    "sum, axis 0": Pair(lambda tl, x: tl.sum(x, axis=0)),
    "sum, axis 1": Pair(lambda tl, x: tl.sum(x, axis=1)),
    "sum of all": Pair(lambda tl, x: tl.sum(x)),
    "sum kept": Pair(
        lambda tl, x: tl.sum(x, axis=1, keepdims=True),
        lambda tl, x: tl.sum(x, axis=1, keep_dims=True),
    ),
    "max, axis 0": Pair(lambda tl, x: tl.max(x, axis=0)),
    "max, axis 1": Pair(lambda tl, x: tl.max(x, axis=1)),
    "max of all": Pair(lambda tl, x: tl.max(x)),
    "min, axis 1": Pair(lambda tl, x: tl.min(x, axis=1)),
    "min of all": Pair(lambda tl, x: tl.min(x)),
    "argmax, axis 0": Pair(lambda tl, x: tl.argmax(x, axis=0)),
    "argmax, axis 1": Pair(lambda tl, x: tl.argmax(x, axis=1)),
    "argmin, axis 1": Pair(lambda tl, x: tl.argmin(x, axis=1)),
}


REDUCED = {
    "float32": REDUCTIONS,
    "int32": {
        name: REDUCTIONS[name]
        for name in ("sum, axis 1", "max, axis 0", "min of all", "argmax, axis 1")
    },
}


@pytest.mark.parametrize("dtype", REDUCED)
def test_reductions_to_the_bit(dtype: str) -> None:
    """Whole numbers with many ties: every sum is exact, in any order."""
    x = np.random.default_rng(1).integers(-3, 4, (8, 16)).astype(dtype)
    compare(REDUCED[dtype], x)


def test_sums_differ_by_their_order_alone() -> None:
    """Neither defines an order. Each error is at most (n - 1) roundings."""
    x = np.random.default_rng(2).standard_normal((8, 256), np.float32)
    ours, theirs = both(lambda tl, x: tl.sum(x, axis=1), x)
    bound = 2 * (x.shape[1] - 1) * 2.0**-24 * np.abs(x).sum(1, dtype=np.float64)
    assert (np.abs(ours.astype(np.float64) - theirs) <= bound).all()


def test_softmax() -> None:
    """`axis` here, `dim` there; Triton's default is the first axis, ours the last."""
    x = 5 * np.random.default_rng(3).standard_normal((8, 16), np.float32)
    pairs = {
        "last": (lambda tl, x: tl.softmax(x), lambda tl, x: tl.softmax(x, dim=1)),
        "first": (lambda tl, x: tl.softmax(x, axis=0), lambda tl, x: tl.softmax(x)),
    }
    ours = run_all({name: pair[0] for name, pair in pairs.items()}, x)
    for name, (_, theirs) in pairs.items():
        assert ulps(ours[name], triton_interpreter.run(theirs, x)) <= 5, name


# --- matrices ------------------------------------------------------------------------

PRODUCTS = {
    "plain": Pair(lambda tl, a, b, c: tl.dot(a, b)),
    "acc": Pair(lambda tl, a, b, c: tl.dot(a, b, acc=c)),
    "of trans": Pair(lambda tl, a, b, c: tl.dot(tl.trans(b), tl.trans(a))),
}
PRODUCTS_FLOAT16 = {
    **PRODUCTS,
    "out_dtype": Pair(lambda tl, a, b, c: tl.dot(a, b, out_dtype=tl.float16)),
}
PRODUCTS_FLOAT32 = {
    "plain": Pair(
        lambda tl, a, b, c: tl.dot(a, b),
        lambda tl, a, b, c: tl.dot(a, b, input_precision="ieee"),
    ),
    "acc": Pair(
        lambda tl, a, b, c: tl.dot(a, b, acc=c),
        lambda tl, a, b, c: tl.dot(a, b, acc=c, input_precision="ieee"),
    ),
}
DOTS: dict[str, dict[str, Pair]] = {
    "float32": PRODUCTS_FLOAT32,
    "float16": PRODUCTS_FLOAT16,
    "float8_e4m3fn": PRODUCTS,
    "float8_e5m2": PRODUCTS,
    "int8": PRODUCTS,
}


@pytest.mark.parametrize("dtype", DOTS)
def test_dot_to_the_bit(dtype: str) -> None:
    """Of small whole numbers: every product and sum is exact."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-4, 5, shape) for shape in ((4, 16), (16, 8)))
    c = rng.integers(-9, 9, (4, 8)).astype("int32" if dtype == "int8" else "float32")
    kind = numpy_dtype(dtype)
    compare(DOTS[dtype], a.astype(kind), b.astype(kind), c)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dots_differ_by_the_order_of_their_sums_alone(dtype: str) -> None:
    """Products are rounded to float32 at most once, sums K - 1 times."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((16, 128), (128, 16)))
    ours, theirs = both(
        lambda tl, a, b: tl.dot(a, b),
        a,
        b,
        triton=lambda tl, a, b: tl.dot(a, b, input_precision="ieee"),
    )
    assert ours.dtype == theirs.dtype == np.float32
    bound = 2 * 128 * 2.0**-24 * (np.abs(a.astype(float)) @ np.abs(b.astype(float)))
    assert (np.abs(ours.astype(np.float64) - theirs) <= bound).all()


def test_int8_dot_wraps_nowhere() -> None:
    a = np.full((4, 512), -128, np.int8)
    ours, theirs = both(lambda tl, a: tl.dot(a, tl.trans(a)), a)
    assert_same_bits(ours, theirs)
    assert (ours == 512 * 128 * 128).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_trans(dtype: str) -> None:
    x = np.arange(32).reshape(4, 8).astype(dtype)
    assert_same_bits(*both(lambda tl, x: tl.trans(x), x))


# --- casts ---------------------------------------------------------------------------


def cast_pair(dtype: str) -> Pair:
    return Pair(
        lambda tl, x: tl.cast(x, dtype),
        lambda tl, x: x.to(getattr(tl, TRITON_NAMES[dtype])),
    )


def every_float8(dtype: str) -> np.ndarray:
    """The 256 values of a float8 type, those that are not finite made 1."""
    x = np.arange(256).astype(np.uint8).view(numpy_dtype(dtype))
    wide = x.astype(np.float32)
    return np.where(np.isfinite(wide), wide, 1).astype(x.dtype)


_HALVES = (0.1, 1.00048828125, 1.00146484375, 2049, 2051, 65519, 65520, 1e38, -1e-7)
_SIMPLE = (0.0, -0.0, 1, -1, 0.5, -2.5, 100, 1.5, np.inf, -np.inf, np.nan, 3e4)
_INSIDE = (0.0, -0.0, 1.9, -1.9, 0.5, 1.5, 2.5, -0.99, 126.6, -127.5, 100, 7)
_WHOLE = np.array([0, 1, -1, 127, 128, -129, 255, 256, 2049, -32769, 2**31 - 1, -300])
# Source -> what is cast, and the types in which both give the same bits.
CASTS: dict[str, list[tuple[np.ndarray, tuple[str, ...]]]] = {
    "float32": [
        (special("float32", *_SIMPLE, *_HALVES), ("float16",)),
        (special("float32", *_SIMPLE), ("bfloat16",)),  # they need no rounding
        (special("float32", *_INSIDE), ("int32", "int16", "int8")),
        (np.abs(special("float32", *_INSIDE)), ("uint8",)),
    ],
    "float16": [
        (special("float16", *_SIMPLE, 6e-8, 65504), ("float32",)),
        (special("float16", *_INSIDE), ("int32", "int16", "int8")),
    ],
    "bfloat16": [
        (special("bfloat16", *_SIMPLE, 1e38, -1e-30), ("float32", "float16")),
        (special("bfloat16", *_INSIDE[:8]), ("int32", "int16", "int8")),
    ],
    "float8_e4m3fn": [
        (every_float8("float8_e4m3fn"), ("float32", "float16", "bfloat16"))
    ],
    "float8_e5m2": [(every_float8("float8_e5m2"), ("float32", "bfloat16"))],
    **{
        source: [
            (
                _WHOLE.astype(source),
                tuple(d for d in (*INTEGERS, "float32", "float16") if d != source),
            )
        ]
        for source in INTEGERS
    },
}


@pytest.mark.parametrize("source", CASTS)
def test_casts_to_the_bit(source: str) -> None:
    for x, wanted in CASTS[source]:
        x = np.resize(x, 256 if x.size > 32 else 32)
        compare({f"to {dtype}": cast_pair(dtype) for dtype in wanted}, x)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_value_of_float8_stays_in_the_cast_to_it(dtype: str) -> None:
    """Normal ones: the interpreter drops bits of the others (see the test of that)."""
    x = every_float8(dtype).astype(np.float32)
    x[np.abs(x) < 2.0**-6 if dtype == "float8_e4m3fn" else np.abs(x) < 2.0**-14] = 1
    pair = cast_pair(dtype)
    assert_same_bits(*both(pair.ours, x, triton=pair.theirs))


# --- promotion -----------------------------------------------------------------------

PROMOTIONS: dict[tuple[str, str], tuple[Expression, str]] = {
    ("float16", "float32"): (lambda tl, a, b: a + b, "float32"),
    ("int32", "float16"): (lambda tl, a, b: a + b, "float16"),
    ("int8", "int32"): (lambda tl, a, b: a + b, "int32"),
    ("uint8", "int16"): (lambda tl, a, b: a + b, "int16"),
    ("uint8", "int32"): (lambda tl, a, b: a + b, "int32"),
    ("int8", "int8"): (lambda tl, a, b: a / b, "float32"),
    ("int32", "int16"): (lambda tl, a, b: a / b, "float32"),
    ("float16", "float16"): (lambda tl, a, b: a * 0.5 + 1 - True, "float16"),
    ("int8", "int16"): (lambda tl, a, b: (a + 1) * 2, "int8"),
    ("int16", "int8"): (lambda tl, a, b: a * 0.5, "float32"),
    ("float32", "int8"): (lambda tl, a, b: tl.where(a > b, a, b), "float32"),
}


@pytest.mark.parametrize("dtypes", PROMOTIONS, ids="-".join)
def test_promotion(dtypes: tuple[str, str]) -> None:
    expression, wanted = PROMOTIONS[dtypes]
    a, b = (
        np.array(x).astype(d) for x, d in zip(([5, 3], [2, 7]), dtypes, strict=True)
    )
    ours, theirs = both(expression, a, b)
    assert ours.dtype == wanted
    assert_same_bits(ours, theirs)


REFUSED = {
    "a scalar out of range": (lambda tl, a: a + 300, "out of range for type int8"),
    "exp of integers": (lambda tl, a: tl.exp(a), "Expected dtype"),
    "not of floats": (lambda tl, a: ~(a * 0.5), "wrong type argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(name: str) -> None:
    expression, message = REFUSED[name]
    with pytest.raises(kb.DTypeError):
        run_all({"it": expression}, np.ones(4, np.int8))
    refused_by_triton(message, expression, np.ones(4, np.int8))


# --- tails, loops, programs ----------------------------------------------------------


@pytest.mark.parametrize("n", [1, 16, 17, 40])
def test_tails(n: int) -> None:
    """mask= and other= of tl.load, mask= of tl.store; the buffer's end is untouched."""
    tile, guard, tiles = 16, 7, -(-n // 16)
    x = np.random.default_rng(n).standard_normal(n, np.float32) + 9

    def kernel(tl: Any, x: Any, o: Any, lowest: Any) -> None:
        for j in tl.range(tl.cdiv(n, tile)):
            with tl.scratch_scope():
                part = tl.load(x[tl.ds(j * tile, tile)], other=-2.5)
                tl.store(o[tl.ds(j * tile, tile)], part * 2.0, boundary_check=True)
                least = tl.min(part, axis=0, keepdims=True)
                tl.store(lowest[tl.ds(j, 1)], least)

    shapes = [jax.ShapeDtypeStruct((size,), "float32") for size in (n, tiles)]
    ours = np.concatenate(kb.kernel_call(kernel, tuple(shapes))(x))
    theirs = torch.full((n + tiles + guard,), float("nan"))
    double = triton_kernels.double_with_a_tail
    launch(double, (1,), triton_interpreter.to_torch(x), theirs, n, tile, -2.5)
    assert_same_bits(ours, theirs.numpy()[: n + tiles])
    assert np.isnan(theirs.numpy()[n + tiles :]).all()


@pytest.mark.parametrize(
    ("first", "last", "step"), [(0, 0, 1), (3, 4, 1), (5, 2, 1), (9, 0, -4)]
)
def test_trip_counts(first: int, last: int, step: int) -> None:
    """0 and 1 trips among them."""

    def kernel(tl: Any, o: Any) -> None:
        seen = tl.zeros((2,), "int32")
        is_sum = tl.arange(2) < 1
        for j in tl.range(first, last, step):
            with tl.scratch_scope():
                tl.copy_to(seen, seen + tl.where(is_sum, tl.full((2,), j, "int32"), 1))
        tl.store(o, seen)

    ours = kb.kernel_call(kernel, jax.ShapeDtypeStruct((2,), "int32"))()
    theirs = torch.zeros(2, dtype=torch.int32)
    launch(triton_kernels.sum_of_indices, (1,), theirs, first, last, step)
    assert_same_bits(ours, theirs.numpy())


def test_programs_are_pes() -> None:
    def kernel(tl: Any, o: Any) -> None:
        tl.store(o, tl.full((1,), tl.program_id() * 10 + tl.num_programs(), "int32"))

    shape = jax.ShapeDtypeStruct((1,), "int32")
    ours = kb.kernel_call(kernel, shape, num_pes=3)()
    theirs = torch.zeros(3, dtype=torch.int32)
    launch(triton_kernels.program_numbers, (3,), theirs)
    assert_same_bits(np.asarray(ours)[:, 0], theirs.numpy())


# --- what differs: each a row of docs/triton.md --------------------------------------


def values(x: np.ndarray) -> list[Any]:
    return x.astype(object).tolist()


NAN = pytest.approx(np.nan, nan_ok=True)


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8"])
def test_integer_division_truncates_in_triton(dtype: str) -> None:
    a = np.array([-7, 7, -7, 7, -1, -8, 5, 6], dtype)
    b = np.array([2, -2, -2, 2, 64, 8, -3, 3], dtype)
    ours, theirs = both(lambda tl, a, b: a // b, a, b)
    assert values(ours) == [-4, -4, 3, 3, -1, -1, -2, 2]
    assert values(theirs) == [-3, -3, 3, 3, 0, -1, -1, 2]
    ours, theirs = both(lambda tl, a, b: a % b, a, b)
    assert values(ours) == [1, -1, -1, 1, 63, 0, -1, 0]
    assert values(theirs) == [-1, 1, -1, 1, -1, 0, 2, 0]


def test_a_remainder_of_floats_has_the_dividends_sign_in_triton() -> None:
    a = special("float32", -2.5, 2.5, -7, 7)
    b = special("float32", 2, -2, 4, -4)
    ours, theirs = both(lambda tl, a, b: a % b, a, b)
    assert values(ours) == [1.5, -1.5, 1.0, -1.0]
    assert values(theirs) == [-0.5, 0.5, -3.0, 3.0]


def test_triton_has_no_floor_division_of_floats() -> None:
    def expression(tl: Any, a: Any) -> Any:
        return a // 2.0

    x = special("float32", 5, -5)
    assert values(run_all({"it": expression}, x)["it"]) == [2.0, -3.0]
    refused_by_triton("unexpected type fp32", expression, x)


def test_a_number_wins_over_nan_in_triton_unless_asked() -> None:
    a, b = special("float32", 1, np.nan), special("float32", np.nan, 2)
    for name, number in (("maximum", [1.0, 2.0]), ("minimum", [1.0, 2.0])):
        ours, theirs = both(lambda tl, a, b, n=name: getattr(tl, n)(a, b), a, b)
        assert np.isnan(ours).all() and values(theirs) == number
    ours, theirs = both(lambda tl, a, b: tl.clamp(b, -1.0, 1.0), a, b)
    assert values(ours) == [NAN, 1.0] and values(theirs) == [-1.0, 1.0]


def test_a_number_wins_over_nan_in_tritons_reductions() -> None:
    x = special("float32", 1, np.nan, 3, 3)
    for name, number, place in (("max", 3.0, 2), ("min", 1.0, 0)):
        ours, theirs = both(lambda tl, x, n=name: getattr(tl, n)(x, axis=0), x)
        assert np.isnan(ours) and theirs == number
        ours, theirs = both(lambda tl, x, n=name: getattr(tl, f"arg{n}")(x, axis=0), x)
        assert (ours, theirs) == (1, place)


@pytest.mark.parametrize(
    ("name", "dtype", "our_dtype", "their_dtype"),
    [
        ("max", "float16", "float16", "float32"),
        ("min", "int8", "int8", "int32"),
        ("max", "uint8", "uint8", "int32"),
        ("sum", "float16", "float16", "float16"),
        ("sum", "int8", "int32", "int32"),
        ("sum", "uint8", "int32", "uint32"),
        ("sum", "bool", "int32", "uint32"),
    ],
)
def test_dtypes_of_reductions(
    name: str, dtype: str, our_dtype: str, their_dtype: str
) -> None:
    """The same numbers in another type."""
    x = np.array([3, 1, 0, 5]).astype(dtype)
    ours, theirs = both(lambda tl, x: getattr(tl, name)(x, axis=0), x)
    assert (ours.dtype, theirs.dtype) == (our_dtype, their_dtype)
    assert theirs == ours


def test_a_softmax_of_float16_is_float32_in_triton() -> None:
    x = np.array([3, 1, 0, 5], np.float16)
    ours, theirs = both(
        lambda tl, x: tl.softmax(x, axis=0),
        x,
        triton=lambda tl, x: tl.softmax(x, dim=0),
    )
    assert (ours.dtype, theirs.dtype) == ("float16", "float32")
    np.testing.assert_allclose(ours, theirs, rtol=2.0**-11 + 1e-6)


@pytest.mark.parametrize(
    ("dtypes", "symbol", "our_dtype", "their_dtype"),
    [
        (("float16", "float16"), "/", "float16", "float32"),
        (("float16", "float16"), "%", "float16", "float32"),
        (("float16", "int8"), "/", "float16", "float32"),
        (("float16", "bfloat16"), "+", "float32", "float16"),
        (("int8", "uint8"), "+", "int16", "uint8"),
    ],
)
def test_dtypes_of_operators(
    dtypes: tuple[str, str], symbol: str, our_dtype: str, their_dtype: str
) -> None:
    """Of values that all the types hold."""
    a, b = (np.array(x).astype(numpy_dtype(d)) for x, d in zip(
        ([5, 3], [2, 4]), dtypes, strict=True))  # fmt: skip
    ours, theirs = both(
        {
            "/": lambda tl, a, b: a / b,
            "%": lambda tl, a, b: a % b,
            "+": lambda tl, a, b: a + b,
        }[symbol],
        a,
        b,
    )
    assert (ours.dtype.name, theirs.dtype.name) == (our_dtype, their_dtype)
    assert values(ours.astype("float64")) == values(theirs.astype("float64"))


FLOAT32_FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "floor", "ceil")


def test_functions_of_float16() -> None:
    """Triton takes float32: cast there and back, which is what kbjax does inside."""
    x = special("float16", 0.5, 1.5, 2.25, 3)
    plain = {n: lambda tl, x, n=n: getattr(tl, n)(x) for n in FLOAT32_FUNCTIONS}
    ours = run_all(plain, x)
    for name in FLOAT32_FUNCTIONS:
        refused_by_triton("Expected dtype", plain[name], x)
        theirs = triton_interpreter.run(
            lambda tl, x, n=name: getattr(tl, n)(x.to(tl.float32)).to(tl.float16), x
        )
        assert_same_bits(ours[name], theirs, name)


@pytest.mark.parametrize("name", ["tanh", "**", "argmax of all", "arange(3)"])
def test_what_triton_lacks(name: str) -> None:
    expression, message = {
        "tanh": (lambda tl, x: tl.tanh(x), "no attribute 'tanh'"),
        "**": (lambda tl, x: x**x, "unsupported operand"),
        "argmax of all": (lambda tl, x: tl.argmax(x, axis=None), "AssertionError"),
        "arange(3)": (lambda tl, x: tl.arange(0, 3), "must be a power of 2"),
    }[name]
    x = special("float32", 1, 3, 2, 0)
    ours = run_all({"it": expression}, x)["it"]
    wanted = {"tanh": np.tanh(x), "**": x**x, "argmax of all": 1, "arange(3)": range(3)}
    np.testing.assert_allclose(ours, wanted[name], rtol=1e-6)
    refused_by_triton(message, expression, x)


def test_dots_that_triton_refuses() -> None:
    """Of two types, and of uint8."""
    a, b = np.eye(4, dtype=np.float16), np.full((4, 4), 2.5, np.float32)
    product: Expression = lambda tl, a, b: tl.dot(a, b)  # noqa: E731
    assert_same_bits(run_all({"it": product}, a, b)["it"], b)
    refused_by_triton("Both operands must be same dtype", product, a, b)
    c = np.full((4, 4), 200, np.uint8)
    assert_same_bits(
        run_all({"it": product}, c, c)["it"], np.full((4, 4), 160000, "i4")
    )
    refused_by_triton("only int8 supported", product, c, c)


def test_an_unsigned_tile_and_a_negative_scalar() -> None:
    """Both refuse; Triton by sign, kbjax since -1 is no value of uint8."""
    x = np.ones(4, np.uint8)
    with pytest.raises(kb.DTypeError):
        run_all({"it": lambda tl, x: x * -1}, x)
    refused_by_triton("negative scalar", lambda tl, x: x * -1, x)


@pytest.mark.parametrize(
    ("dtype", "above", "below"),
    [
        ("int8", 200, -200),
        ("uint8", 256, -1),
        ("int16", 4e4, -4e4),
        ("int32", 3e9, -3e9),
    ],
)
def test_casts_out_of_range_saturate_here_only(
    dtype: str, above: float, below: float
) -> None:
    """Triton defines nothing; its interpreter gives what the C cast behind NumPy gives,
    a GPU something else."""
    x = special("float32", above, below, np.inf, -np.inf)
    pair = cast_pair(dtype)
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    info = np.iinfo(dtype)
    assert values(ours) == [info.max, info.min, info.max, info.min]
    with np.errstate(invalid="ignore"):
        assert_same_bits(theirs, x.astype(dtype))


def test_nan_as_an_integer_is_0_here() -> None:
    pair = cast_pair("int32")
    x = special("float32", np.nan, 1)
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    assert values(ours) == [0, 1]
    with np.errstate(invalid="ignore"):
        assert_same_bits(theirs, x.astype(np.int32))


def test_subnormal_float32_is_flushed_by_xla() -> None:
    x = np.array([1.5e-38, 3e-38], np.float32)
    ours, theirs = both(lambda tl, x: x * 0.5, x)
    assert values(ours) == [0.0, float(x[1] / 2)]
    assert theirs[0] == np.float32(0.75e-38) and theirs[1] == ours[1]


def test_when_is_an_if_of_indices() -> None:
    def kernel(tl: Any, o: Any) -> None:
        total = tl.zeros(1, "int32")
        for j in tl.range(5):
            with tl.when((tl.program_id() % 2 == 1) & (j % 2 == 0)):
                tl.copy_to(total, total + (j + 1))
        tl.store(o, total)

    shape = jax.ShapeDtypeStruct((1,), "int32")
    ours = kb.kernel_call(kernel, shape, num_pes=3)()
    theirs = torch.zeros(3, dtype=torch.int32)
    launch(triton_kernels.where_it_holds, (3,), theirs, 5)
    assert_same_bits(ours[:, 0], theirs.numpy())


def test_a_store_casts_in_triton_only() -> None:
    def kernel(tl: Any, o: Any) -> None:
        tl.store(o, tl.full((4,), 1.5, "float32"))

    with pytest.raises(kb.DTypeError):
        kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "int32"))()
    theirs = torch.zeros(4, dtype=torch.int32)
    launch(triton_kernels.store_floats, (1,), theirs)
    assert values(theirs.numpy()) == [1, 1, 1, 1]


SHARED = (
    "load store zeros full arange program_id num_programs range static_range cdiv "
    "float32 float16 bfloat16 int32 int16 int8 uint8 cast dot trans softmax sum max "
    "min argmax argmin where maximum minimum clamp fma exp exp2 log log2 sqrt rsqrt "
    "abs sigmoid floor ceil erf"
).split()
TRITONS_ALONE = (
    "float64 int64 float8e4nv float8e5 atomic_add sort associative_scan gather"
).split()
OURS_ALONE = ("float8_e4m3fn float8_e5m2 tanh ds copy_to scratch_scope bool").split()


def test_names() -> None:
    """docs/triton.md says which names both have."""
    both_have = set(dir(kb.TLContext)) & set(dir(triton_interpreter.tl))
    assert set(SHARED) <= both_have
    assert set(TRITONS_ALONE) <= set(dir(triton_interpreter.tl)) - both_have
    assert set(OURS_ALONE) <= set(dir(kb.TLContext)) - both_have


def test_what_was_never_stored() -> None:
    def kernel(tl: Any, o: Any) -> None:
        tl.store(o[0:2], tl.cast(tl.arange(2), "float32"))

    ours = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "float32"))()
    theirs = torch.full((4,), 7.0)
    launch(triton_kernels.store_nothing, (1,), theirs)
    assert values(np.asarray(ours)) == [0.0, 1.0, NAN, NAN]
    assert values(theirs.numpy()) == [0.0, 1.0, 7.0, 7.0]


# --- where the interpreter is no witness: it differs from Triton on a GPU ------------


def test_the_interpreter_adds_the_bits_of_bfloat16() -> None:
    x = special("bfloat16", 1.5, 2.0)
    ours, theirs = both(lambda tl, x: x + x, x)
    assert values(ours) == [3.0, 4.0]
    bits = (2 * x.view(np.uint16).astype(np.uint32)).astype(np.uint16)
    assert_same_bits(theirs, bits.view(x.dtype))
    y = np.eye(4).astype(x.dtype)
    ours, theirs = both(lambda tl, y: tl.dot(y, y), y)
    assert_same_bits(ours, np.eye(4, dtype=np.float32))
    assert theirs[0, 0] == 0x3F80**2  # the product of the bits of 1.0
    ours, theirs = both(lambda tl, x: x > 0, special("bfloat16", -1, 1))
    assert values(ours) == [False, True] and values(theirs) == [True, True]


def test_the_interpreter_truncates_to_bfloat16() -> None:
    x = special("float32", 0.1, 255.5, 3.4e38, 1.0)
    pair = cast_pair("bfloat16")
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    assert_same_bits(ours, x.astype(numpy_dtype("bfloat16")))
    truncated = (x.view(np.uint32) >> 16).astype(np.uint16)
    assert_same_bits(theirs, truncated.view(numpy_dtype("bfloat16")))
    assert (ours[:3] != theirs[:3]).all()


def test_the_interpreter_takes_the_bits_of_an_integer_as_bfloat16() -> None:
    x = np.array([1, 256], np.int32)
    pair = cast_pair("bfloat16")
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    assert values(ours.astype("float32")) == [1.0, 256.0]
    assert values(theirs.view(np.uint16)) == [1, 256]


# Source, what kbjax and ml_dtypes give, what the interpreter gives.
ROUNDED_TO_FLOAT8 = {
    "float8_e4m3fn": [
        (1.9375, 2.0, 1.0),  # a carry out of the significand is lost
        (17.0, 16.0, 18.0),  # a tie is rounded up, not to even
        (464.0, 448.0, np.nan),  # halfway to 480, which is a NaN
        (512.0, np.nan, 256.0),  # the exponent is cut off
        (np.inf, np.nan, 256.0),
        (np.nan, np.nan, 384.0),
        (0.001, 2.0**-9, 0.0),  # a subnormal is truncated
        (1.5, 1.5, 1.5),
    ],
    "float8_e5m2": [
        (1.9, 2.0, 1.0),
        (18.0, 16.0, 20.0),
        (1e38, np.inf, np.nan),
        (np.inf, np.inf, np.inf),
    ],
}


@pytest.mark.parametrize("dtype", ROUNDED_TO_FLOAT8)
def test_the_interpreter_rounds_to_float8_in_a_way_of_its_own(dtype: str) -> None:
    source, here, there = zip(*ROUNDED_TO_FLOAT8[dtype], strict=True)
    pair = cast_pair(dtype)
    ours, theirs = both(pair.ours, special("float32", *source), triton=pair.theirs)
    assert_same_bits(ours, special(dtype, *here))
    assert_same_bits(theirs, special(dtype, *there))


def test_the_interpreter_knows_no_nan_of_float8() -> None:
    """Nor an infinity, outside the cast to float16."""
    pair = cast_pair("float32")
    x = special("float8_e4m3fn", np.nan, 448)
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    assert values(ours) == [NAN, 448.0] and values(theirs) == [480.0, 448.0]
    x = special("float8_e5m2", np.inf, 57344)
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    assert values(ours) == [np.inf, 57344.0] and values(theirs) == [65536.0, 57344.0]


def test_the_interpreter_loses_the_smallest_float8_in_float16() -> None:
    pair = cast_pair("float16")
    x = special("float8_e5m2", 2.0**-16, 2.0**-15)
    ours, theirs = both(pair.ours, x, triton=pair.theirs)
    assert values(ours) == [2.0**-16, 2.0**-15] and theirs[0] == 0.0


def test_float8_is_only_stored_cast_and_multiplied_here() -> None:
    """Where the interpreter adds bits, kbjax says to cast."""
    x = special("float8_e4m3fn", 1.5, 2.0)
    with pytest.raises(kb.DTypeError, match="cast"):
        run_all({"it": lambda tl, x: x + x}, x)
    theirs = triton_interpreter.run(lambda tl, x: x + x, x)
    assert values(theirs.view(np.uint8)) == [2 * 0x3C, 2 * 0x40]
