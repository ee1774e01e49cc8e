"""When messages are sent and arrive: schedules by hand, what reports and exports show,
and random programs against the simulation of all PEs together.

By hand, on `ROUND` of tests/test_schedules_by_hand.py with a link: a 4x4 float32 tile
is 64 bytes and takes

    load, store  100 ns        exp         20 ns
    dot           30 ns        other math  10 ns
    send         16 ns + 64 B / (0.5 GB/s) = 144 ns
"""

from __future__ import annotations

import csv
import dataclasses
import json
import random
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax.hardware import PeLink
from tests import message_programs
from tests.discrete_events import ENGINES, executed
from tests.message_programs import Simulation, drawn_program, runs_in_lockstep
from tests.test_discrete_events import assert_as_simulated
from tests.test_schedules_by_hand import ROUND
from tests.test_timing_laws import faster
from tests.timing_programs import random_hardware

LINKED = dataclasses.replace(ROUND, pe_link=PeLink(bandwidth_gb_s=0.5, latency_ns=16))
TILE = jax.ShapeDtypeStruct((4, 4), "float32")
recv_tile = partial(dict, shape=(4, 4), dtype="float32", offset=1)


def log_of(kernel: Any, num_pes: int = 2, hardware: Any = LINKED) -> Any:
    call = kb.kernel_call(kernel, TILE, num_pes=num_pes, hardware=hardware)
    lead = (num_pes,) if num_pes > 1 else ()
    return call.op_log(jax.ShapeDtypeStruct((*lead, 4, 4), "float32"))


def rows(log: Any, pe: int) -> list[tuple[str, int, int]]:
    """(op, start, end) of a PE, in issue order, in whole ns."""
    columns = log.columns()
    mine = columns["pe"] == pe
    start, end = (columns[name][mine] for name in ("start_ns", "end_ns"))
    assert (start == np.rint(start)).all() and (end == np.rint(end)).all()
    ops = columns["op_name"][mine].tolist()
    return [*zip(ops, start.astype(int), end.astype(int), strict=True)]


# --- by hand -------------------------------------------------------------------------


@pytest.mark.parametrize("num_pes", [1, 2, 5])
def test_a_ring_step_beside_compute(num_pes: int) -> None:
    """While the tile travels (100 to 244), it is multiplied (100 to 130); the receive
    has its bytes from the start. add needs both: 244 to 254; store to 354."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        sent = tl.send(t, 1)
        future = tl.recv(**recv_tile())
        product = tl.dot(t, t)
        sent.wait()
        tl.store(o, product + future.wait())

    log = log_of(kernel, num_pes)
    for pe in range(num_pes):
        assert rows(log, pe) == [
            ("load", 0, 100), ("send", 100, 244), ("dot", 100, 130), ("recv", 0, 244),
            ("add", 244, 254), ("store", 254, 354),
        ]  # fmt: skip
    assert log.total_ns == 354


def test_a_ring_step_that_waits_for_the_one_before() -> None:
    """Each step sends what the one before received: 100, 244, 388, 532."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(3):
            tl.send(t, 1).wait()
            with tl.scratch_scope():
                tl.copy_to(t, tl.recv(**recv_tile()).wait())
        tl.store(o, t)

    # A copy takes 10: it waits for the message, and the next send for it. The bytes of
    # a receive are free when the copy before has read them.
    assert rows(log_of(kernel), 1) == [
        ("load", 0, 100),
        ("send", 100, 244), ("recv", 0, 244), ("copy", 244, 254),
        ("send", 254, 398), ("recv", 254, 398), ("copy", 398, 408),
        ("send", 408, 552), ("recv", 408, 552), ("copy", 552, 562),
        ("store", 562, 662),
    ]  # fmt: skip


def test_a_receive_into_recycled_scratch_waits_for_the_last_reader() -> None:
    """The bytes are those of a tile that exp reads until 120 and the store of it until
    200 + 100: the message is there at 244, the receive's bytes are free at 300."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        with tl.scratch_scope():
            u = tl.load(x)
            tl.store(o, u)
        with tl.scratch_scope():
            tl.send(t, 1)
            got = tl.recv(**recv_tile()).wait()
            tl.store(o, got)

    # load t to 100, load u to 200, store u to 300; send at 100, there at 244.
    assert rows(log_of(kernel), 0) == [
        ("load", 0, 100), ("load", 100, 200), ("store", 200, 300),
        ("send", 100, 244), ("recv", 300, 300), ("store", 300, 400),
    ]  # fmt: skip


def test_a_source_is_not_written_before_it_is_sent() -> None:
    """copy waits for the end of the send at 244."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        z = tl.zeros((4, 4))
        tl.send(t, 1).wait()
        tl.copy_to(t, z)
        tl.store(o, tl.recv(**recv_tile()).wait())

    assert rows(log_of(kernel), 0) == [
        ("load", 0, 100), ("zeros", 0, 10), ("send", 100, 244), ("copy", 244, 254),
        ("recv", 0, 244), ("store", 244, 344),
    ]  # fmt: skip


