"""Which bytes of which tiles have been written, while a kernel is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbjax.program import Ref

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Written:
    """Byte ranges by root, sorted and disjoint. A write or read at a symbolic offset
    counts as the whole tile: where it lies is not known before phase 2, which shows
    unwritten bytes as 0xFF."""

    ranges: Mapping[int, Ranges] = field(default_factory=dict)

    def with_bytes(self, ref: Ref) -> Written:
        """After a write of `ref`."""
        low, high = _bytes(ref)
        kept = []
        for start, end in self.ranges.get(ref.root, ()):
            if end < low or start > high:
                kept.append((start, end))
            else:
                low, high = min(low, start), max(high, end)
        merged = tuple(sorted([*kept, (low, high)]))
        return Written({**self.ranges, ref.root: merged})

    def covers(self, ref: Ref) -> bool:
        """Whether a read of `ref` finds every byte written."""
        ranges = self.ranges.get(ref.root, ())
        if not ref.offset.is_const:
            return bool(ranges)
        low, high = _bytes(ref)
        return any(start <= low and high <= end for start, end in ranges)


def _bytes(ref: Ref) -> tuple[int, int]:
    if not ref.offset.is_const:
        return 0, 1 << 62
    return ref.offset.const, ref.offset.const + ref.nbytes
