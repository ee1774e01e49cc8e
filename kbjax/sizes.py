"""Which sizes of a kernel's option (a tile size, say) fit the scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SMALLER = 3  # halvings that are tried in any case


@dataclass(frozen=True)
class Candidate:
    """A value of a kernel's option.

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

    def fits(self, budget_bytes: int) -> bool:
        peak = self.peak_scratch_bytes
        return peak is not None and peak <= budget_bytes


def candidates(
    option: str,
    current: int,
    most: int,
    budget_bytes: int,
    peak_of: Callable[[int], int | str],
) -> tuple[Candidate, ...]:
    """The option's value halved and doubled: a few below, further down until one fits,
    and up to the first that does not fit.

    Args:
      option: its name.
      current: the value of the plan, at least 1, which is tried as well.
      most: no value above it is tried but the current one.
      budget_bytes: of the scratch.
      peak_of: the peak in bytes with a value, or why the kernel is refused.
    """

    def tried(value: int) -> Candidate:
        found = peak_of(value)
        peak, reason = (None, found) if isinstance(found, str) else (found, "")
        return Candidate(option, value, peak, reason, value == current)

    rows = [tried(current)]
    for value in _halves(current):
        if len(rows) > _SMALLER and any(row.fits(budget_bytes) for row in rows):
            break
        rows.insert(0, tried(value))
    value = 2 * current
    while rows[-1].fits(budget_bytes) and value <= most:
        rows.append(tried(value))
        value *= 2
    return tuple(rows)


def _halves(value: int) -> Iterator[int]:
    while value > 1:
        value //= 2
        yield value
