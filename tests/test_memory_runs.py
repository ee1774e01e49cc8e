"""Random kernels that exercise memory, run: kbjax, NumPy and every form agree, and what
breaks the scope contract gives the hardware's bytes.

A failing test prints the kernel; `memory_kernel(seed, mistaken, lines)` makes it again.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import data_phase
from kbjax.program import Program
from tests import reference
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.memory_programs import Drawn, memory_kernel
from tests.test_memory import SHORT, made, shown

# XLA compiles each of them, so these are short and few.
RUN, BROKEN, POISONED = range(9), range(6), range(3)


@dataclass(frozen=True)
class Case:
    """A short kernel that keeps the contract, and its exact run."""

    drawn: Drawn
    call: kb.KernelCall
    program: Program
    exact: Any


@functools.cache
def case_of(seed: int) -> Case:
    drawn = memory_kernel(seed, lines=SHORT)
    call = made(drawn)
    program = call.record(*drawn.arrays)
    return Case(drawn, call, program, call.run(*drawn.arrays, fidelity="exact"))


def executed(block: Any, env: dict[int, int]) -> Iterator[Any]:
    """Each command as often as it runs; `env` holds the indices meanwhile."""
    for item in block:
        if not hasattr(item, "body"):
            yield item
        elif not hasattr(item, "index"):
            yield from executed(item.body, env)
        else:
            for i in range(reference.evaluate(item.index.trip, env)):
                env[item.index.uid] = i
                yield from executed(item.body, env)


def assert_same_memory(program: Program, got: Any, expected: Any) -> None:
    """The whole scratch region byte for byte, whatever the payload of a NaN that a
    command wrote."""
    got, expected = (
        np.asarray(x).reshape(program.num_pes, -1) for x in (got, expected)
    )
    for pe, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        last: dict[int, tuple[int, Any]] = {}  # byte -> element that it belongs to
        env = {program.program_id.uid: pe}
        for command in executed(program.commands, env):
            if command.writes is not None:
                dtype = reference.DTYPES[command.writes.dtype.name]
                start = reference.offset(program, command.writes, env)
                for at in range(start, start + command.writes.nbytes):
                    last[at] = at - (at - start) % dtype.itemsize, dtype
        for at in np.flatnonzero(mine != theirs).tolist():
            start, dtype = last.get(at, (at, np.dtype(np.uint8)))
            where = slice(start, start + dtype.itemsize)
            values = [x[where].copy().view(dtype)[0] for x in (mine, theirs)]
            assert all(value != value for value in values), (
                f"byte {at} of PE {pe} is {mine[at]:#x}, expected {theirs[at]:#x}; "
                f"as {dtype} from {start}: {values}"
            )


@pytest.mark.parametrize("seed", RUN)
def test_exact_and_live_are_as_numpy_has_it(seed: int) -> None:
    case = case_of(seed)
    with shown(case.drawn):
        arrays = case.drawn.arrays
        expected = reference.run(case.program, arrays)
        assert_same_bits(case.exact.outputs, expected.outputs, "exact and NumPy")
        assert_same_memory(case.program, case.exact.tcm.memory, expected.memory)
        live = case.call.run(*arrays, fidelity="live")
        assert_same_bits(live.outputs, case.exact.outputs, "live and exact")
        assert_same_tcm(case.program, live.tcm.memory, case.exact.tcm.memory)


@pytest.mark.parametrize("seed", RUN)
@pytest.mark.parametrize("form", [{"scoped": False}, {"unroll": True}], ids=str)
def test_the_form_changes_nothing(seed: int, form: dict[str, bool]) -> None:
    """Scopes change addresses only, and a rolled loop is its iterations: by NumPy, and
    once compiled."""
    case = case_of(seed)
    with shown(case.drawn):
        arrays = case.drawn.arrays
        call = made(case.drawn, **form)
        want, got = (
            reference.run(program, arrays).outputs
            for program in (case.program, call.record(*arrays))
        )
        assert_same_bits(got, want, str(form))
        if seed == RUN[0]:
            assert_same_bits(call(*arrays), case.exact.outputs, f"{form}, compiled")


# --- the hardware's behaviour --------------------------------------------------------


def record_warned(call: kb.KernelCall, drawn: Drawn) -> list[tuple[str, int]]:
    """Where recording warns."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call.record(*drawn.arrays)
    assert all(issubclass(one.category, UserWarning) for one in seen)
    return [(one.filename, one.lineno) for one in seen]


