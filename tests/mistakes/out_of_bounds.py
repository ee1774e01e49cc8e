"""Views that leave their tensor, in an iteration that runs."""

from __future__ import annotations

from typing import Any

import jax

import kbjax as kb
from tests.mistakes.catalogue import N, mistake


@mistake(kb.OutOfBoundsError, "12 elements from 0 along axis 0", "other=")
def view_too_long(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(0, 12)])  # <-


@mistake(kb.OutOfBoundsError, "from 6", "0 to 8", "other=")
def slice_past_the_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[6:10])  # <-


@mistake(kb.OutOfBoundsError, "from -1")
def negative_start(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(-1, 4)])  # <-


@mistake(kb.OutOfBoundsError, "axis 1")
def column_past_the_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[:, 4])  # <-


@mistake(kb.OutOfBoundsError)
def negative_index_too_small(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[-9])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 2", "from 6", "other=")
def symbolic_past_the_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[tl.ds(i * 3, 3)])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 0", "from -1")
def symbolic_before_the_start(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[i - 1])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 2, j = 3")
def nested_past_the_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(3):
        for j in tl.range(2 * i):
            tl.load(x[i + j + 3])  # <-


@mistake(kb.OutOfBoundsError, "starts where data says", "other=")
def data_may_say_anything(tl: Any, x: Any, n: Any, o: Any) -> None:
    first = tl.sum(tl.load(n))
    tl.load(x[tl.ds(first, 4)])  # <-


@mistake(kb.OutOfBoundsError, "store of o", "boundary_check=True")
def store_past_the_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o[tl.ds(4, 8)], tl.load(x))  # <-


@mistake(kb.OutOfBoundsError)
def a_view_of_a_view_past_its_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[2:6][tl.ds(2, 4)])  # <-


@mistake(kb.OutOfBoundsError, "8 rows")
def tile_rows_past_the_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[tl.ds(6, 4)]  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 3")
def symbolic_tile_rows(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    for i in tl.range(4):
        tl.exp(t[tl.ds(i * 2, 3)])  # <-


NONE = jax.ShapeDtypeStruct((0, 4), "float32")
TEN = jax.ShapeDtypeStruct((10, 8), "float32")


@mistake(
    kb.OutOfBoundsError,
    "load of x",
    "4 elements from 8",
    "float32[10,8]",
    arrays=(TEN, N),
)
def rows_past_the_tenth(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[8:12])  # <-


@mistake(kb.OutOfBoundsError, "from 8")
def index_of_the_length(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[x.shape[0]])  # <-


@mistake(kb.OutOfBoundsError, "12 elements", "along axis 0")
def whole_tile_of_a_short_tensor(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[0:12])  # <-


@mistake(kb.OutOfBoundsError, "from 0", arrays=(NONE, N))
def row_of_an_empty_tensor(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[0])  # <-


@mistake(kb.OutOfBoundsError, "iteration j = 2", "from 6", "other=")
def last_tile_is_partial(tl: Any, x: Any, n: Any, o: Any) -> None:
    for j in tl.range(tl.cdiv(x.shape[0], 3)):
        tl.load(x[tl.ds(j * 3, 3)])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 7", "from 8")
def one_row_ahead(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        tl.load(x[i + 1])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 0", "from 8")
def backwards_from_the_length(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8, -1, -1):
        tl.load(x[i])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 1", "from -1")
def negative_symbolic_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[-i])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 4", "from 8")
def tile_number_for_a_row(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        tl.load(x[tl.ds(i * 2, 2)])  # <-


@mistake(kb.OutOfBoundsError, "along axis 1", "float32[8,4]")
def axes_swapped(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        tl.load(x[:, i])  # <-


@mistake(kb.OutOfBoundsError, "along axis 1")
def row_of_the_transpose(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x.T[6])  # <-


@mistake(kb.OutOfBoundsError, "load of x", "along axis 0")
def row_of_a_narrower_view(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[0:4][5])  # <-


@mistake(kb.OutOfBoundsError, "load of x", "along axis 0")
def before_a_narrower_view(tl: Any, x: Any, n: Any, o: Any) -> None:
    top = x[4:8]
    for i in tl.range(2):
        tl.load(top[i - 1])  # <-


@mistake(kb.OutOfBoundsError, "store of o", "iteration i = 2", "boundary_check=True")
def store_of_a_partial_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.zeros((3, 4))
    for i in tl.range(3):
        tl.store(o[tl.ds(i * 3, 3)], t)  # <-


@mistake(kb.OutOfBoundsError, "store of o", "boundary_check=True")
def store_of_what_other_filled(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x[tl.ds(4, 8)], other=0.0)
    tl.store(o[tl.ds(4, 8)], t)  # <-


@mistake(kb.OutOfBoundsError, "load of o")
def load_of_an_output(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x))
    tl.load(o[4:9])  # <-


@mistake(kb.OutOfBoundsError, "pe = 1", "from 4", num_pes=2, in_axes=None)
def share_of_the_last_pe(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(tl.program_id() * 4, 8)])  # <-


@mistake(kb.OutOfBoundsError, "pe = 2", num_pes=3, in_axes=None)
def more_pes_than_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[tl.program_id() * 4 + i])  # <-


@mistake(kb.OutOfBoundsError, "cannot be proven", "other=")
def too_many_iterations_to_prove(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(1 << 13):
        for j in tl.range(1 << 13):
            tl.load(x[i * j % 9])  # <-


@mistake(kb.OutOfBoundsError, "iteration i = 4, j = 4", "from 8")
def product_of_indices(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        for j in tl.range(i + 1):
            tl.load(x[tl.ds(i + j, 1)])  # <-


@mistake(kb.OutOfBoundsError, "8 rows")
def whole_tile_of_a_short_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[0:9]  # <-


@mistake(kb.OutOfBoundsError, "8 rows", "iteration i = 0")
def rows_before_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    for i in tl.range(4):
        tl.exp(t[tl.ds(i - 1, 1)])  # <-


@mistake(kb.OutOfBoundsError, "4 rows")
def rows_of_a_narrower_alias(tl: Any, x: Any, n: Any, o: Any) -> None:
    top = tl.load(x)[tl.ds(0, 4)]
    tl.exp(top[tl.ds(4, 1)])  # <-


@mistake(kb.OutOfBoundsError, "12 elements", "Take a view that lies inside")
def view_that_leaves_its_tensor(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", x, x[tl.ds(0, 12)], x[tl.ds(0, 12)], o)  # <-


@mistake(kb.OutOfBoundsError, "starts where data says", "composite 'flash' of x")
def composite_where_data_says(tl: Any, x: Any, n: Any, o: Any) -> None:
    keys = x[tl.ds(tl.sum(tl.load(n)), 4), :]
    tl.composite("flash", x, keys, keys, o)  # <-
