"""Reads of tiles made with `tl.empty`: refused where, and only where, an iteration that
runs finds an unwritten row; and what leaves a tensor (FC-30). The reference is
`tests.plain`, which runs every iteration and knows which rows are written.

A failing random kernel is printed; `rows_kernel(seed)` makes it again.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from tests.helpers import assert_same_bits
from tests.plain import Tensor, play
from tests.written_programs import Rows, X, rows_kernel

DRAWN, CHUNK = 400, 200
T = np.arange(1, 17, dtype=np.float32)


def shape(*sizes: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


@contextlib.contextmanager
def shown(drawn: Rows) -> Iterator[None]:
    """Print the kernel where the block fails."""
    try:
        yield
    except BaseException:
        print(f"{drawn.name} on {drawn.num_pes} PEs")
        print(drawn.source)
        raise


# --- random kernels ------------------------------------------------------------------


@pytest.mark.parametrize(
    "seeds", [range(n, n + CHUNK) for n in range(0, DRAWN, CHUNK)], ids=str
)
def test_refused_where_some_execution_finds_an_unwritten_row(seeds: range) -> None:
    legal = refused = 0
    for seed in seeds:
        drawn = rows_kernel(seed)
        log, _ = drawn.played()
        with shown(drawn):
            if log.unwritten:
                with pytest.raises(kb.UninitializedReadError) as caught:
                    drawn.call().record(X)
                site = caught.value.site
                assert site is not None and site.file == drawn.name
                assert site.line in log.unwritten, str(caught.value)
                refused += 1
            else:
                drawn.call().record(X)
                legal += 1
    assert legal > CHUNK // 8 and refused > CHUNK // 8


def legal_kernels(count: int) -> list[int]:
    """Seeds of kernels that read and write much and find every row written."""
    found: list[int] = []
    seed = DRAWN
    while len(found) < count:
        drawn = rows_kernel(seed)
        log, _ = drawn.played()
        if not log.unwritten and drawn.source.count("copy_to") > 4:
            found.append(seed)
        seed += 1
    return found


@pytest.mark.parametrize("seed", legal_kernels(3))
def test_what_records_equals_numpy(seed: int) -> None:
    drawn = rows_kernel(seed)
    call, (_, want) = drawn.call(), drawn.played()
    with shown(drawn):
        for fidelity in ("exact", "live"):
            assert_same_bits(call.run(X, fidelity=fidelity).outputs, want, fidelity)


# --- by hand -------------------------------------------------------------------------


def recurrence(tl: Any, x: Any, o: Any, *, seeds: int, steps: int) -> None:
    """t[i] <- t[i - 2], from the first `seeds` rows."""
    t = tl.empty((16,))
    tl.copy_to(t[0:seeds], tl.load(x[0:seeds]))
    for i in tl.range(2, 2 + steps):
        with tl.scratch_scope():
            tl.copy_to(t[tl.ds(i, 1)], t[tl.ds(i - 2, 1)] + 1.0)
    tl.store(o, t)


def reversed_rows(tl: Any, x: Any, o: Any, *, low: int) -> None:
    """Rows from the last to `low`, each read with the one above it."""
    t = tl.empty((17,))
    tl.copy_to(t[16:17], tl.load(x[0:1]))
    for i in tl.range(15, low - 1, -1):
        with tl.scratch_scope():
            tl.copy_to(t[tl.ds(i, 1)], tl.load(x[tl.ds(i, 1)]))
            tl.store(o[tl.ds(i, 1)], t[tl.ds(i, 2)][1:2])
    tl.store(o, t[0:16])


def written_one_iteration_ahead(tl: Any, x: Any, o: Any, *, first: int) -> None:
    """A double buffer: the slot of j is written in j - 1, that of 0 before the loop."""
    t = tl.empty((2,))
    tl.copy_to(t[tl.ds(first, 1)], tl.load(x[0:1]))
    for j in tl.range(15):
        with tl.scratch_scope():
            tl.copy_to(t[tl.ds((j + 1) % 2, 1)], tl.load(x[tl.ds(j + 1, 1)]))
            tl.store(o[tl.ds(j, 1)], t[tl.ds(j % 2, 1)])
    tl.store(o[15:16], t[1:2])


def fresh_in_each_iteration(tl: Any, x: Any, o: Any, *, all_of_it: bool) -> None:
    """Row 1 is written in even iterations only, and each one has its own tile."""
    for j in tl.range(8):
        with tl.scratch_scope():
            t = tl.empty((2,))
            tl.copy_to(t[0:1], tl.load(x[tl.ds(j, 1)]))
            tl.copy_to(t[tl.ds(1 - j % 2, 1)], tl.load(x[tl.ds(j + 8, 1)]))
            if all_of_it:
                tl.copy_to(t[tl.ds(j % 2, 1)], tl.load(x[tl.ds(j, 1)]))
            tl.store(o[tl.ds(j * 2, 2)], t)


def triangle(tl: Any, x: Any, o: Any, *, ahead: int) -> None:
    """Iteration i writes rows 0 to i, and reads row i."""
    t = tl.empty((17,))
    for i in tl.range(16):
        for j in tl.range(i + 1):
            with tl.scratch_scope():
                tl.copy_to(t[tl.ds(j, 1)], tl.load(x[tl.ds(j, 1)]))
        tl.store(o[tl.ds(i, 1)], t[tl.ds(i + ahead, 1)])


def inner_rows(tl: Any, x: Any, o: Any, *, ahead: int) -> None:
    """Each inner iteration reads the row that it wrote, or that the next one writes."""
    t = tl.empty((5,))
    tl.copy_to(t[4:5], tl.load(x[0:1]))
    for i in tl.range(3):
        for j in tl.range(4):
            with tl.scratch_scope():
                tl.copy_to(t[tl.ds(j, 1)], tl.load(x[tl.ds(i + j, 1)]))
                tl.store(o[tl.ds(i * 4 + j, 1)], t[tl.ds(j + ahead, 1)])


def nested_loops_write_a_square(tl: Any, x: Any, o: Any, *, trips: int) -> None:
    t = tl.empty((4, 4))
    flat = tl.reshape(t, (16,))
    for i in tl.range(4):
        for j in tl.range(trips):
            with tl.scratch_scope():
                tl.copy_to(flat[tl.ds(i + j * 4, 1)], tl.load(x[tl.ds(i, 1)]))
    tl.store(o, flat)


PAIRS: list[tuple[Callable[..., None], dict[str, Any], dict[str, Any]]] = [
    (recurrence, {"seeds": 2, "steps": 14}, {"seeds": 1, "steps": 14}),
    (recurrence, {"seeds": 2, "steps": 14}, {"seeds": 2, "steps": 13}),
    (reversed_rows, {"low": 0}, {"low": 1}),
    (written_one_iteration_ahead, {"first": 0}, {"first": 1}),
    (fresh_in_each_iteration, {"all_of_it": True}, {"all_of_it": False}),
    (triangle, {"ahead": 0}, {"ahead": 1}),
    (inner_rows, {"ahead": 0}, {"ahead": 1}),
    (nested_loops_write_a_square, {"trips": 4}, {"trips": 3}),
]


@pytest.mark.parametrize(
    ("kernel", "legal", "wrong"),
    PAIRS,
    ids=[f"{k.__name__}-{w}" for k, _, w in PAIRS],
)
def test_one_row_decides(kernel: Any, legal: Any, wrong: Any) -> None:
    kb.kernel_call(partial(kernel, **legal), shape(16)).record(T)
    with pytest.raises(kb.UninitializedReadError, match=r"test_coverage\.py:"):
        kb.kernel_call(partial(kernel, **wrong), shape(16)).record(T)


@pytest.mark.parametrize(
    "kernel",
    [
        partial(reversed_rows, low=0),
        partial(written_one_iteration_ahead, first=0),
        partial(recurrence, seeds=2, steps=14),
    ],
    ids=lambda kernel: kernel.func.__name__,
)
def test_what_is_decided_by_hand_equals_numpy(kernel: Any) -> None:
    call, want = kb.kernel_call(kernel, shape(16)), np.full(16, np.nan, np.float32)
    tensors = [Tensor("x", T), Tensor("o", want)]
    assert not play(kernel, 1, lambda pe: tensors).unwritten
    for fidelity in ("exact", "live"):
        assert_same_bits(call.run(T, fidelity=fidelity).outputs, want, fidelity)


def test_a_row_that_one_pe_alone_misses_is_refused() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, least: int) -> None:
        t = tl.empty((4,))
        for j in tl.range(tl.maximum(4 - tl.program_id(), least)):
            with tl.scratch_scope():
                tl.copy_to(t[tl.ds(j, 1)], tl.load(x[tl.ds(j, 1)]))
        tl.store(o, t)

    options: Any = {"num_pes": 4, "in_axes": None}
    kb.kernel_call(partial(kernel, least=4), shape(4), **options).record(T)
    with pytest.raises(kb.UninitializedReadError):
        kb.kernel_call(partial(kernel, least=3), shape(4), **options).record(T)


@pytest.mark.parametrize("num_pes", [1, 256])
def test_a_double_buffer_at_a_million_tokens_records(num_pes: int) -> None:
    """Tiles of 128: what no PE does otherwise is no matter of how many there are."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.empty((2, 4))
        tl.copy_to(t[0:1], tl.load(x[0:1]))
        for j in tl.range((1 << 20) // 128):
            with tl.scratch_scope():
                tl.copy_to(t[tl.ds((j + 1) % 2, 1)], tl.load(x[0:1]))
                tl.store(o[0:1], t[tl.ds(j % 2, 1)])

    call = kb.kernel_call(kernel, shape(2, 4), num_pes=num_pes, in_axes=None)
    call.record(shape(2, 4))


# --- out of bounds (FC-30) -----------------------------------------------------------


def load_rows_8_to_11(tl: Any, x: Any, o: Any) -> None:
    tl.load(x[8:12])


def load_from_a_negative_offset(tl: Any, x: Any, o: Any) -> None:
    tl.load(x[tl.ds(-1, 4)])


def store_past_the_end(tl: Any, x: Any, o: Any) -> None:
    tl.store(o[tl.ds(8, 4), :], tl.full((4, 8), 1.0))


def load_past_the_end_on_pe_1(tl: Any, x: Any, o: Any) -> None:
    tl.load(x[:, tl.ds(tl.program_id() * 6, 6)])


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (load_rows_8_to_11, ("load of x", "4 elements from 8", "axis 0")),
        (load_from_a_negative_offset, ("load of x", "4 elements from -1", "axis 0")),
        (store_past_the_end, ("store of o", "4 elements from 8", "axis 0")),
        (load_past_the_end_on_pe_1, ("of x", "6 elements from 6", "axis 1", "pe = 1")),
    ],
)
def test_out_of_bounds_says_what_was_asked(kernel: Any, words: Any) -> None:
    """Tensor, shape, range, PE and line; and no command of it."""

    def caught(tl: Any, x: Any, o: Any) -> None:
        with pytest.raises(kb.OutOfBoundsError):
            kernel(tl, x, o)
        tl.store(o, tl.load(x))

    options: Any = {"num_pes": 2, "in_axes": None}
    with pytest.raises(IndexError) as error:
        kb.kernel_call(kernel, shape(10, 8), **options).record(shape(10, 8))
    line = inspect.getsourcelines(kernel)[1] + 1
    for word in (*words, "float32[10,8]", f"test_coverage.py:{line}: "):
        assert word in str(error.value)
    program = kb.kernel_call(caught, shape(10, 8), **options).record(shape(10, 8))
    made = ["full"] if kernel is store_past_the_end else []
    assert [c.op for c in program.commands] == [*made, "load", "store"]


