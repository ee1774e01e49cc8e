"""Element types and numbers that an op does not take."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import N, X, mistake


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


@mistake(kb.DTypeError, "load", "0.5 is no value of int32")
def load_other_fraction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n, other=0.5)  # <-


@mistake(kb.DTypeError, "'fp32'", "float32")
def dtype_by_its_triton_name(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((8, 4), "fp32")  # <-


@mistake(kb.DTypeError, "float64", "float32")
def dtype_of_python(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((8, 4), float)  # <-


@mistake(kb.DTypeError, "'4'", "float32")
def shape_in_two_arguments(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros(8, 4)  # <-


@mistake(kb.DTypeError, "int64")
def cast_to_int64(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.cast(tl.load(x), np.int64)  # <-


@mistake(kb.DTypeError, "store of float32 to the int32", arrays=(X, N), out=N)
def store_of_floats_to_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x))  # <-


@mistake(kb.DTypeError, "store of float16", 'tile.to("float32")')
def store_of_half_precision(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x).to("float16"))  # <-


@mistake(kb.DTypeError, "store of int32", 'tile.to("float32")')
def store_of_positions(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o[:, 0], tl.arange(8))  # <-


@mistake(kb.DTypeError, "store of bool")
def store_of_a_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x) > 0.0)  # <-


@mistake(kb.DTypeError, "copy_to of float32 into bfloat16", 'src.to("bfloat16")')
def copy_of_what_was_promoted(tl: Any, x: Any, n: Any, o: Any) -> None:
    acc = tl.zeros((8, 4), "bfloat16")
    tl.copy_to(acc, acc + tl.load(x))  # <-


@mistake(kb.DTypeError, "copy_to of float32 into int32")
def integer_state_scaled(tl: Any, x: Any, n: Any, o: Any) -> None:
    count = tl.zeros((8, 4), "int32")
    tl.copy_to(count, count * 0.5)  # <-


@mistake(kb.DTypeError, "store cannot take a float", "tl.full")
def store_of_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, 0.0)  # <-


@mistake(kb.DTypeError, "copy_to cannot take a int", "tl.full")
def copy_of_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.copy_to(tl.load(x), 0)  # <-


@mistake(kb.DTypeError, "a list")
def add_a_list(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = [1.0, 2.0, 3.0, 4.0]
    tl.load(x) + row  # <-


@mistake(kb.DTypeError, "a complex")
def multiply_by_a_complex_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) * 1j  # <-


@mistake(kb.DTypeError, "a Decimal")
def multiply_by_a_decimal(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) * Decimal("0.5")  # <-


@mistake(kb.DTypeError, "a NoneType")
def missing_branch(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(t > 0.0, t, None)  # <-


@mistake(kb.DTypeError, "condition", "True")
def where_of_a_python_condition(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(True, t, 0.0)  # <-


@mistake(kb.DTypeError, "condition", "int32")
def where_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    mask = tl.load(n)
    tl.where(mask, tl.load(x), 0.0)  # <-


@mistake(kb.DTypeError, "sub does not take bool")
def difference_of_masks(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    (t > 0.0) - (t > 1.0)  # <-


@mistake(kb.DTypeError, "sqrt does not take bool")
def root_of_a_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sqrt(tl.load(x) > 0.0)  # <-


@mistake(kb.DTypeError, "exp does not take int32", "float32")
def exp_of_positions(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.arange(8))  # <-


@mistake(kb.DTypeError, "dot does not take bool")
def dot_of_a_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.dot(t > 0.0, t.T)  # <-


@mistake(kb.DTypeError, "full", "-inf is no value of int32")
def integers_from_minus_infinity(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 1), float("-inf"), "int32")  # <-


@mistake(kb.DTypeError, "load", "nan is no value of int32")
def padding_integers_with_nan(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n[tl.ds(4, 8)], other=float("nan"))  # <-


@mistake(kb.DTypeError, "i is no value of bool")
def mask_of_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.full((8,), i, "bool")  # <-


@mistake(kb.DTypeError, "sum needs a tile", "tl.full")
def sum_of_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sum(3.0)  # <-


@mistake(kb.DTypeError, "maximum needs a tile", "tl.full")
def maximum_of_numbers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.maximum(1.0, 2.0)  # <-


@mistake(kb.DTypeError, "dot")
def dot_with_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.dot(tl.load(x), 2.0)  # <-


@mistake(kb.DTypeError, "counts in int32", "2147483650")
def positions_past_int32(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.arange(2**31 - 2, 2**31 + 2)  # <-


@mistake(kb.DTypeError, "a number", "other=0.0")
def padding_with_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x, other=tl.zeros((8, 4)))  # <-


@mistake(kb.DTypeError, "full", "a str")
def full_of_text(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 4), "-inf")  # <-


@mistake(kb.DTypeError, "a tuple")
def reshape_of_a_shape(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.reshape((8, 4), (32,))  # <-
