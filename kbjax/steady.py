"""When a loop's iterations repeat: the machine between two of them, what one hands to
the next, and where a jump over many of them leaves it.

In a loop that leaves the cursor higher each time, allocations move up an iteration:
what an iteration sees of them is told from the cursor at its begin (`Frame.base`).
Bytes below it have been left behind; bytes above that the loop has not written yet hold
what came before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbjax import forms
from kbjax.forms import Moment, less, stepped
from kbjax.scratch_times import Piece, ScratchTimes
from kbjax.site import Site

Change = Callable[[Moment], Moment]
LONGEST_PERIOD = 16  # iterations; a buffer of more slots is timed one by one

WALKED = 64  # iterations one by one that are worth a note


@dataclass(frozen=True)
class Walk:
    """A loop that was timed iteration by iteration, and why."""

    site: Site
    iterations: int
    reason: str

    def __str__(self) -> str:
        return (
            f"loop at {self.site} timed one by one for {self.iterations:,} iterations: "
            f"{self.reason}"
        )


class Instant(NamedTuple):
    """The machine between two commands: when engines are free, bytes were used, and
    the next command's number."""

    free: Mapping[str, Moment]
    scratch: ScratchTimes
    number: int

    @property
    def clock(self) -> tuple[int, ...]:
        return (self.number, *(moment.time[0] for moment in self.free.values()))


class Frame(NamedTuple):
    """Where a loop's allocations lie at the begin of an iteration.

    `floor` is where they begin in iteration 0, `base` in this one; None and 0 for a
    loop that leaves the cursor as it was, whose addresses do not move. `first` is the
    number of the loop's first command.
    """

    floor: int | None
    base: int
    first: int


class View(NamedTuple):
    """What an iteration may see of an instant: pieces of scratch by their number,
    where they lie, and all moments of engines and of these pieces."""

    places: tuple[int, ...]
    shape: tuple[object, ...]
    moments: tuple[Moment, ...]


def view(instant: Instant, frame: Frame) -> View | None:
    """None where the loop has read what it has not written, in bytes that move on."""
    starts, pieces = instant.scratch.starts, instant.scratch.pieces
    shape: list[object] = []
    places: list[int] = []
    moments = list(instant.free.values())
    for at, (start, piece) in enumerate(zip(starts, pieces, strict=True)):
        if frame.floor is None or start < frame.floor:
            shape.append((start, piece.engines))
        elif start < frame.base:
            continue
        elif piece.writer.number[0] >= frame.first:
            stop = starts[at + 1] - frame.base
            shape.append((start - frame.base, stop, piece.engines))
        elif any(moment.number[0] >= frame.first for _, moment in piece.readers):
            return None
        else:
            continue
        places.append(at)
        moments += piece.moments()
    return View(tuple(places), tuple(shape), tuple(moments))


def foreign(instant: Instant, frame: Frame) -> tuple[Moment, ...]:
    """What bytes that the loop is yet to reach were used by before it."""
    if frame.floor is None:
        return ()
    pairs = zip(instant.scratch.starts, instant.scratch.pieces, strict=True)
    found = (
        moment
        for start, piece in pairs
        if start >= frame.base and piece.writer.number[0] < frame.first
        for moment in piece.moments()
    )
    return tuple({moment.time: moment for moment in found}.values())


