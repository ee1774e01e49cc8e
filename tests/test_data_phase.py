"""Replay: one compilation a program, what loops carry, trip counts, PEs, inputs of all
kinds, outputs that are never stale, and the order of stores."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import hbm, ops
from kbjax.kernels import _attention as attention
from kbjax.kernels.flash_prefill import flash_prefill
from kbjax.kernels.gqa_decode import gqa_decode
from tests.helpers import assert_same_bits, assert_same_tcm

try:
    import torch
except ImportError:  # an optional extra; its tests are then not collected
    torch = None

FIDELITIES = ("live", "exact")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def shape(*sizes: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def ints(*sizes: int) -> np.ndarray:
    return np.arange(int(np.prod(sizes)), dtype=np.int32).reshape(sizes)


def normal(seed: int, *sizes: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


def loop_of(tl: Any, unroll: bool) -> Callable[..., Any]:
    return tl.static_range if unroll else tl.range


# --- one compilation -----------------------------------------------------------------


def tile_sum(tl: Any, x: Any, o: Any, *, tile: int = 4) -> None:
    total = tl.zeros((tile, 1))
    for j in tl.range(x.shape[0] // tile):
        with tl.scratch_scope():
            part = tl.load(x[tl.ds(j * tile, tile), :])
            tl.copy_to(total, total + tl.sum(part, axis=1, keepdims=True))
    tl.store(o, total)


@pytest.fixture
def compilations(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], int]]:
    """How many functions JAX has compiled since the last question."""
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):

        def count() -> int:
            texts = [record.getMessage() for record in caplog.records]
            caplog.clear()
            return sum(text.startswith("Finished XLA compilation") for text in texts)

        yield count


def test_new_data_compiles_nothing(compilations: Callable[[], int]) -> None:
    """FC-35 (d): ten calls on new data, one compilation."""
    call = kb.kernel_call(tile_sum, shape(4, 1))
    data = [normal(seed, 16, 3) for seed in range(10)]
    compilations()
    results = [np.asarray(call(x)) for x in data]
    assert compilations() == 1
    for x, got in zip(data, results, strict=True):
        want = x.reshape(4, 4, 3).astype(np.float64).sum((0, 2))[:, None]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_sweep_of_lengths_compiles_once_each(compilations: Any) -> None:
    """FC-35 (c): the second pass compiles nothing; nor does another dtype's array."""
    call = kb.kernel_call(tile_sum, shape(4, 1))
    lengths = (4, 8, 16, 64, 256, 1024)
    eight = jnp.ones((8, 3), jnp.float32)
    compilations()
    for expected in (len(lengths), 0):
        for length in lengths:
            call(np.ones((length, 3), np.float32))
        assert compilations() == expected
    call.run(np.ones((8, 3), np.float32))
    assert compilations() == 1  # another function: it gives the memory too
    call.run(np.ones((8, 3), np.float32))
    call(eight)
    assert compilations() == 0


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation, those of inner jaxprs too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def jaxpr_of(call: Any, *arrays: Any) -> Any:
    return jax.make_jaxpr(call)(*arrays).jaxpr


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_equations_do_not_grow_with_the_trip_count(fidelity: Any) -> None:
    """FC-35 (b): 16 tiles trace to as many equations as 32, and 128 to as many as
    16,384, of which runs of 64 have a loop of their own."""
    counts = []
    for tiles, scans in ((16, 1), (32, 1), (128, 2), (16_384, 2)):
        call = kb.kernel_call(partial(gqa_decode, tile=2), shape(2, 4))
        arrays = shape(2, 4), shape(2 * tiles, 4), shape(2 * tiles, 4)
        run = partial(call.run, fidelity=fidelity)
        names = [
            eqn.primitive.name
            for eqn in equations(jaxpr_of(lambda *x, run=run: run(*x).outputs, *arrays))
        ]
        assert names.count("scan") == scans
        counts.append(names)
    assert counts[0] == counts[1] and counts[2] == counts[3]


# --- what loops carry ----------------------------------------------------------------


def carries(call: Any, *arrays: Any) -> list[list[tuple[Any, ...]]]:
    """For each scan, the shapes that its iterations hand on."""
    found = []
    for eqn in equations(jaxpr_of(call, *arrays)):
        if eqn.primitive.name == "scan":
            first = eqn.params["num_consts"]
            last = first + eqn.params["num_carry"]
            found.append([v.aval.shape for v in eqn.invars[first:last]])
    return found


def test_live_carries_what_crosses() -> None:
    """A flash loop hands on m, l and the accumulator, and nothing else."""
    call = kb.kernel_call(partial(gqa_decode, tile=8), shape(2, 4))
    arrays = shape(2, 4), shape(64, 4), shape(64, 4)
    assert sorted(carries(call, *arrays)[0]) == [(2, 1), (2, 1), (2, 4)]
    with_memory = carries(lambda *x: call.run(*x).outputs, *arrays)
    assert sorted(with_memory[0]) == [(2, 1), (2, 1), (2, 4)]
    exact = carries(lambda *x: call.run(*x, fidelity="exact").outputs, *arrays)
    assert exact == [[(1 << 20,)]]


