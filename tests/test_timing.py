"""Schedules by hand, and against a byte by byte replay that is written apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import costs, expr, op_log, rolled, timing
from kbjax.expr import Var
from kbjax.hardware import PeDma, PeGemm, PeMath
from kbjax.program import Command, CopyCmd, HbmRef, LoadCmd, Loop, Program, Scope, When
from tests.programs import random_kernel

# Round numbers: a transfer is 10 ns + 1 ns a byte; an array pass 1 ns + 5 ns; a vector
# op 2 ns + 1 ns for every 4 elements. A 4x4 float32 tile: load and store 74 ns, exp
# 14 ns, other vector ops and dot 6 ns.
ROUND = kb.Hardware(
    pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=10),
    pe_gemm=PeGemm(
        rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=5, rate={"float32": 1}
    ),
    pe_math=PeMath(lanes=4, clock_ghz=1, overhead_ns=2, cycles={"exp": 3}),
)


def tensor(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


@dataclasses.dataclass(frozen=True)
class Timed:
    """A schedule with all its rows: int64 arrays (rows,), PE by PE."""

    works: Sequence[costs.Work]
    work: np.ndarray
    pe: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray
    nbytes: np.ndarray


def scheduled(program: Program) -> Timed:
    columns = op_log.of(program).columns(["pe", "start_ps", "end_ps", "nbytes"])
    made = timing.schedule(program)
    work = [rolled.expanded(run, ["work"], 0)["work"] for run in made.runs]
    return Timed(made.works, np.concatenate(work), **columns)


def timed(
    kernel: Callable[..., None],
    *inputs: Any,
    out: Any = None,
    hardware: kb.Hardware = ROUND,
    **options: Any,
) -> list[tuple[str, int, int]]:
    """(op, start, end) of every row, in whole ns."""
    made = kb.kernel_call(kernel, out or tensor(4, 4), hardware=hardware, **options)
    schedule = scheduled(made.record(*inputs))
    assert schedule.start_ps.dtype == schedule.end_ps.dtype == np.int64
    rows = [
        (schedule.works[w].op_name, int(start), int(end))
        for w, start, end in zip(
            schedule.work, schedule.start_ps, schedule.end_ps, strict=True
        )
    ]
    assert not any(start % 1000 or end % 1000 for _, start, end in rows)
    return [(name, start // 1000, end // 1000) for name, start, end in rows]


# --- by hand -------------------------------------------------------------------------


def test_a_chain_runs_one_after_the_other() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.exp(tl.load(x)) + 1.0)

    assert timed(kernel, tensor(4, 4)) == [
        ("load", 0, 74),
        ("exp", 74, 88),
        ("add", 88, 94),
        ("store", 94, 168),
    ]


def test_engines_run_side_by_side() -> None:
    def kernel(tl: Any, x: Any, y: Any, o: Any) -> None:
        a = tl.load(x)
        b = tl.load(y)
        z = tl.zeros((4, 4))  # needs nothing
        d = tl.dot(a, a)  # while y is loaded
        s = d + z
        tl.store(o, s + b)

    assert timed(kernel, tensor(4, 4), tensor(4, 4)) == [
        ("load", 0, 74),
        ("load", 74, 148),
        ("zeros", 0, 6),
        ("dot", 74, 80),
        ("add", 80, 86),
        ("add", 148, 154),
        ("store", 154, 228),
    ]


def test_a_product_takes_its_passes() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)  # 8 x 12
        tl.store(o, tl.dot(a, tl.trans(a)))

    # ceil(8/4) ceil(8/4) ceil(12/4) = 12 passes
    assert timed(kernel, tensor(8, 12), out=tensor(8, 8)) == [
        ("load", 0, 394),
        ("trans", 394, 420),
        ("dot", 420, 437),
        ("store", 437, 703),
    ]


def test_engines_keep_the_order_of_issue() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)
        b = a + 1.0  # waits for the load
        tl.zeros((4, 4))  # ready at 0, but behind it
        tl.store(o, b)

    assert timed(kernel, tensor(4, 4)) == [
        ("load", 0, 74),
        ("add", 74, 80),
        ("zeros", 80, 86),
        ("store", 80, 154),
    ]


def _two_tiles(scoped: bool) -> Callable[..., None]:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((4, 4))
        for i in tl.range(2):
            if scoped:
                with tl.scratch_scope():
                    tl.copy_to(total, total + tl.load(x[i]))
            else:
                tl.copy_to(total, total + tl.load(x[i]))
        tl.store(o, total)

    return kernel


def test_rewound_scratch_serialises_a_load_behind_its_reader() -> None:
    assert timed(_two_tiles(scoped=True), tensor(2, 4, 4)) == [
        ("zeros", 0, 6),
        ("load", 0, 74),
        ("add", 74, 80),
        ("copy", 80, 86),
        ("load", 80, 154),  # its bytes are read until 80
        ("add", 154, 160),
        ("copy", 160, 166),
        ("store", 166, 240),
    ]


def test_separate_buffers_do_not() -> None:
    assert timed(_two_tiles(scoped=False), tensor(2, 4, 4)) == [
        ("zeros", 0, 6),
        ("load", 0, 74),
        ("add", 74, 80),
        ("copy", 80, 86),
        ("load", 74, 148),
        ("add", 148, 154),
        ("copy", 154, 160),
        ("store", 160, 234),
    ]


def test_a_write_waits_for_the_readers_of_its_bytes() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)
        b = tl.zeros((4, 4))
        tl.store(o, a)
        tl.copy_to(a, b)  # the store still reads a

    assert timed(kernel, tensor(4, 4)) == [
        ("load", 0, 74),
        ("zeros", 0, 6),
        ("store", 74, 148),
        ("copy", 148, 154),
    ]


def test_a_write_waits_for_the_last_write_of_its_bytes() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            tl.load(x)
        z = tl.zeros((4, 4))  # the same bytes, on another engine
        tl.store(o, z)

    assert timed(kernel, tensor(4, 4)) == [
        ("load", 0, 74),
        ("zeros", 74, 80),
        ("store", 80, 154),
    ]


def test_an_alias_waits_for_its_own_bytes_only() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((4, 4))
        low, high = t[tl.ds(0, 2)], t[tl.ds(2, 2)]
        tl.store(o[0:2], low)  # 8..50
        tl.copy_to(high, tl.full((2, 4), 1.0))
        tl.copy_to(low, high)
        tl.store(o[2:4], high)

    assert timed(kernel, tensor(4, 4)) == [
        ("zeros", 0, 6),
        ("store", 6, 48),
        ("full", 6, 10),
        ("copy", 10, 14),  # bytes that the store does not read
        ("copy", 48, 52),  # bytes that it reads
        ("store", 48, 90),
    ]


def test_a_copy_is_a_vector_op() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        a, b = tl.load(x), tl.empty((4, 4))
        tl.copy_to(b, a)
        tl.store(o, b)

    call = kb.kernel_call(kernel, tensor(4, 4), hardware=ROUND)
    works = scheduled(call.record(tensor(4, 4))).works
    (copy,) = (w for w in works if w.op_name == "copy")
    assert isinstance(copy.command, CopyCmd) and copy.engine == "math"
    assert copy.cost_ps == ROUND.pe_math.compute_ps(16, "copy") == 6_000
    assert (copy.nbytes.const, copy.flops) == (64, 16)


def test_a_tail_moves_the_bytes_inside() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3):
            t = tl.load(x[tl.ds(4 * i, 4)], other=0.0)  # 6 rows of 16 B
            tl.store(o[tl.ds(4 * i, 4)], t, boundary_check=True)

    call = kb.kernel_call(kernel, tensor(6, 4), hardware=ROUND)
    schedule = scheduled(call.record(tensor(6, 4)))
    assert schedule.nbytes.tolist() == [64, 64, 32, 32, 0, 0]
    took = (schedule.end_ps - schedule.start_ps).tolist()
    assert took == [74_000, 74_000, 42_000, 42_000, 10_000, 10_000]


def test_a_tail_at_the_start_moves_the_bytes_inside() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3):
            tl.store(o, tl.load(x[tl.ds(2 * i - 2, 4), tl.ds(3, 4)], other=0.0))

    call = kb.kernel_call(kernel, tensor(4, 4), hardware=ROUND)
    schedule = scheduled(call.record(tensor(4, 4)))
    assert schedule.nbytes[::2].tolist() == [2 * 4, 4 * 4, 2 * 4]


def test_a_kernel_that_does_nothing_takes_no_time() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(0):
            tl.store(o[i], tl.load(x[i]))

    with pytest.warns(UserWarning, match="never stores"):
        assert timed(kernel, tensor(4, 4)) == []


def test_fractions_of_a_nanosecond_are_kept() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    hardware = dataclasses.replace(
        ROUND, pe_dma=PeDma(bandwidth_gb_s=3.0, latency_ns=0.5)
    )
    call = kb.kernel_call(kernel, tensor(4, 4), hardware=hardware)
    schedule = scheduled(call.record(tensor(4, 4)))
    assert schedule.end_ps.tolist() == [21_834, 43_668]  # 64 / 3 + 0.5 ns, rounded up


# --- PEs -----------------------------------------------------------------------------


def _by_pe(tl: Any, x: Any, o: Any) -> None:
    t = tl.load(x)
    for _ in tl.range(tl.program_id()):
        with tl.scratch_scope():
            tl.copy_to(t, t + 1.0)
    tl.store(o, t)


def test_pes_differ_where_trip_counts_do() -> None:
    call = kb.kernel_call(_by_pe, tensor(4, 4), num_pes=3, hardware=ROUND)
    schedule = scheduled(call.record(tensor(3, 4, 4)))
    assert np.bincount(schedule.pe).tolist() == [2, 4, 6]
    ends = [int(schedule.end_ps[schedule.pe == pe].max()) for pe in range(3)]
    assert ends == [148_000, 160_000, 172_000]


def test_pes_that_do_the_same_take_the_same_time() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + tl.program_id())

    call = kb.kernel_call(kernel, tensor(4, 4), num_pes=3, hardware=ROUND)
    schedule = scheduled(call.record(tensor(3, 4, 4)))
    assert schedule.pe.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert schedule.end_ps.tolist() == [74_000, 80_000, 154_000] * 3


def test_tails_that_differ_by_pe_differ_in_time() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        start = tl.program_id() * 4
        t = tl.load(x[tl.ds(start, 4)], other=0.0)
        tl.store(o[tl.ds(start, 4)], t, boundary_check=True)

    call = kb.kernel_call(
        kernel, tensor(6, 4), num_pes=2, in_axes=None, out_axes=None, hardware=ROUND
    )
    schedule = scheduled(call.record(tensor(6, 4)))
    assert schedule.nbytes.tolist() == [64, 64, 32, 32]


def test_one_pe_is_the_same_alone() -> None:
    alone = scheduled(
        kb.kernel_call(_by_pe, tensor(4, 4), hardware=ROUND).record(tensor(4, 4))
    )
    many = kb.kernel_call(_by_pe, tensor(4, 4), num_pes=3, hardware=ROUND)
    together = scheduled(many.record(tensor(3, 4, 4)))
    first = together.pe == 0
    assert alone.end_ps.tolist() == together.end_ps[first].tolist()


# --- laws, on random programs --------------------------------------------------------


def executed(program: Program, pe: int) -> Iterator[tuple[Command, Mapping[Var, int]]]:
    """Every command as often as it runs on a PE, in issue order."""

    def run(block: Any, env: dict[Var, int]) -> Iterator[tuple[Command, Any]]:
        for item in block:
            if isinstance(item, Loop):
                for i in range(expr.evaluate(item.trip, env)):
                    yield from run(item.body, {**env, item.index: i})
            elif isinstance(item, When) and not expr.evaluate(item.condition, env):
                continue
            elif isinstance(item, Scope):
                yield from run(item.body, env)
            else:
                yield item, env

    return run(program.commands, {program.program_id: pe})


def inside(view: HbmRef, shape: tuple[int, ...], env: Mapping[Var, int]) -> int:
    """Bytes of the view that exist, counted element by element."""
    count = 1
    for span, size in zip(view.spans, shape, strict=True):
        start = expr.evaluate(span.start, env)
        count *= sum(0 <= i < size for i in range(start, start + span.size))
    return count * view.dtype.nbytes


def replayed(program: Program, pe: int) -> list[tuple[int, int]]:
    """(start, end) in ps: engines in order, a dict of bytes, one command at a time."""
    hardware = program.hardware
    free = {"dma": 0, "gemm": 0, "math": 0}
    written: dict[int, int] = {}
    touched: dict[int, int] = {}
    times = []
    for command, env in executed(program, pe):
        shapes = [ref.shape for ref in command.reads]
        out = command.writes
        if command.op in ("load", "store"):
            view = command.view  # type: ignore[attr-defined]
            engine = "dma"
            nbytes = inside(view, program.slots[view.slot].shape, env)
            cost = hardware.pe_dma.transfer_ps(nbytes)
        elif command.op == "dot":
            engine = "gemm"
            (m, k), (_, n) = shapes
            kind = command.reads[0].dtype.name
            cost = hardware.pe_gemm.compute_ps(m, n, k, kind)
        else:
            assert out is not None
            engine = "math"
            sizes = [out.size, *(ref.size for ref in command.reads)]
            cost = hardware.pe_math.compute_ps(max(sizes), command.op)
        taken = [
            range(start, start + ref.nbytes)
            for ref in command.reads
            for start in [expr.evaluate(program.offset(ref), env)]
        ]
        start = free[engine]
        for span in taken:
            start = max([start, *(written.get(byte, 0) for byte in span)])
        given: range = range(0)
        if out is not None:
            first = expr.evaluate(program.offset(out), env)
            given = range(first, first + out.nbytes)
            start = max([start, *(touched.get(byte, 0) for byte in given)])
        end = start + cost
        for span in taken:
            touched.update({byte: max(touched.get(byte, 0), end) for byte in span})
        written.update(dict.fromkeys(given, end))
        touched.update(dict.fromkeys(given, end))
        free[engine] = end
        times.append((start, end))
    return times


def random_program(seed: int) -> Program:
    drawn = random_kernel(seed, exact_only=False, program_ids=seed % 2 == 1)
    num_pes = 1 + seed % 3

    def split(array: Any) -> Any:
        shape = array.shape if num_pes == 1 else (num_pes, *array.shape)
        return jax.ShapeDtypeStruct(shape, array.dtype)

    call = kb.kernel_call(drawn.kernel, drawn.out_shapes, num_pes=num_pes)
    return call.record(*(split(array) for array in drawn.arrays))


@pytest.mark.filterwarnings("ignore:.*never stores to its output")
@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_is_that_of_the_replay(seed: int) -> None:
    program = random_program(seed)
    schedule = scheduled(program)
    for pe in range(program.num_pes):
        mine = schedule.pe == pe
        found = zip(schedule.start_ps[mine], schedule.end_ps[mine], strict=True)
        assert [(int(a), int(b)) for a, b in found] == replayed(program, pe)


@pytest.mark.parametrize("seed", range(20))
def test_laws(seed: int) -> None:
    program = random_program(seed)
    schedule = scheduled(program)
    took = schedule.end_ps - schedule.start_ps
    assert (schedule.start_ps >= 0).all() and (took > 0).all()
    total = int(schedule.end_ps.max())
    assert total <= int(took.sum())  # all latencies, one after the other
    engines = np.array([w.engine for w in schedule.works])[schedule.work]
    hardware = program.hardware
    for pe in range(program.num_pes):
        for engine in costs.ENGINES:
            mine = (schedule.pe == pe) & (engines == engine)
            start, end = schedule.start_ps[mine], schedule.end_ps[mine]
            assert (start[1:] >= end[:-1]).all()  # in order, one at a time
            assert total >= int(took[mine].sum())
        moved = int(schedule.nbytes[(schedule.pe == pe) & (engines == "dma")].sum())
        assert total >= moved / hardware.pe_dma.bandwidth_gb_s * 1000
        flops = sum(
            schedule.works[w].flops / hardware.pe_gemm.peak_flops_per_ns(kind)
            for w in schedule.work[(schedule.pe == pe) & (engines == "gemm")]
            for kind in [schedule.works[w].command.reads[0].dtype.name]
        )
        assert total >= flops * 1000


@pytest.mark.parametrize("seed", range(4))
def test_schedules_are_deterministic(seed: int) -> None:
    first, second = (scheduled(random_program(seed)) for _ in "ab")
    assert first.start_ps.tolist() == second.start_ps.tolist()
    assert first.end_ps.tolist() == second.end_ps.tolist()


def test_more_bandwidth_never_slows_a_serial_program() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(3):
            with tl.scratch_scope():
                tl.copy_to(t, tl.exp(t))
        tl.store(o, t)

    totals = []
    for bandwidth in (0.5, 1, 2, 64):
        hardware = dataclasses.replace(
            ROUND, pe_dma=PeDma(bandwidth_gb_s=bandwidth, latency_ns=10)
        )
        totals.append(timed_total(kernel, hardware))
    assert totals == sorted(totals, reverse=True) and totals[0] > totals[-1]


def timed_total(kernel: Callable[..., None], hardware: kb.Hardware) -> int:
    call = kb.kernel_call(kernel, tensor(4, 4), hardware=hardware)
    return int(scheduled(call.record(tensor(4, 4))).end_ps.max())


def test_rolled_and_unrolled_loops_take_the_same_time() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, rolled: bool) -> None:
        total = tl.zeros((4, 4))
        for i in (tl.range if rolled else tl.static_range)(5):
            with tl.scratch_scope():
                tl.copy_to(total, total + tl.exp(tl.load(x[i])))
        tl.store(o, total)

    rows = [
        timed(lambda tl, x, o, r=r: kernel(tl, x, o, rolled=r), tensor(5, 4, 4))
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
