"""Every op rounds to its own dtype, whatever XLA would like to make of a chain of them.

DESIGN, section 5: four rewrites of XLA and their cures, over drawn shapes, dtypes and
constants, in a plain call and inside an outer `jax.jit`, where the inputs are arguments
or closed-over constants. Expected bits come from NumPy and ml_dtypes, or from kernels
whose intermediate results go through HBM. `test_the_trap_is_real_*` runs the same
expressions as plain `jax.numpy`, which XLA does rewrite.

All shapes of a case share one kernel, since a compilation is what these tests cost.
"""

from __future__ import annotations

import functools
import operator
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
SHAPES = [(7, 33), (1, 32), (32, 100), (100, 1)]
MODES = ("call", "jit", "constants", "exact")
# Every mode for float32; the 16-bit types, which share its code, take turns.
MODES_OF = {
    "float32": (*MODES, "pes"),
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


def run(
    f: Callable[..., Any], groups: Sequence[Arrays], outs: Arrays, mode: str
) -> list[np.ndarray]:
    """``f(tl, *tiles)`` of each group of arrays, in one kernel.

    Args:
      f: the expression.
      groups: its operands, group by group.
      outs: arrays like the results.
      mode: one of MODES, or `pes`: two of them, on the same arrays.
    """
    width = len(groups[0])

    def kernel(tl: Any, *tensors: Any) -> None:
        for n in range(len(groups)):
            tiles = map(tl.load, tensors[n * width : (n + 1) * width])
            tl.store(tensors[n - len(groups)], f(tl, *tiles))

    shapes = tuple(jax.ShapeDtypeStruct(out.shape, out.dtype) for out in outs)
    call = kb.kernel_call(kernel, shapes)
    arrays = [x for group in groups for x in group]
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


def check(
    f: Callable[..., Any], groups: Sequence[Arrays], wants: Arrays, modes: Any = MODES
) -> None:
    """The wanted bits in each mode; in exact, which compiles slowly, of two groups."""
    for mode in modes:
        count = 2 if mode == "exact" else len(wants)
        found = run(f, groups[:count], wants[:count], mode)
        for got, want in zip(found, wants[:count], strict=True):
            assert_same_bits(got, want, f"{mode} {want.shape}")


def stored(
    f: Callable[..., Any], groups: Sequence[Arrays], outs: Arrays
) -> list[np.ndarray]:
    """The results of a kernel that does nothing else: they went through HBM."""
    return run(f, groups, outs, "call")


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
    """The expression with its numbers, and operands of each of SHAPES."""
    rng = np.random.default_rng([sum(map(ord, name)), sum(map(ord, dtype))])
    k, n = draw_number(rng), draw_number(rng)
    groups = []
    for shape in SHAPES:
        a, b, c = (draw(rng, shape, dtype) for _ in range(3))
        groups.append([a, b, c, np.abs(draw(rng, (shape[0], 1), dtype))])
    f = EXPRESSIONS[name]
    return (lambda xp, *operands: f(xp, *operands, k, n)), groups


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_chain_is_rounded_op_by_op(name: str, dtype: str) -> None:
    """Bit for bit NumPy (ml_dtypes), which rounds each op."""
    f, groups = drawn(name, dtype)
    wants = [f(np, *group) for group in groups]
    assert {want.dtype for want in wants} == {DTYPES[dtype]}
    check(f, groups, wants, MODES_OF[dtype])


@pytest.mark.parametrize(
    "name", ["a*b+c", "c-a*b", "a/3", "a/p", "(a*.1)*.3", "(a/b)/c", "a/sqrt(p)"]
)
def test_the_trap_is_real_in_chains(name: str) -> None:
    """Plain jax.numpy under jit gives other bits in some of the cases above."""
    f, groups = drawn(name, "float32")
    naive = jax.jit(functools.partial(f, jnp))
    assert any((np.asarray(naive(*g)) != f(np, *g)).any() for g in groups)


# --- 2: dividing by exp --------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dividing_by_exp(dtype: str) -> None:
    """a / exp(b) is a divided by the stored exp(b), no product with exp(-b)."""
    rng = np.random.default_rng(5)
    groups = [[draw(rng, s, dtype), draw(rng, s, dtype)] for s in SHAPES]
    outs = [a for a, _ in groups]
    small = [[b / DTYPES[dtype].type(4)] for _, b in groups]
    powers = stored(lambda tl, b: tl.exp(b), small, outs)
    wants = [a / e for (a, _), e in zip(groups, powers, strict=True)]
    pairs = [[a, b] for (a, _), (b,) in zip(groups, small, strict=True)]
    check(lambda tl, a, b: a / tl.exp(b), pairs, wants)
    if dtype == "float32":  # the trap is real
        naive = jax.jit(lambda a, b: a / jnp.exp(b))
        assert any(
            (np.asarray(naive(*pair)) != want).any()
            for pair, want in zip(pairs, wants, strict=True)
        )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(f, "float32") for f in ("exp", "exp2", "log", "sqrt", "rsqrt", "softmax")]
    + [("exp", "float16")],
)
def test_a_function_does_not_depend_on_its_surroundings(name: str, dtype: str) -> None:
    """f(x) of a load, of a computed x, of constants: the bits of the stored f(x)."""
    rng = np.random.default_rng(6)
    groups = [[np.abs(draw(rng, s, dtype))] for s in SHAPES]
    outs = [x for (x,) in groups]
    alone = stored(lambda tl, x: getattr(tl, name)(x), groups, outs)
    f = getattr(kb.TLContext, name)
    check(f, groups, alone, ("constants", "exact"))
    check(lambda tl, x: f(tl, (x + 0.0) * 1.0), groups, alone, ("jit",))


