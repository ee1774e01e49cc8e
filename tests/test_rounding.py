"""Every op rounds to its own dtype, whatever XLA would like to make of a chain of them.

DESIGN, section 5: four rewrites of XLA and their cures, over drawn shapes, dtypes and
constants, in a plain call and inside an outer `jax.jit`, where the inputs are arguments
or closed-over constants. Expected bits come from NumPy and ml_dtypes, or from kernels
whose intermediate results go through HBM. `test_the_trap_is_real_*` runs the same
expressions as plain `jax.numpy`, which XLA does rewrite.

All cases of a test share one kernel, each on operands of its own, since a compilation
is what these tests cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
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
SHAPES = [(7, 33), (1, 32), (32, 100), (100, 1)]
MODES = ("jit", "call", "constants", "exact")
# Every mode for float32; the 16-bit types, which share its code, take turns.
MODES_OF = {
    "float32": MODES,
    "float16": ("constants",),
    "bfloat16": ("jit", "pes"),
}
Shape = tuple[int, ...]
Arrays = Sequence[np.ndarray]


def draw(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Numbers around 1, of several exponents, of both signs; nothing subnormal."""
    x = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-3, 3, shape)
    return (x * rng.choice([-1, 1], shape)).astype(DTYPES[dtype])


def draw_number(rng: np.random.Generator) -> float:
    numbers = [3.0, 7.0, 0.1, 0.3, 1.1, round(float(rng.uniform(0.3, 9)), 3)]
    return float(rng.choice(numbers))


@dataclass(frozen=True)
class Case:
    """``f(tl, *tiles)`` of `operands` gives the bits of `want`.

    Attributes:
      name: of the case, in messages.
      turn: which of the modes has it, counted round; None: every mode.
    """

    name: str
    f: Callable[..., Any]
    operands: Arrays
    want: np.ndarray
    turn: int | None = None


def cases_of(
    name: str,
    f: Callable[..., Any],
    groups: Sequence[Arrays],
    wants: Arrays,
    first: int = 0,
) -> list[Case]:
    """One case for each group of operands, which take turns from turn `first` on."""
    pairs = zip(groups, wants, strict=True)
    return [Case(name, f, *pair, turn=n) for n, pair in enumerate(pairs, first)]


def run(cases: Sequence[Case], mode: str) -> list[np.ndarray]:
    """What the cases give, in one kernel.

    Args:
      cases: what to compute; of `want`, only shape and dtype are looked at.
      mode: one of MODES, or `pes`: two of them, on the same arrays.
    """
    ends = list(accumulate((len(case.operands) for case in cases), initial=0))

    def kernel(tl: Any, *tensors: Any) -> None:
        outs = tensors[ends[-1] :]
        for case, (first, last), out in zip(cases, pairwise(ends), outs, strict=True):
            with tl.scratch_scope():
                tl.store(out, case.f(tl, *map(tl.load, tensors[first:last])))

    shapes = tuple(jax.ShapeDtypeStruct(c.want.shape, c.want.dtype) for c in cases)
    call = kb.kernel_call(kernel, shapes)
    arrays = [x for case in cases for x in case.operands]
    if mode == "pes":
        pair = kb.kernel_call(kernel, shapes, num_pes=2)
        found = pair(*(np.stack([x, x]) for x in arrays))
        assert_same_bits([x[0] for x in found], [x[1] for x in found], "PEs 0 and 1")
        return [np.asarray(x[1]) for x in found]
    if mode == "call":
        found = call(*arrays)
    elif mode == "exact":
        found = call.run(*arrays, fidelity="exact").outputs
    elif mode == "jit":
        found = jax.jit(call)(*arrays)
    else:
        held = [jnp.asarray(x) for x in arrays]
        found = jax.jit(lambda: call(*held))()
    return [np.asarray(x) for x in found]


def check(cases: Sequence[Case], modes: Sequence[str] = MODES) -> None:
    """The wanted bits, of each case in one of the modes or in all."""
    for n, mode in enumerate(modes):
        here = [c for c in cases if c.turn is None or c.turn % len(modes) == n]
        for case, got in zip(here, run(here, mode), strict=True):
            assert_same_bits(got, case.want, f"{case.name} {mode} {case.want.shape}")


