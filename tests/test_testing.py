"""assert_kernel: a right kernel passes every check, and each check fails where it must,
naming the first command that diverges."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue, dtypes, laws, op_log, testing
from kbjax.cases import Case, Inputs, check_dtype, tolerance
from kbjax.comparison import compared
from kbjax.data_phase import Replay
from kbjax.testing import CHECKS, KernelAssertionError, assert_case, assert_kernel

OUT = jax.ShapeDtypeStruct((4, 8), "float32")
X = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
PES = np.random.default_rng(1).standard_normal((3, 16, 8)).astype(np.float32)


def summed(tl: Any, x: Any, o: Any) -> None:
    """The sum of exp(2 x) over blocks of 4 rows."""
    total = tl.zeros((4, 8), "float32")
    for j in tl.range(4):
        with tl.scratch_scope():
            part = tl.exp(tl.load(x[tl.ds(j * 4, 4), :]) * 2.0)
            tl.copy_to(total, total + part)
    tl.store(o, total)


def stale(tl: Any, x: Any, o: Any) -> None:
    """Reads a tile after its scope."""
    with tl.scratch_scope():
        part = tl.load(x[tl.ds(0, 4), :]) * 2.0
    tl.store(o, part + 1.0)


def reference(x: np.ndarray) -> np.ndarray:
    blocks = np.exp(2 * x.astype(np.float64)).reshape(*x.shape[:-2], 4, 4, 8)
    return blocks.sum(axis=-3)


def line_of(text: str) -> int:
    """The line of this file that holds it first."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if text in line)


def failure(*arguments: Any, **options: Any) -> KernelAssertionError:
    with pytest.raises(KernelAssertionError) as caught:
        assert_kernel(*arguments, **options)
    return caught.value


def status(report: testing.CheckReport) -> dict[str, str]:
    return {one.check: one.status for one in report.findings}


@pytest.fixture(scope="module")
def many() -> kb.KernelCall:
    return kb.kernel_call(summed, OUT, num_pes=3)


# --- what is right -------------------------------------------------------------------


def test_a_right_kernel_passes_every_check(many: kb.KernelCall) -> None:
    report = assert_kernel(many, (PES,), reference, max_scratch_bytes=1024)
    assert status(report) == dict.fromkeys(CHECKS, "passed")
    said = report.to_dict()
    assert (said["verdict"], len(said["checks"])) == ("pass", len(CHECKS))
    assert str(report).startswith("summed: 0 failed, 7 passed")


def test_a_reference_may_be_the_result(many: kb.KernelCall) -> None:
    want = reference(PES)
    for one in (want, (want,), [want]):
        assert_kernel(many, (PES,), one, checks=["numbers"])


def test_a_case_brings_its_arrays_and_tolerance() -> None:
    case = catalogue.make("ring_all_reduce")
    report = assert_case(case, checks=["numbers", "op_log", "pes"])
    assert status(report)["numbers"] == "passed"
    assert status(report)["pes"] == "n/a"
    assert f"{case.tolerance:.3g} allowed" in str(report)
    wrong = dataclasses.replace(case, tolerance=0.0)
    with pytest.raises(KernelAssertionError):
        assert_case(wrong, checks=["numbers"])


def test_what_does_not_apply_says_why() -> None:
    def numbered(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x[tl.ds(0, 4), :]) + tl.program_id())

    def shared(tl: Any, x: Any, o: Any) -> None:
        i = tl.program_id()
        tl.store(o[tl.ds(i, 1), :], tl.load(x[tl.ds(i, 1), :]))

    report = assert_kernel(
        kb.kernel_call(numbered, OUT, num_pes=3),
        (PES,),
        lambda x: x[:, :4].astype(np.float64) + np.arange(3)[:, None, None],
        checks=["numbers", "poison", "pes"],
    )
    assert status(report) == {"numbers": "passed", "poison": "n/a", "pes": "n/a"}
    assert "uses its number" in str(report)
    call = kb.kernel_call(shared, OUT, num_pes=4, in_axes=None, out_axes=None)
    report = assert_kernel(call, (X,), lambda x: x[:4], checks=["numbers", "pes"])
    assert "share an output" in str(report)
    wide = kb.kernel_call(summed, OUT, compute_dtype="float32")
    report = testing.report(wide, (X,), reference, checks=["fidelity", "poison"])
    assert status(report) == {"fidelity": "n/a", "poison": "n/a"}


