"""The one table of element types: name, bytes, kind, accumulator, fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from kbjax import errors

Kind = Literal["bool", "int", "float"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class DType:
    """An element type that lives in TCM and HBM.

    Attributes:
      name: as spelled by users and by `numpy.dtype(...).name`.
      nbytes: size of one element.
      kind: promotion kind; bool < int < float.
      accumulator: the type in which `dot` and `sum` add elements of this type.
    """

    name: str
    nbytes: int
    kind: Kind
    accumulator: str

    def __str__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(_NUMPY.get(self.name, self.name))

    @property
    def never_stored(self) -> float | int | bool:
        """What an output element reads as when no store reached it: NaN, or the
        smallest integer."""
        if self.kind == "float":
            return float("nan")
        return False if self.kind == "bool" else int(np.iinfo(self.numpy).min)

    def holds(self, value: int) -> bool:
        """Whether an integer fits (floats take every integer, with rounding)."""
        if self.kind == "float":
            return True
        if self.kind == "bool":
            return value in (0, 1)
        info = np.iinfo(self.numpy)
        return int(info.min) <= value <= int(info.max)


def type_text(shape: Shape, dtype: DType) -> str:
    """``float32[8,128]``."""
    return f"{dtype}[{','.join(map(str, shape))}]"


_NUMPY = {"bfloat16": ml_dtypes.bfloat16}

TABLE: dict[str, DType] = {
    row.name: row
    for row in (
        DType("float32", 4, "float", "float32"),
        DType("float16", 2, "float", "float32"),
        DType("bfloat16", 2, "float", "float32"),
        DType("int32", 4, "int", "int32"),
        DType("bool", 1, "bool", "int32"),
    )
}
FLOAT32, INT32, BOOL = TABLE["float32"], TABLE["int32"], TABLE["bool"]
_RANK = {"bool": 0, "int": 1, "float": 2}


def of(spec: object) -> DType:
    """The row of a dtype given as a name, NumPy/JAX dtype, scalar type or `DType`.

    Raises:
      DTypeError: without a site; it lists the accepted names.
    """
    if isinstance(spec, DType):
        return spec
    name = spec if isinstance(spec, str) else None
    if name is None:
        try:
            name = np.dtype(spec).name  # type: ignore[call-overload]
        except TypeError:
            name = str(spec)
    if name not in TABLE:
        raise errors.DTypeError(
            f"unknown element type {name!r}", allowed=", ".join(TABLE)
        )
    return TABLE[name]


def promote(a: DType, b: DType) -> DType:
    """The common type of two tiles, as `jax.numpy` has it."""
    if a == b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    # Two floats of 16 bits have no 16-bit type in common.
    return a if a.nbytes > b.nbytes else b if b.nbytes > a.nbytes else FLOAT32


def with_scalar(tile: DType, value: bool | int | float) -> DType:
    """The type of tile-op-scalar: a scalar is weak, and widens only by kind."""
    if isinstance(value, bool):
        return tile
    if isinstance(value, int):
        return INT32 if tile.kind == "bool" else tile
    return tile if tile.kind == "float" else FLOAT32
