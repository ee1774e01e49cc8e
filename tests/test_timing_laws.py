"""Laws of every schedule, over random kernels that are hard to time.

`executed` says which bytes each row reads and writes; which row waits for which is
found here by a look at every byte.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax.hardware import PeDma, PeGemm, PeLink, PeMath, PeTcm
from tests.discrete_events import ENGINES, Run, exact, executed, gemm_rate
from tests.timing_programs import TimingKernel, timing_kernel

SEEDS = range(1000, 1040)
pytestmark = pytest.mark.filterwarnings("ignore:.*never stores to its output")


class Rows(NamedTuple):
    """What one PE runs and when: (rows,) arrays, times in ps."""

    runs: list[Run]
    start: np.ndarray
    end: np.ndarray
    engine: np.ndarray

    def on(self, engine: str) -> tuple[np.ndarray, np.ndarray]:
        mine = self.engine == engine
        return self.start[mine], self.end[mine]


def rows_of(drawn: TimingKernel) -> list[Rows]:
    """The op_log by PE."""
    program = drawn.call.record(*drawn.inputs)
    columns = drawn.call.op_log(*drawn.inputs).columns()
    found = []
    for pe in range(drawn.num_pes):
        mine = columns["pe"] == pe
        start, end = (
            np.rint(columns[f"{name}_ns"][mine] * 1000).astype(np.int64)
            for name in ("start", "end")
        )
        runs = list(executed(program, pe))
        assert len(runs) == len(start), drawn.source
        found.append(Rows(runs, start, end, columns["engine"][mine]))
    return found


@cache  # several laws look at a kernel
def drawn_rows(seed: int) -> tuple[TimingKernel, list[Rows]]:
    drawn = timing_kernel(seed)
    return drawn, rows_of(drawn)


# --- order ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_runs_one_command_at_a_time_in_order(seed: int) -> None:
    drawn, by_pe = drawn_rows(seed)
    for rows in by_pe:
        assert (rows.start >= 0).all() and (rows.end >= rows.start).all()
        for engine in ENGINES:
            start, end = rows.on(engine)
            assert (start[1:] >= end[:-1]).all(), f"{engine}\n{drawn.source}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_starts_at_the_last_thing_it_waits_for(seed: int) -> None:
    """Not before what made the bytes it reads has ended, nor before the earlier
    commands on bytes it will write have, nor before its engine is free; and no later
    than the last of these."""
    drawn, by_pe = drawn_rows(seed)
    for rows in by_pe:
        size = max((r.stop for x in rows.runs for r in (*x.reads, x.writes)), default=0)
        written, used = np.zeros(size, np.int64), np.zeros(size, np.int64)
        free = dict.fromkeys(ENGINES, 0)
        times = zip(rows.runs, rows.start.tolist(), rows.end.tolist(), strict=True)
        for number, (run, start, end) in enumerate(times):
            reads = [slice(r.start, r.stop) for r in run.reads]
            writes = slice(run.writes.start, run.writes.stop)
            made = max((int(written[r].max()) for r in reads), default=0)
            left = int(used[writes].max(initial=0))
            what = f"row {number}, {run.command.site}: {run.command}\n{drawn.source}"
            assert start == max(made, left, free[run.engine]), what
            assert end - start == run.cost_ps, what
            for read in reads:
                used[read] = np.maximum(used[read], end)
            used[writes] = np.maximum(used[writes], end)
            written[writes] = end
            free[run.engine] = end


# --- bounds --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_total_lies_between_the_rooflines_and_one_after_the_other(
    seed: int,
) -> None:
    drawn, by_pe = drawn_rows(seed)
    total_ps = round(drawn.call.op_log(*drawn.inputs).total_ns * 1000)
    assert total_ps == max(int(rows.end.max(initial=0)) for rows in by_pe)
    hardware = drawn.hardware
    serial_ps = 0
    for rows in by_pe:
        for engine in ENGINES:
            start, end = rows.on(engine)
            assert total_ps >= int((end - start).sum()), f"{engine}\n{drawn.source}"
        moved = sum(run.nbytes for run in rows.runs if run.engine == "dma")
        assert total_ps >= 1000 * moved / exact(hardware.pe_dma.bandwidth_gb_s)
        assert total_ps >= 1000 * gemm_ns(rows.runs, hardware.pe_gemm)
        serial_ps += int((rows.end - rows.start).sum())
    assert total_ps <= serial_ps, drawn.source


def gemm_ns(runs: list[Run], gemm: PeGemm) -> Fraction:
    """2 M N K flops a product, at the array's peak: 2 flops a cell a pass."""
    total = Fraction(0)
    for run in runs:
        if run.engine == "gemm":
            (m, k), (_, n) = (ref.shape for ref in run.command.reads[:2])
            peak = 2 * gemm.rows * gemm.cols * gemm.depth * gemm_rate(run.command, gemm)
            total += 2 * m * n * k / (peak * exact(gemm.clock_ghz))
    return total


# --- scale ---------------------------------------------------------------------------


