"""A scratch overflow: the field cases, its fields by hand, and on drawn kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from tests import footprints
from tests.footprints import (
    MIB,
    OUT,
    Replay,
    assert_consistent,
    call,
    calling,
    groups,
    name_of,
    refused,
    steps,
    two_halves,
)


def line_of(work: Any, offset: int) -> str:
    """The line that many below the function's first, as a message has it."""
    code = work.__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno + offset}"


# --- FC-27 of the field cases --------------------------------------------------------


def test_two_tiles_are_the_whole_budget() -> None:
    def kernel(tl: Any, o: Any) -> None:
        with tl.scratch_scope():
            two_halves(tl)
        tl.store(o, tl.full((16,), True, "bool"))

    assert call(kernel).record().peak_scratch == MIB


def test_a_third_of_four_bytes() -> None:
    def work(tl: Any) -> None:
        kept = two_halves(tl)
        tl.full((1,), 2.0)
        del kept

    error = refused(work)
    o = error.overflow
    assert (o.op, o.shape, o.dtype) == ("full", (1,), "float32")
    assert (o.requested_bytes, o.aligned_bytes) == (4, 16)
    assert (o.cursor_bytes, o.free_bytes, o.budget_bytes) == (MIB, 0, MIB)
    assert groups(o) == [
        ("zeros", "float32[256,512]", 1, MIB // 2, 1, ""),
        ("full", "float32[256,512]", 1, MIB // 2, 1, ""),
    ]
    text = str(error)
    for part in (
        f"TLContext scratch overflow: full at {line_of(work, 2)} of kernel kernel asks "
        "for 4 B (+12 B padding) for float32[1] at cursor 1,048,576 B, with 0 B free "
        "of a budget of 1,048,576 B (1 MiB).",
        f"1 x 524,288 B from {line_of(two_halves, 2)} (zeros float32[256,512], outside",
        f"Largest live: float32[256,512] 524,288 B ({line_of(two_halves, 2)}); ",
        "is at most 1,048,592 B: it would not fit either.",
        "take a smaller tile",
        "`with tl.scratch_scope():`",
        "kernel_scratch_mb",
    ):
        assert part in text
    assert error.site is not None and str(error.site) == line_of(work, 2)


def test_one_tile_of_a_mebibyte_and_an_element() -> None:
    def work(tl: Any) -> None:
        tl.zeros((MIB // 4 + 1,))

    o = refused(work).overflow
    assert (o.requested_bytes, o.aligned_bytes) == (MIB + 4, MIB + 16)
    assert (o.cursor_bytes, o.free_bytes, o.live) == (0, MIB, ())
    assert o.fitting_shape == (MIB // 4,)
    text = str(refused(work))
    for part in (
        "1,048,580 B (+12 B padding)",
        "No scope can help",
        "1,048,576 B free",
    ):
        assert part in text
    assert "(float32[262144] fits)" in text and "Held" not in text


def test_a_python_loop() -> None:
    """Iteration 3: names are rebound, so that each iteration's tiles but the last are
    out of reach."""

    def work(tl: Any) -> None:
        for n in range(8):
            t = tl.full((256, 280), n)  # 286,720 B
            t.shape  # noqa: B018 - a use, after which it is rebound

    error = refused(work)
    o = error.overflow
    assert (o.nth, o.loops, o.cursor_bytes) == (4, (), 3 * 286_720)
    assert groups(o) == [("full", "float32[256,280]", 3, 860_160, 1, "")]
    assert (o.live_bytes, o.dead_bytes) == (2 * 286_720, 2 * 286_720)
    assert o.live_set_fits
    text = str(error)
    for part in (
        ", number 4 of this line, at cursor 860,160 B",
        f"3 x 286,720 B from {line_of(work, 2)} (full float32[256,280], outside any "
        "scope, 2 out of reach)",
        "is at most 573,440 B: it would fit.",
        "inside `with tl.scratch_scope():`: that gives back 573,440 B",
    ):
        assert part in text


def test_nothing_leaks() -> None:
    """After the error a small kernel runs, and the same call with smaller shapes."""
    with pytest.raises(kb.ScratchOverflowError):
        calling(two_halves, MIB // 2).record()
    assert np.asarray(calling(lambda tl: tl.zeros((4,)))()).all()

    def doubled(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            t = tl.load(x) * 2.0
            for _ in tl.range(2):
                t = tl.load(x)
                del t
        tl.store(o, tl.cast(tl.load(x[0:16]) * 2.0, "bool"))

    made = kb.kernel_call(doubled, OUT)
    large, small = (np.ones(n, np.float32) for n in (MIB // 8, 16))
    for _ in range(2):
        with pytest.raises(kb.ScratchOverflowError) as caught:
            made(large)
        assert_consistent(caught.value.overflow)
        assert np.asarray(made(small)).all()
    assert made.record(small).peak_scratch == 4 * 64


# --- Python's names: what is in reach ------------------------------------------------


def test_a_list_keeps_its_tiles_in_reach() -> None:
    def work(tl: Any) -> None:
        kept = []
        for n in range(8):
            kept.append(tl.full((64,), n))

    error = refused(work, 1024)
    assert groups(error.overflow) == [("full", "float32[64]", 4, 1024, 4, "")]
    assert error.overflow.dead_bytes == 0 and not error.overflow.live_set_fits
    assert "out of reach" not in str(error)
    assert error.remedy.startswith("All that is held can still be used: take a smaller")


def test_an_alias_keeps_its_base_in_reach() -> None:
    def work(tl: Any) -> None:
        row = tl.zeros((16, 4))[tl.ds(2, 1)]
        flat = tl.reshape(tl.zeros((64,)), (8, 8))
        tl.zeros((64,))
        tl.full((128,), 1.0)
        del row, flat

    found = groups(refused(work, 1024).overflow)
    assert [(tile, usable) for _, tile, _, _, usable, _ in found] == [
        ("float32[16,4]", 1),
        ("float32[64]", 1),
        ("float32[64]", 0),
    ]


# --- rolled loops --------------------------------------------------------------------


def test_a_rolled_loop_without_a_scope() -> None:
    def work(tl: Any) -> None:
        state = tl.zeros((8,))  # 32 B
        for _ in tl.range(1000):
            t = tl.full((12,), 1.0)  # 48 B
            tl.copy_to(state, state + 1.0)  # 32 B
            del t

    error = refused(work, 512)
    o = error.overflow
    # 32 + 6 x 80 = 512.
    assert steps(o) == [(6, 80)] and o.cursor_bytes == 512
    assert str(o.loops[0].site) == line_of(work, 2)
    assert groups(o) == [
        ("zeros", "float32[8]", 1, 32, 1, ""),
        ("full", "float32[12]", 6, 288, 0, ""),
        ("add", "float32[8]", 6, 192, 0, ""),
    ]
    assert o.dead_bytes == 480 and o.live_bytes == 80
    text = str(error)
    assert f"in iteration 6 of the loop at {line_of(work, 2)}, asks for 48 B" in text
    assert f"6 x 48 B from {line_of(work, 3)} (full float32[12], outside any" in text
    assert "6 out of reach" in text
    assert "it gives back 80 B an iteration, 480 B until here" in error.remedy
    assert f"the loop at {line_of(work, 2)} inside `with tl." in error.remedy


@pytest.mark.parametrize("kept", [False, True])
def test_nested_rolled_loops(kept: bool) -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(10):
            t = tl.zeros((4,))
            if not kept:
                del t
            for _ in tl.range(3):
                tl.full((4,), 1.0)

    o = refused(work, 240).overflow
    # 64 B an outer iteration; the fourth takes 16 + 2 x 16 more.
    assert steps(o) == [(3, 64), (2, 16)] and o.cursor_bytes == 240
    assert groups(o) == [
        ("zeros", "float32[4]", 4, 64, int(kept), ""),
        ("full", "float32[4]", 11, 176, 0, ""),
    ]


def test_what_is_dropped_before_is_out_of_reach() -> None:
    """Also in the body of a rolled loop, and though it is recorded to its end."""

    def work(tl: Any) -> None:
        for _ in tl.range(100):
            a = tl.full((4,), 1.0)
            b = tl.arange(4)
            del a
            tl.zeros((64,))
            del b

    o = refused(work, 512).overflow
    assert steps(o) == [(1, 288)] and o.cursor_bytes == 320
    assert groups(o) == [
        ("full", "float32[4]", 2, 32, 0, ""),
        ("arange", "int32[4]", 2, 32, 1, ""),
        ("zeros", "float32[64]", 1, 256, 0, ""),
    ]


def test_the_pe_is_named_where_pes_differ() -> None:
    """In the first iteration, of which no growth is known."""

    def work(tl: Any) -> None:
        for _ in tl.range(8):
            tl.zeros((4,))
            for _ in tl.range(tl.program_id() - 2):
                with tl.scratch_scope():
                    tl.full((64,), 1.0)

    with pytest.raises(kb.ScratchOverflowError) as caught:
        calling(work, 256, num_pes=4).record()
    o = caught.value.overflow
    assert_consistent(o)
    assert (o.pe, o.proven, o.cursor_bytes) == (3, True, 16)
    assert steps(o) == [(0, None), (0, None)]
    assert (
        f" of kernel kernel on PE 3 in iteration 0 of the loop at {line_of(work, 1)}, "
        f"iteration 0 of the loop at {line_of(work, 3)}, asks for" in str(caught.value)
    )
    assert refused(lambda tl: tl.zeros((65,)), 256).overflow.pe is None


def test_an_open_scope() -> None:
    def work(tl: Any) -> None:
        a = tl.zeros((8,))
        with tl.scratch_scope("outer"):
            b = tl.zeros((12,))
            with tl.scratch_scope("inner"):
                c = tl.zeros((4,))
                tl.full((64,), 1.0)
        del a, b, c

    error = refused(work, 256)
    o = error.overflow
    assert [(name_of(s.scope), s.held_bytes) for s in o.scopes] == [
        ("outer", 64),
        ("inner", 16),
    ]
    assert [row[2:] for row in groups(o)] == [
        (1, 32, 1, ""),
        (1, 48, 1, "outer"),
        (1, 16, 1, "inner"),
    ]
    assert o.fitting_shape == (40,)  # 160 of 256 B are free
    assert (
        f"Open scopes: 'outer' of {line_of(work, 2)} (gives back 64 B at its end); "
        f"'inner' of {line_of(work, 4)} (gives back 16 B at its end)." in str(error)
    )
    assert f"in scope 'inner' of {line_of(work, 4)})" in str(error)
    assert "scope 'inner' of test_overflow.py" in error.remedy


@pytest.mark.parametrize("kept", [False, True])
def test_a_growing_loop_inside_an_open_scope(kept: bool) -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        with tl.scratch_scope("sweep"):
            for _ in tl.range(100):
                t = tl.full((8,), 1.0)
                if not kept:
                    del t
                with tl.scratch_scope("tile"):
                    tl.arange(20)

    o = refused(work, 256).overflow
    # 16 + 32 (i + 1) + 80 B: i = 4 asks at 176 and ends at 256; i = 5 overflows.
    assert steps(o) == [(5, 32)] and (o.op, o.cursor_bytes) == ("arange", 208)
    assert [(name_of(s.scope), s.held_bytes) for s in o.scopes] == [
        ("sweep", 192),
        ("tile", 0),
    ]
    assert groups(o) == [
        ("zeros", "float32[4]", 1, 16, 0, ""),
        ("full", "float32[8]", 6, 192, int(kept), "sweep"),
    ]


@pytest.mark.parametrize(
    ("scratch_bytes", "op", "iterations", "cursor_bytes"),
    [(128, "full", [3, 0], 64), (32, "zeros", [2], 32)],
)
def test_what_overflows_first_is_named_where_it_runs(
    scratch_bytes: int, op: str, iterations: list[int], cursor_bytes: int
) -> None:
    """The inner loop runs first where i = 3, with 4 tiles of 16 B held by then; two of
    these alone fill 32 B, which i = 2 passes."""

    def work(tl: Any) -> None:
        for i in tl.range(5):
            tl.zeros((4,))
            for _ in tl.range(i - 2):
                with tl.scratch_scope():
                    tl.full((64,), 1.0)

    o = refused(work, scratch_bytes).overflow
    assert (o.op, [loop.iteration for loop in o.loops]) == (op, iterations)
    assert o.cursor_bytes == cursor_bytes


# --- drawn kernels -------------------------------------------------------------------


def assert_as_replayed(tree: tuple[Any, ...], scratch_bytes: int) -> None:
    replay = Replay(budget_bytes=scratch_bytes)
    if replay.run((*tree, footprints.IO)):
        return
    assert replay.failed is not None
    nbytes, cursor, iterations, held, scopes = replay.failed
    o = refused(lambda tl: footprints.perform(tl, tree), scratch_bytes).overflow
    assert (o.requested_bytes, o.cursor_bytes) == (nbytes, cursor)
    assert [loop.iteration for loop in o.loops] == iterations
    assert Counter({row[1::4]: row[2] for row in groups(o)}) == held
    assert [(name_of(s.scope), s.held_bytes) for s in o.scopes] == scopes
    for loop, growth in zip(o.loops, replay.growth, strict=True):
        if loop.iteration:
            assert loop.growth_bytes == growth


BUDGETS = st.sampled_from([64, 96, 160, 256, 512])


@settings(max_examples=200)
@given(footprints.trees(symbolic=False), BUDGETS)
def test_an_overflow_is_as_a_replay_has_it(tree: Any, scratch_bytes: int) -> None:
    assert_as_replayed(tree, scratch_bytes)


@settings(max_examples=200)
@given(footprints.trees(), BUDGETS)
def test_an_overflow_beside_loops_that_differ(tree: Any, scratch_bytes: int) -> None:
    """Trip counts that depend on the loop around."""
    assert_as_replayed(tree, scratch_bytes)
