"""What a study's results are drawn as: the report, in a real browser, and plots."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kbjax as kb
from kbjax import (
    catalogue,
    cli,
    report_study,
    study_curves,
    study_plots,
    study_run,
    study_store,
)
from kbjax.study import Study
from kbjax.study_row import DOES_NOT_FIT, FIGURES, StudyRow
from kbjax.study_status import Status
from kbjax.study_table import StudyTable
from tests.browser import Browser, chromium
from tests.test_study import invoke, toml

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


def report(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["report", *arguments])


def row(number: int, parameters: dict[str, Any], **figures: Any) -> StudyRow:
    status = Status(figures.pop("status", "done"))
    known = {**dict.fromkeys(FIGURES), "budget_bytes": 1 << 20, **figures}
    return StudyRow(number, parameters, status, 1, known, {})


def table(axes: dict[str, list[Any]], rows: list[StudyRow]) -> StudyTable:
    return StudyTable({"name": EVIL, "axes": axes}, rows)


def hostile() -> StudyTable:
    axes = {"kernel": ["gqa", EVIL], "context": [256, 512, 4096]}
    at = [(kernel, n) for kernel in axes["kernel"] for n in (4096, 256, 512)]
    return table(axes, [
        row(number, {"kernel": kernel, "context": n}, peak_scratch_bytes=1024 * n,
            total_ns=2.5 * n if n < 4096 else None, dma_utilisation=0.5,
            bytes_loaded=3 * n if n < 4096 else None, bytes_stored=n,
            fit="fits" if n < 4096 else "does not fit",
            status="done" if n < 4096 else "failed")
        for number, (kernel, n) in enumerate(at)
    ])  # fmt: skip


def test_a_study_is_its_curves_and_points(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "study.html"
    assert report_study.write(hostile(), str(path)) == path.stat().st_size
    browser.open(path)
    assert browser.complaints() == []
    assert browser.run("return document.querySelectorAll('#points tr').length") == 7
    assert browser.column("peak_scratch_bytes 0", "x") == [256, 512, 4096]
    assert browser.column("peak_scratch_bytes 1", "y") == [256, 512, 4096]
    assert browser.column("total_ns 0", "y")[:2] == [0.64, 1.28]
    assert browser.column("peak_scratch_bytes 0", "marker") == ["circle", "circle", "x"]
    assert browser.text().count(EVIL) == 5  # title, legend, and three points
    assert "does not fit" in browser.text()
    missing = """return Bokeh.documents[0].get_model_by_name("error") === null"""
    assert browser.run(missing)  # there is no panel of what is not known
    with pytest.raises(kb.KbjaxError, match="the study has no axis depth"):
        report_study.html(hostile(), "depth")
    with pytest.raises(kb.KbjaxError, match="no axis is of numbers"):
        report_study.html(table({"kernel": ["gqa"]}, [row(0, {"kernel": "gqa"})]))


def test_equal_curves_all_show(browser: Browser, tmp_path: Path) -> None:
    """The one that is drawn last is the thinnest."""
    report_study.write(hostile(), str(tmp_path / "study.html"))
    browser.open(tmp_path / "study.html")
    widths = browser.run(
        "const [doc] = Bokeh.documents;"
        "const figure = doc.get_model_by_name('peak_scratch_bytes');"
        "return figure.renderers.filter(r => r.glyph.type == 'Line')"
        ".map(r => r.glyph.line_width.value);"
    )
    assert widths == sorted(widths, reverse=True) and len({*widths}) == 2


def test_a_results_file_is_a_study(browser: Browser, tmp_path: Path) -> None:
    axes = {"kernel": ["flash_unscoped", "softmax"], "tile": [16, 32]}
    made = Study(name="few", do="plan", axes=axes)
    results, path = str(tmp_path / "few.sqlite"), tmp_path / "few.html"
    study_run.run(made, results, study_run.Options(jobs=1))
    result = report(results, "-o", str(path), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["counts"]["done"] == 4 and found["nbytes"] == path.stat().st_size
    browser.open(path)
    assert browser.complaints() == []
    assert browser.column("peak_scratch_bytes 0", "x") == [16, 32]
    refused = report(results, "-o", str(path), "--tile", "8")
    assert refused.exit_code == 2
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"SQLite format 3\0 and no more")
    broken = report(str(other), "-o", str(path))
    assert broken.exit_code == 1 and "Traceback" not in broken.output


# --- the curves, whoever draws them --------------------------------------------------


def test_curves_by_hand() -> None:
    found = study_curves.curves(hostile())
    assert (found.axis, found.x_label, found.is_log) == (
        "context", "context, tokens", True
    )  # fmt: skip
    assert found.ticks == (256, 512, 4096) and (found.lines, found.left_out) == (2, 0)
    peak, latency, moved, dma = found.panels
    assert [p.column for p in found.panels] == [
        "peak_scratch_bytes", "total_ns", "bytes_loaded + bytes_stored",
        "dma_utilisation",
    ]  # fmt: skip
    assert (peak.unit, peak.is_log, peak.budgets) == ("KiB", True, (1024.0,))
    assert [line.label for line in peak.lines] == ["gqa", EVIL]
    assert peak.lines[0].x == peak.lines[0].y == (256, 512, 4096)
    assert latency.lines[1].y[:2] == (0.64, 1.28) and math.isnan(latency.lines[1].y[2])
    assert not latency.is_log and not latency.budgets  # a factor of 2
    assert (moved.unit, moved.lines[0].y[:2]) == ("MB", (1024 / 1e6, 2048 / 1e6))
    assert math.isnan(moved.lines[0].y[2])  # one of its two is not known
    assert dma.is_share and not dma.is_log


def test_equal_lines_all_show(tmp_path: Path) -> None:
    """Each is thinner than the one that it lies on, in every panel."""
    study_plots.write(hostile(), str(tmp_path / "p.svg"))
    svg = (tmp_path / "p.svg").read_text("utf-8")
    for colour, width in (("#1f77b4", "2.2"), ("#ff7f0e", "1.5")):
        drawn = re.findall(
            rf"stroke: {colour}; stroke-width: ([\d.]+); [^\"]*line", svg
        )
        assert len(drawn) >= 4 and {*drawn} == {width}


@pytest.mark.parametrize(
    "others", [[1000.11, 1000.14], [2.00001, 2.00002], [1, "1"], [True, "True"]]
)
def test_values_that_look_alike_are_lines_of_their_own(others: list[Any]) -> None:
    axes = {"n": [40, 80], "other": others}
    at = [(n, other) for n in axes["n"] for other in others]
    rows = [
        row(i, {"n": n, "other": other}, peak_scratch_bytes=n, total_ns=1.0, fit="fits")
        for i, (n, other) in enumerate(at)
    ]
    found = table(axes, rows)
    labels = [line.label for line in study_curves.curves(found).panels[0].lines]
    assert len({*labels}) == len(labels) == 2
    assert len({tuple(cells[:3]) for cells in found.short()[1]}) == 4


@pytest.mark.parametrize(
    ("values", "is_log"),
    [([1000, 9990], False), ([1000, 10000], True), ([0, 10000], False),
     ([None, 10000], False)],
)  # fmt: skip
def test_a_decade_is_logarithmic(
    values: list[Any], is_log: bool, tmp_path: Path
) -> None:
    rows = [row(n, {"context": n}, total_ns=v) for n, v in enumerate(values)]
    found = study_curves.curves(table({"context": [0, 1]}, rows))
    (panel,) = found.panels
    assert panel.is_log == is_log and not found.is_log and found.ticks == ()
    study_plots.write(table({"context": [0, 1]}, rows), str(tmp_path / "p.svg"))


def test_both_drawings_have_the_same_lines(browser: Browser, tmp_path: Path) -> None:
    """More of them than are drawn, too: both leave out the same, and say so."""
    axes = {"depth": list(range(30)), "context": list(range(31, 62))}
    at = [(depth, n) for depth in axes["depth"] for n in axes["context"]]
    many = table(axes, [
        row(number, {"depth": depth, "context": n}, peak_scratch_bytes=depth + n)
        for number, (depth, n) in enumerate(at)
    ])  # fmt: skip
    study_plots.write(many, str(tmp_path / "p.svg"))
    svg = (tmp_path / "p.svg").read_text("utf-8")
    assert "28 of 30 curves" in svg and "depth 27" in svg and "depth 28" not in svg
    report_study.write(many, str(tmp_path / "p.html"))
    browser.open(tmp_path / "p.html")
    assert (
        browser.complaints() == [] and "2 of 30 curves are left out" in browser.text()
    )
    drawn = browser.column("peak_scratch_bytes 27", "label")
    assert drawn == ["depth 27"] * 31


def test_the_curves_of_the_report_zoom_and_move(
    browser: Browser, tmp_path: Path
) -> None:
    report_study.write(hostile(), str(tmp_path / "p.html"))
    browser.open(tmp_path / "p.html")
    of = """const models = ["peak_scratch_bytes", "total_ns"].map(
      (name) => Bokeh.documents[0].get_model_by_name(name));
    return [models[0].x_range.id === models[1].x_range.id,
            models[0].toolbar.tools.map((tool) => tool.type)];"""
    same, tools = browser.run(of)
    assert same and {"PanTool", "WheelZoomTool", "BoxZoomTool", "ResetTool"} <= {*tools}


def test_without_an_axis_of_numbers_a_plot_is_refused_at_once(tmp_path: Path) -> None:
    file = toml(
        tmp_path / "s.toml", "kernel = 'gqa_decode'\n[axes]\ndtype = ['float32']"
    )
    result = invoke(file, "--plot", str(tmp_path / "p.svg"))
    assert result.exit_code == 1 and "no axis is of numbers" in result.output
    assert [each.name for each in tmp_path.iterdir()] == ["s.toml"]
    with pytest.raises(kb.KbjaxError, match="dtype is not of numbers"):
        study_curves.axis_of({"dtype": ["float32"], "tile": [1]}, "dtype")


# --- sizes that are called as a column -----------------------------------------------

CLASH = """
from kbjax import catalogue
from kbjax.study import Study

