"""Tiles used after the scope, or the loop iteration, that owned their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kbjax as kb
from tests.mistakes.catalogue import mistake


@mistake(kb.UseAfterScopeError, "use_after_scope.py", "tl.copy_to")
def handle_after_its_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        row = tl.load(x[i])
    tl.store(o[0], row)  # <-


@mistake(kb.UseAfterScopeError)
def alias_after_its_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        row = tl.load(x)[tl.ds(0, 1)]
    tl.store(o[0:1], row)  # <-


@mistake(kb.UseAfterScopeError)
def alias_made_after_the_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.reshape(t, (4, 8))  # <-


@mistake(kb.UseAfterScopeError)
def write_after_the_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.copy_to(t, tl.load(x))  # <-


@mistake(kb.UseAfterScopeError)
def inner_handle_in_the_outer_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        with tl.scratch_scope():
            t = tl.load(x)
        tl.store(o, t)  # <-


@mistake(kb.UseAfterScopeError, "scratch_scope")
def read_by_an_op(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.store(o, tl.exp(t))  # <-


@mistake(kb.UseAfterScopeError, "float32[8,4]")
def read_by_a_store(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x) + 1.0
    tl.store(o, t)  # <-


@mistake(kb.UseAfterScopeError)
def read_by_an_operator(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.store(o, 1.0 - t)  # <-


@mistake(kb.UseAfterScopeError)
def read_by_a_copy(tl: Any, x: Any, n: Any, o: Any) -> None:
    kept = tl.zeros((8, 4))
    with tl.scratch_scope():
        t = tl.load(x)
    tl.copy_to(kept, t)  # <-


@mistake(kb.UseAfterScopeError)
def cast_after_the_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.store(o, t.to("float32"))  # <-


@mistake(kb.UseAfterScopeError)
def reshaped_inside(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        flat = tl.reshape(tl.load(x), (32,))
    tl.exp(flat)  # <-


@mistake(kb.UseAfterScopeError)
def expanded_after(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.expand_dims(t, 0)  # <-


@mistake(kb.UseAfterScopeError)
def viewed_after(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.store(o[0:2], t[tl.ds(0, 2)])  # <-


@mistake(kb.UseAfterScopeError)
def written_through_an_alias(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        top = tl.load(x)[tl.ds(0, 4)]
    tl.copy_to(top, tl.load(x[0:4]))  # <-


@mistake(kb.UseAfterScopeError)
def smuggled_in_a_list(tl: Any, x: Any, n: Any, o: Any) -> None:
    kept = []
    with tl.scratch_scope():
        kept.append(tl.load(x))
    tl.store(o, kept[0])  # <-


@mistake(kb.UseAfterScopeError)
def smuggled_in_a_dict(tl: Any, x: Any, n: Any, o: Any) -> None:
    state = {}
    with tl.scratch_scope():
        state["row"] = tl.load(x)
    tl.store(o, state["row"])  # <-


@mistake(kb.UseAfterScopeError)
def smuggled_in_an_attribute(tl: Any, x: Any, n: Any, o: Any) -> None:
    state = SimpleNamespace()
    with tl.scratch_scope():
        state.row = tl.load(x)
    tl.store(o, state.row)  # <-


@mistake(kb.UseAfterScopeError)
def smuggled_in_a_closure(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)

        def flush() -> None:
            tl.store(o, t)  # <-

    flush()


@mistake(kb.UseAfterScopeError)
def returned_by_a_helper(tl: Any, x: Any, n: Any, o: Any) -> None:
    def loaded() -> Any:
        with tl.scratch_scope():
            return tl.load(x)

    tl.store(o, loaded())  # <-


@mistake(kb.UseAfterScopeError)
def yielded_by_a_generator(tl: Any, x: Any, n: Any, o: Any) -> None:
    def tiles() -> Iterator[Any]:
        for row in (0, 4):
            with tl.scratch_scope():
                yield tl.load(x[tl.ds(row, 4)])

    tl.store(o[0:4], next(iter([*tiles()])))  # <-


@mistake(kb.UseAfterScopeError)
def a_helper_called_after(tl: Any, x: Any, n: Any, o: Any) -> None:
    def flush(tile: Any) -> None:
        tl.store(o[0], tile)  # <-

    for i in tl.range(8):
        row = tl.load(x[i])
    flush(row)


@mistake(kb.UseAfterScopeError)
def made_two_scopes_deep(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope("outer"):
        with tl.scratch_scope("inner"):
            t = tl.load(x)
        tl.zeros((4,))
    tl.store(o, t)  # <-


@mistake(kb.UseAfterScopeError, "scope of")
def after_its_scope_in_the_same_iteration(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        with tl.scratch_scope():
            row = tl.load(x[i])
        tl.store(o[i], row)  # <-


@mistake(kb.UseAfterScopeError, "scope of")
def after_its_scope_and_its_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        with tl.scratch_scope():
            row = tl.load(x[i])
    tl.store(o[0], row)  # <-


@mistake(kb.UseAfterScopeError, "loop of")
def after_the_inner_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(2):
        for j in tl.range(4):
            row = tl.load(x[i * 4 + j])
        tl.store(o[i], row)  # <-


@mistake(kb.UseAfterScopeError, "loop of")
def after_nested_loops(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(2):
        for j in tl.range(4):
            row = tl.load(x[i * 4 + j])
    tl.store(o[0], row)  # <-


@mistake(kb.UseAfterScopeError, "loop of")
def in_a_second_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        row = tl.load(x[i])
    for i in tl.range(8):
        tl.store(o[i], row)  # <-


@mistake(kb.UseAfterScopeError, "loop of")
def in_the_second_run_of_the_same_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    kept = []
    for again in tl.static_range(2):
        for i in tl.range(4):
            row = tl.load(x[i])
            tl.store(o[i], kept[0] if again else row)  # <-
        kept = [row]


@mistake(kb.UseAfterScopeError, "loop of")
def after_a_loop_that_never_runs(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(0):
        row = tl.load(x[i])
    tl.store(o[0], row)  # <-


@mistake(kb.UseAfterScopeError)
def scope_ended_by_an_exception(tl: Any, x: Any, n: Any, o: Any) -> None:
    try:
        with tl.scratch_scope():
            t = tl.load(x)
            raise KeyError
    except KeyError:
        tl.store(o, t)  # <-


@mistake(kb.UseAfterScopeError)
def scope_ended_by_a_refusal(tl: Any, x: Any, n: Any, o: Any) -> None:
    try:
        with tl.scratch_scope():
            t = tl.load(x)
            tl.dot(t, t)
    except kb.ShapeError:
        tl.store(o, t)  # <-


@mistake(kb.UseAfterScopeError)
def of_the_unrolled_iteration_before(tl: Any, x: Any, n: Any, o: Any) -> None:
    previous = tl.zeros((4, 4))
    for i in tl.static_range(2):
        with tl.scratch_scope():
            tl.store(o[tl.ds(i * 4, 4)], previous)  # <-
            previous = tl.load(x[tl.ds(i * 4, 4)])


@mistake(kb.UseAfterScopeError)
def running_maximum_in_a_python_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    m = tl.zeros((4,))
    for i in range(8):
        with tl.scratch_scope():
            m = tl.maximum(m, tl.load(x[i]))  # <-


@mistake(kb.UseAfterScopeError)
def in_the_next_scope_at_the_same_bytes(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    with tl.scratch_scope():
        u = tl.load(x)
        tl.store(o, u + t)  # <-


@mistake(kb.UseAfterScopeError)
def where_of_a_dead_condition(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    with tl.scratch_scope():
        positive = t > 0.0
    tl.store(o, tl.where(positive, t, 0.0))  # <-


@mistake(kb.UseAfterScopeError, "int32[1]")
def start_from_an_ended_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        view = x[tl.arange(0, 1)]
    tl.load(view, other=0.0)  # <-