def test_an_unknown_check_is_refused(many: kb.KernelCall) -> None:
    with pytest.raises(kb.KernelError, match="nearest is fidelity"):
        assert_kernel(many, (PES,), reference, checks=["fidelty"])


# --- numbers -------------------------------------------------------------------------


def test_a_wrong_reference_is_told_by_element_and_store(many: kb.KernelCall) -> None:
    def wrong(x: np.ndarray) -> np.ndarray:
        want = reference(x)
        want[1, 2, 3] += 1e-3 * np.abs(want).max()
        return want

    text = str(failure(many, (PES,), wrong, checks=["numbers"]))
    assert "1 of 96 elements are wrong" in text
    assert "first at (1, 2, 3): got" in text
    line = line_of("tl.store(o, total)")
    assert re.search(rf"stored by command \d+ \(store at test_testing.py:{line} on PE "
                     r"1\)", text)  # fmt: skip


def test_tolerances_are_of_the_largest_element_and_absolute() -> None:
    call = kb.kernel_call(summed, OUT)
    want = reference(X)
    off = want + 0.01 * want.max()
    check: Any = partial(assert_kernel, call, (X,), off, checks=["numbers"])
    check(rtol=0.0101)
    check(rtol=0.0, atol=0.0101 * want.max())
    with pytest.raises(KernelAssertionError):
        check(rtol=0.0099)
    with pytest.raises(KernelAssertionError):
        check(rtol=0.0, atol=0.0099 * want.max())


def test_a_nan_is_wrong_and_its_first_command_is_named() -> None:
    def roots(tl: Any, x: Any, o: Any) -> None:
        for j in tl.range(4):
            with tl.scratch_scope():
                row = tl.ds(j, 1)
                tl.store(o[row, :], tl.sqrt(tl.load(x[row, :])) * 2.0)

    x = np.abs(X)
    x[2, 5] = -1
    with np.errstate(invalid="ignore"):
        error = failure(
            kb.kernel_call(roots, OUT),
            (x,),
            lambda x: 2 * np.sqrt(np.abs(x[:4].astype(np.float64))),
            checks=["numbers"],
        )
    line = line_of("tl.sqrt(tl.load(x[row")
    assert re.search(rf"the first NaN: command \d+ \(sqrt at test_testing.py:{line}, "
                     r"iteration j=2\)", str(error))  # fmt: skip


def test_rounding_is_told_from_a_wrong_algorithm() -> None:
    def rounded(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x[tl.ds(0, 4), :])
        tl.store(o, (t + 100.0) - 100.0)

    call = kb.kernel_call(rounded, jax.ShapeDtypeStruct((4, 8), "float16"))
    x = X.astype(np.float16)
    text = str(failure(call, (x,), lambda x: x[:4], checks=["numbers"]))
    assert "with every float kept in float32 the error is" in text
    assert float(re.findall(r"the error is ([\d.e-]+):", text)[0]) < 1e-5


@pytest.mark.parametrize("dtype", dtypes.TABLE)
def test_every_dtype_has_a_tolerance(dtype: str) -> None:
    """A cast is right; what is off by more than the dtype's last bit is wrong."""

    def cast(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.cast(tl.load(x), dtype))

    x = np.array([[3.25, -2.5, 0.0, 96.0]], np.float32)
    if dtype in ("bool", "uint8"):
        x = np.abs(x)
    call = kb.kernel_call(cast, jax.ShapeDtypeStruct((1, 4), dtype))
    want = x.astype(dtypes.of(dtype).numpy).astype(np.float64)
    report = assert_kernel(call, (x,), want, checks=["numbers", "fidelity", "bounds"])
    assert set(status(report).values()) == {"passed"}
    last_bit = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3,
                "float8_e5m2": 2.0**-2, "float32": 4e-6}  # fmt: skip
    allowed = tolerance(dtype)
    assert allowed == last_bit.get(dtype, 0.0)
    wrong = want.copy()
    wrong[0, 3] -= 1.5 * allowed * want[0, 3] or 1
    failure(call, (x,), wrong, checks=["numbers"])


