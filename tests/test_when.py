"""`tl.when`: commands that run in some iterations, on some PEs.

The reference of most tests is the same kernel unrolled, with Python's `if`, and the
NumPy oracle, which runs one command at a time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax.program import Loop, Program, Scope, When
from tests import reference
from tests.helpers import assert_same_bits, assert_same_tcm

N = 6
X = np.arange(4 * N, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((4,), "float32")


class Branching:
    """`tl` with `when` as Python's `if`, for loops that are unrolled: the body of a
    condition that does not hold is skipped by the kernel itself (`ifs`)."""

    def __init__(self, tl: Any) -> None:
        self._tl = tl

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tl, name)

    def range(self, *ends: int) -> Any:
        return self._tl.static_range(*ends)


def ifs(tl: Any, condition: Any) -> Iterator[None]:
    """``for _ in ifs(tl, cond):`` is `with tl.when(cond):`, or an `if` and a scope
    where `tl` is `Branching`."""
    if not isinstance(tl, Branching):
        with tl.when(condition):
            yield
    elif condition:
        with tl.scratch_scope():
            yield


def unrolled(kernel: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(kernel)
    def kernel_unrolled(tl: Any, *tensors: Any, **options: Any) -> None:
        kernel(Branching(tl), *tensors, **options)

    return kernel_unrolled


# --- kernels whose every form gives the same -----------------------------------------


def prefetching(tl: Any, x: Any, o: Any) -> None:
    """The next tile is loaded where there is one."""
    total, following = tl.load(x[0:4]), tl.zeros(4)
    for i in tl.range(N):
        for _ in ifs(tl, i + 1 < N):
            tl.copy_to(following, tl.load(x[tl.ds((i + 1) * 4, 4)]))
        tl.copy_to(total, total * 0.5 + following)
    tl.store(o, total)


def first_and_last(tl: Any, x: Any, o: Any) -> None:
    """A prologue and an epilogue in one body."""
    total = tl.empty(4)
    for i in tl.range(N):
        for _ in ifs(tl, i == 0):
            tl.copy_to(total, tl.full(4, 1.0))
        tl.copy_to(total, total * tl.load(x[tl.ds(i * 4, 4)]) + 1.0)
        for _ in ifs(tl, i == N - 1):
            tl.store(o, total / 3.0)


def both_of_two(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros(4)
    for i in tl.range(N):
        for _ in ifs(tl, (i > 1) & (i != 3)):
            tl.copy_to(total, total + tl.exp(tl.load(x[tl.ds(i * 4, 4)]) * 0.1))
    tl.store(o, total)


def nested(tl: Any, x: Any, o: Any) -> None:
    """A loop inside, whose trip count depends on the loop outside; a `when` in it."""
    total = tl.zeros(4)
    for i in tl.range(N):
        for _ in ifs(tl, i % 2 == 1):
            row = tl.load(x[tl.ds(i * 4, 4)])
            for j in tl.range(i):
                for _ in ifs(tl, i - j < 3):
                    tl.copy_to(total, total + row * (j + 0.5 * tl.full(4, i)))
    tl.store(o, total)


def overwritten(tl: Any, x: Any, o: Any) -> None:
    """What is written in one way only is the old value in the other."""
    kept, parts = tl.full(4, -1.0), tl.zeros((2, 2))
    for i in tl.range(N):
        for _ in ifs(tl, i == 2):
            tl.copy_to(kept, tl.load(x[tl.ds(i * 4, 4)]))
        for _ in ifs(tl, i >= 4):
            tl.copy_to(parts[tl.ds(i - 4, 1)], tl.reshape(kept[2:4], (1, 2)))
    tl.store(o, kept + tl.reshape(parts, 4))


def through_hbm(tl: Any, x: Any, o: Any) -> None:
    """Stores and loads of one tensor, each in some iterations."""
    tl.store(o, tl.zeros(4))
    for i in tl.range(N):
        for _ in ifs(tl, i % 3 == 0):
            tl.store(o, tl.load(o) + tl.load(x[tl.ds(4 * i, 4)]))
        for _ in ifs(tl, i % 3 == 1):
            tl.store(o[1:3], tl.load(o[1:3]) * 2.0)


KERNELS = [prefetching, first_and_last, both_of_two, nested, overwritten, through_hbm]
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)


@kernels
def test_it_is_an_if_of_each_iteration(kernel: Callable[..., None]) -> None:
    call = kb.kernel_call(kernel, OUT)
    expected = kb.kernel_call(unrolled(kernel), OUT)(X)
    assert_same_bits(call(X), expected, "rolled and unrolled")
    assert np.isfinite(np.asarray(expected)).all()
    live, exact = call.run(X), call.run(X, fidelity="exact")
    assert_same_bits(live.outputs, expected, "with memory")
    assert_same_bits(exact.outputs, expected, "exact")
    program = call.record(X)
    assert_same_tcm(program, live.tcm.memory, exact.tcm.memory)
    oracle = reference.run(program, [X])
    if kernel is both_of_two:  # exp
        np.testing.assert_allclose(expected, oracle.outputs[0], rtol=1e-6)
    else:
        assert_same_bits(expected, oracle.outputs[0], "the oracle")


@kernels
def test_the_op_log_has_what_runs(kernel: Callable[..., None]) -> None:
    """And no more: the same rows as the unrolled kernel, but for loop indices."""
    rolled, plain = (
        kb.kernel_call(k, OUT).op_log(X) for k in (kernel, unrolled(kernel))
    )
    assert [r.op_name for r in rolled] == [r.op_name for r in plain]
    assert rolled.total_ns == plain.total_ns
    assert rolled.peak_scratch == plain.peak_scratch


@kernels
def test_inside_an_outer_jit(kernel: Callable[..., None]) -> None:
    call = kb.kernel_call(kernel, OUT)
    assert_same_bits(jax.jit(call)(X), call(X), "inside jit")
    assert_same_bits(jax.jit(lambda: call(X))(), call(X), "of constants")


# --- PEs -----------------------------------------------------------------------------


def by_pe(tl: Any, x: Any, o: Any) -> None:
    """PE p adds p tiles; PE 2 alone doubles; odd PEs store another element."""
    pe = tl.program_id()
    total = tl.zeros(4)
    for i in tl.range(N):
        with tl.when(i < pe):
            tl.copy_to(total, total + tl.load(x[tl.ds(i * 4, 4)]))
            with tl.when(pe == 2):
                tl.copy_to(total, total * 2.0)
    tl.store(o, total)
    with tl.when(pe % 2 == 1):
        tl.store(o[0:1], tl.full(1, -5.0))


def test_pes_take_ways_of_their_own() -> None:
    pes = 4
    call = kb.kernel_call(by_pe, OUT, num_pes=pes, in_axes=None)
    expected = np.zeros((pes, 4), np.float32)
    for pe in range(pes):
        for i in range(min(pe, N)):
            expected[pe] += X[4 * i : 4 * i + 4]
            expected[pe] *= 2 if pe == 2 else 1
        if pe % 2:
            expected[pe, 0] = -5
    assert_same_bits(call(X), expected, "live")
    assert_same_bits(call.run(X, fidelity="exact").outputs, expected, "exact")
    program = call.record(X)
    assert_same_bits(expected, reference.run(program, [X]).outputs[0], "the oracle")
    log = call.op_log(X)
    loads = [sum(r.op_name == "load" for r in log if r.pe == pe) for pe in range(pes)]
    assert loads == [0, 1, 2, 3]


def test_one_writer_of_a_shared_output() -> None:
    """`when` is what proves that PEs store to different elements."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.when(tl.program_id() == 1):
            tl.store(o, tl.load(x) + 1.0)

    def all_of_them(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + 1.0)

    make = functools.partial(
        kb.kernel_call, out_shape=OUT, num_pes=3, in_axes=None, out_axes=None
    )
    assert_same_bits(make(kernel)(X[:4]), X[:4] + 1)
    with pytest.raises(kb.HazardError, match="PE 0 and PE 1"):
        make(all_of_them)(X[:4])


