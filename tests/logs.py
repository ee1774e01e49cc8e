"""Op_logs made of given rows: times, engines and folds that no kernel gives today, and
logs of a size that takes no time to make."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from kbjax.log_view import ROWS, Fold
from kbjax.op_log import SCHEMA_VERSION, OpRecord

NAMES = tuple(OpRecord.__dataclass_fields__)
_ROW: dict[str, Any] = {
    "pe": 0, "engine": "math", "op_name": "add", "start_ps": 0, "end_ps": 0,
    "shape": "4x4", "dtype": "float32", "nbytes": 64, "flops": 16, "src_addrs": "",
    "dst_addr": "", "scope_depth": 0, "cursor_bytes": 0, "loop": "",
    "file": "kernel.py", "line": 1, "command": 0,
}  # fmt: skip


@dataclass(frozen=True)
class RowsLog:
    """What exports take from an `OpLog`, over arrays.

    Attributes:
      arrays: the columns, with `start_ps` and `end_ps` for `start_ns` and `end_ns`.
      asked: how many rows each call of `columns` gave.
    """

    arrays: dict[str, np.ndarray]
    some_folds: tuple[Fold, ...] = ()
    num_pes: int = 1
    name: str = "kernel"
    asked: list[int] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    @property
    def program(self) -> Any:
        return SimpleNamespace(name=self.name, num_pes=self.num_pes)

    @property
    def total_ns(self) -> float:
        return int(self.arrays["end_ps"].max(initial=0)) / 1000

    def summary(self) -> Any:
        figures = {"kernel": self.name, "commands": len(self), "total": self.total_ns}
        return SimpleNamespace(to_dict=lambda: figures)

    def folds(self) -> tuple[Fold, ...]:
        return self.some_folds

    def __len__(self) -> int:
        return len(self.arrays["op"])

    def __getitem__(self, rows: slice) -> RowsLog:
        arrays = {name: column[rows] for name, column in self.arrays.items()}
        return RowsLog(arrays, (), self.num_pes, self.name, self.asked)

    def chunks(self, rows: int = ROWS, names: Any = None) -> Any:
        for first in range(0, len(self), rows):
            yield self[first : first + rows].columns(names)

    def columns(self, names: Any = None) -> dict[str, np.ndarray]:
        self.asked.append(len(self))
        found = {
            "start_ns": self.arrays["start_ps"] / 1000,
            "end_ns": self.arrays["end_ps"] / 1000,
            "op_kind": self.arrays["engine"],
            **self.arrays,
            "iterations": np.fromiter(map(_numbers, self.arrays["loop"]), object),
        }
        return {name: found[name] for name in names or NAMES}


def _numbers(loop: str) -> tuple[int, ...]:
    """``j=3;i=0`` as (3, 0)."""
    parts = loop.split(";") if loop else []
    return tuple(int(part.rpartition("=")[2]) for part in parts)


def of_rows(*rows: dict[str, Any], folds: Any = (), **more: Any) -> RowsLog:
    """A log of rows; fields that are left out are those of an op at time 0."""
    full = [{"op": n, **_ROW, **row} for n, row in enumerate(rows)]
    arrays = {
        name: np.array(
            [row[name] for row in full],
            object if isinstance(value, str) else np.int64,
        )
        for name, value in {"op": 0, **_ROW}.items()
    }
    more.setdefault("num_pes", 1 + int(arrays["pe"].max(initial=0)))
    return RowsLog(arrays, tuple(folds), **more)


def fold_of(
    log: RowsLog, first: int, stop: int, iterations: int, repeats: int = 1
) -> Fold:
    """The fold of rows [first, stop) of `log`, by the loop of its first row."""
    part = log[first:stop].arrays
    return Fold(
        pe=int(part["pe"][0]),
        first_row=first,
        stop_row=stop,
        iterations=iterations,
        repeats=repeats,
        loop=str(part["loop"][0]).partition("=")[0],
        depth=0,
        file=str(part["file"][0]),
        line=int(part["line"][0]),
        start_ns=int(part["start_ps"].min()) / 1000,
        end_ns=int(part["end_ps"].max()) / 1000,
    )


def long_log(num_pes: int, iterations: int, folded: bool) -> RowsLog:
    """PEs that all load, multiply and store in each iteration of a loop; with folds,
    all iterations but the first and the last of each PE are in one."""
    each = 3 * iterations
    j = np.tile(np.repeat(np.arange(iterations), 3), num_pes)
    kind = np.tile(np.arange(3), num_pes * iterations)
    start = 1000 * j + np.array([0, 1000, 1500])[kind]
    texts = np.array([f"j={n}" for n in range(iterations)], object)

    def of_kind(*values: Any) -> np.ndarray:
        kinds = np.array(values, object if isinstance(values[0], str) else np.int64)
        return kinds[kind]

    def same(value: Any) -> np.ndarray:
        return of_kind(value, value, value)

    log = RowsLog(
        {
            "op": np.arange(num_pes * each),
            "pe": np.repeat(np.arange(num_pes), each),
            "engine": of_kind("dma", "gemm", "link"),
            "op_name": of_kind("load", "dot", "send"),
            "start_ps": start,
            "end_ps": start + np.array([1000, 500, 250])[kind],
            "shape": same("8x8"),
            "dtype": same("float32"),
            "nbytes": same(256),
            "flops": of_kind(0, 1024, 0),
            "src_addrs": of_kind("x+0", "0;256", "512"),
            "dst_addr": of_kind("0", "512", ""),
            "scope_depth": same(1),
            "cursor_bytes": of_kind(256, 768, 768),
            "loop": texts[j],
            "file": same("kernel.py"),
            "line": of_kind(3, 4, 5),
            "command": of_kind(0, 1, 2),
        },
        num_pes=num_pes,
    )
    folds = tuple(
        fold_of(log, pe * each + 3, (pe + 1) * each - 3, *[iterations - 2] * 2)
        for pe in range(num_pes if folded else 0)
    )
    return RowsLog(log.arrays, folds, num_pes)
