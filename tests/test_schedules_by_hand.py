"""Schedules of tiny kernels, worked out by hand in each test's docstring.

Unless a test says otherwise, on `ROUND`, a 4x4 float32 tile is 64 bytes, 16 elements,
and takes

    load, store  36 ns + 64 B / (1 GB/s)                     = 100 ns
    dot          29 ns + 1 pass of a 4x4x4 array at 1 GHz    =  30 ns
    exp           9 ns + 1 vector of 16 x 11 cycles at 1 GHz =  20 ns
    other math    9 ns + 1 vector of 16 x  1 cycle  at 1 GHz =  10 ns
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax.hardware import PeDma, PeGemm, PeMath

ROUND = kb.Hardware(
    pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=36),
    pe_gemm=PeGemm(
        rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=29, rate={"float32": 1}
    ),
    pe_math=PeMath(lanes=16, clock_ghz=1, overhead_ns=9, cycles={"exp": 11}),
)
SLOW_GEMM = dataclasses.replace(  # a dot takes 150 ns
    ROUND,
    pe_gemm=PeGemm(
        rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=149, rate={"float32": 1}
    ),
)


def tensor(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def log_of(
    kernel: Callable[..., None],
    *inputs: Any,
    out: Any = None,
    hardware: kb.Hardware = ROUND,
    **options: Any,
) -> Any:
    call = kb.kernel_call(kernel, out or tensor(4, 4), hardware=hardware, **options)
    return call.op_log(*inputs)


def rows(log: Any) -> list[tuple[str, int, int]]:
    """(op, start, end) of every row, in issue order, in whole ns."""
    columns = log.columns()
    times = (columns[name] for name in ("start_ns", "end_ns"))
    assert all((column == np.rint(column)).all() for column in times)
    names = ("op_name", "start_ns", "end_ns")
    found = zip(*(columns[name].tolist() for name in names), strict=True)
    return [(op, int(start), int(end)) for op, start, end in found]


# --- engines -------------------------------------------------------------------------


def test_load_dot_store() -> None:
    """Each needs the one before.

    load 0 + 100 = 100; dot 100 + 30 = 130; store 130 + 100 = 230.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        tl.store(o, tl.dot(t, t))

    log = log_of(kernel, tensor(4, 4))
    assert rows(log) == [("load", 0, 100), ("dot", 100, 130), ("store", 130, 230)]
    assert log.total_ns == 230


def test_two_loads_share_the_dma_engine() -> None:
    """Neither needs the other, but there is one engine: 0 to 100, 100 to 200."""

    def kernel(tl: Any, x: Any, y: Any, o: Any) -> None:
        a, b = tl.load(x), tl.load(y)
        tl.store(o, a)
        del b

    assert rows(log_of(kernel, tensor(4, 4), tensor(4, 4))) == [
        ("load", 0, 100),
        ("load", 100, 200),
        ("store", 200, 300),
    ]


def test_dma_beside_math_beside_gemm() -> None:
    """While y is loaded (100 to 200), x goes through exp and dot.

    zeros needs nothing: 0 to 10. exp(a): 100 to 120. dot: 120 to 150. add of y and
    zeros: y is there at 200, to 210. add of that and the dot: 210 to 220. store: 320.
    """

    def kernel(tl: Any, x: Any, y: Any, o: Any) -> None:
        a = tl.load(x)
        b = tl.load(y)
        z = tl.zeros((4, 4))
        e = tl.exp(a)
        d = tl.dot(e, a)
        tl.store(o, (b + z) + d)

    assert rows(log_of(kernel, tensor(4, 4), tensor(4, 4))) == [
        ("load", 0, 100),
        ("load", 100, 200),
        ("zeros", 0, 10),
        ("exp", 100, 120),
        ("dot", 120, 150),
        ("add", 200, 210),
        ("add", 210, 220),
        ("store", 220, 320),
    ]


