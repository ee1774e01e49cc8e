"""Scopes, loops, aliases and copies in random kernels: what keeps the scope contract
records, what breaks it is refused at its line, and addresses are as a replay has them.

A failing test prints the kernel; `memory_kernel(seed, mistaken, lines)` makes it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from kbjax.program import Program
from tests import reference
from tests.helpers import assert_same_bits
from tests.memory_programs import Drawn, memory_kernel

RECORDED, REFUSED, REPLAYED, CHUNK = 400, 150, 60, 50
SHORT = 32  # lines of those that also run
# Unrolled and unscoped kernels keep every tile of every iteration.
_TCM = dataclasses.replace(kb.Hardware().pe_tcm, kernel_scratch_mb=4)
ROOMY = dataclasses.replace(kb.Hardware(), pe_tcm=_TCM)

REFUSALS: dict[str, type[kb.KbjaxError]] = {
    "scope": kb.UseAfterScopeError,
    "loop": kb.UseAfterScopeError,
    "unwritten": kb.UninitializedReadError,
}


def made(drawn: Drawn, checks: Any = "error", **form: bool) -> kb.KernelCall:
    """The kernel in one of its forms, `unroll` and `scoped`."""
    return kb.kernel_call(
        functools.partial(drawn.kernel, **form),
        drawn.out_shapes,
        num_pes=drawn.num_pes,
        input_output_aliases=drawn.aliases,
        hardware=ROOMY if form else kb.Hardware(),
        checks=checks,
    )


@contextlib.contextmanager
def shown(drawn: Drawn) -> Iterator[None]:
    """Print the kernel where the block fails."""
    try:
        yield
    except BaseException:
        print(drawn.name, drawn.mistake or "")
        for number, line in enumerate(drawn.source.splitlines(), 1):
            print(f"{number:4} {line}")
        raise


def chunks(total: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "seeds", [range(n, n + CHUNK) for n in range(0, total, CHUNK)], ids=str
    )


# --- recorded only -------------------------------------------------------------------


@chunks(RECORDED)
def test_no_false_alarm(seeds: range) -> None:
    """Kernels that keep the contract record, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in seeds:
            drawn = memory_kernel(seed)
            with shown(drawn):
                made(drawn).record(*drawn.arrays)


@chunks(REFUSED)
def test_each_mistake_is_refused_at_its_line(seeds: range) -> None:
    for seed in seeds:
        drawn = memory_kernel(seed, mistaken=True)
        mistake = drawn.mistake
        assert mistake is not None
        with shown(drawn):
            with pytest.raises(kb.KbjaxError) as caught:
                made(drawn).record(*drawn.arrays)
            assert type(caught.value) is REFUSALS[mistake.kind], caught.value
            site = caught.value.site
            assert site is not None
            assert (site.file, site.line) == (drawn.name, mistake.line)


def test_the_same_seed_gives_the_same_kernel() -> None:
    one, other = memory_kernel(3), memory_kernel(3)
    assert one.source == other.source != memory_kernel(4).source
    assert_same_bits(one.arrays, other.arrays)


def test_every_kind_of_mistake_is_drawn() -> None:
    for lines in (52, SHORT):
        drawn = [memory_kernel(seed, True, lines).mistake for seed in range(80)]
        assert {mistake.kind for mistake in drawn if mistake} == set(REFUSALS)


# --- a replay of every iteration -----------------------------------------------------


@dataclass
class Lives:
    """Which allocations are alive, command by command, and the highest byte.

    Attributes:
      frames: an open block each, the ranges that die with it by allocation; the number
        of loops and scopes around a block is its place.
    """

    program: Program
    env: dict[int, int]
    loops: list[int] = field(default_factory=list)
    frames: list[dict[int, tuple[int, int]]] = field(default_factory=lambda: [{}])
    peak: int = 0
    counted: set[int] = field(default_factory=set)

    def block(self, block: Any) -> None:
        for item in block:
            if not hasattr(item, "body"):
                for ref in (*item.reads, item.writes):
                    if ref is not None:
                        self.touch(ref.root)
            elif not hasattr(item, "index"):
                self.inside(item.body)
            else:
                self.loops.append(item.index.uid)
                for i in range(reference.evaluate(item.index.trip, self.env)):
                    self.env[item.index.uid] = i
                    self.inside(item.body)
                    self.measure()
                self.loops.pop()

    def inside(self, body: Any) -> None:
        self.frames.append({})
        self.block(body)
        self.frames.pop()

    def span(self, made: Any) -> tuple[int, int]:
        loops = [loop.uid for loop in made.loops]
        start = made.cursor_bytes + reference.grown(self.program, loops, self.env)
        return start, start + made.aligned_bytes

    def touch(self, uid: int) -> None:
        """A command uses the allocation; the first time, it has nothing else's bytes,
        and it dies with the block that its depth says."""
        if any(uid in frame for frame in self.frames):
            return
        made = self.program.allocations[uid]
        start, end = self.span(made)
        for frame in self.frames:
            for other, (low, high) in frame.items():
                assert end <= low or high <= start, (
                    f"%{uid} of {made.site} overlaps %{other} of "
                    f"{self.program.allocations[other].site} at {self.env}"
                )
        owner = len(made.loops) + made.scope_depth
        assert owner < len(self.frames), f"%{uid} is used outside its block"
        self.frames[owner][uid] = start, end

    def measure(self) -> None:
        """What this iteration (or the kernel) takes, `empty` tiles that no command uses
        among it."""
        for uid, made in self.program.allocations.items():
            if [loop.uid for loop in made.loops] == self.loops:
                self.peak = max(self.peak, self.span(made)[1])
                self.counted.add(uid)