def test_store_to_an_input_is_refused_and_does_nothing() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        with pytest.raises(kb.KernelError, match="store to the input x"):
            tl.store(x, tile * 0.0)
        tl.store(o, tl.load(x))

    x = T.copy()
    assert_same_bits(kb.kernel_call(kernel, shape(16))(x), T)
    assert_same_bits(x, T)


def test_what_is_masked_off_is_filled_and_not_stored() -> None:
    """Rows 8 to 11 of 10, and -2 to 1: the fill where nothing is; nothing else moves,
    and rows 4 to 7 of the output that nothing stores are NaN on each of two calls."""

    def kernel(tl: Any, x: Any, o: Any, high: Any, low: Any) -> None:
        for at, out in ((8, high), (-2, low)):
            tile = tl.load(x[tl.ds(at, 4), :], other=-5.0)
            tl.store(out, tile)
            tl.store(o[tl.ds(at, 4), :], tile, boundary_check=True)

    call = kb.kernel_call(kernel, (shape(10, 8), shape(4, 8), shape(4, 8)))
    for data in (np.zeros, np.ones):
        x = data((10, 8), np.float32)
        high, low = (np.full((4, 8), -5, np.float32) for _ in "ab")
        high[:2], low[2:] = x[8:], x[:2]
        want = np.full((10, 8), np.nan, np.float32)
        want[8:], want[:2] = x[8:], x[:2]
        for fidelity in ("exact", "live"):
            got = call.run(x, fidelity=fidelity).outputs
            assert_same_bits(got, (want, high, low), fidelity)
