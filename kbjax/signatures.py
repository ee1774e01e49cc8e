"""What an op gives for what it is given: the shape and dtype rules of the op table.

A rule takes a row of the table, the operands and the attributes, and returns a
`Signature` or raises at the kernel's line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kbjax import dtypes, errors, expr
from kbjax.domain import Domain, Violation
from kbjax.dtypes import BOOL, FLOAT32, INT32, DType, Shape, type_text
from kbjax.expr import Expr
from kbjax.refs import Scalar
from kbjax.site import here


class Row(Protocol):
    """What a rule reads of its op."""

    @property
    def name(self) -> str: ...
    @property
    def accepts(self) -> tuple[dtypes.Kind, ...]: ...
    @property
    def dtypes(self) -> list[str]: ...


@dataclass(frozen=True)
class Tile:
    """An operand that is a tile, as the rules see it."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return type_text(self.shape, self.dtype)


@dataclass(frozen=True)
class Symbolic:
    """An operand that is a symbolic integer, and the iterations that run it."""

    value: Expr
    domain: Domain

    def outside(self, low: int | None, high: int | None) -> Violation | None:
        """The first iteration in which it is below `low` or above `high`, if any."""
        below = low is not None and self.domain.violation(expr.const(low), self.value)
        above = high is not None and self.domain.violation(self.value, expr.const(high))
        return below or above or None

    def __str__(self) -> str:
        return str(self.value)


Argument = Tile | Symbolic | Scalar


@dataclass(frozen=True)
class Signature:
    """What an op gives, and the dtype in which it takes each operand."""

    shape: Shape
    dtype: DType
    operand_dtypes: tuple[DType, ...]


Rule = Callable[[Row, Sequence[Argument], Mapping[str, Any]], Signature]


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
    return 0 if isinstance(value, Symbolic) else value


def _common(op: Row, operands: Sequence[Argument]) -> DType:
    """The dtype in which operands meet: tiles promote, scalars are weak."""
    tiles = _tiles(operands)
    common = tiles[0].dtype if tiles else BOOL
    for tile in tiles[1:]:
        common = _promoted(op, common, tile.dtype)
    for value in operands:
        if not isinstance(value, Tile):
            weak = _weak(value)
            if not tiles and isinstance(weak, bool):
                continue
            common = dtypes.with_scalar(common, weak)
    for value in operands:
        if not isinstance(value, Tile):
            _check_fits(op.name, value, common, "cast the tile with tl.cast")
    return common


def _promoted(op: Row, a: DType, b: DType) -> DType:
    common = dtypes.promote(a, b)
    if common is None:
        raise errors.DTypeError(
            f"{op.name} of {a} and {b}: a float8 meets its own type only",
            site=here(),
            remedy='Convert with tl.cast(x, "bfloat16"), which holds every float8',
        )
    return common


def check_value(what: str, value: Symbolic | Scalar, dtype: DType) -> None:
    """Refuse a number that a new tile of `dtype` does not hold.

    Raises:
      DTypeError: at the kernel's line; `what` names the argument.
    """
    if isinstance(value, float) and not dtype.is_float:
        raise errors.DTypeError(
            f"{what}: {value!r} is no value of {dtype}",
            site=here(),
            remedy="Give a float dtype or an integer value",
        )
    _check_fits(what, value, dtype, "give another dtype")


def _check_fits(
    what: str, value: Symbolic | Scalar, dtype: DType, instead: str
) -> None:
    """A weak scalar must be a value of the tile's type, but for rounding."""
    where: Violation | None = None
    if isinstance(value, Symbolic):  # proven to be int32
        where = value.outside(*(dtype.integers or (None, None)))
        fits = where is None
    else:
        fits = isinstance(value, bool) or dtype.holds(value)
    if not fits:
        raise errors.DTypeError(
            f"{what}: the scalar {_number(value)} is no value of {dtype}{where or ''}",
            site=here(),
            remedy=f"Use a value that {dtype} holds, or {instead}",
        )


