"""Loops behave as Python's: trip counts of 0 and 1, reversed and negative ranges, names
that are used again, and index arithmetic, rolled as unrolled, in values and in time.

Plain Python is the reference: `loop` is `tl.range`, `tl.static_range` or `range`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbjax as kb
from tests import reference
from tests.helpers import assert_same_bits

FORMS = ("range", "static_range")
ONE = jax.ShapeDtypeStruct((1,), "int32")
X = jax.ShapeDtypeStruct((64, 1), "int32")
ROWS = np.arange(64, dtype=np.int32).reshape(64, 1) * 100

Body = Callable[..., None]


class Python:
    """`tl` as far as the bodies here use it, in plain Python integers."""

    def __init__(self, x: np.ndarray) -> None:
        self.total, self.loads, self.x = 0, 0, x

    def add(self, value: int, row: int | None = None) -> None:
        if row is not None:
            self.loads += 1
            value += int(self.x[row, 0])
        self.total += int(value)


class Recorded:
    """The same in a kernel: a running total in a tile."""

    def __init__(self, tl: Any, x: Any) -> None:
        self.tl, self.x, self.acc = tl, x, tl.zeros((1,), "int32")

    def add(self, value: Any, row: Any = None) -> None:
        with self.tl.scratch_scope():
            term = self.acc + value
            if row is not None:
                term = term + self.tl.load(self.x[row])
            self.tl.copy_to(self.acc, term)


# --- bodies, each a program of its own -----------------------------------------------


def over(*bounds: int) -> Body:
    def body(loop: Any, to: Any) -> None:
        for i in loop(*bounds):
            to.add(i, row=i * i % 64)

    return body


def empty_inside(loop: Any, to: Any) -> None:
    for i in loop(4):
        for j in loop(5, 3):
            to.add(i + j, row=j)


def reassigned(loop: Any, to: Any) -> None:
    for i in loop(4):
        i = i + 10
        to.add(i, row=i)


def consecutive(loop: Any, to: Any) -> None:
    for i in loop(3):
        to.add(i, row=i)
    for i in loop(10, 4, -2):
        to.add(i * i, row=i)


def nested_with_one_name(loop: Any, to: Any) -> None:
    for i in loop(3):
        to.add(i, row=i)
        for i in loop(5, 8):
            to.add(i * 10, row=i)


def triangular(loop: Any, to: Any) -> None:
    for i in loop(-2, 4):
        for j in loop(i, 3, 2):
            for k in loop(j, i - 3, -2):
                to.add(i * 100 + j * 10 + k, row=k + 9)


def bounds_from_division(loop: Any, to: Any) -> None:
    for i in loop(-5, 6):
        for j in loop(i // 3, (i + 1) % 4 + i // 2):
            to.add(j, row=j + 9)


def index_in_a_tuple(loop: Any, to: Any) -> None:
    for i in loop(2, 9, 3):
        pair = (i, -i)
        first, second = pair
        to.add(first * second, row=first)


def down_to_nothing(loop: Any, to: Any) -> None:
    for i in loop(3, -1, -1):
        for j in loop(i, 0, -1):
            to.add(j - i, row=j)


BODIES: dict[str, Body] = {
    **{
        str(bounds): over(*bounds)
        for bounds in (
            *((0, 0), (5, 3), (0, 1), (0, 10, 3), (10, 0, -3), (0,), (-3,), (1,)),
            *((4,), (3, 3, -1), (3, 5, -1), (-5, 5, 2), (5, -5, -4), (-9, -2, 3)),
            *((0, 5, 100), (5, 0, -100), (-1, -2, -1), (2, 3)),
        )
    },
    **{
        body.__name__: body
        for body in (
            empty_inside,
            reassigned,
            consecutive,
            nested_with_one_name,
            triangular,
            bounds_from_division,
            index_in_a_tuple,
            down_to_nothing,
        )
    },
}


def plainly(body: Body) -> Python:
    """Run in plain Python."""
    to = Python(ROWS)
    body(range, to)
    return to


def test_the_reference_is_right() -> None:
    """The sums of the field case, by hand."""
    sums = {"(0, 0)": 0, "(5, 3)": 0, "(0, 1)": 0, "(0, 10, 3)": 18, "(10, 0, -3)": 22}
    for name, want in sums.items():
        to = SimpleNamespace(total=0)
        to.add = lambda value, row, to=to: setattr(to, "total", to.total + value)
        BODIES[name](range, to)
        assert to.total == want, name
    assert plainly(reassigned).total == 46 + 4600
    assert plainly(empty_inside).total == 0 == plainly(empty_inside).loads


def summed(tl: Any, x: Any, *outs: Any, bodies: list[Body]) -> None:
    for body, out in zip(bodies, outs, strict=True):
        with tl.scratch_scope():
            to = Recorded(tl, x)
            body(tl.range, to)
            tl.store(out, to.acc)


@pytest.mark.parametrize("form", FORMS)
def test_dma_counts_equal_the_trips_that_run(form: str) -> None:
    for name, body in BODIES.items():

        def kernel(tl: Any, x: Any, o: Any, body: Body = body) -> None:
            to = Recorded(tl, x)
            body(getattr(tl, form), to)
            tl.store(o, to.acc)

        log = kb.kernel_call(kernel, ONE).op_log(X)
        loads = plainly(body).loads
        found = {kind: 0 for kind in ("load", "store", "copy")}
        for row in log:
            if row.op_name in found:
                found[row.op_name] += 1
        copies = found["copy"]
        assert found == {"load": loads, "store": 1, "copy": copies}, name
        assert copies >= loads
        assert log.summary().to_dict()["schema_version"], name


@pytest.mark.parametrize("fidelity", ["live", "exact"])
def test_rolled_loops_give_what_python_gives(fidelity: Any) -> None:
    """Half of the programs each way; both ways agree on drawn programs elsewhere."""
    bodies = list(BODIES.items())[fidelity == "exact" :: 2]
    kernel = partial(summed, bodies=[body for _, body in bodies])
    call = kb.kernel_call(kernel, (ONE,) * len(bodies))
    outs = call.run(ROWS, fidelity=fidelity).outputs
    for (name, body), got in zip(bodies, outs, strict=True):
        assert int(np.asarray(got)[0]) == plainly(body).total, name


def test_unrolled_loops_give_what_python_gives() -> None:
    """By the addresses and constants of the record; no data."""

    def constants(body: Body) -> tuple[list[int], list[str]]:
        def kernel(tl: Any, x: Any, o: Any) -> None:
            to = Recorded(tl, x)
            body(tl.static_range, to)
            tl.store(o, to.acc)

        call = kb.kernel_call(kernel, ONE)
        added = [
            operand
            for command in call.record(X).walk()
            if getattr(command, "op", "") == "add"
            for operand in command.operands
            if isinstance(operand, int)
        ]
        rows = [row.src_addrs for row in call.op_log(X) if row.op_name == "load"]
        return added, rows

    for name, body in BODIES.items():
        wanted: list[tuple[int, int]] = []
        to = SimpleNamespace(add=lambda value, row, to=wanted: to.append((value, row)))
        body(range, to)
        added, rows = constants(body)
        assert added == [value for value, _ in wanted], name
        assert rows == [f"x+{4 * row}" for _, row in wanted], name


# --- what is refused -----------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bounds", [(0, 4, 0), (4, 0, 0), (0, 0, 0)])
def test_step_0_is_refused(form: str, bounds: tuple[int, ...]) -> None:
    """As Python's range refuses it, whatever the ends."""

    def kernel(tl: Any, o: Any) -> None:
        for _ in getattr(tl, form)(*bounds):
            tl.store(o, tl.zeros((1,), "int32"))

    with pytest.raises(ValueError, match="step 0") as caught:
        kb.kernel_call(kernel, ONE).record()
    assert isinstance(caught.value, kb.ShapeError)
    assert f"tl.{form}" in str(caught.value)


