"""What is done at a point of a study, in a worker process: plan, time, run."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

from kbjax import errors, study_versions
from kbjax.study import Point
from kbjax.study_status import Status

_MOST_TEXT = 20_000  # characters of a reason


def measure(point: Point) -> dict[str, Any]:
    """The row of a point: its figures, and how it ended. Raises nothing.

    A refusal is ``failed`` with the error's class and message, an exception that is
    none of kbjax's is ``error``.
    """
    start, began = time.perf_counter(), time.time()
    row: dict[str, Any] = {"status": Status.DONE, "started_at": began}
    versions = study_versions.here(point.kernel)  # before the file may change
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _measure(point, row)
        except errors.KbjaxError as error:
            row |= _ended(Status.FAILED, error)
        except BaseException as error:  # a kernel's own sys.exit() ends no study
            row |= _ended(Status.ERROR, error)
            if frames := traceback.extract_tb(error.__traceback__):
                file, line = frames[-1].filename, frames[-1].lineno
                row["reason"] += f" ({os.path.basename(file)}:{line})"
    notes = dict.fromkeys(str(one.message) for one in caught)
    row["notes"] = "\n".join(notes)[:_MOST_TEXT] or None
    row["wall_s"] = time.perf_counter() - start
    row["versions"] = versions
    return row


def check(sizes: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse kernels and sizes that there are none of, before the first point.

    Args:
      sizes: kernel -> the names of the sizes that a study gives it.

    Raises:
      KernelError: naming the first, with the nearest; for what a user's file raises
        when it is run, naming its line.
    """
    from kbjax import catalogue, user_files

    for kernel, names in sizes.items():
        try:
            catalogue.check_sizes(kernel, names)
        except (Exception, SystemExit) as error:  # of a user's file, as it is run
            raise user_files.raised(error) or error from error


def _measure(point: Point, row: dict[str, Any]) -> None:
    import jax

    from kbjax import catalogue

    sizes = dict(point.sizes)
    if "seed" in catalogue.sizes_of(point.kernel):
        sizes["seed"] = point.seed
    case = catalogue.make(point.kernel, hardware=point.hardware, **sizes)
    plan = case.call.plan(*case.inputs.specs, vary=[])
    row["peak_scratch_bytes"] = plan.peak_scratch_bytes
    row["budget_bytes"] = plan.budget_bytes
    row["fit"] = plan.verdict
    if plan.overflow is not None:
        raise plan.overflow
    if point.do == "plan":
        return
    summary = case.call.op_log(*case.inputs.specs).summary()
    row |= {
        "total_ns": summary.total_ns,
        **{f"{n}_utilisation": use.utilisation for n, use in summary.engines.items()},
        "bytes_loaded": summary.bytes_loaded,
        "bytes_stored": summary.bytes_stored,
        "gemm_flops": summary.gemm_flops,
        "math_flops": summary.math_flops,
        "commands": summary.commands,
        "roofline_ns": summary.roofline_ns,
        "limited_by": summary.limited_by,
    }
    if point.do == "time":
        return
    output = jax.block_until_ready(case.call(*case.arrays))
    error = case.error_of(output)
    row |= {
        "error": error if error == error else None,
        "tolerance": case.tolerance,
        "verdict": "pass" if error <= case.tolerance else "fail",
    }


def _ended(status: Status, error: BaseException) -> dict[str, Any]:
    text = str(error)[:_MOST_TEXT]
    return {"status": status, "reason_kind": type(error).__name__, "reason": text}
