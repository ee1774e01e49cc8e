"""Studies: what a file may say, what is recorded and written, hostile files."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from kbjax import (
    cli,
    errors,
    study_plots,
    study_run,
    study_schema,
    study_source,
    study_store,
)
from kbjax.study import Study
from kbjax.study_schema import differences

ROOT = Path(__file__).resolve().parents[1]
SIX = {"name": "six", "kernel": "gqa_decode", "do": "plan",
       "sizes": {"num_pes": 1, "dim": 16, "tile": 16},
       "axes": {"context": {"from": 64, "to": 2048, "factor": 2}}}  # fmt: skip
ONE = study_run.Options(jobs=1)


def six(**changed: Any) -> Study:
    return Study(**{**SIX, **changed})


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["study", *arguments])


def toml(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The results file of the six points, all done."""
    path = tmp_path_factory.mktemp("six") / "r.sqlite"
    study_run.run(six(), path, ONE)
    return path.read_bytes()


# --- what a study says ---------------------------------------------------------------


def test_points_are_the_product_in_order() -> None:
    study = six(axes={"buffers": [1, 2], "context": {"from": 64, "to": 192, "step": 64},
                      "pe_tcm.kernel_scratch_mb": [1, 0.5]})  # fmt: skip
    points = list(study.points())
    assert len(points) == len(study) == 12
    found = [(p.sizes["buffers"], p.sizes["context"],
              p.hardware.pe_tcm.kernel_scratch_mb) for p in points]  # fmt: skip
    assert found == [
        (b, c, m) for b in (1, 2) for c in (64, 128, 192) for m in (1, 0.5)
    ]
    assert len({p.key for p in points}) == 12
    assert [p.number for p in points] == list(range(12))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kernal = 'x'", "a study has no 'kernal'.*nearest is kernel"),
        ("kernel = 'a'\nnot toml", "not TOML"),
        ("kernel = 'gqa_decode'", "no axes"),
        ("[axes]\ncontext = [1]", "has a kernel, or an axis"),
        ("kernel = 'a'\n[axes]\ncontext = []", "no values"),
        ("kernel = 'a'\n[axes]\ncontext = [1, 1]", "a value twice"),
        (
            "kernel = 'a'\n[axes]\ncontext = {form = 1, to = 2, step = 1}",
            "nearest is fr",
        ),
        ("kernel = 'a'\n[axes]\ncontext = {from = 1, to = 9e17, step = 1}", "too many"),
        ("kernel = 'a'\n[axes]\ncontext = {from = 1, to = 2, factor = 1}", "factor"),
        ("kernel = 'a'\n[axes]\ncontext = [nan]", "is no size"),
        ("kernel = 'a'\n[axes]\ncontext = [1979-05-27]", "is no size"),
        (f"kernel = 'a'\n[axes]\ncontext = [{10**30}]", "is no size"),
        ("kernel = 'a'\n[axes]\n'pe_tmc.align' = [16]", "nearest is pe_tcm"),
        ("kernel = 'a'\n[axes]\npe_tcm.aling = [16]", "nearest is align"),
        ("kernel = 'a'\n[axes]\npe_tcm.align = [0]", "out of range"),
        ("kernel = 'a'\ndo = 'rum'\n[axes]\nx = [1]", "nearest is run"),
        ("kernel = 'a'\nseed = -1\n[axes]\nx = [1]", "seed"),
        ("kernel = 'a'\nname = \"a\\u001b[31m\"\n[axes]\nx = [1]", "printable"),
        ("kernel = 'evil.py:case'\n[axes]\nx = [1]", "runs no files of code"),
        ("kernel = 'rmsnrm'\n[axes]\nx = [1]", "The nearest is rmsnorm"),
        ("kernel = 'a'\nhardware = 'nope'\n[axes]\nx = [1]", "no hardware profile"),
        ("kernel = 'a'\n[sizes]\nx = 1\n[axes]\nx = [1]", "given twice"),
        ("a = " + "[" * 5000, "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_and_names_it(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w')", encoding="utf-8")
    file = toml(tmp_path / "s.toml", text)
    with pytest.raises(errors.KbjaxError, match=f"(?s){says}") as caught:
        study_source.from_toml(file)
    assert file in str(caught.value)
    result = invoke(file)
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["evil.py", "s.toml"]


def test_a_size_that_there_is_none_of_is_refused_before_the_first_point(
    tmp_path: Path,
) -> None:
    results = tmp_path / "r.sqlite"
    for changed, says in (
        ({"sizes": {"num_pse": 1}}, "nearest is num_pes"),
        ({"kernel": "gqa_decod"}, "nearest is gqa_decode"),
    ):
        with pytest.raises(errors.KernelError, match=says):
            study_run.run(six(**changed), results, ONE)
    assert list(tmp_path.iterdir()) == []


