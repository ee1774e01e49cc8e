"""Equal iterations in a block of statements: where it repeats, how far its integers are
affine in the iteration, and from which iteration to which its tiles are its own.

Iterations are `period` statements long. The integers of all statements lie in
one array; those of equal statements, one period apart, are affine where their second
differences are 0, so one pass finds where every run ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kbjax.fingerprint import INT32, Fingerprint
from kbjax.program import Statement

# How many of a statement's next equals are tried as the start of the next iteration.
_MOST_PERIODS = 32
# An integer that takes turns (j % 2) is affine over as many iterations as turns.
MOST_TOGETHER = 8


class Repeats:
    """Where a sequence of numbers repeats."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)
        self._array = np.asarray(self._numbers, np.int64)
        self._breaks: dict[int, list[int]] = {}

    @cached_property
    def _next(self) -> list[int]:
        """The next place of the same number; the length where there is none."""
        seen: dict[int, int] = {}
        found = [0] * len(self._numbers)
        for place in range(len(found) - 1, -1, -1):
            number = self._numbers[place]
            found[place] = seen.get(number, len(found))
            seen[number] = place
        return found

    def at(self, place: int, fewest: int) -> Iterator[tuple[int, int, int]]:
        """Periods with which the sequence repeats from `place` on, `fewest` times at
        least, the shortest first: (period, start, end) with the whole stretch around
        the place. Multiples, which reach no further, are left out."""
        length = len(self._numbers)
        found: list[int] = []
        other = place
        for _ in range(_MOST_PERIODS):
            other = self._next[other]
            period = other - place
            if place + fewest * period > length:
                return
            if found and any([period % one == 0 for one in found]):
                continue
            if not self._may_repeat(place, period, fewest):
                continue
            start, end = self._stretch(place, period)
            if end - place >= fewest * period:
                found.append(period)
                yield period, start, end

    def _may_repeat(self, place: int, period: int, fewest: int) -> bool:
        last = place + (fewest - 1) * period
        return len(set(self._numbers[place : last + 1 : period])) == 1

    def _stretch(self, place: int, period: int) -> tuple[int, int]:
        if period not in self._breaks:
            a, b = self._array[:-period], self._array[period:]
            self._breaks[period] = [*np.flatnonzero(a != b).tolist(), len(a)]
        breaks = self._breaks[period]
        at = bisect_left(breaks, place)
        return (breaks[at - 1] + 1 if at else 0), breaks[at] + period


@dataclass(frozen=True)
class Run:
    """`trips` equal iterations of `period` statements from `start`."""

    start: int
    period: int
    trips: int

    @property
    def end(self) -> int:
        return self.start + self.trips * self.period

    @property
    def statements(self) -> int:
        return self.trips * self.period


@dataclass(frozen=True)
class Links:
    """Which pairs of iterations may be two of one loop; rows are iterations, columns
    references.

    Attributes:
      first: the place of the first iteration.
      period: statements of one.
      roots: (rows, columns) int64.
      own: (rows, columns): whether every use of the root is in this iteration.
      moved: (rows - 1, columns): whether the next iteration has another root.
      steady: (rows - 1,): whether all cursors move by the same.
      alike: (rows - 1,): whether references name equal and different roots alike.
      moves_along: (rows - 1, columns): whether what moves does so as the cursor.
    """

    first: int
    period: int
    roots: np.ndarray
    own: np.ndarray
    moved: np.ndarray
    steady: np.ndarray
    alike: np.ndarray
    moves_along: np.ndarray

    @cached_property
    def _breaks(self) -> list[int]:
        fixed_or_own = ~self.moved | self.own[1:] & self.own[:-1] & self.moves_along
        links = fixed_or_own.all(axis=1) & self.steady & self.alike
        return [*np.flatnonzero(~links).tolist(), len(links)]

    def rows_from(self, place: int) -> int:
        """How many iterations from the one at `place` on may be of one loop."""
        row = (place - self.first) // self.period
        return self._breaks[bisect_left(self._breaks, row)] - row + 1


