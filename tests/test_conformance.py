"""Every op in every element type gives what docs/conformance.md says.

The claims are those of tests/conformance.py. All ops of an element type share a kernel,
since compilations are what these tests cost; each takes loaded tiles, so that none
feeds another. A kernel runs in two ways which differ in everything: fidelity, rolled or
unrolled, one PE or three, called or inside `jax.jit`, large tiles or of an odd size.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax import ops
from tests.conformance import (
    CLAIMS,
    Claim,
    bits,
    draw,
    draw_argument,
    flushed,
    mismatches,
    page,
    special_pairs,
)
from tests.helpers import assert_same_bits
from tests.reference import DTYPES, FLOAT8S, FLOATS, INTS, OPS, convert, meet

# Kernels of many steps, each of its own op and dtype, are unrolled on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*Python loop stay unrolled")

Array = np.ndarray
Step = Callable[..., Any]
PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"
HOW = "pytest tests/test_conformance.py --update-docs"
INPUTS = ("a", "b", "c", "flags", "argument", "moderate")


@dataclass(frozen=True)
class Way:
    """How a kernel runs. `tile`: of each operand, `count` of them a PE. `jitted`: not
    at all, inside `jax.jit` with its operands as arguments, or as constants."""

    fidelity: str
    rolled: bool
    pes: int
    jitted: Literal["no", "arguments", "constants"]
    tile: tuple[int, int]
    count: int


WAYS = {
    "large": Way("live", True, 1, "no", (64, 128), 8),
    "small": Way("live", True, 1, "no", (5, 9), 8),
    "odd": Way("exact", False, 3, "arguments", (3, 37), 1),
}
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin")
# float32 in every way, int32 in all that differ for integers; the others, which share
# their code, take turns.
WAYS_OF = {
    "float32": ("large", "odd", "small"),
    "float16": ("large", "odd-reductions"),
    "bfloat16": ("large", "small"),
    "float8_e4m3fn": ("odd",),
    "float8_e5m2": ("large",),
    "int32": ("odd", "small"),
    "int16": ("large", "odd-reductions"),
    "int8": ("large", "odd-reductions"),
    "uint8": ("large", "small"),
    "bool": ("odd-others", "small"),
}


@dataclass(frozen=True)
class Case:
    """One step of the kernel and the claim it tests: `step` takes `tl` and the tiles
    that `takes` names; `attrs` are the op's, for the oracle."""

    claim: Claim
    step: Step
    takes: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def target(self) -> str:
        return str(dict(self.attrs).get("dtype", ""))


# --- the steps -----------------------------------------------------------------------

OPERATORS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "div": operator.truediv, "floordiv": operator.floordiv, "mod": operator.mod,
    "pow": operator.pow, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "eq": operator.eq, "ne": operator.ne, "and": operator.and_,
    "or": operator.or_, "neg": operator.neg, "invert": operator.invert,
}  # fmt: skip
# (axis, keepdims) by way; over both ways every op meets every kind of axis.
REDUCED = {
    "small": {"sum": ((0, False), (-1, True)), "max": ((0, False),),
              "min": ((None, True),), "argmax": ((-1, True),),
              "argmin": ((None, False),)},
    "odd": {"sum": ((None, False),), "max": ((None, True),), "min": ((1, False),),
            "argmax": ((None, True),), "argmin": ((0, False),)},
}  # fmt: skip


def _copied(tl: Any, x: Any) -> Any:
    into = tl.empty(x.shape, x.dtype)
    tl.copy_to(into, x)
    return into


