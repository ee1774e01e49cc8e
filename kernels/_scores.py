"""From products of queries and keys to the scores of attention: what models change, and
which keys a query sees.

Grouped here so that a kernel's loop reads as that of plain attention: it asks which
tiles to sweep, and what to make of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import kbjax as kb
from kbjax.names import shown

# What a score can be divided by and multiplied with again in float32.
LEAST_CAP, MOST_CAP = 1e-30, 1e30


@dataclass(frozen=True)
class Scores:
    """What becomes of the scaled products of a block of queries with a tile of keys:
    capped, biased by ALiBi, and masked (`of`), in this order.

    Query row r and key column c are `c - r - shift` positions apart, where `shift` is
    the column of row 0's own token.

    Attributes:
      causal: a query sees no key after its own token.
      window: a query sees only keys less than this far from its own token, which
        counts: W in all where it is causal, else W - 1 on either side and its own; 0:
        all.
      softcap: scores become softcap * tanh(score / softcap), as in Gemma 2; 0: stay.
    """

    causal: bool
    window: int = 0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool | np.bool_):
            raise kb.DTypeError("causal is true or false", got=repr(self.causal))
        if not _is_number(self.window, int, np.integer) or self.window < 0:
            raise kb.ShapeError(
                "window is a number of keys", got=repr(self.window), allowed=">= 0"
            )
        numbers = int, float, np.integer, np.floating
        cap = self.softcap
        if not _is_number(cap, *numbers) or not (
            cap == 0 or LEAST_CAP <= cap <= MOST_CAP
        ):
            raise kb.ShapeError(
                "softcap is the largest score",
                got=shown(self.softcap),
                allowed=f"0, for none, or {LEAST_CAP:g} to {MOST_CAP:g}",
            )
        # As Python's own: symbolic integers and tiles take no NumPy scalars' types.
        object.__setattr__(self, "causal", bool(self.causal))
        object.__setattr__(self, "window", int(self.window))
        object.__setattr__(self, "softcap", float(self.softcap))

    def over(self, positions: int) -> Scores:
        """The same where tokens are less than `positions` apart: a window that holds
        them all is none."""
        return self if self.window < positions else replace(self, window=0)

    def of(
        self,
        tl: Any,
        s: Any,
        *,
        column: Any,
        distance: Any,
        shift: Any,
        last: Any,
        slope: Any,
        masked: bool,
    ) -> Any:
        """The scores of scaled products s, (rows, tile) float32; s is written over.

        Args:
          tl: the context.
          s: of a tile of keys.
          column: (1, tile) int32, c.
          distance: (rows, tile) int32, c - r; unused where positions do not matter.
          shift: an integer; may be symbolic.
          last: the column of the last key.
          slope: (1, 1) float32, ALiBi's bias for each position that the key is after
            the query's own token; None: no bias.
          masked: whether some row does not see all of the tile.
        """
        if self.softcap or slope is not None:
            with tl.scratch_scope("scores"):
                new = tl.tanh(s / self.softcap) * self.softcap if self.softcap else s
                if slope is not None:
                    new = new + slope * (distance - shift).to("float32")
                tl.copy_to(s, new)
        if masked:
            seen = self._visible(column, distance, shift, last)
            s = tl.where(seen, s, float("-inf"))
        return s

    def _visible(self, column: Any, distance: Any, shift: Any, last: Any) -> Any:
        """Where a row sees a column: bool, broadcasts to (rows, tile)."""
        seen = distance <= shift if self.causal else column <= last
        if self.window:
            seen = seen & (distance > shift - self.window)
            if not self.causal:
                seen = seen & (distance < shift + self.window)
        return seen

    def spans(
        self, tl: Any, begin: Any, end: Any, keys: int, tile: int
    ) -> list[tuple[Any, Any, bool]]:
        """The tiles that queries at positions `begin` to `end` - 1 see: runs of them,
        each from one tile up to another, and whether some row does not see all of it.
        """
        limit, seen = keys - 1, keys  # the last key that all rows see; all that some do
        if self.causal:
            limit, seen = begin, end
        elif self.window:
            limit = tl.minimum(begin + self.window - 1, limit)
            seen = tl.minimum(end + self.window - 1, seen)
        whole = tl.maximum(limit + 1, 0) // tile
        some = tl.cdiv(tl.maximum(seen, 0), tile)
        if not self.window:
            return [(0, whole, False), (whole, some, True)]
        # The window's older edge: row 0 sees from `first` on, all rows from `inner`.
        first = tl.maximum(begin - self.window + 1, 0) // tile
        inner = tl.cdiv(tl.maximum(end - self.window, 0), tile)
        whole = tl.maximum(inner, whole)  # a narrow window has both edges in a tile
        return [(first, inner, True), (inner, whole, False), (whole, some, True)]


def _is_number(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