def case(number=64, status=3, error=1, jax_version=2, *, hardware=None):
    return catalogue.make("gqa_decode", context=64 * number, num_pes=1, dim=16, tile=16,
                          hardware=hardware)

study = Study(name="clash", kernel=__file__ + ":case", do="plan",
              axes={"error": [10, 20, 90], "number": [7, 5], "status": [7]},
              sizes={"jax_version": 4})
"""


def test_sizes_that_are_called_as_a_column(browser: Browser, tmp_path: Path) -> None:
    file, sheet = toml(tmp_path / "clash.py", CLASH), tmp_path / "c.csv"
    plot, page = tmp_path / "p.svg", tmp_path / "p.html"
    result = invoke(file, "--csv", str(sheet), "--plot", str(plot), "--jobs", "1")
    assert result.exit_code == 0, result.output
    with open(sheet, newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert [r["number"] for r in rows] == ["0", "1", "2", "3", "4", "5"]
    assert [r["size.number"] for r in rows] == ["7", "5"] * 3
    assert [r["size.error"] for r in rows] == ["10", "10", "20", "20", "90", "90"]
    assert {(r["status"], r["size.status"], r["error"]) for r in rows} == {
        ("done", "7", "")
    }
    assert {r["size.jax_version"] for r in rows} == {"4"}
    assert {r["jax_version"] for r in rows} != {"4"}
    read = study_store.read(tmp_path / "clash.sqlite")
    assert dict(read.rows[3].parameters) == {
        "kernel": f"{file}:case", "jax_version": 4,
        "error": 20, "number": 5, "status": 7,
    }  # fmt: skip
    header, cells = read.short()
    assert header[:4] == ["size.error", "size.number", "size.status", "status"]
    assert cells[3][:4] == ["20", "5", "7", "done"] and "size.error" in result.output
    assert [r["size.error"] for r in read.records()] == [10, 10, 20, 20, 90, 90]
    result = report(str(tmp_path / "clash.sqlite"), "-o", str(page))
    assert result.exit_code == 0, result.output
    browser.open(page)
    assert browser.complaints() == []
    assert browser.column("peak_scratch_bytes 0", "x") == [10, 20, 90]
    for x in ("number", "status"):
        study_plots.write(read, str(plot), x)
        assert study_curves.curves(read, x).axis == x
        assert report_study.html(read, x)


def test_why_points_failed_is_on_the_page(browser: Browser, tmp_path: Path) -> None:
    """Each reason once, with its first point, and its markup as text."""
    why = [None, "boom <b>1</b>\nmore", "boom <b>1</b>", *map(str, range(6))]
    rows = [
        row(n, {"context": n}, total_ns=1.0, reason=text, reason_kind="ValueError")
        for n, text in enumerate(why)
    ]
    found = table({"context": [*range(9)]}, rows)
    told = found.reasons()
    assert told[0] == "point 1: ValueError: boom <b>1</b>"
    assert told[-1] == "2 more reasons are in the file" and len(told) == 6
    report_study.write(found, str(tmp_path / "s.html"))
    browser.open(tmp_path / "s.html")
    assert all(line in browser.text() for line in told)


def test_the_words_that_files_and_other_tools_have() -> None:
    assert [*Status] == ["done", "failed", "error", "running", "pending"]
    assert [each for each in Status if each.is_finished] == ["done", "failed", "error"]
    case = catalogue.make("flash_unscoped", context=8192)
    assert case.call.plan(*case.inputs.specs, vary=[]).verdict == DOES_NOT_FIT
