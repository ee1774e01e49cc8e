"""KernelCall: where the two phases meet. It turns arrays into shapes, records a kernel
once for them, and keeps what it compiled."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from kbjax import (
    arguments,
    disjoint,
    dtypes,
    errors,
    expr,
    fold,
    messages,
    op_log,
    plan,
    sizes,
)
from kbjax.allocator import Arena
from kbjax.arguments import Axes
from kbjax.context import TLContext
from kbjax.data_phase import Fidelity
from kbjax.dtypes import FLOAT32
from kbjax.expr import Var
from kbjax.hardware import Hardware
from kbjax.mesh import checked_mesh
from kbjax.program import Program, StoreCmd, TensorSpec
from kbjax.recorder import Checks, Recorder
from kbjax.replay import How, Replays, RunResult
from kbjax.site import user_frames
from kbjax.tensors import Key, TensorArguments, key_of
from kbjax.views import HbmTensor

# Whose sizes a plan varies by itself; up to how large, where not by the tensors' sizes.
TILE_OPTIONS = dict.fromkeys(["tile", "block", "tile_m", "tile_n", "tile_k"]) | {
    "buffers": 8
}


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
        mesh: Mesh | None,
        checks: Checks,
        compute_dtype: object,
    ) -> None:
        if isinstance(num_pes, bool) or not isinstance(num_pes, int) or num_pes < 1:
            raise errors.ShapeError("num_pes is a positive integer", got=repr(num_pes))
        if checks not in ("error", "warn", "off"):
            raise errors.KernelError(
                "unknown checks", got=repr(checks), allowed="error, warn, off"
            )
        if compute_dtype is not None and dtypes.of(compute_dtype) != FLOAT32:
            raise errors.DTypeError(
                "kbjax computes in each tile's own dtype, or in float32",
                got=repr(compute_dtype),
                allowed='None, "float32"',
            )
        self._kernel = kernel
        self._single = not isinstance(out_shape, tuple | list)
        out_shapes = (out_shape,) if self._single else tuple(out_shape)
        self._num_pes, self._hardware, self._checks = num_pes, hardware, checks
        self._tensors = TensorArguments(
            kernel=kernel,
            out_shapes=out_shapes,
            num_pes=num_pes,
            in_axes=in_axes,
            out_axes=arguments.axis_each(out_axes, len(out_shapes), "out_axes"),
            aliases=dict(input_output_aliases),
        )
        self._programs: dict[Key, Program] = {}
        # By shapes and dtypes: making them anew takes longer than a short kernel runs.
        self._specs: dict[Any, tuple[TensorSpec, ...]] = {}
        self._replays = Replays(
            num_pes,
            self._tensors.out_axes,
            checked_mesh(mesh, num_pes),
            checks,
            wide=compute_dtype is not None,
        )

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
        outputs, _ = self._replay(arrays, How())
        return outputs

    @user_frames
    def run(
        self,
        *arrays: Any,
        fidelity: Fidelity | None = None,
        poison: bool = False,
    ) -> RunResult:
        """Phase 2 with the final memory.

        Args:
          arrays: as in a call.
          fidelity: `live`, `exact`, or None: live, or exact where a broken scope
            contract was let pass by `checks`, or with `poison`.
          poison: fill what a scope gives back with 0xFF at its end: NaN in floats, -1
            in integers. Outputs of a kernel that keeps the scope contract are the same.
            Only exact replay has such bytes; in live they are 0xFF as it is.
        """
        if poison and self._replays.wide:
            raise errors.KernelError(
                'poison needs exact replay, which compute_dtype="float32" has not',
                remedy="Make the call without compute_dtype",
            )
        chosen = fidelity or ("exact" if poison else None)
        outputs, memory = self._replay(arrays, How(chosen, True, poison))
        return RunResult(outputs, memory)

    @user_frames
    def record(self, *arrays: Any) -> Program:
        """Phase 1: the program, for arrays or `jax.ShapeDtypeStruct`s."""
        return self._recorded(
            self._tensors.inputs([arguments.shaped(a, i) for i, a in enumerate(arrays)])
        )

    @user_frames
    def plan(self, *arrays: Any, vary: str | Sequence[str] | None = None) -> plan.Plan:
        """Phase 1: the footprint, for arrays or `jax.ShapeDtypeStruct`s. No data is
        run; a kernel that does not fit has a plan as well, of what it does where no
        allocation fails.

        Args:
          arrays: as in a call.
          vary: keyword-only integers of the kernel; for each the plan has a table of
            smaller and larger values, with the largest that fits. None: those of
            `TILE_OPTIONS` that the kernel has and that are at least 1.

        Raises:
          KernelError: for an option that the kernel does not have.
          ShapeError: for one that is below 1.
          KbjaxError: for any mistake in the kernel but that it overflows.
        """
        inputs = self._tensors.inputs(
            [arguments.shaped(a, i) for i, a in enumerate(arrays)]
        )
        overflow = None
        try:
            program = self._recorded(inputs)
        except errors.ScratchOverflowError as error:
            overflow = error
            program = self._record(inputs, self._kernel, budget_bytes=None)
        most = max((n for spec in program.slots for n in spec.shape), default=1)
        tried: list[sizes.Candidate] = []
        for name, current in self._varied(vary).items():

            def peak_of(value: int, name: str = name, current: int = current) -> Any:
                if value == current:  # it is recorded already
                    return program.peak_scratch
                return self._peak_with(inputs, name, value)

            limit = TILE_OPTIONS.get(name) or most
            tried += sizes.candidates(name, current, limit, self._budget_bytes, peak_of)
        return dataclasses.replace(
            plan.of(program, self._budget_bytes),
            candidates=tuple(tried),
            overflow=overflow,
        )

    def _varied(self, vary: str | Sequence[str] | None) -> dict[str, int]:
        """The options whose sizes a plan varies, and their values."""
        options = arguments.int_options(self._kernel)
        if vary is None:
            return {n: options[n] for n in TILE_OPTIONS if options.get(n, 0) >= 1}
        if not isinstance(vary, str | Sequence):
            raise errors.ShapeError(
                "vary names options", got=repr(vary), allowed="a name or a list of them"
            )
        names = [vary] if isinstance(vary, str) else vary
        for name in names:
            if name not in options:
                raise errors.KernelError(
                    f"{arguments.kernel_name(self._kernel)} has no keyword-only "
                    f"integer {name!r}",
                    allowed=", ".join(options) or "none",
                )
            if options[name] < 1:
                raise errors.ShapeError(
                    f"{name} = {options[name]} is no size to vary", allowed=">= 1"
                )
        return {name: options[name] for name in names}

    def _peak_with(
        self, inputs: tuple[TensorSpec, ...], option: str, value: int
    ) -> int | str:
        """The peak with another value of a kernel's option, or why it is refused."""
        kernel = functools.partial(self._kernel, **{option: value})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self._record(inputs, kernel, budget_bytes=None).peak_scratch
            except Exception as error:  # the kernel's own words, for this value only
                words = str(error).splitlines()
                return f"refused: {words[0] if words else type(error).__name__}"

    def alone(self) -> KernelCall:
        """The same call for one PE, whose arrays have no PE axis; on one device."""
        one = copy.copy(self)
        one._num_pes, one._programs, one._specs = 1, {}, {}
        one._tensors = dataclasses.replace(self._tensors, num_pes=1)
        one._replays = dataclasses.replace(
            self._replays, num_pes=1, mesh=None, compiled={}
        )
        return one

    @property
    def is_wide(self) -> bool:
        """Whether it was made with ``compute_dtype="float32"``: live replay only."""
        return self._replays.wide

    @user_frames
    def op_log_unbounded(self, *arrays: Any) -> op_log.OpLog:
        """As `op_log`, as if the scratch had no end: what a kernel that does not fit
        would do. Python loops are not folded."""
        inputs = self._tensors.inputs(
            [arguments.shaped(a, i) for i, a in enumerate(arrays)]
        )
        return op_log.of(self._record(inputs, self._kernel, budget_bytes=None))

    @user_frames
    def op_log(self, *arrays: Any) -> op_log.OpLog:
        """Phase 1: the timed log, for arrays or `jax.ShapeDtypeStruct`s."""
        return op_log.of(self.record(*arrays))

    # --- phase 2 ---------------------------------------------------------------------

    def _replay(self, arrays: Sequence[Any], how: How) -> tuple[Any, Any]:
        inputs = [arguments.as_array(array, i) for i, array in enumerate(arrays)]
        given = tuple((array.shape, array.dtype) for array in inputs)
        if given not in self._specs:
            self._specs[given] = self._tensors.inputs(
                [arguments.shaped(a, i) for i, a in enumerate(inputs)]
            )
        specs = self._specs[given]
        program = self._recorded(specs)
        outputs, memory = self._replays.run(key_of(specs), program, inputs, how)
        return (outputs[0] if self._single else outputs), memory

    # --- phase 1 ---------------------------------------------------------------------

    def _recorded(self, inputs: tuple[TensorSpec, ...]) -> Program:
        key = key_of(inputs)
        if key not in self._programs:
            self._programs[key] = self._record(inputs, self._kernel, self._budget_bytes)
        return self._programs[key]

    @property
    def _budget_bytes(self) -> int:
        return self._hardware.pe_tcm.scratch_bytes

    def _record(
        self,
        inputs: tuple[TensorSpec, ...],
        kernel: Callable[..., None],
        budget_bytes: int | None,
    ) -> Program:
        """Run the kernel once, on no data; without a budget, nothing is folded."""
        slots, output_slots = self._tensors.slots(inputs)
        program_id = Var(0, "pe", expr.const(self._num_pes))
        name = arguments.kernel_name(kernel)
        arena = Arena(self._hardware.pe_tcm, budget_bytes, name)
        recorder = Recorder(arena, program_id)
        context = TLContext(
            recorder,
            specs=slots,
            num_pes=self._num_pes,
            writable=frozenset(output_slots),
            checks=self._checks,
        )
        tensors = [HbmTensor(slots[n], n) for n in (*range(len(inputs)), *output_slots)]
        arguments.check_call(kernel, len(inputs), len(output_slots))
        kernel(context, *tensors)
        program = Program(
            name=name,
            slots=slots,
            num_inputs=len(inputs),
            output_slots=output_slots,
            num_pes=self._num_pes,
            program_id=program_id,
            hardware=self._hardware,
            commands=recorder.finish(),
            allocations=dict(arena.allocations),
            footprint=arena.events,
            exit_cursor_bytes=arena.cursor,
            live_at_exit=tuple(made.uid for made in arena.alive()),
            needs_exact=context.needs_exact,
        )
        disjoint.check_shared_outputs(program)
        messages.checked(program)
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
        return program if budget_bytes is None else fold.folded(program)


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
    mesh: Mesh | None = None,
    checks: Checks = "error",
    compute_dtype: object = None,
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
      mesh: runs phase 2 with the PEs split evenly over all its devices, which may be
        those of several processes. None: on JAX's default device; or, where that is a
        CPU and JAX has several, on as many of them as divide `num_pes`. JAX must be
        told before its first use: `jax.config.update("jax_num_cpu_devices", 2)`.
        `mesh=Mesh(jax.devices()[:1], ("pe",))` keeps to one (docs/meshes.md). Inside
        an outer `jax.jit`, arrays that were placed are on its devices, in its order.
      checks: what a use after scope or an uninitialised read is: `error`, `warn`, or
        `off` (the hardware's behaviour, replayed exactly). All other mistakes are
        errors whatever it says.
      compute_dtype: None: every op rounds to its result's dtype. "float32": live replay
        keeps every float in float32 until it is stored, which tells a wrong algorithm
        from rounding; addresses, footprint and op_log are those of the kernel.

    Returns:
      A `KernelCall`.

    Raises:
      ShapeError: for a mesh whose size does not divide `num_pes`.
      KbjaxError: for any other argument that is none of the above.
    """
    return KernelCall(
        kernel,
        out_shape,
        num_pes=num_pes,
        in_axes=in_axes,
        out_axes=out_axes,
        input_output_aliases=input_output_aliases or {},
        hardware=arguments.hardware_of(hardware),
        mesh=mesh,
        checks=checks,
        compute_dtype=compute_dtype,
    )