def cases_of(claim: Claim, which: str) -> list[Case]:
    """The steps that test a claim in one of the ways."""
    op = claim.op
    if op == "load/store":
        return [Case(claim, lambda tl, x: x, ("a",))]
    if op == "copy_to":
        return [Case(claim, _copied, ("a",))]
    if op == "cast":
        names = [name for name in DTYPES if name != claim.dtype]
        return [_case(claim, ("a",), dtype=name) for name in names]
    if op in REDUCTIONS:
        takes = ("summed" if op == "sum" else "a",)
        return [_case(claim, takes, axis=a, keepdims=k) for a, k in REDUCED[which][op]]
    if op in ("zeros", "full"):
        return _created(claim)
    if op == "softmax":
        return [_case(claim, ("moderate",), axis=0 if which == "odd" else -1)]
    if op == "broadcast_to":

        def step(tl: Any, x: Any) -> Any:
            return tl.broadcast_to(x, (2, *x.shape))

        return [Case(claim, step, ("a",))]
    if op == "where":
        return [_case(claim, ("flags", "a", "b"))]
    takes = INPUTS[: len(ops.TABLE[op].parameters)]
    if claim.ulp is not None and op != "pow":
        takes = ("argument",)
    if op in OPERATORS:
        return [Case(claim, lambda tl, *xs: OPERATORS[op](*xs), takes)]
    return [_case(claim, takes)]


def _case(claim: Claim, takes: tuple[str, ...], **attrs: Any) -> Case:
    def step(tl: Any, *tiles: Any) -> Any:
        return getattr(tl, claim.op)(*tiles, **attrs)

    return Case(claim, step, takes, tuple(attrs.items()))


def _created(claim: Claim) -> list[Case]:
    """A tile of the shape of `a`, whose values are not looked at."""
    if claim.op == "zeros":
        return [Case(claim, lambda tl, x: tl.zeros(x.shape, x.dtype), ("a",))]
    values: tuple[Any, ...] = (1, -2.7, 0.1, float("nan"))
    if DTYPES[claim.dtype] in INTS:
        values = (1, int(np.iinfo(claim.dtype).min), int(np.iinfo(claim.dtype).max))
    elif claim.dtype == "bool":
        values = (True, 0)

    def made(value: Any) -> Case:
        def step(tl: Any, x: Any) -> Any:
            return tl.full(x.shape, value, x.dtype)

        return Case(claim, step, ("a",), (("value", value),))

    return [made(value) for value in values]


def expected_by_moving(case: Case, x: Array) -> Array | None:
    """What ops give that only move values or make them; None for the others."""
    if case.claim.op in ("load/store", "copy_to"):
        return x
    if case.claim.op == "broadcast_to":
        return np.broadcast_to(x, (2, *x.shape))
    if case.claim.op == "zeros":
        return np.zeros_like(x)
    if case.claim.op == "full":
        return np.full(x.shape, convert(dict(case.attrs)["value"], x.dtype))
    return None


# --- running them --------------------------------------------------------------------


def operands(name: str, way: Way, seed: int) -> dict[str, Array]:
    """Arrays (PEs, tiles, rows, columns) by name."""
    rng = np.random.default_rng(seed)
    shape = (way.pes, way.count, *way.tile)
    dtype = DTYPES[name]
    drawn = {n: draw(rng, shape, name) for n in ("a", "b", "c")}
    if dtype != np.bool_:
        for n, special in zip("ab", special_pairs(name), strict=True):
            last = drawn[n][-1, -1].reshape(-1)
            last[: special.size] = special[: last.size]
    drawn["summed"] = summable(draw(rng, shape, name))
    drawn["flags"] = draw(rng, shape, "bool")
    if dtype in FLOATS:
        drawn["argument"] = draw_argument(rng, shape, name)
        moderate = (4 * rng.standard_normal(shape)).astype(np.float32)
        moderate[:, -1, 0] = -np.inf  # a row that sees nothing
        moderate[:, -1, -1, ::2] = -np.inf
        moderate[:, 0, 0, 3] = np.nan
        drawn["moderate"] = moderate.astype(dtype)
    return drawn