def test_which_dtypes_a_kernel_takes_is_another_question() -> None:
    check_dtype("float16")
    check_dtype("int8", "int8")
    with pytest.raises(kb.DTypeError, match="does not come in float8_e5m2") as caught:
        check_dtype("float8_e5m2", "int8")
    assert caught.value.allowed == "float32, float16, bfloat16, int8"
    with pytest.raises(kb.DTypeError, match="nearest is float16"):
        check_dtype("flota16")
    with pytest.raises(kb.DTypeError, match="unknown element type"):
        tolerance("float64")


def copied(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.load(x))


def copy_of(x: np.ndarray) -> kb.KernelCall:
    return kb.kernel_call(copied, jax.ShapeDtypeStruct(x.shape, x.dtype))


def numbers(x: np.ndarray, want: Any, **options: Any) -> testing.Finding:
    """What the check says of a copy of x beside what is wanted."""
    report = testing.report(copy_of(x), (x,), want, checks=["numbers"], **options)
    return report.findings[0]


def test_an_infinity_of_the_reference_lets_nothing_else_pass() -> None:
    x = np.array([1, 2, np.inf, -np.inf], np.float32)
    assert numbers(x, x).status == "passed"
    assert "error 0 of the largest element" in numbers(x, x).detail
    for wrong in ([np.inf, 2, np.inf, -np.inf], [1, 2, -np.inf, -np.inf],
                  [1, 2, 3, -np.inf], [1, 2.1, np.inf, -np.inf],
                  [1, 2, np.nan, -np.inf]):  # fmt: skip
        found = numbers(x, np.array(wrong))
        assert found.status == "failed", wrong
        assert "1 of 4 elements are wrong" in found.detail
    case = Case(copy_of(x), Inputs(0, 1, "float32", ((4,),)), lambda _: x, 0.0)
    assert case.error_of(x) == 0
    assert case.error_of(x[::-1]) == np.inf
    assert math.isnan(case.error_of(x * np.array([1, 1, 1, np.nan])))


def test_a_case_and_a_check_have_one_error() -> None:
    want = np.array([4.0, -8.0, 0.0])
    for got in ([4, -8, 0.5], [4, -8, np.nan], [4, np.inf, 0], [4, -8, 0]):
        x = np.array(got, np.float32)
        case = Case(copy_of(x), Inputs(0, 1, "float32", ((3,),)), lambda _: want, 0.0)
        assert f"error {case.error_of(x):.3g} of" in numbers(x, want).detail


def test_integers_and_bools_are_exact_and_shown_as_they_are() -> None:
    x = np.array([2**30 + 1, -3], np.int32)
    assert numbers(x, x.astype(np.int64)).status == "passed"
    assert "got -3, expected -4" in numbers(x, x - np.array([0, 1])).detail
    assert (
        "got 1073741825, expected 1073741826" in numbers(x, x + np.array([1, 0])).detail
    )
    flags = np.array([True, False])
    assert numbers(flags, flags).status == "passed"
    assert "got False, expected True" in numbers(flags, ~flags | flags).detail


def test_no_elements_are_no_error() -> None:
    none = np.zeros((0, 4), np.float32)
    (one,) = compared(none, none)
    assert (one.error, one.scale, one.wrong(0.0).any()) == (0.0, 1.0, False)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (None, "Got None"),
        ("text", "Got a str"),
        (np.array(["1.0"] * 4), "Got an array of <U3"),
        ({"o": X}, "Got a dict"),
        ((one for one in X), "Got a generator"),
        (np.ones(4) + 5j, "Got an array of complex128"),
        (np.array([1, None, 2, 3]), "Got an array of object"),
        (np.ma.masked_less(np.ones(4), 0), "is a masked array"),
        (np.array(["2020-01-01"] * 4, "datetime64[D]"), "Got an array of datetime64"),
    ],
)
def test_a_reference_that_is_no_numbers_is_refused(reference: Any, said: str) -> None:
    x = np.ones(4, np.float32)
    made = [lambda _: reference] + [reference] * (reference is not None)
    for one in made:
        with pytest.raises(kb.DTypeError, match=re.escape(said)) as caught:
            numbers(x, one)
        assert "the reference is" in str(caught.value)
    case = Case(copy_of(x), Inputs(0, 1, "float32", ((4,),)), lambda _: reference, 0.0)
    with pytest.raises(kb.DTypeError, match=re.escape(said)):
        case.error_of(x)


