"""Symbolic integers as a kernel sees them: Python's operators, and what is refused."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from kbjax import expr
from kbjax.allocator import Arena
from kbjax.domain import Domain
from kbjax.expr import Var
from kbjax.hardware import PeTcm
from kbjax.index import Index, as_expr
from kbjax.program import Program
from kbjax.recorder import Recorder

TRIP = 5
PE = Var(0, "pe", expr.const(1))
LOOP = Var(1, "i", expr.const(TRIP))
ROWS = jax.ShapeDtypeStruct((8, 4), "float32")


def symbolic() -> Index:
    """3, 5, 7, 9, 11."""
    made = expr.add(expr.const(3), expr.scale(expr.var(LOOP), 2))
    return Index(made, Recorder(Arena(PeTcm(), None), PE, Domain((LOOP,))))


def values_of(index: Any) -> list[int]:
    return [expr.evaluate(index.expr, {LOOP: n}) for n in range(TRIP)]


def record(kernel: Callable[..., None], **options: Any) -> Program:
    """Record `kernel(tl, x, o)` on float32[8,4]."""
    return kb.kernel_call(kernel, ROWS, **options).record(ROWS)


def refused(use: Callable[[Any, Any], object], trip: int = TRIP) -> kb.KernelError:
    """The error of using a loop index in a kernel, checked to point at this file."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(trip):
            use(tl, i)
        tl.store(o, tl.load(x))

    with pytest.raises(kb.KernelError) as caught:
        record(kernel)
    assert str(caught.value).startswith("test_index.py:")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__
    return caught.value


# --- what works ----------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_NUMBERS = [2, -3, 7, np.int32(4), np.int64(-5), np.uint8(6), True]


@pytest.mark.parametrize("number", _NUMBERS, ids=repr)
@pytest.mark.parametrize("name", _OPERATORS)
def test_operators_with_a_number(name: str, number: Any) -> None:
    apply, plain = _OPERATORS[name], int(number)
    each = values_of(symbolic())
    assert values_of(apply(symbolic(), number)) == [apply(v, plain) for v in each]
    assert values_of(apply(number, symbolic())) == [apply(plain, v) for v in each]


@pytest.mark.parametrize("name", _OPERATORS)
def test_operators_of_two_indices(name: str) -> None:
    apply, other = _OPERATORS[name], symbolic() * 3 - 20
    pairs = zip(values_of(symbolic()), values_of(other), strict=True)
    assert values_of(apply(symbolic(), other)) == [apply(a, b) for a, b in pairs]


def test_unary_operators_and_conjunction() -> None:
    i = symbolic()
    assert values_of(-i) == [-v for v in values_of(i)]
    assert values_of(+i) == values_of(i)
    assert values_of((i > 3) & (i < 9)) == [0, 1, 1, 0, 0]
    assert values_of(True & (i < 9)) == [1, 1, 1, 0, 0]


@settings(max_examples=50)
@given(st.integers(-20, 20))
def test_minimum_and_maximum(number: int) -> None:
    i = symbolic()
    assert values_of(i.minimum(number)) == [min(v, number) for v in values_of(i)]
    assert values_of(i.maximum(number)) == [max(v, number) for v in values_of(i)]