def test_one_link_sends_one_message_at_a_time() -> None:
    """Whatever their directions: 100 to 244 to 388; the second arrives at 388."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        tl.send(t, 1)
        tl.send(t, -1)
        a = tl.recv(**recv_tile())
        b = tl.recv((4, 4), "float32", -1)
        tl.store(o, a.wait() + b.wait())

    assert rows(log_of(kernel, 3), 2) == [
        ("load", 0, 100), ("send", 100, 244), ("send", 244, 388), ("recv", 0, 244),
        ("recv", 0, 388), ("add", 388, 398), ("store", 398, 498),
    ]  # fmt: skip


def late_by_pe(tl: Any, x: Any, o: Any) -> None:
    """PE 0 works for 3 exps and sends; PE 1 receives, stores, and is last."""
    pe = tl.program_id()
    t = tl.load(x)
    with tl.when(pe == 0):
        for _ in tl.range(3):
            with tl.scratch_scope():
                tl.copy_to(t, tl.exp(t))
        tl.send(t, 1).wait()
    with tl.when(pe == 1):
        tl.copy_to(t, tl.recv(**recv_tile()).wait())
    tl.store(o, t)


def test_pes_that_wait_for_each_other() -> None:
    """PE 0: load 100, 3 times exp 20 and copy 10 to 190, send to 334, store 290. PE 1:
    the message at 334, copy to 344, store to 444."""
    log = log_of(late_by_pe)
    work = [(op, 100 + 30 * n + s, 100 + 30 * n + e) for n in range(3)
            for op, s, e in (("exp", 0, 20), ("copy", 20, 30))]  # fmt: skip
    assert rows(log, 0) == [
        ("load", 0, 100), *work, ("send", 190, 334), ("store", 190, 290)
    ]  # fmt: skip
    assert rows(log, 1) == [
        ("load", 0, 100), ("recv", 0, 334), ("copy", 334, 344), ("store", 344, 444)
    ]  # fmt: skip
    assert log.total_ns == 444


def test_the_critical_path_crosses_pes() -> None:
    """PE 0: load 100, exps 60, copies 30, send 144; PE 1: copy 10, store 100."""
    summary = log_of(late_by_pe).summary()
    times = {}
    for share in summary.critical_path:
        times[share.op_name] = times.get(share.op_name, 0) + share.time_ns
    assert times == {"load": 100, "exp": 60, "copy": 40, "send": 144, "store": 100}
    assert sum(times.values()) == summary.total_ns == 444
    # Latency: 36 + 6 x 9 + 16 + 9 + 36; the link's bytes take 128.
    assert summary.critical_shares["link"] == pytest.approx(128 / 444)
    assert summary.critical_shares["latency"] == pytest.approx(151 / 444)


def test_a_message_that_no_one_waits_for_may_end_last() -> None:
    """PE 0 sends at 100 to 244 and stores to 200."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        tl.send(t, 1)
        tl.store(o, t)
        tl.recv(**recv_tile())

    with pytest.warns(UserWarning, match="never waited for"):
        log = log_of(kernel)
    assert rows(log, 0)[1:] == [
        ("send", 100, 244),
        ("store", 100, 200),
        ("recv", 0, 244),
    ]
    assert log.total_ns == 244 == max(log.columns()["end_ns"])
    assert sum(line.time_ns for line in log.summary().critical_path) == 244


# --- reports and exports -------------------------------------------------------------


