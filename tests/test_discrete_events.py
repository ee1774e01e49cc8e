"""The op_log against a simulation of the engines that is written apart: every start and
every end, to the picosecond."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.hardware import PeDma, PeMath
from tests import discrete_events
from tests.programs import PES, random_kernel
from tests.timing_programs import timing_kernel

pytestmark = pytest.mark.filterwarnings("ignore:.*never stores to its output")


def assert_as_simulated(call: Any, inputs: Any, source: str = "") -> int:
    """The number of rows, all of them as `discrete_events` has them.

    Raises:
      AssertionError: naming the first row that differs, its kernel line and iteration.
    """
    program = call.record(*inputs)
    log = call.op_log(*inputs)
    columns = log.columns()
    names = ("op_name", "engine", "start_ns", "end_ns", "nbytes", "loop", "pe")
    rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
    wanted = [
        (pe, timed)
        for pe, times in enumerate(discrete_events.simulate(program))
        for timed in times
    ]
    for row, (pe, timed) in zip(rows, wanted, strict=False):
        op, engine, start_ns, end_ns, nbytes, loop, on = row
        loops = ";".join(f"{name}={i}" for name, i in timed.indices)
        got = (op, engine, round(start_ns * 1000), round(end_ns * 1000), nbytes, loop)
        want = (*timed[:5], loops)
        assert (on, *got) == (pe, *want), (
            f"{timed.site}: {timed.op} on PE {pe}, loops {loops or 'none'}: "
            f"{got} in the op_log, {want} simulated\n{program.hardware}\n{source}"
        )
    assert len(rows) == len(log) == len(wanted), source
    last = max((timed.end_ps for _, timed in wanted), default=0)
    assert round(log.total_ns * 1000) == last, source
    return len(rows)


@pytest.mark.parametrize("name", catalogue.kernel_names())
def test_shipped_kernels(name: str) -> None:
    case = catalogue.make(name, **catalogue.kernel_module(name).SMALL)
    assert assert_as_simulated(case.call, case.inputs.specs) > 40


@pytest.mark.parametrize("block", range(4))
def test_kernels_that_are_hard_to_time(block: int) -> None:
    rows = 0
    for seed in range(50 * block, 50 * (block + 1)):
        drawn = timing_kernel(seed)
        rows += assert_as_simulated(
            drawn.call, drawn.inputs, f"seed {seed}\n{drawn.source}"
        )
    assert rows > 5000


@pytest.mark.parametrize("seed", range(16))
def test_kernels_of_every_op_and_dtype(seed: int) -> None:
    drawn = random_kernel(seed, exact_only=False, program_ids=seed % 2 == 1)
    num_pes = PES if drawn.program_ids else 1
    lead = (num_pes,) if num_pes > 1 else ()
    inputs = [jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype) for x in drawn.arrays]
    call = kb.kernel_call(drawn.kernel, drawn.out_shapes, num_pes=num_pes)
    assert_as_simulated(call, inputs, f"seed {seed}\n{drawn.source}")


def test_kernels_that_are_hard_to_time_have_what_is_hard() -> None:
    """The generator keeps drawing what it is for."""
    kernels = [timing_kernel(seed) for seed in range(200)]
    needed = {
        "with tl.when(": 30, "other=": 30, "boundary_check": 20, "ring[": 40,
        "tl.dot(": 40, "tl.load(big)": 40, "tl.range(pe": 5, "% 3 == 1": 3,
        "tl.range(0)": 5, "tl.range(i": 8, "tl.range(40)": 3,
    }  # fmt: skip
    for text, least in needed.items():
        found = sum(text in drawn.source for drawn in kernels)
        assert found >= least, f"{text}: in {found} kernels of {len(kernels)}"


# --- the simulation by itself --------------------------------------------------------


def test_a_simulation_by_hand() -> None:
    """1 ns a byte and 10 ns a transfer; 1 ns for every 4 elements and 2 ns an op.

    load 16 B: 10 + 16 = 26; add of 4: 2 + 1 = 3; store: 26.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(2):
            with tl.scratch_scope():
                tl.store(o[i], tl.load(x[i]) + 1.0)

    hardware = kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=10),
        pe_math=PeMath(lanes=4, clock_ghz=1, overhead_ns=2, cycles={}),
    )
    spec = jax.ShapeDtypeStruct((2, 4), "float32")
    program = kb.kernel_call(kernel, spec, hardware=hardware).record(spec)
    assert [t[:-1] for t in discrete_events.simulate(program)[0]] == [
        ("load", "dma", 0, 26_000, 16, (("i", 0),)),
        ("add", "math", 26_000, 29_000, 16, (("i", 0),)),
        ("store", "dma", 29_000, 55_000, 16, (("i", 0),)),
        ("load", "dma", 55_000, 81_000, 16, (("i", 1),)),
        ("add", "math", 81_000, 84_000, 16, (("i", 1),)),
        ("store", "dma", 84_000, 110_000, 16, (("i", 1),)),
    ]


def test_scratch_remembers_by_byte() -> None:
    scratch = discrete_events.Scratch()
    assert scratch.write(range(0, 8), 0) == set()
    assert scratch.read(range(4, 12), 1) == {0}  # 8 to 12 were never written
    assert scratch.write(range(0, 4), 2) == {0}
    assert scratch.write(range(10, 16), 3) == {1}
    assert scratch.write(range(2, 9), 4) == {0, 1, 2}
    assert scratch.read(range(0, 16), 5) == {2, 3, 4}
