"""What schedules have beside their times: tails, determinism, rolled and unrolled.
Times are held by tests of schedules by hand, of laws, and of a simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import pytest

import kbjax as kb
from kbjax import costs
from kbjax.hardware import PeDma, PeGemm, PeMath
from kbjax.op_log import OpLog
from kbjax.program import LoadCmd
from tests.programs import random_kernel

ROUND = kb.Hardware(
    pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=10),
    pe_gemm=PeGemm(
        rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=5, rate={"float32": 1}
    ),
    pe_math=PeMath(lanes=4, clock_ghz=1, overhead_ns=2, cycles={"exp": 3}),
)
Times = list[tuple[str, int, int, int]]


def tensor(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def log_of(kernel: Callable[..., None], x: Any, hardware: kb.Hardware = ROUND) -> OpLog:
    log = kb.kernel_call(kernel, tensor(4, 4), hardware=hardware).op_log(x)
    assert isinstance(log, OpLog)
    return log


def times(log: OpLog) -> Times:
    columns = log.columns(["op_name", "start_ps", "end_ps", "nbytes"])
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


def test_a_tail_at_the_start_moves_the_bytes_inside() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3):
            tl.store(o, tl.load(x[tl.ds(2 * i - 2, 4), tl.ds(3, 4)], other=0.0))

    loads = [row for row in times(log_of(kernel, tensor(4, 4))) if row[0] == "load"]
    assert [nbytes for *_, nbytes in loads] == [2 * 4, 4 * 4, 2 * 4]


@pytest.mark.parametrize("seed", range(4))
def test_schedules_are_deterministic(seed: int) -> None:
    drawn = random_kernel(seed, exact_only=False)
    call = kb.kernel_call(drawn.kernel, drawn.out_shapes)
    first, second = (times(call.op_log(*drawn.arrays)) for _ in "ab")
    assert first and first == second


def test_more_bandwidth_never_slows_a_serial_program() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(3):
            with tl.scratch_scope():
                tl.copy_to(t, tl.exp(t))
        tl.store(o, t)

    totals = []
    for bandwidth in (0.5, 1, 2, 64):
        dma = PeDma(bandwidth_gb_s=bandwidth, latency_ns=10)
        hardware = dataclasses.replace(ROUND, pe_dma=dma)
        totals.append(log_of(kernel, tensor(4, 4), hardware).total_ns)
    assert totals == sorted(totals, reverse=True) and totals[0] > totals[-1]


def test_rolled_and_unrolled_loops_take_the_same_time() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, rolled: bool) -> None:
        total = tl.zeros((4, 4))
        for i in (tl.range if rolled else tl.static_range)(5):
            with tl.scratch_scope():
                tl.copy_to(total, total + tl.exp(tl.load(x[i])))
        tl.store(o, total)

    rows = [
        times(log_of(lambda tl, x, o, r=r: kernel(tl, x, o, rolled=r), tensor(5, 4, 4)))
        for r in (True, False)
    ]
    assert rows[0] == rows[1]


def test_moved_bytes_of_a_view_without_a_tail() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    load = kb.kernel_call(kernel, tensor(4, 4)).record(tensor(4, 4)).commands[0]
    assert isinstance(load, LoadCmd)
    moved = costs.moved_bytes(load.view)
    assert moved.is_const and moved.const == load.view.nbytes == 64


def test_a_kernel_that_takes_too_long_for_the_columns_is_refused() -> None:
    """Each load fits into int64 picoseconds; a hundred do not."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(100):
            with tl.scratch_scope():
                tl.store(o, tl.load(x))

    slow = dataclasses.replace(ROUND, pe_dma=PeDma(latency_ns=2e15))
    with pytest.raises(kb.ShapeError, match=r"too long to be timed.*2\*\*63 - 1 ps"):
        log_of(kernel, tensor(4, 4), slow)
