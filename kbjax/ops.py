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

    @property
    def dtypes(self) -> list[str]:
        """Names of the tile dtypes that the op takes."""
        return [d.name for d in dtypes.TABLE.values() if d.kind in self.accepts]

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

_FLOATS: tuple[dtypes.Kind, ...] = ("float",)
_NUMBERS: tuple[dtypes.Kind, ...] = ("float", "int")
_BITS: tuple[dtypes.Kind, ...] = ("int", "bool")
_ORDERED: tuple[dtypes.Kind, ...] = ("float", "int", "bool")
_ALL: tuple[dtypes.Kind, ...] = ("float", "int", "bool", "float8")


def _elementwise(
    name: str,
    doc: str,
    accepts: tuple[dtypes.Kind, ...] = _FLOATS,
    parameters: tuple[str, ...] = ("x",),
    function: str = "",
    rule: Rule | None = None,
) -> Op:
    """A row computed by the array namespace's function of that name."""

    def compute(xp: Any, *operands: Any) -> Any:
        return getattr(xp, function or name)(*operands)

    rule = rule or signatures.elementwise()
    return Op(name, "elementwise", parameters, rule, compute, doc, accepts=accepts)


def _binary(
    name: str,
    function: str,
    doc: str,
    accepts: tuple[dtypes.Kind, ...],
    rule: Rule | None = None,
) -> Op:
    return _elementwise(name, doc, accepts, ("a", "b"), function, rule)


def _compare(name: str, function: str, symbol: str) -> Op:
    doc = f"`a {symbol} b` elementwise; a bool tile. NaN compares as IEEE 754 says."
    return _binary(name, function, doc, _ALL, rule=signatures.elementwise(BOOL))


def _reduction(
    name: str, doc: str, accepts: tuple[dtypes.Kind, ...], **rule: bool
) -> Op:
    def compute(xp: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
        return getattr(xp, name)(x, axis, keepdims)

    inside = "accumulators" if rule.get("accumulates") else ""
    return Op(name, "reduction", ("x",), signatures.reduction(**rule), compute, doc,
              accepts=accepts, temporaries=inside)  # fmt: skip


_ROWS = (
    _binary("add", "add", "`a + b`; integers wrap.", _NUMBERS),
    _binary("sub", "subtract", "`a - b`; integers wrap.", _NUMBERS),
    _binary("mul", "multiply", "`a * b`; integers wrap.", _NUMBERS),
    _binary("div", "divide", "`a / b`; two integers give float32.", _ORDERED,
            rule=signatures.elementwise(of_integers=FLOAT32)),
    _binary("floordiv", "floor_divide",
            "`a // b`, rounded down; an integer by 0 is 0.", _NUMBERS),
    _binary("mod", "remainder",
            "`a % b`, with the sign of b; an integer by 0 is 0.", _NUMBERS),
    _binary("pow", "power",
            "`a ** b`; an integer to a negative power is 0, but for bases 1 and -1.",
            _NUMBERS, rule=signatures.power),
    _binary("maximum", "maximum", "The larger; NaN wins.", _ORDERED),
    _binary("minimum", "minimum", "The smaller; NaN wins.", _ORDERED),
    _compare("lt", "less", "<"),
    _compare("le", "less_equal", "<="),
    _compare("gt", "greater", ">"),
    _compare("ge", "greater_equal", ">="),
    _compare("eq", "equal", "=="),
    _compare("ne", "not_equal", "!="),
    _binary("and", "bitwise_and", "`a & b` of bools or of integers' bits.", _BITS),
    _binary("or", "bitwise_or", "`a | b` of bools or of integers' bits.", _BITS),
    _elementwise("invert", "`~x` of bools or of integers' bits.", _BITS),
    _elementwise("neg", "`-x`; integers wrap.", _NUMBERS),
    _elementwise("abs", "`abs(x)`; the smallest integer stays what it is.", _NUMBERS),
    Op("where", "elementwise", ("cond", "a", "b"), signatures.where,
       lambda xp, cond, a, b: xp.where(cond, a, b),
       "`a` where the bool tile `cond` holds, else `b`.", accepts=_ALL),
    _elementwise("clamp", "minimum(maximum(x, low), high); NaN wins.", _NUMBERS,
                 ("x", "low", "high")),
    _elementwise("fma", "`a * b + c` with one rounding.", _FLOATS, ("a", "b", "c")),
    _elementwise("floor", "The largest whole number not above x."),
    _elementwise("ceil", "The smallest whole number not below x."),
    _elementwise("exp", "e to the x."),
    _elementwise("exp2", "2 to the x."),
    _elementwise("log", "Natural logarithm."),
    _elementwise("log2", "Logarithm to base 2."),
    _elementwise("sqrt", "Square root, correctly rounded."),
    _elementwise("rsqrt", "1 / sqrt(x)."),
    _elementwise("sigmoid", "1 / (1 + exp(-x))."),
    _elementwise("tanh", "Hyperbolic tangent."),
    _elementwise("erf", "The error function."),
    _reduction("sum", "Sum; 16-bit floats add in float32, bool and integers in int32.",
               _ORDERED, accumulates=True),
    _reduction("max", "Largest element; NaN wins.", _ORDERED),
    _reduction("min", "Smallest element; NaN wins.", _ORDERED),
    _reduction("argmax", "Position of the largest, the first of equals, as int32; the "
               "first NaN wins.", _ORDERED, index=True),
    _reduction("argmin", "Position of the smallest, the first of equals, as int32; the "
               "first NaN wins.", _ORDERED, index=True),
    Op("softmax", "matrix", ("x",), signatures.softmax,
       lambda xp, x, axis: xp.softmax(x, axis),
       "exp(x - max) / sum along `axis`, in float32. A row of -inf is NaN.",
       accepts=_FLOATS, temporaries="maxima, exponentials and sums"),
    Op("dot", "matrix", ("a", "b"), signatures.dot,
       lambda xp, a, b, acc=None, *, layouts, out_dtype:
           xp.dot(a, b, acc, layouts, out_dtype),
       "(M, K) x (K, N) on the GEMM engine, accumulated in float32 (int32 for "
       "integers).",
       engine="gemm", accepts=("float", "int", "float8"), temporaries="accumulators"),
    Op("trans", "matrix", ("x",), signatures.trans, lambda xp, x: xp.transpose(x),
       "The transpose of a tile of 2 axes, in a slice of its own.", accepts=_ALL),
    Op("cast", "type", ("x",), signatures.cast,
       lambda xp, x, dtype: xp.cast(x, dtypes.of(dtype)),
       "x in another dtype: one rounding; float to integer truncates and saturates, "
       "NaN gives 0; integer to integer wraps.", accepts=_ALL),
    Op("broadcast_to", "type", ("x",), signatures.broadcast_to,
       lambda xp, x, shape: xp.broadcast_to(x, shape),
       "x repeated to `shape`, NumPy's rules.", accepts=_ALL),
    Op("zeros", "create", (), signatures.create,
       lambda xp, shape, dtype: xp.full(shape, 0, dtypes.of(dtype)),
       "A tile of zeros.", accepts=_ALL),
    Op("full", "create", ("value",), signatures.create,
       lambda xp, value, shape, dtype: xp.full(shape, value, dtypes.of(dtype)),
       "A tile of one value.", accepts=_ALL),
    Op("arange", "create", (), signatures.create,
       lambda xp, shape, dtype, start: xp.arange(start, shape[0], dtypes.of(dtype)),
       "start, start + 1, ... in int32.", accepts=_ALL),
)  # fmt: skip

TABLE: dict[str, Op] = {row.name: row for row in _ROWS}