def test_the_summary_has_a_link_where_there_are_messages() -> None:
    log = log_of(late_by_pe)
    summary = log.summary()
    link = summary.engines["link"]
    assert (link.busy_ns, link.commands) == (144, 1)
    assert link.utilisation == pytest.approx(144 / (2 * 444))
    assert "link engine" in str(summary)
    assert summary.to_dict()["engines"]["link"]["busy_ns"] == 144
    assert "wait" not in summary.engines
    assert summary.commands == len(log) == 13

    def quiet(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    assert "link" not in log_of(quiet).summary().engines
    assert "link engine" not in str(log_of(quiet).summary())


def test_a_slow_link_is_what_limits() -> None:
    slow = dataclasses.replace(
        LINKED, pe_link=PeLink(bandwidth_gb_s=0.001, latency_ns=0)
    )

    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        tl.send(t, 1)
        tl.store(o, tl.recv(**recv_tile()).wait())

    summary = log_of(kernel, hardware=slow).summary()
    assert summary.limited_by == "link" == summary.roofline_engine
    assert summary.roofline_ns == 64_000


def test_columns_of_messages() -> None:
    columns = log_of(late_by_pe).columns()
    (send,) = np.flatnonzero(columns["op_name"] == "send")
    (recv,) = np.flatnonzero(columns["op_name"] == "recv")
    found = {
        name: (columns[name][send], columns[name][recv])
        for name in ("pe", "engine", "op_kind", "src_addrs", "dst_addr", "shape",
                     "dtype", "nbytes", "flops")
    }  # fmt: skip
    assert found == {
        "pe": (0, 1), "engine": ("link", "wait"), "op_kind": ("link", "link"),
        "src_addrs": ("0", "link:-1"), "dst_addr": ("link:+1", "64"),
        "shape": ("4x4", "4x4"), "dtype": ("float32", "float32"), "nbytes": (64, 64),
        "flops": (0, 0),
    }  # fmt: skip


def both_ways(tl: Any, x: Any, o: Any) -> None:
    """Receives that overlap each other, and a backlog on the link."""
    t = tl.load(x)
    for _ in tl.range(4):
        with tl.scratch_scope():
            futures = [tl.recv((4, 4), "float32", offset) for offset in (1, -1)]
            sent = [tl.send(t, offset) for offset in (1, -1)]
            total = futures[0].wait() + futures[1].wait()
            for one in sent:
                one.wait()
            tl.copy_to(t, total)
    tl.store(o, t)


@pytest.mark.parametrize("kernel", [both_ways, late_by_pe])
def test_exports(kernel: Any, tmp_path: Path) -> None:
    log = log_of(kernel, 3)
    columns = log.columns()
    log.to_csv(tmp_path / "log.csv")
    with open(tmp_path / "log.csv", newline="") as file:
        read = [*csv.DictReader(line for line in file if not line.startswith("#"))]
    for name in ("engine", "op_name", "src_addrs", "dst_addr"):
        assert [row[name] for row in read] == columns[name].tolist()
    for name in ("start_ns", "end_ns"):
        assert [float(row[name]) for row in read] == columns[name].tolist()
    parquet = pytest.importorskip("pyarrow.parquet")
    log.to_parquet(tmp_path / "log.parquet")
    table = parquet.read_table(tmp_path / "log.parquet")
    assert table["dst_addr"].to_pylist() == columns["dst_addr"].tolist()


def slices(path: Path) -> dict[str, list[tuple[float, float, str]]]:
    """(start, end, name) in us by the track's name, as drawn."""
    events = json.loads(path.read_text())["traceEvents"]
    process = {
        e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"
    }
    thread = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["name"] == "thread_name"
    }
    found: dict[str, list[tuple[float, float, str]]] = {}
    for e in events:
        if e["ph"] == "X":
            track = f"{process[e['pid']]}/{thread[e['pid'], e['tid']]}"
            entry = (e["ts"], e["ts"] + e["dur"], e["name"])
            found.setdefault(track, []).append(entry)
    return found


@pytest.mark.parametrize("kernel", [both_ways, late_by_pe])
def test_perfetto_slices_do_not_overlap(kernel: Any, tmp_path: Path) -> None:
    log = log_of(kernel, 3)
    log.to_perfetto(tmp_path / "trace.json")
    tracks = slices(tmp_path / "trace.json")
    columns = log.columns()
    names = [name for track in tracks.values() for *_, name in track]
    for op in ("send", "recv"):
        count = sum(op in name for name in names)
        assert count == (columns["op_name"] == op).sum(), op
    for track, drawn in tracks.items():
        if track.endswith("/scopes"):  # which nest
            continue
        ops = {name.split()[0] for *_, name in drawn}
        assert ("recv" in ops) == ("/wait" in track) and ("send" in ops) == (
            "/link" in track
        )
        for (_, end, _), (start, *_) in pairwise(sorted(drawn)):
            assert start >= end - 1e-9, track


# --- random programs -----------------------------------------------------------------


