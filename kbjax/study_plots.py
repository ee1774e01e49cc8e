"""A study's figures against its longest axis, drawn with matplotlib as PNG or SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kbjax import errors, extras, output
from kbjax.names import printable
from kbjax.study_row import StudyRow
from kbjax.study_table import StudyTable, shown

FORMATS = ("png", "svg")
_MOST_LINES = 24
_LOG_FROM = 8  # the largest value over the smallest, from which an axis is logarithmic
_BUSY = "busy / (PEs x latency)"
_UNITS = {"context": "context, tokens", "tile": "tile, keys", "num_pes": "PEs"}

Row = StudyRow
_PANELS: tuple[tuple[str, str, Callable[[Row], float | None], bool], ...] = (
    ("peak scratch", "bytes", lambda row: row.figures["peak_scratch_bytes"], True),
    ("latency", "us", lambda row: _us(row.figures["total_ns"]), True),
    (
        "DMA utilisation",
        _BUSY,
        lambda r: r.figures["dma_utilisation"],
        False,
    ),
    (
        "GEMM utilisation",
        _BUSY,
        lambda r: r.figures["gemm_utilisation"],
        False,
    ),
    (
        "error against float64",
        "of the largest element",
        lambda r: r.figures["error"],
        True,
    ),
)


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
    """Draw peak scratch, latency, utilisation and error against an axis of the study.

    A line for each combination of the other axes; crosses at the points that do not
    fit, in every panel. The title says how many points there are where not all are.

    Args:
      table: what to draw.
      path: ends in .png or .svg.
      x: the axis; the one of numbers that has the most values by default.

    Raises:
      KbjaxError: for an axis that is none, another format, without matplotlib, and
        where the file cannot be written.
    """
    kind = format_of(path)
    x = x or _longest(table)
    lines = _lines(table, x)
    panels = [
        panel
        for panel in _PANELS
        if panel[0] == "peak scratch"
        or any(panel[2](row) is not None for row in table.rows)
    ]
    figure = _figures().Figure(figsize=(5.2 * len(panels), 4.8), layout="constrained")
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (title, unit, of, log) in zip(drawn, panels, strict=True):
        for n, (label, rows) in enumerate(lines.items()):
            _line(panel, rows, x, of, f"C{n % 10}", "osD^v<>p"[n % 8], label)
        panel.set_title(title)
        panel.set_xlabel(_plain(_UNITS.get(x, x)))
        panel.set_ylabel(unit)
        _scale(
            panel,
            [row.parameters[x] for row in table.rows],
            _values(table.rows, of),
            log,
        )
        panel.grid(alpha=0.3)
    _budgets(drawn[0], table)
    if len(lines) > 1:
        figure.legend(
            *drawn[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            fontsize=8,
        )
    figure.suptitle(_title(table))
    about = {"Date": None} if kind == "svg" else {}  # the same file for the same rows
    with output.binary(path) as file:
        figure.savefig(file, format=kind, metadata=about)


def _title(table: StudyTable) -> str:
    title = _plain(str(table.study["name"]))
    if table.finished < len(table.rows):
        title += f", partial: {table.progress}"
    if any(row.overflowed for row in table.rows):
        title += " (x: does not fit)"
    return title


def _line(
    panel: Any,
    rows: Sequence[Row],
    x: str,
    of: Callable[[Row], float | None],
    color: str,
    marker: str,
    label: str,
) -> None:
    there = [row for row in rows if of(row) is not None]
    fits = [row for row in there if not row.overflowed]
    over = [row for row in there if row.overflowed]
    panel.plot(
        [row.parameters[x] for row in fits],
        [of(row) for row in fits],
        color=color,
        marker=marker,
        ms=5,
        label=label,
    )
    if over:
        tail = [*fits[-1:], *over]
        panel.plot(
            [r.parameters[x] for r in tail], [of(r) for r in tail], color=color, ls="--"
        )
        panel.plot(
            [r.parameters[x] for r in over],
            [of(r) for r in over],
            color=color,
            ls="",
            marker="x",
            ms=8,
        )
    elif lost := [row.parameters[x] for row in rows if row.overflowed]:
        panel.plot(
            lost, [0.03] * len(lost), color=color, ls="", marker="x", ms=8,
            transform=panel.get_xaxis_transform(),
        )  # fmt: skip


def _scale(panel: Any, across: Sequence[float], up: Sequence[float], log: bool) -> None:
    if min(across) > 0 and max(across) >= _LOG_FROM * min(across):
        panel.set_xscale("log", base=2)
        if len(set(across)) <= 12:
            ticks = sorted(set(across))
            panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
            panel.set_xticks([], minor=True)
    if log and up and min(up) > 0 and max(up) >= _LOG_FROM * min(up):
        panel.set_yscale("log")
    elif not log:
        panel.set_ylim(0, 1.05)


def _budgets(panel: Any, table: StudyTable) -> None:
    for budget in sorted({r.figures["budget_bytes"] for r in table.rows} - {None}):
        panel.axhline(budget, color="black", lw=0.8, ls=":")
        panel.annotate(
            f"budget, {budget / 2**20:g} MiB",
            (0.01, budget),
            xycoords=panel.get_yaxis_transform(),
            va="bottom",
            fontsize=8,
        )


def _lines(table: StudyTable, x: str) -> dict[str, list[Row]]:
    if x not in table.study["axes"]:
        raise errors.KbjaxError(
            f"the study has no axis {x}", allowed=", ".join(table.study["axes"])
        )
    others = [name for name in table.study["axes"] if name != x]
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        parts = [
            str(row.parameters[name])
            if name == "kernel"
            else f"{name} {shown(row.parameters[name])}"
            for name in others
        ]
        found.setdefault(_plain(", ".join(parts)), []).append(row)
    if len(found) > _MOST_LINES:
        raise errors.KbjaxError(
            "the plot has too many lines",
            got=len(found),
            allowed=f"up to {_MOST_LINES}",
            remedy="Give fewer axes, or plot from the CSV file",
        )  # fmt: skip
    return {
        k: sorted(rows, key=lambda row: row.parameters[x]) for k, rows in found.items()
    }


def _longest(table: StudyTable) -> str:
    numbers = {
        name: len(values)
        for name, values in table.study["axes"].items()
        if isinstance(values, list)
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    }
    if not numbers or not table.rows:
        raise errors.KbjaxError("there is nothing to plot: no axis is of numbers")
    return max(numbers, key=numbers.__getitem__)


def _values(rows: Sequence[Row], of: Callable[[Row], float | None]) -> list[float]:
    return [v for v in map(of, rows) if v is not None and math.isfinite(v)]


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000


def _plain(text: str) -> str:
    """Text that matplotlib takes as it is: no mathematics, and a label that shows."""
    text = printable(text).replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def _figures() -> Any:
    return extras.module("matplotlib.figure", extra="plot", use="a plot")
