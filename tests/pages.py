"""What README.md and the pages of docs/ print: code blocks, commands, and the files
that the commands read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language, in order; their indentation in lists is theirs."""
    text = page.read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks, without comments."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [shlex.join(found) for found in words if found]


def kbjax_commands(page: Path) -> list[list[str]]:
    """The arguments of those that call kbjax."""
    words = map(shlex.split, commands(page))
    return [arguments for program, *arguments in words if program == "kbjax"]


def write_files(page: Path, folder: Path) -> None:
    """Write the files that the page's commands read: the TOML block, if there is one,
    and the Python blocks that begin with the name of a file, as in ``# norms.py``."""
    for block in blocks(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", block):
            (folder / named[1]).write_text(block, encoding="utf-8")
    texts = blocks(page, "toml")
    names = dict.fromkeys(re.findall(r"[\w-]+\.toml\b", "\n".join(commands(page))))
    for name, text in zip(names, texts, strict=bool(names)):
        (folder / name).write_text(text, encoding="utf-8")
