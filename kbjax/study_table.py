"""The results of a study as a table: CSV, JSON, Parquet and HTML."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kbjax import extras, notebook, output
from kbjax.names import printable
from kbjax.study_row import StudyRow, column_of, columns
from kbjax.study_status import Status
from kbjax.study_versions import mixed

SCHEMA_VERSION = 1
# What makes a cell of text a formula; the wide ones do in spreadsheets of East Asia.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_SHORT = {
    "peak_scratch_bytes": "peak, B", "budget_bytes": "budget, B",
    "total_ns": "latency, ns", "dma_utilisation": "dma", "gemm_utilisation": "gemm",
    "math_utilisation": "math", "link_utilisation": "link", "limited_by": "limit",
    "error": "error", "verdict": "numbers",
}  # fmt: skip


@dataclass(frozen=True)
class StudyTable:
    """What a results file holds at one moment.

    Attributes:
      study: as `Study.to_dict` gives it.
      rows: a point each, in the study's order.
      path: of the results file; empty where there is none.
    """

    study: Mapping[str, Any]
    rows: Sequence[StudyRow]
    path: str = ""

    def columns(self) -> dict[str, list[Any]]:
        """Column -> its cells, in the rows' order; the columns are those of
        docs/studies.md, and a parameter that has the name of one is ``size.NAME``."""
        return columns(self.rows, self.study["axes"])

    def records(self) -> list[dict[str, Any]]:
        """The rows flat: a mapping of `columns` to cells each."""
        found = self.columns()
        return [
            dict(zip(found, cells, strict=True))
            for cells in zip(*found.values(), strict=True)
        ]

    @property
    def counts(self) -> dict[str, int]:
        """Status -> how many points have it."""
        found = Counter(row.status for row in self.rows)
        return {status.value: found[status] for status in Status}

    @property
    def finished(self) -> int:
        """How many points are done or failed."""
        return sum(row.status.is_finished for row in self.rows)

    @property
    def is_good(self) -> bool:
        """Whether every point is done, its numbers right, or does not fit."""
        return all(
            (row.status is Status.DONE and row.figures["verdict"] != "fail")
            or (row.status is Status.FAILED and row.overflowed)
            for row in self.rows
        )

    @property
    def progress(self) -> str:
        """How much of it there is, as ``4 of 6 points``."""
        return f"{self.finished:,} of {len(self.rows):,} points"

    @property
    def mixed_versions(self) -> list[str]:
        """What rows of one kernel were done with different ones of, a line each; none
        where all rows may be compared."""
        return mixed(self.rows)

    def reasons(self, most: int = 5) -> list[str]:
        """Why points failed, for people: a line for each reason there is, with its
        first point; of more than `most`, how many are left."""
        first: dict[str, int] = {}
        for row in self.rows:
            if row.figures["reason"]:
                kind, text = row.figures["reason_kind"], str(row.figures["reason"])
                line = next(iter(text.splitlines()), "")
                first.setdefault(printable(f"{kind}: {line}"), row.number)
        lines = [f"point {number}: {reason}" for reason, number in first.items()]
        left = len(lines) - most
        rest = [f"{left:,} more reasons are in the file"] if left > 0 else []
        return [*lines[:most], *rest]

    def short(self) -> tuple[list[str], list[list[str]]]:
        """The header and cells for people: what varies, and figures that are there."""
        axes = list(self.study["axes"])
        there = [n for n in _SHORT if any(r.figures[n] is not None for r in self.rows)]
        rows = [
            [
                *(parameter_text(row.parameters[name]) for name in axes),
                row.shown_status,
                *(_figure(name, row.figures[name]) for name in there),
            ]
            for row in self.rows
        ]
        heads = {*_SHORT.values(), "status"}  # which no axis may seem to be
        names = [f"size.{n}" if n in heads else column_of(n) for n in axes]
        return [*names, "status", *(_SHORT[name] for name in there)], rows

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "path": self.path,
            "study": dict(self.study),
            "counts": self.counts,
            "mixed_versions": self.mixed_versions,
            "rows": self.records(),
        }

    def to_json(self, target: output.Target) -> None:
        """Write `to_dict()` as JSON.

        Raises:
          KbjaxError: where `target` cannot be written; a path is then as it was.
        """
        with output.text(target) as write:
            write(json.dumps(self.to_dict()) + "\n")

    def to_csv(self, target: output.Target) -> None:
        """Write RFC 4180: a header, then a row a point; UTF-8, CRLF. Text that a
        spreadsheet would take for a formula has an apostrophe in front. Raises what
        `to_json` does."""
        columns = self.columns()
        with output.text(target) as write:
            writer = csv.writer(SimpleNamespace(write=write))
            writer.writerow(map(_cell, columns))
            writer.writerows(
                map(_cell, row) for row in zip(*columns.values(), strict=True)
            )

    def to_parquet(self, target: output.Target) -> None:
        """Write Parquet, with the study in the file's metadata.

        Raises:
          KbjaxError: without pyarrow, and what `to_json` does.
        """
        arrow = extras.module("pyarrow", extra="parquet", use="Parquet")
        parquet = extras.module("pyarrow.parquet", extra="parquet", use="Parquet")
        arrays = {n: _array(arrow, cells) for n, cells in self.columns().items()}
        about = {"schema_version": str(SCHEMA_VERSION), "study": json.dumps(self.study)}
        table = arrow.table(arrays).replace_schema_metadata(about)
        with output.binary(target) as file:
            parquet.write_table(table, file)

    def _repr_html_(self) -> str:
        title = f"{printable(str(self.study['name']))}: {self.progress}"
        return notebook.table(title, *self.short())


def parameter_text(value: object) -> str:
    """A parameter for people, in full: two that differ do not look the same."""
    if isinstance(value, str):
        is_like_another = value in ("True", "False") or not value[:1].isalpha()
        return printable(repr(value) if is_like_another else value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def shown(cell: object) -> str:
    """A cell for people."""
    if cell is None:
        return ""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000 else f"{cell:,.1f}"
    return printable(str(cell))


def _figure(name: str, cell: Any) -> str:
    if isinstance(cell, float) and name.endswith("_utilisation"):
        return f"{cell:.1%}"
    if isinstance(cell, float) and name == "error":
        return f"{cell:.1e}"
    return shown(cell)


def _cell(cell: object) -> object:
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, str) and (
        cell.startswith(("\t", "\r")) or cell.lstrip().startswith(_FORMULA)
    ):
        return "'" + cell
    return cell


def _array(arrow: Any, cells: list[Any]) -> Any:
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {int, float}:
        return arrow.array([None if c is None else float(c) for c in cells])
    if len(kinds) > 1 or kinds <= {str}:
        cells = [c if c is None else _unicode(c) for c in cells]
        return arrow.array(cells, arrow.string())
    return arrow.array(cells)


def _unicode(cell: object) -> str:
    text = cell if isinstance(cell, str) else json.dumps(cell)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
