"""The kernel's source beside the report's figures: the functions that its ops come
from, and what each line costs."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbjax.plan import Plan
from kbjax.site import Site
from kbjax.summary import Summary
from kbjax.tcm_map import TcmMap


@dataclass(frozen=True)
class SourceLine:
    """A line of kernel source; `number` is what the figures know it by, -1 for a line
    that makes nothing. `share` is of the critical path, `nbytes` of the peak."""

    at: int
    text: str
    number: int
    share: float
    nbytes: int


@dataclass(frozen=True)
class SourceFile:
    """Parts of a file: the functions that the kernel's ops come from, in order."""

    name: str
    parts: tuple[tuple[SourceLine, ...], ...]


def numbered(drawn: TcmMap) -> dict[Site, int]:
    """The kernel lines that the figures speak of, numbered."""
    sites = [Site(op.file, op.line) for op in drawn.ops]
    sites += [site for buffer in drawn.buffers for site in (buffer.site, *buffer.uses)]
    return {site: n for n, site in enumerate(dict.fromkeys(sites))}


def files(
    lines: dict[Site, int], summary: Summary | None, plan: Plan
) -> list[SourceFile]:
    """The functions that the lines are in, file by file; a file that cannot be read is
    shown by its lines' numbers."""
    shares: dict[Site, float] = {}
    for line in summary.critical_path if summary else ():
        site = Site(line.file, line.line)
        shares[site] = shares.get(site, 0.0) + line.share
    held: dict[Site, int] = {}
    for buffer in plan.buffers:
        held[buffer.site] = held.get(buffer.site, 0) + buffer.nbytes
    found = []
    for file in dict.fromkeys(site.file for site in lines):
        text = linecache.getlines(file)
        used = sorted(site.line for site in lines if site.file == file)
        parts = []
        for part in _parts(text, used):
            row = []
            for at in part:
                site = Site(file, at)
                words = text[at - 1].rstrip("\n") if at <= len(text) else ""
                share, nbytes = shares.get(site, 0.0), held.get(site, 0)
                row.append(SourceLine(at, words, lines.get(site, -1), share, nbytes))
            parts.append(tuple(row))
        found.append(SourceFile(os.path.basename(file), tuple(parts)))
    return found


def _parts(text: Sequence[str], used: Sequence[int]) -> Iterable[Iterable[int]]:
    """Line numbers: of the outermost functions around the used lines, in order."""
    spans: set[tuple[int, int]] = set()
    try:
        tree = ast.parse("".join(text))
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    functions = [
        (node.lineno, node.end_lineno or node.lineno) for node in _outermost(tree)
    ]
    for line in used:
        around = [span for span in functions if span[0] <= line <= span[1]]
        spans.add(around[0] if around else (line, line))
    return [range(first, last + 1) for first, last in sorted(spans)]


def _outermost(tree: ast.AST) -> Iterable[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that are in no other one; methods of classes are."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _outermost(node)
