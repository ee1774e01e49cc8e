"""Ways out of a `with` block: its end, and return, break and continue."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from kbjax import abrupt

seen: list[bool] = []


class Block:
    """Notes how it is left."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seen.append(abrupt.leaves_early(sys._getframe(1)))


def at_its_end() -> None:
    with Block():
        pass


def before_more() -> int:
    with Block():
        x = 1
    return x


def in_a_loop() -> None:
    for _ in range(2):
        with Block():
            pass


def of_several_items() -> int:
    with Block(), Block(), Block():
        x = 1
    return x


def over_several_lines() -> None:
    with (
        Block(),
        Block(),
    ):
        pass


def nested() -> int:
    with Block():
        with Block():
            for n in range(3):
                if n:
                    break
        with Block():
            n = 2
    return n


def jumps_inside() -> int:
    with Block():

        def inner() -> int:
            return 3

        total = 0
        for n in range(4):
            if n == 1:
                continue
            total += inner()
            if n == 2:
                break
    return total


def one_way_returns(other: bool = True) -> int:
    with Block():
        if not other:
            return 1
        else:
            x = 2
    return x


@pytest.mark.parametrize(
    "function",
    [at_its_end, before_more, in_a_loop, of_several_items, over_several_lines, nested,
     jumps_inside, one_way_returns],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_comes_to_its_end(function: Callable[[], Any]) -> None:
    seen.clear()
    function()
    assert seen and not any(seen)


def by_return() -> None:
    with Block():
        return


def by_return_before_more(now: bool = True) -> int:
    with Block():
        if now:
            return 1
        x = 2
    return x


def by_return_in_one_of_two_ways(now: bool = True) -> int:
    with Block():
        if not now:
            x = 2
        else:
            return 1
    return x


def by_return_of_several_items(now: bool = True) -> int:
    with Block(), Block():
        if now:
            return 1
    return 2


def by_break() -> None:
    for _ in range(3):
        with Block():
            break


def by_continue() -> int:
    total = 0
    for n in range(1):
        with Block():
            if not n:
                continue
            total += 1
        total += n
    return total


@pytest.mark.parametrize(
    "function",
    [by_return, by_return_before_more, by_return_in_one_of_two_ways,
     by_return_of_several_items, by_break, by_continue],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_leaves_early(function: Callable[[], Any]) -> None:
    seen.clear()
    function()
    assert seen and all(seen)


def test_code_without_source_is_not_judged() -> None:
    seen.clear()
    names: dict[str, Any] = {"Block": Block}
    exec("def f():\n    with Block():\n        return 1\n    x = 2\n", names)
    names["f"]()
    assert seen == [False]