def summable(x: Array) -> Array:
    """No sum of some of these is subnormal: those are of no claim. Not all sums are
    NaN, and a row and a column add to -0.0."""
    if x.dtype not in FLOATS:
        return x
    size = np.abs(x.astype(np.float64))
    small = (size < 2.0**-100) & (size >= 2.0**-126) & (x.dtype != np.float16)
    huge = ~np.isfinite(size)
    huge[..., 2:, :] = False
    x = np.where(small | huge, np.ones(1, x.dtype), x)
    x[..., 0, :] = x[..., :, 1] = -0.0
    return x


def shapes_of(steps: Sequence[Step], takes: Any, inputs: dict[str, Array]) -> Any:
    """What each step gives, tile by tile: recorded, not computed."""
    found: list[Any] = []

    def kernel(tl: Any, *tensors: Any) -> None:
        tiles = dict(zip(inputs, map(tl.load, tensors[:-1]), strict=True))
        for step, names in zip(steps, takes, strict=True):
            with tl.scratch_scope():
                tile = step(tl, *(tiles[n] for n in names))
                found.append((tile.shape, tile.dtype.name))
        tl.store(tensors[-1], tl.zeros((1,)))

    specs = [jax.ShapeDtypeStruct(x.shape[2:], x.dtype) for x in inputs.values()]
    kb.kernel_call(kernel, jax.ShapeDtypeStruct((1,), "float32")).record(*specs)
    return found


def run(
    steps: Sequence[Step],
    takes: Sequence[tuple[str, ...]],
    inputs: dict[str, Array],
    way: Way,
) -> list[Array]:
    """All steps in one kernel; results (PEs, tiles, ...)."""
    inputs = {n: x for n, x in inputs.items() if any(n in t for t in takes)}
    names = list(inputs)
    made = shapes_of(steps, takes, inputs)

    def kernel(tl: Any, *tensors: Any) -> None:
        indices = tl.range if way.rolled else tl.static_range
        for i in indices(way.count):
            with tl.scratch_scope():
                tiles = dict(zip(names, (tl.load(x[i]) for x in tensors), strict=False))
                for n, step in enumerate(steps):
                    with tl.scratch_scope():
                        result = step(tl, *(tiles[name] for name in takes[n]))
                        tl.store(tensors[len(names) + n][i], result)

    outs = tuple(
        jax.ShapeDtypeStruct((way.count, *shape), DTYPES[dtype])
        for shape, dtype in made
    )
    call = kb.kernel_call(kernel, outs, num_pes=way.pes)

    def replay(*arrays: Any) -> Any:
        return call.run(*arrays, fidelity=way.fidelity).outputs

    arrays = [x if way.pes > 1 else x[0] for x in inputs.values()]
    if way.jitted == "constants":
        held = [jnp.asarray(x) for x in arrays]
        found = jax.jit(lambda: replay(*held))()
    else:
        found = (jax.jit(replay) if way.jitted == "arguments" else replay)(*arrays)
    return [np.asarray(x) if way.pes > 1 else np.asarray(x)[None] for x in found]


@functools.cache
def results(
    name: str, which: str, reductions: bool
) -> tuple[dict[str, Array], dict[Case, Array]]:
    """The results of every reduction, or of every other claim, for an element type, of
    one kernel."""
    way = WAYS[which]
    with np.errstate(all="ignore"):
        inputs = operands(name, way, sorted(DTYPES).index(name))
    cases = [
        case
        for claim in CLAIMS
        if claim.dtype == name and (claim.op in REDUCTIONS) == reductions
        for case in cases_of(claim, which)
    ]
    found = run([c.step for c in cases], [c.takes for c in cases], inputs, way)
    return inputs, dict(zip(cases, found, strict=True))


def ways_of(claim: Claim) -> list[str]:
    """Small tiles are for reductions, whose trees compile slowly, large ones not."""
    reduces = claim.op in REDUCTIONS
    suffix = "-reductions" if reduces else "-others"
    ways = [way.removesuffix(suffix) for way in WAYS_OF[claim.dtype]]
    return [way for way in ways if way in (("small", "odd") if reduces else
                                           ("large", "odd"))]  # fmt: skip