def test_an_empty_reference_is_refused() -> None:
    x = np.ones(4, np.float32)
    for empty in ((), []):
        with pytest.raises(kb.ShapeError, match="the reference is empty"):
            numbers(x, empty)


def test_an_output_without_a_reference_is_named() -> None:
    def two(tl: Any, x: Any, a: Any, b: Any) -> None:
        tl.store(a, tl.load(x))
        tl.store(b, tl.load(x) + 1.0)

    x = np.ones(4, np.float32)
    out = jax.ShapeDtypeStruct((4,), "float32")
    call = kb.kernel_call(two, (out, out))
    report = assert_kernel(call, (x,), lambda x: x, checks=["numbers"])
    assert report.findings[0].detail.endswith("output 1: no reference")
    with pytest.raises(kb.DTypeError, match="the reference of output 1"):
        assert_kernel(call, (x,), (x, "text"), checks=["numbers"])


def test_a_reference_cannot_change_the_arrays() -> None:
    x = np.ones(4, np.float32)

    def doubles(x: np.ndarray) -> np.ndarray:
        x *= 2
        return x

    with pytest.raises(ValueError, match="read-only"):
        numbers(x, doubles)
    assert x.flags.writeable and (x == 1).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rtol": np.inf}, "rtol is a number"),
        ({"rtol": -1}, "rtol is a number"),
        ({"rtol": "1e-3"}, "rtol is a number"),
        ({"atol": np.nan}, "atol is a number"),
        ({"atol": True}, "atol is a number"),
        ({"atol": None}, "atol is a number"),
        ({"max_scratch_bytes": np.nan}, "max_scratch_bytes is a number"),
        ({"max_scratch_bytes": "1"}, "max_scratch_bytes is a number"),
        ({"checks": "numbers"}, "checks is a list"),
        ({"checks": []}, "checks is a list"),
        ({"args": X}, "args is a tuple"),
        ({"call": copied}, "Make one with kb.kernel_call"),
    ],
)
def test_arguments_that_would_let_anything_pass_are_refused(
    options: dict[str, Any], said: str
) -> None:
    asked: dict[str, Any] = {"call": copy_of(X), "args": (X,), "reference": X}
    with pytest.raises(kb.KernelError, match=re.escape(said)):
        assert_kernel(**asked | options)


def test_shapes_that_differ_are_refused(many: kb.KernelCall) -> None:
    with pytest.raises(kb.ShapeError, match="differ in shape"):
        assert_kernel(many, (PES,), reference(PES)[0], checks=["numbers"])
    with pytest.raises(kb.ShapeError, match="more references"):
        assert_kernel(many, (PES,), (reference(PES),) * 2, checks=["numbers"])


# --- the same bits -------------------------------------------------------------------


def a_bit_more(of: str, when: Any) -> Any:
    """Replay with an op whose results are one unit larger where `when(replay)`."""
    plain = Replay._op

    def op(self: Replay, command: Any, *rest: Any) -> Any:
        result = plain(self, command, *rest)
        if command.op == of and when(self):
            result = jnp.nextafter(result, jnp.full_like(result, jnp.inf))
        return result

    return mock.patch.object(Replay, "_op", op)


def test_exact_and_live_that_differ_are_told_by_command() -> None:
    call = kb.kernel_call(summed, OUT, num_pes=3)
    with a_bit_more("exp", lambda replay: replay.fidelity == "live"):
        error = failure(call, (PES,), reference)
    assert [one.check for one in error.report.failed] == ["fidelity"]
    line = line_of("part = tl.exp(")
    assert re.search(
        rf"first diverging: command \d+ \(exp at test_testing.py:{line}, iteration "
        r"j=0 on PE 0\): .* = exp .*\n +element \(0, 0\), byte 0 of its result: "
        r"live \S+ \(0x\w{8}\), exact \S+ \(0x\w{8}\)",
        str(error),
    ), str(error)
    assert "elements differ, first at (0, 0, 0)" in str(error)


