"""The report of a study: its curves and its points, as one page."""

from __future__ import annotations

from typing import Any

from kbjax import output, report_page
from kbjax import report_style as style
from kbjax.study_curves import Curves, Line, Panel, curves
from kbjax.study_table import StudyTable

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("solid", "dashed", "dotted", "dotdash")
_TOOLS = "pan,xwheel_zoom,box_zoom,ywheel_zoom,reset,save"


def write(table: StudyTable, target: output.Target, x: str | None = None) -> int:
    """Write the page to a path, ``-`` or a file object; its size in bytes.

    Args:
      table: the results.
      x: the axis that the curves run along; the one of numbers with the most values
        by default.

    Raises:
      KbjaxError: without Bokeh, as `study_curves.curves`, and where `target` cannot be
        written.
    """
    return output.write_text(target, html(table, x))


def html(table: StudyTable, x: str | None = None) -> str:
    """The page. Raises as `write`."""
    report_page.require_bokeh()
    found = curves(table, x)
    header, rows = table.short()
    return report_page.rendered(
        "report_study.html.j2",
        _figures(found),
        title=str(table.study["name"]),
        about=f"study of {len(table.rows):,} points",
        headline_figures=[
            ("points", f"{n:,}", what) for what, n in table.counts.items() if n
        ],
        notes=_notes(table, found),
        header=header,
        rows=rows,
    )


def _notes(table: StudyTable, found: Curves) -> list[str]:
    notes = []
    if found.left_out:
        notes.append(
            f"{found.left_out:,} of {found.lines + found.left_out:,} curves are left "
            "out; the table has all points."
        )
    if any(row.overflowed for row in table.rows):
        notes.append("A cross is a point that does not fit the scratch.")
    notes += table.reasons()
    if mixed := table.mixed_versions:
        notes.append(f"Not all points were done with the same: {'; '.join(mixed)}.")
    return notes


def _figures(found: Curves) -> Any:
    """The panels in rows of two, which are moved and zoomed along x together."""
    from bokeh.layouts import gridplot

    drawn: list[Any] = []
    for panel in found.panels:
        figure = _figure(found, panel, drawn[0].x_range if drawn else None)
        for n, line in enumerate(panel.lines):
            _line(figure, panel, line, n, legend=not drawn and found.lines > 1)
        _finish(figure, found, panel)
        drawn.append(figure)
    return gridplot(
        [drawn[n : n + 2] for n in range(0, len(drawn), 2)],
        merge_tools=True,
        toolbar_location="above",
        toolbar_options={"logo": None},
        sizing_mode="stretch_width",
    )


def _figure(found: Curves, panel: Panel, x_range: Any) -> Any:
    from bokeh import plotting

    shared = {} if x_range is None else {"x_range": x_range}
    made: Any = plotting.figure(
        height=340,
        sizing_mode="stretch_width",
        tools=_TOOLS,
        active_drag="pan",
        active_scroll="xwheel_zoom",
        x_axis_type="log" if found.is_log else "linear",
        y_axis_type="log" if panel.is_log else "linear",
        outline_line_color=style.PALE,
        name=panel.column,
        **shared,
    )
    style.plain_axes(made)
    made.title.text, made.title.text_font = panel.title, style.FONT
    if found.ticks:
        made.xaxis.ticker = list(found.ticks)
        made.xaxis.major_label_overrides = {n: f"{n:,}" for n in found.ticks}
    if panel.is_share:
        made.y_range.start, made.y_range.end = 0, 1.04
    made.xaxis.axis_label, made.yaxis.axis_label = found.x_label, panel.unit
    return made


def _line(figure: Any, panel: Panel, line: Line, n: int, legend: bool) -> None:
    from bokeh.models import ColumnDataSource

    data: dict[str, Any] = {
        "x": line.x,
        "y": line.y,
        "label": [line.label] * len(line.rows),
        "marker": ["x" if row.overflowed else "circle" for row in line.rows],
        "status": [row.shown_status for row in line.rows],
    }
    source = ColumnDataSource(data, name=f"{panel.column} {n}")
    look: dict[str, Any] = {"source": source, "color": _COLOURS[n % len(_COLOURS)]}
    named = {"legend_label": line.label} if legend else {}
    dash = _DASHES[n // len(_COLOURS)]
    # Each is thinner than the one before, so that equal ones all show.
    width = 1.6 + min(1.0, 8 / len(panel.lines)) * (len(panel.lines) - 1 - n)
    figure.line("x", "y", line_dash=dash, line_width=width, **look, **named)
    figure.scatter("x", "y", marker="marker", size=6 + width, name="points", **look)


def _finish(figure: Any, found: Curves, panel: Panel) -> None:
    """Budgets across, what a point says, and the legend's look."""
    from bokeh.models import HoverTool
    from bokeh.models.annotations import Span

    for budget in panel.budgets:
        figure.add_layout(
            Span(
                location=budget,
                dimension="width",
                line_dash="dashed",
                line_color=style.BUDGET,
            )
        )
    figure.add_tools(
        HoverTool(
            renderers=[each for each in figure.renderers if each.name == "points"],
            tooltips=[
                (found.axis, "@x{0,0.[000]}"),
                (panel.title, "@y"),
                ("curve", "@label"),
                ("", "@status"),
            ],
        )
    )
    if figure.legend:
        figure.legend.label_text_font = style.FONT
        figure.legend.label_text_font_size = "11px"
        figure.legend.background_fill_alpha = 0.7
        figure.legend.location = "top_left"
