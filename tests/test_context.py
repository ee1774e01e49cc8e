"""TLContext: what it refuses and where, what a refusal leaves, and what is emitted.

The mistakes that take one small kernel each are in tests/mistakes.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import ops
from kbjax.program import CopyCmd, LoadCmd, Program, StoreCmd
from tests.mistakes import (
    carried_state,
    dtype,
    out_of_bounds,
    scratch_overflow,
    shape,
)
from tests.mistakes.catalogue import N, X, marked_lines, record, refused

Kernel = Callable[..., None]


# --- HBM tensors where tiles belong --------------------------------------------------

_UNARY = [
    row.name
    for row in ops.TABLE.values()
    if row.parameters == ("x",) and hasattr(kb.TLContext, row.name)
]
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
            lambda: kb.kernel_call(breaks, X).record(X, N),
            lambda: kb.kernel_call(_copy, X, **shared).record(X, N),
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
        (shape.dot_shapes, kb.ShapeError),
        (out_of_bounds.view_too_long, kb.OutOfBoundsError),
        (carried_state.rebind_a_handle, kb.KernelError),
        (scratch_overflow.too_much, kb.ScratchOverflowError),
        (dtype.copy_dtypes, kb.DTypeError),
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


def test_a_name_that_tl_does_not_have() -> None:
    """Refused with the nearest; `hasattr` finds it missing, as of any object."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        assert not hasattr(tl, "sinh") and getattr(tl, "sinh", None) is None
        tl.stor(o, tl.load(x))

    shape = jax.ShapeDtypeStruct((4,), "float32")
    line = kernel.__code__.co_firstlineno + 2
    with pytest.raises(kb.KernelError, match="tl has no 'stor'") as caught:
        kb.kernel_call(kernel, shape).record(shape)
    assert caught.value.site is not None and caught.value.site.line == line
    assert caught.value.remedy == "The nearest is tl.store"
