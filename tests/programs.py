"""Random small legal kernels, from a stream of random numbers, as Python source.

A drawn kernel is text that is compiled under a file name of its own, so that errors
and comparisons point at its lines, and a failing test can print it: what it prints is
the reproduction. A line makes one tile, and says its type in a comment. Two keyword
arguments change its form and may not change its results: `unroll` (`tl.static_range`
for `tl.range`) and `scoped` (whether scratch is rewound).

`exact_only` draws what must equal NumPy bit for bit. The full set adds `exp`, `dot` of
floats and their kin, whose last bits are open; what is discontinuous (comparisons,
casts to int, floor) is then drawn on exact values only, as an ulp would flip it.

Values are drawn around 1 and kept there: XLA's CPU backend flushes subnormals, and
overflow or a clamp would hide differing bits. Each tile has a bound, and where that
gets large, x becomes x / max(x * x, 1), which keeps its bits and its distance from 0.
Integers wrap. `exact_only` kernels hold inf and NaN now and then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from tests.program_ops import (
    DTYPES,
    FLOAT8S,
    FLOATS,
    LIMIT,
    RANGES,
    Index,
    Ops,
    Shape,
    Tile,
    broadcast,
)
from tests.reference import DTYPES as NUMPY

ROWS = (3, 2, 5, 1, 7, 8, 32, 4)
COLUMNS = (3, 5, 8, 1, 4, 16, 31, 32, 33, 100)
MOST_DATA = 400  # elements of a tile of data
PES = 3  # of a kernel with program ids
TRANSFERS = 0.3  # of the kernels load ahead: load_async and circular_buffer


@dataclass(frozen=True)
class Tensor:
    """An HBM argument, and what its values are drawn from."""

    name: str
    shape: Shape
    dtype: str
    specials: bool = False

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if self.dtype in RANGES:
            low = 0 if self.dtype == "uint8" else -9
            return rng.integers(low, 10, self.shape).astype(self.dtype)
        values = rng.normal(size=self.shape).clip(-4, 4)
        values *= rng.random(self.shape) > 0.05  # 0.0 and -0.0
        if self.specials:
            odd = rng.random(self.shape)
            values = np.where(odd < 0.02, np.inf, values)
            values = np.where((odd > 0.02) & (odd < 0.03), -np.inf, values)
            values = np.where((odd > 0.03) & (odd < 0.04), np.nan, values)
        return values.astype(np.float32).astype(NUMPY[self.dtype])

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, NUMPY[self.dtype])


class Drawn(NamedTuple):
    """A random kernel with arguments for it.

    Attributes:
      kernel: `kernel(tl, *inputs, *outputs, unroll=False, scoped=True)`.
      arrays: one an input.
      out_shapes: one a `ShapeDtypeStruct` an output.
      source: the kernel's text.
      inputs: from which more `arrays` can be drawn.
      name: the kernel's file.
      exact_only, program_ids: what it was drawn from.
    """

    kernel: Callable[..., None]
    arrays: tuple[np.ndarray, ...]
    out_shapes: tuple[jax.ShapeDtypeStruct, ...]
    source: str
    inputs: tuple[Tensor, ...]
    name: str
    exact_only: bool
    program_ids: bool = False

    def with_source(self, source: str) -> Drawn:
        """The same arguments for another text."""
        return self._replace(kernel=compiled(source, self.name), source=source)


def random_kernel(seed: int, exact_only: bool, program_ids: bool = False) -> Drawn:
    """The kernel of a seed.

    Args:
      seed: any integer; the same seed gives the same kernel and arrays.
      exact_only: only ops that have one right answer, bit for bit.
      program_ids: also `tl.program_id()` in arithmetic and trip counts, so that PEs
        differ.
    """
    rng = random.Random(f"{seed} {exact_only} {program_ids}")
    kind = "exact" if exact_only else "full"
    pes = " with program ids" if program_ids else ""
    name = f"<random {kind} kernel {seed}{pes}>"
    transfers = random.Random(f"waits {name}").random() < TRANSFERS
    return draw_kernel(rng, name, exact_only, program_ids, seed, transfers)


def draw_kernel(
    rng: random.Random,
    name: str,
    exact_only: bool,
    program_ids: bool = False,
    data_seed: int = 0,
    transfers: bool = False,
) -> Drawn:
    """A kernel whose every choice comes from `rng`; the first of each is the plain one,
    so that smaller random numbers make plainer kernels."""
    writer = Writer(rng, exact_only, transfers=transfers)
    source = writer.kernel(program_ids)
    inputs, outputs = tuple(writer.inputs), tuple(writer.outputs)
    values = np.random.default_rng(data_seed)
    return Drawn(
        compiled(source, name),
        tuple(tensor.draw(values) for tensor in inputs),
        tuple(tensor.struct for tensor in outputs),
        source,
        inputs,
        name,
        exact_only,
        program_ids,
    )


def compiled(source: str, name: str) -> Callable[..., None]:
    """The function `kernel` that `source` defines, its lines visible to tracebacks."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {"nullcontext": contextlib.nullcontext}
    exec(compile(source, name, "exec"), namespace)
    return namespace["kernel"]


