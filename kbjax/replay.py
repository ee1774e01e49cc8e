"""Phase 2 of a `KernelCall`: in which fidelity, on which devices, compiled once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from kbjax import data_phase, errors, placement, unrolled
from kbjax.data_phase import Fidelity
from kbjax.mesh import Pes
from kbjax.program import Program
from kbjax.recorder import Checks
from kbjax.tcm import TcmState
from kbjax.tensors import Key


@dataclass(frozen=True)
class How:
    """What a caller asks of one replay."""

    fidelity: Fidelity | None = None
    with_memory: bool = False
    poison: bool = False


@dataclass(frozen=True)
class RunResult:
    """What `KernelCall.run` gives: the outputs as `call(...)` gives them, and the
    final memory (with a leading PE axis where `num_pes` > 1)."""

    outputs: Any
    tcm: TcmState


@dataclass(frozen=True)
class Replays:
    """The compiled functions of one `KernelCall`.

    Attributes:
      num_pes: P.
      out_axes: the PE axis of each output, or None.
      mesh: over which PEs are spread, or None: over the host's devices, if any.
      checks: for messages.
      wide: keep every float in float32 until it is stored.
    """

    num_pes: int
    out_axes: tuple[int | None, ...]
    mesh: Mesh | None
    checks: Checks
    wide: bool
    compiled: dict[Any, Callable[..., Any]] = dataclasses.field(default_factory=dict)

    def run(
        self, key: Key, program: Program, arrays: Sequence[Any], how: How
    ) -> tuple[tuple[jax.Array, ...], TcmState | None]:
        """The outputs, and the final memory where it is asked for.

        Args:
          key: of the arrays' shapes and dtypes.
          program: recorded for them.
          arrays: the inputs, with their PE axes where the caller has them.
          how: what is asked.
        """
        fidelity = self._fidelity(how.fidelity, program)
        found = self.mesh or placement.of_host(
            self.num_pes, _hbm_bytes(program), arrays
        )
        axes = [spec.pe_axis for spec in program.slots[: program.num_inputs]]
        split = [_moved(a, axis, 0) for a, axis in zip(arrays, axes, strict=True)]
        if found is not None:
            placement.check_context(found)
            placement.check_traced(split, found)
            pes = Pes.over(self.num_pes, found)
            split = [
                placement.brought(array, pes.sharding(axis is not None, found))
                for array, axis in zip(split, axes, strict=True)
            ]
        which = (key, fidelity, how.with_memory, how.poison, found)
        if which not in self.compiled:
            unrolled.warn(program)
            self.compiled[which] = data_phase.lower(
                program, fidelity, how.with_memory, how.poison, self.wide, found
            )
        try:
            replayed = self.compiled[which](*split)
        except ValueError as error:
            refused = None if found is None else placement.as_refusal(error, found)
            if refused is None:
                raise
            raise refused from None
        if self.mesh is None and found is not None:
            replayed = jax.tree.map(placement.back, replayed)
        results, memory = replayed
        outputs = tuple(
            _moved(out, 0, axis if self.num_pes > 1 else None)
            for out, axis in zip(results, self.out_axes, strict=True)
        )
        return outputs, memory

    def _fidelity(self, asked: Fidelity | None, program: Program) -> Fidelity:
        if asked not in (None, "live", "exact"):
            raise errors.KernelError(
                "unknown fidelity", got=repr(asked), allowed="live, exact"
            )
        if asked == "live" and program.needs_exact:
            raise errors.KernelError(
                "live replay needs the scope contract, which this program does not "
                f"promise under checks={self.checks!r}",
                remedy='Ask for fidelity="exact", or use checks="error"',
            )
        chosen: Fidelity = asked or ("exact" if program.needs_exact else "live")
        if self.wide and chosen == "exact":
            raise errors.KernelError(
                'compute_dtype="float32" is for live replay: in exact, a tile has no '
                "more bytes than its dtype says",
                remedy="Make the call without compute_dtype"
                if program.needs_exact
                else 'Ask for fidelity="live", or make the call without compute_dtype',
            )
        return chosen


def _hbm_bytes(program: Program) -> int:
    """Of all PEs' HBM tensors."""
    return sum(
        math.prod(spec.shape)
        * spec.dtype.nbytes
        * (1 if spec.pe_axis is None else program.num_pes)
        for spec in program.slots
    )


def _moved(array: Any, source: int | None, destination: int | None) -> Any:
    """`moveaxis`, but no copy where there is nothing to move."""
    if source is None or destination is None or source == destination:
        return array
    moveaxis = np.moveaxis if isinstance(array, np.ndarray) else jnp.moveaxis
    return moveaxis(array, source, destination)