def test_an_engine_keeps_the_order_of_issue() -> None:
    """zeros is ready at 0 but was issued after exp, which waits for the load.

    exp 100 to 120; zeros 120 to 130; the store needs exp only: 120 to 220.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        e = tl.exp(tl.load(x))
        tl.zeros((4, 4))
        tl.store(o, e)

    assert rows(log_of(kernel, tensor(4, 4))) == [
        ("load", 0, 100),
        ("exp", 100, 120),
        ("zeros", 120, 130),
        ("store", 120, 220),
    ]


# --- bytes that are used again -------------------------------------------------------


def test_a_recycled_buffer_waits_for_its_reader() -> None:
    """Each iteration's tile takes the bytes of the one before, which its dot reads.

    load 0 to 100, dot to 130; so load 130 to 230, dot to 260; load to 360, dot to 390:
    130 ns an iteration. The store is of a tile made at the start: engine free at 360.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        z = tl.zeros((4, 4))
        for i in tl.range(3):
            with tl.scratch_scope():
                t = tl.load(x[i])
                tl.dot(t, t)
        tl.store(o, z)

    assert rows(log_of(kernel, tensor(3, 4, 4))) == [
        ("zeros", 0, 10),
        ("load", 0, 100),
        ("dot", 100, 130),
        ("load", 130, 230),
        ("dot", 230, 260),
        ("load", 260, 360),
        ("dot", 360, 390),
        ("store", 360, 460),
    ]


def test_fresh_buffers_do_not_wait() -> None:
    """No scope: an iteration's tile has bytes of its own.

    Loads back to back, 0, 100, 200; each dot when its tile is there: 100 to 130, 200 to
    230, 300 to 330. Price: 128 B of scratch an iteration.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        z = tl.zeros((4, 4))
        for i in tl.range(3):
            t = tl.load(x[i])
            tl.dot(t, t)
        tl.store(o, z)

    log = log_of(kernel, tensor(3, 4, 4))
    assert rows(log) == [
        ("zeros", 0, 10),
        ("load", 0, 100),
        ("dot", 100, 130),
        ("load", 100, 200),
        ("dot", 200, 230),
        ("load", 200, 300),
        ("dot", 300, 330),
        ("store", 300, 400),
    ]
    assert log.peak_scratch == 64 + 3 * 128


def test_a_double_buffer_does_not_wait() -> None:
    """A load always takes a fresh slice, so that a double buffer is one scope around
    two tiles: the cursor stands at two places in turn.

    In iteration 1, the first tile's bytes were read last by the first dot, which ended
    at 130, long before the DMA engine is free at 200; the second tile's by a dot that
    ended at 230, before 300. Loads: 0, 100, 200, 300. Dots: 100, 200, 300, 400.
    The same four tiles in one buffer end at 4 x 130 = 520 instead of 430.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        z = tl.zeros((4, 4))
        for i in tl.range(2):
            with tl.scratch_scope():
                a = tl.load(x[2 * i])
                tl.dot(a, a)
                b = tl.load(x[2 * i + 1])
                tl.dot(b, b)
        tl.store(o, z)

    log = log_of(kernel, tensor(4, 4, 4))
    assert rows(log)[1:-1] == [
        ("load", 0, 100),
        ("dot", 100, 130),
        ("load", 100, 200),
        ("dot", 200, 230),
        ("load", 200, 300),
        ("dot", 300, 330),
        ("load", 300, 400),
        ("dot", 400, 430),
    ]
    assert log.peak_scratch == 64 + 4 * 64


def _staged(tl: Any, x: Any, o: Any, *, tiles: int) -> None:
    """Each tile is copied to one of `tiles` persistent ones before the dot reads it."""
    ring = tl.zeros((4 * tiles, 4))
    for i in tl.range(3):
        half = ring[tl.ds((i % tiles) * 4, 4)]
        with tl.scratch_scope():
            tl.copy_to(half, tl.load(x[i]))
            tl.dot(half, half)
    tl.store(o, ring[tl.ds(0, 4)])


