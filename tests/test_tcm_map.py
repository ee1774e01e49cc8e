"""The map of the scratch against the op_log's own addresses, and by hand."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue, report_memory, tcm_map, time_axis
from kbjax.log_view import Op
from kbjax.op_log import OpLog
from kbjax.program import Loop, Program, Scope, When
from kbjax.site import ScopeLine
from kbjax.tcm_map import TcmMap
from tests import discrete_events

TILE = jax.ShapeDtypeStruct((8, 128), "float32")
ALIGNMENT = 16  # bytes, of an allocation


@functools.cache
def logged(name: str, **more: int) -> OpLog:
    case = catalogue.make(name, **{**catalogue.kernel_module(name).SMALL, **more})
    return case.call.op_log(*case.inputs.specs)


@pytest.mark.parametrize("name", catalogue.kernel_names())
def test_rectangles_and_ops_are_of_each_other(name: str) -> None:
    """Both ways. Each byte range that an op touches, by an evaluator of its own, is in
    one rectangle, in use then; each rectangle is as large and lasts as long as what
    touches it says, and is held as long as its scope's ops and its bytes' next writer
    say."""
    log = logged(name)
    made = tcm_map.of(log, 0, folding=False)
    assert made.cut_ps is None and made.dropped_ops == 0 and not made.bands
    runs = list(discrete_events.executed(log.program))
    entered = list(scopes_around(log.program))
    assert len(runs) == len(entered) == len(made.ops)
    touched: list[list[tuple[int, range]]] = [[] for _ in made.buffers]
    for n, (op, run) in enumerate(zip(made.ops, runs, strict=True)):
        spans = [*run.reads, *([run.writes] if run.writes else [])]
        cells = [*op.src_addrs.split(";"), op.dst_addr]
        told = [int(cell) for cell in cells if cell.isdigit()]
        assert told == [span.start for span in spans], op
        for span in spans:
            touched[rectangle(made, op, span)].append((n, span))
    scope_ends: dict[tuple[int, str], int] = {}
    for op, around in zip(made.ops, entered, strict=True):
        for scope in around:
            scope_ends[scope] = max(scope_ends.get(scope, 0), op.end_ps)
    last_ps = max(op.end_ps for op in made.ops)
    for number, (one, touches) in enumerate(zip(made.buffers, touched, strict=True)):
        first, used = made.ops[touches[0][0]], [made.ops[n] for n, _ in touches]
        assert runs[touches[0][0]].writes == touches[0][1], one
        assert (one.start_ps, one.engine) == (first.start_ps, first.engine)
        assert one.loop == first.loop
        assert one.used_ps == max(op.end_ps for op in used)
        sites = dict.fromkeys((op.file, op.line) for op in used)
        assert [(site.file, site.line) for site in one.uses] == list(sites)
        assert min(span.start for _, span in touches) == one.start_bytes
        assert max(span.stop for _, span in touches) <= one.start_bytes + one.nbytes
        tile = log.program.allocations[runs[touches[0][0]].command.writes.root]
        slots = tile.shape[0] if tile.op == "circular_buffer" else 1
        padding = -tile.nbytes % ALIGNMENT
        assert one.nbytes * slots == tile.nbytes and one.op == tile.op
        assert one.end_bytes - one.start_bytes == one.nbytes + (slots == 1) * padding
        around = [key for key in entered[touches[0][0]] if key[1] == one.scope]
        held = scope_ends[around[-1]] if one.scope else last_ps
        taken = [
            two.start_ps
            for two in made.buffers[number + 1 :]
            if two.start_bytes < one.end_bytes and one.start_bytes < two.end_bytes
        ]
        assert one.end_ps == max(one.used_ps, min([held, *taken])), one


def rectangle(made: TcmMap, op: Op, span: range) -> int:
    """Which buffer holds the bytes, in use while the op runs. There is one; an op that
    takes no time may be where one that it does not touch has just ended."""
    *ended, found = (
        n
        for n, one in enumerate(made.buffers)
        if one.start_bytes <= span.start
        and span.stop <= one.end_bytes
        and one.start_ps <= op.start_ps
        and op.end_ps <= one.used_ps
    )
    assert all(made.buffers[n].used_ps == op.start_ps for n in ended)
    return found


def scopes_around(program: Program) -> Iterator[tuple[tuple[int, str], ...]]:
    """Of each command that PE 0 runs, in order: a number for each time that a scope
    around it was entered, with the scope as text, outermost first."""
    entries = itertools.count()

    def run(
        block: Sequence[Any], env: dict[int, int], around: tuple[tuple[int, str], ...]
    ) -> Iterator[tuple[tuple[int, str], ...]]:
        for item in block:
            if isinstance(item, Loop):
                for i in range(discrete_events.value(item.trip, env)):
                    yield from run(item.body, {**env, item.index.uid: i}, around)
            elif isinstance(item, When) and not discrete_events.value(
                item.condition, env
            ):
                continue
            elif isinstance(item, Scope):
                entry = next(entries), str(ScopeLine(item.name, item.site))
                yield from run(item.body, env, (*around, entry))
            else:
                yield around

    yield from run(program.commands, {program.program_id.uid: 0}, ())


@pytest.mark.parametrize("name", catalogue.kernel_names())
def test_no_byte_is_in_two_rectangles(name: str) -> None:
    made = tcm_map.of(logged(name), 0)
    for one, two in itertools.combinations(made.buffers, 2):
        apart = one.end_bytes <= two.start_bytes or two.end_bytes <= one.start_bytes
        before = one.end_ps <= two.start_ps or two.end_ps <= one.start_ps
        assert apart or before, (one, two)
    for buffer in made.buffers:
        assert 0 <= buffer.start_ps <= buffer.used_ps <= buffer.end_ps <= made.end_ps
        assert buffer.persistent == (not buffer.scope)


@pytest.mark.parametrize("name", catalogue.kernel_names())
def test_the_highest_rectangle_is_the_peak(name: str) -> None:
    log = logged(name, num_pes=1) if "num_pes" in catalogue.sizes_of(name) else None
    log = logged(name) if log is None or name.startswith("ring") else log
    made = tcm_map.of(log, 0)
    # A circular buffer's slots are drawn where they are filled.
    assert made.highest_bytes == log.peak_scratch


def test_by_hand() -> None:
    """A persistent tile, and one a scope: in use from load to store, held until the
    scope's last op ends."""

    def kernel(tl, x, out):  # type: ignore[no-untyped-def]
        acc = tl.zeros((8, 128))
        with tl.scratch_scope("inner"):
            tile = tl.load(x)
            tl.copy_to(acc, tile)
            other = tl.load(x)
            tl.store(out, other)
        tl.store(out, acc)

    log = kb.kernel_call(kernel, TILE).op_log(TILE)
    zeros, load, _, again, *_ = log.columns(["start_ps"])["start_ps"]
    ends = log.columns(["end_ps"])["end_ps"].tolist()
    acc, tile, other = tcm_map.of(log).buffers
    assert (acc.start_bytes, acc.end_bytes, acc.nbytes) == (0, 4096, 4096)
    assert (tile.start_bytes, other.start_bytes) == (4096, 8192)
    assert (acc.op, tile.op, acc.tile) == ("zeros", "load", "float32[8,128]")
    assert (acc.start_ps, acc.used_ps, acc.end_ps) == (zeros, ends[5], ends[5])
    assert (tile.start_ps, tile.used_ps, tile.end_ps) == (load, ends[2], ends[4])
    assert (other.start_ps, other.used_ps, other.end_ps) == (again, ends[4], ends[4])
    assert acc.persistent and acc.scope == ""
    assert tile.scope.startswith("'inner' of test_tcm_map.py:")
    assert [site.line - tile.site.line for site in tile.uses] == [0, 1]
    assert acc.engine == "math" and tile.engine == "dma"


