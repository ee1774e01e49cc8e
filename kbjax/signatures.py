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
from kbjax.dtypes import BOOL, FLOAT32, DType, Shape, type_text
from kbjax.expr import Expr
from kbjax.program import Scalar
from kbjax.site import here


class Row(Protocol):
    """What a rule reads of its op."""

    @property
    def name(self) -> str: ...
    @property
    def accepts(self) -> tuple[dtypes.Kind, ...]: ...


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
    return 0 if isinstance(value, Expr) else value


def _common(op: Row, operands: Sequence[Argument]) -> DType:
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
            _check_fits(op.name, value, common, "cast the tile with tl.cast")
    return common


def check_value(what: str, value: Expr | Scalar, dtype: DType) -> None:
    """Refuse a number that a new tile of `dtype` does not hold.

    Raises:
      DTypeError: at the kernel's line; `what` names the argument.
    """
    if isinstance(value, float) and dtype.kind != "float":
        raise errors.DTypeError(
            f"{what}: {value!r} is no value of {dtype}",
            site=here(),
            remedy="Give a float dtype or an integer value",
        )
    _check_fits(what, value, dtype, "give another dtype")


def _check_fits(what: str, value: Expr | Scalar, dtype: DType, instead: str) -> None:
    """A weak integer must be a value of the tile's type."""
    if isinstance(value, Expr):  # symbolic integers are proven to be int32
        low, high = expr.bounds(value)
        low, high = max(low, -(2**31)), min(high, 2**31 - 1)
    elif isinstance(value, int):
        low = high = int(value)
    else:
        return
    if not (dtype.holds(low) and dtype.holds(high)) or max(-low, high) >= 1 << 1023:
        raise errors.DTypeError(
            f"{what}: the scalar {value} is no value of {dtype}",
            site=here(),
            remedy=f"Use a value that {dtype} holds, or {instead}",
        )


def _check_kinds(op: Row, found: Sequence[DType]) -> None:
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
        if of_integers is not None and common.kind != "float":
            common = of_integers
        _check_kinds(op, [common])
        shape = broadcast_shapes(op.name, [tile.shape for tile in _tiles(operands)])
        return Signature(shape, result or common, (common,) * len(operands))

    return rule


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


def reduction(accumulates: bool) -> Rule:
    """Drop `axis` (None: all axes) or keep it as 1; `accumulates`: bool and small
    integers give int32."""

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
    normalised_axis(op.name, attrs["axis"], len(tile.shape))
    return Signature(tile.shape, tile.dtype, (FLOAT32,))


def dot(op: Row, operands: Sequence[Argument], attrs: Mapping[str, Any]) -> Signature:
    del attrs
    tiles = _tiles(operands)
    if len(tiles) != 2:
        raise errors.DTypeError(
            "dot multiplies two tiles", site=here(), allowed="two tiles of 2 axes"
        )
    a, b = tiles
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
    common = dtypes.promote(a.dtype, b.dtype)
    accumulator = dtypes.of(common.accumulator)
    return Signature((a.shape[0], b.shape[1]), accumulator, (common, common))


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
