"""Folding changes neither bits nor times: folded or not, a program gives the same
outputs, the same final bytes in both fidelities, and the same rows of op_log.

A failing random test prints its kernel; `python_loop(seed)` makes it again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import data_phase, fold, op_log
from kbjax.program import Loop, Program, When
from tests import reference
from tests.helpers import (
    assert_same_bits,
    assert_same_computation,
    assert_same_tcm,
)
from tests.python_loops import Drawn, python_loop

RECORDED = range(50)
RUN = (8, 29, 32, 36, 44, 50, 51, 54)  # short ones that fold, in several ways
X = jax.ShapeDtypeStruct((64,), "int32")
ROWS = np.arange(64, dtype=np.int32) * 3


@contextlib.contextmanager
def shown(drawn: Drawn) -> Iterator[None]:
    """Print the kernel where the block fails."""
    try:
        yield
    except BaseException:
        print(drawn.source)
        raise


def unfolded(call: kb.KernelCall, *arrays: Any) -> Program:
    """The program as it is recorded."""
    with mock.patch.object(fold, "folded", lambda program: program):
        return call.record(*arrays)


@functools.cache
def recorded(seed: int, short: bool = False) -> tuple[Drawn, Program, Program]:
    """A random kernel, its program as recorded, and folded."""
    drawn = python_loop(seed, short)
    call = kb.kernel_call(drawn.kernel, drawn.out_shape, num_pes=drawn.num_pes)
    with shown(drawn):
        program = unfolded(call, *drawn.arrays)
        return drawn, program, fold.folded(program)


def record(kernel: Callable[..., None], **how: Any) -> Program:
    """`kernel(tl, x, o)`, where both are 64 integers."""
    return unfolded(kb.kernel_call(kernel, X, **how), X)


def loops(program: Program) -> list[Loop]:
    return [item for item in program.walk() if isinstance(item, Loop)]


def assert_same(program: Program, other: Program, *arrays: Any) -> None:
    """By NumPy, outputs and all bytes, also where scopes poison; row by row the op_log,
    but for its loop column."""
    rows, others = (op_log.of(one).columns() for one in (program, other))
    for name in rows.keys() - {"loop"}:
        np.testing.assert_array_equal(rows[name], others[name], err_msg=name)
    for poison in (False, True):
        one, two = (reference.run(p, arrays, poison) for p in (program, other))
        assert_same_bits(two.outputs, one.outputs, "outputs")
        assert_same_bits(two.memory, one.memory, "memory")
    assert program.peak_scratch == other.peak_scratch
    assert program.live_at_exit == other.live_at_exit


def assert_replays(
    program: Program,
    other: Program,
    *arrays: Any,
    fidelities: Sequence[str] = ("exact", "live"),
) -> None:
    """What JAX gives of `other` is what NumPy gives of `program`: outputs; all bytes in
    exact, those that the program defines in live."""
    want = reference.run(program, arrays)
    for fidelity in fidelities:
        outputs, memory = replayed(other, fidelity, *arrays)
        assert_same_bits(outputs, tuple(want.outputs), f"{fidelity}: outputs")
        if fidelity == "exact":
            assert_same_bits(memory, want.memory.reshape(memory.shape), "memory")
        else:
            assert_same_tcm(program, memory, want.memory)


def replayed(program: Program, fidelity: str, *arrays: Any) -> tuple[Any, np.ndarray]:
    outputs, memory = data_phase.lower(program, fidelity, True)(*arrays)
    assert memory is not None
    return outputs, np.asarray(memory.memory)


# --- random loops --------------------------------------------------------------------


@pytest.mark.parametrize("seed", RECORDED)
def test_random_loops_by_numpy(seed: int) -> None:
    drawn, program, folded = recorded(seed)
    with shown(drawn):
        assert_same(program, folded, *drawn.arrays)


@pytest.mark.parametrize(
    ("seed", "fidelity"), [*zip(RUN, itertools.cycle(("exact", "live")), strict=False)]
)
def test_random_loops_replayed(seed: int, fidelity: str) -> None:
    drawn, program, folded = recorded(seed, short=True)
    with shown(drawn):
        assert_replays(program, folded, *drawn.arrays, fidelities=[fidelity])


def test_a_random_loop_replayed_folded_and_not() -> None:
    """All bytes of live replay, also those that no program defines."""
    drawn, program, folded = recorded(RUN[0], short=True)
    with shown(drawn):
        want, got = (replayed(p, "live", *drawn.arrays) for p in (program, folded))
        assert_same_bits(got, want)


def test_random_loops_are_folded() -> None:
    """Enough of them, in each way, and all that are replayed."""
    short = [recorded(seed, short=True)[2] for seed in RUN]
    assert all(any("Python" in one.shown for one in loops(p)) for p in short)
    found = [recorded(seed)[2] for seed in RECORDED]
    every = [[one for one in loops(p) if "Python" in one.shown] for p in found]
    assert sum(bool(one) for one in every) > 30
    outer = [loop for one in every for loop in one]
    inner = [one for loop in outer for one in loop.body if isinstance(one, Loop)]
    assert any("Python" in loop.shown for loop in inner)
    assert any(loop.growth_bytes for loop in outer)
    assert any(not loop.trip.is_const for program in found for loop in loops(program))
    conditions = [w for p in found for w in p.walk() if isinstance(w, When)]
    assert any("line" in str(when.condition) for when in conditions)


def test_folding_again_changes_nothing() -> None:
    for seed in RECORDED[:30]:
        once = recorded(seed)[2]
        assert fold.folded(once) is once


# --- what is folded ------------------------------------------------------------------


def scopes(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((4,), "int32")
    for j in range(8):
        with tl.scratch_scope():
            tl.copy_to(total, total + tl.load(x[j * 4 : j * 4 + 4]))
    tl.store(o[:4], total)


def grows(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():
        for j in range(8):
            tl.empty((3,), "int32")
            tl.store(o[j * 4 : j * 4 + 4], tl.load(x[j * 4 : j * 4 + 4]) * (j - 3))


def turns(tl: Any, x: Any, o: Any) -> None:
    pair = [tl.zeros((2,), "int32") for _ in range(2)]
    for j in range(17):
        with tl.scratch_scope():
            tl.copy_to(pair[j % 2], tl.load(x[tl.ds(j // 2, 2)]))
            tl.store(o[tl.ds(j, 2)], pair[j % 2])


def ends_differ(tl: Any, x: Any, o: Any) -> None:
    for j in range(11):
        with tl.scratch_scope():
            t = tl.load(x[tl.ds(j * 6, 6)], other=7)
            if j == 0:
                t = t + 1
            if j < 10:
                tl.store(o[tl.ds(j * 6, 6)], t)


def triangle(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():
        total = tl.zeros((4,), "int32")
        for j in range(8):
            for i in tl.range(1, j + 2):
                with tl.scratch_scope(), tl.when(i * 2 + j < 12):
                    part = tl.load(x[tl.ds(i * 3 + j, 4)])
                    tl.copy_to(total, total * i + part + j)
        tl.store(o[:4], total)


def nests(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((4,), "int32")
    for j in range(9):
        with tl.scratch_scope():
            row = tl.load(x[tl.ds(j, 4)])
            for i in range(10):
                with tl.scratch_scope():
                    tl.copy_to(total, total * 3 + tl.load(x[tl.ds(i * 4 + j, 4)]))
                    tl.copy_to(row, row + total)
            tl.store(o[tl.ds(j * 4, 4)], row)


def nests_unscoped(tl: Any, x: Any, o: Any) -> None:
    """The inner body comes first: that of the outer loop holds it ten times."""
    total = tl.zeros((4,), "int32")
    with tl.scratch_scope():
        for j in range(9):
            for i in range(10):
                tl.copy_to(total, total * 3 + tl.load(x[tl.ds(i * 4 + j, 4)]))
            tl.store(o[tl.ds(j * 4, 4)], total * j)


def numbers(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((4,), "int32")
    for j in range(8):
        with tl.scratch_scope():
            half = tl.full((4,), j * 300 - 900, "float16") * (3 - j)
            small = tl.full((4,), 2 * j - 9, "int8") * (j - 4)
            flags = tl.full((4,), 1, "bool") + j
            narrow = tl.full((4,), 1000 * j + 257, "bfloat16") - (j + 255)
            whole = (half > j) + small + flags + tl.cast(narrow, "int32")
            tl.copy_to(total, total * 7 + whole)
    tl.store(o[:4], total)


FOLDED = (scopes, grows, turns, ends_differ, triangle, nests, nests_unscoped, numbers)
NESTED = (triangle, nests, nests_unscoped)


@pytest.mark.parametrize("kernel", FOLDED, ids=lambda kernel: kernel.__name__)
def test_a_kernel_folds_and_stays_the_same(kernel: Callable[..., None]) -> None:
    program = record(kernel)
    folded = fold.folded(program)
    found = loops(folded)
    assert len(found) == (2 if kernel in NESTED else 1)
    if kernel in NESTED:
        assert found[1].index.uid > found[0].index.uid
        assert found[1].index.name != found[0].index.name
    assert_same(program, folded, ROWS)
    assert_replays(program, folded, ROWS)


def test_iterations_that_leave_more_scratch_grow_the_loop() -> None:
    folded = fold.folded(record(grows))
    (loop,) = loops(folded)
    assert loop.growth_bytes == 48 == folded.growth_bytes[loop.index]
    out = next(item.writes for item in loop.body if not isinstance(item, Loop))
    assert folded.allocations[out.root].loops == (loop.index,)
    assert str(folded.offset(out)) == f"48*{loop.index.name} + 16"


def test_what_takes_turns_is_one_body_of_all_turns() -> None:
    (loop,) = loops(fold.folded(record(turns)))
    assert len(loop.body) == 2 and loop.trip.const == 8  # and one more iteration after


def test_loops_in_a_rolled_loop_are_folded() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3):
            with tl.scratch_scope():
                total = tl.zeros((2,), "int32")
                for j in range(8):
                    with tl.scratch_scope():
                        tl.copy_to(total, total * 2 + tl.load(x[tl.ds(i * 8 + j, 2)]))
                tl.store(o[tl.ds(i * 2, 2)], total)

    program = record(kernel)
    folded = fold.folded(program)
    outer, inner = loops(folded)
    assert (outer.index.name, inner.trip.const) == ("i", 8)
    assert_same(program, folded, ROWS)
    assert_replays(program, folded, ROWS)


def test_a_tile_without_a_command_of_its_own_is_the_iterations() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(8):
            with tl.scratch_scope():
                room = tl.empty((4,), "int32")
                for i in tl.range(2):
                    tl.copy_to(room[tl.ds(i * 2, 2)], tl.load(x[tl.ds(j + i, 2)]))
                tl.store(o[tl.ds(j * 4, 4)], room)

    program = record(kernel)
    folded = fold.folded(program)
    assert [loop.trip.const for loop in loops(folded)] == [8, 2]
    assert_same(program, folded, ROWS)
    assert_replays(program, folded, ROWS)


def test_stale_bytes_are_those_of_the_hardware() -> None:
    """What breaks the scope contract reads bytes by address, folded or not."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(9):
            with tl.scratch_scope():
                stale = tl.load(x[tl.ds(j, 4)])
            with tl.scratch_scope():
                tl.full((2,), j, "int32")
            tl.store(o[tl.ds(j * 4, 4)], stale)

    program = record(kernel, checks="off")
    folded = fold.folded(program)
    assert len(loops(folded)) == 1 and folded.needs_exact
    assert_same(program, folded, ROWS)
    assert_replays(program, folded, ROWS, fidelities=["exact"])


