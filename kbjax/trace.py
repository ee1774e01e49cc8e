"""The op_log as a trace in Chrome's JSON format, which Perfetto opens; docs/op_log.md
says what its tracks are.

1. Choose the rows: steady iterations of loops are folded, and at most `max_events` of
   the rest are read, those that start first.
2. Draw them (`kbjax.tracks`), and cut the tail in time until the events are few enough.
3. Write the events one by one (`kbjax.chrome`).

Memory grows with `max_events`, not with the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbjax import chrome, errors, output, tracks
from kbjax.log_view import (
    EngineSpan,
    Fold,
    FoldedOps,
    Item,
    Iteration,
    Log,
    Op,
    Peak,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TraceReport:
    """What a trace shows of its op_log.

    `shown_ops + folded_ops + dropped_ops` is the number of rows of the log. Dropped are
    those of PEs that were not asked for (`unselected_ops`), and those past `cut_ns`,
    the start of the first one that was over `max_events` (None where none was).
    `events` is everything in the file, names of tracks included.
    """

    path: str
    events: int
    nbytes: int
    shown_ops: int
    folded_ops: int
    dropped_ops: int
    unselected_ops: int
    max_events: int
    cut_ns: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`."""
        return {"schema_version": SCHEMA_VERSION, **vars(self)}

    def __str__(self) -> str:
        events = "1 event" if self.events == 1 else f"{self.events:,} events"
        counts = f"{events}, {self.nbytes:,} B"
        shown = f"{self.shown_ops:,} ops are drawn"
        folded = f"{self.folded_ops:,} are in folded loops"
        lines = [f"{self.path}: {counts}", f"{shown}, {folded}", *self.dropped()]
        return "\n".join(lines)

    def dropped(self) -> list[str]:
        """What is left out, and why: a sentence each."""
        found = []
        cut = self.dropped_ops - self.unselected_ops
        if cut:
            found.append(
                f"{cut:,} ops are left out: those that start at {self.cut_ns:,.3f} ns "
                f"or later, for max_events is {self.max_events:,}"
            )
        if self.unselected_ops:
            found.append(
                f"{self.unselected_ops:,} ops are left out: those of PEs that were not "
                "asked for"
            )
        return found


def write_trace(
    log: Log,
    target: output.Target,
    max_events: int = 200_000,
    pes: int | Iterable[int] | None = None,
) -> TraceReport:
    """Write `log` as a trace.

    Args:
      log: what to draw.
      target: a path, ``-``, or a file object.
      max_events: the most events that the file may have; what would be more is cut, the
        tail in time first.
      pes: a PE to draw, or several; all by default.

    Raises:
      ShapeError: for a PE that the log does not have, or no room for any event.
      KbjaxError: where `target` cannot be written; a path is then as it was.
    """
    if isinstance(max_events, bool) or not isinstance(max_events, int | np.integer):
        raise errors.ShapeError("max_events is a whole number", got=repr(max_events))
    if max_events < 1:
        raise errors.ShapeError(
            "max_events is a whole number", got=max_events, allowed=">= 1"
        )
    chosen = _chosen(pes, log.program.num_pes)
    wanted = _Rows(log, chosen, max_events)
    items = wanted.items()
    cut_ps = wanted.cut_ps
    picture = tracks.draw(items)
    noted = cut_ps is not None or wanted.unselected > 0  # by an event
    while picture.events > max_events - noted:
        noted = True
        items, cut_ps = tracks.cut(items, picture, max_events - noted)
        picture = tracks.draw(items)
    shown = sum(isinstance(item, Op) for item in items)
    folded = sum(item.rows for item in items) - shown
    dropped = len(log) - shown - folded
    report = TraceReport(
        path=output.name_of(target),
        events=picture.events + (dropped > 0),
        nbytes=0,
        shown_ops=shown,
        folded_ops=folded,
        dropped_ops=dropped,
        unselected_ops=wanted.unselected,
        max_events=int(max_events),
        cut_ns=None if cut_ps is None else cut_ps / 1000,
    )
    about = {
        "schema_version": SCHEMA_VERSION,
        "kernel": log.program.name,
        "pes": sorted(chosen),
        "ops": len(log),
        **{k: v for k, v in vars(report).items() if k not in ("path", "nbytes")},
        "dropped": report.dropped(),
        "summary": log.summary().to_dict(),
    }
    end_ps = round(log.total_ns * 1000) if cut_ps is None else cut_ps
    nbytes = 0
    with output.text(target) as write:
        events = chrome.events(picture, report.dropped(), end_ps)
        for text in chrome.file(about, events):
            write(text)
            nbytes += len(text)  # it is ASCII
    return TraceReport(**{**vars(report), "nbytes": nbytes})