def test_live_carries_no_dead_tile() -> None:
    """A tile that each iteration writes before it reads it, and that nothing reads
    after, stays inside; a buffer that is read after the loop crosses."""

    def kernel(tl: Any, x: Any, o: Any, *, last: bool) -> None:
        buffer = tl.empty((4,))
        total = tl.zeros((1,))
        for j in tl.range(x.shape[0]):
            with tl.scratch_scope():
                tl.copy_to(buffer, tl.load(x[j]) * 2.0)
                tl.copy_to(total, total + tl.sum(buffer, axis=0, keepdims=True))
        tl.store(o, buffer if last else tl.broadcast_to(total, (4,)))

    for last, want in ((False, [(1,)]), (True, [(4,)])):
        call = kb.kernel_call(partial(kernel, last=last), shape(4))
        found = carries(call, shape(9, 4))[0]
        assert set(want) <= set(found)
        if not last:
            assert found == want
    x = normal(0, 9, 4)
    got = kb.kernel_call(partial(kernel, last=True), shape(4))(x)
    assert_same_bits(got, x[-1] * 2)


def test_a_write_that_may_not_cover_keeps_the_old_value() -> None:
    """Half of a tile written each iteration; a tile written in an inner loop that may
    run zero times. Both are read as a whole: what was not written crosses."""

    def kernel(tl: Any, x: Any, halves: Any, held: Any) -> None:
        pair, last = tl.zeros((2, 3)), tl.full((3,), 5.0)
        for j in tl.range(5):
            with tl.scratch_scope():
                tl.copy_to(pair[tl.ds(j % 2, 1)], tl.load(x[tl.ds(j, 1), :]))
                tl.store(halves[j], pair)
                for _ in tl.range(j % 2):
                    with tl.scratch_scope():
                        tl.copy_to(last, tl.load(x[j]))
                tl.store(held[j], last)

    x = normal(11, 5, 3)
    halves, held = np.zeros((5, 2, 3), np.float32), np.zeros((5, 3), np.float32)
    pair, last = np.zeros((2, 3), np.float32), np.full(3, 5, np.float32)
    for j in range(5):
        pair[j % 2] = x[j]
        last = x[j] if j % 2 else last
        halves[j], held[j] = pair, last
    call = kb.kernel_call(kernel, (shape(5, 2, 3), shape(5, 3)))
    assert_same_bits(call(x), (halves, held), "live")  # nothing is alive at its end
    for fidelity in FIDELITIES:
        got = call.run(x, fidelity=fidelity).outputs
        assert_same_bits(got, (halves, held), fidelity)


# --- trip counts ---------------------------------------------------------------------

RANGES = [(0,), (1,), (5, 3), (0, 10, 3), (10, 0, -3), (4,), (7, -8, -5), (3, 3)]


def horner(tl: Any, x: Any, *outs: Any, bounds: Any, unroll: bool) -> None:
    """acc <- 3 acc + i + x: the order of the iterations matters. `bounds`: of a loop
    for each output, one after the other."""
    for each, o in zip(bounds, outs, strict=True):
        acc = tl.load(x)
        for i in loop_of(tl, unroll)(*each):
            with tl.scratch_scope():
                tl.copy_to(acc, acc * 3 + i + tl.load(x))
        tl.store(o, acc)


def horner_call(*bounds: Any, unroll: bool) -> kb.KernelCall:
    outs = tuple(shape(2, 3, dtype="int32") for _ in bounds)
    return kb.kernel_call(partial(horner, bounds=bounds, unroll=unroll), outs)


def test_trip_counts() -> None:
    """FC-33: rolled, unrolled, live and exact are Python's range; the op_log's loads
    are those of the trips that run."""
    x = ints(2, 3)
    wants = []
    for bounds in RANGES:
        want = x
        for i in range(*bounds):
            want = want * np.int32(3) + np.int32(i) + x
        wants.append(want)
    for unroll in (False, True):
        call = horner_call(*RANGES, unroll=unroll)
        for fidelity in FIDELITIES if not unroll else ("live",):
            found = call.run(x, fidelity=fidelity).outputs
            for bounds, got, want in zip(RANGES, found, wants, strict=True):
                assert_same_bits(got, want, f"{bounds} unroll={unroll} {fidelity}")
        for bounds in RANGES:
            log = horner_call(bounds, unroll=unroll).op_log(x)
            loads = [row for row in log if row.op_name == "load"]
            assert len(loads) == 1 + len(range(*bounds)), bounds


@pytest.mark.parametrize("bounds", [(0, 4, 0), (4, 0, 0)])
@pytest.mark.parametrize("unroll", [False, True])
def test_step_0_is_refused(unroll: bool, bounds: Any) -> None:
    call = horner_call(bounds, unroll=unroll)
    with pytest.raises(ValueError, match="step 0"):
        call.record(shape(2, 3, dtype="int32"))


