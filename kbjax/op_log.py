"""OpLog: what ran when, in columns, and its summary. Knows no values.

Columns: `op, pe, engine, op_kind, op_name, start_ns, end_ns, shape, dtype, nbytes,
flops, src_addrs, dst_addr, scope_depth, cursor_bytes, loop, file, line`. Rows are in
issue order, PE by PE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kbjax import expr, timing
from kbjax.expr import Var
from kbjax.program import HbmRef, LoadCmd, Program, Ref, StoreCmd
from kbjax.timing import ENGINES, Schedule, Work

SCHEMA_VERSION = 1


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


@dataclass(frozen=True)
class EngineUse:
    """`busy_ns` summed over PEs; `utilisation` is busy / (PEs x total)."""

    busy_ns: float
    utilisation: float
    commands: int


@dataclass(frozen=True)
class Summary:
    """Figures of one op_log. `flops` counts the GEMM engine's 2 M N K and the vector
    engine's elements; `limited_by` is the engine with the most busy time."""

    kernel: str
    num_pes: int
    total_ns: float
    commands: int
    engines: dict[str, EngineUse]
    bytes_loaded: int
    bytes_stored: int
    gemm_flops: int
    math_flops: int
    peak_scratch_bytes: int
    budget_bytes: int
    limited_by: str

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`."""
        engines = {name: vars(use) for name, use in self.engines.items()}
        return {"schema_version": SCHEMA_VERSION, **vars(self), "engines": engines}

    def rows(self) -> list[tuple[str, str]]:
        """What a person reads: (name, figure with its unit), in order."""
        shown = [("latency", f"{self.total_ns:,.3f} ns, {self.commands:,} commands")]
        for name, use in self.engines.items():
            shown.append(
                (
                    f"{name} engine",
                    f"busy {use.busy_ns:,.3f} ns over all PEs, {use.utilisation:.1%} "
                    f"utilised (busy / (PEs x latency)), {use.commands:,} commands",
                )
            )
        used = self.peak_scratch_bytes / self.budget_bytes
        return [
            *shown,
            ("limited by", f"{self.limited_by} (busiest engine)"),
            (
                "HBM traffic",
                f"{self.bytes_loaded:,} B loaded, {self.bytes_stored:,} B stored",
            ),
            ("flops", f"{self.gemm_flops:,} GEMM, {self.math_flops:,} vector"),
            (
                "peak scratch",
                f"{self.peak_scratch_bytes:,} of {self.budget_bytes:,} B ({used:.1%})",
            ),
        ]

    def __str__(self) -> str:
        plural = "s" if self.num_pes > 1 else ""
        head = f"{self.kernel} on {self.num_pes} PE{plural}"
        return "\n".join([head, *(f"  {n:<13} {text}" for n, text in self.rows())])


class OpLog:
    """The timed log of a program."""

    def __init__(self, program: Program, schedule: Schedule) -> None:
        self._program, self._schedule = program, schedule

    @property
    def total_ns(self) -> float:
        """From the first command's issue to the last one's end."""
        return self._total_ps / 1000

    @property
    def _total_ps(self) -> int:
        return int(self._schedule.end_ps.max(initial=0))

    @property
    def peak_scratch(self) -> int:
        """Bytes; the same as the program's."""
        return self._program.peak_scratch

    def __len__(self) -> int:
        return len(self._schedule.work)

    def __iter__(self) -> Iterator[OpRecord]:
        columns = self.columns()
        lists = [column.tolist() for column in columns.values()]
        for row in zip(*lists, strict=True):
            yield OpRecord(*row)

    def __getitem__(self, row: int) -> OpRecord:
        columns = self.columns()
        return OpRecord(*(column[row].item() for column in columns.values()))

    def columns(self) -> dict[str, np.ndarray]:
        """One array a column, all of `len(self)` rows."""
        return dict(self._columns)

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        s = self._schedule

        def each(value: Any) -> np.ndarray:
            """A value of each work, spread over its rows."""
            return np.array([value(work) for work in s.works])[s.work]

        return {
            "op": np.arange(len(self)),
            "pe": s.pe,
            "engine": each(lambda w: w.engine),
            "op_kind": each(lambda w: w.engine),
            "op_name": each(lambda w: w.op_name),
            "start_ns": s.start_ps / 1000,
            "end_ns": s.end_ps / 1000,
            "shape": each(lambda w: "x".join(map(str, w.shape))),
            "dtype": each(lambda w: w.dtype.name),
            "nbytes": s.nbytes,
            "flops": each(lambda w: w.flops),
            "src_addrs": self._by_row(self._src_addrs, str),
            "dst_addr": self._by_row(self._dst_addr, str),
            "scope_depth": each(lambda w: w.command.scope_depth),
            "cursor_bytes": self._by_row(self._cursor, np.int64),
            "loop": self._by_row(self._loop, str),
            "file": each(lambda w: w.command.site.file),
            "line": each(lambda w: w.command.site.line),
        }

    def _by_row(self, value: Any, dtype: Any) -> np.ndarray:
        """A value that depends on a row's iteration: `value(work, env)`."""
        s = self._schedule
        result = np.empty(len(self), object)
        for position, work in enumerate(s.works):
            rows = np.flatnonzero(s.work == position)
            if not work.loops and self._program.num_pes == 1:
                env = {self._program.program_id: 0}
                result[rows] = [value(work, env)] * len(rows)
                continue
            for row, iteration in zip(rows, s.iterations[position], strict=True):
                env = dict(zip(work.loops, iteration.tolist(), strict=True))
                env[self._program.program_id] = int(s.pe[row])
                result[row] = value(work, env)
        return result.astype(dtype)

    def _address(self, ref: Ref | HbmRef, env: dict[Var, int]) -> str:
        if isinstance(ref, Ref):
            return str(expr.evaluate(self._program.address(ref), env))
        offset = 0
        shape = self._program.slots[ref.slot].shape
        for span, size in zip(ref.spans, shape, strict=True):
            offset = offset * size + expr.evaluate(span.start, env)
        return f"{ref.name}+{offset * ref.dtype.nbytes}"

    def _src_addrs(self, work: Work, env: dict[Var, int]) -> str:
        command = work.command
        if isinstance(command, LoadCmd):
            return self._address(command.view, env)
        return ";".join(self._address(ref, env) for ref in command.reads)

    def _dst_addr(self, work: Work, env: dict[Var, int]) -> str:
        command = work.command
        if isinstance(command, StoreCmd):
            return self._address(command.view, env)
        assert command.writes is not None
        return self._address(command.writes, env)

    def _cursor(self, work: Work, env: dict[Var, int]) -> int:
        growth = self._program.growth_bytes
        grown = sum(growth.get(loop, 0) * env[loop] for loop in work.loops)
        return work.command.cursor_bytes + grown

    def _loop(self, work: Work, env: dict[Var, int]) -> str:
        return ";".join(f"{loop.name}={env[loop]}" for loop in work.loops)

    def summary(self) -> Summary:
        """Totals, busy times and what is busiest."""
        s, program = self._schedule, self._program
        engine = np.array([w.engine for w in s.works])[s.work] if len(self) else s.work
        duration = s.end_ps - s.start_ps
        whole = self._total_ps * program.num_pes
        engines: dict[str, EngineUse] = {}
        for name in ENGINES:
            mine = engine == name
            busy = int(duration[mine].sum())
            use = busy / whole if whole else 0.0
            engines[name] = EngineUse(busy / 1000, use, int(mine.sum()))
        counts = np.bincount(s.work, minlength=len(s.works))

        def total(field: str, engine_name: str) -> int:
            return sum(
                int(n) * getattr(w, field)
                for n, w in zip(counts, s.works, strict=True)
                if w.engine == engine_name
            )

        def moved(op_name: str) -> int:
            mine = [i for i, w in enumerate(s.works) if w.op_name == op_name]
            return int(s.nbytes[np.isin(s.work, mine)].sum())

        return Summary(
            kernel=program.name,
            num_pes=program.num_pes,
            total_ns=self.total_ns,
            commands=len(self),
            engines=engines,
            bytes_loaded=moved("load"),
            bytes_stored=moved("store"),
            gemm_flops=total("flops", "gemm"),
            math_flops=total("flops", "math"),
            peak_scratch_bytes=program.peak_scratch,
            budget_bytes=program.hardware.pe_tcm.scratch_bytes,
            limited_by=max(engines, key=lambda name: engines[name].busy_ns),
        )


def of(program: Program) -> OpLog:
    """The op_log of a program."""
    return OpLog(program, timing.schedule(program))
