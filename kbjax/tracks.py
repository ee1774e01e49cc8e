"""What a trace draws of an op_log, and on which track: slices, arrows, samples.

The rows that are drawn come as `Op`s, long loops as `FoldedOps`; `draw` is a pure
function of them. Knows no file format.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbjax.log_view import EngineSpan, FoldedOps, Item, Op

# The order of a PE's tracks; an engine that is not here comes after these.
GROUPS = ("scopes", "dma", "gemm", "math", "link", "wait")


@dataclass
class Scope:
    """A scope, as far as it is drawn: from the first start to the last end in it."""

    depth: int
    first: Item
    outer: Scope | None
    start_ps: int
    end_ps: int
    ops: int = 0
    cursor_bytes: int = -1  # at its last op that is in no inner scope


class Track(NamedTuple):
    """A lane of a group of tracks of a PE; lanes other than 0 take what overlaps."""

    pe: int
    group: str
    lane: int


What = Op | Scope | tuple[FoldedOps, EngineSpan]


class Slice(NamedTuple):
    """`what` says the rest. `dur_ps` is exact, or shorter by less than 1.5 ns where
    `shown_ps` says so."""

    track: Track
    start_ps: int
    dur_ps: int
    what: What


class Arrow(NamedTuple):
    """From a load to the first op that uses its bytes."""

    load: Op
    load_track: Track
    use: Op
    use_track: Track


class Sample(NamedTuple):
    """The cursor from `at_ps` on."""

    pe: int
    at_ps: int
    cursor_bytes: int


@dataclass
class Picture:
    """All that is drawn, and `cost`: how many of its events each item, by its row, is
    the reason for."""

    tracks: dict[Track, None] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    cost: Counter[int] = field(default_factory=Counter)

    @property
    def events(self) -> int:
        """Names of processes and tracks, two each, included."""
        return self.cost.total()


def draw(items: Iterable[Item]) -> Picture:
    """The picture of `items`, which are in the order of the log."""
    by_pe: dict[int, list[Item]] = {}
    for item in items:
        by_pe.setdefault(item.pe, []).append(item)
    picture = Picture()
    for pe, mine in by_pe.items():
        picture.cost[min(mine, key=_time).op] += 2
        _draw_scopes(picture, mine)
        _draw_engines(picture, mine)
        _draw_cursor(picture, pe, mine)
    return picture


def cut(
    items: Sequence[Item], picture: Picture, max_events: int
) -> tuple[list[Item], int]:
    """The items that start first and give `max_events` events, fewer than `items`; and
    when the first that is left out starts."""
    ordered = sorted(items, key=_time)
    kept: set[int] = set()
    for item in ordered[:-1]:
        max_events -= picture.cost[item.op]
        if max_events < 0:
            break
        kept.add(item.op)
    return [i for i in items if i.op in kept], ordered[len(kept)].start_ps


def _time(item: Item) -> tuple[int, int]:
    return item.start_ps, item.op


# --- slices --------------------------------------------------------------------------


def shown_ns(ps: int) -> int:
    """The nanosecond at which Perfetto shows a time or duration: it rounds the double
    of its microseconds."""
    return math.floor(ps / 10**6 * 1000.0 + 0.5)


def _duration(start_ps: int, end_ps: int, outer: Slice | None = None) -> int:
    """The duration, in picoseconds: inside the slice `outer`, and so short that it ends
    in time also where it is shown.

    Perfetto rounds starts and durations each for itself, and drops slices that cross
    after that. Where the sum would be too late, the duration is cut to whole
    nanoseconds.
    """
    last_ns = shown_ns(end_ps)
    if outer is not None:
        end_ps = max(min(end_ps, outer.start_ps + outer.dur_ps), start_ps)
        shown_end = shown_ns(outer.start_ps) + shown_ns(outer.dur_ps)
        last_ns = min(last_ns, shown_end)
    most_ns = max(last_ns - shown_ns(start_ps), 0)
    exact = end_ps - start_ps
    return exact if shown_ns(exact) <= most_ns else min(exact, most_ns * 1000)


@dataclass
class _Lanes:
    """Lanes of which none holds two slices that overlap, but for one inside another.

    `ends[lane][depth]` is when the last slice of at least that depth ends.
    """

    ends: list[list[int]] = field(default_factory=list)

    def place(
        self, start: int, end: int, depth: int = 0, outer: int | None = None
    ) -> int:
        """The lane of a slice; that of the slice that it is inside, if it is free."""
        lane = outer
        if lane is None or self._end(lane, depth) > start:
            free = (n for n in range(len(self.ends)) if self._end(n, 0) <= start)
            lane = next(free, len(self.ends))
        if lane == len(self.ends):
            self.ends.append([])
        ends = self.ends[lane]
        ends += [0] * (depth + 1 - len(ends))
        for n in range(depth + 1):
            ends[n] = max(ends[n], end)
        return lane

    def _end(self, lane: int, depth: int) -> int:
        return self.ends[lane][depth] if depth < len(self.ends[lane]) else 0


def _add(picture: Picture, item: Item, added: Slice) -> None:
    picture.slices.append(added)
    picture.cost[item.op] += 1
    if added.track not in picture.tracks:
        picture.tracks[added.track] = None
        picture.cost[item.op] += 2


def _draw_engines(picture: Picture, items: Sequence[Item]) -> None:
    """A slice an op and an engine of a folded loop, and the arrows between them."""
    lanes: dict[str, _Lanes] = {}
    loads = _Loads()

    def placed(item: Item, engine: str, start: int, end: int, what: What) -> Track:
        lane = lanes.setdefault(engine, _Lanes()).place(start, end)
        track = Track(item.pe, engine, lane)
        _add(picture, item, Slice(track, start, _duration(start, end), what))
        return track

    for item in items:
        if isinstance(item, FoldedOps):
            for span in item.engines:
                placed(item, span.engine, span.start_ps, span.end_ps, (item, span))
            loads = _Loads()  # which op used what, the rows that are left out say
            continue
        track = placed(item, item.engine, item.start_ps, item.end_ps, item)
        for load, load_track in loads.used_by(item):
            picture.arrows.append(Arrow(load, load_track, item, track))
            picture.cost[item.op] += 2
        loads.written_by(item, track)


class _Loads:
    """Loaded bytes that no op has used or written over yet: disjoint ranges."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._loads: dict[int, tuple[int, Op, Track]] = {}

    def used_by(self, op: Op) -> list[tuple[Op, Track]]:
        """The loads of the bytes at which the sources of `op` start, each once."""
        found = []
        for text in op.src_addrs.split(";"):
            at = bisect.bisect_right(self._starts, int(text)) if text.isdigit() else 0
            if at and int(text) < self._loads[self._starts[at - 1]][0]:
                _, load, track = self._loads.pop(self._starts.pop(at - 1))
                found.append((load, track))
        return found

    def written_by(self, op: Op, track: Track) -> None:
        """Forget what `op` writes over; know what it loads."""
        if not op.dst_addr.isdigit() or not op.nbytes:
            return
        start, stop = int(op.dst_addr), int(op.dst_addr) + op.nbytes
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, stop)
        for old in self._starts[first:last]:
            if self._loads[old][0] > start:
                del self._loads[old]
                self._starts.remove(old)
        if op.op_name == "load":
            bisect.insort(self._starts, start)
            self._loads[start] = (stop, op, track)