NESTED: dict[str, tuple[Any, Any]] = {
    "triangle": (lambda tl, i: (i + 1,), lambda i: (i + 1,)),
    "shrinking": (lambda tl, i: (i, 3), lambda i: (i, 3)),
    "empty for most": (lambda tl, i: (i - 2,), lambda i: (i - 2,)),
    "never": (lambda tl, i: (5, 3), lambda i: (5, 3)),
    "backwards": (lambda tl, i: (i, -1, -1), lambda i: (i, -1, -1)),
    "strided": (lambda tl, i: (0, 2 * i, 3), lambda i: (0, 2 * i, 3)),
    "minimum": (lambda tl, i: (tl.minimum(i * 2, 3),), lambda i: (min(i * 2, 3),)),
    "ceiling": (lambda tl, i: (tl.cdiv(i, 2),), lambda i: (-(-i // 2),)),
}


def test_symbolic_inner_trip_counts() -> None:
    """Nested loops whose inner trip count depends on the outer index."""
    x = ints(4)

    def kernel(tl: Any, x: Any, *outs: Any, unroll: bool) -> None:
        loop = loop_of(tl, unroll)
        for (of_index, of_int), o in zip(NESTED.values(), outs, strict=True):
            acc = tl.load(x)
            for i in loop(4):
                bounds = of_int(i) if unroll else of_index(tl, i)
                for j in loop(*bounds):
                    with tl.scratch_scope():
                        tl.copy_to(acc, acc * 3 + (i * 10 + j))
            tl.store(o, acc)

    def check(found: Any, said: str) -> None:
        for (name, (_, of_int)), got in zip(NESTED.items(), found, strict=True):
            want = x
            for i in range(4):
                for j in range(*of_int(i)):
                    want = want * np.int32(3) + np.int32(i * 10 + j)
            assert_same_bits(got, want, f"{name}, {said}")

    outs = tuple(shape(4, dtype="int32") for _ in NESTED)
    rolled, unrolled = (
        kb.kernel_call(partial(kernel, unroll=unroll), outs) for unroll in (False, True)
    )
    check(unrolled(x), "unrolled")
    check(rolled(x), "without the memory")
    live, exact = (rolled.run(x, fidelity=fidelity) for fidelity in FIDELITIES)
    check(live.outputs, "live")
    check(exact.outputs, "exact")
    assert_same_tcm(rolled.record(x), live.tcm.memory, exact.tcm.memory)


def test_values_carried_together() -> None:
    """FC-33: num, denom and their ratio; the initial values for no trips."""
    counts = range(4)

    def kernel(tl: Any, *outs: Any) -> None:
        for trips, o in zip(counts, outs, strict=True):
            num, denom = tl.full((1,), 5.0), tl.full((1,), 7.0)
            ratio = tl.full((1,), 9.0)
            for _ in tl.range(trips):
                with tl.scratch_scope():
                    tl.copy_to(num, tl.full((1,), 1.0))
                    tl.copy_to(denom, tl.full((1,), 12.0))
                    tl.copy_to(ratio, num / denom)
            for n, tile in enumerate((num, denom, ratio)):
                tl.store(o[n : n + 1], tile)

    call = kb.kernel_call(kernel, tuple(shape(3) for _ in counts))
    for fidelity in FIDELITIES:
        found = call.run(fidelity=fidelity).outputs
        for trips, got in zip(counts, found, strict=True):
            want = np.array([1, 12, 1 / 12] if trips else [5, 7, 9], np.float32)
            assert_same_bits(got, want, f"{trips} trips, {fidelity}")


def test_loop_variables_are_pythons() -> None:
    """FC-33: reassigned in the body, reused by the next loop and by an inner one."""

    def loops(tl: Any, o: Any, loop: Callable[..., Any]) -> None:
        acc = tl.zeros((3,), "int32")
        for i in loop(4):
            i = i + 10
            with tl.scratch_scope():
                tl.copy_to(acc[0:1], acc[0:1] + i)
        for i in loop(3):
            with tl.scratch_scope():
                tl.copy_to(acc[1:2], acc[1:2] * 2 + i)
        for i in loop(3):
            for i in loop(2):
                with tl.scratch_scope():
                    tl.copy_to(acc[2:3], acc[2:3] * 2 + i)
        tl.store(o, acc)

    def kernel(tl: Any, rolled: Any, unrolled: Any) -> None:
        loops(tl, rolled, tl.range)
        loops(tl, unrolled, tl.static_range)

    want = np.zeros(3, np.int32)
    for i in range(4):
        want[0] += i + 10
    for i in range(3):
        want[1] = want[1] * 2 + i
    for _ in range(3):
        for i in range(2):
            want[2] = want[2] * 2 + i
    assert want[0] == 46
    call = kb.kernel_call(kernel, (shape(3, dtype="int32"),) * 2)
    for fidelity in FIDELITIES:
        rolled, unrolled = call.run(fidelity=fidelity).outputs
        assert_same_bits(rolled, want, f"rolled, {fidelity}")
        assert_same_bits(unrolled, want, f"unrolled, {fidelity}")


def test_an_index_after_its_loop_is_refused() -> None:
    def kernel(tl: Any, o: Any) -> None:
        for i in tl.range(4):
            tl.full((1,), i, "int32")
        tl.store(o, tl.full((1,), i, "int32"))

    with pytest.raises(kb.KernelError, match="after its loop"):
        kb.kernel_call(kernel, shape(1, dtype="int32")).record()


DIVISIONS = [(-3, 2), (-3, -2), (3, -2), (-7, 64), (-8, 8), (0, 3)]


@pytest.mark.parametrize("where", ["rolled", "unrolled", "pe"])
def test_index_division_floors(where: str) -> None:
    """FC-20: // and % of negative integers, on a loop index in either form and on a
    program id, in tiles and in addresses. Unrolled, the first index and the last."""
    indices = (0, 5) if where == "unrolled" else range(6)

    def kernel(tl: Any, rows: Any, o: Any, found: Any) -> None:
        loops = {
            "rolled": lambda: tl.range(6),
            "unrolled": lambda: tl.static_range(0, 6, 5),
            "pe": lambda: (tl.program_id(),),
        }
        for i in loops[where]():
            for n, (shift, divisor) in enumerate(DIVISIONS):
                value = i + shift
                with tl.scratch_scope():
                    at = (0 if where == "pe" else i, n)
                    quotient = tl.full((1,), value // divisor, "int32")
                    tl.store(o[(*at, slice(0, 1))], quotient)
                    rest = tl.full((1,), value % divisor, "int32")
                    tl.store(o[(*at, slice(1, 2))], rest)
                    row = tl.load(rows[tl.ds(value // divisor + 10, 1)])
                    tl.store(found[(*at, slice(0, 1))], row)

    many = where == "pe"
    sizes = (1 if many else 6, len(DIVISIONS))
    call = kb.kernel_call(
        kernel,
        (shape(*sizes, 2, dtype="int32"), shape(*sizes, 1, dtype="int32")),
        num_pes=6 if many else 1,
        in_axes=None,
    )
    want = np.array(
        [[divmod(i + s, d) for s, d in DIVISIONS] for i in range(6)], np.int32
    )
    rows = ints(20) * 7
    for fidelity in FIDELITIES if where == "rolled" else ("live",):
        got, found = call.run(rows, fidelity=fidelity).outputs
        for i in indices:
            quotients = np.asarray(got).reshape(want.shape)[i]
            assert_same_bits(quotients, want[i], f"{fidelity}, {i}")
            loaded = np.asarray(found).reshape(6, -1)[i]
            assert_same_bits(loaded, rows[want[i, :, 0] + 10], f"{fidelity}, {i}")


def test_division_by_an_index_that_can_be_0_is_refused() -> None:
    def kernel(tl: Any, o: Any, *, first: int) -> None:
        for i in tl.range(first, 4):
            with tl.scratch_scope():
                tl.store(o, tl.full((1,), 12 // i + 12 % i, "int32"))

    out = shape(1, dtype="int32")
    with pytest.raises(kb.KernelError, match="can be 0 in iteration i = 0"):
        kb.kernel_call(partial(kernel, first=0), out).record()
    got = kb.kernel_call(partial(kernel, first=1), out)()
    assert_same_bits(got, np.array([4], np.int32))


# --- FC-32: a value that changes its type from one iteration to the next --------------


def test_state_carried_in_python_is_refused_by_name() -> None:
    """acc = acc + tile, a float that becomes a tile: KernelError with the variable."""

    def tile(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((4,), "int32")
        for j in tl.range(4):
            acc = acc + tl.load(x[j])
        tl.store(o, acc)

    def number(tl: Any, x: Any, o: Any) -> None:
        best = float("-inf")
        for j in tl.range(4):
            best = tl.maximum(tl.load(x[j]), best)
        tl.store(o, best)

    def counter(tl: Any, x: Any, o: Any) -> None:
        at = 0
        for _ in tl.range(4):
            with tl.scratch_scope():
                tl.store(o, tl.load(x[at]))
            at += 1

    for kernel, name in ((tile, "acc"), (number, "best"), (counter, "at")):
        with pytest.raises(kb.KernelError, match=rf"`{name}`.*copy_to"):
            kb.kernel_call(kernel, shape(4)).record(shape(4, 4))


# --- rolled, unrolled, exact, live, PEs ----------------------------------------------


def sweep(
    tl: Any, q: Any, k: Any, v: Any, o: Any, *, unroll: bool, scoped: bool = True
) -> None:
    """A flash sweep that can be unrolled."""
    qh = tl.load(q)
    state = attention.start(tl, *q.shape)
    for j in loop_of(tl, unroll)(k.shape[0] // 16):
        rows = tl.ds(j * 16, 16)
        with tl.scratch_scope():
            s = tl.dot(qh, tl.trans(tl.load(k[rows, :]))) * q.shape[1] ** -0.5
            attention.fold(tl, state, s, tl.load(v[rows, :]))
    tl.store(o, attention.finish(tl, state))


@pytest.mark.parametrize("rows", [1, 4])
def test_rolled_is_unrolled_bit_for_bit(rows: int) -> None:
    q, k, v = normal(0, rows, 32), normal(1, 32, 32), normal(2, 32, 32)
    calls = [
        kb.kernel_call(partial(sweep, unroll=unroll), shape(rows, 32))
        for unroll in (False, True)
    ]
    # Each form in each fidelity once: exact costs most, above all unrolled.
    fidelities = ("exact", "live") if rows > 1 else ("live", "exact")
    rolled, unrolled = (
        call.run(q, k, v, fidelity=fidelity)
        for call, fidelity in zip(calls, fidelities, strict=True)
    )
    assert_same_bits(unrolled.outputs, rolled.outputs)
    program = calls[0].record(q, k, v)
    assert_same_tcm(program, unrolled.tcm.memory, rolled.tcm.memory)


def aliases(tl: Any, x: Any, o: Any) -> None:
    """Parts of tiles, reshapes and writes through them, a growing loop, tails."""
    tile = tl.load(x)
    flat = tl.reshape(tile, (-1,))
    tl.copy_to(tile[tl.ds(1, 2)], tile[tl.ds(3, 2)])
    for i in tl.range(3):
        tl.copy_to(flat[tl.ds(i * 3, 2)], flat[tl.ds(i * 3 + 1, 2)] * 0.7)
        kept = tl.full((1, 4), i + 0.5 if isinstance(i, int) else i)
        tl.copy_to(tile[tl.ds(i, 1)], tile[tl.ds(i, 1)] * 0.3 + kept)
    partly = tl.empty((6, 4))
    tl.copy_to(partly[tl.ds(2, 4)], tile[tl.ds(1, 4)])
    tl.store(o[tl.ds(2, 4), :], partly[tl.ds(2, 4)])


@pytest.mark.parametrize(("base", "pes"), [(64, 1), (0, 3)])
def test_exact_is_live_through_aliases(base: int, pes: int) -> None:
    """Final bytes, outputs and cursor, with writes to parts of tiles; against NumPy."""
    x = normal(3, pes, 5, 4)
    hardware = kb.Hardware(pe_tcm=kb.Hardware().pe_tcm.__class__(scratch_base=base))
    call = kb.kernel_call(aliases, shape(6, 4), num_pes=pes, hardware=hardware)
    arrays = x if pes > 1 else x[0]
    live, exact = (call.run(arrays, fidelity=f) for f in FIDELITIES)
    assert_same_bits(live.outputs, exact.outputs)
    assert_same_bits(call(arrays), np.asarray(exact.outputs), "without the memory")
    assert_same_tcm(call.record(arrays), live.tcm.memory, exact.tcm.memory)
    assert_same_bits(live.tcm.cursor, exact.tcm.cursor)
    for pe in range(pes):
        tile = x[pe].copy()
        flat = tile.reshape(-1)
        tile[1:3] = tile[3:5].copy()
        for i in range(3):
            flat[i * 3 : i * 3 + 2] = flat[i * 3 + 1 : i * 3 + 3] * np.float32(0.7)
            tile[i] = tile[i] * np.float32(0.3) + np.float32(i)
        want = np.full((6, 4), np.nan, np.float32)
        want[2:6] = tile[1:5]
        got = np.asarray(live.outputs).reshape(pes, 6, 4)[pe]
        assert_same_bits(got, want, f"PE {pe}")


def by_pe(tl: Any, x: Any, o: Any, log: Any, *, pe: int | None = None) -> None:
    """Trip counts, starts and values that depend on the PE; HBM stores inside."""
    me = tl.program_id() if pe is None else pe
    acc = tl.zeros((4,))
    for i in tl.range(me):
        with tl.scratch_scope():
            tl.copy_to(acc, acc * 0.7 + tl.load(x[i]) * 0.3)
            tl.store(log[i], acc)
            for _ in tl.range(tl.minimum(i + me, 3)):
                with tl.scratch_scope():
                    tl.copy_to(acc, acc * 1.1 + me)
    tl.store(o, acc)
    tl.store(log[4], acc)


def test_trip_counts_that_depend_on_the_pe() -> None:
    """Each PE of four is that PE alone, bit for bit; its log too, whose rows past the
    PE's trips were never stored."""
    x = normal(4, 4, 5, 4)
    out = (shape(4), shape(5, 4))
    together = kb.kernel_call(by_pe, out, num_pes=4)
    runs = {fidelity: together.run(x, fidelity=fidelity) for fidelity in FIDELITIES}
    for pe in range(4):
        alone = kb.kernel_call(partial(by_pe, pe=pe), out)
        fidelity = "exact" if pe == 3 else "live"
        run = alone.run(x[pe], fidelity=fidelity)
        for a, b in zip(runs[fidelity].outputs, run.outputs, strict=True):
            assert_same_bits(a[pe], b, f"PE {pe}, {fidelity}")
        log = np.asarray(run.outputs[1])
        assert np.isnan(log[pe:4]).all() and not np.isnan(log[:pe]).any()
    live, exact = (run.tcm.memory for run in runs.values())
    assert_same_tcm(together.record(x), live, exact)
    assert_same_bits(runs["live"].outputs, runs["exact"].outputs)


def test_many_pes_are_each_alone() -> None:
    """Products and exact ops bit for bit, exp within its last bit (trap 6)."""

    def kernel(tl: Any, a: Any, b: Any, o: Any, e: Any) -> None:
        total = tl.zeros((3, 3))
        for j in tl.range(4):
            with tl.scratch_scope():
                x, y = tl.load(a[:, tl.ds(j * 8, 8)]), tl.load(b[tl.ds(j * 8, 8), :])
                s = tl.dot(x, tl.trans(y.T)) * 0.37 + tl.sum(x, axis=1, keepdims=True)
                tl.copy_to(total, total / 3 + s)
        tl.store(o, total)
        tl.store(e, tl.exp(total * 0.1))

    a, b = normal(5, 5, 3, 32), normal(6, 5, 32, 3)
    out = (shape(3, 3), shape(3, 3))
    many = kb.kernel_call(kernel, out, num_pes=5)(a, b)
    one = kb.kernel_call(kernel, out)
    for pe in range(5):
        alone = one(a[pe], b[pe])
        assert_same_bits(many[0][pe], alone[0], f"PE {pe}")
        np.testing.assert_array_max_ulp(
            np.asarray(many[1][pe]), np.asarray(alone[1]), maxulp=1
        )


# --- inputs --------------------------------------------------------------------------


def double(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.load(x) + tl.load(x))


@cache
def doubling(dtype: str) -> kb.KernelCall:
    """Of (5, 7) arrays; compiled once."""
    return kb.kernel_call(double, shape(5, 7, dtype=np.dtype(dtype)))


def arrays_of(dtype: Any) -> dict[str, Any]:
    """(5, 7) arrays of one value each, of every kind and layout that NumPy has."""
    x = (np.arange(35).reshape(5, 7) % 11).astype(dtype)
    padded = np.zeros((10, 21), dtype)
    padded[::2, ::3] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    return {
        "C": x,
        "Fortran": np.asfortranarray(x),
        "strided": padded[::2, ::3],
        "reversed": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        "read-only": read_only,
        "unaligned": np.frombuffer(b"\0" + x.tobytes(), dtype, offset=1).reshape(5, 7),
        "jax": jnp.asarray(x),
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", BFLOAT16, "int32"], ids=str)
def test_numpy_and_jax_inputs(dtype: Any) -> None:
    """Whatever the layout; and the caller's array is left as it was."""
    call, given = doubling(np.dtype(dtype).name), arrays_of(dtype)
    want = given["C"] + given["C"]
    for name, x in given.items():
        before = np.array(x)
        got = call(x)
        assert isinstance(got, jax.Array)
        assert_same_bits(got, want, name)
        assert_same_bits(x, before, f"{name} is unchanged")


def test_what_is_no_array_is_refused() -> None:
    call = kb.kernel_call(double, shape(2))
    with pytest.raises(kb.DTypeError, match="float64"):
        call(np.zeros(2))
    for wrong in ([0.0, 1.0], 1.0, None, shape(2)):
        with pytest.raises(kb.MemorySpaceError):
            call(wrong)
    with pytest.raises(kb.KernelError, match="double"):
        call(np.zeros(2, np.float32), np.zeros(2, np.float32))


if torch is not None:

    @pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int32"])
    @pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "grad"])
    def test_torch_inputs(name: str, layout: str) -> None:
        """By DLPack: bfloat16, views of any stride, tensors that want gradients."""
        base = torch.arange(35).reshape(5, 7).to(getattr(torch, name))
        x = {
            "contiguous": lambda: base,
            "transposed": lambda: base.T.contiguous().T,
            "strided": lambda: torch.stack([base, base * 0], 2)[:, :, 0],
            "grad": lambda: base.clone().requires_grad_(base.is_floating_point()),
        }[layout]()
        kind = BFLOAT16 if name == "bfloat16" else np.dtype(name)
        got = doubling(name)(x)
        assert_same_bits(got, (2 * np.arange(35).reshape(5, 7)).astype(kind))

    def test_torch_inputs_are_not_written() -> None:
        """An aliased input is copied before it is stored to."""

        def kernel(tl: Any, x: Any, o: Any) -> None:
            tl.store(o, tl.load(x) + 1.0)

        x = torch.zeros(4)
        call = kb.kernel_call(kernel, shape(4), input_output_aliases={0: 0})
        assert_same_bits(call(x), np.ones(4, np.float32))
        assert x.tolist() == [0, 0, 0, 0]


# --- inside an outer jit -------------------------------------------------------------


def test_inside_an_outer_jit() -> None:
    """Under jax.jit with other ops around it, with closed-over constants, in a scan."""
    call = kb.kernel_call(tile_sum, shape(4, 1))
    x = normal(7, 16, 3)
    plain = np.asarray(call(x))
    assert_same_bits(jax.jit(call)(x), plain, "arguments")
    held = jnp.asarray(x)
    assert_same_bits(jax.jit(lambda: call(held))(), plain, "constants")
    assert_same_bits(jax.jit(lambda: call(x))(), plain, "a NumPy constant")
    assert_same_bits(jax.jit(lambda x: call(x[::-1]) * 2)(x[::-1]), plain * 2, "around")
    stacked = jnp.stack([held, held * 2])
    scanned = jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c, call(x)), 0, xs)[1])
    assert_same_bits(scanned(stacked)[0], plain, "scan")


def test_a_mistake_inside_jit_is_the_kernels() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    call = kb.kernel_call(kernel, shape(3))
    with pytest.raises(kb.ShapeError, match=r"^test_data_phase.py:\d+"):
        jax.jit(call)(np.zeros(4, np.float32))


# --- outputs -------------------------------------------------------------------------


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_what_is_never_stored(fidelity: Any) -> None:
    """NaN, the smallest integer, False; on every call, whatever was there before."""
    kinds = ["float32", "float16", BFLOAT16, "int32", "bool"]

    def kernel(tl: Any, x: Any, *outs: Any) -> None:
        for o in outs:
            tl.store(o[1:3], tl.load(x[1:3]).to(o.dtype))

    call = kb.kernel_call(kernel, tuple(shape(5, dtype=kind) for kind in kinds))
    for seed in (8, 9):
        x = normal(seed, 5) * 8
        for kind, got in zip(
            kinds, call.run(x, fidelity=fidelity).outputs, strict=True
        ):
            dtype = np.dtype(kind)
            blank = -(2**31) if kind == "int32" else kind != "bool" and np.nan
            want = np.full(5, blank, dtype)
            want[1:3] = (np.trunc(x) if kind == "int32" else x)[1:3].astype(dtype)
            assert_same_bits(got, want, f"{kind}")


def test_an_output_that_nothing_stores_to() -> None:
    """A warning with its name; the array is all NaN."""

    def kernel(tl: Any, x: Any, o: Any, lost: Any) -> None:
        tl.store(o, tl.load(x))

    call = kb.kernel_call(kernel, (shape(2), shape(3)))
    with pytest.warns(UserWarning, match="kernel never stores to its output lost"):
        _, lost = call(np.ones(2, np.float32))
    assert_same_bits(lost, np.full(3, np.nan, np.float32))


def test_two_runs_share_nothing() -> None:
    """A shorter PE's rows on the second call are not the first call's."""

    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        for i in tl.range(tl.program_id() + 1):
            with tl.scratch_scope():
                tl.store(o[i], tl.load(x[i]))

    call = kb.kernel_call(kernel, shape(3, 2), num_pes=3)
    n = np.zeros(3, np.int32)
    first = np.asarray(call(np.ones((3, 3, 2), np.float32), n)).copy()
    second = np.asarray(call(np.full((3, 3, 2), 2, np.float32), n))
    assert np.isnan(first).sum() == np.isnan(second).sum() == 6
    assert set(second[~np.isnan(second)].tolist()) == {2.0}
    assert set(first[~np.isnan(first)].tolist()) == {1.0}


# --- aliases and the order of stores (FC-31) ------------------------------------------


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_the_later_store_wins(fidelity: Any) -> None:
    def kernel(tl: Any, o: Any) -> None:
        tl.store(o, tl.full((16,), 1.0))
        tl.store(o[8:16], tl.full((8,), 2.0))

    got = kb.kernel_call(kernel, shape(16)).run(fidelity=fidelity).outputs
    assert_same_bits(got, np.repeat(np.array([1, 2], np.float32), 8))


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("unroll", [False, True])
def test_a_load_sees_the_store_before_it(unroll: bool, fidelity: Any) -> None:
    """x <- x + 1 through HBM, four times; and a Fibonacci row by row."""

    def kernel(tl: Any, x: Any, y: Any, fib: Any) -> None:
        for _ in loop_of(tl, unroll)(4):
            with tl.scratch_scope():
                tl.store(y, tl.load(y) + 1.0)
        tl.store(fib[0:2], tl.full((2,), 1, "int32"))
        for i in loop_of(tl, unroll)(2, 9):
            with tl.scratch_scope():
                pair = tl.load(fib[tl.ds(i - 2, 2)])
                total = tl.sum(pair, axis=0, keepdims=True)
                tl.store(fib[tl.ds(i, 1)], total)

    call = kb.kernel_call(
        kernel, (shape(16), shape(9, dtype="int32")), input_output_aliases={0: 0}
    )
    x = np.arange(16, dtype=np.float32)
    got, fib = call.run(x, fidelity=fidelity).outputs
    assert_same_bits(got, x + 4)
    assert_same_bits(fib, np.array([1, 1, 2, 3, 5, 8, 13, 21, 34], np.int32))
    assert x.tolist() == list(range(16))  # the caller's array is the caller's


def test_a_load_is_a_snapshot() -> None:
    """A tile keeps what was loaded, although its rows are stored to afterwards."""

    def kernel(tl: Any, x: Any, y: Any, o: Any) -> None:
        before = tl.load(x)
        tl.store(y, before * 10.0)
        tl.store(o, before + tl.load(x))

    x = np.arange(4, dtype=np.float32)
    call = kb.kernel_call(kernel, (shape(4), shape(4)), input_output_aliases={0: 0})
    for fidelity in FIDELITIES:
        assert_same_bits(call.run(x, fidelity=fidelity).outputs[1], 11 * x, fidelity)


@pytest.mark.parametrize("pes", [1, 3])
def test_an_aliased_output_starts_as_its_input(pes: int) -> None:
    """Rows that are not stored to keep the input's values, a PE each."""
    x = normal(10, pes, 4, 2)

    def kernel(tl: Any, w: Any, x: Any, first: Any, y: Any) -> None:
        tl.store(first, tl.load(w))
        row = tl.ds(tl.program_id(), 1)
        tl.store(y[row, :], tl.load(x[row, :]) * 2.0)

    call = kb.kernel_call(
        kernel, (shape(2), shape(4, 2)), num_pes=pes, in_axes=(None, 0),
        input_output_aliases={1: 1},
    )  # fmt: skip
    want = x.copy()
    for pe in range(pes):
        want[pe, pe] *= 2
    _, got = call(np.ones(2, np.float32), x if pes > 1 else x[0])
    assert_same_bits(got, want if pes > 1 else want[0])


def test_aliases_that_do_not_fit_are_refused() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(x, tl.load(x))

    with pytest.raises(kb.KernelError, match="store to the input x"):
        kb.kernel_call(kernel, shape(4)).record(shape(4))
    wrong = kb.kernel_call(kernel, shape(5), input_output_aliases={0: 0})
    with pytest.raises(kb.ShapeError, match="must be alike"):
        wrong.record(shape(4))
    absent = kb.kernel_call(kernel, shape(4), input_output_aliases={3: 0})
    with pytest.raises(kb.KernelError, match="does not exist"):
        absent.record(shape(4))


# --- the contract --------------------------------------------------------------------


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_an_op_that_gives_the_wrong_shape_is_caught(
    fidelity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """chex: a row of the table whose function does not do what its rule says."""
    row = ops.TABLE["exp"]
    for compute in (lambda xp, x: xp.exp(x)[:1], lambda xp, x: xp.exp(x).reshape(-1)):
        wrong = dataclasses.replace(row, compute=compute)
        monkeypatch.setitem(ops.TABLE, "exp", wrong)

        def kernel(tl: Any, x: Any, o: Any) -> None:
            tl.store(o, tl.exp(tl.load(x)))

        call = kb.kernel_call(kernel, shape(2, 3))
        with pytest.raises(AssertionError, match="shape"):
            call.run(np.ones((2, 3), np.float32), fidelity=fidelity)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_value_of_the_wrong_type_is_caught(
    fidelity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = hbm.load
    monkeypatch.setattr(hbm, "load", lambda *a, **k: right(*a, **k).astype(jnp.int32))
    with pytest.raises(AssertionError, match="type"):
        kb.kernel_call(double, shape(2)).run(np.ones(2, np.float32), fidelity=fidelity)


def test_an_unknown_fidelity_is_refused() -> None:
    call = kb.kernel_call(double, shape(2))
    with pytest.raises(kb.KernelError, match="live, exact"):
        call.run(np.ones(2, np.float32), fidelity="fast")  # type: ignore[arg-type]


def test_prefill_compiles_once_whatever_the_trips(compilations: Any) -> None:
    """Symbolic inner trip counts: still one function, of a size of its own."""
    sizes = []
    for queries in (16, 64):
        kernel = partial(flash_prefill, block=4, tile=4)
        call = kb.kernel_call(kernel, shape(1, queries, 4))
        x = shape(1, queries, 4), shape(queries, 4), shape(queries, 4)
        sizes.append(sum(1 for _ in equations(jaxpr_of(call, *x))))
    assert sizes[0] == sizes[1]
    compilations()
    arrays = [np.zeros(one.shape, np.float32) for one in x]
    for _ in range(3):
        call(*arrays)
    assert compilations() == 1
