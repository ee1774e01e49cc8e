"""The one table of element types: name, bytes, kind, accumulator, fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from kbjax import errors

Kind = Literal["bool", "int", "float", "float8"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class DType:
    """An element type that lives in TCM and HBM.

    Attributes:
      name: as spelled by users and by `numpy.dtype(...).name`.
      nbytes: size of one element.
      kind: promotion kind; bool < int < float. A float8 meets only its own type.
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
    def is_float(self) -> bool:
        return self.kind in ("float", "float8")

    @property
    def eps(self) -> float:
        """What the last bit of 1.0 is worth; 0 for integers and bool."""
        return float(ml_dtypes.finfo(self.numpy).eps) if self.is_float else 0.0

    @property
    def never_stored(self) -> float | int | bool:
        """What an output element reads as when no store reached it: NaN, or the
        smallest integer."""
        if self.is_float:
            return float("nan")
        return False if self.kind == "bool" else int(np.iinfo(self.numpy).min)

    @property
    def integers(self) -> tuple[int, int] | None:
        """The lowest and the highest integer that is a value, rounded; None where every
        one is."""
        if self.name == "float8_e4m3fn":  # which has no infinity: more is NaN
            return -464, 464
        if self.is_float:
            return None
        if self.kind == "bool":
            return 0, 1
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    def holds(self, value: int | float) -> bool:
        """Whether a number, rounded, is a value of this type: an integer that fits, or
        what does not become NaN."""
        if self.integers is not None and not self.is_float:
            return self.integers[0] <= value <= self.integers[1]
        if not -(2.0**1023) < value < 2.0**1023:  # infinities, NaN, what NumPy refuses
            return isinstance(value, float) and (value != value or self.has_infinity)
        with np.errstate(all="ignore"):
            return not np.isnan(np.asarray(float(value)).astype(self.numpy))

    @property
    def has_infinity(self) -> bool:
        return self.is_float and self.name != "float8_e4m3fn"


def type_text(shape: Shape, dtype: DType) -> str:
    """``float32[8,128]``."""
    return f"{dtype}[{','.join(map(str, shape))}]"


_NUMPY = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}

TABLE: dict[str, DType] = {
    row.name: row
    for row in (
        DType("float32", 4, "float", "float32"),
        DType("float16", 2, "float", "float32"),
        DType("bfloat16", 2, "float", "float32"),
        DType("float8_e4m3fn", 1, "float8", "float32"),
        DType("float8_e5m2", 1, "float8", "float32"),
        DType("int32", 4, "int", "int32"),
        DType("int16", 2, "int", "int32"),
        DType("int8", 1, "int", "int32"),
        DType("uint8", 1, "int", "int32"),
        DType("bool", 1, "bool", "int32"),
    )
}
FLOAT32, INT32, BOOL = TABLE["float32"], TABLE["int32"], TABLE["bool"]
_RANK = {"bool": 0, "int": 1, "float": 2, "float8": 3}


def of(spec: object) -> DType:
    """The row of a dtype given as a name, NumPy/JAX dtype, scalar type or `DType`.

    Raises:
      DTypeError: without a site; it lists the accepted names.
    """
    if isinstance(spec, DType):
        return spec
    name = spec if isinstance(spec, str) else None
    if spec is None:  # which NumPy takes for float64
        name = "None"
    elif name is None:
        try:
            name = np.dtype(spec).name  # type: ignore[call-overload]
        except (TypeError, ValueError):  # the latter for what has a `dtype` of its own
            name = str(spec)
    if name not in TABLE:
        raise errors.DTypeError(
            f"unknown element type {name!r}", allowed=", ".join(TABLE)
        )
    return TABLE[name]


def promote(a: DType, b: DType) -> DType | None:
    """The common type of two tiles, as `jax.numpy` has it; None where a float8 meets
    another number type."""
    if a == b:
        return a
    if "float8" in (a.kind, b.kind) and "bool" not in (a.kind, b.kind):
        return None
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.nbytes != b.nbytes:
        return a if a.nbytes > b.nbytes else b
    # float16 and bfloat16, int8 and uint8: neither holds the other's values.
    return FLOAT32 if a.kind == "float" else TABLE["int16"]


def with_scalar(tile: DType, value: bool | int | float) -> DType:
    """The type of tile-op-scalar: a scalar is weak, and widens only by kind."""
    if isinstance(value, bool):
        return tile
    if isinstance(value, int):
        return INT32 if tile.kind == "bool" else tile
    return tile if tile.is_float else FLOAT32
