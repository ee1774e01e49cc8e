"""Where a loop's iterations only seem to repeat: the jump must stop in time.

Each kernel is timed against the simulation of every iteration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest

import kbjax as kb
from kbjax import op_log, rolled, timing
from kbjax.hardware import PeDma, PeGemm, PeMath
from tests import discrete_events

TILE = jax.ShapeDtypeStruct((4, 4), "float32")
TILES = jax.ShapeDtypeStruct((4, 4, 4), "float32")


def stale(tl: Any, x: Any, o: Any) -> None:
    """An unscoped loop reads what a scope before it left: late loads among zeros."""
    acc = tl.zeros((4, 4))
    with tl.scratch_scope():
        for _ in tl.static_range(24):
            tl.zeros((4, 4))
        for _ in tl.static_range(6):
            tl.load(x[0])
        for _ in tl.static_range(24):
            tl.zeros((4, 4))
    for _ in tl.range(40):
        t = tl.empty((4, 4))
        tl.copy_to(acc, t)
    tl.store(o, acc)


def recycled(tl: Any, x: Any, o: Any) -> None:
    """The same, written: every allocation lands on bytes of another time."""
    acc = tl.zeros((4, 4))
    with tl.scratch_scope():
        for n in tl.static_range(30):
            if n % 7 == 3:
                tl.load(x[0])
            else:
                tl.zeros((4, 4))
    for _ in tl.range(40):
        t = tl.exp(acc)
        tl.copy_to(acc, t)
    tl.store(o, acc)


def unscoped_in_scoped(tl: Any, x: Any, o: Any) -> None:
    """A scoped loop of unscoped loops, which find what the pass before left."""
    acc = tl.zeros((4, 4))
    for i in tl.range(30):
        with tl.scratch_scope():
            for j in tl.range(25):
                tl.copy_to(acc, acc + tl.load(x[j % 4]))
            for _ in tl.range(9):
                tl.load(x[i % 4])
    tl.store(o, acc)


def overtaken(tl: Any, x: Any, o: Any) -> None:
    """A backlog of the vector engine, used up slowly by loads that nobody reads."""
    acc = tl.zeros((4, 4))
    for _ in tl.static_range(7):
        tl.copy_to(acc, tl.exp(acc))
    ring = tl.zeros((4, 4))
    for j in tl.range(700):
        with tl.scratch_scope():
            tl.copy_to(ring, tl.load(x[j % 4]))
            acc + 1.0


def turns(tl: Any, x: Any, o: Any) -> None:
    """Periods of 2 and 3 at once, and a last iteration of its own."""
    ring = tl.zeros((12, 4))
    acc = tl.zeros((4, 4))
    for j in tl.range(200):
        with tl.scratch_scope():
            slot = ring[tl.ds((j % 3) * 4, 4)]
            tl.copy_to(slot, tl.load(x[j % 4]))
            with tl.when(j % 2 == 1):
                tl.copy_to(acc, acc + tl.exp(slot))
            with tl.when(j == 199):
                tl.copy_to(acc, tl.dot(acc, acc))
    tl.store(o, acc)


def sevenths(tl: Any, x: Any, o: Any) -> None:
    """A period of 7 that looks like one of 1 for six iterations each time."""
    acc = tl.zeros((4, 4))
    for i in tl.range(400):
        with tl.scratch_scope():
            t = tl.load(x[0])
            with tl.when(i % 7 == 6):
                tl.copy_to(acc, acc + t)
    tl.store(o, acc)


def deep(tl: Any, x: Any, o: Any) -> None:
    """Three loops, the middle one's trip count by the outer; a condition of both."""
    acc = tl.zeros((4, 4))
    for i in tl.range(7):
        for j in tl.range(12 - i):
            for k in tl.range(40):
                with tl.scratch_scope():
                    t = tl.load(x[(i + j + k) % 4])
                    with tl.when(k + j < 30):
                        tl.copy_to(acc, tl.dot(t, acc))
            with tl.scratch_scope():
                tl.copy_to(acc, tl.exp(acc))
    tl.store(o, acc)


def deeper(tl: Any, x: Any, o: Any) -> None:
    """A growing loop in a scope in a loop, with a third loop inside; the bytes that it
    grows into were used before it."""
    acc = tl.zeros((64, 4))
    for _ in tl.static_range(5):
        tl.load(x[0])
    for _ in tl.range(200):
        with tl.scratch_scope():
            with tl.scratch_scope():
                tl.empty((24, 4))
                tl.zeros((4, 4))
            tl.copy_to(acc, acc)
            for _ in tl.range(8):
                tl.empty((4, 4))
                for c in tl.range(8):
                    with tl.when(c == 2):
                        tl.load(x[0])
    tl.store(o, tl.load(x[0]))


