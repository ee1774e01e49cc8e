"""The reference page of ops is the op table's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kbjax as kb
from kbjax import ops

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "ops.md"


def test_the_page_is_what_the_script_makes() -> None:
    """As printed on the page's head: `scripts/ops_page.py > docs/ops.md`."""
    made = subprocess.run(
        [sys.executable, "scripts/ops_page.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", ops.TABLE.values(), ids=lambda row: row.name)
def test_the_page_has_every_op(row: ops.Op) -> None:
    text = PAGE.read_text(encoding="utf-8").replace("\\|", "|")
    (line,) = (one for one in text.splitlines() if f" | {row.doc} | " in one)
    name, _, takes, _, _ = (
        cell.strip() for cell in line.replace("a | b", "a or b").split(" | ")
    )
    assert row.name in name or not hasattr(kb.TLContext, row.name)
    if takes.startswith("every dtype but "):
        refused = takes.removeprefix("every dtype but ").split(", ")
        assert {*row.dtypes}.isdisjoint(refused)
