"""References: what commands read and write. Bytes of an allocation (`Ref`) or of an HBM
tensor (`HbmRef`), affine in the indices of the loops around them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from kbjax import expr
from kbjax.dtypes import DType, Shape
from kbjax.expr import Expr


@dataclass(frozen=True)
class Ref:
    """Contiguous bytes of allocation `root`, starting `offset` bytes into it."""

    root: int
    offset: Expr
    shape: Shape
    dtype: DType

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        return self.size * self.dtype.nbytes

    def __str__(self) -> str:
        at = "" if self.offset == expr.ZERO else f"+{self.offset}"
        return f"%{self.root}{at}"


@dataclass(frozen=True)
class Span:
    """One axis of an HBM view: `size` elements from `start`, or, where there is a tile
    `by` of one integer, from `start` plus what it holds when the command runs.

    `valid` is None where the span is proven to lie inside the tensor; else the range
    [low, high) of elements that exist.
    """

    start: Expr
    size: int
    valid: tuple[Expr, Expr] | None = None
    by: Ref | None = None

    def __str__(self) -> str:
        if self.by is not None:
            return f"{self.start}+[{self.by}]:+{self.size}"
        if self.start.is_const:
            return f"{self.start.const}:{self.start.const + self.size}"
        return f"{self.start}:+{self.size}"


@dataclass(frozen=True)
class HbmRef:
    """A view of HBM tensor `slot`: a span an axis of the tensor, and `axes`, which
    tensor axes the view shows, in its order (the others have size 1)."""

    slot: int
    name: str
    spans: tuple[Span, ...]
    axes: tuple[int, ...]
    dtype: DType

    @property
    def shape(self) -> Shape:
        return tuple(self.spans[axis].size for axis in self.axes)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.nbytes

    @property
    def by(self) -> tuple[Ref, ...]:
        """The tiles that say where it starts."""
        return tuple(span.by for span in self.spans if span.by is not None)

    @property
    def has_tail(self) -> bool:
        return any(span.valid is not None for span in self.spans)

    def __str__(self) -> str:
        shown = f"{self.name}[{', '.join(map(str, self.spans))}]"
        return shown if list(self.axes) == sorted(self.axes) else f"{shown}.T"


Scalar = bool | int | float
Operand = Ref | Expr | Scalar  # of an op
