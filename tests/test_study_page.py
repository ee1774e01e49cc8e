"""docs/studies.md: its commands run as printed, the shipped scripts among them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_study import ROOT, invoke, toml

PAGE = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    toml(tmp_path / "context.toml", text)
    commands, scripts = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for command in commands.splitlines():
        program, word, *arguments = shlex.split(command)
        assert (program, word) == (".venv/bin/kbjax", "study")
        result = invoke(*arguments)
        assert result.exit_code == 0, result.output
    assert "12 of 12 points" in result.output
    for command in scripts.splitlines():
        _, script, *arguments = shlex.split(command)
        done = subprocess.run(
            [sys.executable, str(ROOT / script), *arguments],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        name = script.split("_")[1].removesuffix(".py")
        for kind in ("sqlite", "csv", "png", "svg"):
            assert (tmp_path / "results" / f"{name}.{kind}").stat().st_size > 500
