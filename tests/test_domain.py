"""The iterations that run: proofs by bounds and by enumeration, against brute force."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from kbjax import domain, expr
from kbjax.domain import Domain
from kbjax.expr import Var
from tests.expressions import (
    Both,
    combined,
    constant_loops,
    expressions,
    iterations,
    loops_of,
    nested_loops,
)

HUGE = 1 << 30  # more iterations than a proof may enumerate


def predicates(loops: tuple[Var, ...]) -> st.SearchStrategy[Both]:
    return st.builds(
        combined,
        st.sampled_from(["lt", "le", "eq", "ne"]),
        expressions(loops),
        expressions(loops),
    )


def conditions(loops: tuple[Var, ...]) -> st.SearchStrategy[list[Both]]:
    """Of the `when`s around."""
    return st.lists(predicates(loops), max_size=2)


def running(loops: tuple[Var, ...], where: list[Both]) -> list[Mapping[Var, int]]:
    """The iterations that run."""
    found = iterations(loops)
    return [env for env in found if all(one.python(env) for one in where)]


def domain_of(loops: tuple[Var, ...], where: list[Both]) -> Domain:
    return Domain(loops, tuple(one.symbolic for one in where))


@settings(max_examples=25)
@given(st.data(), nested_loops())
def test_find_is_brute_force(data: st.DataObject, loops: tuple[Var, ...]) -> None:
    predicate, where = data.draw(predicates(loops)), data.draw(conditions(loops))
    bad = [env for env in running(loops, where) if predicate.python(env)]
    decided, found = domain_of(loops, where).find(predicate.symbolic)
    assert decided
    assert (found is None) == (not bad)
    if found is not None:
        assert any(all(env[v] == i for v, i in found.items()) for env in bad)


@settings(max_examples=25)
@given(st.data(), constant_loops())
def test_find_names_the_first_iteration(
    data: st.DataObject, loops: tuple[Var, ...]
) -> None:
    predicate = data.draw(predicates(loops))
    bad = [env for env in iterations(loops) if predicate.python(env)]
    _, found = Domain(loops).find(predicate.symbolic)
    if found is None or not bad:
        assert found is None and not bad
    else:
        assert found == {v: bad[0][v] for v in loops if v in found}


@settings(max_examples=25)
@given(st.data(), nested_loops())
def test_violation_is_brute_force(data: st.DataObject, loops: tuple[Var, ...]) -> None:
    low, high = (data.draw(expressions(loops)) for _ in "ab")
    where = data.draw(conditions(loops))
    bad = [env for env in running(loops, where) if low.python(env) > high.python(env)]
    problem = domain_of(loops, where).violation(low.symbolic, high.symbolic)
    assert (problem is None) == (not bad)
    if problem is not None:
        assert problem.decided and problem.iteration is not None
        named = problem.iteration.items()
        assert any(all(env[v] == i for v, i in named) for env in bad)


@settings(max_examples=25)
@given(st.data(), nested_loops())
def test_never_runs_is_brute_force(data: st.DataObject, loops: tuple[Var, ...]) -> None:
    where = data.draw(conditions(loops))
    assert domain_of(loops, where).never_runs() == (not running(loops, where))


@settings(max_examples=25)
@given(st.data(), nested_loops())
def test_highest_is_brute_force(data: st.DataObject, loops: tuple[Var, ...]) -> None:
    value, where = data.draw(expressions(loops)), data.draw(conditions(loops))
    found = [value.python(env) for env in running(loops, where)]
    expected = max([0, *found])
    assert domain_of(loops, where).highest(value.symbolic) == expected


def test_the_empty_domain_runs_once() -> None:
    assert not Domain().never_runs()
    assert Domain().find(expr.const(1)) == (True, {})
    assert Domain().find(expr.const(0)) == (True, None)
    assert Domain().violation(expr.const(1), expr.const(1)) is None
    problem = Domain().violation(expr.const(2), expr.const(1))
    assert problem is not None and problem.decided and str(problem) == ""


def test_program_ids_are_enumerated_too() -> None:
    pe = Var(0, "pe", expr.const(4))
    loop = Var(1, "i", expr.var(pe))  # PE 0 runs no iteration
    made = expr.predicate("eq", expr.add(expr.var(pe), expr.var(loop)), expr.const(4))
    assert Domain((loop,)).find(made) == (True, {pe: 3, loop: 1})
    assert Domain((loop,)).violation(expr.const(1), expr.var(pe)) is None


def test_what_never_runs_violates_nothing() -> None:
    (loop,) = loops_of(0)
    assert Domain((loop,)).never_runs()
    assert Domain((loop,)).violation(expr.const(9), expr.var(loop)) is None


def test_too_many_iterations_are_undecided() -> None:
    (loop,) = loops_of(HUGE)
    i = expr.var(loop)
    odd = expr.predicate("eq", expr.mod(i, expr.const(7)), expr.const(9))
    assert Domain((loop,)).find(odd) == (False, None)
    high = expr.scale(expr.mod(i, expr.const(7)), -1)
    problem = Domain((loop,)).violation(expr.const(-5), high)
    assert problem is not None and not problem.decided and problem.iteration is None
    # What bounds prove needs no enumeration.
    assert Domain((loop,)).violation(i, expr.const(HUGE)) is None


def test_iterations_print_outermost_first() -> None:
    outer, inner = loops_of(4, 4)
    assert domain.iteration_text({inner: 3, outer: 0}) == " in iteration i1 = 0, i2 = 3"
    assert domain.iteration_text({}) == domain.iteration_text(None) == ""


@pytest.mark.parametrize(
    ("trip", "factor", "shift", "fits"),
    [
        (3, 2**30, -1, True),  # 2**31 - 1, the largest
        (3, 2**30, 0, False),
        (3, -(2**30), 0, True),  # -2**31, the smallest
        (3, -(2**30), -1, False),
        (1, 2**40, 0, True),  # only 0 runs
        (0, 2**40, 2**40, True),  # nothing runs
    ],
)
def test_values_stay_in_int32(trip: int, factor: int, shift: int, fits: bool) -> None:
    (loop,) = loops_of(trip)
    made = expr.add(expr.scale(expr.var(loop), factor), expr.const(shift))
    if fits:
        assert domain.checked(made, Domain((loop,))) is made
        return
    with pytest.raises(kb.KernelError, match=r"leaves int32 in iteration i1 = 2\."):
        domain.checked(made, Domain((loop,)))


@settings(max_examples=25)
@given(st.data(), nested_loops(), st.sampled_from([2**26, 2**28, 2**31]))
def test_int32_is_checked_over_the_iterations_that_run(
    data: st.DataObject, loops: tuple[Var, ...], factor: int
) -> None:
    both = data.draw(expressions(loops))
    made = expr.scale(both.symbolic, factor)
    values = [both.python(env) * factor for env in iterations(loops)]
    if all(-(2**31) <= value < 2**31 for value in values):
        assert domain.checked(made, Domain(loops)) is made
    else:
        with pytest.raises(kb.KernelError, match="leaves int32"):
            domain.checked(made, Domain(loops))