def stored(
    f: Callable[..., Any], groups: Sequence[Arrays], outs: Arrays
) -> list[np.ndarray]:
    """The results of a kernel that does nothing else: they went through HBM."""
    return run(cases_of("stored", f, groups, outs), "call")


# --- 1 and 2: contraction and the simplifier -----------------------------------------

# name -> an expression of tiles a, b, c, a positive column p, and two numbers. Its
# namespace is `tl`, NumPy or jax.numpy.
EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "a*b+c": lambda xp, a, b, c, p, k, n: a * b + c,
    "c-a*b": lambda xp, a, b, c, p, k, n: c - a * b,
    "a*b-b*c": lambda xp, a, b, c, p, k, n: a * b - b * c,
    "a/3": lambda xp, a, b, c, p, k, n: a / 3,
    "a/k": lambda xp, a, b, c, p, k, n: a / k,
    "a/p": lambda xp, a, b, c, p, k, n: a / p,
    "(a*.1)*.3": lambda xp, a, b, c, p, k, n: (a * 0.1) * 0.3,
    "(a*k)*n": lambda xp, a, b, c, p, k, n: (a * k) * n,
    "(a+k)-n": lambda xp, a, b, c, p, k, n: (a + k) - n,
    "(a/b)/c": lambda xp, a, b, c, p, k, n: (a / b) / c,
    "(a/k)/n": lambda xp, a, b, c, p, k, n: (a / k) / n,
    "a/sqrt(p)": lambda xp, a, b, c, p, k, n: a / xp.sqrt(p),
    "a*n/b+c": lambda xp, a, b, c, p, k, n: a * n / b + c,
}


def drawn(name: str, dtype: str) -> tuple[Callable[..., Any], list[list[np.ndarray]]]:
    """The expression with its numbers, and those operands of each of SHAPES that it
    uses: each load is compiled."""
    rng = np.random.default_rng([sum(map(ord, name)), sum(map(ord, dtype))])
    k, n = draw_number(rng), draw_number(rng)
    used = [letter for letter in "abcp" if letter in name]
    groups = []
    for shape in SHAPES:
        made = {letter: draw(rng, shape, dtype) for letter in "abc"}
        made["p"] = np.abs(draw(rng, (shape[0], 1), dtype))
        groups.append([made[letter] for letter in used])

    def f(xp: Any, *operands: Any) -> Any:
        given = dict(zip(used, operands, strict=True))
        return EXPRESSIONS[name](xp, *map(given.get, "abcp"), k, n)

    return f, groups


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_is_rounded_op_by_op(dtype: str) -> None:
    """Bit for bit NumPy (ml_dtypes), which rounds each op."""
    cases = []
    for at, name in enumerate(EXPRESSIONS):
        f, groups = drawn(name, dtype)
        if dtype != "float32":
            groups = groups[at % 2 :: 2]
        wants = [f(np, *group) for group in groups]
        assert {want.dtype for want in wants} == {DTYPES[dtype]}
        cases += cases_of(name, f, groups, wants, first=at)
    check(cases, MODES_OF[dtype])
    if dtype == "float32":
        check([case for case in cases if case.turn % 4 == 1], ("pes",))


@pytest.mark.parametrize(
    "name", ["a*b+c", "c-a*b", "a/3", "a/p", "(a*.1)*.3", "(a/b)/c", "a/sqrt(p)"]
)
def test_the_trap_is_real_in_chains(name: str) -> None:
    """Plain jax.numpy under jit gives other bits in some of the cases above."""
    f, groups = drawn(name, "float32")
    naive = jax.jit(functools.partial(f, jnp))
    assert any((np.asarray(naive(*g)) != f(np, *g)).any() for g in groups)


# --- 2: dividing by exp --------------------------------------------------------------


