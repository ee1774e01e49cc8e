"""The columns of an op_log, each made when asked for. Knows no values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kbjax import expr, rolled
from kbjax.costs import Work
from kbjax.expr import Expr, Var
from kbjax.program import LoadCmd, Program, RecvCmd, SendCmd, StoreCmd
from kbjax.refs import HbmRef, Ref
from kbjax.rolled import Node

Place = Ref | HbmRef | int  # or the PE so many places on: the other end of a message


class Run(NamedTuple):
    """Rows of one PE, whose numbers count from `first_op`."""

    pe: int
    first_op: int
    nodes: tuple[Node, ...]

    @property
    def rows(self) -> int:
        return rolled.count(self.nodes)


class Columns:
    """The columns of some rows of one PE, each made when asked for."""

    def __init__(self, program: Program, works: Sequence[Work], run: Run) -> None:
        self._program, self._works, self._run = program, works, run
        self._fields: dict[str, np.ndarray] = {}

    def _field(self, name: str) -> np.ndarray:
        if name not in self._fields:
            depth = max((len(work.loops) for work in self._works), default=0)
            self._fields |= rolled.expanded(self._run.nodes, [name], depth)
        return self._fields[name]

    def _of_work(self, value: Callable[[Work], Any], dtype: Any) -> np.ndarray:
        """A value of each work, spread over its rows."""
        table = np.empty(len(self._works), dtype)
        table[:] = [value(work) for work in self._works]
        return table[self._field("work")]

    def get(self, name: str) -> np.ndarray:
        return getattr(self, f"_{name}")()

    def _op(self) -> np.ndarray:
        return self._field("number") + self._run.first_op

    def _after(self) -> np.ndarray:
        after = self._field("after")
        return np.where(after < 0, after, after + self._run.first_op)

    def _command(self) -> np.ndarray:
        return self._field("work")

    def _pe(self) -> np.ndarray:
        return np.full(len(self._field("work")), self._run.pe, np.int64)

    def _engine(self) -> np.ndarray:
        return self._of_work(lambda work: work.engine, object)

    def _op_kind(self) -> np.ndarray:
        return self._of_work(
            lambda work: "link" if work.engine == "wait" else work.engine, object
        )

    def _op_name(self) -> np.ndarray:
        return self._of_work(lambda work: work.op_name, object)

    def _start_ps(self) -> np.ndarray:
        return self._field("start")

    def _end_ps(self) -> np.ndarray:
        return self._field("start") + self._field("cost")

    def _start_ns(self) -> np.ndarray:
        return self._start_ps() / 1000

    def _end_ns(self) -> np.ndarray:
        return self._end_ps() / 1000

    def _waits_for(self) -> np.ndarray:
        return np.array(rolled.CAUSE_NAMES, object)[self._field("cause")]

    def _waited_ps(self) -> np.ndarray:
        return self._field("waited")

    def _shape(self) -> np.ndarray:
        return self._of_work(lambda work: "x".join(map(str, work.shape)), object)

    def _dtype(self) -> np.ndarray:
        return self._of_work(lambda work: work.dtype.name, object)

    def _nbytes(self) -> np.ndarray:
        return self._field("nbytes")

    def _flops(self) -> np.ndarray:
        return self._of_work(lambda work: work.flops, np.int64)

    def _scope_depth(self) -> np.ndarray:
        return self._of_work(lambda work: work.command.scope_depth, np.int64)

    def _file(self) -> np.ndarray:
        return self._of_work(lambda work: work.command.site.file, object)

    def _line(self) -> np.ndarray:
        return self._of_work(lambda work: work.command.site.line, np.int64)

    def _cursor_bytes(self) -> np.ndarray:
        growth = self._program.growth_bytes
        cursor = self._of_work(lambda work: work.command.cursor_bytes, np.int64)
        depth = max((len(work.loops) for work in self._works), default=0)
        for place in range(depth):
            each = [growth.get(w.loops[place], 0) if place < len(w.loops) else 0
                    for w in self._works]  # fmt: skip
            if any(each):
                indices = self._field("indices")[place]
                cursor = cursor + np.array(each)[self._field("work")] * indices
        return cursor

    # --- text that depends on the iteration ------------------------------------------

    @cached_property
    def _rows_of(self) -> list[np.ndarray]:
        """The rows of each work."""
        work = self._field("work")
        order = np.argsort(work.astype(np.int32), kind="stable")
        ends = np.cumsum(np.bincount(work, minlength=len(self._works)))
        return np.split(order, ends[:-1]) if len(self._works) else []

    def _texts(self, refs: Callable[[Work], Sequence[Place]]) -> np.ndarray:
        """The addresses of what `refs` gives, joined by ``;``."""
        table = np.empty(len(self._works), object)
        moving: list[int] = []
        for at, work in enumerate(self._works):
            where = [self._address(ref) for ref in refs(work)]
            free = expr.variables(*(offset for _, offset in where if offset))
            if free <= {self._program.program_id}:
                table[at] = self._told(where, {}, 1)[0]
            else:
                moving.append(at)
        column = table[self._field("work")]
        for at in moving:
            work, rows = self._works[at], self._rows_of[at]
            where = [self._address(ref) for ref in refs(work)]
            indices = self._field("indices")
            env = {v: indices[n][rows] for n, v in enumerate(work.loops)}
            cells = np.empty(len(rows), object)
            cells[:] = self._told(where, env, len(rows))
            column[rows] = cells
        return column

    def _told(
        self,
        where: Sequence[tuple[str, Expr | None]],
        env: Mapping[Var, Any],
        rows: int,
    ) -> list[str]:
        """For each row the text of the addresses."""
        env = {**env, self._program.program_id: self._run.pe}
        texts: list[list[str]] = []
        for prefix, offset in where:
            if offset is None:
                texts.append([prefix] * rows)
                continue
            value = np.broadcast_to(expr.evaluate(offset, env, np), (rows,)).tolist()
            texts.append([f"{prefix}{at}" for at in value])
        if len(texts) == 1:
            return texts[0]
        return [";".join(row) for row in zip(*texts, strict=True)] or [""] * rows

    def _address(self, ref: Place) -> tuple[str, Expr | None]:
        """What comes before an address, and the address, if there is one."""
        if isinstance(ref, int):
            return f"link:{ref:+}", None
        if isinstance(ref, Ref):
            return "", self._program.address(ref)
        if ref.by:  # data says where
            return f"{ref.name}+?", None
        offset = expr.ZERO
        shape = self._program.slots[ref.slot].shape
        for span, size in zip(ref.spans, shape, strict=True):
            offset = expr.add(expr.scale(offset, size), span.start)
        return f"{ref.name}+", expr.scale(offset, ref.dtype.nbytes)

    def _src_addrs(self) -> np.ndarray:
        def refs(work: Work) -> Sequence[Place]:
            command = work.command
            if isinstance(command, RecvCmd):
                return (-command.offset,)
            if isinstance(command, LoadCmd):
                return (command.view, *command.reads)
            return command.reads

        return self._texts(refs)

    def _dst_addr(self) -> np.ndarray:
        def refs(work: Work) -> Sequence[Place]:
            command = work.command
            if isinstance(command, StoreCmd):
                return (command.view,)
            if isinstance(command, SendCmd):
                return (command.offset,)
            assert command.writes is not None
            return (command.writes,)

        return self._texts(refs)

    def _loop(self) -> np.ndarray:
        def text(loops: Sequence[Var]) -> Callable[[tuple[int, ...]], str]:
            form = ";".join(f"{loop.name.replace('%', '%%')}=%d" for loop in loops)
            return form.__mod__

        return self._of_iterations(text)

    def _iterations(self) -> np.ndarray:
        return self._of_iterations(lambda _: tuple)

    def _of_iterations(
        self, cell: Callable[[Sequence[Var]], Callable[[tuple[int, ...]], Any]]
    ) -> np.ndarray:
        """A cell made from the iterations of the loops around a row, once for rows that
        follow each other in one; `cell` gives what makes it."""
        work, indices = self._field("work"), self._field("indices")
        kinds = {loops: n for n, loops in enumerate({w.loops for w in self._works})}
        kind = np.array([kinds[w.loops] for w in self._works], np.int64)[work]
        new = np.ones(len(work), bool)
        new[1:] = kind[1:] != kind[:-1]
        for line in indices:
            new[1:] |= line[1:] != line[:-1]
        first = np.flatnonzero(new)
        cells = np.empty(len(first), object)
        for loops, number in kinds.items():
            mine = np.flatnonzero(kind[first] == number)
            at = [indices[n][first[mine]].tolist() for n in range(len(loops))]
            rows = zip(*at, strict=True) if loops else itertools.repeat((), len(mine))
            made = map(cell(loops), rows)
            cells[mine] = np.fromiter(made, object, len(mine))
        return np.repeat(cells, np.diff(first, append=len(work)))
