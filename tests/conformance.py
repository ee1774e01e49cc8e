"""What each op gives in each element type, as a table of claims, and operands to test
them with.

A claim is "exact", bit for bit what the oracle of tests/reference.py gives, or an error
bound in ulp against float64. XLA's CPU backend treats subnormal numbers of float32 and
bfloat16 (which it computes in float32) as zeros in arithmetic; a claim says where, and
is tested as it says. `docs/conformance.md` is made from this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.reference import DTYPES, FLOATS, INTS, OPS

Array = np.ndarray

# --- claims --------------------------------------------------------------------------

KEPT = "kept"
READ = "read as 0"
ZERO = "read as 0, results become 0"
RESULT = "results become 0"
REST = "read as 0, remainders become 0"


@dataclass(frozen=True)
class Claim:
    """What `op` gives for operands of `dtype`.

    Attributes:
      op: a row of the op table, or `copy_to`, `load/store`.
      dtype: of its tile operands.
      ulp: None: exact. Otherwise the largest distance from the result in real numbers,
        in units of the last place of that.
      subnormals: what becomes of numbers below the smallest normal one.
      any_zero: whether 0.0 and -0.0 stand for each other.
      domain: operands between which the bound holds; all where None.
    """

    op: str
    dtype: str
    ulp: float | None = None
    subnormals: str = KEPT
    any_zero: bool = False
    domain: tuple[float, float] | None = None

    def __str__(self) -> str:
        beyond = "" if self.domain is None else f"-to-{self.domain[1]:g}"
        return f"{self.op}-{self.dtype}{beyond}"


_REAL = ("float32", "float16", "bfloat16")
_WHOLE = ("int32", "int16", "int8", "uint8")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_EVERY = (*_REAL, *_FLOAT8, *_WHOLE, "bool")
# The types in which the backend flushes.
_FLUSHED = ("float32", "bfloat16")

_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = ("add", "sub", "mul", "div")
_ORDER = ("maximum", "minimum", "clamp", "max", "min")
# Exact ops: name -> element types, and what becomes of subnormals where they flush.
_EXACT: dict[str, tuple[tuple[str, ...], str]] = {
    **{op: ((*_REAL, *_WHOLE), ZERO) for op in ("add", "sub", "mul")},
    "div": ((*_REAL, *_WHOLE, "bool"), ZERO),
    **{op: ((*_REAL, *_WHOLE), REST) for op in ("floordiv", "mod")},
    "pow": (_WHOLE, KEPT),
    **{op: ((*_REAL, *_WHOLE), KEPT) for op in ("neg", "abs")},
    **{op: ((*_REAL, *_WHOLE, "bool"), READ) for op in ("maximum", "minimum")},
    "clamp": ((*_REAL, *_WHOLE), READ),
    "fma": (_REAL, ZERO),
    **{op: (_REAL, READ) for op in ("floor", "ceil", "sqrt")},
    **{op: (_EVERY, READ) for op in _COMPARE},
    **{op: ((*_WHOLE, "bool"), KEPT) for op in ("and", "or", "invert")},
    "where": (_EVERY, KEPT),
    "sum": ((*_REAL, *_WHOLE, "bool"), READ),
    **{
        op: ((*_REAL, *_WHOLE, "bool"), READ)
        for op in ("max", "min", "argmax", "argmin")
    },
    "cast": (_EVERY, KEPT),
    "trans": (_EVERY, KEPT),
    "broadcast_to": (_EVERY, KEPT),
    "copy_to": (_EVERY, KEPT),
    "load/store": (_EVERY, KEPT),
    "zeros": (_EVERY, KEPT),
    "full": (_EVERY, KEPT),
}
# Ops of an error bound: name -> ulp in float32, in float16 and bfloat16, subnormals.
# Measured over all patterns of 16 bits, and over 20 to 40 million of float32.
_CLOSE: dict[str, tuple[float, float, str]] = {
    "exp": (5.6, 0.51, RESULT),
    "exp2": (1.02, 0.51, RESULT),
    "log": (0.85, 0.51, READ),
    "log2": (0.88, 0.51, READ),
    "rsqrt": (1.5, 0.51, READ),
    "sigmoid": (2.5, 0.51, RESULT),
    "tanh": (4.9, 0.51, KEPT),
    "erf": (6.8, 0.51, READ),
    "pow": (0.8, 0.51, ZERO),
    "softmax": (6.0, 0.6, RESULT),
}
_NARROWER = {"exp": ((-math.inf, 88.5), 1.01)}  # where float32 is better than that


def _claims() -> tuple[Claim, ...]:
    made = []
    for op, (names, flushing) in _EXACT.items():
        for name in names:
            subnormals = flushing if name in _FLUSHED else KEPT
            made.append(Claim(op, name, None, subnormals, op in _ORDER))
    for op, (wide, short, flushing) in _CLOSE.items():
        for name in _REAL:
            ulp = wide if name == "float32" else short
            subnormals = flushing if name in _FLUSHED else KEPT
            made.append(Claim(op, name, ulp, subnormals))
        if op in _NARROWER:
            domain, ulp = _NARROWER[op]
            made.append(Claim(op, "float32", ulp, flushing, domain=domain))
    return tuple(made)


CLAIMS = _claims()

# --- what is expected ----------------------------------------------------------------

_ERF = np.vectorize(math.erf, otypes=[np.float64])
EXACTLY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": lambda a, b, c: a * b + c,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": _ERF,
    "pow": np.power,
}


def flushed(x: Array) -> Array:
    """`x` with its subnormal numbers replaced by zeros of their sign."""
    if x.dtype not in FLOATS:
        return x
    tiny = float(ml_dtypes.finfo(x.dtype).smallest_normal)
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) < tiny, np.copysign(0.0, wide).astype(x.dtype), x)


def widened(*xs: Array) -> list[Array]:
    """In float64; a signalling NaN has become a quiet one."""
    return [np.where(x != x, np.nan, x.astype(np.float64)) for x in xs]


def mismatches(
    claim: Claim, got: Array, operands: Sequence[Array], **attrs: Any
) -> Any:
    """Where `got` is not what the claim says: a bool array of its shape."""
    flushes = claim.subnormals in (READ, ZERO, REST)
    read = [flushed(x) for x in operands] if flushes else list(operands)
    if claim.ulp is not None:
        return _too_far(claim, got, read, **attrs)
    expected = np.asarray(OPS[claim.op](*read, **attrs))
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), str(claim)
    wrong = bits(got) != bits(expected)
    wrong &= ~((got != got) & (expected != expected))
    zeros = (got == 0) & (expected == 0) if claim.any_zero else np.zeros_like(wrong)
    if claim.subnormals == ZERO and claim.op in EXACTLY:
        gone = _vanishes(EXACTLY[claim.op](*widened(*read)))
        wrong = np.where(gone, got != 0, wrong)
        if claim.op != "fma":  # which adds a zero to what became one
            signs = [np.signbit(x.astype(np.float32)) for x in (got, expected)]
            wrong |= gone & (signs[0] != signs[1])
    if claim.subnormals == REST:
        rest = np.fmod(*widened(*read))
        signed = OPS["mod"](*read).astype(np.float64)
        gone = _is_subnormal(rest) | _is_subnormal(signed)
        wrong = np.where(gone, ~_almost(claim.op, got, expected), wrong)
    return wrong & ~zeros


def _almost(op: str, got: Array, expected: Array) -> Array:
    """Where a remainder was lost: `%` is 0, `//` off by 1 or its last place."""
    if op == "mod":
        return got == 0
    (wide,) = widened(got)
    off = np.abs(wide - expected.astype(np.float64))
    return (off <= 1) | (ulps(got, expected.astype(np.float64)) <= 1)


def _is_subnormal(x: Array) -> Array:
    """As float32 has it."""
    return (x != 0) & (np.abs(x) < 2.0**-126)


def _vanishes(exact: Array) -> Array:
    """Whether a result of float32 becomes 0: rounded to 24 bits, before the exponent
    is looked at, it is below the smallest normal number."""
    return (exact != 0) & (np.abs((exact * 2.0**64).astype(np.float32)) < 2.0**-62)


def ulps(got: Array, exact: Array) -> Array:
    """Distances in units of the last place of `exact`, infinite for a NaN that should
    not be, or that should."""
    about = ml_dtypes.finfo(got.dtype)
    limit = 2.0 ** np.frexp(float(about.max))[1]  # what an infinity stands for
    (wide,) = widened(got)
    kept = np.clip(exact, -limit, limit)
    _, place = np.frexp(np.where(np.abs(kept) == limit, limit / 2, kept))
    unit = np.ldexp(1.0, np.maximum(place - 1, int(about.minexp)) - about.nmant)
    distance = np.abs(np.clip(wide, -limit, limit) - kept) / unit
    distance = np.where(np.isnan(wide) != np.isnan(exact), np.inf, distance)
    return np.where(np.isnan(wide) & np.isnan(exact), 0.0, distance)


def _too_far(claim: Claim, got: Array, read: Sequence[Array], **attrs: Any) -> Array:
    assert claim.ulp is not None
    exact = (
        _softmax(read[0], **attrs)
        if claim.op == "softmax"
        else EXACTLY[claim.op](*widened(*read))
    )
    wrong = ulps(got, exact) > claim.ulp
    if claim.subnormals in (RESULT, ZERO):
        tiny = float(ml_dtypes.finfo(got.dtype).smallest_normal)
        zero = (got == 0) & (np.signbit(got.astype(np.float32)) == np.signbit(exact))
        gone = np.abs(exact) < tiny
        certain = np.abs(exact) < tiny * (1 - 2.0**-20)
        wrong = np.where(certain, ~zero, np.where(gone, wrong & ~zero, wrong))
    if claim.domain is not None:
        low, high = claim.domain
        wrong &= (read[0] >= low) & (read[0] <= high)
    return wrong


def _softmax(x: Array, axis: int) -> Array:
    """Of the float32 differences: their rounding is the operand's, not the op's."""
    y = x.astype(np.float32)
    weights = np.exp((y - y.max(axis, keepdims=True)).astype(np.float64))
    return weights / weights.sum(axis, keepdims=True)


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)


# --- operands ------------------------------------------------------------------------


def draw(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    """Values that go wrong: any bits, numbers of one size, those of few bits and
    halfway between fewer, extremes and their neighbours, subnormals."""
    dtype, size = DTYPES[name], math.prod(shape)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    anything = rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)
    whole = dtype in INTS
    others = _whole(rng, size, dtype) if whole else _real(rng, size, dtype)
    kinds = [anything, *others]
    chosen = rng.integers(0, len(kinds), size)
    drawn = anything.copy()
    for n, kind in enumerate(kinds):
        drawn[chosen == n] = kind[chosen == n]
    return drawn.reshape(shape)


def _whole(rng: np.random.Generator, size: int, dtype: np.dtype) -> list[Array]:
    info = np.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, max(-1, info.min)]
    small = rng.integers(max(-9, info.min), 10, size)
    # Of few bits, or halfway between those: ties of the casts to floats.
    high = rng.integers(0, 8 * dtype.itemsize, size)
    low = np.maximum(high - rng.choice([3, 4, 8, 9, 11, 12, 24], size), 0)
    middles = (np.int64(1) << low) + (np.int64(1) << high) + rng.integers(-1, 2, size)
    return [x.astype(dtype) for x in (small, rng.choice(ends, size), middles)]


def special_pairs(name: str) -> tuple[Array, Array]:
    """Every pair of numbers that go wrong, (N,) each: zeros, infinities, NaN, some of
    few digits and of many; of integers the extremes and what their products pass."""
    numbers = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 3.0, 0.1, -7.7]
    if DTYPES[name] in INTS:
        info = np.iinfo(DTYPES[name])
        root = math.isqrt(1 << (info.bits - 1)) + 1
        numbers = [info.min, info.max, 0, 1, 1 << info.bits // 2, root]
        numbers.append(max(-1, info.min))
    a, b = np.meshgrid(*[np.array(numbers).astype(DTYPES[name])] * 2)
    return a.reshape(-1), b.reshape(-1)


# Where casts to integers saturate, and those to float16 and float8 overflow.
_LIMITS = (2.0**31, 2.0**31 - 128, 32767.5, 32768.5, 255.5, 256.0, 127.5, 128.5,
           65520.0, 65519.0, 464.0, 465.0, 480.0, 61440.0, 61439.0)  # fmt: skip


def _real(rng: np.random.Generator, size: int, dtype: np.dtype) -> list[Array]:
    about, word = ml_dtypes.finfo(dtype), f"u{dtype.itemsize}"
    sign = rng.choice([-1.0, 1.0], size)
    near = sign * rng.uniform(1, 2, size) * 2.0 ** rng.integers(-9, 17, size)
    near = near.astype(np.float32).astype(dtype)
    dropped = rng.integers(1, about.nmant + 1, size).astype(word)
    short = ((near.view(word) >> dropped) << dropped).astype(word)
    half = (short | (np.ones(1, word) << (dropped - np.ones(1, word)))).astype(word)
    ulp, normal = float(about.smallest_subnormal), float(about.smallest_normal)
    top, eps = float(about.max), float(about.eps)
    ends = [0.0, math.nan, math.inf, 1.0, 0.5, 1.5, 2.5, 1 + eps, 1 - eps / 2, eps,
            ulp, 3 * ulp, normal, normal - ulp, top, *_LIMITS]  # fmt: skip
    edges = (sign * rng.choice(ends, size)).astype(np.float32).astype(dtype)
    tiny = rng.integers(0, 1 << about.nmant, size)
    tiny += rng.integers(0, 2, size) << (8 * dtype.itemsize - 1)
    return [near, short.view(dtype), half.view(dtype), edges,
            tiny.astype(word).view(dtype)]  # fmt: skip


def draw_argument(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    """Arguments for functions of one float: all the values of 16 bits where they fit,
    else the domains of exp, log and the like, a third any bits."""
    dtype, size = DTYPES[name], math.prod(shape)
    if dtype.itemsize == 2 and size >= 1 << 16:
        return np.resize(np.arange(1 << 16, dtype=np.uint16).view(dtype), shape)
    anything = rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)
    around = rng.uniform(-1, 1, size) * 2.0 ** rng.integers(-8, 5, size)
    kinds = [around, rng.uniform(-104, 89, size), np.exp(rng.uniform(-2, 2, size))]
    drawn = anything.copy()
    for n, kind in enumerate(kinds):
        drawn[n::5] = kind.astype(np.float32).astype(dtype)[n::5]
    return drawn.reshape(shape)


# --- the page ------------------------------------------------------------------------

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "float32": ("float32",),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "float8": _FLOAT8,
    "int32, int16, int8, uint8": _WHOLE,
    "bool": ("bool",),
}
_MARKS = {
    KEPT: "",
    READ: " (s)",
    ZERO: " (s, r)",
    RESULT: " (r)",
    REST: " (s, q)",
}
_HEAD = """\
# What each op gives

