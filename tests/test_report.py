"""The report in a real browser: that it loads, is linked and inert, and how large."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner, Result

import kbjax as kb
from kbjax import catalogue, cli, report
from tests.browser import Browser, chromium

EVIL = "<script>alert(1)</script>"
HOSTILE = f'''
def hostile(tl, x, out):
    note = "</script><img src=x onerror=alert(2)> {{{{ 7*7 }}}} $$x$$"
    with tl.scratch_scope("{EVIL}"):
        tile = tl.load(x)
        tl.store(out, tile * 2.0)
'''


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["report", *arguments])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "gqa.html"
    result = invoke("gqa_decode", "--context", "1048576", "-o", str(path))
    assert result.exit_code == 0, result.output
    return path


def test_a_million_tokens_load_without_a_complaint(
    browser: Browser, page: Path
) -> None:
    assert page.stat().st_size < 3_000_000
    browser.open(page)
    assert browser.complaints() == []
    text = browser.text()
    for part in ("gqa_decode", "12,455.393 us", "limited by", "PE 0 of 8",
                 "attention.attend(tl, state, qh, tiles, j)", "critical path",
                 "held at the peak", "folded iterations"):  # fmt: skip
        assert part in text, part
    # It asks for nothing: no link, image or script of another file.
    wants = "return document.querySelectorAll('[src],link,iframe,object').length"
    assert browser.run(wants) == 0
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_pointing_at_a_buffer_tells_of_it_and_lights_its_line(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    column = functools.partial(browser.column, "buffers")
    what, left, used = column("what"), column("left"), column("used")
    bottom, top = column("bottom"), column("top")
    keys = [n for n, text in enumerate(what) if text == "load float32[128,128]"]
    chosen = keys[2]
    browser.point_at(
        "memory", (left[chosen] + used[chosen]) / 2, (bottom[chosen] + top[chosen]) / 2
    )
    browser.wait("return document.querySelector('tr.lit')")
    text = browser.text()
    for cell in ("what", "bytes", "time", "where", "scope", "uses"):
        assert column(cell)[chosen] in text, cell
    lit = browser.run("return document.querySelector('tr.lit').dataset.line")
    assert int(lit) == column("line")[chosen]
    assert "tl.load" in browser.run("return document.querySelector('tr.lit').innerText")


def test_pointing_at_a_line_lights_its_buffers_and_ops(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    for line in sorted(set(browser.column("buffers", "line")))[:4]:
        row = f'#source tr[data-line="{line}"]'
        browser.move_to(row)
        browser.wait(f"return document.querySelector('{row}').matches(':hover')")
        for source in ("buffers", "ops"):
            lines = browser.column(source, "line")
            want = [n for n, other in enumerate(lines) if other == line]
            assert browser.selected(source) == want
            assert want and len(want) < len(lines)
    browser.move_to("h1")
    browser.wait("return !document.querySelector('#source tr:hover')")
    assert browser.selected("buffers") == []
    row = f'#source tr[data-line="{line}"]'
    browser.run(f"document.querySelector('{row}').click()")
    browser.move_to("h1")
    assert browser.selected("buffers")  # it is kept


def test_the_figures_move_together(browser: Browser, page: Path) -> None:
    browser.open(page)
    ends = """const doc = Bokeh.documents[0];
    return ["memory", "engines"].map((name) => doc.get_model_by_name(name).x_range.end)
    """
    before = browser.run(ends)
    assert before[0] == before[1]
    zoom = """Bokeh.documents[0].get_model_by_name("memory").x_range.end /= 3;"""
    browser.run(zoom)
    after = browser.run(ends)
    assert after[0] == after[1] == pytest.approx(before[0] / 3)
    browser.run("document.getElementById('whole').click()")
    top = "return Bokeh.documents[0].get_model_by_name('memory').y_range.end"
    assert browser.run(top) > 1024
    browser.run("document.getElementById('fit').click()")
    assert browser.run(top) < 300
    assert browser.complaints() == []


def test_what_users_name_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "a<b>&'\"$$x$$.py"
    file.write_text(HOSTILE, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(HOSTILE, str(file), "exec"), names)
    tile = jax.ShapeDtypeStruct((8, 128), "float32")
    names["hostile"].__name__ = EVIL
    call = kb.kernel_call(names["hostile"], tile)
    made = report.of(call, tile, title=EVIL, sizes=EVIL, hardware=EVIL)
    path = tmp_path / "page.html"
    made.write(str(path))
    browser.open(path)
    assert browser.complaints() == []
    with pytest.raises(Exception, match="no such alert"):
        browser.driver.switch_to.alert.accept()
    assert browser.run("return document.querySelectorAll('img').length") == 0
    left, used = (browser.column("buffers", n)[0] for n in ("left", "used"))
    bottom, top = (browser.column("buffers", n)[0] for n in ("bottom", "top"))
    browser.point_at("memory", (left + used) / 2, (bottom + top) / 2)
    browser.wait("return document.querySelector('tr.lit')")
    text = browser.text()
    assert text.count(EVIL) >= 6  # title, sizes, hardware, source, plan, tooltip
    assert f"scope '{EVIL}' of {file.name}" in text
    assert "</script><img src=x onerror=alert(2)> {{ 7*7 }} $$x$$" in text
    assert browser.run("return document.title").startswith(EVIL)
    assert browser.complaints() == []
    with pytest.raises(Exception, match="no such alert"):
        browser.driver.switch_to.alert.accept()


def test_a_kernel_that_overflows_has_a_report(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "over.html"
    result = invoke("flash_unscoped", "--context", "131072", "-o", str(path))
    assert result.exit_code == 1 and path.exists(), result.output
    browser.open(path)
    assert browser.complaints() == []
    text = browser.text()
    assert "TLContext scratch overflow: trans" in text
    assert "does not fit" in text and "overflows" in text
    case = catalogue.make("flash_unscoped", context=131072)
    with pytest.raises(kb.ScratchOverflowError) as refused:
        case.call.record(*case.inputs.specs)
    found = refused.value.overflow
    by = found.cursor_bytes + found.aligned_bytes - found.budget_bytes
    assert f"by {by:,} B" in text
    rows = "return document.getElementById('summary').innerText"
    summary = browser.run(rows)
    for part in (f"{by:,} B: it asks for {found.aligned_bytes:,} B",
                 f"{found.free_bytes:,} of 1,048,576 B are free",
                 f"iteration {found.loops[0].iteration} of the loop at",
                 f"{refused.value.site}", f"{found.live_bytes:,} B, with this tile",
                 "440,565,904 B, 439,517,328 B over the budget"):  # fmt: skip
        assert part in summary, part
    tops = browser.column("buffers", "top")
    assert max(tops) > 1024 and sum(top > 1024 for top in tops) == 1


def test_several_pes_and_json(tmp_path: Path) -> None:
    path = tmp_path / "ring.html"
    size = ("ring_gqa", "--context", "256", "--num-pes", "4", "-o", str(path))
    result = invoke(*size, "--pe", "2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["pe"] == 2 and found["nbytes"] == path.stat().st_size
    assert "PE 2 of 4" in " ".join(found["notes"])
    assert "PE 2 of 4" in path.read_text("utf-8")
    refused = invoke(*size, "--pe", "4")
    assert refused.exit_code == 1 and "no such PE" in refused.output


def test_the_number_of_rectangles_is_bounded() -> None:
    case = catalogue.make("gqa_decode", context=2048, num_pes=1)
    made = report.of(case.call, *case.inputs.specs, most_ops=100)
    drawn = len(made.map.ops) + len(made.map.bands)
    assert drawn == 100 and len(made.map.buffers) <= 100
    left = len(made.log) - len(made.map.ops) - sum(b.ops for b in made.map.bands)
    assert made.map.dropped_ops == left > 0
    assert any(f"{left:,} ops are left out" in note for note in made.notes())


def test_a_full_page_is_small() -> None:
    """The most rectangles there can be."""
    case = catalogue.make("flash_prefill", context=1024, queries=512, tile=8, block=64)
    made = report.of(case.call, *case.inputs.specs)
    assert len(made.map.ops) + len(made.map.bands) == report.MOST_OPS
    assert len(made.html()) < 10_000_000


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    result = invoke("flash_unscoped", "-o", str(tmp_path / "none" / "page.html"))
    assert result.exit_code == 1
    assert "cannot write" in result.output and "Traceback" not in result.output
    both = invoke("flash_unscoped", "-o", "-", "--json")
    assert both.exit_code == 2
    said = invoke("flash_unscoped", "-o", "-")
    assert said.exit_code == 0 and said.stdout.startswith("<!DOCTYPE html>")
    assert "standard output: " in said.stderr


def test_without_bokeh_the_refusal_names_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['bokeh'] = None\nfrom kbjax import cli; cli.main()"
    path = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "flash_unscoped", "-o", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and not path.exists()
    assert "pip install 'kbjax[report]'" in done.stderr
    assert "Traceback" not in done.stderr