def test_exp_of_a_difference() -> None:
    """exp(x - max(x)), as in softmax, is exp of the stored difference, in every lane
    of every row, in live and in exact."""
    rng = np.random.default_rng(16)
    groups = [[draw(rng, s, "float32")] for s in ((100, 100), (7, 33), (64, 50))]
    apart = [[x - x.max(1, keepdims=True)] for (x,) in groups]
    wants = stored(lambda tl, x: tl.exp(x), apart, [x for (x,) in apart])
    check(lambda tl, x: tl.exp(x - tl.max(x, axis=1, keepdims=True)), groups, wants)


def test_exp_of_a_broadcast() -> None:
    """exp of a tile that repeats a column or row is exp of the stored tile."""
    rng = np.random.default_rng(17)
    for part in ((32, 1), (1, 40)):
        x = np.abs(draw(rng, part, "float32"))
        wide = np.ascontiguousarray(np.broadcast_to(x, (32, 40)))
        (want,) = stored(lambda tl, x: tl.exp(x), [[wide]], [wide])
        check(lambda tl, x: tl.exp(tl.broadcast_to(x, (32, 40))), [[x]], [want])


@pytest.mark.parametrize(
    ("name", "dtype"), [("exp", "float32"), ("log", "float32"), ("rsqrt", "float16")]
)
def test_a_function_of_constants(name: str, dtype: str) -> None:
    """exp(tl.full(...)) is not folded by XLA's compiler, whose exp is another."""
    rng = np.random.default_rng(7)
    numbers = [float(x) for x in rng.uniform(0.1, 5, 12).astype(DTYPES[dtype])]
    tiles = [[np.full((3, 8), k, DTYPES[dtype])] for k in numbers]
    outs = [x for (x,) in tiles]
    loaded = stored(lambda tl, x: getattr(tl, name)(x), tiles, outs)
    full = iter(())

    def made(tl: Any) -> Any:
        return getattr(tl, name)(tl.full((3, 8), next(full), dtype))

    for mode in ("call", "exact"):
        full = iter(numbers)
        for got, want in zip(run(made, [[]] * 12, outs, mode), loaded, strict=True):
            assert_same_bits(got, want, mode)
    # arange too
    column = np.arange(1, 34, dtype=np.int32).astype(DTYPES[dtype])
    (want,) = stored(lambda tl, x: getattr(tl, name)(x), [[column]], [column])
    (got,) = run(
        lambda tl: getattr(tl, name)(tl.arange(1, 34).to(dtype)), [[]], [column], "call"
    )
    assert_same_bits(got, want, "arange")


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


