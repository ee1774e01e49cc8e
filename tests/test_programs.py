"""Random kernels: every path through kbjax gives the same bits, and the right ones.

A failing test prints the kernel; `tests.programs.random_kernel(seed, exact_only)` makes
it again.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from tests import reference
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.programs import Drawn, random_kernel

EXACT = [(seed, True) for seed in (*range(9), 25)]
FULL = [(seed, False) for seed in range(9)]
PES = 3

# Unrolled and unscoped kernels keep every tile of every iteration.
_TCM = dataclasses.replace(kb.Hardware().pe_tcm, kernel_scratch_mb=16)
ROOMY = dataclasses.replace(kb.Hardware(), pe_tcm=_TCM)

# What a chain of float ops whose last bits are open may differ by, relative to the
# larger of 1 and the value (values are drawn around 1; each op costs an ulp or so, and
# a difference of nearly equal values costs relative, not absolute, accuracy).
TOLERANCE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A random kernel and what it gives when it is simply called."""

    drawn: Drawn
    call: kb.KernelCall
    outputs: tuple[jax.Array, ...]


def made(drawn: Drawn, num_pes: int = 1, **form: bool) -> kb.KernelCall:
    """The kernel in one of its forms, `unroll` and `scoped`."""
    roomy = form.get("unroll", False) or not form.get("scoped", True)
    return kb.kernel_call(
        functools.partial(drawn.kernel, **form),
        drawn.out_shapes,
        num_pes=num_pes,
        hardware=ROOMY if roomy else kb.Hardware(),
    )


@functools.cache
def case_of(seed: int, exact_only: bool) -> Case:
    drawn = random_kernel(seed, exact_only)
    call = made(drawn)
    return Case(drawn, call, call(*drawn.arrays))


def case_id(value: Any) -> str:
    seed, exact_only = value
    return f"{'exact' if exact_only else 'full'}-{seed}"


@pytest.fixture
def case(seed: tuple[int, bool]) -> Case:
    found = case_of(*seed)
    print(found.drawn.source)  # shown when the test fails
    return found


def seeds(which: list[tuple[int, bool]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", which, ids=case_id)


def assert_close(got: Any, expected: np.ndarray, what: str = "") -> None:
    """Equal for bool and int, within TOLERANCE for floats; NaN and inf alike."""
    got = np.asarray(got)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), what
    if got.dtype.name not in TOLERANCE:
        assert_same_bits(got, expected, what)
        return
    limit = TOLERANCE[got.dtype.name]
    a, b = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=limit, atol=limit, err_msg=what)


@seeds(EXACT + FULL)
def test_exact_equals_live_and_run_equals_call(case: Case) -> None:
    """Bytes and typed values are two ways to compute one thing."""
    arrays = case.drawn.arrays
    exact = case.call.run(*arrays, fidelity="exact")
    live = case.call.run(*arrays, fidelity="live")
    assert_same_bits(live.outputs, case.outputs, "run and call")
    assert_same_bits(live.outputs, exact.outputs, "live and exact")
    program = case.call.record(*arrays)
    assert_same_tcm(program, live.tcm.memory, exact.tcm.memory)


@seeds(EXACT + FULL)
def test_rolled_equals_unrolled(case: Case) -> None:
    """One loop body, run `trip` times, is its iterations written out."""
    arrays = case.drawn.arrays
    unrolled = made(case.drawn, unroll=True).run(*arrays)
    assert_same_bits(unrolled.outputs, case.outputs, "unrolled and rolled")


@seeds(EXACT + FULL)
def test_scoped_equals_unscoped(case: Case) -> None:
    """Rewinding the cursor changes addresses and nothing else."""
    unscoped = made(case.drawn, scoped=False)(*case.drawn.arrays)
    assert_same_bits(unscoped, case.outputs, "unscoped and scoped")


@seeds(EXACT + FULL)
def test_inside_an_outer_jit(case: Case) -> None:
    """XLA sees the kernel and its caller at once, and still rounds op by op."""
    inside = jax.jit(lambda *arrays: case.call(*arrays))(*case.drawn.arrays)
    assert_same_bits(inside, case.outputs, "inside jit and plain")


