"""Python state that a tl.range body carries from one iteration to the next."""

from __future__ import annotations

import functools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import mistake


@mistake(kb.KernelError, "`m`", "tl.copy_to(m, new)")
def rebind_a_handle(tl: Any, x: Any, n: Any, o: Any) -> None:
    m = tl.load(x[0])
    for i in tl.range(8):
        m = tl.maximum(m, tl.load(x[i]))  # <-


@mistake(kb.KernelError, "`offset`: 0, then 2", "tl.copy_to")
def carry_an_offset(tl: Any, x: Any, n: Any, o: Any) -> None:
    offset = 0
    for _ in tl.range(4):
        tl.load(x[tl.ds(offset, 2)])  # <-
        offset += 2


@mistake(kb.KernelError, "`count`")
def carry_a_scalar(tl: Any, x: Any, n: Any, o: Any) -> None:
    count = 1.0
    for i in tl.range(4):
        tl.load(x[i]) * count  # <-
        count *= 0.5


@mistake(kb.KernelError, "`previous`")
def carry_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    previous = 0
    for i in tl.range(4):
        tl.load(x[previous])  # <-
        previous = i


@mistake(kb.KernelError, "`len(seen)`")
def carry_a_list(tl: Any, x: Any, n: Any, o: Any) -> None:
    seen: list[int] = []
    for i in tl.range(4):
        tl.load(x[i]) * len(seen)  # <-
        seen.append(1)


@mistake(kb.KernelError, "`tiles[0]`")
def carry_a_list_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    tiles = [tl.load(x)]
    for _ in tl.range(4):
        tiles[0] = tiles[0] + 1.0  # <-


@mistake(kb.KernelError, "`twice`")
def carry_how_much_is_done(tl: Any, x: Any, n: Any, o: Any) -> None:
    twice = False
    for i in tl.range(4):
        tl.load(x[i])
        if twice:
            tl.exp(tl.load(x[i]))  # <-
        twice = True


@mistake(kb.KernelError, "`m`", "-inf", "float32[4]", "tl.copy_to(m, new)")
def float_becomes_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    m = float("-inf")
    for i in tl.range(4):
        m = tl.maximum(m, tl.load(x[i]))  # <-


@mistake(kb.KernelError, "`acc`", "int32[8,4]", "float32[8,4]", "tl.copy_to(acc, new)")
def integers_become_floats(tl: Any, x: Any, n: Any, o: Any) -> None:
    acc = tl.zeros((8, 4), "int32")
    for _ in tl.range(4):
        acc = acc + tl.load(x)  # <-


@mistake(kb.KernelError, "`acc`", "bfloat16[8,4]", "float32[8,4]", "tl.copy_to(acc, ")
def bfloat16_becomes_float32(tl: Any, x: Any, n: Any, o: Any) -> None:
    acc = tl.zeros((8, 4), "bfloat16")
    for _ in tl.range(4):
        acc += tl.load(x)  # <-


@mistake(kb.KernelError, "`acc`", "[64,1]", "[64,64]", "tl.copy_to(acc, new)")
def column_becomes_a_matrix(tl: Any, x: Any, n: Any, o: Any) -> None:
    acc, row = tl.zeros((64, 1)), tl.zeros((1, 64))
    for _ in tl.range(4):
        acc = acc + row  # <-


@mistake(kb.KernelError, "`acc`", "tl.copy_to(acc, new)")
def product_added_in_place(tl: Any, x: Any, n: Any, o: Any) -> None:
    a, acc = tl.load(x), tl.zeros((8, 8))
    for _ in tl.range(4):
        acc += tl.dot(a, tl.trans(a))  # <-


@mistake(kb.KernelError, "`m`", "tl.copy_to(m, new)")
def rebound_by_a_helper(tl: Any, x: Any, n: Any, o: Any) -> None:
    m = tl.zeros((4,))

    def step(i: Any) -> None:
        nonlocal m
        m = tl.maximum(m, tl.load(x[i]))  # <-

    for i in tl.range(8):
        step(i)