@dataclass
class Iterations:
    """A block and what repeats in it.

    Attributes:
      prints: the fingerprints of its statements.
      uses: how often each root is used in the whole program, by uid; the end of the
        kernel, if it is alive then, is one use.
      is_inside: whether a root was made in the loops around the block.
    """

    prints: Sequence[Fingerprint]
    uses: np.ndarray
    is_inside: Callable[[int], bool]
    _begins: dict[tuple[int, int, int], list[bool]] = field(default_factory=dict)
    _until: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)
    _links: dict[tuple[int, int, int], Links] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every = self.prints
        self.repeats = Repeats([one.number for one in every])
        # `integer_ends[n]`: how many integers the first n statements have.
        self.integer_ends = np.cumsum([0, *(len(one.integers) for one in every)])
        self.root_ends = np.cumsum([0, *(len(one.roots) for one in every)])
        self.integers = np.array([x for one in every for x in one.integers], np.int64)
        self.roots = np.array([x for one in every for x in one.roots], np.int64)
        inside = [self.is_inside(root) for root in np.unique(self.roots).tolist()]
        self._inside = np.zeros(len(self.uses), np.bool_)
        self._inside[np.unique(self.roots)] = inside

    def longest(self, place: int, fewest: int) -> Run | None:
        """The run from `place` on that holds the most statements, `fewest` iterations
        at least; the one of the shortest iterations, where several do."""
        best: Run | None = None
        for base, start, end in self.repeats.at(place, fewest):
            if not self._may_begin(base, start, end, fewest)[place - start]:
                continue
            for together in range(1, MOST_TOGETHER + 1):
                period = base * together
                if place + fewest * period > end:
                    break
                until = int(self.affine_until(period, start, end)[place - start])
                trips = (until - place) // period
                if trips < fewest:
                    continue
                links = self.links(place, period, start, end)
                run = Run(place, period, min(trips, links.rows_from(place)))
                if run.trips < fewest or not self._keeps_int32(run):
                    continue
                if best is None or run.statements > best.statements:
                    best = run
        return best

    def _may_begin(self, base: int, start: int, end: int, fewest: int) -> list[bool]:
        """For each place of a stretch, whether iterations of some period are affine
        from there on."""
        key = (start, end, base)
        if key not in self._begins:
            places = np.arange(start, end)
            found = np.zeros(end - start, np.bool_)
            for together in range(1, MOST_TOGETHER + 1):
                period = base * together
                if end - start < fewest * period:
                    break
                until = self.affine_until(period, start, end)
                found |= until - places >= fewest * period
            self._begins[key] = found.tolist()
        return self._begins[key]

    def affine_until(self, period: int, start: int, end: int) -> np.ndarray:
        """For each place of a stretch: from there to which statement all integers are
        affine in the iteration."""
        key = (start, end, period)
        if key not in self._until:
            width = self._width(start, period)
            ends = self.integer_ends[start : end + 1]
            low, high = int(ends[0]), int(ends[-1])
            x = self.integers[low:high]
            second = x[2 * width :] - 2 * x[width:-width] + x[: -2 * width]
            bad = np.append(np.flatnonzero(second) + low, high - 2 * width)
            at = np.minimum(np.searchsorted(bad, ends[:-1]), len(bad) - 1)
            reached = np.searchsorted(ends, bad[at] + 2 * width, "right") - 1
            self._until[key] = start + reached
        return self._until[key]

    def links(self, place: int, period: int, start: int, end: int) -> Links:
        """Of the iterations in the stretch, one of which begins at `place`."""
        first = start + (place - start) % period
        key = (first, end, period)
        if key not in self._links:
            self._links[key] = self._linked(first, period, (end - first) // period)
        return self._links[key]

    def _linked(self, first: int, period: int, rows: int) -> Links:
        kinds = self._kinds(first, period)
        steps = np.diff(
            self._rows(self.integers, self.integer_ends, first, period, rows), axis=0
        )
        cursors, made = steps[:, kinds == "cursor"], steps[:, kinds == "root"]
        grown = cursors[:, :1]  # a loop's trip may come first, but commands follow
        roots = self._rows(self.roots, self.root_ends, first, period, rows)
        row = np.arange(rows)[:, None]
        _, firsts, inverse, counts = np.unique(
            row * len(self.uses) + roots,
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        inverse = inverse.reshape(roots.shape)
        labels = firsts[inverse] - row * roots.shape[1]
        own = (self.uses[roots] == counts[inverse]) & self._inside[roots]
        return Links(
            first=first,
            period=period,
            roots=roots,
            own=own,
            moved=roots[1:] != roots[:-1],
            steady=(cursors == grown).all(axis=1),
            alike=(labels[1:] == labels[:-1]).all(axis=1),
            moves_along=made == grown,
        )

    def steps(self, run: Run) -> np.ndarray:
        """By how much each integer of a run's iteration moves to the next one."""
        rows = self._rows(self.integers, self.integer_ends, run.start, run.period, 2)
        return rows[1] - rows[0]

    def growth_bytes(self, run: Run) -> int:
        """How much higher each iteration of a run leaves the cursor."""
        return int(self.steps(run)[self._kinds(run.start, run.period) == "cursor"][0])

    def roots_of(self, run: Run) -> np.ndarray:
        """(trips, references) of the roots."""
        return self._rows(self.roots, self.root_ends, run.start, run.period, run.trips)

    def _keeps_int32(self, run: Run) -> bool:
        """Replay computes ``first + step * iteration`` in int32."""
        return bool((np.abs(self.steps(run)) * run.trips < INT32).all())

    def _kinds(self, place: int, period: int) -> np.ndarray:
        every = self.prints[place : place + period]
        return np.array([kind for one in every for kind in one.kinds])

    def _width(self, place: int, period: int) -> int:
        return int(self.integer_ends[place + period] - self.integer_ends[place])

    def _rows(
        self, x: np.ndarray, ends: np.ndarray, first: int, period: int, rows: int
    ) -> np.ndarray:
        low, high = ends[first], ends[first + rows * period]
        return x[low:high].reshape(rows, -1)


def lines_repeat(block: Sequence[Statement], fewest: int) -> bool:
    """Whether some kernel line has that many statements of the block."""
    if len(block) < fewest:
        return False
    counts: dict[tuple[str, int], int] = {}
    for item in block:
        line = item.site.file, item.site.line
        counts[line] = counts.get(line, 0) + 1
        if counts[line] >= fewest:
            return True
    return False