Made from the claims of `tests/conformance.py`, each of which is tested;
`pytest tests/test_conformance.py --update-docs` writes this page anew.

*Exact* is bit for bit what NumPy and ml_dtypes give with one rounding to the element
type (float16 and bfloat16 by way of float32 in `//`, `%` and `rsqrt`), on every path:
live and exact replay, rolled and unrolled loops, any number of PEs, inside `jax.jit`.
NaN payloads are not specified, nor which zero `maximum`, `minimum`, `clamp`, `max` and
`min` give of two. A number is an error bound against the real result, in units of its
last place; 0.51 is a correct rounding but for near ties.

Measured on XLA's CPU backend, which flushes subnormal numbers (of float32 and bfloat16,
below 2^-126) in arithmetic:

- (s): subnormal operands count as zeros of their sign (`sum`, `max` and `min` along an
  axis of one element hand them on);
- (r): results below the smallest normal number become zero;
- (q): remainders below it count as zero: `%` is 0 then, and `//` may be off by 1 or by
  its last place.

Where no letter stands, subnormals are as they should be. They always are in float16 and
float8, in casts of every type, and wherever values are only moved.

"""


def page() -> str:
    """The text of docs/conformance.md."""
    lines = ["| op | " + " | ".join(_COLUMNS) + " |", "|---" * 7 + "|"]
    for op in dict.fromkeys(claim.op for claim in CLAIMS):
        cells = [_cell(op, names) for names in _COLUMNS.values()]
        shown = op.replace("|", "\\|")
        lines.append(f"| `{shown}` | " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _cell(op: str, names: Sequence[str]) -> str:
    found: dict[str, None] = {}
    for claim in CLAIMS:
        if claim.op == op and claim.dtype in names:
            text = "exact" if claim.ulp is None else f"{claim.ulp:g} ulp"
            if claim.domain is not None:
                text += f" to {claim.domain[1]:g}"
            found[text + _MARKS[claim.subnormals]] = None
    return "; ".join(found) or "no"


DOT_ULP = 2.0**-24  # of each of K products, and of a rounding more

_TAIL = """
`no`: a `DTypeError` that says to cast. `cast` is exact between every two element types.
`arange` counts in int32, exactly. `softmax` works in float32, along any axis; its bound
is on top of the rounding of `x - max`.

`dot` of two float types, or of a float and any other, is within (K + 1) 2^-24 of
sum |a b| from the real product: float32 throughout, no TF32 and no bfloat16 passes.
`dot` of two integer types is exact modulo 2^32. `acc` is added with one
more rounding to float32 (int32: modulo 2^32), and `out_dtype` is one rounding after it.
"""
