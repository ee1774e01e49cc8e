"""The curves of a study, whoever draws them: lines along one axis, a panel a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbjax import errors
from kbjax.names import printable
from kbjax.study_row import StudyRow
from kbjax.study_table import StudyTable, parameter_text

MOST_LINES = 28  # of a panel
_X_LOG_FROM = 8  # the largest value over the smallest, from which x is logarithmic
_Y_LOG_FROM = 10
_MOST_TICKS = 12
_BUSY = "busy / (PEs x latency)"
_AXES = {"context": "context, tokens", "num_pes": "PEs"}  # that have another name
_PANELS = (  # columns that are summed, title, unit, what the sum is divided by
    (("peak_scratch_bytes",), "peak scratch", "KiB", 1024.0),
    (("total_ns",), "latency", "us", 1000.0),
    (("bytes_loaded", "bytes_stored"), "DMA, loaded and stored", "MB", 1e6),
    (("dma_utilisation",), "DMA utilisation", _BUSY, 1.0),
    (("gemm_utilisation",), "GEMM utilisation", _BUSY, 1.0),
    (("error",), "error against float64", "of the largest element", 1.0),
)


@dataclass(frozen=True)
class Line:
    """The points of one combination of the other axes, along x.

    Attributes:
      label: the combination; empty where there are no other axes.
      rows: what is drawn, in the order of x.
      x, y: of each row, in the panel's units; y is NaN where it is not known.
    """

    label: str
    rows: tuple[StudyRow, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """One figure of all points.

    Attributes:
      column: of the results, which it shows; of a sum, as ``a + b``.
      title, unit: for people.
      lines: the same combinations, in the same order, in every panel.
      is_log: whether y is logarithmic: all its values are positive, and span a decade.
      is_share: whether y is from 0 to 1.
      budgets: lines across, in the unit: of scratch.
    """

    column: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    is_log: bool
    is_share: bool
    budgets: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    """All panels of a study.

    Attributes:
      axis: what runs along x; `x_label` for people.
      is_log: whether x is logarithmic.
      ticks: values of x to mark where it is; none where the drawing may choose.
      panels: those that have a value.
      lines, left_out: how many combinations are drawn, and how many are not.
    """

    axis: str
    x_label: str
    is_log: bool
    ticks: tuple[float, ...]
    panels: tuple[Panel, ...]
    lines: int
    left_out: int


def curves(table: StudyTable, x: str | None = None) -> Curves:
    """What there is to draw of a study's results.

    Args:
      table: the results.
      x: the axis; the one of numbers that has the most values by default.

    Raises:
      KbjaxError: for an axis that is none or not of numbers, with no axis of numbers,
        and where no point has a result yet.
    """
    axis = axis_of(table.study["axes"], x)
    if not all(_is_number(row.parameters[axis]) for row in table.rows):
        raise errors.KbjaxError(f"a point's {axis} is no number")  # a damaged file
    groups = _groups(table, axis)
    drawn = dict(list(groups.items())[:MOST_LINES])
    panels = tuple(
        _panel(drawn, axis, *panel)
        for panel in _PANELS
        if any(_sum(row, panel[0]) is not None for row in table.rows)
    )
    if not panels:
        raise errors.KbjaxError(
            "no point of the study has a result", remedy="Run the study first"
        )
    across = sorted({row.parameters[axis] for row in table.rows})
    is_log = _is_log(across, _X_LOG_FROM)
    return Curves(
        axis,
        printable(_AXES.get(axis, axis)),
        is_log,
        tuple(across[:: math.ceil(len(across) / _MOST_TICKS)]) if is_log else (),
        panels,
        len(drawn),
        len(groups) - len(drawn),
    )


def axis_of(axes: Mapping[str, Any], x: str | None = None) -> str:
    """The axis that curves run along. Raises as `curves`, and needs no results."""
    numbers = {
        name: len(values)
        for name, values in axes.items()
        if isinstance(values, list | tuple) and all(map(_is_number, values))
    }
    if x is not None and x not in axes:
        raise errors.KbjaxError(f"the study has no axis {x}", allowed=", ".join(axes))
    if x is not None and x not in numbers:
        raise errors.KbjaxError(f"the axis {x} is not of numbers")
    if not numbers:
        raise errors.KbjaxError("the study has no curves: no axis is of numbers")
    return x or max(numbers, key=numbers.__getitem__)


def _panel(
    groups: Mapping[str, Sequence[StudyRow]],
    axis: str,
    columns: tuple[str, ...],
    title: str,
    unit: str,
    divisor: float,
) -> Panel:
    def value(row: StudyRow) -> float:
        found = _sum(row, columns)
        return math.nan if found is None else found / divisor

    lines = tuple(
        Line(
            label,
            tuple(rows),
            tuple(row.parameters[axis] for row in rows),
            tuple(map(value, rows)),
        )
        for label, rows in groups.items()
    )
    column = " + ".join(columns)
    is_share = column.endswith("_utilisation")
    budgets: set[float] = set()
    if column == "peak_scratch_bytes":
        every = {r.figures["budget_bytes"] for rows in groups.values() for r in rows}
        budgets = {budget / divisor for budget in every if budget}
    return Panel(
        column,
        title,
        unit,
        lines,
        not is_share and _is_log([y for line in lines for y in line.y], _Y_LOG_FROM),
        is_share,
        tuple(sorted(budgets)),
    )


def _sum(row: StudyRow, columns: tuple[str, ...]) -> float | None:
    """Of the row's figures; None where one is not known."""
    cells = [row.figures[name] for name in columns]
    return None if None in cells else sum(cells)


def _groups(table: StudyTable, axis: str) -> dict[str, list[StudyRow]]:
    others = [name for name in table.study["axes"] if name != axis]
    found: dict[str, list[StudyRow]] = {}
    for row in table.rows:
        values = [(name, row.parameters[name]) for name in others]
        parts = [v if n == "kernel" else f"{n} {parameter_text(v)}" for n, v in values]
        found.setdefault(printable(", ".join(parts)), []).append(row)
    return {
        label: sorted(rows, key=lambda row: row.parameters[axis])
        for label, rows in found.items()
    }


def _is_log(values: Iterable[float], least: float) -> bool:
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) >= least * min(known)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
