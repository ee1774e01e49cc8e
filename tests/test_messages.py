"""Messages between PEs: values against NumPy, what is refused, and random programs
against a simulator. Times are in tests/test_message_times.py."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import dtypes, messages
from tests import message_programs
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.message_programs import Simulation, drawn_program, runs_in_lockstep

Kernel = Callable[..., None]
f32 = partial(jax.ShapeDtypeStruct, dtype="float32")
FOUR = f32((4,))
STEPS = 1_000_000  # more sends and receives of three PEs than are run one by one


def rows(num_pes: int, *shape: int) -> np.ndarray:
    """(P, *shape) float32, whole numbers that all differ; of one PE, (*shape)."""
    x = np.arange(num_pes * np.prod(shape), dtype=np.float32)
    x = x.reshape(num_pes, *shape)
    return x if num_pes > 1 else x[0]


def rolled(x: np.ndarray, num_pes: int, offset: int) -> np.ndarray:
    """`x` with each PE's part at the PE that it is sent to."""
    return np.roll(x, offset, axis=0) if num_pes > 1 else x


def both(kernel: Kernel, out: Any, num_pes: int, *arrays: Any, **options: Any) -> Any:
    """The outputs of live replay, which are those of exact, and the final memory."""
    call = kb.kernel_call(kernel, out, num_pes=num_pes, **options)
    live, exact = (call.run(*arrays, fidelity=f) for f in ("live", "exact"))
    assert_same_bits(live.outputs, exact.outputs)
    assert_same_tcm(call.record(*arrays), live.tcm.memory, exact.tcm.memory)
    return jax.tree.map(np.asarray, live.outputs)


# --- values --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_pes", "fidelity"), [(1, "live"), (2, "live"), (3, "exact"), (8, "live")]
)
def test_a_message_is_a_roll_over_the_pes(num_pes: int, fidelity: Any) -> None:
    """All at once: both ways around a ring, to itself, and further than once around.
    Offsets that lead to the same PE are different messages."""
    around = (num_pes, num_pes + 3, -2 * num_pes - 1)
    offsets = tuple(dict.fromkeys((1, -1, 2, 0, *around)))

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        for n, offset in enumerate(offsets):
            tl.send(tile + n, offset)
        for n, offset in reversed([*enumerate(offsets)]):
            tl.store(o[n], tl.recv((2, 3), "float32", offset).wait())

    x = rows(num_pes, 2, 3)
    call = kb.kernel_call(kernel, f32((len(offsets), 2, 3)), num_pes=num_pes)
    got = np.asarray(call.run(x, fidelity=fidelity).outputs)
    for n, offset in enumerate(offsets):
        want = rolled(x, num_pes, offset) + n
        np.testing.assert_array_equal(got[..., n, :, :], want, f"offset {offset}")


@pytest.mark.parametrize("num_pes", [1, 2])
def test_equal_offsets_pair(num_pes: int) -> None:
    """Of two PEs, 1 and -1 lead to the same one: the receive says which it takes."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        tl.send(tile, 1)
        tl.send(tile * 10.0, -1)
        back = tl.recv((4,), "float32", -1).wait()
        tl.store(o, back + tl.recv((4,), "float32", 1).wait() * 0.5)

    x = rows(num_pes, 4)
    got = both(kernel, FOUR, num_pes, x)
    np.testing.assert_array_equal(got, rolled(x, num_pes, 1) * 10.5)


def test_every_element_type() -> None:
    """As raw bytes, all bit patterns of a byte among them but for NaNs."""
    names = [*dtypes.TABLE]

    def kernel(tl: Any, *arguments: Any) -> None:
        inputs, outputs = arguments[: len(names)], arguments[len(names) :]
        for tensor in inputs:
            tl.send(tl.load(tensor), 1)
        for name, out in zip(names, outputs, strict=True):
            tl.store(out, tl.recv((64,), name, 1).wait())

    rng = np.random.default_rng(0)
    arrays = []
    for name in names:
        kind = np.dtype(getattr(ml_dtypes, name, name))
        raw = rng.integers(0, 256, (3, 64 * kind.itemsize), np.uint8)
        arrays.append(raw % 2 == 1 if kind == np.bool_ else raw.view(kind))
    out = tuple(jax.ShapeDtypeStruct((64,), a.dtype) for a in arrays)
    assert len(names) == 10
    for array, got in zip(arrays, both(kernel, out, 3, *arrays), strict=True):
        assert_same_bits(got, np.roll(array, 1, axis=0))


def test_several_messages_are_on_their_way() -> None:
    """Sent in a loop, received in another, of two shapes in program order, with a wait
    in another order than the receives: the earlier message lands in the earlier."""

    def kernel(tl: Any, x: Any, o: Any, p: Any) -> None:
        tile = tl.load(x)
        for i in tl.range(3):
            with tl.scratch_scope():
                tl.send(tile + i, 1).wait()
                tl.send(tl.reshape(tile * 2.0 + i, (2, 2)), 1).wait()
        for i in tl.range(3):
            with tl.scratch_scope():
                first = tl.recv((4,), "float32", 1)
                second = tl.recv((2, 2), "float32", 1)
                tl.store(p[i], second.wait())
                tl.store(o[i], first.wait())

    x = rows(4, 4)
    got, pairs = both(kernel, (f32((3, 4)), f32((3, 2, 2))), 4, x)
    back = np.roll(x, 1, axis=0)
    for i in range(3):
        np.testing.assert_array_equal(got[:, i], back + i)
        np.testing.assert_array_equal(pairs[:, i], (back * 2 + i).reshape(4, 2, 2))


def test_what_is_compiled_does_not_grow_with_the_messages_on_their_way() -> None:
    def equations(count: int) -> int:
        def kernel(tl: Any, x: Any, o: Any) -> None:
            tile = tl.load(x)
            for i in tl.range(count):
                with tl.scratch_scope():
                    tl.send(tile + i, 1).wait()
            for i in tl.range(count):
                with tl.scratch_scope():
                    tl.store(o[i], tl.recv((4,), "float32", 1).wait())

        call = kb.kernel_call(kernel, f32((count, 4)), num_pes=3)
        return str(jax.make_jaxpr(lambda a: call(a))(rows(3, 4))).count(" = ")

    assert equations(2) == equations(200)


def ring_sum(tl: Any, x: Any, o: Any) -> None:
    """All PEs' tiles added up, passed around; first sent before the loop."""
    n = tl.num_programs()
    total, mine = tl.load(x), tl.load(x)
    tl.send(mine, 1).wait()
    for j in tl.range(n - 1):
        tl.recv((4,), "float32", 1, out=mine).wait()
        with tl.when(j < n - 2):
            tl.send(mine, 1).wait()
        with tl.scratch_scope():
            tl.copy_to(total, total + mine)
    tl.store(o, total)


