"""Random kernels that push into and pop from circular buffers, as Python source, and a
plain Python `tl` that runs the same source and counts.

Loops nest, their trip counts depend on outer indices and on the PE, pushes and pops
stand under conditions. Not every kernel is legal: `play` says which are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.programs import compiled

ROWS, WIDTH = 23, 4
PES = 2


class Drawn(NamedTuple):
    """`kernel(tl, x, o, loop, ifs)`, over x (ROWS, WIDTH) and o (WIDTH,), int32."""

    kernel: Callable[..., None]
    source: str
    depth: int
    num_pes: int


def buffer_kernel(seed: int, wild: bool = False) -> Drawn:
    """The kernel of a seed. A `wild` one pushes and pops under any conditions: few of
    them are legal."""
    writer = _Writer(random.Random(f"buffer {seed} {wild}"), wild)
    source = writer.kernel()
    name = f"<buffer kernel {seed}{' wild' if wild else ''}>"
    return Drawn(compiled(source, name), source, writer.depth, writer.num_pes)


@dataclass
class _Writer:
    rng: random.Random
    wild: bool
    depth: int = 1
    num_pes: int = 1
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    names: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def kernel(self) -> str:
        rng = self.rng
        self.depth, self.num_pes = rng.randint(1, 4), rng.choice((1, 1, PES))
        self.lines = ["def kernel(tl, x, o, loop, ifs):"]
        self.line("pe = tl.program_id()")
        self.line(f"acc = tl.zeros((1, {WIDTH}), 'int32')")
        self.nest(rng.choice((0, 1, 1, 2)), rng.random() < 0.6, [])
        self.line(f"tl.store(o, tl.reshape(acc, ({WIDTH},)))")
        return "\n".join(self.lines) + "\n"

    def nest(self, levels: int, makes: bool, indices: list[str]) -> None:
        """Loops, the buffer made before one of them."""
        if makes or not levels:
            self.line(f"b = tl.circular_buffer({self.depth}, (1, {WIDTH}), 'int32')")
        made = makes or not levels
        if not levels:
            for _ in range(self.rng.choice((1, 1, 2))):
                self.sweep(indices)
            return
        index = self.name()
        trips = self.count(indices, least=0)
        self.line(f"for {index} in loop({trips}):")
        self.indent += 1
        self.line("with tl.scratch_scope():")
        self.indent += 1
        if made:
            self.inner(levels - 1, [*indices, index])
        else:
            self.nest(levels - 1, self.rng.random() < 0.5, [*indices, index])
        self.indent -= 2

    def inner(self, levels: int, indices: list[str]) -> None:
        """Loops below the one that the buffer was made before."""
        if self.rng.random() < 0.3:
            self.sweep(indices)
        if not levels:
            self.sweep(indices)
            return
        index = self.name()
        self.line(f"for {index} in loop({self.count(indices, least=0)}):")
        self.indent += 1
        self.line("with tl.scratch_scope():")
        self.indent += 1
        self.inner(levels - 1, [*indices, index])
        self.indent -= 2

    def name(self) -> str:
        self.names += 1
        return f"i{self.names}"

    def count(self, indices: list[str], least: int) -> str:
        forms = [str(self.rng.randint(max(least, 1), 5)), str(self.rng.randint(2, 6))]
        forms += [f"{i} + 1" for i in indices] + [f"5 - {i}" for i in indices]
        if self.num_pes > 1:
            forms += ["pe + 2", "3 - pe"]
        if not least:
            forms.append("0")
        return self.rng.choice(forms)

    def sweep(self, indices: list[str]) -> None:
        rng = self.rng
        if self.wild:
            self.any_loop(indices)
            return
        kind = rng.choice(("ahead", "ahead", "late", "several", "here"))
        n, j = self.count(indices, least=0), self.name()
        indices = [*indices, j]
        if kind == "here":
            for _ in range(rng.randint(1, self.depth)):
                self.push(indices[:-1])
                self.pop()
            return
        least = rng.randrange(self.depth)
        if kind == "ahead":
            for k in range(least):
                self.under(f"{k} < {n}", lambda k=k: self.push(indices[:-1], str(k)))
            self.line(f"for {j} in loop({n}):")
            steps = [
                lambda: self.under(
                    rng.choice((f"{j} + {least} < {n}", f"{j} < {n} - {least}")),
                    lambda: self.push(indices, f"{j} + {least}"),
                )
            ]
            steps.append(self.pop)
        elif kind == "late":
            self.line(f"for {j} in loop({n} + {least}):")
            first = (f"{j} >= {least}", f"{j} > {least - 1}")
            if least == 1:
                first = (*first, f"{j} != 0")
            steps = [
                lambda: self.under(f"{j} < {n}", lambda: self.push(indices)),
                lambda: self.under(rng.choice(first), self.pop),
            ]
        else:
            self.line(f"for {j} in loop({n}):")
            times = rng.randint(1, self.depth)
            steps = [
                lambda: [self.push(indices) for _ in range(times)],
                lambda: [self.pop() for _ in range(times)],
            ]
        self.indent += 1
        scoped = rng.random() < 0.7
        if scoped:
            self.line("with tl.scratch_scope():")
            self.indent += 1
        for step in steps:
            step()
        self.indent -= 2 if scoped else 1

    def any_loop(self, indices: list[str]) -> None:
        rng, j = self.rng, self.name()
        n = self.count(indices, least=1)
        forms = [f"{j} < {rng.randint(0, 4)}", f"{j} >= {rng.randint(0, 3)}",
                 f"{j} == {rng.randint(0, 3)}", f"{j} != {rng.randint(0, 3)}",
                 f"({j} > 0) & ({j} < 3)", f"{j} + 1 < {n}", f"{j} % 2 == 0",
                 f"2 * {j} < {n}", f"3 * {j} > {n} - 1"]  # fmt: skip
        forms += [f"{j} <= {i}" for i in indices]
        self.line(f"for {j} in loop({n}):")
        self.indent += 1
        self.line("with tl.scratch_scope():")
        self.indent += 1
        for _ in range(rng.randint(1, 3)):
            act = rng.choice((lambda: self.push([*indices, j]), self.pop))
            if rng.random() < 0.6:
                self.under(rng.choice(forms), act)
            else:
                act()
        self.indent -= 2
        for _ in range(rng.randint(0, 2)):
            self.pop()

    def under(self, condition: str, act: Callable[[], Any]) -> None:
        self.line(f"for _ in ifs(tl, {condition}):")
        self.indent += 1
        act()
        self.indent -= 1

    def push(self, indices: list[str], more: str = "0") -> None:
        rng = self.rng
        terms = [f"{rng.choice((1, 2, 3, 7))} * {i}" for i in indices] + [more]
        at = f"({' + '.join(terms)} + {rng.randrange(ROWS)}) % {ROWS}"
        if rng.random() < 0.2:
            at = f"{ROWS - 1} + ({at}) % 2"
            self.line(f"b.push(x[tl.ds({at}, 1)], other=5)")
        else:
            self.line(f"b.push(x[tl.ds({at}, 1)])")

    def pop(self) -> None:
        self.line("with tl.scratch_scope():")
        self.line("    tl.copy_to(acc, acc * 3 + b.pop())")


# --- the same in plain Python --------------------------------------------------------


class Illegal(Exception):
    """A push into a full buffer, a pop from an empty one, or tiles that are left."""


@dataclass
class PlainTl:
    """A `tl` of integers and arrays. `slots`: of every push and pop, in order."""

    pe: int
    slots: list[tuple[str, int]] = field(default_factory=list)
    buffers: list[PlainBuffer] = field(default_factory=list)

    def program_id(self) -> int:
        return self.pe

    def zeros(self, shape: Any, dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype)

    def reshape(self, value: np.ndarray, shape: Any) -> np.ndarray:
        return value.reshape(shape)

    def ds(self, start: int, size: int) -> slice:
        return slice(start, start + size)

    def circular_buffer(self, depth: int, shape: Any, dtype: str) -> PlainBuffer:
        self.close()
        self.buffers.append(PlainBuffer(self, depth))
        return self.buffers[-1]

    def close(self) -> None:
        """The kernels here use one buffer at a time: the end of an iteration that made
        one is where the next is made, or the kernel ends."""
        if any(buffer.tiles for buffer in self.buffers):
            raise Illegal("tiles are left")

    def scratch_scope(self) -> Any:
        return _Scope()

    def copy_to(self, dst: np.ndarray, src: np.ndarray) -> None:
        dst[...] = src

    def store(self, dst: np.ndarray, src: np.ndarray) -> None:
        dst[...] = src


class _Scope:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@dataclass
class PlainBuffer:
    tl: PlainTl
    depth: int
    tiles: list[np.ndarray] = field(default_factory=list)
    pushed: int = 0
    popped: int = 0

    def push(self, rows: np.ndarray, other: int = 0) -> None:
        if len(self.tiles) == self.depth:
            raise Illegal("full")
        self.tiles.append(rows if len(rows) else np.full((1, WIDTH), other, np.int32))
        self.tl.slots.append(("push", self.pushed % self.depth))
        self.pushed += 1

    def pop(self) -> np.ndarray:
        if not self.tiles:
            raise Illegal("empty")
        self.tl.slots.append(("pop", self.popped % self.depth))
        self.popped += 1
        return self.tiles.pop(0)


def plain_ifs(tl: PlainTl, condition: Any) -> Iterator[None]:
    """``for _ in ifs(tl, c):`` is `if c:`."""
    if condition:
        yield


def when_ifs(tl: Any, condition: Any) -> Iterator[None]:
    """... or `with tl.when(c):`."""
    with tl.when(condition):
        yield


def play(drawn: Drawn, x: np.ndarray) -> tuple[list[list[tuple[str, int]]], np.ndarray]:
    """The slots that each PE uses, and the outputs (PES, WIDTH).

    Raises:
      Illegal: where the kernel is.
    """
    slots, outputs = [], []
    for pe in range(drawn.num_pes):
        tl, o = PlainTl(pe), np.zeros(WIDTH, np.int32)
        with np.errstate(over="ignore"):
            drawn.kernel(tl, x, o, range, plain_ifs)
        tl.close()
        slots.append(tl.slots)
        outputs.append(o)
    return slots, np.stack(outputs)
