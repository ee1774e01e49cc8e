"""scripts/sweep_errors.py: which runs there are, what one measures, and that an error
beyond the bound ends with status 1."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kbjax import catalogue

SCRIPTS = Path(__file__).parents[1] / "scripts"
SIZES = {"dtype": "float32", "dim": 64}


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("sweep_errors")


def test_every_kernel_with_heads_of_one_size_is_in_every_dtype_and_size(
    sweep: ModuleType,
) -> None:
    runs = [*sweep.chosen("", "", 0)]
    has_heads = {n for n in catalogue.kernel_names() if "dim" in catalogue.sizes_of(n)}
    has_heads -= {"mla_decode"}  # its heads have two sizes
    assert {name for name, _ in runs} == has_heads
    for name in has_heads:
        covered = {(sizes["dtype"], sizes["dim"]) for n, sizes in runs if n == name}
        assert len(covered) == 3 * 5, name


def test_a_run_measures_the_kernels_own_error(
    sweep: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = sweep.run_of("gqa_decode", SIZES)
    assert 0 < right.bound < 1
    case = catalogue.make

    def off_by_a_thousandth(*args: Any, **sizes: Any) -> Any:
        made = case(*args, **sizes)
        call = made.call
        object.__setattr__(made, "call", lambda *arrays: call(*arrays) + 1e-3)
        return made

    monkeypatch.setattr(sweep.catalogue, "make", off_by_a_thousandth)
    wrong = sweep.run_of("gqa_decode", SIZES)
    assert wrong.bound > 100
    np.testing.assert_allclose(wrong.error, 1e-3, rtol=0.01)


@pytest.mark.parametrize("beyond", [False, True])
def test_one_run_beyond_the_bound_is_status_1(
    sweep: ModuleType, monkeypatch: pytest.MonkeyPatch, beyond: bool
) -> None:
    def run_of(name: str, sizes: dict[str, Any]) -> Any:
        last = name == "ring_gqa" and sizes.get("decode", False)
        return sweep.Run(1.0, 1.0, 1.01 if last and beyond else 0.99, 1e-7, "")

    monkeypatch.setattr(sweep, "run_of", run_of)
    app = typer.Typer()
    app.command()(sweep.main)
    asked = ["--dtype", "float16", "--dim", "96"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == beyond
    assert ("1.01" in result.output) == beyond