@mistake(kb.KernelError, "`state['m']`", "tl.copy_to(state['m'], new)")
def tile_in_a_dict(tl: Any, x: Any, n: Any, o: Any) -> None:
    state = {"m": tl.zeros((4,))}
    for i in tl.range(8):
        state["m"] = tl.maximum(state["m"], tl.load(x[i]))  # <-


@mistake(kb.KernelError, "`state.m`", "tl.copy_to(state.m, new)")
def tile_in_an_attribute(tl: Any, x: Any, n: Any, o: Any) -> None:
    state = SimpleNamespace(m=tl.zeros((4,)))
    for i in tl.range(8):
        state.m = tl.maximum(state.m, tl.load(x[i]))  # <-


@mistake(kb.KernelError, "`last`", "tl.copy_to")
def tile_of_the_iteration_before(tl: Any, x: Any, n: Any, o: Any) -> None:
    last = tl.zeros((4,))
    for i in tl.range(8):
        row = tl.load(x[i])
        tl.store(o[i], row - last)  # <-
        last = row


@mistake(kb.KernelError, "`top`", "tl.copy_to")
def alias_of_the_iteration_before(tl: Any, x: Any, n: Any, o: Any) -> None:
    top = tl.zeros((1, 4))
    for i in tl.range(4):
        tl.store(o[tl.ds(i, 1)], top)  # <-
        top = tl.load(x)[tl.ds(0, 1)]


@mistake(kb.KernelError, "`for` statement")
def builtin_sum_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = (tl.load(x[i]) for i in tl.range(8))  # <-
    tl.store(o[0], sum(rows))


@mistake(kb.KernelError, "`for` statement")
def reduce_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    def step(m: Any, i: Any) -> Any:
        return tl.maximum(m, tl.load(x[i]))

    functools.reduce(step, tl.range(8), tl.zeros((4,)))  # <-


@mistake(kb.KernelError, "`m`", "tl.copy_to(m, new)")
def inner_loop_rebinds(tl: Any, x: Any, n: Any, o: Any) -> None:
    m = tl.zeros((4,))
    for i in tl.range(2):
        for j in tl.range(4):
            m = tl.maximum(m, tl.load(x[i * 4 + j]))  # <-


@mistake(kb.KernelError, "`m`", "tl.copy_to(m, new)")
def outer_loop_rebinds(tl: Any, x: Any, n: Any, o: Any) -> None:
    m = tl.zeros((4,))
    for i in tl.range(2):
        for j in tl.range(4):
            tl.store(o[i * 4 + j], m)  # <-
        m = tl.load(x[i])


@mistake(kb.KernelError, "`offset`: 0, then 1")
def inner_loop_counts(tl: Any, x: Any, n: Any, o: Any) -> None:
    offset = 0
    for _ in tl.range(2):
        for _ in tl.range(4):
            tl.load(x[offset])  # <-
            offset += 1


@mistake(kb.KernelError, "`offset`: 0, then 4")
def outer_loop_counts(tl: Any, x: Any, n: Any, o: Any) -> None:
    offset = 0
    for _ in tl.range(2):
        for j in tl.range(4):
            tl.load(x[j + offset])  # <-
        offset += 4


@mistake(kb.KernelError, "`acc`", "Compute it anew")
def sum_of_indices(tl: Any, x: Any, n: Any, o: Any) -> None:
    acc = 0
    for i in tl.range(4):
        acc += i  # <-


@mistake(kb.KernelError, "`seen[0]`", "earlier iteration")
def index_in_a_list(tl: Any, x: Any, n: Any, o: Any) -> None:
    seen = [0]
    for i in tl.range(4):
        tl.load(x[seen[0]])  # <-
        seen[0] = i