def test_one_persistent_tile_waits_for_its_reader() -> None:
    """A dot takes 150 ns here.

    load 0 to 100; copy to 110; dot to 260. The next load takes the bytes that the copy
    read: 110 to 210; its copy writes what the dot reads: 260 to 270; dot to 420. Then
    load 270 to 370, copy 420 to 430, dot to 580. The store reads the copy: 430 to 530.
    """
    log = log_of(
        lambda tl, x, o: _staged(tl, x, o, tiles=1),
        tensor(3, 4, 4),
        hardware=SLOW_GEMM,
    )
    assert rows(log) == [
        ("zeros", 0, 10),
        ("load", 0, 100),
        ("copy", 100, 110),
        ("dot", 110, 260),
        ("load", 110, 210),
        ("copy", 260, 270),
        ("dot", 270, 420),
        ("load", 270, 370),
        ("copy", 420, 430),
        ("dot", 430, 580),
        ("store", 430, 530),
    ]


def test_two_persistent_tiles_in_turn_do_not() -> None:
    """The same with two tiles, by i % 2; zeros is of 32 elements: 9 + 2 = 11 ns.

    The second copy writes the other tile: 210 to 220. Its dot waits for the engine
    only: 260 to 410. load 220 to 320; copy into the first tile, whose dot ended at 260:
    320 to 330; dot 410 to 560, 20 ns sooner. The GEMM engine is never idle after 110.
    """
    log = log_of(
        lambda tl, x, o: _staged(tl, x, o, tiles=2),
        tensor(3, 4, 4),
        hardware=SLOW_GEMM,
    )
    assert rows(log) == [
        ("zeros", 0, 11),
        ("load", 0, 100),
        ("copy", 100, 110),
        ("dot", 110, 260),
        ("load", 110, 210),
        ("copy", 210, 220),
        ("dot", 260, 410),
        ("load", 220, 320),
        ("copy", 320, 330),
        ("dot", 410, 560),
        ("store", 330, 430),
    ]


def test_a_write_waits_for_a_read() -> None:
    """The store reads a from 100 to 200; the copy over a is ready at 10: 200 to 210."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)
        b = tl.zeros((4, 4))
        tl.store(o, a)
        tl.copy_to(a, b)

    assert rows(log_of(kernel, tensor(4, 4))) == [
        ("load", 0, 100),
        ("zeros", 0, 10),
        ("store", 100, 200),
        ("copy", 200, 210),
    ]


def test_a_write_waits_for_a_read_of_its_own_bytes_only() -> None:
    """Halves of 2 rows: 32 B, 36 + 32 = 68 ns; 8 elements, one vector, 10 ns.

    zeros 0 to 10; the store reads the low half from 10 to 78; full 10 to 20; the copy
    into the high half 20 to 30; the copy into the low half 78 to 88; the store of the
    high half, which the second copy only reads: DMA free at 78, to 146.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((4, 4))
        low, high = t[tl.ds(0, 2)], t[tl.ds(2, 2)]
        tl.store(o[0:2], low)
        tl.copy_to(high, tl.full((2, 4), 1.0))
        tl.copy_to(low, high)
        tl.store(o[2:4], high)

    assert rows(log_of(kernel, tensor(4, 4))) == [
        ("zeros", 0, 10),
        ("store", 10, 78),
        ("full", 10, 20),
        ("copy", 20, 30),
        ("copy", 78, 88),
        ("store", 78, 146),
    ]