@seeds(EXACT[::2] + FULL[::2])
def test_inputs_closed_over_by_an_outer_jit(case: Case) -> None:
    """Inputs that are compile-time constants are no invitation to fold roundings."""
    inside = jax.jit(lambda: case.call(*case.drawn.arrays))()
    assert_same_bits(inside, case.outputs, "constant inputs and plain")


@seeds(EXACT)
def test_matches_numpy_bit_for_bit(case: Case) -> None:
    """Outputs and every live byte of memory, NaN payloads aside."""
    arrays = case.drawn.arrays
    program = case.call.record(*arrays)
    expected = reference.run(program, arrays)
    assert_same_bits(case.outputs, expected.outputs, "kbjax and NumPy")
    memory = case.call.run(*arrays, fidelity="exact").tcm.memory
    assert_same_tcm(program, memory, expected.memory, any_nan=True)


@seeds(FULL)
def test_is_close_to_numpy(case: Case) -> None:
    """With exp, dot and their kin, whose last bits are open."""
    program = case.call.record(*case.drawn.arrays)
    expected = reference.run(program, case.drawn.arrays)
    for number, (got, want) in enumerate(
        zip(case.outputs, expected.outputs, strict=True)
    ):
        assert_close(got, want, f"output {number}")


def stacked(drawn: Drawn) -> tuple[np.ndarray, ...]:
    """Inputs for PES PEs, each with data of its own."""
    rng = np.random.default_rng(1)
    return tuple(
        np.stack([first, *(tensor.draw(rng) for _ in range(PES - 1))])
        for tensor, first in zip(drawn.inputs, drawn.arrays, strict=True)
    )


@seeds(EXACT[:5] + FULL[:5])
def test_each_pe_computes_what_it_does_alone(
    seed: tuple[int, bool], case: Case
) -> None:
    """Side by side, PEs give the bits of their single runs; where exp and dot are
    among the ops, batching them may differ by an ulp."""
    inputs = stacked(case.drawn)
    together = made(case.drawn, num_pes=PES)(*inputs)
    for pe in range(PES):
        alone = case.call(*(x[pe] for x in inputs))
        for number, (many, one) in enumerate(zip(together, alone, strict=True)):
            what = f"PE {pe}, output {number}"
            if seed[1]:
                assert_same_bits(many[pe], one, what)
            else:
                assert_close(many[pe], np.asarray(one), what)


@pytest.mark.parametrize("number", range(5))
def test_pes_that_differ_by_program_id(number: int) -> None:
    """`program_id` in arithmetic and in trip counts: both fidelities and NumPy."""
    drawn = random_kernel(number, exact_only=True, program_ids=True)
    print(drawn.source)
    inputs = stacked(drawn)
    call = made(drawn, num_pes=PES)
    program = call.record(*inputs)
    expected = reference.run(program, inputs)
    for fidelity in ("live", "exact"):
        got = call.run(*inputs, fidelity=fidelity)
        assert_same_bits(got.outputs, expected.outputs, fidelity)
        assert_same_tcm(program, got.tcm.memory, expected.memory, any_nan=True)


def test_the_same_seed_gives_the_same_kernel() -> None:
    one, other = random_kernel(3, exact_only=False), random_kernel(3, exact_only=False)
    assert one.source == other.source
    assert one.source != random_kernel(4, exact_only=False).source
    assert_same_bits(one.arrays, other.arrays)


@pytest.mark.parametrize("exact_only", (True, False))
def test_the_surface_is_covered(exact_only: bool) -> None:
    """Over many seeds every op is drawn, and every kernel records."""
    drawn = [random_kernel(seed, exact_only) for seed in range(80)]
    programs = [made(d).record(*d.arrays) for d in drawn]
    found = {
        command.op
        for program in programs
        for command in program.walk()
        if hasattr(command, "op")
    }
    inexact = {"exp", "exp2", "log", "softmax", "dot"}
    wanted = (set(reference.OPS) - inexact) | {"load", "store", "copy"}
    assert found == (wanted if exact_only else wanted | inexact)
