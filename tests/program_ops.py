"""The statements of random kernels: one line of source an op, on tiles in reach.

`Ops` knows of every op of the table which operands it takes, what it gives, and how
large that can get. `tests.programs` puts its lines into loops, scopes and views.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

Shape = tuple[int, ...]
FLOATS = ("float32", "float16", "bfloat16")
FLOAT8S = ("float8_e4m3fn", "float8_e5m2")
RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
}
INTS = tuple(RANGES)
DTYPES = (*FLOATS, *FLOAT8S, *INTS, "bool")
WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int16": 2, "int8": 1,
         "uint8": 1}  # fmt: skip
# Where a float tile is tamed: far from the overflow of its type, also when squared.
LIMIT = {"float32": 1e4, "float16": 100.0, "bfloat16": 1e3, "float8_e4m3fn": 100.0,
         "float8_e5m2": 1000.0}  # fmt: skip
LARGEST = {"float32": 1e30, "float16": 6e4, "bfloat16": 1e30, "float8_e4m3fn": 440.0,
           "float8_e5m2": 5e4}  # fmt: skip
MOST_ELEMENTS = 1024  # a tile
CONSTANTS = (2, 0.1, 0.3, 0.7, 1.1, 1 / 3, 3.0, -2.5, 1.5, 7.0, 3, -1, 5)
DIVISORS = (3, 2, 7, 5, 10)
INEXACT = ("exp", "exp2", "log", "log2", "sigmoid", "tanh", "erf", "softmax")


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

    @property
    def is_int(self) -> bool:
        return self.dtype in RANGES


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


def promote(a: str, b: str) -> str | None:
    """The common type of two tiles; None where they have none."""
    if a == b or b == "bool":
        return a
    if a == "bool":
        return b
    if a in FLOAT8S or b in FLOAT8S:
        return None
    if (a in FLOATS) != (b in FLOATS):
        return a if a in FLOATS else b
    if WIDTH[a] != WIDTH[b]:
        return a if WIDTH[a] > WIDTH[b] else b
    return "float32" if a in FLOATS else "int16"


@dataclass
class Ops:
    """Writes lines. `frames` are the tiles in reach, a frame a block; `indices` the
    symbolic integers; `used` the names that some line reads, as dead code tests little
    (but some is drawn)."""

    rng: random.Random
    exact_only: bool
    rows: int = 1
    columns: int = 1
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    used: set[str] = field(default_factory=set)
    names: Iterator[int] = field(default_factory=itertools.count)
    frames: list[list[Tile]] = field(default_factory=lambda: [[]])
    indices: list[Index] = field(default_factory=list)

    # --- lines -----------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)
        self.used.update(re.findall(r"\bt\d+", text.partition(" = ")[2] or text))

    def tile(
        self, text: str, shape: Shape, dtype: str, bound: float, exact: bool = True
    ) -> Tile:
        """``name = text``, and x / max(x * x, 1) where the bound has become large: it
        has the bits of x still."""
        if dtype in RANGES:
            bound = min(bound, -RANGES[dtype][0] or RANGES[dtype][1])
        name = f"t{next(self.names)}"
        self.line(f"{name} = {text}  # {dtype}{list(shape)}")
        if dtype in FLOATS and bound > LIMIT[dtype]:
            inner, name, bound = name, f"t{next(self.names)}", 1.0
            tamed = f"{inner} / tl.maximum({inner} * {inner}, 1.0)"
            self.line(f"{name} = {tamed}  # {dtype}{list(shape)}")
        made = Tile(name, tuple(shape), dtype, bound, exact or self.exact_only)
        self.frames[-1].append(made)
        return made

    @contextlib.contextmanager
    def block(self, opened: str) -> Iterator[None]:
        """An indented block, its tiles out of reach after it."""
        self.line(opened)
        self.depth += 1
        self.frames.append([])
        length = len(self.lines)
        yield
        if len(self.lines) == length:
            self.line("pass")
        self.frames.pop()
        self.depth -= 1

    def pick(self, wanted: Callable[[Tile], bool] = lambda t: True) -> Tile | None:
        """A tile in reach, rather one that nothing has used yet, or a young one."""
        found = [t for frame in reversed(self.frames) for t in reversed(frame)]
        found = [t for t in found if wanted(t)]
        unused = [t for t in found if t.name not in self.used]
        if unused and self.rng.random() < 0.7:
            found = unused
        elif self.rng.random() < 0.5:
            found = found[:3]
        return self.rng.choice(found) if found else None

    def number(self, shape: Shape | None = None) -> Tile | None:
        def wanted(t: Tile) -> bool:
            fits = shape is None or broadcast(shape, t.shape) is not None
            return (t.is_float or t.is_int) and fits

        return self.pick(wanted)

    def float_tile(self, exact: bool = False) -> Tile | None:
        return self.pick(lambda t: t.is_float and (t.exact or not exact))

    def whole_tile(self, bools: bool = False) -> Tile | None:
        """An integer tile (or a bool one), made where there is none."""
        found = self.pick(lambda t: t.is_int or (bools and t.dtype == "bool"))
        if found is not None:
            return found
        one = self.pick(lambda t: t.exact and t.dtype != "bool")
        return one and self.cast(one, self.rng.choice(INTS))

    def float_type(self) -> str:
        return self.rng.choice(("float32", "float32", *FLOATS))

    # --- pieces ----------------------------------------------------------------------

    def combined(self, a: Tile, symbol: str, b: Tile) -> Tile | None:
        """``a symbol b`` for the operators of bounded growth."""
        shape, dtype = broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
        if shape is None or dtype is None or dtype not in (*FLOATS, *INTS):
            return None
        bound = {
            "+": a.bound + b.bound,
            "-": a.bound + b.bound,
            "*": a.bound * b.bound,
        }[symbol]
        if bound > LARGEST.get(dtype, math.inf):
            return None
        if dtype in FLOATS and max(a.bound, b.bound) > LARGEST[dtype]:
            return None  # an int32 that float16 does not hold
        text = f"{a.name} {symbol} {b.name}"
        return self.tile(text, shape, dtype, bound, a.exact and b.exact)

    def scaled(self, a: Tile, symbol: str, k: float) -> Tile:
        dtype = a.dtype if a.is_float or isinstance(k, int) else "float32"
        grown = {
            "+": a.bound + abs(k),
            "-": a.bound + abs(k),
            "*": a.bound * max(abs(k), 1.0),
            "/": a.bound / (min(abs(k), 1.0) or 1.0),
        }
        if symbol == "/" and not a.is_float:
            dtype = "float32"
        return self.tile(
            f"{a.name} {symbol} {k!r}", a.shape, dtype, grown[symbol], a.exact
        )

    def positive(self, t: Tile) -> Tile:
        """A float or int tile made of `t`: at least 1/2 (1)."""
        if t.is_float and self.rng.random() < 0.5:
            square = self.combined(t, "*", t)
            if square is not None and square.bound <= LIMIT[t.dtype]:
                return self.scaled(square, "+", 0.5)
        text = f"tl.maximum({t.name}, {'0.5' if t.is_float else '1'})"
        return self.tile(text, t.shape, t.dtype, max(t.bound, 1.0), t.exact)

    def small(self, t: Tile) -> Tile:
        if t.bound <= 4.0:
            return t
        text = f"tl.clamp({t.name}, -2.0, 2.0)"
        return self.tile(text, t.shape, t.dtype, 2.0, t.exact)

    def zero(self, t: Tile) -> Tile:
        """`t` for what may pick either of -0.0 and 0.0: NumPy and XLA need not agree,
        so where they are compared bit for bit there is only 0.0."""
        return self.scaled(t, "+", 0.0) if self.exact_only and t.is_float else t

    def cast(self, t: Tile, dtype: str) -> Tile:
        bound = 1.0 if dtype == "bool" else t.bound
        text = f'{t.name}.to("{dtype}")'
        return self.tile(text, t.shape, dtype, bound, t.exact)

    def fits(self, t: Tile, dtype: str) -> bool:
        """Whether a cast keeps finite values finite and, where it is discontinuous,
        has one right answer."""
        if dtype in RANGES or dtype == "bool":
            return t.exact
        return t.bound <= LIMIT[dtype]

    def number_for(self, dtype: str) -> float:
        """A constant that is weak in this type, or makes an int a float32."""
        found = [k for k in CONSTANTS if not isinstance(k, int) or k >= 0
                 or dtype != "uint8"]  # fmt: skip
        if dtype in RANGES and self.rng.random() < 0.7:
            found = [k for k in found if isinstance(k, int)]
        return self.rng.choice(found)

    # --- one random op ---------------------------------------------------------------

    def step(self) -> Tile | None:
        """One random op; None where it found no operands that fit."""
        steps = [self._binary, self._with_scalar, self._chain, self._unary, self._unary,
                 self._unary, self._divide,
                 self._select, self._reduce, self._convert, self._reshape, self._alias,
                 self._divide, self._bits, self._ternary, self._with_index, self._chain,
                 self._create, self._product, self._power, self._reduce]  # fmt: skip
        if not self.exact_only:
            steps += [self._curve, self._curve, self._curved_chain, self._product,
                      self._curved_chain]  # fmt: skip
        drawn = self.rng.choice(steps)
        return drawn() or drawn()

    def _binary(self) -> Tile | None:
        a = self.number()
        b = a and self.number(a.shape)
        if a is None or b is None:
            return None
        symbol = self.rng.choice(("+", "*", "-", "maximum", "minimum"))
        if symbol not in ("maximum", "minimum"):
            return self.combined(a, symbol, b)
        shape, dtype = broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
        if shape is None or dtype is None:
            return None
        if max(a.bound, b.bound) > LARGEST.get(dtype, math.inf):
            return None
        text = f"tl.{symbol}({self.zero(a).name}, {self.zero(b).name})"
        bound = max(a.bound, b.bound)
        return self.tile(text, shape, dtype, bound, a.exact and b.exact)

    def _with_scalar(self) -> Tile | None:
        a = self.number()
        if a is None:
            return None
        k = self.number_for(a.dtype)
        symbol = self.rng.choice(("*", "+", "-", "/"))
        if self.rng.random() < 0.7:
            return self.scaled(a, symbol, k)
        if symbol == "/":
            below = self.positive(a)
            dtype = a.dtype if a.is_float else "float32"
            text = f"{k!r} / {below.name}"
            return self.tile(text, a.shape, dtype, abs(k) * 2, a.exact)
        dtype = a.dtype if a.is_float or isinstance(k, int) else "float32"
        bound = a.bound * max(abs(k), 1) if symbol == "*" else a.bound + abs(k)
        return self.tile(f"{k!r} {symbol} {a.name}", a.shape, dtype, bound, a.exact)

    def _divide(self) -> Tile | None:
        """`/`, and on exact values `//` and `%`; an integer by 0, too."""
        symbol = self.rng.choice(("/", "//", "%"))
        whole = symbol != "/" and self.rng.random() < 0.6
        a = self.whole_tile() if whole else self.number()
        b = a and self.number(a.shape)
        if a is None or b is None:
            return None
        shape, dtype = broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
        if shape is None or dtype is None or max(a.bound, b.bound) > LARGEST.get(
            dtype, math.inf
        ):  # fmt: skip
            return None
        exact = a.exact and b.exact
        if symbol == "/":
            dtype = dtype if dtype in FLOATS else "float32"
            risky = self.exact_only and self.rng.random() < 0.1  # by 0: inf and NaN
            below = b if risky else self.positive(b)
            text = f"{a.name} / {below.name}"
            return self.tile(text, shape, dtype, a.bound * 2, exact)
        if not exact:
            return None
        bound = a.bound * 2 if symbol == "//" else b.bound
        if self.rng.random() < 0.4:
            text, k = f"{a.name} {symbol} {{}}", self.rng.choice(DIVISORS)
            bound = a.bound if symbol == "//" else k
            return self.tile(text.format(k), a.shape, a.dtype, bound)
        below = b if dtype in INTS else self.positive(b)
        text = f"{a.name} {symbol} {below.name}"
        return self.tile(text, shape, dtype, max(bound, 1.0))

    def _power(self) -> Tile | None:
        if not self.exact_only and self.rng.random() < 0.5:
            a = self.float_tile()
            if a is None:
                return None
            k = self.rng.choice((2, 0.5, 3, -1, 1.5))
            base = self.positive(self.small(a))
            bound = max(base.bound ** abs(k), 2.0)
            return self.tile(f"{base.name} ** {k}", a.shape, a.dtype, bound, False)
        a = self.whole_tile()
        b = a and self.pick(
            lambda t: t.is_int and broadcast(t.shape, a.shape) is not None
        )
        if a is None or b is None:
            return None
        if self.rng.random() < 0.6:
            k = self.rng.choice((2, 3, 0, 1, 7))
            return self.tile(f"{a.name} ** {k}", a.shape, a.dtype, 1e10)
        shape, dtype = broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
        assert shape is not None and dtype is not None
        return self.tile(f"{a.name} ** {b.name}", shape, dtype, 1e10)

    def _bits(self) -> Tile | None:
        a = self.whole_tile(bools=True)
        b = a and self.pick(
            lambda t: (
                (t.is_int or t.dtype == "bool")
                and broadcast(t.shape, a.shape) is not None
            )
        )
        if a is None or b is None:
            return None
        if self.rng.random() < 0.3:
            return self.tile(f"~{a.name}", a.shape, a.dtype, 1e10)
        shape, dtype = broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
        assert shape is not None and dtype is not None
        text = f"{a.name} {self.rng.choice('&|')} {b.name}"
        return self.tile(text, shape, dtype, 1e10)

    def _unary(self) -> Tile | None:
        t = self.number()
        if t is None:
            return None
        forms = [f"-{t.name}", f"-{t.name}", f"tl.abs({t.name})", f"abs({t.name})"]
        if t.is_float and t.exact:
            forms += [f"tl.floor({t.name})", f"tl.ceil({t.name})"]
        if t.is_float and self.rng.random() < 0.25:
            root = self.rng.choice(("sqrt", "rsqrt"))
            below = self.positive(t)
            text = f"tl.{root}({below.name})"
            return self.tile(text, t.shape, t.dtype, max(t.bound, 1.5), t.exact)
        return self.tile(self.rng.choice(forms), t.shape, t.dtype, t.bound + 1, t.exact)

    def _ternary(self) -> Tile | None:
        a = self.float_tile()
        if a is None:
            return None
        like = self._like(a)
        b, c = self.pick(like), self.pick(like)
        assert b is not None and c is not None
        exact = a.exact and b.exact and c.exact
        if self.rng.random() < 0.5:
            bound = a.bound * b.bound + c.bound
            if bound > LARGEST[a.dtype]:
                return None
            text = f"tl.fma({a.name}, {b.name}, {c.name})"
            return self.tile(text, a.shape, a.dtype, bound, exact)
        low, high = self.rng.choice((("-1.5", "1.25"), ("0", "1"), ("-1", c.name)))
        exact = exact or (a.exact and high != c.name)
        bound = max(2.0, c.bound)
        x = self.zero(a).name
        text = f"tl.clamp({x}, {low}, {high})"
        return self.tile(text, a.shape, a.dtype, bound, exact)

    def _like(self, a: Tile) -> Callable[[Tile], bool]:
        return lambda t: t.dtype == a.dtype and broadcast(t.shape, a.shape) == a.shape

    def _chain(self) -> Tile | None:
        """Chains that a compiler likes to rewrite."""
        a = self.float_tile()
        if a is None:
            return None
        b, c = self.pick(self._like(a)), self.pick(self._like(a))
        assert b is not None and c is not None
        k1, k2 = self.rng.choice((0.1, 0.3, 1.1)), self.rng.choice((0.7, 3.0, 7.0))
        made = self.rng.choice(
            (self._sum_of_products, self._scalars, self._divisions, self._roots)
        )
        return made(a, b, c, k1, k2)

    def _sum_of_products(self, a: Tile, b: Tile, c: Tile, k1: float, k2: float):
        product = self.combined(a, "*", b)
        if product is None or product.bound > LIMIT[a.dtype]:
            return product
        kind = self.rng.choice(("+", "-", "*", "k"))
        if kind == "*":
            other = self.combined(b, "*", c)
            return other and self.combined(product, "-", other)
        if kind == "k":
            return self.combined(self.scaled(c, "*", k1), "+", product)
        return self.combined(product, kind, c)

    def _scalars(self, a: Tile, b: Tile, c: Tile, k1: float, k2: float):
        one, two = self.rng.choice((("*", "*"), ("+", "+"), ("*", "+"), ("/", "/"),
                                    ("/", "*")))  # fmt: skip
        return self.scaled(self.scaled(a, one, k1), two, k2)

    def _divisions(self, a: Tile, b: Tile, c: Tile, k1: float, k2: float):
        below = self.positive(b)
        text = f"{a.name} / {below.name}"
        exact = a.exact and b.exact
        first = self.tile(text, a.shape, a.dtype, 2 * a.bound, exact)
        if self.rng.random() < 0.5:
            below = self.positive(c)
            text, exact = f"{first.name} / {below.name}", exact and c.exact
            return self.tile(text, a.shape, a.dtype, 2 * first.bound, exact)
        return self.combined(first, "+", c)

    def _roots(self, a: Tile, b: Tile, c: Tile, k1: float, k2: float):
        below = self.positive(b)
        exact = a.exact and b.exact
        root = self.rng.choice(("sqrt", "rsqrt"))
        text = f"tl.{root}({below.name})"
        rooted = self.tile(text, b.shape, b.dtype, max(b.bound, 1.5), b.exact)
        if root == "rsqrt":
            scaled = self.combined(a, "*", rooted)
            return scaled and self.combined(scaled, "+", c)
        text = f"{a.name} / {rooted.name}"
        return self.tile(text, a.shape, a.dtype, 2 * a.bound, exact)

    def condition(self, shape: Shape | None = None) -> Tile | None:
        """A comparison of exact values."""
        a = self.pick(
            lambda t: t.exact and (shape is None or broadcast(t.shape, shape) == shape)
        )
        if a is None:
            return None
        sign = self.rng.choice(("<", "<=", ">", ">=", "==", "!="))
        b = self.pick(
            lambda t: (
                t.exact
                and t != a
                and promote(a.dtype, t.dtype) is not None
                and broadcast(t.shape, a.shape) is not None
            )
        )
        if b is None or self.rng.random() < 0.4 or shape is not None:
            against = "True" if a.dtype == "bool" else "1"
            return self.tile(f"{a.name} {sign} {against}", a.shape, "bool", 1.0)
        both = broadcast(a.shape, b.shape)
        assert both is not None
        return self.tile(f"{a.name} {sign} {b.name}", both, "bool", 1.0)

    def _select(self) -> Tile | None:
        """`where` on a comparison."""
        cond = self.pick(lambda t: t.dtype == "bool")
        if cond is None or self.rng.random() < 0.7:
            cond = self.condition()
        if cond is None:
            return None
        x = self.pick(lambda t: broadcast(t.shape, cond.shape) is not None)
        both = x and broadcast(cond.shape, x.shape)
        if x is None or both is None:
            return None
        y = self.pick(
            lambda t: (
                broadcast(t.shape, both) is not None
                and promote(t.dtype, x.dtype) is not None
            )
        )
        if y is None or self.rng.random() < 0.3 or x.dtype == "bool":
            k = {"bool": True}.get(x.dtype, 2 if x.is_int else 0.5)
            text = f"tl.where({cond.name}, {x.name}, {k})"
            bound = max(x.bound, 2.0)
            return self.tile(text, both, x.dtype, bound, x.exact)
        shape, dtype = broadcast(both, y.shape), promote(x.dtype, y.dtype)
        bound = max(x.bound, y.bound)
        if shape is None or dtype is None or bound > LARGEST.get(dtype, math.inf):
            return None
        text = f"tl.where({cond.name}, {x.name}, {y.name})"
        return self.tile(text, shape, dtype, bound, x.exact and y.exact)

    def _reduce(self) -> Tile | None:
        t = self.pick(lambda t: len(t.shape) > 0 and t.dtype not in FLOAT8S)
        if t is None:
            return None
        name = self.rng.choice(("sum", "max", "min", "argmax", "argmin"))
        if t.dtype == "bool" or (name.startswith("arg") and not t.exact):
            name = "sum"
        axis = self.rng.choice((*range(len(t.shape)), None))
        return self.reduced(t, name, axis, self.rng.random() < 0.6)

    def reduced(self, t: Tile, name: str, axis: int | None, keep: bool) -> Tile | None:
        axes = range(len(t.shape)) if axis is None else (axis,)
        shape = tuple(
            1 if i in axes else size
            for i, size in enumerate(t.shape)
            if keep or i not in axes
        )
        count = math.prod(t.shape[i] for i in axes)
        bound = t.bound * count if name == "sum" else t.bound
        dtype = t.dtype
        if name.startswith("arg"):
            dtype, bound = "int32", float(count)
        elif name == "sum" and not t.is_float:
            dtype = "int32"
        if bound > LARGEST.get(dtype, math.inf):
            return None
        of = self.zero(t).name if name in ("max", "min") else t.name
        if axis is not None and self.rng.random() < 0.3:
            axis -= len(t.shape)
        text = f"tl.{name}({of}, axis={axis}, keepdims={keep})"
        return self.tile(text, shape, dtype, bound, t.exact)

    def _convert(self) -> Tile | None:
        to = self.rng.choice(DTYPES)
        t = self.pick(lambda t: t.dtype != to and self.fits(t, to))
        return t and self.cast(t, to)

    def _reshape(self) -> Tile | None:
        """Other shapes of the same values, and transposes and broadcasts, which are
        ops."""
        t = self.pick()
        if t is None:
            return None
        size, n = math.prod(t.shape), t.name
        forms = [(f"tl.reshape({n}, (-1,))", (size,)),
                 (f"tl.expand_dims({n}, 0)", (1, *t.shape)),
                 (f"tl.expand_dims({n}, -1)", (*t.shape, 1))]  # fmt: skip
        if len(t.shape) == 1:
            forms += [(f"{n}[None, :]", (1, size)), (f"{n}[:, None]", (size, 1))]
        if len(t.shape) == 2:
            flipped = t.shape[::-1]
            forms += [(f"tl.trans({n})", flipped), (f"{n}.T", flipped)]
            forms.append((f"tl.reshape({n}, {flipped})", flipped))
        wide = broadcast(t.shape, (self.rows, self.columns))
        if wide is not None and wide != t.shape:
            forms.append((f"tl.broadcast_to({n}, {wide})", wide))
        text, shape = self.rng.choice(forms)
        if len(shape) > 3:
            return None
        return self.tile(text, shape, t.dtype, t.bound, t.exact)

    def _alias(self) -> Tile | None:
        """A part of a tile, from a row that may be symbolic."""
        t = self.pick(lambda t: len(t.shape) > 0 and t.shape[0] > 1)
        return t and self.rows_of(t)

    def rows_of(self, t: Tile) -> Tile:
        rows = t.shape[0]
        forms = [(f"tl.ds(1, {rows - 1})", rows - 1), (f"0:{rows - 1}", rows - 1),
                 ("-1:", 1)]  # fmt: skip
        for index in self.indices:
            if 0 <= index.low and index.high < rows:
                forms.append((f"tl.ds({index.text}, 1)", 1))
            else:
                forms.append((f"tl.ds({index.text} % {rows}, 1)", 1))
        text, size = self.rng.choice(forms)
        shape = (size, *t.shape[1:])
        return self.tile(f"{t.name}[{text}]", shape, t.dtype, t.bound, t.exact)

    def _with_index(self) -> Tile | None:
        """Arithmetic with a symbolic integer."""
        t = self.pick(lambda t: t.is_float or t.dtype == "int32")
        if t is None or not self.indices:
            return None
        i = self.rng.choice(self.indices)
        high, dtype = max(abs(i.low), abs(i.high)) + 1, t.dtype
        forms = {
            f"{t.name} * {i.text}": t.bound * high,
            f"{i.text} + {t.name}": t.bound + high,
            f"{t.name} - ({i.text} * 2 - 1)": t.bound + 2 * high,
            f"{t.name} / ({i.text} + {1 - i.low})": t.bound,
            f"tl.maximum({self.zero(t).name}, {i.text} + 1)": t.bound + high,
        }
        text = self.rng.choice(list(forms))
        if "/" in text and dtype == "int32":
            dtype = "float32"
        return self.tile(text, t.shape, dtype, forms[text], t.exact)

    def _create(self) -> Tile | None:
        rng, shape = self.rng, (self.rows, self.columns)
        if rng.random() < 0.4:
            start = rng.randint(-3, 3)
            text = f"tl.arange({start}, {start + self.columns})"
            return self.tile(text, shape[1:], "int32", 110.0)
        dtype = rng.choice((*FLOATS, *INTS))
        shape = rng.choice((shape, (1, self.columns), (self.rows, 1), (self.columns,)))
        usable = [i for i in self.indices if dtype != "uint8" or i.low >= 0]
        if usable and rng.random() < 0.6:
            i = rng.choice(usable)
            text = f'tl.full({shape}, {i.text} + 1, "{dtype}")'
            return self.tile(text, shape, dtype, max(abs(i.low), abs(i.high)) + 1.0)
        k = self.number_for(dtype)
        k = int(k) if dtype in RANGES else k
        k = abs(k) if dtype == "uint8" else k
        return self.tile(f'tl.full({shape}, {k!r}, "{dtype}")', shape, dtype, abs(k))

    def _product(self) -> Tile | None:
        """`dot`, its operands straight or transposed; exact for integers."""

        def factor(t: Tile) -> bool:
            kinds = INTS if self.exact_only else (*FLOATS, *FLOAT8S, *INTS)
            return t.dtype in kinds and len(t.shape) == 2

        a = self.pick(factor)
        if a is None:
            return None
        flip_a, flip_b = self.rng.random() < 0.3, self.rng.random() < 0.6

        def shape(t: Tile, flip: bool) -> Shape:
            return t.shape[::-1] if flip else t.shape

        rows, inner = shape(a, flip_a)
        for flip in (flip_b, not flip_b):
            b = self.pick(
                lambda t, flip=flip: (
                    factor(t)
                    and shape(t, flip)[0] == inner
                    and shape(t, flip)[1] * rows <= MOST_ELEMENTS
                    and (
                        promote(a.dtype, t.dtype) is not None
                        or {a.dtype, t.dtype} & set(FLOAT8S) != set()
                    )
                )
            )
            if b is not None:
                made = (rows, shape(b, flip)[1])
                return self._dotted(a, b, flip_a, flip, made, inner)
        return None

    def _dotted(
        self, a: Tile, b: Tile, flip_a: bool, flip_b: bool, shape: Shape, inner: int
    ) -> Tile | None:
        whole = a.is_int and b.is_int
        bound = inner * a.bound * b.bound
        dtype = "int32" if whole else "float32"
        if bound > 1e30 and not whole:
            return None
        left, right = (
            self.tile(f"tl.trans({t.name})", t.shape[::-1], t.dtype, t.bound, t.exact)
            if flip
            else t
            for t, flip in ((a, flip_a), (b, flip_b))
        )
        extra, exact = "", whole and a.exact and b.exact
        acc = self.pick(lambda t: (t.shape, t.dtype) == (shape, dtype))
        if self.rng.random() < 0.4:
            if acc is None:
                acc = self.tile(f'tl.full({shape}, 3, "{dtype}")', shape, dtype, 3.0)
            extra, bound, exact = (
                f", {acc.name}",
                bound + acc.bound,
                exact and acc.exact,
            )
        if self.rng.random() < 0.4:
            kinds = (*FLOATS, *INTS) if whole else (*FLOATS, *FLOAT8S)
            kind = self.rng.choice(kinds)
            if kind in RANGES or bound <= LARGEST[kind]:
                dtype, extra = kind, f'{extra}, out_dtype="{kind}"'
        text = f"tl.dot({left.name}, {right.name}{extra})"
        return self.tile(text, shape, dtype, bound, exact)

    # --- the full set ----------------------------------------------------------------

    def _curve(self) -> Tile | None:
        t = self.float_tile()
        return t and self._curved(t)

    def _curved(self, t: Tile) -> Tile | None:
        name = self.rng.choice(INEXACT)
        if name in ("log", "log2"):
            below = self.positive(t)
            bound = 2 * math.log2(max(t.bound, 2.0)) + 2
            return self.tile(f"tl.{name}({below.name})", t.shape, t.dtype, bound, False)
        x = self.small(t).name
        if name == "softmax":
            if not t.shape:
                return None
            axis = self.rng.randrange(len(t.shape)) - self.rng.choice((0, len(t.shape)))
            return self.tile(
                f"tl.softmax({x}, axis={axis})", t.shape, t.dtype, 1.0, False
            )
        bound = {"exp": 55.0, "exp2": 16.0}.get(name, 1.0)
        return self.tile(f"tl.{name}({x})", t.shape, t.dtype, bound, False)

    def _curved_chain(self) -> Tile | None:
        """A curve's result in what a compiler fuses or merges with it."""
        a = self.float_tile()
        curved = a and self._curved(a)
        if a is None or curved is None:
            return None
        b = self.pick(self._like(a))
        assert b is not None
        if self.rng.random() < 0.3 and curved.shape:
            return self.reduced(curved, "sum", self.rng.choice((0, None)), True)
        if self.rng.random() < 0.4:
            below = self.scaled(curved, "+", 2.5)
            text = f"{b.name} / tl.maximum({below.name}, 0.5)"
            return self.tile(text, a.shape, a.dtype, b.bound * 2, False)
        scaled = self.combined(b, "*", curved)
        return scaled and self.combined(scaled, "+", b)