TESTS = [
    pytest.param(claim, which, id=f"{claim}-{which}")
    for name in DTYPES
    for which in WAYS
    for claim in CLAIMS
    if claim.dtype == name and which in ways_of(claim)
]


@pytest.mark.parametrize("claim, which", TESTS)
def test_a_claim_holds(claim: Claim, which: str) -> None:
    inputs, found = results(claim.dtype, which, claim.op in REDUCTIONS)
    cases = [case for case in found if case.claim == claim]
    assert cases
    for case in cases:
        taken = [inputs[n] for n in case.takes]
        said = f"{claim}, {which}, {dict(case.attrs)}"
        for at in np.ndindex(found[case].shape[:2]):
            check(case, found[case][at], [x[at] for x in taken], f"{said}, tile {at}")


def check(case: Case, got: Array, taken: Sequence[Array], said: str) -> None:
    expected = expected_by_moving(case, taken[0])
    with np.errstate(all="ignore"):
        if expected is not None:
            assert_same_bits(got, expected, said)
            return
        wrong = mismatches(case.claim, got, taken, **dict(case.attrs))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        shown = [str(x[at]) for x in taken if x.shape == wrong.shape]
        raise AssertionError(
            f"{said}: {int(wrong.sum())} of {wrong.size} elements, first at {at}: "
            f"{' , '.join(shown)} gave {got[at]!s} ({bits(got)[at]:#x})"
        )


def test_every_op_has_a_claim_in_every_type_it_takes() -> None:
    """`dot` has tests of its own, `arange` one type."""
    claimed = {(claim.op, claim.dtype) for claim in CLAIMS}
    moved = {(op, name) for op in ("load/store", "copy_to") for name in DTYPES}
    table = {
        (row.name, name)
        for row in ops.TABLE.values()
        for name in row.dtypes
        if row.name not in ("dot", "arange")
    }
    divided = {("div", name) for name in DTYPES if DTYPES[name] in INTS}
    assert claimed == table | moved | divided | {("div", "bool")}


# --- on more paths -------------------------------------------------------------------

SIMPLE = ("add", "sub", "mul", "div", "maximum", "minimum",
          "lt", "le", "gt", "ge", "eq", "ne")  # fmt: skip
SHORT = ("float16", "bfloat16")
WIDE = ("float32", "bfloat16")  # of 32 bits, and of those that go by way of them
CAST = ("float32", *SHORT, "int32", "bool")


def test_simple_ops_and_casts_of_constants() -> None:
    """Inside `jax.jit`, where a compiler that saw through would fold them."""
    way = Way("live", False, 1, "constants", (5, 41), 1)
    check_together(way, [*simple(WIDE), *branches(WIDE), *casts()])


def test_simple_ops_of_short_floats_in_exact() -> None:
    way = Way("exact", False, 1, "no", (5, 41), 1)
    check_together(way, [*simple(SHORT), *branches(SHORT)])


@dataclass(frozen=True)
class Check:
    """A step on the operands of `dtype` that `takes` names, and what looks at its
    result, given that and the operands."""

    dtype: str
    step: Step
    takes: tuple[str, ...]
    of: Callable[[Array, Sequence[Array]], None]


def check_together(way: Way, checks: Sequence[Check]) -> None:
    """All in one kernel."""
    inputs = {}
    with np.errstate(all="ignore"):
        for n, name in enumerate(dict.fromkeys(c.dtype for c in checks)):
            drawn = operands(name, way, 20 + n)
            inputs |= {f"{x} {name}": drawn[x] for x in "ab"}
            inputs |= {f"normal {x} {name}": flushed(drawn[x]) for x in "ab"}
    takes = [tuple(f"{x} {c.dtype}" for x in c.takes) for c in checks]
    found = run([c.step for c in checks], takes, inputs, way)
    for each, names, got in zip(checks, takes, found, strict=True):
        each.of(got[0, 0], [inputs[name][0, 0] for name in names])


