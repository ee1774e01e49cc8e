"""Random kernels that loop with Python's `range`, from a seed, as Python source.

Iterations are nearly alike: nested loops of both kinds, scoped bodies and such that
take more scratch each time, running tiles, views and integers that move with the
iteration, tiles that take turns, first and last iterations that do more, and tiles that
are kept for the end. All integers, so that one wrong bit shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from tests.programs import compiled

TRIPS = (8, 9, 13, 16, 25, 27)
WIDTH, LENGTH, MOST = 4, 512, 64  # elements of a tile and of the tensors; iterations


class Drawn(NamedTuple):
    """A kernel `kernel(tl, x, o)`, its input and its output."""

    kernel: Callable[..., None]
    source: str
    arrays: tuple[np.ndarray, ...]
    out_shape: jax.ShapeDtypeStruct
    num_pes: int


def python_loop(seed: int, short: bool = False) -> Drawn:
    """The kernel of a seed; a `short` one has few iterations, and compiles soon."""
    trips = TRIPS[:2] if short else TRIPS
    writer = _Writer(random.Random(f"python loop {seed} {short}"), trips)
    source = writer.kernel()
    pes = writer.num_pes
    shape = (pes, LENGTH) if pes > 1 else (LENGTH,)
    x = np.random.default_rng(seed).integers(-99, 100, shape).astype(np.int32)
    out = jax.ShapeDtypeStruct((LENGTH,), np.int32)
    return Drawn(compiled(source, f"<python loop {seed}>"), source, (x,), out, pes)


@dataclass
class _Writer:
    rng: random.Random
    trips: tuple[int, ...] = TRIPS
    num_pes: int = 1
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    tiles: int = 0
    turns: int = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def kernel(self) -> str:
        rng = self.rng
        self.num_pes = rng.choice((1, 1, 2))
        self.turns = rng.choice((1, 1, 2, 2, 3))
        self.lines = ["def kernel(tl, x, o):"]
        self.line("pe = tl.program_id()")
        self.line(f"total = tl.zeros(({WIDTH},), 'int32')")
        self.line(f"rows = tl.zeros(({MOST}, {WIDTH}), 'int32')")
        self.line(f"turns = [tl.full(({WIDTH},), n, 'int32') for n in range(3)]")
        self.line("kept = []")
        around = rng.random() < 0.6
        if around:  # what the iterations leave is given back after them
            self.line("with tl.scratch_scope():")
            self.indent += 1
        for _ in range(rng.choice((1, 1, 2))):
            self.python_loop(
                "j", rng.choice(self.trips), may_nest=True, keeps=not around
            )
        self.indent = 1
        self.line("for one in kept:")
        self.line("    tl.copy_to(total, total + one)")
        self.line(f"tl.store(o[:{WIDTH}], total)")
        self.line("for n, one in enumerate(turns):")
        self.line(f"    tl.store(o[8 + n * {WIDTH} : 8 + (n + 1) * {WIDTH}], one)")
        self.line(f"tl.store(o[256:], tl.reshape(rows, ({MOST * WIDTH},)))")
        return "\n".join(self.lines) + "\n"

    def python_loop(self, index: str, trips: int, may_nest: bool, keeps: bool) -> None:
        rng = self.rng
        self.line(f"for {index} in range({trips}):")
        self.indent += 1
        scoped = rng.random() < 0.6
        if rng.random() < 0.3:
            self.line(f"if {index} == {rng.choice((0, trips - 1))}:")
            self.line(f"    tl.copy_to(total, total + {rng.randint(1, 9)})")
        if scoped:
            self.line("with tl.scratch_scope():")
            self.indent += 1
        made = [self.load(index)]
        for _ in range(rng.randint(1, 3)):
            made.append(self.operate(index, made))
        if may_nest and rng.random() < 0.5:
            self.nested(index, keeps and not scoped)
        self.use(index, made[-1])
        if keeps and not scoped and rng.random() < 0.5:
            self.line(f"if {index} % {rng.choice((4, 9))} == 3:")
            self.line(f"    kept.append({rng.choice(made)})")
        self.indent -= 2 if scoped else 1

    def nested(self, index: str, keeps: bool) -> None:
        rng = self.rng
        kind = rng.choice(("python", "range", "triangle", "when"))
        if kind == "python":
            self.python_loop("i", rng.choice((2, 3, 9)), may_nest=False, keeps=keeps)
            return
        trips = f"{index} + 1" if kind == "triangle" else str(rng.randint(1, 3))
        self.line(f"for i in tl.range({trips}):")
        self.line("    with tl.scratch_scope():")
        self.indent += 2
        if kind == "when":
            self.line(f"with tl.when(i * 3 + pe < {index}):")
            self.indent += 1
        term = self.load("i")
        self.use(index, self.operate(index, [term]))
        self.indent -= 3 if kind == "when" else 2

    def tile(self, value: str) -> str:
        name = f"t{self.tiles}"
        self.tiles += 1
        self.line(f"{name} = {value}")
        return name

    def load(self, index: str) -> str:
        step, first = self.rng.choice((0, 1, 4, 7)), self.rng.randint(0, 20)
        pe = self.rng.choice(("", " + pe * 3"))
        return self.tile(f"tl.load(x[tl.ds({index} * {step} + {first}{pe}, {WIDTH})])")

    def operate(self, index: str, made: list[str]) -> str:
        rng = self.rng
        a = rng.choice(made)
        number = rng.choice((index, f"{index} * 3 - 7", "5", "pe - 4"))
        other = rng.choice((number, rng.choice(made), "total", "turns[2]"))
        op = rng.choice(("+", "-", "*"))
        value = f"{a} {op} {other}"
        return self.tile(rng.choice((value, f"tl.maximum({a}, {other})")))

    def use(self, index: str, tile: str) -> None:
        rng = self.rng
        row = f"rows[tl.ds({index} * 2 + {rng.randint(0, 9)}, 1)]"
        uses = (
            f"tl.copy_to(total, total + {tile})",
            f"tl.copy_to(turns[{index} % {self.turns}], {tile})",
            f"tl.copy_to(turns[2], turns[0] - {tile})",
            f"tl.copy_to({row}, {tile}[None, :])",
            f"tl.store(o[tl.ds(32 + {index} * {WIDTH}, {WIDTH})], {tile})",
        )
        for use in rng.sample(uses, rng.choice((1, 2))):
            self.line(use)
