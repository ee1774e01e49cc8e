"""Which command it was: sentences that name the first command whose result differs
between two replays, and those behind a wrong element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kbjax import watched
from kbjax.comparison import Comparison
from kbjax.subject import MOST_COMMANDS, Subject, Way
from kbjax.watched import Difference, Watch


def unlike_outputs(
    ones: Sequence[np.ndarray], others: Sequence[np.ndarray], one: str, other: str
) -> list[str]:
    """A line for each output whose bits differ.

    Args:
      ones, others: outputs of two replays.
      one, other: how they were made.
    """
    lines = []
    for number, (a, b) in enumerate(zip(ones, others, strict=True)):
        at = watched.first_unlike(a, b)
        if at is not None:
            lines.append(
                f"output {number}: {int(watched.unlike(a, b).sum())} of {a.size} "
                f"{a.dtype} elements differ, first at {at}: {one} {_value(a[at])}, "
                f"{other} {_value(b[at])}"
            )
    return lines


def first_of_ways(subject: Subject, one: Way, other: Way) -> str:
    """The first command whose result differs between two ways to replay."""
    if not subject.is_short:
        return _too_long(subject)
    same = [(pe, pe) for pe in range(subject.program.num_pes)]
    return _first(subject.watch(one), subject.watch(other), same, one, other)


def first_of_pe(many: Subject, alone: Subject, pe: int) -> str:
    """The first command whose result differs where a PE runs alone."""
    if not many.is_short:
        return _too_long(many)
    both = many.plain_watch, alone.watch(many.plain_way)
    return _first(*both, [(pe, 0)], "among many", "alone")


def _first(
    one: Watch, other: Watch, pairs: Sequence[tuple[int, int]], *words: str
) -> str:
    found = watched.first_difference(one, other, pairs)
    if found is not None:
        return _sentence(one, found, *words)
    left_out = "" if one.full else "; those that ran last were not looked at"
    return (
        "no command diverges while each is watched, which keeps XLA from fusing them"
        + left_out
    )


def _sentence(watch: Watch, found: Difference, one: str, other: str) -> str:
    return (
        f"first diverging: {watch.sentence(found.pe, found.step)}\n"
        f"      element {found.index}, byte {found.byte} of its result: "
        f"{one} {_value(found.one)}, {other} {_value(found.other)}"
    )


def _too_long(subject: Subject) -> str:
    return (
        f"{len(subject.log):,} commands are too many to watch (at most "
        f"{MOST_COMMANDS:,}): a smaller size names the first that diverges"
    )


def behind_wrong(
    subject: Subject, output: int, compared: Comparison, wrong: np.ndarray
) -> Iterator[str]:
    """Lines on a wrong output: its first and worst element with the stores that wrote
    them, the first command that wrote a NaN, and whether rounding is to blame."""
    got, want = compared.got, compared.want
    for word, at in _first_and_worst(wrong, compared.off):
        yield f"{word} {at}: got {got[at]!s}, expected {want[at]!s}"
        if subject.is_short:
            yield f"  {_last_store(subject, output, at)}"
    if bool((got != got).any()) and subject.is_short:
        found = watched.first_with_nan(subject.plain_watch)
        if found is not None:
            yield f"the first NaN: {subject.plain_watch.sentence(*found)}"
    if subject.is_narrow and subject.plain_way == "live" and not subject.call.is_wide:
        error = Comparison(subject.wide_output(output), want).error
        yield (
            f"with every float kept in float32 the error is {error:.3g}: where that is "
            "small, rounding is to blame, else the algorithm"
        )


def _last_store(subject: Subject, output: int, at: Sequence[int]) -> str:
    axis, pe, inner = subject.pe_axis(output), 0, list(at)
    if axis is not None:
        pe = inner.pop(axis)
    watch = subject.plain_watch
    found = watched.last_store(watch, subject.program, output, inner, pe)
    return "no command stored it" if found is None else (
        f"stored by {watch.sentence(*found)}"
    )  # fmt: skip


def _first_and_worst(
    wrong: np.ndarray, off: np.ndarray
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The first wrong element, and the one that is off the most where that is another;
    a NaN is off the most."""
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    yield "first at", first
    size = np.where(np.isnan(off), np.inf, off)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), off.shape))
    if worst != first and size[worst] > size[first]:
        yield "worst at", worst


def _value(x: Any) -> str:
    return f"{x!s} (0x{np.asarray(x).tobytes()[::-1].hex()})"
