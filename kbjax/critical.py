"""The critical path: the chain of commands, each of which started when the one before
it ended, that ends with the last one. Their durations add up to the total.

Found backwards from the last command. In a loop's steady iterations the chain repeats;
once it is back at a command of an earlier iteration, the rounds between are counted
instead of walked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbjax.rolled import Node, Repeat, Row
from kbjax.scratch_times import Form


class Step(NamedTuple):
    """A command on the path: which of the works, what it waited for last, and its
    cost in ps."""

    work: int
    cause: int
    cost: int


class _Place(NamedTuple):
    """A row, the repeats around it, and the time of each."""

    row: Row
    repeats: tuple[Repeat, ...]
    times: tuple[int, ...]

    def at(self, form: Form) -> int:
        moves = zip(self.times, form[1:], strict=True)
        return form[0] + sum(k * change for k, change in moves)


@dataclass(frozen=True)
class _Block:
    """Nodes, and how many rows are before each."""

    nodes: Sequence[Node]

    def __post_init__(self) -> None:
        firsts, first = [], 0
        for node in self.nodes:
            firsts.append(first)
            first += node.rows
        object.__setattr__(self, "firsts", firsts)
        object.__setattr__(
            self,
            "inner",
            {
                n: _Block(node.nodes)
                for n, node in enumerate(self.nodes)
                if isinstance(node, Repeat)
            },
        )

    def find(self, number: int) -> _Place:
        place = bisect_right(self.firsts, number) - 1  # type: ignore[attr-defined]
        node = self.nodes[place]
        if isinstance(node, Row):
            return _Place(node, (), ())
        each = node.rows // node.count
        k, left = divmod(number - self.firsts[place], each)  # type: ignore[attr-defined]
        found = self.inner[place].find(left)  # type: ignore[attr-defined]
        return _Place(found.row, (node, *found.repeats), (k, *found.times))


def path(nodes: Sequence[Node], last: int) -> Counter[Step]:
    """How often each step is on the path to command number `last`.

    Args:
      nodes: all rows of a PE, numbered from 0.
      last: the command that ends last; -1 where there is none.
    """
    block, total = _Block(nodes), Counter[Step]()
    walked: list[tuple[Step, int]] = []  # with its number
    seen: dict[tuple[object, ...], tuple[int, int]] = {}
    number = last
    while number >= 0:
        place = block.find(number)
        for level, (repeat, k) in enumerate(
            zip(place.repeats, place.times, strict=True)
        ):
            others = (*place.times[:level], *place.times[level + 1 :])
            key = (id(place.row), level, others)
            before, at = seen.get(key, (k, 0))
            seen[key] = (k, len(walked))
            rounds = k // (before - k) if before > k else 0
            if rounds:
                # All of a round is in this repeat: numbers only fall.
                each = repeat.rows // repeat.count
                for step, _ in walked[at:]:
                    total[step] += rounds
                number -= rounds * (before - k) * each
                place = block.find(number)
                seen.clear()
                break
        row = place.row
        step = Step(row.work, row.cause, row.cost)
        walked.append((step, number))
        total[step] += 1
        number = place.at(row.after)
    return total
