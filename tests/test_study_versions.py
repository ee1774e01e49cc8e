"""A study that is resumed after a kernel's code or a version has changed."""

from __future__ import annotations

import importlib.metadata
import json
import warnings
from pathlib import Path

import pytest

from kbjax import report_study, study_run, study_source, study_store, study_versions
from kbjax.study_row import VERSIONS
from tests.test_study import ONE, invoke, six, toml
from tests.test_study_source import OWN, STUDY


def test_a_kernel_that_changed_is_told(tmp_path: Path) -> None:
    """Its rows are kept, and every place that shows them says so."""
    once = "    if context == 128: raise ValueError\n    return"
    own = tmp_path / "own.py"
    toml(own, OWN.format(tile=64).replace("    return", once))
    file = toml(tmp_path / "s.py", STUDY)
    result = invoke(file, "--jobs", "1")
    assert result.exit_code == 1 and "done with" not in result.output
    toml(own, OWN.format(tile=32))
    result = invoke(file, "--jobs", "1", "--retry-failed", "--json")
    assert "warning:" in result.stderr and "kernel_file: sha256:" in result.stderr
    assert "of 1 point, sha256:" in result.stderr and "another path" in result.stderr
    (line,) = json.loads(result.stdout)["mixed_versions"]
    assert line.startswith("kernel_file: sha256:") and line.count("of 1 point") == 2
    assert line in invoke(str(tmp_path / "s.sqlite")).output.replace("\n", " ")
    table = study_store.read(tmp_path / "s.sqlite")
    assert table.mixed_versions == [line] and table.is_good
    report_study.write(table, str(tmp_path / "p.html"))
    assert "Not all points were done with the same: kernel_file" in (
        tmp_path / "p.html"
    ).read_text("utf-8")
    # And where nothing is left to do.
    toml(own, OWN.format(tile=16))
    study = study_source.read(file)
    with pytest.warns(study_versions.StudyVersionsWarning, match="kernel_file"):
        study_run.run(study, tmp_path / "s.sqlite", ONE)


def test_another_version_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.sqlite"
    table = study_run.run(six(), path, ONE)
    assert set(table.rows[0].versions) == set(VERSIONS) and not table.mixed_versions
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study_run.run(six(), path, ONE)
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda n: "9.9" if n == "numpy" else real(n)
    )
    with pytest.warns(study_versions.StudyVersionsWarning) as caught:
        study_run.run(six(), path, ONE)
    (one,) = caught
    assert f"numpy: {real('numpy')} of 6 points, 9.9 now" in str(one.message)
