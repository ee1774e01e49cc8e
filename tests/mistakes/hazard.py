"""Elements of one output that several PEs use."""

from __future__ import annotations

from typing import Any

import kbjax as kb
from tests.mistakes.catalogue import mistake

TWO: dict[str, Any] = {"num_pes": 2, "in_axes": None, "out_axes": None, "late": True}
THREE: dict[str, Any] = {**TWO, "num_pes": 3}


@mistake(kb.HazardError, "output o", "PE 0 and PE 1", "tl.program_id()", **TWO)
def all_rows_by_both(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x))  # <-


@mistake(kb.HazardError, "output o", "PE 0 and PE 1", **TWO)
def overlap_by_one_row(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = tl.program_id() * 3
    tl.store(o[tl.ds(row, 4)], tl.load(x[tl.ds(row, 4)]))  # <-


@mistake(kb.HazardError, "output o", "tl.program_id()", **TWO)
def number_of_programs_for_the_program(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = tl.num_programs() * 2
    tl.store(o[tl.ds(row, 4)], tl.load(x[tl.ds(row, 4)]))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def second_store_of_both(tl: Any, x: Any, n: Any, o: Any) -> None:
    top = tl.load(x[0:1])
    tl.store(o[tl.ds(tl.program_id() * 4, 1)], top)
    tl.store(o[0:1], top)  # <-


@mistake(kb.HazardError, "output o", **TWO)
def load_of_what_another_stores(tl: Any, x: Any, n: Any, o: Any) -> None:
    mine = tl.ds(tl.program_id() * 4, 4)
    tl.store(o[mine], tl.load(x[mine]))
    tl.load(o)  # <-


@mistake(kb.HazardError, "output o", **TWO)
def load_of_the_next_pe(tl: Any, x: Any, n: Any, o: Any) -> None:
    pe = tl.program_id()
    tl.store(o[pe], tl.load(x[pe]))
    tl.load(o[1 - pe])  # <-


@mistake(kb.HazardError, "output o", **TWO)
def all_tiles_in_a_loop_by_both(tl: Any, x: Any, n: Any, o: Any) -> None:
    for j in tl.range(4):
        rows = tl.ds(j * 2, 2)
        tl.store(o[rows], tl.load(x[rows]))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def grid_stride_of_a_wrong_stride(tl: Any, x: Any, n: Any, o: Any) -> None:
    for j in tl.range(3):
        row = tl.program_id() + j
        tl.store(o[row], tl.load(x[row]))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def share_of_an_odd_number_of_rows(tl: Any, x: Any, n: Any, o: Any) -> None:
    for j in tl.range(5):
        row = tl.program_id() * 3 + j
        tl.store(o[row], tl.load(x[row]))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def overlap_in_columns_only(tl: Any, x: Any, n: Any, o: Any) -> None:
    columns = tl.ds(tl.program_id(), 2)
    tl.store(o[:, columns], tl.load(x[:, columns]))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def rows_of_the_transpose(tl: Any, x: Any, n: Any, o: Any) -> None:
    mine = tl.ds(tl.program_id() * 2, 4)
    tl.store(o.T[0:2][:, mine], tl.load(x.T[0:2][:, mine]))  # <-


@mistake(kb.HazardError, "output o", "PE 0 and PE 2", **THREE)
def the_first_and_the_last_of_three(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = tl.program_id() % 2 * 4
    tl.store(o[tl.ds(row, 4)], tl.load(x[tl.ds(row, 4)]))  # <-


@mistake(kb.HazardError, "output o", "PE 1 and PE 2", **THREE)
def the_last_two_of_three(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = tl.minimum(tl.program_id(), 1) * 4
    tl.store(o[tl.ds(row, 4)], tl.load(x[tl.ds(row, 4)]))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def result_of_all_in_one_row(tl: Any, x: Any, n: Any, o: Any) -> None:
    mine = tl.load(x[tl.ds(tl.program_id() * 4, 4)])
    tl.store(o[0], tl.sum(mine, axis=0))  # <-


@mistake(kb.HazardError, "output o", **TWO)
def tail_over_the_next_pe(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = tl.ds(tl.program_id() * 4, 6)
    t = tl.load(x[rows], other=0.0)
    tl.store(o[rows], t, boundary_check=True)  # <-


@mistake(kb.HazardError, "PE 0 and PE 1", **TWO, input_output_aliases={0: 0})
def store_to_the_aliased_input(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(x, tl.load(x[0:8]) + 1.0)  # <-


@mistake(kb.HazardError, "PE 0 and PE 1", **TWO, input_output_aliases={0: 0})
def load_of_the_aliased_input(tl: Any, x: Any, n: Any, o: Any) -> None:
    total = tl.sum(tl.load(x), axis=0)  # <-
    tl.store(o[tl.program_id()], total)
