"""Random small legal kernels that are hard to time, as Python source.

They have what makes the times of a loop's iterations irregular: trip counts from 0 to
200, some of which depend on an outer index or on the PE; conditions that hold first,
last or now and then; tails; tiles used in turn; scratch that is used again under other
shapes; engines that do not feed each other; a slow command before a loop, whose backlog
is overtaken late. The hardware is drawn too: costs that differ by a picosecond, costs
that differ by orders of magnitude, latencies of 0.

What a kernel computes means nothing. Its text is compiled under a file name of its own,
so that op_log rows point at its lines, and a failing test prints it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

import kbjax as kb
from kbjax.hardware import PeDma, PeGemm, PeMath, PeTcm
from tests.programs import compiled

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = ((4, 4), (2, 8), (8, 4), (3, 5), (1, 16), (16, 16))
TILES = 4  # in each stream, but for its tail
MOST_RUNS = 200  # of one line


class TimingKernel(NamedTuple):
    """A random kernel with what `kernel_call` and `op_log` take.

    Attributes:
      kernel: `kernel(tl, *inputs, *outputs)`; where `num_pes` is above 1 its text has
        the line ``pe = tl.program_id()``.
      inputs: one `ShapeDtypeStruct` an input, with the PE axis where there is one.
      source: the kernel's text.
      name: the kernel's file.
    """

    kernel: Callable[..., None]
    out_shapes: tuple[jax.ShapeDtypeStruct, ...]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    hardware: kb.Hardware
    num_pes: int
    source: str
    name: str

    @property
    def call(self) -> Any:
        """The kernel as a `KernelCall`."""
        return kb.kernel_call(
            self.kernel,
            self.out_shapes,
            num_pes=self.num_pes,
            hardware=self.hardware,
        )

    def on_pe(self, pe: int) -> TimingKernel:
        """What PE number `pe` runs, as a kernel of one PE: its id is a constant."""
        source = self.source.replace("pe = tl.program_id()", f"pe = {pe}")
        name = f"{self.name[:-1]} on PE {pe}>"
        inputs = self.inputs
        if self.num_pes > 1:
            inputs = tuple(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in inputs)
        return self._replace(
            kernel=compiled(source, name),
            inputs=inputs,
            num_pes=1,
            source=source,
            name=name,
        )


def timing_kernel(
    seed: int, num_pes: int | None = None, dma_only: bool = False
) -> TimingKernel:
    """The kernel of a seed.

    Args:
      seed: any integer; the same seed gives the same kernel and hardware.
      num_pes: None: drawn. Above 1, some trip counts depend on the PE.
      dma_only: only loads and stores.
    """
    rng = random.Random(f"{seed} {num_pes} {dma_only}")
    if num_pes is None:
        num_pes = rng.choice((1, 1, 1, 2, 3))
    writer = Writer(rng, num_pes, dma_only)
    source = writer.kernel()
    name = f"<timing kernel {seed}{' of transfers' if dma_only else ''}>"
    lead = (num_pes,) if num_pes > 1 else ()
    return TimingKernel(
        compiled(source, name),
        tuple(jax.ShapeDtypeStruct(s, "float32") for s in writer.outputs.values()),
        tuple(
            jax.ShapeDtypeStruct((*lead, *s), "float32") for s in writer.inputs.values()
        ),
        random_hardware(rng),
        num_pes,
        source,
        name,
    )


def random_hardware(rng: random.Random) -> kb.Hardware:
    """Rates and latencies: near-equal, near-equal but for large tiles, wildly
    different, whole, or the default."""
    roomy = PeTcm(kernel_scratch_mb=64)
    kind = rng.choice(("near", "late", "late", "wild", "whole", "default"))
    if kind == "near":  # every command takes 1 ns and 0 to 12 ps
        about = (1.0, 1.001, 1.002, 0.999, 1.0)
        fast = rng.choice((500.0, 1000.0, 1e6))
        return kb.Hardware(
            pe_tcm=roomy,
            pe_dma=PeDma(
                bandwidth_gb_s=rng.choice((1e6, 1e9, 64000.0)),
                latency_ns=rng.choice(about),
            ),
            pe_gemm=PeGemm(
                rows=16,
                cols=16,
                depth=16,
                clock_ghz=fast,
                overhead_ns=rng.choice(about),
            ),
            pe_math=PeMath(lanes=10**6, clock_ghz=fast, overhead_ns=rng.choice(about)),
        )
    if kind == "late":  # small commands take about 1 ns, a backlog 5 to 80
        about = (1.0, 1.1, 0.9, 1.01, 1.001)
        return kb.Hardware(
            pe_tcm=roomy,
            pe_dma=PeDma(
                bandwidth_gb_s=rng.choice((300.0, 1000.0, 3000.0)),
                latency_ns=rng.choice(about),
            ),
            pe_gemm=PeGemm(
                rows=16,
                cols=16,
                depth=16,
                clock_ghz=rng.choice((3.0, 10.0)),
                overhead_ns=rng.choice(about),
            ),
            pe_math=PeMath(
                lanes=64,
                clock_ghz=rng.choice((10.0, 30.0)),
                overhead_ns=rng.choice(about),
            ),
        )
    if kind == "wild":
        latency = (0.0, 0.0, 0.001, 10.0, 500.0, 10000.0)
        clock = (0.003, 1.0, 1.1, 7.0, 1000.0)
        return kb.Hardware(
            pe_tcm=roomy,
            pe_dma=PeDma(
                bandwidth_gb_s=rng.choice((0.01, 1.0, 3.0, 256.0, 1e5)),
                latency_ns=rng.choice(latency),
            ),
            pe_gemm=PeGemm(
                rows=rng.choice((1, 4)),
                cols=4,
                depth=4,
                clock_ghz=rng.choice(clock),
                overhead_ns=rng.choice(latency),
            ),
            pe_math=PeMath(
                lanes=rng.choice((1, 3, 128)),
                clock_ghz=rng.choice(clock),
                overhead_ns=rng.choice(latency),
            ),
        )
    if kind == "whole":
        return kb.Hardware(
            pe_tcm=roomy,
            pe_dma=PeDma(
                bandwidth_gb_s=rng.choice((0.5, 1.0, 2.0, 4.0)),
                latency_ns=rng.choice((0.0, 2.0, 10.0)),
            ),
            pe_gemm=PeGemm(
                rows=4,
                cols=4,
                depth=4,
                clock_ghz=rng.choice((0.25, 1.0)),
                overhead_ns=rng.choice((0.0, 4.0)),
            ),
            pe_math=PeMath(
                lanes=4,
                clock_ghz=rng.choice((0.5, 1.0)),
                overhead_ns=rng.choice((0.0, 2.0)),
            ),
        )
    return kb.Hardware(pe_tcm=roomy)


# --- the kernel ----------------------------------------------------------------------


class Tile(NamedTuple):
    name: str
    shape: Shape


class Index(NamedTuple):
    """A loop's index: its text, the text of the loop's trip count, and the most that
    the index may be. It is never negative."""

    text: str
    trip: str
    high: int


@dataclass
class Writer:
    """Writes one kernel. `frames` are the tiles that each open block has made; `kept`
    the persistent ones, which `copy_to` may update; `runs` is how often the present
    line runs at most; `grows` whether scratch may be left taken here."""

    rng: random.Random
    num_pes: int
    dma_only: bool
    lines: list[str] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    outputs: dict[str, Shape] = field(default_factory=dict)
    frames: list[list[Tile]] = field(default_factory=lambda: [[]])
    kept: list[Tile] = field(default_factory=list)
    indices: list[Index] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)
    indent: int = 1
    runs: int = 1
    budget: int = 0

    def kernel(self) -> str:
        rng = self.rng
        self.main, self.odd = rng.choice(SHAPES[:5]), rng.choice(SHAPES)
        for name, (rows, columns) in (("x", self.main), ("y", self.odd)):
            extra = rng.choice((0, 0, rows - 1, rows // 2))
            self.inputs[name] = (TILES * rows + extra, columns)
        self.inputs["big"] = (rng.choice((32, 64, 256)), 16)
        self.outputs["o"], self.outputs["rest"] = self.main, self.inputs["x"]
        if self.num_pes > 1:
            self.line("pe = tl.program_id()")
        for _ in range(rng.randint(1, 3)):
            made = rng.choice(("tl.zeros({})", "tl.full({}, 1.5)", "load"))
            if self.dma_only or made == "load":
                rows = self.main[0]
                made = f"tl.load(x[tl.ds({rng.randrange(TILES) * rows}, {rows})])"
            self.kept.append(self.tile(made.format(self.main), self.main))
        if not self.dma_only:
            rows, columns = self.main
            self.line(f"ring = tl.zeros({(2 * rows, columns)})")
        for _ in range(rng.choice((1, 1, 2, 3))):
            self.shape = self.main if rng.random() < 0.6 else self.odd
            self.budget = rng.choice((1, 2, 4))
            for _ in range(rng.choice((0, 0, 1, 1, 3))):
                self._backlog()
            self._section()
        self.line(f"tl.store(o, {self.kept[0].name})")
        if not any("tl.store(rest" in line for line in self.lines):
            del self.outputs["rest"]
        arguments = ", ".join((*self.inputs, *self.outputs))
        return "\n".join([f"def kernel(tl, {arguments}):", *self.lines]) + "\n"

    def _backlog(self) -> None:
        """A slow command that a loop finds on an engine."""
        forms = ["tl.load(big)", "tl.load(big)"]
        if not self.dma_only:
            forms += ["tl.softmax(tl.zeros((64, 64)))",
                      "tl.dot(tl.zeros((64, 64)), tl.zeros((64, 64)))"]  # fmt: skip
        self.line(self.rng.choice(forms))

    def _section(self) -> None:
        """A loop, perhaps in a scope that gives back what it left taken."""
        if self.rng.random() < 0.4:
            with self._scope():
                if self.rng.random() < 0.3:
                    self.statement()
                self._loop(long=True)
        else:
            self._loop(long=True)
        if self.rng.random() < 0.3:
            self.statement()

    # --- blocks ----------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def tile(self, text: str, shape: Shape) -> Tile:
        made = Tile(f"t{next(self.names)}", shape)
        self.line(f"{made.name} = {text}")
        self.frames[-1].append(made)
        return made

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.indent += 1
        self.frames.append([])
        yield
        self.frames.pop()
        self.indent -= 1

    def _scope(self) -> Any:
        return self.block("with tl.scratch_scope():")

    def body(self, most: int) -> None:
        for _ in range(self.rng.randint(1, most)):
            self.statement()

    def _trip(self, long: bool) -> tuple[str, int, bool]:
        """The text of a trip count, the most it may be, and whether it is symbolic."""
        rng = self.rng
        room = MOST_RUNS // self.runs
        drawn = rng.random()
        if self.num_pes > 1 and drawn < (0.4 if long else 0.15):
            most, text = rng.choice(
                ((2, "pe"), (5, "2 * pe + 1"), (18, "pe * 9"), (20, "20 - pe * 7"))
            )
            if most <= room:
                return text, most, True
        if self.indices and drawn < 0.4:
            i = self.indices[-1]
            forms = [(i.text, i.high), (f"{i.text} + 1", i.high + 1),
                     (f"{i.text} % 3", 2), (f"{i.text} // 2", i.high // 2),
                     (f"tl.minimum({i.text}, 4)", 4)]  # fmt: skip
            text, most = rng.choice(forms)
            if most <= room:
                return text, most, True
        counts = [0, 1, 2, 3, 4, 5, 6, 8]
        if long:
            counts = [0, 1, 2, 3, 5, 8, 13, 20, 29, 40, 12, 24]
            if rng.random() < 0.15:
                counts = [100, 200, 150]
        most = min(rng.choice(counts), room)
        return str(most), most, False

    def _loop(self, long: bool = False) -> None:
        rng = self.rng
        trip, most, symbolic = self._trip(long)
        i = f"i{next(self.names)}"
        head, high = rng.choice(
            ((f"tl.range({trip})", most - 1), (f"tl.range({trip})", most - 1),
             (f"tl.range(1, {trip} + 1)", most), (f"tl.range(0, 2 * ({trip}), 2)",
             2 * most - 2), (f"tl.range({trip} - 1, -1, -1)", most - 1))
        )  # fmt: skip
        scoped = symbolic or rng.random() < 0.6
        before = self.runs
        self.runs *= max(most, 1)
        self.indices.append(Index(i, trip, max(high, 0)))
        with self.block(f"for {i} in {head}:"):
            if scoped and not symbolic and rng.random() < 0.2:
                self.statement()  # its tile stays
            with self._scope() if scoped else contextlib.nullcontext():
                self.body(4 if most < 30 else 2)
        self.indices.pop()
        self.runs = before

    def _when(self) -> None:
        rng, i = self.rng, self.indices[-1]
        n = f"({i.trip})"
        conditions = [
            f"{i.text} < 1", f"{i.text} == 0", f"{i.text} > {n} - 3",
            f"{i.text} == {n} - 1", f"{i.text} % 2 == 0", f"{i.text} % 2 == 1",
            f"{i.text} % 3 == 1", f"{i.text} < {n} - 2", f"{i.text} < {i.high // 2}",
            f"({i.text} % 2 == 0) & ({i.text} > 3)",
        ]  # fmt: skip
        if len(self.indices) > 1:
            conditions += [f"{i.text} < {self.indices[-2].text}"] * 2
        if self.num_pes > 1:
            conditions += ["pe == 0", f"{i.text} % {self.num_pes} == pe"]
        with self.block(f"with tl.when({rng.choice(conditions)}):"):
            self.body(2)

    def statement(self) -> None:
        """A line, or a block."""
        rng = self.rng
        kinds = [self._load, self._load, self._dead_load, self._store, self._store]
        if not self.dma_only:
            kinds += [self._math, self._math, self._math, self._update, self._update]
            kinds += [self._dot, self._reduce, self._ring, self._ring, self._rows]
        blocks = [self._nested_scope]
        if self.indices:
            blocks += [self._when, self._when]
        if len(self.indices) < 3 and self.runs * 2 <= MOST_RUNS:
            blocks += [self._loop, self._loop]
        if self.budget > 0 and self.indent < 9 and rng.random() < 0.3:
            self.budget -= 1
            rng.choice(blocks)()
        else:
            rng.choice(kinds)()

    def _nested_scope(self) -> None:
        with self._scope():
            self.body(3)

    # --- lines -----------------------------------------------------------------------

    def pick(self, shape: Shape | None = None) -> Tile:
        """A tile in reach, of a shape; mostly a late one."""
        found = [
            t
            for frame in self.frames
            for t in frame
            if t.shape == shape or (shape is None and min(t.shape) > 0)
        ]
        if not found or (shape == self.main and self.rng.random() < 0.2):
            found = self.kept if shape in (None, self.main) else []
        if not found:
            assert shape is not None
            return self.load_of(shape)
        late = found[-3:] if self.rng.random() < 0.7 else found
        return self.rng.choice(late)

    def position(self, rows: int) -> str:
        """The first row of one of the stream's tiles."""
        if not self.indices or self.rng.random() < 0.1:
            return str(self.rng.randrange(TILES) * rows)
        i = self.rng.choice(self.indices[-2:])
        if i.high < TILES and self.rng.random() < 0.6:
            return f"{i.text} * {rows}"
        return f"({i.text} % {self.rng.choice((2, TILES, TILES))}) * {rows}"

    def tail_position(self, rows: int) -> str:
        """The first row of a view that may leave the stream, now and then or for good:
        only the bytes inside move."""
        forms = [f"{TILES * rows - 1}"]
        if self.num_pes > 1:
            forms.append(f"{2 * rows} + pe * {rows}")
        if self.indices:
            i = self.rng.choice(self.indices[-2:])
            forms += [
                f"{i.text} * {rows}",
                f"{i.text} * {rows} - {rows}",
                f"{i.text} * {rows} - {rows // 2}",
                f"(({i.text} % {TILES}) + 1) * {rows} - 1",
                f"{i.text} + {TILES * rows - rows}",
            ]
        return self.rng.choice(forms)

    def load_of(self, shape: Shape) -> Tile:
        rng, rows = self.rng, shape[0]
        if shape not in (self.main, self.odd):
            if self.dma_only:
                raise AssertionError(f"no stream has tiles of {shape}")
            return self.tile(f"tl.zeros({shape})", shape)
        name = "x" if shape == self.main else "y"
        if rng.random() < 0.25:
            part = rng.choice(("", "", f"[1:{TILES * rows - 1}]"))  # what exists
            at = self.tail_position(rows)
            text = f"tl.load({name}{part}[tl.ds({at}, {rows})], other=0.0)"
        else:
            text = f"tl.load({name}[tl.ds({self.position(rows)}, {rows})])"
        return self.tile(text, shape)

    def _load(self) -> None:
        self.load_of(self.shape)

    def _dead_load(self) -> None:
        """Loaded, and read by nobody."""
        rows = self.rng.choice((1, 2, self.shape[0]))
        self.line(f"tl.load(big[tl.ds({self.rng.randrange(4)}, {rows})])")

    def _store(self) -> None:
        rows = self.main[0]
        source = self.pick(self.main).name
        at, check = self.position(rows), ""
        if self.rng.random() < 0.25:
            at, check = self.tail_position(rows), ", boundary_check=True"
        self.line(f"tl.store(rest[tl.ds({at}, {rows})], {source}{check})")

    def _math(self) -> None:
        rng = self.rng
        a = self.pick(self.shape if rng.random() < 0.8 else None)
        b = self.pick(a.shape)
        forms = (f"{a.name} + {b.name}", f"{a.name} * 2.0", f"tl.exp({a.name})",
                 f"tl.maximum({a.name}, {b.name})", f"tl.softmax({a.name})",
                 f"tl.zeros({a.shape})", f"{a.name} / {b.name}")  # fmt: skip
        self.tile(rng.choice(forms), a.shape)

    def _update(self) -> None:
        """A persistent tile gets a new value, perhaps made from its old one."""
        target = self.rng.choice(self.kept)
        forms = (
            self.pick(target.shape).name,
            f"{target.name} * 0.5",
            f"{target.name} + {self.pick(target.shape).name}",
        )
        self.line(f"tl.copy_to({target.name}, {self.rng.choice(forms)})")

    def _rows(self) -> None:
        """One row of a persistent tile to another row: a part of its bytes."""
        rows = self.main[0]
        a, b = self.rng.choice(self.kept), self.rng.choice(self.kept)
        at = f"{self.indices[-1].text} % {rows}" if self.indices else "0"
        row, last = f"tl.ds({at}, 1)", f"tl.ds({rows - 1}, 1)"
        pair = [f"{a.name}[{row}]", f"{b.name}[{last}]"]
        self.rng.shuffle(pair)
        self.line(f"tl.copy_to({pair[0]}, {pair[1]})")

    def _ring(self) -> None:
        """Two tiles in turn: one half is written while the other is read."""
        rng, rows = self.rng, self.main[0]
        turn = f"{self.indices[-1].text} % 2" if self.indices else "0"
        if self.num_pes > 1 and rng.random() < 0.2:
            turn = "pe % 2"
        if rng.random() < 0.5:
            half = f"ring[tl.ds(({turn}) * {rows}, {rows})]"
            self.line(f"tl.copy_to({half}, {self.pick(self.main).name})")
        else:
            half = f"ring[tl.ds((1 - {turn}) * {rows}, {rows})]"
            self.tile(f"{half} + 1.0", self.main)

    def _dot(self) -> None:
        a = self.pick(self.shape)
        b = a if self.rng.random() < 0.5 else self.pick(self.shape)
        square = self.tile(f"tl.dot({a.name}, tl.trans({b.name}))", (a.shape[0],) * 2)
        if self.rng.random() < 0.3:
            self.tile(f"tl.dot({square.name}, {b.name})", a.shape)

    def _reduce(self) -> None:
        a = self.pick(self.shape)
        name = self.rng.choice(("sum", "max", "argmin"))
        text = f"tl.{name}({a.name}, axis=1, keepdims=True)"
        if name == "argmin":
            self.line(text)
        else:
            self.tile(text, (a.shape[0], 1))
