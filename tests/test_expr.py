"""Symbolic expressions against plain Python: form, value, bounds, trip counts."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbjax import expr
from kbjax.expr import Expr, Var
from tests.expressions import (
    BINARY,
    DIVISIONS,
    NONZERO,
    constant_loops,
    expressions,
    iterations,
    loops_of,
    nested_loops,
)

ROWS = 7  # values of each variable in a test on arrays


# --- canonical form ------------------------------------------------------------------

OUTER, INNER = loops_of(8, 8)
i, j = expr.var(OUTER), expr.var(INNER)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (expr.add(expr.sub(i, j), j), i),
        (expr.sub(i, i), expr.ZERO),
        (expr.add(i, j), expr.add(j, i)),
        (expr.scale(expr.add(i, expr.const(3)), 2), Expr(6, ((OUTER, 2),))),
        (expr.mul(expr.const(4), i), expr.scale(i, 4)),
        (expr.mul(i, expr.const(0)), expr.ZERO),
        (expr.scale(i, 0), expr.ZERO),
        (expr.floordiv(i, expr.const(1)), i),
        (expr.floordiv(expr.const(-7), expr.const(2)), expr.const(-4)),
        (expr.mod(expr.const(-7), expr.const(2)), expr.const(1)),
        (expr.mod(expr.const(7), expr.const(-2)), expr.const(-1)),
        (expr.minimum(i, expr.const(7)), i),
        (expr.minimum(i, expr.const(-1)), expr.const(-1)),
        (expr.maximum(i, expr.const(7)), expr.const(7)),
        (expr.maximum(i, expr.add(i, expr.const(1))), expr.add(i, expr.const(1))),
        (expr.predicate("lt", expr.const(1), expr.const(2)), expr.const(1)),
    ],
)
def test_equal_expressions_are_equal(left: Expr, right: Expr) -> None:
    assert left == right and hash(left) == hash(right)


def test_different_expressions_differ() -> None:
    assert expr.floordiv(i, expr.const(2)) != expr.mod(i, expr.const(2))
    assert i != j
    assert expr.add(i, expr.const(1)) != i


def test_printing() -> None:
    twice = expr.add(expr.scale(i, 2), expr.const(3))
    assert str(twice) == "2*i1 + 3"
    assert str(expr.ZERO) == "0"
    assert str(expr.floordiv(i, expr.const(2))) == "(i1 // 2)"
    assert str(expr.minimum(i, j)) == "min(i1, i2)"
    assert str(expr.predicate("and", i, j)) == "(i1 & i2)"


def test_variables_include_those_of_trip_counts() -> None:
    inner = Var(3, "k", expr.add(i, expr.const(1)))
    assert expr.variables(expr.floordiv(expr.var(inner), expr.const(2))) == {
        inner,
        OUTER,
    }
    assert expr.variables(expr.const(3)) == frozenset()


@given(st.data(), constant_loops())
def test_linear_form_does_not_depend_on_the_order(
    data: st.DataObject, loops: tuple[Var, ...]
) -> None:
    parts = data.draw(st.lists(expressions(loops, linear=True), min_size=1, max_size=4))
    shuffled = data.draw(st.permutations(parts))
    sums = []
    for order in (parts, shuffled):
        total = expr.ZERO
        for part in order:
            total = expr.add(total, part.symbolic)
        sums.append(total)
    assert sums[0] == sums[1]
    for part in parts:
        total = expr.sub(total, part.symbolic)
    assert total == expr.ZERO


# --- values --------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data(), constant_loops())
def test_values_are_those_of_python(
    data: st.DataObject, loops: tuple[Var, ...]
) -> None:
    both = data.draw(expressions(loops))
    for env in iterations(loops):
        value = expr.evaluate(both.symbolic, env)
        assert type(value) is int
        assert value == both.python(env)


@settings(max_examples=50)
@given(st.data(), constant_loops())
def test_values_on_numpy_arrays(data: st.DataObject, loops: tuple[Var, ...]) -> None:
    both = data.draw(expressions(loops))
    points = list(iterations(loops))
    columns = {v: np.array([env[v] for env in points], np.int64) for v in loops}
    found = np.broadcast_to(expr.evaluate(both.symbolic, columns, np), (len(points),))
    assert found.tolist() == [both.python(env) for env in points]


@settings(max_examples=25, deadline=None)
@given(st.data(), constant_loops())
def test_values_on_int32_jax_arrays(
    data: st.DataObject, loops: tuple[Var, ...]
) -> None:
    both = data.draw(expressions(loops))
    points = list(itertools.islice(itertools.cycle(iterations(loops)), ROWS))
    wanted = [both.python(env) for env in points]
    columns = {v: jnp.array([env[v] for env in points], jnp.int32) for v in loops}
    found = expr.evaluate(both.symbolic, columns, jnp)
    if not isinstance(found, int):
        assert found.dtype == jnp.int32
        found = np.asarray(found)
    wrapped = np.array(wanted, object) + 2**31
    assert np.broadcast_to(found, ROWS).tolist() == (wrapped % 2**32 - 2**31).tolist()


def test_floor_division_and_mod_floor_on_every_path() -> None:
    a, b = np.meshgrid(np.arange(-8, 9), [-3, -2, -1, 1, 2, 3])
    x, y = loops_of(20, 20)
    for make, python in DIVISIONS.values():
        made = make(expr.var(x), expr.var(y))
        wanted = [python(int(p), int(q)) for p, q in zip(a.flat, b.flat, strict=True)]
        for xp in (np, jnp):
            env = {x: xp.asarray(a, xp.int32), y: xp.asarray(b, xp.int32)}
            assert np.ravel(expr.evaluate(made, env, xp)).tolist() == wanted


# --- bounds --------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data(), nested_loops())
def test_bounds_contain_every_value(
    data: st.DataObject, loops: tuple[Var, ...]
) -> None:
    both = data.draw(expressions(loops))
    low, high = expr.bounds(both.symbolic)
    for env in iterations(loops):
        assert low <= both.python(env) <= high


@settings(max_examples=60)
@given(st.data(), constant_loops())
def test_bounds_of_linear_expressions_are_exact(
    data: st.DataObject, loops: tuple[Var, ...]
) -> None:
    both = data.draw(expressions(loops, linear=True))
    values = [both.python(env) for env in iterations(loops)]
    assert expr.bounds(both.symbolic) == (min(values), max(values))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_bounds_of_linear_expressions_in_a_triangle_are_exact(size: int) -> None:
    row = Var(1, "i", expr.const(size))
    column = Var(2, "j", expr.add(expr.var(row), expr.const(1)))
    x, y = expr.var(row), expr.var(column)
    for a, b in itertools.product(range(-2, 3), repeat=2):
        made = expr.add(expr.scale(x, a), expr.scale(y, b))
        values = [a * r + b * c for r in range(size) for c in range(r + 1)]
        assert expr.bounds(made) == (min(values), max(values))


@pytest.mark.parametrize("name", ["floordiv", "mod", "mul", "min", "max"])
def test_bounds_of_two_operands_hold_and_are_near(name: str) -> None:
    """Corners of every sign; exact but for `mod`, where they cannot be known."""
    x, y = loops_of(4, 3)
    make, python = (BINARY | DIVISIONS)[name]
    for a, b in itertools.product((-9, -4, -3, -1, 0, 2), (-6, -3, 1, 2, 7)):
        left = expr.add(expr.var(x), expr.const(a))
        right = expr.add(expr.var(y), expr.const(b))
        values = [python(a + p, b + q) for p in range(4) for q in range(3)]
        low, high = expr.bounds(make(left, right))
        assert low <= min(values) and max(values) <= high
        if name != "mod":
            assert (low, high) == (min(values), max(values))


def test_bounds_in_a_loop_that_never_runs() -> None:
    (never,) = loops_of(0)
    made = expr.add(expr.scale(expr.var(never), 3), expr.const(5))
    assert expr.bounds(made) == (5, 5)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (expr.floordiv(i, expr.const(2)), (0, 3)),
        (expr.mod(i, expr.const(4)), (0, 3)),
        (expr.mod(i, expr.const(-4)), (-3, 0)),
        (expr.mod(i, expr.const(16)), (0, 7)),
        (expr.mul(i, j), (0, 49)),
        (expr.minimum(i, expr.const(5)), (0, 5)),
        (expr.maximum(i, expr.const(5)), (5, 7)),
        (expr.predicate("lt", i, j), (0, 1)),
        (expr.sub(i, j), (-7, 7)),
        (expr.const(3), (3, 3)),
    ],
)
def test_bounds_by_hand(made: Expr, wanted: tuple[int, int]) -> None:
    assert expr.bounds(made) == wanted


# --- trip counts ---------------------------------------------------------------------


@given(st.integers(-20, 20), st.integers(-20, 20), NONZERO)
def test_trip_count_is_that_of_python(start: int, stop: int, step: int) -> None:
    found = expr.trip_count(expr.const(start), expr.const(stop), step)
    assert found == expr.const(len(range(start, stop, step)))


@settings(max_examples=50)
@given(st.data(), constant_loops(), NONZERO)
def test_symbolic_trip_count_is_that_of_python(
    data: st.DataObject, loops: tuple[Var, ...], step: int
) -> None:
    start, stop = (data.draw(expressions(loops)) for _ in "ab")
    found = expr.trip_count(start.symbolic, stop.symbolic, step)
    for env in iterations(loops):
        wanted = len(range(start.python(env), stop.python(env), step))
        assert expr.evaluate(found, env) == wanted


def test_what_both_sides_of_a_comparison_add_is_left_out() -> None:
    """So that it depends on what decides it alone."""
    i, j = (expr.Var(uid, name, expr.const(9)) for uid, name in ((1, "i"), (2, "j")))
    start = expr.scale(expr.var(i), 64)
    low, high = expr.add(start, expr.var(j)), expr.add(start, expr.const(64))
    for op in ("lt", "le", "eq", "ne"):
        shorter = expr.predicate(op, expr.var(j), expr.const(64))
        assert expr.predicate(op, low, high) == shorter
        assert expr.variables(shorter) == {j}
    assert expr.predicate("and", low, low) == expr.predicate("and", low, low)
    assert expr.variables(expr.predicate("and", low, low)) == {i, j}
