"""What the command line teaches: help, examples, completion, what was meant."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner, Result

from kbjax import catalogue, cli, hardware

COMMANDS = sorted(typer.main.get_group(cli.app).commands)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200"})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0, result.output
    assert f"Example: kbjax {command}" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_json(command: str) -> None:
    assert "--json" in invoke(command, "--help").output


def test_help_says_what_the_exit_status_means() -> None:
    output = " ".join(invoke("--help").output.split())
    for part in ("Exit status: 0 where", "1 where they do not", "2 for a command line"):
        assert part in output


def test_the_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output == f"kbjax {importlib.metadata.version('kbjax')}\n"


def test_the_version_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, "kbjax, not installed\n")


@pytest.mark.parametrize(
    ("arguments", "status", "meant"),
    [
        (["pln"], 2, "Did you mean 'plan'?"),
        (["doctr"], 2, "Did you mean 'doctor'?"),
        (["run", "softmax", "--fidelty", "exact"], 2, "--fidelity"),
        (["run", "sofmax"], 1, "The nearest is softmax"),
        (["run", "softmax", "--dtype", "flaot16"], 1, "The nearest is float16"),
        (["run", "softmax", "--size", "blok=3"], 1, "The nearest is block"),
        (
            ["plan", "softmax", "--hardware", "hbm3_chanel"],
            1,
            "nearest is hbm3_channel",
        ),
    ],
)
def test_what_was_meant(arguments: list[str], status: int, meant: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == status
    assert meant in result.output


def test_a_dtype_that_is_no_slip_has_no_nearest() -> None:
    result = invoke("run", "softmax", "--dtype", "float64")
    assert "Allowed: float32" in result.output and "nearest" not in result.output


# --- completion ----------------------------------------------------------------------


def completed(words: str) -> list[str]:
    """What bash is told to complete the last word with; JAX is not imported for it."""
    program = (
        "import sys; sys.argv = ['kbjax']; from kbjax import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    asked = {
        "_KBJAX_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, **asked},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("kbjax ru", ["run"]),
        ("kbjax plan ", catalogue.kernel_names()),
        ("kbjax fuzz ring_", ["ring_all_reduce", "ring_gqa"]),
        ("kbjax run softmax --hardware ", list(hardware.Hardware.profiles())),
        ("kbjax run softmax --dtype bf", ["bfloat16"]),
    ],
)
def test_names_complete(words: str, names: list[str]) -> None:
    assert sorted(completed(words)) == sorted(names)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_have_a_script(shell: str) -> None:
    program = "import sys; sys.argv[0] = 'kbjax'; from kbjax import cli; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--show-completion", shell],
        capture_output=True,
        text=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "_KBJAX_COMPLETE" in done.stdout


def test_the_page_of_the_documentation_is_the_help() -> None:
    """Made by `scripts/command_line_page > docs/command_line.md`."""
    root = Path(__file__).parent.parent
    made = subprocess.run(
        ["bash", root / "scripts" / "command_line_page", sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == (root / "docs" / "command_line.md").read_text("utf-8")
