"""The critical path: the chain of commands, each of which started when the one before
it ended, that ends with the last one. Their durations add up to the total.

Found backwards from the last command. In a loop's steady iterations the chain repeats;
once it is back at a command of an earlier iteration, the rounds between are counted
instead of walked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from kbjax.forms import Form
from kbjax.rolled import Node, Repeat, Row


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


class _Block:
    """Nodes, and how many rows are before each."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._firsts = [0, *accumulate(node.rows for node in nodes)]
        self._inner = {
            place: _Block(node.nodes)
            for place, node in enumerate(nodes)
            if isinstance(node, Repeat)
        }

    def find(self, number: int) -> _Place:
        place = bisect_right(self._firsts, number) - 1
        node = self._nodes[place]
        if isinstance(node, Row):
            return _Place(node, (), ())
        each = node.rows // node.count
        k, left = divmod(number - self._firsts[place], each)
        found = self._inner[place].find(left)
        return _Place(found.row, (node, *found.repeats), (k, *found.times))


def path(
    runs: Sequence[Sequence[Node]],
    last: tuple[int, int],
    sent_by: Mapping[tuple[int, int], tuple[int, int]],
) -> Counter[Step]:
    """How often each step is on the path to a command.

    Args:
      runs: all rows of each PE, numbered from 0.
      last: the PE and the number of the command that ends last; -1 where there is none.
      sent_by: for a receive that waited for its message, the PE and the number of the
        send; the path goes there.
    """
    blocks: dict[int, _Block] = {}
    total = Counter[Step]()
    walked: list[tuple[Step, int]] = []  # with how often
    seen: dict[tuple[object, ...], tuple[int, int]] = {}
    pe, number = last
    while number >= 0:
        if (pe, number) in sent_by:
            pe, number = sent_by[pe, number]
            continue
        if pe not in blocks:
            blocks[pe] = _Block(runs[pe])
        block = blocks[pe]
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
                walked += [(step, rounds * times) for step, times in walked[at:]]
                number -= rounds * (before - k) * each
                place = block.find(number)
                break
        row = place.row
        step = Step(row.work, row.cause, row.cost)
        walked.append((step, 1))
        number = place.at(row.after)
    for step, times in walked:
        total[step] += times
    return total
