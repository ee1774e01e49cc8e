"""Random kernels that write rows of tiles through views, and read views of them.

As source, so that kbjax and `tests.plain` run the same lines. Rows start at expressions
of the PE and of the loops' indices; some kernels read rows before they write them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import kbjax as kb
from tests.plain import Log, Tensor, play
from tests.programs import compiled

WIDEST, ROOM, READS = 3, 60, 8  # rows of a view; of a tile while drawing; in o
X = np.arange(100, 100 + WIDEST, dtype=np.float32)
LOOPS = ("2", "3", "4", "3, -1, -1", "1, 4", "0, 6, 2", "0")
INNER = ("i + 1", "i", "i, 4", "tl.maximum(i - 1, 0)", "3 - tl.minimum(i, 3)")
OF_PE = ("pe", "pe + 1", "3 - pe", "1 - tl.minimum(pe, 1)")


@dataclass
class Rows:
    """A drawn kernel, ``kernel(tl, x, o)``, and the rows that its tiles have."""

    source: str
    name: str
    num_pes: int
    sizes: dict[str, int] = field(default_factory=dict)
    kernel: Any = None

    def __post_init__(self) -> None:
        for name, rows in self.sizes.items():
            self.source = self.source.replace(f"empty({name}", f"empty(({rows},)")
        self.kernel = compiled(self.source, self.name)

    def call(self, **options: Any) -> kb.KernelCall:
        out = jax.ShapeDtypeStruct((READS * WIDEST,), "float32")
        return kb.kernel_call(
            self.kernel, out, num_pes=self.num_pes, in_axes=None, **options
        )

    def played(self) -> tuple[Log, np.ndarray]:
        """The lines that read unwritten rows, and the output, in plain Python."""
        o = np.full((self.num_pes, READS * WIDEST), np.nan, np.float32)
        log = play(
            self.kernel, self.num_pes, lambda pe: [Tensor("x", X), Tensor("o", o[pe])]
        )
        return log, o if self.num_pes > 1 else o[0]


@dataclass
class Writer:
    """The text of a kernel so far.

    Attributes:
      tiles: in scope, by the depth at which they were made.
      loops: the indices of the open loops.
      starts: of writes, by tile: reads often use them again.
    """

    rng: random.Random
    num_pes: int
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    tiles: list[tuple[str, int]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    starts: dict[str, list[str]] = field(default_factory=dict)
    made: int = 0
    reads: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def tile(self) -> None:
        name = "tuvw"[self.made]
        self.made += 1
        self.line(f"{name} = tl.empty({name}_rows)")
        self.tiles.append((name, self.depth))
        self.starts[name] = []

    def start(self, name: str) -> str:
        """A row, never below 0."""
        if self.starts[name] and self.rng.random() < 0.35:
            again = self.rng.choice(self.starts[name])
            if all(k in self.loops or k not in again for k in ("i", "j", "k")):
                return again + self.rng.choice(("", "", " + 1"))
        a, b = (self.rng.choice(self.loops or ["0"]) for _ in "ab")
        forms = [a, a, f"{a} + 1", f"{a} + 2", f"{a} * 2", f"{a} * 3 + {b}",
                 f"tl.minimum({a}, 2)", f"{a} // 2", f"({a} + {b}) % 4",
                 f"tl.maximum({a} - {b}, 0)", str(self.rng.randint(0, 3)),
                 "0"]  # fmt: skip
        if self.num_pes > 1:
            forms += [f"pe + {a}", f"pe * 2 + {a}", f"{a} + 1 - pe % 2", f"{a} * pe"]
        found = self.rng.choice(forms)
        self.starts[name].append(found)
        return found

    def view(self, name: str, n: int, at: str = "") -> str:
        return f"{name}[tl.ds({at or self.start(name)}, {n})]"

    def write(self) -> None:
        name = self.rng.choice(self.tiles)[0]
        n = self.rng.choice((1, 1, 2, 3))
        at = self.start(name)
        kind = self.rng.random()
        if kind < 0.15:  # t[i + 1] <- t[i], also two steps at once
            step = self.rng.randint(1, 2)
            value = f"{self.view(name, n, at)} + 1.0"
            at = f"{at} + {step}"
        elif kind < 0.25:  # of another tile
            value = self.view(self.rng.choice(self.tiles)[0], n)
        elif kind < 0.5:
            value = f"tl.load(x[0:{n}])"
        else:
            value = f"tl.full(({n},), {self.rng.choice([*self.loops, '7'])} + 10)"
        self.line(f"tl.copy_to({self.view(name, n, at)}, {value})")

    def fill(self) -> None:
        """A loop that writes a row each, whole more often than not."""
        name = self.rng.choice(self.tiles)[0]
        rows = self.rng.randint(3, 6)
        low = self.rng.choice((0, 0, 0, 1))
        trips = self.rng.choice([f"{low}, {rows}", f"{rows - 1}, {low - 1}, -1"])
        self.line(f"for m in tl.range({trips}):")
        self.line("    with tl.scratch_scope():")
        self.line(f"        tl.copy_to({name}[tl.ds(m, 1)], tl.full((1,), m))")

    def read(self) -> None:
        name = self.rng.choice(self.tiles)[0]
        n = self.rng.choice((1, 1, 2, 3))
        at = self.reads % READS * WIDEST
        self.reads += 1
        self.line(f"tl.store(o[{at}:{at + n}], {self.view(name, n)})")

    def loop(self) -> None:
        index = "ijk"[len(self.loops)]
        choices = [*LOOPS, *(INNER if self.loops else ()) * 2]
        choices += OF_PE if self.num_pes > 1 else ()
        self.line(f"for {index} in tl.range({self.rng.choice(choices)}):")
        self.line("    with tl.scratch_scope():")
        self.loops.append(index)
        self.depth += 2
        if self.made < 4 and self.rng.random() < 0.4:
            self.tile()  # fresh in every iteration
        self.block(3)
        self.tiles = [tile for tile in self.tiles if tile[1] < self.depth]
        self.depth -= 2
        self.loops.pop()

    def block(self, most: int) -> None:
        for _ in range(self.rng.randint(1, most)):
            kind = self.rng.random()
            if len(self.loops) < 3 and kind < 0.35:
                self.loop()
            elif kind < 0.42:
                self.fill()
            elif kind < 0.72:
                self.write()
            else:
                self.read()


def rows_kernel(seed: int) -> Rows | None:
    """The kernel of a seed; None where nothing is stored."""
    rng = random.Random(seed)
    writer = Writer(rng, rng.choice((1, 1, 2, 3)))
    writer.line("pe = tl.program_id()")
    writer.line("tl.store(o[23:24], tl.load(x[0:1]))")
    writer.tile()
    writer.block(4)
    writer.read()
    source = "\n".join(["def kernel(tl, x, o):", *writer.lines]) + "\n"
    name = f"rows_kernel_{seed}.py"
    names = [f"{one}_rows" for one in "tuvw"[: writer.made]]
    # Tiles of distinct sizes, so that each one's highest row is known.
    roomy = {one: ROOM + n for n, one in enumerate(names)}
    log, _ = Rows(source, name, writer.num_pes, roomy).played()
    sizes = {one: log.rows.get(roomy[one], 1) for one in names}
    return Rows(source, name, writer.num_pes, sizes)