def of_claim(case: Case) -> Check:
    said = f"{case.claim}, {dict(case.attrs)}"
    name, step, takes = case.claim.dtype, case.step, case.takes
    return Check(name, step, takes, lambda got, xs: check(case, got, xs, said))


def simple(names: Sequence[str]) -> list[Check]:
    claims = [c for c in CLAIMS if c.op in SIMPLE and c.dtype in names]
    return [of_claim(case) for claim in claims for case in cases_of(claim, "large")]


def branches(names: Sequence[str]) -> list[Check]:
    """`where` of a comparison; a scalar branch is rounded to the tile's type. Of no
    subnormals: XLA makes of some of these a minimum, which reads them as zeros."""

    def made(name: str, left: float | None, right: float | None) -> Check:
        def step(tl: Any, a: Any, b: Any) -> Any:
            chosen = a if left is None else left, b if right is None else right
            return tl.where(a < b, *chosen)

        def of(got: Array, operands: Sequence[Array]) -> None:
            chosen = [
                x if scalar is None else DTYPES[name].type(scalar)
                for x, scalar in zip(operands, (left, right), strict=True)
            ]
            want = np.where(np.less(*operands), *chosen)
            assert_same_bits(got, want, f"where in {name}, scalars {left}, {right}")

        return Check(name, step, ("normal a", "normal b"), of)

    scalars = ((None, None), (0.1, None), (None, -0.0))
    return [made(name, *each) for name in names for each in scalars]


def casts() -> list[Check]:
    """Of each type to each, also to itself."""
    claims = [c for c in CLAIMS if c.op == "cast" and c.dtype in CAST]
    cases = [case for claim in claims for case in cases_of(claim, "large")]
    found = [of_claim(case) for case in cases if case.target in CAST]

    def same(name: str) -> Check:
        def of(got: Array, operands: Sequence[Array]) -> None:
            assert_same_bits(got, operands[0], f"{name} to itself")

        return Check(name, lambda tl, x: x.to(name), ("a",), of)

    return found + [same(name) for name in CAST]


# --- what the table does not hold ----------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_power_reads_subnormals_as_zeros(name: str) -> None:
    """As everything else does that is not exact about them."""
    ulp = float(np.finfo(np.float32).tiny) / 128
    a = np.array([[ulp, -ulp, 3 * ulp, 90 * ulp, 2.0, -1.5]]).astype(DTYPES[name])
    b = np.array([[-1.0, 0.25, -0.0078125, 0.5, ulp, 5 * ulp]]).astype(DTYPES[name])
    (got,) = run_once(lambda tl, x, y: x**y, [a, b])
    with np.errstate(all="ignore"):
        assert_same_bits(got, OPS["pow"](flushed(a), flushed(b)))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_an_infinite_summand_wins_over_a_product_that_only_seems_infinite(
    name: str,
) -> None:
    """The product of finite numbers is finite, and no part of it is rounded alone."""
    big = float(np.array(3e38 if name != "float16" else 6e4).astype(DTYPES[name]))
    a, b, c = (
        np.array([x]).astype(DTYPES[name])
        for x in ([big, big, -big, big], [-big, 4.0, big, 2.0],
                  [np.inf, -np.inf, np.inf, -big])
    )  # fmt: skip
    (got,) = run_once(lambda tl, x, y, z: tl.fma(x, y, z), [a, b, c])
    assert_same_bits(got, np.array([[np.inf, -np.inf, np.inf, big]], a.dtype))


