"""The time axis of a picture in which long steady stretches are drawn short."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_SHARE = 0.3  # of what is not shortened: what all shortened stretches take together
_LEAST = 0.02  # of the same, for one of them


@dataclass(frozen=True)
class TimeAxis:
    """Piecewise linear: time `true_us[i]` is drawn at `shown_us[i]`, both microseconds
    and rising; `short` says which pieces are shortened stretches."""

    true_us: tuple[float, ...]
    shown_us: tuple[float, ...]
    short: tuple[bool, ...]

    def at(self, times_ps: Iterable[int]) -> np.ndarray:
        """Where times are drawn: (n,) float64."""
        times = np.fromiter(times_ps, np.float64) / 1e6
        return np.interp(times, self.true_us, self.shown_us)

    @property
    def end_us(self) -> float:
        """Where the axis ends, as drawn."""
        return self.shown_us[-1]


def of(
    end_ps: int,
    steady: Sequence[tuple[int, int]],
    busy: Sequence[tuple[int, int]] = (),
) -> TimeAxis:
    """An axis from 0 to `end_ps` that shortens the steady stretches.

    Args:
      end_ps: the last time.
      steady: (start, end) of stretches in ps; those that are short already stay.
      busy: (start, end) of what is drawn one by one, and reaches into a stretch from
        one side: that part of it is not shortened.
    """
    cut = _disjoint(_cleared(steady, busy), end_ps)
    rest = end_ps - sum(stop - start for start, stop in cut)
    weights = [math.log1p((stop - start) / max(rest, 1)) for start, stop in cut]
    # What is taken out is round, so that the labels behind it are.
    unit = _round_below(rest / 5)
    true, shown, short = [0], [0], []
    for (start, stop), weight in zip(cut, weights, strict=True):
        width = max(_SHARE * weight / sum(weights), _LEAST) * rest
        removed = int((stop - start - width) // unit * unit)
        if removed <= width:
            continue
        if start > true[-1]:
            shown.append(shown[-1] + start - true[-1])
            true.append(start)
            short.append(False)
        shown.append(shown[-1] + stop - start - removed)
        true.append(stop)
        short.append(True)
    end_ps = max(end_ps, true[-1] + 1)
    shown.append(shown[-1] + end_ps - true[-1])
    true.append(end_ps)
    short.append(False)
    return TimeAxis(
        tuple(at / 1e6 for at in true), tuple(at / 1e6 for at in shown), tuple(short)
    )


def _round_below(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, ... that is not above the value."""
    power = 10 ** max(math.floor(math.log10(max(value, 1))), 0)
    return max(int(n * power) for n in (1, 2, 5) if n * power <= max(value, 1))


def _cleared(
    steady: Sequence[tuple[int, int]], busy: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The stretches without what is drawn one by one at their two ends."""
    starts = np.array([start for start, _ in busy], np.int64)
    ends = np.array([end for _, end in busy], np.int64)
    found = []
    for start, stop in steady:
        middle = (start + stop) // 2
        before = ends[(starts < middle) & (ends > start) & (ends < middle)]
        after = starts[(starts > middle) & (starts < stop)]
        first = int(before.max(initial=start))
        found.append((first, int(after.min(initial=stop))))
    return found


def _disjoint(
    stretches: Iterable[tuple[int, int]], end_ps: int
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, stop in sorted(stretches):
        start = max(start, found[-1][1] if found else 0)
        stop = min(stop, end_ps)
        if start < stop:
            found.append((start, stop))
    return found