def test_a_write_waits_for_a_write() -> None:
    """Nobody reads the load, but it still writes the bytes that zeros will: 100 to 110;
    store 110 to 210."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            tl.load(x)
        tl.store(o, tl.zeros((4, 4)))

    assert rows(log_of(kernel, tensor(4, 4))) == [
        ("load", 0, 100),
        ("zeros", 100, 110),
        ("store", 110, 210),
    ]


def test_recycled_bytes_of_another_shape() -> None:
    """The loop leaves two tiles at bytes 0 to 128; in their place comes one row of 4
    at bytes 0 to 16 and a tile at 16 to 80, over both.

    Loads 0 to 100, 100 to 200. The row lies under the first: 100 to 110. The tile
    waits for both: 200 to 210. store 210 to 310.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            for i in tl.range(2):
                tl.load(x[i])
        tl.zeros((1, 4))
        tl.store(o, tl.zeros((4, 4)))

    assert rows(log_of(kernel, tensor(2, 4, 4))) == [
        ("load", 0, 100),
        ("load", 100, 200),
        ("zeros", 100, 110),
        ("zeros", 200, 210),
        ("store", 210, 310),
    ]


def test_the_first_part_of_a_tile_is_ready_last() -> None:
    """zeros 0 to 11; full 11 to 21 and its copy into the high half 21 to 31; then a
    load, 0 to 100, and a copy of it into the low half, 100 to 110. The store of both
    halves waits for the low one: 110 to 274."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((8, 4))
        tl.copy_to(t[tl.ds(4, 4)], tl.full((4, 4), 1.0))
        tl.copy_to(t[tl.ds(0, 4)], tl.load(x))
        tl.store(o, t)

    assert rows(log_of(kernel, tensor(4, 4), out=tensor(8, 4))) == [
        ("zeros", 0, 11),
        ("full", 11, 21),
        ("copy", 21, 31),
        ("load", 0, 100),
        ("copy", 100, 110),
        ("store", 110, 274),
    ]


def test_a_quick_reader_does_not_hide_a_slow_one() -> None:
    """A store reads a from 100 to 200, a dot issued after it from 100 to 130. The copy
    over a waits for the slower one, though it read first: 200 to 210."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)
        z = tl.zeros((4, 4))
        tl.store(o, a)
        tl.dot(a, a)
        tl.copy_to(a, z)

    assert rows(log_of(kernel, tensor(4, 4))) == [
        ("load", 0, 100),
        ("zeros", 0, 10),
        ("store", 100, 200),
        ("dot", 100, 130),
        ("copy", 200, 210),
    ]


def test_tiles_are_tracked_by_the_byte() -> None:
    """An alias of one row of an 8x1 tile is 4 bytes of 32.

    zeros (8 elements) 0 to 10; the store reads row 0, 4 B, 10 to 50; the copy of row 2
    into row 1 does not wait: 10 to 20; into row 0 it does: 50 to 60.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.zeros((8, 1))
        row = [t[tl.ds(n, 1)] for n in range(3)]
        tl.store(o, row[0])
        tl.copy_to(row[1], row[2])
        tl.copy_to(row[0], row[2])

    assert rows(log_of(kernel, tensor(4, 4), out=tensor(1, 1))) == [
        ("zeros", 0, 10),
        ("store", 10, 50),
        ("copy", 10, 20),
        ("copy", 50, 60),
    ]


# --- costs ---------------------------------------------------------------------------


def test_a_tail_moves_the_bytes_inside() -> None:
    """6 rows of 16 B in views of 4 rows: 4, 2 and 0 rows lie inside.

    36 + 64 = 100 ns, 36 + 32 = 68 ns, 36 + 0 = 36 ns; a store waits for its load, the
    next load for the engine. 0, 100, 200, 268, 336, 372, 408.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3):
            t = tl.load(x[tl.ds(4 * i, 4)], other=0.0)
            tl.store(o[tl.ds(4 * i, 4)], t, boundary_check=True)

    log = log_of(kernel, tensor(6, 4), out=tensor(6, 4))
    assert rows(log) == [
        ("load", 0, 100),
        ("store", 100, 200),
        ("load", 200, 268),
        ("store", 268, 336),
        ("load", 336, 372),
        ("store", 372, 408),
    ]
    assert log.columns()["nbytes"].tolist() == [64, 64, 32, 32, 0, 0]


