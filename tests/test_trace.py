"""Traces: every file is held against the log by a checker that knows only the format,
then details by hand, folds, cuts, and the command."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import kbjax as kb
from kbjax import cli, errors, log_view, op_log, trace, tracks
from kbjax.hardware import PeDma, PeGemm, PeMath, PeTcm
from kbjax.op_log import OpLog
from kbjax.trace import TraceReport
from tests.logs import RowsLog, fold_of, long_log, of_rows

HARDWARE = kb.Hardware(
    pe_tcm=PeTcm(scratch_base=4096),
    pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=10),
    pe_gemm=PeGemm(
        rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=5, rate={"float32": 1}
    ),
    pe_math=PeMath(lanes=4, clock_ghz=1, overhead_ns=2, cycles={}),
)
Trace = dict[str, Any]


def drawn(log: Any, **options: Any) -> tuple[Trace, TraceReport]:
    """The trace of a log, held against it."""
    file = io.BytesIO()
    report = trace.write_trace(log, file, **options)
    assert report.nbytes == len(file.getvalue())
    json.loads(file.getvalue())
    found = json.loads(file.getvalue(), parse_float=Decimal)
    check(found, log, report)
    return found, report


# --- the checker ---------------------------------------------------------------------


def ps(microseconds: Decimal | int) -> int:
    value = Decimal(microseconds) * 10**6
    assert value == int(value), f"{microseconds} us is no whole number of ps"
    return int(value)


def shown_ns(microseconds: Decimal | int) -> int:
    """As Perfetto reads it: a double of microseconds, rounded to nanoseconds."""
    return math.floor(float(microseconds) * 1000.0 + 0.5)


def events_of(found: Trace, ph: str) -> list[Trace]:
    return [event for event in found["traceEvents"] if event["ph"] == ph]


def slices_of(found: Trace, cat: str) -> list[Trace]:
    return [event for event in events_of(found, "X") if event["cat"] == cat]


def track_names(found: Trace) -> dict[tuple[int, int], str]:
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events_of(found, "M")
        if event["name"] == "thread_name"
    }
    of_pe = Counter((pid, name) for (pid, _), name in names.items())
    assert not names or max(of_pe.values()) == 1
    return names


def check(found: Trace, log: Any, report: TraceReport) -> None:
    """The format's rules, and that nothing of the log is lost or made up."""
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert len(found["traceEvents"]) == report.events <= report.max_events
    about = found["otherData"]
    assert about["schema_version"] == trace.SCHEMA_VERSION
    assert about["summary"] == json.loads(
        json.dumps(log.summary().to_dict()), parse_float=Decimal
    )
    names = track_names(found)
    for event in found["traceEvents"]:
        assert event["ph"] in "MXsfCi"
        if event["ph"] in "Xsf":
            assert (event["pid"], event["tid"]) in names
    check_nesting(found, names)
    check_rows(found, log, report, names)
    check_arrows(found)
    for pid, samples in grouped(events_of(found, "C"), "pid").items():
        times = [ps(event["ts"]) for event in samples]
        assert times == sorted(set(times)), pid
        values = [event["args"]["cursor_bytes"] for event in samples]
        assert all(a != b for a, b in itertools.pairwise(values))
    notes = events_of(found, "i")
    assert len(notes) == (report.dropped_ops > 0)
    for sentence in about["dropped"]:
        assert sentence in notes[0]["name"] and sentence in str(report)


def grouped(events: list[Trace], *keys: str) -> dict[Any, list[Trace]]:
    groups: dict[Any, list[Trace]] = defaultdict(list)
    for event in events:
        key = tuple(event[k] for k in keys)
        groups[key if len(keys) > 1 else key[0]].append(event)
    return groups


def check_nesting(found: Trace, names: dict[tuple[int, int], str]) -> None:
    """Slices of a track do not overlap; scopes may be inside each other; both to the
    picosecond and as Perfetto shows them."""
    for track, events in grouped(events_of(found, "X"), "pid", "tid").items():
        nested = names[track].startswith("scopes")
        for unit in (ps, shown_ns):
            spans = sorted(  # at one time: what is empty, then what is around others
                ((unit(e["ts"]), unit(e["dur"]), e["args"]) for e in events),
                key=lambda s: (s[0], s[1] > 0, -s[1], s[2].get("depth", 0)),
            )
            around: list[int] = []
            for start, dur, args in spans:
                while around and around[-1] <= start:
                    around.pop()
                if around:
                    assert nested, (track, start, args)
                    assert start + dur <= around[-1], (track, start, args)
                around.append(start + dur)


