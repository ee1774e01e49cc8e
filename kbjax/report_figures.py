"""The report's figures, by Bokeh: the map of the scratch, and what each engine does, on
one time axis. What users named reaches the page as data, which Bokeh escapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbjax import errors, time_axis
from kbjax.site import Site
from kbjax.tcm_map import Band, Buffer, TcmMap
from kbjax.time_axis import TimeAxis
from kbjax.tracks import EngineSpan, FoldedOps, Op

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = {
    "dma": "#0072B2",
    "gemm": "#D55E00",
    "math": "#009E73",
    "link": "#CC79A7",
    "wait": "#9A9A9A",
}
INK, PALE, BUDGET = "#1f2933", "#c9d1d9", "#b00020"
NAMED_BANDS = 12  # with their text in the picture; all have it on hover
_NARROW = 0.004  # of the axis: too narrow for a light edge
_UPRIGHT = 0.1  # of the axis: wide enough for text that is not turned
KIB = 1024
FONT = "system-ui, sans-serif"

_TOOLTIP = """<div style="font:12px system-ui;max-width:30rem;color:#1f2933">
<b>@what</b><br>{}</div>"""
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
_SHOW = """const found = cb_data.index.indices;
if (window.kbjax) window.kbjax.point(found.length ? source.data.line[found[0]] : -1);
"""


@dataclass(frozen=True)
class Page:
    """What goes into a page: Bokeh's own script, that of the figures, and where they
    go."""

    library: str
    script: str
    div: str


def require_bokeh() -> None:
    """Raises:
    KbjaxError: where Bokeh is not installed.
    """
    try:
        import bokeh.plotting  # noqa: F401
    except ImportError as error:
        raise errors.KbjaxError(
            "a report needs bokeh, which is not installed",
            remedy="Install it: pip install 'kbjax[report]'",
        ) from error


def page(figures: Any) -> Page:
    """A figure, or a layout of them, as text that needs no network."""
    from bokeh.embed import components
    from bokeh.resources import Resources

    script, div = components(figures)
    resources = Resources(mode="inline", components=["bokeh"])
    return Page(resources.render_js(), script, div)


def of(tcm_map: TcmMap, lines: Mapping[Site, int]) -> Any:
    """Both figures, one above the other.

    Args:
      tcm_map: what to draw.
      lines: numbers of the kernel lines, by which the page finds what they made.
    """
    from bokeh.layouts import gridplot
    from bokeh.models import Range1d

    axis = time_axis.of(
        tcm_map.end_ps,
        [(band.start_ps, band.end_ps) for band in tcm_map.bands],
        [(op.start_ps, op.end_ps) for op in tcm_map.ops],
    )
    edge = axis.end_us * 0.01
    span = Range1d(-edge, axis.end_us + edge, bounds=(-edge * 2, axis.end_us * 1.03))
    upper = _memory(tcm_map, axis, span, lines)
    lower = _engines(tcm_map, axis, span, lines)
    return gridplot(
        [[upper], [lower]],
        merge_tools=True,
        toolbar_location="above",
        toolbar_options={"logo": None},
        sizing_mode="stretch_width",
    )


# --- the map -------------------------------------------------------------------------


def _memory(
    tcm_map: TcmMap, axis: TimeAxis, span: Any, lines: Mapping[Site, int]
) -> Any:
    from bokeh.models import BoxAnnotation, ColumnDataSource, Label, Range1d, Span

    highest, budget = tcm_map.highest_bytes / KIB, tcm_map.budget_bytes / KIB
    fitted = max(highest * 1.12, 1 / KIB)
    top = max(budget * 1.06, fitted) if highest > budget * 0.5 else fitted
    y_range = Range1d(0, top, name="bytes", bounds=(0, max(budget, highest) * 1.25))
    figure = _figure(430, span, y_range)
    figure.yaxis.axis_label = "scratch address, KiB"
    figure.xaxis.visible = False
    _draw_bands(figure, tcm_map.bands, axis)
    buffers = tcm_map.buffers
    data: dict[str, Any] = {
        "left": axis.at(b.start_ps for b in buffers),
        "used": axis.at(b.used_ps for b in buffers),
        "right": axis.at(b.end_ps for b in buffers),
        "bottom": [b.start_bytes / KIB for b in buffers],
        "top": [b.end_bytes / KIB for b in buffers],
        "colour": [COLOURS[b.engine] for b in buffers],
        "edge": _edges(buffers, axis),
        "line": [lines[b.site] for b in buffers],
        "what": [f"{b.op} {b.tile}" for b in buffers],
        "bytes": [_bytes(b.nbytes, b.start_bytes, b.end_bytes) for b in buffers],
        "time": [_times(b.start_ps, b.used_ps, b.end_ps) for b in buffers],
        "where": [str(b.site) for b in buffers],
        "scope": [
            f"scope {b.scope}" if b.scope else "persistent: outside any scope"
            for b in buffers
        ],  # fmt: skip
        "loop": [f", {b.loop}" if b.loop else "" for b in buffers],
        "uses": [_uses(b.uses) for b in buffers],
    }
    source = ColumnDataSource(data, name="buffers")
    common = {
        "bottom": "bottom", "top": "top", "source": source, "fill_color": "colour",
        "nonselection_fill_alpha": 0.06, "nonselection_line_alpha": 0.1,
    }  # fmt: skip
    held = figure.quad(
        left="used", right="right", fill_alpha=0.22, line_color="colour",
        line_alpha=0.25, line_width=0.5, selection_fill_alpha=0.4, **common,
    )  # fmt: skip
    used = figure.quad(
        left="left", right="used", fill_alpha=0.85, line_color="edge", line_width=0.7,
        selection_fill_alpha=1.0, hover_line_color=INK, hover_fill_alpha=1.0, **common,
    )  # fmt: skip
    rows = "@where@loop<br>@bytes<br>@time<br>@scope<br>@uses"
    _hover(figure, [used, held], source, rows)
    figure.add_layout(
        Span(
            location=budget,
            dimension="width",
            line_color=BUDGET,
            line_width=1.5,
            line_dash="dashed",
        )  # fmt: skip
    )
    figure.add_layout(BoxAnnotation(bottom=budget, fill_color=BUDGET, fill_alpha=0.05))
    text = f"budget {budget:,.5g} KiB"
    figure.add_layout(
        Label(
            x=6,
            y=budget,
            x_units="screen",
            text=text,
            text_color=BUDGET,
            text_font=FONT,
            text_font_size="12px",
            y_offset=3,
        )  # fmt: skip
    )
    return figure


def _edges(buffers: Sequence[Buffer], axis: TimeAxis) -> list[str]:
    """Dark around what is persistent; a light one would hide what is narrow."""
    lasts = axis.at(b.used_ps for b in buffers) - axis.at(b.start_ps for b in buffers)
    return [
        INK if b.persistent else "#ffffff" if wide else COLOURS[b.engine]
        for wide, b in zip(lasts > axis.end_us * _NARROW, buffers, strict=True)
    ]


def _draw_bands(figure: Any, bands: Sequence[Band], axis: TimeAxis) -> None:
    """Steady iterations: a hatched shape as high as their highest cursor."""
    from bokeh.models import ColumnDataSource

    if not bands:
        return
    corners = [axis.at((band.start_ps, band.end_ps)).tolist() for band in bands]
    heights = [[band.heights[0][1] / KIB, band.heights[1][1] / KIB] for band in bands]
    source = ColumnDataSource(
        {
            "xs": [[a, a, b, b] for a, b in corners],
            "ys": [[0, low, high, 0] for low, high in heights],
            "line": [-1] * len(bands),
            "what": [_band_title(band) for band in bands],
            "more": [_band_more(band) for band in bands],
        },
        name="bands",
    )
    drawn = figure.patches(
        "xs", "ys", source=source, fill_color="#eef1f4", line_color=PALE,
        hatch_pattern="right_diagonal_line", hatch_color=PALE, hatch_alpha=0.8,
        hatch_scale=10,
    )  # fmt: skip
    _hover(figure, [drawn], source, "@more")
    tallest = max(map(max, heights))
    widest = sorted(range(len(bands)), key=lambda n: corners[n][0] - corners[n][1])
    for n in widest[:NAMED_BANDS]:
        share = (corners[n][1] - corners[n][0]) / axis.end_us
        if share < _UPRIGHT and max(heights[n]) < tallest * 0.6:
            continue  # no room for its text
        label = _band_label(bands[n])
        figure.text(
            x=[sum(corners[n]) / 2], y=[sum(heights[n]) / 4 if share >= _UPRIGHT
                                        else max(heights[n]) / 2],
            text=[label if share >= _UPRIGHT else label.replace("\n", " ")],
            angle=0 if share >= _UPRIGHT else math.pi / 2,
            text_align="center", text_baseline="middle", text_color=INK,
            text_font={"value": FONT}, text_font_size="12px", level="annotation",
            background_fill_color="#ffffff", background_fill_alpha=0.8, padding=3,
            border_radius=3,
        )  # fmt: skip


def _band_title(band: Band) -> str:
    return f"{band.loop}: {band.iterations:,} steady iterations, not drawn one by one"


def _band_label(band: Band) -> str:
    first, last = (_innermost(text, band.loop) for text in (band.first, band.last))
    turns = band.iterations // band.repeats
    every = "one" if turns == 1 else f"{turns:,}"
    return (
        f"{band.loop} = {first:,} to {last:,}:\n{every} every "
        f"{band.each_ps / 1000:,.7g} ns"
    )


def _band_more(band: Band) -> str:
    turns = band.iterations // band.repeats
    every = "each" if turns == 1 else f"every {turns:,}"
    return (
        f"{band.first} to {band.last}; {every} {band.each_ps / 1000:,.7g} ns after the "
        f"one before; {band.ops:,} ops; loop at {band.site}"
    )


def _innermost(iterations: str, loop: str) -> int:
    """The iteration of a loop in ``i=0;j=3``."""
    for part in iterations.split(";"):
        name, _, number = part.rpartition("=")
        if name == loop:
            return int(number)
    return 0


# --- the engines ---------------------------------------------------------------------


def _engines(
    tcm_map: TcmMap, axis: TimeAxis, span: Any, lines: Mapping[Site, int]
) -> Any:
    from bokeh.models import ColumnDataSource, CustomJSTickFormatter, Range1d

    ops, folded = tcm_map.ops, tcm_map.folded
    present = {op.engine for op in ops} | {s.engine for f in folded for s in f.engines}
    engines = [name for name in COLOURS if name in present or name in ("dma", "math")]
    lane = {name: len(engines) - 1 - n for n, name in enumerate(engines)}
    figure = _figure(70 + 42 * len(engines), span, Range1d(-0.6, len(engines) - 0.4))
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
            "colour": [COLOURS[op.engine] for op in ops],
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
        left="left", right="right", bottom="bottom", top="top", source=source,
        fill_color="colour", fill_alpha=0.9, line_color="edge", line_width=0.7,
        selection_fill_alpha=1.0, nonselection_fill_alpha=0.12,
        nonselection_line_alpha=0.1, hover_line_color=INK, hover_fill_alpha=1.0,
    )  # fmt: skip
    _hover(figure, [drawn], source, "@where@loop<br>@time<br>@bytes")
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
            "colour": [COLOURS[span.engine] for _, span in spans],
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
        left="left", right="right", bottom="bottom", top="top", source=source,
        fill_color="colour", fill_alpha="busy", line_color=None,
        hatch_pattern="right_diagonal_line", hatch_color="#ffffff", hatch_alpha=0.7,
        hatch_scale=10,
    )  # fmt: skip
    _hover(figure, [drawn], source, "@more")


def _busy(span: EngineSpan) -> float:
    return span.busy_ps / max(span.end_ps - span.start_ps, 1)


def _op_edges(ops: Sequence[Op], axis: TimeAxis) -> list[str]:
    widths = axis.at(op.end_ps for op in ops) - axis.at(op.start_ps for op in ops)
    return [
        "#ffffff" if wide else COLOURS[op.engine]
        for wide, op in zip(widths > axis.end_us * _NARROW, ops, strict=True)
    ]


# --- what both share -----------------------------------------------------------------


def _figure(height: int, x_range: Any, y_range: Any) -> Any:
    from bokeh.plotting import figure

    made = figure(
        height=height, sizing_mode="stretch_width", x_range=x_range, y_range=y_range,
        tools="pan,xwheel_zoom,box_zoom,ywheel_zoom,reset,save",
        active_scroll="xwheel_zoom", active_drag="pan",
        outline_line_color=PALE, background_fill_color="#ffffff",
    )  # fmt: skip
    for axis in made.axis:
        axis.axis_label_text_font = axis.major_label_text_font = FONT
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = axis.major_label_text_color = INK
        axis.major_label_text_font_size = "12px"
        axis.axis_line_color = axis.major_tick_line_color = PALE
        axis.minor_tick_line_color = None
    made.xgrid.grid_line_color = made.ygrid.grid_line_color = "#eef1f4"
    return made


def _hover(figure: Any, drawn: Iterable[Any], source: Any, rows: str) -> None:
    """A tooltip with the title `@what`, and the kernel line lit on the page."""
    from bokeh.models import CustomJS, HoverTool

    figure.add_tools(
        HoverTool(
            renderers=list(drawn),
            tooltips=_TOOLTIP.format(rows),
            visible=False,
            point_policy="follow_mouse",
            attachment="horizontal",
            limit=1,
            callback=CustomJS(args={"source": source}, code=_SHOW),
        )  # fmt: skip
    )


def _bytes(nbytes: int, start: int, end: int) -> str:
    padding = end - start - nbytes
    padded = f" (+{padding} B padding)" if padding else ""
    return f"{nbytes:,} B{padded} at {start:,} to {end:,}"


def _times(start_ps: int, used_ps: int, end_ps: int) -> str:
    held = f"; held to {_us(end_ps)}" if end_ps > used_ps else ""
    return f"in use {_us(start_ps)} to {_us(used_ps)} us{held}"


def _op_times(op: Op) -> str:
    took = (op.end_ps - op.start_ps) / 1000
    return f"{_us(op.start_ps)} to {_us(op.end_ps)} us: {took:,.10g} ns"


def _us(ps: int) -> str:
    text = f"{ps // 10**6:,}.{ps % 10**6:06d}"
    return text.rstrip("0").rstrip(".")


def _uses(uses: Sequence[Site]) -> str:
    shown = ", ".join(map(str, uses[:6]))
    return f"used at {shown}" + (f" and {len(uses) - 6} more" if len(uses) > 6 else "")