def test_dividing_by_exp() -> None:
    """a / exp(b) is a divided by the stored exp(b), no product with exp(-b)."""
    cases: list[Case] = []
    for dtype in ("float32", "float16"):
        rng = np.random.default_rng(5)
        groups = [[draw(rng, s, dtype), draw(rng, s, dtype)] for s in SHAPES]
        outs = [a for a, _ in groups]
        small = [[b / DTYPES[dtype].type(4)] for _, b in groups]
        powers = stored(lambda tl, b: tl.exp(b), small, outs)
        wants = [a / e for (a, _), e in zip(groups, powers, strict=True)]
        pairs = [[a, b] for (a, _), (b,) in zip(groups, small, strict=True)]
        cases += cases_of(dtype, lambda tl, a, b: a / tl.exp(b), pairs, wants)
    check(cases)
    naive = jax.jit(lambda a, b: a / jnp.exp(b))  # the trap is real
    assert any(
        (np.asarray(naive(*case.operands)) != case.want).any()
        for case in cases
        if case.name == "float32"
    )


def test_a_function_does_not_depend_on_its_surroundings() -> None:
    """f(x) of a load, of a computed x, of constants: the bits of the stored f(x)."""
    loads, computed = [], []
    for name, dtype in (
        *((f, "float32") for f in ("exp", "exp2", "log", "sqrt", "rsqrt", "softmax")),
        ("exp", "float16"),
    ):
        rng = np.random.default_rng(6)
        groups = [[np.abs(draw(rng, s, dtype))] for s in SHAPES[:3]]
        f = getattr(kb.TLContext, name)
        said = f"{name} of {dtype}"
        loads += cases_of(said, f, groups, [x for (x,) in groups], first=len(computed))

        def of_sum(tl: Any, x: Any, f: Callable[..., Any] = f) -> Any:
            return f(tl, (x + 0.0) * 1.0)

        computed += cases_of(said, of_sum, groups, [x for (x,) in groups])
    alone = run(loads, "call")
    check(wanting(loads, alone), ("constants", "exact"))
    first = [c for c in wanting(computed, alone) if c.turn == 0]  # of odd sizes
    check([replace(case, turn=None) for case in first], ("jit",))


def wanting(cases: Sequence[Case], wants: Arrays) -> list[Case]:
    """The cases with other bits to give."""
    return [replace(c, want=want) for c, want in zip(cases, wants, strict=True)]


def test_exp_of_a_difference() -> None:
    """exp(x - max(x)), as in softmax, is exp of the stored difference, in every lane
    of every row, in live and in exact."""
    rng = np.random.default_rng(16)
    groups = [[draw(rng, s, "float32")] for s in ((100, 100), (7, 33), (64, 50))]
    apart = [[x - x.max(1, keepdims=True)] for (x,) in groups]
    wants = stored(lambda tl, x: tl.exp(x), apart, [x for (x,) in apart])

    def of_difference(tl: Any, x: Any) -> Any:
        return tl.exp(x - tl.max(x, axis=1, keepdims=True))

    cases = cases_of("exp(x - max)", of_difference, groups, wants)
    check([replace(case, turn=None) for case in cases], ("jit", "exact"))


def test_exp_of_a_broadcast() -> None:
    """exp of a tile that repeats a column or row is exp of the stored tile."""
    rng = np.random.default_rng(17)
    parts = [[np.abs(draw(rng, s, "float32"))] for s in ((32, 1), (1, 40))]
    wide = [[np.ascontiguousarray(np.broadcast_to(x, (32, 40)))] for (x,) in parts]
    wants = stored(lambda tl, x: tl.exp(x), wide, [x for (x,) in wide])

    def of_broadcast(tl: Any, x: Any) -> Any:
        return tl.exp(tl.broadcast_to(x, (32, 40)))

    cases = cases_of("broadcast", of_broadcast, parts, wants)
    check([replace(case, turn=None) for case in cases], ("constants", "exact"))


def test_a_function_of_constants() -> None:
    """exp(tl.full(...)) is not folded by XLA's compiler, whose exp is another; nor is
    that of an arange."""
    loaded, made = [], []
    for name, dtype in (("exp", "float32"), ("log", "float32"), ("rsqrt", "float16")):
        rng = np.random.default_rng(7)
        f = getattr(kb.TLContext, name)
        for number in rng.uniform(0.1, 5, 3).astype(DTYPES[dtype]):
            tile = np.full((3, 8), number)

            def of_full(
                tl: Any, f: Any = f, k: float = float(number), dtype: str = dtype
            ) -> Any:
                return f(tl, tl.full((3, 8), k, dtype))

            said = f"{name} of {dtype} {number}"
            loaded.append(Case(said, f, [tile], tile))
            made.append(Case(said, of_full, [], tile))

        def of_arange(tl: Any, f: Any = f, dtype: str = dtype) -> Any:
            return f(tl, tl.arange(1, 34).to(dtype))

        column = np.arange(1, 34, dtype=np.int32).astype(DTYPES[dtype])
        said = f"{name} of arange"
        loaded.append(Case(said, f, [column], column))
        made.append(Case(said, of_arange, [], column))
    check(wanting(made, run(loaded, "call")), ("call", "exact"))


