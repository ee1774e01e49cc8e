"""`tl.circular_buffer`: slots that are loaded and used in turn, in rolled loops as in
Python's."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import expr, queues
from tests import reference
from tests.buffer_programs import (
    PES,
    WIDTH,
    Drawn,
    Illegal,
    buffer_kernel,
    play,
    when_ifs,
)
from tests.helpers import assert_same_bits, leaves
from tests.test_flight import line_of

N = 8
X = np.arange(N * 16, dtype=np.float32).reshape(N, 16)
ROW = jax.ShapeDtypeStruct((16,), "float32")
TILE_BYTES = 64
FORMS = ("range", "static_range")
DEPTHS = (1, 2, 3, 4)
forms = pytest.mark.parametrize("form", FORMS)
depths = pytest.mark.parametrize("depth", DEPTHS)

Kernel = Callable[..., None]


def refused(
    kernel: Kernel,
    *marks: str,
    error: type[kb.KbjaxError] = kb.HazardError,
    text: str | None = None,
    **options: Any,
) -> None:
    """Recording the kernel is an error that names the marked lines."""
    with pytest.raises(error, match=text) as caught:
        kb.kernel_call(kernel, ROW, **options).record(X)
    assert type(caught.value) is error
    for mark in marks:
        assert line_of(kernel, mark) in str(caught.value), mark
    assert "kbjax/" not in str(caught.value)


def outputs(kernel: Kernel, compiles: bool = False, **options: Any) -> np.ndarray:
    """What the recorded program gives, one command at a time in NumPy; and, where it
    `compiles`, the same live and exact."""
    call, x = kb.kernel_call(kernel, ROW, **options), X
    if "num_pes" in options:
        x = np.stack([X] * options["num_pes"])
    (found,) = reference.run(call.record(x), [x]).outputs
    if compiles:
        for fidelity in ("live", "exact"):
            got = call.run(x, fidelity=fidelity).outputs
            assert_same_bits(got, found, fidelity)
    return found


# --- sweeps --------------------------------------------------------------------------


def sweep(
    tl: Any, x: Any, o: Any, *, depth: int, form: str, scope: str, n: int = N
) -> None:
    """acc = acc / 2 + tile, in order, which no other order gives."""
    loop = getattr(tl, form)
    acc = tl.zeros((16,))

    def step(buffer: Any, j: Any) -> None:
        with tl.when(j + depth - 1 < n):
            buffer.push(x[j + depth - 1])
        tl.copy_to(acc, acc * 0.5 + buffer.pop())

    def sweep_in_scope() -> None:
        buffer = tl.circular_buffer(depth, (16,))
        for j in range(depth - 1):
            with tl.when(j < n):
                buffer.push(x[j])
        for j in loop(n):
            if scope in ("inside", "both"):
                with tl.scratch_scope():
                    step(buffer, j)
            else:
                step(buffer, j)

    if scope in ("around", "both"):
        with tl.scratch_scope():
            sweep_in_scope()
    else:
        sweep_in_scope()
    tl.store(o, acc)


def halved(rows: Any) -> np.ndarray:
    acc = np.zeros(16, np.float32)
    for row in rows:
        acc = acc * np.float32(0.5) + X[row]
    return acc


@pytest.mark.parametrize("scope", ("none", "around", "inside", "both"))
@depths
def test_a_sweep(depth: int, scope: str) -> None:
    rolled, unrolled = (
        functools.partial(sweep, depth=depth, form=form, scope=scope) for form in FORMS
    )
    compiles = scope == "both" and depth in (1, 3)
    assert_same_bits(outputs(rolled, compiles), halved(range(N)), "rolled")
    assert_same_bits(outputs(unrolled), halved(range(N)), "unrolled")


@depths
@pytest.mark.parametrize("n", (0, 1, 2, 3))
def test_a_sweep_shorter_than_the_buffer(depth: int, n: int) -> None:
    for form in FORMS:
        kernel = functools.partial(sweep, depth=depth, form=form, scope="both", n=n)
        assert_same_bits(outputs(kernel), halved(range(n)), form)


@forms
@depths
def test_a_buffer_around_an_outer_loop(depth: int, form: str) -> None:
    """The inner trip count depends on the outer index; the buffer is kept, and its
    slots go on where the row before left off."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(depth, (16,))
        for i in getattr(tl, form)(N):
            for k in range(depth - 1):
                with tl.when(k <= i):
                    buffer.push(x[k])
            for j in getattr(tl, form)(i + 1):
                with tl.scratch_scope():
                    with tl.when(j + depth - 1 <= i):
                        buffer.push(x[j + depth - 1])
                    tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    got = outputs(kernel, compiles=form == "range" and depth == 3)
    assert_same_bits(got, halved(j for i in range(N) for j in range(i + 1)))


