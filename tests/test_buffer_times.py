"""What circular buffers do to time: tiles that are loaded while others are used."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from kbjax import cases, catalogue
from kbjax.hardware import PeDma, PeGemm, PeMath
from tests import reference
from tests.buffer_programs import buffer_kernel, play
from tests.helpers import assert_same_bits
from tests.test_circular_buffer import VALUES, call_of, slots_of
from tests.test_discrete_events import assert_as_simulated
from tests.test_schedules_by_hand import ROUND, SLOW_GEMM, rows, tensor

# --- by hand -------------------------------------------------------------------------


def dots(tl: Any, x: Any, o: Any, *, depth: int) -> None:
    """A dot of each of 3 tiles, which are loaded `depth - 1` ahead."""
    z = tl.zeros((4, 4))
    buffer = tl.circular_buffer(depth, (4, 4))
    for k in range(depth - 1):
        buffer.push(x[k])
    for j in tl.range(3):
        with tl.scratch_scope():
            with tl.when(j + depth - 1 < 3):
                buffer.push(x[j + depth - 1])
            t = buffer.pop()
            tl.dot(t, t)
    tl.store(o, z)


BY_HAND = {
    1: [("zeros", 0, 10), ("load", 0, 100), ("dot", 100, 250), ("load", 250, 350),
        ("dot", 350, 500), ("load", 500, 600), ("dot", 600, 750), ("store", 600, 700)],
    2: [("zeros", 0, 10), ("load", 0, 100), ("load", 100, 200), ("dot", 100, 250),
        ("load", 250, 350), ("dot", 250, 400), ("dot", 400, 550), ("store", 350, 450)],
    3: [("zeros", 0, 10), ("load", 0, 100), ("load", 100, 200), ("load", 200, 300),
        ("dot", 100, 250), ("dot", 250, 400), ("dot", 400, 550), ("store", 300, 400)],
}  # fmt: skip


@pytest.mark.parametrize("depth", BY_HAND)
def test_dots_of_three_tiles(depth: int) -> None:
    """A load takes 100 ns, a dot 150 ns.

    One slot: each load waits for the dot of the tile before it, 250 ns a tile: 750.

    Two: load 0 to 100 and, at once, 100 to 200. The first dot 100 to 250; only then is
    its slot free for the third load, 250 to 350. The other dots follow one another, to
    550: the GEMM engine is busy from 100 on.

    Three: the third load need not wait, 200 to 300, but the dots do.

    None is below the GEMM engine's 3 x 150 = 450, nor the DMA engine's 4 x 100 = 400.
    """
    kernel = functools.partial(dots, depth=depth)
    call = kb.kernel_call(kernel, tensor(4, 4), hardware=SLOW_GEMM)
    log = call.op_log(tensor(3, 4, 4))
    assert rows(log) == BY_HAND[depth]
    assert log.total_ns == {1: 750, 2: 550, 3: 550}[depth]
    assert log.peak_scratch == (1 + depth + 1) * 64
    assert_as_simulated(call, [tensor(3, 4, 4)])


def test_a_quick_dot_is_hidden() -> None:
    """Behind the loads, of 100 ns: with two slots, 3 loads, then the last dot of 30 ns
    beside the store: 0 to 300, 400. With one slot 3 x 130, and a store from 360."""
    for depth, total in ((1, 460), (2, 400), (3, 400)):
        kernel = functools.partial(dots, depth=depth)
        call = kb.kernel_call(kernel, tensor(4, 4), hardware=ROUND)
        assert call.op_log(tensor(3, 4, 4)).total_ns == total


# --- laws ----------------------------------------------------------------------------


def sweep(tl: Any, x: Any, o: Any, *, depth: int, tile: int, n: int) -> None:
    acc = tl.zeros((4, 8))
    buffer = tl.circular_buffer(depth, (tile, 8))
    for k in range(depth - 1):
        with tl.when(k < n):
            buffer.push(x[k])
    for j in tl.range(n):
        with tl.scratch_scope():
            with tl.when(j + depth - 1 < n):
                buffer.push(x[j + depth - 1])
            t = buffer.pop()
            p = tl.exp(tl.dot(acc, tl.trans(t)))
            tl.copy_to(acc, acc + tl.dot(p, t))
    tl.store(o, acc)


_TIMES = st.integers(0, 2000)
_RATES = st.sampled_from((0.01, 0.1, 0.37, 1, 3, 100))


@settings(max_examples=25)
@given(
    hardware=st.builds(
        kb.Hardware,
        pe_dma=st.builds(PeDma, bandwidth_gb_s=_RATES, latency_ns=_TIMES),
        pe_gemm=st.builds(
            PeGemm,
            rows=st.integers(1, 8), cols=st.integers(1, 8), depth=st.integers(1, 8),
            clock_ghz=_RATES, overhead_ns=_TIMES,
        ),
        pe_math=st.builds(
            PeMath, lanes=st.integers(1, 64), clock_ghz=_RATES, overhead_ns=_TIMES
        ),
    ),
    tile=st.sampled_from((1, 4, 9)),
    n=st.sampled_from((0, 1, 2, 3, 7, 40)),
)  # fmt: skip
def test_a_deeper_buffer_is_never_slower(hardware: Any, tile: int, n: int) -> None:
    """Every engine has the same commands in the same order, and waits for less. And no
    schedule is shorter than what one engine does."""
    totals = []
    for depth in (1, 2, 3, 4):
        kernel = functools.partial(sweep, depth=depth, tile=tile, n=n)
        call = kb.kernel_call(kernel, tensor(4, 8), hardware=hardware)
        log = call.op_log(tensor(max(n, 4), tile, 8))
        columns = log.columns()
        took = np.rint((columns["end_ns"] - columns["start_ns"]) * 1000)
        for engine in ("dma", "gemm", "math"):
            busy = int(took[columns["engine"] == engine].sum())
            assert round(log.total_ns * 1000) >= busy
        totals.append(log.total_ns)
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize("block", range(4))
def test_random_programs_against_a_simulation(block: int) -> None:
    """And the times of a rolled kernel are those of the unrolled one, where its slots
    are."""
    unrolled_rows = 0
    for seed in range(1000 + 12 * block, 1000 + 12 * (block + 1)):
        drawn = buffer_kernel(seed)
        call = call_of(drawn)
        assert_as_simulated(call, [VALUES], f"seed {seed}\n{drawn.source}")
        wanted, _ = play(drawn, VALUES)
        if drawn.num_pes > 1 or slots_of(call.record(VALUES), 0) != wanted[0]:
            continue
        logs = [call.op_log(VALUES), call_of(drawn, unrolled=True).op_log(VALUES)]
        tables = [log.columns() for log in logs]
        for name in ("op_name", "start_ns", "end_ns", "dst_addr", "src_addrs"):
            a, b = (table[name].tolist() for table in tables)
            assert a == b, f"{name} of seed {seed}\n{drawn.source}"
        unrolled_rows += len(logs[0])
    assert unrolled_rows > 50


@pytest.mark.parametrize("depth", (2, 4))
def test_a_long_sweep_reaches_a_steady_state(depth: int) -> None:
    """16,384 tiles; its rate is that of a shorter one."""
    totals = []
    for n in (8192, 12288, 16384):
        kernel = functools.partial(sweep, depth=depth, tile=4, n=n)
        call = kb.kernel_call(kernel, tensor(4, 8), hardware=SLOW_GEMM)
        log = call.op_log(tensor(n, 4, 8))
        assert log.walks == ()
        totals.append(log.total_ns)
    assert totals[2] - totals[1] == totals[1] - totals[0]


# --- the shipped kernels -------------------------------------------------------------

KERNELS: dict[str, dict[str, int]] = {  # where 4 buffers fit
    "gqa_decode": {},
    "flash_prefill": {"tile": 64, "block": 64},
}
kernels = pytest.mark.parametrize("name", KERNELS)


def case_of(name: str, context: int, buffers: int = 1) -> cases.Case:
    return catalogue.make(name, context=context, buffers=buffers, **KERNELS[name])


def small_case(name: str, buffers: int) -> cases.Case:
    small = {**catalogue.kernel_module(name).SMALL, "num_pes": 1}
    return catalogue.make(name, **{**small, "buffers": buffers})


@kernels
def test_every_depth_gives_the_same_bits(name: str) -> None:
    """By the NumPy oracle."""
    found = []
    for buffers in (1, 2, 3, 4):
        case = small_case(name, buffers)
        x = case.inputs.arrays()
        found.append(reference.run(case.call.record(*x), x).outputs)
        assert_same_bits(found[-1], found[0], f"{buffers} buffers")


def test_two_depths_that_are_compiled_give_the_same_bits() -> None:
    one, three = (small_case("gqa_decode", buffers) for buffers in (1, 3))
    x = one.inputs.arrays()
    assert_same_bits(np.asarray(three.call(*x)), np.asarray(one.call(*x)))


@kernels
def test_a_plan_shows_every_depth(name: str) -> None:
    """Of `vary="buffers"`, and by default, as of the tile size."""
    case = case_of(name, 1024)
    specs = case.inputs.specs
    chosen = case.call.plan(*specs, vary="buffers").to_dict()["candidates"]
    default = case.call.plan(*specs).to_dict()["candidates"]
    assert {one["option"] for one in chosen} == {"buffers"}
    assert {"tile", "buffers"} <= {one["option"] for one in default}
    peaks = {
        buffers: case_of(name, 1024, buffers).call.record(*specs).peak_scratch
        for buffers in (1, 2, 3, 4)
    }
    planned = {one["value"]: one["peak_scratch_bytes"] for one in chosen}
    assert {1, 2, 4} <= planned.keys()
    assert all(planned[n] == peaks[n] for n in (1, 2, 4))
    tile = KERNELS[name].get("tile", 128)
    assert peaks[4] - peaks[3] == peaks[3] - peaks[2] == 2 * tile * 128 * 4


@kernels
@pytest.mark.parametrize("buffers", (1, 2, 4))
def test_a_million_tokens_reach_a_steady_state(name: str, buffers: int) -> None:
    case = case_of(name, 1_048_576, buffers)
    assert case.call.op_log(*case.inputs.specs).walks == ()


@kernels
def test_deeper_is_never_slower_in_a_kernel(name: str) -> None:
    found = [case_of(name, 4_096, buffers) for buffers in (1, 2, 3, 4)]
    times = [case.call.op_log(*case.inputs.specs).total_ns for case in found]
    assert times == sorted(times, reverse=True)