def _after(tl: Any, i: Any) -> object:
    return tl.full((1,), i, "int32")


@pytest.mark.parametrize("use", [_after, lambda tl, i: tl.zeros((1,), "int32") * i])
def test_an_index_of_an_inner_loop_of_the_same_name_ends_with_it(use: Any) -> None:
    """Python would read the inner loop's last value in the outer body."""

    def kernel(tl: Any, o: Any) -> None:
        for i in tl.range(3):
            for i in tl.range(2):
                tl.store(o, tl.full((1,), i, "int32"))
            use(tl, i)

    with pytest.raises(kb.KernelError, match="loop index i is used after its loop"):
        kb.kernel_call(kernel, ONE).record()


def test_an_unrolled_index_after_its_loop_is_pythons() -> None:
    def kernel(tl: Any, o: Any) -> None:
        for i in tl.static_range(2, 9, 3):
            tl.zeros((i,))
        for j in tl.static_range(5, 3):
            i = j
        tl.store(o, tl.full((1,), i, "int32"))

    assert np.asarray(kb.kernel_call(kernel, ONE)()).tolist() == [8]


def test_an_index_that_was_never_set_is_pythons_error() -> None:
    def kernel(tl: Any, o: Any) -> None:
        for i in tl.static_range(0):
            tl.zeros((i,))
        tl.store(o, tl.full((1,), i, "int32"))

    with pytest.raises(UnboundLocalError):
        kb.kernel_call(kernel, ONE).record()


