"""A long Python loop that stays unrolled is told of at the kernel line that keeps it
from being folded, before it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import data_phase, unrolled
from kbjax.site import Site

LONG = jax.ShapeDtypeStruct((9000,), "int32")


def assert_warns(kernel: Callable[..., None], line: int, *parts: str) -> None:
    """There is one hint, so many lines below the kernel's first, in these words."""
    (hint,) = unrolled.hints(kb.kernel_call(kernel, LONG).record(LONG))
    text = str(hint)
    for part in (*parts, "Use tl.range", "stay unrolled"):
        assert part in text, text
    assert hint.site == Site(__file__, kernel.__code__.co_firstlineno + line), text


class Compiled(Exception):
    """Raised where compiling begins."""


def test_the_warning_comes_before_compiling() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(64):
            with tl.scratch_scope():
                tl.store(o[tl.ds(j * j, 4)], tl.load(x[tl.ds(j, 4)]))

    call = kb.kernel_call(kernel, LONG)
    call.op_log(LONG)  # compiles nothing, and has no word
    line = kernel.__code__.co_firstlineno + 3
    with (
        mock.patch.object(data_phase, "lower", side_effect=Compiled),
        pytest.warns(UserWarning, match="64 iterations of a Python loop") as seen,
        pytest.raises(Compiled),
    ):
        call(np.zeros(9000, np.int32))
    assert [(one.filename, one.lineno) for one in seen] == [(__file__, line)]


def test_other_floats() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(64):
            with tl.scratch_scope():
                t = tl.load(x[tl.ds(j, 4)])
                t = t * (j * 0.5)
                tl.store(o[tl.ds(j, 4)], tl.cast(t, "int32"))

    assert_warns(
        kernel,
        4,
        "64 iterations",
        "mul %3, 0.5` in iteration 1",
        "mul %6, 1.0` in iteration 2",
    )


def test_uneven_views() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(80):
            with tl.scratch_scope():
                t = tl.load(x[tl.ds(j, 4)])
                tl.store(o[tl.ds(j * j, 4)], t)

    assert_warns(
        kernel,
        4,
        "80 iterations",
        "`store o[1:5], %1`, then `store o[4:8], %2`, then `store o[9:13], %3`",
        "in iterations 1 to 3 move by uneven steps",
    )


def test_other_trip_counts_of_an_inner_loop() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.load(x[:4])
        for j in range(70):
            with tl.scratch_scope():
                for i in tl.range(1 + j * j):
                    with tl.scratch_scope():
                        tl.copy_to(total, total + i)
        tl.store(o[:4], total)

    assert_warns(
        kernel,
        4,
        "`loop i, trips 2`, then `loop i, trips 5`, then `loop i, trips 10`",
        "move by uneven steps",
    )


def test_another_float_in_an_inner_loop() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(70):
            with tl.scratch_scope():
                total = tl.full((4,), 1.0)
                for i in tl.range(2):
                    tl.copy_to(total, total + i)
                    tl.copy_to(total, total * (j * 0.5))
                tl.store(o[tl.ds(j, 4)], tl.cast(total, "int32"))

    assert_warns(kernel, 6, ", 0.5` in iteration 1", ", 1.0` in iteration 2")


def test_a_tile_that_is_carried() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            m = tl.load(x[:4])
            for j in range(100):
                m = tl.maximum(m, tl.load(x[tl.ds(j, 4)]))
            tl.store(o[:4], m)

    assert_warns(
        kernel,
        4,
        "(maximum int32[4] of test_unrolled.py",
        "is used by another iteration as well",
    )


def test_tiles_that_stay_alive() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in range(100):
            tl.store(o[tl.ds(j, 4)], tl.load(x[tl.ds(j, 4)]))

    assert_warns(
        kernel,
        2,
        "(load int32[4] of test_unrolled.py",
        "is alive at the kernel's end",
        "tl.scratch_scope",
    )


def test_tiles_that_are_used_after_the_loop() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            kept = []
            for j in range(64):
                kept.append(tl.load(x[tl.ds(j, 4)]) + 1)
                tl.store(o[tl.ds(j, 4)], kept[j])
            total = kept[0]
            for one in kept[1:60]:
                total = total + one
            tl.store(o[:4], total)

    assert_warns(kernel, 4, "is used by what is outside the loop as well")


def test_scratch_that_moves_by_different_steps() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            for j in range(64):
                for i in tl.range(j + 1):
                    tl.store(o[tl.ds(i, 1)], tl.load(x[tl.ds(i, 1)]))
                tl.store(o[tl.ds(j, 1)], tl.load(x[tl.ds(j, 1)]))

    assert_warns(kernel, 4, "the scratch of `%2 = load x[i:+1]` moves by uneven steps")


def test_one_line_is_told_of_once() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for n in range(2):
            tl.store(o[tl.ds(8000 + n, 4)], tl.load(x[:4]))
            for j in range(64):
                with tl.scratch_scope():
                    t = tl.load(x[tl.ds(j, 4)])
                    tl.store(o[tl.ds(j * j, 4)], t)

    assert_warns(kernel, 6, "64 iterations")


def test_no_word_of_loops_that_fold_or_are_short() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((4,), "int32")
        for j in range(100):
            with tl.scratch_scope():
                if j in (0, 40, 99):
                    tl.copy_to(total, total * 3)
                tl.copy_to(total, total + tl.load(x[tl.ds(j, 4)]))
        for j in range(unrolled.LONG - 1):
            with tl.scratch_scope():
                tl.store(o[tl.ds(j * j, 4)], total)

    assert unrolled.hints(kb.kernel_call(kernel, LONG).record(LONG)) == ()