def test_a_tail_at_both_ends() -> None:
    """Views of 4 rows from -2, 0 and 2 of a 4x4 tensor: 2, 4 and 2 rows lie inside.

    68, 100, 68 ns: 0, 68, 168, 236. The store is of a tile made at the start.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        z = tl.zeros((4, 4))
        for i in tl.range(3):
            tl.load(x[tl.ds(2 * i - 2, 4)], other=0.0)
        tl.store(o, z)

    assert rows(log_of(kernel, tensor(4, 4))) == [
        ("zeros", 0, 10),
        ("load", 0, 68),
        ("load", 68, 168),
        ("load", 168, 236),
        ("store", 236, 336),
    ]


def test_a_tail_of_a_slice() -> None:
    """Rows 2 to 6 exist for views of x[2:6]. From -2, 0 and 2 of it: 2, 4, 2 rows.

    The times of `test_a_tail_at_both_ends`, though the tensor itself has 8 rows.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        z = tl.zeros((4, 4))
        middle = x[2:6]
        for i in tl.range(3):
            tl.load(middle[tl.ds(2 * i - 2, 4)], other=0.0)
        tl.store(o, z)

    assert rows(log_of(kernel, tensor(8, 4))) == [
        ("zeros", 0, 10),
        ("load", 0, 68),
        ("load", 68, 168),
        ("load", 168, 236),
        ("store", 236, 336),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_copy_is_timed_by_elements_on_the_vector_engine(dtype: str) -> None:
    """ADR-0063: `pe_math` on prod(shape) elements, never DMA.

    5x7 = 35 elements are 3 vectors of 16: 9 + 3 = 12 ns, whatever the dtype. The load
    of 140 B ends at 176, of 70 B at 106.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        a, b = tl.load(x), tl.empty((5, 7), dtype)
        tl.copy_to(b, a)
        tl.store(o, b)

    spec = tensor(5, 7, dtype=dtype)
    log = log_of(kernel, spec, out=spec)
    loaded = 36 + 35 * (4 if dtype == "float32" else 2)
    assert rows(log)[1] == ("copy", loaded, loaded + 12)
    assert log.columns()["op_kind"].tolist() == ["dma", "math", "dma"]
    assert ROUND.pe_math.compute_ns(35, "copy") == 12


def test_products_and_reductions() -> None:
    """dot of 8x12 and 12x8: ceil(8/4) ceil(8/4) ceil(12/4) = 12 passes, 29 + 12 ns.

    load 36 + 384 = 420 ns. trans of 96 elements: 9 + 6 = 15, to 435. dot 41, to 476. A
    sum counts what it takes: 64 elements, 9 + 4 = 13, to 489. Its 8 elements are
    broadcast to 8x8: 13 ns, to 502. store of 256 B: 36 + 256 = 292, to 794.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)
        d = tl.dot(a, tl.trans(a))
        s = tl.sum(d, axis=1, keepdims=True)
        tl.store(o, tl.broadcast_to(s, (8, 8)))

    assert rows(log_of(kernel, tensor(8, 12), out=tensor(8, 8))) == [
        ("load", 0, 420),
        ("trans", 420, 435),
        ("dot", 435, 476),
        ("sum", 476, 489),
        ("broadcast_to", 489, 502),
        ("store", 502, 794),
    ]