@pytest.mark.parametrize("num_pes", [2, 8])
def test_a_ring_under_a_when_on_the_index(num_pes: int) -> None:
    x = rows(num_pes, 4)
    got = both(ring_sum, FOUR, num_pes, x)
    np.testing.assert_array_equal(got, np.broadcast_to(x.sum(0), x.shape))


@pytest.mark.parametrize("received", [STEPS - 1, STEPS])
def test_a_million_steps_that_repeat(received: int) -> None:
    """Steps that repeat each other are matched once; the last one counts."""

    def ring(tl: Any, x: Any, o: Any) -> None:
        state = tl.load(x)
        tl.send(state, 1).wait()
        for i in tl.range(STEPS):
            with tl.when(i < received):
                tl.recv(state.shape, state.dtype, 1).wait()
            with tl.when((i + 1 < STEPS) & (tl.program_id() >= 0)):
                tl.send(state, 1).wait()
        tl.store(o, state)

    call = kb.kernel_call(ring, jax.ShapeDtypeStruct((4,), "float32"), num_pes=3)
    specs = jax.ShapeDtypeStruct((3, 4), "float32")
    if received == STEPS:
        call.record(specs)
        return
    with pytest.raises(kb.KernelError, match="is never received"):
        call.record(specs)


def test_one_receive_too_many_after_five_million_steps() -> None:
    """Which depend on no PE and no index, so that there need to be more of them."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        state = tl.load(x)
        for _ in tl.range(5 * STEPS):
            tl.send(state, 1).wait()
            tl.recv((4,), "float32", 1, out=state).wait()
        tl.recv((4,), "float32", 1).wait()
        tl.store(o, state)

    call = kb.kernel_call(kernel, FOUR, num_pes=3)
    with pytest.raises(kb.KernelError, match=r"PE 0 waits at .* is never sent"):
        call.record(f32((3, 4)))


def test_a_long_queue_is_filled_and_emptied() -> None:
    """What is on its way is not looked at in every iteration."""
    steps = 30_000

    def kernel(tl: Any, x: Any, o: Any) -> None:
        state = tl.load(x)
        for _ in tl.range(steps):
            tl.send(state, 1).wait()
        for _ in tl.range(steps):
            tl.recv((4,), "float32", 1).wait()
        tl.store(o, state)

    kb.kernel_call(kernel, FOUR, num_pes=3).record(f32((3, 4)))


SLOW = 20  # iterations of the loops below


def unequal(condition: Callable[[Any, int], Any], but: int) -> Kernel:
    """Messages are sent where the condition holds, and received there, but for one
    iteration on one PE."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        state, pe = tl.load(x), tl.program_id()
        for i in tl.range(SLOW):
            with tl.when(condition(i, pe)):
                tl.send(state, 0).wait()
            with tl.when(condition(i, pe) & ((i != but) | (pe != 2))):
                tl.recv((4,), "float32", 0).wait()
        tl.store(o, state)

    return kernel


