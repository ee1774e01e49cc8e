"""The report: one HTML page that opens with no network, of what a kernel does with its
scratch and its engines, beside its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbjax import (
    output,
    report_figures,
    report_overflow,
    report_page,
    report_source,
    report_style,
    tcm_map,
)
from kbjax.call import KernelCall
from kbjax.op_log import OpLog
from kbjax.plan import Plan
from kbjax.summary import Summary
from kbjax.tcm_map import TcmMap

MOST_OPS = 10_000  # at most twice as many rectangles, with those of buffers


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
        lines = report_source.numbered(self.map)
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
            files=report_source.files(lines, summary, self.plan),
        )

    def write(self, target: output.Target) -> int:
        """Write the page to a path, ``-`` or a file object; its size in bytes.

        Raises:
          KbjaxError: where Bokeh is not installed, or `target` cannot be written.
        """
        return output.write_text(target, self.html())

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
    call: KernelCall,
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
      call: whose.
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


# --- the page ------------------------------------------------------------------------


def _colours(drawn: TcmMap) -> dict[str, str]:
    present = {op.engine for op in drawn.ops} | {b.engine for b in drawn.buffers}
    return {n: c for n, c in report_style.COLOURS.items() if n in present}


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
