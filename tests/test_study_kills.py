"""A study that is killed at random moments: a few kills of scripts/kill_study.py."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.test_study import ROOT


def test_killed_many_times() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "kill_study.py"), "--kills", "3",
         "--points", "40", "--most-s", "5"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills" in done.stdout and "there once" in done.stdout