def test_a_body_that_never_runs_is_checked_for_types_only() -> None:
    """Bounds are those of the iterations that run, of which there is none."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(0):
            tl.store(o, tl.load(x[i + 1000]))
        tl.store(o, tl.load(x[0]))

    assert kb.kernel_call(kernel, ONE).record(X).peak_scratch == 16

    def wrong(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(0):
            tl.store(o, tl.load(x[i]).to("float32"))
        tl.store(o, tl.load(x[0]))

    with pytest.raises(kb.DTypeError):
        kb.kernel_call(wrong, ONE).record(X)


def test_a_scalar_of_a_narrow_tile_counts_the_iterations_that_run() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(4):
            for j in tl.range(i - 2):  # runs where i is 3 only
                with tl.scratch_scope():
                    tl.full((4,), (j + 1) * 100 * (4 - i), "int8")
        for i in tl.range(5, 3):
            tl.store(o, tl.load(x[0]) + i * 2**40)
        tl.store(o, tl.load(x[0]))

    assert kb.kernel_call(kernel, ONE).record(X).peak_scratch == 16


# --- index arithmetic against Python -------------------------------------------------

_LEAVES = ["i", "i", "i", "p", "3", "-5", "0", "1", "-1", "7"]
_BINARY = ["({} + {})", "({} - {})", "({} * {})", "({} < {})", "({} <= {})",
           "({} > {})", "({} >= {})", "({} == {})", "({} != {})",
           "tl.minimum({}, {})", "tl.maximum({}, {})", "(({0} < {1}) & ({1} != 2))",
           "({} // tl.maximum({}, 1))", "({} % tl.minimum({}, -1))"]  # fmt: skip
_UNARY = ["(-{})", "({} // 2)", "({} % 2)", "({} // -3)", "({} % -3)", "({} % 5)",
          "tl.cdiv({}, 4)", "tl.cdiv({}, -3)", "(+{})", "(7 - {})",
          "(100 // ({} % 7 + 1))", "(-100 % ({} % 7 - 9))"]  # fmt: skip


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one = st.builds(str.format, st.sampled_from(_UNARY), inner)
    return one | st.builds(str.format, st.sampled_from(_BINARY), inner, inner)


TEXTS = st.recursive(st.sampled_from(_LEAVES), _grown, max_leaves=6)
_OPERANDS = ("(i - p * 3)", "(i * i - 7)", "(i // 2 + p)", "(p - i % 4)")
PLAIN = SimpleNamespace(minimum=min, maximum=max, cdiv=lambda a, b: -(-a // b))


def compiled(text: str) -> Callable[[Any, Any, Any], Any]:
    return eval(f"lambda tl, i, p: {text}")


@settings(max_examples=150)
@given(TEXTS, st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([1, 2, -1, -3]))
def test_index_arithmetic_is_pythons(
    text: str, start: int, stop: int, step: int
) -> None:
    """Over a loop's index and the program id, also where the loop never runs."""
    function, pes = compiled(text), 3
    seen: list[Any] = []

    def kernel(tl: Any, o: Any) -> None:
        p = tl.program_id() - 1
        for i in tl.range(start, stop, step):
            seen[:] = [function(tl, i, p)]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* never stores to its output")
        program = kb.kernel_call(kernel, ONE, num_pes=pes).record()
    value = seen[0].expr if hasattr(seen[0], "expr") else None
    uids = {v.uid for v in _variables(value)} - {program.program_id.uid}
    for pe in range(pes):
        for trip, i in enumerate(range(start, stop, step)):
            env = {program.program_id.uid: pe, **{uid: trip for uid in uids}}
            got = seen[0] if value is None else reference.evaluate(value, env)
            assert int(got) == int(function(PLAIN, i, pe - 1)), (text, i, pe)


def _variables(value: Any) -> list[Any]:
    found: list[Any] = []
    for atom, _ in value.terms if value is not None else ():
        if hasattr(atom, "uid"):
            found.append(atom)
        else:
            found += [v for arg in atom.args for v in _variables(arg)]
    return found


def test_index_arithmetic_is_pythons_in_the_data_phase() -> None:
    """As numbers of a tile, a hexadecimal digit each, and as the row that is loaded."""
    rng, digits = random.Random(33), 7
    texts = [
        template.format(rng.choice(_OPERANDS), rng.choice(_OPERANDS))
        for template in _UNARY + _BINARY
    ]
    functions, bounds, pes = [compiled(text) for text in texts], (5, -7, -3), 2
    trips, groups = len(range(*bounds)), -(-len(texts) // digits)

    def packed(tl: Any, i: Any, p: Any, group: int) -> Any:
        code = 0
        for function in functions[group * digits : (group + 1) * digits]:
            code = code * 16 + function(tl, i, p) % 16
        return code

    def kernel(tl: Any, x: Any, o: Any, rows: Any) -> None:
        p = tl.program_id()
        for i in tl.range(*bounds):
            at = (5 - i) // 3
            for n in range(groups):
                with tl.scratch_scope():
                    value = packed(tl, i, p, n)
                    tl.store(o[at, n : n + 1], tl.full((1,), value, "int32"))
                    tl.store(rows[at, n : n + 1], tl.load(x[value % 61]))

    one = jax.ShapeDtypeStruct((trips, groups), "int32")
    call = kb.kernel_call(kernel, (one, one), num_pes=pes, in_axes=None)
    want = np.array(
        [
            [[packed(PLAIN, i, pe, n) for n in range(groups)] for i in range(*bounds)]
            for pe in range(pes)
        ],
        np.int32,
    )
    assert (want != want[:1, :1]).any((0, 1)).all()  # all vary
    values, rows = call(ROWS)
    assert_same_bits(values, want)
    assert_same_bits(rows, ROWS[want % 61, 0])
