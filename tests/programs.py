"""Random small legal kernels, from a seed, as Python source.

A drawn kernel is text that is compiled under a file name of its own, so that errors
and comparisons point at its lines, and a failing test can print it: what it prints is
the reproduction. Two keyword arguments change its form and may not change its results:
`unroll` (`tl.static_range` for `tl.range`) and `scoped` (whether scratch is rewound).

`exact_only` draws what must equal NumPy bit for bit. The full set adds `exp`, `dot` and
their kin, whose last bits are open; what is discontinuous (comparisons, casts to int)
is then drawn on exact values only, as an ulp would flip it.

Values are drawn around 1 and kept there: XLA's CPU backend flushes subnormals, and
overflow or a clamp would hide differing bits. Each tile has a bound, and where that
gets large, x becomes x / max(x * x, 1), which keeps its bits and its distance from 0.
`exact_only` kernels hold inf and NaN now and then.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

Shape = tuple[int, ...]
FLOATS = ("float32", "float16", "bfloat16")
# Where a tile is tamed: far from float16's overflow, also when squared or summed.
LIMIT = {"float32": 1e4, "float16": 100.0, "bfloat16": 1e3, "int32": 1e4, "bool": 1.0}
ROWS = (1, 1, 2, 3, 5, 7, 8, 32, 100)
COLUMNS = (1, 3, 4, 7, 16, 31, 32, 33, 100)
MOST_ELEMENTS = 1024  # a tile
CONSTANTS = (0.1, 0.3, 0.7, 1.1, 1 / 3, 3.0, -2.5, 1.5, 7.0, 2, 3, -1, 5)


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
        if self.dtype == "int32":
            return rng.integers(-9, 10, self.shape).astype(np.int32)
        values = rng.normal(size=self.shape).clip(-4, 4)
        if self.specials:
            odd = rng.random(self.shape)
            values = np.where(odd < 0.02, np.inf, values)
            values = np.where((odd > 0.02) & (odd < 0.03), -np.inf, values)
            values = np.where((odd > 0.03) & (odd < 0.04), np.nan, values)
        numpy = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype
        return values.astype(np.float32).astype(numpy)


class Drawn(NamedTuple):
    """A random kernel with arguments for it.

    Attributes:
      kernel: `kernel(tl, *inputs, *outputs, unroll=False, scoped=True)`.
      arrays: one an input.
      out_shapes: one a `ShapeDtypeStruct` an output.
      source: the kernel's text.
      inputs: from which more `arrays` can be drawn.
    """

    kernel: Callable[..., None]
    arrays: tuple[np.ndarray, ...]
    out_shapes: tuple[jax.ShapeDtypeStruct, ...]
    source: str
    inputs: tuple[Tensor, ...]


def random_kernel(seed: int, exact_only: bool, program_ids: bool = False) -> Drawn:
    """The kernel of a seed.

    Args:
      seed: any integer; the same seed gives the same kernel and arrays.
      exact_only: only ops that have one right answer, bit for bit.
      program_ids: also `tl.program_id()` in arithmetic and trip counts, so that PEs
        differ.
    """
    writer = _Writer(random.Random(f"{seed} {exact_only} {program_ids}"), exact_only)
    source = writer.kernel(program_ids)
    name = f"<random {'exact' if exact_only else 'full'} kernel {seed}>"
    inputs, outputs = tuple(writer.inputs), tuple(writer.outputs)
    rng = np.random.default_rng(seed)
    return Drawn(
        compiled(source, name),
        tuple(tensor.draw(rng) for tensor in inputs),
        tuple(
            jax.ShapeDtypeStruct(
                t.shape, ml_dtypes.bfloat16 if t.dtype == "bfloat16" else t.dtype
            )
            for t in outputs
        ),
        source,
        inputs,
    )


def compiled(source: str, name: str) -> Callable[..., None]:
    """The function `kernel` that `source` defines, its lines visible to tracebacks."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {"nullcontext": contextlib.nullcontext}
    exec(compile(source, name, "exec"), namespace)
    return namespace["kernel"]


