"""The scratch arena: addresses by hand, and every iteration against a plain replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from kbjax import dtypes, expr
from kbjax.allocator import Arena
from kbjax.hardware import PeTcm
from kbjax.program import Loop, OpCmd, Program, Scope
from kbjax.refs import Ref
from kbjax.site import Site

ROWS = jax.ShapeDtypeStruct((8, 4), "float32")  # 128 bytes
MIB = 1 << 20
HERE = Site("kernel.py", 1)


def call(kernel: Callable[..., None], scratch_bytes: int = MIB) -> kb.KernelCall:
    """`kernel(tl, x, o)` on float32[8,4], with `scratch_bytes` of scratch."""
    tcm = PeTcm(kernel_scratch_mb=scratch_bytes / MIB)
    return kb.kernel_call(kernel, ROWS, hardware=kb.Hardware(pe_tcm=tcm))


def record(work: Callable[[Any], object], scratch_bytes: int = MIB) -> Program:
    """The program of `work(tl)`; a load and store around it do not count."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            tl.store(o, tl.load(x))
        work(tl)

    return call(kernel, scratch_bytes).record(ROWS)


def overflow(work: Callable[[Any], object], scratch_bytes: int = MIB) -> Any:
    """The error of `work(tl)`, which does not fit."""
    with pytest.raises(kb.ScratchOverflowError) as caught:
        record(work, scratch_bytes)
    assert isinstance(caught.value, RuntimeError)
    assert str(caught.value).startswith("TLContext scratch overflow: ")
    return caught.value


def made_by(program: Program, op: str) -> list[int]:
    """The cursors at which `op` allocated, in iteration 0."""
    made = program.allocations.values()
    return [a.cursor_bytes for a in made if a.op == op]


# --- by hand -------------------------------------------------------------------------


def test_addresses_by_hand() -> None:
    def work(tl: Any) -> None:
        tl.zeros((1,), "bool")  # 1 B
        tl.zeros((4,))  # 16 B
        tl.zeros((17,), "bool")  # 17 B
        tl.zeros((3, 5), "float16")  # 30 B
        tl.zeros((1,))  # 4 B

    program = record(work)
    assert made_by(program, "zeros") == [0, 16, 32, 64, 96]
    assert program.exit_cursor_bytes == 112
    assert program.peak_scratch == 128  # the load before them


def test_what_takes_scratch_and_what_does_not() -> None:
    def work(tl: Any) -> None:
        a = tl.full((8, 4), 2.0)
        assert a.to("float32") is a
        b = tl.reshape(a, (4, 8))[tl.ds(1, 2)]
        tl.expand_dims(b, 0)
        tl.copy_to(a, a + 1.0)
        tl.exp(a)

    program = record(work)
    taken = [a for a in program.allocations.values() if a.op in ("full", "add", "exp")]
    assert [a.cursor_bytes for a in taken] == [0, 128, 256]
    assert program.exit_cursor_bytes == 384


def test_scratch_base_is_added_to_every_address() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + 1.0)

    def addresses(base: int) -> list[int]:
        hardware = kb.Hardware(pe_tcm=PeTcm(scratch_base=base))
        program = kb.kernel_call(kernel, ROWS, hardware=hardware).record(ROWS)
        made = [a.uid for a in program.allocations.values()]
        refs = [Ref(uid, expr.ZERO, (8, 4), dtypes.FLOAT32) for uid in made]
        return [expr.evaluate(program.address(ref), {}) for ref in refs]

    assert addresses(0) == [0, 128]
    assert addresses(4096) == [4096, 4224]


def test_the_budget_does_not_depend_on_scratch_base() -> None:
    tcm = PeTcm(scratch_base=4096, kernel_scratch_mb=128 / MIB)
    arena = Arena(tcm, tcm.scratch_bytes)
    arena.allocate("a", (32,), dtypes.FLOAT32, HERE)
    with pytest.raises(kb.ScratchOverflowError):
        arena.allocate("b", (1,), dtypes.BOOL, HERE)