def periods(
    past: Sequence[Instant], left: int, ready: Sequence[bool], whole: bool
) -> Iterator[int]:
    """How many iterations back the engines may have begun to repeat, shortest first.

    Args:
      past: the instants before the last iterations, and now.
      left: iterations to go.
      ready: whether a period of so many iterations may be tried.
      whole: whether it must hold in all of a full past, not just twice.
    """
    if whole and len(past) <= 2 * LONGEST_PERIOD:
        return
    clocks: list[tuple[int, ...]] = []
    for period in range(1, min(LONGEST_PERIOD, (len(past) - 1) // 2, left // 2) + 1):
        while len(clocks) <= 2 * period:
            clocks.append(past[-1 - len(clocks)].clock)
        now, once, twice = clocks[0], clocks[period], clocks[2 * period]
        moved = less(now, once)
        if not ready[period] or moved != less(once, twice):
            continue
        if whole:
            clocks += [one.clock for one in list(past)[::-1][len(clocks) :]]
            pairs = zip(clocks, clocks[period:], strict=False)
            if any(less(a, b) != moved for a, b in pairs):
                continue
        yield period


def changes(now: View, before: View) -> list[tuple[int, int]] | None:
    """By how much each moment's time and number have moved, or None where the two do
    not have the same pieces, or moved at a rate that depends on an outer loop."""
    if now.shape != before.shape:
        return None
    found = []
    for a, b in zip(now.moments, before.moments, strict=True):
        if a.time[1:] != b.time[1:] or a.number[1:] != b.number[1:]:
            return None
        found.append((a.time[0] - b.time[0], a.number[0] - b.number[0]))
    return found


def in_forms(instant: Instant, seen: View, moved: Sequence[tuple[int, int]]) -> Instant:
    """The instant with a component more in each form: by how much it moves a period."""
    moving = iter(moved)
    components = len(seen.moments[0].time) + 1

    def form(moment: Moment) -> Moment:
        return forms.moving(moment, *next(moving))

    free = {engine: form(moment) for engine, moment in instant.free.items()}
    still = instant.scratch.pieces
    still_too = functools.partial(forms.standing, components=components)
    pieces = [_each(piece, still_too) for piece in still]
    for at in seen.places:
        pieces[at] = _each(still[at], form)
    return Instant(
        free, ScratchTimes(instant.scratch.starts.copy(), pieces), instant.number
    )


def has_moved(before: View | None, after: View | None) -> bool:
    """Whether all is as it was, each moment moved by the last component of its form."""
    if before is None or after is None or before.shape != after.shape:
        return False
    return all(
        stepped(a.time) == b.time and stepped(a.number) == b.number
        for a, b in zip(before.moments, after.moments, strict=True)
    )


def landed(
    instant: Instant, frame: Frame, steps: int, growth: int, forget: bool
) -> Instant:
    """Where the machine is `steps` periods on, without the forms' last component.

    Args:
      instant: after a period in forms.
      frame: of that period's begin.
      steps: how many periods more.
      growth: by how many bytes a period moves the loop's allocations.
      forget: whether nothing may use the bytes that the periods leave behind: no scope
        gives them back, and the scope contract forbids to read them.
    """

    def ahead(moment: Moment) -> Moment:
        return forms.landed(moment, steps)

    free = {engine: ahead(moment) for engine, moment in instant.free.items()}
    starts, pieces = instant.scratch.starts, instant.scratch.pieces
    if frame.floor is None or not steps:
        there = ScratchTimes(starts, [_each(piece, ahead) for piece in pieces])
        return Instant(free, there, instant.number)
    own = [
        (start, starts[at + 1], pieces[at])
        for at, start in enumerate(starts)
        if start >= frame.base and pieces[at].writer.number[0] >= frame.first
    ]
    left_behind = [one for one in own if one[0] < frame.base + growth]
    old = ScratchTimes(starts, [_each(piece, ahead) for piece in pieces])
    begin = old.split(frame.base)
    there = ScratchTimes(old.starts[:begin], old.pieces[:begin])
    reached, first = frame.base, 0
    if forget:
        there.starts.append(reached)
        there.pieces.append(Piece(forms.never(len(free[next(iter(free))].time))))
        reached, first = reached + steps * growth, steps
    for k in range(first, steps + 1):
        then = functools.partial(forms.landed, steps=k)
        for start, stop, piece in own if k == steps else left_behind:
            start, stop = start + k * growth, stop + k * growth
            _take(there, old, reached, start)
            there.starts.append(start)
            there.pieces.append(_each(piece, then))
            reached = stop
    rest = old.split(reached)
    there.starts += old.starts[rest:]
    there.pieces += old.pieces[rest:]
    return Instant(free, there, instant.number)


def _take(to: ScratchTimes, old: ScratchTimes, first: int, stop: int) -> None:
    """Append what `old` has of bytes `first` to `stop`."""
    if first < stop:
        begin, end = old.split(first), old.split(stop)
        to.starts += old.starts[begin:end]
        to.pieces += old.pieces[begin:end]


def each_moment(instant: Instant, change: Change) -> Instant:
    """The instant with every moment changed."""
    free = {engine: change(moment) for engine, moment in instant.free.items()}
    pieces = [_each(piece, change) for piece in instant.scratch.pieces]
    there = ScratchTimes(instant.scratch.starts, pieces)
    return Instant(free, there, instant.number)


def _each(piece: Piece, change: Change) -> Piece:
    """The piece with its moments changed, in the order in which it tells them."""
    writer = change(piece.writer)
    return Piece(writer, tuple((engine, change(one)) for engine, one in piece.readers))