CONDITIONS = {
    "all": lambda i, pe: i >= 0,
    "even": lambda i, pe: i % 2 == 0,
    "from the fourth on": lambda i, pe: i >= 4,
    "one PE": lambda i, pe: pe == 2,
    "the PE's own part": lambda i, pe: (i // 4) % 4 == pe,
    "all but one": lambda i, pe: i != 17,
}


@pytest.mark.parametrize("at_once", [1, 12, 1 << 16])
@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_each_iteration_that_differs_is_run(
    condition: Callable[[Any, int], Any], at_once: int, monkeypatch: Any
) -> None:
    """However many are compared at once: one receive too few is found in any of them,
    and none is found where there is none."""
    monkeypatch.setattr(messages, "_AT_ONCE", at_once)
    for but in range(-1, SLOW):
        call = kb.kernel_call(unequal(condition, but), FOUR, num_pes=4)
        if but >= 0 and condition(but, 2):
            with pytest.raises(kb.KernelError, match=r"PE 2 .* is never received"):
                call.record(f32((4, 4)))
        else:
            call.record(f32((4, 4)))


def test_a_condition_on_two_loops() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, but: int) -> None:
        state = tl.load(x)
        for i in tl.range(5):
            for j in tl.range(i + 1):
                with tl.when((i + j) % 2 == 0):
                    tl.send(state, 1).wait()
                with tl.when(((i + j) % 2 == 0) & (10 * i + j != but)):
                    tl.recv((4,), "float32", 1).wait()
        tl.store(o, state)

    for but in range(50):
        call = kb.kernel_call(partial(kernel, but=but), FOUR, num_pes=3)
        i, j = divmod(but, 10)
        if j <= i and (i + j) % 2 == 0:
            with pytest.raises(kb.KernelError, match="is never received"):
                call.record(f32((3, 4)))
        else:
            call.record(f32((3, 4)))


