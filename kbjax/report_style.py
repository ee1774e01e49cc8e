"""How the report's figures look: their colours, axes and tooltips, by Bokeh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = {
    "dma": "#0072B2",
    "gemm": "#D55E00",
    "math": "#009E73",
    "link": "#CC79A7",
    "wait": "#9A9A9A",
}
INK, PALE, BUDGET = "#1f2933", "#c9d1d9", "#b00020"
FONT = "system-ui, sans-serif"

_TOOLTIP = """<div style="font:12px system-ui;max-width:30rem;color:#1f2933">
<b>@what</b><br>{}</div>"""
_SHOW = """const found = cb_data.index.indices;
const line = found.length ? source.data.line[found[0]] : -1;
if (window.kbjax) window.kbjax.point(cb_data.renderer.id, line);
"""


NARROW = 0.004  # of the axis: too narrow for a light edge


def figure(height: int, x_range: Any, y_range: Any) -> Any:
    """An empty Bokeh figure, `height` pixels high, on the two ranges."""
    from bokeh import plotting

    made = plotting.figure(
        height=height,
        sizing_mode="stretch_width",
        x_range=x_range,
        y_range=y_range,
        tools="pan,xwheel_zoom,box_zoom,ywheel_zoom,reset,save",
        active_scroll="xwheel_zoom",
        active_drag="pan",
        outline_line_color=PALE,
        background_fill_color="#ffffff",
    )
    plain_axes(made)
    return made


def plain_axes(made: Any) -> None:
    """Dark text, light lines."""
    for axis in made.axis:
        axis.axis_label_text_font = axis.major_label_text_font = FONT
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = axis.major_label_text_color = INK
        axis.major_label_text_font_size = "12px"
        axis.axis_line_color = axis.major_tick_line_color = PALE
        axis.minor_tick_line_color = None
    made.xgrid.grid_line_color = made.ygrid.grid_line_color = "#eef1f4"


def hover(drawn_on: Any, drawn: Iterable[Any], source: Any, rows: str) -> None:
    """A tooltip with the title `@what`, and the kernel line lit on the page."""
    from bokeh.models import CustomJS, HoverTool

    drawn_on.add_tools(
        HoverTool(
            renderers=list(drawn),
            tooltips=_TOOLTIP.format(rows),
            visible=False,
            point_policy="follow_mouse",
            attachment="horizontal",
            limit=1,
            callback=CustomJS(args={"source": source}, code=_SHOW),
        )
    )


def us(ps: int) -> str:
    """Picoseconds as microseconds, exact: 1234000 gives ``1.234``."""
    text = f"{ps // 10**6:,}.{ps % 10**6:06d}"
    return text.rstrip("0").rstrip(".")
