"""Mistakes in kernels: each is refused at its line, by the right error, with a remedy.

A kernel of a mistake is `kernel(tl, x, n, o)` on float32[8,4], int32[8,4] and the
output float32[8,4]. The comment `# <-` marks the line that an error must name.
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax import ops
from kbjax.program import CopyCmd, LoadCmd, Program, StoreCmd

Kernel = Callable[..., None]
X = jax.ShapeDtypeStruct((8, 4), "float32")
N = jax.ShapeDtypeStruct((8, 4), "int32")
BUILTIN: dict[type[kb.KbjaxError], type[Exception]] = {
    kb.ShapeError: ValueError,
    kb.DTypeError: TypeError,
    kb.MemorySpaceError: ValueError,
    kb.OutOfBoundsError: IndexError,
    kb.KernelError: RuntimeError,
    kb.HazardError: RuntimeError,
    kb.UseAfterScopeError: RuntimeError,
    kb.UninitializedReadError: RuntimeError,
    kb.ScratchOverflowError: RuntimeError,
}


def record(kernel: Kernel, **options: Any) -> Program:
    return kb.kernel_call(kernel, X, **options).record(X, N)


def marked_lines(kernel: Kernel, mark: str = "<-") -> list[int]:
    """The lines of `kernel` that end in ``# <-``."""
    lines, first = inspect.getsourcelines(kernel)
    return [first + n for n, line in enumerate(lines) if line.rstrip().endswith(mark)]


def refused(kernel: Kernel, kind: type[kb.KbjaxError], **options: Any) -> Any:
    """The error of a kernel, checked for what every error has."""
    with pytest.raises(kb.KbjaxError) as caught:
        record(kernel, **options)
    error = caught.value
    assert type(error) is kind, repr(error)
    assert isinstance(error, BUILTIN[kind])
    (line,) = marked_lines(kernel)
    assert error.site is not None
    assert (error.site.file, error.site.line) == (__file__, line), str(error)
    assert f"test_context.py:{line}" in str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert last.filename == __file__, f"the traceback ends in {last.filename}"
    assert error.__cause__ is None
    return error


MISTAKES: list[Any] = []


def mistake(kind: type[kb.KbjaxError], *parts: str) -> Callable[[Kernel], Kernel]:
    """Register a kernel whose error is of `kind`, with `parts` in its message."""

    def register(kernel: Kernel) -> Kernel:
        MISTAKES.append(pytest.param(kernel, kind, parts, id=kernel.__name__))
        return kernel

    return register


# --- shapes --------------------------------------------------------------------------


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


# --- element types -------------------------------------------------------------------


@mistake(kb.DTypeError, "float64", "float32, float16, bfloat16, int32, bool")
def unknown_dtype(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((4,), "float64")  # <-


@mistake(kb.DTypeError, "complex64")
def cast_to_unknown(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x).to(np.complex64)  # <-


@mistake(kb.DTypeError, "int32", 'tile.to("float32")')
def store_dtype(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(n))  # <-


@mistake(kb.DTypeError, "copy_to of int32 into float32", 'src.to("float32")')
def copy_dtypes(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.load(x), tl.load(n))  # <-


@mistake(kb.DTypeError, "add does not take bool", "tl.cast")
def bool_sum(tl: Any, x: Any, n: Any, o: Any) -> None:
    positive = tl.load(x) > 0
    positive + positive  # <-


@mistake(kb.DTypeError, "exp does not take int32", "tl.cast")
def exp_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.load(n))  # <-


@mistake(kb.DTypeError, "softmax does not take int32")
def softmax_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.softmax(tl.load(n))  # <-


@mistake(kb.DTypeError, "dot does not take int32")
def dot_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    a = tl.load(n)
    tl.dot(a, tl.trans(a))  # <-