@mistake(kb.KernelError, "`row`", "earlier iteration")
def view_of_the_iteration_before(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = x[0]
    for i in tl.range(4):
        tl.load(row)  # <-
        row = x[i]


@mistake(kb.KernelError, "`rows`", "earlier iteration")
def slice_of_the_iteration_before(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = tl.ds(0, 2)
    for i in tl.range(4):
        tl.load(x[rows])  # <-
        rows = tl.ds(i * 2, 2)


@mistake(kb.KernelError, "`tag`")
def text_that_grows(tl: Any, x: Any, n: Any, o: Any) -> None:
    tag = "a"
    for i in tl.range(4):
        tl.load(x[i]) * len(tag)  # <-
        tag += "a"


@mistake(kb.KernelError, "`tag`")
def name_of_a_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    tag = "tile"
    for i in tl.range(4):
        with tl.scratch_scope(tag):  # <-
            tl.load(x[i])
        tag += "+"


@mistake(kb.KernelError, "`count['n']`: 0, then 1")
def number_in_a_dict(tl: Any, x: Any, n: Any, o: Any) -> None:
    count = {"n": 0}
    for _ in tl.range(4):
        tl.load(x[count["n"]])  # <-
        count["n"] += 1


@mistake(kb.KernelError, "`state.n`: 0, then 1")
def number_in_an_attribute(tl: Any, x: Any, n: Any, o: Any) -> None:
    state = SimpleNamespace(n=0)
    for _ in tl.range(4):
        tl.load(x[state.n])  # <-
        state.n += 1


@mistake(kb.KernelError, "`at`: 0, then 1")
def number_in_a_closure_cell(tl: Any, x: Any, n: Any, o: Any) -> None:
    at = 0

    def row() -> Any:
        nonlocal at
        at += 1
        return tl.load(x[at - 1])  # <-

    for _ in tl.range(4):
        row()


@mistake(kb.KernelError, "`row.at[0]`: 0, then 1")
def number_in_a_default_argument(tl: Any, x: Any, n: Any, o: Any) -> None:
    def row(at: list[int] = [0]) -> Any:  # noqa: B006
        at[0] += 1
        return tl.load(x[at[0] - 1])  # <-

    for _ in tl.range(4):
        row()


@mistake(kb.KernelError, "`_rows_read`: 0, then 1")
def number_in_a_global(tl: Any, x: Any, n: Any, o: Any) -> None:
    global _rows_read
    _rows_read = 0
    for _ in tl.range(4):
        tl.load(x[_rows_read])  # <-
        _rows_read += 1


@mistake(kb.KernelError, "`starts`")
def iterator_of_starts(tl: Any, x: Any, n: Any, o: Any) -> None:
    starts = iter([0, 2, 4, 6])
    for _ in tl.range(4):
        tl.load(x[tl.ds(next(starts), 2)])  # <-


@mistake(kb.KernelError, "`k`: 0, then 1")
def enumerated_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for k, _ in enumerate(tl.range(4)):
        tl.load(x[k])  # <-


@mistake(kb.KernelError, "`at`", "an array")
def number_in_an_array(tl: Any, x: Any, n: Any, o: Any) -> None:
    at = np.zeros(1, np.int32)
    for _ in tl.range(4):
        tl.load(x[at[0]])  # <-
        at += 1


@mistake(kb.KernelError, "`first`: True, then False", "tl.copy_to")
def flag_of_the_first_iteration(tl: Any, x: Any, n: Any, o: Any) -> None:
    first = True
    for i in tl.range(4):
        row = tl.load(x[i]) if first else tl.load(x[i + 1])  # <-
        tl.store(o[i], row)
        first = False


@mistake(kb.KernelError, "`seen`: set(), then {0}")
def set_that_grows(tl: Any, x: Any, n: Any, o: Any) -> None:
    seen: set[int] = set()
    for i in tl.range(4):
        tl.load(x[i]) * len(seen)  # <-
        seen.add(len(seen))


@mistake(kb.KernelError, "tl.static_range")
def random_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[i]) * random.random()  # <-


@mistake(kb.KernelError, "`seen`")
def nothing_the_first_time(tl: Any, x: Any, n: Any, o: Any) -> None:
    seen = None
    for i in tl.range(4):
        if seen is None:
            tl.load(x[i])  # <-
        seen = i


@mistake(kb.KernelError, "`buffers[", "tl.copy_to")
def buffers_swapped(tl: Any, x: Any, n: Any, o: Any) -> None:
    buffers = [tl.zeros((4,)), tl.zeros((4,))]
    for i in tl.range(4):
        tl.copy_to(buffers[0], tl.load(x[i]))  # <-
        buffers.reverse()
