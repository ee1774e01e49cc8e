"""The checks of `kbjax.testing`: each takes a subject and its limits, and says what
it found, whatever other checks run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kbjax import errors, laws, tcm
from kbjax.cases import tolerance
from kbjax.comparison import compared, result_of
from kbjax.divergence import behind_wrong, first_of_pe, first_of_ways, unlike_outputs
from kbjax.program import Block, Loop, Program, Scope, When
from kbjax.subject import Subject

MOST_PES = 4  # of many that are run alone
_WIDE = 'compute_dtype="float32" has live replay only'


@dataclass(frozen=True)
class Limits:
    """What a kernel is held to.

    Attributes:
      reference: a function of the inputs, or what must come out.
      rtol: of the largest element of an output's reference; None: of its dtype.
      atol: is added to it, in the output's unit.
      max_scratch_bytes: at the peak; None: the hardware's budget.
    """

    reference: Any
    rtol: float | None = None
    atol: float = 0.0
    max_scratch_bytes: int | None = None


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
    status: Literal["passed", "failed", "n/a"]
    detail: str

    def __str__(self) -> str:
        return f"{self.check} {self.status}: {self.detail}"


def _passed(check: str, detail: str) -> Finding:
    return Finding(check, "passed", detail)


def _failed(check: str, lines: Iterable[str]) -> Finding:
    return Finding(check, "failed", "\n    ".join(lines))


def _not_for(check: str, why: str) -> Finding:
    return Finding(check, "n/a", why)


# --- the checks ----------------------------------------------------------------------


def numbers(subject: Subject, limits: Limits) -> Finding:
    """The outputs beside the reference."""
    outputs = subject.outputs  # before the reference, whatever that does
    want = limits.reference
    if callable(want):
        want = result_of(want, subject.arrays)
    pairs = compared(outputs, want)
    names = [f"output {n}: " if len(outputs) > 1 else "" for n in range(len(outputs))]
    details = []
    for number, pair in enumerate(pairs):
        rtol = tolerance(pair.got.dtype.name) if limits.rtol is None else limits.rtol
        figures = (
            f"{names[number]}error {pair.error:.3g} of the largest element, "
            f"{rtol:.3g} allowed"
        )
        if limits.atol:
            figures += f" and {limits.atol:.3g}"
        wrong = pair.wrong(rtol, limits.atol)
        if wrong.any():
            count = f"{int(wrong.sum())} of {wrong.size} elements are wrong"
            lines = behind_wrong(subject, number, pair, wrong)
            return _failed("numbers", [f"{figures}; {count}", *lines])
        details.append(figures)
    details += [f"{name}no reference" for name in names[len(pairs) :]]
    return _passed("numbers", "; ".join(details))


def fidelity(subject: Subject, _: Limits) -> Finding:
    """Outputs and final bytes of exact replay and of live."""
    program = subject.program
    if program.needs_exact:
        why = "under these checks= the kernel is replayed in exact only"
        return _not_for("fidelity", why)
    if subject.call.is_wide:
        return _not_for("fidelity", _WIDE)
    lines = unlike_outputs(subject.outputs, subject.exact_outputs, "live", "exact")
    mask = bytes_defined(program)
    live, exact = subject.memory, subject.exact_memory
    differs = (live != exact) & mask
    if differs.any():
        pe, at = (int(i) for i in np.argwhere(differs)[0])
        base = program.hardware.pe_tcm.scratch_base
        lines.append(
            f"{int(differs.sum())} final bytes differ, first {base + at:#x} of PE "
            f"{pe}: live {live[pe, at]:#04x}, exact {exact[pe, at]:#04x}"
        )
    if lines:
        return _failed("fidelity", [*lines, first_of_ways(subject, "live", "exact")])
    size = f"{sum(out.size for out in subject.outputs):,} elements"
    same = f"{size} and {int(mask.sum()):,} final bytes a PE are the same"
    return _passed("fidelity", same)


def poison(subject: Subject, _: Limits) -> Finding:
    """Outputs with and without poison."""
    if subject.call.is_wide:
        return _not_for("poison", _WIDE)
    if not subject.gives_back:
        return _not_for("poison", "no scope gives anything back")
    lines = unlike_outputs(
        subject.exact_outputs,
        subject.poisoned_outputs,
        "without poison",
        "with poison",
    )
    if not lines:
        return _passed("poison", "0xFF in what scopes give back changes no output")
    why = "the kernel reads bytes that a scope has given back, or that it never wrote"
    first = first_of_ways(subject, "without poison", "with poison")
    return _failed("poison", [*lines, why, first])


def pes(subject: Subject, _: Limits) -> Finding:
    """Each PE's outputs, and those of a call for it alone."""
    program = subject.program
    if program.num_pes == 1:
        return _not_for("pes", "there is one PE")
    axes = [subject.pe_axis(n) for n in range(len(program.output_slots))]
    split = [axis for axis in axes if axis is not None]
    if len(split) < len(axes):
        return _not_for("pes", "PEs share an output")
    try:
        one = subject.of_pe(0).program
    except errors.KbjaxError as error:
        return _not_for("pes", f"a PE cannot run alone: {error}")
    if one.commands != program.commands:
        why = "a PE alone runs other commands: it uses its number, or others"
        return _not_for("pes", why)
    some = _some(program.num_pes)
    for pe in some:
        alone = subject.of_pe(pe)
        among = [
            np.take(out, pe, axis=axis)
            for out, axis in zip(subject.outputs, split, strict=True)
        ]
        words = f"PE {pe} among {program.num_pes}", "alone"
        lines = unlike_outputs(among, alone.outputs, *words)
        if lines:
            return _failed("pes", [*lines, first_of_pe(subject, alone, pe)])
    return _passed("pes", f"PEs {', '.join(map(str, some))} alone give the same")