def test_bytes_that_are_taken_again_end_a_rectangle() -> None:
    """By hand: the second scope's load starts as soon as the first scope's tile has
    been read; the first scope's last op, on another engine, ends later."""

    def kernel(tl, x, out):  # type: ignore[no-untyped-def]
        acc = tl.zeros((8, 128))
        with tl.scratch_scope("first"):
            tile = tl.load(x)
            tl.copy_to(acc, tile)
            for _ in range(4):
                tl.copy_to(acc, acc * 2.0)
        with tl.scratch_scope("second"):
            tl.store(out, tl.load(x))

    log = kb.kernel_call(kernel, TILE).op_log(TILE)
    ops = list(log.columns(["op_name"])["op_name"])
    starts = log.columns(["start_ps"])["start_ps"].tolist()
    ends = log.columns(["end_ps"])["end_ps"].tolist()
    made = tcm_map.of(log)
    tile, again = (one for one in made.buffers if one.op == "load")
    assert tile.start_bytes == again.start_bytes == 4096
    load = len(ops) - 1 - ops[::-1].index("load")
    scope_end = max(ends[1:load])
    assert starts[load] < scope_end  # or there is nothing to see
    assert tile.used_ps == ends[2]
    assert tile.end_ps == again.start_ps == starts[load]