@pytest.mark.parametrize("seed", BROKEN)
def test_without_checks_the_bytes_are_the_hardwares(seed: int) -> None:
    """Stale and overwritten bytes as NumPy has them, in each run; `warn` replays the
    same program."""
    drawn = memory_kernel(seed, mistaken=True, lines=SHORT)
    assert drawn.mistake is not None
    with shown(drawn):
        call = made(drawn, checks="off")
        program = call.record(*drawn.arrays)
        got = call.run(*drawn.arrays)
        expected = reference.run(program, drawn.arrays)
        assert_same_bits(got.outputs, expected.outputs, "off and NumPy")
        assert_same_memory(program, got.tcm.memory, expected.memory)
        again = call.run(*drawn.arrays, fidelity="exact")
        assert_same_bits(again.outputs, got.outputs, "two runs")
        assert_same_bits(again.tcm.memory, got.tcm.memory, "two runs")
        warned = made(drawn, checks="warn")
        places = record_warned(warned, drawn)
        assert set(places) == {(drawn.name, drawn.mistake.line)}
        assert warned.record(*drawn.arrays).commands == program.commands
        if seed == 0:  # compiled once more
            outputs = warned.run(*drawn.arrays).outputs
            assert_same_bits(outputs, got.outputs, "warn and off")


@pytest.mark.parametrize("chunk", range(2))
def test_what_warns_is_the_mistake_and_nothing_else(chunk: int) -> None:
    for seed in range(chunk * 25, chunk * 25 + 25):
        drawn = memory_kernel(seed, mistaken=True)
        assert drawn.mistake is not None
        with shown(drawn):
            places = record_warned(made(drawn, checks="warn"), drawn)
            assert set(places) == {(drawn.name, drawn.mistake.line)}


# A tile of the last iteration, where iterations leave the cursor higher.


