"""`kbjax fuzz`: drawn sizes of a named kernel, what is refused, and the smallest that
fail."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kbjax as kb
from kbjax import cli, fuzz, options
from kbjax.checks import Finding

SOURCE = """
import dataclasses
from functools import partial
import jax
import numpy as np
import kbjax as kb
from kbjax.cases import Case, Inputs, positive, tolerance

def doubled(tl, x, o, *, tile):
    for j in tl.range(x.shape[0] // tile):  # forgets the tail
        with tl.scratch_scope():
            part = tl.ds(j * tile, tile)
            tl.store(o[part], tl.load(x[part]) * 2.0)

def case(n=12, tile=4, offset: bool = False, dtype="float32", seed=0, *, hardware=None):
    positive(n=n, tile=tile)
    if tile > n:
        raise kb.ShapeError("tile is at most n", got=tile)
    call = kb.kernel_call(partial(doubled, tile=tile),
                          jax.ShapeDtypeStruct((n,), dtype), hardware=hardware)
    return Case(call, Inputs(seed, 1, dtype, ((n,),)),
                lambda x: 2 * x.astype(np.float64), tolerance(dtype))

def needs(n: int, *, hardware=None):
    return case(n, 1, hardware=hardware)

def falls(n=4, *, hardware=None):
    if n == 3:
        raise ZeroDivisionError("three")
    return case(n, 1, hardware=hardware)

def exits(n=4, *, hardware=None):
    raise SystemExit(0)

def nothing(n=4, *, hardware=None):
    return dataclasses.replace(case(n, 1, hardware=hardware), reference=lambda x: None)

def large(n=4_000_000, *, hardware=None):
    return case(n, n, hardware=hardware)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Any:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE, encoding="utf-8")
    return lambda function: f"{path}:{function}"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "80"})


def test_a_failure_is_shrunk_and_its_command_shows_it(kernel: Any) -> None:
    name = kernel("case")
    result = invoke("fuzz", name, "--size", "dtype=float32", "--examples", "30",
                    "--json")  # fmt: skip
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert report["schema_version"] == options.SCHEMA_VERSION
    assert report["verdict"] == "fail"
    assert report["failure"]["n"] == 3 and report["failure"]["tile"] == 2
    assert report["failure"]["offset"] is False
    assert "numbers failed" in report["detail"]
    assert "no command stored it" in report["detail"]
    assert report["command"].startswith("kbjax run ")
    again = invoke(*shlex.split(report["command"])[1:])
    assert again.exit_code == 1, again.output
    assert sum(report["refused"].values()) > 0
    assert any("tile is at most n" in reason for reason in report["refused"])


def test_fixed_sizes_stay_and_sizes_that_pass_are_exit_status_0(kernel: Any) -> None:
    result = invoke("fuzz", kernel("case"), "--size", "tile=1", "--examples", "4",
                    "--size", "dtype=float32")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "drawn: n, offset" in result.output
    assert "All of them pass every check." in result.output