# --- what is checked over the iterations that run ------------------------------------


def record(kernel: Callable[..., None], x: Any = X, **options: Any) -> Program:
    return kb.kernel_call(kernel, OUT, **options).record(x)


def statements(program: Program, kind: type) -> list[Any]:
    return [item for item in program.walk() if isinstance(item, kind)]


def test_bounds_hold_where_it_runs() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, last: int) -> None:
        for j in tl.range(N):
            with tl.when(j + 1 < last):
                tl.store(o, tl.load(x[tl.ds((j + 1) * 4, 4)]))

    record(functools.partial(kernel, last=N))
    with pytest.raises(kb.OutOfBoundsError, match=r"in iteration j = 5") as caught:
        record(functools.partial(kernel, last=N + 1))
    assert "24" in str(caught.value)


def test_bounds_follow_from_the_condition_without_enumeration() -> None:
    """2**40 iterations cannot be listed."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(1 << 20):
            for j in tl.range(1 << 20):
                with tl.when((i + j < N) & (j == 2)), tl.scratch_scope():
                    tl.store(o, tl.load(x[tl.ds((i + j) * 4, 4)]))
                with tl.when(i * 3 - 2 < N):
                    tl.store(o, tl.load(x[tl.ds(i * 3, 4)]))

    record(kernel)


def test_bytes_written_under_a_condition_are_not_certain() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, wider: bool) -> None:
        t = tl.empty(4)
        for i in tl.range(N):
            with tl.when(i < 3):
                tl.copy_to(t, tl.load(x[0:4]))
            with tl.when(i < (5 if wider else 3)):
                tl.store(o, t)

    record(functools.partial(kernel, wider=False))
    # In iteration 3 the bytes are those of iteration 2: still written.
    record(functools.partial(kernel, wider=True))

    def too_early(tl: Any, x: Any, o: Any) -> None:
        t = tl.empty(4)
        for i in tl.range(N):
            with tl.when(i > 2):
                tl.copy_to(t, tl.load(x[0:4]))
            with tl.when(i >= 2):
                tl.store(o, t)

    with pytest.raises(kb.UninitializedReadError):
        record(too_early)

    def after(tl: Any, x: Any, o: Any) -> None:
        t = tl.empty(4)
        with tl.when(tl.program_id() == 0):
            tl.copy_to(t, tl.load(x[0:4]))
        tl.store(o, t)

    record(after)  # there is one PE: it is certain
    with pytest.raises(kb.UninitializedReadError):
        record(after, num_pes=2, in_axes=None)


# --- scratch -------------------------------------------------------------------------


def test_it_is_a_scope() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(N):
            with tl.when(i > 2):
                tl.store(o, tl.load(x[0:4]) + 1.0)

    program = record(kernel)
    assert program.peak_scratch == 32
    (loop,) = statements(program, Loop)
    (when,) = statements(program, When)
    assert (loop.growth_bytes, when.mark_bytes, when.rewound_bytes) == (0, 0, 32)
    assert "when (2 < i), rewinds 32 B to 0x0" in str(program)
    (scope,) = kb.kernel_call(kernel, OUT).plan(X).scopes
    assert (scope.entered, scope.allocated_bytes) == (N - 3, 32 * (N - 3))


@pytest.mark.parametrize("condition", [False, 0, "never"])
def test_one_that_never_runs_adds_nothing(condition: Any) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x[0:4]))
        for i in tl.range(N):
            with tl.when(i > N if condition == "never" else condition):
                tl.zeros((1 << 20,))  # 4 MiB
                tl.load(x[tl.ds(i * 4 + 100, 4)])  # out of bounds, if it ran

    program = record(kernel)
    assert program.peak_scratch == 16
    assert not statements(program, Scope) and not statements(program, Loop)


@pytest.mark.parametrize("condition", [True, 1, np.bool_(True)])
def test_one_that_always_runs_is_a_scope(condition: Any) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.when(condition):
            t = tl.load(x[0:4])
            tl.store(o, t)

    assert [type(s) for s in statements(record(kernel), Scope)] == [Scope]


def test_the_peak_is_that_of_iterations_that_run() -> None:
    """A loop that grows, and a large tile in its early iterations only."""

    def kernel(tl: Any, x: Any, o: Any, *, until: int) -> None:
        for i in tl.range(100):
            tl.zeros(256)  # 1 KiB stays
            with tl.when(i < until):
                tl.zeros(16 * 1024)  # 64 KiB
        tl.store(o, tl.load(x[0:4]))

    for until in (1, 50, 100):
        peak = record(functools.partial(kernel, until=until)).peak_scratch
        assert peak == max(until * 1024 + 64 * 1024, 100 * 1024 + 16)


def test_overflow_names_the_iteration_that_runs() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(N):
            with tl.when(i >= 4):
                tl.zeros((1 << 20,))
        tl.store(o, tl.load(x[0:4]))

    with pytest.raises(kb.ScratchOverflowError, match="in iteration 4") as caught:
        record(kernel)
    event = caught.value.overflow
    assert event is not None
    assert [step.iteration for step in event.loops] == [4]


# --- what is refused -----------------------------------------------------------------


def test_a_tile_made_in_it_dies_with_it() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(N):
            with tl.when(i == 1):
                t = tl.load(x[0:4])
            tl.store(o, t)

    with pytest.raises(kb.UseAfterScopeError, match="after its when has ended"):
        record(kernel)


@pytest.mark.parametrize(
    "condition",
    [
        lambda tl, x: tl.load(x[0:4]) > 0.0,
        lambda tl, x: x,
        lambda tl, x: 1.5,
        lambda tl, x: None,
        lambda tl, x: "i < 3",
    ],
)
def test_conditions_are_integers(condition: Callable[..., Any]) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x[0:4]))
        with tl.when(condition(tl, x)):
            tl.store(o, tl.zeros(4))

    with pytest.raises(kb.KernelError, match=r"tl\.when takes a condition") as caught:
        record(kernel)
    assert "tl.where" in str(caught.value)


def test_python_state_that_it_sets_is_refused() -> None:
    """It would be set whether or not the condition holds."""

    def counting(tl: Any, x: Any, o: Any) -> None:
        n = 0
        for i in tl.range(N):
            with tl.when(i == 2):
                n = 3
        tl.store(o, tl.full(4, n))

    def picking(tl: Any, x: Any, o: Any) -> None:
        a, b = tl.load(x[0:4]), tl.load(x[4:8])
        current = a
        with tl.when(tl.program_id() == 1):
            current = b
        tl.store(o, current)

    def appending(tl: Any, x: Any, o: Any) -> None:
        seen: list[int] = []
        for i in tl.range(N):
            with tl.when(i == 2):
                seen.append(1)
        tl.store(o, tl.full(4, len(seen)))

    for kernel, name, options in (
        (counting, "`n`: 0, then 3", {}),
        (picking, "`current`", {"num_pes": 2, "in_axes": None}),
        (appending, "seen", {}),
    ):
        with pytest.raises(kb.KernelError, match=r"body of this tl\.when") as caught:
            record(kernel, **options)
        assert str(caught.value).count(name) == 1

    def first_set(tl: Any, x: Any, o: Any) -> None:
        with tl.when(tl.program_id() == 1):
            factor = 3.0
        tl.store(o, tl.load(x[0:4]) * factor)

    def failing(tl: Any, x: Any, o: Any) -> None:
        offset = 0
        try:
            with tl.when(tl.program_id() == 1):
                offset = 1
                raise ValueError
        except ValueError:
            tl.store(o, tl.load(x[0:4]) + offset)

    def in_another_type(tl: Any, x: Any, o: Any) -> None:
        dtype = tl.float16
        with tl.when(tl.program_id() == 1):
            dtype = tl.bfloat16
        tl.store(o, (tl.load(x[0:4]) * 0.1).to(dtype).to("float32"))

    def by_another_function(tl: Any, x: Any, o: Any) -> None:
        function, combine = tl.exp, functools.partial(tl.maximum, 1.0)
        with tl.when(tl.program_id() == 1):
            function, combine = tl.sqrt, functools.partial(tl.minimum, 1.0)
        tl.store(o, combine(function(tl.load(x[0:4]))))

    for kernel, name in (
        (first_set, "`factor`: 3.0, first set here"),
        (in_another_type, "`dtype`: float16, then bfloat16"),
        (by_another_function, "`function`"),
    ):
        with pytest.raises(kb.KernelError, match="used after it") as caught:
            record(kernel, num_pes=2, in_axes=None)
        assert name in str(caught.value)
    with pytest.raises(kb.KernelError, match="exception that is caught outside"):
        record(failing, num_pes=2, in_axes=None)

    def certain(tl: Any, x: Any, o: Any) -> None:
        with tl.when(tl.program_id() - 5):
            factor = 3.0
        tl.store(o, tl.load(x[0:4]) * factor)

    record(certain, num_pes=2, in_axes=None)


def test_helpers_may_hold_it() -> None:
    """A name that is set before it is read carries nothing, in any frame."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        @contextlib.contextmanager
        def on(pe: int) -> Iterator[int]:
            with tl.when(tl.program_id() == pe):
                yield pe

        def each() -> Iterator[int]:
            for pe in range(2):
                with tl.when(tl.program_id() == pe):
                    yield pe

        tl.store(o, tl.load(x[0:4]))
        with on(0) as q:
            tl.store(o, tl.full(4, q))
        with on(1) as q:
            tl.store(o, tl.full(4, q))
        for q in each():
            tl.store(o, tl.full(4, q + 10))

    call = kb.kernel_call(kernel, OUT, num_pes=3, in_axes=None)
    expected = np.stack([np.full(4, 10), np.full(4, 11), X[0:4]]).astype(np.float32)
    assert_same_bits(call(X), expected)


