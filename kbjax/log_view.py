"""What exports and pictures see of an op_log: columns some rows at a time, rows that
are drawn one by one, and loops of which only the ends are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from kbjax.program import Program
from kbjax.summary import Summary

ROWS = 65_536  # of a chunk; a row group of Parquet


class Log(Protocol):
    """An `OpLog`, which has methods that call what takes this, or anything like it."""

    @property
    def program(self) -> Program: ...

    @property
    def schema_version(self) -> int: ...

    @property
    def total_ns(self) -> float: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Log: ...

    def columns(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]: ...

    def chunks(
        self, rows: int = ROWS, names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]: ...

    def folds(self) -> Sequence[Fold]: ...

    def summary(self) -> Summary: ...


@dataclass(frozen=True)
class Fold:
    """Rows `first_row` to `stop_row` of a log: `iterations` steady ones of a loop,
    which are `repeats` times the same rows, moved in time. `depth` is how many loops
    are around that one."""

    pe: int
    first_row: int
    stop_row: int
    iterations: int
    repeats: int
    loop: str
    depth: int
    file: str
    line: int
    start_ns: float
    end_ns: float


class Peak(NamedTuple):
    """A time, in picoseconds, and the highest cursor around it."""

    at_ps: int
    cursor_bytes: int


class Iteration(NamedTuple):
    """One of a loop: which one, and as text with those of the loops around it."""

    number: int
    text: str


class Op(NamedTuple):
    """One row of the log: its columns, with times in picoseconds; `iterations` are the
    numbers in `loop`."""

    op: int
    pe: int
    engine: str
    op_name: str
    start_ps: int
    end_ps: int
    shape: str
    dtype: str
    nbytes: int
    flops: int
    src_addrs: str
    dst_addr: str
    scope_depth: int
    cursor_bytes: int
    loop: str
    file: str
    line: int
    command: int
    iterations: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of the log that it stands for."""
        return 1

    @property
    def last_cursor_bytes(self) -> int:
        """As of `FoldedOps`."""
        return self.cursor_bytes

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """As of `FoldedOps`."""
        return (Peak(self.start_ps, self.cursor_bytes),)


@dataclass(frozen=True)
class EngineSpan:
    """What one engine does in a folded loop, from the start of its first op to the end
    of its last; its op before the loop has ended, its op after has not begun."""

    engine: str
    start_ps: int
    end_ps: int
    ops: int
    busy_ps: int


@dataclass(frozen=True)
class FoldedOps:
    """Steady iterations of a loop, drawn as one slice an engine.

    Attributes:
      op: the first row; `rows` rows are folded.
      engines: what each engine that is busy does.
      scope_depth: the depth at which the whole of the loop runs.
      cursor_bytes: the cursor at the first op of that depth; `last_cursor_bytes` at
        the last one.
      peaks: of the first and of the last repeat.
      repeats: how many times the same rows come.
      ends: the first and the last iteration that are folded.
    """

    op: int
    pe: int
    rows: int
    iterations: int
    loop: str
    file: str
    line: int
    engines: tuple[EngineSpan, ...]
    scope_depth: int
    cursor_bytes: int
    last_cursor_bytes: int
    peaks: tuple[Peak, Peak]
    repeats: int
    ends: tuple[Iteration, Iteration]

    @property
    def start_ps(self) -> int:
        """When the first of its engines starts."""
        return min(span.start_ps for span in self.engines)

    @property
    def end_ps(self) -> int:
        """When the last of its engines ends."""
        return max(span.end_ps for span in self.engines)


Item = Op | FoldedOps