def test_minimum_maximum_and_cdiv_of_tl() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3, 14, 2):
            seen[:] = [
                tl.minimum(i, 7), tl.maximum(7, i), tl.cdiv(i, 4), tl.cdiv(40, i),
                tl.cdiv(i, -4),
            ]  # fmt: skip
        seen.append(tl.cdiv(-9, 4))
        tl.store(o, tl.load(x))

    seen: list[Any] = []
    record(kernel)
    assert seen.pop() == -2
    (loop,) = expr.variables(seen[0].expr)
    found = [[expr.evaluate(e.expr, {loop: n}) for e in seen] for n in range(6)]
    assert found == [
        [min(i, 7), max(i, 7), -(-i // 4), -(-40 // i), -(i // 4)]
        for i in range(3, 14, 2)
    ]


def test_printing_and_conversion() -> None:
    assert str(symbolic()) == repr(symbolic()) == "2*i + 3"
    assert as_expr(np.int16(3)) == as_expr(3) == expr.const(3)
    assert as_expr(True) == expr.const(1)
    assert as_expr(3.0) is None and as_expr("3") is None and as_expr(None) is None


@pytest.mark.parametrize(
    "bounds", [(4,), (2, 7), (7, 2, -1), (0, 7, 3), (6, -1, -2), (3, 3), (5, 2)]
)
def test_tl_range_counts_as_python_does(bounds: tuple[int, ...]) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))
        for i in tl.range(*bounds):
            tl.load(x[i])

    log = kb.kernel_call(kernel, ROWS).op_log(ROWS)
    loaded = [row.src_addrs for row in log if row.op_name == "load"]
    assert loaded[1:] == [f"x+{16 * i}" for i in range(*bounds)]


def test_triangular_loops_count_as_python_does() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(8):
            for j in tl.range(i, -1, -2):
                with tl.scratch_scope():
                    tl.store(o[i - j], tl.load(x[j]))

    log = kb.kernel_call(kernel, ROWS).op_log(ROWS)
    loaded = [row.src_addrs for row in log if row.op_name == "load"]
    wanted = [f"x+{16 * j}" for i in range(8) for j in range(i, -1, -2)]
    assert loaded == wanted


# --- what is refused -----------------------------------------------------------------


def _branch(tl: Any, i: Any) -> object:
    return 1 if i else 0


_WHEN: list[Callable[[Any, Any], object]] = [
    _branch,
    lambda tl, i: i == 3 and 1,
    lambda tl, i: not i,
    lambda tl, i: min(i, 3),
    lambda tl, i: i in [2, 3],
    lambda tl, i: 0 < i < 3,
    lambda tl, i: bool(i),
]


@pytest.mark.parametrize("use", _WHEN)
def test_branching_on_an_index_names_tl_when(use: Callable[[Any, Any], object]) -> None:
    error = refused(use)
    assert "tl.when" in error.remedy and "tl.static_range" in error.remedy


_PYTHON_VALUE: list[Callable[[Any, Any], object]] = [
    lambda tl, i: range(i),
    lambda tl, i: range(0, 9, i + 1),
    lambda tl, i: int(i),
    lambda tl, i: float(i),
    lambda tl, i: [1, 2, 3][i],
    lambda tl, i: "ab" * i,
]


@pytest.mark.parametrize("use", _PYTHON_VALUE)
def test_python_values_of_an_index_name_tl_range(
    use: Callable[[Any, Any], object],
) -> None:
    error = refused(use)
    assert "tl.range" in error.remedy and "tl.ds(start, size)" in error.remedy


_FLOATS: list[Callable[[Any, Any], object]] = [
    lambda tl, i: i * 0.5,
    lambda tl, i: 0.5 + i,
    lambda tl, i: i // 2.0,
    lambda tl, i: i < 0.5,
    lambda tl, i: i == 0.5,
    lambda tl, i: np.float32(2) * i,
]


@pytest.mark.parametrize("use", _FLOATS)
def test_a_float_and_an_index_make_no_number(
    use: Callable[[Any, Any], object],
) -> None:
    error = refused(use)
    assert "float" in error.problem and "tile" in error.remedy


@pytest.mark.parametrize(
    "use", [lambda tl, i: i / 2, lambda tl, i: i / 2.0, lambda tl, i: 2 / (i + 1)]
)
def test_true_division_of_an_index_is_refused(
    use: Callable[[Any, Any], object],
) -> None:
    assert refused(use).remedy


