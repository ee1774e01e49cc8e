"""Which bytes of which tiles have been written, while a kernel is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbjax import expr
from kbjax.domain import Domain
from kbjax.expr import Expr
from kbjax.refs import Ref

Ranges = tuple[tuple[int, int], ...]


@dataclass
class Written:
    """What is certain to have been written. Every change is logged, so that a loop
    which may not run can be taken back without a copy of the whole.

    Attributes:
      ranges: byte ranges by root, sorted and disjoint.
      symbolic: (root, offset, bytes) of writes whose offset holds an open loop's index,
        in order.
    """

    ranges: dict[int, Ranges] = field(default_factory=dict)
    symbolic: dict[tuple[int, Expr, int], None] = field(default_factory=dict)
    _log: list[tuple[int, Ranges] | tuple[int, Expr, int]] = field(default_factory=list)

    def mark(self) -> int:
        """What `rewind` goes back to."""
        return len(self._log)

    def rewind(self, mark: int) -> None:
        """As it was at the mark."""
        while len(self._log) > mark:
            change = self._log.pop()
            if len(change) == 3:
                self.symbolic.pop(change, None)
            elif change[1]:
                self.ranges[change[0]] = change[1]
            else:
                self.ranges.pop(change[0], None)

    def add(self, ref: Ref) -> None:
        """After a write of `ref`."""
        if ref.offset.is_const:
            self._add_range(ref.root, ref.offset.const, ref.nbytes)
            return
        entry = (ref.root, ref.offset, ref.nbytes)
        if entry not in self.symbolic:
            self.symbolic[entry] = None
            self._log.append(entry)

    def _add_range(self, root: int, low: int, nbytes: int) -> None:
        before = self.ranges.get(root, ())
        high, kept = low + nbytes, []
        for start, end in before:
            if end < low or start > high:
                kept.append((start, end))
            else:
                low, high = min(low, start), max(high, end)
        merged = tuple(sorted([*kept, (low, high)]))
        if merged != before:
            self._log.append((root, before))
            self.ranges[root] = merged

    def covers(self, ref: Ref) -> bool:
        """Whether a read of `ref` is certain to find every byte written."""
        if (ref.root, ref.offset, ref.nbytes) in self.symbolic:
            return True
        low, high = expr.bounds(ref.offset)
        return any(
            start <= low and high + ref.nbytes <= end
            for start, end in self.ranges.get(ref.root, ())
        )

    def leave(self, domain: Domain) -> None:
        """Once only the loops of `domain` are open: writes at the indices of loops that
        have ended, and that ran, are those of all their iterations."""
        for entry in [*self.symbolic]:
            root, offset, nbytes = entry
            loops = sorted(expr.variables(offset), key=lambda v: v.uid)
            if any(loop in domain.loops or loop.is_pe for loop in loops):
                continue
            del self.symbolic[entry]
            for low in Domain(tuple(loops)).values(offset):
                self._add_range(root, low, nbytes)
