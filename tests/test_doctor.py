"""`kbjax doctor`: what it finds, and its exit status."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from kbjax import cli, doctor, options, testing

LINES = [
    "jax<0.11,>=0.10",
    "numpy>=2.0",
    'matplotlib>=3.9; extra == "plot"',
    'no-such-thing>=1; extra == "report"',
    'kbjax[plot,report]; extra == "dev"',
    'pytest>=99; extra == "dev"',
]


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: LINES)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """No self-check."""
    made = {"ok": True, "detail": "fine", "seconds": 0.1}
    monkeypatch.setattr(doctor, "self_check", lambda: made)
    return made


def test_it_works_here() -> None:
    result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema_version"] == options.SCHEMA_VERSION
    assert found["ok"] and not found["problems"]
    assert found["versions"]["jax"] == jax.__version__
    assert found["jax"]["within"]
    assert len(found["devices"]) == len(jax.devices())
    assert found["cores"] >= 1 and found["memory_bytes"] > 1 << 28
    check = found["self_check"]
    assert check["ok"] and check["seconds"] > 0
    assert "numbers passed" in check["detail"] and "fidelity passed" in check["detail"]


def test_extras_say_what_is_missing_and_the_command(
    metadata: None, quick: dict[str, Any]
) -> None:
    found = doctor.examine()
    assert found["extras"]["plot"]["present"].keys() == {"matplotlib"}
    assert found["extras"]["plot"]["install"] == ""
    assert found["extras"]["report"] == {
        "present": {},
        "missing": {"no-such-thing": ">=1"},
        "broken": {},
        "install": "pip install 'kbjax[report]'",
    }
    dev = found["extras"]["dev"]  # with those that it is made of; one is too old
    assert dev["present"].keys() == {"matplotlib"}
    assert dev["missing"] == {"no-such-thing": ">=1", "pytest": ">=99"}
    assert found["ok"]  # extras are no core part
    result = CliRunner().invoke(cli.app, ["doctor"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "missing no-such-thing: pip install 'kbjax[report]'" in result.output


def test_an_extra_that_does_not_import_is_told(
    metadata: None, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = doctor.examine()
    plot = found["extras"]["plot"]
    assert plot["present"] == plot["missing"] == {}
    assert "ModuleNotFoundError" in plot["broken"]["matplotlib"]
    assert any("matplotlib does not import: " in line for line in found["warnings"])
    result = CliRunner().invoke(cli.app, ["doctor"], env={"COLUMNS": "120"})
    assert result.exit_code == 0  # extras are no core part
    assert "matplotlib is broken" in result.output


def test_a_jax_outside_the_range_is_a_warning(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["jax<0.10,>=0.9"])
    found = doctor.examine()
    assert found["ok"] and not found["jax"]["within"]
    assert any("outside <0.10,>=0.9" in line for line in found["warnings"])
    assert any("rounding" in line for line in found["warnings"])


def test_a_core_part_that_is_missing_is_exit_status_1(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["no-such-core"])
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 1
    assert "problem: no-such-core is missing: pip install 'no-such-core'" in (
        result.output
    )


def test_wrong_numbers_are_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = testing.CheckReport("k", (testing.Finding("numbers", "failed", "all wrong"),))
    monkeypatch.setattr(testing, "report_case", lambda *a, **k: bad)
    result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["self_check"]["ok"]
    assert "all wrong" in found["problems"][0]


def test_an_error_of_the_self_check_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def falls(*_: Any, **__: Any) -> None:
        raise OSError("no cache")

    monkeypatch.setattr(testing, "report_case", falls)
    found = doctor.self_check()
    assert not found["ok"] and found["detail"] == "OSError: no cache"


@pytest.mark.parametrize(
    ("allowed", "version", "holds"),
    [
        ("<0.11,>=0.10", "0.10.2", True),
        ("<0.11,>=0.10", "0.11", False),
        ("<0.11,>=0.10", "0.9.9", False),
        ("==2.13.0", "2.13.0+cpu", True),
        ("==2.13.0", "2.13.1", False),
        (">=77", "77.0", True),
        ("!=1.2,>1", "1.2.0", False),
        ("", "3", True),
        ("~=3", "3", False),
    ],
)
def test_versions(allowed: str, version: str, holds: bool) -> None:
    assert doctor.Requirement.of(f"x{allowed}").holds(version) is holds