def test_two_tiles_of_half_a_mebibyte_fit_and_not_a_byte_more() -> None:
    def two(tl: Any) -> None:
        tl.zeros((512, 256))
        tl.zeros((512, 256))

    def three(tl: Any) -> None:
        two(tl)
        tl.zeros((1,))

    program = record(two)
    assert made_by(program, "zeros") == [0, MIB // 2]
    assert program.peak_scratch == program.exit_cursor_bytes == MIB
    found = overflow(three).overflow
    assert (found.op, found.requested_bytes, found.aligned_bytes) == ("zeros", 4, 16)
    assert (found.cursor_bytes, found.budget_bytes, found.free_bytes) == (MIB, MIB, 0)
    assert found.iterations == ()


def test_a_failed_allocation_leaves_the_cursor_alone() -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        with pytest.raises(kb.ScratchOverflowError):
            tl.full((MIB,), 1.0)
        tl.zeros((4,))
        with pytest.raises(kb.ScratchOverflowError):
            tl.full((MIB - 31,), True, "bool")
        tl.full((MIB - 32,), True, "bool")

    program = record(work)
    assert made_by(program, "zeros") == [0, 16] and made_by(program, "full") == [32]
    assert program.peak_scratch == MIB
    ops = [item.op for item in program.walk() if isinstance(item, OpCmd)]
    assert ops == ["zeros", "zeros", "full"]


def test_the_next_kernel_starts_at_zero() -> None:
    big = False

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        if big:
            tl.zeros((MIB,))
        tl.store(o, t)

    kernel_call = call(kernel)
    big = True
    with pytest.raises(kb.ScratchOverflowError):
        kernel_call.record(ROWS)
    big = False
    program = kernel_call.record(ROWS)
    assert program.peak_scratch == program.exit_cursor_bytes == 128


# --- scopes --------------------------------------------------------------------------


def test_nested_scopes_rewind_to_their_own_save_points() -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        with tl.scratch_scope():
            tl.full((4,), 1.0)  # 16
            with tl.scratch_scope():
                tl.full((100,), 2.0)  # 32 .. 432
            tl.full((4,), 3.0)  # 32
            with tl.scratch_scope():
                tl.full((4,), 4.0)  # 48
        tl.full((4,), 5.0)  # 16

    program = record(work)
    assert made_by(program, "full") == [16, 32, 32, 48, 16]
    assert program.peak_scratch == 432 and program.exit_cursor_bytes == 32
    depths = [a.scope_depth for a in program.allocations.values() if a.op == "full"]
    assert depths == [1, 2, 1, 2, 0]


def test_scopes_are_rewound_by_exceptions() -> None:
    class Stop(Exception):
        pass

    def work(tl: Any) -> None:
        try:
            with tl.scratch_scope():
                tl.zeros((4,))
                with tl.scratch_scope():
                    tl.zeros((4,))
                    raise Stop
        except Stop:
            tl.full((4,), 1.0)
        with pytest.raises(kb.ShapeError), tl.scratch_scope():
            tl.dot(tl.zeros((4, 4)), tl.zeros((8, 4)))
        tl.full((4,), 2.0)

    program = record(work)
    assert made_by(program, "full") == [0, 16]
    assert program.exit_cursor_bytes == 32


def test_handles_of_outer_scopes_keep_their_bytes() -> None:
    def work(tl: Any) -> None:
        kept = tl.full((4,), 1.0)
        with tl.scratch_scope():
            inner = tl.full((4,), 2.0)
            with tl.scratch_scope():
                tl.copy_to(inner, kept + inner)
            tl.copy_to(kept, inner)
        assert (kept + 1.0).ref.root != kept.ref.root

    program = record(work)
    alive = [program.allocations[uid].op for uid in program.live_at_exit]
    assert alive == ["full", "add"]


# --- rolled loops --------------------------------------------------------------------


def test_addresses_in_a_growing_loop_are_affine() -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        for _ in tl.range(3):
            tl.full((4,), 1.0)
            tl.full((5,), 2.0)  # 20 B take 32
        tl.arange(4)

    program = record(work)
    assert made_by(program, "full") == [16, 32] and made_by(program, "arange") == [160]
    assert program.peak_scratch == program.exit_cursor_bytes == 176
    (loop,) = (item for item in program.commands if isinstance(item, Loop))
    assert loop.growth_bytes == 48
    outs = [command.out for command in loop.body if isinstance(command, OpCmd)]
    values = [
        [expr.evaluate(program.offset(out), {loop.index: n}) for n in range(3)]
        for out in outs
    ]
    assert values == [[16, 64, 112], [32, 80, 128]]


def test_a_scope_in_the_body_makes_the_peak_that_of_one_tile() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(1_000_000):
            with tl.scratch_scope():
                tl.zeros((1024,))

    program = record(work)
    assert program.peak_scratch == 4096 and program.exit_cursor_bytes == 0


@pytest.mark.parametrize("trip", [0, -3])
def test_a_loop_that_never_runs_adds_nothing(trip: int) -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(trip):
            tl.zeros((MIB,))
            for _ in tl.range(100):
                tl.zeros((MIB,))
        tl.full((4,), 1.0)

    program = record(work)
    assert program.peak_scratch == 128 and made_by(program, "full") == [0]
    assert not [item for item in program.walk() if isinstance(item, Loop)]


def test_the_iteration_that_overflows_is_found_without_running() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(1_000_000_000):
            tl.zeros((4,))
            tl.full((5,), 1.0)

    found = overflow(work, scratch_bytes=1024).overflow
    # 48 B an iteration: 21 fit in 1008 B; then 16 B fit and 32 B do not.
    assert [n for _, n in found.iterations] == [21]
    assert (found.op, found.cursor_bytes) == ("full", 1024)


def test_an_overflow_names_its_loops_outermost_first() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(10):
            tl.zeros((4,))
            for _ in tl.range(3):
                tl.full((4,), 1.0)

    error = overflow(work, scratch_bytes=256)
    # 64 B an outer iteration: 4 of them fit exactly.
    assert [n for _, n in error.overflow.iterations] == [4]
    assert error.overflow.op == "zeros"
    error = overflow(work, scratch_bytes=240)
    assert [n for _, n in error.overflow.iterations] == [3, 2]
    lines = [site.line for site, _ in error.overflow.iterations]
    assert lines[1] == lines[0] + 2
    assert error.overflow.cursor_bytes == 240


def test_an_overflow_in_the_first_outer_iteration_names_it_too() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(10):
            for _ in tl.range(1000):
                tl.zeros((4,))

    found = overflow(work, scratch_bytes=256).overflow
    assert [n for _, n in found.iterations] == [0, 16]


def test_a_growing_loop_with_a_symbolic_trip_count_is_refused() -> None:
    def work(tl: Any) -> None:
        for i in tl.range(4):
            for _ in tl.range(i):
                tl.zeros((4,))

    with pytest.raises(kb.KernelError, match="scratch_scope") as caught:
        record(work)
    assert "symbolic" in caught.value.problem

    def scoped(tl: Any) -> None:
        for i in tl.range(4):
            for _ in tl.range(i):
                with tl.scratch_scope():
                    tl.zeros((4, 16))

    assert record(scoped).peak_scratch == 256


def test_the_peak_is_exact_where_an_inner_trip_count_shrinks() -> None:
    def work(tl: Any) -> None:
        for i in tl.range(5):
            tl.zeros((4,))  # 16 B stay
            for _ in tl.range(2 - i):
                with tl.scratch_scope():
                    tl.zeros((64,))  # 256 B, for i = 0 and i = 1

    assert record(work).peak_scratch == 16 * 2 + 256


def test_a_kernel_may_catch_an_overflow_of_a_loop_and_go_on() -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        with pytest.raises(kb.ScratchOverflowError):
            for _ in tl.range(1_000_000):
                tl.arange(4)
        tl.full((4,), 1.0)

    program = record(work)
    assert made_by(program, "full") == [16] and program.exit_cursor_bytes == 32
    assert [c.op for c in program.walk() if isinstance(c, OpCmd)] == ["zeros", "full"]


def test_the_message_says_what_would_help() -> None:
    def unscoped(tl: Any) -> None:
        for _ in tl.range(1000):
            tl.zeros((1024,))

    def scoped(tl: Any) -> None:
        with tl.scratch_scope():
            for _ in tl.range(1000):
                tl.zeros((1024,))

    def too_large(tl: Any) -> None:
        tl.zeros((MIB,))

    assert "with tl.scratch_scope():" in overflow(unscoped).remedy
    assert "gives back 4,096 B an iteration" in overflow(scoped).remedy
    assert "No scope can help" in overflow(too_large).remedy
    text = str(overflow(unscoped))
    for part in ("zeros", "test_allocator.py:", "4,096 B", "iteration 256", "1 MiB"):
        assert part in text


def test_the_live_allocations_of_an_overflow_are_those_that_hold_the_bytes() -> None:
    def work(tl: Any) -> None:
        tl.arange(4)  # 16 B
        for _ in tl.range(100):
            tl.zeros((8,))  # 32 B
            tl.full((4,), 1.0)  # 16 B

    found = overflow(work, scratch_bytes=256).overflow
    # 16 + 5 * 48 B are taken when the sixth iteration asks for more.
    groups = {group.op: (group.count, group.nbytes) for group in found.live}
    assert groups == {"arange": (1, 16), "zeros": (5, 160), "full": (5, 80)}
    assert found.cursor_bytes == 256


def test_what_a_scope_has_given_back_is_not_live() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(100):
            tl.zeros((8,))  # 32 B
            with tl.scratch_scope():
                for _ in tl.range(2):
                    tl.full((4,), 1.0)  # given back

    found = overflow(work, scratch_bytes=128).overflow
    # Iteration 2 ends its scope at 128 B; iteration 3 begins it there.
    assert [n for _, n in found.iterations] == [3, 0]
    groups = {group.op: (group.count, group.nbytes) for group in found.live}
    assert groups == {"zeros": (4, 128)} and found.cursor_bytes == 128


# --- random trees against a replay of every iteration --------------------------------


@dataclass(frozen=True)
class Take:
    """Allocate `nbytes`; `number` tells allocations apart."""

    nbytes: int
    number: int


@dataclass(frozen=True)
class Scoped:
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Repeat:
    trip: int
    body: tuple[Any, ...]


@dataclass
class Replay:
    """A bump allocator that runs every iteration: the definition."""

    budget_bytes: int
    cursor: int = 0
    peak: int = 0
    taken: list[tuple[int, int]] = field(default_factory=list)
    failed: tuple[int, int, list[int]] | None = None

    def run(self, body: tuple[Any, ...], iterations: list[int]) -> bool:
        """Whether all of it fitted."""
        for item in body:
            if isinstance(item, Take):
                end = self.cursor + (item.nbytes + 15 & ~15)
                if end > self.budget_bytes:
                    self.failed = (item.nbytes, self.cursor, iterations)
                    return False
                self.taken.append((item.number, self.cursor))
                self.cursor, self.peak = end, max(self.peak, end)
            elif isinstance(item, Scoped):
                mark = self.cursor
                if not self.run(item.body, iterations):
                    return False
                self.cursor = mark
            else:
                for i in range(item.trip):
                    if not self.run(item.body, [*iterations, i]):
                        return False
        return True


@st.composite
def trees(draw: st.DrawFn) -> tuple[Any, ...]:
    sizes = st.integers(1, 70)
    leaves = st.builds(Take, sizes, st.just(0))
    tree = st.recursive(
        leaves,
        lambda inner: (
            st.builds(Scoped, st.lists(inner, min_size=1, max_size=3).map(tuple))
            | st.builds(
                Repeat,
                st.integers(0, 5),
                st.lists(inner, min_size=1, max_size=3).map(tuple),
            )
        ),
        max_leaves=10,
    )
    return _numbered(tuple(draw(st.lists(tree, max_size=4))), iter(range(10_000)))


def _numbered(body: tuple[Any, ...], numbers: Iterator[int]) -> tuple[Any, ...]:
    found: list[Any] = []
    for item in body:
        if isinstance(item, Take):
            found.append(Take(item.nbytes, next(numbers)))
        elif isinstance(item, Scoped):
            found.append(Scoped(_numbered(item.body, numbers)))
        else:
            found.append(Repeat(item.trip, _numbered(item.body, numbers)))
    return tuple(found)


def perform(tl: Any, body: tuple[Any, ...]) -> None:
    for item in body:
        if isinstance(item, Take):
            tl.full((item.nbytes,), item.number % 2, "bool")
        elif isinstance(item, Scoped):
            with tl.scratch_scope():
                perform(tl, item.body)
        else:
            for _ in tl.range(item.trip):
                perform(tl, item.body)


def offsets(program: Program) -> list[int]:
    """Where each allocation lies, in the order in which they are executed."""
    found: list[int] = []

    def run(block: tuple[Any, ...], env: dict[Any, int]) -> None:
        for item in block:
            if isinstance(item, Loop):
                for i in range(expr.evaluate(item.trip, env)):
                    run(item.body, {**env, item.index: i})
            elif isinstance(item, Scope):
                run(item.body, env)
            elif isinstance(item, OpCmd) and item.op == "full":
                found.append(expr.evaluate(program.offset(item.out), env))

    run(program.commands, {})
    return found


@settings(max_examples=150, deadline=None)
@given(trees(), st.sampled_from([128, 192, 256, 512, 4096]))
def test_every_iteration_is_as_a_replay_has_it(
    tree: tuple[Any, ...], scratch_bytes: int
) -> None:
    replay = Replay(scratch_bytes)
    fits = replay.run(tree, [])
    if not fits:
        assert replay.failed is not None
        nbytes, cursor, iterations = replay.failed
        found = overflow(lambda tl: perform(tl, tree), scratch_bytes).overflow
        assert (found.requested_bytes, found.cursor_bytes) == (nbytes, cursor)
        assert [n for _, n in found.iterations] == iterations
        return
    program = record(lambda tl: perform(tl, tree), scratch_bytes)
    assert program.peak_scratch == max(replay.peak, 128)
    assert program.exit_cursor_bytes == replay.cursor
    assert offsets(program) == [cursor for _, cursor in replay.taken]
