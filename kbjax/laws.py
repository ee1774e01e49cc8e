"""The laws that every schedule keeps, looked for in an op_log: what holds whatever the
kernel, found from the log's rows and the program, not from how the log was made.

0. Each run of a command has one row, and no other row is there.
1. One engine of a PE runs one command at a time, in issue order.
2. A command starts as soon as its engine is free, the bytes it reads are there, and no
   earlier command uses the bytes it writes; not before and not after.
3. A receive ends no earlier than the send of its message.
4. The total is the last end; at least each engine's busy time, bytes / bandwidth,
   flops / peak and the critical path; at most all commands of all PEs one after
   another.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kbjax import expr
from kbjax.costs import ENGINES
from kbjax.expr import Expr, Var
from kbjax.op_log import OpLog
from kbjax.program import (
    Block,
    Command,
    Loop,
    OpCmd,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    When,
)

MOST_ROWS = 20_000  # whose bytes are followed one by one
_MOST_STARTS = 3  # that are told of a PE: one mistake moves all that comes after
_CHUNK = 1 << 16
_NAMES = ("pe", "engine", "start_ps", "end_ps", "nbytes", "flops", "file", "line")
_Columns = Mapping[str, np.ndarray]


def broken(log: OpLog, most_rows: int = MOST_ROWS) -> list[str]:
    """What the log breaks, a sentence each; nothing where it keeps every law.

    Args:
      log: of a whole program.
      most_rows: how many rows' bytes are followed (laws 0, 2 and 3); the others are
        looked at in columns.
    """
    parts = [*_by_pe(log, most_rows)]
    found = [*_engines(log), *_total(log)]
    for part in parts:
        found += [*_rows_are_runs(log.program, part), *_starts(log.program, part)]
    if len(log) <= most_rows:  # else a message's other end may not be looked at
        found += _messages(log.program, parts)
    return found


# --- by column -----------------------------------------------------------------------


def _chunks(log: OpLog) -> Iterator[tuple[int, _Columns]]:
    """The number of a piece's first row, and its columns."""
    for first in range(0, len(log), _CHUNK):
        yield first, log[first : first + _CHUNK].columns(_NAMES)


def _of_engines(rows: _Columns) -> Iterator[tuple[tuple[int, str], np.ndarray]]:
    """The rows of each engine of each PE; waits are of none."""
    for pe in np.unique(rows["pe"]).tolist():
        for engine in ENGINES:
            mine = np.flatnonzero((rows["pe"] == pe) & (rows["engine"] == engine))
            if mine.size:
                yield (pe, engine), mine


def _engines(log: OpLog) -> Iterator[str]:
    """Law 1."""
    free: dict[tuple[int, str], int] = {}
    for first, rows in _chunks(log):
        start, end = rows["start_ps"], rows["end_ps"]
        wrong = np.flatnonzero((start < 0) | (end < start))
        if wrong.size:
            yield f"{_row(rows, wrong[0], first)} ends before it starts"
        for key, mine in _of_engines(rows):
            before = np.concatenate([[free.get(key, 0)], end[mine][:-1]])
            early = np.flatnonzero(start[mine] < before)
            if early.size:
                at, until = mine[early[0]], int(before[early[0]])
                yield (
                    f"{_row(rows, at, first)} starts at {_ns(start[at])}, while its "
                    f"engine is busy until {_ns(until)}"
                )
            free[key] = int(end[mine][-1])


@dataclass
class _Sums:
    """Over all rows: the last end, all durations, those of each engine of each PE, the
    bytes that each PE's DMA moves, the flops of products."""

    last_ps: int = 0
    serial_ps: int = 0
    busy_ps: defaultdict[tuple[int, str], int] = field(
        default_factory=lambda: defaultdict(int)
    )
    moved_bytes: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    gemm_flops: int = 0

    @classmethod
    def of(cls, log: OpLog) -> _Sums:
        sums = cls()
        for _, rows in _chunks(log):
            took_ps = rows["end_ps"] - rows["start_ps"]
            sums.serial_ps += int(took_ps.sum())
            sums.last_ps = max(sums.last_ps, int(rows["end_ps"].max()))
            for (pe, engine), mine in _of_engines(rows):
                sums.busy_ps[pe, engine] += int(took_ps[mine].sum())
                if engine == "dma":
                    sums.moved_bytes[pe] += int(rows["nbytes"][mine].sum())
                if engine == "gemm":
                    sums.gemm_flops += int(rows["flops"][mine].sum())
        return sums


