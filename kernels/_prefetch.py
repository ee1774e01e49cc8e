"""Tiles of several HBM arrays, loaded ahead of the loop that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LoadedAhead:
    """Tiles `first` to `end` - 1 of some arrays, each used once, in order. They are
    loaded `depth` - 1 ahead, into a circular buffer of `depth` slots for each array, of
    no more than `most`."""

    def __init__(
        self,
        tl: Any,
        depth: int,
        end: Any,
        views: Callable[[Any], tuple[Any, ...]],
        first: Any = 0,
        most: int | None = None,
    ) -> None:
        """`views(j)`: where tile j of each array is; what lies past an end is 0.
        `most`: how many tiles there are at most; `end` where None and a number."""
        if most is None and isinstance(end, int):
            most = end
        depth = depth if most is None else max(min(depth, most), 1)
        self.tl, self.depth, self.end, self.views = tl, depth, end, views
        self.buffers = [tl.circular_buffer(depth, v.shape, v.dtype) for v in views(0)]
        for n in range(depth - 1):
            self._push(first + n)

    def ahead(self, j: Any) -> None:
        """Begin the loads that are due at tile j."""
        self._push(j + self.depth - 1)

    def pop(self, array: int) -> Any:
        """The next tile of one of the arrays."""
        return self.buffers[array].pop()

    def next(self, j: Any) -> list[Any]:
        """Tile j of each array."""
        self.ahead(j)
        return [buffer.pop() for buffer in self.buffers]

    def _push(self, j: Any) -> None:
        with self.tl.when(j < self.end):
            for buffer, view in zip(self.buffers, self.views(j), strict=True):
                buffer.push(view, other=0)