def test_fractions_of_a_nanosecond() -> None:
    """64 B at 3 GB/s: 21.333... + 0.5 ns = 21,833.33 ps, rounded up to 21,834.

    A math op: overhead 0.0004 ns rounds up to 1 ps; a cycle at 7 GHz is 142.86 ps,
    rounded up to 143: 144 ps.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + 1.0)

    hardware = kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=3.0, latency_ns=0.5),
        pe_math=PeMath(lanes=16, clock_ghz=7.0, overhead_ns=0.0004, cycles={}),
    )
    log = log_of(kernel, tensor(4, 4), hardware=hardware)
    ends = log.columns()["end_ns"].tolist()
    assert ends == [21.834, 21.978, 43.812]


# --- control and PEs -----------------------------------------------------------------


def test_a_loop_of_three() -> None:
    """exp reads the loaded tile, so that the next load waits for it: 120 ns a turn.

    load 0 to 100, exp to 120, copy to 130; load 120 to 220, exp to 240, copy to 250;
    load 240 to 340, exp to 360, copy to 370; store to 470.
    """
    assert rows(log_of(_turns(3), tensor(4, 4))) == [
        ("load", 0, 100),
        ("exp", 100, 120),
        ("copy", 120, 130),
        ("load", 120, 220),
        ("exp", 220, 240),
        ("copy", 240, 250),
        ("load", 240, 340),
        ("exp", 340, 360),
        ("copy", 360, 370),
        ("store", 370, 470),
    ]


def _turns(trips: int) -> Callable[..., None]:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        kept = tl.empty((4, 4))
        for _ in tl.range(trips):
            with tl.scratch_scope():
                tl.copy_to(kept, tl.exp(tl.load(x)))
        tl.store(o, kept)

    return kernel


def test_no_iterations() -> None:
    """A loop that never runs takes nothing: zeros 0 to 10, store 10 to 110."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        z = tl.zeros((4, 4))
        for i in tl.range(0):
            with tl.scratch_scope():
                tl.copy_to(z, tl.load(x[i]))
        tl.store(o, z)

    log = log_of(kernel, tensor(2, 4, 4))
    assert rows(log) == [("zeros", 0, 10), ("store", 10, 110)]


@pytest.mark.filterwarnings("ignore:.*never stores to its output")
def test_a_kernel_that_does_nothing() -> None:
    """No rows, 0 ns."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(0):
            tl.store(o, tl.load(x[i]))

    log = log_of(kernel, tensor(2, 4, 4))
    assert rows(log) == [] and len(log) == 0 and log.total_ns == 0


def test_when() -> None:
    """Only odd iterations load; every iteration takes an exp of the kept tile.

    load 0 to 100; exp 100 to 120 (i = 0). i = 1: load into the bytes of exp's result,
    which the exp writes until 120: 120 to 220; copy 220 to 230; exp, over the same
    bytes: 230 to 250. i = 2: exp 250 to 270. i = 3: load 270 to 370, copy 370 to 380,
    exp 380 to 400. store of kept, written until 380: 380 to 480.
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        kept = tl.load(x[0])
        for i in tl.range(4):
            with tl.when(i % 2 == 1):
                tl.copy_to(kept, tl.load(x[i]))
            with tl.scratch_scope():
                tl.exp(kept)
        tl.store(o, kept)

    log = log_of(kernel, tensor(4, 4, 4))
    assert rows(log) == [
        ("load", 0, 100),
        ("exp", 100, 120),
        ("load", 120, 220),
        ("copy", 220, 230),
        ("exp", 230, 250),
        ("exp", 250, 270),
        ("load", 270, 370),
        ("copy", 370, 380),
        ("exp", 380, 400),
        ("store", 380, 480),
    ]
    assert log.columns()["loop"].tolist() == [
        "", "i=0", "i=1", "i=1", "i=1", "i=2", "i=3", "i=3", "i=3", "",
    ]  # fmt: skip