def test_trip_counts_of_each_pe() -> None:
    """A PE runs as many iterations as it has; `by` of one PE are one too many."""

    def kernel(tl: Any, x: Any, o: Any, *, by: int) -> None:
        state, pe = tl.load(x), tl.program_id()
        for _ in tl.range(3 * pe - 2):
            tl.send(state, 0).wait()
        for _ in tl.range(3 * pe - 2 + by * (pe // 3)):
            tl.recv((4,), "float32", 0, out=state).wait()
        tl.store(o, state)

    kb.kernel_call(partial(kernel, by=0), FOUR, num_pes=4).record(f32((4, 4)))
    for by, match in ((1, "PE 3 waits .* never sent"), (-1, "PE 3 .* never received")):
        with pytest.raises(kb.KernelError, match=match):
            kb.kernel_call(partial(kernel, by=by), FOUR, num_pes=4).record(f32((4, 4)))


@pytest.mark.parametrize("future", ["send", "recv"])
def test_a_message_is_no_array(future: str) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        sent, got = tl.send(tl.load(x), 1), tl.recv((4,), "float32", 1)
        np.asarray(sent if future == "send" else got)

    with pytest.raises(kb.KbjaxError, match=r"is used before|gives no tile"):
        kb.kernel_call(kernel, FOUR, num_pes=3).record(f32((3, 4)))


def test_a_condition_that_divides_by_what_may_be_0() -> None:
    """Where the `when` around it leaves 0 out."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        state = tl.load(x)
        for i in tl.range(4):
            for j in tl.range(9):
                with tl.when(i > 0), tl.when(8 // i > j):
                    tl.send(state, 1).wait()
                    tl.recv((4,), "float32", 1).wait()
        with tl.when(tl.program_id() > 0), tl.when(8 // tl.program_id() > 1):
            tl.send(state, 0).wait()
            tl.recv((4,), "float32", 0).wait()
        tl.store(o, state)

    kb.kernel_call(kernel, FOUR, num_pes=3).record(f32((3, 4)))


def by_pe(tl: Any, x: Any, o: Any) -> None:
    """Even PEs send two on; a PE sends itself as many messages as its number."""
    pe = tl.program_id()
    tile, total = tl.load(x), tl.zeros((4,))
    with tl.when(pe % 2 == 0):
        tl.send(tile, 2)
        tl.copy_to(total, tl.recv((4,), "float32", 2).wait() * 100.0)
    for i in tl.range(pe):
        with tl.scratch_scope():
            tl.send(tile + i, 0).wait()
            tl.copy_to(total, total + tl.recv((4,), "float32", 0).wait())
    with tl.when(pe == 1):
        tl.send(total, 1).wait()
    with tl.when(pe == 2):
        tl.copy_to(total, tl.recv((4,), "float32", 1).wait())
    tl.store(o, total)


def by_pe_in_numpy(x: np.ndarray) -> np.ndarray:
    found = np.zeros_like(x)
    for pe in range(len(x)):
        if pe % 2 == 0:
            found[pe] = x[(pe - 2) % len(x)] * 100
        for i in range(pe):
            found[pe] += x[pe] + i
    found[2] = found[1]
    return found


def test_messages_of_some_pes() -> None:
    """Of four PEs; tests/eight_devices_messages.py has eight."""
    x = rows(4, 4)
    np.testing.assert_array_equal(both(by_pe, FOUR, 4, x), by_pe_in_numpy(x))


def test_masked_messages_of_one_kind_keep_their_order() -> None:
    """Two messages of even PEs are on their way, beside one of the odd PEs."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe, tile = tl.program_id(), tl.load(x)
        for i in tl.range(2 - pe % 2):
            with tl.scratch_scope():
                tl.send(tile + i, 2).wait()
        for i in tl.range(2 - pe % 2):
            with tl.scratch_scope():
                tl.store(o[i], tl.recv((4,), "float32", 2).wait())

    x = rows(4, 4)
    got = both(kernel, f32((2, 4)), 4, x)
    back = np.roll(x, 2, axis=0)
    np.testing.assert_array_equal(got[:, 0], back)
    np.testing.assert_array_equal(got[::2, 1], back[::2] + 1)
    assert np.isnan(got[1::2, 1]).all()  # never stored


def test_into_part_of_a_tile_and_from_a_part() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        result = tl.zeros((3, 4))
        for i in tl.range(3):
            sent = tl.send(tile[tl.ds(i, 1)], -1)
            tl.recv((1, 4), "float32", -1, out=result[tl.ds(2 - i, 1)]).wait()
            sent.wait()
        tl.store(o, result)

    x = rows(3, 3, 4)
    got = both(kernel, f32((3, 4)), 3, x)
    np.testing.assert_array_equal(got, np.roll(x, -1, axis=0)[:, ::-1])


def test_a_loop_that_never_runs_and_a_python_loop() -> None:
    """A Python loop is rolled, with its messages."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        for _ in tl.range(0):
            tl.send(tile, 1)
            tl.store(o, tl.recv((4,), "float32", 1).wait())
        with tl.when(tl.program_id() > 99):
            tl.send(tile, 1)
        for _ in range(12):
            with tl.scratch_scope():
                sent = tl.send(tile, 1)
                got = tl.recv((4,), "float32", 1).wait()
                sent.wait()
                tl.copy_to(tile, got + 1.0)
        tl.store(o, tile)

    x = rows(5, 4)
    call = kb.kernel_call(kernel, FOUR, num_pes=5)
    assert str(call.record(x)).count("send") == 1
    got = both(kernel, FOUR, 5, x)
    np.testing.assert_array_equal(got, np.roll(x, 12, axis=0) + 12)


def test_inside_jit_and_in_float32() -> None:
    """`compute_dtype` leaves a message unrounded; an outer jit changes nothing."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.send(tl.load(x) + 0.001, 1)
        tl.store(o, tl.recv((4,), "bfloat16", 1).wait() - 1.0)

    x = np.ones((2, 4), ml_dtypes.bfloat16)
    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "bfloat16"), num_pes=2)
    want = np.asarray(call(x))
    assert (want == 0).all()  # rounded before it was sent
    assert_same_bits(jax.jit(lambda a: call(a))(x), want)
    wide = kb.kernel_call(
        kernel, jax.ShapeDtypeStruct((4,), "bfloat16"), num_pes=2,
        compute_dtype="float32",
    )  # fmt: skip
    np.testing.assert_allclose(np.asarray(wide(x), np.float32), 0.001, rtol=0.01)


# --- what is never waited for --------------------------------------------------------