def test_final_bytes_that_differ_are_told() -> None:
    """A tile that no output shows."""

    def kept(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x[tl.ds(0, 4), :])
        tl.exp(tile)
        tl.store(o, tile)

    with a_bit_more("exp", lambda replay: replay.fidelity == "live"):
        text = str(failure(kb.kernel_call(kept, OUT), (X,), X[:4]))
    line = line_of("tl.exp(tile)")
    assert "final bytes differ, first 0x80 of PE 0" in text
    assert f"(exp at test_testing.py:{line})" in text


def test_stale_bytes_are_found_by_poison() -> None:
    call = kb.kernel_call(stale, OUT, checks="off")
    error = failure(call, (X,), lambda x: 2 * x[:4].astype(np.float64) + 1)
    assert status(error.report)["numbers"] == "passed"
    assert status(error.report)["fidelity"] == "n/a"
    assert [one.check for one in error.report.failed] == ["poison"]
    line = line_of("tl.store(o, part + 1.0)")
    assert f"(add at test_testing.py:{line})" in str(error)
    assert "with poison nan" in str(error)


def test_a_pe_that_differs_alone_is_told() -> None:
    call = kb.kernel_call(summed, OUT, num_pes=3)
    with a_bit_more("mul", lambda replay: replay.program.num_pes == 1):
        error = failure(call, (PES,), reference)
    assert [one.check for one in error.report.failed] == ["pes"]
    line = line_of("part = tl.exp(")
    assert f"(mul at test_testing.py:{line}, iteration j=0 on PE 0)" in str(error)
    assert "among many" in str(error) and "alone" in str(error)


def test_pes_on_other_axes_are_run_alone() -> None:
    call = kb.kernel_call(summed, OUT, num_pes=3, in_axes=1, out_axes=-1)
    x = np.moveaxis(PES, 0, 1)
    want = np.moveaxis(reference(PES), 0, -1)
    report = assert_kernel(call, (x,), want, checks=["numbers", "pes"])
    assert set(status(report).values()) == {"passed"}
    wrong = want.copy()
    wrong[1, 2, 2] += 1
    text = str(failure(call, (x,), wrong, checks=["numbers"]))
    assert "first at (1, 2, 2)" in text and "on PE 2)" in text


def test_all_that_fails_is_told_at_once() -> None:
    call = kb.kernel_call(stale, OUT, checks="off")
    error = failure(call, (X,), np.zeros((4, 8)), max_scratch_bytes=16)
    failed = [one.check for one in error.report.failed]
    assert failed == ["numbers", "poison", "footprint"]
    assert str(error).startswith("stale: 3 failed, 2 passed")
    assert all(f"{name} failed" in str(error) for name in failed)


# --- footprint and op_log ------------------------------------------------------------


def test_a_budget_that_is_too_small_says_what_holds_it() -> None:
    call = kb.kernel_call(summed, OUT)
    peak = call.record(X).peak_scratch
    assert_kernel(call, (X,), reference, max_scratch_bytes=peak, checks=["footprint"])
    error = failure(
        call, (X,), reference, max_scratch_bytes=peak - 1, checks=["footprint"]
    )
    assert f"peak {peak:,} B of {peak - 1:,} B; held at the peak" in str(error)
    assert f"zeros at test_testing.py:{line_of('total = tl.zeros')}" in str(error)


def test_a_write_past_the_peak_is_seen() -> None:
    call = kb.kernel_call(summed, OUT)
    program = call.record(X)
    program.__dict__["peak_scratch"] = program.peak_scratch - 16
    alone = failure(call, (X,), reference, checks=["bounds"])
    assert "of PE 0 is written, the peak is " in str(alone)
    assert [one.check for one in alone.report.failed] == ["bounds"]


def test_a_finding_does_not_depend_on_the_other_checks() -> None:
    """Each check alone, and with all others, where many of them fail."""
    call = kb.kernel_call(stale, OUT, checks="off")
    program = call.record(X)
    program.__dict__["peak_scratch"] = program.peak_scratch - 16
    wrong = np.zeros((4, 8))
    together = testing.report(call, (X,), wrong, max_scratch_bytes=16)
    assert [one.check for one in together.failed] == [
        "numbers", "poison", "footprint", "bounds",
    ]  # fmt: skip
    for one in together.findings:
        alone = testing.report(
            call, (X,), wrong, max_scratch_bytes=16, checks=[one.check]
        )
        assert alone.findings == (one,)