def test_the_trap_is_real_for_constants() -> None:
    """XLA folds exp of a constant with another exp than its code has."""
    x = np.random.default_rng(8).uniform(0.1, 5, 1000).astype(np.float32)
    held = jnp.asarray(x)
    folded = jax.jit(lambda: jnp.exp(held))()
    assert (np.asarray(folded) != np.asarray(jax.jit(jnp.exp)(x))).any()


# --- 3: reductions -------------------------------------------------------------------


def halving_sum(x: np.ndarray, axis: int | None) -> np.ndarray:
    """Halves added to halves in float32, padded with -0.0 to a power of two."""
    dtype = x.dtype
    x = (x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)).astype(np.float32)
    size = 1 << (len(x) - 1).bit_length()
    x = np.concatenate([x, np.full((size - len(x), *x.shape[1:]), -0.0, np.float32)])
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return np.asarray(x[0]).astype(dtype)


SUMMED: dict[str, Callable[..., Any]] = {
    "exp(a)": lambda tl, a, b: tl.exp(a),
    "exp(a-max)": lambda tl, a, b: tl.exp(a - tl.max(a, axis=1, keepdims=True)),
    "a*b": lambda tl, a, b: a * b,
}


def test_a_sum_does_not_fuse_with_what_it_sums() -> None:
    """sum(f(x)) is the documented tree over the stored f(x), -0.0 kept."""
    inner, sums = [], []
    for name, dtype, axes in (
        *((f, "float32", (0, 1, None)) for f in SUMMED),
        ("exp(a)", "float16", (1,)),
    ):
        rng = np.random.default_rng(9)
        shapes = [(100, 100), (7, 33), (1, 32)]
        groups = [[-np.abs(draw(rng, s, dtype)), draw(rng, s, dtype)] for s in shapes]
        inner += cases_of(name, SUMMED[name], groups, [a for a, _ in groups])
        sums.append((name, dtype, axes, groups))
    found = iter(run(inner, "call"))
    cases: list[Case] = []
    for name, dtype, axes, groups in sums:
        terms = [next(found) for _ in groups]
        for axis in axes:

            def total(tl: Any, *ab: Any, name: str = name, axis: Any = axis) -> Any:
                return tl.sum(SUMMED[name](tl, *ab), axis=axis)

            wants = [halving_sum(x, axis) for x in terms]
            said = f"{name} {dtype} axis {axis}"
            cases += cases_of(said, total, groups, wants, first=len(cases))
    check(cases, ("constants", "exact"))


def test_sums_of_bfloat16_and_of_small_counts() -> None:
    """bfloat16 adds in float32; bool counts in int32; -0.0 survives padding."""
    rng = np.random.default_rng(18)
    groups = [[draw(rng, s, "bfloat16")] for s in ((7, 33), (1, 32), (100, 1))]
    groups.append([np.full((3, 5), -0.0, DTYPES["bfloat16"])])
    flags = rng.random((7, 33)) < 0.5
    count = flags.sum(1, dtype=np.int32)
    cases = [Case("bool", lambda tl, x: tl.sum(x, axis=1), [flags], count)]
    for axis in (0, 1, None):

        def total(tl: Any, x: Any, axis: int | None = axis) -> Any:
            return tl.sum(x, axis=axis)

        wants = [halving_sum(x, axis) for (x,) in groups]
        cases += cases_of(f"bfloat16, axis {axis}", total, groups, wants, len(cases))
    check(cases, ("call", "exact"))


def test_the_trap_is_real_in_sums() -> None:
    """A fused reduction: sum(a * b) is not the sum of the rounded products."""
    rng = np.random.default_rng(9)
    a, b = (draw(rng, (32, 100), "float32") for _ in range(2))
    fused = jax.jit(lambda a, b: jnp.sum(a * b, axis=0))(a, b)
    apart = jax.jit(lambda x: jnp.sum(x, axis=0))(a * b)
    assert (np.asarray(fused) != np.asarray(apart)).any()