@pytest.mark.parametrize(
    ("name", "axis", "dtype"),
    [(f, axis, "float32") for f in SUMMED for axis in (0, 1, None)]
    + [("exp(a)", 1, "float16")],
)
def test_a_sum_does_not_fuse_with_what_it_sums(
    name: str, axis: int | None, dtype: str
) -> None:
    """sum(f(x)) is the documented tree over the stored f(x), -0.0 kept."""
    rng = np.random.default_rng(9)
    shapes = [(100, 100), (7, 33), (1, 32)]
    groups = [[-np.abs(draw(rng, s, dtype)), draw(rng, s, dtype)] for s in shapes]
    f = SUMMED[name]
    inner = stored(f, groups, [a for a, _ in groups])
    wants = [halving_sum(x, axis) for x in inner]
    check(
        lambda tl, a, b: tl.sum(f(tl, a, b), axis=axis),
        groups, wants, ("constants", "exact"),
    )  # fmt: skip


def test_sums_of_bfloat16_and_of_small_counts() -> None:
    """bfloat16 adds in float32; bool counts in int32; -0.0 survives padding."""
    rng = np.random.default_rng(18)
    groups = [[draw(rng, s, "bfloat16")] for s in ((7, 33), (1, 32), (100, 1))]
    groups.append([np.full((3, 5), -0.0, DTYPES["bfloat16"])])
    for axis in (0, 1, None):
        wants = [halving_sum(x, axis) for (x,) in groups]
        check(lambda tl, x, axis=axis: tl.sum(x, axis=axis), groups, wants, ("call",))
    flags = rng.random((7, 33)) < 0.5
    want = flags.sum(1, dtype=np.int32)
    check(lambda tl, x: tl.sum(x, axis=1), [[flags]], [want], ("call", "exact"))


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


@pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, "float32") for form in ("q k", "q k^T", "q^T k", "q^T k^T")]
    + [("q k^T", "float16"), ("q k^T", "bfloat16")],
)
def test_a_product_is_the_same_in_every_fidelity(form: str, dtype: str) -> None:
    """dot(q, trans(k)) and its kin: exact = live = inside an outer jit, also where the
    scores are scaled, and all near the float64 product."""
    rng = np.random.default_rng(10)
    groups, products = [], []
    for m, k, n in PRODUCTS:
        q, key = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
        products.append(q.astype(np.float64) @ key.astype(np.float64))
        sizes = np.abs(q).astype(np.float64) @ np.abs(key).astype(np.float64)
        stored_q = np.ascontiguousarray(q.T) if "q^T" in form else q
        stored_k = np.ascontiguousarray(key.T) if "k^T" in form else key
        groups.append([stored_q, stored_k])
        products[-1] = np.stack([products[-1], sizes])

    def product(tl: Any, q: Any, k: Any) -> Any:
        q = tl.trans(q) if "q^T" in form else q
        return tl.dot(q, tl.trans(k) if "k^T" in form else k)

    outs = [p[0].astype(np.float32) for p in products]
    live = stored(product, groups, outs)
    for got, (want, size) in zip(live, products, strict=True):
        assert (np.abs(got - want) <= 32 * 2.0**-24 * size).all()
    check(product, groups, live, ("constants", "exact"))
    if dtype == "float32":
        scaled = [x * np.float32(0.3) for x in live]
        check(lambda tl, q, k: product(tl, q, k) * 0.3, groups, scaled, ("jit",))
        check(lambda tl, q, k: product(tl, q + 0.0, k + 0.0), groups, live, ("call",))
        check(product, groups[2:], live[2:], ("exact",))


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


