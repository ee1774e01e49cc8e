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
SHAPES = [(1, 32), (7, 33), (32, 100), (100, 1)]
MODES = ("call", "jit", "constants", "exact")
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
      mode: one of MODES.
    """
    width = len(groups[0])

    def kernel(tl: Any, *tensors: Any) -> None:
        for n in range(len(groups)):
            tiles = map(tl.load, tensors[n * width : (n + 1) * width])
            tl.store(tensors[n - len(groups)], f(tl, *tiles))

    shapes = tuple(jax.ShapeDtypeStruct(out.shape, out.dtype) for out in outs)
    call = kb.kernel_call(kernel, shapes)
    arrays = [x for group in groups for x in group]
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
    for mode in modes:
        for got, want in zip(run(f, groups, wants, mode), wants, strict=True):
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
    "a*k+c": lambda xp, a, b, c, p, k, n: a * k + c,
    "a*p+c*p": lambda xp, a, b, c, p, k, n: a * p + c * p,
    "a/3": lambda xp, a, b, c, p, k, n: a / 3,
    "a/k": lambda xp, a, b, c, p, k, n: a / k,
    "a/p": lambda xp, a, b, c, p, k, n: a / p,
    "(a*.1)*.3": lambda xp, a, b, c, p, k, n: (a * 0.1) * 0.3,
    "(a*k)*n": lambda xp, a, b, c, p, k, n: (a * k) * n,
    "(a+k)-n": lambda xp, a, b, c, p, k, n: (a + k) - n,
    "(a/b)/c": lambda xp, a, b, c, p, k, n: (a / b) / c,
    "(a/k)/n": lambda xp, a, b, c, p, k, n: (a / k) / n,
    "a/sqrt(p)": lambda xp, a, b, c, p, k, n: a / xp.sqrt(p),
    "a/sqrt(b*b)": lambda xp, a, b, c, p, k, n: a / xp.sqrt(b * b),
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
    check(f, groups, wants)


@pytest.mark.parametrize(
    "name", ["a*b+c", "c-a*b", "a/3", "a/p", "(a*.1)*.3", "(a/b)/c", "a/sqrt(p)"]
)
def test_the_trap_is_real_in_chains(name: str) -> None:
    """Plain jax.numpy under jit gives other bits in some of the cases above."""
    f, groups = drawn(name, "float32")
    naive = jax.jit(functools.partial(f, jnp))
    assert any((np.asarray(naive(*g)) != f(np, *g)).any() for g in groups)


# --- 2: dividing by exp --------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "rsqrt", "softmax"])
def test_a_function_does_not_depend_on_its_surroundings(name: str, dtype: str) -> None:
    """f(x) of a load, of a computed x, and of constants: the bits of the stored f(x)."""
    rng = np.random.default_rng(6)
    groups = [[np.abs(draw(rng, s, dtype))] for s in SHAPES]
    outs = [x for (x,) in groups]
    alone = stored(lambda tl, x: getattr(tl, name)(x), groups, outs)
    check(lambda tl, x: getattr(tl, name)(x), groups, alone)
    check(lambda tl, x: getattr(tl, name)((x + 0.0) * 1.0), groups, alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "rsqrt"])
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

    for mode in ("call", "jit", "exact"):
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
    "a": lambda tl, a, b: a,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", SUMMED)
def test_a_sum_does_not_fuse_with_what_it_sums(
    name: str, axis: int | None, dtype: str
) -> None:
    """sum(f(x)) is the documented tree over the stored f(x), -0.0 kept."""
    rng = np.random.default_rng(9)
    shapes = [(1, 32), (7, 33), (32, 100), (100, 1), (100, 100)]
    groups = [[draw(rng, s, dtype) for _ in range(2)] for s in shapes]
    groups.append([np.full((3, 5), -0.0, DTYPES[dtype])] * 2)
    f = SUMMED[name]
    inner = stored(f, groups, [a for a, _ in groups])
    wants = [halving_sum(x, axis) for x in inner]
    modes = MODES if name != "a" else ("call", "exact")
    check(lambda tl, a, b: tl.sum(f(tl, a, b), axis=axis), groups, wants, modes)


def test_the_trap_is_real_in_sums() -> None:
    """A fused reduction: sum(a * b) is not the sum of the rounded products."""
    rng = np.random.default_rng(9)
    a, b = (draw(rng, (32, 100), "float32") for _ in range(2))
    fused = jax.jit(lambda a, b: jnp.sum(a * b, axis=0))(a, b)
    apart = jax.jit(lambda x: jnp.sum(x, axis=0))(a * b)
    assert (np.asarray(fused) != np.asarray(apart)).any()


# --- 4: matrix products --------------------------------------------------------------

# (M, K, N): M = 1, N = 1, odd sizes, 32 and 100 among them.
PRODUCTS = [(1, 32, 100), (5, 33, 7), (32, 100, 32), (3, 100, 1), (1, 100, 33), (1, 1, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["q k", "q k^T", "q^T k", "q^T k^T"])
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
    check(product, groups, live, ("jit", "constants", "exact"))
    scaled = [x * np.float32(0.3) for x in live]
    check(lambda tl, q, k: product(tl, q, k) * 0.3, groups, scaled)
    check(
        lambda tl, q, k: product(tl, q + 0.0, k + 0.0), groups, live, ("call", "exact")
    )


def test_the_trap_is_real_in_products() -> None:
    """A folded transpose makes XLA take another kernel than a stored one."""
    rng = np.random.default_rng(11)
    q, k = draw(rng, (5, 100), "float32"), draw(rng, (32, 100), "float32")
    folded = jax.jit(lambda q, k: q @ k.T)(q, k)
    copied = jax.jit(lambda q, k: q @ k)(q, np.ascontiguousarray(k.T))
    assert (np.asarray(folded) != np.asarray(copied)).any()


# --- elementwise, bit for bit --------------------------------------------------------

BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (lambda tl, a, b: a + b, np.add),
    "-": (lambda tl, a, b: a - b, np.subtract),
    "*": (lambda tl, a, b: a * b, np.multiply),
    "/": (lambda tl, a, b: a / b, np.divide),
    "maximum": (lambda tl, a, b: tl.maximum(a, b), np.maximum),
    "minimum": (lambda tl, a, b: tl.minimum(a, b), np.minimum),
    **{
        name: (lambda tl, a, b, f=getattr(operator, name): f(a, b), f)
        for name, f in (
            ("lt", np.less),
            ("le", np.less_equal),
            ("gt", np.greater),
            ("ge", np.greater_equal),
            ("eq", np.equal),
            ("ne", np.not_equal),
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
@pytest.mark.parametrize("name", BINARY)
def test_elementwise_is_numpy_bit_for_bit(name: str, dtype: str) -> None:
    """NaN, infinities and both zeros among the operands."""
    f, numpy = BINARY[name]
    a, b = special_pairs(dtype)
    with np.errstate(all="ignore"):
        want = np.asarray(numpy(a, b))
    paths = [run(f, [[a, b]], [want], mode)[0] for mode in MODES]
    for mode, got in zip(MODES, paths, strict=True):
        assert_same_bits(got, paths[0], f"{mode} against a call")
        if name in ("maximum", "minimum"):  # which zero wins is left open
            zeros = (got == 0) & (want == 0)
            got, mine = got.copy(), want.copy()
            got[zeros] = mine[zeros] = 0
            assert_same_bits(got, mine, mode)
        else:
            assert_same_bits(got, want, mode)


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
    numbers = [*SPECIAL, 65504, 65520, 3e38, 2.0**31, -(2.0**31), 1e10, 2.5, -2.5, 0.999]
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
    check(lambda tl, x: x.to(target), [[x]], [want])


def test_int_to_bfloat16_rounds_once() -> None:
    """Not by way of float32, where 2**24 + 2**15 + 1 would land on a tie."""
    x = np.array([2**24 + 2**16 + 1, 2**30 + 2**22 + 1, -(2**25 + 2**17 + 1)], np.int32)
    want = np.array([2**24 + 2**17, 2**30 + 2**23, -(2**25 + 2**18)], np.float32)
    check(lambda tl, x: x.to("bfloat16"), [[x]], [want.astype(ml_dtypes.bfloat16)])


@pytest.mark.parametrize("name", ["+", "-", "*"])
def test_int32_wraps(name: str) -> None:
    rng = np.random.default_rng(14)
    edges = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 65536, 46341], np.int32)
    a, b = (x.reshape(-1) for x in np.meshgrid(edges, edges))
    more = rng.integers(-(2**31), 2**31, (2, 100)).astype(np.int32)
    a, b = np.concatenate([a, more[0]]), np.concatenate([b, more[1]])
    with np.errstate(over="ignore"):
        check(BINARY[name][0], [[a, b]], [BINARY[name][1](a, b)])


def test_a_scalar_is_rounded_to_the_tile_once() -> None:
    """f16 * 0.1 multiplies by float16(0.1), and stays f16; NumPy scalars too."""
    rng = np.random.default_rng(15)
    for dtype in DTYPES:
        x = draw(rng, (7, 33), dtype)
        want = x * DTYPES[dtype].type(0.1)
        for scalar in (0.1, np.float64(0.1)):
            check(lambda tl, x, k=scalar: x * k, [[x]], [want], ("call", "exact"))
            check(lambda tl, x, k=scalar: k * x, [[x]], [want], ("call",))