# --- 4: matrix products --------------------------------------------------------------

# (M, K, N): M = 1, N = 1, odd sizes, 32 and 100 among them.
PRODUCTS = [(1, 100, 33), (5, 33, 7), (32, 100, 32), (3, 100, 1), (1, 32, 100)]
BOTH_SIZES = [(5, 7), (32, 32)]  # of a small and of a large result


FORMS = [(form, "float32") for form in ("q k", "q k^T", "q^T k", "q^T k^T")]
FORMS += [("q k^T", "float16"), ("q k^T", "bfloat16")]


def product(tl: Any, q: Any, k: Any, form: str) -> Any:
    q = tl.trans(q) if "q^T" in form else q
    return tl.dot(q, tl.trans(k) if "k^T" in form else k)


def product_times(tl: Any, q: Any, k: Any, form: str) -> Any:
    return product(tl, q, k, form) * 0.3


def product_of_sums(tl: Any, q: Any, k: Any, form: str) -> Any:
    return product(tl, q + 0.0, k + 0.0, form)


def test_a_product_is_the_same_in_every_fidelity() -> None:
    """dot(q, trans(k)) and its kin: exact = live = inside an outer jit, also where the
    scores are scaled, and all near the float64 product."""
    cases: list[Case] = []
    products, bounds = [], []
    for first, (form, dtype) in enumerate(FORMS):
        rng = np.random.default_rng(10)
        f = functools.partial(product, form=form)
        for at, (m, k, n) in enumerate(PRODUCTS, first):
            q, key = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
            products.append(q.astype(np.float64) @ key.astype(np.float64))
            sizes = np.abs(q).astype(np.float64) @ np.abs(key).astype(np.float64)
            bounds.append(32 * 2.0**-24 * sizes)
            stored_q = np.ascontiguousarray(q.T) if "q^T" in form else q
            stored_k = np.ascontiguousarray(key.T) if "k^T" in form else key
            like = np.empty((m, n), np.float32)
            cases.append(Case(f"{form} {dtype}", f, [stored_q, stored_k], like, at))
    cases = wanting(cases, run(cases, "call"))
    for case, near, bound in zip(cases, products, bounds, strict=True):
        assert (np.abs(case.want - near) <= bound).all(), case.name
    check(cases, ("constants", "exact"))
    wide = [c for c in cases if "float32" in c.name and c.want.shape in BOTH_SIZES]
    for f, modes, wants in (
        (product_times, ("jit",), [c.want * np.float32(0.3) for c in wide]),
        (product_of_sums, ("call",), [c.want for c in wide]),
    ):
        changed = [
            replace(
                c, f=functools.partial(f, form=c.name.removesuffix(" float32")), turn=0
            )
            for c in wide
        ]
        check(wanting(changed, wants), modes)


def test_a_product_of_one_term_is_rounded() -> None:
    """XLA makes it a multiplication, which it would fuse with what is added."""

    def added(tl: Any, p: Any, v: Any, a: Any) -> Any:
        return a + tl.dot(p, v)

    def subtracted(tl: Any, p: Any, v: Any, a: Any) -> Any:
        return a - tl.dot(p, v)

    rng, cases = np.random.default_rng(12), []
    shapes = ((8, 64), (1, 64), (8, 1), (3, 5), (32, 100))
    for at, (rows, columns) in enumerate(shapes):
        p, v = draw(rng, (rows, 1), "float32"), draw(rng, (1, columns), "float32")
        a = draw(rng, (rows, columns), "float32")
        cases += [
            Case(f"+ {a.shape}", added, [p, v, a], a + p * v, turn=at),
            Case(f"- {a.shape}", subtracted, [p, v, a], a - p * v, turn=at + 1),
        ]
    check(cases, ("call", "jit", "constants", "exact"))


