"""The map of the scratch against the op_log's own addresses, and by hand."""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue, tcm_map, time_axis
from kbjax.op_log import OpLog

TILE = jax.ShapeDtypeStruct((8, 128), "float32")


@functools.cache
def logged(name: str, **more: int) -> OpLog:
    case = catalogue.make(name, **{**catalogue.kernel_module(name).SMALL, **more})
    return case.call.op_log(*case.inputs.specs)


@pytest.mark.parametrize("name", catalogue.kernel_names())
def test_every_op_is_in_the_buffers_that_it_touches(name: str) -> None:
    """What the log says by address, the map says by rectangle: each op reads and writes
    inside one that is in use then."""
    log = logged(name)
    made = tcm_map.of(log, 0)
    assert made.cut_ps is None and made.dropped_ops == 0
    starts = np.array([b.start_bytes for b in made.buffers])
    ends = np.array([b.end_bytes for b in made.buffers])
    first = np.array([b.start_ps for b in made.buffers])
    last = np.array([b.used_ps for b in made.buffers])
    checked = 0
    for op in made.ops:
        cells = [*op.src_addrs.split(";"), op.dst_addr]
        for at in (int(cell) for cell in cells if cell.isdigit()):
            inside = (starts <= at) & (at < ends)
            then = (first <= op.start_ps) & (op.end_ps <= last)
            assert (inside & then).any(), (op, at)
            checked += 1
    assert checked > 5


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
    """The next iteration's load may begin before this one's scope has ended."""
    made = tcm_map.of(logged("gqa_decode", num_pes=1))
    loads = [b for b in made.buffers if b.op == "load" and "j=" in b.loop]
    cut = [
        (one, two)
        for one, two in itertools.pairwise(loads)
        if one.start_bytes == two.start_bytes and one.end_ps == two.start_ps
    ]
    for one, two in cut:
        assert one.used_ps <= two.start_ps


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
    for band in made.bands:
        turns = band.iterations // band.repeats
        assert turns * band.repeats == band.iterations
        # A repeat later, all is `each_ps` later.
        one = log.filter(loop={"j": 10})
        two = log.filter(loop={"j": 10 + turns})
        if band.loop == "j":
            moved = two[0].start_ns - one[0].start_ns
            assert moved * 1000 == pytest.approx(band.each_ps)
    assert made.highest_bytes == log.peak_scratch


def catalogue_log(**sizes: int) -> OpLog:
    case = catalogue.make("gqa_decode", num_pes=1, **sizes)
    return case.call.op_log(*case.inputs.specs)


def test_unscoped_climbs_and_scoped_stays() -> None:
    case = catalogue.make("flash_unscoped")
    climbing = tcm_map.of(case.call.op_log(*case.inputs.specs))
    (band,) = climbing.bands
    assert band.heights[1][1] > 2 * band.heights[0][1]
    assert all(b.persistent and b.end_ps == climbing.end_ps for b in climbing.buffers)
    flat = tcm_map.of(catalogue_log(context=1 << 20))
    assert all(b.heights[0][1] == b.heights[1][1] for b in flat.bands)


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
