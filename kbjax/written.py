"""Which bytes of which tiles have been written, while a kernel is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbjax import expr
from kbjax.domain import Domain
from kbjax.expr import Expr
from kbjax.program import Ref

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Written:
    """What is certain to have been written.

    Attributes:
      ranges: byte ranges by root, sorted and disjoint.
      symbolic: (root, offset, bytes) of writes whose offset holds an open loop's index.
    """

    ranges: Mapping[int, Ranges] = field(default_factory=dict)
    symbolic: frozenset[tuple[int, Expr, int]] = frozenset()

    def with_bytes(self, ref: Ref) -> Written:
        """After a write of `ref`."""
        if not ref.offset.is_const:
            entry = (ref.root, ref.offset, ref.nbytes)
            return Written(self.ranges, self.symbolic | {entry})
        return self._with_range(ref.root, ref.offset.const, ref.nbytes)

    def _with_range(self, root: int, low: int, nbytes: int) -> Written:
        high, kept = low + nbytes, []
        for start, end in self.ranges.get(root, ()):
            if end < low or start > high:
                kept.append((start, end))
            else:
                low, high = min(low, start), max(high, end)
        merged = tuple(sorted([*kept, (low, high)]))
        return Written({**self.ranges, root: merged}, self.symbolic)

    def covers(self, ref: Ref) -> bool:
        """Whether a read of `ref` is certain to find every byte written."""
        if (ref.root, ref.offset, ref.nbytes) in self.symbolic:
            return True
        low, high = expr.bounds(ref.offset)
        return any(
            start <= low and high + ref.nbytes <= end
            for start, end in self.ranges.get(ref.root, ())
        )

    def outside(self, domain: Domain) -> Written:
        """What is certain once only the loops of `domain` are open: writes at the
        indices of loops that have ended are those of all their iterations."""
        result = Written(self.ranges)
        kept = set()
        for root, offset, nbytes in self.symbolic:
            loops = sorted(expr.variables(offset), key=lambda v: v.uid)
            if any(loop in domain.loops or loop.uid == 0 for loop in loops):
                kept.add((root, offset, nbytes))
                continue
            for low in Domain(tuple(loops)).values(offset):
                result = result._with_range(root, low, nbytes)
        return Written(result.ranges, frozenset(kept))
