"""How expressions move: against their values, step by step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbjax import expr
from kbjax.expr import Expr, Var
from kbjax.strides import FOREVER, stride
from tests.expressions import Both, expressions

OUTER, INNER = Var(1, "i", expr.const(1000)), Var(2, "j", expr.const(1000))
HORIZON = 60


@given(
    expressions((OUTER, INNER)),
    st.integers(0, 30),
    st.integers(0, 9),
    st.integers(1, 4),
)
@settings(max_examples=400, deadline=None)
def test_a_stride_holds_for_its_steps(value: Both, at: int, j: int, step: int) -> None:
    env = {OUTER: at, INNER: j}
    found = stride(value.symbolic, env, OUTER, step)
    assert found.value == value.python(env)
    for k in range(min(found.steps, HORIZON) + 1):
        now = value.python({**env, OUTER: at + k * step})
        assert now == found.value + k * found.change, (str(value.symbolic), k)


@pytest.mark.parametrize(
    "value, change, steps",
    [
        (expr.add(expr.const(3), expr.scale(expr.var(OUTER), 5)), 10, FOREVER),
        (expr.var(INNER), 0, FOREVER),
        (expr.mod(expr.var(OUTER), expr.const(2)), 0, FOREVER),
        (expr.mod(expr.var(OUTER), expr.const(4)), 2, 1),
        (expr.floordiv(expr.var(OUTER), expr.const(2)), 1, FOREVER),
        (expr.floordiv(expr.var(OUTER), expr.const(8)), 0, 3),
        (expr.minimum(expr.var(OUTER), expr.const(7)), 2, 3),
        (expr.maximum(expr.var(OUTER), expr.const(7)), 0, 3),
        (expr.predicate("lt", expr.var(OUTER), expr.const(9)), 0, 4),
        (expr.predicate("le", expr.var(OUTER), expr.const(9)), 0, 4),
        (expr.predicate("lt", expr.const(9), expr.var(OUTER)), 0, 4),
        (expr.predicate("eq", expr.var(OUTER), expr.const(6)), 0, 2),
        (expr.predicate("eq", expr.var(OUTER), expr.const(7)), 0, FOREVER),
        (expr.predicate("ne", expr.var(OUTER), expr.const(0)), 0, 0),
        (expr.mul(expr.var(OUTER), expr.var(INNER)), 6, FOREVER),
        (expr.mul(expr.var(OUTER), expr.var(OUTER)), 0, 0),
    ],
)  # fmt: skip
def test_strides_by_hand(value: Expr, change: int, steps: int) -> None:
    """From ``i = 0, j = 3``, in steps of two; not a step fewer than is right."""
    assert stride(value, {OUTER: 0, INNER: 3}, OUTER, 2) == (
        expr.evaluate(value, {OUTER: 0, INNER: 3}), change, steps,
    )  # fmt: skip