def test_what_differs_is_told() -> None:
    here = six().to_dict()
    assert differences(here, here) == []
    other = six(seed=3, sizes={**SIX["sizes"], "tile": 32}).to_dict()
    assert differences(other, here) == [
        "seed: 3 there, 0 here", "sizes.tile: 32 there, 16 here"
    ]  # fmt: skip


# --- FC: six points ------------------------------------------------------------------


def test_six_points_and_what_is_written(tmp_path: Path) -> None:
    """Overflow at the last ones is a row with its reason; rerunning changes nothing;
    another study is refused."""
    study = six(kernel="flash_unscoped", do="run", name="a [b]x[/b] =1",
                axes={"context": [256, 512, 4096, 1024, 8192, 64]})  # fmt: skip
    path = tmp_path / "r.sqlite"
    table = study_run.run(study, path, ONE)
    assert table.counts == {"done": 4, "failed": 2, "error": 0, "running": 0,
                            "pending": 0}  # fmt: skip
    assert [row.parameters["context"] for row in table.rows] == [
        256,
        512,
        4096,
        1024,
        8192,
        64,
    ]
    failed = table.rows[2].figures
    assert failed["reason_kind"] == "ScratchOverflowError" and table.is_good
    assert failed["reason"].startswith("TLContext scratch overflow:")
    assert failed["peak_scratch_bytes"] > failed["budget_bytes"]
    good, versions = table.rows[0].figures, table.rows[0].versions
    assert good["verdict"] == "pass" and 0 < good["error"] <= good["tolerance"]
    assert versions["jax"] and good["seed"] == 0 and good["wall_s"] > 0
    assert study_run.run(study, path, ONE).rows == table.rows
    with pytest.raises(errors.KbjaxError, match=r"another study.*do: 'run' there"):
        study_run.run(six(kernel="flash_unscoped", do="plan", name=study.name,
                          axes=study.axes), path, ONE)  # fmt: skip
    assert study_store.read(path).rows == table.rows

    for target in ("t.csv", "t.json", "t.parquet"):
        getattr(table, f"to_{target[2:]}")(str(tmp_path / target))
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["context"]) for row in rows] == [
        r.parameters["context"] for r in table.rows
    ]
    assert rows[2]["reason"] == failed["reason"]
    report = json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert report["schema_version"] and report["rows"] == table.records()
    import pyarrow.parquet

    read = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert read["total_ns"] == table.columns()["total_ns"]

    shown = invoke(str(path))
    assert shown.exit_code == 0 and "a [b]x[/b] =1" in shown.output  # no markup
    assert "does not fit" in shown.output and "r.sqlite" in shown.output
    assert "<b>" not in table._repr_html_()
    for kind in ("svg", "png"):
        study_plots.write(table, str(tmp_path / f"p.{kind}"))
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")


# --- hostile files -------------------------------------------------------------------


