"""Random symbolic expressions, each with what it means in plain Python, and nests of
loops whose iterations can be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kbjax import expr
from kbjax.expr import Expr, Var


class Both(NamedTuple):
    """An expression, and what it means."""

    symbolic: Expr
    python: Callable[[Mapping[Var, int]], int]


def loops_of(*trips: int) -> tuple[Var, ...]:
    return tuple(Var(n + 1, f"i{n + 1}", expr.const(t)) for n, t in enumerate(trips))


def iterations(loops: Sequence[Var]) -> Iterator[dict[Var, int]]:
    """Every iteration of a nest of loops, as Python runs it."""

    def inner(rest: Sequence[Var], env: dict[Var, int]) -> Iterator[dict[Var, int]]:
        if not rest:
            yield env
            return
        for i in range(expr.evaluate(rest[0].trip, env)):
            yield from inner(rest[1:], {**env, rest[0]: i})

    return inner(loops, {})


# --- random expressions and loops ----------------------------------------------------

BINARY: dict[str, tuple[Any, Callable[[int, int], int]]] = {
    "add": (expr.add, lambda a, b: a + b),
    "sub": (expr.sub, lambda a, b: a - b),
    "mul": (expr.mul, lambda a, b: a * b),
    "min": (expr.minimum, min),
    "max": (expr.maximum, max),
    "lt": (lambda a, b: expr.predicate("lt", a, b), lambda a, b: int(a < b)),
    "le": (lambda a, b: expr.predicate("le", a, b), lambda a, b: int(a <= b)),
    "eq": (lambda a, b: expr.predicate("eq", a, b), lambda a, b: int(a == b)),
    "ne": (lambda a, b: expr.predicate("ne", a, b), lambda a, b: int(a != b)),
    "and": (lambda a, b: expr.predicate("and", a, b), lambda a, b: int(bool(a and b))),
}
DIVISIONS: dict[str, tuple[Any, Callable[[int, int], int]]] = {
    "floordiv": (expr.floordiv, lambda a, b: a // b),
    "mod": (expr.mod, lambda a, b: a % b),
}
NONZERO = st.integers(-7, 7).filter(bool)


def constant(value: int) -> Both:
    return Both(expr.const(value), lambda env: value)


def of_variable(variable: Var) -> Both:
    return Both(expr.var(variable), lambda env: env[variable])


def combined(name: str, a: Both, b: Both) -> Both:
    symbolic, python = (BINARY | DIVISIONS)[name]
    return Both(
        symbolic(a.symbolic, b.symbolic),
        lambda env: python(a.python(env), b.python(env)),
    )


CONSTANTS = st.integers(-9, 9).map(constant)


def expressions(loops: Sequence[Var], linear: bool = False) -> st.SearchStrategy[Both]:
    """Random expressions of the loops' variables; divisors are never 0."""
    leaves = st.integers(-9, 9).map(constant)
    if loops:
        leaves |= st.sampled_from(loops).map(of_variable)

    def grow(inner: st.SearchStrategy[Both]) -> st.SearchStrategy[Both]:
        if linear:
            scaled = st.builds(combined, st.just("mul"), inner, CONSTANTS)
            return scaled | st.builds(
                combined, st.sampled_from(["add", "sub"]), inner, inner
            )
        divisor = NONZERO.map(constant) | inner.map(
            lambda e: combined("max", e, constant(1))
        )
        return st.builds(
            combined, st.sampled_from(sorted(BINARY)), inner, inner
        ) | st.builds(combined, st.sampled_from(sorted(DIVISIONS)), inner, divisor)

    return st.recursive(leaves, grow, max_leaves=8)


@st.composite
def constant_loops(draw: st.DrawFn) -> tuple[Var, ...]:
    return loops_of(*draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))


@st.composite
def nested_loops(draw: st.DrawFn) -> tuple[Var, ...]:
    """Loops whose ends may depend on the loops around them; some never run."""
    loops: tuple[Var, ...] = ()
    for n in range(draw(st.integers(1, 3))):
        start, stop = (draw(expressions(loops, linear=True)).symbolic for _ in "ab")
        bound = expr.const(draw(st.integers(1, 4)))
        trip = expr.trip_count(start, stop, draw(NONZERO))
        trip = expr.minimum(trip, bound)  # what can be enumerated in a test
        loops = (*loops, Var(n + 1, f"i{n + 1}", trip))
    return loops
