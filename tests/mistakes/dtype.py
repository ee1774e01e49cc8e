"""Element types and numbers that an op does not take."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import jax
import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import N, X, mistake


@mistake(kb.DTypeError, "float64", "float32, float16, bfloat16, float8_e4m3fn", "int16")
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


@mistake(kb.DTypeError, "int64", "int32")
def dot_of_integers_in_int64(tl: Any, x: Any, n: Any, o: Any) -> None:
    a = tl.load(n)
    tl.dot(a, tl.trans(a), out_dtype=np.int64)  # <-


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


# --- float8: storage, casts, comparisons and dot, no arithmetic ----------------------

_NOT_FLOAT8 = "Allowed: float32, float16, bfloat16"


@mistake(kb.DTypeError, "add does not take float8_e4m3fn", _NOT_FLOAT8, "tl.cast")
def sum_of_float8_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x).to("float8_e4m3fn")
    t + t  # <-


@mistake(kb.DTypeError, "mul does not take float8_e5m2", _NOT_FLOAT8, "tl.cast")
def scaled_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x).to("float8_e5m2")
    t * 0.5  # <-


@mistake(kb.DTypeError, "exp does not take float8_e5m2", _NOT_FLOAT8, "tl.cast")
def exp_of_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.load(x).to("float8_e5m2"))  # <-


@mistake(kb.DTypeError, "sum does not take float8_e4m3fn", _NOT_FLOAT8, "tl.cast")
def total_of_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.zeros((8, 4), "float8_e4m3fn")
    tl.sum(t, axis=1)  # <-


@mistake(kb.DTypeError, "max does not take float8_e4m3fn", _NOT_FLOAT8, "tl.cast")
def largest_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.max(tl.zeros((8, 4), "float8_e4m3fn"))  # <-


@mistake(kb.DTypeError, "maximum does not take float8_e5m2", "tl.cast")
def rectified_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.maximum(tl.zeros((4,), "float8_e5m2"), 0.0)  # <-


@mistake(kb.DTypeError, "neg does not take float8_e4m3fn", "tl.cast")
def negated_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    -tl.zeros((4,), "float8_e4m3fn")  # <-


@mistake(kb.DTypeError, "softmax does not take float8_e5m2", "tl.cast")
def softmax_of_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.softmax(tl.zeros((4,), "float8_e5m2"))  # <-


@mistake(kb.DTypeError, "add does not take float8_e4m3fn", "tl.cast")
def float8_and_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.zeros((4,), "float8_e4m3fn") + i  # <-


@mistake(kb.DTypeError, "lt of float8_e5m2 and float32", 'tl.cast(x, "bfloat16")')
def float8_against_float32(tl: Any, x: Any, n: Any, o: Any) -> None:
    _ = tl.zeros((8, 4), "float8_e5m2") < tl.load(x)  # <-


@mistake(kb.DTypeError, "eq of float8_e5m2 and float8_e4m3fn", "tl.cast")
def one_float8_against_the_other(tl: Any, x: Any, n: Any, o: Any) -> None:
    _ = tl.zeros((4,), "float8_e5m2") == tl.zeros((4,), "float8_e4m3fn")  # <-


@mistake(kb.DTypeError, "where of float8_e4m3fn and bfloat16", "tl.cast")
def float8_or_bfloat16(tl: Any, x: Any, n: Any, o: Any) -> None:
    mask = tl.load(x) > 0
    a, b = tl.zeros((8, 4), "float8_e4m3fn"), tl.zeros((8, 4), "bfloat16")
    tl.where(mask, a, b)  # <-


@mistake(kb.DTypeError, "store of float8_e5m2", 'tile.to("float32")')
def store_of_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o, tl.load(x).to("float8_e5m2"))  # <-


@mistake(kb.DTypeError, "float8_e4m3'", "float8_e4m3fn, float8_e5m2")
def float8_by_a_shorter_name(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x).to("float8_e4m3")  # <-


# --- bits, powers, signs -------------------------------------------------------------


@mistake(kb.DTypeError, "invert does not take float32", "int32, int16, int8, uint8")
def bits_of_a_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    ~tl.load(x)  # <-


@mistake(kb.DTypeError, "and does not take float32", "bool", "tl.cast")
def conjunction_of_floats(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    t & t  # <-


@mistake(kb.DTypeError, "or does not take bfloat16", "tl.cast")
def disjunction_of_floats(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x).to("bfloat16") | 1  # <-


@mistake(kb.DTypeError, "and does not take float32")
def mask_of_a_fraction(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n) & 1.5  # <-


@mistake(kb.DTypeError, "int32 ** -1 is no int32", 'tl.cast(x, "float32")')
def reciprocal_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n) ** -1  # <-


@mistake(kb.DTypeError, "int8 ** -2 is no int8", "tl.cast")
def negative_power_of_int8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n).to("int8") ** np.int32(-2)  # <-


@mistake(kb.DTypeError, "pow", "int32", "tl.cast")
def negative_power_by_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.load(n) ** (i - 2)  # <-


@mistake(kb.DTypeError, "neg does not take bool", "tl.cast")
def negated_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    -(tl.load(x) > 0)  # <-


@mistake(kb.DTypeError, "softmax does not take bool")
def softmax_of_a_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.softmax(tl.load(x) > 0)  # <-


@mistake(kb.DTypeError, "floor does not take int32", "float32")
def floor_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.floor(tl.load(n))  # <-


@mistake(kb.DTypeError, "fma does not take int8", "float32")
def fma_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(n).to("int8")
    tl.fma(t, t, 1)  # <-


# --- products ------------------------------------------------------------------------


@mistake(kb.DTypeError, "accumulator", "float16[8,8]", "float32[8,8]")
def accumulator_of_another_type(tl: Any, x: Any, n: Any, o: Any) -> None:
    h = tl.load(x).to("float16")
    tl.dot(h, h.T, acc=tl.zeros((8, 8), "float16"))  # <-


@mistake(kb.DTypeError, "accumulator", "float32[8,8]", "int32[8,8]")
def float_accumulator_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    i = tl.load(n).to("int8")
    tl.dot(i, i.T, acc=tl.zeros((8, 8)))  # <-


@mistake(kb.DTypeError, "float64", "float32, float16")
def product_in_float64(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.dot(t, t.T, out_dtype="float64")  # <-


@mistake(kb.DTypeError, "float32, float16")
def product_in_the_type_of_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.dot(t, t.T, out_dtype=t)  # <-


@mistake(kb.DTypeError, "float32, float16")
def cast_to_a_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    t.to(tl.load(n))  # <-


@mistake(kb.DTypeError, "float32, float16")
def zeros_like_an_argument(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((8, 4), x)  # <-


# --- numbers that a narrow type does not hold ----------------------------------------


@mistake(kb.DTypeError, "300 is no value of int8", "tl.cast")
def int8_and_300(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n).to("int8") + 300  # <-


@mistake(kb.DTypeError, "300 is no value of int8", "tl.cast")
def int8_and_a_wider_numpy_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.int64(300) * tl.load(n).to("int8")  # <-


@mistake(kb.DTypeError, "-1 is no value of uint8", "tl.cast")
def uint8_and_minus_one(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(n).to("uint8") + -1  # <-


@mistake(kb.DTypeError, "256 is no value of uint8")
def uint8_below_256(tl: Any, x: Any, n: Any, o: Any) -> None:
    _ = tl.load(n).to("uint8") < 256  # <-


@mistake(kb.DTypeError, "40000 is no value of int16")
def clamp_beyond_int16(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.clamp(tl.load(n).to("int16"), 0, 40000)  # <-


@mistake(kb.DTypeError, "-200 is no value of int8")
def branch_that_int8_does_not_hold(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.where(tl.load(x) > 0, tl.load(n).to("int8"), -200)  # <-


@mistake(kb.DTypeError, "full", "128 is no value of int8")
def full_beyond_int8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 4), 128, "int8")  # <-


@mistake(kb.DTypeError, "full", "-1 is no value of uint8")
def full_below_uint8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 4), np.int8(-1), tl.uint8)  # <-


@mistake(kb.DTypeError, "full", "3.0 is no value of int16")
def int16_from_a_float(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((8, 4), 3.0, "int16")  # <-


INT8, UINT8 = (jax.ShapeDtypeStruct((8, 4), d) for d in ("int8", "uint8"))


@mistake(kb.DTypeError, "load", "200 is no value of int8", arrays=(INT8, N))
def padding_beyond_int8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(4, 8)], other=200)  # <-


@mistake(kb.DTypeError, "load", "-1 is no value of uint8", arrays=(UINT8, N))
def padding_below_uint8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(4, 8)], other=-1)  # <-


@mistake(kb.DTypeError, "i is no value of int8", "i = 128")
def int8_and_an_index(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(300):
        with tl.scratch_scope():
            tl.zeros((4,), "int8") + i  # <-


@mistake(kb.DTypeError, "is no value of uint8", "i = 0")
def uint8_and_an_index_below_zero(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(4):
        tl.zeros((4,), "uint8") + (i - 1)  # <-


@mistake(kb.DTypeError, "two tiles", "acc")
def accumulator_that_is_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.dot(t, t.T, acc=0.0)  # <-


@mistake(kb.DTypeError, "1000 is no value of float8_e4m3fn")
def full_of_too_large_a_float8(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.full((4,), 1000, "float8_e4m3fn")  # <-


@mistake(kb.DTypeError, "-inf is no value of float8_e4m3fn", "tl.cast")
def mask_a_float8_without_infinity(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.where(t > 0, t.to("float8_e4m3fn"), float("-inf"))  # <-


@mistake(kb.DTypeError, "1000.0 is no value of float8_e4m3fn", "tl.cast")
def compare_a_float8_with_more_than_it_holds(tl: Any, x: Any, n: Any, o: Any) -> None:
    assert tl.load(x).to("float8_e4m3fn") < 1000.0  # <-


@mistake(kb.DTypeError, "2**16609 or more is no value of float32")
def add_a_number_of_thousands_of_digits(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x) + 10**5000  # <-


@mistake(kb.DTypeError, "200*j is no value of float8_e4m3fn", "iteration j = 3")
def full_of_an_index_that_a_float8_does_not_hold(
    tl: Any, x: Any, n: Any, o: Any
) -> None:
    for j in tl.range(4):
        with tl.scratch_scope():
            tl.full((4,), j * 200, "float8_e4m3fn")  # <-


@mistake(kb.DTypeError, "broadcast_to needs a tile", "tl.full")
def broadcast_a_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.broadcast_to(3.0, (4,))  # <-


@mistake(kb.DTypeError, "float32", "integers", 'to("int32")')
def start_of_no_integer(tl: Any, x: Any, n: Any, o: Any) -> None:
    row = tl.zeros((1,))
    tl.load(x[row], other=0.0)  # <-


@mistake(kb.DTypeError, "composite 'flash' takes floats", "q of int32")
def attention_of_integers(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", n, n, n, o)  # <-
