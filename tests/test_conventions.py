"""The conventions of arithmetic, one for every path: what integers, floats, NaN, casts,
sums, products and scalars do, with values in closed form.

`check` runs a body rolled and unrolled, on one PE and on several, live, exact and
inside `jax.jit`, and compares shapes and dtypes of handles (phase 1),
the op_log's bytes, and every bit of the values (phase 2) with an oracle in NumPy or
plain Python.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax.kernels.flash_prefill import flash_prefill
from kbjax.kernels.gqa_decode import gqa_decode
from tests.helpers import assert_same_bits

F32, F16, BF16 = (np.dtype(d) for d in ("float32", "float16", ml_dtypes.bfloat16))
E4M3, E5M2 = (np.dtype(d) for d in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
I32, I16, I8, U8, BOOL = (
    np.dtype(d) for d in ("int32", "int16", "int8", "uint8", "bool")
)
INF, NAN = math.inf, math.nan

Body = Callable[..., Sequence[Any]]
# name -> (form of the loop, trips, PEs, fidelity, inside jax.jit)
PATHS: dict[str, tuple[str, int, int, Any, bool]] = {
    "rolled, jit": ("range", 2, 1, None, True),
    "unrolled, exact, PEs": ("static_range", 1, 2, "exact", False),
    "rolled, plain": ("range", 2, 1, None, False),
}
BOTH = ("rolled, jit", "unrolled, exact, PEs")
# A compiled path costs a second: the types share the paths out, and so do the tests.
SHARED = {"int32": BOTH, "int8": BOTH[:1], "uint8": BOTH[:1],
          "float32": ("rolled, plain", BOTH[1]), "bfloat16": BOTH[:1]}  # fmt: skip


def specs(arrays: Sequence[np.ndarray]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)


def looped(
    body: Body, wants: Sequence[np.ndarray], form: str, trips: int
) -> Callable[..., None]:
    """A kernel that runs `body` on row i of every input."""

    def kernel(tl: Any, *refs: Any) -> None:
        ins, outs = refs[: len(refs) - len(wants)], refs[len(refs) - len(wants) :]
        for i in getattr(tl, form)(trips):
            with tl.scratch_scope():
                found = body(tl, *(tl.load(x[i]) for x in ins))
                assert len(found) == len(wants)
                for n, (tile, want, out) in enumerate(
                    zip(found, wants, outs, strict=True)
                ):
                    got = (tile.shape, np.dtype(tile.dtype.numpy))
                    assert got == (want.shape, want.dtype), f"output {n}: {got}"
                    assert tile.nbytes == want.nbytes
                    tl.store(out[i], tile)

    return kernel


def check(
    body: Body,
    oracle: Callable[..., Sequence[Any]],
    *arrays: np.ndarray,
    turn: bool = True,
    paths: Sequence[str] = BOTH,
    log: bool = True,
    names: Sequence[str] = (),
) -> None:
    """`body(tl, *tiles)` gives what `oracle(*arrays)` gives, on every path.

    Args:
      body: returns tiles.
      oracle: returns NumPy arrays of the dtypes that the tiles must have.
      arrays: the data; other iterations and PEs get them rotated.
      turn: whether to rotate along the last axis; else along none.
      paths: which of PATHS.
      log: whether to read the op_log too.
      names: of the outputs, in messages; else they are numbered.
    """

    def turned(by: int) -> list[np.ndarray]:
        return [np.roll(a, by, -1) if turn and a.ndim else a for a in arrays]

    with np.errstate(all="ignore"):
        wants = {by: [np.asarray(w) for w in oracle(*turned(by))] for by in range(2)}
    for name in paths:
        form, trips, pes, fidelity, jitted = PATHS[name]
        rows = [[pe + i for i in range(trips)] for pe in range(pes)]
        data, expected = [], []
        for source, found in ((turned, data), (wants.__getitem__, expected)):
            each = [[source(by) for by in row] for row in rows]
            for n in range(len(each[0][0])):
                stacked = np.stack([np.stack([s[n] for s in row]) for row in each])
                found.append(stacked if pes > 1 else stacked[0])
        one = [w if pes == 1 else w[0] for w in expected]
        kernel = looped(body, wants[0], form, trips)
        call = kb.kernel_call(kernel, specs(one), num_pes=pes)
        for row in call.op_log(*specs(data)) if log else ():
            sizes = [int(size) for size in row.shape.split("x") if size]
            assert row.nbytes == math.prod(sizes) * kb_dtype(row.dtype).itemsize, row
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if jitted:
                got = jax.jit(call)(*data)
            else:
                got = call.run(*data, fidelity=fidelity).outputs
        got = got if isinstance(got, tuple | list) else [got]
        for n, (a, b) in enumerate(zip(got, expected, strict=True)):
            which = names[n] if names else n
            assert_same_bits(a, b, f"output {which}, {name}")


def kb_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


# --- integers: floor division, remainder, wrapping -----------------------------------


def wrapped(values: Any, dtype: np.dtype) -> np.ndarray:
    """Python integers, their low bits in `dtype`."""
    info = np.iinfo(dtype)
    span = int(info.max) - int(info.min) + 1
    flat = [
        (int(v) - int(info.min)) % span + int(info.min)
        for v in np.asarray(values, object).reshape(-1)
    ]
    return np.array(flat, dtype).reshape(np.shape(values))


def each(function: Callable[..., int], dtype: np.dtype, *operands: Any) -> np.ndarray:
    """`function` of Python integers, element by element, wrapped to `dtype`."""
    grids = np.broadcast_arrays(*(np.asarray(x, object) for x in operands))
    flat = [function(*(int(x) for x in xs)) for xs in zip(*(g.flat for g in grids),
            strict=True)]  # fmt: skip
    return wrapped(np.array(flat, object).reshape(grids[0].shape), dtype)


def floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def mod(a: int, b: int) -> int:
    return a % b if b else 0


def power(a: int, b: int) -> int:
    return int(a**b) if b >= 0 else {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


# Numerators and denominators of the field case, the extremes, and zero divisors.
NUMERATORS = [-7, 7, -7, 7, -1, -8, 0, 5, -5, 0, 1, -1, "min", "min", "min", "max"]
DENOMINATORS = [2, -2, -2, 2, 64, 8, 3, 0, 0, 0, "min", "max", -1, 1, "min", -1]


def filled(values: Sequence[Any], dtype: np.dtype) -> np.ndarray:
    ends = {"min": np.iinfo(dtype).min, "max": np.iinfo(dtype).max}
    return wrapped([int(ends.get(v, v)) for v in values], dtype)


@pytest.mark.parametrize("dtype", [I32, I8, U8], ids=str)
def test_integer_division_floors(dtype: np.dtype) -> None:
    """`//` and `%` of tiles and of scalars, 0 where the divisor is 0; the smallest
    integer by -1 wraps; (a // b) * b + a % b is a wherever b is not 0."""
    signed = -3 if dtype != U8 else 3

    def body(tl: Any, a: Any, b: Any) -> list[Any]:
        return [
            a // b, a % b, (a // b) * b + a % b,
            a // 2, a % 2, a // signed, a % signed, 7 // b, 7 % b,
            a // np.int64(signed), np.int8(7) % b, a // 0, a % 0,
        ]  # fmt: skip

    def oracle(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        of, rest = partial(each, floordiv, dtype), partial(each, mod, dtype)
        back = np.where(b == 0, 0, a)
        return [
            of(a, b), rest(a, b), back,
            of(a, 2), rest(a, 2), of(a, signed), rest(a, signed), of(7, b), rest(7, b),
            of(a, signed), rest(7, b), of(a, 0), rest(a, 0),
        ]  # fmt: skip

    a, b = filled(NUMERATORS, dtype), filled(DENOMINATORS, dtype)
    if dtype != U8:
        assert oracle(a, b)[0][:6].tolist() == [-4, -4, 3, 3, -1, -1]
        assert oracle(a, b)[1][:6].tolist() == [1, -1, -1, 1, 63, 0]
    check(body, oracle, a, b, paths=SHARED[str(dtype)][-1:])


def test_floor_division_of_symbolic_integers() -> None:
    """One answer for a tile, a scalar, and the index of a rolled loop, of an unrolled
    loop and the program id, in int32 and a small type, on every PE."""
    count, names = 7, ("int32", "int8")
    by = np.array([2, -2, 3, -1, 0])

    def packed(n: Any) -> Any:
        """Seven values of integers alone, a hexadecimal digit each."""
        code = 0
        for digit in (
            n // 2, n % 2, n // -2, n % -2, -(n // 3), (-n) % 3, -7 % (n - 9),
        ):  # fmt: skip
            code = code * 16 + digit + 8
        return code

    def forms(tl: Any, n: Any, b: Any, dtype: str) -> list[Any]:
        tile = tl.full((5,), n, dtype)
        return [tile // b, tile % b, n // b, n % b, b // n, b % n,
                tl.full((5,), packed(n), "int32").to(dtype)]  # fmt: skip

    def plain(n: int, dtype: str) -> list[list[int]]:
        floor = [floordiv(n, int(b)) for b in by]
        rest = [mod(n, int(b)) for b in by]
        back = [floordiv(int(b), n) for b in by], [mod(int(b), n) for b in by]
        code = int(wrapped([packed(n)], np.dtype(dtype))[0])
        return [floor, rest, floor, rest, *back, [code] * 5]

    def kernel(tl: Any, *refs: Any) -> None:
        ins, outs = refs[:2], refs[2:]
        for b_, name, rolled, mine in zip(ins, names, outs, outs[2:], strict=False):
            b = tl.load(b_)
            for i in tl.range(count):
                with tl.scratch_scope():
                    for n, tile in enumerate(forms(tl, i - 3, b, name)):
                        tl.store(rolled[i, n], tile)
            pe = tl.program_id() - 3
            for n, tile in enumerate(forms(tl, pe, b, name)[4:]):
                tl.store(mine[n], tile)
        b = tl.load(ins[0])
        for i in tl.static_range(count):
            for n, tile in enumerate(forms(tl, i - 3, b, "int32")[:4]):
                tl.store(outs[4][i, n], tile)

    wants = {
        name: np.array([plain(i - 3, name) for i in range(count)], name)
        for name in names
    }
    shapes = [jax.ShapeDtypeStruct((count, 7, 5), name) for name in names]
    shapes += [jax.ShapeDtypeStruct((3, 5), name) for name in names]
    shapes += [jax.ShapeDtypeStruct((count, 4, 5), "int32")]
    call = kb.kernel_call(kernel, tuple(shapes), num_pes=count, in_axes=None)
    outs = call(*(by.astype(name) for name in names))
    for at, name in enumerate(names):
        want = wants[name]
        assert_same_bits(outs[at], np.stack([want] * count), f"tl.range, {name}")
        assert_same_bits(outs[2 + at], want[:, 4:], f"program_id, {name}")
    want = wants["int32"][:, :4]
    assert_same_bits(outs[4], np.stack([want] * count), "tl.static_range")


@pytest.mark.parametrize("dtype", [I32, I8, U8], ids=str)
def test_integers_wrap(dtype: np.dtype) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def body(tl: Any, a: Any, b: Any) -> list[Any]:
        return [
            a + b, a - b, a * b, -a, abs(a), a + 1, 1 - a, a * 3, a**2, a**b,
            a & b, a | b, ~a, a & 6, 5 | a, tl.clamp(a, 1, 4),
            tl.maximum(a, b), tl.minimum(a, 3), tl.sum(a), tl.sum(a * b),
        ]  # fmt: skip

    def oracle(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        total = sum(int(x) for x in a)
        wrap = [
            each(operator.add, dtype, a, b), each(operator.sub, dtype, a, b),
            each(operator.mul, dtype, a, b), each(operator.neg, dtype, a),
            each(abs, dtype, a), each(lambda x: x + 1, dtype, a),
            each(lambda x: 1 - x, dtype, a), each(lambda x: x * 3, dtype, a),
            each(lambda x: x * x, dtype, a), each(power, dtype, a, b),
            each(operator.and_, dtype, a, b), each(operator.or_, dtype, a, b),
            each(operator.invert, dtype, a), each(lambda x: x & 6, dtype, a),
            each(lambda x: x | 5, dtype, a),
            each(lambda x: min(max(x, 1), 4), dtype, a),
            each(max, dtype, a, b), each(lambda x: min(x, 3), dtype, a),
        ]  # fmt: skip
        narrow = sum(int(x) for x in wrap[2])
        return [*wrap, wrapped(total, I32), wrapped(narrow, I32)]

    a = wrapped([low, high, low + 1, high - 1, 1, 2, 3, 0, high // 2 + 1, 17], dtype)
    b = wrapped([1, 2, 3, 4, 5, 6, 7, 0, 2, 9], dtype)
    check(body, oracle, a, b, paths=SHARED[str(dtype)][-1:])


def test_negative_powers_of_integers() -> None:
    """Of tiles: 0, but for bases 1 and -1."""
    base = np.array([0, 1, -1, 2, -2, -1, 1, 3], I32)
    exponent = np.array([-1, -5, -5, -1, -3, -4, 0, 3], I32)
    narrow = base.astype(I8), exponent.astype(I8)
    check(
        lambda tl, a, b, c, d: [a**b, c**d],
        lambda a, b, c, d: [each(power, I32, a, b), each(power, I8, c, d)],
        *(base, exponent, *narrow),
        paths=BOTH[:1],
    )


# --- dot of integers -----------------------------------------------------------------


def test_int8_dot_accumulates_in_int32() -> None:
    """500, 8388608 and 33032065: at 8 bits, and by way of float32, other numbers."""
    deep = np.full((1, 2048), 127, I8)
    nearly = np.full((2048, 1), 127, I8)
    nearly[1234] = 126
    low = np.full((1, 512), -128, I8)
    signed, unsigned = np.array([[-128, 127]], I8), np.full((2, 3), 255, U8)
    big = np.array([[2**16 + 1, 46341]], I32)

    def body(tl: Any, *tiles: Any) -> list[Any]:
        a, b, low_, deep_, nearly_, one, s, u, wide = tiles
        return [
            tl.dot(a, b), tl.dot(low_, tl.trans(low_)), tl.dot(deep_, nearly_),
            tl.dot(one, one), tl.dot(s, u), tl.dot(u.to("int16"), tl.trans(u)),
            tl.dot(wide, tl.trans(wide)),  # wraps
            tl.dot(a, b, out_dtype="int8"), tl.dot(a, b, out_dtype="float32"),
            tl.dot(deep_, nearly_, out_dtype="float32"),
            tl.dot(a, b.to("float16")),
        ]  # fmt: skip

    def oracle(*arrays: np.ndarray) -> list[np.ndarray]:
        a, b, low_, deep_, nearly_, one, s, u, wide = (x.astype(object) for x in arrays)
        exact = [
            a @ b, low_ @ low_.T, deep_ @ nearly_, one @ one, s @ u, u @ u.T,
            wide @ wide.T,
        ]  # fmt: skip
        return [
            *(wrapped(x, I32) for x in exact), wrapped(a @ b, I8),
            (a @ b).astype(F32), (deep_ @ nearly_).astype(F32), (a @ b).astype(F32),
        ]  # fmt: skip

    arrays = [
        np.array([[10, 20]], I8), np.array([[10], [20]], I8), low, deep, nearly,
        np.array([[-128]], I8), signed, unsigned, big,
    ]  # fmt: skip
    found = oracle(*arrays)
    assert [int(x[0, 0]) for x in found[:3]] == [500, 8388608, 33032065]
    assert float(found[9][0, 0]) == 33032064 and int(found[7][0, 0]) == -12
    check(body, oracle, *arrays, turn=False, paths=BOTH[1:])


def accumulated(tl: Any, a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    product, half = tl.dot(a, b), tl.dot(c, d)
    return [
        tl.dot(a, b, acc=product), tl.dot(c, d, acc=half), tl.dot(c, d, half, "int8"),
        tl.dot(a, b, acc=tl.full((1, 1), 2**31 - 1, "int32")),  # wraps
        tl.dot(c, d, acc=tl.full((1, 1), -500.0), out_dtype=c.dtype),
    ]  # fmt: skip


ACCUMULATED = (np.array([[10, 20]], I8), np.array([[10], [20]], I8),
               np.array([[10, 20]], F16), np.array([[10], [20]], F16))  # fmt: skip


def test_dot_adds_its_accumulator() -> None:
    """In int32, wrapping, or in float32; then the result is cast."""
    wants = [
        np.array([[1000]], I32),
        np.array([[1000]], F32),
        np.array([[127]], I8),
        np.array([[500 + 2**31 - 1 - 2**32]], I32),
        np.array([[0]], F16),
    ]
    check(
        accumulated,
        lambda *_: wants,
        *ACCUMULATED,
        turn=False,
        log=False,
        paths=BOTH[:1],
    )


def test_dot_with_an_accumulator_has_its_time() -> None:
    """A row of the op_log: 2 M N K flops, on the GEMM engine, of three tiles."""
    wants = [np.zeros((1, 1), d) for d in (I32, F32, I8, I32, F16)]
    call = kb.kernel_call(
        looped(accumulated, wants, "range", 2), specs([np.stack([w, w]) for w in wants])
    )
    log = call.op_log(*specs([np.stack([a, a]) for a in ACCUMULATED]))
    rows = [row for row in log if row.op_name == "dot"]
    assert len(rows) == 2 * 7 and {row.flops for row in rows} == {4}
    assert all(row.end_ns > row.start_ns for row in rows)


# --- sums ----------------------------------------------------------------------------


# (element type, value of each element, shape, sum, its element type), by path.
SUMS: dict[str, list[tuple[np.dtype, Any, tuple[int, int], Any, np.dtype]]] = {
    "rolled, jit": [
        (F16, 1, (64, 64), 4096, F16),  # stalls at 2048 in float16
        (I8, 1, (15, 20), 300, I32),
        (I8, 1, (16, 8), 128, I32),
        (BOOL, True, (15, 20), 300, I32),
        (F16, 16, (64, 64), INF, F16),  # 65536 in float32
        (U8, 255, (15, 20), 76500, I32),
        (I16, -32768, (15, 20), -9830400, I32),
    ],
    "unrolled, exact, PEs": [
        (BF16, 1, (25, 40), 1000, BF16),  # stalls at 256 in bfloat16
        (I32, 2**30, (1, 5), 2**30 * 5 - 2**32, I32),
    ],
}


@pytest.mark.parametrize("path", SUMS)
def test_sums(path: str) -> None:
    """Over axis 0, axis 1 and both, of the whole and of rows: 16-bit floats add in
    float32 and are rounded once; bool and small integers give int32."""

    def body(tl: Any, *tiles: Any) -> list[Any]:
        found: list[Any] = []
        for x, (_, _, shape, _, _) in zip(tiles, SUMS[path], strict=True):
            size = math.prod(shape)
            column, row = tl.reshape(x, (size, 1)), tl.reshape(x, (1, size))
            found += [
                tl.sum(x, axis=None), tl.sum(column, 0, True), tl.sum(row, axis=-1),
                tl.sum(x, axis=0), tl.sum(column, axis=1), tl.sum(x.to("float32")),
            ]  # fmt: skip
        return found

    def oracle(*arrays: np.ndarray) -> list[np.ndarray]:
        del arrays
        found = []
        for _, value, (rows, columns), want, result in SUMS[path]:
            size, one = rows * columns, int(value)
            part = [one * rows, one]
            wide = part if result != I32 else [int(wrapped(p, I32)) for p in part]
            found += [
                np.array(want, result), np.full((1, 1), want, result),
                np.full(1, want, result), np.full(columns, wide[0], result),
                np.full(size, wide[1], result), np.array(float(one) * size, F32),
            ]  # fmt: skip
        return found

    arrays = [np.full(shape, value, dtype) for dtype, value, shape, _, _ in SUMS[path]]
    names = [
        f"{dtype} {value} {shape}, {n}"
        for dtype, value, shape, _, _ in SUMS[path]
        for n in ("whole", "column", "row", "axis 0", "each", "as float32")
    ]
    check(body, oracle, *arrays, turn=False, paths=[path], names=names)


def test_sums_of_half_precision_add_in_float32() -> None:
    """2048 + 3 halves and 256 + 3 halves, in every order: rounded as they are added,
    they stay 2048 and 256."""

    def body(tl: Any, h: Any, b: Any) -> list[Any]:
        return [tl.sum(h), tl.sum(b, axis=0)]

    def oracle(h: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        del h, b
        return [np.array(2050, F16), np.array(258, BF16)]

    h, b = np.array([2048, 0.5, 0.5, 0.5], F16), np.array([256, 0.5, 0.5, 0.5], BF16)
    check(body, oracle, h, b, paths=BOTH[:1])


# --- dot of floats -------------------------------------------------------------------


def test_products_of_half_precision_are_float32() -> None:
    """Scores of 8,388,608 are beyond float16: dot gives float32, or what it is asked
    for. float8 is multiplied as what it is."""
    q, k = np.full((1, 128), 256), np.stack([np.full(128, 256), np.full(128, 255)])
    scores = (q @ k.T).astype(F32)
    assert scores.tolist() == [[8388608.0, 8355840.0]]
    small = np.array([[0.5, -1.5, 448.0, 2.0]])

    def body(tl: Any, *tiles: Any) -> list[Any]:
        found: list[Any] = []
        for a, b in (tiles[0:2], tiles[2:4], (tiles[0], tiles[3])):
            found.append(tl.dot(a, tl.trans(b)))
        a, b, c, d, e, f, g = tiles
        half = tl.dot(a, tl.trans(b), out_dtype="float16")
        return [
            *found, half, tl.dot(c, tl.trans(d), out_dtype=c.dtype),
            tl.dot(a, tl.trans(b)) * 128**-0.5,
            tl.dot(e, tl.trans(e)), tl.dot(e, tl.trans(f)), tl.dot(f, tl.trans(g)),
            tl.dot(g, tl.trans(e), out_dtype="bfloat16"),
            tl.dot(e, tl.trans(e), out_dtype="float8_e4m3fn"),
        ]  # fmt: skip

    def oracle(*arrays: np.ndarray) -> list[np.ndarray]:
        e, f, g = (x.astype(np.float64) for x in arrays[4:])
        scaled = scores * F32.type(128**-0.5)
        return [
            scores, scores, scores, np.full((1, 2), INF, F16), scores.astype(BF16),
            scaled,
            (e @ e.T).astype(F32), (e @ f.T).astype(F32), (f @ g.T).astype(F32),
            (g @ e.T).astype(F32).astype(BF16), (e @ e.T).astype(F32).astype(E4M3),
        ]  # fmt: skip

    arrays = [q.astype(F16), k.astype(F16), q.astype(BF16), k.astype(BF16)]
    arrays += [small.astype(E4M3), small.astype(E5M2), small.astype(BF16)]
    assert np.isnan(oracle(*arrays)[-1].astype(F32)).all()  # 200709 overflows to NaN
    check(body, oracle, *arrays, turn=False, paths=BOTH[:1])


# --- float to integer ----------------------------------------------------------------

CAST = [1.9, -1.9, 127.6, -128.9, 200, -200, 510, INF, -INF, NAN, -0.5, 0.999, -0.0,
        255.5, 256, 32767.9, -32768.5, 65504, 2147483520.0, 2147483648.0, -2147483648.0,
        3e9, -3e9, 1e30, 1e-40]  # fmt: skip


def truncated(value: float, dtype: np.dtype) -> int:
    """Towards 0, saturating; NaN gives 0."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if value != value:
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(math.trunc(value), low), high)


@pytest.mark.parametrize("source", [F32, BF16], ids=str)
def test_float_to_integer_truncates_and_saturates(source: np.dtype) -> None:
    targets = (I8, I16, U8, I32)

    def body(tl: Any, x: Any) -> list[Any]:
        named = [x.to(str(target)) for target in targets]
        return [*named, tl.cast(x * 1.0, np.int8), (x + 0.0).to(tl.int32)]

    def oracle(x: np.ndarray) -> list[np.ndarray]:
        found = [
            np.array([truncated(float(v), target) for v in x], target)
            for target in targets
        ]
        return [*found, found[0], found[3]]

    with np.errstate(over="ignore"):
        x = np.array(CAST).astype(F32).astype(source)
    assert oracle(x)[0][:4].tolist() == [1, -1, 127, -128]
    assert oracle(x)[0][4:10].tolist() == [127, -128, 127, 127, -128, 0]
    check(body, oracle, x, paths=SHARED[str(source)])


def test_float8_to_integer_and_integers_among_themselves() -> None:
    """float8 by its value; integer to integer keeps the low bits."""

    def body(tl: Any, a: Any, b: Any, n: Any, u: Any) -> list[Any]:
        return [
            a.to("int8"), b.to("int8"), b.to("int32"), b.to("uint8"),
            n.to("int16"), n.to("int8"), n.to("uint8"), n.to("bool"), n.to("float16"),
            u.to("int8"), u.to("int32"), u.to("float8_e4m3fn"), u.to("bool"),
        ]  # fmt: skip

    def oracle(a: Any, b: Any, n: Any, u: Any) -> list[np.ndarray]:
        def of(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
            return np.array([truncated(float(v), dtype) for v in x], dtype)

        return [
            of(a, I8), of(b, I8), of(b, I32), of(b, U8),
            wrapped(n, I16), wrapped(n, I8), wrapped(n, U8), n != 0, n.astype(F16),
            wrapped(u, I8), wrapped(u, I32), u.astype(F32).astype(E4M3), u != 0,
        ]  # fmt: skip

    values = np.array([1.5, -1.75, 448, -448, NAN, INF, 0.0, 240], F32)
    n = np.array([300, -1, 2**31 - 1, -(2**31), 65535, 65536, 0, 255], I32)
    u = np.array([0, 1, 127, 128, 200, 255, 17, 3], U8)
    check(body, oracle, values.astype(E4M3), values.astype(E5M2), n, u, paths=BOTH[:1])


# --- NaN -----------------------------------------------------------------------------

NAN_ROWS = [[NAN, 6, 8], [6, NAN, 8], [6, 8, NAN], [NAN, NAN, NAN], [-INF, NAN, INF],
            [-0.0, 0.0, -0.0], [5, 5, 4], [-INF, -INF, -INF], [INF, 1, 2]]  # fmt: skip


def best(row: np.ndarray, largest: bool) -> int:
    """The first NaN, else the first of the largest (smallest)."""
    values = [float(v) for v in row]
    for at, value in enumerate(values):
        if value != value:
            return at
    return values.index(max(values) if largest else min(values))


def winner(values: np.ndarray, largest: bool) -> float:
    """NaN if there is one; both zeros are 0.0."""
    found = [float(v) for v in np.asarray(values).reshape(-1)]
    if any(v != v for v in found):
        return NAN
    return (max(found) if largest else min(found)) + 0.0


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_nan_wins(dtype: np.dtype) -> None:
    """In maxima and minima of pairs, rows, columns and wholes, wherever it stands; the
    first NaN is argmax and argmin. Adding 0 makes the zeros one, for which of them
    wins is left open."""

    def body(tl: Any, x: Any) -> list[Any]:
        found = [tl.argmax(x, axis=0), tl.argmin(x, axis=1)]
        for reduce, position, pair in (
            (tl.max, tl.argmax, tl.maximum), (tl.min, tl.argmin, tl.minimum),
        ):  # fmt: skip
            found += [
                reduce(x, axis=0) + 0.0, reduce(x, axis=1) + 0.0, reduce(x) + 0.0,
                position(x), reduce(x[tl.ds(0, 1)], axis=0) + 0.0,
                pair(x[tl.ds(0, 8)], x[tl.ds(1, 8)]) + 0.0, pair(7.0, x) + 0.0,
                pair(x, NAN),
            ]  # fmt: skip
        return [*found, tl.clamp(x, -1.0, 7.0), tl.clamp(x, NAN, 7.0)]

    def oracle(x: np.ndarray) -> list[np.ndarray]:
        found = [
            np.array([best(column, True) for column in x.T], I32),
            np.array([best(row, False) for row in x], I32),
        ]
        for largest in (True, False):
            win = partial(winner, largest=largest)
            pairs = [
                [win(np.array(ab)) for ab in zip(p, q, strict=True)]
                for p, q in zip(x[:8].astype(F32), x[1:].astype(F32), strict=True)
            ]
            found += [
                np.array([win(column) for column in x.T], dtype),
                np.array([win(row) for row in x], dtype), np.array(win(x), dtype),
                np.array(best(x.ravel(), largest), I32), x[0] + dtype.type(0),
                np.array(pairs, dtype),
                np.array([win(np.array([float(v), 7])) for v in x.ravel()], dtype)
                .reshape(x.shape),
                np.full(x.shape, NAN, dtype),
            ]  # fmt: skip
        low = [v if v != v else min(max(v, -1.0), 7.0) for v in map(float, x.ravel())]
        found += [np.array(low, dtype).reshape(x.shape)]
        return [*found, np.full(x.shape, NAN, dtype)]

    x = np.array(NAN_ROWS, F32).astype(dtype)
    check(body, oracle, x, paths=BOTH[:1] if dtype == F32 else ["rolled, plain"])


def test_which_zero_wins_is_one_answer() -> None:
    """The bits of maxima of zeros of both signs do not depend on the path."""
    zeros = np.array([[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0], [0.0, 0.0]])
    dtypes = (F32, BF16)

    def body(tl: Any, *tiles: Any) -> list[Any]:
        found: list[Any] = []
        for x in tiles:
            found += [
                tl.max(x, axis=1), tl.min(x), tl.maximum(x, 0.0), tl.minimum(-0.0, x),
                tl.maximum(x[0:1], x[1:2]), tl.minimum(x[0:1], x[1:2]),
            ]  # fmt: skip
        return found

    like = [zeros[:, 0], zeros[0, 0], zeros, zeros, zeros[:1], zeros[:1]]
    wants = [w.astype(dtype) for dtype in dtypes for w in like]
    arrays = [np.stack([zeros.astype(dtype)] * 2) for dtype in dtypes]
    found = []
    for form, fidelity, jitted in (
        ("range", "live", False), ("static_range", "live", True),
        ("range", "exact", False),
    ):  # fmt: skip
        shapes = tuple(jax.ShapeDtypeStruct((2, *w.shape), w.dtype) for w in wants)
        call = kb.kernel_call(looped(body, wants, form, 2), shapes)
        if jitted:  # of constants
            found.append(jax.jit(lambda call=call: call(*arrays))())
        else:
            found.append(call.run(*arrays, fidelity=fidelity).outputs)
    for other in found[1:]:
        for n, (a, b) in enumerate(zip(other, found[0], strict=True)):
            which, dtype = n % len(like), dtypes[n // len(like)]
            assert_same_bits(a, b, f"which zero, output {which} of {dtype}")


@pytest.mark.parametrize("dtype", [F16], ids=str)
def test_a_nan_key_reaches_the_rows_that_see_it(dtype: np.dtype) -> None:
    """Through the shipped kernels, wherever in a tile it stands; the tail is one."""
    rng = np.random.default_rng(23)
    q = rng.standard_normal((2, 4, 16)).astype(dtype)
    k, v = (rng.standard_normal((2, 21, 16)).astype(dtype) for _ in range(2))
    decode = kb.kernel_call(
        partial(gqa_decode, tile=8), jax.ShapeDtypeStruct((4, 16), dtype), num_pes=2
    )
    queries = rng.standard_normal((1, 21, 16)).astype(dtype)
    prefill = kb.kernel_call(
        partial(flash_prefill, block=8, tile=8),
        jax.ShapeDtypeStruct((1, 21, 16), dtype),
    )
    clean = np.asarray(decode(q, k, v)), np.asarray(prefill(queries, k[0], v[0]))
    for at in (0, 10, 20):
        dirty = k.copy()
        dirty[0, at, at % 16] = NAN
        got = np.asarray(decode(q, dirty, v))
        assert np.isnan(got[0].astype(F32)).all()
        assert_same_bits(got[1], clean[0][1], "the other PE")
        got = np.asarray(prefill(queries, dirty[0], v[0]))
        assert np.isnan(got[0, at:].astype(F32)).all()
        assert_same_bits(got[0, :at], clean[1][0, :at], f"rows before key {at}")


# --- scalars, where, mixed types -----------------------------------------------------


def test_scalars_are_weak() -> None:
    """A scalar, Python's or NumPy's, never widens a tile but by kind."""

    def body(tl: Any, h: Any, b: Any, n: Any, i: Any, u: Any, m: Any) -> list[Any]:
        return [
            h * 0.5, h * np.float32(0.5), h * np.float64(0.5), 0.5 * h, h * 2,
            np.float64(0.5) * h, h + np.int64(2), h + True, h - ml_dtypes.bfloat16(1),
            h + b, h * i, h / 3, b * n, b * 0.1,
            n * 0.5, n / 2, n + np.int8(1), n * True, n // 2.0, n**0.5,
            i + 1, i * np.int64(1), i * 0.5, i / i, i + u, i + n, u / 2, -u,
            m + 1, m * 0.5, m * h, m + i, m & True, m | (h > 1), m & i, m / m,
            tl.maximum(h, 1), tl.maximum(i, 1), tl.minimum(n, 0.5), tl.maximum(m, m),
            tl.fma(h, 2, 1.0), h > 1, i > 1.5, n == b, h != np.float64(0.1),
        ]  # fmt: skip

    def oracle(h: Any, b: Any, n: Any, i: Any, u: Any, m: Any) -> list[np.ndarray]:
        f = F32.type
        half, wide = F16.type(0.5), h.astype(F32)
        i32, i16 = i.astype(I32), i.astype(I16)
        return [
            *(h * half,) * 4, h * F16.type(2),
            h * half, h + F16.type(2), h + F16.type(1), h - F16.type(1),
            wide + b.astype(F32), h * i.astype(F16), h / F16.type(3),
            b * n.astype(BF16), b * BF16.type(0.1),
            n.astype(F32) * f(0.5), n.astype(F32) / f(2), n + I32.type(1), n,
            np.floor(n.astype(F32) / f(2)), np.sqrt(n.astype(F32)),
            i + I8.type(1), i, i.astype(F32) * f(0.5), i.astype(F32) / i.astype(F32),
            i16 + u.astype(I16), i32 + n, u.astype(F32) / f(2),
            wrapped(-u.astype(object), U8),
            m.astype(I32) + I32.type(1), m.astype(F32) * f(0.5), m.astype(F16) * h,
            m.astype(I8) + i, m, m | (h > 1), m.astype(I8) & i,
            m.astype(F32) / m.astype(F32),
            np.maximum(h, F16.type(1)), np.maximum(i, I8.type(1)),
            np.minimum(n.astype(F32), f(0.5)), m,
            (h * F16.type(2) + F16.type(1)), h > 1, i > 1.5,
            n.astype(F32) == b.astype(F32), h != F16.type(0.1),
        ]  # fmt: skip

    h = np.array([[0.1, 1.0, 3.0], [-2.5, 0.25, 8.0]], F16)
    arrays = [
        h, np.array([[0.5, 3.0, -1.0]], BF16), np.array([[1, 9, 100], [4, 0, 16]], I32),
        np.array([[1, -3, 127], [2, 2, -128]], I8), np.array([[1, 200, 255]], U8),
        np.array([[True, False, True]]),
    ]  # fmt: skip
    check(body, oracle, *arrays, paths=BOTH[:1])


def test_where_gives_its_branches_type() -> None:
    """The common type of the branches, scalars weak; shapes broadcast."""

    def body(tl: Any, h: Any, b: Any, row: Any, column: Any, i: Any) -> list[Any]:
        where = tl.where
        return [
            where(row, h, -INF), where(column, 1, h), where(column, h, b),
            where(row, 1, 0.5), where(row, 1, 0), where(row, True, False),
            where(row, True, 2), where(column, i, 1), where(row, i, 0.5),
            where(row, i, h), where(row, np.float64(0.1), h), where(row, column, row),
            where(row, row, 3), tl.where(cond=column, a=h, b=np.int64(3)),
        ]  # fmt: skip

    def oracle(h: Any, b: Any, row: Any, column: Any, i: Any) -> list[np.ndarray]:
        return [
            np.where(row, h, F16.type(-INF)), np.where(column, F16.type(1), h),
            np.where(column, h.astype(F32), b.astype(F32)),
            np.where(row, F32.type(1), F32.type(0.5)),
            np.where(row, I32.type(1), I32.type(0)), row,
            np.where(row, I32.type(1), I32.type(2)), np.where(column, i, I8.type(1)),
            np.where(row, i.astype(F32), F32.type(0.5)),
            np.where(row, i.astype(F16), h), np.where(row, F16.type(0.1), h),
            np.where(row, column, row), np.where(row, I32.type(1), I32.type(3)),
            np.where(column, h, F16.type(3)),
        ]  # fmt: skip

    h = np.array([[0.1, 1.0, 3.0], [-2.5, 0.25, 8.0]], F16)
    arrays = [
        h, np.array([[0.5, 3.0, -1.0]], BF16), np.array([[True, False, True]]),
        np.array([[False], [True]]), np.array([[1, -3, 127]], I8),
    ]  # fmt: skip
    check(body, oracle, *arrays, paths=BOTH[1:])


def test_float8_moves_and_compares() -> None:
    """Casts round once and do not saturate; comparisons are those of the values."""

    def body(tl: Any, x: Any, a: Any, b: Any) -> list[Any]:
        c = x.to("float8_e4m3fn")
        return [
            c, x.to("float8_e5m2"), a.to("float32"), b.to("float16"), a.to("bfloat16"),
            a.to("float8_e5m2"), a < c, a == c, b >= 1.5, a != a, tl.where(a < c, a, c),
            tl.where(a == a, a, 2.0), tl.trans(tl.expand_dims(a, 0)),
            tl.broadcast_to(a, (2, a.shape[0])), tl.full((3,), 460.0, "float8_e4m3fn"),
            tl.full((3,), -1e9, "float8_e5m2"), a > True,
        ]  # fmt: skip

    def oracle(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        c, p, q = x.astype(E4M3), a.astype(F32), b.astype(F32)
        r = c.astype(F32)
        return [
            c, x.astype(E5M2), p, b.astype(F16), a.astype(BF16), p.astype(E5M2),
            p < r, p == r, q >= 1.5, p != p, np.where(p < r, a, c),
            np.where(p == p, a, E4M3.type(2)), a.reshape(-1, 1), np.stack([a, a]),
            np.full(3, 448, E4M3), np.full(3, -INF, E5M2), p > 1,
        ]  # fmt: skip

    x = np.array([0.1, 448, 464, 465, 500, 57344, 61440, 1e9, -INF, NAN, 2**-9, 1.06],
                 F32)  # fmt: skip
    a = np.array([0.1, 448, -448, NAN, 1, 0, -0.0, 2, 3, 1.5, 2**-9, 1.125], F32)
    check(body, oracle, x, a.astype(E4M3), (a * 2).astype(E5M2), paths=BOTH[1:])


# --- a kernel's own softmax and normalisation ----------------------------------------


def split_attention(tl: Any, s: Any, v: Any, o: Any, lse: Any, *, base2: bool) -> None:
    """Two splits of one query's keys, merged by their log-sum-exps in one base."""
    exp, log = (tl.exp2, tl.log2) if base2 else (tl.exp, tl.log)
    parts = []
    for low, high in ((0, 2), (2, 3)):
        t = tl.load(s[:, low:high]) * (math.log2(math.e) if base2 else 1.0)
        m = tl.max(t, axis=1, keepdims=True)
        p = exp(t - m)
        total = tl.sum(p, axis=1, keepdims=True)
        parts.append((tl.dot(p, tl.load(v[low:high, :])) / total, m + log(total)))
    (a, la), (b, lb) = parts
    m = tl.maximum(la, lb)
    wa, wb = exp(la - m), exp(lb - m)
    tl.store(o, (a * wa + b * wb) / (wa + wb))
    tl.store(lse, m + log(wa + wb))


@pytest.mark.parametrize(
    ("base2", "want"), [(False, 3.16984602), (True, 4.57312113)], ids=["exp", "exp2"]
)
def test_log_sum_exp_in_one_base(base2: bool, want: float) -> None:
    """Bases that are mixed give 2.89765 or 2.69925."""
    s = np.array([[0, 1, 3]], F32)
    v = np.array([[1], [2], [3]], F32)
    one = jax.ShapeDtypeStruct((1, 1), "float32")
    call = kb.kernel_call(partial(split_attention, base2=base2), (one, one))
    o, lse = call(s, v)
    np.testing.assert_allclose(o, [[2.80178467]], rtol=1e-6)
    np.testing.assert_allclose(lse, [[want]], rtol=1e-6)


def rmsnorm(
    tl: Any, x: Any, o: Any, squares: Any, *, eps: float, mean_first: bool
) -> None:
    width = x.shape[1]
    for r in tl.range(x.shape[0]):
        with tl.scratch_scope():
            row = tl.load(x[tl.ds(r, 1), :]).to("float32")
            square = row * (row / width) if mean_first else row * row
            mean = tl.sum(square, axis=1, keepdims=True)
            tl.store(squares[tl.ds(r, 1), :], mean)
            if not mean_first:
                mean = mean / width
            tl.store(o[tl.ds(r, 1), :], (row / tl.sqrt(mean + eps)).to(o.dtype))


def normalised(x: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(1, keepdims=True) + eps)


@cache  # cases that differ in their data share what is compiled
def rmsnorm_call(dtype: np.dtype, eps: float, mean_first: bool) -> kb.KernelCall:
    """On two rows of 512."""
    return kb.kernel_call(
        partial(rmsnorm, eps=eps, mean_first=mean_first),
        (jax.ShapeDtypeStruct((2, 512), dtype), jax.ShapeDtypeStruct((2, 1), F32)),
    )


@pytest.mark.parametrize(
    ("dtype", "value", "eps", "mean_first"),
    [
        (F16, 300.0, 1e-5, False),  # its square is beyond float16
        (F16, 1e-4, 1e-12, False),  # its square is 0 in float16
        (BF16, 300.0, 1e-5, True),
        (F32, 1e17, 1e-5, True),
        (F32, 1e18, 1e-5, True),
    ],
)
def test_rmsnorm_of_a_constant_row(
    dtype: np.dtype, value: float, eps: float, mean_first: bool
) -> None:
    x = np.full((2, 512), value, dtype)
    call = rmsnorm_call(dtype, eps, mean_first)
    want = normalised(x, eps)
    assert want[0, 0] == pytest.approx(0.99995 if value == 1e-4 else 1.0, rel=1e-5)
    got, squares = call.run(x, fidelity="exact" if mean_first else "live").outputs
    assert np.isfinite(np.asarray(squares)).all()
    rtol = 2.0**-11 if dtype == F16 else 2.0**-8 if dtype == BF16 else 3e-6
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rtol)


def test_rmsnorm_of_one_element() -> None:
    x = np.zeros((1, 512), F16)
    x[0, 77] = 300
    call = kb.kernel_call(
        partial(rmsnorm, eps=1e-5, mean_first=False),
        (jax.ShapeDtypeStruct(x.shape, "float32"), jax.ShapeDtypeStruct((1, 1), F32)),
    )
    got = np.asarray(call(x)[0])
    assert got[0, 77] == pytest.approx(math.sqrt(512), rel=1e-6)
    assert not np.delete(got, 77).any()


def test_a_sum_of_squares_beyond_float32_is_infinite() -> None:
    """Not the largest float, and not NaN: what divides by it is 0, and the sum says
    why. 1e36 x 512 is beyond 3.4e38; the mean taken first is not."""
    x = np.full((1, 512), 1e18, F32)
    shapes = (
        jax.ShapeDtypeStruct(x.shape, "float32"), jax.ShapeDtypeStruct((1, 1), F32),
    )  # fmt: skip
    for fidelity in ("live", "exact"):
        plain = kb.kernel_call(partial(rmsnorm, eps=1e-5, mean_first=False), shapes)
        got, squares = plain.run(x, fidelity=fidelity).outputs
        assert np.asarray(squares).tolist() == [[INF]] and not np.asarray(got).any()
