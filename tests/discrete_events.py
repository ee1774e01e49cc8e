"""When each command of a program runs, by simulating its engines as discrete events.

A second opinion on the op_log, written from the timing rules of the design and not from
kbjax: it has an evaluator of expressions, cost formulas and byte ranges of its own. An
engine is a SimPy process that takes its commands in the order of issue. A command waits
for the events that say that earlier commands have ended: the last writers of the bytes
it reads, and the readers and writers of the bytes it will write. A receive is on no
engine: it ends with the send of its message. Times are integers of picoseconds.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import simpy

from kbjax.hardware import Hardware, PeGemm
from kbjax.program import (
    LoadCmd,
    Loop,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    StoreCmd,
    When,
)

ENGINES = ("dma", "gemm", "math", "link")
_NODES: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv, "mod": operator.mod, "mul": operator.mul,
    "min": min, "max": max, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
    "ne": operator.ne, "and": lambda a, b: a != 0 and b != 0,
}  # fmt: skip


class Run(NamedTuple):
    """A command that runs once: on which engine, how long, on which bytes.

    Attributes:
      command: what the program holds.
      engine: of `ENGINES`; "wait" for a receive.
      cost_ps: how long it occupies its engine.
      nbytes: what a load, a store or a message moves, or an op writes.
      reads, writes: offsets in scratch.
      indices: name and iteration number of each loop around it, outermost first.
    """

    command: Any
    engine: str
    cost_ps: int
    nbytes: int
    reads: tuple[range, ...]
    writes: range
    indices: tuple[tuple[str, int], ...]


class Timed(NamedTuple):
    """A run with its times."""

    op: str
    engine: str
    start_ps: int
    end_ps: int
    nbytes: int
    indices: tuple[tuple[str, int], ...]
    site: Any


# --- what runs -----------------------------------------------------------------------


def value(expr: Any, env: Mapping[int, int]) -> int:
    """An expression's value; `env` holds the variables by uid."""
    total = expr.const
    for atom, coefficient in expr.terms:
        if hasattr(atom, "uid"):
            one = env[atom.uid]
        else:
            one = int(_NODES[atom.op](*(value(arg, env) for arg in atom.args)))
        total += coefficient * one
    return total


def executed(program: Program, pe: int = 0) -> Iterator[Run]:
    """Every command as often as it runs on a PE, in issue order."""
    places: dict[int, tuple[Any, ...]] = {}  # of each command's references, made once

    def run(
        block: Sequence[Any], env: dict[int, int], indices: tuple[tuple[str, int], ...]
    ) -> Iterator[Run]:
        for item in block:
            if isinstance(item, Loop):
                index = item.index
                for i in range(value(item.trip, env)):
                    inner = (*indices, (index.name, i))
                    yield from run(item.body, {**env, index.uid: i}, inner)
            elif isinstance(item, Scope):
                if not isinstance(item, When) or value(item.condition, env):
                    yield from run(item.body, env, indices)
            else:
                yield one(item, env, indices)

    def one(
        command: Any, env: Mapping[int, int], indices: tuple[tuple[str, int], ...]
    ) -> Run:
        if id(command) not in places:
            written = [] if command.writes is None else [command.writes]
            refs = [*command.reads, *written]
            places[id(command)] = tuple((program.offset(r), r.nbytes) for r in refs)
        spans = []
        for offset, nbytes in places[id(command)]:
            start = value(offset, env)
            spans.append(range(start, start + nbytes))
        reads = tuple(spans[: len(command.reads)])
        writes = spans[-1] if command.writes is not None else range(0)
        if isinstance(command, LoadCmd | StoreCmd):
            moved = moved_bytes(program, command.view, env)
        elif isinstance(command, SendCmd):
            moved = len(reads[0])
        else:
            moved = len(writes)
        engine, cost = cost_ps(command, moved, program.hardware)
        return Run(command, engine, cost, moved, reads, writes, indices)

    yield from run(program.commands, {program.program_id.uid: pe}, ())


