"""What README prints is what runs: its kernel, and its commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import kbjax as kb
from kbjax import cli
from tests import pages

README = pages.README


def test_the_kernel_runs_and_is_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (source,) = pages.blocks(README, "python")
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
    script.write_text(
        without_scope(pages.blocks(README, "python")[0]), encoding="utf-8"
    )
    names: dict[str, Any] = {}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), names)
    q, k = (jax.ShapeDtypeStruct((n, 128), "float32") for n in (8, 4096))
    with pytest.raises(kb.ScratchOverflowError) as caught:
        kb.kernel_call(names["gqa_decode"], q).record(q, k, k)
    printed = [
        line.strip()
        for line in pages.blocks(README, "text")[0].splitlines()
        if line.strip()
    ]
    told = [line.strip() for line in str(caught.value).splitlines()]
    for line in printed:
        assert line == "..." or line in told, line
    assert "..." in printed and len(printed) > 6


@pytest.mark.parametrize("arguments", pages.kbjax_commands(README), ids=" ".join)
def test_kbjax_commands_run_as_printed(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where what it writes goes
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output


def test_ci_runs_the_other_commands_as_printed() -> None:
    ci = (pages.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = pages.commands(README)
    others = [one for one in commands if not one.startswith("kbjax ")]
    assert len(others) == 4
    for command in others:
        assert f"step {command}\n" in ci
        program, *arguments = command.removeprefix("python ").split()
        assert (pages.ROOT / program).is_file()
        if not arguments:
            assert (pages.ROOT / program).stat().st_mode & 0o111
