"""The summary against the op_log's rows; folds, filters and slices, too."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.op_log import COLUMNS, MORE_COLUMNS, OpLog, OpRecord
from tests.timing_programs import timing_kernel

ALL = [*COLUMNS, *MORE_COLUMNS]
SEEDS = range(24)


def random_log(seed: int) -> OpLog:
    drawn = timing_kernel(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return drawn.call.op_log(*drawn.inputs)  # type: ignore[no-any-return]


def same(log: OpLog, columns: dict[str, np.ndarray], rows: Any) -> None:
    found = log.columns(ALL)
    for name in ALL:
        assert found[name].tolist() == columns[name][rows].tolist(), name


@pytest.mark.parametrize("seed", SEEDS)
def test_figures_are_those_of_the_rows(seed: int) -> None:
    log = random_log(seed)
    rows, summary, pes = log.columns(ALL), log.summary(), log.program.num_pes
    took = rows["end_ps"] - rows["start_ps"]
    total = int(rows["end_ps"].max(initial=0))
    assert summary.total_ns == log.total_ns == total / 1000
    assert summary.commands == len(log)
    for name, use in summary.engines.items():
        mine = rows["engine"] == name
        assert use.commands == mine.sum()
        assert use.busy_ns == took[mine].sum() / 1000
        assert use.utilisation == (took[mine].sum() / (total * pes) if total else 0)
        flops = {"gemm": summary.gemm_flops, "math": summary.math_flops}.get(name, 0)
        assert flops == rows["flops"][mine].sum()
    loaded, stored = (rows["nbytes"][rows["op_name"] == n].sum() for n in LOAD_STORE)
    assert (summary.bytes_loaded, summary.bytes_stored) == (loaded, stored)
    for cause, stalled_ns in summary.stalls_ns.items():
        mine = rows["waits_for"] == cause
        assert stalled_ns == rows["waited_ps"][mine].sum() / 1000
    assert summary.roofline_ns <= summary.total_ns * (1 + 1e-12)


LOAD_STORE = ("load", "store")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_row_waited_for(seed: int) -> None:
    """Its start is the end of `after`; and as long as `waited_ps` says before, all but
    what it waited for was ready."""
    log = random_log(seed)
    rows = log.columns(ALL)
    for n, after in enumerate(rows["after"].tolist()):
        cause, waited = rows["waits_for"][n], int(rows["waited_ps"][n])
        if after < 0:
            assert (rows["start_ps"][n], cause, waited) == (0, "", 0)
            continue
        assert after < n and rows["pe"][after] == rows["pe"][n]
        assert rows["end_ps"][after] == rows["start_ps"][n]
        before = np.flatnonzero(
            (rows["engine"][:n] == rows["engine"][n])
            & (rows["pe"][:n] == rows["pe"][n])
        )
        free = int(rows["end_ps"][before[-1]]) if len(before) else 0
        idle = int(rows["start_ps"][n]) - free
        if cause == "engine":
            assert idle == 0 and after == before[-1]
        elif cause == "operand":
            assert waited == idle
        else:
            assert cause == "hazard" and 0 <= waited <= idle


@pytest.mark.parametrize("seed", SEEDS)
def test_the_critical_path_is_the_chain_of_rows(seed: int) -> None:
    log = random_log(seed)
    rows, summary = log.columns(ALL), log.summary()
    if not len(log):
        assert summary.critical_path == () and summary.limited_by == "nothing"
        return
    total = int(rows["end_ps"].max())
    ends = [
        int(rows["end_ps"][rows["pe"] == pe].max(initial=0))
        for pe in range(log.program.num_pes)
    ]
    mine = np.flatnonzero(rows["pe"] == ends.index(total))
    # Of rows that end together, the last: the scheduler's choice of equal paths.
    number = int(mine[rows["end_ps"][mine] == total].max())
    times: Counter[tuple[str, int, str]] = Counter()
    waits: Counter[str] = Counter()
    while number >= 0:
        took = int(rows["end_ps"][number] - rows["start_ps"][number])
        site = rows["file"][number], int(rows["line"][number]), rows["op_name"][number]
        times[site] += took
        waits[rows["waits_for"][number] or "start"] += took
        number = int(rows["after"][number])
    assert sum(times.values()) == total
    found = {
        (line.file, line.line, line.op_name): line.time_ns
        for line in summary.critical_path
    }
    assert found == {site: time / 1000 for site, time in times.items()}
    shares = {n: s for n, s in summary.critical_waits.items() if s}
    assert shares == {n: time / total for n, time in waits.items() if time}
    assert sum(summary.critical_shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_slices_and_filters_are_rows_of_the_whole(seed: int) -> None:
    log = random_log(seed)
    rows, rng = log.columns(ALL), np.random.default_rng(seed)
    for _ in range(4):
        first, stop = sorted(rng.integers(0, len(log) + 1, 2).tolist())
        same(log[first:stop], rows, slice(first, stop))
    pieces = list(log.chunks(7))
    for name in COLUMNS:
        joined = [cell for piece in pieces for cell in piece[name].tolist()]
        assert joined == rows[name].tolist()
    few = list(log.chunks(7, ["end_ps", "pe"]))
    assert [list(piece) for piece in few] == [["end_ps", "pe"]] * len(pieces)
    ends = np.concatenate([piece["end_ps"] for piece in few])
    assert ends.tolist() == log.columns(["end_ps"])["end_ps"].tolist()
    for name in ("engine", "op_name", "pe", "file", "line"):
        for value in set(rows[name].tolist()):
            same(log.filter(**{name: value}), rows, rows[name] == value)
    loops = [dict(p.split("=") for p in r.split(";") if p) for r in rows["loop"]]
    for name in {name for one in loops for name in one}:
        at = np.array([int(one.get(name, -1)) for one in loops])
        most = int(at.max())
        first, stop = sorted(rng.integers(0, most + 2, 2).tolist())
        same(log.filter(loop={name: most}), rows, at == most)
        kept = (at >= first) & (at < stop)
        same(log.filter(loop={name: range(first, stop)}), rows, kept)
        mixed = log.filter(engine="dma", loop={name: range(first, stop)})
        same(mixed, rows, kept & (rows["engine"] == "dma"))


@pytest.mark.parametrize("seed", SEEDS)
def test_folds_are_steady_iterations(seed: int) -> None:
    log = random_log(seed)
    rows, end = log.columns(ALL), 0
    for fold in log.folds():
        assert end <= fold.first_row < fold.stop_row <= len(log)
        end = fold.stop_row
        inside = slice(fold.first_row, fold.stop_row)
        assert set(rows["pe"][inside].tolist()) == {fold.pe}
        assert fold.start_ns == rows["start_ns"][inside].min()
        assert fold.end_ns == rows["end_ns"][inside].max()
        found = {
            dict(p.split("=") for p in text.split(";"))[fold.loop]
            for text in rows["loop"][inside]
        }
        assert len(found) == fold.iterations


def _stream(tl: Any, x: Any, o: Any) -> None:
    t = tl.load(x[0, 0])
    for i in tl.range(x.shape[0]):
        for j in tl.range(x.shape[1]):
            tl.store(o[i, j], t)


def test_rows_that_no_memory_holds_are_looked_at_without_expanding() -> None:
    """FC-35, phase 1: rows, totals and reports of 2^32 iterations: counters
    pass 2^31."""
    side = 1 << 16
    count = side * side
    tensor = jax.ShapeDtypeStruct((side, side, 4), "float32")
    log = kb.kernel_call(_stream, tensor).op_log(tensor)
    each = log.program.hardware.pe_dma.transfer_ps(16)
    assert log[-1].op == count
    assert log.total_ns == (count + 1) * each / 1000
    row = log[-1]
    assert (row.loop, row.dst_addr) == (
        f"i={side - 1};j={side - 1}", f"o+{(count - 1) * 16}",
    )  # fmt: skip
    assert (row.start_ns, row.end_ns) == (count * each / 1000, log.total_ns)
    assert log.filter(loop={"i": side // 2, "j": 3})[0].op == count // 2 + 4
    summary = log.summary()
    assert summary.bytes_stored == count * 16
    assert summary.engines["dma"].commands == summary.commands == count + 1
    path_ns = sum(line.time_ns for line in summary.critical_path)
    assert path_ns == pytest.approx(log.total_ns, rel=1e-15)
    folds = log.folds()
    assert max(fold.iterations for fold in folds) > side - 20
    shown = count + 1 - sum(fold.stop_row - fold.first_row for fold in folds)
    assert shown < 200


def test_refusals_of_the_log() -> None:
    tensor = jax.ShapeDtypeStruct((4, 4, 4), "float32")
    log = kb.kernel_call(_stream, tensor).op_log(tensor)
    with pytest.raises(kb.KernelError, match=r"no column 'star_ns'.*start_ns"):
        log.columns(["star_ns"])
    with pytest.raises(kb.KernelError, match="no loop 'k'"):
        log.filter(loop={"k": 1})
    for wrong in (range(0, 4, 2), [3, 5], 3.0):
        with pytest.raises(kb.ShapeError, match=r"loop 'i' are .*step 1"):
            log.filter(loop={"i": wrong})
    assert list(log.filter(loop={"i": np.int64(3)})) == list(log.filter(loop={"i": 3}))
    with pytest.raises(kb.ShapeError, match="step 1"):
        log[::2]
    with pytest.raises(kb.ShapeError, match="no such PE"):
        log.filter(pe=1)
    assert len(log[5:2]) == 0 and list(log[5:2]) == []


def test_a_report_for_people() -> None:
    case = catalogue.make("gqa_decode", context=4096, num_pes=1)
    log = case.call.op_log(*case.inputs.specs)
    text, page = str(log.summary()), log._repr_html_()
    for part in ("limited by    ", "critical path", "stalls", "roofline", "times that"):
        assert part in text, part
    assert page.startswith("<table>") and "limited by" in page and "<script" not in page
    assert isinstance(log[0], OpRecord)


def test_a_walked_loop_says_why() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((4, 4))
        for i in tl.range(80):
            for _ in tl.range(i):
                with tl.scratch_scope():
                    tl.copy_to(total, total + tl.load(x))
        tl.store(o, total)

    tensor = jax.ShapeDtypeStruct((4, 4), "float32")
    log = kb.kernel_call(kernel, tensor).op_log(tensor)
    (walk,) = log.walks
    assert walk.iterations == 80 and "trip count" in walk.reason
    assert str(walk) in log.summary().to_dict()["walks"]
