"""Python state that a rolled loop's body carries: found wherever variables lead."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb

X = np.arange(1, 17, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((16,), "float32")


def record(kernel: Callable[..., None]) -> Any:
    return kb.kernel_call(kernel, OUT).record(X)


def copy_row(tl: Any, x: Any, o: Any, to: Any, source: Any) -> None:
    with tl.scratch_scope():
        tl.store(o[tl.ds(to, 1)], tl.load(x[tl.ds(source, 1)]))


class Box:
    """An object with an attribute to count in."""

    def __init__(self) -> None:
        self.n = 0


def an_index_of_the_first_iteration(tl: Any, x: Any, o: Any) -> None:
    first = None
    for j in tl.range(4):
        first = j if first is None else first
        copy_row(tl, x, o, j, first)


def an_index_in_a_list(tl: Any, x: Any, o: Any) -> None:
    seen: list[Any] = []
    for j in tl.range(4):
        seen.append(j)
        copy_row(tl, x, o, j, seen[0])


def a_view_of_the_first_iteration(tl: Any, x: Any, o: Any) -> None:
    cache: dict[str, Any] = {}
    for j in tl.range(4):
        view = cache.setdefault("view", x[tl.ds(j, 1)])
        with tl.scratch_scope():
            tl.store(o[tl.ds(j, 1)], tl.load(view))


def an_inner_index_kept(tl: Any, x: Any, o: Any) -> None:
    previous = None
    for _ in tl.range(2):
        for k in tl.range(2):
            copy_row(tl, x, o, k, k if previous is None else previous)
            previous = k


def arithmetic_with_an_old_index(tl: Any, x: Any, o: Any) -> None:
    old: list[Any] = []
    for j in tl.range(4):
        old.append(j)
        copy_row(tl, x, o, j, old[0] + j)


@pytest.mark.parametrize(
    "kernel",
    [
        an_index_of_the_first_iteration,
        an_index_in_a_list,
        a_view_of_the_first_iteration,
        an_inner_index_kept,
        arithmetic_with_an_old_index,
    ],
)
def test_an_index_of_an_earlier_iteration_is_refused(kernel: Any) -> None:
    with pytest.raises(kb.KernelError, match="of an earlier iteration"):
        record(kernel)


def counts_in_an_attribute(tl: Any, x: Any, o: Any) -> None:
    box = Box()
    for j in tl.range(4):
        copy_row(tl, x, o, j, j)
        box.n += 1


def counts_in_a_nested_list(tl: Any, x: Any, o: Any) -> None:
    box = [[0]]
    for j in tl.range(4):
        copy_row(tl, x, o, j, j)
        box[0][0] += 1


def counts_in_an_array(tl: Any, x: Any, o: Any) -> None:
    box = np.zeros(1)
    for j in tl.range(4):
        copy_row(tl, x, o, j, j)
        box[0] += 1


def counts_in_a_numpy_scalar(tl: Any, x: Any, o: Any) -> None:
    box = np.int32(0)
    for j in tl.range(4):
        copy_row(tl, x, o, j, j)
        box = box + np.int32(1)


def counts_in_a_closure(tl: Any, x: Any, o: Any) -> None:
    box = 0

    def bump() -> None:
        nonlocal box
        box += 1

    for j in tl.range(4):
        copy_row(tl, x, o, j, j)
        bump()


def counts_outside_a_generator(tl: Any, x: Any, o: Any) -> None:
    def tiles() -> Any:
        yield from tl.range(4)

    box = 0
    for j in tiles():
        copy_row(tl, x, o, j, j)
        box += 1


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (counts_in_an_attribute, "`box.n`: 1, then 2"),
        (counts_in_a_nested_list, "`box[0][0]`: 1, then 2"),
        (counts_in_an_array, "`box`"),
        (counts_in_a_numpy_scalar, "`box`: 1, then 2"),
        (counts_in_a_closure, "`box`: 1, then 2"),
        (counts_outside_a_generator, "`box`: 1, then 2"),
    ],
)
def test_a_counter_is_refused_and_named(kernel: Any, name: str) -> None:
    with pytest.raises(kb.KernelError) as caught:
        record(kernel)
    assert name in str(caught.value)
    assert "test_carried.py:" in str(caught.value)


def test_names_that_a_body_sets_first_and_kept_containers_are_no_state() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        sizes = defaultdict(list, a=[1])
        weights = {"w": [0.5, 2.0]}
        step = 7
        for j in tl.range(4):
            step = 1
            scale = weights["w"][0] * sizes["a"][0] * step
            for part in itertools.chain([0.0], [1.0]):
                scale += part
            with tl.scratch_scope():
                tl.store(o[tl.ds(j, 1)], tl.load(x[tl.ds(j, 1)]) * scale)

    np.testing.assert_array_equal(kb.kernel_call(kernel, OUT)(X)[:4], X[:4] * 1.5)


def test_nan_is_the_same_in_both_recordings() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in tl.range(4):
            with tl.scratch_scope():
                t = tl.load(x[tl.ds(j + 14, 1)], other=float("nan"))
                tl.store(o[tl.ds(j, 1)], tl.where(t > 15.0, t, np.float32("nan")))

    got = np.asarray(kb.kernel_call(kernel, OUT)(X))[:4]
    np.testing.assert_array_equal(got, [np.nan, 16, np.nan, np.nan])
