"""Python where tl belongs, loops that are left, and misuse of outputs and scopes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import X, mistake


@mistake(kb.KernelError, "`if` on a tile", "tl.where")
def branch_on_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    if tl.load(x) > 0:  # <-
        pass


@mistake(kb.KernelError, "no Python value")
def float_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    float(tl.sum(tl.load(x)))  # <-


@mistake(kb.KernelError, "no Python value")
def int_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    int(tl.sum(tl.load(n)))  # <-


@mistake(kb.KernelError, "no Python value")
def range_over_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    range(tl.sum(tl.load(n)))  # <-


@mistake(kb.KernelError, "no Python value")
def iterate_over_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.load(x):  # <-
        pass


@mistake(kb.KernelError, "no Python value")
def numpy_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.asarray(tl.load(x))  # <-


@mistake(kb.KernelError, "tl.copy_to(dst, src)")
def assign_to_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    t[0] = 1.0  # <-


@mistake(kb.KernelError, "store to the input x", "input_output_aliases")
def store_to_an_input(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(x, tl.load(x))  # <-


@mistake(kb.KernelError, "2 operands")
def too_few_operands(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.maximum(tl.load(x))  # <-


@mistake(kb.KernelError, "break", "tl.static_range")
def leave_by_break(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):  # <-
        tl.load(x[i])
        break
    tl.store(o, tl.load(x))


@mistake(kb.KernelError, "break, return", "tl.static_range")
def leave_by_return(tl: Any, x: Any, n: Any, o: Any) -> None:
    def first_row() -> Any:
        for i in tl.range(4):  # <-
            return tl.load(x[i])

    tl.store(o[0], first_row())


@mistake(kb.KernelError, "exception")
def leave_by_an_exception(tl: Any, x: Any, n: Any, o: Any) -> None:
    try:
        for i in tl.range(4):  # <-
            tl.load(x[i])
            raise KeyError
    except KeyError:
        tl.store(o, tl.load(x))


@mistake(kb.KernelError, "break")
def leave_the_inner_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(2):
        for j in tl.range(4):  # <-
            tl.load(x[i * 4 + j])
            break
        tl.store(o[i], tl.load(x[i]))


@mistake(kb.KernelError, "`for` statement")
def index_by_next(tl: Any, x: Any, n: Any, o: Any) -> None:
    i = next(tl.range(4))  # <-
    tl.load(x[i])


@mistake(kb.KernelError, "`if` on a tile", "tl.where")
def conditional_expression_on_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    s = tl.sum(tl.load(x))
    tl.store(o, tl.load(x) if s > 0.0 else tl.zeros((8, 4)))  # <-


@mistake(kb.KernelError, "`if` on a tile")
def builtin_max_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    max(tl.load(x), tl.zeros((8, 4)))  # <-


@mistake(kb.KernelError, "on a tile")
def while_on_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    while tl.max(t) > 0.0:  # <-
        t = t - 1.0


@mistake(kb.KernelError, "on a tile")
def and_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(t > 0.0 and t < 1.0, t, 0.0)  # <-


@mistake(kb.KernelError, "on a tile")
def chained_comparison(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(0.0 < t < 1.0, t, 0.0)  # <-


@mistake(kb.KernelError, "no Python value")
def length_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    len(tl.load(x))  # <-


@mistake(kb.KernelError, "no Python value")
def math_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    math.exp(tl.sum(tl.load(x)))  # <-


@mistake(kb.KernelError, "tl.dot")
def matrix_operator(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    t @ tl.trans(t)  # <-


@mistake(kb.KernelError, "no Python value")
def list_at_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    [0.5, 0.25][tl.sum(tl.load(n))]  # <-


@mistake(kb.KernelError, "tl.when", "`if` on the symbolic integer")
def branch_on_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        if i == 0:  # <-
            tl.load(x[i])


@mistake(kb.KernelError, "tl.when")
def branch_on_the_pe(tl: Any, x: Any, n: Any, o: Any) -> None:
    if tl.program_id() == 0:  # <-
        tl.store(o, tl.load(x))


@mistake(kb.KernelError, "`if` on the symbolic integer")
def builtin_min_of_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[min(i, 3)])  # <-


@mistake(kb.KernelError, "tl.range")
def python_range_over_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        for _ in range(i):  # <-
            pass


@mistake(kb.KernelError, "tl.static_range")
def list_at_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    scales = [1.0, 0.5, 0.25, 0.125]
    for i in tl.range(4):
        tl.load(x[i]) * scales[i]  # <-


@mistake(kb.KernelError, "tl.static_range")
def dict_at_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    scales = {0: 1.0, 1: 0.5}
    for i in tl.range(2):
        tl.load(x[i]) * scales[i]  # <-


@mistake(kb.KernelError, "no single Python value")
def int_of_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[int(i)])  # <-


@mistake(kb.KernelError, "float", "Multiply the tile")
def index_times_a_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[i]) * (i * 0.5)  # <-


@mistake(kb.KernelError, "//")
def half_of_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[i / 2])  # <-


@mistake(kb.KernelError, "can be 0", "iteration i = 0")
def division_by_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[4 // i])  # <-


@mistake(kb.KernelError, "leaves int32", "iteration i = 2")
def flat_offset_too_large(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        i * 2**30 + 1  # <-


@mistake(kb.KernelError, "index i is used after its loop")
def index_after_its_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        tl.load(x[i])
    tl.store(o[i], tl.load(x[0]))  # <-


@mistake(kb.KernelError, "after its loop")
def view_after_its_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        row = x[i]
    tl.load(row)  # <-


@mistake(kb.KernelError, "`for` statement")
def listed_range(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = list(tl.range(8))  # <-
    tl.load(x[rows[0]])


@mistake(kb.KernelError, "step")
def reversed_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in reversed(tl.range(8)):  # <-
        tl.load(x[i])


@mistake(kb.KernelError, "symbolic", "tl.scratch_scope")
def growth_in_a_triangle(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        for j in tl.range(i):  # <-
            tl.load(x[j])


@mistake(kb.KernelError, "still open", "with tl.scratch_scope", late=True)
def scope_left_open(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.scratch_scope().__enter__()  # <-
    tl.store(o, tl.load(x))


@mistake(kb.KernelError, "still open")
def scope_left_open_in_a_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.scratch_scope().__enter__()  # <-
        tl.load(x[i])


@mistake(kb.KernelError, "1 operand", "exp(x)")
def too_many_operands(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.load(x), 2.0)  # <-


@mistake(kb.KernelError, "store to the input n")
def store_to_part_of_an_input(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(n[0:4], tl.load(n[0:4]))  # <-


@mistake(kb.KernelError, "store to the input n", input_output_aliases={0: 0})
def store_to_the_input_that_is_not_aliased(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(x, tl.load(x))
    tl.store(n, tl.load(n))  # <-


@mistake(kb.KernelError, "another kernel run", "Make tiles inside")
def tile_of_another_run(tl: Any, x: Any, n: Any, o: Any) -> None:
    kept: list[Any] = []
    kb.kernel_call(lambda tl, x, o: kept.append(tl.load(x)), X).record(X)
    tl.store(o, kept[0])  # <-


@mistake(kb.KernelError, "clamp", "clamp(x, low, high)", "min, max")
def clamp_by_numpys_names(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.clamp(tl.load(x), min=0.0, max=1.0)  # <-


@mistake(kb.KernelError, "clamp takes 3 operands", "clamp(x, low, high)")
def clamp_from_below_only(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.clamp(tl.load(x), 0.0)  # <-


@mistake(kb.KernelError, "clamp", "clamp(x, low, high)")
def clamp_with_a_bound_twice(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.clamp(tl.load(x), 0.0, low=0.0, high=1.0)  # <-


@mistake(kb.KernelError, "fma takes 3 operands", "fma(a, b, c)")
def fma_of_two(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.fma(t, t)  # <-


@mistake(kb.KernelError, "rsqrt takes 1 operand", "rsqrt(x)")
def rsqrt_with_an_epsilon(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.rsqrt(tl.load(x), 1e-5)  # <-


@mistake(kb.KernelError, "where takes 3 operands", "where(cond, a, b)")
def positions_by_where(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.where(tl.load(x) > 0)  # <-


@mistake(kb.KernelError, "sigmoid", "sigmoid(x)", "axis")
def sigmoid_along_an_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sigmoid(tl.load(x), axis=1)  # <-


@mistake(kb.KernelError, "can be 0 in iteration i = 2")
def remainder_by_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[7 % (i - 2)])  # <-


@mistake(kb.KernelError, "none of tiles", "& | ~")
def exclusive_or_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    (tl.load(x) > 0) ^ (tl.load(x) > 1)  # <-


@mistake(kb.KernelError, "pow takes 2 operands")
def power_with_a_modulus(tl: Any, x: Any, n: Any, o: Any) -> None:
    pow(tl.load(x), 2, 5)  # <-


@mistake(kb.KernelError, "none of symbolic integers", "the other way round")
def negate_a_condition(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.when(~(tl.program_id() > 0)):  # <-
        tl.store(o, tl.load(x))


@mistake(kb.KernelError, "store to o where data says", "recorded")
def store_where_data_says(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = tl.arange(0, 1)
    tl.store(o[tl.ds(row, 8)], tl.load(x), boundary_check=True)  # <-