def check_rows(
    found: Trace, log: Any, report: TraceReport, names: dict[tuple[int, int], str]
) -> None:
    columns = log.columns(
        ["op", "pe", "engine", "op_name", "start_ps", "end_ps", "shape", "dtype",
         "nbytes", "flops", "loop", "file", "line"]
    )  # fmt: skip
    rows = dict(zip(columns["op"].tolist(), range(len(log)), strict=True))
    shown = slices_of(found, "op")
    assert len({event["args"]["op"] for event in shown}) == len(shown)
    for event in shown:
        args = event["args"]
        row = {k: c[rows[args["op"]]] for k, c in columns.items()}
        track = names[event["pid"], event["tid"]]
        assert track.split()[0] == row["engine"]
        if row["engine"] != "wait":
            assert track == row["engine"]  # one lane
        assert event["pid"] == row["pe"] + 1
        assert event["name"] == row["op_name"]
        assert args["source"] == f"{row['file']}:{row['line']}"
        for name in ("shape", "dtype", "nbytes", "flops", "loop"):
            assert args[name] == row[name]
        assert (args["start_ps"], args["end_ps"]) == (row["start_ps"], row["end_ps"])
        assert ps(event["ts"]) == row["start_ps"]
        lost = row["end_ps"] - ps(event["ts"]) - ps(event["dur"])
        assert 0 <= lost < 1500
        if row["start_ps"] % 1000 == 0 and row["end_ps"] < 2**43:
            assert lost == 0
    folded = sum(event["args"]["ops"] for event in slices_of(found, "fold"))
    about = found["otherData"]
    assert about["ops"] == len(log)
    assert about["shown_ops"] == report.shown_ops == len(shown)
    assert about["folded_ops"] == report.folded_ops == folded
    assert about["dropped_ops"] == report.dropped_ops
    assert len(shown) + folded + report.dropped_ops == len(log)


def check_arrows(found: Trace) -> None:
    """Each goes from the start of a load's slice to the start of one that has its
    first byte among its sources, and later."""
    at = grouped(slices_of(found, "op"), "pid", "tid", "ts")
    begins = {event["id"]: event for event in events_of(found, "s")}
    ends = {event["id"]: event for event in events_of(found, "f")}
    assert len(begins) == len(events_of(found, "s"))
    assert len(ends) == len(events_of(found, "f"))
    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        end = ends[number]
        assert (begin["cat"], begin["name"]) == (end["cat"], end["name"])
        assert end["bp"] == "e" and begin["pid"] == end["pid"]
        here = at[begin["pid"], begin["tid"], begin["ts"]]
        (load,) = (event for event in here if event["args"]["op"] == number)
        assert load["name"] == "load"
        low = int(load["args"]["dst_addr"])
        high = low + load["args"]["nbytes"]
        uses = [
            event
            for event in at[end["pid"], end["tid"], end["ts"]]
            if any(
                low <= int(a) < high
                for a in event["args"]["src_addrs"].split(";")
                if a.isdigit()
            )
        ]
        assert uses and ps(end["ts"]) >= load["args"]["end_ps"]


# --- kernels -------------------------------------------------------------------------


def sweep(trips: int = 2, num_pes: int = 1) -> OpLog:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((4, 4))
        for i in tl.range(trips):
            with tl.scratch_scope():
                t = tl.load(x[i])
                tl.copy_to(total, total + tl.dot(t, tl.trans(t)))
        tl.store(o, total)

    lead = (num_pes,) if num_pes > 1 else ()
    x = jax.ShapeDtypeStruct((*lead, trips, 4, 4), "float32")
    out = jax.ShapeDtypeStruct((4, 4), "float32")
    call = kb.kernel_call(kernel, out, num_pes=num_pes, hardware=HARDWARE)
    return call.op_log(x)