@mistake(kb.DTypeError, "max does not take bool")
def max_of_bool(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.max(tl.load(x) > 0)  # <-


@mistake(kb.DTypeError, "bool tile as its condition", "tl.where(x > 0, a, b)")
def where_of_floats(tl: Any, x: Any, n: Any, o: Any) -> None:
    a = tl.load(x)
    tl.where(a, a, a)  # <-


@mistake(kb.DTypeError, "2147483648 is no value of int32", "tl.cast")
def scalar_too_large(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n) + 2**31  # <-


@mistake(kb.DTypeError, "-2147483649 is no value of int32")
def scalar_too_small(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.maximum(-(2**31) - 1, tl.load(n))  # <-


@mistake(kb.DTypeError, "2147483648 is no value of int32")
def full_too_large(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((4,), 2**31, "int32")  # <-


@mistake(kb.DTypeError, "0.5 is no value of int32")
def full_of_fraction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((4,), 0.5, "int32")  # <-


@mistake(kb.DTypeError, "2 is no value of bool")
def full_of_no_bool(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((4,), 2, "bool")  # <-


@mistake(kb.DTypeError, "tl.broadcast_to")
def full_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 4), tl.load(x))  # <-


@mistake(kb.DTypeError, "needs a tile", "tl.full")
def exp_of_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(1.0)  # <-


@mistake(kb.DTypeError, "a str")
def add_text(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) + "1"  # <-


@mistake(kb.DTypeError, "a NoneType")
def add_none(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) + None  # <-


@mistake(kb.DTypeError, "other")
def load_other_text(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x, other="0")  # <-


@mistake(kb.DTypeError, "0.5 is no value of int32")
def load_other_fraction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n, other=0.5)  # <-


# --- memory spaces -------------------------------------------------------------------


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


# --- bounds --------------------------------------------------------------------------


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


# --- Python where tl belongs ---------------------------------------------------------


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


# --- loops that are left, and state that they carry ----------------------------------


@mistake(kb.KernelError, "break", "tl.static_range")
def leave_by_break(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):  # <-
        tl.load(x[i])
        break
    tl.store(o, tl.load(x))


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


@mistake(kb.UseAfterScopeError, "test_context.py", "tl.copy_to")
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


@mistake(kb.ScratchOverflowError, "TLContext scratch overflow:", "zeros")
def too_much(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((1 << 20,))  # <-


@pytest.mark.parametrize(("kernel", "kind", "parts"), MISTAKES)
def test_a_mistake_is_refused(
    kernel: Kernel, kind: type[kb.KbjaxError], parts: tuple[str, ...]
) -> None:
    message = str(refused(kernel, kind))
    for part in parts:
        assert part in message
    for absent in ("kbjax/", "site-packages", "Traceback"):
        assert absent not in message


def test_every_error_says_what_is_allowed_or_what_to_do() -> None:
    silent = []
    for kernel, *_ in (case.values for case in MISTAKES):
        try:
            record(kernel)
        except kb.KbjaxError as error:
            if not error.remedy and error.allowed is None:
                silent.append(str(error))
    assert not silent, "\n".join(["errors without a remedy:", *silent])


def test_every_error_is_a_builtin_one() -> None:
    exported = {getattr(kb, name) for name in kb.__all__ if name.endswith("Error")}
    assert exported - {kb.KbjaxError} == set(BUILTIN)
    for kind, builtin in BUILTIN.items():
        assert issubclass(kind, builtin) and issubclass(kind, kb.KbjaxError)


# --- HBM tensors where tiles belong --------------------------------------------------

_UNARY = [row.name for row in ops.TABLE.values() if row.parameters == ("x",)]
_IN_HBM: dict[str, Callable[[Any, Any, Any], object]] = {
    **{
        f"tl.{name}": lambda tl, x, t, name=name: getattr(tl, name)(x)
        for name in _UNARY
        if name not in ("cast", "broadcast_to")
    },
    "x + 1": lambda tl, x, t: x + 1.0,
    "1 - x": lambda tl, x, t: 1.0 - x,
    "x * x": lambda tl, x, t: x * x,
    "x / t": lambda tl, x, t: x / t,
    "t + x": lambda tl, x, t: t + x,
    "-x": lambda tl, x, t: -x,
    "x < 1": lambda tl, x, t: x < 1.0,
    "1 < x": lambda tl, x, t: x > 1.0,
    "t >= x": lambda tl, x, t: t >= x,
    "x == 1": lambda tl, x, t: x == 1.0,
    "x != 1": lambda tl, x, t: x != 1.0,
    "x == t": lambda tl, x, t: x == t,
    "t == x": lambda tl, x, t: t == x,
    "x[0] + 1": lambda tl, x, t: x[0] + 1.0,
    "float(x)": lambda tl, x, t: float(x),
    "maximum": lambda tl, x, t: tl.maximum(x, t),
    "minimum": lambda tl, x, t: tl.minimum(t, x),
    "where": lambda tl, x, t: tl.where(x, t, t),
    "where branch": lambda tl, x, t: tl.where(t, x, t),
    "dot a": lambda tl, x, t: tl.dot(x.T, t),
    "dot b": lambda tl, x, t: tl.dot(t, x.T),
    "cast": lambda tl, x, t: tl.cast(x, "float16"),
    "cast to the same": lambda tl, x, t: tl.cast(x, "float32"),
    "broadcast_to": lambda tl, x, t: tl.broadcast_to(x, (2, 8, 4)),
    "reshape": lambda tl, x, t: tl.reshape(x, (4, 8)),
    "expand_dims": lambda tl, x, t: tl.expand_dims(x, 0),
    "copy_to dst": lambda tl, x, t: tl.copy_to(x, t),
    "copy_to src": lambda tl, x, t: tl.copy_to(t, x),
    "full": lambda tl, x, t: tl.full((8, 4), x),
}


@pytest.mark.parametrize("name", _IN_HBM)
def test_an_hbm_tensor_is_no_operand(name: str) -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        t = tl.load(x)
        tl.store(o, t)
        with pytest.raises(kb.MemorySpaceError) as caught:
            _IN_HBM[name](tl, x, t)
        seen.append(caught.value)

    seen: list[kb.MemorySpaceError] = []
    program = record(kernel)
    (error,) = seen
    assert isinstance(error, ValueError) and error.site is not None
    assert error.site.file == __file__ and error.remedy
    assert len(program.commands) == 2 and program.peak_scratch <= 384


def test_the_unary_ops_are_those_of_the_table() -> None:
    wanted = {"exp", "exp2", "log", "sqrt", "rsqrt", "sum", "max", "softmax", "trans"}
    assert wanted <= set(_UNARY)


def test_storing_an_hbm_tensor_is_refused() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        tl.store(o, x)  # <-

    assert "tl.load it first" in str(refused(kernel, kb.MemorySpaceError))


# --- lines of scopes and loops -------------------------------------------------------


def test_use_after_scope_names_three_lines() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        with tl.scratch_scope():  # ended
            t = tl.load(x)  # made
        tl.store(o, t)  # <-

    message = str(refused(kernel, kb.UseAfterScopeError))
    for mark, words in (("made", "made at"), ("ended", "scope of"), ("<-", "used at")):
        (line,) = marked_lines(kernel, f"# {mark}")
        assert f"{words} test_context.py:{line}" in message


def test_use_after_a_loop_names_three_lines() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        for i in tl.range(8):  # ended
            t = tl.load(x[i])  # made
        tl.store(o[0], t)  # <-

    message = str(refused(kernel, kb.UseAfterScopeError))
    for mark, words in (("made", "made at"), ("ended", "loop of"), ("<-", "used at")):
        (line,) = marked_lines(kernel, f"# {mark}")
        assert f"{words} test_context.py:{line}" in message


@pytest.mark.parametrize("leave", ["break", "return", "exception"])
def test_leaving_a_loop_is_found_at_the_end_of_the_kernel(leave: str) -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        tl.store(o, tl.load(x))
        try:
            for i in tl.range(4):  # <-
                tl.load(x[i])
                if leave == "break":
                    break
                if leave == "return":
                    return
                raise KeyError
        except KeyError:
            pass

    with pytest.raises(kb.KernelError, match="break, return") as caught:
        record(kernel)
    (line,) = marked_lines(kernel)
    assert str(caught.value).startswith(f"test_context.py:{line}: ")


def test_a_loop_may_be_left_where_it_is_unrolled() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        m = tl.load(x)
        for i in tl.static_range(4):
            m = m + 1.0
            if i == 1:
                break
        tl.store(o, m)

    ops_run = [getattr(item, "op", "") for item in record(kernel).commands]
    assert ops_run == ["load", "add", "add", "store"]


def test_names_that_a_body_sets_before_it_reads_them_may_be_reused() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        rows = row = None
        for i in tl.range(4):
            rows = tl.ds(2 * i, 2)
            row = tl.load(x[rows])
            tl.store(o[rows], row)
        for i in tl.range(2):
            row = tl.load(x[i])
            tl.store(o[i], row)

    assert len(record(kernel).commands) == 2


def test_a_counter_read_after_its_loop_is_refused() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        count = 0
        for i in tl.range(5):
            tl.load(x[i])
            count += 1
        tl.store(o, tl.full((8, 4), count))

    with pytest.raises(kb.KernelError, match="`count`"):
        record(kernel)


# --- calls ---------------------------------------------------------------------------


def _copy(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x))


def test_a_float64_array_is_refused() -> None:
    x, n = np.zeros((8, 4)), np.zeros((8, 4), np.int32)
    for use in ("record", "op_log", "run", "__call__"):
        with pytest.raises(kb.DTypeError, match="float64") as caught:
            getattr(kb.kernel_call(_copy, X), use)(x, n)
        assert "astype" in caught.value.remedy


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_wrong_number_of_arrays_is_refused(count: int) -> None:
    x = np.zeros((8, 4), np.float32)
    with pytest.raises(kb.KernelError, match=f"{count} inputs") as caught:
        kb.kernel_call(_copy, X)(*[x] * count)
    assert "_copy(tl" in str(caught.value)
    assert "functools.partial" in caught.value.remedy


@pytest.mark.parametrize("value", [1.0, [1.0, 2.0], "x", None])
def test_what_is_no_array_is_refused(value: Any) -> None:
    n = np.zeros((8, 4), np.int32)
    with pytest.raises(kb.MemorySpaceError, match="argument 0 is no array"):
        kb.kernel_call(_copy, X)(value, n)
    with pytest.raises(kb.MemorySpaceError, match="argument 0 is no array"):
        kb.kernel_call(_copy, X).record(value, n)


def test_a_call_needs_data() -> None:
    with pytest.raises(kb.MemorySpaceError, match="no data"):
        kb.kernel_call(_copy, X)(X, N)


@pytest.mark.parametrize("num_pes", [0, -1, True, 1.5, "2"])
def test_num_pes_is_a_positive_integer(num_pes: Any) -> None:
    with pytest.raises(kb.ShapeError, match="num_pes is a positive integer"):
        kb.kernel_call(_copy, X, num_pes=num_pes)


def test_unknown_checks_are_refused() -> None:
    with pytest.raises(kb.KernelError, match="error, warn, off"):
        kb.kernel_call(_copy, X, checks="strict")  # type: ignore[arg-type]


def test_a_pe_axis_that_is_not_there_is_refused() -> None:
    call = kb.kernel_call(_copy, X, num_pes=4)
    with pytest.raises(kb.ShapeError, match="input x has no axis 0 of 4") as caught:
        call.record(X, N)
    assert "in_axes" in caught.value.remedy


def test_an_output_that_is_never_stored_warns() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        tl.load(x)

    with pytest.warns(UserWarning, match="kernel never stores to its output o") as seen:
        record(kernel)
    assert len(seen) == 1


def test_several_pes_may_not_store_to_the_same_elements() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        tl.store(o, tl.load(x))  # <-

    shared = {"num_pes": 2, "in_axes": None, "out_axes": None}
    with pytest.raises(kb.HazardError, match="shared output o") as caught:
        record(kernel, **shared)
    assert isinstance(caught.value, RuntimeError)
    (line,) = marked_lines(kernel)
    assert str(caught.value).startswith(f"test_context.py:{line}: ")
    assert "tl.program_id()" in caught.value.remedy


@pytest.mark.parametrize(
    ("start", "size", "fits"),
    [
        (lambda pe: pe * 4, 4, True),
        (lambda pe: 4 - pe * 4, 4, True),
        (lambda pe: pe * 4 + 1, 3, True),
        (lambda pe: pe * 4, 3, True),
        (lambda pe: pe * 2, 4, False),
        (lambda pe: pe * 3, 4, False),
        (lambda pe: pe * 0, 4, False),
    ],
)
def test_what_pes_store_is_disjoint(
    start: Callable[[Any], Any], size: int, fits: bool
) -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        tl.store(o[tl.ds(start(tl.program_id()), size)], tl.load(x[0:size]))

    shared = {"num_pes": 2, "in_axes": None, "out_axes": None}
    if fits:
        assert record(kernel, **shared).num_pes == 2
    else:
        with pytest.raises(kb.HazardError):
            record(kernel, **shared)


def test_errors_outside_a_kernel_line_show_one_frame_of_kbjax() -> None:
    def breaks(tl: Any, x: Any, n: Any, o: Any) -> None:
        tl.store(o, tl.load(x))
        for _ in tl.range(2):
            break

    def attempts() -> list[Callable[[], object]]:
        shared = {"num_pes": 2, "in_axes": None, "out_axes": None}
        return [
            lambda: kb.kernel_call(_copy, X, num_pes=0),
            lambda: kb.kernel_call(_copy, X).record(X),
            lambda: kb.kernel_call(_copy, X).record(1.0, N),
            lambda: record(breaks),
            lambda: record(_copy, **shared),
        ]

    ends = []
    for attempt in attempts():
        with pytest.raises(kb.KbjaxError) as caught:
            attempt()
        frames = traceback.extract_tb(caught.value.__traceback__)
        ends.append([f.name for f in frames if f.filename != __file__])
    assert ends == [["called"]] * len(ends)


# --- the kernel's own exceptions, and going on ---------------------------------------


@pytest.mark.parametrize("place", ["outside", "scope", "loop", "nested"])
def test_the_kernels_own_exceptions_pass_unchanged(place: str) -> None:
    class Stop(Exception):
        pass

    raised = Stop("stop")

    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        if place == "outside":
            raise raised
        if place == "scope":
            with tl.scratch_scope():
                raise raised
        for i in tl.range(4):
            if place == "loop":
                raise raised
            for _ in tl.range(i):
                with tl.scratch_scope():
                    raise raised

    with pytest.raises(Stop) as caught:
        record(kernel)
    assert caught.value is raised
    assert raised.__cause__ is None and raised.__context__ is None


def test_a_kernel_may_catch_an_error_and_go_on() -> None:
    def attempts(tl: Any, x: Any, n: Any, o: Any, t: Any) -> list[Any]:
        return [
            lambda: tl.load(x[tl.ds(6, 4)]),
            lambda: tl.load(x[4:4]),
            lambda: tl.dot(t, t),
            lambda: tl.exp(n),
            lambda: tl.zeros((1 << 20,)),
            lambda: tl.store(x, t),
            lambda: tl.store(o[0:4], t),
            lambda: tl.copy_to(n, t),
            lambda: t + "1",
            lambda: float(t),
        ]

    def program(faulty: bool) -> Program:
        def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
            t = tl.load(x)
            for i in tl.range(8):
                for attempt in attempts(tl, x, n, o, t) if faulty else []:
                    with pytest.raises(kb.KbjaxError):
                        attempt()
                tl.store(o[i], tl.load(x[i]) + 1.0)

        return record(kernel)

    clean, faulty = program(False), program(True)
    assert faulty.commands == clean.commands
    assert faulty.allocations == clean.allocations
    assert faulty.peak_scratch == clean.peak_scratch == 128 + 8 * 32


def test_a_refused_call_emits_and_allocates_nothing() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        t = tl.load(x)
        with pytest.raises(kb.ShapeError):
            tl.dot(t, t)
        with pytest.raises(kb.OutOfBoundsError):
            tl.load(x[1:9])
        with pytest.raises(kb.DTypeError):
            t + "1"
        with pytest.raises(kb.KernelError):
            tl.store(x, t)
        tl.store(o, t)

    program = record(kernel)
    assert [getattr(c, "op", "") for c in program.commands] == ["load", "store"]
    assert program.peak_scratch == program.exit_cursor_bytes == 128


def test_a_tile_of_another_run_is_refused() -> None:
    kept: list[Any] = []

    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        kept.append(tl.load(x))
        tl.store(o, kept[0])

    record(kernel)
    with pytest.raises(kb.KernelError, match="another kernel run"):
        kb.kernel_call(kernel, X).record(X, N)


# --- checks --------------------------------------------------------------------------


def _stale(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        t = tl.load(x)
    tl.full((4, 4), 7.0)  # overwrites half of it
    tl.store(o, t)


def _unwritten(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.empty((8, 4)))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [(_stale, "after its scratch_scope"), (_unwritten, "not certain to be written")],
)
def test_warn_warns_and_replays_exactly(kernel: Kernel, words: str) -> None:
    call = kb.kernel_call(kernel, X, checks="warn")
    with pytest.warns(UserWarning, match=words) as seen:
        program = call.record(X, N)
    assert [w for w in seen if "test_context.py:" in str(w.message)]
    assert program.needs_exact


def test_warn_without_a_cause_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = record(_copy, checks="warn")
    assert program.needs_exact is False


def test_off_gives_the_bytes_of_the_hardware() -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    n = np.zeros((8, 4), np.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call = kb.kernel_call(_stale, X, checks="off")
        out = np.asarray(call(x, n))
        wanted = x.copy()
        wanted[:4] = 7.0
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(call.run(x, n).outputs, wanted)
        unwritten = kb.kernel_call(_unwritten, X, checks="off")(x, n)
    assert np.isnan(np.asarray(unwritten)).all()


@pytest.mark.parametrize("checks", ["warn", "off"])
def test_a_broken_contract_has_no_live_replay(checks: Any) -> None:
    x, n = np.zeros((8, 4), np.float32), np.zeros((8, 4), np.int32)
    call = kb.kernel_call(_stale, X, checks=checks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kb.KernelError, match="live replay") as caught:
            call.run(x, n, fidelity="live")
    assert 'fidelity="exact"' in caught.value.remedy


def test_off_refuses_live_also_where_the_contract_is_kept() -> None:
    x, n = np.zeros((8, 4), np.float32), np.zeros((8, 4), np.int32)
    with pytest.raises(kb.KernelError, match="live replay"):
        kb.kernel_call(_copy, X, checks="off").run(x, n, fidelity="live")


@pytest.mark.parametrize("checks", ["warn", "off"])
def test_other_mistakes_are_errors_whatever_the_checks(checks: Any) -> None:
    for kernel, kind in (
        (dot_shapes, kb.ShapeError),
        (view_too_long, kb.OutOfBoundsError),
        (rebind_a_handle, kb.KernelError),
        (too_much, kb.ScratchOverflowError),
        (copy_dtypes, kb.DTypeError),
    ):
        refused(kernel, kind, checks=checks)


# --- what is emitted -----------------------------------------------------------------


def test_copy_to_is_one_command_as_the_adr_has_it() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        a, b = tl.load(x), tl.zeros((8, 4))
        tl.copy_to(b, a)
        tl.store(o, b)

    program = record(kernel)
    (copy,) = (c for c in program.commands if isinstance(c, CopyCmd))
    assert (copy.nbytes, copy.data_op, copy.op) == (128, True, "copy")
    assert (copy.src.shape, copy.dst.shape) == ((8, 4), (8, 4))
    assert copy.reads == (copy.src,) and copy.writes == copy.dst
    assert program.exit_cursor_bytes == 256


def test_other_and_boundary_check_say_what_happens_at_a_tail() -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        t = tl.load(x[tl.ds(6, 4)], other=0.0)
        tl.store(o[tl.ds(6, 4)], t, boundary_check=True)
        tl.store(o[tl.ds(4, 4)], t, boundary_check=True)  # inside: no tail

    load, first, second = record(kernel).commands
    assert isinstance(load, LoadCmd) and load.view.has_tail and load.other == 0.0
    assert isinstance(first, StoreCmd) and first.view.has_tail
    assert isinstance(second, StoreCmd) and not second.view.has_tail


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        (slice(-3, None), (3, 4)),
        (slice(1, -1), (6, 4)),
        (-1, (4,)),
        ((-8, -4), ()),
        ((slice(None), slice(2, 4)), (8, 2)),
        ((Ellipsis, 0), (8,)),
        ((slice(0, 8, 1),), (8, 4)),
    ],
)
def test_views_as_numpy_has_them(key: Any, shape: tuple[int, ...]) -> None:
    def kernel(tl: Any, x: Any, n: Any, o: Any) -> None:
        seen.append(tl.load(x[key]).shape)
        tl.store(o, tl.load(x))

    seen: list[Any] = []
    record(kernel)
    assert seen == [shape] == [np.zeros((8, 4))[key].shape]
