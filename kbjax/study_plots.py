"""A study's curves as PNG or SVG, drawn with matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kbjax import errors, extras, output
from kbjax.names import printable
from kbjax.study_curves import Curves, Line, Panel, curves
from kbjax.study_table import StudyTable

FORMATS = ("png", "svg")
_MARKERS, _DASHES = "osD^v<>p", ("-", "--", ":")


def format_of(path: str) -> str:
    """The format that the path asks for.

    Raises:
      KbjaxError: for another one, and without matplotlib.
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise errors.KbjaxError(
            "a plot is written in the format that its file's name ends in",
            got=path,
            allowed=", ".join(f".{each}" for each in FORMATS),
        )
    _figures()
    return kind


def write(table: StudyTable, path: str, x: str | None = None) -> None:
    """Draw peak scratch, latency, DMA bytes, utilisation and error against an axis of
    the study.

    A line for each combination of the other axes, each thinner than the one before, so
    that equal ones all show; crosses at the points that do not fit, in every panel. The
    title says how many points there are where not all are.

    Args:
      table: what to draw.
      path: ends in .png or .svg.
      x: the axis; the one of numbers that has the most values by default.

    Raises:
      KbjaxError: as `study_curves.curves`, for another format, without matplotlib, and
        where the file cannot be written.
    """
    kind, found = format_of(path), curves(table, x)
    width = 5.2 * len(found.panels)
    figure = _figures().Figure(figsize=(width, 4.8), layout="constrained")
    drawn = figure.subplots(1, len(found.panels), squeeze=False)[0]
    for axes, panel in zip(drawn, found.panels, strict=True):
        _draw(axes, panel, found)
    if found.lines > 1:
        figure.legend(
            *drawn[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            fontsize=8,
        )
    figure.suptitle(_title(table, found))
    about = {"Date": None} if kind == "svg" else {}  # the same file for the same rows
    with output.binary(path) as file:
        figure.savefig(file, format=kind, metadata=about)


def _title(table: StudyTable, found: Curves) -> str:
    title = _plain(printable(str(table.study["name"])))
    if table.finished < len(table.rows):
        title += f", partial: {table.progress}"
    if found.left_out:
        title += f", {found.lines:,} of {found.lines + found.left_out:,} curves"
    if any(row.overflowed for row in table.rows):
        title += " (x: does not fit)"
    return title


def _draw(axes: Any, panel: Panel, found: Curves) -> None:
    count = len(panel.lines)
    for n, line in enumerate(panel.lines):
        width = 1.5 + min(0.7, 6 / count) * (count - 1 - n)
        look = {"color": f"C{n % 10}", "lw": width, "ms": width + 3.5}
        _line(axes, line, _MARKERS[n % len(_MARKERS)], _DASHES[n // 10], look)
    axes.set_title(panel.title)
    axes.set_xlabel(_plain(found.x_label))
    axes.set_ylabel(panel.unit)
    if found.is_log:
        axes.set_xscale("log", base=2)
        labels = [f"{tick:,}" for tick in found.ticks]
        axes.set_xticks(found.ticks, labels, rotation=45)
        axes.set_xticks([], minor=True)
    if panel.is_log:
        axes.set_yscale("log")
    elif panel.is_share:
        axes.set_ylim(0, 1.05)
    axes.grid(alpha=0.3)
    for budget in panel.budgets:
        axes.axhline(budget, color="black", lw=0.8, ls=":")
        axes.annotate(
            f"budget, {budget:,g} {panel.unit}",
            (0.01, budget),
            xycoords=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=8,
        )


def _line(axes: Any, line: Line, marker: str, dash: str, look: dict[str, Any]) -> None:
    points = list(zip(line.x, line.y, line.rows, strict=True))
    known = [(x, y, row.overflowed) for x, y, row in points if not math.isnan(y)]
    fits = [(x, y) for x, y, overflowed in known if not overflowed]
    over = [(x, y) for x, y, overflowed in known if overflowed]
    axes.plot(*_across(fits), marker=marker, ls=dash, label=_plain(line.label), **look)
    cross = {**look, "ls": "", "marker": "x", "ms": look["ms"] + 3}
    if over:
        axes.plot(*_across([*fits[-1:], *over]), **{**look, "ls": "--"})
        axes.plot(*_across(over), **cross)
    elif lost := [x for x, _, row in points if row.overflowed]:
        low = [0.03] * len(lost)
        axes.plot(lost, low, transform=axes.get_xaxis_transform(), **cross)


def _across(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _plain(text: str) -> str:
    """Text that matplotlib takes as it is: no mathematics, and a label that shows."""
    text = text.replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def _figures() -> Any:
    return extras.module("matplotlib.figure", extra="plot", use="a plot")