@dataclass(frozen=True)
class Shown:
    """What a picture of one PE shows: ops and folded loops, in the order of the log.

    `cut_ps` is the start of the first one that is left out, None where none is;
    `dropped_ops` are the rows from there on.
    """

    items: tuple[Item, ...]
    cut_ps: int | None
    dropped_ops: int


def shown(log: Log, pe: int, most: int, folding: bool = True) -> Shown:
    """The ops of one PE that a picture of `most` of them shows, those that start first;
    steady iterations of loops are folded, if `folding` is.

    Raises:
      ShapeError: for a PE that the log does not have.
    """
    found = _Rows(log, _chosen(pe, log.program.num_pes), most, folding)
    items = tuple(found.items())
    drawn = sum(item.rows for item in items)
    dropped = len(log) - found.unselected - drawn
    return Shown(items, found.cut_ps, dropped)


def _chosen(pes: int | Iterable[int] | None, num_pes: int) -> set[int]:
    if pes is None:
        return set(range(num_pes))
    asked = [*pes] if isinstance(pes, Iterable) else [pes]
    for pe in asked:
        if isinstance(pe, bool) or not isinstance(pe, int | np.integer):
            raise errors.ShapeError("a PE is a whole number", got=repr(pe))
        if not 0 <= pe < num_pes:
            raise errors.ShapeError(
                "the op_log has no such PE", got=pe, allowed=f"0 to {num_pes - 1}"
            )
    return {int(pe) for pe in asked}


# --- which rows ----------------------------------------------------------------------