def _total(log: OpLog) -> Iterator[str]:
    """Law 4."""
    sums, total_ps = _Sums.of(log), round(log.total_ns * 1000)
    if total_ps != sums.last_ps:
        yield (
            f"the total is {_ns(total_ps)}, but the last row ends at "
            f"{_ns(sums.last_ps)}"
        )
    for floor_ps, what in _floors(log, sums):
        if total_ps < floor_ps * (1 - 1e-12) - 0.5:
            yield f"the total, {_ns(total_ps)}, is less than {what}, {_ns(floor_ps)}"
    if total_ps > sums.serial_ps:
        yield (
            f"the total, {_ns(total_ps)}, is more than all commands of all PEs one "
            f"after another, {_ns(sums.serial_ps)}"
        )


def _floors(log: OpLog, sums: _Sums) -> Iterator[tuple[float, str]]:
    """What a total is at least, in ps, and what that is."""
    program, summary = log.program, log.summary()
    for (pe, engine), busy_ps in sums.busy_ps.items():
        yield busy_ps, f"the {engine} engine's busy time on PE {pe}"
    for pe, nbytes in sums.moved_bytes.items():
        bandwidth = program.hardware.pe_dma.bandwidth_gb_s
        yield 1000 * nbytes / bandwidth, f"bytes / bandwidth of PE {pe}"
    if sums.gemm_flops:
        peak = max(_peaks(program)) * program.num_pes
        what = "flops / peak of all PEs' products, shared evenly"
        yield 1000 * sums.gemm_flops / peak, what
    path_ns = sum(line.time_ns for line in summary.critical_path)
    yield path_ns * 1000, "the critical path"
    yield summary.roofline_ns * 1000, "the roofline"


def _peaks(program: Program) -> Iterator[float]:
    """The rate of each product's operands, in flops / ns."""
    for item in program.walk():
        if isinstance(item, OpCmd) and item.op == "dot":
            for ref in item.reads[:2]:
                yield program.hardware.pe_gemm.peak_flops_per_ns(ref.dtype.name)