def used_as_it_is(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(3):
        t = tl.load(x[tl.ds(i, 4)])
    tl.store(o, t)


def used_by_an_alias(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(3):
        t = tl.load(x[tl.ds(i, 4)])
    tl.store(o, tl.reshape(t, (4,)))


def used_by_an_alias_of_an_alias(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(3):
        t = tl.load(x[tl.ds(i, 4)])
    tl.copy_to(tl.reshape(t[tl.ds(0, 2)], (2, 1)), tl.full((2, 1), 9.0))
    tl.store(o, t[tl.ds(0, 4)])


@pytest.mark.parametrize(
    "kernel", [used_as_it_is, used_by_an_alias, used_by_an_alias_of_an_alias]
)
def test_a_tile_after_its_growing_loop_is_the_last_one(
    kernel: Callable[..., None],
) -> None:
    x = np.arange(6, dtype=np.float32)
    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "float32"), checks="off")
    expected = x[2:].copy()
    if kernel is used_by_an_alias_of_an_alias:
        expected[:2] = 9
    np.testing.assert_array_equal(call(x), expected)
    np.testing.assert_array_equal(
        reference.run(call.record(x), (x,)).outputs[0], expected
    )


def test_a_copy_of_stale_bytes_copies_them() -> None:
    """`copy_to` moves bytes, also where a bool tile holds others than 0 and 1."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        kept = tl.zeros((16,), "bool")
        with tl.scratch_scope():
            stale = tl.load(x)
        tl.full((4,), 7.0)  # takes the place of `stale`
        tl.copy_to(kept, stale)
        tl.store(o, kept)

    x = np.ones(16, np.bool_)
    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((16,), "bool"), checks="off")
    got = call.run(x)
    expected = reference.run(call.record(x), (x,))
    assert_same_bits(got.outputs, expected.outputs[0])
    seven = np.full(4, 7.0, np.float32).tobytes()
    assert expected.memory[:16].tobytes() == seven
    assert np.asarray(got.tcm.memory)[:16].tobytes() == seven


# --- poison --------------------------------------------------------------------------


def poisoned(call: kb.KernelCall, arrays: Any) -> Any:
    return call.run(*arrays, fidelity="exact", poison=True)


@pytest.mark.parametrize("seed", POISONED)
def test_poison_changes_no_output_of_a_kept_contract(seed: int) -> None:
    case = case_of(seed)
    with shown(case.drawn):
        got = poisoned(case.call, case.drawn.arrays)
        assert_same_bits(got.outputs, case.exact.outputs, "with and without poison")
        expected = reference.run(case.program, case.drawn.arrays, poison=True)
        assert_same_bits(got.outputs, expected.outputs, "poison and NumPy")
        assert_same_memory(case.program, got.tcm.memory, expected.memory)


@pytest.mark.parametrize("seed", BROKEN[:3])
def test_poison_of_a_broken_contract_is_as_numpy_has_it(seed: int) -> None:
    drawn = memory_kernel(seed, mistaken=True, lines=SHORT)
    with shown(drawn):
        call = made(drawn, checks="off")
        got = poisoned(call, drawn.arrays)
        program = call.record(*drawn.arrays)
        expected = reference.run(program, drawn.arrays, poison=True)
        assert_same_bits(got.outputs, expected.outputs, "poison and NumPy")
        assert_same_memory(program, got.tcm.memory, expected.memory)


def stale_row(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.store(o, t)


def stale_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(2):
        tl.zeros((5,))  # moves the second iteration
        with tl.scratch_scope():
            t = tl.load(x[tl.ds(i * 4, 4)])
        tl.store(o[tl.ds(i * 4, 4)], t)


@pytest.mark.parametrize("kernel", [stale_row, stale_in_a_loop])
def test_poison_makes_a_stale_read_visible(kernel: Callable[..., None]) -> None:
    x = np.arange(8, dtype=np.float32)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = kb.kernel_call(kernel, out, checks="off")
    np.testing.assert_array_equal(call.run(x).outputs, x)  # stale, and goes unnoticed
    assert np.isnan(np.asarray(poisoned(call, (x,)).outputs)).all()


@pytest.mark.parametrize("num_pes", [1, 3])
def test_poison_by_default_replays_exactly(num_pes: int) -> None:
    """PEs that run fewer iterations poison no more than they rewind."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((8,))
        for _ in tl.range(tl.program_id() + 1):
            with tl.scratch_scope():
                tl.copy_to(total, total + tl.load(x))
        tl.store(o, total)

    x = np.arange(8, dtype=np.float32) * np.ones((num_pes, 1), np.float32)
    x = x if num_pes > 1 else x[0]
    out = jax.ShapeDtypeStruct((8,), x.dtype)
    call = kb.kernel_call(kernel, out, num_pes=num_pes)
    got = call.run(x, poison=True)
    times = np.arange(1, num_pes + 1, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(got.outputs, x * (times if num_pes > 1 else 1))
    memory = np.asarray(got.tcm.memory).reshape(num_pes, -1)
    assert (memory[:, 32:96] == 0xFF).all()  # the load and the sum, rewound
    live = call.run(x, fidelity="live", poison=True)
    assert_same_bits(live.outputs, got.outputs, "live and exact")
    assert_same_bits(live.tcm.memory, got.tcm.memory, "live and exact memory")


def test_checks_cost_phase_2_nothing() -> None:
    """Checked or not, a program is replayed by the same function."""
    drawn = memory_kernel(0, lines=SHORT)
    traced = []
    for checks in ("error", "warn", "off"):
        program = made(drawn, checks=checks).record(*drawn.arrays)
        replay = data_phase.lower(program, "exact", with_memory=True)
        traced.append(str(jax.make_jaxpr(replay)(*drawn.arrays)))
    assert traced[0] == traced[1] == traced[2]
