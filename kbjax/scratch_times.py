"""When the bytes of the scratch were last written and read, by pieces."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from kbjax.forms import Moment, never


class Piece(NamedTuple):
    """Bytes with one history: their last writer, and who has read them since, by
    engine: an engine works in order, so its last reader is the latest."""

    writer: Moment
    readers: tuple[tuple[str, Moment], ...] = ()

    def moments(self) -> Iterator[Moment]:
        yield self.writer
        for _, moment in self.readers:
            yield moment

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(engine for engine, _ in self.readers)


class ScratchTimes:
    """Pieces that cover the scratch: piece i holds bytes ``starts[i]`` to
    ``starts[i + 1]``, the last one all above."""

    def __init__(self, starts: list[int], pieces: list[Piece]) -> None:
        self.starts, self.pieces = starts, pieces

    @classmethod
    def fresh(cls) -> ScratchTimes:
        return cls([0], [Piece(never(1))])

    def copy(self) -> ScratchTimes:
        return ScratchTimes(self.starts.copy(), self.pieces.copy())

    def split(self, at: int) -> int:
        """The number of the piece that starts at byte `at`."""
        found = bisect_left(self.starts, at)
        if found == len(self.starts) or self.starts[found] != at:
            self.starts.insert(found, at)
            self.pieces.insert(found, self.pieces[found - 1])
        return found

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The numbers of the first and past the last piece that make up the bytes."""
        first = self.split(start)
        last = first + 1
        if last == len(self.starts) or self.starts[last] != stop:
            last = self.split(stop)
        return first, last

    def within(self, start: int, stop: int) -> list[Piece]:
        """The pieces that make up the bytes."""
        first, last = self.span(start, stop)
        return self.pieces[first:last]

    def read(self, start: int, stop: int, engine: str, moment: Moment) -> None:
        first, last = self.span(start, stop)
        mine = (engine, moment)
        for at in range(first, last):
            writer, readers = self.pieces[at]
            others = [one for one in readers if one[0] != engine]
            now = tuple(sorted([*others, mine])) if others else (mine,)
            self.pieces[at] = Piece(writer, now)

    def write(self, start: int, stop: int, moment: Moment) -> None:
        first, last = self.span(start, stop)
        self.starts[first:last] = (start,)
        self.pieces[first:last] = (Piece(moment),)
