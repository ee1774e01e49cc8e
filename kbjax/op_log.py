"""OpLog: what ran when, in columns. Rolled in memory, expanded when asked. Knows no
values.

Columns: `op, pe, engine, op_kind, op_name, start_ns, end_ns, shape, dtype, nbytes,
flops, src_addrs, dst_addr, scope_depth, cursor_bytes, loop, file, line`. Rows are in
issue order, PE by PE.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from kbjax import (
    costs,
    errors,
    exports,
    notebook,
    output,
    rolled,
    summary,
    timing,
    trace,
)
from kbjax.columns import Columns, Run
from kbjax.costs import Work
from kbjax.log_view import ROWS, Fold
from kbjax.program import Loop, Program
from kbjax.rolled import Node, Repeat
from kbjax.steady import Walk
from kbjax.summary import SCHEMA_VERSION, Summary
from kbjax.timing import Schedule
from kbjax.trace import TraceReport

SHOWN = 3  # times of a repeat below which a picture shows them all


@dataclass(frozen=True)
class OpRecord:
    """One row. Times in ns; `shape` as ``8x128``; addresses in bytes, `src_addrs`
    joined by ``;``, HBM ones as ``name+offset``; `loop` as ``j=3;i=0``, the iteration
    of each loop around it."""

    op: int
    pe: int
    engine: str
    op_kind: str
    op_name: str
    start_ns: float
    end_ns: float
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


COLUMNS = tuple(field.name for field in fields(OpRecord))
# Of the schedule, for reports; `columns` gives them when asked by name.
MORE_COLUMNS = ("start_ps", "end_ps", "after", "waits_for", "waited_ps", "command",
                "iterations")  # fmt: skip


class OpLog:
    """The timed log of a program, or some rows of it (`filter`, slices).

    Its size in memory does not depend on trip counts: rows of a loop's steady
    iterations are kept once, with how they move.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        runs: Sequence[Run] | None = None,
    ) -> None:
        self._program, self._schedule = program, schedule
        if runs is None:
            found, first = [], 0
            for pe, nodes in enumerate(schedule.runs):
                found.append(Run(pe, first, nodes))
                first += found[-1].rows
            runs = found
        self._runs = tuple(run for run in runs if run.nodes)

    @property
    def program(self) -> Program:
        """What was timed."""
        return self._program

    @property
    def schema_version(self) -> int:
        """Of the columns and of everything made from them."""
        return SCHEMA_VERSION

    @property
    def total_ns(self) -> float:
        """From the program's first command's issue to its last one's end."""
        return self._schedule.total_ps / 1000

    @property
    def peak_scratch(self) -> int:
        """Bytes; the same as the program's."""
        return self._program.peak_scratch

    @property
    def walks(self) -> tuple[Walk, ...]:
        """Loops whose times do not repeat, so that they were timed one iteration at a
        time, and why. The times are exact all the same."""
        return self._schedule.walks

    @cached_property
    def _rows(self) -> int:
        return sum(run.rows for run in self._runs)

    def __len__(self) -> int:
        return self._rows

    # --- rows ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[OpRecord]:
        for columns in self.chunks():
            lists = [column.tolist() for column in columns.values()]
            for row in zip(*lists, strict=True):
                yield OpRecord(*row)

    def __getitem__(self, row: int | slice) -> Any:
        """An `OpRecord`, or the log of some consecutive rows."""
        if isinstance(row, slice):
            first, stop, step = row.indices(len(self))
            if step != 1:
                raise errors.ShapeError("a slice of an op_log has step 1", got=step)
            return self._between(first, max(first, stop))
        at = operator.index(row)
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(f"row {row} of an op_log of {len(self):,} rows")
        return next(iter(self._between(at, at + 1)))

    def _between(self, first: int, stop: int) -> OpLog:
        runs = []
        for run in self._runs:
            nodes = tuple(rolled.between(run.nodes, first, stop))
            runs.append(run._replace(nodes=nodes))
            first, stop = first - run.rows, stop - run.rows
        return OpLog(self._program, self._schedule, runs)

    def chunks(
        self, rows: int = ROWS, names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """`columns` of `rows` rows at a time, in bounded memory.

        Args:
          rows: how many.
          names: as of `columns`.

        Raises:
          KernelError: for a name that is no column.
          ShapeError: for less than a row.
        """
        if rows < 1:
            raise errors.ShapeError(
                "chunks have rows", got=rows, allowed="1 row and more"
            )
        for first in range(0, len(self), rows):
            yield self._between(first, min(first + rows, len(self))).columns(names)

    def filter(
        self,
        *,
        engine: str | None = None,
        op_name: str | None = None,
        pe: int | None = None,
        file: str | None = None,
        line: int | None = None,
        loop: Mapping[str, int | range] | None = None,
    ) -> OpLog:
        """The log of some rows; what is None lets all pass.

        Args:
          engine, op_name, pe, file, line: as in the columns.
          loop: loop's name -> its iteration, or a range of them (step 1); of nested
            loops of one name, the outer one.

        Raises:
          KernelError: for an engine or op that kbjax does not have, and a loop that
            the program does not have.
          ShapeError: for a PE that the program does not have, and a range with a step.
        """
        for what, name, names in (
            ("engine", engine, (*costs.ENGINES, "wait")),
            ("op", op_name, costs.OP_NAMES),
        ):
            if name is not None and name not in names:
                raise errors.KernelError(
                    f"there is no {what} {name!r}", allowed=", ".join(names)
                )
        if pe is not None and not 0 <= pe < self._program.num_pes:
            raise errors.ShapeError(
                "the op_log has no such PE",
                got=pe,
                allowed=f"0 to {self._program.num_pes - 1}",
            )

        def keep(work: Work) -> bool:
            site = work.command.site
            asked = (engine, op_name, file, line)
            found = (work.engine, work.op_name, site.file, site.line)
            pairs = zip(asked, found, strict=True)
            return all(want is None or want == have for want, have in pairs)

        kept = [keep(work) for work in self._schedule.works]
        runs = [
            run._replace(nodes=tuple(rolled.chosen(run.nodes, kept.__getitem__)))
            for run in self._runs
            if pe is None or run.pe == pe
        ]
        for name, wanted in (loop or {}).items():
            runs = [self._iterations(run, name, wanted) for run in runs]
        return OpLog(self._program, self._schedule, runs)

    def _iterations(self, run: Run, name: str, wanted: int | range) -> Run:
        if isinstance(wanted, int | np.integer):
            wanted = range(int(wanted), int(wanted) + 1)
        if not isinstance(wanted, range) or wanted.step != 1:
            raise errors.ShapeError(
                f"iterations of loop {name!r} are a number, or a range of step 1",
                got=repr(wanted),
            )
        span = wanted
        places = [
            next((n for n, one in enumerate(w.loops) if one.name == name), None)
            for w in self._schedule.works
        ]
        if all(place is None for place in places):
            names = {one.name for w in self._schedule.works for one in w.loops}
            raise errors.KernelError(
                f"the op_log has no loop {name!r}",
                allowed=", ".join(sorted(names)) or "none",
            )
        nodes = rolled.iterations(run.nodes, places.__getitem__, span.start, span.stop)
        return run._replace(nodes=tuple(nodes))

    # --- columns ---------------------------------------------------------------------

    def columns(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """One array a column, each (len(self),): int64, float64 (ns), or str objects.

        Args:
          names: which; None: all of the schema. Also `start_ps`, `end_ps`, `waited_ps`
            (int64), `after` (the `op` whose end let this one start, -1 for none) and
            `waits_for` (what it waited for last: engine, operand, hazard), `command`
            (which of the program's commands it runs, as `program.walk()` gives them,
            from 0), and `iterations` (a tuple of int, `loop` as numbers).

        Raises:
          KernelError: for a name that is no column.
        """
        wanted = COLUMNS if names is None else tuple(names)
        for name in wanted:
            if name not in COLUMNS + MORE_COLUMNS:
                raise errors.KernelError(
                    f"the op_log has no column {name!r}",
                    allowed=", ".join(COLUMNS + MORE_COLUMNS),
                )
        # Piece by piece: what is made on the way stays small.
        columns: dict[str, np.ndarray] = {}
        for first, piece in self._pieces(ROWS):
            for name in wanted:
                part = piece.get(name)
                if not first:
                    columns[name] = np.empty(len(self), part.dtype)
                columns[name][first : first + len(part)] = part
        return columns

    def _pieces(self, rows: int) -> Iterator[tuple[int, Columns]]:
        """The columns of at most `rows` rows at a time, each of one PE, with the number
        of the first row; one without rows where there are none."""
        works, first = self._schedule.works, 0
        for run in self._runs or (Run(0, 0, ()),):
            for start in range(0, max(run.rows, 1), rows):
                nodes = tuple(rolled.between(run.nodes, start, start + rows))
                yield first, Columns(self._program, works, run._replace(nodes=nodes))
                first += min(rows, run.rows - start)

    def folds(self) -> tuple[Fold, ...]:
        """The rows that a picture may leave out: of each loop in a steady state all
        times but the first and the last, in order, and none twice."""
        sites = {s.index: s.site for s in self._program.walk() if isinstance(s, Loop)}

        def found(nodes: Iterable[Node], row: int, pe: int) -> Iterator[Fold]:
            for node in nodes:
                if isinstance(node, Repeat):
                    yield from repeat(node, row, pe)
                row += node.rows

        def repeat(node: Repeat, row: int, pe: int) -> Iterator[Fold]:
            each = node.rows // node.count
            if node.count <= SHOWN:
                for k in range(node.count):
                    yield from found(node.one(k), row + k * each, pe)
                return
            yield from found(node.one(0), row, pe)
            steady = node.some(1, node.count - 1)
            (inside,) = steady
            assert isinstance(inside, Repeat)
            work = next(r.work for r, _ in rolled.rows(inside.nodes))
            index = self._schedule.works[work].loops[node.position]
            first_ps, last_ps = rolled.extent(steady)
            yield Fold(
                pe=pe,
                first_row=row + each,
                stop_row=row + (node.count - 1) * each,
                iterations=inside.count * node.step,
                repeats=inside.count,
                loop=index.name,
                depth=node.position,
                file=sites[index].file,
                line=sites[index].line,
                start_ns=first_ps / 1000,
                end_ns=last_ps / 1000,
            )
            last = row + (node.count - 1) * each
            yield from found(node.one(node.count - 1), last, pe)

        folds: list[Fold] = []
        row = 0
        for run in self._runs:
            folds += found(run.nodes, row, run.pe)
            row += run.rows
        return tuple(folds)

    # --- reports ---------------------------------------------------------------------

    def summary(self) -> Summary:
        """Totals, busy times, and what limits the program. Of a filtered log, the
        totals of its rows in the program's time."""
        pes = [(run.pe, run.nodes) for run in self._runs]
        return summary.of(self._program, self._schedule, pes)

    def __repr__(self) -> str:
        rows, total_ns = len(self), self.total_ns
        name = self._program.name
        return f"<OpLog of {name}: {rows:,} rows, {total_ns:,.3f} ns in all>"

    def _repr_html_(self) -> str:
        first = self._between(0, min(notebook.ROWS, len(self)))
        return notebook.op_log(self.summary()._repr_html_(), first, len(self))

    # --- files -----------------------------------------------------------------------

    def to_csv(self, target: output.Target) -> None:
        """Write CSV to a path, ``-`` or a file object; see docs/op_log.md."""
        exports.write_csv(self, target)

    def to_jsonl(self, target: output.Target) -> None:
        """Write JSON Lines, the first of them about the log; as `to_csv`."""
        exports.write_jsonl(self, target)

    def to_parquet(self, target: output.Target) -> None:
        """Write Parquet, which needs ``pip install 'kbjax[parquet]'``; as `to_csv`."""
        exports.write_parquet(self, target)

    def to_perfetto(
        self,
        target: output.Target,
        max_events: int = 200_000,
        pes: int | Iterable[int] | None = None,
    ) -> TraceReport:
        """Write a trace that ui.perfetto.dev opens; long loops are folded.

        Args:
          target: as of `to_csv`.
          max_events: the most events that the file may have; the tail in time is cut.
          pes: a PE to draw, or several; all by default.

        Returns:
          What is drawn, folded and left out.
        """
        return trace.write_trace(self, target, max_events, pes)


def of(program: Program) -> OpLog:
    """The op_log of a program."""
    return OpLog(program, timing.schedule(program))