def test_iterations_whose_tiles_are_kept_are_left_out() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        kept = []
        with tl.scratch_scope():
            for j in range(30):
                t = tl.load(x[tl.ds(j, 4)])
                tl.store(o[tl.ds(j, 4)], t)
                if j in (9, 12):
                    kept.append(t)
            tl.store(o[32:36], kept[0] + kept[1])

    program = record(kernel)
    folded = fold.folded(program)
    assert [loop.trip.const for loop in loops(folded)] == [9, 17]
    assert_same(program, folded, ROWS)
    assert_replays(program, folded, ROWS)


def test_the_listing_shows_the_loop() -> None:
    text = str(fold.folded(record(scopes)))
    line = scopes.__code__.co_firstlineno + 3
    assert f"loop line{line} over equal Python iterations, trips 8" in text
    assert f"load x[4*line{line}:+4]" in text
    assert len(text.splitlines()) == 9


def test_a_call_folds() -> None:
    call = kb.kernel_call(scopes, X)
    (loop,) = loops(call.record(X))
    column = [row.loop for row in call.op_log(X)]
    assert column[1] == f"{loop.index.name}=0" and column[-2] == f"{loop.index.name}=7"


# --- the ADR's own pattern -----------------------------------------------------------


def flash(tl: Any, q: Any, k: Any, v: Any, o: Any, *, python: bool) -> None:
    tiles = k.shape[0] // 2
    qh = tl.load(q)
    m, total = tl.full((2, 1), float("-inf")), tl.zeros((2, 1))
    acc = tl.zeros((2, 4))
    for j in range(tiles) if python else tl.range(tiles):
        with tl.scratch_scope():
            s = tl.dot(qh, tl.trans(tl.load(k[tl.ds(j * 2, 2)])))
            m_new = tl.maximum(m, tl.max(s, axis=1, keepdims=True))
            p, scale = tl.exp(s - m_new), tl.exp(m - m_new)
            tl.copy_to(total, total * scale + tl.sum(p, axis=1, keepdims=True))
            tl.copy_to(acc, acc * scale + tl.dot(p, tl.load(v[tl.ds(j * 2, 2)])))
            tl.copy_to(m, m_new)
    tl.store(o, acc / total)


