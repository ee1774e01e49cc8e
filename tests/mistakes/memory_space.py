"""HBM tensors where tiles belong, the reverse, and arrays that are in neither."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import mistake


@mistake(kb.MemorySpaceError, "load takes an HBM view")
def load_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(tl.load(x))  # <-


@mistake(kb.MemorySpaceError, "load takes an HBM view", "kernel argument")
def load_an_array(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(np.zeros((8, 4), np.float32))  # <-


@mistake(kb.MemorySpaceError, "store takes an HBM view")
def store_to_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(tl.zeros((8, 4)), tl.load(x))  # <-


@mistake(kb.MemorySpaceError, "ndarray", "tl.load")
def add_numpy(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) + np.ones((8, 4), np.float32)  # <-


@mistake(kb.MemorySpaceError, "ndarray", "tl.load")
def numpy_add(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.ones((8, 4), np.float32) + tl.load(x)  # <-


@mistake(kb.MemorySpaceError, "tl.load")
def jax_array_times(tl: Any, x: Any, n: Any, o: Any) -> None:
    jnp.ones((8, 4)) * tl.load(x)  # <-


@mistake(kb.MemorySpaceError, "tl.store(view, tile)")
def assign_to_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    o[0] = tl.load(x[0])  # <-


@mistake(kb.MemorySpaceError, "tl.load")
def branch_on_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    if x:  # <-
        pass


@mistake(kb.MemorySpaceError, "tl.load")
def iterate_over_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in x:  # <-
        pass


@mistake(kb.MemorySpaceError, "tl.load")
def numpy_of_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.asarray(x)  # <-


@mistake(kb.MemorySpaceError, "store works on tiles", "tl.load it first")
def store_of_an_hbm_tensor(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, x)  # <-


@mistake(kb.MemorySpaceError, "arithmetic works on tiles", "tl.load it first")
def pointer_arithmetic(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x + tl.arange(0, 8))  # <-


@mistake(kb.MemorySpaceError, "arithmetic works on tiles")
def store_at_a_pointer(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o + 4, tl.load(x))  # <-


@mistake(kb.MemorySpaceError, "arithmetic works on tiles", "o[0:8")
def add_to_an_output(tl: Any, x: Any, n: Any, o: Any) -> None:
    o += tl.load(x)  # <-


@mistake(kb.MemorySpaceError, "add works on tiles", "tl.load")
def tile_plus_an_hbm_row(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) + x[0]  # <-


@mistake(kb.MemorySpaceError, "tl.load it first")
def comparison_in_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.where(x > 0.0, tl.load(x), 0.0)  # <-


@mistake(kb.MemorySpaceError, "dot works on tiles", "tl.load it first")
def dot_with_a_view(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.dot(tl.load(x), x.T)  # <-


@mistake(kb.MemorySpaceError, "sum works on tiles")
def reduction_in_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sum(x, axis=1)  # <-


@mistake(kb.MemorySpaceError, "copy_to works on tiles")
def copy_from_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.zeros((8, 4)), x)  # <-


@mistake(kb.MemorySpaceError, "copy_to works on tiles", "tl.store")
def copy_to_an_output(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(o, tl.load(x))  # <-


@mistake(kb.MemorySpaceError, "reshape works on tiles")
def reshape_in_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(tl.reshape(x, (32,)))  # <-


@mistake(kb.MemorySpaceError, "cast works on tiles")
def cast_in_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.cast(x, "float16")  # <-


@mistake(kb.MemorySpaceError, "full", "tl.load")
def full_of_an_hbm_element(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 4), x[0, 0])  # <-


@mistake(kb.MemorySpaceError, "load takes an HBM view", "kernel argument")
def load_of_an_address(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(4096)  # <-


@mistake(kb.MemorySpaceError, "load takes an HBM view", "kernel argument")
def load_of_a_closed_over_weight(tl: Any, x: Any, n: Any, o: Any) -> None:
    weight = jnp.ones((8, 4))
    tl.load(weight)  # <-


@mistake(kb.MemorySpaceError, "store takes an HBM view")
def store_arguments_swapped(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(tl.load(x), o)  # <-


@mistake(kb.MemorySpaceError, "ndarray", "tl.load")
def store_of_an_array(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, np.zeros((8, 4), np.float32))  # <-


@mistake(kb.MemorySpaceError, "ndarray", "tl.load")
def copy_of_an_array(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.load(x), np.zeros((8, 4), np.float32))  # <-


@mistake(kb.MemorySpaceError, "tl.load")
def where_of_an_array(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(np.ones((8, 4), np.bool_), t, 0.0)  # <-


@mistake(kb.MemorySpaceError, "in HBM")
def python_number_of_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    float(x[0, 0])  # <-


@mistake(kb.MemorySpaceError, "in HBM")
def python_integer_of_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    int(n[0, 0])  # <-


@mistake(kb.MemorySpaceError, "in HBM")
def python_range_of_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in range(n[0, 0]):  # <-
        pass


@mistake(kb.MemorySpaceError, "in HBM")
def matrix_operator_in_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    x @ x.T  # <-


@mistake(kb.MemorySpaceError, "in HBM")
def absolute_value_in_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    abs(x)  # <-


@mistake(kb.MemorySpaceError, "in HBM")
def builtin_sum_over_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    sum(x)  # <-


@mistake(kb.MemorySpaceError, "in HBM")
def numpy_function_of_hbm(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.exp(x)  # <-


@mistake(kb.MemorySpaceError, "tl.store(view, tile)")
def assign_a_row_in_a_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8):
        o[i] = tl.load(x[i])  # <-


@mistake(kb.MemorySpaceError, "load takes an HBM view")
def load_of_rows_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(tl.load(x)[tl.ds(0, 2)])  # <-


@mistake(kb.MemorySpaceError, "tl.exp")
def numpy_function_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.exp(tl.load(x))  # <-


@mistake(kb.MemorySpaceError, "tl.exp")
def jax_function_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    jnp.exp(tl.load(x))  # <-


@mistake(kb.MemorySpaceError, "takes an HBM view", "float32[8,4]")
def tile_for_a_view(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", tl.load(x), x, o)  # <-
