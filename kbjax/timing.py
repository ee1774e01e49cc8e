"""Phase 1: a Program's schedule on the engines of a PE. Knows no values.

Each engine runs its commands in issue order. A command starts when its engine is free,
its operands are ready, and no earlier command still reads or writes bytes that it will
write. Issuing costs nothing. All times are integers of picoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kbjax import expr, ops
from kbjax.dtypes import DType, Shape
from kbjax.expr import Expr, Var
from kbjax.hardware import Hardware
from kbjax.program import (
    Block,
    Command,
    CopyCmd,
    HbmRef,
    LoadCmd,
    Loop,
    OpCmd,
    Program,
    Ref,
    Scope,
    StoreCmd,
    When,
)

Engine = Literal["dma", "gemm", "math"]
ENGINES: tuple[Engine, ...] = ("dma", "gemm", "math")


@dataclass(frozen=True)
class Work:
    """What one command of the program asks of its engine, whatever the iteration.

    `cost_ps` is None for a transfer whose bytes depend on the iteration (a tail).
    """

    command: Command
    engine: Engine
    op_name: str
    shape: Shape
    dtype: DType
    nbytes: int
    flops: int
    cost_ps: int | None
    loops: tuple[Var, ...]


@dataclass(frozen=True)
class Schedule:
    """When each executed command ran; one row each, in issue order a PE.

    Attributes:
      works: the program's commands; `work` indexes them.
      work, pe: (rows,) int64.
      start_ps, end_ps: (rows,) int64.
      nbytes: (rows,) int64, bytes moved (tails cut).
      iterations: for each work, (its rows, its loops) int64.
    """

    works: tuple[Work, ...]
    work: np.ndarray
    pe: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray
    nbytes: np.ndarray
    iterations: tuple[np.ndarray, ...]


def schedule(program: Program) -> Schedule:
    """Run the program's commands on the engines, one iteration at a time."""
    works = _works(program.commands, program.hardware, ())
    pes = range(program.num_pes)
    if not _differs_by_pe(program, works):
        pes = range(1)
    runs = [_Machine(program, works).run(pe) for pe in pes]
    copies = program.num_pes // len(runs)  # PEs that run in the same time
    rows = [len(run.work) for run in runs] * copies
    runs = runs * copies
    iterations = []
    for position, work in enumerate(works):
        indices = [it for run in runs for it in run.iterations[position]]
        iterations.append(
            np.array(indices, np.int64).reshape(len(indices), len(work.loops))
        )

    def column(name: str) -> np.ndarray:
        values = [np.array(getattr(run, name), np.int64) for run in runs]
        return np.concatenate(values) if values else np.zeros(0, np.int64)

    return Schedule(
        works=tuple(works),
        work=column("work"),
        pe=np.repeat(np.arange(program.num_pes), rows),
        start_ps=column("start_ps"),
        end_ps=column("end_ps"),
        nbytes=column("nbytes"),
        iterations=tuple(iterations),
    )


# --- what a command costs ------------------------------------------------------------


def _works(block: Block, hardware: Hardware, loops: tuple[Var, ...]) -> list[Work]:
    found: list[Work] = []
    for item in block:
        if isinstance(item, Loop):
            found += _works(item.body, hardware, (*loops, item.index))
        elif isinstance(item, Scope):
            found += _works(item.body, hardware, loops)
        else:
            found.append(_work(item, hardware, loops))
    return found


def _work(command: Command, hardware: Hardware, loops: tuple[Var, ...]) -> Work:
    if isinstance(command, LoadCmd | StoreCmd):
        view = command.view
        whole = None if view.has_tail else hardware.pe_dma.transfer_ps(view.nbytes)
        return Work(
            command, "dma", command.op, view.shape, view.dtype, view.nbytes, 0, whole,
            loops,
        )  # fmt: skip
    out = command.writes
    assert out is not None
    shapes = [ref.shape for ref in command.reads]
    if isinstance(command, CopyCmd):
        cost = hardware.pe_math.compute_ps(out.size, "copy")
        return Work(
            command, "math", "copy", out.shape, out.dtype, out.nbytes, out.size, cost,
            loops,
        )  # fmt: skip
    assert isinstance(command, OpCmd)
    row = ops.TABLE[command.op]
    if row.engine == "gemm":
        (m, k), (_, n), *_ = shapes
        factors = {ref.dtype.name for ref in command.reads[:2]}  # the slower one's rate
        cost = max(hardware.pe_gemm.compute_ps(m, n, k, name) for name in factors)
    else:
        cost = hardware.pe_math.compute_ps(row.elements(out.shape, shapes), row.name)
    return Work(
        command, row.engine, row.name, out.shape, out.dtype, out.nbytes,
        row.flops(out.shape, shapes), cost, loops,
    )  # fmt: skip


