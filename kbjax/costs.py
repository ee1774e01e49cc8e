"""What each command of a program asks of its engine: the one place that knows costs.

All times are integers of picoseconds. The formulas are those of `hardware`'s units
(DESIGN section 6; for copies ADR-0063, D3).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kbjax import expr, ops
from kbjax.dtypes import DType, Shape
from kbjax.expr import Expr, Var
from kbjax.hardware import Hardware
from kbjax.program import (
    Block,
    Command,
    CopyCmd,
    LoadCmd,
    Loop,
    OpCmd,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    StoreCmd,
)
from kbjax.refs import HbmRef

Engine = Literal["dma", "gemm", "math", "link", "wait"]
ENGINES: tuple[Engine, ...] = ("dma", "gemm", "math", "link")  # which do one at a time
OP_NAMES = ("load", "store", "copy", "send", "recv", *ops.TABLE)


@dataclass(frozen=True)
class Work:
    """One command of the program.

    Attributes:
      nbytes: bytes of the result, or moved; of a transfer with a tail, an expression of
        the loop indices.
      engine: `wait` for a receive, which takes as long as its message.
      cost_ps: engine time, of which `fixed_ps` is latency or overhead; of a transfer
        with a tail, see `cost_at`.
      reads_at, writes_at: (bytes into the scratch, length) of what it reads and writes.
      loops: the loops around it, outermost first.
    """

    command: Command
    engine: Engine
    op_name: str
    shape: Shape
    dtype: DType
    nbytes: Expr
    flops: int
    cost_ps: int
    fixed_ps: int
    reads_at: tuple[tuple[Expr, int], ...]
    writes_at: tuple[Expr, int] | None
    loops: tuple[Var, ...]
    hardware: Hardware

    def cost_at(self, nbytes: int) -> int:
        """Engine time where it moves so many bytes."""
        if self.nbytes.is_const:
            return self.cost_ps
        return self.hardware.pe_dma.transfer_ps(nbytes)

    def least_ps(self, nbytes: int) -> float:
        """Engine time without latency or overhead, at the engine's peak rate."""
        if self.engine == "dma":
            return nbytes * 1000 / self.hardware.pe_dma.bandwidth_gb_s
        if self.engine == "link":
            return nbytes * 1000 / self.hardware.pe_link.bandwidth_gb_s
        if self.engine == "gemm":
            reads = self.command.reads[:2]
            gemm = self.hardware.pe_gemm
            peak = min(gemm.peak_flops_per_ns(ref.dtype.name) for ref in reads)
            return self.flops * 1000 / peak
        return self.cost_ps - self.fixed_ps


def works(program: Program) -> tuple[Work, ...]:
    """Every command of a program once, in order."""
    return tuple(_works(program, program.commands, ()))


def _works(program: Program, block: Block, loops: tuple[Var, ...]) -> Iterator[Work]:
    for item in block:
        if isinstance(item, Loop):
            yield from _works(program, item.body, (*loops, item.index))
        elif isinstance(item, Scope):
            yield from _works(program, item.body, loops)
        else:
            yield _work(program, item, loops)


def _work(program: Program, command: Command, loops: tuple[Var, ...]) -> Work:
    hardware, out = program.hardware, command.writes
    make = functools.partial(
        Work,
        command=command,
        reads_at=tuple((program.offset(ref), ref.nbytes) for ref in command.reads),
        writes_at=None if out is None else (program.offset(out), out.nbytes),
        loops=loops,
        hardware=hardware,
    )
    if isinstance(command, LoadCmd | StoreCmd):
        view, dma = command.view, hardware.pe_dma
        moved = moved_bytes(view)
        whole = moved.const if moved.is_const else view.nbytes
        return make(
            engine="dma",
            op_name=command.op,
            shape=view.shape,
            dtype=view.dtype,
            nbytes=moved,
            flops=0,
            cost_ps=dma.transfer_ps(whole),
            fixed_ps=dma.transfer_ps(0),
        )
    if isinstance(command, SendCmd):
        src, link = command.src, hardware.pe_link
        return make(
            engine="link",
            op_name="send",
            shape=src.shape,
            dtype=src.dtype,
            nbytes=expr.const(src.nbytes),
            flops=0,
            cost_ps=link.transfer_ps(src.nbytes),
            fixed_ps=link.transfer_ps(0),
        )
    assert out is not None
    make = functools.partial(
        make, shape=out.shape, dtype=out.dtype, nbytes=expr.const(out.nbytes)
    )
    if isinstance(command, RecvCmd):
        return make(engine="wait", op_name="recv", flops=0, cost_ps=0, fixed_ps=0)
    math = hardware.pe_math
    if isinstance(command, CopyCmd):
        return make(
            engine="math",
            op_name="copy",
            flops=out.size,
            cost_ps=math.compute_ps(out.size, "copy"),
            fixed_ps=math.compute_ps(0, "copy"),
        )
    assert isinstance(command, OpCmd)
    row, shapes = ops.TABLE[command.op], [ref.shape for ref in command.reads]
    make = functools.partial(
        make,
        engine=row.engine,
        op_name=row.name,
        flops=row.flops(out.shape, shapes),
    )
    if row.engine == "gemm":
        (m, k), (_, n), *_ = shapes
        gemm = hardware.pe_gemm
        factors = {ref.dtype.name for ref in command.reads[:2]}  # the slower one's rate
        cost = max(gemm.compute_ps(m, n, k, name) for name in factors)
        return make(cost_ps=cost, fixed_ps=gemm.compute_ps(0, 0, 0, "float32"))
    elements = row.elements(out.shape, shapes)
    return make(
        cost_ps=math.compute_ps(elements, row.name),
        fixed_ps=math.compute_ps(0, row.name),
    )


def moved_bytes(view: HbmRef) -> Expr:
    """Bytes of the view that lie inside its tensor."""
    count = expr.const(view.dtype.nbytes)
    for span in view.spans:
        inside = expr.const(span.size)
        if span.valid is not None:
            low, high = span.valid
            end = expr.minimum(expr.add(span.start, inside), high)
            start = expr.maximum(span.start, low)
            inside = expr.maximum(expr.sub(end, start), expr.ZERO)
        count = expr.mul(count, inside)
    return count
