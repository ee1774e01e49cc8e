"""CircularBuffer: slots that are loaded and used in turn (`tl.circular_buffer`)."""

from __future__ import annotations

from typing import Any

from kbjax.dtypes import DType, Shape
from kbjax.futures import LoadFuture
from kbjax.handle import TensorHandle
from kbjax.refs import Scalar
from kbjax.site import Site
from kbjax.views import HbmView


class CircularBuffer:
    """`depth` tiles of one shape and dtype. Push number n, from 0, fills slot n modulo
    the depth; pops take the tiles in the order of the pushes.

    It may be used in a `tl.range` body: how many tiles it was given is part of the
    program, not Python state.
    """

    __slots__ = ("_context", "tile")

    def __init__(self, context: Any, tile: TensorHandle) -> None:
        """`tile`: all slots, (depth, *shape)."""
        self._context, self.tile = context, tile

    @property
    def depth(self) -> int:
        return self.tile.shape[0]

    @property
    def shape(self) -> Shape:
        """Of a tile."""
        return self.tile.shape[1:]

    @property
    def dtype(self) -> DType:
        return self.tile.dtype

    @property
    def site(self) -> Site:
        """The kernel line that made it."""
        return self.tile.site

    def push(self, view: HbmView, other: Scalar | None = None) -> LoadFuture:
        """Begin to load a view into the next slot.

        Args:
          view, other: as of `tl.load`; the view has the buffer's shape and dtype.

        Raises:
          HazardError: where `depth` tiles are in it that have not been popped.
        """
        return self._context.push(self, view, other)

    def pop(self) -> TensorHandle:
        """The oldest tile, once its data is there. It may be used until its slot is
        pushed again, `depth` pushes after its own.

        Raises:
          HazardError: where no tile is in it.
        """
        return self._context.pop(self)

    def __str__(self) -> str:
        return f"circular_buffer of {self.depth} tiles made at {self.site}"

    __repr__ = __str__
