"""Plans against a replay of every iteration, the op_log, and the data phase."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kbjax as kb
from kbjax import catalogue, dtypes
from kbjax.op_log import OpLog
from kbjax.plan import Plan
from tests import footprints
from tests.footprints import IO, Repeat, Replay, Scoped, Take, calling, name_of

NAMES = catalogue.kernel_names()


def planned(tree: tuple[Any, ...], num_pes: int) -> tuple[Plan, list[Replay]]:
    """The plan of a drawn kernel, and the replay of each PE."""
    replays = [Replay(pe) for pe in range(num_pes)]
    assert all(replay.run((*tree, IO)) for replay in replays)
    work = calling(lambda tl: footprints.perform(tl, tree), num_pes=num_pes)
    return work.plan(), replays


def assert_as_replayed(plan: Plan, replays: list[Replay]) -> None:
    assert plan.peak_scratch_bytes == max(replay.peak for replay in replays)
    assert {replay.cursor for replay in replays} == {plan.persistent_bytes}
    held = Counter({(b.tile, name_of(b.scope)): b.count for b in plan.buffers})
    highest = [r for r in replays if r.peak == plan.peak_scratch_bytes]
    if len(replays) == 1:
        assert held == highest[0].peaks[0]
    else:
        assert any(held in replay.peaks for replay in highest)
    assert sum(b.nbytes for b in plan.buffers) == plan.peak_scratch_bytes
    want = footprints.merged(replays)
    assert sorted(row.scope.name for row in plan.scopes) == sorted(want)
    for scope in plan.scopes:
        row = want[scope.scope.name]
        assert scope.entered == row.entered
        assert scope.high_water_bytes == row.high_water
        assert scope.live_at_exit_bytes == row.live_at_exit
        assert scope.allocated_bytes == row.allocated


@settings(max_examples=60)
@given(footprints.trees(), st.sampled_from([1, 3]))
@example((Repeat(4, (Take(16), Repeat(2, (Scoped("s", (Take(64),)),), 0, -1))),), 1)
@example((Repeat(0, (Scoped("s", (Take(64),)),), 1, 0),), 3)
def test_a_plan_is_as_a_replay_has_it(tree: tuple[Any, ...], num_pes: int) -> None:
    assert_as_replayed(*planned(tree, num_pes))


def test_the_replay_by_hand() -> None:
    """What the drawn kernels are compared with is right itself."""
    tree = (
        Take(20),
        Scoped("a", (Take(16), Repeat(3, (Take(1), Scoped("b", (Take(40),)))))),
        Take(16),
    )
    replay = Replay()
    assert replay.run(tree)
    # 32 + 16 + 3 x 16 + 48.
    assert (replay.peak, replay.cursor) == (144, 48)
    held = {("bool[20]", ""): 1, ("bool[16]", "a"): 1, ("bool[1]", "a"): 3}
    assert replay.peaks == [Counter({**held, ("bool[40]", "b"): 1})]
    rows = {name: tuple(vars(row).values()) for name, row in replay.rows.items()}
    assert rows == {"a": (1, 112, 64, 208), "b": (3, 48, 48, 144)}
    tight = Replay(budget_bytes=128)
    assert not tight.run(tree)
    assert tight.failed is not None
    nbytes, cursor, iterations, at, scopes = tight.failed
    assert (nbytes, cursor, iterations) == (40, 96, [2])
    assert at == Counter(held) and scopes == [("a", 64), ("b", 0)]


# --- PEs that do not run alike -------------------------------------------------------


def test_entered_is_that_of_the_pe_that_enters_most() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(tl.program_id() * 2 + 1):
            with tl.scratch_scope("rows"):
                tl.zeros((8,))

    (rows, _) = calling(work, num_pes=3).plan().scopes
    assert (rows.entered, rows.allocated_bytes) == (5, 160)
    assert (rows.high_water_bytes, rows.live_at_exit_bytes) == (32, 32)


def test_the_work_of_pes_is_not_mixed() -> None:
    """PE 0 enters by the first loop, PE 2 twice by the second; 3 is no PE's count."""

    def work(tl: Any) -> None:
        pe = tl.program_id()
        for bound, size in ((1 - pe, 4), (pe, 8)):
            for _ in tl.range(bound):
                with tl.scratch_scope("rows"):
                    tl.zeros((size,))

    (rows, _) = calling(work, num_pes=3).plan().scopes
    assert (rows.entered, rows.allocated_bytes) == (2, 64)


# --- the op_log ----------------------------------------------------------------------


def kernel_without_a_scope(tl: Any, x: Any, o: Any) -> None:
    t = tl.load(x)
    for i in tl.range(3):
        tl.exp(tl.load(x[tl.ds(i, 5), :]) + t[tl.ds(0, 5)])
    tl.store(o, tl.softmax(t))


