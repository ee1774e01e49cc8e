"""docs/studies.md: its commands run as printed, the shipped scripts among them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tests.test_study import ROOT, invoke

PAGE = pages.ROOT / "docs" / "studies.md"


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.write_files(PAGE, tmp_path)
    for word, *arguments in pages.kbjax_commands(PAGE):
        assert word == "study"
        result = invoke(*arguments)
        assert result.exit_code == 0, result.output
    assert "12 of 12 points" in result.output
    scripts = [one for one in pages.commands(PAGE) if one.startswith("python ")]
    assert len(scripts) == 3
    for command in scripts:
        _, script, *arguments = shlex.split(command)
        done = subprocess.run(
            [sys.executable, str(ROOT / script), *arguments],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        name = script.split("_")[1].removesuffix(".py")
        for kind in ("sqlite", "csv", "png", "svg"):
            assert (tmp_path / "results" / f"{name}.{kind}").stat().st_size > 500