def moved(column: str, change: Any) -> Any:
    """op_logs whose column is another."""
    plain = op_log.OpLog.columns

    def columns(self: op_log.OpLog, names: Any = None) -> Any:
        found = plain(self, names)
        if column in found:
            found[column] = change(plain(self, ("op", "engine", column)))
        return found

    return mock.patch.object(op_log.OpLog, "columns", columns)


def at_row(row: int, by: int, column: str) -> Any:
    return lambda c: c[column] + by * (c["op"] == row)


@pytest.mark.parametrize(
    ("column", "change", "said"),
    [
        ("start_ps", at_row(5, -1000, "start_ps"), "before it may"),
        ("start_ps", at_row(5, -1000, "start_ps"), "its engine is busy until"),
        ("start_ps", at_row(5, 1000, "start_ps"), "later than it could"),
        ("start_ps", at_row(5, 10**9, "start_ps"), "ends before it starts"),
        ("end_ps", at_row(20, 10**9, "end_ps"), "but the last row ends"),
        ("end_ps", lambda c: c["end_ps"] // 2, "but the last row ends"),
        ("nbytes", lambda c: c["nbytes"] * 10**6, "less than bytes / bandwidth"),
        ("end_ps", at_row(4, 10**9, "end_ps"), "engine's busy time"),
    ],
)
def test_a_broken_law_is_told(column: str, change: Any, said: str) -> None:
    log = kb.kernel_call(summed, OUT).op_log(X)
    assert not laws.broken(log)
    with moved(column, change):
        assert any(said in one for one in laws.broken(log)), laws.broken(log)


def test_a_total_is_held_to_the_flops_and_to_all_commands() -> None:
    def product(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)
        tl.store(o, tl.dot(a, tl.trans(a)))

    log = kb.kernel_call(product, jax.ShapeDtypeStruct((16, 16), "float32")).op_log(X)
    assert not laws.broken(log)
    with moved("flops", lambda c: c["flops"] * 10**6):
        assert any("flops / peak" in one for one in laws.broken(log))
    with moved("start_ps", lambda c: c["start_ps"] * 0 + plain_ends(log)):
        assert any("one after another" in one for one in laws.broken(log))


def plain_ends(log: op_log.OpLog) -> int:
    return round(log.total_ns * 1000)


def test_a_message_is_not_there_before_it_is_sent() -> None:
    case = catalogue.make("ring_all_reduce")
    log = case.call.op_log(*case.inputs.specs)
    assert not laws.broken(log)
    waits = lambda c: np.where(c["engine"] == "wait", 0, c["end_ps"])  # noqa: E731
    with moved("end_ps", waits):
        assert any("before its message is sent" in one for one in laws.broken(log))


def test_the_op_log_check_fails_with_its_law() -> None:
    call = kb.kernel_call(summed, OUT)
    with moved("start_ps", at_row(5, 1000, "start_ps")):
        error = failure(call, (X,), reference, checks=["op_log"])
    assert "op_log failed: row 5 (" in str(error)
    assert "later than it could" in str(error)


def test_rows_that_are_missing_are_missed() -> None:
    log = kb.kernel_call(summed, OUT).op_log(X)
    short = log[: len(log) - 1]
    assert any("has no row on PE 0" in one for one in laws.broken(short))
    assert not [x for x in laws.broken(log.filter(), most_rows=5) if "no row" in x]


def test_rows_of_no_command_are_told() -> None:
    def body(rows: int) -> Any:
        def copies(tl: Any, x: Any, o: Any) -> None:
            for j in tl.range(rows):
                tl.store(o[tl.ds(j, 1), :], tl.load(x[tl.ds(j, 1), :]))

        return kb.kernel_call(copies, OUT)

    log, shorter = body(4).op_log(X), body(3).record(X)
    assert not laws.broken(log)
    with mock.patch.object(op_log.OpLog, "program", shorter):
        assert any("is of no command of the program" in x for x in laws.broken(log))
