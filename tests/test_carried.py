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
from tests.plain import Tensor, play

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


# --- what only the loop's end shows --------------------------------------------------


def swapped_tiles(tl: Any, x: Any, o: Any) -> None:
    a, b = tl.full((1,), 1.0), tl.full((1,), 2.0)
    for j in tl.range(5):
        copy_row(tl, x, o, j, j)
        a, b = b, a
    tl.store(o[0:1], a)


def swapped_views(tl: Any, x: Any, o: Any) -> None:
    a, b = x[0:8], x[8:16]
    for j in tl.range(5):
        copy_row(tl, x, o, j, j)
        a, b = b, a
    tl.store(o[0:8], tl.load(a))


def rotated_tiles(tl: Any, x: Any, o: Any) -> None:
    tiles = [tl.full((1,), float(n)) for n in range(3)]
    for j in tl.range(5):
        copy_row(tl, x, o, j, j)
        tiles.append(tiles.pop(0))
    tl.store(o[0:1], tiles[0])


def swapped_functions(tl: Any, x: Any, o: Any) -> None:
    first, second = (lambda: 1.0), (lambda: 2.0)
    for j in tl.range(5):
        copy_row(tl, x, o, j, j)
        first, second = second, first
    tl.store(o[0:1], tl.full((1,), first()))


def a_flag_that_no_iteration_sets(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.load(x))
    flag = 0
    for _ in tl.range(0):
        flag = 1
    tl.store(o[0:1], tl.full((1,), flag))


def a_flag_that_some_pes_set(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.load(x))
    flag = 0
    for _ in tl.range(tl.program_id()):
        flag = 1
    tl.store(o[0:1], tl.full((1,), flag))


@pytest.mark.parametrize(
    "kernel",
    [
        swapped_tiles,
        swapped_views,
        rotated_tiles,
        swapped_functions,
        a_flag_that_no_iteration_sets,
        a_flag_that_some_pes_set,
    ],
    ids=lambda kernel: kernel.__name__,
)
def test_what_the_loops_end_shows_is_pythons_or_refused(kernel: Any) -> None:
    pes = 2 if kernel is a_flag_that_some_pes_set else 1
    want = np.full((pes, 16), np.nan, np.float32)
    play(kernel, pes, lambda pe: [Tensor("x", X), Tensor("o", want[pe])])
    call = kb.kernel_call(kernel, OUT, num_pes=pes, in_axes=None)
    try:
        got = np.asarray(call(X)).reshape(want.shape)
    except kb.KernelError as refused:
        assert "test_carried.py:" in str(refused)
    else:
        np.testing.assert_array_equal(got, want)


def test_a_local_of_a_helper_hides_no_counter_of_the_kernel() -> None:
    """Both are called `n`; the kernel's is counted by a function it hands over."""

    def helper(tl: Any, x: Any, o: Any, n: int, bump: Callable[[], None]) -> None:
        for j in tl.range(4):
            copy_row(tl, x, o, j, j)
            bump()
        assert n == 3

    def kernel(tl: Any, x: Any, o: Any) -> None:
        n = 0

        def bump() -> None:
            nonlocal n
            n += 1

        helper(tl, x, o, 3, bump)
        tl.store(o[8:16], tl.full((8,), n))

    with pytest.raises(kb.KernelError, match="n`: 1, then 2"):
        record(kernel)
