"""The report's map of the scratch: a rectangle a buffer, a band a folded loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kbjax import report_style as style
from kbjax.site import Site
from kbjax.tcm_map import Band, Buffer, TcmMap
from kbjax.time_axis import TimeAxis

NAMED_BANDS = 12  # with their text in the picture; all have it on hover
_UPRIGHT = 0.1  # of the axis: wide enough for text that is not turned
KIB = 1024


def draw(tcm_map: TcmMap, axis: TimeAxis, span: Any, lines: Mapping[Site, int]) -> Any:
    """A Bokeh figure, address in KiB by time.

    Args:
      tcm_map: what to draw.
      axis: where times are drawn.
      span: the range of that axis, which other figures share.
      lines: numbers of the kernel lines, by which the page finds what they made.
    """
    from bokeh.models import Range1d

    highest, budget = tcm_map.highest_bytes / KIB, tcm_map.budget_bytes / KIB
    fitted = max(highest * 1.12, 1 / KIB)
    top = max(budget * 1.06, fitted) if highest > budget * 0.5 else fitted
    y_range = Range1d(
        start=0, end=top, name="bytes", bounds=(0, max(budget, highest) * 1.25)
    )
    figure = style.figure(430, span, y_range)
    figure.name = "memory"
    figure.yaxis.axis_label = f"scratch address, KiB (budget {budget:,.5g})"
    figure.xaxis.visible = False
    _draw_bands(figure, tcm_map.bands, axis)
    _draw_buffers(figure, tcm_map.buffers, axis, lines)
    _draw_budget(figure, budget)
    return figure


def _draw_buffers(
    figure: Any, buffers: Sequence[Buffer], axis: TimeAxis, lines: Mapping[Site, int]
) -> None:
    """Each full while it is in use, and pale while it is held."""
    from bokeh.models import ColumnDataSource

    source = ColumnDataSource(_columns(buffers, axis, lines), name="buffers")
    common = {
        "bottom": "bottom",
        "top": "top",
        "source": source,
        "fill_color": "colour",
        "nonselection_fill_alpha": 0.06,
        "nonselection_line_alpha": 0.1,
    }
    # The pale one is below the whole of a buffer, and is what the mouse finds: of two
    # with one source, Bokeh would ask the second alone.
    held = figure.quad(
        left="left",
        right="right",
        fill_alpha=0.22,
        line_color="colour",
        line_alpha=0.25,
        line_width=0.5,
        selection_fill_alpha=0.4,
        **common,
    )
    figure.quad(
        left="left",
        right="used",
        fill_alpha=0.85,
        line_color="edge",
        line_width=0.7,
        selection_fill_alpha=1.0,
        **common,
    )
    rows = "@where@loop<br>@bytes<br>@time<br>@scope<br>@uses"
    style.hover(figure, [held], source, rows)


def _columns(
    buffers: Sequence[Buffer], axis: TimeAxis, lines: Mapping[Site, int]
) -> dict[str, Any]:
    """Where each buffer is drawn, and what is said of it."""
    return {
        "left": axis.at(b.start_ps for b in buffers),
        "used": axis.at(b.used_ps for b in buffers),
        "right": axis.at(b.end_ps for b in buffers),
        "bottom": [b.start_bytes / KIB for b in buffers],
        "top": [b.end_bytes / KIB for b in buffers],
        "colour": [style.COLOURS[b.engine] for b in buffers],
        "edge": _edges(buffers, axis),
        "line": [lines[b.site] for b in buffers],
        "what": [f"{b.op} {b.tile}" for b in buffers],
        "bytes": [_bytes(b.nbytes, b.start_bytes, b.end_bytes) for b in buffers],
        "time": [_times(b.start_ps, b.used_ps, b.end_ps) for b in buffers],
        "where": [str(b.site) for b in buffers],
        "scope": [
            f"scope {b.scope}" if b.scope else "persistent: outside any scope"
            for b in buffers
        ],
        "loop": [f", {b.loop}" if b.loop else "" for b in buffers],
        "uses": [_uses(b.uses) for b in buffers],
    }


def _draw_budget(figure: Any, budget: float) -> None:
    """A dashed line, and what is above it."""
    from bokeh.models.annotations import BoxAnnotation, Label, Span

    line = Span(
        location=budget,
        dimension="width",
        line_color=style.BUDGET,
        line_width=1.5,
        line_dash="dashed",
    )
    above = BoxAnnotation(bottom=budget, fill_color=style.BUDGET, fill_alpha=0.05)
    label = Label(
        x=6,
        y=budget,
        x_units="screen",
        text=f"budget {budget:,.5g} KiB",
        text_color=style.BUDGET,
        text_font=style.FONT,
        text_font_size="12px",
        y_offset=3,
    )
    for added in (line, above, label):
        figure.add_layout(added)


def _edges(buffers: Sequence[Buffer], axis: TimeAxis) -> list[str]:
    """Dark around what is persistent; a light one would hide what is narrow."""
    lasts = axis.at(b.used_ps for b in buffers) - axis.at(b.start_ps for b in buffers)
    return [
        style.INK if b.persistent else "#ffffff" if wide else style.COLOURS[b.engine]
        for wide, b in zip(lasts > axis.end_us * style.NARROW, buffers, strict=True)
    ]


def _draw_bands(figure: Any, bands: Sequence[Band], axis: TimeAxis) -> None:
    """Steady iterations: a hatched shape as high as their highest cursor."""
    from bokeh.models import ColumnDataSource

    if not bands:
        return
    corners = [axis.at((band.start_ps, band.end_ps)).tolist() for band in bands]
    heights = [[peak.cursor_bytes / KIB for peak in band.peaks] for band in bands]
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
        "xs",
        "ys",
        source=source,
        fill_color="#eef1f4",
        line_color=style.PALE,
        hatch_pattern="right_diagonal_line",
        hatch_color=style.PALE,
        hatch_alpha=0.8,
        hatch_scale=10,
    )
    style.hover(figure, [drawn], source, "@more")
    tallest = max(map(max, heights))
    widest = sorted(range(len(bands)), key=lambda n: corners[n][0] - corners[n][1])
    for n in widest[:NAMED_BANDS]:
        share = (corners[n][1] - corners[n][0]) / axis.end_us
        if share < _UPRIGHT and max(heights[n]) < tallest * 0.6:
            continue  # no room for its text
        label = band_label(bands[n])
        figure.text(
            x=[sum(corners[n]) / 2],
            y=[sum(heights[n]) / 4 if share >= _UPRIGHT else max(heights[n]) / 2],
            text=[label if share >= _UPRIGHT else label.replace("\n", " ")],
            angle=0 if share >= _UPRIGHT else math.pi / 2,
            text_align="center",
            text_baseline="middle",
            text_color=style.INK,
            text_font={"value": style.FONT},
            text_font_size="12px",
            level="annotation",
            background_fill_color="#ffffff",
            background_fill_alpha=0.8,
            padding=3,
            border_radius=3,
        )


def _band_title(band: Band) -> str:
    return f"{band.loop}: {band.iterations:,} steady iterations, not drawn one by one"


def band_label(band: Band) -> str:
    """What is written in a band: which iterations, and how far apart they are."""
    turns = band.iterations // band.repeats
    every = "one" if turns == 1 else f"{turns:,}"
    return (
        f"{band.loop} = {band.first.number:,} to {band.last.number:,}:\n{every} every "
        f"{band.each_ps / 1000:,.7g} ns"
    )


def _band_more(band: Band) -> str:
    turns = band.iterations // band.repeats
    every = "each" if turns == 1 else f"every {turns:,}"
    return (
        f"{band.first.text} to {band.last.text}; {every} {band.each_ps / 1000:,.7g} ns "
        f"after the one before; {band.ops:,} ops; loop at {band.site}"
    )


def _bytes(nbytes: int, start: int, end: int) -> str:
    padding = end - start - nbytes
    padded = f" (+{padding} B padding)" if padding else ""
    return f"{nbytes:,} B{padded} at {start:,} to {end:,}"


def _times(start_ps: int, used_ps: int, end_ps: int) -> str:
    held = f"; held to {style.us(end_ps)}" if end_ps > used_ps else ""
    return f"in use {style.us(start_ps)} to {style.us(used_ps)} us{held}"


def _uses(uses: Sequence[Site]) -> str:
    shown = ", ".join(map(str, uses[:6]))
    return f"used at {shown}" + (f" and {len(uses) - 6} more" if len(uses) > 6 else "")