class _Rows:
    """The rows of a log that a trace of so many events may show.

    Attributes:
      unselected: rows of other PEs.
      cut_ps: the start of the first item that is one too many, or None.
    """

    def __init__(
        self, log: Log, pes: set[int], most: int, folding: bool = True
    ) -> None:
        self._log, self._pes, self._most = log, pes, most
        self._folds = log.folds() if folding else ()
        self.unselected = len(log)
        starts = np.zeros(0, np.int64)
        for where, found in self._starts():
            rows = 1 if isinstance(where, range) else _rows(where)
            self.unselected -= rows * len(found)
            starts = np.concatenate([starts, found])
            if len(starts) > most:  # the first ones, and the one that is too many
                starts = np.partition(starts, most)[: most + 1]
        self.cut_ps = int(starts.max()) if len(starts) > most else None

    def items(self) -> list[Item]:
        """The rows and folded loops that start first, in the order of the log."""
        found: list[Item] = []
        for where, starts in self._starts():
            kept = starts <= self.cut_ps if self.cut_ps is not None else starts >= 0
            if isinstance(where, range):
                if kept.any():
                    found += self._ops(where)
            elif kept.all() and len(kept):
                found.append(self._folded(where))
        if self.cut_ps is None:
            return found
        found = [item for item in found if item.start_ps <= self.cut_ps]
        surplus = len(found) - self._most  # of those that start at the cut itself
        last = [n for n, item in enumerate(found) if item.start_ps == self.cut_ps]
        left_out = set(last[len(last) - surplus :]) if surplus > 0 else set()
        return [item for n, item in enumerate(found) if n not in left_out]

    def _starts(self) -> Iterator[tuple[range | Fold, np.ndarray]]:
        """What is between folds, some rows at a time, and each fold: when what may be
        drawn of it starts, in ps."""
        at = 0
        for fold in [*self._folds, None]:
            stop = fold.first_row if fold else len(self._log)
            for columns in self._log[at:stop].chunks(names=["pe", "start_ps"]):
                rows = range(at, at + len(columns["pe"]))
                at = rows.stop
                mine = np.isin(columns["pe"], list(self._pes))
                yield rows, columns["start_ps"][mine]
            if fold is None:
                return
            at = fold.stop_row
            if fold.pe in self._pes:
                yield fold, np.array([round(fold.start_ns * 1000)])

    def _ops(self, rows: range) -> list[Op]:
        columns = self._log[rows.start : rows.stop].columns(list(Op._fields))
        kept = np.isin(columns["pe"], list(self._pes))
        if self.cut_ps is not None:
            kept &= columns["start_ps"] <= self.cut_ps
        cells = [columns[name][kept].tolist() for name in Op._fields]
        return list(map(Op._make, zip(*cells, strict=True)))

    def _folded(self, fold: Fold) -> FoldedOps:
        """A folded loop, from the first of its repeats and the last."""
        count, times = _rows(fold), fold.repeats
        rows = count // times
        first = _Part(self._log, fold.first_row, fold.first_row + rows)
        last = _Part(self._log, fold.stop_row - rows, fold.stop_row)
        engines = []
        for engine, a in first.engines.items():
            end = last.engines[engine].end_ps
            engines.append(
                EngineSpan(engine, a.start_ps, end, a.ops * times, a.busy_ps * times)
            )
        return FoldedOps(
            op=first.op,
            pe=fold.pe,
            rows=count,
            iterations=fold.iterations,
            loop=fold.loop,
            file=fold.file,
            line=fold.line,
            engines=tuple(engines),
            scope_depth=first.depth,
            cursor_bytes=first.cursors[0],
            last_cursor_bytes=last.cursors[1],
            peaks=(first.peak, last.peak),
            repeats=times,
            ends=(
                self._iteration(fold, fold.first_row),
                self._iteration(fold, fold.stop_row - 1),
            ),
        )

    def _iteration(self, fold: Fold, row: int) -> Iteration:
        found = self._log[row : row + 1].columns(["loop", "iterations"])
        number = found["iterations"][0][fold.depth]
        return Iteration(int(number), str(found["loop"][0]))


def _rows(fold: Fold) -> int:
    return fold.stop_row - fold.first_row


class _Part:
    """What rows do together; they are read some at a time.

    Attributes:
      op: the number of the first.
      engines: what each engine does.
      depth: the least scope depth.
      cursors: at the first and the last op of that depth.
      peak: when the first starts, and the highest cursor.
    """

    def __init__(self, log: Log, first: int, stop: int) -> None:
        self.op = int(log[first : first + 1].columns(["op"])["op"][0])
        self.engines: dict[str, EngineSpan] = {}
        self.depth = -1
        self.cursors = (0, 0)
        start, highest = -1, 0
        names = ["engine", "start_ps", "end_ps", "scope_depth", "cursor_bytes"]
        for found in log[first:stop].chunks(names=names):
            engine, starts, ends, depth, cursor = (found[name] for name in names)
            for name in dict.fromkeys(engine.tolist()):
                self._add(name, starts[engine == name], ends[engine == name])
            if self.depth < 0 or depth.min() < self.depth:
                self.depth = int(depth.min())
                self.cursors = (int(cursor[depth == self.depth][0]), 0)
            if (depth == self.depth).any():
                self.cursors = (self.cursors[0], int(cursor[depth == self.depth][-1]))
            start = min(start, int(starts.min())) if start >= 0 else int(starts.min())
            highest = max(highest, int(cursor.max()))
        self.peak = Peak(start, highest)

    def _add(self, name: str, starts: np.ndarray, ends: np.ndarray) -> None:
        start, end = int(starts.min()), int(ends.max())
        ops, busy = len(starts), int((ends - starts).sum())
        if name in self.engines:
            old = self.engines[name]
            start, end = min(start, old.start_ps), max(end, old.end_ps)
            ops, busy = ops + old.ops, busy + old.busy_ps
        self.engines[name] = EngineSpan(name, start, end, ops, busy)
