"""What the pages of docs/ print is what runs: every Python block, in the order of the
page and in one namespace, and every `kbjax` command. Text that is marked as the output
of the block above it is that block's. Blocks of Triton's need it, and run in its
interpreter. A block whose first line is ``# name.py`` is that file, for the commands
of its page."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kbjax import catalogue, cli
from tests import pages
from tests.helpers import assert_same_bits

DOCS = pages.ROOT / "docs"


def is_triton(block: str) -> bool:
    return "import triton" in block


def execute(block: str, names: dict[str, Any], script: Path) -> None:
    script.write_text(block, encoding="utf-8")  # kernels are read from their file
    exec(compile(block, str(script), "exec"), names)


def printed_by(block: str, names: dict[str, Any], script: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        execute(block, names, script)
    return printed.getvalue()


OUTPUT = "<!-- output of the block above -->"
_PARTS = re.compile(
    rf"```python\n(?P<python>.*?)```|{OUTPUT}\n+```text\n(?P<text>.*?)```", re.DOTALL
)


def plain(text: str) -> str:
    """Its words: where lines break, how columns are aligned, and what the script is
    called does not matter."""
    words = re.sub(r"[^\s`(]*\.py(?=:\d)", "kernel.py", text).split()
    return " ".join(["", *words, ""])


def is_shown(shown: str, told: str) -> bool:
    """Whether the page shows the output; a line `...` stands for what is left out."""
    told = plain(told)
    first, *others = map(plain, re.split(r"(?m)^ *\.\.\.$", shown))
    if not others:
        return told == first
    if not told.startswith(first):
        return False
    at = len(first) - 1  # the space between two pieces is of both
    for piece in others[:-1]:
        found = told.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece) - 1
    return told[at:].endswith(others[-1])


@pytest.mark.parametrize("page", pages.DOCS, ids=lambda page: page.stem)
def test_the_blocks_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path
) -> None:
    names: dict[str, Any] = {}
    printed, text = "", page.read_text("utf-8")
    for number, part in enumerate(_PARTS.finditer(text)):
        if part["text"] is not None:
            assert printed, "nothing was printed"
            assert is_shown(part["text"], printed), f"it is:\n{printed}"
        elif not is_triton(part["python"]):
            script = tmp_path / f"block{number}.py"
            printed = printed_by(part["python"], names, script)
    shown = sum(part["text"] is not None for part in _PARTS.finditer(text))
    assert shown == text.count(OUTPUT)  # each mark has its text


def test_what_counts_as_shown() -> None:
    assert is_shown("a  b\nkernel.py:3\n", "a b /tmp/x/block1.py:3")
    assert is_shown("a\n...\nd", "a b c d") and is_shown("...\nd", "a b c d")
    assert is_shown("a\n...", "a b c d") and is_shown("a\n...\nb", "a b")
    for wrong in (
        "",
        "a b",
        "b c d",
        "a\n...\nc",
        "a\n...\nc\n...\nb\n...",
        "a b c de",
    ):
        assert not is_shown(wrong, "a b c d"), wrong
    assert not is_shown("kernel.py:4", "block1.py:3")


COMMANDED = [
    page
    for page in pages.DOCS
    if pages.kbjax_commands(page) and page.stem != "studies"  # tests/test_study_page.py
]


@pytest.mark.parametrize("page", COMMANDED, ids=lambda page: page.stem)
def test_the_commands_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In one folder with the page's files, in the order of the page: one may read what
    another wrote."""
    monkeypatch.chdir(tmp_path)
    pages.write_files(page, tmp_path)
    for arguments in pages.kbjax_commands(page):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 0, f"{arguments}\n{result.output}"


def test_commands_are_written_one_way() -> None:
    """As in an activated environment, which README says once."""
    texts = [pages.README, *pages.DOCS, *pages.ROOT.glob("scripts/*.py")]
    there = {path.name for path in texts if ".venv/bin/" in path.read_text("utf-8")}
    assert there == {"README.md", "index.md"}
    for page in (pages.README, DOCS / "index.md"):
        found = re.findall(r".*\.venv/bin/.*", page.read_text("utf-8"))
        assert len(found) == 1 and ". .venv/bin/activate" in found[0]


def test_contributing_says_where_every_module_is() -> None:
    page = (DOCS / "contributing.md").read_text("utf-8")
    section = page.partition("## Where a line lives")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!a line|---).* \| (.*) \|$", section, re.M)
    named = re.findall(r"`([\w*]+)`", " ".join(rows))
    package = pages.ROOT / "kbjax"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    matches = [fnmatch.filter(modules, name) for name in named]
    assert all(matches), [n for n, m in zip(named, matches, strict=True) if not m]
    assert modules == {module for found in matches for module in found}


def test_every_shipped_kernel_is_on_its_page() -> None:
    named = re.findall(
        r"^\| `(\w+)` \|", (DOCS / "kernels.md").read_text("utf-8"), re.M
    )
    assert sorted(named) == sorted(catalogue.kernel_names())


def test_the_ported_kernel_gives_the_same_bits(tmp_path: Path) -> None:
    from tests.triton_interpreter import interpreting  # skips where Triton is missing

    first, second = pages.blocks(DOCS / "triton.md", "python")
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


def test_field_cases_are_said_once() -> None:
    """Every FC-number that a test names is on the page, and no other."""
    tests = "\n".join(
        path.read_text("utf-8")
        for path in (pages.ROOT / "tests").glob("*.py")
        if path.name != Path(__file__).name
    )
    page = (DOCS / "contributing.md").read_text("utf-8")
    explained = re.findall(r"\b(FC-\d+):", page)
    assert set(re.findall(r"\bFC-\d+", tests)) == set(explained)
    assert len(explained) == len(set(explained))