def test_a_circular_buffer_is_drawn_by_its_fillings() -> None:
    made = tcm_map.of(logged("gqa_decode", num_pes=1, buffers=2))
    slots = [b for b in made.buffers if b.op == "circular_buffer"]
    assert {b.tile.rpartition(", ")[2] for b in slots} == {"slot 0 of 2", "slot 1 of 2"}
    assert len(slots) > 4
    assert all(b.nbytes == b.end_bytes - b.start_bytes for b in slots)


def test_bands_are_the_folds() -> None:
    log = catalogue_log(context=1 << 20)
    made = tcm_map.of(log)
    assert sum(band.ops for band in made.bands) + len(made.ops) == len(log)
    assert made.highest_bytes == log.peak_scratch
    folds = log.folds()
    assert {band.loop for band in made.bands} == {"i", "j"}
    for band, fold in zip(made.bands, folds, strict=True):
        ends = log[fold.first_row], log[fold.stop_row - 1]
        assert (band.first.text, band.last.text) == (ends[0].loop, ends[1].loop)
        rows = (fold.stop_row - fold.first_row) // band.repeats
        assert rows * band.repeats == band.ops
        # A repeat later, all is `each_ps` later.
        for at in range(fold.first_row, fold.stop_row - rows, 1 + band.ops // 50):
            moved = log[at + rows].start_ns - log[at].start_ns
            assert moved * 1000 == pytest.approx(band.each_ps)


def catalogue_log(**sizes: int) -> OpLog:
    case = catalogue.make("gqa_decode", num_pes=1, **sizes)
    return case.call.op_log(*case.inputs.specs)


def test_loops_of_one_name_are_told_apart() -> None:
    """Band and buffers know the iteration of each loop, whatever it is called."""

    def row(tl, x, out):  # type: ignore[no-untyped-def]
        for i in tl.range(40):
            with tl.scratch_scope():
                tl.store(out[i], tl.load(x[i]))

    def kernel(tl, x, out):  # type: ignore[no-untyped-def]
        for i in tl.range(3):
            row(tl, x[i], out[i])

    tiles = jax.ShapeDtypeStruct((3, 40, 8, 128), "float32")
    made = tcm_map.of(kb.kernel_call(kernel, tiles).op_log(tiles))
    band = made.bands[0]
    assert band.first.text == f"i=0;i={band.first.number}"
    assert band.last.text == f"i=0;i={band.last.number}"
    assert band.last.number - band.first.number + 1 == band.iterations > 20
    assert f"i = {band.first.number:,} to " in report_memory.band_label(band)


def test_unscoped_climbs_and_scoped_stays() -> None:
    case = catalogue.make("flash_unscoped")
    climbing = tcm_map.of(case.call.op_log(*case.inputs.specs))
    (band,) = climbing.bands
    assert band.peaks[1].cursor_bytes > 2 * band.peaks[0].cursor_bytes
    assert all(b.persistent and b.end_ps == climbing.end_ps for b in climbing.buffers)
    flat = tcm_map.of(catalogue_log(context=1 << 20))
    for band in flat.bands:
        assert band.peaks[0].cursor_bytes == band.peaks[1].cursor_bytes


def test_the_axis_shortens_and_keeps_the_order() -> None:
    axis = time_axis.of(
        10**9, [(10**7, 9 * 10**8)], [(0, 2 * 10**7), (89 * 10**7, 10**9)]
    )
    times = np.array([0, 10**7, 2 * 10**7, 10**8, 89 * 10**7, 10**9])
    shown = axis.at(times)
    assert (np.diff(shown) > 0).all()
    # What is drawn one by one keeps its length.
    assert shown[2] - shown[0] == pytest.approx(20)
    assert shown[5] - shown[4] == pytest.approx(110)
    assert shown[4] - shown[2] < 100
    assert axis.short.count(True) == 1
    assert time_axis.of(10**9, []).at([0, 10**9]).tolist() == [0, 1000]
    assert time_axis.of(0, []).end_us > 0
