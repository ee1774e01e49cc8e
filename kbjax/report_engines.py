"""The report's picture of the engines: a rectangle an op, on the map's time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbjax import report_style as style
from kbjax.log_view import EngineSpan, FoldedOps, Op
from kbjax.site import Site
from kbjax.tcm_map import TcmMap
from kbjax.time_axis import TimeAxis

_LABELS = """
let at = shown.length - 1;
for (let i = 1; i < shown.length; i++) if (tick <= shown[i]) { at = i; break; }
if (at > 0 && short[at - 1]) return "";
if (tick < 0 || tick > shown[shown.length - 1]) return "";
const us = truly[at] + (tick - shown[at]);
const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
return us.toLocaleString("en-US", {minimumFractionDigits: digits,
                                   maximumFractionDigits: digits});
"""


def draw(tcm_map: TcmMap, axis: TimeAxis, span: Any, lines: Mapping[Site, int]) -> Any:
    """A Bokeh figure, a lane an engine by time; arguments as of the map's `draw`."""
    from bokeh.models import ColumnDataSource, CustomJSTickFormatter, Range1d

    ops, folded = tcm_map.ops, tcm_map.folded
    present = {op.engine for op in ops} | {s.engine for f in folded for s in f.engines}
    engines = [
        name for name in style.COLOURS if name in present or name in ("dma", "math")
    ]
    lane = {name: len(engines) - 1 - n for n, name in enumerate(engines)}
    figure = style.figure(
        70 + 42 * len(engines), span, Range1d(start=-0.6, end=len(engines) - 0.4)
    )
    figure.name = "engines"
    figure.yaxis.ticker = list(lane.values())
    figure.yaxis.major_label_overrides = {at: name for name, at in lane.items()}
    figure.ygrid.visible = False
    figure.xaxis.axis_label = "time, us"
    figure.xaxis.formatter = CustomJSTickFormatter(
        args={"shown": axis.shown_us, "truly": axis.true_us, "short": axis.short},
        code=_LABELS,
    )
    _draw_folded(figure, folded, axis, lane)
    source = ColumnDataSource(
        {
            "left": axis.at(op.start_ps for op in ops),
            "right": axis.at(op.end_ps for op in ops),
            "bottom": [lane[op.engine] - 0.36 for op in ops],
            "top": [lane[op.engine] + 0.36 for op in ops],
            "colour": [style.COLOURS[op.engine] for op in ops],
            "edge": _op_edges(ops, axis),
            "line": [lines[Site(op.file, op.line)] for op in ops],
            "what": [f"{op.op_name} {op.dtype} {op.shape}" for op in ops],
            "where": [str(Site(op.file, op.line)) for op in ops],
            "loop": [f", {op.loop}" if op.loop else "" for op in ops],
            "time": [_op_times(op) for op in ops],
            "bytes": [f"{op.nbytes:,} B, {op.flops:,} flops" for op in ops],
        },
        name="ops",
    )
    drawn = figure.quad(
        left="left",
        right="right",
        bottom="bottom",
        top="top",
        source=source,
        fill_color="colour",
        fill_alpha=0.9,
        line_color="edge",
        line_width=0.7,
        selection_fill_alpha=1.0,
        nonselection_fill_alpha=0.12,
        nonselection_line_alpha=0.1,
        hover_line_color=style.INK,
        hover_fill_alpha=1.0,
    )
    style.hover(figure, [drawn], source, "@where@loop<br>@time<br>@bytes")
    return figure


def _draw_folded(
    figure: Any, folded: Sequence[FoldedOps], axis: TimeAxis, lane: Mapping[str, int]
) -> None:
    from bokeh.models import ColumnDataSource

    spans: list[tuple[FoldedOps, EngineSpan]] = [
        (loop, span) for loop in folded for span in loop.engines
    ]
    if not spans:
        return
    source = ColumnDataSource(
        {
            "left": axis.at(span.start_ps for _, span in spans),
            "right": axis.at(span.end_ps for _, span in spans),
            "bottom": [lane[span.engine] - 0.36 for _, span in spans],
            "top": [lane[span.engine] + 0.36 for _, span in spans],
            "colour": [style.COLOURS[span.engine] for _, span in spans],
            "busy": [0.12 + 0.5 * _busy(span) for _, span in spans],
            "line": [-1] * len(spans),
            "what": [
                f"{loop.loop}: {loop.iterations:,} steady iterations"
                for loop, _ in spans
            ],
            "more": [
                f"{span.engine}: {span.ops:,} ops, busy {_busy(span):.1%}"
                for _, span in spans
            ],
        },
        name="folded",
    )
    drawn = figure.quad(
        left="left",
        right="right",
        bottom="bottom",
        top="top",
        source=source,
        fill_color="colour",
        fill_alpha="busy",
        line_color=None,
        hatch_pattern="right_diagonal_line",
        hatch_color="#ffffff",
        hatch_alpha=0.7,
        hatch_scale=10,
    )
    style.hover(figure, [drawn], source, "@more")


def _busy(span: EngineSpan) -> float:
    return span.busy_ps / max(span.end_ps - span.start_ps, 1)


def _op_edges(ops: Sequence[Op], axis: TimeAxis) -> list[str]:
    widths = axis.at(op.end_ps for op in ops) - axis.at(op.start_ps for op in ops)
    return [
        "#ffffff" if wide else style.COLOURS[op.engine]
        for wide, op in zip(widths > axis.end_us * style.NARROW, ops, strict=True)
    ]


def _op_times(op: Op) -> str:
    took = (op.end_ps - op.start_ps) / 1000
    return f"{style.us(op.start_ps)} to {style.us(op.end_ps)} us: {took:,.10g} ns"