def test_a_shipped_kernel_at_one_drawn_size() -> None:
    result = invoke("fuzz", "rmsnorm", "--examples", "1", "--size", "num_pes=1",
                    "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["verdict"] == "pass" and report["ran"] == 1
    assert report["varied"]["dtype"] == ["float32", "float16", "bfloat16"]
    assert "seed" not in report["varied"] and "num_pes" not in report["varied"]


def test_the_same_seed_draws_the_same(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[dict[str, Any]] = []

    def watched(kernel: str, sizes: dict[str, Any], *_: Any) -> fuzz.Outcome:
        drawn.append(sizes)
        return fuzz.Outcome("passed")

    monkeypatch.setattr(fuzz, "run_at", watched)
    runs = []
    for seed in (1, 1, 2):
        drawn.clear()
        fuzz.fuzz(kernel("case"), seed=seed, examples=8)
        runs.append(list(drawn))
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) >= 6


def test_another_error_than_a_refusal_is_a_failure(kernel: Any) -> None:
    report = fuzz.fuzz(kernel("falls"), examples=30)
    assert report.failure == {"n": 3}
    line = 1 + SOURCE.splitlines().index('        raise ZeroDivisionError("three")')
    assert report.detail == f"mine.py:{line}: ZeroDivisionError: three."
    assert report.command.startswith("kbjax run ")


def test_a_kernel_that_exits_is_a_failure(kernel: Any) -> None:
    report = fuzz.fuzz(kernel("exits"), examples=5)
    assert report.failure == {"n": 1}
    assert "sys.exit(0) was called" in report.detail


def test_a_reference_that_is_none_is_a_failure(kernel: Any) -> None:
    report = fuzz.fuzz(kernel("nothing"), examples=5)
    assert report.verdict == "fail"
    assert "the reference is not real numbers. Got None" in report.detail


def test_what_is_shrunk_to_fails_in_the_same_check(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes from 5 fail in poison, smaller ones in numbers."""
    asked: list[tuple[str, ...]] = []

    def run_at(kernel: str, sizes: dict[str, Any], _: Any, checks: Any) -> fuzz.Outcome:
        asked.append(tuple(checks))
        check = "poison" if sizes["n"] >= 5 else "numbers"
        return fuzz.Outcome("failed", (Finding(check, "failed", "..."),))

    monkeypatch.setattr(fuzz, "run_at", run_at)
    report = fuzz.fuzz(kernel("needs"), sizes={"n": 5}, examples=3)
    assert report.detail == "poison failed: ..."
    asked.clear()
    for seed in range(4):
        report = fuzz.fuzz(kernel("needs"), examples=8, seed=seed)
        first = "poison" if ("poison",) in asked else "numbers"
        assert report.failure == {"n": 5 if first == "poison" else 1}
        assert report.detail == f"{first} failed: ..."
        asked.clear()


def test_a_check_that_run_does_not_make_is_reproduced_by_fuzz(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fuzz.Outcome("failed", (Finding("poison", "failed", "numbers failed:"),))
    monkeypatch.setattr(fuzz, "run_at", lambda *_: failed)
    report = fuzz.fuzz(
        kernel("case"), examples=3, hardware=kb.Hardware(), hardware_name="a b.toml"
    )
    assert re.match(r"kbjax fuzz \S+ --hardware 'a b.toml' --size n=1 ", report.command)


def test_sizes_without_a_default_are_drawn_by_their_annotation(kernel: Any) -> None:
    report = fuzz.fuzz(kernel("needs"), examples=2)
    assert report.verdict == "pass" and 8 in report.varied["n"]


def test_work_is_capped_and_nothing_run_is_exit_status_1(kernel: Any) -> None:
    name = kernel("large")
    report = fuzz.fuzz(name, sizes={"n": 4_000_000}, examples=1)
    assert (report.too_large, report.ran, report.verdict) == (1, 0, "nothing")
    result = invoke("fuzz", name, "--size", "n=4000000", "--examples", "1")
    assert result.exit_code == 1
    assert "No drawn sizes could be run" in result.output


def test_integers_are_the_ones_that_go_wrong() -> None:
    found = fuzz.integers(12, [12, 4, True])
    assert found == sorted(found) and found[0] == 1
    assert {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 24} <= set(found)
    assert max(found) == 24
    assert fuzz.integers(0, [])[0] == 0


def test_without_hypothesis_the_extra_is_named(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    result = invoke("fuzz", kernel("case"))
    assert result.exit_code == 1
    assert "pip install 'kbjax[fuzz]'" in result.output


def test_mistakes_are_refusals(kernel: Any) -> None:
    result = invoke("fuzz", "softmx")
    assert result.exit_code == 1 and "nearest is softmax" in result.stderr
    result = invoke("fuzz", kernel("case"), "--size", "tiel=3")
    assert result.exit_code == 1 and "nearest is tile" in result.stderr
    assert invoke("fuzz", "softmax", "--examples", "0").exit_code == 2