def test_no_two_live_tiles_overlap_and_the_peak_is_exact() -> None:
    for seed in range(REPLAYED):
        drawn = memory_kernel(seed)
        with shown(drawn):
            program = made(drawn).record(*drawn.arrays)
            lives = Lives(program, {program.program_id.uid: 0})
            lives.block(program.commands)
            lives.measure()
            run = {loop.uid for loop in program.growth_bytes}
            assert lives.counted == {  # all but those of loops that never run
                uid
                for uid, one in program.allocations.items()
                if all(loop.uid in run for loop in one.loops)
            }
            assert lives.peak == program.peak_scratch


# --- parts of what was just written --------------------------------------------------


def part_of_a_view(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(3):
        with tl.scratch_scope():
            t = tl.empty((4,))
            view = t[tl.ds(i, 2)]
            tl.copy_to(view, tl.load(x[tl.ds(i, 2)]))
            tl.store(o[tl.ds(i, 1)], view[tl.ds(1, 1)])


def views_side_by_side(tl: Any, x: Any, o: Any) -> None:
    for i in tl.range(3):
        with tl.scratch_scope():
            t = tl.empty((4,))
            tl.copy_to(t[tl.ds(i, 1)], tl.load(x[tl.ds(i, 1)]))
            tl.copy_to(t[tl.ds(i + 1, 1)], tl.load(x[tl.ds(i, 1)]))
            tl.store(o[tl.ds(i, 2)], t[tl.ds(i, 2)])


def every_other_row(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((4,))
    for i in tl.range(2):
        tl.copy_to(t[tl.ds(i * 2, 1)], tl.load(x[tl.ds(i, 1)]))
    for i in tl.range(2):
        tl.store(o[tl.ds(i, 1)], t[tl.ds(i * 2, 1)])


def by_an_inner_loop(tl: Any, x: Any, o: Any) -> None:
    t = tl.empty((4,))
    for i in tl.range(2):
        for j in tl.range(2):
            tl.copy_to(t[tl.ds(i * 2 + j, 1)], tl.load(x[tl.ds(j, 1)]))
        tl.store(o[tl.ds(i * 2, 2)], t[tl.ds(i * 2, 2)])


@pytest.mark.parametrize(
    "kernel", [part_of_a_view, views_side_by_side, every_other_row, by_an_inner_loop]
)
def test_what_each_iteration_has_written_may_be_read(
    kernel: Callable[..., None],
) -> None:
    """A legal kernel records, also where a read is no view that was written."""
    x = np.arange(4, dtype=np.float32)
    kb.kernel_call(kernel, jax.ShapeDtypeStruct((4,), "float32")).record(x)


# --- the cursor ----------------------------------------------------------------------


class Leave(Exception):
    """Caught `levels` guards further out."""

    def __init__(self, levels: int) -> None:
        self.levels = levels


@dataclass(frozen=True)
class Take:
    nbytes: int


@dataclass(frozen=True)
class Raise:
    levels: int


@dataclass(frozen=True)
class Overflow:
    """Ask for more than there is; `tl` raises."""


@dataclass(frozen=True)
class Node:
    kind: str  # "scope", "guard" or "loop"
    body: tuple[Any, ...]


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bodies = st.lists(inner, min_size=1, max_size=4).map(tuple)
    return st.builds(Node, st.sampled_from(["scope", "scope", "guard", "loop"]), bodies)


TREES = st.lists(
    st.recursive(
        st.builds(Take, st.integers(1, 70))
        | st.builds(Take, st.integers(1, 70))
        | st.builds(Raise, st.integers(0, 3))
        | st.just(Overflow()),
        nodes,
        max_leaves=14,
    ),
    min_size=1,
    max_size=4,
)
TRIP = 2


@dataclass
class Walk:
    """Executes a tree on a live `tl`, beside the cursor as it must be."""

    tl: Any
    cursor: int = 0

    def take(self, nbytes: int) -> None:
        handle = self.tl.full((nbytes,), 1, "bool")
        assert handle.allocation.cursor_bytes == self.cursor
        self.cursor += (nbytes + 15) & ~15

    def body(self, body: Any) -> None:
        for item in body:
            self.item(item)

    def item(self, item: Any) -> None:
        if isinstance(item, Take):
            self.take(item.nbytes)
        elif isinstance(item, Raise):
            raise Leave(item.levels)
        elif isinstance(item, Overflow):
            self.tl.empty((1 << 21,), "bool")
        elif item.kind == "scope":
            before = self.cursor
            try:
                with self.tl.scratch_scope():
                    self.body(item.body)
            finally:
                self.cursor = before
                self.take(1)  # lies where the scope began, also under way outwards
        elif item.kind == "guard":
            self.guarded(item.body)
        else:
            before = self.cursor
            for _ in self.tl.range(TRIP):
                self.cursor = before  # addresses are those of iteration 0
                with contextlib.suppress(Leave, kb.ScratchOverflowError):
                    self.body(item.body)
            self.cursor = before + TRIP * (self.cursor - before)

    def guarded(self, body: Any) -> None:
        try:
            self.body(body)
        except Leave as left:
            if left.levels:
                raise Leave(left.levels - 1) from None
        except kb.ScratchOverflowError:
            pass


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_scope_gives_back_what_it_took_however_it_ends(tree: list[Any]) -> None:
    end: list[int] = []

    def kernel(tl: Any, x: Any, o: Any) -> None:
        walk = Walk(tl)
        with contextlib.suppress(Leave, kb.ScratchOverflowError):
            walk.body(tree)
        walk.take(1)
        end.append(walk.cursor)
        tl.store(o, tl.load(x))

    out = jax.ShapeDtypeStruct((4,), "float32")
    program = kb.kernel_call(kernel, out).record(np.zeros(4, np.float32))
    assert program.exit_cursor_bytes == end[0] + 16