def left_behind(tl: Any, x: Any, o: Any) -> None:
    """A stale handle reads what an unscoped loop wrote over it long before its end."""
    tl.zeros((4, 4))
    with tl.scratch_scope():
        tl.zeros((40, 4))
        dead = tl.load(x[0])
    for j in tl.range(40):
        tl.load(x[j % 4])
    tl.store(o, dead + 1.0)


def read_then_written(tl: Any, x: Any, o: Any) -> None:
    """What an iteration reads before it has written it, it writes after."""
    with tl.scratch_scope():
        tl.zeros((64, 4))
        tl.load(x[0])
    for _ in tl.range(60):
        t = tl.empty((4, 4))
        tl.store(o, t)
        tl.copy_to(t, t)


def empty_only(tl: Any, x: Any, o: Any) -> None:
    """A loop that grows by what no command uses."""
    acc = tl.load(x[0])
    for _ in tl.range(40):
        tl.empty((4, 4))
        tl.copy_to(acc, acc)
    tl.store(o, acc)


KERNELS: list[Callable[..., None]] = [
    stale, recycled, unscoped_in_scoped, overtaken, turns, sevenths, deep, deeper,
    left_behind, read_then_written, empty_only,
]  # fmt: skip
STALE = {stale, left_behind, read_then_written}  # which the hardware would run
HARDWARE = {
    "default": kb.Hardware(),
    "fast transfers": kb.Hardware(pe_dma=PeDma(bandwidth_gb_s=64, latency_ns=16.001)),
    "near rates": kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=64, latency_ns=16),
        pe_gemm=PeGemm(overhead_ns=16, clock_ghz=100),
        pe_math=PeMath(overhead_ns=8.501, clock_ghz=100),
    ),
    "long loads": kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=1e9, latency_ns=1.689),
        pe_math=PeMath(lanes=1, clock_ghz=20, overhead_ns=0, cycles={}),
    ),
    "no latency": kb.Hardware(
        pe_dma=PeDma(latency_ns=0), pe_math=PeMath(overhead_ns=0)
    ),
}


@pytest.mark.filterwarnings("ignore:.*never stores")
@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_the_jump_stops_in_time(kernel: Callable[..., None], hardware: str) -> None:
    checks = "off" if kernel in STALE else "error"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = kb.kernel_call(kernel, TILE, hardware=HARDWARE[hardware], checks=checks)
        log, program = call.op_log(TILES), call.record(TILES)
    want = [(one.start_ps, one.end_ps) for one in discrete_events.simulate(program)[0]]
    columns = log.columns(["start_ps", "end_ps"])
    pairs = zip(*(c.tolist() for c in columns.values()), strict=True)
    for number, (found, wanted) in enumerate(zip(pairs, want, strict=True)):
        assert found == wanted, (number, log[number])


@pytest.mark.parametrize(
    "kernel", [overtaken, turns, sevenths, deep, unscoped_in_scoped]
)
@pytest.mark.filterwarnings("ignore:.*never stores")
def test_most_iterations_are_jumped(kernel: Callable[..., None]) -> None:
    """Else the comparison above would say nothing."""
    (run,) = timing.schedule(kb.kernel_call(kernel, TILE).record(TILES)).runs
    assert sum(1 for _ in rolled.rows(run)) < 0.5 * rolled.count(run)


def test_a_folded_loop_that_only_takes_scratch() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.load(x[0])
        for _ in range(20):
            tl.empty((4, 4))
            tl.copy_to(acc, acc)
        tl.store(o, acc)

    program = kb.kernel_call(kernel, TILE).record(TILES)
    assert len(program.commands) == 3
    log, simulated = op_log.of(program), discrete_events.simulate(program)[0]
    found = log.columns(["end_ps"])["end_ps"].tolist()
    assert found == [one.end_ps for one in simulated]


def _nested(tl: Any, x: Any, o: Any) -> None:
    acc = tl.load(x[0])
    for _ in tl.range(1_000_000):
        for _ in tl.range(1000):
            with tl.scratch_scope():
                tl.copy_to(acc, tl.exp(acc))
        with tl.scratch_scope():
            tl.copy_to(acc, tl.load(x[0]))
    tl.store(o, acc)


def test_the_critical_path_of_nested_loops_is_counted_in_rounds() -> None:
    """A thousand million commands on it."""
    log = kb.kernel_call(_nested, TILE).op_log(TILES)
    summary = log.summary()
    path_ns = sum(line.time_ns for line in summary.critical_path)
    assert path_ns == pytest.approx(log.total_ns, rel=1e-15)
    assert log.total_ns > 1e9 * 17