# --- drawing -------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A tile that the kernel holds.

    Attributes:
      bound: finite values lie in [-bound, bound].
      exact: every correct implementation gives these bits.
    """

    name: str
    shape: Shape
    dtype: str
    bound: float
    exact: bool = True

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Index:
    """An integer expression in a kernel, its lowest and highest value."""

    text: str
    low: int
    high: int


def broadcast(*shapes: Shape) -> Shape | None:
    """The common shape, or None where there is none or it is large."""
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    return shape if math.prod(shape) <= MOST_ELEMENTS else None


def promote(a: str, b: str) -> str:
    """The common type of two tiles."""
    floats = {dtype for dtype in (a, b) if dtype in FLOATS}
    if floats:
        return floats.pop() if len(floats) == 1 else "float32"
    return "int32" if "int32" in (a, b) else "bool"


@dataclass
class _Writer:
    """Writes one kernel, a statement at a time. `frames` are the tiles in reach, a
    frame a block; `targets` the tiles that `copy_to` may update; `used` the names that
    some line reads, as dead code tests little; `loads` those of floats from HBM."""

    rng: random.Random
    exact_only: bool
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    used: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)
    names: Iterator[int] = field(default_factory=itertools.count)
    frames: list[list[Tile]] = field(default_factory=lambda: [[]])
    targets: list[Tile] = field(default_factory=list)
    indices: list[Index] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    # --- the kernel ------------------------------------------------------------------

    def kernel(self, program_ids: bool) -> str:
        rng = self.rng
        self.rows, self.columns = rng.choice(ROWS), rng.choice(COLUMNS)
        while self.rows * self.columns > MOST_ELEMENTS:
            self.rows, self.columns = rng.choice(ROWS), rng.choice(COLUMNS)
        self.trips = rng.choice((2, 3, 3, 4))
        self.tail = rng.randrange(self.rows) if rng.random() < 0.6 else 0
        tile, length = (self.rows, self.columns), self.trips * self.rows - self.tail
        specials = self.exact_only and rng.random() < 0.2
        stream = Tensor("x", (length, self.columns), self._float(), specials)
        whole = Tensor("y", tile, self._float(), specials and rng.random() < 0.3)
        self.inputs += [stream, whole]
        if rng.random() < 0.6:
            self.inputs.append(Tensor("n", tile, rng.choice(("int32", "bool"))))
        self.outputs.append(Tensor("streamed", stream.shape, stream.dtype))

        if program_ids:
            self._line("pe = tl.program_id()")
            self.indices.append(Index("pe", 0, 2))
        for tensor in self.inputs[1:]:
            flip = ".T" if rng.random() < 0.2 else ""
            shape = tensor.shape[::-1] if flip else tensor.shape
            bound = {"bool": 1.0, "int32": 9.0}.get(tensor.dtype, 4.0)
            self._tile(f"tl.load({tensor.name}{flip})", shape, tensor.dtype, bound)
        self._make_targets()
        self._steps(rng.randint(0, 2))
        if rng.random() < 0.2:
            self._scope(self.targets)
        self._stream_loop(program_ids)
        if rng.random() < 0.25:
            self._stream_loop(program_ids)
        self._steps(rng.randint(0, 2))
        kept = [*self.targets, self._gathered(self.targets[1].shape, "float32")]
        for number, one in enumerate(kept):
            self.outputs.append(Tensor(f"out{number}", one.shape, one.dtype))
            self._line(f"tl.store(out{number}, {one.name})")
        arguments = ", ".join(t.name for t in (*self.inputs, *self.outputs))
        head = [
            f"def kernel(tl, {arguments}, *, unroll=False, scoped=True):",
            "    loop = tl.static_range if unroll else tl.range",
            "    scope = tl.scratch_scope if scoped else nullcontext",
        ]
        return "\n".join(head + self.lines) + "\n"

    def _make_targets(self) -> None:
        tile, rng = (self.rows, self.columns), self.rng
        shapes = ((self.rows, 1), (1, self.columns), (self.columns,), tile)
        wanted = [(tile, self._float()), (rng.choice(shapes), self._float())]
        if rng.random() < 0.5:
            wanted.append((tile, rng.choice(("int32", "bool"))))
        for shape, dtype in wanted:
            self.targets.append(self._new_target(shape, dtype))

    def _new_target(self, shape: Shape, dtype: str) -> Tile:
        exact = self.exact_only or dtype not in FLOATS
        value = {"int32": "3", "bool": "True"}.get(dtype)
        value = value or self.rng.choice(("0.5", "-1.25", "1"))
        made = f'tl.full({shape}, {value}, "{dtype}")'
        if self.rng.random() < 0.4:
            made = f'tl.zeros({shape}, "{dtype}")'
        bound = 100.0 if dtype == "int32" else 1.25
        return self._tile(made, shape, dtype, bound, exact)

    def _stream_loop(self, program_ids: bool) -> None:
        """A loop over row tiles of the stream, perhaps with a loop inside."""
        rng, i = self.rng, f"i{next(self.names)}"
        trips = self.trips
        counts = f"{trips}", f"{trips - 1}, -1, -1", f"0, {2 * trips}, 2"
        form = rng.choice((0, 0, 0, 1, 2))
        at = f"{i} // 2" if form == 2 else i
        self._line(f"for {i} in loop({counts[form]}):")
        with self._block(), self._index(i, 0, (trips - 1) * (2 if form == 2 else 1)):
            with self._scope_line("scope()"):
                self._load_rows(f"{at} * {self.rows}")
                self._body(at, program_ids)

    def _body(self, at: str, program_ids: bool) -> None:
        rng = self.rng
        self._steps(rng.randint(2, 4))
        if rng.random() < 0.25:
            self._scope(self.targets)
        if rng.random() < (0.9 if program_ids else 0.35):
            self._inner_loop(at, program_ids)
            self._steps(1)
        for target in rng.sample(self.targets, len(self.targets)):
            if target.is_float or rng.random() < 0.7:
                self._update(target)
        stream = self.outputs[0]
        rows = self._gathered((self.rows, self.columns), stream.dtype)
        check = ", boundary_check=True" if self.tail else ""
        view = f"streamed[tl.ds({at} * {self.rows}, {self.rows}), :]"
        self._line(f"tl.store({view}, {rows.name}{check})")

    def _inner_loop(self, at: str, program_ids: bool) -> None:
        """Its trip count may depend on the outer index, or on the PE; then its body
        is scoped in every form, as its addresses would else not be static."""
        rng, j = self.rng, f"j{next(self.names)}"
        local = self._new_target((self.rows, self.columns), self._float())
        outer = self.trips
        kinds = [("2", 2), (f"{at} + 1", outer), (at, outer - 1)]
        if program_ids:
            kinds = [("pe + 1", 3), ("pe", 2), (f"pe + {at}", outer + 1)]
        trips, most = rng.choice(kinds)
        triangular = trips.startswith(at)
        self._line(f"for {j} in loop({trips}):")
        scope = "scope()" if trips == "2" else "tl.scratch_scope()"
        with self._block(), self._index(j, 0, most - 1), self._scope_line(scope):
            if triangular:  # j <= i: in bounds, or in the last tile's tail
                self._load_rows(f"({at} - {j}) * {self.rows}")
            self._steps(rng.randint(1, 2))
            self._update(local)
            if rng.random() < 0.5:
                self._update(rng.choice(self.targets))

    def _scope(self, targets: Sequence[Tile]) -> None:
        """A scope inside: it fills a tile made before it, or updates a target."""
        rng = self.rng
        filled = None
        if rng.random() < 0.5:
            shape = (self.rows, self.columns)
            filled = Tile(self._name(), shape, self._float(), 1.0, self.exact_only)
            self._line(f'{filled.name} = tl.empty({shape}, "{filled.dtype}")')
        with self._scope_line('scope("inner")'):
            self._steps(rng.randint(1, 2))
            self._update(filled or rng.choice(targets), fresh=filled is not None)
        if filled:
            self.frames[-1].append(filled)

    def _load_rows(self, start: str) -> None:
        stream, rng = self.inputs[0], self.rng
        other = ""
        if self.tail or rng.random() < 0.2:
            fillers = ["0.0", "1", "-1.5"] + ['float("-inf")'] * self.exact_only
            other = f", {rng.choice(('other=', ''))}{rng.choice(fillers)}"
            if rng.random() < 0.2:
                start += " + 1"
        view = f"x[tl.ds({start}, {self.rows}), :]"
        shape = (self.rows, self.columns)
        rows = self._tile(f"tl.load({view}{other})", shape, stream.dtype, 4.0)
        self.loads.add(rows.name)

    def _update(self, target: Tile, fresh: bool = False) -> None:
        """`copy_to` into a target, from something fitting, perhaps of its old value."""
        rng, fit = self.rng, self._gathered if target.is_float else self._fit
        new = fit(target.shape, target.dtype)
        if target.dtype == "bool":
            self._line(f"tl.copy_to({target.name}, {new.name})")
            return
        if target.dtype == "int32":
            text = new.name if fresh else f"{target.name} * 3 - {new.name}"
            clamped = f"tl.minimum(tl.maximum({text}, -100), 100)"
            self._line(f"tl.copy_to({target.name}, {clamped})")
            return
        forms = ("{old} + {new}", "{old} * {k} + {new}", "{new} - {new} * {old}",
                 "{old} / {d} + {new} * {new}")  # fmt: skip
        form = "{new}" if fresh or rng.random() < 0.1 else rng.choice(forms)
        k, d = rng.choice((0.1, 0.7, 0.35)), rng.choice((3.0, 1.1, 7))
        text = form.format(old=target.name, new=new.name, k=k, d=d)
        if form != "{new}" or new.bound > 4.0:
            name, text = self._name(), text
            self._line(f"{name} = {text}")
            text = self._tame(name)
        self._line(f"tl.copy_to({target.name}, {text})")

    # --- statements ------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)
        self.used.update(re.findall(r"\bt\d+", text.partition(" = ")[2] or text))

    def _name(self) -> str:
        return f"t{next(self.names)}"

    def _float(self) -> str:
        return self.rng.choice(("float32", "float32", *FLOATS))

    def _tile(
        self, text: str, shape: Shape, dtype: str, bound: float, exact: bool = True
    ) -> Tile:
        """``name = text``, and a clamp where the bound has become large."""
        name = self._name()
        self._line(f"{name} = {text}  # {dtype}{list(shape)}")
        if bound > LIMIT[dtype] and dtype in FLOATS:
            name, inner, bound = self._name(), name, 1.0
            self._line(f"{name} = {self._tame(inner)}")
        made = Tile(name, tuple(shape), dtype, bound, exact or self.exact_only)
        self.frames[-1].append(made)
        return made

    def _tame(self, name: str) -> str:
        """A tile in [-1, 1] that has the bits of `name` still."""
        return f"{name} / tl.maximum({name} * {name}, 1.0)"

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        self.depth += 1
        self.frames.append([])
        yield
        self.frames.pop()
        self.depth -= 1

    @contextlib.contextmanager
    def _scope_line(self, opened: str) -> Iterator[None]:
        self._line(f"with {opened}:")
        with self._block():
            yield

    @contextlib.contextmanager
    def _index(self, name: str, low: int, high: int) -> Iterator[None]:
        self.indices.append(Index(name, low, high))
        yield
        self.indices.pop()

    def _steps(self, count: int) -> None:
        for _ in range(count):
            while not self._step():
                pass

    def _step(self) -> bool:
        """One random op on tiles in reach; False where it found none that fit."""
        steps = [self._binary, self._with_scalar, self._trap, self._trap, self._select,
                 self._binary, self._with_scalar, self._trap, self._reduce,
                 self._convert, self._reshape, self._reshape, self._with_index,
                 self._create]  # fmt: skip
        if not self.exact_only:
            steps += [self._transcendental, self._product, self._product] * 2
        return self.rng.choice(steps)() is not None

    def _pick(self, wanted: Callable[[Tile], bool] = lambda t: True) -> Tile | None:
        """A tile in reach, rather one that nothing has used yet, or a young one."""
        found = [t for frame in self.frames for t in frame if wanted(t)]
        unused = [t for t in found if t.name not in self.used]
        if unused and self.rng.random() < 0.7:
            found = unused
        elif self.rng.random() < 0.6:
            found = found[-3:]
        return self.rng.choice(found) if found else None

    def _number(self, shape: Shape | None = None) -> Tile | None:
        def wanted(t: Tile) -> bool:
            fits = shape is None or broadcast(shape, t.shape) is not None
            return t.dtype != "bool" and fits

        return self._pick(wanted)

    def _fit(self, shape: Shape, dtype: str) -> Tile:
        """A tile of this shape and dtype, from one in reach."""
        discrete = dtype not in FLOATS
        if dtype == "bool":
            a = self._pick(lambda t: t.exact and broadcast(t.shape, shape) == shape)
            text = f'tl.full({shape}, True, "bool")'
            if a is not None:
                against = "True" if a.dtype == "bool" else "1"
                text = f"{a.name} {self.rng.choice(('<=', '!=', '>'))} {against}"
                one = self._tile(text, a.shape, "bool", 1.0)
                if one.shape == shape:
                    return one
                text = f"tl.broadcast_to({one.name}, {shape})"
            return self._tile(text, shape, "bool", 1.0)

        def wanted(t: Tile) -> bool:
            return t.exact or not discrete

        one = self._pick(lambda t: wanted(t) and broadcast(t.shape, shape) == shape)
        if one is None or self.rng.random() < 0.3:
            one = self._pick(wanted)
        if one is None:
            return self._tile(f'tl.full({shape}, 2, "{dtype}")', shape, dtype, 2.0)
        return self._fitted(one, shape, dtype)

    def _gathered(self, shape: Shape, dtype: str) -> Tile:
        """The sum of what this block has made and not used, and perhaps of a tile of
        data, as reductions and comparisons leave few values."""
        loose = [t for t in self.frames[-1] if t.name not in self.used]
        data = [t for frame in self.frames for t in frame if t.name in self.loads]
        parts = self.rng.sample(loose, min(len(loose), 2))
        if data and self.rng.random() < 0.6:
            parts.append(self.rng.choice(data[-2:]))
        total = self._fit(shape, dtype) if not parts else None
        for one in parts:
            part = self._fitted(one, shape, dtype)
            if total is None:
                total = part
            else:
                text = f"{total.name} * 0.7 + {part.name}"
                bound = total.bound + part.bound
                exact = total.exact and part.exact
                total = self._tile(text, shape, dtype, bound, exact)
        assert total is not None
        return total

    def _fitted(self, one: Tile, shape: Shape, dtype: str) -> Tile:
        """`one` in this shape and number type: reduced, broadcast and cast."""
        if one.dtype == "bool":
            one = self._tile(f'{one.name}.to("int32")', one.shape, "int32", 1.0)
        if one.bound > LIMIT[dtype]:
            name = one.name if one.is_float else f"({one.name} * 0.5)"
            kind = one.dtype if one.is_float else "float32"
            one = self._tile(self._tame(name), one.shape, kind, 1.0, one.exact)
        if one.shape != shape and math.prod(one.shape) == math.prod(shape):
            form = f"tl.reshape({one.name}, {shape})"
            if one.shape == shape[::-1]:
                form = f"tl.trans({one.name})"
            one = self._tile(form, shape, one.dtype, one.bound, one.exact)
        while broadcast(one.shape, shape) != shape:
            one = self._reduced_towards(one, shape)
        if one.dtype != dtype:
            bound = min(one.bound, 2.0**31)
            text = f'{one.name}.to("{dtype}")'
            one = self._tile(text, one.shape, dtype, bound, one.exact)
        if one.shape != shape:
            text = f"tl.broadcast_to({one.name}, {shape})"
            one = self._tile(text, shape, dtype, one.bound, one.exact)
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
        left = (*t.shape[:axis], *((1,) * (extra <= 0)), *t.shape[axis + 1 :])
        name = self.rng.choice(("sum", "max"))
        of = t.name if name == "sum" else self._zero(t)
        text = f"tl.{name}({of}, axis={axis}, keepdims={extra <= 0})"
        bound = t.bound * (t.shape[axis] if name == "sum" else 1)
        return self._tile(text, left, t.dtype, bound, t.exact)

    def _zero(self, t: Tile) -> str:
        """`t` for `max`, which may pick either of -0.0 and 0.0: NumPy and XLA need not
        agree, so where they are compared bit for bit there is only 0.0."""
        return f"({t.name} + 0.0)" if self.exact_only and t.is_float else t.name

    # --- ops -------------------------------------------------------------------------

    def _binary(self) -> Tile | None:
        a = self._number()
        b = a and self._number(a.shape)
        if a is None or b is None:
            return None
        shape, dtype = broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
        assert shape is not None
        exact, symbol = a.exact and b.exact, self.rng.choice("++-**//<>")
        text, bound = f"{a.name} {symbol} {b.name}", max(a.bound, b.bound)
        if symbol in "+-":
            bound = a.bound + b.bound
        elif symbol == "*":
            bound = a.bound * b.bound
        elif symbol == "/":
            dtype, bound = promote(dtype, "float32") if dtype == "int32" else dtype, 1e9
            risky = self.exact_only and self.rng.random() < 0.15  # by 0: inf and NaN
            text = f"{a.name} / {b.name if risky else self._positive(b)}"
            bound = a.bound * 2
        else:
            which = {"<": "minimum", ">": "maximum"}[symbol]
            text = f"tl.{which}({self._zero(a)}, {self._zero(b)})"
        return self._tile(text, shape, dtype, bound, exact)

    def _positive(self, t: Tile) -> str:
        """A divisor made of `t`: at least 1/2."""
        if t.is_float and self.rng.random() < 0.6:
            return f"({t.name} * {t.name} + 0.5)"
        return f"tl.maximum({t.name}, {'0.5' if t.is_float else '1'})"

    def _with_scalar(self) -> Tile | None:
        a = self._number()
        if a is None:
            return None
        k: float = self.rng.choice(CONSTANTS)
        if self.rng.random() < 0.3:
            k = round(self.rng.uniform(0.2, 3.0), 4)
        dtype = a.dtype if a.is_float or isinstance(k, int) else "float32"
        symbol = self.rng.choice("+-**//")
        bound = a.bound + abs(k) if symbol in "+-" else a.bound * max(abs(k), 10.0)
        text = f"{a.name} {symbol} {k!r}"
        if symbol == "/" and dtype == "int32":
            dtype = "float32"
        if self.rng.random() < 0.3:
            text = f"{k!r} {symbol} {a.name}"
            if symbol == "/":
                text, bound = f"{k!r} / {self._positive(a)}", abs(k) * 2
        return self._tile(text, a.shape, dtype, bound, a.exact)

    def _trap(self) -> Tile | None:
        """Chains that a compiler likes to rewrite."""
        a = self._pick(lambda t: t.is_float)
        if a is None:
            return None

        def like(t: Tile) -> bool:
            return t.dtype == a.dtype and broadcast(t.shape, a.shape) == a.shape

        b, c = self._pick(like), self._pick(like)
        assert b is not None and c is not None
        x, y, z = a.name, b.name, c.name
        k1, k2 = self.rng.sample((0.1, 0.3, 0.7, 1.1, 3.0, 7.0), 2)
        biggest = max(a.bound, b.bound, c.bound)
        chains = {
            f"{x} * {y} + {z}": biggest**2 + biggest,
            f"{x} - {y} * {z}": biggest**2 + biggest,
            f"{x} * {y} - {y} * {z}": 2 * biggest**2,
            f"({x} * {k1}) * {k2}": 21 * biggest,
            f"({x} + {k1}) + {k2}": biggest + 10,
            f"{x} / {k2}": 10 * biggest,
            f"({x} / {k1}) / {k2}": 100 * biggest,
            f"({x} / {self._positive(b)}) / {self._positive(c)}": 4 * biggest,
            f"{x} / tl.sqrt({self._positive(b)})": 2 * biggest,
            f"{x} * tl.rsqrt({self._positive(b)}) + {z}": 3 * biggest,
            f"tl.sqrt({self._positive(a)}) * {y} + {z}": 2 * biggest**2 + biggest,
            f"({x} - {y}) * {k1} + {z} / {k2}": 30 * biggest,
        }
        if not self.exact_only:
            low = f"tl.minimum({y}, 2.0)"
            chains |= {
                f"{x} / tl.exp({self._small(b)})": 9 * biggest,
                f"{x} * tl.exp({low} - tl.maximum({low}, {z})) + {y}": 3 * biggest,
                f"tl.exp({self._small(a)}) * tl.exp({self._small(b)})": 64.0,
            }
        text = self.rng.choice(list(chains))
        exact = a.exact and b.exact and c.exact and "exp" not in text
        return self._tile(text, a.shape, a.dtype, chains[text], exact)

    def _small(self, t: Tile) -> str:
        return f"tl.minimum(tl.maximum({t.name}, -2.0), 2.0)"

    def _select(self) -> Tile | None:
        """A comparison, and `where` on it."""
        cond = self._pick(lambda t: t.dtype == "bool")
        if cond is None or self.rng.random() < 0.7:
            a = self._pick(lambda t: t.exact and t.dtype != "bool")
            b = a and self._pick(
                lambda t: t.exact and t != a and broadcast(t.shape, a.shape) is not None
            )
            if a is None or b is None:
                return None
            sign = self.rng.choice(("<", "<=", ">", ">=", "==", "!="))
            shape = broadcast(a.shape, b.shape)
            assert shape is not None
            cond = self._tile(f"{a.name} {sign} {b.name}", shape, "bool", 1.0)
        x = self._number(cond.shape)
        y = x and self._number(broadcast(cond.shape, x.shape))
        if x is None or y is None:
            return None
        shape = broadcast(cond.shape, x.shape, y.shape)
        if shape is None:
            return None
        if self.rng.random() < 0.3:
            k = self.rng.choice((0.5, 2, -1))
            text, exact = f"tl.where({cond.name}, {x.name}, {k})", x.exact
            dtype = x.dtype if x.is_float or isinstance(k, int) else "float32"
            shape = broadcast(cond.shape, x.shape)
            assert shape is not None
        else:
            text, exact = f"tl.where({cond.name}, {x.name}, {y.name})", True
            dtype = promote(x.dtype, y.dtype)
        bound = max(x.bound, y.bound, 2.0)
        return self._tile(text, shape, dtype, bound, exact and x.exact and y.exact)

    def _reduce(self) -> Tile | None:
        t = self._pick(lambda t: len(t.shape) > 0)
        if t is None:
            return None
        name = "sum" if t.dtype == "bool" else self.rng.choice(("sum", "max"))
        axis = self.rng.choice((None, *range(len(t.shape))))
        keep = self.rng.random() < 0.6
        axes = range(len(t.shape)) if axis is None else (axis,)
        shape = tuple(
            1 if i in axes else size
            for i, size in enumerate(t.shape)
            if keep or i not in axes
        )
        count = math.prod(t.shape[i] for i in axes) if name == "sum" else 1
        of = self._zero(t) if name == "max" else t.name
        if axis is not None and self.rng.random() < 0.3:
            axis -= len(t.shape)
        text = f"tl.{name}({of}, axis={axis}, keepdims={keep})"
        dtype = "int32" if t.dtype == "bool" else t.dtype
        return self._tile(text, shape, dtype, t.bound * count, t.exact)

    def _convert(self) -> Tile | None:
        to = self.rng.choice((*FLOATS, "int32", "bool"))
        t = self._pick(lambda t: t.dtype != to and (t.exact or to in FLOATS))
        if t is None or (not self.exact_only and t.bound > 6e4):
            return None
        bound = 1.0 if to == "bool" else t.bound
        return self._tile(f'{t.name}.to("{to}")', t.shape, to, bound, t.exact)

    def _reshape(self) -> Tile | None:
        """Other shapes of the same values: aliases, transposes, broadcasts."""
        t = self._pick()
        if t is None:
            return None
        size = math.prod(t.shape)
        forms = [(f"tl.reshape({t.name}, (-1,))", (size,)),
                 (f"tl.expand_dims({t.name}, 0)", (1, *t.shape))]  # fmt: skip
        if len(t.shape) == 1:
            forms += [
                (f"{t.name}[None, :]", (1, size)),
                (f"{t.name}[:, None]", (size, 1)),
            ]
        if len(t.shape) == 2:
            flipped = t.shape[::-1]
            forms.append((f"tl.trans({t.name})", flipped))
            forms.append((f"tl.reshape({t.name}, {flipped})", flipped))
        if len(t.shape) > 0 and t.shape[0] > 1:
            rows = t.shape[0]
            forms.append((f"{t.name}[tl.ds(1, {rows - 1})]", (rows - 1, *t.shape[1:])))
            for index in self.indices:
                if index.high < rows:
                    forms.append(
                        (f"{t.name}[tl.ds({index.text}, 1)]", (1, *t.shape[1:]))
                    )
        wide = broadcast(t.shape, (self.rows, self.columns))
        if wide is not None and wide != t.shape:
            forms.append((f"tl.broadcast_to({t.name}, {wide})", wide))
        text, shape = self.rng.choice(forms)
        if len(shape) > 3:
            return None
        return self._tile(text, shape, t.dtype, t.bound, t.exact)

    def _with_index(self) -> Tile | None:
        """Arithmetic with a loop index."""
        t = self._number()
        if t is None or not self.indices:
            return None
        i = self.rng.choice(self.indices)
        high, dtype = max(abs(i.low), abs(i.high)) + 1, t.dtype
        forms = {
            f"{t.name} * {i.text}": t.bound * high,
            f"{i.text} + {t.name}": t.bound + high,
            f"{t.name} - ({i.text} * 2 - 1)": t.bound + 2 * high,
            f"{t.name} / ({i.text} + 1)": t.bound,
            f"tl.maximum({t.name}, {i.text} + 1)": t.bound + high,
        }
        text = self.rng.choice(list(forms))
        if "/" in text and dtype == "int32":
            dtype = "float32"
        return self._tile(text, t.shape, dtype, forms[text], t.exact)

    def _create(self) -> Tile | None:
        rng, shape = self.rng, (self.rows, self.columns)
        if rng.random() < 0.4:
            start = rng.randint(-3, 3)
            stop = start + self.columns
            return self._tile(f"tl.arange({start}, {stop})", shape[1:], "int32", 110.0)
        dtype = rng.choice((*FLOATS, "int32"))
        shape = rng.choice((shape, (1, self.columns), (self.rows, 1), (self.columns,)))
        if self.indices and rng.random() < 0.6:
            i = rng.choice(self.indices)
            text = f'tl.full({shape}, {i.text} + 1, "{dtype}")'
            return self._tile(text, shape, dtype, max(abs(i.low), abs(i.high)) + 1.0)
        k = rng.choice([k for k in CONSTANTS if dtype != "int32" or isinstance(k, int)])
        return self._tile(f'tl.full({shape}, {k!r}, "{dtype}")', shape, dtype, abs(k))

    # --- the full set ----------------------------------------------------------------

    def _transcendental(self) -> Tile | None:
        t = self._pick(lambda t: t.is_float and len(t.shape) > 0)
        if t is None:
            return None
        axis = self.rng.randrange(len(t.shape)) - self.rng.choice((0, len(t.shape)))
        forms = {
            f"tl.exp({self._small(t)})": 8.0,
            f"tl.exp2({self._small(t)})": 4.0,
            f"tl.log({self._positive(t)})": 2 * math.log(max(t.bound, 2.0)) + 1,
            f"tl.softmax({self._small(t)}, axis={axis})": 1.0,
        }
        text = self.rng.choice(list(forms))
        return self._tile(text, t.shape, t.dtype, forms[text], False)

    def _product(self) -> Tile | None:
        """`dot`, its operands straight or transposed."""
        a = self._pick(lambda t: t.is_float and len(t.shape) == 2)
        flip_a = self.rng.random() < 0.4

        def shape(t: Tile, flip: bool) -> Shape:
            return t.shape[::-1] if flip else t.shape

        for flip_b in self.rng.sample((False, True), 2):
            b = a and self._pick(
                lambda t, flip=flip_b: (
                    t.is_float
                    and len(t.shape) == 2
                    and shape(t, flip)[0] == shape(a, flip_a)[1]
                    and shape(t, flip)[1] * shape(a, flip_a)[0] <= MOST_ELEMENTS
                )
            )
            if a is not None and b is not None:
                left, right = (
                    f"tl.trans({t.name})" if flip else t.name
                    for t, flip in ((a, flip_a), (b, flip_b))
                )
                rows, inner = shape(a, flip_a)
                bound = inner * a.bound * b.bound
                made = (rows, shape(b, flip_b)[1])
                text = f"tl.dot({left}, {right})"
                return self._tile(text, made, "float32", bound, False)
        return None
