"""Bytes that are read before it is certain that they were written."""

from __future__ import annotations

from typing import Any

import kbjax as kb
from tests.mistakes.catalogue import mistake


@mistake(kb.UninitializedReadError, "tl.zeros")
def read_before_write(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.empty((8, 4)))  # <-


@mistake(kb.UninitializedReadError)
def copy_before_write(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.zeros((8, 4)), tl.empty((8, 4)))  # <-


@mistake(kb.UninitializedReadError)
def read_what_an_empty_loop_writes(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    for _ in tl.range(0):
        tl.copy_to(t, tl.load(x))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def read_what_is_half_written(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    tl.copy_to(t[tl.ds(0, 4)], tl.load(x[0:4]))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def read_what_a_refused_loop_writes(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    try:
        for _ in tl.range(1_000_000):
            tl.copy_to(t, tl.load(x))
    except kb.ScratchOverflowError:
        pass
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError, "exp", "float32[8,4]", "tl.copy_to")
def operand_of_an_op(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.empty((8, 4)))  # <-


@mistake(kb.UninitializedReadError, "add")
def accumulator_never_set(tl: Any, x: Any, n: Any, o: Any) -> None:
    acc = tl.empty((8, 4))
    tl.copy_to(acc, acc + tl.load(x))  # <-


@mistake(kb.UninitializedReadError, "dot")
def operand_of_a_dot(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.dot(tl.load(x), tl.empty((4, 8)))  # <-


@mistake(kb.UninitializedReadError, "sum")
def operand_of_a_reduction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sum(tl.empty((8, 4)), axis=1)  # <-


@mistake(kb.UninitializedReadError, "where")
def branch_of_a_where(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(t > 0.0, t, tl.empty((8, 4)))  # <-


@mistake(kb.UninitializedReadError, "cast")
def cast_of_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.empty((8, 4), "int32").to("float32")  # <-


@mistake(kb.UninitializedReadError)
def read_through_a_view(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    tl.store(o[0:2], t[tl.ds(2, 2)])  # <-


@mistake(kb.UninitializedReadError)
def read_through_a_reshape(tl: Any, x: Any, n: Any, o: Any) -> None:
    flat = tl.reshape(tl.empty((4, 8)), (8, 4))
    tl.store(o, flat)  # <-


@mistake(kb.UninitializedReadError)
def read_the_other_half(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    tl.copy_to(t[tl.ds(0, 4)], tl.load(x[0:4]))
    tl.store(o[0:4], t[tl.ds(4, 4)])  # <-


@mistake(kb.UninitializedReadError)
def read_across_a_gap(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    tl.copy_to(t[tl.ds(0, 3)], tl.load(x[0:3]))
    tl.copy_to(t[tl.ds(4, 4)], tl.load(x[4:8]))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def written_where_a_loop_may_not_run(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        t = tl.empty((4,))
        for _ in tl.range(i):
            with tl.scratch_scope():
                tl.copy_to(t, tl.load(x[i]))
        tl.store(o[i], t)  # <-


@mistake(kb.UninitializedReadError, num_pes=2, in_axes=None)
def written_by_another_pe(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    for _ in tl.range(tl.program_id()):
        with tl.scratch_scope():
            tl.copy_to(t, tl.load(x))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError, num_pes=2, in_axes=None)
def half_by_each_pe(tl: Any, x: Any, n: Any, o: Any) -> None:
    t, mine = tl.empty((8, 4)), tl.ds(tl.program_id() * 4, 4)
    tl.copy_to(t[mine], tl.load(x[mine]))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def rows_that_do_not_cover(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    for i in tl.range(3):
        tl.copy_to(t[tl.ds(i * 2, 2)], tl.load(x[tl.ds(i * 2, 2)]))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def every_other_row(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    for i in tl.range(4):
        tl.copy_to(t[tl.ds(i * 2, 1)], tl.load(x[tl.ds(i, 1)]))
    tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def written_later_in_the_body(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    for _ in tl.range(4):
        tl.store(o, t)  # <-
        tl.copy_to(t, tl.load(x))


@mistake(kb.UninitializedReadError)
def one_row_ahead_of_the_writes(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    for i in tl.range(7):
        tl.copy_to(t[tl.ds(i, 1)], tl.load(x[tl.ds(i, 1)]))
        tl.store(o[tl.ds(i, 1)], t[tl.ds(i + 1, 1)])  # <-


@mistake(kb.UninitializedReadError)
def made_anew_in_each_iteration(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        row = tl.empty((1, 4))
        tl.store(o[tl.ds(i, 1)], row)  # <-
        tl.copy_to(row, tl.load(x[tl.ds(i, 1)]))


@mistake(kb.UninitializedReadError)
def empty_at_bytes_that_were_written(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        tl.load(x)
    tl.store(o, tl.empty((8, 4)))  # <-


@mistake(kb.UninitializedReadError)
def written_by_a_refused_copy(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    try:
        tl.copy_to(t, tl.load(n))
    except kb.DTypeError:
        tl.store(o, t)  # <-


@mistake(kb.UninitializedReadError)
def rebound_where_copy_to_is_meant(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.empty((8, 4))
    filled = t
    filled = tl.load(x)
    tl.exp(filled)
    tl.store(o, t)  # <-
