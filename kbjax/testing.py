"""For users' own tests: `assert_kernel` runs all that kbjax can check of a kernel, and
says of what fails which command diverged first.

    from kbjax.testing import assert_kernel

    def test_my_kernel():
        assert_kernel(call, (q, k, v), reference, max_scratch_bytes=256 * 1024)
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbjax import errors, findings, laws
from kbjax.call import KernelCall
from kbjax.cases import Case, tolerance
from kbjax.comparison import compared, result_of
from kbjax.findings import Subject
from kbjax.ranges import nearest

SCHEMA_VERSION = 1
CHECKS = ("numbers", "fidelity", "poison", "pes", "op_log", "footprint", "bounds")


@dataclass(frozen=True)
class Finding:
    """What came of one check.

    Attributes:
      check: its name, one of `CHECKS`.
      status: passed, failed, or n/a where the check does not apply to the kernel.
      detail: the figures; of a failure what differs, where, and the first diverging
        command; why, where it does not apply.
    """

    check: str
    status: str
    detail: str

    def __str__(self) -> str:
        return f"{self.check} {self.status}: {self.detail}"


@dataclass(frozen=True)
class Report:
    """What came of all checks of a kernel."""

    kernel: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that failed."""
        return tuple(one for one in self.findings if one.status == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kernel": self.kernel,
            "verdict": "fail" if self.failed else "pass",
            "checks": [vars(one) for one in self.findings],
        }

    def __str__(self) -> str:
        held = sum(one.status == "passed" for one in self.findings)
        head = f"{self.kernel}: {len(self.failed)} failed, {held} passed"
        return "\n".join([head, *(f"  {one}" for one in self.findings)])


