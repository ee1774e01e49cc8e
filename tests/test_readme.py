"""What README prints is what runs: its kernel, and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import kbjax as kb
from kbjax import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip()]


def test_the_kernel_runs_and_is_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (source,) = blocks("python")
    script = tmp_path / "readme.py"
    script.write_text(source, encoding="utf-8")
    names: dict[str, np.ndarray] = {}
    exec(compile(source, str(script), "exec"), names)
    q, k, v = (names[name].astype(np.float64) for name in "qkv")
    s = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(s - s.max(axis=1, keepdims=True))
    want = (p / p.sum(axis=1, keepdims=True)) @ v
    np.testing.assert_allclose(names["out"], want, atol=4e-6 * np.abs(want).max())
    printed = capsys.readouterr().out
    assert "readme.py:" in printed  # the program, with kernel lines
    assert "limited by" in printed


def without_scope(source: str) -> str:
    """The kernel of README with its scope taken out, and nothing called."""
    kernel, _, _ = source.partition("rng = ")
    before, scope, body = kernel.partition(
        "        with tl.scratch_scope():  # rewound after every tile\n"
    )
    assert scope
    return before + re.sub(r"(?m)^ {4}(?= {12})", "", body)


def test_the_overflow_is_as_printed(tmp_path: Path) -> None:
    """Line by line; `...` stands for lines left out."""
    script = tmp_path / "decode.py"
    script.write_text(without_scope(blocks("python")[0]), encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), names)
    q, k = (jax.ShapeDtypeStruct((n, 128), "float32") for n in (8, 4096))
    with pytest.raises(kb.ScratchOverflowError) as caught:
        kb.kernel_call(names["gqa_decode"], q).record(q, k, k)
    printed = [line.strip() for line in blocks("text")[0].splitlines() if line.strip()]
    told = [line.strip() for line in str(caught.value).splitlines()]
    for line in printed:
        assert line == "..." or line in told, line
    assert "..." in printed and len(printed) > 6


@pytest.mark.parametrize(
    "command", [c for c in commands() if c.startswith(".venv/bin/kbjax")]
)
def test_kbjax_commands_run_as_printed(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where what it writes goes
    result = CliRunner().invoke(cli.app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


def test_ci_runs_the_other_commands_as_printed() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    others = [c for c in commands() if not c.startswith(".venv/bin/kbjax")]
    assert len(others) == 4
    for command in others:
        assert f"step {command}\n" in ci
        program, *arguments = command.removeprefix(".venv/bin/python ").split()
        assert (ROOT / program).is_file()
        if not arguments:
            assert (ROOT / program).stat().st_mode & 0o111