@forms
def test_a_buffer_inside_an_outer_loop(form: str) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((16,))
        for i in getattr(tl, form)(N):
            with tl.scratch_scope():
                buffer = tl.circular_buffer(2, (16,))
                buffer.push(x[0])
                for j in getattr(tl, form)(i + 1):
                    with tl.scratch_scope():
                        with tl.when(j < i):
                            buffer.push(x[j + 1])
                        tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    rows = [j for i in range(N) for j in range(i + 1)]
    assert_same_bits(outputs(kernel, compiles=form == "range"), halved(rows))


def test_trip_counts_that_depend_on_the_pe() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc, n = tl.zeros((16,)), 2 * tl.program_id() + 1
        buffer = tl.circular_buffer(3, (16,))
        for k in range(2):
            with tl.when(k < n):
                buffer.push(x[k])
        for j in tl.range(n):
            with tl.scratch_scope():
                with tl.when(j + 2 < n):
                    buffer.push(x[j + 2])
                tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    expected = np.stack([halved(range(2 * pe + 1)) for pe in range(4)])
    assert_same_bits(outputs(kernel, compiles=True, num_pes=4), expected)


def test_the_future_of_a_push() -> None:
    """May be waited for, and gives the tile that the pop gives."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(2, (16,))
        for i in tl.range(N):
            with tl.scratch_scope():
                here = buffer.push(x[i]).wait()
                tl.copy_to(acc, acc * 0.5 + (here + buffer.pop()) * 0.5)
        tl.store(o, acc)

    assert_same_bits(outputs(kernel), halved(range(N)))

    def not_waited_for(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(2, (16,))
        future = buffer.push(x[0])  # push
        tl.store(o, future)  # use

    refused(not_waited_for, "push", "use")

    def later(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(2, (16,))
        future = buffer.push(x[0])
        for i in tl.range(N):
            tl.store(o, future.wait())
            buffer.pop()
            future = buffer.push(x[i])  # push
        buffer.pop()

    refused(later, "push", error=kb.KernelError, text="another iteration")


@pytest.mark.parametrize("alias", ("row", "reshape", "expand_dims", "slice", "cast"))
def test_aliases_of_a_tile(alias: str) -> None:
    """Of a popped tile, its rows are written wherever it is."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((1, 16))
        buffer = tl.circular_buffer(3, (2, 16))
        for k in range(2):
            buffer.push(x[k : k + 2])
        for i in tl.range(N - 1):
            with tl.scratch_scope():
                with tl.when(i + 2 < N - 1):
                    buffer.push(x[tl.ds(i + 2, 2)])
                t = buffer.pop()
                part = {
                    "row": lambda t, i: t[tl.ds(i % 2, 1)],
                    "reshape": lambda t, i: tl.reshape(t, (1, 32))[:, None],
                    "expand_dims": lambda t, i: tl.expand_dims(t, 0)[0:1],
                    "slice": lambda t, i: t[1:2],
                    "cast": lambda t, i: t[0:1].to("float32"),
                }[alias](t, i)
                if alias in ("reshape", "expand_dims"):
                    part = tl.reshape(part, (2, 16))[1:2]
                tl.copy_to(acc, acc * 0.5 + part)
        tl.store(o, tl.reshape(acc, (16,)))

    rows = {"row": [i + i % 2 for i in range(N - 1)], "cast": range(N - 1)}
    assert_same_bits(outputs(kernel), halved(rows.get(alias, range(1, N))))


