"""What the pages of docs/ print is what runs: every Python block, in the order of the
page and in one namespace. Blocks of Triton's need it, and run in its interpreter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbjax import catalogue
from tests.helpers import assert_same_bits

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def is_triton(block: str) -> bool:
    return "import triton" in block


def execute(block: str, names: dict[str, Any], script: Path) -> None:
    script.write_text(block, encoding="utf-8")  # kernels are read from their file
    exec(compile(block, str(script), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_run(page: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(page)):
        if not is_triton(block):
            execute(block, names, tmp_path / f"block{number}.py")


def test_every_shipped_kernel_is_on_its_page() -> None:
    named = re.findall(
        r"^\| `(\w+)` \|", (DOCS / "kernels.md").read_text("utf-8"), re.M
    )
    assert sorted(named) == sorted(catalogue.kernel_names())


def test_the_ported_kernel_gives_the_same_bits(tmp_path: Path) -> None:
    from tests.triton_interpreter import interpreting  # skips where Triton is missing

    first, second = blocks(DOCS / "triton.md")
    assert is_triton(first) and not is_triton(second)
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    with interpreting():
        execute(first, theirs, tmp_path / "triton_kernel.py")
    execute(second, ours, tmp_path / "kbjax_kernel.py")
    x = ours["rows"]
    want = np.sqrt((x * x).sum(axis=1))
    assert_same_bits(ours["from_kbjax"], want)  # whole numbers: sums are exact
    assert_same_bits(theirs["from_triton"].numpy(), want)
