"""THE TABLE of ops: name -> shape rule, dtype rule, function, engine, cost.

Recording asks a row what it takes and gives (`infer`); the data phase calls its
`compute` with an array namespace; timing asks for its engine and elements. Adding an
elementwise op or a reduction is adding a row (its `tl` method is made from it) and,
where its arithmetic is new, a function in kbjax.rounding. An op with arguments of its
own has a method in kbjax.context too.

A `compute` function sees operands already in the row's operand dtypes, and an array
namespace `xp` (kbjax.rounding in the data phase) whose functions round one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kbjax import dtypes, signatures
from kbjax.dtypes import BOOL, FLOAT32, Shape
from kbjax.signatures import Argument, Rule, Signature

Group = Literal["elementwise", "reduction", "matrix", "create", "type"]


@dataclass(frozen=True)
class Op:
    """A row of the table.

    Attributes:
      name: as in the op_log.
      group: which family of `tl` methods it belongs to.
      parameters: names of its operands.
      rule: (row, operands, attrs) -> Signature, or raises at the kernel's line.
      compute: (xp, *operands, **attrs) -> array.
      doc: one sentence.
      engine: `math` or `gemm`.
      accepts: dtypes of tile operands, by kind.
      temporaries: what it computes inside its engine, which takes no scratch.
    """

    name: str
    group: Group
    parameters: tuple[str, ...]
    rule: Rule
    compute: Callable[..., Any]
    doc: str
    engine: Literal["math", "gemm"] = "math"
    accepts: tuple[dtypes.Kind, ...] = ("float", "int", "bool")
    temporaries: str = ""

    def infer(
        self, operands: Sequence[Argument], attrs: Mapping[str, Any]
    ) -> Signature:
        """The signature, or a ShapeError or DTypeError at the kernel's line."""
        return self.rule(self, operands, attrs)

    def elements(self, out_shape: Shape, operand_shapes: Sequence[Shape]) -> int:
        """Elements that the vector engine works through: the larger of what the op
        takes and gives (a reduction's input, a broadcast's output)."""
        return max(math.prod(shape) for shape in (out_shape, *operand_shapes))

    def flops(self, out_shape: Shape, operand_shapes: Sequence[Shape]) -> int:
        """2 M N K for a matrix product, else one an element."""
        if self.engine == "gemm":
            return 2 * math.prod(out_shape) * operand_shapes[0][1]
        return self.elements(out_shape, operand_shapes)


# --- the rows ------------------------------------------------------------------------

_NUMBERS: tuple[dtypes.Kind, ...] = ("float", "int")
_FLOATS: tuple[dtypes.Kind, ...] = ("float",)


def _binary(name: str, function: str, doc: str, rule: Rule, **fields: Any) -> Op:
    def compute(xp: Any, a: Any, b: Any) -> Any:
        return getattr(xp, function)(a, b)

    return Op(name, "elementwise", ("a", "b"), rule, compute, doc, **fields)


def _unary(name: str, doc: str) -> Op:
    def compute(xp: Any, x: Any) -> Any:
        return getattr(xp, name)(x)

    rule = signatures.elementwise()
    return Op(name, "elementwise", ("x",), rule, compute, doc, accepts=_FLOATS)


def _compare(name: str, function: str, symbol: str) -> Op:
    doc = f"`a {symbol} b` elementwise; a bool tile. NaN compares as IEEE 754 says."
    return _binary(name, function, doc, signatures.elementwise(BOOL))


_ROWS = (
    _binary("add", "add", "`a + b`.", signatures.elementwise(), accepts=_NUMBERS),
    _binary("sub", "subtract", "`a - b`.", signatures.elementwise(), accepts=_NUMBERS),
    _binary("mul", "multiply", "`a * b`.", signatures.elementwise(), accepts=_NUMBERS),
    _binary("div", "divide", "`a / b`; two integers give float32.",
            signatures.elementwise(of_integers=FLOAT32), accepts=_FLOATS),
    _binary("maximum", "maximum", "The larger; NaN wins.", signatures.elementwise()),
    _binary("minimum", "minimum", "The smaller; NaN wins.", signatures.elementwise()),
    _compare("lt", "less", "<"),
    _compare("le", "less_equal", "<="),
    _compare("gt", "greater", ">"),
    _compare("ge", "greater_equal", ">="),
    _compare("eq", "equal", "=="),
    _compare("ne", "not_equal", "!="),
    Op("where", "elementwise", ("cond", "a", "b"), signatures.where,
       lambda xp, cond, a, b: xp.where(cond, a, b),
       "`a` where the bool tile `cond` holds, else `b`."),
    _unary("exp", "e to the x."),
    _unary("exp2", "2 to the x."),
    _unary("log", "Natural logarithm."),
    _unary("sqrt", "Square root, correctly rounded."),
    _unary("rsqrt", "1 / sqrt(x)."),
    Op("sum", "reduction", ("x",), signatures.reduction(accumulates=True),
       lambda xp, x, axis, keepdims: xp.sum(x, axis, keepdims),
       "Sum; 16-bit floats add in float32, bool gives int32.",
       temporaries="accumulators"),
    Op("max", "reduction", ("x",), signatures.reduction(accumulates=False),
       lambda xp, x, axis, keepdims: xp.max(x, axis, keepdims),
       "Largest element; NaN wins.", accepts=_NUMBERS),
    Op("softmax", "matrix", ("x",), signatures.softmax,
       lambda xp, x, axis: xp.softmax(x, axis),
       "exp(x - max) / sum along `axis`, in float32. A row of -inf is NaN.",
       accepts=_FLOATS, temporaries="maxima, exponentials and sums"),
    Op("dot", "matrix", ("a", "b"), signatures.dot,
       lambda xp, a, b, layouts: xp.dot(a, b, layouts),
       "(M, K) x (K, N) on the GEMM engine, accumulated and given in float32.",
       engine="gemm", accepts=_FLOATS, temporaries="accumulators"),
    Op("trans", "matrix", ("x",), signatures.trans, lambda xp, x: xp.transpose(x),
       "The transpose of a tile of 2 axes, in a slice of its own."),
    Op("cast", "type", ("x",), signatures.cast,
       lambda xp, x, dtype: xp.cast(x, dtypes.of(dtype)),
       "x in another dtype: one rounding; float to integer truncates and saturates."),
    Op("broadcast_to", "type", ("x",), signatures.broadcast_to,
       lambda xp, x, shape: xp.broadcast_to(x, shape),
       "x repeated to `shape`, NumPy's rules."),
    Op("zeros", "create", (), signatures.create,
       lambda xp, shape, dtype: xp.full(shape, 0, dtypes.of(dtype)),
       "A tile of zeros."),
    Op("full", "create", ("value",), signatures.create,
       lambda xp, value, shape, dtype: xp.full(shape, value, dtypes.of(dtype)),
       "A tile of one value."),
    Op("arange", "create", (), signatures.create,
       lambda xp, shape, dtype, start: xp.arange(start, shape[0], dtypes.of(dtype)),
       "start, start + 1, ... in int32."),
)  # fmt: skip

TABLE: dict[str, Op] = {row.name: row for row in _ROWS}