@forms
def test_tails(form: str) -> None:
    """Tiles of 3 rows of 8: the last has one that is filled."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(2, (3, 16))
        buffer.push(x[0:3])
        for i in getattr(tl, form)(3):
            with tl.scratch_scope():
                with tl.when(i < 2):
                    buffer.push(x[tl.ds(3 * i + 3, 3)], other=-7.0)
                tl.copy_to(acc, acc + tl.sum(buffer.pop(), axis=0))
        tl.store(o, acc)

    assert_same_bits(outputs(kernel, compiles=form == "range"), X.sum(0) - 7)

    def without(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(2, (3, 16))
        for i in tl.range(3):
            buffer.push(x[tl.ds(3 * i, 3)])  # push
            buffer.pop()

    refused(without, "push", error=kb.OutOfBoundsError, text="iteration i = 2")


def test_every_dtype() -> None:
    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "int8", "bool", "int32"):
        x = X.astype(dtype) if dtype != "bool" else X % 3 == 0

        def kernel(tl: Any, x: Any, o: Any, dtype: str = dtype) -> None:
            buffer = tl.circular_buffer(3, (16,), dtype)
            for k in range(2):
                buffer.push(x[k])
            for i in tl.range(N):
                with tl.scratch_scope():
                    with tl.when(i + 2 < N):
                        buffer.push(x[i + 2])
                    tl.store(o[i], buffer.pop())

        out = jax.ShapeDtypeStruct(X.shape, x.dtype)
        program = kb.kernel_call(kernel, out).record(x)
        assert_same_bits(reference.run(program, [x]).outputs[0], x, dtype)


# --- conditions ----------------------------------------------------------------------

CONDITIONS: dict[str, tuple[Any, Any]] = {  # of the push, of the pop, in 0 .. 9
    "i >= 2": (lambda i: i >= 2, lambda i: i >= 2),
    "late": (lambda i: i < 8, lambda i: i >= 2),
    "not the first": (lambda i: i != 9, lambda i: i != 0),
    "one": (lambda i: i == 4, lambda i: i == 5),
    "a range": (lambda i: (i > 1) & (i <= 5), lambda i: (i >= 3) & (i < 7)),
    "every second of a range": (lambda i: 2 * i < 9, lambda i: (i > 0) & (2 * i < 11)),
    "reversed": (lambda i: 9 - i > 1, lambda i: 9 - i < 8),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_of_a_range(name: str) -> None:
    pushes, pops = CONDITIONS[name]

    def kernel(tl: Any, x: Any, o: Any, form: str = "range") -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(3, (16,))
        for i in getattr(tl, form)(10):
            with tl.scratch_scope():
                with tl.when(pushes(i)):
                    buffer.push(x[i % N])
                with tl.when(pops(i)):
                    tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    expected = halved(i % N for i in range(10) if pushes(i))
    assert_same_bits(outputs(kernel), expected)
    unrolled = functools.partial(kernel, form="static_range")
    assert_same_bits(outputs(unrolled), expected, "unrolled")


def test_nested_conditions() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(2, (16,))
        for i in tl.range(9):
            with tl.scratch_scope():
                with tl.when(i < 8):
                    with tl.when(i >= 2):
                        buffer.push(x[i])
                with tl.when(i > 2):
                    tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    assert_same_bits(outputs(kernel), halved(range(2, 8)))


def held_at_even(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(3, (16,))  # made
    for i in tl.range(N):  # loop
        with tl.when(i % 2 == 0):
            buffer.push(x[i])
        with tl.when(i % 2 == 1):
            tl.store(o, buffer.pop())


def test_counts_that_follow_no_rule() -> None:
    refused(held_at_even, "made", "loop", error=kb.KernelError, text="not known")


@pytest.mark.parametrize("depth", (1, 2))
def test_any_condition_where_it_is_empty_between(depth: int) -> None:
    """Slots begin anew in each iteration then, also those after the loop."""

    def kernel(tl: Any, x: Any, o: Any, form: str = "range") -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(depth, (16,))
        for i in getattr(tl, form)(N):
            with tl.scratch_scope():
                with tl.when(i % 2 == 0):
                    buffer.push(x[i])
                    tl.copy_to(acc, acc * 0.5 + buffer.pop())
        buffer.push(x[1])
        tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    assert_same_bits(outputs(kernel), halved([0, 2, 4, 6, 1]))
    unrolled = functools.partial(kernel, form="static_range")
    assert_same_bits(outputs(unrolled), halved([0, 2, 4, 6, 1]), "unrolled")


# --- hazards -------------------------------------------------------------------------


def full(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(2, (16,))  # made
    for k in range(2):
        buffer.push(x[k])
    buffer.push(x[2])  # use


def full_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(3, (16,))  # made
    for i in tl.range(N):
        buffer.push(x[i])  # use


def empty(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(2, (16,))  # made
    buffer.push(x[0])
    buffer.pop()
    tl.store(o, buffer.pop())  # use


def empty_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(2, (16,))  # made
    for i in tl.range(N):
        with tl.when(i < 5):
            buffer.push(x[i])
        tl.store(o, buffer.pop())  # use


def left_at_the_end(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(2, (16,))  # made
    buffer.push(x[0])
    tl.store(o, tl.load(x[0]))


def left_in_a_scope(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        with tl.scratch_scope():
            buffer = tl.circular_buffer(2, (16,))  # made
            with tl.when(i == 3):
                buffer.push(x[i])


def left_in_a_body(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        buffer = tl.circular_buffer(2, (16,))  # made
        with tl.when(i >= 3):
            buffer.push(x[i])


def not_guarded(tl: Any, x: Any, o: Any) -> None:
    """The last push is one too many."""
    buffer = tl.circular_buffer(2, (16,))  # made
    buffer.push(x[0])
    for i in tl.range(N):
        buffer.push(x[tl.minimum(i + 1, N - 1)])
        tl.store(o, buffer.pop())


def used_again(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(2, (16,))  # made
    buffer.push(x[0])
    t = buffer.pop()  # taken
    buffer.push(x[1])
    tl.store(o, t)
    buffer.push(x[2])
    tl.store(o, t)  # use


def used_again_in_a_loop(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(2, (16,))  # made
    buffer.push(x[0])
    t = buffer.pop()  # taken
    for i in tl.range(N):
        tl.store(o, t)  # use
        buffer.push(x[i])
        buffer.pop()


def an_alias_used_again(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(1, (16,))  # made
    for i in tl.range(N):
        buffer.push(x[i])
        t = tl.expand_dims(buffer.pop(), 0)  # taken
        with tl.when(i == 6):
            buffer.push(x[0])
            buffer.pop()
        tl.store(o, tl.sum(t, axis=0))  # use


def written_again(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(1, (16,))  # made
    buffer.push(x[0])
    t = buffer.pop()  # taken
    buffer.push(x[1])
    tl.copy_to(t, tl.zeros((16,)))  # use


HAZARDS = {
    full: "which is full",
    full_in_a_loop: "which is full in iteration i = 3",
    empty: "which is empty",
    empty_in_a_loop: "which is empty in iteration i = 5",
    left_at_the_end: "the kernel ends while",
    left_in_a_scope: "the scratch_scope ends while .* in iteration i = 3",
    left_in_a_body: "the tl.range body ends while .* in iteration i = 3",
    not_guarded: "the kernel ends while",
    used_again: "used after its slot was pushed again",
    used_again_in_a_loop: "used after its slot was pushed again in iteration i = 2",
    an_alias_used_again: "used after its slot was pushed again in iteration i = 6",
    written_again: "used after its slot was pushed again",
}


@pytest.mark.parametrize("checks", ("error", "off"))
@pytest.mark.parametrize("kernel", HAZARDS, ids=lambda k: k.__name__)
def test_hazards(kernel: Kernel, checks: Any) -> None:
    source = inspect.getsource(kernel)
    marks = [mark for mark in ("made", "taken", "use") if f"# {mark}\n" in source]
    refused(kernel, *marks, text=HAZARDS[kernel], checks=checks)


def carried(tl: Any, x: Any, o: Any) -> None:
    buffer = tl.circular_buffer(16, (16,))  # made
    buffer.push(x[0])
    t = buffer.pop()
    for i in tl.range(N):
        tl.store(o, t)  # use
        buffer.push(x[i])
        t = buffer.pop()  # taken


def carried_in_one_slot(tl: Any, x: Any, o: Any) -> None:
    """Both tiles have the same bytes in the program: it would read one twice."""
    acc = tl.zeros((16,))
    buffer = tl.circular_buffer(1, (16,))  # made
    buffer.push(x[0])
    before = buffer.pop()
    for i in tl.range(N):
        with tl.when(i % 2 == 0):
            buffer.push(x[i])
            t = buffer.pop()  # taken
            tl.copy_to(acc, t + before)  # use
            before = t
    tl.store(o, acc)


@pytest.mark.parametrize(
    "kernel", (carried, carried_in_one_slot), ids=lambda k: k.__name__
)
def test_a_tile_in_a_later_iteration(kernel: Kernel) -> None:
    refused(kernel, "made", "taken", "use", error=kb.KernelError, text="carries a tile")


@depths
def test_a_tile_after_the_loop(depth: int) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(depth, (16,))  # made
        for i in tl.range(N):
            buffer.push(x[i])
            t = buffer.pop()  # taken
        tl.store(o, t)  # use

    refused(kernel, "made", "taken", "use", error=kb.UseAfterScopeError)


def test_a_buffer_after_its_scope() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            buffer = tl.circular_buffer(2, (16,))  # made
        buffer.push(x[0])  # use

    refused(kernel, "made", "use", error=kb.UseAfterScopeError)
    refused(kernel, "made", "use", error=kb.KernelError, checks="off")


# --- counts that follow a rule that is seen in their values --------------------------


@pytest.mark.parametrize(
    ("ahead", "rows"),
    (
        (lambda i: (i + 1) % N != 0, range(N)),
        (lambda i: (i + 1) * (i + 1) < N * N, range(N)),
        (lambda i: (i < 3) | (i + 1 < N), range(N)),
        (lambda i: i // N > 0, (0,)),
        (lambda i: (i * i) % N == N - 1, (0,)),  # no square is 7 modulo 8
    ),
)
def test_a_condition_whose_values_are_a_range(ahead: Any, rows: Sequence[int]) -> None:
    def kernel(tl: Any, x: Any, o: Any, *, loop: str = "range") -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(2, (16,))
        buffer.push(x[0])
        for i in getattr(tl, loop)(N):
            with tl.when(ahead(i)):
                buffer.push(x[tl.minimum(i + 1, N - 1)])
            with tl.when((i == 0) | ahead(i - 1)):
                tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    assert_same_bits(outputs(kernel), halved(rows))
    assert_same_bits(
        outputs(functools.partial(kernel, loop="static_range")), halved(rows)
    )


def test_more_iterations_than_are_looked_at() -> None:
    """A loop of a million, where each would have to be asked."""
    for count, known in ((queues.MOST_LOOKED_AT, True), (1 << 20, False)):

        def kernel(tl: Any, x: Any, o: Any, count: int = count) -> None:
            buffer = tl.circular_buffer(1, (16,))
            buffer.push(x[0])
            for i in tl.range(count):
                with tl.when((i + 1) % count == 0):
                    tl.store(o, buffer.pop())

        call = kb.kernel_call(kernel, ROW)
        if known:
            assert_same_bits(call(X), X[0])
        else:
            with pytest.raises(kb.KernelError, match="could not be shown"):
                call.record(X)


# --- counts that follow no rule ------------------------------------------------------


def in_turn(tl: Any, x: Any, o: Any, *, loop: str = "range") -> None:
    acc = tl.zeros((16,))
    buffer = tl.circular_buffer(1, (16,))  # made
    for i in getattr(tl, loop)(N):  # use
        with tl.when(i % 2 == 0):
            buffer.push(x[i])
        with tl.when(i % 2 == 1):
            tl.copy_to(acc, acc * 0.5 + buffer.pop())
    tl.store(o, acc)


def near_two_ends(tl: Any, x: Any, o: Any, *, loop: str = "range") -> None:
    """The condition holds in two ranges."""
    acc = tl.zeros((16,))
    buffer = tl.circular_buffer(4, (16,))  # made
    for i in getattr(tl, loop)(N):  # use
        with tl.when(i * (N - 1 - i) == 0):
            buffer.push(x[i])
    for _ in range(2):
        tl.copy_to(acc, acc * 0.5 + buffer.pop())
    tl.store(o, acc)


def nested(
    tl: Any, x: Any, o: Any, *, outer: str = "range", always: bool = False
) -> None:
    """One pipeline over both loops."""
    acc, depth = tl.zeros((16,)), 2
    buffer = tl.circular_buffer(depth, (16,))  # made
    buffer.push(x[0])
    for i in getattr(tl, outer)(2):  # use
        with tl.scratch_scope():
            for j in tl.range(N // 2):  # inner
                after = i * (N // 2) + j + depth - 1
                if always:
                    buffer.push(x[after], other=0.0)
                else:
                    with tl.when(after < N):
                        buffer.push(x[after])
                tl.copy_to(acc, acc * 0.5 + buffer.pop())
    if always:
        buffer.pop()
    tl.store(o, acc)


@pytest.mark.parametrize("kernel", (in_turn, near_two_ends), ids=lambda k: k.__name__)
def test_a_condition_that_holds_for_no_one_range(kernel: Kernel) -> None:
    """The message says which conditions are known, and what to do, which works."""
    text = (
        "are not known: its iterations push or pop .* in one range of i could not be "
        r"shown\..*"
        r"Allowed: the same pushes .* one range of i, as tl\.when\(i \+ 1 < n\) .*"
        "every iteration, unroll the loop over i with tl.static_range or Python's range"
    )
    refused(kernel, "made", "use", error=kb.KernelError, text=text)
    rows = (0, 2, 4, 6) if kernel is in_turn else (0, N - 1)
    unrolled = functools.partial(kernel, loop="static_range")
    assert_same_bits(outputs(unrolled), halved(rows))


def test_one_pipeline_over_two_rolled_loops() -> None:
    """As above; the loop to unroll is the outer one."""
    text = (
        "different numbers of tiles, also in the loop of .* inside it, .*"
        "Push in every iteration, and pop after the loops what is left, unroll the "
        "loop over i with tl.static_range or Python's range, or make"
    )
    refused(nested, "made", "use", "inner", error=kb.KernelError, text=text)
    for options in ({"outer": "static_range"}, {"always": True}):
        kernel = functools.partial(nested, **options)
        assert_same_bits(outputs(kernel), halved(range(N)), str(options))


def test_a_loop_inside_that_has_no_part_in_it_is_not_named() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(1, (16,))  # made
        for i in tl.range(N):  # use
            for _ in tl.range(2):
                tl.store(o, tl.zeros((16,)))
            with tl.when(i % 2 == 0):
                buffer.push(x[i])
            with tl.when(i % 2 == 1):
                buffer.pop()

    text = "different numbers of tiles, and that they do so in one range of i could not"
    refused(kernel, "made", "use", error=kb.KernelError, text=text)


# --- types ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    (
        (lambda tl: tl.circular_buffer(0, (16,)), kb.ShapeError, "at least one slot"),
        (lambda tl: tl.circular_buffer(-1, (16,)), kb.ShapeError, "at least one slot"),
        (lambda tl: tl.circular_buffer(2, (0,)), kb.ShapeError, "at least one element"),
        (lambda tl: tl.circular_buffer(2.0, (16,)), kb.ShapeError, "static integers"),
        (lambda tl: tl.circular_buffer(True, (16,)), kb.ShapeError, "static integers"),
        (lambda tl: tl.circular_buffer(2, (16,), "f4"), kb.DTypeError, "f4"),
        (lambda tl: tl.circular_buffer(9999, (16,)).push, kb.ScratchOverflowError,
         "circular_buffer"),
        (lambda tl: tl.circular_buffer(2, (15,)), kb.ShapeError,
         "push needs a tile .* Make the circular_buffer in that shape"),
        (lambda tl: tl.circular_buffer(2, (1, 16)), kb.ShapeError, "push needs a tile"),
        (lambda tl: tl.circular_buffer(2, (16,), "int32"), kb.DTypeError,
         "into a int32 tile.* Make the circular_buffer in float32, and convert its "),
    ),
)  # fmt: skip
def test_types(make: Any, error: Any, text: str) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        scratch = tl.full((16000, 16), 0.0)
        make(tl).push(x[0])
        del scratch

    with pytest.raises(error, match=text):
        kb.kernel_call(kernel, ROW).record(X)


def test_a_refused_push_changes_nothing() -> None:
    """The kernel goes on, in the slot that is next."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((16,))
        buffer = tl.circular_buffer(1, (16,))
        for i in tl.range(N):
            with pytest.raises(kb.HazardError):
                buffer.pop()
            buffer.push(x[i])
            with pytest.raises(kb.HazardError):
                buffer.push(x[0])
            tl.copy_to(acc, acc * 0.5 + buffer.pop())
        tl.store(o, acc)

    unrolled = outputs(lambda tl, x, o: kernel(Unrolled(tl), x, o))
    assert_same_bits(unrolled, halved(range(N)))