def test_a_receive_that_is_never_waited_for_warns_and_takes_its_message() -> None:
    """In its place among the messages: the next receive gets the next one."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile, out = tl.load(x), tl.zeros((4,))
        for i in tl.range(3):
            tl.send(tile + i, 1)
            tl.recv((4,), "float32", 1)
        with tl.when(tl.program_id() == 0):
            tl.send(tile, 0)
            tl.recv((4,), "float32", 0, out=out)
        tl.send(tile + 7.0, 1)
        tl.store(o, tl.recv((4,), "float32", 1).wait())

    x = rows(3, 4)
    call = kb.kernel_call(kernel, FOUR, num_pes=3)
    with pytest.warns(UserWarning, match="the recv is never waited for") as warned:
        program = call.record(x)
    assert len(warned) == 2
    assert sum(item.op == "recv" for item in leaves(program)) == 3
    np.testing.assert_array_equal(call(x), np.roll(x, 1, axis=0) + 7)


def leaves(program: Any) -> list[Any]:
    return [item for item in program.walk() if not hasattr(item, "body")]


# --- what is refused -----------------------------------------------------------------


def line(kernel: Kernel, text: str) -> str:
    """``file.py:12`` of the only line of the kernel that has the text."""
    lines, first = inspect.getsourcelines(kernel)
    (at,) = (n for n, one in enumerate(lines) if text in one)
    return re.escape(f"test_messages.py:{first + at}")


def refused(
    kernel: Kernel, *texts: str, num_pes: int = 4, kind: type = kb.KernelError
) -> None:
    """When it is recorded, without data: with these regular expressions, in order."""
    call = kb.kernel_call(kernel, FOUR, num_pes=num_pes)
    lead = (num_pes,) if num_pes > 1 else ()
    with pytest.raises(kind, match="(?s)" + ".*".join(texts)):
        call.record(f32((*lead, 4)))


def unmatched(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.recv((4,), "float32", 1).wait())


def other_offset(tl: Any, x: Any, o: Any) -> None:
    """Of 4 PEs, -3 is 1 the other way around, but another message."""
    tl.send(tl.load(x), 1)
    tl.store(o, tl.recv((4,), "float32", -3).wait())


def not_to_all(tl: Any, x: Any, o: Any) -> None:
    tile = tl.load(x)
    with tl.when(tl.program_id() != 2):
        tl.send(tile, 1)
    tl.store(o, tl.recv((4,), "float32", 1).wait())


@pytest.mark.parametrize("num_pes", [1, 4])
def test_a_receive_without_a_message(num_pes: int) -> None:
    where = line(unmatched, "recv")
    refused(unmatched, f"PE 0 waits at {where}", "never sent", num_pes=num_pes)
    where = line(not_to_all, "recv")
    refused(not_to_all, f"PE 3 waits at {where}", "PE 2 that is never sent")


def sent_twice(tl: Any, x: Any, o: Any) -> None:
    """The second receive takes the second message of another number for its way."""
    tile = tl.load(x)
    for offset in (3, -1):
        tl.send(tile, offset)  # both
    tl.recv((4,), "float32", 3).wait()
    tl.store(o, tl.recv((4,), "float32", 3).wait())  # second


def sent_and_received(tl: Any, x: Any, o: Any) -> None:
    """Nothing of offset -1 is left for the receive that has no message."""
    tl.send(tl.load(x), -1)
    tl.recv((4,), "float32", -1).wait()
    tl.store(o, tl.recv((4,), "float32", 3).wait())  # second


def test_offsets_that_lead_to_the_same_pe_do_not_pair() -> None:
    """Both lines, both offsets; and either change helps."""
    sent, waits = line(other_offset, "tl.send"), line(other_offset, "tl.recv")
    refused(other_offset, f"PE 0 waits at {waits} for a message of offset -3 of PE 3",
            f"with offset 1 at {sent}: both lead to PE 0 of 4", "equal offsets pair",
            "Receive with offset=1, or send with offset=-3")  # fmt: skip
    sent, waits = line(sent_twice, "# both"), line(sent_twice, "# second")
    refused(sent_twice, f"at {waits} for a message of offset 3", f"-1 at {sent}")
    refused(sent_and_received, "never sent", "0 messages of offset 3")

    def one_pe(tl: Any, x: Any, o: Any) -> None:
        tl.send(tl.load(x), 1)
        tl.store(o, tl.recv((4,), "float32", 0).wait())

    refused(one_pe, "offset 0 of PE 0", "with offset 1", num_pes=1)
    for offset in (1, -3):

        def same(tl: Any, x: Any, o: Any, offset: int = offset) -> None:
            tl.send(tl.load(x), offset)
            tl.store(o, tl.recv((4,), "float32", offset).wait())

        x = rows(4, 4)
        got = kb.kernel_call(same, FOUR, num_pes=4)(x)
        assert_same_bits(got, rolled(x, 4, 1))


def unread(tl: Any, x: Any, o: Any) -> None:
    tile = tl.load(x)
    for _ in tl.range(3):
        tl.send(tile, 1)  # thrice
    tl.recv((4,), "float32", 1).wait()
    tl.store(o, tl.recv((4,), "float32", 1).wait())


def unread_by_one(tl: Any, x: Any, o: Any) -> None:
    tile, out = tl.load(x), tl.zeros((4,))
    tl.send(tile, -1)
    with tl.when(tl.program_id() != 2):
        tl.recv((4,), "float32", -1, out=out).wait()
    tl.store(o, tile)


def unread_where_not_waited(tl: Any, x: Any, o: Any) -> None:
    """The receive is one PE's, though the wait is left out."""
    tile, out = tl.load(x), tl.zeros((4,))
    tl.send(tile, 1)
    with tl.when(tl.program_id() == 1):
        tl.recv((4,), "float32", 1, out=out)
    tl.store(o, tile)


