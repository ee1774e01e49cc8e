"""Long Python loops that stay unrolled, which XLA compiles for minutes: a warning at
the kernel's line says what differs from one iteration to the next."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kbjax.expr import Var
from kbjax.fingerprint import Kind
from kbjax.fold import FEWEST, Folder
from kbjax.iterations import MOST_TOGETHER, Iterations, Links, Repeats, lines_repeat
from kbjax.program import Block, Loop, Program, Scope, Statement
from kbjax.site import Site

LONG = 64  # iterations, from where a loop that stays unrolled is worth a word


@dataclass(frozen=True)
class Hint:
    """Why a Python loop of so many `trips` stays unrolled; `site` is the kernel line
    that keeps it from being folded."""

    trips: int
    site: Site
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.trips:,} iterations of a Python loop stay unrolled, and take long "
            f"to compile: {self.reason}. Use tl.range, or make the iterations alike: "
            "the same commands on views and integers that move by the same each time, "
            "and in `with tl.scratch_scope():` what one of them makes"
        )


def warn(program: Program) -> None:
    """Warn of each loop that `hints` finds, at its kernel line."""
    for hint in hints(program):
        at = hint.site
        warnings.warn_explicit(str(hint), UserWarning, at.file, at.line)


def hints(program: Program) -> tuple[Hint, ...]:
    """Of each Python loop of `LONG` iterations or more at the same kernel lines, one a
    line.

    Args:
      program: a folded one.
    """
    found: dict[Site, Hint] = {}
    blocks = [b for b in _blocks(program.commands, ()) if lines_repeat(b[0], LONG)]
    if blocks:
        search = _Search(program, Folder.of(program))
        for block, loops in blocks:
            for hint in search.hints(block, loops):
                found.setdefault(hint.site, hint)
    return tuple(found.values())


def _blocks(
    block: Block, loops: tuple[Var, ...]
) -> Iterator[tuple[Block, tuple[Var, ...]]]:
    """Every block, with the loops around it."""
    yield block, loops
    for item in block:
        if isinstance(item, Loop):
            yield from _blocks(item.body, (*loops, item.index))
        elif isinstance(item, Scope):
            yield from _blocks(item.body, loops)


@dataclass(frozen=True)
class _Search:
    program: Program
    folder: Folder

    def hints(self, block: Block, loops: tuple[Var, ...]) -> Iterator[Hint]:
        numbers: dict[object, int] = {}
        keys = ((type(item), _op(item), item.site) for item in block)
        lines = Repeats([numbers.setdefault(key, len(numbers)) for key in keys])
        iterations: Iterations | None = None
        place = 0
        while place < len(block):
            period, _, end = next(lines.at(place, LONG), (1, place, place))
            if end == place:
                place += 1
                continue
            iterations = iterations or self.folder.iterations(block, loops)
            trips = (end - place) // period
            yield Hint(trips, *self._reason(block, iterations, place, period, trips))
            place = end

    def _reason(
        self,
        block: Block,
        iterations: Iterations,
        place: int,
        period: int,
        trips: int,
    ) -> tuple[Site, str]:
        """Why the iterations from `place` on are not folded, and the line at fault. The
        first one may be a special case, and is left out."""
        end = place + trips * period
        first, place = place, place + period
        prints = iterations.prints
        for at in range(place, end - period):
            if prints[at].number != prints[at + period].number:
                one, other = self._differing(block[at], block[at + period], ())
                n = (at - first) // period
                said = f"`{one}` in iteration {n}, `{other}` in iteration {n + 1}"
                return other.site, said
        for together in range(1, MOST_TOGETHER + 1):
            if place + FEWEST * together * period > end:
                break
            until = iterations.affine_until(period * together, place, end)[0]
            if until - place >= FEWEST * together * period:
                links = iterations.links(place, period * together, place, end)
                return self._leak(links, block[place].site)
        last = int(iterations.affine_until(period, place, end)[0])
        n = (last - first) // period
        three = self._uneven(*(block[last - k * period] for k in (2, 1, 0)))
        when = f"in iterations {n - 2} to {n}"
        if self._uneven_kinds(*three) <= {"cursor", "root"}:
            said = f"the scratch of `{three[0]}` moves by uneven steps {when}"
        else:
            shown = ", then ".join(f"`{one}`" for one in three)
            said = f"{shown} {when} move by uneven steps"
        return three[0].site, said

    def _differing(
        self, a: Statement, b: Statement, bound: tuple[Var, ...]
    ) -> tuple[Statement, Statement]:
        """The first statements in which two that are not alike differ."""
        if isinstance(a, Scope) and isinstance(b, Scope):
            inner = (bound, bound)
        elif isinstance(a, Loop) and isinstance(b, Loop):
            inner = ((*bound, a.index), (*bound, b.index))
        else:
            return a, b
        for one, other in zip(a.body, b.body, strict=False):
            prints = self.folder.prints
            numbers = [
                prints.of(item, *loops).number
                for item, loops in zip((one, other), inner, strict=True)
            ]
            if numbers[0] != numbers[1]:
                return self._differing(one, other, inner[0])
        return a, b

    def _uneven(self, *items: Statement) -> tuple[Statement, ...]:
        """The first statement whose integers are unevenly spaced, in three iterations
        that are alike."""
        bodies = [item.body for item in items if isinstance(item, Loop | Scope)]
        for inner in zip(*bodies, strict=True):
            if self._uneven_kinds(*inner):
                return self._uneven(*inner)
        return items

    def _uneven_kinds(self, *items: Statement) -> set[Kind]:
        """Of the integers that are unevenly spaced in three statements that are
        alike."""
        prints = [self.folder.prints.of(item) for item in items]
        a, b, c = (np.array(one.integers) for one in prints)
        return {prints[0].kinds[n] for n in np.flatnonzero(c - b != b - a)}

    def _leak(self, links: Links, site: Site) -> tuple[Site, str]:
        """What of the first iterations does not belong to one of them alone."""
        row = links.rows_from(links.first) - 1
        if row >= len(links.moved):
            return site, "an integer in it moves out of int32"
        shared = links.moved[row] & ~(links.own[row] & links.own[row + 1])
        if not shared.any():
            return site, "not all of its scratch moves by the same from one to the next"
        column = int(np.argmax(shared))
        row += int(not links.own[row + 1, column])
        uid = int(links.roots[row, column])
        made = self.program.allocations[uid]
        here = int((links.roots[row] == uid).sum())
        kept = self.program.live_at_exit.count(uid)
        tile = f"`%{uid}` ({made.op} {made.tile} of {made.site})"
        if int(self.folder.uses[uid]) == here + kept:
            return made.site, f"{tile} is alive at the kernel's end"
        others = (links.roots == uid).any(axis=1).sum() > 1
        where = "another iteration" if others else "what is outside the loop"
        return made.site, f"{tile} is used by {where} as well"


def _op(item: Statement) -> str:
    return "" if isinstance(item, Loop | Scope) else item.op