def test_the_trap_is_real_in_products() -> None:
    """A folded transpose makes XLA take another kernel than a stored one."""
    rng = np.random.default_rng(11)
    differ = 0
    for columns, depth in ((32, 100), (33, 33)):  # which of them depends on the machine
        q, k = draw(rng, (5, depth), "float32"), draw(rng, (columns, depth), "float32")
        folded = jax.jit(lambda q, k: q @ k.T)(q, k)
        copied = jax.jit(lambda q, k: q @ k)(q, np.ascontiguousarray(k.T))
        differ += int((np.asarray(folded) != np.asarray(copied)).sum())
    assert differ


# --- integers, scalars, subnormals ---------------------------------------------------


def test_int_to_bfloat16_rounds_once() -> None:
    """Not by way of float32, where 2**24 + 2**16 + 1 would land on a tie."""
    x = np.array([2**24 + 2**16 + 1, 2**30 + 2**22 + 1, -(2**25 + 2**17 + 1)], np.int32)
    want = np.array([2**24 + 2**17, 2**30 + 2**23, -(2**25 + 2**18)], np.float32)
    rounded = want.astype(ml_dtypes.bfloat16)
    assert_same_bits(x.astype(ml_dtypes.bfloat16), rounded, "ml_dtypes")
    case = Case("cast", lambda tl, x: x.to("bfloat16"), [x], rounded)
    check([case], ("call", "exact"))


def test_a_scalar_is_rounded_to_the_tile_once() -> None:
    """f16 * 0.1 multiplies by float16(0.1), and stays f16; NumPy scalars too."""
    rng = np.random.default_rng(15)
    cases = []
    for dtype in DTYPES:
        x = draw(rng, (7, 33), dtype)
        want = x * DTYPES[dtype].type(0.1)
        for k in (0.1, np.float64(0.1)):
            said = f"{dtype} and {type(k).__name__}"
            cases.append(Case(said, lambda tl, x, k=k: x * k, [x], want))
            cases.append(Case(f"{said}, left", lambda tl, x, k=k: k * x, [x], want))
    check(cases, ("call", "exact"))


CONSUMERS: dict[str, Callable[..., Any]] = {
    "store": lambda tl, x, e: e,
    "sum": lambda tl, x, e: e / tl.sum(e, axis=1, keepdims=True),
    "trans": lambda tl, x, e: tl.reshape(tl.trans(e), x.shape),
    "dot": lambda tl, x, e: x * tl.sum(tl.dot(e, tl.trans(x)), axis=1, keepdims=True),
    "where": lambda tl, x, e: tl.where(x > 0, e, x),
    "rows": lambda tl, x, e: x * (e[tl.ds(3, 1)] + e[tl.ds(5, 1)]),
    "log": lambda tl, x, e: tl.log(e + 1.0) - e,
    "max": lambda tl, x, e: tl.exp(x - tl.max(x, axis=1, keepdims=True)) * e,
}


def test_exp_does_not_depend_on_its_consumer() -> None:
    """exp runs apart from what uses it, so it is the same whatever that is."""
    shape = (128, 128)
    x = (np.random.default_rng(3).standard_normal(shape) * 3).astype(np.float32)

    def kernel(tl: Any, *tensors: Any) -> None:
        ins, outs = tensors[: len(CONSUMERS)], tensors[len(CONSUMERS) :]
        for consume, x, o in zip(CONSUMERS.values(), ins, outs, strict=True):
            for _ in tl.range(2):
                with tl.scratch_scope():
                    half = tl.load(x) * 0.5
                    tl.store(o, consume(tl, half, tl.exp(half)))

    shapes = tuple(jax.ShapeDtypeStruct(shape, "float32") for _ in CONSUMERS)
    call = kb.kernel_call(kernel, shapes)
    arrays = [x.copy() for _ in CONSUMERS]
    exact = call.run(*arrays, fidelity="exact").outputs
    for mode, found in (
        ("call", call(*arrays)),
        ("constants", jax.jit(lambda: call(*arrays))()),
    ):
        for name, got, want in zip(CONSUMERS, found, exact, strict=True):
            assert_same_bits(got, want, f"{name}, {mode}")


