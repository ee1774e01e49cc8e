"""For users' own tests: `assert_kernel` runs all that kbjax can check of a kernel, and
says of what fails which command diverged first.

    from kbjax.testing import assert_kernel

    def test_my_kernel():
        assert_kernel(call, (q, k, v), reference, max_scratch_bytes=256 * 1024)
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbjax import checks as made_checks
from kbjax import errors
from kbjax.call import KernelCall
from kbjax.cases import Case
from kbjax.checks import Finding, Limits
from kbjax.names import unknown
from kbjax.subject import Subject

SCHEMA_VERSION = 1
CHECKS = tuple(made_checks.CHECKS)


@dataclass(frozen=True)
class CheckReport:
    """What came of all checks of a kernel.

    Attributes:
      kernel: its name.
      findings: one for each check that was asked for, in the order of `CHECKS`.
    """

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

    def __init__(self, report: CheckReport) -> None:
        self.report = report
        super().__init__(str(report))


def assert_kernel(
    call: KernelCall, args: Sequence[Any], reference: Any, **options: Any
) -> CheckReport:
    """Run a kernel in every way that must give the same, and compare.

    Args:
      call, args, reference, options: as `report` takes them.

    Returns:
      What was found. A check that does not apply is in it as "n/a", with the reason.

    Raises:
      KernelAssertionError: where any check fails, with all that do.
      KbjaxError: as of `report`.
    """
    __tracebackhide__ = True  # pytest shows the test's line
    return _held(report(call, args, reference, **options))


def assert_case(case: Case, **options: Any) -> CheckReport:
    """`assert_kernel` of a case: its arrays, its reference and its tolerance.

    Args:
      case: what to run.
      options: as `report` takes them; `rtol` in place of the case's tolerance.
    """
    __tracebackhide__ = True
    return _held(report_case(case, **options))


def report_case(case: Case, **options: Any) -> CheckReport:
    """As `assert_case`, but a failure is in the report and is not raised."""
    options = {"rtol": case.tolerance, **options}
    return report(case.call, case.arrays, case.reference, **options)


def report(
    call: KernelCall,
    args: Sequence[Any],
    reference: Any,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    max_scratch_bytes: int | None = None,
    checks: Sequence[str] = CHECKS,
) -> CheckReport:
    """Run a kernel in every way that must give the same, and say what was found.

    Args:
      call: the kernel with its outputs, PEs and hardware.
      args: its input arrays, a tuple or a list.
      reference: what must come out: a function of the inputs as NumPy arrays, which it
        may not change, or the result itself; a tuple where there are several outputs,
        the first of them.
      rtol: the largest error of an output allowed, relative to the largest finite
        element of its reference. None: that of a kernel that accumulates in float32 and
        gives the output's dtype (`kbjax.cases.tolerance`), 0 for integers.
      atol: is added to it, in the output's own unit.
      max_scratch_bytes: the most scratch that the kernel may take at its peak. None:
        the hardware's budget.
      checks: which to run, of `CHECKS` (docs/testing.md says what each means).

    Raises:
      ShapeError, DTypeError: for a reference that is no array of real numbers of the
        output's shape.
      KbjaxError: for a kernel that is refused when it is recorded, and for arguments
        that would let anything pass.
    """
    limits = Limits(reference, rtol, atol, max_scratch_bytes)
    _check_call(call, args)
    _check_limits(limits)
    _check_names(checks)
    subject = Subject(call, tuple(args))
    findings = tuple(
        check(subject, limits)
        for name, check in made_checks.CHECKS.items()
        if name in checks
    )
    return CheckReport(subject.program.name, findings)


def _held(found: CheckReport) -> CheckReport:
    __tracebackhide__ = True
    if found.failed:
        raise KernelAssertionError(found)
    return found


# --- what is refused -----------------------------------------------------------------


def _check_call(call: object, args: object) -> None:
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


def _check_limits(limits: Limits) -> None:
    """Refuse limits that let anything pass, or nothing."""
    for name in ("rtol", "atol", "max_scratch_bytes"):
        value = getattr(limits, name)
        if value is None and name != "atol":
            continue
        is_number = isinstance(value, numbers.Real) and not isinstance(
            value, bool | np.bool_
        )
        if not (is_number and 0 <= value < math.inf):
            raise errors.KernelError(
                f"{name} is a number", got=repr(value), allowed=">= 0, and finite"
            )


def _check_names(checks: Sequence[str]) -> None:
    if isinstance(checks, str) or not checks:
        raise errors.KernelError(
            "checks is a list of the names of checks, at least one",
            got=repr(checks),
            allowed=", ".join(CHECKS),
        )
    for name in checks:
        if name not in CHECKS:
            raise unknown(f"there is no check {name!r}", name, CHECKS)