@cache
def drawn_calls(count: int) -> tuple[tuple[kb.KernelCall, np.ndarray, str], ...]:
    """Well-formed programs with messages, on hardware of all kinds."""
    found: list[tuple[kb.KernelCall, np.ndarray, str]] = []
    seed = 10_000
    while len(found) < count:
        seed += 1
        drawn = drawn_program(seed)
        if "tl.send" not in drawn.source or Simulation(drawn).run():
            continue
        if runs_in_lockstep(drawn):
            rng = random.Random(seed)
            link = PeLink(
                bandwidth_gb_s=rng.choice((0.5, 1.0, 3.0, 64.0, 1e6)),
                latency_ns=rng.choice((0.0, 1.0, 1.001, 10.0, 1000.0)),
            )
            hardware = dataclasses.replace(random_hardware(rng), pe_link=link)
            call = message_programs.call_of(drawn, seed, hardware=hardware)
            found.append((call, drawn.x, f"seed {seed}\n{drawn.source}"))
    return tuple(found)


def test_random_programs_are_timed_as_simulated() -> None:
    timed = 0
    for call, x, source in drawn_calls(120):
        timed += assert_as_simulated(call, (x,), source)
    assert timed > 5000
    by_pe = [source for *_, source in drawn_calls(120) if "range(pe" in source]
    assert len(by_pe) > 10


def test_random_programs_keep_the_laws() -> None:
    """A row starts when its engine is free, its operands are there and no one uses the
    bytes it writes, and no later; one message a time on a link; a receive ends with its
    send, or starts after it; the critical path adds up to the total, which is no more
    than all commands one after the other."""
    for call, x, source in drawn_calls(40):
        program, log = call.record(x), call.op_log(x)
        columns = log.columns()
        start, end = (np.rint(columns[f"{n}_ns"] * 1000) for n in ("start", "end"))
        ends: dict[
            tuple[int, int], list[float]
        ] = {}  # of sends, by receiver and offset
        by_pe = [[*executed(program, pe)] for pe in range(program.num_pes)]
        rows_of = [np.flatnonzero(columns["pe"] == pe) for pe in range(program.num_pes)]
        for pe, runs in enumerate(by_pe):
            for row, run in zip(rows_of[pe], runs, strict=True):
                if run.engine == "link":
                    offset = run.command.offset
                    to = (pe + offset) % program.num_pes
                    ends.setdefault((to, offset), []).append(end[row])
        for pe, runs in enumerate(by_pe):
            size = max(r.stop for run in runs for r in (*run.reads, run.writes))
            written, used = np.zeros(size), np.zeros(size)
            free = dict.fromkeys(ENGINES, 0.0)
            for row, run in zip(rows_of[pe], runs, strict=True):
                reads = [slice(r.start, r.stop) for r in run.reads]
                writes = slice(run.writes.start, run.writes.stop)
                ready = max((written[r].max() for r in reads), default=0)
                ready = max(ready, used[writes].max(initial=0), free.get(run.engine, 0))
                what = f"row {row}: {run.command}\n{source}"
                assert start[row] == ready, what
                if run.engine == "wait":
                    arrival = ends[pe, run.command.offset].pop(0)
                    assert end[row] == max(ready, arrival), what
                else:
                    assert end[row] - start[row] == run.cost_ps, what
                    free[run.engine] = end[row]
                for read in reads:
                    used[read] = np.maximum(used[read], end[row])
                used[writes] = written[writes] = end[row]
        assert not any(ends.values())
        summary = log.summary()
        path = sum(line.time_ns for line in summary.critical_path)
        assert path == pytest.approx(log.total_ns, rel=1e-12), source
        busy = columns["engine"] != "wait"
        assert log.total_ns * 1000 <= (end - start)[busy].sum() + 0.5, source
        sent = sum(run.nbytes for run in by_pe[0] if run.engine == "link")
        link = program.hardware.pe_link
        assert Fraction(log.total_ns) >= sent / Fraction(link.bandwidth_gb_s)


def test_twice_as_fast_takes_half_the_time() -> None:
    """With whole numbers: to the picosecond."""
    for seed in range(10_000, 10_060):
        drawn = drawn_program(seed)
        if Simulation(drawn).run() or not runs_in_lockstep(drawn):
            continue
        times = []
        for hardware in (LINKED, faster(LINKED, 2)):
            call = message_programs.call_of(drawn, seed, hardware=hardware)
            columns = call.op_log(drawn.x).columns()
            times.append([np.rint(columns[n] * 1000) for n in ("start_ns", "end_ns")])
        for slow, fast in zip(*times, strict=True):
            np.testing.assert_array_equal(slow, 2 * fast, drawn.source)
