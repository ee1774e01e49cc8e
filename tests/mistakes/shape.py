"""Shapes, axes, steps and counts that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import mistake


@mistake(kb.ShapeError, "(8, 4) and (8,)", "tl.expand_dims")
def add_shapes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) + tl.zeros((8,))  # <-


@mistake(kb.ShapeError, "(8, 4) x (8, 4)", "tl.trans(b)")
def dot_shapes(tl: Any, x: Any, n: Any, o: Any) -> None:
    a = tl.load(x)
    tl.dot(a, a)  # <-


@mistake(kb.ShapeError, "dot")
def dot_of_one_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.dot(tl.load(x), tl.zeros((4,)))  # <-


@mistake(kb.ShapeError, "trans", "(4,)")
def trans_of_one_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.trans(tl.zeros((4,)))  # <-


@mistake(kb.ShapeError, "where")
def where_shapes(tl: Any, x: Any, n: Any, o: Any) -> None:
    a = tl.load(x)
    tl.where(a > 0, a, tl.zeros((3, 4)))  # <-


@mistake(kb.ShapeError, "broadcast_to", "(8, 4)")
def broadcast_shrinks(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.broadcast_to(tl.load(x), (1, 4))  # <-


@mistake(kb.ShapeError, "reshape", "(5, 7)")
def reshape_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.reshape(tl.load(x), (5, 7))  # <-


@mistake(kb.ShapeError, "copy_to", "dst (8, 4), src (4, 8)")
def copy_shapes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.load(x), tl.zeros((4, 8)))  # <-


@mistake(kb.ShapeError, "tile (8,), view (8, 4) of o")
def store_shapes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.zeros((8,)))  # <-


@mistake(kb.ShapeError, "shape (4, 0)")
def zeros_of_no_elements(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((4, 0))  # <-


@mistake(kb.ShapeError, "shape (-1,)")
def full_of_negative_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((-1,), 0.0)  # <-


@mistake(kb.ShapeError, "shape (0,)")
def arange_of_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.arange(3, 3)  # <-


@mistake(kb.ShapeError, "static", "2.5")
def zeros_of_float_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((2.5,))  # <-


@mistake(kb.ShapeError, "empty view", "x")
def load_of_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[4:4])  # <-


@mistake(kb.ShapeError, "step 2")
def step_two(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[::2])  # <-


@mistake(kb.ShapeError, "3 indices")
def too_many_indices(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[0, 0, 0])  # <-


@mistake(kb.ShapeError, "tl.ds")
def index_by_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[1.5])  # <-


@mistake(kb.ShapeError, "static size")
def symbolic_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[tl.ds(0, i)])  # <-


@mistake(kb.ShapeError, "symbolic end", "tl.ds(start, size)")
def symbolic_end(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(x[i : i + 1])  # <-


@mistake(kb.ShapeError, "tl.where")
def tile_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[0]  # <-


@mistake(kb.ShapeError, "axis 2", "-2 to 1")
def sum_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sum(tl.load(x), axis=2)  # <-


@mistake(kb.ShapeError, "axis -3")
def max_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.max(tl.load(x), axis=-3)  # <-


@mistake(kb.ShapeError, "axis 5")
def softmax_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.softmax(tl.load(x), axis=5)  # <-


@mistake(kb.ShapeError, "axis 4")
def expand_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.expand_dims(tl.load(x), 4)  # <-


@mistake(kb.ShapeError, "step 0")
def range_step(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(0, 8, 0):  # <-
        pass


@mistake(kb.ShapeError, "step 0")
def static_range_step(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.static_range(0, 8, 0):  # <-
        pass


@mistake(kb.ShapeError, "integers", "1.5")
def range_of_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(1.5):  # <-
        pass


@mistake(kb.ShapeError, "integers")
def range_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(tl.load(n)):  # <-
        pass


@mistake(kb.ShapeError, "static", "tl.range")
def static_range_of_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.static_range(i)  # <-


@mistake(kb.ShapeError, "cdiv by 0")
def cdiv_by_zero(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.cdiv(4, 0)  # <-


@mistake(kb.ShapeError, "(8, 4) and (8,)", "keepdims=True")
def reduction_that_drops_its_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    s = tl.load(x)
    s - tl.max(s, axis=1)  # <-


@mistake(kb.ShapeError, "copy_to", "dst (8, 4), src (1, 4)")
def copy_that_would_broadcast(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.load(x), tl.zeros((1, 4)))  # <-


@mistake(kb.ShapeError, "store", "tile (8, 1)")
def store_that_would_broadcast(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.zeros((8, 1)))  # <-


@mistake(kb.ShapeError, "tile (1, 4), view (4,) of o")
def store_of_a_row_with_its_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o[0], tl.load(x[0:1]))  # <-


@mistake(kb.ShapeError, "dot", "(8, 4) x (4,)", "2 axes")
def matrix_times_vector(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.dot(tl.load(x), tl.load(x[0]))  # <-


@mistake(kb.ShapeError, "dot", "2 axes")
def dot_of_a_batch(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.zeros((2, 4, 4))
    tl.dot(t, t)  # <-


@mistake(kb.ShapeError, "trans", "2 axes")
def trans_of_three_axes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.trans(tl.zeros((2, 4, 4)))  # <-


@mistake(kb.ShapeError, "broadcast_to", "(8, 4) and (8,)")
def broadcast_to_fewer_axes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.broadcast_to(tl.load(x), (8,))  # <-


@mistake(kb.ShapeError, "shape", "-1")
def reshape_of_two_unknown_sizes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.reshape(tl.load(x), (-1, -1))  # <-


@mistake(kb.ShapeError, "reshape", "(5, -1)", "32 elements")
def reshape_by_a_size_that_does_not_divide(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.reshape(tl.load(x), (5, -1))  # <-


@mistake(kb.ShapeError, "static")
def zeros_of_a_symbolic_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(1, 4):
        tl.zeros((i, 4))  # <-


@mistake(kb.ShapeError, "static", "8x4")
def zeros_of_text(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros("8x4")  # <-


@mistake(kb.ShapeError, "static")
def zeros_like(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros(tl.load(x))  # <-


@mistake(kb.ShapeError, "static")
def arange_of_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.arange(i, i + 4)  # <-


@mistake(kb.ShapeError, "empty view")
def slice_of_the_last_none(tl: Any, x: Any, n: Any, o: Any) -> None:
    keep = 0
    tl.load(x[8 - keep :])  # <-


@mistake(kb.ShapeError, "step -1")
def reversed_rows(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[::-1])  # <-


@mistake(kb.ShapeError, "one element", "(8,)", "tl.ds(j, 1)")
def view_at_a_vector(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.arange(0, 8)])  # <-


@mistake(kb.ShapeError, "one element", "(8, 4)")
def view_at_a_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.load(x) > 0.0])  # <-


@mistake(kb.ShapeError, "[0, 2]", "tl.ds(start, size)")
def view_at_a_list(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[[0, 2]])  # <-


@mistake(kb.ShapeError, "tl.ds(start, size)")
def view_at_an_hbm_tensor(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[n])  # <-


@mistake(kb.ShapeError, "None", "tl.ds(start, size)")
def new_axis_of_a_view(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[None])  # <-


@mistake(kb.ShapeError, "slice", "4.0")
def slice_from_a_fraction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[8 * 0.5 : 8])  # <-


@mistake(kb.ShapeError, "size", "-4")
def slice_of_negative_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(4, -4)])  # <-


@mistake(kb.ShapeError, "start", "0.5")
def slice_at_a_fraction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(0.5, 4)])  # <-


@mistake(kb.ShapeError, "too many indices", "2 axes")
def tile_with_too_many_indices(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[:, :, :]  # <-


@mistake(kb.ShapeError, "leading axis")
def columns_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[:, tl.ds(0, 2)]  # <-


@mistake(kb.ShapeError, "tl.where")
def mask_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    t[t > 0.0]  # <-


@mistake(kb.ShapeError, "tl.where")
def every_other_row_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[::2]  # <-


@mistake(kb.ShapeError, "at least one row")
def no_rows_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)[4:4]  # <-


@mistake(kb.ShapeError, "sum", "(0, 1)", "-2 to 1")
def sum_over_two_axes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sum(tl.load(x), axis=(0, 1))  # <-


@mistake(kb.ShapeError, "max", "axis 0", "None")
def max_of_no_axes(tl: Any, x: Any, n: Any, o: Any) -> None:
    total = tl.sum(tl.load(x))
    tl.max(total, axis=0)  # <-


@mistake(kb.ShapeError, "softmax", "axis None")
def softmax_over_all(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.softmax(tl.load(x), axis=None)  # <-


@mistake(kb.ShapeError, "static")
def symbolic_step(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(1, 4):
        for _ in tl.range(0, 8, i):  # <-
            pass


@mistake(kb.ShapeError, "integers", "(8, 4)")
def range_of_a_shape(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(x.shape):  # <-
        pass


@mistake(kb.ShapeError, "integers")
def range_of_a_quotient(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(np.ceil(x.shape[0] / 3)):  # <-
        pass


@mistake(kb.ShapeError, "integers")
def range_of_an_hbm_element(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(n[0, 0]):  # <-
        pass


@mistake(kb.ShapeError, "cdiv", "integers")
def cdiv_of_a_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.cdiv(x.shape[0] / 2, 4)  # <-


@mistake(kb.ShapeError, "min: no axis 2", "-2 to 1")
def min_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.min(tl.load(x), axis=2)  # <-


@mistake(kb.ShapeError, "argmax: no axis -3", "-2 to 1")
def argmax_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.argmax(tl.load(x), axis=-3)  # <-


@mistake(kb.ShapeError, "argmin: no axis 1.0", "-2 to 1")
def argmin_axis_of_a_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.argmin(tl.load(n), axis=1.0)  # <-


@mistake(kb.ShapeError, "max: no axis", "-2 to 1")
def max_of_two_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.max(t, t)  # <-


@mistake(kb.ShapeError, "clamp", "(8, 4) and (3,)")
def clamp_between_rows_of_another_length(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.clamp(tl.load(x), tl.zeros((3,)), 1.0)  # <-


@mistake(kb.ShapeError, "fma", "tl.expand_dims")
def fma_shapes(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.fma(t, t, tl.zeros((8,)))  # <-


@mistake(kb.ShapeError, "dot", "float32[8,1]", "float32[8,8]")
def accumulator_of_another_shape(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.dot(t, t.T, acc=tl.zeros((8, 1)))  # <-


@mistake(kb.ShapeError, "dot", "(4, 8) x (4, 8)", "tl.trans(b)")
def int8_product_without_a_transpose(tl: Any, x: Any, n: Any, o: Any) -> None:
    i = tl.load(n).to("int8").T
    tl.dot(i, i)  # <-


@mistake(kb.ShapeError, "softmax of a tile without axes", "tl.expand_dims")
def softmax_of_a_total(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.softmax(tl.sum(tl.load(x)))  # <-


@mistake(kb.ShapeError, "not taken again", "first + 2")
def part_of_what_data_picks(tl: Any, x: Any, n: Any, o: Any) -> None:
    first = tl.arange(0, 1)
    tl.load(x[tl.ds(first, 4)][1:], other=0.0)  # <-


@mistake(kb.ShapeError, "needs b of shape (K, N)", "(8, 4), with M = 8, K = 4")
def depths_that_differ(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", x, x, o)  # <-


@mistake(kb.ShapeError, "views of at least one element", "Got a of shape (8, 0)")
def composite_of_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", x[:, 0:0], x[0:0, :], o)  # <-


@mistake(kb.ShapeError, "needs q of shape (G, Q, D)", "Got (4,)")
def queries_without_an_axis(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", x[0], x, x, o)  # <-


@mistake(kb.ShapeError, "tile=(8, 8)", "3 positive integers, of M, N, K, or one")
def one_size_too_few(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", x[:4, :], x[4:, :], o[:4, :], tile=(8, 8))  # <-


@mistake(kb.ShapeError, "tile=0", "2 positive integers")
def tile_of_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", x, x, x, o, tile=0)  # <-


@mistake(kb.ShapeError, "window is a number of keys", "Got -1")
def option_out_of_range(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", x, x, x, o, window=-1)  # <-


@mistake(kb.ShapeError, "buffers is a number of tiles", "Got '2'", ">= 1")
def buffers_of_a_composite(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", x, x, x, o, buffers="2")  # <-


@mistake(kb.ShapeError, "the offset of send", "under a condition", "tl.send(...)")
def send_to_the_pe_of_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.send(tl.load(x), tl.program_id())  # <-


@mistake(kb.ShapeError, "the offset of recv", "static integers", "Python integers")
def recv_from_a_truth(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.recv((8, 4), "float32", True)  # <-