@pytest.mark.parametrize(
    ("use", "iteration"),
    [
        (lambda tl, i: 8 // i, " in iteration i = 0."),
        (lambda tl, i: 8 % (i - 3), " in iteration i = 3."),
        (lambda tl, i: i // (i % 2), " in iteration i = 0."),
        (lambda tl, i: i // 0, "."),
        (lambda tl, i: i % 0, "."),
    ],
)
def test_division_by_what_can_be_zero(
    use: Callable[[Any, Any], object], iteration: str
) -> None:
    error = refused(use)
    assert f"can be 0{iteration}" in str(error)


def test_division_by_what_is_never_zero_where_it_runs() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(1, 5):
            tl.full((4,), 8 // i - 8 % (2 * i - 5), "int32")
        tl.store(o, tl.load(x))

    assert record(kernel).peak_scratch == 4 * 16 + 128


@pytest.mark.parametrize(
    ("use", "iteration"),
    [
        (lambda tl, i: i * 2**30, 2),
        (lambda tl, i: -i * 2**30, 3),
        (lambda tl, i: i * i * 2**28, 3),
        (lambda tl, i: (i * 2**30) // 2**30, 2),  # an intermediate value
        (lambda tl, i: i + (2**31 - 4), 4),
    ],
)
def test_leaving_int32_is_refused(
    use: Callable[[Any, Any], object], iteration: int
) -> None:
    error = refused(use)
    assert f"leaves int32 in iteration i = {iteration}." in str(error)
    assert "2,147,483,647" in str(error) and error.remedy


@pytest.mark.parametrize("trip", [2**31, 2**40])
def test_a_loop_of_more_than_int32_iterations_is_refused(trip: int) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(trip):
            pass

    with pytest.raises(kb.KernelError, match="leaves int32"):
        record(kernel)


def test_int32_counts_only_the_iterations_that_run() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(4):
            for j in tl.range(i - 2):  # runs where i is 3 only
                _ = (j + 1) * 2**30 * (4 - i)
        for i in tl.range(0):
            _ = i * 2**40 + 2**40
        tl.store(o, tl.load(x))

    assert record(kernel).peak_scratch == 128


def test_a_scalar_fits_where_it_does_in_the_iterations_that_run() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(4):
            for j in tl.range(i - 2):  # runs where i is 3 only
                with tl.scratch_scope():
                    tl.full((4,), (j + 1) * 2**30 * (4 - i), "int32")
        tl.store(o, tl.load(x))

    assert record(kernel).peak_scratch == 128


def trips(tl: Any, i: Any) -> Any:
    yield from tl.range(i)


@pytest.mark.parametrize(
    "use",
    [
        lambda tl, x, i: tl.load(x[i]),
        lambda tl, x, i: tl.load(x[tl.ds(i, 1)]),
        lambda tl, x, i: tl.load(x[tl.ds(i - 9, 1)], other=0.0),
        lambda tl, x, i: tl.full((4,), i + 1),
        lambda tl, x, i: tl.load(x) * i,
        lambda tl, x, i: tl.load(x)[tl.ds(i, 1)],
        lambda tl, x, i: next(trips(tl, i), None),
        lambda tl, x, i: tl.zeros((4,)) + (i < 3),
    ],
)
def test_an_index_after_its_loop_is_refused(
    use: Callable[[Any, Any, Any], object],
) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(4):
            tl.store(o[i], tl.load(x[i]))
        use(tl, x, i)

    with pytest.raises(
        kb.KernelError, match="loop index i is used after its loop"
    ) as e:
        record(kernel)
    assert str(e.value).startswith("test_index.py:") and e.value.remedy


def test_an_index_of_an_outer_loop_is_good_in_an_inner_one() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(4):
            for _ in tl.range(2):
                with tl.scratch_scope():
                    tl.store(o[i], tl.load(x[i]))

    assert record(kernel).peak_scratch == 16


def test_a_comparison_is_a_number_in_the_data_phase() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(8):
            with tl.scratch_scope():
                kept = (i > 1) & (i != 4)
                tl.store(o[i], tl.load(x[i]) * kept)

    x = np.ones((8, 4), np.float32)
    out = np.asarray(kb.kernel_call(kernel, ROWS)(x))
    assert out[:, 0].tolist() == [0, 0, 1, 1, 0, 1, 1, 1]