def moved_bytes(program: Program, view: Any, env: Mapping[int, int]) -> int:
    """Bytes of the elements of a view that lie inside its tensor, and inside the slice
    of it that the view is of."""
    elements = 1
    for span, size in zip(view.spans, program.slots[view.slot].shape, strict=True):
        start = value(span.start, env)
        if span.by is not None:  # data says where; timed as if all of it were there
            elements *= span.size
            continue
        low, high = max(start, 0), min(start + span.size, size)
        if span.valid is not None:
            first, end = (value(bound, env) for bound in span.valid)
            low, high = max(low, first), min(high, end)
        elements *= max(0, high - low)
    return elements * view.dtype.nbytes


# --- what it costs -------------------------------------------------------------------


def cost_ps(command: Any, moved: int, hardware: Hardware) -> tuple[str, int]:
    """A command's engine and its time there. A transfer rounds up once; an op rounds up
    its overhead and its cycles, each by itself."""
    if isinstance(command, LoadCmd | StoreCmd):
        dma = hardware.pe_dma
        wire_ns = moved / exact(dma.bandwidth_gb_s)  # 1 GB/s is a byte a nanosecond
        return "dma", up_ps(exact(dma.latency_ns) + wire_ns)
    if isinstance(command, SendCmd):
        link = hardware.pe_link
        wire_ns = moved / exact(link.bandwidth_gb_s)
        return "link", up_ps(exact(link.latency_ns) + wire_ns)
    if isinstance(command, RecvCmd):
        return "wait", 0
    if command.op == "dot":
        gemm = hardware.pe_gemm
        (m, k), (_, n) = (ref.shape for ref in command.reads[:2])
        passes = ceil_div(m, gemm.rows) * ceil_div(n, gemm.cols)
        passes *= ceil_div(k, gemm.depth)
        cycles = passes / gemm_rate(command, gemm)
        clock, overhead = gemm.clock_ghz, gemm.overhead_ns
        engine = "gemm"
    else:
        vector = hardware.pe_math
        taken = (command.writes, *command.reads)
        elements = max(math.prod(ref.shape) for ref in taken)
        vectors = ceil_div(elements, vector.lanes)
        cycles = vectors * exact(vector.cycles.get(command.op, 1))
        clock, overhead = vector.clock_ghz, vector.overhead_ns
        engine = "math"
    return engine, up_ps(exact(overhead)) + up_ps(cycles / exact(clock))


def gemm_rate(command: Any, gemm: PeGemm) -> Fraction:
    """Passes a clock: of two dtypes, the slower one's."""
    factors = command.reads[:2]
    return min(exact(gemm.rate.get(ref.dtype.name, 1)) for ref in factors)


def exact(number: float) -> Fraction:
    """The decimal number that a person wrote, with no binary rounding."""
    return Fraction(str(number))


def up_ps(ns: Fraction) -> int:
    return math.ceil(ns * 1000)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# --- what waits for what -------------------------------------------------------------


class Scratch:
    """Who wrote each byte last and who has read it since, in cells of bytes that were
    always used together. Cell n reaches from `starts[n]` to the next one's start."""

    def __init__(self) -> None:
        self.starts = [0]
        self.cells: list[tuple[int | None, list[int]]] = [(None, [])]

    def cut(self, at: int) -> int:
        """The number of the cell that starts at byte `at`, made where there is none."""
        n = bisect_left(self.starts, at)
        if n == len(self.starts) or self.starts[n] != at:
            writer, readers = self.cells[n - 1]
            self.starts.insert(n, at)
            self.cells.insert(n, (writer, list(readers)))
        return n

    def read(self, span: range, run: int) -> set[int]:
        """Run number `run` reads the bytes: whom it waits for."""
        first, end = self.cut(span.start), self.cut(span.stop)
        found = set()
        for writer, readers in self.cells[first:end]:
            if writer is not None:
                found.add(writer)
            readers.append(run)
        return found

    def write(self, span: range, run: int) -> set[int]:
        """Run number `run` writes the bytes: whom it waits for. Who comes later and
        waits for it, waits for those too."""
        first, end = self.cut(span.start), self.cut(span.stop)
        found = set()
        for writer, readers in self.cells[first:end]:
            found.update(readers)
            if writer is not None:
                found.add(writer)
        self.starts[first:end] = [span.start]
        self.cells[first:end] = [(run, [])]
        return found


