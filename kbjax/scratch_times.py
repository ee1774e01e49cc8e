"""When the bytes of the scratch were last written and read, by pieces.

A `Form` is a time in picoseconds (or a command's number) as a linear form: its value
now, then how much it moves a step of each loop that is being jumped over, outermost
first. Forms compare as tuples, so that of two that are equal now the faster is larger.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

Form = tuple[int, ...]


class Moment(NamedTuple):
    """When a command ends, and its number; the number is -1 before all commands."""

    time: Form
    number: Form


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


def never(components: int) -> Piece:
    """Bytes that no command has used, with forms of so many components."""
    still = (0,) * (components - 1)
    return Piece(Moment((0, *still), (-1, *still)))


class ScratchTimes:
    """Pieces that cover the scratch: piece i holds bytes ``starts[i]`` to
    ``starts[i + 1]``, the last one all above."""

    def __init__(self, starts: list[int], pieces: list[Piece]) -> None:
        self.starts, self.pieces = starts, pieces

    @classmethod
    def fresh(cls) -> ScratchTimes:
        return cls([0], [never(1)])

    def copy(self) -> ScratchTimes:
        return ScratchTimes(self.starts.copy(), self.pieces.copy())

    def split(self, at: int) -> int:
        """The number of the piece that starts at byte `at`."""
        found = bisect_left(self.starts, at)
        if found == len(self.starts) or self.starts[found] != at:
            self.starts.insert(found, at)
            self.pieces.insert(found, self.pieces[found - 1])
        return found

    def within(self, start: int, stop: int) -> list[Piece]:
        """The pieces that hold some of the bytes."""
        first = bisect_right(self.starts, start) - 1
        return self.pieces[first : bisect_left(self.starts, stop, first)]

    def read(self, start: int, stop: int, engine: str, moment: Moment) -> None:
        first, last = self.split(start), self.split(stop)
        for at in range(first, last):
            writer, readers = self.pieces[at]
            others = [one for one in readers if one[0] != engine]
            now = (
                tuple(sorted([*others, (engine, moment)]))
                if others
                else ((engine, moment),)
            )
            self.pieces[at] = Piece(writer, now)

    def write(self, start: int, stop: int, moment: Moment) -> None:
        self.overwrite(start, stop, [start], [Piece(moment)])

    def overwrite(
        self, start: int, stop: int, starts: list[int], pieces: list[Piece]
    ) -> None:
        """Replace the bytes' pieces by others that cover them."""
        first, last = self.split(start), self.split(stop)
        self.starts[first:last] = starts
        self.pieces[first:last] = pieces
