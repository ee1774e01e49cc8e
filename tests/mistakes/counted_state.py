"""Python state that a tl.range body counts, and that is read only after its loop."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import kbjax as kb
from tests.mistakes.catalogue import mistake

_rows_read = 0


@mistake(kb.KernelError, "`count`: 1, then 2", "counts in Python")
def count_read_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    count = 0
    for i in tl.range(5):  # <-
        tl.load(x[i])
        count += 1
    tl.store(o, tl.full((8, 4), count))


@mistake(kb.KernelError, "counts in Python")
def global_read_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    global _rows_read
    _rows_read = 0
    for _ in tl.range(5):  # <-
        _rows_read += 1
    tl.store(o, tl.full((8, 4), _rows_read))


@mistake(kb.KernelError, "counts in Python")
def class_attribute_read_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    class State:
        rows = 0

    for _ in tl.range(5):  # <-
        State.rows += 1
    tl.store(o, tl.full((8, 4), State.rows))


@mistake(kb.KernelError, "counts in Python")
def slot_read_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    class State:
        __slots__ = ("rows",)

    state = State()
    state.rows = 0
    for _ in tl.range(5):  # <-
        state.rows += 1
    tl.store(o, tl.full((8, 4), state.rows))


@mistake(kb.KernelError, "counts in Python", "`len(queue)`")
def length_of_a_queue_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    queue: collections.deque[int] = collections.deque()
    for _ in tl.range(5):  # <-
        queue.append(1)
    tl.store(o, tl.full((8, 4), len(queue)))


@mistake(kb.KernelError, "counts in Python")
def length_of_a_list_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = []
    for i in tl.range(5):  # <-
        rows.append(tl.load(x[i]))
    tl.store(o, tl.full((8, 4), len(rows)))


@mistake(kb.KernelError, "`for` statement")
def length_of_a_comprehension(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = [tl.load(x[i]) for i in tl.range(5)]  # <-
    tl.store(o, tl.full((8, 4), len(rows)))


@mistake(kb.KernelError, "`for` statement")
def length_of_a_listed_range(tl: Any, x: Any, n: Any, o: Any) -> None:
    trips = len(list(tl.range(5)))  # <-
    tl.store(o, tl.full((8, 4), trips))


@mistake(kb.KernelError, "counts in Python")
def counter_iterated_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    counter = itertools.count()
    for _ in tl.range(5):  # <-
        next(counter)
    tl.store(o, tl.full((8, 4), next(counter)))


@mistake(kb.KernelError, "counts in Python")
def length_of_a_dict_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows: dict[int, Any] = {}
    for i in tl.range(5):  # <-
        rows[len(rows)] = tl.load(x[i])
    tl.store(o, tl.full((8, 4), len(rows)))


@mistake(kb.KernelError, "counts in Python", "`count.at[0]`: 1, then 2")
def default_argument_read_after_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    def count(at: list[int] = [0]) -> int:  # noqa: B006
        at[0] += 1
        return at[0]

    for _ in tl.range(5):  # <-
        count()
    tl.store(o, tl.full((8, 4), count()))
