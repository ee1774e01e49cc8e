"""One kernel on one set of arrays, run in the ways that must give the same bits; what
`kbjax.testing` says of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kbjax import data_phase, dtypes, errors, tcm, watched
from kbjax.call import KernelCall
from kbjax.comparison import Comparison
from kbjax.data_phase import Fidelity
from kbjax.op_log import OpLog
from kbjax.program import Block, Loop, Program, Scope, When
from kbjax.replay import RunResult
from kbjax.watched import Difference, Trace

MOST_PES = 4  # of many that are run alone
MOST_COMMANDS = 200_000  # beyond which a failure is not traced command by command
Finding = tuple[str, str]  # its status, and the detail


@dataclass(frozen=True)
class Subject:
    """A kernel on arrays; what is asked of it twice is run once."""

    call: KernelCall
    arrays: tuple[Any, ...]

    @cached_property
    def program(self) -> Program:
        return self.call.record(*self.arrays)

    @cached_property
    def log(self) -> OpLog:
        return self.call.op_log(*self.arrays)

    @cached_property
    def _plain(self) -> RunResult:
        """As a user's call runs it."""
        return self.call.run(*self.arrays)

    @cached_property
    def _exact(self) -> RunResult:
        return self.call.run(*self.arrays, fidelity="exact")

    @cached_property
    def outputs(self) -> tuple[np.ndarray, ...]:
        """Of a user's call."""
        return as_tuple(self._plain.outputs)

    # --- exact against live, poison --------------------------------------------------

    def fidelity(self) -> Finding:
        """Outputs and final bytes of exact and of live."""
        if self.program.needs_exact:
            return "n/a", "under these checks= the kernel is replayed in exact only"
        if self.call.is_wide:
            return "n/a", 'compute_dtype="float32" has live replay only'
        lines = unlike_outputs(
            self.outputs, as_tuple(self._exact.outputs), "live", "exact"
        )
        mask = bytes_defined(self.program)
        live, exact = (self._memory(run) for run in (self._plain, self._exact))
        differs = (live != exact) & mask
        if differs.any():
            pe, at = (int(i) for i in np.argwhere(differs)[0])
            base = self.program.hardware.pe_tcm.scratch_base
            lines.append(
                f"{int(differs.sum())} final bytes differ, first {base + at:#x} of PE "
                f"{pe}: live {live[pe, at]:#04x}, exact {exact[pe, at]:#04x}"
            )
        if lines:
            return "failed", self._with_first(lines, "live", "exact")
        size = f"{sum(out.size for out in self.outputs):,} elements"
        return "passed", f"{size} and {int(mask.sum()):,} final bytes a PE are the same"

    def poison(self) -> Finding:
        """Outputs with and without poison."""
        if self.call.is_wide:
            return "n/a", 'compute_dtype="float32" has live replay only'
        if not any(
            isinstance(item, Scope) and item.rewound_bytes
            for item in self.program.walk()
        ):
            return "n/a", "no scope gives anything back"
        poisoned = self.call.run(*self.arrays, fidelity="exact", poison=True)
        lines = unlike_outputs(
            as_tuple(self._exact.outputs),
            as_tuple(poisoned.outputs),
            "without poison",
            "with poison",
        )
        if lines:
            lines.append(
                "the kernel reads bytes that a scope has given back, or that it never "
                "wrote"
            )
            return "failed", self._with_first(lines, "without poison", "with poison")
        return "passed", "what scopes give back is not read"

    def bounds(self) -> Finding:
        """The bytes that exact replay writes, and the peak."""
        if self.call.is_wide:
            return "n/a", 'compute_dtype="float32" has live replay only'
        peak = self.program.peak_scratch
        past = np.argwhere(self._memory(self._exact)[:, peak:] != tcm.FRESH)
        if past.size:
            byte, pe = peak + int(past[0, 1]), int(past[0, 0])
            return (
                "failed",
                f"byte {byte:,} of PE {pe} is written, the peak is {peak:,}",
            )
        return "passed", f"no byte above the peak, {peak:,} B, is written"

    def _memory(self, run: RunResult) -> np.ndarray:
        return np.asarray(run.tcm.memory).reshape(self.program.num_pes, -1)

    # --- one PE against many ---------------------------------------------------------

    def one_against_many(self) -> Finding:
        """Each PE's outputs, and those of a call for it alone."""
        program = self.program
        if program.num_pes == 1:
            return "n/a", "there is one PE"
        outs = [program.slots[slot] for slot in program.output_slots]
        if any(spec.pe_axis is None for spec in outs):
            return "n/a", "PEs share an output"
        alone = self.call.alone()
        try:
            one = alone.record(*self._arrays_of(0))
        except errors.KbjaxError as error:
            return "n/a", f"a PE cannot run alone: {error}"
        if one.commands != program.commands:
            return (
                "n/a",
                "a PE alone runs other commands: it uses its number, or others",
            )
        pes = _some(program.num_pes)
        lines: list[str] = []
        for pe in pes:
            got = as_tuple(alone(*self._arrays_of(pe)))
            want = [
                np.take(out, pe, axis=spec.pe_axis)
                for out, spec in zip(self.outputs, outs, strict=True)
            ]
            words = (f"PE {pe} among {program.num_pes}", "alone")
            lines = unlike_outputs(want, got, *words)
            if lines:
                if self._traced(lines):
                    how: Fidelity = "exact" if program.needs_exact else "live"
                    both = [
                        watched.trace(program, self.arrays, how),
                        watched.trace(one, self._arrays_of(pe), how),
                    ]
                    found = watched.first_difference(both[0], both[1], [(pe, 0)])
                    lines.append(self._told(both[0], found, "among many", "alone"))
                return "failed", "\n    ".join(lines)
        return "passed", f"PEs {', '.join(map(str, pes))} alone give the same"

    def _arrays_of(self, pe: int) -> tuple[Any, ...]:
        return tuple(
            array if spec.pe_axis is None else np.take(array, pe, axis=spec.pe_axis)
            for spec, array in zip(
                self.program.slots, map(np.asarray, self.arrays), strict=False
            )
        )

    # --- which command ---------------------------------------------------------------

    def _traced(self, lines: list[str]) -> bool:
        """Whether the kernel is short enough to be traced; says so where it is not."""
        if len(self.log) <= MOST_COMMANDS:
            return True
        lines.append(
            f"{len(self.log):,} commands are too many to trace: a smaller size "
            "names the first that diverges"
        )
        return False

    def _trace_of(self, how: str) -> Trace:
        fidelity: Fidelity = "live" if how == "live" else "exact"
        poison = how == "with poison"
        return watched.trace(self.program, self.arrays, fidelity, poison=poison)

    def _with_first(self, lines: list[str], one: str, other: str) -> str:
        if self._traced(lines):
            both = self._trace_of(one), self._trace_of(other)
            same = [(pe, pe) for pe in range(self.program.num_pes)]
            found = watched.first_difference(*both, same)
            lines.append(self._told(both[0], found, one, other))
        return "\n    ".join(lines)

    def _told(
        self, trace: Trace, found: Difference | None, one: str, other: str
    ) -> str:
        if found is None:
            return (
                "no command diverges while each is watched, which keeps XLA from "
                "fusing them"
                + ("" if trace.full else "; those that ran last were not looked at")
            )
        what = f"element {found.index}, byte {found.byte} of its result"
        return (
            f"first diverging: {trace.told(found.pe, found.step)}\n"
            f"      {what}: {one} {_value(found.one)}, {other} {_value(found.other)}"
        )

    @cached_property
    def _plain_trace(self) -> Trace:
        """Of a user's call."""
        return self._trace_of("exact" if self.program.needs_exact else "live")

    def last_store(self, output: int, at: Sequence[int]) -> Iterator[str]:
        """Which command stored an element of an output, in a line, if any did."""
        if len(self.log) > MOST_COMMANDS:
            return
        axis, pe, inner = self._axis(output), 0, list(at)
        if axis is not None:
            pe = inner.pop(axis)
        found = watched.last_store(self._plain_trace, self.program, output, inner, pe)
        if found is None:
            yield "  no command stored it"
        else:
            yield f"  stored by {self._plain_trace.told(*found)}"

    def why_wrong(self, output: int, want: np.ndarray) -> Iterator[str]:
        """What else is known of a wrong output: the first NaN, and whether rounding is
        to blame."""
        got = self.outputs[output]
        if bool((got != got).any()) and len(self.log) <= MOST_COMMANDS:
            found = watched.first_with_nan(self._plain_trace)
            if found is not None:
                yield f"the first NaN: {self._plain_trace.told(*found)}"
        narrow = any(
            made.dtype.is_float and made.dtype != dtypes.FLOAT32
            for made in self.program.allocations.values()
        )
        if not narrow or self.program.needs_exact or self.call.is_wide:
            return
        run = data_phase.lower(self.program, "live", False, wide=True)
        split = watched.split_by_pe(self.program, self.arrays)
        wide = np.asarray(run(*split)[0][output])
        axis = self._axis(output)
        if axis is not None:
            wide = np.moveaxis(wide, 0, axis)
        error = Comparison(wide, want).error
        yield (
            f"with every float kept in float32 the error is {error:.3g}: where that is "
            "small, rounding is to blame, else the algorithm"
        )

    def _axis(self, output: int) -> int | None:
        axis = self.program.slots[self.program.output_slots[output]].pe_axis
        return None if axis is None else axis % self.outputs[output].ndim


def as_tuple(outputs: Any) -> tuple[np.ndarray, ...]:
    """One output or several, as NumPy arrays."""
    found = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return tuple(map(np.asarray, found))


def unlike_outputs(
    ones: Sequence[np.ndarray], others: Sequence[np.ndarray], one: str, other: str
) -> list[str]:
    """A line for each output whose bits differ."""
    lines = []
    for number, (a, b) in enumerate(zip(ones, others, strict=True)):
        at = watched.first_unlike(a, b)
        if at is not None:
            lines.append(
                f"output {number}: {int(watched.unlike(a, b).sum())} of {a.size} "
                f"{a.dtype} elements differ, first at {at}: {one} {_value(a[at])}, "
                f"{other} {_value(b[at])}"
            )
    return lines


def _value(x: Any) -> str:
    return f"{x!s} (0x{np.asarray(x).tobytes()[::-1].hex()})"


def first_and_worst(
    wrong: np.ndarray, off: np.ndarray
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The first wrong element, and the one that is off the most where that is another;
    a NaN is off the most."""
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    yield "first at", first
    size = np.where(np.isnan(off), np.inf, off)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), off.shape))
    if worst != first and size[worst] > size[first]:
        yield "worst at", worst


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