# --- elementwise, bit for bit --------------------------------------------------------

BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (lambda tl, a, b: a + b, np.add),
    "-": (lambda tl, a, b: a - b, np.subtract),
    "*": (lambda tl, a, b: a * b, np.multiply),
    "/": (lambda tl, a, b: a / b, np.divide),
    "maximum": (lambda tl, a, b: tl.maximum(a, b), np.maximum),
    "minimum": (lambda tl, a, b: tl.minimum(a, b), np.minimum),
    **{
        name: (lambda tl, a, b, f=compare: f(a, b), numpy)
        for name, compare, numpy in (
            ("lt", operator.lt, np.less),
            ("le", operator.le, np.less_equal),
            ("gt", operator.gt, np.greater),
            ("ge", operator.ge, np.greater_equal),
            ("eq", operator.eq, np.equal),
            ("ne", operator.ne, np.not_equal),
        )
    },
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.0, 0.1, -7.7]


def special_pairs(dtype: str) -> list[np.ndarray]:
    """Every pair of special numbers, then random ones; an odd number in all."""
    rng = np.random.default_rng(12)
    special = np.array(SPECIAL).astype(DTYPES[dtype])
    a, b = (x.reshape(-1) for x in np.meshgrid(special, special))
    rest = [draw(rng, (233,), dtype) for _ in range(2)]
    return [np.concatenate(pair) for pair in zip([a, b], rest, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_is_numpy_bit_for_bit(dtype: str) -> None:
    """NaN, infinities and both zeros among the operands; one answer on every path."""
    a, b = special_pairs(dtype)
    with np.errstate(all="ignore"):
        wants = [np.asarray(numpy(a, b)) for _, numpy in BINARY.values()]

    def kernel(tl: Any, x: Any, y: Any, *outs: Any) -> None:
        a, b = tl.load(x), tl.load(y)
        for out, (f, _) in zip(outs, BINARY.values(), strict=True):
            tl.store(out, f(tl, a, b))

    call = kb.kernel_call(
        kernel, tuple(jax.ShapeDtypeStruct(w.shape, w.dtype) for w in wants)
    )
    held = jnp.asarray(a), jnp.asarray(b)
    paths = {
        "call": call(a, b),
        "jit": jax.jit(call)(a, b),
        "constants": jax.jit(lambda: call(*held))(),
        "exact": call.run(a, b, fidelity="exact").outputs,
    }
    for mode, outputs in paths.items():
        named = zip(BINARY, outputs, wants, paths["call"], strict=True)
        for name, got, want, called in named:
            assert_same_bits(got, called, f"{name}: {mode} against call")
            if name in ("maximum", "minimum"):  # which zero wins is left open
                got, want = np.array(got), want.copy()
                zeros = (got == 0) & (want == 0)
                got[zeros] = want[zeros] = 0
            assert_same_bits(got, want, f"{name} {mode}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_moves_bits(dtype: str) -> None:
    """Special values pass; a scalar branch is rounded to the tile's dtype."""
    a, b = special_pairs(dtype)
    with np.errstate(invalid="ignore"):
        less = a < b
    kind = DTYPES[dtype].type
    check(lambda tl, a, b: tl.where(a < b, a, b), [[a, b]], [np.where(less, a, b)])
    scalar = np.where(less, kind(0.1), b)
    check(lambda tl, a, b: tl.where(a < b, 0.1, b), [[a, b]], [scalar])
    negative = np.where(less, a, kind(-0.0))
    check(lambda tl, a, b: tl.where(a < b, a, -0.0), [[a, b]], [negative], ("call",))


@pytest.mark.parametrize("target", [*DTYPES, "int32", "bool"])
@pytest.mark.parametrize("source", [*DTYPES, "int32", "bool"])
def test_casts(source: str, target: str) -> None:
    """One rounding; float to integer truncates and saturates, NaN gives 0."""
    rng = np.random.default_rng(13)
    numbers = [
        *SPECIAL,
        65504,
        65520,
        3e38,
        2.0**31,
        -(2.0**31),
        1e10,
        2.5,
        -2.5,
        0.999,
    ]
    ties = 1 + np.arange(64) * 2.0**-12  # halfway between 16-bit floats, and near
    values = np.concatenate([numbers, ties, rng.normal(0, 1e3, 161)])
    with np.errstate(all="ignore"):
        if source in DTYPES:
            x = values.astype(np.float32).astype(DTYPES[source])
        elif source == "int32":
            edges = [0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1, 65519, 65520]
            near = 2**15 + np.arange(300)
            x = np.concatenate([edges, near]).astype(np.int32)
        else:
            x = rng.random(65) < 0.5
        kinds = {**DTYPES, "int32": np.dtype(np.int32), "bool": np.dtype(np.bool_)}
        if target == "int32" and source in DTYPES:
            wide = np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e20, neginf=-1e20)
            want = np.clip(np.trunc(wide), -(2**31), 2**31 - 1).astype(np.int32)
        elif target == "bool":
            want = x != 0
        else:
            want = x.astype(kinds[target])
    check(lambda tl, x: x.to(target), [[x]], [want], ("constants", "call"))


def test_int_to_bfloat16_rounds_once() -> None:
    """Not by way of float32, where 2**24 + 2**16 + 1 would land on a tie."""
    x = np.array([2**24 + 2**16 + 1, 2**30 + 2**22 + 1, -(2**25 + 2**17 + 1)], np.int32)
    want = np.array([2**24 + 2**17, 2**30 + 2**23, -(2**25 + 2**18)], np.float32)
    rounded = want.astype(ml_dtypes.bfloat16)
    assert_same_bits(x.astype(ml_dtypes.bfloat16), rounded, "ml_dtypes")
    check(lambda tl, x: x.to("bfloat16"), [[x]], [rounded], ("call", "exact"))


@pytest.mark.parametrize("name", ["+", "-", "*"])
def test_int32_wraps(name: str) -> None:
    rng = np.random.default_rng(14)
    edges = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 65536, 46341], np.int32)
    a, b = (x.reshape(-1) for x in np.meshgrid(edges, edges))
    more = rng.integers(-(2**31), 2**31, (2, 100)).astype(np.int32)
    a, b = np.concatenate([a, more[0]]), np.concatenate([b, more[1]])
    with np.errstate(over="ignore"):
        check(BINARY[name][0], [[a, b]], [BINARY[name][1](a, b)], ("call", "exact"))