def test_two_pes_of_their_own_tails() -> None:
    """PE 1's view has 2 of 4 rows inside: 68 ns a transfer instead of 100."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        start = tl.program_id() * 4
        t = tl.load(x[tl.ds(start, 4)], other=0.0)
        tl.store(o[tl.ds(start, 4)], t, boundary_check=True)

    spec = tensor(6, 4)
    log = log_of(kernel, spec, out=spec, num_pes=2, in_axes=None, out_axes=None)
    assert rows(log) == [
        ("load", 0, 100),
        ("store", 100, 200),
        ("load", 0, 68),
        ("store", 68, 136),
    ]


def test_two_pes_that_do_the_same() -> None:
    """A tile plus the PE's number: the times do not depend on it."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + tl.program_id())

    log = log_of(kernel, tensor(2, 4, 4), num_pes=2)
    one = [("load", 0, 100), ("add", 100, 110), ("store", 110, 210)]
    assert rows(log) == one * 2
    assert log.columns()["pe"].tolist() == [0] * 3 + [1] * 3


def test_two_pes_of_their_own_trip_counts() -> None:
    """PE 0: load to 100, store to 200. PE 1 adds twice: add 100 to 110, copy to 120,
    add to 130, copy to 140; store 140 to 240. The total is the slower one's."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(2 * tl.program_id()):
            with tl.scratch_scope():
                tl.copy_to(t, t + 1.0)
        tl.store(o, t)

    log = log_of(kernel, tensor(2, 4, 4), num_pes=2)
    assert log.columns()["pe"].tolist() == [0] * 2 + [1] * 6
    assert rows(log) == [
        ("load", 0, 100),
        ("store", 100, 200),
        ("load", 0, 100),
        ("add", 100, 110),
        ("copy", 110, 120),
        ("add", 120, 130),
        ("copy", 130, 140),
        ("store", 140, 240),
    ]
    assert log.total_ns == 240


# --- long loops, by their totals -----------------------------------------------------


@pytest.mark.parametrize("trips", [10, 1_000_000])
def test_a_long_loop_by_its_total(trips: int) -> None:
    """`test_a_loop_of_three`, longer: the last exp ends at 120 n, its copy at
    120 n + 10, the store at 120 n + 110. 3 n + 1 commands."""
    log = log_of(_turns(trips), tensor(4, 4))
    assert log.total_ns == 120 * trips + 110
    assert len(log) == 3 * trips + 1


@pytest.mark.parametrize("trips", [10, 100_002, 100_003, 1_000_000])
def test_a_backlog_that_is_overtaken_late(trips: int) -> None:
    """The vector engine starts far behind and catches up by 80 ns an iteration.

    DMA: kept 0 to 100, then n loads that nobody reads: 100 + 100 n.
    Math: zeros of 64x64 is 256 vectors, 9 + 256 = 265 ns; softmax at 31,250 cycles a
    vector is 9 + 256 x 31,250 = 8,000,009 ns, to 8,000,274; an add and a copy an
    iteration, 20 ns: 8,000,274 + 20 n.
    The store waits for the later of the two, and takes 100 ns. Math is later while
    80 n < 8,000,174: up to n = 100,002.

    n =        10: 8,000,474 + 100
    n =   100,002: 10,000,314 (DMA 10,000,300) + 100
    n =   100,003: DMA 10,000,400 (math 10,000,334) + 100
    n = 1,000,000: DMA 100,000,100 + 100
    """

    def kernel(tl: Any, x: Any, o: Any) -> None:
        kept = tl.load(x)
        tl.softmax(tl.zeros((64, 64)))
        for _ in tl.range(trips):
            with tl.scratch_scope():
                tl.load(x)
                tl.copy_to(kept, kept + 1.0)
        tl.store(o, kept)

    slow = PeMath(lanes=16, clock_ghz=1, overhead_ns=9, cycles={"softmax": 31250})
    hardware = dataclasses.replace(ROUND, pe_math=slow)
    log = log_of(kernel, tensor(4, 4), hardware=hardware)
    wanted = {
        10: 8_000_574, 100_002: 10_000_414, 100_003: 10_000_500, 1_000_000: 100_000_200,
    }  # fmt: skip
    assert log.total_ns == wanted[trips]
    assert len(log) == 4 + 3 * trips
