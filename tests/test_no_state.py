"""What a rolled loop's body may do in Python: nothing here carries state from one
iteration to the next, and all of it records."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import logging
import math
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax.program import StoreCmd

X = np.arange(1, 17, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((16,), "float32")


def record(kernel: Any) -> Any:
    return kb.kernel_call(kernel, OUT).record(X)


class Box:
    """An object with an attribute to count in."""

    n = 0


class Mode(enum.Enum):
    FAST, SLOW = range(2)


@dataclasses.dataclass
class Settings:
    """Options with defaults, one of them a container."""

    scale: float = 1.0
    parts: list[int] = dataclasses.field(default_factory=lambda: [1])
    mode: Mode = Mode.FAST


class Both:
    """Slots, a dict, and a reference to itself."""

    __slots__ = ("__dict__", "a", "unset")

    def __init__(self) -> None:
        self.a, self.self = 1, self


class Wide:
    """A kernel among many attributes."""

    def __init__(self) -> None:
        for n in range(500):
            setattr(self, f"attribute_{n}", [n, str(n), {"n": n}])
        self.scale = 1.0

    def kernel(self, tl: Any, x: Any, o: Any) -> None:
        for j in tl.range(4):
            scaled(tl, x, o, j, self.scale)


LOG = logging.getLogger("kbjax.tests.carried")
DICE = random.Random(0)
NUMBERS = [*range(1_000_000)]
TABLE = dict.fromkeys(range(100_000), 1)
LARGE = np.ones(1 << 20, np.float32)
ON_DEVICE = jnp.arange(4.0)
MEMO: dict[str, float] = {}


def scaled(tl: Any, x: Any, o: Any, j: Any, scale: Any) -> None:
    with tl.scratch_scope():
        tl.store(o[tl.ds(j, 1)], tl.load(x[tl.ds(j, 1)]) * scale)


def counter_reset_in_each_iteration(tl: Any, x: Any, o: Any) -> None:
    for j in tl.range(4):
        n = 0
        for _ in range(3):
            n += 1
        while n > 1:
            n -= 1
        scaled(tl, x, o, j, n)


def counter_in_an_object_reset(tl: Any, x: Any, o: Any) -> None:
    box = Box()
    for j in tl.range(4):
        box.n = 0
        for _ in range(3):
            box.n += 1
        scaled(tl, x, o, j, float(box.n == 3))


def list_built_and_dropped(tl: Any, x: Any, o: Any) -> None:
    for j in tl.range(4):
        parts: list[float] = []
        for n in range(4):
            parts.append(n / 6)
        total = sum(parts)
        parts.clear()
        scaled(tl, x, o, j, total)


def tiles_in_a_list_of_one_iteration(tl: Any, x: Any, o: Any) -> None:
    for j in tl.range(4):
        with tl.scratch_scope():
            rows = [tl.load(x[tl.ds(j, 1)]) for _ in range(2)]
            rows.append(rows.pop(0))
            tl.store(o[tl.ds(j, 1)], rows[0])
            del rows


def memo_filled_before_the_loop(tl: Any, x: Any, o: Any) -> None:
    memo = {n: 1.0 for n in range(4)}
    for j in tl.range(4):
        scaled(tl, x, o, j, memo.setdefault(2, 5.0) * MEMO.get("none", 1.0))


def memo_filled_by_the_first_recording(tl: Any, x: Any, o: Any) -> None:
    memo: dict[int, float] = {}
    for j in tl.range(4):
        for n in range(3):
            memo.setdefault(n, 1.0)
        scaled(tl, x, o, j, memo[2])


def product_and_zip_of_python_ranges(tl: Any, x: Any, o: Any) -> None:
    for j in tl.range(4):
        total = 0
        for a, b in itertools.product(range(2), range(2)):
            total += a * b
        for a, b in zip(range(3), [0, 0, 0], strict=True):
            total += a * b
        steps = iter([1, 2, 3])
        scaled(tl, x, o, j, total * next(steps))


def generator_of_one_iteration(tl: Any, x: Any, o: Any) -> None:
    for j in tl.range(4):
        numbers = (n for n in itertools.count(1))
        scaled(tl, x, o, j, next(numbers))


def settings_are_read(tl: Any, x: Any, o: Any) -> None:
    settings, both, cycle = Settings(), Both(), [1.0]
    cycle.append(cycle)  # type: ignore[arg-type]
    for j in tl.range(4):
        scale = settings.scale * settings.parts[0] * both.self.self.a * cycle[0]
        scaled(tl, x, o, j, scale if settings.mode is Mode.FAST else 0.0)


def large_values_are_read(tl: Any, x: Any, o: Any) -> None:
    for j in tl.range(4):
        scaled(tl, x, o, j, NUMBERS[1] * TABLE[7] * float(LARGE[0]) * ON_DEVICE.ndim)


def random_and_logger_at_rest(tl: Any, x: Any, o: Any) -> None:
    assert DICE is not None and LOG.name
    for j in tl.range(4):
        scaled(tl, x, o, j, float(math.cos(0.0)))


def handles_bound_again(tl: Any, x: Any, o: Any) -> None:
    """Names of tiles and views that the body sets before it reads them."""
    tile = view = at = None
    for j in tl.range(4):
        at = j + 0
        view = x[tl.ds(at, 1)]
        with tl.scratch_scope():
            tile = tl.load(view)
            tile = tile + 0.0
            tl.store(o[tl.ds(at, 1)], tile)
    assert tile is not None and view is not None and at is not None


def a_message_is_logged(tl: Any, x: Any, o: Any) -> None:
    """The handler keeps records, also pytest's own; none of them the kernel's state."""
    for j in tl.range(4):
        LOG.warning("a tile")
        scaled(tl, x, o, j, 1.0)


@pytest.mark.parametrize(
    "kernel",
    [
        counter_reset_in_each_iteration,
        counter_in_an_object_reset,
        list_built_and_dropped,
        tiles_in_a_list_of_one_iteration,
        memo_filled_before_the_loop,
        memo_filled_by_the_first_recording,
        product_and_zip_of_python_ranges,
        generator_of_one_iteration,
        settings_are_read,
        large_values_are_read,
        random_and_logger_at_rest,
        handles_bound_again,
        a_message_is_logged,
        Wide().kernel,
    ],
    ids=lambda kernel: kernel.__name__,
)
def test_what_is_no_state_records_as_it_is(kernel: Any) -> None:
    """Four rows are copied: the program is that of the loop without the Python."""

    def plain(tl: Any, x: Any, o: Any) -> None:
        for j in tl.range(4):
            scaled(tl, x, o, j, 1.0)

    def stores(program: Any) -> list[str]:
        return [str(c.view) for c in program.walk() if c.__class__ is StoreCmd]

    assert stores(record(kernel)) == stores(record(plain)) == ["o[j:+1]"]