class Unrolled:
    """`tl` whose loops Python unrolls."""

    def __init__(self, tl: Any) -> None:
        self._tl = tl

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tl, "static_range" if name == "range" else name)


def test_a_loop_that_runs_no_iteration() -> None:
    """Is checked for types, and neither pushes nor pops."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(1, (16,))
        for i in tl.range(0):
            buffer.push(x[i])
            buffer.push(x[i])
        buffer.push(x[3])
        tl.store(o, buffer.pop())

    assert_same_bits(outputs(kernel), X[3])


def test_what_is_too_much_to_prove() -> None:
    """12 million iterations a loop: the message says that it is no fact."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        buffer = tl.circular_buffer(2, (16,))  # made
        for i in tl.range(5000):
            with tl.when(i < 4000):
                buffer.push(x[0])
            for j in tl.range(5000):
                with tl.when(j < i // 2):
                    buffer.push(x[0])
                with tl.when(j < i // 2):
                    buffer.pop()  # use
            with tl.when(i < 4000):
                buffer.pop()

    refused(kernel, "made", "use", text="which is not certain to hold one\\. ")


# --- footprint -----------------------------------------------------------------------


@depths
@pytest.mark.parametrize("n", (1, 5, 4096))
def test_the_footprint(depth: int, n: int) -> None:
    """depth x tile bytes once, whatever the trip count: with acc, and two tiles of an
    iteration."""
    x = jax.ShapeDtypeStruct((n, 16), "float32")
    kernel = functools.partial(sweep, depth=depth, form="range", scope="both", n=n)
    call = kb.kernel_call(kernel, ROW)
    assert call.record(x).peak_scratch == (1 + depth + 2) * TILE_BYTES
    (buffer,) = (
        a for a in call.record(x).allocations.values() if a.op == "circular_buffer"
    )
    assert buffer.nbytes == depth * TILE_BYTES


# --- random programs -----------------------------------------------------------------

VALUES = np.random.default_rng(5).integers(-99, 99, (23, WIDTH)).astype(np.int32)
OUT = jax.ShapeDtypeStruct((WIDTH,), "int32")


def call_of(drawn: Drawn, unrolled: bool = False) -> kb.KernelCall:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        drawn.kernel(tl, x, o, tl.static_range if unrolled else tl.range, when_ifs)

    options = {"num_pes": PES, "in_axes": None} if drawn.num_pes > 1 else {}
    return kb.kernel_call(kernel, OUT, **options)


def slots_of(program: Any, pe: int) -> list[tuple[str, int]]:
    """Those that pushes load and pops read, by the addresses in the program."""
    found = []
    made = {uid for uid, a in program.allocations.items() if a.op == "circular_buffer"}
    for command, env in leaves(program.commands, {program.program_id.uid: pe}):
        for kind, ref in (
            *(("pop", ref) for ref in command.reads),
            *([("push", command.writes)] if command.writes is not None else []),
        ):
            if ref.root in made:
                whole = dataclasses.replace(ref, offset=expr.ZERO)
                at = expr.sub(program.address(ref), program.address(whole))
                values = {v: env[v.uid] for v in expr.variables(at)}
                nbytes = expr.evaluate(at, values)
                assert nbytes % ref.nbytes == 0
                found.append((kind, nbytes // ref.nbytes))
    return found


@pytest.mark.parametrize("block", range(4))
def test_slot_numbers(block: int) -> None:
    """Push number n fills slot n modulo the depth, and pops follow, in every iteration;
    but for few loops whose counts are no expression of the index, between whose
    iterations the buffer is empty."""
    anew = 0
    for seed in range(16 * block, 16 * (block + 1)):
        drawn = buffer_kernel(seed)
        wanted, values = play(drawn, VALUES)
        call = call_of(drawn)
        program = call.record(VALUES)
        found = [slots_of(program, pe) for pe in range(drawn.num_pes)]
        assert [[kind for kind, _ in slots] for slots in found] == [
            [kind for kind, _ in slots] for slots in wanted
        ]
        anew += found != wanted
        expected = values if drawn.num_pes > 1 else values[0]
        plain = reference.run(program, [VALUES]).outputs[0]
        assert_same_bits(plain, expected, f"{seed}\n{drawn.source}")
        if seed % 16 == 0:
            live = call(VALUES)
            exact = call.run(VALUES, fidelity="exact").outputs
            assert_same_bits(live, expected, f"{seed} live\n{drawn.source}")
            assert_same_bits(exact, expected, f"{seed} exact\n{drawn.source}")
        if drawn.num_pes == 1:
            unrolled = call_of(drawn, unrolled=True).record(VALUES)
            assert slots_of(unrolled, 0) == wanted[0], f"{seed}\n{drawn.source}"
            got = reference.run(unrolled, [VALUES]).outputs[0]
            assert_same_bits(got, expected, f"{seed} unrolled\n{drawn.source}")
    assert anew <= 2


def test_wild_programs() -> None:
    """Those that plain Python finds legal record, with its slots, or are refused
    because their counts follow no rule; all others are refused."""
    counts = {"legal": 0, "refused": 0, "unknown": 0}
    for seed in range(60):
        drawn = buffer_kernel(seed, wild=True)
        try:
            wanted, _ = play(drawn, VALUES)
        except Illegal:
            wanted = None
        if wanted is None:
            with pytest.raises((kb.HazardError, kb.KernelError)):
                call_of(drawn).record(VALUES)
                print(f"{seed} is illegal\n{drawn.source}")
            counts["refused"] += 1
            continue
        try:
            program = call_of(drawn).record(VALUES)
        except kb.KernelError as error:
            assert "are not known" in str(error), f"{seed} {error}\n{drawn.source}"
            counts["unknown"] += 1
            continue
        except kb.HazardError as error:
            raise AssertionError(f"{seed} {error}\n{drawn.source}") from error
        counts["legal"] += 1
        begins_anew = "% 2 == 0):" in drawn.source
        for pe, slots in enumerate(wanted if not begins_anew else ()):
            assert slots_of(program, pe) == slots, f"{seed} PE {pe}\n{drawn.source}"
    print(counts)
    assert counts["legal"] > 8 and counts["refused"] > 15
    assert counts["unknown"] <= counts["legal"] // 2