def _number(value: Symbolic | Scalar) -> str:
    """As text; Python refuses to print integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1} or more"
    return str(value)


def _check_kinds(op: Row, found: Sequence[DType]) -> None:
    for dtype in found:
        if dtype.kind not in op.accepts:
            raise errors.DTypeError(
                f"{op.name} does not take {dtype}",
                site=here(),
                allowed=", ".join(op.dtypes),
                remedy="Convert with tl.cast(x, dtype)",
            )


def elementwise(
    result: DType | None = None, *, of_integers: DType | None = None
) -> Rule:
    """Broadcast; meet in the common dtype, or in `of_integers` where that is no float;
    give `result` or that dtype."""

    def rule(
        op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]
    ) -> Signature:
        del attrs
        common = _common(op, operands)
        _check_kinds(op, [common])
        if of_integers is not None and not common.is_float:
            common = of_integers
        shape = broadcast_shapes(op.name, [tile.shape for tile in _tiles(operands)])
        return Signature(shape, result or common, (common,) * len(operands))

    return rule


def power(op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    """As elementwise; an integer tile has no negative power that is an integer."""
    exponent = operands[1]
    signature = elementwise()(op, operands, attrs)
    negative, where = False, None
    if isinstance(exponent, Symbolic):
        where = exponent.outside(0, None)
        negative = where is not None
    elif not isinstance(exponent, Tile):
        negative = exponent < 0
    if negative and signature.dtype.kind == "int":
        raise errors.DTypeError(
            f"pow: {signature.dtype} ** {exponent} is no {signature.dtype}"
            f"{where or ''}",
            site=here(),
            remedy='Convert the base with tl.cast(x, "float32")',
        )
    return signature


def where(op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
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
    axis = int(axis) if isinstance(axis, np.integer) else axis
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise errors.ShapeError(
            f"{op}: no axis {axis!r} in a tile of {rank} axes",
            site=here(),
            allowed=f"{-rank} to {rank - 1}" if rank else "None",
        )
    return axis % rank


def reduction(accumulates: bool = False, index: bool = False) -> Rule:
    """Drop `axis` (None: all axes) or keep it as 1; `accumulates`: bool and small
    integers give int32; `index`: the result is a position, int32."""

    def rule(
        op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]
    ) -> Signature:
        (tile,) = _tiles(operands) if len(_tiles(operands)) == 1 else (None,)
        if tile is None:
            raise errors.DTypeError(
                f"{op.name} reduces a tile", site=here(), allowed="one tile"
            )
        _check_kinds(op, [tile.dtype])
        rank, axis = len(tile.shape), attrs["axis"]
        axes = range(rank) if axis is None else [normalised_axis(op.name, axis, rank)]
        shape = tuple(
            1 if i in axes else size
            for i, size in enumerate(tile.shape)
            if attrs["keepdims"] or i not in axes
        )
        if index:
            return Signature(shape, INT32, (tile.dtype,))
        exact = not accumulates or tile.dtype.kind == "float"
        out = tile.dtype if exact else dtypes.of(tile.dtype.accumulator)
        add_in = dtypes.of(tile.dtype.accumulator) if accumulates else tile.dtype
        return Signature(shape, out, (add_in,))

    return rule


def softmax(
    op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]
) -> Signature:
    (tile,) = _tiles(operands)
    _check_kinds(op, [tile.dtype])
    if not tile.shape:
        raise errors.ShapeError(
            "softmax of a tile without axes",
            site=here(),
            allowed="a tile of at least 1 axis",
            remedy="Add an axis with tl.expand_dims",
        )
    normalised_axis(op.name, attrs["axis"], len(tile.shape))
    return Signature(tile.shape, tile.dtype, (FLOAT32,))


def dot(op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    """(M, K) x (K, N), and an accumulator (M, N) where there is one; the result has the
    accumulator's dtype, or `out_dtype`."""
    tiles = _tiles(operands)
    if len(tiles) != len(operands):
        raise errors.DTypeError(
            "dot multiplies two tiles, and adds a third to the product as acc",
            site=here(),
            got=", ".join(map(str, operands)),
            allowed="tiles of 2 axes",
            remedy="Make a tile of the accumulator's dtype with tl.full",
        )
    a, b, *acc = tiles
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        hint = ""
        if len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[1]:
            hint = "Transpose the second operand: tl.dot(a, tl.trans(b))"
        raise errors.ShapeError(
            "dot needs (M, K) x (K, N)",
            site=here(),
            got=f"{a.shape} x {b.shape}",
            remedy=hint or "Make both tiles of 2 axes, and their K equal",
        )
    _check_kinds(op, [a.dtype, b.dtype])
    float8 = "float8" in (a.dtype.kind, b.dtype.kind)
    # A float8 is multiplied as the float32 that it is.
    common = FLOAT32 if float8 else _promoted(op, a.dtype, b.dtype)
    accumulator = dtypes.of(common.accumulator)
    shape = (a.shape[0], b.shape[1])
    for tile in acc:
        wrong = errors.ShapeError if tile.shape != shape else errors.DTypeError
        if (tile.shape, tile.dtype) != (shape, accumulator):
            raise wrong(
                f"dot adds its accumulator, of the product's shape, in {accumulator}",
                site=here(),
                got=str(tile),
                allowed=str(Tile(shape, accumulator)),
                remedy="Convert it with tl.cast, or make it with tl.zeros",
            )
    out = dtypes.of(attrs["out_dtype"]) if attrs["out_dtype"] else accumulator
    return Signature(shape, out, (common, common, *(accumulator for _ in acc)))


def trans(op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del attrs
    (tile,) = _tiles(operands)
    if len(tile.shape) != 2:
        raise errors.ShapeError(
            "trans needs a tile of 2 axes",
            site=here(),
            got=f"shape {tile.shape}",
            remedy="Add an axis with tl.expand_dims",
        )
    return Signature(tile.shape[::-1], tile.dtype, (tile.dtype,))


def cast(op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del op
    (tile,) = _tiles(operands)
    return Signature(tile.shape, dtypes.of(attrs["dtype"]), (tile.dtype,))


def broadcast_to(
    op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]
) -> Signature:
    (tile,) = _tiles(operands)
    shape = attrs["shape"]
    if broadcast_shapes(op.name, [tile.shape, shape]) != tuple(shape):
        raise errors.ShapeError(
            "broadcast_to cannot shrink a tile",
            site=here(),
            got=f"{tile.shape} to {shape}",
            allowed="shapes that the tile's broadcasts to",
        )
    return Signature(shape, tile.dtype, (tile.dtype,))


def create(
    op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]
) -> Signature:
    dtype = dtypes.of(attrs["dtype"])
    for value in operands:
        assert not isinstance(value, Tile)
        check_value(op.name, value, dtype)
    return Signature(attrs["shape"], dtype, (dtype,) * len(operands))