def test_the_pattern_of_the_adr_compiles_as_one_body() -> None:
    """1,024 tiles: the equations of `tl.range`, so the same bits."""
    shapes = [jax.ShapeDtypeStruct((n, 4), "float32") for n in (2, 2048, 2048)]
    python, rolled = (
        kb.kernel_call(functools.partial(flash, python=python), shapes[0])
        for python in (True, False)
    )
    counts = [len(list(call.record(*shapes).walk())) for call in (python, rolled)]
    assert counts[0] == counts[1] < 40
    assert_same_computation(python, rolled, *shapes)


# --- what is not folded --------------------------------------------------------------


def too_few(tl: Any, x: Any, o: Any) -> None:
    for j in range(7):
        with tl.scratch_scope():
            tl.store(o[tl.ds(j, 4)], tl.load(x[tl.ds(j, 4)]))


def uneven(tl: Any, x: Any, o: Any) -> None:
    for j in range(8):
        with tl.scratch_scope():
            tl.store(o[tl.ds(j * j, 4)], tl.load(x[tl.ds(j, 4)]))


def other_floats(tl: Any, x: Any, o: Any) -> None:
    for j in range(8):
        with tl.scratch_scope():
            t = tl.load(x[tl.ds(j, 4)]) * (j + 0.5)
            tl.store(o[tl.ds(j, 4)], tl.cast(t, "int32"))