def run_once(step: Step, arrays: Sequence[Array], dtype: Any = None) -> list[Array]:
    """One step on whole arrays."""
    way = Way("live", False, 1, "no", (1, 1), 1)
    inputs = {INPUTS[n]: x[None, None] for n, x in enumerate(arrays)}
    return [x[0, 0] for x in run([step], [tuple(inputs)], inputs, way)]


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each two element types once, the order taking turns."""
    found = [(a, b) for n, a in enumerate(names) for b in names[n:]]
    return [pair[:: (-1) ** n] for n, pair in enumerate(found)]


NUMBERS = [name for name in DTYPES if name != "bool"]
WHOLE = [name for name in DTYPES if DTYPES[name] in INTS]


def test_two_element_types_meet_as_the_oracle_has_it() -> None:
    """`a + b` of each two, values drawn like those of the claims but for subnormals
    and NaN."""
    names = [name for name in DTYPES if DTYPES[name] not in FLOAT8S]
    wanted = [pair for pair in pairs(names) if pair != ("bool", "bool")]
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        tiles = {n: summable(draw(rng, (1, 1, 5, 41), n)) for n in names}
        found = run([lambda tl, a, b: a + b] * len(wanted), wanted, tiles, ONCE)
        for (a, b), got in zip(wanted, found, strict=True):
            x, y = meet(tiles[a], tiles[b])
            if x.dtype.name in ("float32", "bfloat16"):
                x, y = flushed(x), flushed(y)
            assert_same_bits(got, np.asarray(OPS["add"](x, y)), f"{a} + {b}")


def test_arange_counts_in_int32() -> None:
    for start, stop in ((0, 37), (-3, 4), (2**31 - 5, 2**31), (-(2**31), 9 - 2**31)):

        def step(tl: Any, x: Any, start: int = start, stop: int = stop) -> Any:
            return tl.arange(start, stop)

        (got,) = run_once(step, [np.zeros((1, 1), np.float32)])
        assert_same_bits(got, np.arange(start, stop).astype(np.int32))


# --- dot -----------------------------------------------------------------------------

ONCE = Way("live", False, 1, "no", (1, 1), 1)
PRODUCT = (7, 37, 5)


def factors(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Array:
    """Of one size, so that a product is not the rounding of its largest term."""
    dtype = DTYPES[name]
    if dtype in INTS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def check_dot(got: Array, a: Array, b: Array, said: str) -> None:
    """Exact of integers; else within (K + 1) 2^-24 of sum |a b|, and on average far
    nearer than bfloat16 or TF32 would be."""
    if a.dtype in INTS and b.dtype in INTS:
        assert_same_bits(got, OPS["dot"](a, b, out_dtype=None), said)
        return
    assert got.dtype == np.float32, said
    x, y = (convert(v, np.dtype(np.float32)).astype(np.float64) for v in (a, b))
    if not {a.dtype, b.dtype} & set(FLOAT8S):
        x, y = (v.astype(np.float64) for v in meet(a, b))
    scale = np.abs(x) @ np.abs(y)
    off = np.abs(got.astype(np.float64) - x @ y) / scale
    assert off.max() <= (x.shape[1] + 1) * 2.0**-24, f"{said}: {off.max():.3g}"
    assert off.mean() <= 2.0**-23, f"{said}: {off.mean():.3g} on average"


def test_dot_of_every_two_element_types() -> None:
    rng = np.random.default_rng(11)
    m, k, n = PRODUCT
    sides = {"a": (m, k), "b": (k, n)}
    inputs = {
        f"{side} {x}": factors(rng, x, shape)[None, None]
        for side, shape in sides.items()
        for x in NUMBERS
    }
    # Of integers that meet floats, some that float16 holds.
    inputs |= {
        f"{side} {x} few": rng.integers(0, 99, (1, 1, *shape)).astype(DTYPES[x])
        for side, shape in sides.items()
        for x in WHOLE
    }
    takes = []
    for x, y in pairs(NUMBERS):
        kinds = [" few" if one in WHOLE and (x in WHOLE) != (y in WHOLE) else ""
                 for one in (x, y)]  # fmt: skip
        takes.append((f"a {x}{kinds[0]}", f"b {y}{kinds[1]}"))
    steps = [lambda tl, a, b: tl.dot(a, b)] * len(takes)
    found = run(steps, takes, inputs, ONCE)
    for (a, b), got in zip(takes, found, strict=True):
        check_dot(got[0, 0], inputs[a][0, 0], inputs[b][0, 0], f"{a} x {b}")


@pytest.mark.parametrize("which", ["small", "odd"])
def test_dot_with_an_accumulator_and_another_type(which: str) -> None:
    """Of operands whose products and sums are exact in float32, so that nothing is left
    to the order of adding: `acc` is one more rounding, `out_dtype` one after it."""
    rng = np.random.default_rng(12)
    m, k, n = PRODUCT
    way = WAYS[which]
    lead = (way.pes, way.count)

    def whole(name: str, shape: tuple[int, int]) -> Array:
        return rng.integers(-8, 9, (*lead, *shape)).astype(DTYPES[name])

    inputs = {
        "f16": whole("float16", (m, k)), "e4m3": whole("float8_e4m3fn", (k, n)),
        "i8": whole("int8", (m, k)), "i16": whole("int16", (k, n)),
        "f32": rng.standard_normal((*lead, m, n)).astype(np.float32),
        "i32": rng.integers(-(2**31), 2**31, (*lead, m, n)).astype(np.int32),
    }  # fmt: skip
    cases = [
        (takes, out)
        for takes in (("f16", "e4m3"), ("f16", "e4m3", "f32"), ("i8", "i16", "i32"))
        for out in (("bfloat16", "int8") if which == "odd" else ("float8_e5m2", None))
    ]

    def step_of(out: str | None) -> Step:
        return lambda tl, *tiles: tl.dot(*tiles, out_dtype=out)

    found = run([step_of(o) for _, o in cases], [t for t, _ in cases], inputs, way)
    for (takes, out), got in zip(cases, found, strict=True):
        for at in np.ndindex(lead):
            want = OPS["dot"](*(inputs[t][at] for t in takes), out_dtype=out)
            assert_same_bits(got[at], want, f"{takes} to {out}")


def test_dot_of_float32_is_float32_and_of_small_integers_exact_at_any_size() -> None:
    rng = np.random.default_rng(13)
    sizes = [(1, 300, 1), (64, 256, 48), (3, 1, 5), (33, 100, 1)]
    inputs, takes = {}, []
    for name in ("float32", "int8", "uint8"):
        for m, k, n in sizes:
            a, b = (f"{x}{name}{m}" for x in "ab")
            inputs[a] = factors(rng, name, (m, k))[None, None]
            inputs[b] = factors(rng, name, (k, n))[None, None]
            takes.append((a, b))
    found = run([lambda tl, a, b: tl.dot(a, b)] * len(takes), takes, inputs, ONCE)
    for (a, b), got in zip(takes, found, strict=True):
        check_dot(got[0, 0], inputs[a][0, 0], inputs[b][0, 0], f"{a} x {b}")


def test_the_bound_of_dot_is_below_what_short_floats_give() -> None:
    """What `check_dot` would say of TF32's and bfloat16's 11 and 8 bits."""
    rng = np.random.default_rng(14)
    a, b = factors(rng, "float32", (7, 37)), factors(rng, "float32", (37, 5))
    for kept in (11, 8):
        dropped = np.uint32(24 - kept)
        x, y = (((v.view(np.uint32) >> dropped) << dropped).view(np.float32)
                for v in (a, b))  # fmt: skip
        with pytest.raises(AssertionError):
            check_dot((x.astype(float) @ y).astype(np.float32), a, b, "")


# --- the page ------------------------------------------------------------------------


def test_the_page_says_what_is_tested(
    update_docs: bool, record_property: Callable[[str, object], None]
) -> None:
    text = page()
    agreed = PAGE.read_text() if PAGE.exists() else ""
    if update_docs and text != agreed:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
        record_property("docs", f"{PAGE.name} {'changed' if agreed else 'new'}")
        return
    assert text == agreed, f"{PAGE.name} differs from the claims: {HOW}"
