"""The benchmark of peers: attention by others, which kbjax shares no code with, agrees
with float64; and a peer that is missing is a row that says so."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

SCRIPTS = Path(__file__).parents[1] / "scripts"
PEERS = (
    "kbjax live",
    "kbjax exact",
    "hand-written JAX",
    "jax.nn.dot_product_attention",
    "PyTorch SDPA",
    "PyTorch SDPA, 1 thread",
    "Pallas, interpret=True",
    "Pallas TPU interpreter",
    "Triton interpreter",
)
NEEDS = {name: ("torch",) for name in PEERS if name.startswith("PyTorch")}
NEEDS["Triton interpreter"] = ("torch", "triton")
# Of the largest element of the reference: 16 float32 or 2 bfloat16 roundings.
TOLERANCE = {"float32": 16 * 2**-24, "bfloat16": 2 * 2**-8}


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """scripts/bench_peers.py, which imports what lies beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("bench_peers")


def test_every_peer_is_tested(bench: Any) -> None:
    assert tuple(bench.PEERS) == PEERS


@pytest.mark.parametrize("rows, dtype", [(32, "float32"), (8, "bfloat16")])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_agrees_with_float64(
    bench: Any, name: str, dtype: str, rows: int
) -> None:
    for package in NEEDS.get(name, ()):  # not imported here, without TRITON_INTERPRET
        if importlib.util.find_spec(package) is None:
            pytest.skip("pip install 'kbjax[witness]'")
    problem = bench.Problem(rows, 64, dtype, tile=16, dim=32)
    arrays = bench.arrays_of(problem)
    q, k, v = (np.asarray(x).astype(np.float64) for x in arrays)
    s = q @ k.T / np.sqrt(32)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    expected = p @ v / p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(bench.reference(arrays), expected, rtol=0, atol=1e-13)
    peer = bench.PEERS[name]
    got = bench.as_float64(peer.make(problem, arrays)())
    error = np.abs(got - expected).max() / np.abs(expected).max()
    # A peer that is left out for a dtype is so because it is wrong there.
    assert (error <= TOLERANCE[dtype]) == (not bench.why_not(peer, problem)), error


NAN = math.nan  # the time of the busiest thread, which no row has
TIMES = {  # wall, CPU; ratios of a peer's to live's 3, 4, 8 and 10, 2, 6
    "kbjax live": [(1.0, 0.5, NAN), (2.0, 4.0, NAN), (4.0, 1.0, NAN)],
    "hand-written JAX": [(3.0, 5.0, NAN), (8.0, 8.0, NAN), (32.0, 6.0, NAN)],
}


def test_a_row_says_what_was_measured(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of times that are given: medians, and those of ratios in the same repeat, which
    are not ratios of medians."""
    asked = []

    def given(runs: dict[str, Any], repeats: int) -> Any:
        asked.append((list(runs), repeats))
        return TIMES

    monkeypatch.setattr(bench, "in_turn", given)
    problem = bench.Problem(8, 32, tile=16, dim=16)
    row, live = bench.measured(problem, list(TIMES)[::-1], repeats=3)
    assert asked == [(list(TIMES), 3)]
    assert (row.peer, row.reason) == ("hand-written JAX", "")
    assert (row.seconds, row.ratio, row.cpu_ratio) == (8.0, 4.0, 6.0)
    assert 0 < row.error <= TOLERANCE["float32"]
    assert (live.peer, live.seconds, live.ratio, live.cpu_ratio) == (
        "kbjax live", 2.0, 1.0, 1.0
    )  # fmt: skip
    rows = [live, bench.Row("PyTorch SDPA", "", 0.25, 0.5, 123.4, 1e-6)]
    rows.append(bench.Row("Triton interpreter", "it is not here"))
    assert shown(bench.table("decode, 8 x 4,096", problem, rows)) == {
        "peer": ["kbjax live", "PyTorch SDPA",
                 "Triton interpreter\n  not run: it is not here"],
        "ms": ["2,000", "250", ""],
        "/ live": ["1", "0.5", ""],
        "asked": ["", "> 1", ""],
        "CPU / live": ["1", "123", ""],
        "max error": [f"{live.error:.1e}", "1.0e-06", ""],
    }  # fmt: skip
    other = shown(bench.table("prefill, 128 x 2,048", problem, rows))
    assert other["asked"] == ["", "", ""]
    assert bench.markdown({"a": rows, "b": rows[1:]}).splitlines()[2:] == [
        f"| kbjax live | 2,000 ms, 1, {live.error:.0e} |  |",
        "| PyTorch SDPA | 250 ms, 0.5, 1e-06 | 250 ms, 0.5, 1e-06 |",
        "| Triton interpreter | it is not here | it is not here |",
    ]


def shown(table: Table) -> dict[str, list[str]]:
    """Heading -> cells."""
    return {f"{each.header}": [f"{cell}" for cell in each.cells]
            for each in table.columns}  # fmt: skip


def test_a_missing_peer_is_a_row(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    problem = bench.Problem(8, 32, tile=16, dim=16)
    names = ["kbjax live", "PyTorch SDPA", "Triton interpreter"]
    live, *others = bench.measured(problem, names, repeats=1)
    assert live.ratio == 1 and not live.reason
    for row in others:
        assert row.reason.startswith("missing, pip install 'kbjax[witness]' (")
        assert math.isnan(row.seconds)
    assert "Triton interpreter" in bench.markdown({"decode": [live, *others]})


def test_a_wrongly_imported_triton_is_a_row(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter is chosen when it is imported."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.__dict__.update(JITFunction=int, language=language)
    language.__dict__.update(sum=1)  # a function that was compiled
    modules = {"torch": ModuleType("torch"), "triton": triton}
    for name, module in {**modules, "triton.language": language}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "triton_flash", raising=False)
    problem = bench.Problem(8, 32, tile=16, dim=16)
    (row,) = bench.measured(problem, ["Triton interpreter"], repeats=1)
    assert "imported before, without TRITON_INTERPRET=1" in row.reason


def test_interpreters_are_kept_from_long_contexts(bench: Any) -> None:
    long = bench.LONG["decode, 8 x 131,072"]
    reasons = {name: bench.why_not(peer, long) for name, peer in bench.PEERS.items()}
    assert [name for name in PEERS if reasons[name]] == list(PEERS[-3:])
    assert "4,096 keys" in reasons["Triton interpreter"]


def test_the_markdown_table_has_a_row_a_peer(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_numpy(problem: Any, arrays: Any) -> Any:
        return lambda: bench.reference(arrays)

    tiny = bench.Problem(8, 128, dim=16)
    for name, peer in bench.PEERS.items():
        alike = dataclasses.replace(peer, make=by_numpy)
        monkeypatch.setitem(bench.PEERS, name, alike)
    monkeypatch.setattr(bench, "CASES", {"decode": tiny, "prefill": tiny})
    app = typer.Typer()
    app.command()(bench.main)
    result = CliRunner().invoke(app, ["--repeats", "1", "--markdown"])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0].lstrip("| ") for line in lines[2:]] == list(PEERS)
    assert all(line.count(" | ") == 2 for line in lines)
    some = CliRunner().invoke(app, ["--repeats", "1", "--only", "code / Pallas"])
    shown = [name for name in PEERS if name in some.output]
    assert shown == [name for name in PEERS if name.startswith("Pallas")]
    unknown = CliRunner().invoke(app, ["--only", "CUDA"])
    assert unknown.exit_code == 2 and "hand-written JAX" in unknown.output
