"""Which sizes of a kernel's option (a tile size, say) fit the scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_SMALLER = 3  # halvings that are tried in any case


@dataclass(frozen=True)
class Candidate:
    """A value of a kernel's option (a tile size, say) and whether it fits.

    Attributes:
      peak_scratch_bytes: None where the kernel was refused.
      reason: why it was refused, or "".
      current: whether it is the value that the plan is for.
    """

    option: str
    value: int
    peak_scratch_bytes: int | None
    reason: str
    current: bool

    @property
    def fits(self) -> bool:
        return self.peak_scratch_bytes is not None


def largest_fitting(candidates: Sequence[Candidate], option: str) -> Candidate | None:
    """The one with the largest value of the option among those that fit."""
    fitting = [c for c in candidates if c.option == option and c.fits]
    return max(fitting, key=lambda c: c.value, default=None)


def candidates(
    option: str, current: int, most: int, peak_of: Callable[[int], int | str]
) -> tuple[Candidate, ...]:
    """The option's value halved and doubled: a few below, further down until one fits,
    and up to the first that does not fit.

    Args:
      option: its name.
      current: the value of the plan, which is tried as well.
      most: no value above it is tried but the current one.
      peak_of: the peak in bytes with a value, or why the kernel is refused.
    """

    def tried(value: int) -> Candidate:
        found = peak_of(value)
        peak, reason = (None, found) if isinstance(found, str) else (found, "")
        return Candidate(option, value, peak, reason, value == current)

    rows = [tried(current)]
    for value in _halves(current):
        if len(rows) > _SMALLER and any(row.fits for row in rows):
            break
        rows.insert(0, tried(value))
    value = 2 * current
    while rows[-1].fits and value <= most:
        rows.append(tried(value))
        value *= 2
    return tuple(rows)


def _halves(value: int) -> Iterator[int]:
    while value > 1:
        value //= 2
        yield value
