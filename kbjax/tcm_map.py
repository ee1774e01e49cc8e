"""The map of the scratch: which buffer holds which bytes, from when to when. Pure: from
a program and its op_log to rectangles; what draws them is elsewhere.

A buffer is in use from the start of the first op that writes it to the end of the last
op that touches it. From then on it is only held: until the last op of the scope around
it has ended (the PE's last op, outside any scope), or, if that is earlier, until some
of its bytes are written for another buffer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from kbjax import expr, trace
from kbjax.expr import Expr, Var
from kbjax.footprint import Allocation
from kbjax.log_view import FoldedOps, Iteration, Log, Op, Peak
from kbjax.program import Block, Command, Loop, Program, Scope
from kbjax.refs import Ref
from kbjax.site import ScopeLine, Site

MOST_OPS = 20_000


@dataclass(frozen=True)
class Buffer:
    """A rectangle: bytes `start_bytes` to `end_bytes` of the scratch (padding
    included), times `start_ps` to `end_ps`; after `used_ps` it is held, not used.

    Attributes:
      op, tile: what it was allocated for, and its type (``float32[8,128]``). Of a
        circular buffer each filling of each slot is a buffer.
      nbytes: without padding.
      engine: of the op that writes it first.
      persistent: outside any scope.
      scope: the innermost scope around it, as text; empty where it is persistent.
      site: the kernel line that made it.
      loop: the iteration of each loop around it, as text.
      uses: the kernel lines that write or read it, in order.
    """

    op: str
    tile: str
    nbytes: int
    start_bytes: int
    end_bytes: int
    start_ps: int
    used_ps: int
    end_ps: int
    engine: str
    persistent: bool
    scope: str
    site: Site
    loop: str
    uses: tuple[Site, ...]


@dataclass(frozen=True)
class Band:
    """Steady iterations of a loop, which are not drawn one by one.

    Attributes:
      loop: its name; `first` and `last` are the iterations from which and to which
        they are folded.
      each_ps: what a repeat moves all times by; `repeats` of them are
        `iterations` iterations.
      peaks: of the cursor, in the first repeat and in the last.
      ops: rows of the log.
    """

    loop: str
    first: Iteration
    last: Iteration
    iterations: int
    repeats: int
    each_ps: float
    start_ps: int
    end_ps: int
    peaks: tuple[Peak, Peak]
    ops: int
    site: Site


@dataclass(frozen=True)
class TcmMap:
    """One PE's scratch over time.

    Attributes:
      buffers, bands: in the order of the log.
      ops: the rows that are drawn, folded ones left out; `folded` the folded ones.
      end_ps: where the picture ends: the PE's last op's end, or `cut_ps`.
      cut_ps: from when ops are left out, `dropped_ops` of them; None where none is.
      budget_bytes: of the scratch.
    """

    pe: int
    buffers: tuple[Buffer, ...]
    bands: tuple[Band, ...]
    ops: tuple[Op, ...]
    folded: tuple[FoldedOps, ...]
    end_ps: int
    cut_ps: int | None
    dropped_ops: int
    budget_bytes: int

    @property
    def highest_bytes(self) -> int:
        """The highest cursor that is drawn."""
        ends = [buffer.end_bytes for buffer in self.buffers]
        ends += [peak.cursor_bytes for band in self.bands for peak in band.peaks]
        return max(ends, default=0)


def of(log: Log, pe: int = 0, most_ops: int = MOST_OPS, folding: bool = True) -> TcmMap:
    """The map of one PE's scratch.

    Args:
      log: of a whole program, or its first rows; bytes are of that program's scratch.
      pe: which one.
      most_ops: the most ops and folded loops that are drawn, those that start first;
        no more buffers than that are.
      folding: whether steady iterations of loops are bands.

    Raises:
      ShapeError: for a PE that the log does not have.
    """
    program = log.program
    found = trace.shown(log, pe, most_ops, folding)
    ops = tuple(item for item in found.items if isinstance(item, Op))
    folded = tuple(item for item in found.items if isinstance(item, FoldedOps))
    last_ps = max((item.end_ps for item in found.items), default=0)
    end_ps = last_ps if found.cut_ps is None else found.cut_ps
    drawn = _Drawing(program, pe, end_ps)
    for op in ops:
        drawn.add(op)
    return TcmMap(
        pe=pe,
        buffers=drawn.buffers(),
        bands=tuple(map(_band, folded)),
        ops=ops,
        folded=folded,
        end_ps=end_ps,
        cut_ps=found.cut_ps,
        dropped_ops=found.dropped_ops,
        budget_bytes=program.hardware.pe_tcm.scratch_bytes,
    )


def _band(loop: FoldedOps) -> Band:
    first, last = loop.peaks
    return Band(
        loop=loop.loop,
        first=loop.ends[0],
        last=loop.ends[1],
        iterations=loop.iterations,
        repeats=loop.repeats,
        each_ps=(last.at_ps - first.at_ps) / max(loop.repeats - 1, 1),
        start_ps=loop.start_ps,
        end_ps=loop.end_ps,
        peaks=(first, last),
        ops=loop.rows,
        site=Site(loop.file, loop.line),
    )


# --- where commands stand ------------------------------------------------------------


class _Placed(NamedTuple):
    """A command, the loops around it, and of each scope around it the scope and how
    many of those loops are around that one."""

    command: Command
    loops: tuple[Var, ...]
    scopes: tuple[tuple[Scope, int], ...]


def _placed(
    block: Block,
    loops: tuple[Var, ...] = (),
    scopes: tuple[tuple[Scope, int], ...] = (),
) -> Iterator[_Placed]:
    """Every command once, in the order of `program.walk()`."""
    for item in block:
        if isinstance(item, Loop):
            yield from _placed(item.body, (*loops, item.index), scopes)
        elif isinstance(item, Scope):
            yield from _placed(item.body, loops, (*scopes, (item, len(loops))))
        else:
            yield _Placed(item, loops, scopes)


_Instance = tuple[int, tuple[int, ...]]  # of what, in which iterations


@dataclass
class _Open:
    """A buffer that is being put together; `order` is that of its first write."""

    made: Allocation
    first: Op
    start_bytes: int
    nbytes: int
    aligned_bytes: int
    tile: str
    scope: tuple[Scope, _Instance] | None
    used_ps: int
    uses: dict[Site, None] = field(default_factory=dict)


class _Drawing:
    """Buffers, from one PE's ops in the order of the log."""

    def __init__(self, program: Program, pe: int, end_ps: int) -> None:
        self._program, self._pe = program, pe
        self._commands = tuple(_placed(program.commands))
        self._end_ps = end_ps
        self._ends: dict[_Instance, int] = {}  # of scopes
        self._open: dict[tuple[int, tuple[int, ...], int], _Open] = {}
        self._all: list[_Open] = []

    def add(self, op: Op) -> None:
        """An op, which comes after those before it in the log."""
        at = self._commands[op.command]
        indices = op.iterations
        for scope, depth in at.scopes:
            key = (id(scope), indices[:depth])
            self._ends[key] = max(self._ends.get(key, 0), op.end_ps)
        env = dict(zip(at.loops, indices, strict=True))
        for ref in at.command.reads:
            self._touch(op, at, ref, env, writes=False)
        if at.command.writes is not None:
            self._touch(op, at, at.command.writes, env, writes=True)

    def _touch(
        self, op: Op, at: _Placed, ref: Ref, env: Mapping[Var, int], writes: bool
    ) -> None:
        made = self._program.allocations[ref.root]
        # A loop that has ended stands at its last iteration.
        turns: dict[Var, int] = {
            loop: env[loop] if loop in env else max(loop.trip.const - 1, 0)
            for loop in made.loops
        }
        slot = 0
        if made.slots:
            each = made.nbytes // made.slots
            slot = self._value(ref.offset, {**env, **turns}) // each
        key = (made.uid, tuple(turns.values()), slot)
        known = self._open.get(key)
        if known is None or (writes and made.slots):
            known = self._begin(op, at, made, {**env, **turns}, slot)
            self._open[key] = known
            self._all.append(known)
        known.used_ps = max(known.used_ps, op.end_ps)
        known.uses[Site(op.file, op.line)] = None

    def _begin(
        self, op: Op, at: _Placed, made: Allocation, env: Mapping[Var, int], slot: int
    ) -> _Open:
        start = expr.const(made.cursor_bytes)
        start_bytes = self._value(self._program.moved(start, made.loops), env)
        nbytes, aligned, tile = made.nbytes, made.aligned_bytes, made.tile
        if made.slots:
            nbytes //= made.slots
            start_bytes += slot * nbytes
            aligned, shape = nbytes, ",".join(map(str, made.shape[1:]))
            tile = f"{made.dtype.name}[{shape}], slot {slot} of {made.slots}"
        scope = None
        if made.scope_depth and len(at.scopes) >= made.scope_depth:
            inner, depth = at.scopes[made.scope_depth - 1]
            turns = tuple(env[loop] for loop in at.loops[:depth])
            scope = inner, (id(inner), turns)
        return _Open(made, op, start_bytes, nbytes, aligned, tile, scope, op.end_ps)

    def _value(self, value: Expr, env: Mapping[Var, int]) -> int:
        known = {**env, self._program.program_id: self._pe}
        return int(expr.evaluate(value, known, np))

    def buffers(self) -> tuple[Buffer, ...]:
        """All of them, none longer than until its bytes are another's."""
        found: list[Buffer] = []
        taken = _Taken()
        for one in self._all:
            end = self._end_ps
            if one.scope is not None:
                end = self._ends.get(one.scope[1], end)
            name = str(_line(one.scope[0])) if one.scope else ""
            used = min(one.used_ps, self._end_ps)
            stop_bytes = one.start_bytes + one.aligned_bytes
            buffer = Buffer(
                op=one.made.op,
                tile=one.tile,
                nbytes=one.nbytes,
                start_bytes=one.start_bytes,
                end_bytes=stop_bytes,
                start_ps=one.first.start_ps,
                used_ps=used,
                end_ps=max(min(end, self._end_ps), used),
                engine=one.first.engine,
                persistent=one.made.scope_depth == 0,
                scope=name,
                site=one.made.site,
                loop=one.first.loop,
                uses=tuple(one.uses),
            )
            for number in taken.take(one.start_bytes, stop_bytes, len(found)):
                before = found[number]
                end = max(min(before.end_ps, buffer.start_ps), before.used_ps)
                found[number] = replace(before, end_ps=end)
            found.append(buffer)
        return tuple(found)


class _Taken:
    """Whose bytes are whose: intervals that do not overlap, by their starts."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: dict[int, tuple[int, int]] = {}  # start -> (stop, number)

    def take(self, start: int, stop: int, number: int) -> list[int]:
        """Who owned some of the bytes, which are `number`'s from now on."""
        first = bisect_left(self._starts, start)
        if first and self._owners[self._starts[first - 1]][0] > start:
            first -= 1
        last = bisect_left(self._starts, stop)
        gone = [(at, *self._owners.pop(at)) for at in self._starts[first:last]]
        del self._starts[first:last]
        for at, end, owner in gone:  # what is left of them stays theirs
            self._own(at, min(end, start), owner)
            self._own(max(at, stop), end, owner)
        self._own(start, stop, number)
        return list(dict.fromkeys(owner for _, _, owner in gone))

    def _own(self, start: int, stop: int, number: int) -> None:
        if start < stop:
            insort(self._starts, start)
            self._owners[start] = stop, number


def _line(scope: Scope) -> ScopeLine:
    return ScopeLine(scope.name, scope.site)
