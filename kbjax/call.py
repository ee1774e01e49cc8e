"""KernelCall: where the two phases meet. It turns arrays into shapes, records a kernel
once for them, and keeps what it compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from kbjax import arguments, data_phase, disjoint, errors, expr, op_log
from kbjax.allocator import Arena
from kbjax.arguments import Axes, Shaped
from kbjax.context import TLContext
from kbjax.data_phase import Fidelity
from kbjax.expr import Var
from kbjax.handle import HbmTensor
from kbjax.hardware import Hardware
from kbjax.program import Program, StoreCmd, TensorSpec
from kbjax.recorder import Checks, Recorder
from kbjax.site import user_frames
from kbjax.tcm import TcmState

Key = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class RunResult:
    """What `KernelCall.run` gives: the outputs as `call(...)` gives them, and the
    final memory (with a leading PE axis where `num_pes` > 1)."""

    outputs: Any
    tcm: TcmState


class KernelCall:
    """A kernel with its outputs, PEs and hardware. Made by `kernel_call`.

    Calling it runs phase 2. Programs and compiled functions are kept by the shapes and
    dtypes of the arguments.
    """

    def __init__(
        self,
        kernel: Callable[..., None],
        out_shape: Any,
        *,
        num_pes: int,
        in_axes: Axes,
        out_axes: Axes,
        input_output_aliases: Mapping[int, int],
        hardware: Hardware,
        checks: Checks,
    ) -> None:
        if isinstance(num_pes, bool) or not isinstance(num_pes, int) or num_pes < 1:
            raise errors.ShapeError("num_pes is a positive integer", got=repr(num_pes))
        if checks not in ("error", "warn", "off"):
            raise errors.KernelError(
                "unknown checks", got=repr(checks), allowed="error, warn, off"
            )
        self._kernel = kernel
        self._single = not isinstance(out_shape, tuple | list)
        self._out_shapes = (out_shape,) if self._single else tuple(out_shape)
        self._num_pes, self._hardware, self._checks = num_pes, hardware, checks
        self._in_axes = in_axes
        self._out_axes = arguments.axis_each(
            out_axes, len(self._out_shapes), "out_axes"
        )
        self._aliases = dict(input_output_aliases)
        outputs = list(self._aliases.values())
        if len(set(outputs)) < len(outputs) or not all(
            0 <= out < len(self._out_shapes) for out in outputs
        ):
            raise errors.KernelError(
                "input_output_aliases names an output twice, or one that is not there",
                got=self._aliases,
                allowed=f"outputs 0 to {len(self._out_shapes) - 1}, once each",
            )
        for out, axis in zip(self._out_shapes, self._out_axes, strict=True):
            rank = len(arguments.shaped(out, 0, "output")[0]) + 1
            if num_pes > 1 and axis is not None and not -rank <= axis < rank:
                raise errors.ShapeError(
                    f"out_axes has no axis {axis} in an output of {rank} axes",
                    allowed=f"{-rank} to {rank - 1}, or None",
                )
        self._programs: dict[Key, Program] = {}
        self._compiled: dict[tuple[Key, Fidelity, bool], Callable[..., Any]] = {}

    @user_frames
    def __call__(self, *arrays: Any) -> Any:
        """Phase 2: the outputs, as JAX arrays.

        Args:
          arrays: NumPy, JAX or DLPack (PyTorch) arrays, one a kernel input. May be
            traced by an outer `jax.jit`.

        Raises:
          KbjaxError: for a mistake in the kernel or its arguments, before any data is
            computed.
        """
        outputs, _ = self._replay(arrays, None, with_memory=False)
        return outputs

    @user_frames
    def run(self, *arrays: Any, fidelity: Fidelity | None = None) -> RunResult:
        """Phase 2 with the final memory.

        Args:
          arrays: as in a call.
          fidelity: `live`, `exact`, or None: live, or exact where a broken scope
            contract was let pass by `checks`.
        """
        outputs, memory = self._replay(arrays, fidelity, with_memory=True)
        return RunResult(outputs, memory)

    @user_frames
    def record(self, *arrays: Any) -> Program:
        """Phase 1: the program, for arrays or `jax.ShapeDtypeStruct`s."""
        return self._recorded(
            self._specs([arguments.shaped(a, i) for i, a in enumerate(arrays)])
        )

    @user_frames
    def op_log(self, *arrays: Any) -> op_log.OpLog:
        """Phase 1: the timed log, for arrays or `jax.ShapeDtypeStruct`s."""
        return op_log.of(self.record(*arrays))

    # --- phase 2 ---------------------------------------------------------------------

    def _replay(
        self, arrays: Sequence[Any], fidelity: Fidelity | None, with_memory: bool
    ) -> tuple[Any, Any]:
        inputs = [arguments.as_array(array, i) for i, array in enumerate(arrays)]
        specs = self._specs([arguments.shaped(a, i) for i, a in enumerate(inputs)])
        program = self._recorded(specs)
        chosen = self._fidelity(fidelity, program)
        key = (_key(specs), chosen, with_memory)
        if key not in self._compiled:
            self._compiled[key] = data_phase.lower(program, chosen, with_memory)
        split = [
            _moved(array, spec.pe_axis, 0)
            for array, spec in zip(inputs, specs, strict=True)
        ]
        results, memory = self._compiled[key](*split)
        outputs = tuple(
            _moved(out, 0, axis if self._num_pes > 1 else None)
            for out, axis in zip(results, self._out_axes, strict=True)
        )
        return (outputs[0] if self._single else outputs), memory

    def _fidelity(self, asked: Fidelity | None, program: Program) -> Fidelity:
        if asked not in (None, "live", "exact"):
            raise errors.KernelError(
                "unknown fidelity", got=repr(asked), allowed="live, exact"
            )
        if asked == "live" and program.needs_exact:
            raise errors.KernelError(
                "live replay needs the scope contract, which this program does not "
                f"promise under checks={self._checks!r}",
                remedy='Ask for fidelity="exact", or use checks="error"',
            )
        return asked or ("exact" if program.needs_exact else "live")

    # --- phase 1 ---------------------------------------------------------------------

    def _specs(self, shaped: Sequence[Shaped]) -> tuple[TensorSpec, ...]:
        """The inputs as one PE sees them."""
        axes = arguments.axis_each(self._in_axes, len(shaped), "in_axes")
        names = arguments.argument_names(
            self._kernel, len(shaped), len(self._out_shapes)
        )
        specs = []
        for (shape, dtype), axis, name in zip(shaped, axes, names, strict=False):
            if self._num_pes > 1 and axis is not None:
                if not -len(shape) <= axis < len(shape) or shape[axis] != self._num_pes:
                    raise errors.ShapeError(
                        f"input {name} has no axis {axis} of {self._num_pes} entries, "
                        "one a PE",
                        got=f"shape {shape}",
                        remedy="Name the PE axis in in_axes, or None to replicate",
                    )
                axis %= len(shape)
                shape = (*shape[:axis], *shape[axis + 1 :])
            else:
                axis = None
            specs.append(TensorSpec(name, shape, dtype, axis))
        return tuple(specs)

    def _recorded(self, inputs: tuple[TensorSpec, ...]) -> Program:
        key = _key(inputs)
        if key not in self._programs:
            self._programs[key] = self._record(inputs)
        return self._programs[key]

    def _record(self, inputs: tuple[TensorSpec, ...]) -> Program:
        """Run the kernel once, on no data."""
        slots, output_slots = self._slots(inputs)
        program_id = Var(0, "pe", expr.const(self._num_pes))
        recorder = Recorder(Arena(self._hardware.pe_tcm), program_id)
        context = TLContext(
            recorder,
            specs=slots,
            num_pes=self._num_pes,
            writable=frozenset(output_slots),
            checks=self._checks,
        )
        order = [*range(len(inputs)), *output_slots]
        tensors = [HbmTensor(slots[slot], slot) for slot in order]
        arguments.check_call(self._kernel, len(inputs), len(output_slots))
        self._kernel(context, *tensors)
        commands = recorder.finish()
        arena = recorder.arena
        program = Program(
            name=arguments.kernel_name(self._kernel),
            slots=slots,
            num_inputs=len(inputs),
            output_slots=output_slots,
            num_pes=self._num_pes,
            program_id=program_id,
            hardware=self._hardware,
            commands=commands,
            allocations=dict(arena.allocations),
            growth_bytes=dict(recorder.growth_bytes),
            peak_scratch=arena.peak,
            exit_cursor_bytes=arena.cursor,
            live_at_exit=tuple(made.uid for made in arena.alive()),
            needs_exact=context.needs_exact,
        )
        disjoint.check_shared_outputs(program)
        stored = {c.view.slot for c in program.walk() if isinstance(c, StoreCmd)}
        for slot in output_slots:
            if slot not in stored:
                at = arguments.kernel_site(self._kernel)
                warnings.warn_explicit(
                    f"{program.name} never stores to its output {slots[slot].name}",
                    UserWarning,
                    at.file,
                    at.line,
                )
        return program

    def _slots(
        self, inputs: tuple[TensorSpec, ...]
    ) -> tuple[tuple[TensorSpec, ...], tuple[int, ...]]:
        """The HBM tensors, and which of them each output is."""
        names = arguments.argument_names(
            self._kernel, len(inputs), len(self._out_shapes)
        )
        slots, output_slots = list(inputs), []
        aliased = {out: into for into, out in self._aliases.items()}
        for number, out in enumerate(self._out_shapes):
            shape, dtype = arguments.shaped(out, number, "output")
            axis = self._out_axes[number] if self._num_pes > 1 else None
            spec = TensorSpec(names[len(inputs) + number], shape, dtype, axis)
            if number not in aliased:
                output_slots.append(len(slots))
                slots.append(spec)
                continue
            source = aliased[number]
            if not 0 <= source < len(inputs):
                raise errors.KernelError(
                    f"output {number} aliases input {source}, which does not exist"
                )
            other = inputs[source]
            same = (other.shape, other.dtype) == (shape, dtype)
            if not same or (other.pe_axis is None) != (axis is None):
                raise errors.ShapeError(
                    f"output {spec} aliases input {other}: they must be alike"
                )
            output_slots.append(source)
        return tuple(slots), tuple(output_slots)


@user_frames
def kernel_call(
    kernel: Callable[..., None],
    out_shape: Any,
    *,
    num_pes: int = 1,
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    input_output_aliases: Mapping[int, int] | None = None,
    hardware: Hardware | None = None,
    checks: Checks = "error",
) -> KernelCall:
    """Make a kernel callable on arrays.

    Args:
      kernel: `kernel(tl, *inputs, *outputs)`; options are bound with
        `functools.partial`.
      out_shape: one `jax.ShapeDtypeStruct` (of one PE's output), or a tuple of them.
      num_pes: how many PEs run the kernel.
      in_axes, out_axes: with `num_pes` > 1, the axis that is split over PEs, as in
        `jax.vmap`, or None for an array that all PEs share; one, or one an argument.
        What PEs store to a shared output must be proven disjoint.
      input_output_aliases: input number -> number of the output that is the same
        memory.
      hardware: sizes and rates.
      checks: what a use after scope or an uninitialised read is: `error`, `warn`, or
        `off` (the hardware's behaviour, replayed exactly).

    Returns:
      A `KernelCall`.
    """
    return KernelCall(
        kernel,
        out_shape,
        num_pes=num_pes,
        in_axes=in_axes,
        out_axes=out_axes,
        input_output_aliases=input_output_aliases or {},
        hardware=hardware or Hardware(),
        checks=checks,
    )


def _moved(array: Any, source: int | None, destination: int | None) -> Any:
    """`jnp.moveaxis`, but no copy where there is nothing to move."""
    if source is None or destination is None or source == destination:
        return array
    return jnp.moveaxis(array, source, destination)


def _key(specs: Sequence[TensorSpec]) -> Key:
    return tuple((spec.shape, spec.dtype.name) for spec in specs)