# --- scopes --------------------------------------------------------------------------


def scopes_of(items: Iterable[Item]) -> list[Scope]:
    """The scopes of one PE's items, outer ones first.

    A scope ends where the depth falls below its own, or where the cursor is lower than
    at an op before that the scope would hold itself: inside a scope it never falls.
    Neighbours of which neither shows are one.
    """
    found: list[Scope] = []
    around: list[Scope] = []
    for item in items:
        del around[item.scope_depth :]
        for n, scope in enumerate(around):
            if item.cursor_bytes < scope.cursor_bytes:
                del around[n:]
                break
        while len(around) < item.scope_depth:
            outer = around[-1] if around else None
            depth = len(around) + 1
            around.append(Scope(depth, item, outer, item.start_ps, item.end_ps))
            found.append(around[-1])
        for scope in around:
            scope.start_ps = min(scope.start_ps, item.start_ps)
            scope.end_ps = max(scope.end_ps, item.end_ps)
            scope.ops += item.rows
        if around:
            around[-1].cursor_bytes = item.last_cursor_bytes
    return found


def _draw_scopes(picture: Picture, items: Sequence[Item]) -> None:
    lanes = _Lanes()
    placed: dict[int, Slice] = {}
    for scope in scopes_of(items):
        start, end = scope.start_ps, scope.end_ps
        outer = placed.get(id(scope.outer))
        asked = outer.track.lane if outer else None
        lane = lanes.place(start, end, scope.depth - 1, asked)
        dur = _duration(start, end, outer if lane == asked else None)
        track = Track(scope.first.pe, "scopes", lane)
        placed[id(scope)] = Slice(track, start, dur, scope)
        _add(picture, scope.first, placed[id(scope)])


# --- the cursor ----------------------------------------------------------------------


def _draw_cursor(picture: Picture, pe: int, items: Sequence[Item]) -> None:
    """The cursor of the op that started last; the highest where several start at once,
    and only where it changes."""
    points: dict[int, tuple[int, Item]] = {}
    for item in items:
        for at, cursor in item.peaks:
            if at not in points or points[at][0] < cursor:
                points[at] = cursor, item
    before = -1
    for at in sorted(points):
        cursor, item = points[at]
        if cursor != before:
            picture.samples.append(Sample(pe, at, cursor))
            picture.cost[item.op] += 1
        before = cursor