def kernel_with_nested_scopes(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((8, 5))
    for i in tl.range(4):
        with tl.scratch_scope("outer"):
            t = tl.load(x) * 1.5
            for j in tl.range(i):
                with tl.scratch_scope("inner"):
                    tl.copy_to(t, tl.exp(t) + j)
            tl.copy_to(total, total + t)
    tl.store(o, total)


def kernel_with_pes(tl: Any, x: Any, o: Any) -> None:
    total = tl.load(x)
    for i in tl.range(tl.program_id() + 1):
        with tl.scratch_scope("tile"):
            tl.copy_to(total, tl.sqrt(total * total) + i)
    tl.store(o, total)


ROWS = (8, 5)  # 160 bytes; 5 rows of it are 100, padded to 112


def own(kernel: Callable[..., None], num_pes: int = 1) -> tuple[Any, tuple[Any, ...]]:
    lead = (num_pes,) if num_pes > 1 else ()
    rng = np.random.default_rng(1)
    x = rng.standard_normal((*lead, *ROWS)).astype(np.float32)
    out = kb.kernel_call(kernel, _spec(ROWS), num_pes=num_pes)
    return out, (x,)


def _spec(shape: tuple[int, ...]) -> Any:
    return np.empty(shape, np.float32)


def shipped(name: str) -> tuple[Any, tuple[Any, ...]]:
    case = catalogue.make(name, **catalogue.kernel_module(name).SMALL)
    return case.call, case.arrays


MADE = {
    "straight": lambda: own(kernel_without_a_scope),
    "nested": lambda: own(kernel_with_nested_scopes),
    "pes": lambda: own(kernel_with_pes, 3),
    **{name: lambda name=name: shipped(name) for name in NAMES},
}


def output_bytes(log: OpLog) -> np.ndarray:
    """Of each row the bytes of a fresh slice, padding included; 0 for rows that take
    none."""
    columns = log.columns()
    found = []
    for op, shape, dtype in zip(
        columns["op_name"], columns["shape"], columns["dtype"], strict=True
    ):
        count = math.prod(int(size) for size in str(shape).split("x") if size)
        nbytes = count * dtypes.of(str(dtype)).nbytes
        found.append(0 if op in ("store", "copy", "send") else -(-nbytes // 16) * 16)
    return np.array(found)


@functools.cache
def made(which: str) -> tuple[Any, tuple[Any, ...], Plan, OpLog]:
    """A call, its arrays, plan and op_log, which tests share."""
    call, arrays = MADE[which]()
    return call, arrays, call.plan(*arrays), call.op_log(*arrays)


@pytest.mark.parametrize("which", MADE)
def test_a_plan_agrees_with_the_op_log(which: str) -> None:
    """The peak is that of the record, the log's cursors and its addresses; what scopes
    allocate is what the rows inside them write."""
    call, arrays, plan, log = made(which)
    peak = plan.peak_scratch_bytes
    program = call.record(*arrays)
    assert peak == log.peak_scratch == program.peak_scratch
    # Tiles of tl.empty take bytes, and have no row.
    unwritten = sum(
        made.aligned_bytes
        for made in program.allocations.values()
        if made.op == "empty" and not made.scope_depth
    )
    columns, sizes = log.columns(), output_bytes(log)
    assert peak == columns["cursor_bytes"].max()
    writes = sizes > 0
    ends = columns["dst_addr"][writes].astype(np.int64) + sizes[writes]
    assert peak == ends.max()
    for pe in range(int(columns["pe"].max()) + 1):
        here = columns["pe"] == pe
        outside = sizes[here & (columns["scope_depth"] == 0)].sum()
        assert outside + unwritten == plan.persistent_bytes
    assert sum(b.nbytes for b in plan.buffers) == peak


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("nested", ["outer", "inner"]),
        ("pes", ["tile"]),
        ("flash_prefill", ["queries", "tiles", "keys"]),
        ("straight", []),
    ],
)
def test_scopes_allocate_what_their_rows_write(which: str, names: list[str]) -> None:
    """The scope at each depth, on the PE that does most."""
    _, _, plan, log = made(which)
    columns, sizes = log.columns(), output_bytes(log)
    assert [row.scope.name for row in plan.scopes] == names
    for depth, scope in enumerate(plan.scopes, start=1):
        inside = columns["scope_depth"] >= depth
        by_pe = np.bincount(columns["pe"][inside], weights=sizes[inside])
        assert by_pe.max() == scope.allocated_bytes


# --- the data phase ------------------------------------------------------------------


@pytest.mark.parametrize("which", ["straight", "nested", "pes", "flash_unscoped"])
def test_a_plan_agrees_with_the_bytes(which: str) -> None:
    """Of exact replay; tests/test_kernels.py has the other shipped kernels, which it
    runs in exact anyway."""
    call, arrays, plan, _ = made(which)
    footprints.assert_plan_is_of_the_bytes(
        plan, call.run(*arrays, fidelity="exact").tcm
    )