def test_a_message_that_is_never_received() -> None:
    where = line(unread, "# thrice")
    refused(unread, r"float32\[4\] that PE \d sends to PE \d", where, "never received")
    refused(unread, where, "never received", num_pes=1)
    where = line(unread_by_one, "tl.send")
    refused(unread_by_one, f"PE 3 sends to PE 2 at {where} is never received")
    where = line(unread_where_not_waited, "tl.send")
    with pytest.warns(UserWarning, match="never waited for"):
        refused(unread_where_not_waited, f"at {where} is never received")


def wrong_size(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    tl.recv((2, 2), "float32", 1).wait()
    tl.store(o, tl.load(x))


def wrong_type(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    tl.recv((4,), "int32", 1).wait()
    tl.store(o, tl.load(x))


def wrong_order(tl: Any, x: Any, o: Any) -> None:
    """One at a time, each type is sent and received."""
    tl.send(tl.load(x), 1)
    tl.send(tl.full((4,), 1, "int32"), 1)
    tl.recv((4,), "int32", 1).wait()
    tl.recv((4,), "float32", 1).wait()
    tl.store(o, tl.load(x))


@pytest.mark.parametrize("num_pes", [1, 4])
def test_a_message_of_another_type(num_pes: int) -> None:
    pe, sender = 0, num_pes - 1
    for kernel, asked in ((wrong_size, "float32[2,2]"), (wrong_type, "int32[4]"),
                          (wrong_order, "int32[4]")):  # fmt: skip
        send = line(kernel, "tl.send(tl.load")
        recv = line(kernel, f'"{asked.split("[")[0]}", 1).wait()')
        refused(
            kernel,
            rf"PE {pe} receives {re.escape(asked)} at {recv}",
            rf"float32\[4\] that PE {sender} sends at {send}",
            num_pes=num_pes,
        )


def waits_first(tl: Any, x: Any, o: Any) -> None:
    got = tl.recv((4,), "float32", 1).wait()
    tl.send(got, 1)
    tl.store(o, got)


def in_a_cycle(tl: Any, x: Any, o: Any) -> None:
    """0 waits for 3, which waits for 1, which waits for 0; 2 takes no part."""
    pe, tile = tl.program_id(), tl.load(x)
    with tl.when(pe == 0):
        tl.recv((4,), "float32", 1).wait()  # from 3
        tl.send(tile, 1)
    with tl.when(pe == 3):
        tl.recv((4,), "float32", 2).wait()  # from 1
        tl.send(tile, 1)
    with tl.when(pe == 1):
        tl.recv((4,), "float32", 1).wait()  # from 0
        tl.send(tile, 2)
    tl.store(o, tile)


def test_waits_that_never_end() -> None:
    where = line(waits_first, "recv")
    cycle = (f"PE {pe} at {where} for PE {(pe - 1) % 4}" for pe in (0, 3, 2, 1))
    refused(waits_first, "for ever: ", *cycle)
    refused(waits_first, f"PE 0 at {where} for PE 0", num_pes=1)
    at = {n: line(in_a_cycle, f"# from {n}") for n in (0, 1, 3)}
    refused(in_a_cycle, f"PE 0 at {at[3]} for PE 3, PE 3 at {at[1]} for PE 1, PE 1 "
            f"at {at[0]} for PE 0")  # fmt: skip


def in_turn(tl: Any, x: Any, o: Any) -> None:
    pe, tile = tl.program_id(), tl.load(x)
    with tl.when(pe > 0):
        tl.copy_to(tile, tl.recv((4,), "float32", 1).wait() + tile)
    with tl.when(pe < tl.num_programs() - 1):
        tl.send(tile, 1)
    tl.store(o, tile)


def test_messages_that_go_from_pe_to_pe_in_turn() -> None:
    where = line(in_turn, "recv")
    refused(in_turn, f"PE 1 waits at {where} for a message that PE 0 sends further "
            "down", "lockstep")  # fmt: skip


def waited_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    future = tl.recv((4,), "float32", 1)
    for _ in tl.range(1):
        tl.store(o, future.wait())


def waited_in_a_when(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    future = tl.recv((4,), "float32", 1)
    with tl.when(tl.program_id() >= 0):
        tl.store(o, future.wait())


def waited_after_its_when(tl: Any, x: Any, o: Any) -> None:
    tile, kept = tl.load(x), []
    with tl.when(tl.program_id() >= 0):
        tl.send(tile, 1).wait()
        kept.append(tl.recv((4,), "float32", 1, out=tile))
    with tl.when(tl.program_id() >= 0):
        tl.store(o, kept[0].wait())


def overtaken_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    """The future's message is the first, though receives in a loop land before."""
    tile = tl.load(x)
    for _ in tl.range(4):
        tl.send(tile, 1).wait()
    future = tl.recv((4,), "float32", 1)
    for _ in tl.range(3):
        tl.recv((4,), "float32", 1)
    tl.store(o, future.wait())


@pytest.mark.parametrize(
    ("kernel", "issued"),
    [
        (waited_in_a_loop, "future = "), (waited_in_a_when, "future = "),
        (waited_after_its_when, "kept.append"), (overtaken_in_a_loop, "future = "),
    ],
)  # fmt: skip
def test_a_wait_elsewhere(kernel: Kernel, issued: str) -> None:
    refused(kernel, f"the recv of {line(kernel, issued)} is waited for in other "
            "iterations, or under other conditions")  # fmt: skip


def after_its_loop(tl: Any, x: Any, o: Any) -> None:
    for _ in tl.range(3):
        future = tl.recv((4,), "float32", 1)
    future.wait()


def test_a_wait_after_the_loop() -> None:
    where = line(after_its_loop, "future = ")
    refused(after_its_loop, f"the recv of {where} is waited for in another iteration",
            r"Wait in the same iteration\.$")  # fmt: skip

    def send(tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(3):
            future = tl.send(tl.load(x), 1)
            tl.recv((4,), "float32", 1).wait()
        future.wait()

    refused(send, "the send of", r"Wait in the same iteration\.$")


def test_arguments() -> None:
    def traced(tl: Any, x: Any, o: Any) -> None:
        tl.send(tl.load(x), tl.program_id())

    def fraction(tl: Any, x: Any, o: Any) -> None:
        tl.recv((4,), "float32", 1.5)

    def of_hbm(tl: Any, x: Any, o: Any) -> None:
        tl.send(x, 1)

    def shape(tl: Any, x: Any, o: Any) -> None:
        tl.recv((4,), "float32", 1, out=tl.zeros((2, 2)))

    def dtype(tl: Any, x: Any, o: Any) -> None:
        tl.recv((4,), "float32", 1, out=tl.zeros((4,), "int32"))

    def unknown(tl: Any, x: Any, o: Any) -> None:
        tl.recv((4,), "float33", 1)

    def future(tl: Any, x: Any, o: Any) -> None:
        tl.send(tl.recv((4,), "float32", 1), 1)

    refused(traced, line(traced, "tl.send"), "static", kind=kb.KbjaxError)
    refused(fraction, line(fraction, "tl.recv"), kind=kb.KbjaxError)
    refused(of_hbm, line(of_hbm, "tl.send"), kind=kb.MemorySpaceError)
    refused(shape, line(shape, "out="), "shape", kind=kb.ShapeError)
    refused(dtype, line(dtype, "out="), "int32 tile", kind=kb.DTypeError)
    refused(unknown, "float33", kind=kb.DTypeError)
    refused(future, "before it is waited for", kind=kb.HazardError)


# --- who owns which bytes ------------------------------------------------------------


def source_written(tl: Any, x: Any, o: Any) -> None:
    tile = tl.load(x)
    tl.send(tile, 1)  # issued
    tl.copy_to(tile, tile + 1.0)  # used


def source_written_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    tile = tl.load(x)
    for _ in tl.range(3):
        tl.copy_to(tile, tile + 1.0)  # used
        tl.send(tile, 1)  # issued
        tl.recv((4,), "float32", 1).wait()


def source_received_into(tl: Any, x: Any, o: Any) -> None:
    tile = tl.load(x)
    tl.send(tile, 1)  # issued
    tl.recv((4,), "float32", 1, out=tile)  # used


def source_loaded_into(tl: Any, x: Any, o: Any) -> None:
    tile = tl.load(x)
    tl.send(tile[tl.ds(1, 2)], 1)  # issued
    tl.load_async(x, out=tile)  # used


def read_early(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    future = tl.recv((4,), "float32", 1)  # issued
    tl.store(o, future.tile)  # used


def received_twice(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    out = tl.zeros((4,))
    tl.recv((4,), "float32", 1, out=out)  # issued
    tl.recv((4,), "float32", 1, out=out)  # used


def sent_while_received(tl: Any, x: Any, o: Any) -> None:
    future = tl.recv((4,), "float32", 1)  # issued
    tl.send(future.tile, 1)  # used


@pytest.mark.parametrize(
    "kernel",
    [source_written, source_written_in_a_loop, source_received_into,
     source_loaded_into, read_early, received_twice, sent_while_received],
)  # fmt: skip
def test_bytes_that_are_in_use(kernel: Kernel) -> None:
    used, issued = line(kernel, "# used"), line(kernel, "# issued")
    refused(kernel, used, rf"(send|recv) of {issued} still", kind=kb.HazardError)


def scope_of_a_source(tl: Any, x: Any, o: Any) -> None:
    with tl.scratch_scope():
        tl.send(tl.load(x), 1)  # issued
    tl.store(o, tl.recv((4,), "float32", 1).wait())


def scope_of_a_receive(tl: Any, x: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)
    with tl.scratch_scope():
        tl.recv((4,), "float32", 1)  # issued
    tl.store(o, tl.load(x))


@pytest.mark.parametrize("kernel", [scope_of_a_source, scope_of_a_receive])
def test_a_scope_that_ends_too_early(kernel: Kernel) -> None:
    refused(kernel, "gives back bytes", f"of {line(kernel, '# issued')}",
            kind=kb.HazardError)  # fmt: skip


def test_the_remedies_of_a_scope_that_ends_too_early() -> None:
    """What they say is what `send` and `recv` take, and it works."""
    refused(scope_of_a_source, r"Call wait\(\) in the scratch_scope, or make the tile "
            r"that is sent outside it\.$", kind=kb.HazardError)  # fmt: skip
    refused(scope_of_a_receive, r"or make the tile outside it and give it as out=\.$",
            kind=kb.HazardError)  # fmt: skip

    def waited(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            tl.send(tl.load(x), 1).wait()
        tl.store(o, tl.recv((4,), "float32", 1).wait())

    def outside(tl: Any, x: Any, o: Any) -> None:
        tile, out = tl.load(x), tl.empty((4,))
        with tl.scratch_scope():
            tl.send(tile, 1)
            came = tl.recv((4,), "float32", 1, out=out)
        tl.store(o, came.wait())

    x = rows(4, 4)
    for kernel in (waited, outside):
        got = kb.kernel_call(kernel, FOUR, num_pes=4)(x)
        assert_same_bits(got, rolled(x, 4, 1))


def test_what_is_legal_beside_a_send() -> None:
    """Its source is read and sent again meanwhile; written after the waits, the second
    of which does nothing; and not waited for at all at the end."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        first, second = tl.send(tile, 1), tl.send(tile, -1)
        twice = tile + tile
        first.wait()
        first.wait()
        second.wait()
        tl.copy_to(tile, twice)
        tl.send(tile, 2)
        future = tl.recv((4,), "float32", 1)
        total = future.wait() + future.wait()
        total = total + tl.recv((4,), "float32", -1).wait() * 10.0
        tl.store(o, total + tl.recv((4,), "float32", 2).wait() * 100.0)

    x = rows(5, 4)
    near, far, across = (np.roll(x, offset, axis=0) for offset in (1, -1, 2))
    got = both(kernel, FOUR, 5, x)
    np.testing.assert_array_equal(got, 2 * near + 10 * far + 200 * across)


# --- random programs -----------------------------------------------------------------

SAID = {
    "never": ("that is never sent", "only equal offsets pair", "for ever"),
    "type": (", and the message is the ",),
    "unread": ("is never received",),
    "in turn": ("PEs run in lockstep",),
}


@pytest.mark.parametrize("block", range(4))
def test_a_random_program_is_refused_where_it_goes_wrong(block: int) -> None:
    for seed in range(75 * block, 75 * (block + 1)):
        drawn = drawn_program(seed)
        faults = Simulation(drawn).run()
        if "never" not in faults and not runs_in_lockstep(drawn):
            faults = faults | {"in turn"}
        got = None
        try:
            message_programs.call_of(drawn, seed).record(drawn.x)
        except kb.KernelError as error:
            (got,) = (
                k for k, said in SAID.items() if any(s in str(error) for s in said)
            )
        assert got in (faults or {None}), (
            f"seed {seed}: {faults}, {got}\n{drawn.source}"
        )


def test_random_programs_go_wrong_in_all_ways() -> None:
    """The generator keeps drawing what it is for."""
    found: Counter[str] = Counter()
    for seed in range(300):
        drawn = drawn_program(seed)
        faults = Simulation(drawn).run()
        found.update(faults or ["none" if runs_in_lockstep(drawn) else "in turn"])
    least = {"none": 100, "never": 50, "unread": 5, "type": 4, "in turn": 4}
    assert all(found[fault] >= count for fault, count in least.items()), found


def well_formed(sends: range) -> Iterator[int]:
    """Seeds of programs with so many sends."""
    for seed in itertools.count():
        drawn = drawn_program(seed)
        if drawn.source.count("tl.send") in sends and not Simulation(drawn).run():
            if runs_in_lockstep(drawn):
                yield seed


@pytest.mark.parametrize("seed", [*itertools.islice(well_formed(range(4, 7)), 4)])
def test_a_random_program_gives_the_values_of_its_simulation(seed: int) -> None:
    drawn = drawn_program(seed)
    simulated = Simulation(drawn)
    simulated.run()
    call = message_programs.call_of(drawn, seed)
    fidelities: tuple[Any, ...] = ("live", "exact")
    for fidelity in fidelities[: 1 + seed % 2]:
        outputs = call.run(drawn.x, fidelity=fidelity).outputs
        for kind, got in zip(message_programs.KINDS, outputs, strict=True):
            want = np.stack([state[kind] for state in simulated.states])
            want = want if drawn.num_pes > 1 else want[0]
            assert_same_bits(got, want, f"{fidelity} {kind}\n{drawn.source}")