@pytest.mark.parametrize("what", ["csv", "folder", "other tables", "trigger", "torn"])
def test_a_file_that_is_no_results_file_is_refused_unchanged(
    what: str, tmp_path: Path, complete: bytes
) -> None:
    path = tmp_path / "r.sqlite"
    if what == "csv":
        path.write_text("=cmd|'/c calc',1\n" * 9, encoding="utf-8")
    elif what == "folder":
        path.mkdir()
    elif what == "torn":
        path.write_bytes(complete[:5000])
    else:
        if what == "trigger":
            path.write_bytes(complete)
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE t (x)")
            if what == "trigger":
                db.execute("DROP TABLE t")
                db.execute("CREATE TRIGGER e AFTER UPDATE ON points BEGIN "
                           "DELETE FROM points; END")  # fmt: skip
        db.close()
    before = path.read_bytes() if path.is_file() else b""
    for work in (
        lambda: study_run.run(six(), path, ONE),
        lambda: study_store.read(path),
    ):
        with pytest.raises(errors.KbjaxError, match=r"r\.sqlite"):
            work()
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_damaged_cells_and_hostile_text(tmp_path: Path, complete: bytes) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(complete)

    def changed(column: str, value: str) -> None:
        with sqlite3.connect(path) as db:
            db.execute(f"UPDATE points SET {column} = ? WHERE number = 1", (value,))
        db.close()

    changed("reason", "=HYPERLINK(\"x\"), '[red]'\x1b[31m<script>")
    table = study_store.read(path)
    target = tmp_path / "t.csv"
    table.to_csv(target)
    with open(target, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[1]["reason"].startswith("'=HYPERLINK") and "[red]" in rows[1]["reason"]
    shown = invoke(str(path))
    assert "\x1b[31m" not in shown.output and "'[red]'" in shown.output
    for column, value in (("key", "[" * 99_999), ("key", "{"), ("status", "odd"),
                          ("key", '{"a": []}')):  # fmt: skip
        changed(column, value)
        with pytest.raises(errors.KbjaxError, match="damaged"):
            study_store.read(path)


@pytest.mark.parametrize("output", ["none/r.sqlite", "/proc/r.sqlite", "."])
def test_an_unwritable_path_is_refused_before_the_first_point(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = toml(tmp_path / "slow.py", "from kbjax.study import Study\n"
                f"study = Study(**{SIX!r})")  # fmt: skip
    result = invoke(file, "-o", output)
    assert result.exit_code == 1 and output in result.output
    result = invoke(file, "--csv", "none/x.csv")
    assert result.exit_code == 1 and "none/x.csv" in result.output
    assert [each.name for each in tmp_path.iterdir()] == ["slow.py"]


def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not grow: a message, what was there stays, and it resumes."""
    path = tmp_path / "r.sqlite"
    store = study_store.Store(str(path), six())
    claim = store.claim()
    assert claim is not None
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    row = {"status": "failed", "reason": "x" * 100_000}
    with pytest.raises(errors.KbjaxError, match=r"r\.sqlite: database or disk is full"):
        store.finish(claim, row)
    store.release()
    store.close()
    assert study_run.run(six(), path, ONE).counts["done"] == 6


def test_a_file_system_without_a_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network's: refused, and nothing is recorded there. SQLite's way to lock by
    files has no shared memory, as such a file system has none."""
    real, path = study_schema.connected, tmp_path / "r.sqlite"
    monkeypatch.setattr(
        study_schema, "connected", lambda p, query: real(p, query + "&vfs=unix-dotfile")
    )
    with pytest.raises(errors.KbjaxError, match=r"no write-ahead log.*local disk"):
        study_run.run(six(), path, ONE)
    assert path.stat().st_size == 0
    monkeypatch.undo()
    assert study_run.run(six(), path, ONE).counts["done"] == 6
    assert os.listdir(tmp_path) == ["r.sqlite"]  # one file, as the page says


def test_a_claim_of_this_process_that_was_not_given_back(tmp_path: Path) -> None:
    """As where the disk was full: another run of the same process does the point, but
    never one that is still worked on."""
    path = str(tmp_path / "r.sqlite")
    lost, other = study_store.Store(path, six()), study_store.Store(path, six())
    assert lost.claim() == (0, 1) and other.claim() == (1, 1)
    lost.release = lambda: None  # type: ignore[method-assign]
    lost.close()
    assert [other.claim() for _ in range(5)] == [(n, 1) for n in range(2, 6)] + [(0, 2)]
    third = study_store.Store(path, six())
    assert third.claim() is None and third.others_run()
    third.release()
    third.close()
    other.close()
    assert study_run.run(six(), path, ONE).counts["done"] == 6


def test_a_lost_claim_records_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "r.sqlite")
    first, second = study_store.Store(path, six()), study_store.Store(path, six())
    claim = first.claim()
    assert claim == (0, 1)
    with sqlite3.connect(path) as db:  # as of a process that is no more
        db.execute("UPDATE points SET owner = 'elsewhere|1|1', heartbeat = 0 "
                   "WHERE number = 0")  # fmt: skip
    db.close()
    assert not first.finish(claim, {"status": "done"})
    for number in range(1, 6):
        assert second.claim() == (number, 1)
    assert second.claim() == (0, 2)
    first.close()
    second.close()


def test_a_locale_without_its_letters(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    study_run.run(six(name="\xe9t\xe9"), path, ONE)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "kbjax", "study", str(path)],
        cwd=ROOT, capture_output=True, env={**os.environ, **ascii_only},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"\\xe9t\\xe9: 6 of 6 points" in done.stdout


def test_no_jax_to_make_and_show_a_study(tmp_path: Path, complete: bytes) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(complete)
    program = (
        "import sys\n"
        "from kbjax import study_plots, study_run, study_show, study_store\n"
        f"from kbjax.study import Study\n"
        f"study = Study(**{SIX!r})\n"
        f"study_show.print_table(study_run.run(study, {str(path)!r}))\n"
        f"table = study_store.read({str(path)!r})\n"
        f"table.to_csv({str(tmp_path / 't.csv')!r})\n"
        f"study_plots.write(table, {str(tmp_path / 't.svg')!r})\n"
        "sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "6 of 6 points" in done.stdout and (tmp_path / "t.svg").exists()
