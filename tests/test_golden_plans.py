"""The footprint of every shipped kernel, as it was agreed on: tests/golden/plans.

A change shows as a difference; `pytest tests/test_golden_plans.py --update-golden`
takes it over.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbjax import catalogue

FOLDER = Path(__file__).parent / "golden" / "plans"
NAMES = catalogue.kernel_names()
HOW = "pytest tests/test_golden_plans.py --update-golden"


def settled(value: Any) -> Any:
    """A plan's dict with files by their names and without line numbers; the text of
    source lines stays as it is."""
    if isinstance(value, dict) and set(value) == {"file", "line"}:
        return Path(value["file"]).name
    if isinstance(value, dict):
        return {k: v if k == "source" else settled(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [settled(one) for one in value]
    return re.sub(r"(\.py):\d+", r"\1", value) if isinstance(value, str) else value


def text_of(name: str) -> str:
    """The golden text of a shipped kernel, at its default and at its small sizes."""
    plans = {}
    small = catalogue.kernel_module(name).SMALL
    for which, chosen in (("default", {}), ("small", small)):
        case = catalogue.make(name, **chosen)
        plans[which] = settled(case.call.plan(*case.inputs.specs).to_dict())
    return as_text(plans)


def as_text(plans: dict[str, Any]) -> str:
    return json.dumps(plans, indent=2, sort_keys=True) + "\n"


def difference(path: Path, got: str) -> str:
    """What differs from the golden file, for people; nothing where it agrees."""
    if not path.exists():
        return (
            f"{path.stem} has no golden plan: look at `kbjax plan {path.stem}`, {HOW}"
        )
    want = path.read_text()
    if got == want:
        return ""
    lines = difflib.unified_diff(
        want.splitlines(), got.splitlines(), f"{path.name} (agreed)", "now", lineterm=""
    )
    return "\n".join(
        [f"the plan of {path.stem} changed; if it is meant: {HOW}", *lines]
    )


def write(path: Path, got: str) -> str:
    """Make `got` the golden file; says what that does, or nothing."""
    if not difference(path, got):
        return ""
    what = "changed" if path.exists() else "new"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(got)
    return f"{path.name} {what}"


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_as_agreed(
    name: str, update_golden: bool, record_property: Callable[[str, object], None]
) -> None:
    path = FOLDER / f"{name}.json"
    got = text_of(name)
    if update_golden and (what := write(path, got)):
        record_property("golden", what)
    problem = difference(path, got)
    assert not problem, problem


def test_every_golden_plan_has_its_kernel(update_golden: bool) -> None:
    if update_golden:
        pytest.skip("the files are being written")
    assert {path.name for path in FOLDER.iterdir()} == {f"{n}.json" for n in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_say_nothing_of_this_machine(
    name: str, update_golden: bool
) -> None:
    """No path and no line number; both sizes, and the keys of the design."""
    if update_golden:
        pytest.skip("the files are being written")
    text = (FOLDER / f"{name}.json").read_text()
    assert str(Path(__file__).parents[1]) not in text and str(Path.home()) not in text
    assert not re.search(r'"[^"]*(?<![\w.])/\w+/[^"]*\.py', text)
    assert text == as_text(json.loads(text))
    plans = json.loads(text)
    assert set(plans) == {"default", "small"}
    for plan in plans.values():
        assert {"peak_scratch_bytes", "buffers", "scopes", "fits"} <= set(plan)
        sites = [row["site"] for row in plan["buffers"]]
        sites += [row["scope"]["site"] for row in (*plan["buffers"], *plan["scopes"])
                  if row["scope"]]  # fmt: skip
        assert all(re.fullmatch(r"\w+\.py", site) for site in sites)
        shown = json.dumps({**plan, "buffers": [], "scopes": []})
        assert not re.search(r"\.py:\d", shown)


# --- the comparison itself -----------------------------------------------------------


def test_lines_may_move_and_footprints_may_not() -> None:
    """A plan that differs in line numbers and folders only has the same text."""

    def plan(folder: str, line: int, nbytes: int, source: str = "x = 'a.py:3'") -> str:
        site = {"file": f"{folder}/k.py", "line": line}
        scope = {"name": "keys", "site": site}
        row = {"site": site, "source": source, "scope": scope}
        reason = [{"reason": f"refused: k.py:{line}: no."}]
        found = {
            "peak_at": f"add at k.py:{line} in iteration 3 of the loop at k.py:{line}",
            "buffers": ({**row, "nbytes": nbytes},),
            "candidates": reason,
        }
        return as_text(settled(found))

    text = plan("/home/a", 12, 4096)
    assert text == plan("/elsewhere/b", 7, 4096)
    assert text != plan("/home/a", 12, 4112)
    assert text != plan("/home/a", 12, 4096, "y = 'a.py:3'")
    assert '"site": "k.py"' in text and "iteration 3 of the loop at k.py" in text
    assert "'a.py:3'" in text and ":12" not in text and "/home" not in text


def test_a_changed_footprint_fails_with_a_readable_difference(tmp_path: Path) -> None:
    name = "gqa_decode"
    agreed = json.loads(text_of(name))
    path = tmp_path / f"{name}.json"
    path.write_text(as_text(agreed))
    assert difference(path, as_text(agreed)) == ""
    before = agreed["small"]["peak_scratch_bytes"]
    agreed["small"]["peak_scratch_bytes"] = before + 16
    lines = difference(path, as_text(agreed)).splitlines()
    assert name in lines[0] and "--update-golden" in lines[0]
    assert f'-    "peak_scratch_bytes": {before},' in lines
    assert f'+    "peak_scratch_bytes": {before + 16},' in lines
    assert len(lines) < 15


def test_a_kernel_without_a_golden_plan_is_told_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "new_kernel.json"
    problem = difference(path, "{}\n")
    assert problem.startswith("new_kernel has no golden plan") and HOW in problem
    assert write(path, "{}\n") == "new_kernel.json new"
    assert write(path, "{}\n") == "" and difference(path, "{}\n") == ""
    assert write(path, "[]\n") == "new_kernel.json changed"
    assert path.read_text() == "[]\n"