def test_a_trace_by_hand() -> None:
    found, report = drawn(sweep())
    names = track_names(found)
    assert set(names.values()) == {"scopes", "scopes 2", "dma", "gemm", "math"}
    shown = {
        e["args"]["op"]: (names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"])
        for e in slices_of(found, "op")
    }
    # One of 4 x 4 float32: a transfer is 10 + 64 ns, an op of the vectors 2 + 4 ns.
    assert [shown[op] for op in range(3)] == [
        ("math", "zeros", Decimal("0"), Decimal("0.006")),
        ("dma", "load", Decimal("0"), Decimal("0.074")),
        ("math", "trans", Decimal("0.074"), Decimal("0.006")),
    ]
    assert shown[11] == ("dma", "store", Decimal("0.184"), Decimal("0.074"))
    scopes = [(e["ts"], e["dur"], e["args"]["ops"]) for e in slices_of(found, "scope")]
    assert scopes == [
        (Decimal("0"), Decimal("0.098"), 5),  # load to copy, one iteration each
        (Decimal("0.086"), Decimal("0.098"), 5),
    ]
    arrows = {e["id"]: e["ts"] for e in events_of(found, "f")}
    assert arrows == {1: Decimal("0.074"), 6: Decimal("0.160")}  # to trans
    cursor = [(e["ts"], e["args"]["cursor_bytes"]) for e in events_of(found, "C")]
    assert [(float(at), value) for at, value in cursor] == [
        (0, 128), (0.074, 192), (0.080, 256), (0.086, 320),
        (0.160, 192), (0.166, 256), (0.172, 320), (0.184, 64),
    ]  # fmt: skip
    assert (report.shown_ops, report.folded_ops, report.dropped_ops) == (12, 0, 0)
    assert found["otherData"]["kernel"] == "kernel"
    processes = [e["args"] for e in events_of(found, "M") if "process" in e["name"]]
    assert processes == [{"name": "PE 0"}, {"sort_index": 0}]


@pytest.mark.parametrize("num_pes", [1, 3])
@pytest.mark.parametrize("trips", [0, 1, 5, 40])
def test_kernels(trips: int, num_pes: int) -> None:
    log = sweep(max(trips, 1), num_pes) if trips else nothing()
    found, report = drawn(log)
    summary = log.summary()
    assert found["otherData"]["summary"]["commands"] == summary.commands
    folds = log.folds()
    assert len(slices_of(found, "fold")) == 3 * len(folds)
    assert report.folded_ops == sum(f.stop_row - f.first_row for f in folds)
    if trips == 40:
        assert len(folds) == num_pes
    for fold in folds:
        mine = [e for e in slices_of(found, "fold") if e["pid"] == fold.pe + 1]
        assert {e["name"] for e in mine} == {f"i: {fold.iterations} steady iterations"}
        rows = log[fold.first_row : fold.stop_row].columns(
            ["engine", "start_ps", "end_ps"]
        )
        for event in mine:
            engine = track_names(found)[event["pid"], event["tid"]]
            here = rows["engine"] == engine
            start, end = rows["start_ps"][here], rows["end_ps"][here]
            args = event["args"]
            assert args["iterations"] == fold.iterations
            assert (args["ops"], args["loop"]) == (here.sum(), "i")
            assert args["busy_ps"] == (end - start).sum()
            assert (ps(event["ts"]), args["end_ps"]) == (start.min(), end.max())


def nothing() -> OpLog:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.empty((4, 4))

    out = jax.ShapeDtypeStruct((4, 4), "float32")
    with pytest.warns(UserWarning, match="never stores"):
        return kb.kernel_call(kernel, out).op_log(out)


def test_a_log_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    report = trace.write_trace(nothing(), path)
    found = json.loads(path.read_text("ascii"))
    assert found["traceEvents"] == [] and report.events == 0
    assert found["otherData"]["summary"]["total_ns"] == 0
    assert report.path == str(path) and report.nbytes == path.stat().st_size


# --- times ---------------------------------------------------------------------------


def test_times_are_exact_to_the_picosecond() -> None:
    starts = [0, 251, 1_000_001, 2**31 * 1000 + 7, 2**53 + 1, 2**62 + 1]
    log = of_rows(*({"start_ps": t, "end_ps": t + 250} for t in starts))
    found, _ = drawn(log)
    shown = slices_of(found, "op")
    assert [ps(event["ts"]) for event in shown] == starts
    assert [event["args"]["end_ps"] for event in shown] == [t + 250 for t in starts]


@pytest.mark.parametrize("seed", range(20))
def test_perfetto_sees_no_overlap_of_fractions_of_a_nanosecond(seed: int) -> None:
    """It rounds starts and durations for themselves, and drops slices that cross; the
    checker rounds as it does."""
    rng = np.random.default_rng(seed)
    at = int(rng.integers(0, [2000, 10**9, 2**50][seed % 3]))
    rows = []
    for _ in range(200):
        end = at + int(rng.integers(0, 3000))
        rows.append({"start_ps": at, "end_ps": end, "scope_depth": rng.integers(0, 4)})
        at = end + int(rng.integers(0, 2)) * int(rng.integers(0, 1500))
    found, _ = drawn(of_rows(*rows))
    cut = [e for e in slices_of(found, "op") if ps(e["ts"]) + ps(e["dur"])
           != e["args"]["end_ps"]]  # fmt: skip
    assert 0 < len(cut) < 100


# --- tracks --------------------------------------------------------------------------


def test_waits_that_overlap_have_tracks_of_their_own() -> None:
    times = [(0, 100), (10, 30), (20, 60), (30, 40), (100, 120), (55, 70)]
    rows = [
        {"engine": "wait", "op_name": "recv", "start_ps": 1000 * a, "end_ps": 1000 * b}
        for a, b in times
    ]
    found, _ = drawn(of_rows(*rows, {"engine": "link", "end_ps": 5000}))
    names = track_names(found)
    lanes = [names[e["pid"], e["tid"]] for e in slices_of(found, "op")]
    assert lanes == ["wait", "wait 2", "wait 3", "wait 2", "wait", "wait 2", "link"]
    order = [name for _, name in sorted(names.items())]
    assert order == ["link", "wait", "wait 2", "wait 3"]


def test_a_stall_is_empty_space() -> None:
    rows = [{"start_ps": 0, "end_ps": 1000}, {"start_ps": 9000, "end_ps": 9500}]
    found, _ = drawn(of_rows(*rows))
    assert [(e["ts"], e["dur"]) for e in events_of(found, "X")] == [
        (Decimal("0"), Decimal("0.001")),
        (Decimal("0.009"), Decimal("0.0005")),
    ]


def test_an_engine_that_is_not_known_comes_last() -> None:
    found, _ = drawn(
        of_rows(*({"engine": e} for e in ("zip", "wait", "math", "fft", "dma")))
    )
    order = [name for _, name in sorted(track_names(found).items())]
    assert order == ["dma", "math", "wait", "fft", "zip"]


def test_the_cursor_is_that_of_the_op_that_started_last() -> None:
    rows = [(0, 64), (5, 128), (5, 64), (3, 256), (9, 64), (12, 64), (15, 0)]
    found, _ = drawn(
        of_rows(
            *(
                {"start_ps": t, "end_ps": t, "cursor_bytes": c, "engine": f"e{n}"}
                for n, (t, c) in enumerate(rows)
            )
        )
    )
    samples = [(ps(e["ts"]), e["args"]["cursor_bytes"]) for e in events_of(found, "C")]
    assert samples == [(0, 64), (3, 256), (5, 128), (9, 64), (15, 0)]


# --- arrows --------------------------------------------------------------------------


def chain(*ops: tuple[str, str, str, int]) -> dict[int, list[int]]:
    """The arrows of ops that run one after the other: load -> uses, by row."""
    rows = [
        {
            "op_name": name,
            "engine": "dma" if name in ("load", "store") else "math",
            "src_addrs": sources,
            "dst_addr": target,
            "nbytes": nbytes,
            "start_ps": 1000 * n,
            "end_ps": 1000 * n + 1000,
        }
        for n, (name, sources, target, nbytes) in enumerate(ops)
    ]
    found, _ = drawn(of_rows(*rows))
    arrows: dict[int, list[int]] = defaultdict(list)
    for event in events_of(found, "f"):
        arrows[event["id"]].append(ps(event["ts"]) // 1000)
    return dict(arrows)


def test_an_arrow_is_from_a_load_to_its_first_use() -> None:
    assert chain(
        ("load", "x+0", "0", 64),
        ("load", "y+0", "64", 64),
        ("add", "128;192", "256", 64),
        ("add", "64;0", "256", 64),
        ("add", "64;0", "256", 64),
        ("store", "256", "o+0", 64),
    ) == {0: [3], 1: [3]}


def test_an_arrow_to_a_part_of_what_was_loaded() -> None:
    assert chain(
        ("load", "x+0", "128", 64),
        ("exp", "192", "0", 64),  # the byte after it
        ("exp", "127", "0", 64),
        ("exp", "191;160", "0", 64),  # once
        ("store", "128", "o+0", 64),
    ) == {0: [3]}


@pytest.mark.parametrize(
    ("target", "nbytes", "lost"),
    [(0, 64, True), (63, 1, True), (64, 64, False), (32, 256, True), (128, 64, False)],
)
def test_bytes_that_are_written_over_have_no_arrow(
    target: int, nbytes: int, lost: bool
) -> None:
    want = {} if lost else {0: [3]}
    assert (
        chain(
            ("load", "x+0", "0", 64),
            ("load", "x+0", "1024", 0),  # a tail with nothing inside
            ("exp", "512", str(target), nbytes),
            ("exp", "0;1024", "768", 64),
        )
        == want
    )


def test_a_load_over_a_load() -> None:
    assert chain(
        ("load", "x+0", "0", 64),
        ("load", "x+64", "64", 64),
        ("load", "x+0", "32", 64),
        ("exp", "0", "512", 64),
        ("exp", "40", "512", 64),
    ) == {2: [4]}


# --- scopes --------------------------------------------------------------------------


def scopes(*rows: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """(depth, start, end, ops) of the scopes of rows (depth, cursor, start, end)."""
    log = of_rows(
        *(
            {"scope_depth": d, "cursor_bytes": c, "start_ps": 1000 * a,
             "end_ps": 1000 * b, "engine": f"e{n}"}
            for n, (d, c, a, b) in enumerate(rows)
        )
    )  # fmt: skip
    found, _ = drawn(log)
    return [
        (e["args"]["depth"], ps(e["ts"]) // 1000,
         (ps(e["ts"]) + ps(e["dur"])) // 1000, e["args"]["ops"])
        for e in slices_of(found, "scope")
    ]  # fmt: skip


def test_scopes_are_nested() -> None:
    assert scopes(
        (0, 16, 0, 1), (1, 32, 1, 2), (2, 48, 0, 9), (1, 48, 3, 4), (2, 64, 4, 5),
        (0, 32, 5, 6),
    ) == [(1, 0, 9, 4), (2, 0, 9, 1), (2, 4, 5, 1)]  # fmt: skip


def test_scopes_that_overlap_in_time_do_not_cross() -> None:
    """The checker's matter; here, that none is lost."""
    assert scopes((1, 16, 0, 10), (0, 0, 2, 3), (1, 16, 5, 15), (0, 0, 6, 7),
                  (1, 16, 8, 30), (2, 32, 9, 31), (0, 0, 1, 2), (1, 16, 2, 12)
                  ) == [
        (1, 0, 10, 1), (1, 5, 15, 1), (1, 8, 31, 2), (2, 9, 31, 1), (1, 2, 12, 1)
    ]  # fmt: skip


def test_a_lower_cursor_is_another_scope() -> None:
    """Iterations with a scope each, no op between them."""
    assert scopes((1, 32, 0, 1), (1, 48, 1, 2), (1, 32, 2, 3), (1, 48, 3, 4)) == [
        (1, 0, 2, 2), (1, 2, 4, 2)
    ]  # fmt: skip
    inner = (1, 32, 0, 1), (2, 64, 1, 2), (2, 64, 2, 3), (2, 48, 3, 4), (2, 16, 4, 5)
    assert scopes(*inner) == [
        (1, 0, 4, 4), (2, 1, 3, 2), (2, 3, 4, 1), (1, 4, 5, 1), (2, 4, 5, 1)
    ]  # fmt: skip


# --- folds ---------------------------------------------------------------------------


def double_buffered(iterations: int) -> RowsLog:
    """Loads that run ahead of the multiplications by three iterations: the rows of a
    fold overlap in time with those before and after it."""
    rows: list[dict[str, Any]] = []
    for j in range(iterations):
        for engine, name, start, cost in (
            ("dma", "load", 70 * j, 70),
            ("gemm", "dot", 210 + 80 * j, 75),
            ("wait", "recv", 60 * j, 250),
        ):
            rows.append(
                {
                    "engine": engine, "op_name": name, "start_ps": 1000 * start,
                    "end_ps": 1000 * (start + cost), "loop": f"j={j}",
                    "scope_depth": 1, "cursor_bytes": 64,
                }
            )  # fmt: skip
    rows.append({"engine": "dma", "op_name": "store", "start_ps": 10**9,
                 "end_ps": 10**9 + 1000})  # fmt: skip
    return of_rows(*rows)


@pytest.mark.parametrize(("first", "last"), [(1, 19), (2, 18), (0, 20), (3, 5)])
def test_a_folded_slice_fits_between_its_neighbours(first: int, last: int) -> None:
    whole = double_buffered(20)
    fold = fold_of(whole, 3 * first, 3 * last, last - first, last - first)
    found, report = drawn(RowsLog(whole.arrays, (fold,)))
    assert report.folded_ops == 3 * (last - first)
    names = track_names(found)
    by_engine = {
        names[e["pid"], e["tid"]].split()[0]: (ps(e["ts"]), e["args"]["end_ps"])
        for e in slices_of(found, "fold")
    }
    assert by_engine == {
        "dma": (70_000 * first, 70_000 * last),
        "gemm": (210_000 + 80_000 * first, 205_000 + 80_000 * last),
        "wait": (60_000 * first, 60_000 * (last - 1) + 250_000),
    }


def test_a_fold_names_its_loop_and_count() -> None:
    log = long_log(1, 16_384, folded=True)
    found, report = drawn(log)
    assert {e["name"] for e in slices_of(found, "fold")} == {
        "j: 16,382 steady iterations"
    }
    assert {e["args"]["iterations"] for e in slices_of(found, "fold")} == {16_382}
    assert (report.shown_ops, report.folded_ops) == (6, 3 * 16_382)
    inside = [e for e in slices_of(found, "scope") if e["args"]["ops"] > 3]
    assert [e["name"] for e in inside] == ["j: 16,382 steady iterations"]


def test_iterations_that_alternate_are_counted() -> None:
    """Twice the same rows, which do not divide by iterations, or only on the whole."""
    for pattern in (["dma", "math", "dma"], ["dma", "math", "math", "gemm"],
                    ["dma", "dma", "math", "dma", "math", "math"]):  # fmt: skip
        rows = [
            {"engine": engine, "start_ps": 1000 * n, "end_ps": 1000 * n + 1000,
             "loop": f"i={n // len(pattern)}"}
            for n, engine in enumerate(pattern * 4)
        ]  # fmt: skip
        log = of_rows(*rows)
        fold = fold_of(log, 0, len(rows), 8, 2)
        found, _ = drawn(RowsLog(log.arrays, (fold,)))
        names = track_names(found)
        ops = {
            names[e["pid"], e["tid"]]: e["args"]["ops"]
            for e in slices_of(found, "fold")
        }
        assert ops == Counter(pattern * 4)


def test_no_arrow_reaches_over_a_fold() -> None:
    """The same bytes are loaded anew inside."""
    row = {"op_name": "load", "engine": "dma", "dst_addr": "0"}
    rows = [{**row, "start_ps": n, "end_ps": n + 1, "loop": f"i={n}"}
            for n in range(6)]  # fmt: skip
    use = {"src_addrs": "0", "start_ps": 9, "end_ps": 9}
    log = of_rows(*rows, use)
    found, _ = drawn(RowsLog(log.arrays, (fold_of(log, 1, 6, 5),)))
    assert not events_of(found, "s")
    found, _ = drawn(log)
    assert [e["id"] for e in events_of(found, "s")] == [5]


@pytest.mark.parametrize("seed", range(10))
def test_random_folds(seed: int) -> None:
    """Any rows may be folded: the picture stays in order and adds up."""
    rng = np.random.default_rng(seed)
    free = dict.fromkeys(("dma", "gemm", "math"), 0)
    rows: list[dict[str, Any]] = []
    for n in range(300):
        engine = str(rng.choice(list(free)))
        start = free[engine] + int(rng.integers(0, 3)) * int(rng.integers(0, 9000))
        free[engine] = start + int(rng.integers(0, 5000))
        rows.append({
            "engine": engine, "start_ps": start, "end_ps": free[engine],
            "scope_depth": rng.integers(0, 4), "cursor_bytes": rng.integers(0, 9),
            "op_name": "load" if engine == "dma" else "add", "pe": n // 150,
            "src_addrs": f"{16 * rng.integers(0, 9)}", "nbytes": 16,
            "dst_addr": f"{16 * rng.integers(0, 9)}", "loop": f"i={n}",
        })  # fmt: skip
        if n == 149:
            free = dict.fromkeys(free, 0)
    # A use starts when its bytes are there, as of any log.
    ready: dict[tuple[int, str], int] = {}
    for row in rows:
        late = max(ready.get((row["pe"], row["src_addrs"]), 0) - row["start_ps"], 0)
        if late:
            row["src_addrs"] = ""
        ready[row["pe"], row["dst_addr"]] = row["end_ps"]
    log = of_rows(*rows)
    marks = sorted(rng.choice(np.arange(1, 150), 6, replace=False).tolist())
    folds = [
        fold_of(log, 150 * pe + a, 150 * pe + b, int(rng.integers(1, 5)))
        for pe in range(2)
        for a, b in zip(marks[::2], marks[1::2], strict=True)
    ]
    folded = RowsLog(log.arrays, tuple(folds), 2)
    for max_events in (10**6, 200, 50):
        drawn(log, max_events=max_events)
        drawn(folded, max_events=max_events)


# --- how much ------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [True, False])
def test_a_trace_that_would_be_too_large(folded: bool, tmp_path: Path) -> None:
    log = long_log(64, 4096, folded)
    assert len(log) == 786_432
    path = tmp_path / "trace.json"
    report = trace.write_trace(log, path, max_events=20_000)
    assert max(log.asked) <= log_view.ROWS
    assert path.stat().st_size == report.nbytes < 10_000_000
    found = json.loads(path.read_text("ascii"), parse_float=Decimal)
    check(found, log, report)
    assert found["otherData"]["summary"]["commands"] == len(log)
    if folded:
        assert (report.dropped_ops, report.cut_ns) == (0, None)
        assert report.folded_ops == 64 * 3 * 4094
    else:
        assert report.events > 19_000
        assert 0 < report.dropped_ops < len(log)
        (note,) = events_of(found, "i")
        assert f"{report.dropped_ops:,} ops are left out" in note["name"]
        assert Decimal(str(report.cut_ns)) == note["ts"] * 1000
        pes = Counter(e["pid"] for e in slices_of(found, "op"))
        assert (
            len(pes) == 64 and max(pes.values()) - min(pes.values()) <= 3
        )  # an iteration


def test_the_tail_is_cut_in_time() -> None:
    log = sweep(5, num_pes=2)
    _, whole = drawn(log)
    before = -1
    for most in range(1, whole.events + 3):
        found, report = drawn(log, max_events=most)
        assert report.shown_ops + report.folded_ops >= before
        before = report.shown_ops + report.folded_ops
        if most >= whole.events:
            assert report.dropped_ops == 0 and report.cut_ns is None
            continue
        assert report.dropped_ops > 0 and report.cut_ns is not None
        starts = [e["args"]["start_ps"] for e in slices_of(found, "op")]
        assert max(starts, default=0) <= report.cut_ns * 1000
        if not report.folded_ops:
            left = {e["args"]["op"] for e in slices_of(found, "op")}
            c = log.columns(["op", "start_ps"])
            out = [t for n, t in zip(*map(list, c.values()), strict=True)
                   if n not in left]  # fmt: skip
            assert min(out) == report.cut_ns * 1000
    assert before == len(log)


@pytest.mark.parametrize("pes", [[1], [2, 0], (), [np.int64(2)], [0, 1, 2], range(2)])
def test_some_pes(pes: Any) -> None:
    log = sweep(40, num_pes=3)
    found, report = drawn(log, pes=pes)
    assert {e["pid"] - 1 for e in events_of(found, "X")} == set(pes)
    assert found["otherData"]["pes"] == sorted(pes)
    left_out = len(log) // 3 * (3 - len(pes))
    assert report.unselected_ops == report.dropped_ops == left_out
    assert ("PEs that were not asked for" in str(report)) == (len(pes) < 3)


def test_one_pe_and_a_generator_of_them() -> None:
    log = sweep(40, num_pes=3)
    assert drawn(log, pes=1)[0] == drawn(log, pes=[1])[0]
    assert drawn(log, pes=(pe for pe in (2, 0)))[0] == drawn(log, pes=[0, 2])[0]


def test_some_rows_of_a_log() -> None:
    """Ops keep their numbers."""
    log = sweep(40)
    found, report = drawn(log[3:-4])
    assert min(e["args"]["op"] for e in slices_of(found, "op")) == 3
    assert report.shown_ops + report.folded_ops == len(log) - 7


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"pes": [3]}, ["no such PE", "Got 3", "0 to 2"]),
        ({"pes": [-1]}, ["no such PE", "Got -1"]),
        ({"pes": ["x"]}, ["whole number", "'x'"]),
        ({"max_events": 0}, ["max_events", "Got 0", ">= 1"]),
        ({"max_events": 1.5}, ["max_events", "1.5"]),
        ({"max_events": True}, ["max_events", "True"]),
    ],
)
def test_refusals(options: dict[str, Any], parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(errors.ShapeError) as caught:
        trace.write_trace(sweep(2, num_pes=3), tmp_path / "trace.json", **options)
    assert all(part in str(caught.value) for part in parts)
    assert not list(tmp_path.iterdir())


def test_lanes_hold_no_overlap() -> None:
    lanes = tracks._Lanes()
    assert lanes.place(0, 10) == 0
    assert lanes.place(10, 10) == 0  # nothing long, at its end
    assert lanes.place(9, 12) == 1
    assert lanes.place(10, 20, 0) == 0
    assert lanes.place(12, 18, 1, outer=0) == 0
    assert lanes.place(17, 19, 1, outer=0) == 1
    assert lanes.place(18, 20, 1, outer=0) == 0


# --- the command ---------------------------------------------------------------------

SMALL = ["--context", "2048", "--tile", "64", "--num-pes", "2", "--size", "dim=32"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["trace", *arguments])


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace [1].json"
    result = invoke("gqa_decode", *SMALL, "-o", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text("ascii"))
    shown = found["otherData"]["shown_ops"], found["otherData"]["folded_ops"]
    assert result.stdout.splitlines() == [
        f"{path}: {len(found['traceEvents']):,} events, {path.stat().st_size:,} B",
        "{:,} ops are drawn, {:,} are in folded loops".format(*shown),
    ]


def test_the_command_says_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    asked = ["gqa_decode", *SMALL, "-o", str(path), "--max-events", "90", "--pe", "1"]
    result = invoke(*asked)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text("ascii"))
    about = found["otherData"]
    assert len(found["traceEvents"]) <= 90 and about["pes"] == [1]
    cut = about["dropped_ops"] - about["unselected_ops"]
    assert f"{cut:,} ops are left out: those that start at" in result.stdout
    assert f"{about['unselected_ops']:,} ops are left out: those of" in result.stdout
    report = json.loads(invoke(*asked, "--json").stdout)
    for name in ("shown_ops", "folded_ops", "dropped_ops", "cut_ns", "summary"):
        assert report[name] == about[name]
    assert report["events"] == len(found["traceEvents"])
    assert report["schema_version"] == trace.SCHEMA_VERSION
    assert report["sizes"] == {"context": 2048, "tile": 64, "num_pes": 2, "dim": 32}
    assert report["summary"]["schema_version"] == op_log.SCHEMA_VERSION