def waits(runs: Sequence[Run]) -> list[set[int]]:
    """For each run, the earlier ones that have to end before it starts, by number."""
    scratch = Scratch()
    found = []
    for number, run in enumerate(runs):
        before: set[int] = set()
        for span in run.reads:
            before |= scratch.read(span, number)
        if run.writes:
            before |= scratch.write(run.writes, number)
        found.append(before - {number})
    return found


# --- when it runs --------------------------------------------------------------------


def simulate(program: Program) -> list[list[Timed]]:
    """When each command runs on each PE, in issue order."""
    env = simpy.Environment()
    posts = Posts(program.num_pes, env)
    pes = [Pe(program, pe, env, posts) for pe in range(program.num_pes)]
    env.run()
    return [pe.timed() for pe in pes]


class Posts:
    """Messages: an event for the end of send number k with an offset to a PE, made by
    whoever asks first."""

    def __init__(self, num_pes: int, env: simpy.Environment) -> None:
        self.num_pes, self.env = num_pes, env
        self.events: dict[tuple[int, int, int], simpy.Event] = {}

    def event(self, receiver: int, offset: int, k: int) -> simpy.Event:
        key = (receiver % self.num_pes, offset, k)
        if key not in self.events:
            self.events[key] = self.env.event()
        return self.events[key]


class Pe:
    """The engines of one PE, which run when the environment does."""

    def __init__(
        self, program: Program, pe: int, env: simpy.Environment, posts: Posts
    ) -> None:
        self.env = env
        self.runs = list(executed(program, pe))
        self.before = waits(self.runs)
        self.ended = [env.event() for _ in self.runs]
        self.times: dict[int, tuple[int, int]] = {}
        self.message: dict[int, simpy.Event] = {}  # sent or received by a run
        count: dict[tuple[str, int], int] = {}
        for number, run in enumerate(self.runs):
            if isinstance(run.command, SendCmd | RecvCmd):
                offset = run.command.offset
                k = count[run.engine, offset] = count.get((run.engine, offset), -1) + 1
                to = pe + offset if isinstance(run.command, SendCmd) else pe
                self.message[number] = posts.event(to, offset, k)
            if run.engine == "wait":
                env.process(self.receive(number))
        for name in ENGINES:
            env.process(self.engine(name))

    def ready(self, number: int) -> Generator[simpy.Event, None, int]:
        for earlier in self.before[number]:
            yield self.ended[earlier]
        return int(self.env.now)

    def engine(self, name: str) -> Generator[simpy.Event, None, None]:
        for number, run in enumerate(self.runs):
            if run.engine == name:
                start = yield from self.ready(number)
                yield self.env.timeout(run.cost_ps)
                self.end(number, start)
                if number in self.message:
                    self.message[number].succeed()

    def receive(self, number: int) -> Generator[simpy.Event, None, None]:
        start = yield from self.ready(number)
        yield self.message[number]
        self.end(number, start)

    def end(self, number: int, start: int) -> None:
        self.times[number] = start, int(self.env.now)
        self.ended[number].succeed()

    def timed(self) -> list[Timed]:
        return [
            Timed(
                run.command.op, run.engine, *self.times[number], run.nbytes,
                run.indices, run.command.site,
            )
            for number, run in enumerate(self.runs)
        ]  # fmt: skip