# --- the kernel ----------------------------------------------------------------------


@dataclass
class Writer(Ops):
    """Writes one kernel. `targets` are the tiles that `copy_to` may update; `budget` is
    how many more statements may be blocks; no line comes after `most_lines` but to end
    what is begun; whether `transfers` may be in flight while other commands run."""

    targets: list[Tile] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    budget: int = 0
    most_lines: int = 0
    nested: int = 0
    program_ids: bool = False
    transfers: bool = False

    def kernel(self, program_ids: bool) -> str:
        rng = self.rng
        self.program_ids = program_ids
        self.rows, self.columns = rng.choice(ROWS), rng.choice(COLUMNS)
        while self.rows * self.columns > MOST_DATA:
            self.columns = rng.choice(COLUMNS[:5])
        self.trips = rng.choice((2, 3, 3, 1))
        self.tail = rng.randrange(self.rows) if rng.random() < 0.5 else 0
        length = self.trips * self.rows - self.tail
        specials = self.exact_only and rng.random() < 0.15
        narrow = rng.choice((*FLOATS, *FLOAT8S, "int32", "int8")) \
            if rng.random() < 0.2 else self.float_type()  # fmt: skip
        self.flipped = rng.random() < 0.2
        shape = (length, self.columns)
        stream = Tensor("x", shape[::-1] if self.flipped else shape, narrow, specials)
        self.inputs.append(stream)
        tile = (self.rows, self.columns)
        self.inputs.append(Tensor("y", tile, self.float_type(), specials))
        if rng.random() < 0.6:
            shapes = (tile, (3, *tile), (self.columns,))
            self.inputs.append(Tensor("n", rng.choice(shapes), rng.choice(DTYPES)))
        self.outputs.append(Tensor("streamed", stream.shape, stream.dtype))

        if program_ids:
            self.line("pe = tl.program_id()")
            self.indices.append(Index("pe", 0, PES - 1))
        self._load_whole(self.inputs[rng.randrange(len(self.inputs) - 1) + 1])
        if rng.random() < 0.4:
            self._load_whole(self.inputs[-1])
        for _ in range(rng.choice((1, 2, 1))):
            self._make_target()
        self.budget, self.most_lines = rng.randint(3, 8), rng.randint(8, 16)
        if program_ids and rng.random() < 0.4:
            self._ring_step()
        self._loop()
        self._body(2)
        self._results()
        arguments = ", ".join(t.name for t in (*self.inputs, *self.outputs))
        head = [
            f"def kernel(tl, {arguments}, *, unroll=False, scoped=True):",
            "    loop = tl.static_range if unroll else tl.range",
            "    scope = tl.scratch_scope if scoped else nullcontext",
        ]
        return "\n".join(head + self.lines) + "\n"

    def _results(self) -> None:
        """Stores of what is alive at the end: targets, and the sum of a few others."""
        loose = [t for t in self.frames[-1] if t.name not in self.used]
        kept = self.targets + [t for t in loose if t not in self.targets][-4:]
        for number, one in enumerate(kept):
            self.outputs.append(Tensor(f"out{number}", one.shape, one.dtype))
            self.line(f"tl.store(out{number}, {one.name})")
        if not any("tl.store(streamed" in line for line in self.lines):
            del self.outputs[0]

    # --- blocks ----------------------------------------------------------------------

    def _body(self, most: int) -> None:
        """Some statements, at least one."""
        for _ in range(self.rng.randint(1, most)):
            if len(self.lines) < self.most_lines:
                self._statement()
        if self.nested:
            self._store_loose()

    def _store_loose(self) -> None:
        """What a block has made and not used goes to outputs, most of it: dead code
        would show nothing."""
        loose = [t for t in self.frames[-1] if t.name not in self.used]
        for one in loose[-3:]:
            if self.rng.random() < 0.2:
                continue
            name, shape = f"loose{next(self.names)}", one.shape
            view = name
            at = [i for i in self.indices if i.low >= 0 and i.high < 4]
            if at and self.rng.random() < 0.3:
                view, shape = f"{name}[{at[-1].text}]", (at[-1].high + 1, *shape)
            self.outputs.append(Tensor(name, shape, one.dtype))
            self.line(f"tl.store({view}, {one.name})")

    def _statement(self) -> None:
        rng = self.rng
        kinds = [self._op, self._op, self._op, self._update, *[self._op] * 6,
                 self._load_rows]  # fmt: skip
        if self.budget > 0 and self.nested < 3:
            kinds += [self._loop, self._when, self._scope, self._when]
            if self.transfers:
                kinds += [self._ahead] * 5
        if self.nested:
            kinds += [self._store_rows, self._update]
        if self.program_ids:
            kinds += [self._ring_step] * 3
        self.budget -= 1
        rng.choice(kinds)()

    def _op(self) -> None:
        for _ in range(6):
            if self.step() is not None:
                return

    def _make_target(self) -> Tile:
        rng, tile = self.rng, (self.rows, self.columns)
        shapes = (tile, (self.rows, 1), (1, self.columns), (self.columns,), tile)
        shape, dtype = rng.choice(shapes), self.float_type()
        if rng.random() < 0.25:
            dtype = rng.choice((*INT_TARGETS, "bool", *FLOAT8S))
        exact = self.exact_only or dtype in RANGES or dtype == "bool"
        value = {"bool": "True"}.get(dtype) or rng.choice(("1", "0.5", "1.25"))
        value = "3" if dtype in RANGES else value
        if rng.random() < 0.4:
            target = self.fitted(shape, dtype, exact)
            if target.bound <= _held(dtype) and target not in self.targets:
                self.targets.append(self._owned(target))
                return self.targets[-1]
        made = f'tl.full({shape}, {value}, "{dtype}")'
        if rng.random() < 0.3:
            made = f'tl.zeros({shape}, "{dtype}")'
        elif rng.random() < 0.2:
            return self._filled(shape, dtype, exact)
        target = self.tile(made, shape, dtype, _held(dtype), exact)
        self.targets.append(target)
        return target

    def _owned(self, t: Tile) -> Tile:
        """A copy of a tile, which may be updated; other tiles may name those bytes."""
        made = f'tl.empty({t.shape}, "{t.dtype}")'
        name = f"t{next(self.names)}"
        self.line(f"{name} = {made}  # {t.dtype}{list(t.shape)}")
        self.line(f"tl.copy_to({name}, {t.name})")
        target = dataclasses.replace(t, name=name, bound=_held(t.dtype))
        self.frames[-1].append(target)
        return target

    def _filled(self, shape: Shape, dtype: str, exact: bool) -> Tile:
        """An empty tile, written as a whole or row by row, perhaps in a loop."""
        made = f'tl.empty({shape}, "{dtype}")'
        name = f"t{next(self.names)}"
        self.line(f"{name} = {made}  # {dtype}{list(shape)}")
        target = Tile(name, shape, dtype, _held(dtype), exact)
        if self.rng.random() < 0.5 or shape[0] > 8:
            new = self.fitted(shape, dtype, exact)
            self.line(f"tl.copy_to({name}, {new.name})")
        else:
            i = f"i{next(self.names)}"
            with (
                self.block(f"for {i} in loop({shape[0]}):"),
                self.block("with scope():"),
            ):
                with self._index(Index(i, 0, shape[0] - 1)):
                    new = self.fitted((1, *shape[1:]), dtype, exact)
                    self.line(f"tl.copy_to({name}[tl.ds({i}, 1)], {new.name})")
        self.frames[-1].append(target)
        self.targets.append(target)
        return target

    @contextlib.contextmanager
    def _index(self, *indices: Index):
        self.indices += indices
        yield
        del self.indices[-len(indices) :]

    @contextlib.contextmanager
    def _deeper(self):
        self.nested += 1
        kept = len(self.targets)
        yield
        del self.targets[kept:]
        self.nested -= 1

    def _loop(self) -> None:
        """A loop: static counts (0 and 1 too), negative steps, triangular; or a count
        that depends on the PE."""
        rng, i, trips = self.rng, f"i{next(self.names)}", self.trips
        ranges = [
            (f"{trips}", 0, trips - 1), (f"{trips - 1}, -1, -1", 0, trips - 1),
            (f"0, {2 * trips}, 2", 0, 2 * trips - 2), (f"1, {trips + 1}", 1, trips),
            (f"{trips}", 0, trips - 1), (f"{trips}", 0, trips - 1), ("1", 0, 0),
            ("2, -2, -2", 0, 2), (rng.choice((f"{trips}", "0")), 0, trips - 1),
        ]  # fmt: skip
        symbolic = []
        for o in self.indices:
            if o.low >= 0 and 0 < o.high <= 4 and o.text.isidentifier():
                symbolic += [(o.text, 0, o.high - 1), (f"{o.text} + 1", 0, o.high),
                             (f"{o.text}, {o.high + 1}", 0, o.high),
                             (f"{o.text}, -1, -1", 0, o.high)]  # fmt: skip
        ends, low, high = rng.choice(ranges)
        varies = bool(symbolic) and rng.random() < (0.8 if self.program_ids else 0.5)
        if varies:
            ends, low, high = rng.choice(symbolic)
        by_pe = self.program_ids and (varies or self.nested > 0)
        # Where trip counts vary, a body that is not rewound has no static addresses.
        scope = "with tl.scratch_scope():" if varies else "with scope():"
        opened = "tl.range" if by_pe else "loop"
        with self._deeper(), self.block(f"for {i} in {opened}({ends}):"):
            with self._index(Index(i, low, max(high, low))):
                bare = not varies and rng.random() < 0.15
                with contextlib.nullcontext() if bare else self.block(scope):
                    if rng.random() < 0.7:
                        self._load_rows()
                    self._body(3)
                    if rng.random() < 0.5:
                        self._update()

    def _scope(self) -> None:
        name = self.rng.choice(("", "", '"inner"'))
        with self._deeper(), self.block(f"with scope({name}):"):
            self._body(3)

    def _when(self) -> None:
        if not self.indices:
            self._op()
            return
        i = self.rng.choice(self.indices)
        n = max(i.high, 1)
        conditions = [
            (f"{i.text} + 1 < {n + 1}", Index(f"({i.text} + 1)", i.low + 1, n)),
            (f"{i.text} > 0", Index(f"({i.text} - 1)", max(i.low - 1, 0), n - 1)),
            (f"{i.text} == {i.low}", Index(f"{i.text}", i.low, i.low)),
            (f"{i.text} % 2 != 0", i),
        ]
        if len(self.indices) > 1:
            j = self.rng.choice(self.indices)
            both = f"({i.text} <= {j.text}) & ({j.text} < {max(j.high, 1)})"
            conditions.append((both, i))
        text, known = self.rng.choice(conditions)
        with self._deeper(), self.block(f"with tl.when({text}):"), self._index(known):
            self._body(3)

    # --- memory ----------------------------------------------------------------------

    def _load_whole(self, tensor: Tensor) -> Tile | None:
        """All of a tensor, perhaps transposed, or a part of it."""
        n, shape = tensor.name, tensor.shape
        forms = [(n, shape), (f"{n}.T", shape[::-1]), (n, shape)]
        if len(shape) == 3:
            forms = [
                (f"{n}[1]", shape[1:]),
                (f"{n}[-1]", shape[1:]),
                (f"{n}[0].T", shape[:0:-1]),
                (f"{n}[:, 0]", (3, shape[2])),
                (f"{n}[1:, 0, :]", (2, shape[2])),
                (f"{n}[..., 0]", shape[:2]),
            ]
            for i in self.indices:
                forms.append((f"{n}[{i.text} % 3]", shape[1:]))
        elif shape[0] > 1:
            forms += [(f"{n}[1:]", (shape[0] - 1, *shape[1:])),
                      (f"{n}[tl.ds(0, 1)]", (1, *shape[1:]))]  # fmt: skip
            if len(shape) == 2:
                forms += [(f"{n}[:, -1]", shape[:1]), (f"{n}[0]", shape[1:])]
        text, shape = self.rng.choice(forms)
        return self.tile(f"tl.load({text})", shape, tensor.dtype, _bound(tensor.dtype))

    def _position(self) -> str:
        """Which tile of the stream, an expression in [0, trips)."""
        trips = self.trips
        found = []
        for i in self.indices:
            if i.low >= 0 and i.high < trips:
                found += [i.text, f"({trips - 1} - {i.text})", i.text]
            elif i.low >= 0 and i.high < 2 * trips:
                found.append(f"({i.text} // 2)")
            found += [f"({i.text} % {trips})", f"tl.minimum({i.text}, {trips - 1})"]
        return self.rng.choice(found or ["0"])

    def _stream_view(
        self, name: str, extra: str = "", at: str = "", by_tile: bool = False
    ) -> str:
        """Rows of the stream, or columns where it lies the other way; of tile `at`;
        `by_tile` where a tile of one integer says where they start."""
        start = f"{at or self._position()} * {self.rows}{extra}"
        if by_tile:
            pointer = f"p{next(self.names)}"
            self.line(f"{pointer} = tl.arange(0, 1) + {start}  # int32[1]")
            start = pointer
        part = f"tl.ds({start}, {self.rows})"
        if not self.flipped:
            return (
                f"{name}[{part}, :]" if self.rng.random() < 0.7 else f"{name}[{part}]"
            )
        forms = f"{name}[:, {part}].T", f"{name}.T[{part}, :]"
        return self.rng.choice(forms)

    def _load_rows(self) -> None:
        rng, stream = self.rng, self.inputs[0]
        if rng.random() < 0.3:
            self._load_whole(rng.choice(self.inputs[1:]))
            return
        other = extra = ""
        if self.tail or rng.random() < 0.3:
            fillers = ["0", "1", "3" if stream.dtype in RANGES else "-1.5"]
            if self.exact_only and stream.dtype in FLOATS:
                fillers.append('float("-inf")')
            other = f", {rng.choice(('other=', ''))}{rng.choice(fillers)}"
            extra = rng.choice(("", "", " + 1", " - 1", f" - {self.rows}"))
        shape = (self.rows, self.columns)
        by_tile = bool(other) and rng.random() < 0.3
        view = self._stream_view("x", extra, by_tile=by_tile)
        bound = _bound(stream.dtype)
        if self.transfers and rng.random() < 0.5:
            if other and "other=" not in other:
                other = f", other={other[2:]}"  # `out` comes before it
            self._load_async(f"{view}{other}", shape, stream.dtype, bound)
            return
        self.tile(f"tl.load({view}{other})", shape, stream.dtype, bound)

    def _load_async(self, view: str, shape: Shape, dtype: str, bound: float) -> None:
        """A load that is waited for at once, or after some ops; perhaps twice, or into
        a tile that is there."""
        rng = self.rng
        if rng.random() < 0.3:
            self.tile(f"tl.load_async({view}).wait()", shape, dtype, bound)
            return
        out = ""
        if rng.random() < 0.5:
            name = f"t{next(self.names)}"
            made = f'tl.empty({shape}, "{dtype}")'
            self.line(f"{name} = {made}  # {dtype}{list(shape)}")
            out = f", out={name}"
        future = f"f{next(self.names)}"
        self.line(f"{future} = tl.load_async({view}{out})")
        for _ in range(rng.randint(0, 3)):
            self._op()
        if rng.random() < 0.2:
            self.line(f"{future}.wait()")
        self.tile(f"{future}.wait()", shape, dtype, bound)

    def _ahead(self) -> None:
        """A loop over the stream that loads its tiles some iterations ahead."""
        rng, stream, trips = self.rng, self.inputs[0], self.trips
        b, i = f"b{next(self.names)}", f"i{next(self.names)}"
        shape, depth = (self.rows, self.columns), rng.choice((2, 3, 1, 4))
        other = ", other=1" if self.tail else ""
        self.line(f'{b} = tl.circular_buffer({depth}, {shape}, "{stream.dtype}")')
        for k in range(min(depth - 1, trips)):
            view = self._stream_view("x", at=str(k))
            self.line(f"{b}.push({view}{other})")
        scope = self.block("with scope():")
        with self._deeper(), self.block(f"for {i} in loop({trips}):"), scope:
            with self._index(Index(i, 0, trips - 1)):
                after = f"({i} + {depth - 1})"
                view = self._stream_view("x", at=after)
                with self.block(f"with tl.when({after} < {trips}):"):
                    self.line(f"{b}.push({view}{other})")
                self.tile(f"{b}.pop()", shape, stream.dtype, _bound(stream.dtype))
                self._body(3)
                self._update()

    def _store_rows(self) -> None:
        stream = self.outputs[0]
        rows = self.fitted((self.rows, self.columns), stream.dtype)
        checked = self.tail or self.rng.random() < 0.2
        extra = self.rng.choice(("", "", " + 1", " - 1")) if checked else ""
        view = self._stream_view("streamed", extra)
        check = ", boundary_check=True" if checked else ""
        self.line(f"tl.store({view}, {rows.name}{check})")

    def _update(self) -> None:
        """`copy_to` into a target or a part of it, perhaps of its old value."""
        rng, target = self.rng, self.rng.choice(self.targets)
        if rng.random() < 0.15 and target.shape and target.shape[0] > 1:
            self._move_rows(target)
            return
        if rng.random() < 0.2 and target.shape and target.shape[0] > 1:
            target = self.rows_of(target)
        new = self.fitted(target.shape, target.dtype, target.exact)
        if target.dtype in (*FLOATS, *RANGES) and rng.random() < 0.7:
            k = rng.choice((2, 3)) if target.is_int else rng.choice((0.7, 0.1, 1.1))
            old = target
            if rng.random() < 0.5:
                old = self.scaled(target, "*", k)
            grown = self.combined(old, rng.choice(("+", "-", "*")), new)
            new = grown if grown is not None else new
            if new.bound > target.bound:
                new = self.tamed(new)
        self.line(f"tl.copy_to({target.name}, {new.name})")

    def _move_rows(self, target: Tile) -> None:
        """Rows of a tile to others of it: what is read and written overlaps."""
        n, last = target.name, target.shape[0] - 1
        ends = [f"{n}[tl.ds(0, {last})]", f"{n}[tl.ds(1, {last})]"]
        self.rng.shuffle(ends)
        self.line(f"tl.copy_to({ends[0]}, {ends[1]})")

    # --- messages --------------------------------------------------------------------

    def _ring_step(self) -> None:
        """A tile to another PE, and what comes from one; to itself, where only some PEs
        run this line."""
        rng, t = self.rng, self.pick()
        if t is None:
            return
        by_pe = any(re.search(r"\bpe\b", line) for line in self._around())
        offset = 0 if by_pe else rng.choice((1, -1, 2, 0, PES + 1))
        sent, posted = (f"{letter}{next(self.names)}" for letter in "sr")
        receive = f'tl.recv({t.shape}, "{t.dtype}", {offset})'
        self.line(f"{sent} = tl.send({t.name}, {offset})")
        if rng.random() < 0.5:
            self.line(f"{posted} = {receive}")
            receive = posted
            self._op()
        self.tile(f"{receive}.wait()", t.shape, t.dtype, t.bound, t.exact)
        self.line(f"{sent}.wait()")

    def _around(self) -> Iterator[str]:
        """The lines that open the blocks around the next one."""
        depth = self.depth
        for line in reversed(self.lines):
            own = (len(line) - len(line.lstrip())) // 4
            if own < depth:
                depth = own
                yield line

    # --- fitting ---------------------------------------------------------------------

    def tamed(self, t: Tile) -> Tile:
        """`t` in [-1, 1], its bits kept."""
        text = f"{t.name} / tl.maximum({t.name} * {t.name}, 1.0)"
        return self.tile(text, t.shape, t.dtype, 1.0, t.exact)

    def fitted(self, shape: Shape, dtype: str, exact: bool | None = None) -> Tile:
        """A tile of this shape and type, from one in reach: reduced, broadcast, cast;
        `exact`: whether it has to be."""
        if exact is None:
            exact = self.exact_only
        exact = exact or dtype in RANGES or dtype == "bool"

        def wanted(t: Tile) -> bool:
            return t.exact or not exact

        one = self.pick(lambda t: wanted(t) and (t.shape, t.dtype) == (shape, dtype))
        if one is None or self.rng.random() < 0.3:
            one = self.pick(lambda t: wanted(t) and broadcast(t.shape, shape) == shape)
        if one is None or self.rng.random() < 0.1:
            one = self.pick(lambda t: wanted(t) and len(t.shape) <= 2) or one
        if one is None:
            return self.tile(f'tl.full({shape}, 1, "{dtype}")', shape, dtype, 1.0)
        if one.dtype in (*FLOAT8S, "bool") and broadcast(one.shape, shape) != shape:
            one = self.cast(one, "float32")
        while broadcast(one.shape, shape) != shape:
            one = self._reduced_towards(one, shape)
        if one.dtype != dtype:
            if not self.fits(one, dtype):
                if one.dtype in FLOAT8S:
                    one = self.cast(one, "float32")
                one = self.tamed(one if one.is_float else self.scaled(one, "*", 0.5))
            one = self.cast(one, dtype)
        if one.shape != shape:
            text = f"tl.broadcast_to({one.name}, {shape})"
            one = self.tile(text, shape, dtype, one.bound, one.exact)
        return one

    def _reduced_towards(self, t: Tile, shape: Shape) -> Tile:
        """`t` reduced along the first axis that keeps it from fitting `shape`."""
        extra = len(t.shape) - len(shape)
        axis = 0
        if extra <= 0:
            pairs = zip(t.shape, shape[-extra:] if extra else shape, strict=True)
            axis = next(
                i for i, (got, want) in enumerate(pairs) if got not in (1, want)
            )
        name = self.rng.choice(("sum", "max", "min"))
        made = self.reduced(t, name, axis, extra <= 0)
        return made or self._reduced_towards(self.tamed(t), shape)


INT_TARGETS = ("int32", "int16", "int8", "uint8")


def _held(dtype: str) -> float:
    """How large what a target holds may get."""
    return 8.0 if dtype in LIMIT else 1e10


def _bound(dtype: str) -> float:
    return {"bool": 1.0, "uint8": 9.0}.get(dtype, 9.0 if dtype in RANGES else 4.0)
