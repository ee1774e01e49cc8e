"""One kernel on one set of arrays, and what is run of it: once, whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from kbjax import data_phase, dtypes, watched
from kbjax.call import KernelCall
from kbjax.op_log import OpLog
from kbjax.program import Program, Scope
from kbjax.replay import RunResult
from kbjax.watched import Watch

MOST_COMMANDS = 200_000  # beyond which a failure is not watched command by command
Way = Literal["live", "exact", "without poison", "with poison"]


@dataclass(frozen=True)
class Subject:
    """A kernel on arrays.

    Attributes:
      call: the kernel with its outputs, PEs and hardware.
      arrays: its inputs, with their PE axes.
    """

    call: KernelCall
    arrays: tuple[Any, ...]

    @cached_property
    def program(self) -> Program:
        """As recorded for the arrays."""
        return self.call.record(*self.arrays)

    @cached_property
    def log(self) -> OpLog:
        """Its schedule."""
        return self.call.op_log(*self.arrays)

    # --- replays ---------------------------------------------------------------------

    @cached_property
    def _plain(self) -> RunResult:
        return self.call.run(*self.arrays)

    @cached_property
    def _exact(self) -> RunResult:
        return self.call.run(*self.arrays, fidelity="exact")

    @property
    def outputs(self) -> tuple[np.ndarray, ...]:
        """Of a user's call."""
        return as_tuple(self._plain.outputs)

    @property
    def memory(self) -> np.ndarray:
        """(P, bytes) uint8: the scratch at the end of a user's call."""
        return self._memory(self._plain)

    @property
    def exact_outputs(self) -> tuple[np.ndarray, ...]:
        """Of exact replay."""
        return as_tuple(self._exact.outputs)

    @property
    def exact_memory(self) -> np.ndarray:
        """(P, bytes) uint8: the scratch at the end of exact replay."""
        return self._memory(self._exact)

    @cached_property
    def poisoned_outputs(self) -> tuple[np.ndarray, ...]:
        """Of exact replay, with what scopes give back filled with 0xFF."""
        run = self.call.run(*self.arrays, fidelity="exact", poison=True)
        return as_tuple(run.outputs)

    def wide_output(self, output: int) -> np.ndarray:
        """An output where every float is kept in float32 until it is stored."""
        run = data_phase.lower(self.program, "live", with_memory=False, wide=True)
        outs, _ = run(*watched.split_by_pe(self.program, self.arrays))
        axis, wide = self.pe_axis(output), np.asarray(outs[output])
        return wide if axis is None else np.moveaxis(wide, 0, axis)

    def _memory(self, run: RunResult) -> np.ndarray:
        return np.asarray(run.tcm.memory).reshape(self.program.num_pes, -1)

    # --- watched ---------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Whether it may be watched."""
        return len(self.log) <= MOST_COMMANDS

    def watch(self, way: Way) -> Watch:
        """What every command writes, one way."""
        fidelity: data_phase.Fidelity = "live" if way == "live" else "exact"
        poison = way == "with poison"
        return watched.watch(self.program, self.arrays, fidelity, poison=poison)

    @cached_property
    def plain_watch(self) -> Watch:
        """Of a user's call."""
        return self.watch(self.plain_way)

    @property
    def plain_way(self) -> Way:
        """How a user's call is replayed."""
        return "exact" if self.program.needs_exact else "live"

    # --- what it is like -------------------------------------------------------------

    @property
    def is_narrow(self) -> bool:
        """Whether it has tiles of 16-bit or 8-bit floats."""
        return any(
            made.dtype.is_float and made.dtype != dtypes.FLOAT32
            for made in self.program.allocations.values()
        )

    @property
    def gives_back(self) -> bool:
        """Whether a scope rewinds any bytes."""
        return any(
            isinstance(item, Scope) and item.rewound_bytes
            for item in self.program.walk()
        )

    def pe_axis(self, output: int) -> int | None:
        """The axis of an output that is split over PEs."""
        axis = self.program.slots[self.program.output_slots[output]].pe_axis
        return None if axis is None else axis % self.outputs[output].ndim

    def of_pe(self, pe: int) -> Subject:
        """The kernel for one PE alone, on its part of the arrays."""
        part = tuple(
            array if spec.pe_axis is None else np.take(array, pe, axis=spec.pe_axis)
            for spec, array in zip(
                self.program.slots, map(np.asarray, self.arrays), strict=False
            )
        )
        return Subject(self._alone, part)

    @cached_property
    def _alone(self) -> KernelCall:
        return self.call.alone()  # one, so that it is compiled once


def as_tuple(outputs: Any) -> tuple[np.ndarray, ...]:
    """One output or several, as NumPy arrays."""
    found = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return tuple(map(np.asarray, found))
