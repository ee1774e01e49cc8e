"""THE TABLE of ops: name -> shape rule, dtype rule, function, engine, cost.

Recording asks a row what it takes and gives (`infer`); the data phase calls its
`compute` with an array namespace; timing asks for its engine and elements; the `tl`
methods and the reference page are made from the rows. Adding an op is adding a row.

A `compute` function sees operands already in the row's operand dtypes, and an array
namespace `xp` (kbjax.rounding in the data phase) whose functions round one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kbjax import dtypes, errors, expr
from kbjax.dtypes import BOOL, FLOAT32, DType
from kbjax.expr import Expr
from kbjax.program import Scalar, Shape, type_text
from kbjax.site import here


@dataclass(frozen=True)
class Tile:
    """An operand that is a tile, as the rules see it."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return type_text(self.shape, self.dtype)


Argument = Tile | Expr | Scalar


@dataclass(frozen=True)
class Signature:
    """What an op gives, and the dtype in which it takes each operand."""

    shape: Shape
    dtype: DType
    operand_dtypes: tuple[DType, ...]


Rule = Callable[["Op", Sequence[Argument], Mapping[str, Any]], Signature]
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
    """

    name: str
    group: Group
    parameters: tuple[str, ...]
    rule: Rule
    compute: Callable[..., Any]
    doc: str
    engine: Literal["math", "gemm"] = "math"
    accepts: tuple[dtypes.Kind, ...] = ("float", "int", "bool")

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


# --- rules ---------------------------------------------------------------------------


def broadcast_shapes(op: str, shapes: Sequence[Shape]) -> Shape:
    """NumPy broadcasting; ShapeError at the kernel's line where shapes do not fit."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise errors.ShapeError(
                f"{op} cannot broadcast its operands together",
                site=here(),
                got=" and ".join(str(tuple(shape)) for shape in shapes),
                allowed="axes that are equal or 1, aligned at the last axis",
                remedy="Add an axis with tl.expand_dims, or keep it with keepdims=True",
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _tiles(operands: Sequence[Argument]) -> list[Tile]:
    return [x for x in operands if isinstance(x, Tile)]


def _weak(value: Argument) -> bool | int | float:
    """A scalar operand by kind; a symbolic integer is a weak int."""
    assert not isinstance(value, Tile)
    return 0 if isinstance(value, Expr) else value


def _common(op: Op, operands: Sequence[Argument]) -> DType:
    """The dtype in which operands meet: tiles promote, scalars are weak."""
    tiles = _tiles(operands)
    common = tiles[0].dtype if tiles else BOOL
    for tile in tiles[1:]:
        common = dtypes.promote(common, tile.dtype)
    for value in operands:
        if not isinstance(value, Tile):
            weak = _weak(value)
            if not tiles and isinstance(weak, bool):
                continue
            common = dtypes.with_scalar(common, weak)
    for value in operands:
        if not isinstance(value, Tile):
            _check_fits(op, value, common)
    return common


def _check_fits(op: Op, value: Expr | Scalar, dtype: DType) -> None:
    """A weak integer must be a value of the tile's type."""
    if isinstance(value, Expr):
        low, high = expr.bounds(value)
    elif isinstance(value, int):
        low = high = int(value)
    else:
        return
    if not (dtype.holds(low) and dtype.holds(high)):
        raise errors.DTypeError(
            f"{op.name}: the scalar {value} is no value of {dtype}",
            site=here(),
            remedy="Cast the tile to a wider type with tl.cast",
        )


def _check_kinds(op: Op, found: Sequence[DType]) -> None:
    for dtype in found:
        if dtype.kind not in op.accepts:
            taken = [
                row.name for row in dtypes.TABLE.values() if row.kind in op.accepts
            ]
            raise errors.DTypeError(
                f"{op.name} does not take {dtype}",
                site=here(),
                allowed=", ".join(taken),
                remedy="Convert with tl.cast(x, dtype)",
            )


def _elementwise(result: DType | None = None, *, floating: bool = False) -> Rule:
    """Broadcast; meet in the common dtype (a float where `floating`); give `result`
    or that dtype."""

    def rule(
        op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]
    ) -> Signature:
        del attrs
        common = _common(op, operands)
        if floating and common.kind != "float" and op.name == "div":
            common = FLOAT32  # int / int is float32
        _check_kinds(op, [common])
        shape = broadcast_shapes(op.name, [tile.shape for tile in _tiles(operands)])
        return Signature(shape, result or common, (common,) * len(operands))

    return rule


