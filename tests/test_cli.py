"""The command line: what it prints, its JSON, its errors and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from kbjax import cli, hardware

SMALL = ["--context", "200", "--tile", "64", "--num-pes", "2", "--size", "dim=32"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def test_run_prints_the_summary_and_the_verdict() -> None:
    result = invoke("run", "gqa_decode", *SMALL)
    assert result.exit_code == 0, result.output
    for part in ("latency", "dma engine", "gemm engine", "math engine", "HBM traffic"):
        assert part in result.output
    assert "peak scratch" in result.output
    assert "1,048,576 B" in result.output
    assert "numbers agree" in result.output


@pytest.mark.parametrize("fidelity", ["live", "exact"])
def test_json_holds_the_same_figures(fidelity: str) -> None:
    result = invoke("run", "gqa_decode", *SMALL, "--fidelity", fidelity, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["schema_version"] == cli.SCHEMA_VERSION
    assert report["verdict"] == "pass"
    assert 0 < report["error"] <= report["tolerance"]
    summary = report["summary"]
    assert summary["num_pes"] == 2
    # K and V of both PEs, and the queries.
    assert summary["bytes_loaded"] == 2 * (2 * 200 * 32 + 8 * 32) * 4
    assert summary["budget_bytes"] == hardware.PeTcm().scratch_bytes


def test_wrong_numbers_are_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbjax.kernels import gqa_decode

    right = gqa_decode.reference
    monkeypatch.setattr(gqa_decode, "reference", lambda q, k, v: right(q, k, v) + 1.0)
    result = invoke("run", "gqa_decode", *SMALL, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] == "fail"


def test_nan_is_never_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbjax.kernels import gqa_decode

    right = gqa_decode.reference
    monkeypatch.setattr(
        gqa_decode, "reference", lambda q, k, v: right(q, k, v) * float("nan")
    )
    result = invoke("run", "gqa_decode", *SMALL, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["verdict"], report["error"]) == ("fail", None)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["gqa_decod"], "KernelError", ["no kernel 'gqa_decod'", "gqa_decode"]),
        (["gqa_decode", "--tile", "0"], "ShapeError", ["tile", "positive"]),
        (["gqa_decode", "--context", "-1"], "ShapeError", ["context", "positive"]),
        (["gqa_decode", "--num-pes", "0"], "ShapeError", ["num_pes", "positive"]),
        (["gqa_decode", "--size", "blok=3"], "KernelError", ["'blok'", "tile"]),
        (["gqa_decode", "--dtype", "float64"], "DTypeError", ["float64", "float32"]),
        (["gqa_decode", "--size", "kv_heads=7"], "ShapeError", ["64", "7"]),
        (
            ["flash_unscoped", "--context", "131072"],
            "ScratchOverflowError",
            ["TLContext scratch overflow:", "flash_unscoped.py:", "iteration"],
        ),
    ],
)
def test_a_mistake_is_one_message_and_exit_status_1(
    arguments: list[str], kind: str, words: list[str]
) -> None:
    result = invoke("run", *arguments)
    assert result.exit_code == 1
    text = result.stderr.strip()
    assert len(text.splitlines()) == 1 or kind == "ScratchOverflowError"
    assert text.startswith(f"{kind}: ")
    assert all(word in text for word in words), text
    assert "Traceback" not in result.output
    as_json = invoke("run", *arguments, "--json")
    assert as_json.exit_code == 1
    failure = json.loads(as_json.stdout)["error"]
    assert f"{failure['class']}: {failure['message']}" == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "gqa_decode", "--tiles", "4"],
        ["run", "gqa_decode", "--tile", "four"],
        ["run", "gqa_decode", "--size", "dim"],
        ["run", "gqa_decode", "--fidelity", "fast"],
        ["run"],
        ["rum"],
    ],
)
def test_an_unreadable_command_line_is_exit_status_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_names_from_users_are_not_markup() -> None:
    assert "[red]x[/red]" in invoke("run", "[red]x[/red]").stderr


def test_kernels_lists_every_shipped_kernel() -> None:
    found = json.loads(invoke("kernels", "--json").stdout)["kernels"]
    assert set(found) == {"gqa_decode", "flash_prefill", "flash_unscoped"}
    assert found["gqa_decode"]["sizes"]["context"] == 131_072
    assert all(name in invoke("kernels").output for name in found)


def test_help_does_not_import_jax() -> None:
    program = (
        "import sys; from kbjax import cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"run" in done.stdout
