"""Where a study's exports may go, and axes that give what kernels take."""

from __future__ import annotations

import csv
import dataclasses
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kbjax as kb
from kbjax import cli, study_run, study_store
from tests.test_study import ONE, invoke, six, toml

TEXT = """kernel = "gqa_decode"
do = "plan"
hardware = "hw.toml"
[axes]
tile = [16]
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--csv", "s.toml"], "the study"),
        (["--parquet", "./s.toml"], "the study"),
        (["--csv", "s.sqlite"], "the results"),
        (["-o", "a.sqlite", "--csv", "a.sqlite"], "the results"),
        (["-o", "a.sqlite", "--csv", "a.sqlite-wal"], "the wal of a.sqlite"),
        (["--csv", "link.csv"], "the study"),
        (["--csv", "hard.csv"], "the study"),
        (["--csv", "hw.toml"], "the hardware hw.toml"),
        (["--csv", "x.csv", "--parquet", "x.csv"], "--csv"),
    ],
)
def test_an_export_takes_the_place_of_nothing(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    toml(tmp_path / "s.toml", TEXT)
    toml(tmp_path / "hw.toml", "[pe_tcm]\nkernel_scratch_mb = 2\n")
    os.symlink("s.toml", "link.csv")
    os.link("s.toml", "hard.csv")
    before = sorted(os.listdir())
    result = invoke("s.toml", *arguments)
    assert result.exit_code == 1 and f"take the place of {says}" in result.output
    assert Path("s.toml").read_text("utf-8") == TEXT and sorted(os.listdir()) == before


def test_results_are_not_replaced_by_their_own_export(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    study_run.run(six(), path, ONE)
    before = path.read_bytes()
    for option in ("--csv", "--parquet"):
        for more in ([], ["--show"]):
            result = invoke(str(path), *more, option, str(path))
            assert result.exit_code == 1 and "take the place" in result.output
    assert path.read_bytes() == before


def test_results_are_not_replaced_by_their_report(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    study_run.run(six(axes={"context": [64]}), path, ONE)
    before = path.read_bytes()
    result = CliRunner().invoke(cli.app, ["report", str(path), "-o", str(path)])
    assert result.exit_code == 1
    assert "-o" in result.stderr and "take the place of the results" in result.stderr
    assert path.read_bytes() == before


def test_a_refused_retry_forgets_nothing(tmp_path: Path) -> None:
    """No processes are asked for: rows that failed stay as they are."""
    study = six(axes={"context": [64], "dtype": ["none", "float32"]})
    first = study_run.run(study, tmp_path / "r.sqlite", ONE)
    with pytest.raises(kb.KbjaxError):
        refused = study_run.Options(jobs=0, retry_failed=True)
        study_run.run(study, tmp_path / "r.sqlite", refused)
    again = study_store.read(str(tmp_path / "r.sqlite"))
    assert [row.status for row in again.rows] == ["failed", "done"]
    assert again.rows == first.rows


def test_whole_values_of_a_range_are_integers() -> None:
    def of(axis: object) -> list[object]:
        return [(v, type(v)) for v in six(axes={"context": axis}).axes["context"]]

    found = of({"from": 16, "to": 64, "factor": 1.5})
    assert found == [(16, int), (24, int), (36, int), (54, int)]
    found = of({"from": 1, "to": 2, "step": 0.5})
    assert found == [(1, int), (1.5, float), (2, int)]
    assert of({"from": 0.5, "to": 1, "factor": 2}) == [(0.5, float), (1.0, float)]


def test_dtypes_that_are_none(tmp_path: Path) -> None:
    """A refusal each, and never numpy's or Python's own error."""
    study = six(axes={"dtype": [3, "=1+1", "float3", "float32"]})
    table = study_run.run(study, tmp_path / "r.sqlite", ONE)
    assert [row.status for row in table.rows] == ["failed"] * 3 + ["done"]
    for row in table.rows[:3]:
        assert row.figures["reason_kind"] == "DTypeError"
        assert "float32" in row.figures["reason"]


def test_text_that_is_a_formula_somewhere(tmp_path: Path) -> None:
    table = study_run.run(six(axes={"context": [64, 128]}), tmp_path / "r.sqlite", ONE)
    for text in (" =1", "\uff1d1", "\t+1", "\uff20x", "=1"):
        figures = {**table.rows[0].figures, "reason": text}
        row = dataclasses.replace(table.rows[0], figures=figures)
        dataclasses.replace(table, rows=[row]).to_csv(str(tmp_path / "t.csv"))
        with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
            (found,) = csv.DictReader(file)
        assert found["reason"] == "'" + text


def test_a_refused_export_hides_no_table(tmp_path: Path) -> None:
    study_run.run(six(), tmp_path / "r.sqlite", ONE)
    result = invoke(str(tmp_path / "r.sqlite"), "--csv", "/dev/full")
    assert result.exit_code == 1 and "6 of 6 points" in result.output
    assert "/dev/full" in result.output