def test_a_scalar_is_rounded_to_the_tile_once() -> None:
    """f16 * 0.1 multiplies by float16(0.1), and stays f16; NumPy scalars too."""
    rng = np.random.default_rng(15)
    for dtype in DTYPES:
        x = draw(rng, (7, 33), dtype)
        want = x * DTYPES[dtype].type(0.1)
        for scalar in (0.1, np.float64(0.1)):
            check(lambda tl, x, k=scalar: x * k, [[x]], [want], ("call", "exact"))
            check(lambda tl, x, k=scalar: k * x, [[x]], [want], ("call",))


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


@pytest.mark.parametrize("shape", [(128, 128), (64, 64)])
@pytest.mark.parametrize("name", CONSUMERS)
def test_exp_does_not_depend_on_its_consumer(name: str, shape: tuple[int, int]) -> None:
    """exp runs apart from what uses it, so it is the same whatever that is."""
    x = (np.random.default_rng(3).standard_normal(shape) * 3).astype(np.float32)

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(2):
            with tl.scratch_scope():
                half = tl.load(x) * 0.5
                tl.store(o, CONSUMERS[name](tl, half, tl.exp(half)))

    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct(shape, "float32"))
    exact = call.run(x, fidelity="exact").outputs
    assert_same_bits(call(x), exact, name)
    assert_same_bits(jax.jit(lambda: call(x))(), exact, f"{name}, constants")


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
