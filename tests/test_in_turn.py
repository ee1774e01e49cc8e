"""scripts/in_turn.py: what is called, in which order, and what is made of the times."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, on clocks that its runs put forward."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.import_module("in_turn")
    monkeypatch.setattr(module, "PAUSE_S", 0)
    return module


@pytest.fixture
def spend(turns: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """spend(seconds): of the wall, half of them of the CPU, a fourth in one thread."""
    spent = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: spent[0])
    monkeypatch.setattr(turns.time, "process_time", lambda: spent[0] / 2)
    monkeypatch.setattr(
        turns, "thread_seconds", lambda: {"1": spent[0] / 4, "2": spent[0] / 8}
    )

    def put_forward(seconds: float) -> None:
        spent[0] += seconds

    return put_forward


def test_each_is_timed_right_after_a_call_of_its_own(
    turns: Any, spend: Callable[..., None]
) -> None:
    called: list[str] = []

    def run(name: str, seconds: list[float]) -> None:
        called.append(name)
        spend(seconds.pop(0))

    times = turns.in_turn(
        {"a": partial(run, "a", [9, 1, 9, 2]), "b": partial(run, "b", [9, 3, 9, 4])}, 2
    )
    assert times == {
        "a": [(1, 0.5, 0.25), (2, 1, 0.5)],
        "b": [(3, 1.5, 0.75), (4, 2, 1)],
    }
    assert called[::2] == called[1::2] and {*called[:4]} == {*called[4:]} == {"a", "b"}


def test_pairs_follow_a_first_call_of_each(
    turns: Any, spend: Callable[..., None]
) -> None:
    a, b = iter([9, 1, 3]), iter([9, 2, 4])
    pairs = turns.pairs(lambda: spend(next(a)), lambda: spend(next(b)), 2)
    assert [(x[0], y[0]) for x, y in pairs] == [(1, 2), (3, 4)]


def test_medians_are_of_each_run_after_its_first_call(
    turns: Any, spend: Callable[..., None]
) -> None:
    a, b = iter([9, 1, 5, 2]), iter([9, 30, 10, 20])
    assert turns.medians([lambda: spend(next(a)), lambda: spend(next(b))], 3) == [2, 20]


def test_threads_are_told_apart_where_the_system_tells(turns: Any) -> None:
    threads = turns.thread_seconds()
    assert all(spent >= 0 for spent in threads.values())
    assert bool(threads) == Path("/proc/self/task").exists()
    assert 0 < turns.cores()