def _where(op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del attrs
    cond, *branches = operands
    if not (isinstance(cond, Tile) and cond.dtype == BOOL):
        raise errors.DTypeError(
            "where takes a bool tile as its condition",
            site=here(),
            got=str(cond),
            remedy="Compare: tl.where(x > 0, a, b)",
        )
    common = _common(op, branches)
    shape = broadcast_shapes(op.name, [tile.shape for tile in _tiles(operands)])
    return Signature(shape, common, (BOOL, common, common))


def normalised_axis(op: str, axis: object, rank: int) -> int:
    """`axis` in [0, rank), or a ShapeError at the kernel's line."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise errors.ShapeError(
            f"{op}: no axis {axis!r} in a tile of {rank} axes",
            site=here(),
            allowed=f"{-rank} to {rank - 1}" if rank else "None",
        )
    return axis % rank


def _reduction(accumulates: bool) -> Rule:
    """Drop `axis` (None: all axes) or keep it as 1; `accumulates`: bool and small
    integers give int32."""

    def rule(
        op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]
    ) -> Signature:
        (tile,) = _tiles(operands) if len(_tiles(operands)) == 1 else (None,)
        if tile is None:
            raise errors.DTypeError(f"{op.name} reduces a tile", site=here())
        _check_kinds(op, [tile.dtype])
        rank, axis = len(tile.shape), attrs["axis"]
        axes = range(rank) if axis is None else [normalised_axis(op.name, axis, rank)]
        shape = tuple(
            1 if i in axes else size
            for i, size in enumerate(tile.shape)
            if attrs["keepdims"] or i not in axes
        )
        exact = not accumulates or tile.dtype.kind == "float"
        out = tile.dtype if exact else dtypes.of(tile.dtype.accumulator)
        add_in = dtypes.of(tile.dtype.accumulator) if accumulates else tile.dtype
        return Signature(shape, out, (add_in,))

    return rule


def _softmax(
    op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]
) -> Signature:
    (tile,) = _tiles(operands)
    _check_kinds(op, [tile.dtype])
    normalised_axis(op.name, attrs["axis"], len(tile.shape))
    return Signature(tile.shape, tile.dtype, (FLOAT32,))


def _dot(op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del attrs
    tiles = _tiles(operands)
    if len(tiles) != 2:
        raise errors.DTypeError("dot multiplies two tiles", site=here())
    a, b = tiles
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        hint = ""
        if len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[1]:
            hint = "Transpose the second operand: tl.dot(a, tl.trans(b))"
        raise errors.ShapeError(
            "dot needs (M, K) x (K, N)",
            site=here(),
            got=f"{a.shape} x {b.shape}",
            remedy=hint,
        )
    _check_kinds(op, [a.dtype, b.dtype])
    common = dtypes.promote(a.dtype, b.dtype)
    accumulator = dtypes.of(common.accumulator)
    return Signature((a.shape[0], b.shape[1]), accumulator, (common, common))


def _trans(op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del attrs
    (tile,) = _tiles(operands)
    if len(tile.shape) != 2:
        raise errors.ShapeError(
            "trans needs a tile of 2 axes", site=here(), got=f"shape {tile.shape}"
        )
    return Signature(tile.shape[::-1], tile.dtype, (tile.dtype,))


def _cast(op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del op
    (tile,) = _tiles(operands)
    return Signature(tile.shape, dtypes.of(attrs["dtype"]), (tile.dtype,))


def _broadcast_to(
    op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]
) -> Signature:
    (tile,) = _tiles(operands)
    shape = attrs["shape"]
    if broadcast_shapes(op.name, [tile.shape, shape]) != tuple(shape):
        raise errors.ShapeError(
            "broadcast_to cannot shrink a tile",
            site=here(),
            got=f"{tile.shape} to {shape}",
        )
    return Signature(shape, tile.dtype, (tile.dtype,))


def _create(
    op: Op, operands: Sequence[Argument], attrs: Mapping[str, Any]
) -> Signature:
    dtype = dtypes.of(attrs["dtype"])
    for value in operands:
        assert not isinstance(value, Tile)
        if isinstance(value, float) and dtype.kind != "float":
            raise errors.DTypeError(
                f"{op.name}: {value!r} is no value of {dtype}",
                site=here(),
                remedy="Give a float dtype or an integer value",
            )
        _check_fits(op, value, dtype)
    return Signature(attrs["shape"], dtype, (dtype,) * len(operands))


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

    rule = _elementwise(floating=True)
    return Op(name, "elementwise", ("x",), rule, compute, doc, accepts=_FLOATS)


def _compare(name: str, function: str, symbol: str) -> Op:
    doc = f"`a {symbol} b` elementwise; a bool tile. NaN compares as IEEE 754 says."
    return _binary(name, function, doc, _elementwise(BOOL))


_ROWS = (
    _binary("add", "add", "`a + b`.", _elementwise(), accepts=_NUMBERS),
    _binary("sub", "subtract", "`a - b`.", _elementwise(), accepts=_NUMBERS),
    _binary("mul", "multiply", "`a * b`.", _elementwise(), accepts=_NUMBERS),
    _binary("div", "divide", "`a / b`; two integers give float32.",
            _elementwise(floating=True), accepts=_FLOATS),
    _binary("maximum", "maximum", "The larger; NaN wins.", _elementwise()),
    _binary("minimum", "minimum", "The smaller; NaN wins.", _elementwise()),
    _compare("lt", "less", "<"),
    _compare("le", "less_equal", "<="),
    _compare("gt", "greater", ">"),
    _compare("ge", "greater_equal", ">="),
    _compare("eq", "equal", "=="),
    _compare("ne", "not_equal", "!="),
    Op("where", "elementwise", ("cond", "a", "b"), _where,
       lambda xp, cond, a, b: xp.where(cond, a, b),
       "`a` where the bool tile `cond` holds, else `b`."),
    _unary("exp", "e to the x."),
    _unary("exp2", "2 to the x."),
    _unary("log", "Natural logarithm."),
    _unary("sqrt", "Square root, correctly rounded."),
    _unary("rsqrt", "1 / sqrt(x)."),
    Op("sum", "reduction", ("x",), _reduction(accumulates=True),
       lambda xp, x, axis, keepdims: xp.sum(x, axis, keepdims),
       "Sum; 16-bit floats add in float32, bool gives int32."),
    Op("max", "reduction", ("x",), _reduction(accumulates=False),
       lambda xp, x, axis, keepdims: xp.max(x, axis, keepdims),
       "Largest element; NaN wins.", accepts=_NUMBERS),
    Op("softmax", "matrix", ("x",), _softmax,
       lambda xp, x, axis: xp.softmax(x, axis),
       "exp(x - max) / sum along `axis`, in float32. A row of -inf is NaN.",
       accepts=_FLOATS),
    Op("dot", "matrix", ("a", "b"), _dot,
       lambda xp, a, b, transposed: xp.dot(a, b, transposed),
       "(M, K) x (K, N) on the GEMM engine, accumulated and given in float32.",
       engine="gemm", accepts=_FLOATS),
    Op("trans", "matrix", ("x",), _trans, lambda xp, x: xp.transpose(x),
       "The transpose of a tile of 2 axes, in a slice of its own."),
    Op("cast", "type", ("x",), _cast, lambda xp, x, dtype: xp.cast(x, dtypes.of(dtype)),
       "x in another dtype: one rounding; float to integer truncates and saturates."),
    Op("broadcast_to", "type", ("x",), _broadcast_to,
       lambda xp, x, shape: xp.broadcast_to(x, shape),
       "x repeated to `shape`, NumPy's rules."),
    Op("zeros", "create", (), _create,
       lambda xp, shape, dtype: xp.full(shape, 0, dtypes.of(dtype)),
       "A tile of zeros."),
    Op("full", "create", ("value",), _create,
       lambda xp, value, shape, dtype: xp.full(shape, value, dtypes.of(dtype)),
       "A tile of one value."),
    Op("arange", "create", (), _create,
       lambda xp, shape, dtype, start: xp.arange(start, shape[0], dtypes.of(dtype)),
       "start, start + 1, ... in int32."),
)  # fmt: skip

TABLE: dict[str, Op] = {row.name: row for row in _ROWS}
