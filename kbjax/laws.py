"""The laws that every schedule keeps, looked for in an op_log: what holds whatever the
kernel, found from the log's rows and the program, not from how the log was made.

1. One engine of a PE runs one command at a time, in issue order.
2. A command starts as soon as its engine is free, the bytes it reads are there, and no
   earlier command uses the bytes it writes; not before and not after.
3. A receive ends no earlier than the send of its message.
4. The total is the last end; at least each engine's busy time, bytes / bandwidth,
   flops / peak and the critical path; at most all commands of all PEs one after
   another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kbjax import expr
from kbjax.expr import Var
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
_CHUNK = 1 << 16
_NAMES = ("pe", "engine", "start_ps", "end_ps", "nbytes", "flops", "file", "line")


def broken(log: OpLog, most_rows: int = MOST_ROWS) -> list[str]:
    """What the log breaks, a sentence each; nothing where it keeps every law.

    Args:
      log: of a whole program.
      most_rows: how many rows' bytes are followed (laws 2 and 3); the others are looked
        at in columns.
    """
    return [*_by_column(log), *_by_row(log, most_rows)]


def _by_column(log: OpLog) -> Iterator[str]:
    """Laws 1 and 4, a piece of the log at a time."""
    program = log.program
    busy: defaultdict[tuple[int, str], int] = defaultdict(int)
    moved: defaultdict[int, int] = defaultdict(int)
    free: dict[tuple[int, str], int] = {}
    last_ps = serial_ps = 0
    for first in range(0, len(log), _CHUNK):
        rows = log[first : first + _CHUNK].columns(_NAMES)
        start, end = rows["start_ps"], rows["end_ps"]
        wrong = np.flatnonzero((start < 0) | (end < start))
        if wrong.size:
            yield f"{_row(rows, wrong[0], first)} ends before it starts"
        serial_ps += int((end - start).sum())
        last_ps = max(last_ps, int(end.max()))
        for pe in np.unique(rows["pe"]).tolist():
            for engine in ("dma", "gemm", "math", "link"):
                mine = np.flatnonzero((rows["pe"] == pe) & (rows["engine"] == engine))
                if not mine.size:
                    continue
                key = (pe, engine)
                before = np.concatenate([[free.get(key, 0)], end[mine][:-1]])
                early = np.flatnonzero(start[mine] < before)
                if early.size:
                    at, until = mine[early[0]], int(before[early[0]])
                    yield (
                        f"{_row(rows, at, first)} starts at {_ns(start[at])}, while "
                        f"its engine is busy until {_ns(until)}"
                    )
                free[key] = int(end[mine][-1])
                busy[key] += int((end[mine] - start[mine]).sum())
                if engine == "dma":
                    moved[pe] += int(rows["nbytes"][mine].sum())
    total_ps = round(log.total_ns * 1000)
    if total_ps != last_ps:
        yield f"the total is {_ns(total_ps)}, but the last row ends at {_ns(last_ps)}"
    floors: list[tuple[float, str]] = [
        (time, f"the {engine} engine's busy time on PE {pe}")
        for (pe, engine), time in busy.items()
    ]
    bandwidth = program.hardware.pe_dma.bandwidth_gb_s
    floors += [
        (1000 * nbytes / bandwidth, f"bytes / bandwidth of PE {pe}")
        for pe, nbytes in moved.items()
    ]
    summary = log.summary()
    path_ns = sum(line.time_ns for line in summary.critical_path)
    floors += [
        (path_ns * 1000, "the critical path"),
        (_gemm_ps(program, log), "flops / peak of all PEs' products, shared evenly"),
        (summary.roofline_ns * 1000, "the roofline"),
    ]
    for floor, what in floors:
        if total_ps < floor * (1 - 1e-12) - 0.5:
            yield f"the total, {_ns(total_ps)}, is less than {what}, {_ns(floor)}"
    if total_ps > serial_ps:
        yield (
            f"the total, {_ns(total_ps)}, is more than all commands of all PEs one "
            f"after another, {_ns(serial_ps)}"
        )


def _gemm_ps(program: Program, log: OpLog) -> float:
    """All products' flops at the fastest of their peak rates, over all PEs' engines."""
    flops = 0
    for first in range(0, len(log), _CHUNK):
        rows = log[first : first + _CHUNK].columns(("engine", "flops"))
        flops += int(rows["flops"][rows["engine"] == "gemm"].sum())
    gemm = program.hardware.pe_gemm
    peaks = [
        gemm.peak_flops_per_ns(ref.dtype.name)
        for item in program.walk()
        if isinstance(item, OpCmd) and item.op == "dot"
        for ref in item.reads[:2]
    ]
    return 1000 * flops / (max(peaks) * program.num_pes) if flops else 0.0


def _by_row(log: OpLog, most_rows: int) -> Iterator[str]:
    """Laws 2 and 3, a row at a time."""
    program, first = log.program, 0
    sent: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    received: list[tuple[int, int, int, int, str]] = []
    whole = len(log) <= most_rows
    for pe in range(program.num_pes):
        some = log[first : first + most_rows].columns(_NAMES)
        mine = some["pe"] == pe
        count = int(mine.sum())
        some = {name: column[mine] for name, column in some.items()}
        cut = count == most_rows
        yield from _one_pe(program, pe, some, first, sent, received, cut)
        most_rows -= count
        first += count
        if most_rows <= 0:
            break
    if not whole:
        return  # a message's other end may not have been looked at
    for pe, offset, number, end_ps, row in received:
        ends = sent[(pe - offset) % program.num_pes, offset]
        if number >= len(ends):
            yield f"{row} receives a message that nothing sends"
        elif end_ps < ends[number]:
            yield (
                f"{row} ends at {_ns(end_ps)}, before its message is sent at "
                f"{_ns(ends[number])}"
            )


def _one_pe(
    program: Program,
    pe: int,
    rows: dict[str, np.ndarray],
    first: int,
    sent: defaultdict[tuple[int, int], list[int]],
    received: list[tuple[int, int, int, int, str]],
    cut: bool,
) -> Iterator[str]:
    """Law 2 on the rows of a PE, or the first of them where they are `cut`."""
    size = program.peak_scratch + program.hardware.pe_tcm.align
    written, used = np.zeros(size, np.int64), np.zeros(size, np.int64)
    free: defaultdict[str, int] = defaultdict(int)
    receives: defaultdict[int, int] = defaultdict(int)
    runs = _runs(program.commands, {program.program_id: pe})
    spans: dict[int, Any] = {}
    told = 0
    for number, start in enumerate(rows["start_ps"].tolist()):
        ran = next(runs, None)
        if ran is None:
            yield f"{_row(rows, number, first)} is of no command of the program"
            return
        command, env = ran
        end, engine = int(rows["end_ps"][number]), str(rows["engine"][number])
        if id(command) not in spans:
            refs = [*command.reads, *([command.writes] if command.writes else [])]
            spans[id(command)] = [(program.offset(ref), ref.nbytes) for ref in refs]
        at = [expr.evaluate(offset, env) for offset, _ in spans[id(command)]]
        pieces = [
            slice(low, low + n)
            for low, (_, n) in zip(at, spans[id(command)], strict=True)
        ]
        reads = pieces[: len(command.reads)]
        writes = pieces[-1] if command.writes else slice(0, 0)
        what = _row(rows, number, first)
        if isinstance(command, RecvCmd):
            offset = command.offset % program.num_pes
            received.append((pe, offset, receives[offset], end, what))
            receives[offset] += 1
            causes = {"the bytes it writes are used": int(used[writes].max(initial=0))}
        else:
            made = max((int(written[r].max(initial=0)) for r in reads), default=0)
            causes = {
                "what it reads is there": made,
                "the bytes it writes are used": int(used[writes].max(initial=0)),
                "its engine is busy": free[engine],
            }
            free[engine] = end
        if isinstance(command, SendCmd):
            sent[pe, command.offset % program.num_pes].append(end)
        due = max(causes.values())
        if start != due:
            why = max(causes, key=causes.__getitem__)
            kind = "before it may" if start < due else "later than it could"
            yield f"{what} starts at {_ns(start)}, {kind}: {why} at {_ns(due)}"
            told += 1
            if told == 3:  # one mistake moves all that comes after
                return
        for read in reads:
            used[read] = np.maximum(used[read], end)
        used[writes] = np.maximum(used[writes], end)
        written[writes] = end
    if not cut and (left := next(runs, None)) is not None:
        yield f"{left[0].op} at {left[0].site} has no row on PE {pe}"


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