# --- by row --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The rows of one PE, or the first of them.

    Attributes:
      first: the number of the first.
      cut: whether there may be more.
    """

    pe: int
    rows: _Columns
    first: int
    cut: bool

    def __len__(self) -> int:
        return len(self.rows["pe"])


@dataclass(frozen=True)
class _Ran:
    """A row with the run that it is of.

    Attributes:
      row: how it is told.
      env: the index of each loop around the command, and the PE.
    """

    row: str
    command: Command
    env: Mapping[Var, int]
    engine: str
    start_ps: int
    end_ps: int


def _by_pe(log: OpLog, most_rows: int) -> Iterator[_Part]:
    """The first rows of a log, which has one PE's after another's."""
    first = 0
    for pe in range(log.program.num_pes):
        left = most_rows - first
        if left <= 0:
            return
        some = log[first : first + left].columns(_NAMES)
        mine = some["pe"] == pe
        rows = {name: column[mine] for name, column in some.items()}
        count = int(mine.sum())
        yield _Part(pe, rows, first, cut=count == left)
        first += count


def _replayed(program: Program, part: _Part) -> Iterator[_Ran]:
    """Each row with its run, as far as there are both."""
    runs = _runs(program.commands, {program.program_id: part.pe})
    starts, ends = (part.rows[name].tolist() for name in ("start_ps", "end_ps"))
    for at, (command, env) in zip(range(len(part)), runs, strict=False):
        row, engine = _row(part.rows, at, part.first), str(part.rows["engine"][at])
        yield _Ran(row, command, env, engine, starts[at], ends[at])


def _rows_are_runs(program: Program, part: _Part) -> Iterator[str]:
    """Law 0, by their number."""
    runs = _runs(program.commands, {program.program_id: part.pe})
    some = [command for command, _ in itertools.islice(runs, len(part) + 1)]
    if len(some) < len(part):
        row = _row(part.rows, len(some), part.first)
        yield f"{row} is of no command of the program"
    if len(some) > len(part) and not part.cut:
        yield f"{some[-1].op} at {some[-1].site} has no row on PE {part.pe}"


def _starts(program: Program, part: _Part) -> Iterator[str]:
    """Law 2."""
    size = program.peak_scratch + program.hardware.pe_tcm.align
    written, used = np.zeros(size, np.int64), np.zeros(size, np.int64)
    free: defaultdict[str, int] = defaultdict(int)
    where, wrong = _Bytes(program), 0
    for ran in _replayed(program, part):
        reads, writes = where.of(ran)
        causes = {
            "the bytes it writes are used": int(used[writes].max(initial=0)),
        }
        if not isinstance(ran.command, RecvCmd):  # which is posted, and waits
            ready = (int(written[piece].max(initial=0)) for piece in reads)
            causes["what it reads is there"] = max(ready, default=0)
            causes["its engine is busy"] = free[ran.engine]
            free[ran.engine] = ran.end_ps
        why = max(causes, key=causes.__getitem__)
        if ran.start_ps != causes[why]:
            early = ran.start_ps < causes[why]
            yield (
                f"{ran.row} starts at {_ns(ran.start_ps)}, "
                f"{'before it may' if early else 'later than it could'}: {why} at "
                f"{_ns(causes[why])}"
            )
            wrong += 1
            if wrong == _MOST_STARTS:
                return
        for piece in (*reads, writes):
            used[piece] = np.maximum(used[piece], ran.end_ps)
        written[writes] = ran.end_ps


@dataclass(frozen=True)
class _Bytes:
    """Where a program's commands read and write.

    Attributes:
      spans: the offset and the size of each of a command's references, by its `id`: the
        reads, then the write if there is one.
    """

    program: Program
    spans: dict[int, list[tuple[Expr, int]]] = field(default_factory=dict)

    def of(self, ran: _Ran) -> tuple[list[slice], slice]:
        """The bytes that a run reads, and those it writes."""
        command, key = ran.command, id(ran.command)
        if key not in self.spans:
            refs = [*command.reads, *([command.writes] if command.writes else [])]
            self.spans[key] = [(self.program.offset(x), x.nbytes) for x in refs]
        lows = [(expr.evaluate(at, ran.env), size) for at, size in self.spans[key]]
        pieces = [slice(low, low + size) for low, size in lows]
        if command.writes is None:
            return pieces, slice(0, 0)
        return pieces[:-1], pieces[-1]


def _messages(program: Program, parts: Sequence[_Part]) -> Iterator[str]:
    """Law 3: the nth receive from a PE at an offset, and its nth send to there."""
    sent: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    received: defaultdict[tuple[int, int], list[_Ran]] = defaultdict(list)
    for part in parts:
        for ran in _replayed(program, part):
            if isinstance(ran.command, SendCmd):
                offset = ran.command.offset % program.num_pes
                sent[part.pe, offset].append(ran.end_ps)
            elif isinstance(ran.command, RecvCmd):
                offset = ran.command.offset % program.num_pes
                received[(part.pe - offset) % program.num_pes, offset].append(ran)
    for key, runs in received.items():
        for number, ran in enumerate(runs):
            if number >= len(sent[key]):
                yield f"{ran.row} receives a message that nothing sends"
            elif ran.end_ps < sent[key][number]:
                yield (
                    f"{ran.row} ends at {_ns(ran.end_ps)}, before its message is sent "
                    f"at {_ns(sent[key][number])}"
                )


def _runs(
    block: Block, env: Mapping[Var, int]
) -> Iterator[tuple[Command, Mapping[Var, int]]]:
    """Every command as often as it runs on a PE, in issue order."""
    for item in block:
        if isinstance(item, Loop):
            for i in range(expr.evaluate(item.trip, env)):
                yield from _runs(item.body, {**env, item.index: i})
        elif isinstance(item, Scope):
            if not isinstance(item, When) or expr.evaluate(item.condition, env):
                yield from _runs(item.body, env)
        else:
            yield item, env


def _row(rows: Mapping[str, np.ndarray], at: int, first: int) -> str:
    file = str(rows["file"][at]).replace("\\", "/").rpartition("/")[2]
    return (
        f"row {first + int(at)} ({rows['engine'][at]}, {file}:{rows['line'][at]}, "
        f"PE {rows['pe'][at]})"
    )


def _ns(time_ps: float) -> str:
    return f"{time_ps / 1000:,.3f} ns"
