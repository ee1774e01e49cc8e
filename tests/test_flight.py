"""Asynchronous loads: who owns the bytes from the issue to the wait.

A kernel of these tests marks its lines with a comment; a message must name the marked
lines.
"""

from __future__ import annotations

import inspect
import operator
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax import ops
from kbjax.hardware import PeDma, PeMath
from tests import reference
from tests.helpers import assert_same_bits

N, WIDTH = 8, 64
X = np.arange(N * WIDTH, dtype=np.float32).reshape(N, WIDTH)
ROW = jax.ShapeDtypeStruct((WIDTH,), "float32")
SUMS = jax.ShapeDtypeStruct((N,), "float32")
SUMS_OF_TILES = np.array([2016 + 4096 * i for i in range(N)], np.float32)
FORMS = ("range", "static_range")
forms = pytest.mark.parametrize("form", FORMS)

Kernel = Callable[..., None]


def line_of(kernel: Kernel, mark: str) -> str:
    """``file.py:12`` of the kernel's line that ends with the comment `mark`."""
    lines, first = inspect.getsourcelines(kernel)
    (at,) = (n for n, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return f"{Path(inspect.getfile(kernel)).name}:{first + at}"


def refused(
    kernel: Kernel,
    *marks: str,
    error: type[kb.KbjaxError] = kb.HazardError,
    out: Any = ROW,
    **options: Any,
) -> kb.KbjaxError:
    """The error of recording the kernel, which names the marked lines."""
    call = kb.kernel_call(kernel, out, **options)
    with pytest.raises(error) as caught:
        call.record(X)
    assert type(caught.value) is error
    for mark in marks:
        assert line_of(kernel, mark) in str(caught.value), mark
    assert "kbjax/" not in str(caught.value)
    return caught.value


def outputs(kernel: Kernel, out: Any = ROW, compiles: bool = True) -> np.ndarray:
    """What the recorded program gives, one command at a time in NumPy; and, where it
    `compiles`, the same live and exact."""
    call = kb.kernel_call(kernel, out)
    (found,) = reference.run(call.record(X), [X]).outputs
    if compiles:
        for fidelity in ("live", "exact"):
            assert_same_bits(call.run(X, fidelity=fidelity).outputs, found, fidelity)
    return found


# --- FC-29 ---------------------------------------------------------------------------


def ahead(tl: Any, x: Any, o: Any, *, form: str) -> None:
    """(a) Tile i + 1 is on its way into one half while tile i is used in the other."""
    halves = tl.empty((2, WIDTH))
    tl.load_async(x[0:1], out=halves[0:1]).wait()
    for i in getattr(tl, form)(N):
        with tl.scratch_scope():
            after = tl.minimum(i + 1, N - 1)
            future = tl.load_async(
                x[tl.ds(after, 1)], out=halves[tl.ds((i + 1) % 2, 1)]
            )
            tl.store(o[tl.ds(i, 1)], tl.sum(halves[tl.ds(i % 2, 1)], axis=1))
            future.wait()


def blocking(tl: Any, x: Any, o: Any, *, form: str) -> None:
    for i in getattr(tl, form)(N):
        with tl.scratch_scope():
            t = tl.load(x[tl.ds(i, 1)])
            tl.store(o[tl.ds(i, 1)], tl.sum(t, axis=1))


def reused(tl: Any, x: Any, o: Any, *, form: str) -> None:
    """(b) The same with one buffer, in the one order that is right."""
    only = tl.empty((1, WIDTH))
    for i in getattr(tl, form)(N):
        with tl.scratch_scope():
            t = tl.load_async(x[tl.ds(i, 1)], out=only).wait()
            tl.store(o[tl.ds(i, 1)], tl.sum(t, axis=1))


def reused_too_soon(tl: Any, x: Any, o: Any, *, form: str) -> None:
    only = tl.empty((1, WIDTH))
    tl.load_async(x[0:1], out=only).wait()
    for i in getattr(tl, form)(N):
        with tl.scratch_scope():
            after = tl.minimum(i + 1, N - 1)
            future = tl.load_async(x[tl.ds(after, 1)], out=only)  # issue
            tl.store(o[tl.ds(i, 1)], tl.sum(only, axis=1))  # use
            future.wait()


@forms
@pytest.mark.parametrize("kernel", (ahead, blocking, reused), ids=lambda k: k.__name__)
def test_each_sum_is_of_its_own_tile(kernel: Kernel, form: str) -> None:
    got = outputs(lambda tl, x, o: kernel(tl, x, o, form=form), SUMS, form == "range")
    assert_same_bits(got, SUMS_OF_TILES)


@forms
def test_a_buffer_that_is_loaded_too_soon(form: str) -> None:
    call = kb.kernel_call(lambda tl, x, o: reused_too_soon(tl, x, o, form=form), SUMS)
    with pytest.raises(kb.HazardError) as caught:
        call.record(X)
    for mark in ("issue", "use"):
        assert line_of(reused_too_soon, mark) in str(caught.value)


@forms
def test_read_old_then_overwrite(form: str) -> None:
    """(c) acc = the sum of tiles 0 to 6: column j is 1344 + 7 j."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc, state = tl.zeros((WIDTH,)), tl.zeros((WIDTH,))
        for k in getattr(tl, form)(N):
            with tl.scratch_scope():
                tl.copy_to(acc, acc + state)
                tl.load_async(x[k], out=state).wait()
        tl.store(o, acc)

    expected = np.array([1344 + 7 * j for j in range(WIDTH)], np.float32)
    assert_same_bits(outputs(kernel, compiles=form == "range"), expected)


@forms
def test_a_future_is_no_tile(form: str) -> None:
    """(d) In a loop, too."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in getattr(tl, form)(N):
            with tl.scratch_scope():
                future = tl.load_async(x[i])  # issue
                tl.store(o, future)  # use

    refused(kernel, "issue", "use")


@forms
def test_waits_twice_and_in_reverse(form: str) -> None:
    """(e), (f): each future gives its own tile, and the same one again."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in getattr(tl, form)(0, N, 2):
            with tl.scratch_scope():
                first = tl.load_async(x[tl.ds(i, 1)])
                second = tl.load_async(x[tl.ds(i + 1, 1)])
                b, a = second.wait(), first.wait()
                assert first.wait() is a and second.wait() is b
                tl.store(o[tl.ds(i, 1)], tl.sum(a, axis=1))
                tl.store(o[tl.ds(i + 1, 1)], tl.sum(b, axis=1))

    assert_same_bits(outputs(kernel, SUMS, form == "range"), SUMS_OF_TILES)


@forms
def test_never_waited_for(form: str) -> None:
    """(g) One warning at the line, whatever the trip count, and its DMA is there."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in getattr(tl, form)(N):
            tl.load_async(x[i])  # issue
        tl.load_async(x[0]).wait()
        tl.store(o, tl.load(x[0]))

    call = kb.kernel_call(kernel, ROW)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert call.record(X)
    (one,) = caught
    assert one.category is UserWarning
    where = line_of(kernel, "issue")
    assert where in str(one.message) and one.lineno == int(where.split(":")[1])
    assert one.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loads = call.op_log(X).columns()["op_name"].tolist().count("load")
    assert loads == N + 2


@forms
def test_the_buffer_after_the_loop(form: str) -> None:
    """(h) The last tile."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        halves = tl.empty((2, WIDTH))
        for i in getattr(tl, form)(N):
            tl.load_async(x[tl.ds(i, 1)], out=halves[tl.ds(i % 2, 1)]).wait()
        tl.store(o, tl.reshape(halves[(N - 1) % 2 : (N - 1) % 2 + 1], (WIDTH,)))

    assert_same_bits(outputs(kernel), X[N - 1])


@forms
def test_ahead_is_faster(form: str) -> None:
    """Than blocking, and never than the busier engine."""
    hardware = kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=44),
        pe_math=PeMath(lanes=1, clock_ghz=1, overhead_ns=20, cycles={}),
    )
    logs = [
        kb.kernel_call(
            lambda tl, x, o, k=k: k(tl, x, o, form=form), SUMS, hardware=hardware
        ).op_log(X)
        for k in (ahead, blocking)
    ]
    busy = []
    for log in logs:
        rows = log.columns()
        took = rows["end_ns"] - rows["start_ns"]
        busy.append(max(took[rows["engine"] == e].sum() for e in ("dma", "math")))
    assert logs[0].total_ns < logs[1].total_ns
    assert logs[0].total_ns >= busy[0] and logs[1].total_ns >= busy[1]


# --- hazards -------------------------------------------------------------------------


def reads(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    future = tl.load_async(x[0], out=t)  # issue
    tl.store(o, t + 1.0)  # use
    future.wait()


def stores(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    tl.load_async(x[0], out=t)  # issue
    tl.store(o, t)  # use


def copies_from(tl: Any, x: Any, o: Any) -> None:
    t, u = tl.empty((WIDTH,)), tl.zeros((WIDTH,))
    tl.load_async(x[0], out=t)  # issue
    tl.copy_to(u, t)  # use
    tl.store(o, u)


def writes(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    tl.load_async(x[0], out=t)  # issue
    tl.copy_to(t, tl.zeros((WIDTH,)))  # use
    tl.store(o, t)


def loads_again(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    tl.load_async(x[0], out=t)  # issue
    tl.store(o, tl.load_async(x[1], out=t).wait())  # use


def loads_an_alias(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    tl.load_async(x[0], out=t)  # issue
    tl.load_async(x[0:1], out=tl.reshape(t, (1, WIDTH))).wait()  # use


def reads_an_alias(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    alias = tl.expand_dims(t, 0)
    future = tl.load_async(x[0], out=t)  # issue
    tl.store(o, tl.sum(alias, axis=0))  # use
    future.wait()


def loads_a_row(tl: Any, x: Any, o: Any) -> None:
    """A row, among them the one that is loaded again."""
    t = tl.empty((N, WIDTH))
    future = tl.load_async(x[0:3], out=t[2:5])  # issue
    for i in tl.range(3, N):
        tl.load_async(x[tl.ds(i, 1)], out=t[tl.ds(i, 1)]).wait()  # use
    future.wait()
    tl.store(o, tl.sum(t[3:], axis=0))


def reads_the_other_half(tl: Any, x: Any, o: Any) -> None:
    """Which in one iteration is the same."""
    t = tl.zeros((N, WIDTH))
    for i in tl.range(N):
        with tl.scratch_scope():
            future = tl.load_async(x[0:1], out=t[tl.ds(i, 1)])  # issue
            tl.store(o, tl.sum(t[tl.ds(6 - tl.minimum(i, 4), 1)], axis=0))  # use
            future.wait()


def waits_where_it_may_not_run(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    future = tl.load_async(x[0], out=t)  # issue
    for i in tl.range(2):
        with tl.when(i == 1):
            future.wait()
        tl.store(o, t)  # use


def waits_in_a_loop_that_may_not_run(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    for i in tl.range(3):
        future = tl.load_async(x[0], out=t)  # issue
        for _ in tl.range(i):
            future.wait()
        tl.store(o, t)  # use


def waits_in_a_loop_that_does_not_run(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    future = tl.load_async(x[0], out=t)  # issue
    for _ in tl.range(0):
        future.wait()
    tl.store(o, t)  # use


def issued_where_it_may_not_run(tl: Any, x: Any, o: Any) -> None:
    t = tl.zeros((WIDTH,))
    for i in tl.range(N):
        with tl.when(i == N - 1):
            tl.load_async(x[i], out=t)  # issue
        tl.store(o, t)  # use


def in_the_next_iteration(tl: Any, x: Any, o: Any) -> None:
    """What the second iteration does before the wait of the first."""
    t = tl.zeros((WIDTH,))
    for i in tl.range(N):
        tl.store(o, t)  # use
        tl.load_async(x[i], out=t)  # issue


HAZARDS = (
    reads, stores, copies_from, writes, loads_again, loads_an_alias, reads_an_alias,
    loads_a_row, reads_the_other_half, waits_where_it_may_not_run,
    waits_in_a_loop_that_may_not_run, waits_in_a_loop_that_does_not_run,
    issued_where_it_may_not_run, in_the_next_iteration,
)  # fmt: skip


@pytest.mark.parametrize("checks", ("error", "warn", "off"))
@pytest.mark.parametrize("kernel", HAZARDS, ids=lambda k: k.__name__)
def test_a_hazard_names_both_lines(kernel: Kernel, checks: Any) -> None:
    error = refused(kernel, "issue", "use", checks=checks)
    assert error.site is not None
    assert str(error.site) == line_of(kernel, "use")


def scope_ends(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():  # begin
        tl.load_async(x[0])  # issue
    tl.store(o, tl.zeros((WIDTH,)))


def scope_in_a_loop_ends(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        with tl.scratch_scope():  # begin
            tl.load_async(x[i])  # issue
    tl.store(o, tl.zeros((WIDTH,)))


def inner_tile_in_an_outer_scope(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():  # begin
        t = tl.empty((WIDTH,))
        with tl.scratch_scope():
            tl.load_async(x[0], out=t)  # issue
    tl.store(o, tl.zeros((WIDTH,)))


def when_ends(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        with tl.when(i > 2):  # begin
            tl.load_async(x[i])  # issue
    tl.store(o, tl.zeros((WIDTH,)))


def certain_when_ends(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        with tl.when(i < N):  # begin
            tl.load_async(x[i])  # issue
    tl.store(o, tl.zeros((WIDTH,)))


ENDS = (scope_ends, scope_in_a_loop_ends, inner_tile_in_an_outer_scope, when_ends,
        certain_when_ends)  # fmt: skip


@pytest.mark.parametrize("checks", ("error", "warn", "off"))
@pytest.mark.parametrize("kernel", ENDS, ids=lambda k: k.__name__)
def test_a_scope_that_ends_in_flight(kernel: Kernel, checks: Any) -> None:
    refused(kernel, "begin", "issue", checks=checks)


def wait_in_the_next_iteration(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    future = tl.load_async(x[0], out=t)
    for i in tl.range(N - 1):
        tl.store(o, future.wait())  # use
        future = tl.load_async(x[i + 1], out=t)  # issue


def wait_after_the_loop(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        future = tl.load_async(x[i])  # issue
    tl.store(o, future.wait())  # use


def wait_after_the_inner_loop(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    for i in tl.range(N):
        for _ in tl.range(1):
            future = tl.load_async(x[i], out=t)  # issue
        tl.store(o, future.wait())  # use


@pytest.mark.parametrize(
    "kernel",
    (wait_in_the_next_iteration, wait_after_the_loop, wait_after_the_inner_loop),
    ids=lambda k: k.__name__,
)
def test_a_future_that_python_carries(kernel: Kernel) -> None:
    refused(kernel, "issue", "use", error=kb.KernelError)


# --- no false alarms -----------------------------------------------------------------


def disjoint_rows(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((N, WIDTH))
    future = tl.load_async(x[0:2], out=t[0:2])
    for i in tl.range(2, N):
        tl.load_async(x[tl.ds(i, 1)], out=t[tl.ds(i, 1)]).wait()
    tl.copy_to(t[2:3], t[3:4])
    future.wait()
    tl.store(o, tl.sum(t, axis=0))


def rows_of_one_iteration(tl: Any, x: Any, o: Any) -> None:
    """A row each of two tiles, and what lies between."""
    t = tl.zeros((2 * N, WIDTH))
    for i in tl.range(N - 1):
        with tl.scratch_scope():
            first = tl.load_async(x[tl.ds(i, 1)], out=t[tl.ds(2 * i, 1)])
            second = tl.load_async(x[tl.ds(i, 1)], out=t[tl.ds(2 * i + 2, 1)])
            tl.store(o, tl.sum(t[tl.ds(2 * i + 1, 1)], axis=0))
            second.wait(), first.wait()
    tl.store(o, tl.sum(t, axis=0))


def turns(tl: Any, x: Any, o: Any) -> None:
    """Slots by the remainder: 3 are in use at once, of 4."""
    t, total = tl.zeros((4, WIDTH)), tl.zeros((WIDTH,))
    for i in tl.range(N):
        with tl.scratch_scope():
            futures = [
                tl.load_async(x[tl.ds(i, 1)], out=t[tl.ds((i + k) % 4, 1)])
                for k in (1, 2)
            ]
            tl.copy_to(total, total + tl.sum(t[tl.ds(i % 4, 1)], axis=0))
            for future in futures:
                future.wait()
    tl.store(o, total)


def waits_in_a_certain_when(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    for i in tl.range(N):
        future = tl.load_async(x[i], out=t)
        with tl.when(i < N):
            future.wait()
        tl.store(o, t)


def waits_in_a_loop_that_runs(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((WIDTH,))
    future = tl.load_async(x[0], out=t)
    for i in tl.range(3):
        future.wait()
        tl.store(o, t + i)
    tl.store(o, t)


def issued_and_waited_for_in_a_when(tl: Any, x: Any, o: Any) -> None:
    t = tl.zeros((WIDTH,))
    for i in tl.range(N):
        with tl.when(i % 2 == 0):
            tl.load_async(x[i], out=t).wait()
        tl.store(o, t)


def waited_for_before_the_loop_ends(tl: Any, x: Any, o: Any) -> None:
    """The name of a future is reused; a loop that runs no iteration issues nothing."""
    t = tl.zeros((WIDTH,))
    for i in tl.range(N):
        future = tl.load_async(x[i], out=t)
        future.wait()
    for _ in tl.range(0):
        tl.load_async(x[1], out=t)
    tl.store(o, t)


def future_in_a_python_loop(tl: Any, x: Any, o: Any) -> None:
    """Unrolled, also inside a rolled loop, Python may carry the future."""
    total = tl.zeros((WIDTH,))
    for i in tl.range(2):
        with tl.scratch_scope():
            future = tl.load_async(x[4 * i])
            for k in range(1, 4):
                here, future = future, tl.load_async(x[4 * i + k])
                tl.copy_to(total, total + here.wait())
            tl.copy_to(total, total + future.wait())
    tl.store(o, total)


def a_tile_of_another_pe(tl: Any, x: Any, o: Any) -> None:
    """Which row is in flight depends on the PE, and so does the row that is read."""
    pe = tl.program_id()
    t = tl.zeros((3, WIDTH))
    future = tl.load_async(x[0:1], out=t[tl.ds(pe, 1)])
    tl.store(o, tl.sum(t[tl.ds((pe + 1) % 2 + pe // 2, 1)], axis=0))
    future.wait()


LEGAL = {
    disjoint_rows: X.sum(0) + X[3] - X[2],
    rows_of_one_iteration: X[: N - 1].sum(0) + X[N - 2],
    turns: sum((X[i - 1] for i in range(1, N)), np.zeros(WIDTH, np.float32)),
    waits_in_a_certain_when: X[N - 1],
    waits_in_a_loop_that_runs: X[0],
    issued_and_waited_for_in_a_when: X[6],
    waited_for_before_the_loop_ends: X[N - 1],
    future_in_a_python_loop: X.sum(0),
}


@pytest.mark.parametrize("kernel", LEGAL, ids=lambda k: k.__name__)
def test_a_legal_kernel_records(kernel: Kernel) -> None:
    """Without a warning, too; all values are whole numbers, so that sums are exact."""
    assert_same_bits(outputs(kernel), LEGAL[kernel].astype(np.float32))


def test_rows_that_depend_on_the_pe() -> None:
    call = kb.kernel_call(a_tile_of_another_pe, ROW, num_pes=2)
    assert_same_bits(call(np.stack([X, X])), np.zeros((2, WIDTH), np.float32))
    with pytest.raises(kb.HazardError):  # on the third PE the rows are one
        kb.kernel_call(a_tile_of_another_pe, ROW, num_pes=3).record(np.stack([X] * 3))


# --- a future where a tile belongs ---------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_",
                 "or_", "xor", "lshift", "rshift", "matmul", "lt", "le", "gt", "ge",
                 "eq", "ne")
} | {"divmod": divmod}  # fmt: skip
ONE_OPERAND: dict[str, Callable[[Any], Any]] = {
    name: getattr(operator, name) for name in ("neg", "pos", "invert", "abs", "index")
} | {
    name: one
    for name, one in {
        "bool": bool, "iter": iter, "len": len, "float": float, "int": int,
        "complex": complex, "round": round, "index []": lambda f: f[0],
        "slice": lambda f: f[0:1], "in": lambda f: 1.0 in f,
        "to": lambda f: f.to("int8"),
        "T": lambda f: f.T, "shape": lambda f: f.shape, "numpy": np.asarray,
        "numpy.exp": np.exp, "jax": jnp.exp,
        "numpy scalar": lambda f: np.float32(2) * f,
        "numpy compares": lambda f: np.float32(2) < f,
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class InFlight:
    """What a use of a future may need."""

    tl: Any
    x: Any
    o: Any
    future: Any
    tile: Any


def _uses() -> dict[str, Callable[[InFlight], Any]]:
    found: dict[str, Callable[[InFlight], Any]] = {}
    for name, act in OPERATORS.items():
        found[f"{name} left"] = lambda c, act=act: act(c.future, c.tile)
        found[f"{name} scalar"] = lambda c, act=act: act(c.future, 2.0)
        if name not in ("xor", "lshift", "rshift", "matmul", "divmod"):
            found[f"{name} right"] = lambda c, act=act: act(c.tile, c.future)
        found[f"{name} reflected"] = lambda c, act=act: act(2.0, c.future)
    for name, one in ONE_OPERAND.items():
        found[name] = lambda c, one=one: one(c.future)
    for row in ops.TABLE.values():
        if row.group == "elementwise":
            for at in range(len(row.parameters)):
                found[f"apply {row.name} {at}"] = lambda c, row=row, at=at: c.tl.apply(
                    row.name,
                    *(c.future if n == at else c.tile
                      for n in range(len(row.parameters))),
                )  # fmt: skip
        if row.group == "reduction":
            found[f"tl.{row.name}"] = lambda c, row=row: getattr(c.tl, row.name)(
                c.future, axis=0
            )
    return found | {
        "store": lambda c: c.tl.store(c.o, c.future),
        "copy_to dst": lambda c: c.tl.copy_to(c.future, c.tile),
        "copy_to src": lambda c: c.tl.copy_to(c.tile, c.future),
        "load": lambda c: c.tl.load(c.future),
        "load_async out": lambda c: c.tl.load_async(c.x[1], out=c.future),
        "dot a": lambda c: c.tl.dot(c.future, c.tile),
        "dot b": lambda c: c.tl.dot(c.tile, c.future),
        "trans": lambda c: c.tl.trans(c.future),
        "softmax": lambda c: c.tl.softmax(c.future),
        "cast": lambda c: c.tl.cast(c.future, "float16"),
        "broadcast_to": lambda c: c.tl.broadcast_to(c.future, (2, WIDTH)),
        "reshape": lambda c: c.tl.reshape(c.future, (1, WIDTH)),
        "expand_dims": lambda c: c.tl.expand_dims(c.future, 0),
        "full": lambda c: c.tl.full((WIDTH,), c.future),
    }


USES = _uses()


def test_a_future_where_a_tile_belongs() -> None:
    """In every operator and function: an error that names both lines, and the kernel
    may go on, as nothing has changed."""
    wrong: list[str] = []

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x[0])
        future = tl.load_async(x[1])  # issue
        held = InFlight(tl, x, o, future, tile)
        for name, use in USES.items():
            try:
                use(held)
                wrong.append(f"{name}: no error")
            except kb.HazardError as error:
                if line_of(kernel, "issue") not in str(error):
                    wrong.append(f"{name}: {error}")
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__} {error}")
        tl.store(o, future.wait() + tile)

    call = kb.kernel_call(kernel, ROW)
    program = call.record(X)
    assert not wrong
    assert program.peak_scratch == 3 * 4 * WIDTH
    assert [c.op for c in program.walk()] == ["load", "load", "add", "store"]


def test_an_index_and_a_future() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(N):
            future = tl.load_async(x[i])  # issue
            future.wait()
            tl.store(o, i * future)

    refused(kernel, "issue")


# --- a kernel that goes on -----------------------------------------------------------


def test_a_refused_call_changes_nothing() -> None:
    """No scratch, no command, no wait."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t, zeros = tl.empty((WIDTH,)), tl.zeros((WIDTH,))
        future = tl.load_async(x[0], out=t)
        for use in (
            lambda: t + 1.0,
            lambda: tl.exp(t),
            lambda: tl.store(o, t),
            lambda: tl.copy_to(t, zeros),
            lambda: tl.copy_to(zeros, t),
            lambda: tl.load_async(x[1], out=t),
        ):
            with pytest.raises(kb.HazardError):
                use()
        tl.store(o, future.wait())

    program = kb.kernel_call(kernel, ROW).record(X)
    assert program.peak_scratch == 2 * 4 * WIDTH
    assert [c.op for c in program.walk()] == ["zeros", "load", "store"]


def test_a_scope_that_was_refused_has_ended() -> None:
    """Its loads and its buffers are gone, and its bytes are free."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        with pytest.raises(kb.HazardError):
            with tl.scratch_scope():
                buffer = tl.circular_buffer(2, (WIDTH,))
                buffer.push(x[1])
                tl.load_async(x[0])
        tl.store(o, tl.load(x[2]))

    program = kb.kernel_call(kernel, ROW).record(X)
    assert program.peak_scratch == 3 * 4 * WIDTH
    assert_same_bits(outputs(kernel), X[2])


def test_a_refusal_that_is_caught_in_a_body() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((WIDTH,))
        for i in tl.range(N):
            future = tl.load_async(x[i], out=t)
            with pytest.raises(kb.HazardError):
                tl.store(o, t)
            future.wait()
        tl.store(o, t)

    assert_same_bits(outputs(kernel), X[N - 1])


def test_a_loop_of_one_iteration_is_no_hazard_to_itself() -> None:
    """Its body is recorded twice and run once."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t, u = tl.zeros((WIDTH,)), tl.zeros((WIDTH,))
        for i in tl.range(1):
            tl.load_async(x[i], out=u)  # issue
        tl.store(o, t)

    with pytest.warns(UserWarning, match="never waited for") as caught:
        kb.kernel_call(kernel, ROW).record(X)
    assert line_of(kernel, "issue") in str(caught[0].message)


def test_what_was_waited_for_gives_no_warning() -> None:
    """Also in bodies, which are recorded twice, beside one that was not."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((WIDTH,))
        for i in tl.range(N):
            tl.load_async(x[i], out=t).wait()
            for _ in tl.range(2):
                with tl.scratch_scope():
                    tl.load_async(x[i]).wait()
                tl.load_async(x[i]).wait()
            tl.load_async(x[i])  # first
        tl.load_async(x[1], out=t)  # second

    call = kb.kernel_call(kernel, ROW)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call.record(X)
    lines = [one.lineno for one in caught if "never waited" in str(one.message)]
    wanted = [line_of(kernel, mark) for mark in ("first", "second")]
    assert [f"test_flight.py:{line}" for line in lines] == wanted


@pytest.mark.parametrize(
    ("out", "error", "text"),
    (
        (
            (WIDTH - 1,),
            kb.ShapeError,
            "load_async needs a tile of the shape of what it moves",
        ),
        (
            (1, WIDTH),
            kb.ShapeError,
            "load_async needs a tile of the shape of what it moves",
        ),
        (None, kb.DTypeError, "load_async of the float32 x into a int32 tile"),
    ),
)
def test_a_destination_that_does_not_fit(out: Any, error: Any, text: str) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        kind = "int32" if out is None else "float32"
        tl.load_async(x[0], out=tl.empty(out or (WIDTH,), kind))  # use

    with pytest.raises(error, match=text) as caught:
        kb.kernel_call(kernel, ROW).record(X)
    assert line_of(kernel, "use") in str(caught.value)


def test_a_tail_is_filled() -> None:
    """With `out=` and without it."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((3, WIDTH))
        first = tl.load_async(x[tl.ds(N - 1, 3)], out=t, other=2.0)
        second = tl.load_async(x[tl.ds(N - 2, 3)], other=-1.0)
        tl.store(o, tl.sum(first.wait() + second.wait(), axis=0))

    expected = X[N - 1] + 4 + X[N - 2] + X[N - 1] - 1
    assert_same_bits(outputs(kernel), expected)
    refused(
        lambda tl, x, o: tl.load_async(x[tl.ds(N - 1, 3)]), error=kb.OutOfBoundsError
    )


# --- random programs against a model -------------------------------------------------

ROWS = 6


@dataclass
class Model:
    """Two tiles of ROWS rows each, and the rows that loads in flight own: nothing but
    lists, and NumPy for the values."""

    values: list[np.ndarray]
    owned: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def is_free(self, tile: int, low: int, high: int) -> bool:
        return not any(
            t == tile and low < b and a < high for t, a, b in self.owned.values()
        )


Step = tuple[Any, ...]


def steps(rng: random.Random) -> list[Step]:
    """Issues, waits and uses of rows; most are legal."""
    found: list[Step] = []
    issued = 0
    for _ in range(rng.randint(6, 14)):
        low = rng.randrange(ROWS)
        high = rng.randint(low + 1, min(low + 3, ROWS))
        kind = rng.choice(("issue", "issue", "wait", "read", "write", "load", "move"))
        if kind == "wait" and issued:
            found.append(("wait", rng.randrange(issued)))
            continue
        if kind == "move":
            source = rng.randrange(ROWS - (high - low) + 1)
            found.append(("move", rng.randrange(2), low, high, source))
            continue
        issued += kind == "issue"
        kind = "read" if kind == "wait" else kind
        found.append((kind, rng.randrange(2), low, high, rng.randrange(N - 3)))
    return found


def modelled(program: list[Step]) -> tuple[list[bool], np.ndarray]:
    """Which steps are hazards, and what the tiles hold in the end."""
    model = Model([np.zeros((ROWS, WIDTH), np.float32) for _ in range(2)])
    hazards, future = [], -1
    total = np.zeros(WIDTH, np.float32)
    for kind, *rest in program:
        if kind == "wait":
            model.owned.pop(rest[0], None)
            hazards.append(False)
            continue
        tile, low, high, at = rest
        t = model.values[tile]
        free = model.is_free(tile, low, high)
        if kind == "move":
            other = model.values[1 - tile]
            free = free and model.is_free(1 - tile, at, at + high - low)
            if free:
                t[low:high] = other[at : at + high - low]
        elif kind == "read" and free:
            total = total + t[low:high].sum(0)
        elif kind == "write" and free:
            t[low:high] = at
        elif kind in ("issue", "load"):
            future += kind == "issue"
            if free:
                t[low:high] = X[at : at + high - low]
                if kind == "issue":
                    model.owned[future] = (tile, low, high)
        hazards.append(not free)
    return hazards, np.stack([total, *model.values[0], *model.values[1]])


def run_steps(tl: Any, x: Any, o: Any, program: list[Step], found: list[bool]) -> None:
    """The same with `tl`; `found` becomes which steps were refused."""
    tiles = [tl.zeros((ROWS, WIDTH)) for _ in range(2)]
    total = tl.zeros((WIDTH,))
    futures: list[Any] = []
    for number, (kind, *rest) in enumerate(program):
        refusal = False
        try:
            if kind == "wait":
                if futures[rest[0]] is not None:
                    futures[rest[0]].wait()
                continue
            tile, low, high, at = rest
            rows = tiles[tile][tl.ds(low, high - low)]
            if kind == "issue":
                futures.append(None)
                futures[-1] = tl.load_async(x[at : at + high - low], out=rows)
            elif kind == "load":
                tl.load_async(x[at : at + high - low], out=rows).wait()
            elif kind == "write":
                tl.copy_to(rows, tl.full((high - low, WIDTH), at))
            elif kind == "move":
                tl.copy_to(rows, tiles[1 - tile][at : at + high - low])
            else:
                tl.copy_to(total, total + tl.sum(rows, axis=0))
        except kb.HazardError:
            refusal = True
        finally:
            found[number] = refusal
    for future in futures:
        if future is not None:
            future.wait()
    tl.store(o[0], total)
    for number, one in enumerate(tiles):
        tl.store(o[1 + number * ROWS : 1 + (number + 1) * ROWS], one)


@pytest.mark.parametrize("block", range(6))
def test_random_programs_are_refused_where_the_model_says(block: int) -> None:
    hazards = 0
    for seed in range(40 * block, 40 * (block + 1)):
        rng = random.Random(seed)
        program = steps(rng)
        wanted, values = modelled(program)
        found = [False] * len(program)
        rolled = rng.random() < 0.5

        def kernel(
            tl: Any, x: Any, o: Any, program=program, found=found, rolled=rolled
        ) -> None:
            for _ in tl.range(2) if rolled else range(1):
                with tl.scratch_scope():
                    run_steps(tl, x, o, program, found)

        shape = jax.ShapeDtypeStruct((1 + 2 * ROWS, WIDTH), "float32")
        call = kb.kernel_call(kernel, shape)
        call.record(X)
        assert found == wanted, (seed, program)
        hazards += sum(wanted)
        if seed % 40 == 0:
            assert_same_bits(call.run(X, fidelity="exact").outputs, values, f"{seed}")
            assert_same_bits(call(X), values, f"{seed}")
    assert hazards > 20
