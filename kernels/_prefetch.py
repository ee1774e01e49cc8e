"""Tiles of several HBM arrays, loaded ahead of the loop that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Prefetched:
    """Tiles 0 to `count` - 1 of some arrays, each used once, in order. They are loaded
    `depth` - 1 tiles ahead, into a circular buffer of `depth` slots for each array."""

    def __init__(
        self,
        tl: Any,
        depth: int,
        count: Any,
        views: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        """`views(j)`: where tile j of each array is; what lies past an end is 0."""
        self.tl, self.depth, self.count, self.views = tl, depth, count, views
        self.buffers = [tl.circular_buffer(depth, v.shape, v.dtype) for v in views(0)]
        for first in range(depth - 1):
            self._push(first)

    def next(self, j: Any) -> list[Any]:
        """Tile j of each array."""
        self._push(j + self.depth - 1)
        return [buffer.pop() for buffer in self.buffers]

    def _push(self, j: Any) -> None:
        with self.tl.when(j < self.count):
            for buffer, view in zip(self.buffers, self.views(j), strict=True):
                buffer.push(view, other=0)
