"""The HBM tensors of a kernel: what the arrays of a call are to one PE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbjax import arguments, errors
from kbjax.arguments import Axes, Shaped
from kbjax.program import TensorSpec

Key = tuple[tuple[tuple[int, ...], str], ...]


def key_of(inputs: Sequence[TensorSpec]) -> Key:
    """What a program is kept by: the shapes and dtypes of its inputs."""
    return tuple((spec.shape, spec.dtype.name) for spec in inputs)


@dataclass(frozen=True)
class TensorArguments:
    """Inputs, outputs, their PE axes and aliases, as `kernel_call` was given them.

    Raises:
      ShapeError, KernelError: where they do not fit together.
    """

    kernel: Callable[..., None]
    out_shapes: tuple[Any, ...]
    num_pes: int
    in_axes: Axes
    out_axes: tuple[int | None, ...]
    aliases: Mapping[int, int]

    def __post_init__(self) -> None:
        outputs = list(self.aliases.values())
        if len(set(outputs)) < len(outputs) or not all(
            0 <= out < len(self.out_shapes) for out in outputs
        ):
            raise errors.KernelError(
                "input_output_aliases names an output twice, or one that is not there",
                got=self.aliases,
                allowed=f"outputs 0 to {len(self.out_shapes) - 1}, once each",
            )
        for out, axis in zip(self.out_shapes, self.out_axes, strict=True):
            rank = len(arguments.shaped(out, 0, "output")[0]) + 1
            if self.num_pes > 1 and axis is not None and not -rank <= axis < rank:
                raise errors.ShapeError(
                    f"out_axes has no axis {axis} in an output of {rank} axes",
                    allowed=f"{-rank} to {rank - 1}, or None",
                )

    def inputs(self, arrays: Sequence[Shaped]) -> tuple[TensorSpec, ...]:
        """The inputs as one PE sees them.

        Raises:
          ShapeError: for an array without an entry a PE.
        """
        axes = arguments.axis_each(self.in_axes, len(arrays), "in_axes")
        names = arguments.argument_names(self.kernel, len(arrays), len(self.out_shapes))
        specs = []
        for (shape, dtype), axis, name in zip(arrays, axes, names, strict=False):
            if self.num_pes > 1 and axis is not None:
                if not -len(shape) <= axis < len(shape) or shape[axis] != self.num_pes:
                    raise errors.ShapeError(
                        f"input {name} has no axis {axis} of {self.num_pes} entries, "
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

    def slots(
        self, inputs: tuple[TensorSpec, ...]
    ) -> tuple[tuple[TensorSpec, ...], tuple[int, ...]]:
        """All tensors, inputs first, and which of them each output is.

        Raises:
          ShapeError, KernelError: for an output unlike the input that it aliases.
        """
        names = arguments.argument_names(self.kernel, len(inputs), len(self.out_shapes))
        slots, output_slots = list(inputs), []
        aliased = {out: into for into, out in self.aliases.items()}
        for number, out in enumerate(self.out_shapes):
            shape, dtype = arguments.shaped(out, number, "output")
            axis = self.out_axes[number] if self.num_pes > 1 else None
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