class KernelAssertionError(AssertionError):
    """Checks of a kernel failed; all that did are in `.report`."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(str(report))


def assert_kernel(
    call: KernelCall,
    args: Sequence[Any],
    reference: Any,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    max_scratch_bytes: int | None = None,
    checks: Sequence[str] = CHECKS,
) -> Report:
    """Run a kernel in every way that must give the same, and compare.

    Args:
      call: the kernel with its outputs, PEs and hardware.
      args: its input arrays.
      reference: what must come out: a function of the inputs as NumPy arrays, which it
        may not change, or the result itself; a tuple where there are several outputs,
        the first of them.
      rtol: the largest error of an output allowed, relative to the largest element of
        its reference. None: that of a kernel that accumulates in float32 and gives the
        output's dtype (`kbjax.cases.tolerance`), 0 for integers.
      atol: is added to it, in the output's own unit.
      max_scratch_bytes: the most scratch that the kernel may take at its peak. None:
        the hardware's budget.
      checks: which to run, of `CHECKS` (docs/testing.md says what each means).

    Returns:
      What was found. A check that does not apply is in it as "n/a", with the reason.

    Raises:
      KernelAssertionError: where any check fails, with all that do.
      ShapeError, DTypeError: for a reference that is no array of real numbers of the
        output's shape.
      KbjaxError: for a kernel that is refused when it is recorded, and for arguments
        that would let anything pass.
    """
    __tracebackhide__ = True  # pytest shows the test's line
    found = report(
        call,
        args,
        reference,
        rtol=rtol,
        atol=atol,
        max_scratch_bytes=max_scratch_bytes,
        checks=checks,
    )
    if found.failed:
        raise KernelAssertionError(found)
    return found


def assert_case(
    case: Case,
    *,
    max_scratch_bytes: int | None = None,
    checks: Sequence[str] = CHECKS,
) -> Report:
    """`assert_kernel` of a case: its arrays, its reference and its tolerance."""
    __tracebackhide__ = True
    return assert_kernel(
        case.call,
        case.arrays,
        case.reference,
        rtol=case.tolerance,
        max_scratch_bytes=max_scratch_bytes,
        checks=checks,
    )


def report(
    call: KernelCall,
    args: Sequence[Any],
    reference: Any,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    max_scratch_bytes: int | None = None,
    checks: Sequence[str] = CHECKS,
) -> Report:
    """As `assert_kernel`, but a failure is in the report and is not raised."""
    _check_arguments(call, args, rtol, atol, max_scratch_bytes, checks)
    subject = Subject(call, tuple(args))
    run: dict[str, Callable[[], tuple[str, str]]] = {
        "numbers": lambda: _numbers(subject, reference, rtol, atol),
        "fidelity": subject.fidelity,
        "poison": subject.poison,
        "pes": subject.one_against_many,
        "op_log": lambda: _op_log(subject),
        "footprint": lambda: _footprint(subject, max_scratch_bytes),
        "bounds": subject.bounds,
    }
    made = [Finding(name, *run[name]()) for name in CHECKS if name in checks]
    return Report(subject.program.name, tuple(made))


def _check_arguments(
    call: Any,
    args: Any,
    rtol: Any,
    atol: Any,
    max_scratch_bytes: Any,
    checks: Any,
) -> None:
    """Refuse what is no kernel on arrays, or would let anything pass."""
    if not isinstance(call, KernelCall):
        raise errors.KernelError(
            "what is tested is no kernel call",
            got=f"a {type(call).__name__}",
            remedy="Make one with kb.kernel_call(kernel, out_shape)",
        )
    if not isinstance(args, tuple | list):
        raise errors.KernelError(
            "args is a tuple or a list of the kernel's input arrays",
            got=f"a {type(args).__name__}",
            remedy="Write (x,) for one array",
        )
    for name, value in (("rtol", 0 if rtol is None else rtol), ("atol", atol)):
        if not (_is_number(value) and 0 <= value < math.inf):
            raise errors.KernelError(
                f"{name} is a number", got=repr(value), allowed=">= 0, and finite"
            )
    most = max_scratch_bytes
    if most is not None and not (_is_number(most) and 0 <= most < math.inf):
        raise errors.KernelError(
            "max_scratch_bytes is a number of bytes", got=repr(most), allowed=">= 0"
        )
    if isinstance(checks, str) or not checks:
        raise errors.KernelError(
            "checks is a list of the names of checks, at least one",
            got=repr(checks),
            allowed=", ".join(CHECKS),
        )
    for name in checks:
        if name not in CHECKS:
            raise errors.KernelError(
                f"there is no check {name!r}",
                allowed=", ".join(CHECKS),
                remedy=f"The nearest is {nearest(str(name), CHECKS)}",
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


# --- the checks ----------------------------------------------------------------------


def _numbers(
    subject: Subject, reference: Any, rtol: float | None, atol: float
) -> tuple[str, str]:
    outputs = subject.outputs  # first: what the reference does comes too late for them
    is_made = callable(reference)
    want = result_of(reference, subject.arrays) if is_made else reference
    pairs = compared(outputs, want)
    names = [f"output {n}: " if len(outputs) > 1 else "" for n in range(len(outputs))]
    said = []
    for number, one in enumerate(pairs):
        relative = tolerance(one.got.dtype.name) if rtol is None else rtol
        figures = f"{one.error:.3g} of the largest element, {relative:.3g} allowed"
        figures = f"{names[number]}error {figures}{f' and {atol:.3g}' if atol else ''}"
        wrong = one.wrong(relative, atol)
        if not wrong.any():
            said.append(figures)
            continue
        lines = [f"{figures}; {int(wrong.sum())} of {wrong.size} elements are wrong"]
        for word, at in findings.first_and_worst(wrong, one.off):
            lines.append(f"{word} {at}: got {one.got[at]!s}, expected {one.want[at]!s}")
            lines += subject.last_store(number, at)
        lines += subject.why_wrong(number, one.want)
        return "failed", "\n    ".join(lines)
    said += [f"{name}no reference" for name in names[len(pairs) :]]
    return "passed", "; ".join(said)


def _op_log(subject: Subject) -> tuple[str, str]:
    log = subject.log
    broken = laws.broken(log)
    if broken:
        return "failed", "\n    ".join(broken)
    rows = f"{len(log):,} rows"
    if len(log) > laws.MOST_ROWS:
        rows += f", the bytes of the first {laws.MOST_ROWS:,} followed"
    return "passed", f"{log.total_ns:,.3f} ns, {rows}"


def _footprint(subject: Subject, max_scratch_bytes: int | None) -> tuple[str, str]:
    program = subject.program
    peak = program.peak_scratch
    budget = program.hardware.pe_tcm.scratch_bytes
    most = budget if max_scratch_bytes is None else max_scratch_bytes
    figures = f"peak {peak:,} B of {most:,} B"
    lines = []
    if peak > most:
        plan = subject.call.plan(*subject.arrays, vary=[])
        lines.append(f"{figures}; held at the peak:")
        held = sorted(plan.buffers, key=lambda one: -one.nbytes)[:5]
        lines += [
            f"{one.nbytes:,} B in {one.count} x {one.tile} ({one.op} at {one.site})"
            for one in held
        ]
    return ("failed", "\n    ".join(lines)) if lines else ("passed", figures)