def zeros_of_two_signs(tl: Any, x: Any, o: Any) -> None:
    for j in range(8):
        with tl.scratch_scope():
            t = tl.full((4,), 1.0) / (0.0 if j < 4 else -0.0)
            tl.store(o[tl.ds(j, 4)], tl.cast(t, "int32"))


def other_attributes(tl: Any, x: Any, o: Any) -> None:
    for j in range(8):
        with tl.scratch_scope():
            tl.store(o[tl.ds(j, 4)], tl.arange(j, j + 4))


def large_numbers(tl: Any, x: Any, o: Any) -> None:
    for j in range(8):
        with tl.scratch_scope():
            tl.store(o[tl.ds(j, 4)], tl.load(x[:4]) + ((1 << 24) + j * 3 + 1))


def carries(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():
        total = tl.load(x[:4])
        for _ in range(8):
            total = total * 3
        tl.store(o[:4], total)


def alive(tl: Any, x: Any, o: Any) -> None:
    for j in range(8):
        tl.store(o[tl.ds(j, 4)], tl.load(x[tl.ds(j, 4)]))


def used_after(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():
        kept = [tl.load(x[tl.ds(j, 4)]) for j in range(8)]
        for one in kept:
            tl.store(o[:4], one)


def kept_by_a_rolled_loop(tl: Any, x: Any, o: Any) -> None:
    """Each tile hands a value on from one iteration of the rolled loop to the next."""
    with tl.scratch_scope():
        rooms = [tl.empty((2,), "int32") for _ in range(8)]
        for i in tl.range(3):
            for room in rooms:
                with tl.when(i > 0):
                    tl.copy_to(o_part(tl, room), tl.load(x[tl.ds(i, 1)]))
                with tl.when(i == 0):
                    tl.copy_to(room, tl.load(x[tl.ds(i, 2)]))


def o_part(tl: Any, room: Any) -> Any:
    return room[tl.ds(1, 1)]


def other_sizes(tl: Any, x: Any, o: Any) -> None:
    """The second tile of each iteration moves by other steps than the first."""
    with tl.scratch_scope():
        for j in range(8):
            for i in tl.range(j + 1):
                tl.store(o[tl.ds(i, 4)], tl.load(x[tl.ds(i, 4)]))
            tl.store(o[tl.ds(j, 4)], tl.load(x[tl.ds(j, 4)]))


NOT_FOLDED = (
    too_few,
    uneven,
    other_floats,
    zeros_of_two_signs,
    other_attributes,
    large_numbers,
    carries,
    alive,
    used_after,
    kept_by_a_rolled_loop,
    other_sizes,
)


@pytest.mark.filterwarnings("ignore:.*never stores to its output")
@pytest.mark.parametrize("kernel", NOT_FOLDED, ids=lambda kernel: kernel.__name__)
def test_what_is_not_folded(kernel: Callable[..., None]) -> None:
    program = record(kernel)
    assert fold.folded(program) is program
