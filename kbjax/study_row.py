"""A point of a study with its result: what was asked, apart from what came out.

Only an export puts the two side by side, as columns, and says which names it then
changes; everything else asks for a parameter or for a figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbjax.study_status import Status

FIGURES = {  # column of a results file -> its type there
    "peak_scratch_bytes": "INTEGER", "budget_bytes": "INTEGER", "fit": "TEXT",
    "total_ns": "REAL", "dma_utilisation": "REAL", "gemm_utilisation": "REAL",
    "math_utilisation": "REAL", "link_utilisation": "REAL",
    "bytes_loaded": "INTEGER", "bytes_stored": "INTEGER", "gemm_flops": "INTEGER",
    "math_flops": "INTEGER", "commands": "INTEGER", "roofline_ns": "REAL",
    "limited_by": "TEXT", "error": "REAL", "tolerance": "REAL", "verdict": "TEXT",
    "reason_kind": "TEXT", "reason": "TEXT", "notes": "TEXT", "seed": "INTEGER",
    "wall_s": "REAL", "started_at": "REAL", "finished_at": "REAL",
}  # fmt: skip
VERSIONS = (
    "python", "kbjax", "jax", "jaxlib", "numpy", "kbjax_code", "kernel_file",
)  # fmt: skip
DOES_NOT_FIT = "does not fit"  # as `plan.Plan.verdict` says it


@dataclass(frozen=True)
class StudyRow:
    """A point and what is known of it.

    Attributes:
      number: its place in the study, from 0.
      parameters: the kernel, and every size and hardware field of the point.
      status: how far it is.
      attempts: how often it was started.
      figures: each of `FIGURES`; what is not known (yet) is None.
      versions: what the point was done with, by the names of `VERSIONS`.
    """

    number: int
    parameters: Mapping[str, Any]
    status: Status
    attempts: int
    figures: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def overflowed(self) -> bool:
        """Whether the point does not fit the scratch."""
        return self.figures["fit"] == DOES_NOT_FIT

    @property
    def shown_status(self) -> str:
        """The status for people: a point that does not fit did not fail otherwise."""
        return DOES_NOT_FIT if self.overflowed else self.status.value


def column_of(parameter: str, versions: Iterable[str] = ()) -> str:
    """The column of an export that has the parameter: its name, or ``size.NAME`` where
    a column of every study has that name, so that no two columns share one."""
    taken = {"number", "status", "attempts", *FIGURES}
    taken |= {_version(name) for name in (*VERSIONS, *versions)}
    return f"size.{parameter}" if parameter in taken else parameter


def columns(rows: Sequence[StudyRow], axes: Iterable[str]) -> dict[str, list[Any]]:
    """The rows as exports have them: column -> its cells, in the rows' order.

    Args:
      rows: of one study.
      axes: the parameters that come first.
    """
    names = dict.fromkeys((*axes, *(name for row in rows for name in row.parameters)))
    versions = dict.fromkeys((*VERSIONS, *(n for row in rows for n in row.versions)))
    found: dict[str, list[Any]] = {"number": [row.number for row in rows]}
    for name in names:
        found[column_of(name, versions)] = [row.parameters.get(name) for row in rows]
    found["status"] = [row.status.value for row in rows]
    found["attempts"] = [row.attempts for row in rows]
    for name in FIGURES:
        found[name] = [row.figures[name] for row in rows]
    for name in versions:
        found[_version(name)] = [row.versions.get(name) for row in rows]
    return found


def _version(name: str) -> str:
    return f"{name}_version"