def moved_bytes(view: HbmRef, env: Mapping[Var, int]) -> int:
    """Bytes of the view that lie inside its tensor."""
    count = 1
    for span in view.spans:
        if span.valid is None:
            count *= span.size
            continue
        start = expr.evaluate(span.start, env)
        low, high = (expr.evaluate(end, env) for end in span.valid)
        count *= max(min(start + span.size, high) - max(start, low), 0)
    return count * view.dtype.nbytes


def _differs_by_pe(program: Program, works: Sequence[Work]) -> bool:
    """Whether any time or address depends on the PE."""
    if program.num_pes == 1:
        return False
    exprs: list[Expr] = []
    for item in program.walk():
        if isinstance(item, Loop | When):
            exprs.append(item.trip if isinstance(item, Loop) else item.condition)
    for work in works:
        for ref in (*work.command.reads, work.command.writes):
            if ref is not None:
                exprs.append(program.offset(ref))
        if isinstance(work.command, LoadCmd | StoreCmd):
            for span in work.command.view.spans:
                if span.valid is not None:
                    exprs += [span.start, *span.valid]
    return program.program_id in expr.variables(*exprs)


# --- the engines ---------------------------------------------------------------------


@dataclass
class _Machine:
    """One PE while its schedule is made. Scratch is tracked in granules, the largest
    unit that every reference of the program is a multiple of."""

    program: Program
    works: Sequence[Work]
    work: list[int] = field(default_factory=list)
    start_ps: list[int] = field(default_factory=list)
    end_ps: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    iterations: list[list[tuple[int, ...]]] = field(default_factory=list)

    def run(self, pe: int) -> _Machine:
        self.iterations = [[] for _ in self.works]
        self._position = {id(w.command): i for i, w in enumerate(self.works)}
        self._granule = self._granule_bytes()
        size = -(-self.program.peak_scratch // self._granule)
        self._written = np.zeros(size, np.int64)  # end of the last write
        self._touched = np.zeros(size, np.int64)  # end of the last read or write
        self._free: dict[str, int] = dict.fromkeys(ENGINES, 0)
        self._offsets: dict[tuple[int, Expr], Expr] = {}
        self._block(self.program.commands, {self.program.program_id: pe}, ())
        del self._written, self._touched  # only the rows outlive the run
        return self

    def _granule_bytes(self) -> int:
        unit = self.program.hardware.pe_tcm.align
        for work in self.works:
            for ref in (*work.command.reads, work.command.writes):
                if ref is None:
                    continue
                unit = math.gcd(unit, ref.nbytes)
                offset = self.program.offset(ref)
                unit = math.gcd(unit, offset.const, *(k for _, k in offset.terms))
        return unit

    def _block(
        self, block: Block, env: dict[Var, int], iteration: tuple[int, ...]
    ) -> None:
        for item in block:
            if isinstance(item, When) and not expr.evaluate(item.condition, env):
                continue
            if isinstance(item, Scope):
                self._block(item.body, env, iteration)
            elif isinstance(item, Loop):
                for i in range(expr.evaluate(item.trip, env)):
                    inner = {**env, item.index: i}
                    self._block(item.body, inner, (*iteration, i))
            else:
                self._command(self._position[id(item)], env, iteration)

    def _range(self, ref: Ref, env: Mapping[Var, int]) -> slice:
        key = (ref.root, ref.offset)
        if key not in self._offsets:
            self._offsets[key] = self.program.offset(ref)
        offset = self._offsets[key]
        start = offset.const if offset.is_const else expr.evaluate(offset, env)
        return slice(start // self._granule, (start + ref.nbytes) // self._granule)

    def _command(
        self, position: int, env: Mapping[Var, int], iteration: tuple[int, ...]
    ) -> None:
        work = self.works[position]
        command, nbytes, cost = work.command, work.nbytes, work.cost_ps
        if cost is None:
            assert isinstance(command, LoadCmd | StoreCmd)
            nbytes = moved_bytes(command.view, env)
            cost = self.program.hardware.pe_dma.transfer_ps(nbytes)
        reads = [self._range(ref, env) for ref in command.reads]
        start = self._free[work.engine]
        for where in reads:
            start = max(start, int(self._written[where].max()))
        if command.writes is not None:
            target = self._range(command.writes, env)
            start = max(start, int(self._touched[target].max()))
        end = start + cost
        for where in reads:
            np.maximum(self._touched[where], end, out=self._touched[where])
        if command.writes is not None:
            self._written[target] = end
            self._touched[target] = end
        self._free[work.engine] = end
        self.work.append(position)
        self.start_ps.append(start)
        self.end_ps.append(end)
        self.nbytes.append(nbytes)
        self.iterations[position].append(iteration)