def test_the_command_writes_to_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert invoke("gqa_decode", *SMALL, "-o", str(path)).exit_code == 0
    result = invoke("gqa_decode", *SMALL, "-o", "-")
    assert result.exit_code == 0
    assert result.stdout == path.read_text("ascii")
    assert "ops are drawn" in result.stderr
    both = invoke("gqa_decode", *SMALL, "-o", "-", "--json")
    assert both.exit_code == 2 and "standard output" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "parts"),
    [
        (["gqa_decod"], "KernelError", ["no kernel 'gqa_decod'"]),
        (["gqa_decode", "--tile", "0"], "ShapeError", ["tile", "positive"]),
        (["gqa_decode", *SMALL, "--pe", "2"], "ShapeError", ["no such PE", "0 to 1"]),
        (
            ["gqa_decode", *SMALL, "-o", "/no/such/folder/t.json"],
            "KbjaxError",
            ["cannot write /no/such/folder/t.json", "No such file", "folder"],
        ),
        (["gqa_decode", *SMALL, "-o", "/dev/full"], "KbjaxError", ["No space left"]),
    ],
)
def test_the_command_refuses(
    arguments: list[str], kind: str, parts: list[str], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("kept")
    output = [] if "-o" in arguments else ["-o", str(kept)]
    result = invoke(*arguments, *output)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"{kind}: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert all(part in result.stderr for part in parts)
    error = json.loads(invoke(*arguments, *output, "--json").stdout)["error"]
    assert f"{error['class']}: {error['message']}" == result.stderr.strip()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["gqa_decode"], ["gqa_decode", "-o", "x", "--max-events", "0"],
     ["gqa_decode", "-o", "x", "--pe", "first"]],
)  # fmt: skip
def test_a_command_line_that_cannot_be_read(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2 and "Traceback" not in result.output


def test_ctrl_c_in_the_command(tmp_path: Path, monkeypatch: Any) -> None:
    def interrupted(*_: Any) -> Any:
        yield "{"
        raise KeyboardInterrupt

    monkeypatch.setattr("kbjax.chrome.file", interrupted)
    path = tmp_path / "trace.json"
    path.write_text("kept")
    result = invoke("gqa_decode", *SMALL, "-o", str(path))
    assert result.exit_code not in (0, 2) and "Traceback" not in result.output
    assert [p.read_text() for p in tmp_path.iterdir()] == ["kept"]