def test_one_that_is_not_entered() -> None:
    def asked(tl: Any, x: Any, o: Any) -> None:
        if tl.when(tl.program_id() == 0):
            tl.store(o, tl.load(x[0:4]))

    def bare(tl: Any, x: Any, o: Any) -> None:
        tl.when(tl.program_id() == 0)
        tl.store(o, tl.load(x[0:4]))

    for kernel, words in ((asked, "has no value"), (bare, "not entered")):
        with pytest.raises(kb.KernelError, match=words) as caught:
            record(kernel, num_pes=2, in_axes=None)
        assert "with tl.when" in str(caught.value)


def left_by_return(tl: Any, x: Any, o: Any) -> None:
    with tl.when(tl.program_id() == 0):
        tl.store(o, tl.load(x[0:4]))
        return
    tl.store(o, tl.load(x[4:8]))


def left_by_return_of_a_helper(tl: Any, x: Any, o: Any) -> None:
    def pick() -> int:
        with tl.when(tl.program_id() == 0):
            return 0
        return 4

    tl.store(o, tl.load(x[tl.ds(pick(), 4)]))


def left_by_continue(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(N):
        with tl.when(i == 0):
            if tl.num_programs() > 1:
                continue
            tl.store(o, tl.load(x[0:4]))
        tl.store(o, tl.load(x[4:8]))


def left_by_break(tl: Any, x: Any, o: Any) -> None:
    for i in range(N):
        with tl.when(tl.program_id() == i), tl.scratch_scope():
            tl.store(o, tl.load(x[0:4]))
            break


def left_at_its_end(tl: Any, x: Any, o: Any) -> None:
    """What return, break and continue there are does not leave the block."""
    for i in tl.range(N):
        with tl.scratch_scope(), tl.when(i == 0), tl.when(i < 5):
            for n in range(3):
                if n == 1:
                    continue
                tl.store(o, (lambda k: tl.full(4, k))(n))
                if n == 2:
                    break
    with tl.when(tl.program_id() == 1):
        if tl.num_programs() > 5:
            return
        else:
            tl.store(o, tl.load(x[0:4]))


@pytest.mark.parametrize(
    "kernel",
    [left_by_return, left_by_return_of_a_helper, left_by_continue, left_by_break],
    ids=lambda k: k.__name__,
)
def test_it_is_not_left_by_jumps(kernel: Callable[..., None]) -> None:
    """Which Python takes for every PE and iteration: Triton's `if pid == 0: return`."""
    with pytest.raises(kb.KernelError, match="left by return, break, continue"):
        record(kernel, num_pes=2, in_axes=None)


def test_jumps_inside_it_are_its_own() -> None:
    record(left_at_its_end, num_pes=2, in_axes=None)


def test_what_was_proven_under_a_condition_is_proven_again_outside() -> None:
    """Indices that leave int32, and divisors that are 0, where it does not hold; also
    where nobody sees how Python kept them."""

    def wide(tl: Any, x: Any, o: Any, *, until: int) -> None:
        made = np.empty(1, object)
        for i in tl.range(8):
            with tl.when(i < 4):
                made[0] = i * (1 << 29)
            with tl.when(i < until), tl.scratch_scope():
                tl.store(o, tl.full(4, made[0]))

    def divided(tl: Any, x: Any, o: Any, *, until: int) -> None:
        made = np.empty(1, object)
        for i in tl.range(8):
            with tl.when(i > 0):
                made[0] = 8 // i
            with tl.when(i > until), tl.scratch_scope():
                tl.store(o, tl.load(x[tl.ds(made[0], 4)]))

    record(functools.partial(wide, until=4))
    with pytest.raises(kb.KernelError, match="leaves int32 in iteration i = 4"):
        record(functools.partial(wide, until=5))
    record(functools.partial(divided, until=0))
    with pytest.raises(kb.KernelError, match="can be 0 in iteration i = 0"):
        record(functools.partial(divided, until=-1))


def test_an_inner_condition_may_rely_on_an_outer_one() -> None:
    """No warning of a division by 0 where it does not hold."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x[0:4]))
        for i in tl.range(4):
            for j in tl.range(4):
                with tl.when(i * j > 0):
                    with tl.when(8 // i > 2):
                        tl.store(o, tl.load(x[tl.ds(24 // i - 8, 4)]) + 1.0)

    program = record(kernel)
    expected = reference.run(program, [X]).outputs[0]
    assert_same_bits(kb.kernel_call(kernel, OUT)(X), expected)


def test_pes_that_it_leaves_out_do_not_count_in_trips() -> None:
    """Else this one would take minutes."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe = tl.program_id()
        total = tl.zeros(4)
        with tl.when(pe == 0):
            for _ in tl.range(2 + pe * 2_000_000_000):
                with tl.scratch_scope():
                    tl.copy_to(total, total + tl.load(x[4:8]))
        tl.store(o, total)

    call = kb.kernel_call(kernel, OUT, num_pes=2, in_axes=None)
    assert_same_bits(call(X), np.stack([X[4:8] * 2, np.zeros(4, np.float32)]))


def test_one_that_is_left_open() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(N):
            tl.when(i < 2).__enter__()
            tl.store(o, tl.load(x[0:4]))

    with pytest.raises(kb.KernelError, match="a when opened here is still open"):
        record(kernel)


def test_names_that_nothing_reads_again_may_be_set() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        s = tl.load(x[0:4])
        for i in tl.range(N):
            with tl.when((i < 2) | (i == 3)):
                s = tl.load(x[4:8]) * 2.0
                width = 4
                tl.store(o[0:width], s)
            s, width = tl.load(x[tl.ds(i * 4, 4)]), 4
            tl.store(o[0:width], s)

    record(kernel)


def test_a_refused_call_may_be_caught_inside() -> None:
    """And leaves nothing behind."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(N):
            with tl.when(i == 2):
                try:
                    tl.load(x[tl.ds(100, 4)])
                except kb.OutOfBoundsError:
                    tl.store(o, tl.load(x[tl.ds(4 * i, 4)]))

    assert_same_bits(kb.kernel_call(kernel, OUT)(X), X[8:12])


@pytest.mark.parametrize("error", [ValueError, kb.OutOfBoundsError])
def test_an_exception_that_leaves_it_is_not_caught(error: type[Exception]) -> None:
    """What follows would go the way of the exception on every PE."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        try:
            with tl.when(tl.program_id() == 1):
                tl.load(x[tl.ds(100, 4)])  # OutOfBoundsError
                raise ValueError
        except error:
            tl.store(o, tl.load(x[4:8]))

    if error is ValueError:
        with pytest.raises(kb.OutOfBoundsError):
            record(kernel, num_pes=2, in_axes=None)
        return
    with pytest.raises(kb.KernelError, match="exception that is caught outside"):
        record(kernel, num_pes=2, in_axes=None)


def test_a_condition_of_a_loop_that_has_ended() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        guard = None
        for i in tl.range(N):
            guard = tl.when(i == 2)
        assert guard is not None
        with guard:
            tl.store(o, tl.load(x[0:4]))

    with pytest.raises(kb.KernelError, match="used after its loop"):
        record(kernel)


def test_it_is_compiled_once_for_any_trip_count() -> None:
    """And runs what holds only: a million iterations, of which three do work."""
    trips = 1_000_000

    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros(4)
        for i in tl.range(trips):
            with tl.when(i % 400_000 == 7):
                tl.copy_to(total, total + tl.load(x[0:4]))
        tl.store(o, total)

    assert_same_bits(kb.kernel_call(kernel, OUT)(X[:4]), 3 * X[:4])


def test_poison_where_it_ran() -> None:
    """Only where it ran are its bytes given back."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe = tl.program_id()
        with tl.scratch_scope():
            tl.store(o, tl.load(x[0:4]))
        with tl.when(pe == 1):
            tl.full(4, 1.0)

    call = kb.kernel_call(kernel, OUT, num_pes=2, in_axes=None)
    for poison in (False, True):
        program = call.record(X)
        found = call.run(X, fidelity="exact", poison=poison)
        expected = reference.run(program, [X], poison=poison)
        assert_same_bits(found.tcm.memory, expected.memory, "memory")
