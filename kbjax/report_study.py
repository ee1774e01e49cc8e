"""The report of a study: its curves and its points, as one page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from kbjax import errors, output, report_page
from kbjax import report_style as style

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("solid", "dashed", "dotted", "dotdash")
_MOST_LINES = len(_COLOURS) * len(_DASHES)
_LOG_FROM = 8  # the largest value over the smallest, from which an axis is logarithmic
_PANELS = (  # title, unit, column, what its values are divided by
    ("peak scratch", "KiB", "peak_scratch_bytes", 1024.0),
    ("latency", "us", "total_ns", 1000.0),
    ("DMA utilisation", "busy / (PEs x latency)", "dma_utilisation", 1.0),
    ("GEMM utilisation", "busy / (PEs x latency)", "gemm_utilisation", 1.0),
    ("error against float64", "of the largest element", "error", 1.0),
)

Row = Mapping[str, Any]


class Table(Protocol):
    """What the report takes of a study's results: `rows` has a mapping a point, whose
    `fit` is ``does not fit`` where it overflows."""

    @property
    def study(self) -> Mapping[str, Any]: ...

    @property
    def rows(self) -> Sequence[Row]: ...

    @property
    def counts(self) -> Mapping[str, int]: ...

    def short(self) -> tuple[list[str], list[list[str]]]: ...


def write(table: Table, target: output.Target, x: str | None = None) -> int:
    """Write the page to a path, ``-`` or a file object; its size in bytes.

    Args:
      table: the results.
      x: the axis that the curves run along; the one of numbers with the most values
        by default.

    Raises:
      KbjaxError: without Bokeh, for an axis that is none, with no axis of numbers, and
        where `target` cannot be written.
    """
    text = html(table, x)
    with output.text(target) as say:
        say(text)
    return len(text.encode("utf-8", "backslashreplace"))


def html(table: Table, x: str | None = None) -> str:
    """The page. Raises as `write`."""
    report_page.require_bokeh()
    axis = x or _longest(table)
    if axis not in table.study["axes"]:
        allowed = ", ".join(table.study["axes"])
        raise errors.KbjaxError(f"the study has no axis {axis}", allowed=allowed)
    curves = _curves(table, axis)
    notes = []
    if len(curves) > _MOST_LINES:
        notes.append(
            f"{len(curves) - _MOST_LINES:,} of {len(curves):,} curves are left out; "
            "the table has all points."
        )
        curves = dict(list(curves.items())[:_MOST_LINES])
    if any(map(_overflowed, table.rows)):
        notes.append("A cross is a point that does not fit the scratch.")
    header, rows = table.short()
    counts = table.counts
    return report_page.rendered(
        "report_study.html.j2",
        _figures(table, curves, axis),
        title=str(table.study["name"]),
        about=f"study of {len(table.rows):,} points",
        headline_figures=[
            ("points", f"{n:,}", what) for what, n in counts.items() if n
        ],
        notes=notes,
        header=header,
        rows=rows,
    )


def _figures(table: Table, curves: Mapping[str, Sequence[Row]], axis: str) -> Any:
    from bokeh.layouts import gridplot

    panels = [
        _panel(table, curves, axis, *panel)
        for panel in _PANELS
        if any(row.get(panel[2]) is not None for row in table.rows)
    ]
    if not panels:
        raise errors.KbjaxError(
            "no point of the study has a result", remedy="Run the study first"
        )
    return gridplot(
        [panels[n : n + 2] for n in range(0, len(panels), 2)],
        merge_tools=False,
        toolbar_location=None,
        sizing_mode="stretch_width",
    )


def _panel(
    table: Table,
    curves: Mapping[str, Sequence[Row]],
    axis: str,
    title: str,
    unit: str,
    column: str,
    divisor: float,
) -> Any:
    from bokeh import plotting
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.models.annotations import Span

    def values(rows: Sequence[Row]) -> list[float]:
        cells = (row.get(column) for row in rows)
        return [math.nan if cell is None else cell / divisor for cell in cells]

    made: Any = plotting.figure(
        height=340,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        x_axis_type=_scale([row[axis] for row in table.rows]),
        y_axis_type="linear"
        if column.endswith("_utilisation")
        else _scale(values(table.rows)),
        outline_line_color=style.PALE,
        name=column,
    )
    style.plain_axes(made)
    made.title.text, made.title.text_font = title, style.FONT
    across = sorted({row[axis] for row in table.rows})
    made.xaxis.ticker = across[:: math.ceil(len(across) / 8)]
    made.xaxis.major_label_overrides = {n: f"{n:,}" for n in across}
    if column.endswith("_utilisation"):
        made.y_range.start, made.y_range.end = 0, 1.04
    made.xaxis.axis_label, made.yaxis.axis_label = axis, unit
    drawn: list[Any] = []
    for n, (label, rows) in enumerate(curves.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        dash = _DASHES[n // len(_COLOURS)]
        data: dict[str, Any] = {
            "x": [row[axis] for row in rows],
            "y": values(rows),
            "label": [label] * len(rows),
            "marker": ["x" if _overflowed(row) else "circle" for row in rows],
            "status": [
                "does not fit" if _overflowed(row) else str(row.get("status"))
                for row in rows
            ],
        }
        source = ColumnDataSource(data, name=f"{column} {n}")
        legend = (
            {"legend_label": label}
            if len(curves) > 1 and column == _first(table)
            else {}
        )
        made.line(
            "x",
            "y",
            source=source,
            color=colour,
            line_dash=dash,
            line_width=1.6,
            **legend,
        )
        drawn.append(
            made.scatter("x", "y", source=source, color=colour, marker="marker", size=8)
        )
    if column == "peak_scratch_bytes":
        for budget in {
            row["budget_bytes"] for row in table.rows if row["budget_bytes"]
        }:
            made.add_layout(
                Span(
                    location=budget / divisor,
                    dimension="width",
                    line_dash="dashed",
                    line_color=style.BUDGET,
                )
            )
    made.add_tools(
        HoverTool(
            renderers=drawn,
            tooltips=[
                (axis, "@x{0,0.[000]}"),
                (title, "@y"),
                ("curve", "@label"),
                ("", "@status"),
            ],
        )
    )
    if made.legend:
        made.legend.label_text_font = style.FONT
        made.legend.label_text_font_size = "11px"
        made.legend.background_fill_alpha = 0.7
        made.legend.location = "top_left"
    return made


def _first(table: Table) -> str:
    there = (p[2] for p in _PANELS if any(r.get(p[2]) is not None for r in table.rows))
    return next(there)


def _scale(values: Sequence[float]) -> Literal["linear", "log"]:
    known = [v for v in values if math.isfinite(v)]
    log = known and min(known) > 0 and max(known) >= _LOG_FROM * min(known)
    return "log" if log else "linear"


def _overflowed(row: Row) -> bool:
    return row.get("fit") == "does not fit"


def _curves(table: Table, axis: str) -> dict[str, list[Row]]:
    """The points of each combination of the other axes, along the axis."""
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        parts = [
            str(row[name]) if name == "kernel" else f"{name} {row[name]}"
            for name in table.study["axes"]
            if name != axis
        ]
        found.setdefault(", ".join(parts), []).append(row)
    return {k: sorted(rows, key=lambda row: row[axis]) for k, rows in found.items()}


def _longest(table: Table) -> str:
    numbers = {
        name: len(values)
        for name, values in table.study["axes"].items()
        if isinstance(values, list) and all(map(_is_number, values))
    }
    if not numbers or not table.rows:
        raise errors.KbjaxError("the study has no curves: no axis is of numbers")
    return max(numbers, key=numbers.__getitem__)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