def op_log(subject: Subject, _: Limits) -> Finding:
    """The laws of every schedule."""
    log = subject.log
    broken = laws.broken(log)
    if broken:
        return _failed("op_log", broken)
    rows = f"{len(log):,} rows"
    if len(log) > laws.MOST_ROWS:
        rows += f", the bytes of the first {laws.MOST_ROWS:,} followed"
    return _passed("op_log", f"{log.total_ns:,.3f} ns, {rows}")


def footprint(subject: Subject, limits: Limits) -> Finding:
    """Peak scratch, and what is allowed."""
    program, most = subject.program, limits.max_scratch_bytes
    if most is None:
        most = program.hardware.pe_tcm.scratch_bytes
    figures = f"peak {program.peak_scratch:,} B of {most:,} B"
    if program.peak_scratch <= most:
        return _passed("footprint", figures)
    plan = subject.call.plan(*subject.arrays, vary=[])
    held = sorted(plan.buffers, key=lambda one: -one.nbytes)[:5]
    lines = [
        f"{one.nbytes:,} B in {one.count} x {one.tile} ({one.op} at {one.site})"
        for one in held
    ]
    return _failed("footprint", [f"{figures}; held at the peak:", *lines])


def bounds(subject: Subject, _: Limits) -> Finding:
    """The bytes that exact replay writes, and the peak."""
    if subject.call.is_wide:
        return _not_for("bounds", _WIDE)
    peak = subject.program.peak_scratch
    past = np.argwhere(subject.exact_memory[:, peak:] != tcm.FRESH)
    if past.size:
        byte, pe = peak + int(past[0, 1]), int(past[0, 0])
        line = f"byte {byte:,} of PE {pe} is written, the peak is {peak:,}"
        return _failed("bounds", [line])
    return _passed("bounds", f"no byte above the peak, {peak:,} B, is written")


CHECKS: dict[str, Callable[[Subject, Limits], Finding]] = {
    "numbers": numbers,
    "fidelity": fidelity,
    "poison": poison,
    "pes": pes,
    "op_log": op_log,
    "footprint": footprint,
    "bounds": bounds,
}


# --- what they ask -------------------------------------------------------------------


def bytes_defined(program: Program) -> np.ndarray:
    """(T,) bool: scratch whose final bytes are promised, those of tiles that are alive
    at the end and that some command is certain to have written in full."""
    mask = np.zeros(program.hardware.pe_tcm.scratch_bytes, np.bool_)
    alive = set(program.live_at_exit)
    for ref in _certain_writes(program.commands):
        made = program.allocations[ref.root]
        if ref.root in alive and ref.nbytes == made.nbytes:
            mask[made.cursor_bytes : made.cursor_bytes + made.nbytes] = True
    return mask


def _certain_writes(block: Block) -> Iterator[Any]:
    for item in block:
        if isinstance(item, Loop):
            if item.trip.is_const and item.trip.const > 0:
                yield from _certain_writes(item.body)
        elif isinstance(item, Scope):
            if not isinstance(item, When):
                yield from _certain_writes(item.body)
        elif item.writes is not None:
            yield item.writes


def _some(count: int) -> list[int]:
    """All of few, else some from the first to the last."""
    places: Iterable[float] = np.linspace(0, count - 1, min(count, MOST_PES))
    return sorted({math.floor(place) for place in places})
