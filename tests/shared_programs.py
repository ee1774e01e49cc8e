"""Random kernels whose PEs store to, and load from, one shared output.

As source, so that kbjax and `tests.plain` run the same lines. Starts are expressions of
the PE and of the loops' indices; some kernels keep their PEs apart, some do not.
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

WIDEST, ROOM, TILES = 3, 150, 8  # of a tile; of o while drawing; of p
TRIPS = ("2", "3", "3 - pe", "pe", "1 - tl.minimum(pe, 1)", "tl.maximum(pe - 1, 0)",
         "2, -1, -1", "1, 4, 2", "P - pe", "pe % 2", "(pe + 1) // 2", "0")  # fmt: skip


@dataclass
class Shared:
    """A drawn kernel, ``kernel(tl, x[, y], o, p)``: `o` is shared, `p` a PE's own.

    Attributes:
      aliased: `y` and `o` are one array.
      split: each PE has an `x` of its own.
      shape: of o.
    """

    source: str
    name: str
    num_pes: int
    aliased: bool
    split: bool
    shape: tuple[int, ...]
    kernel: Any = None

    def __post_init__(self) -> None:
        self.kernel = compiled(self.source, self.name)

    @property
    def private(self) -> tuple[int, ...]:
        return (TILES * WIDEST, *(WIDEST for _ in self.shape[1:]))

    def call(self, mesh: Any = None) -> kb.KernelCall:
        xs = 0 if self.split else None
        return kb.kernel_call(
            self.kernel,
            tuple(
                jax.ShapeDtypeStruct(s, "float32") for s in (self.shape, self.private)
            ),
            num_pes=self.num_pes,
            in_axes=(xs, None) if self.aliased else (xs,),
            out_axes=(None, 0),
            input_output_aliases={1: 0} if self.aliased else {},
            mesh=mesh,
        )

    def arrays(self) -> list[np.ndarray]:
        lead = (self.num_pes,) if self.split else ()
        shape = (*lead, *self.private)
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        y = 1000 + np.arange(np.prod(self.shape), dtype=np.float32)
        return [x, y.reshape(self.shape)][: 1 + self.aliased]

    def played(self) -> tuple[Log, tuple[np.ndarray, np.ndarray]]:
        """What each PE used, and the outputs, in plain Python."""
        x, *y = self.arrays()
        o = y[0].copy() if y else np.full(self.shape, np.nan, np.float32)
        p = np.full((self.num_pes, *self.private), np.nan, np.float32)

        def tensors(pe: int) -> list[Tensor]:
            shared = Tensor("o", o)
            mine = [Tensor("x", x[pe] if self.split else x)]
            return [*mine, *[shared] * (1 + self.aliased), Tensor("p", p[pe])]

        return play(self.kernel, self.num_pes, tensors), (o, p)


@dataclass
class Writer:
    """The text of a kernel so far."""

    rng: random.Random
    rank: int
    aliased: bool
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    loops: list[str] = field(default_factory=list)
    loads: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def index(self) -> str:
        return self.rng.choice(self.loops) if self.loops else "0"

    def start(self, n: int, of_pe: bool) -> str:
        """Where a tile of `n` elements starts, never below 0."""
        a, b = self.index(), self.index()
        if not of_pe:
            return self.rng.choice(["0", f"{a} * {n}", f"{a}", f"({a} + 1) // 2"])
        return self.rng.choice([
            f"({a} * P + pe) * {n}", f"({a} * P + pe) * {n}", f"pe * {n}",
            f"({a} + {b} * 3) * (P * {n}) + pe * {n}", f"(pe % 2) * {n}",
            f"tl.minimum(pe, 1) * {n}", f"(pe // 2) * {n}", f"(P - 1 - pe) * {n}",
            f"tl.maximum(pe - 1, 0) * {n} + {a}", f"pe * {n} + {a}",
            f"pe * {self.rng.randint(n, 7)} + {a}", f"({a} + pe) % P * {n}",
            f"({a} * ({a} + 1) // 2 + {b}) * {n} + pe * 12",
            f"(pe * {n} + {a}) * {self.rng.randint(1, 2)}", f"pe * {a} * {n}",
        ])  # fmt: skip

    def keys(self) -> tuple[str, tuple[int, ...]]:
        """Indices into o, and the tile's shape."""
        sizes = tuple(self.rng.randint(1, WIDEST) for _ in range(self.rank))
        apart = self.rng.randrange(self.rank)  # the axis that keeps PEs apart
        spans = [
            f"tl.ds({self.start(n, axis == apart)}, {n})"
            for axis, n in enumerate(sizes)
        ]
        return ", ".join(spans), sizes

    def view(self, keys: str, sizes: tuple[int, ...]) -> tuple[str, bool]:
        """A view of o, and whether it may end within o although it is left."""
        name = "y" if self.aliased and self.rng.random() < 0.4 else "o"
        if self.rng.random() < 0.15:  # a view of a view
            _, *rest = keys.split("), ")
            rows = (
                f"tl.ds({self.rng.choice(('1', 'pe * 4'))}, {self.rng.randint(3, 9)})"
            )
            outer = ", ".join([rows, *(":" for _ in rest)])
            return f"{name}[{outer}][{keys}]", True
        if self.rank == 2 and self.rng.random() < 0.15:
            rows, columns = (f"tl.ds{k}" for k in keys.split("tl.ds") if k)
            return f"{name}.T[{columns}, {rows.removesuffix(', ')}].T", False
        return f"{name}[{keys}]", False

    def accesses(self) -> None:
        keys, sizes = self.keys()
        shape = f"({', '.join(map(str, sizes))},)"
        for n in range(self.rng.choice((1, 1, 2))):
            view, narrow = self.view(keys, sizes)
            tail = narrow or self.rng.random() < 0.25
            if self.rng.random() < 0.65 or not n:
                value = f"tl.full({shape}, pe * 100 + {self.index()} + {n})"
                if self.rng.random() < 0.4:
                    mine = ", ".join(f"0:{size}" for size in sizes)
                    value = f"tl.load(x[{mine}]) + {n}.0"
                check = ", boundary_check=True" if tail else ""
                self.line(f"tl.store({view}, {value}{check})")
            elif self.loads < TILES:
                at = self.loads * WIDEST
                self.loads += 1
                rows = ", ".join(
                    [f"{at}:{at + sizes[0]}", *(f"0:{size}" for size in sizes[1:])]
                )
                other = ", other=-1.0" if tail else ""
                self.line(f"tl.store(p[{rows}], tl.load({view}{other}) + 1.0)")

    def block(self, most: int) -> None:
        for _ in range(self.rng.randint(1, most)):
            if len(self.loops) < 2 and self.rng.random() < 0.55:
                self.loop()
            else:
                self.accesses()

    def loop(self) -> None:
        name = "ij"[len(self.loops)]
        trips = self.rng.choice(TRIPS)
        if self.loops and self.rng.random() < 0.4:
            trips = self.rng.choice(["i", "i + 1", "i, 3", "tl.minimum(i, pe)"])
        self.line(f"for {name} in tl.range({trips}):")
        self.line("    with tl.scratch_scope():")
        self.loops.append(name)
        self.depth += 2
        self.block(2)
        self.depth -= 2
        self.loops.pop()


def shared_kernel(seed: int) -> Shared | None:
    """The kernel of a seed; None where no PE stores to o, or o would be large."""
    rng = random.Random(seed)
    writer = Writer(rng, rng.choice((1, 1, 2)), rng.random() < 0.3)
    writer.line("pe, P = tl.program_id(), tl.num_programs()")
    writer.line("tl.store(p, tl.load(x))")
    writer.block(2)
    arguments = "x, y, o, p" if writer.aliased else "x, o, p"
    source = "\n".join([f"def kernel(tl, {arguments}):", *writer.lines]) + "\n"
    name = f"shared_kernel_{seed}.py"
    room = (ROOM,) if writer.rank == 1 else (ROOM, ROOM)
    made = Shared(source, name, rng.randint(2, 5), writer.aliased, rng.random() < 0.5,
                  room)  # fmt: skip
    try:
        log, _ = made.played()
    except IndexError:  # o needs more than the room for drawing
        return None
    if not any(use.stores and use.tensor == "o" for use in log.uses):
        return None
    # Views that may not be left decide how large o is; those of tails hang over it.
    made.shape = tuple(
        max(1, end) + rng.randint(0, 1)
        for end in log.ends.get("o", [rng.randint(1, 9) for _ in room])
    )
    return made