def test_products_that_cannot_be_nan_are_rounded_too() -> None:
    """A compiler that proves there is no NaN drops the select, and would contract: in
    floats made from integers, and in products of selected constants."""
    n = np.arange(-50, 50, dtype=np.int32)
    x = n.astype(np.float32) / np.float32(7)
    f = np.float32

    def kernel(tl: Any, n: Any, x: Any, a: Any, b: Any) -> None:
        count = tl.load(n).to("float32")
        tl.store(a, count * 0.7 + count)
        t = tl.load(x)
        up = t > 0.0
        tl.store(b, tl.where(up, 0.1, 0.7) * tl.where(up, 0.3, 0.9) + t)

    shape = jax.ShapeDtypeStruct((100,), "float32")
    call = kb.kernel_call(kernel, (shape, shape))
    up = x > 0
    count = n.astype(np.float32)
    selected = np.where(up, f(0.1), f(0.7)) * np.where(up, f(0.3), f(0.9)) + x
    wants = (count * f(0.7) + count, selected)
    assert_same_bits(call(n, x), wants, "live")
    assert_same_bits(call.run(n, x, fidelity="exact").outputs, wants, "exact")
    assert_same_bits(jax.jit(lambda: call(n, x))(), wants, "constants")


def test_a_tile_of_zeros_is_added_wherever_it_comes_from() -> None:
    """XLA takes x + 0 for x, where it knows the 0; but -0.0 + 0 is 0. A tile is known
    where it is made, and where a load lies wholly outside of its tensor."""
    x = np.array([-0.0, 0.0, 1.5, -2.0], np.float32)

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        outside = x[tl.ds(-4, 4)]
        buffer = tl.circular_buffer(1, (4,), "float32")
        buffer.push(x[tl.ds(4, 4)], other=0)
        for row, zeros in enumerate(
            (
                tl.zeros((4,), "float32"),
                tl.load(outside, other=0),
                tl.load_async(outside, other=0).wait(),
                buffer.pop(),
            )
        ):
            tl.store(o[row], t + zeros)

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4, 4), "float32"))
    want = np.stack([x + np.float32(0)] * 4)
    assert_same_bits(call(x), want, "live")
    assert_same_bits(call.run(x, fidelity="exact").outputs, want, "exact")
    assert_same_bits(jax.jit(lambda: call(x))(), want, "constants")


def test_a_subnormal_is_true_on_every_path() -> None:
    """A cast to bool looks at bits; a compiled comparison may flush a subnormal to 0,
    and did so in live but not in exact where an integer cast stood beside it."""
    x = np.array([1e-40, -1e-40, 1.0, 0.0, -0.0, np.nan], np.float32)

    def kernel(tl: Any, x: Any, flags: Any, counts: Any) -> None:
        t = tl.load(x)
        tl.store(counts, t.to("int32"))
        tl.store(flags, t.to("bool"))

    shapes = (jax.ShapeDtypeStruct((6,), "bool"), jax.ShapeDtypeStruct((6,), "int32"))
    call = kb.kernel_call(kernel, shapes)
    for outputs in (call(x), call.run(x, fidelity="exact").outputs):
        assert np.asarray(outputs[0]).tolist() == [True, True, True, False, False, True]
        assert np.asarray(outputs[1]).tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "m, k, n, dtype",
    [(4, 5, 4, "float32"), (1, 7, 3, "float16"), (3, 9, 1, "float32")],
)
def test_a_product_in_a_small_loop(m: int, k: int, n: int, dtype: str) -> None:
    """XLA makes one function of a loop that touches less than 1 KiB, the user's own
    too, and its products add in another order there."""

    def kernel(tl: Any, x: Any, y: Any, o: Any, *, loop: Any = None) -> None:
        for i in (loop or tl.range)(2):
            b = tl.trans(tl.load(y[i]))
            tl.store(o[i], tl.dot(tl.load(x[i]), b))

    out = jax.ShapeDtypeStruct((2, m, n), "float32")
    rng = np.random.default_rng(1)
    x, y = (
        rng.standard_normal(shape).astype(dtype) for shape in ((2, m, k), (2, n, k))
    )
    call = kb.kernel_call(kernel, out)
    want = np.asarray(call.run(x, y, fidelity="exact").outputs)
    unrolled = kb.kernel_call(functools.partial(kernel, loop=range), out)

    @jax.jit
    def in_a_loop(x: Any, y: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, o: unrolled(x, y), unrolled(x, y))

    for found in (call(x, y), unrolled(x, y), in_a_loop(x, y)):
        np.testing.assert_array_equal(np.asarray(found), want)