def faster(hardware: kb.Hardware, factor: int) -> kb.Hardware:
    """Every rate times `factor`, every latency and overhead divided by it."""
    dma, gemm, math = hardware.pe_dma, hardware.pe_gemm, hardware.pe_math
    link = hardware.pe_link
    return dataclasses.replace(
        hardware,
        pe_dma=PeDma(
            bandwidth_gb_s=dma.bandwidth_gb_s * factor,
            latency_ns=dma.latency_ns / factor,
        ),
        pe_gemm=dataclasses.replace(
            gemm,
            clock_ghz=gemm.clock_ghz * factor,
            overhead_ns=gemm.overhead_ns / factor,
        ),
        pe_math=dataclasses.replace(
            math,
            clock_ghz=math.clock_ghz * factor,
            overhead_ns=math.overhead_ns / factor,
        ),
        pe_link=PeLink(
            bandwidth_gb_s=link.bandwidth_gb_s * factor,
            latency_ns=link.latency_ns / factor,
        ),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_twice_as_fast_takes_half_the_time(seed: int) -> None:
    """Within 1 ps a command. A command's time is rounded up in two parts; in each,
    twice the faster one is 0 or 1 ps longer. A start adds up the commands before it."""
    drawn, by_pe = drawn_rows(seed)
    halved = rows_of(drawn._replace(hardware=faster(drawn.hardware, 2)))
    for slow, fast in zip(by_pe, halved, strict=True):
        took = 2 * (fast.end - fast.start) - (slow.end - slow.start)
        assert ((took >= 0) & (took <= 2)).all(), drawn.source
        late = 2 * fast.end - slow.end
        commands = np.arange(len(slow.runs)) + 1
        assert ((late >= 0) & (late <= 2 * commands)).all(), drawn.source


@pytest.mark.parametrize("seed", SEEDS)
def test_times_without_fractions_scale_exactly(seed: int) -> None:
    """With 1,000 ps a byte, a pass and a vector, and even latencies in ns, nothing is
    rounded: each start and end is half, to the picosecond."""
    whole = kb.Hardware(
        pe_tcm=PeTcm(kernel_scratch_mb=64),
        pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=10 + 2 * (seed % 3)),
        pe_gemm=PeGemm(
            rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=6, rate={"float32": 1}
        ),
        pe_math=PeMath(
            lanes=4,
            clock_ghz=1,
            overhead_ns=2 * (seed % 2),
            cycles={"exp": 3, "softmax": 5},
        ),
    )
    drawn = timing_kernel(seed)._replace(hardware=whole)
    slow_rows = rows_of(drawn)
    fast_rows = rows_of(drawn._replace(hardware=faster(whole, 2)))
    for slow, fast in zip(slow_rows, fast_rows, strict=True):
        assert (slow.start == 2 * fast.start).all(), drawn.source
        assert (slow.end == 2 * fast.end).all(), drawn.source


@pytest.mark.parametrize("seed", SEEDS)
def test_more_bandwidth_never_slows_transfers(seed: int) -> None:
    """One engine: the total is the sum of its transfers, each no longer than before."""
    drawn = timing_kernel(seed, dma_only=True)
    before = rows_of(drawn)
    dma = drawn.hardware.pe_dma
    doubled = dataclasses.replace(
        drawn.hardware,
        pe_dma=PeDma(bandwidth_gb_s=2 * dma.bandwidth_gb_s, latency_ns=dma.latency_ns),
    )
    after = rows_of(drawn._replace(hardware=doubled))
    for slow, fast in zip(before, after, strict=True):
        assert set(slow.engine) == {"dma"}
        assert slow.end[-1] == sum(run.cost_ps for run in slow.runs), drawn.source
        assert (fast.end <= slow.end).all(), drawn.source
        assert (fast.start <= slow.start).all(), drawn.source


# --- PEs -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_pes", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_a_pe_has_the_times_it_would_have_alone(seed: int, num_pes: int) -> None:
    """The same kernel with the PE's number written into it: its trip counts and
    conditions are then constants."""
    drawn = timing_kernel(seed, num_pes=num_pes)
    for pe, together in enumerate(rows_of(drawn)):
        single = drawn.on_pe(pe)
        (alone,) = rows_of(single)
        assert alone.start.tolist() == together.start.tolist(), single.source
        assert alone.end.tolist() == together.end.tolist(), single.source


def test_trip_counts_that_differ_give_times_that_differ() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(3 * tl.program_id()):
            with tl.scratch_scope():
                tl.copy_to(t, tl.exp(t))
        tl.store(o, t)

    tile, inputs = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, 4), (3, 4, 4)))
    whole = kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=0),
        pe_math=PeMath(lanes=1, clock_ghz=1, overhead_ns=0, cycles={"exp": 2}),
    )
    log = kb.kernel_call(kernel, tile, num_pes=3, hardware=whole).op_log(inputs)
    columns = log.columns()
    for pe in range(3):
        # A load and a store of 64 ns; an exp of 32 ns and a copy of 16 ns, 3 pe times.
        end_ns = columns["end_ns"][columns["pe"] == pe].max()
        assert end_ns == 64 + 3 * pe * (32 + 16) + 64
