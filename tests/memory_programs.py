"""Random small kernels that exercise memory, from a seed, as Python source.

Few cheap ops that are exact, and much of scopes, loops, aliases, copies, partly written
tiles, rebound names, and stores that are loaded again. As in `tests.programs`, the
arguments `unroll` and `scoped` change a kernel's form and may not change its results.

By its own model of lifetimes (`tests.memory_model`) a kernel keeps the scope contract,
or breaks it at exactly one line, which the writer knows.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import numpy as np

from tests.memory_model import PLACES, ZERO, Frame, Handle, Root, Start, Text
from tests.programs import compiled

Kind = Literal["scope", "loop", "unwritten"]
DTYPES = ("float32", "int32", "bool", "float16")
ROWS, COLUMNS, PES = 8, 3, 2  # of every HBM tensor
DEEPEST = 4  # blocks within blocks
HEAD = '''\
from kbjax import ScratchOverflowError


class Leave(Exception):
    """What the kernel raises and catches."""


class Box:
    """What the kernel keeps handles in."""


def kernel(tl, {arguments}, *, unroll=False, scoped=True):
    loop = tl.static_range if unroll else tl.range
    scope = tl.scratch_scope if scoped else nullcontext
    held, kept, box = {{}}, [None, None], Box()
'''


class Mistake(NamedTuple):
    """What is wrong with a kernel, and at which line of its source."""

    kind: Kind
    line: int


class Drawn(NamedTuple):
    """A random kernel, `kernel(tl, *inputs, *outputs, unroll=False, scoped=True)`.

    Attributes:
      arrays: one an input.
      out_shapes: one a `ShapeDtypeStruct` an output.
      aliases: as `input_output_aliases`.
      mistake: None where it keeps the contract.
    """

    name: str
    kernel: Callable[..., None]
    arrays: tuple[np.ndarray, ...]
    out_shapes: tuple[jax.ShapeDtypeStruct, ...]
    aliases: dict[int, int]
    num_pes: int
    source: str
    mistake: Mistake | None


def memory_kernel(seed: int, mistaken: bool = False, lines: int = 52) -> Drawn:
    """The kernel of a seed, with one mistake where `mistaken`; about `lines` long at
    most."""
    rng = random.Random(f"memory {seed} {mistaken} {lines}")
    writer = _Writer(rng, mistaken=mistaken, longest=lines)
    source = writer.kernel()
    name = f"<{'mistaken' if mistaken else 'memory'} kernel {seed}>"
    dtypes, values = writer.dtypes, np.random.default_rng(seed)
    lead = (PES,) if writer.num_pes > 1 else ()

    def draw(dtype: str) -> np.ndarray:
        shape = (*lead, ROWS, COLUMNS)
        high = 2 if dtype == "bool" else 100
        return values.integers(dtype != "bool", high, shape).astype(dtype)

    made = jax.ShapeDtypeStruct
    return Drawn(
        name,
        compiled(source, name),
        tuple(draw(dtype) for dtype in (*dtypes, dtypes[0])),
        tuple(made((ROWS, COLUMNS), dtype) for dtype in (*dtypes, dtypes[0])),
        {len(dtypes): len(dtypes)},
        writer.num_pes,
        source,
        writer.mistake,
    )


@dataclass
class _Writer(Text):
    """Writes one kernel, a statement at a time; `fuse`: how many until the mistake."""

    mistaken: bool = False
    longest: int = 60
    dtypes: tuple[str, ...] = ()
    num_pes: int = 1
    fuse: int = 0
    blunder_line: int = 0
    mistake: Mistake | None = None

    def kernel(self) -> str:
        rng = self.rng
        self.dtypes = tuple(rng.sample(DTYPES, rng.choice((1, 2, 2, 3))))
        self.num_pes = rng.choice((1, 1, 1, PES))
        self.fuse = rng.randint(2, self.longest // 3)
        names = [f"x_{d}" for d in self.dtypes] + ["io"]
        names += [f"o_{d}" for d in self.dtypes] + ["io_out"]
        self.lines = HEAD.format(arguments=", ".join(names)).splitlines()
        if self.num_pes > 1:
            self.line("pe = tl.program_id()")
            self.indices.append(Start("pe", (0, 1), (self.frames[0],)))
        for _ in range(2):
            self.load()
        self.statements(rng.randint(4, 8) if self.longest > 50 else rng.randint(3, 5))
        if self.mistaken and self.mistake is None:
            self.fuse = 0
            with self.block("with scope():", Frame("scope")):
                self.bind(self.load(), 'held["a"]')
            self.blunder()
        for dtype in self.dtypes:  # every output is stored to
            self.store(self.storable(dtype) or self.load(dtype), f"o_{dtype}")
        first = self.dtypes[0]
        self.store(self.storable(first) or self.load(first), "io_out")
        return "\n".join(self.lines) + "\n"

    # --- statements ------------------------------------------------------------------

    def statements(self, count: int) -> None:
        simple = (self.load, self.operate, self.operate, self.copy, self.copy,
                  self.copy, self.slide, self.alias, self.alias, self.keep, self.store,
                  self.fill, self.fill, self.again)  # fmt: skip
        blocks = (self.scope, self.scope, self.loop, self.loop, self.static, self.leave)
        for _ in range(count):
            self.fuse -= 1
            if self.mistaken and self.fuse <= 0:
                self.blunder()
            deep = len(self.frames) > DEEPEST or len(self.lines) > self.longest - 15
            if not deep and self.rng.random() < 0.35:
                self.rng.choice(blocks)()
            else:
                self.rng.choice(simple)()

    def load(self, dtype: str | None = None) -> Handle:
        dtype = dtype or self.rng.choice(self.dtypes)
        count = self.rng.randint(1, 4)
        start = self.rows(count, ROWS)
        sources = [f"x_{dtype}"] * 4 + [f"o_{dtype}"]
        sources += ["io", "io_out"] * (2 * (dtype == self.dtypes[0]))
        view = f"{self.rng.choice(sources)}[tl.ds({start.text}, {count}), :]"
        return self.new(f"tl.load({view})", (count, COLUMNS), dtype)

    def storable(self, dtype: str = "") -> Handle | None:
        return self.pick(lambda h: h.size % COLUMNS == 0 and dtype in (h.dtype, ""))

    def store(self, handle: Handle | None = None, output: str = "") -> None:
        handle = handle or self.storable() or self.load()
        outputs = [f"o_{handle.dtype}"] + ["io_out"] * (handle.dtype == self.dtypes[0])
        output = output or self.rng.choice(outputs)
        count = handle.size // COLUMNS
        view = f"{output}[tl.ds({self.rows(count, ROWS).text}, {count}), :]"
        tile = self.use(handle)
        if handle.shape != (count, COLUMNS):
            tile = f"tl.reshape({tile}, ({count}, {COLUMNS}))"
        self.line(f"tl.store({view}, {tile})")

    def computed(self, handle: Handle) -> str:
        """An op on the tile that keeps its shape and dtype."""
        text = self.use(handle)
        other = self.pick(
            lambda h: (h.shape, h.dtype) == (handle.shape, handle.dtype) and h != handle
        )
        if other is not None and self.rng.random() < 0.4:
            return f"tl.maximum({text}, {self.use(other)})"
        if handle.dtype == "bool":
            return f"{text} != True"
        if self.indices and self.rng.random() < 0.4:
            return f"{text} + ({self.rng.choice(self.indices).text} + 1)"
        return self.rng.choice((f"{text} + 3", f"{text} + 7", f"tl.maximum({text}, 9)"))

    def operate(self) -> None:
        handle = self.pick() or self.load()
        self.new(self.computed(handle), handle.shape, handle.dtype)

    def copy(self, target: Handle | None = None) -> None:
        target = target or self.pick(written=False) or self.load()
        wanted = (target.shape, target.dtype)
        source = self.pick(lambda h: (h.shape, h.dtype) == wanted)
        if source is None or self.rng.random() < 0.3:
            source = self.pick(lambda h: (h.size, h.dtype) == (target.size, wanted[1]))
        if source is None:
            value = {"bool": "True"}.get(target.dtype, str(self.rng.randint(1, 99)))
            text = f'tl.full({target.shape}, {value}, "{target.dtype}")'
        elif self.rng.random() < 0.4:
            text = self.computed(source)
        else:
            text = self.use(source)
        if source is not None and source.shape != target.shape:
            text = f"tl.reshape({text}, {target.shape})"
        self.line(f"tl.copy_to({self.use(target)}, {text})")
        self.write(target)

    def slide(self) -> None:
        """Overlapping rows of one tile: a memmove."""
        handle = self.pick(lambda h: h.shape[0] > 1)
        if handle is None:
            return self.copy()
        count = self.rng.randint(1, handle.shape[0] - 1)
        to, of = (
            self.viewed(handle, count, self.rows(count, handle.shape[0]))
            for _ in range(2)
        )
        if not of.is_written:
            return self.copy(to)
        self.line(f"tl.copy_to({to.text}, {of.text})")
        self.write(to)

    def viewed(self, handle: Handle, count: int, start: Start) -> Handle:
        row = handle.size // handle.shape[0]
        text = f"{self.use(handle)}[tl.ds({start.text}, {count})]"
        shape = (count, *handle.shape[1:])
        return Handle(
            text, shape, handle.dtype, handle.root, start.scaled(row, handle.start)
        )

    def alias(self) -> None:
        handle = self.pick(written=self.rng.random() < 0.7) or self.load()
        text, shape = self.use(handle), handle.shape
        forms = [(f"tl.reshape({text}, (-1,))", (handle.size,))]
        if len(shape) < 3:
            axis = self.rng.randint(0, len(shape))
            made = (*shape[:axis], 1, *shape[axis:])
            forms.append((f"tl.expand_dims({text}, {axis})", made))
        if len(shape) == 2:
            forms.append((f"tl.reshape({text}, {shape[::-1]})", shape[::-1]))
        forms.append((f'{text}.to("{handle.dtype}")', shape))
        value, shape = self.rng.choice(forms)
        if self.rng.random() < 0.5:
            count = self.rng.randint(1, handle.shape[0])
            part = self.viewed(handle, count, self.rows(count, handle.shape[0]))
            self.bind(part, value=part.text)
        else:
            self.bind(replace(handle, shape=shape), value=value)

    def keep(self) -> None:
        """A handle under another name, in a container, an object or a closure."""
        handle = self.pick(written=False) or self.load()
        self.use(handle)  # so that it is not bound to itself, which a body may not do
        if self.rng.random() < 0.25:
            name = f"get{next(self.names)}"
            closure = f"(lambda t: lambda: t)({self.use(handle)})"
            self.line(f"{name} = {closure}")
            self.bound[f"{name}()"] = replace(handle, text=f"{name}()")
            for frame in self.frames:
                frame.bound.add(f"{name}()")
            return
        again = [text for text in PLACES if self.may_bind(text)]
        if again:
            self.bind(handle, self.rng.choice(again))

    def again(self) -> None:
        """``name = name + 1``: legal where the loop body has set the name before."""
        loops = [frame for frame in self.frames if frame.kind == "range"]
        mine = self.frames[-1].kind == "static"

        def fits(handle: Handle) -> bool:
            ranges = [f for f in self.binding[handle.text] if f.kind == "range"]
            crossed = [f for f in self.loops() if f not in self.binding[handle.text]]
            return ranges == loops and (
                not crossed or (mine and crossed == [self.frames[-1]])
            )

        names = [
            h
            for h in self.alive()
            if h.text in self.binding and h.is_written and fits(h)
        ]
        if not names:
            return self.operate()
        handle = self.rng.choice(names)
        value = self.computed(handle)
        owners = [f for f in self.frames if f.kind in ("kernel", "scope", "range")]
        root = Root(owners[-1], tuple(self.frames))
        self.roots.append(root)
        made = replace(handle, root=root, start=ZERO)
        self.write(made)
        set_in = self.binding[handle.text]
        self.bind(made, handle.text, value)
        self.binding[handle.text] = set_in  # it may be what an unrolled loop hands on

    def fill(self) -> None:
        """An `empty` tile, and views of it that are written, all or some."""
        rng, dtype = self.rng, self.rng.choice(self.dtypes)
        count = rng.randint(1, 4)
        shape = rng.choice(((count, COLUMNS), (count,), (count, 2, 2)))
        tile = self.new(f'tl.empty({shape}, "{dtype}")', shape, dtype, written=False)
        form = rng.choice(("whole", "parts", "some", "loop", "never", "none"))
        if form == "whole":
            self.copy(tile)
        elif form == "parts":
            cut = rng.randint(0, count)
            for first, size in rng.sample([(0, cut), (cut, count - cut)], 2):
                if size:
                    self.copy(self.viewed(tile, size, Start(str(first), (first,))))
        elif form == "some":
            size = rng.randint(1, count)
            view = self.viewed(tile, size, self.rows(size, count))
            self.copy(view)
            if view.is_written:
                self.bind(view, value=view.text)
        elif form == "loop" and len(self.frames) <= DEEPEST:
            self.counted(f"loop({count})", tuple(range(count)), tile)
        elif form == "never" and len(self.frames) <= DEEPEST:
            self.counted("loop(0)", (), tile)

    # --- blocks ----------------------------------------------------------------------

    def scope(self) -> None:
        with self.block("with scope():", Frame("scope")):
            self.load()
            self.statements(self.rng.randint(1, 4))

    def static(self) -> None:
        count = self.rng.randint(0, 3)
        frame = Frame("static", count > 0, count == 0)
        values = tuple(range(count)) or (0,)
        index = Start(f"k{next(self.names)}", values, (frame,), count > 0)
        head = f"for {index.text} in tl.static_range({count}):"
        with self.block(head, frame, index):
            self.load()
            self.statements(self.rng.randint(1, 3))

    def loop(self) -> None:
        """A `tl.range`; its trip count may depend on the index of one around it."""
        rng = self.rng
        mine = [i for i in self.indices if i.frames[0].kind == "range"]
        if mine and rng.random() < 0.5:
            outer = rng.choice(mine)
            top = max(outer.values)
            trips = {
                outer.text: outer.values,
                f"{outer.text} + 1": [v + 1 for v in outer.values],
                f"{top + 1} - {outer.text}": [top + 1 - v for v in outer.values],
                f"{top} - {outer.text}": [top - v for v in outer.values],
            }
            text = rng.choice(list(trips))
            self.triangular(text, list(trips[text]))
            return
        forms = {
            "loop(0)": (),
            "loop(1)": (0,),
            "loop(2)": (0, 1),
            "loop(3)": (0, 1, 2),
            "loop(1, 3)": (1, 2),
            "loop(2, -1, -1)": (2, 1, 0),
            "loop(1, -1, -1)": (1, 0),
            "loop(0, 4, 2)": (0, 2),
        }
        text = rng.choice(list(forms))
        self.counted(text, forms[text])

    def counted(
        self, text: str, values: tuple[int, ...], tile: Handle | None = None
    ) -> None:
        """A loop over `values`, which writes `tile` row by row where there is one."""
        frame = Frame("range", bool(values), not values)
        index = Start(f"i{next(self.names)}", values or (0,), (frame,), bool(values))
        with self.block(f"for {index.text} in {text}:", frame, index):
            scoped = self.rng.random() < 0.6
            inner = self.block("with scope():", Frame("scope"))
            with inner if scoped else contextlib.nullcontext():
                if tile is not None:
                    self.copy(self.viewed(tile, 1, index))
                self.load()
                self.statements(self.rng.randint(1, 3))

    def triangular(self, text: str, trips: list[int]) -> None:
        frame = Frame("range", min(trips) > 0, max(trips) == 0)
        values = tuple(range(max(trips))) or (0,)
        index = Start(f"i{next(self.names)}", values, (frame,))
        with (
            self.block(f"for {index.text} in loop({text}):", frame, index),
            self.block("with tl.scratch_scope():", Frame("scope")),
        ):
            self.load()
            self.statements(self.rng.randint(1, 3))

    def leave(self) -> None:
        """Scopes that an exception leaves: the kernel's own, or an overflow."""
        rng = self.rng
        kind = rng.choice(("Leave", "Leave", "ScratchOverflowError"))
        carrier = f"left{next(self.names)}"
        carried = None
        with self.block("try:", Frame("try")), contextlib.ExitStack() as stack:
            for _ in range(rng.randint(1, 2)):
                stack.enter_context(self.block("with scope():", Frame("scope")))
                tile = self.load()
                self.statements(rng.randint(0, 2))
            if kind == "Leave":
                tile = self.pick() or tile
                carried = tile
                self.line(f"raise Leave({self.use(tile)})")
            else:
                self.line("tl.empty((1 << 23,))")
        self.line(f"except {kind} as {carrier}:")
        self.frames.append(Frame("try"))
        places = [text for text in PLACES if self.may_bind(text)]
        if carried is None or not places:
            self.line("pass")
        else:
            self.bind(carried, rng.choice(places), f"{carrier}.args[0]")
        self.frames.pop()

    # --- the mistake -----------------------------------------------------------------

    def blunder(self) -> None:
        """The one mistake, where something can be got wrong by now."""
        if self.mistake is not None or any(frame.never for frame in self.frames):
            return
        rng = self.rng
        wrong: list[tuple[Handle, Kind]] = []
        for handle in self.bound.values():
            if not self.is_placed(handle):
                continue
            if not self.lives(handle):
                if handle.is_written:
                    dies = handle.root.dies_with.kind
                    wrong.append((handle, "loop" if dies == "range" else "scope"))
            elif not handle.start.frames and handle.elements - handle.root.perhaps:
                wrong.append((handle, "unwritten"))
        kinds = sorted({kind for _, kind in wrong})
        if not kinds:
            return
        kind = rng.choice(kinds)
        handle = rng.choice([h for h, k in wrong if k == kind])
        forms = [self.blunder_read, self.blunder_read, self.blunder_op]
        if kind != "unwritten":
            forms += [self.blunder_write, self.blunder_alias]
        rng.choice(forms)(handle)
        self.mistake = Mistake(kind, self.blunder_line)

    def blunder_at(self, text: str) -> None:
        self.line(text)
        self.blunder_line = len(self.lines)

    def blunder_read(self, bad: Handle) -> None:
        fit = self.pick(
            lambda h: (
                (h.shape, h.dtype) == (bad.shape, bad.dtype) and h.root is not bad.root
            ),
            written=False,
        )
        if fit is not None and self.rng.random() < 0.5:
            self.blunder_at(f"tl.copy_to({self.use(fit)}, {self.use(bad)})")
            self.write(fit)
        elif bad.size % COLUMNS == 0 and bad.size <= ROWS * COLUMNS:
            count = bad.size // COLUMNS
            view = f"o_{bad.dtype}[tl.ds({self.rows(count, ROWS).text}, {count}), :]"
            tile = f"tl.reshape({self.use(bad)}, ({count}, {COLUMNS}))"
            self.blunder_at(f"tl.store({view}, {tile})")
        else:
            self.blunder_op(bad)

    def blunder_op(self, bad: Handle) -> None:
        value = "!= True" if bad.dtype == "bool" else "+ 3"
        self.new(f"{self.use(bad)} {value}", bad.shape, bad.dtype)
        self.blunder_line = len(self.lines)

    def blunder_write(self, bad: Handle) -> None:
        tile = self.pick(lambda h: (h.shape, h.dtype) == (bad.shape, bad.dtype))
        value = "True" if bad.dtype == "bool" else "5"
        text = f'tl.full({bad.shape}, {value}, "{bad.dtype}")'
        text = text if tile is None else self.use(tile)
        self.blunder_at(f"tl.copy_to({self.use(bad)}, {text})")

    def blunder_alias(self, bad: Handle) -> None:
        forms = ("tl.reshape({}, (-1,))", "tl.expand_dims({}, 0)", "{}[tl.ds(0, 1)]")
        self.blunder_at(self.rng.choice(forms).format(self.use(bad)))
