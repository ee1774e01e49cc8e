"""The report: one HTML page that opens with no network, of what a kernel does with its
scratch and its engines, beside its source."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kbjax import (
    output,
    report_figures,
    report_overflow,
    report_page,
    report_style,
    tcm_map,
)
from kbjax.op_log import OpLog
from kbjax.plan import Plan
from kbjax.site import Site
from kbjax.summary import Summary
from kbjax.tcm_map import TcmMap

MOST_OPS = 10_000  # at most twice as many rectangles, with those of buffers


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


@dataclass(frozen=True)
class Report:
    """What a report page has to say; `html` makes it."""

    title: str
    log: OpLog
    plan: Plan
    map: TcmMap
    sizes: str = ""
    hardware: str = ""

    def html(self) -> str:
        """The page.

        Raises:
          KbjaxError: where Bokeh is not installed.
        """
        report_page.require_bokeh()
        lines = _numbers(self.map)
        # Of the first rows of a kernel that does not fit there is none.
        summary = self.log.summary() if self.plan.overflow is None else None
        figures = report_figures.of(self.map, lines)
        about = [self.sizes, f"hardware {self.hardware}" if self.hardware else ""]
        return report_page.rendered(
            "report.html.j2",
            figures,
            title=self.title,
            about="; ".join(filter(None, about)),
            colours=_colours(self.map),
            map=self.map,
            notes=self.notes(),
            refusal=str(self.plan.overflow) if self.plan.overflow else "",
            headline_figures=self.headline_figures(summary),
            summary=self.summary_rows(summary),
            plan=self.plan,
            tables=list(self.plan.tables()),
            files=sources(lines, summary, self.plan),
        )

    def write(self, target: output.Target) -> int:
        """Write the page to a path, ``-`` or a file object; its size in bytes.

        Raises:
          KbjaxError: where Bokeh is not installed, or `target` cannot be written.
        """
        text = self.html()
        with output.text(target) as write:
            write(text)
        return len(text.encode("utf-8", "backslashreplace"))

    def summary_rows(self, summary: Summary | None) -> list[tuple[str, str]]:
        """(name, figure) of the summary, or of the overflow."""
        if summary is not None:
            return summary.rows()
        assert self.plan.overflow is not None
        at_us = self.map.end_ps / 1e6
        return report_overflow.rows(self.plan.overflow, self.plan, len(self.log), at_us)

    def headline_figures(self, summary: Summary | None) -> list[tuple[str, str, str]]:
        """(name, figure, remark) of what matters most."""
        plan = self.plan
        found = [
            (
                "peak scratch",
                f"{plan.peak_scratch_bytes / 1024:,.1f} KiB",
                f"{plan.utilisation:,.1%} of {plan.budget_bytes / 1024:,.5g} KiB: "
                f"{plan.verdict}",
            )
        ]
        if summary is None:
            assert plan.overflow is not None
            over = report_overflow.headline(plan.overflow, self.map.end_ps / 1e6)
            return [over, *found]
        busy = (
            f"{name} {use.utilisation:.0%}" for name, use in summary.engines.items()
        )
        latency = (
            "latency",
            f"{summary.total_ns / 1000:,.3f} us",
            f"{summary.commands:,} ops on {_count(summary.num_pes, 'PE')}",
        )
        limit = ("limited by", summary.limited_by, ", ".join(busy) + " busy")
        if summary.roofline_distance is not None:
            roof = (
                "over the roofline",
                f"{summary.roofline_distance:.2f} x",
                f"{summary.roofline_ns / 1000:,.3f} us by {summary.roofline_engine}",
            )
            return [latency, limit, *found, roof]
        return [latency, limit, *found]

    def notes(self) -> list[str]:
        """What the figures leave out, a sentence each."""
        found, drawn = [], self.map
        pes = self.log.program.num_pes
        if pes > 1:
            found.append(f"Both figures show PE {drawn.pe} of {pes} (--pe).")
        if drawn.bands:
            folded = sum(band.ops for band in drawn.bands)
            found.append(
                f"{len(drawn.ops):,} ops are drawn one by one; {folded:,} are steady "
                "iterations of loops, drawn as hatched bands. Time is shortened in "
                "the long ones."
            )
        if drawn.cut_ps is not None:
            found.append(
                f"{drawn.dropped_ops:,} ops are left out: those that start at "
                f"{drawn.cut_ps / 1e6:,.6f} us or later, to keep the page small."
            )
        if self.plan.overflow:
            found.append("The figures end at the first op that is over the budget.")
        return found


def of(
    call: Any,
    *arrays: Any,
    pe: int | None = None,
    title: str = "",
    sizes: str = "",
    hardware: str = "",
    most_ops: int = MOST_OPS,
) -> Report:
    """The report of a call.

    A kernel that does not fit has one as well: of what it would do up to the first op
    that is over the budget, with the refusal.

    Args:
      call: a `KernelCall`.
      arrays: as in a call; shapes do.
      pe: whose scratch and engines are drawn; 0, or the PE that overflows.
      title, sizes, hardware: shown at the top.
      most_ops: that are drawn; the first ones.

    Raises:
      ShapeError: for a PE that there is not.
      KbjaxError: for any mistake in the kernel but that it overflows.
    """
    plan = call.plan(*arrays)
    if plan.overflow is None:
        log = call.op_log(*arrays)
    else:
        log = call.op_log_unbounded(*arrays)
        over = plan.overflow.overflow
        pe = (over.pe or 0) if pe is None else pe
        log = log.filter(pe=pe)
        log = log[: _rows_within(log, over.budget_bytes) + 1]
    return Report(
        title=title or plan.kernel,
        log=log,
        plan=plan,
        map=tcm_map.of(log, pe or 0, most_ops),
        sizes=sizes,
        hardware=hardware,
    )


def _rows_within(log: OpLog, budget_bytes: int) -> int:
    """How many rows come before the first whose cursor is over the budget."""
    before = 0
    for chunk in log.chunks(names=["cursor_bytes"]):
        over = chunk["cursor_bytes"] > budget_bytes
        if over.any():
            return before + int(over.argmax())
        before += len(over)
    return before


# --- source --------------------------------------------------------------------------


def _numbers(drawn: TcmMap) -> dict[Site, int]:
    """The kernel lines that the figures speak of, numbered."""
    sites = [Site(op.file, op.line) for op in drawn.ops]
    sites += [site for buffer in drawn.buffers for site in (buffer.site, *buffer.uses)]
    return {site: n for n, site in enumerate(dict.fromkeys(sites))}


def sources(
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
                row.append(
                    SourceLine(
                        at,
                        words,
                        lines.get(site, -1),
                        shares.get(site, 0.0),
                        held.get(site, 0),
                    )
                )
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


# --- the page ------------------------------------------------------------------------


def _colours(drawn: TcmMap) -> dict[str, str]:
    present = {op.engine for op in drawn.ops} | {b.engine for b in drawn.buffers}
    return {n: c for n, c in report_style.COLOURS.items() if n in present}


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
