"""What a caller passes: arrays, shapes, PE axes and the kernel's own signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kbjax import dtypes, errors
from kbjax.dtypes import DType
from kbjax.hardware import Hardware
from kbjax.site import Site, here

Axes = int | None | Sequence[int | None]
Shaped = tuple[tuple[int, ...], DType]


def hardware_of(given: object) -> Hardware:
    """The default hardware where None is given.

    Raises:
      KernelError: for what is no `Hardware`.
    """
    if given is None:
        return Hardware()
    if not isinstance(given, Hardware):
        raise errors.KernelError(
            "hardware is a kbjax.Hardware",
            got=repr(given),
            remedy="Make one with Hardware.from_toml or Hardware.from_profile",
        )
    return given


def shaped(array: Any, number: int, what: str = "argument") -> Shaped:
    """Shape and dtype of an array or a ShapeDtypeStruct."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise errors.MemorySpaceError(
            f"{what} {number} is no array",
            got=f"a {type(array).__name__}",
            allowed="NumPy, JAX and DLPack arrays, jax.ShapeDtypeStruct for shapes",
        )
    name = str(array.dtype).removeprefix("torch.")
    if not getattr(array.dtype, "isnative", True):
        raise errors.DTypeError(
            f"{what} {number} is not in this machine's byte order",
            got=name,
            remedy="Convert it with .astype(array.dtype.newbyteorder('='))",
        )
    try:
        dtype = dtypes.of(name if name in dtypes.TABLE else array.dtype)
    except errors.DTypeError as error:
        raise errors.DTypeError(
            f"{what} {number} has the element type {name}",
            allowed=error.allowed,
            remedy="Convert it, for example with .astype(numpy.float32)",
        ) from None
    return tuple(int(size) for size in array.shape), dtype


def as_array(array: Any, number: int) -> Any:
    """An array that JAX takes as it is."""
    if isinstance(array, jax.Array | np.ndarray):
        return array
    if isinstance(array, np.generic):
        return np.asarray(array)
    if isinstance(array, jax.ShapeDtypeStruct):
        raise errors.MemorySpaceError(
            f"argument {number} has a shape but no data",
            remedy="Shapes do for record() and op_log(); a call needs arrays",
        )
    if not hasattr(array, "__dlpack__"):
        shaped(array, number)
        raise errors.MemorySpaceError(f"argument {number} is no array", got=array)
    shaped(array, number)
    if hasattr(array, "detach"):  # PyTorch: no gradient leaves, no strided views
        array = array.detach().contiguous()
    return jnp.from_dlpack(array)


def axis_each(axes: Axes, count: int, what: str) -> tuple[int | None, ...]:
    """`in_axes` or `out_axes` as one axis an array."""
    each = axes if isinstance(axes, tuple | list) else (axes,)
    if not all(axis is None or isinstance(axis, int) for axis in each):
        raise errors.ShapeError(
            f"{what} is no axis", got=repr(axes), allowed="integers and None"
        )
    if axes is None or isinstance(axes, int):
        return (axes,) * count
    if len(axes) != count:
        raise errors.ShapeError(
            f"{what} has {len(axes)} entries for {count} arrays", got=tuple(axes)
        )
    return tuple(axes)


def kernel_site(kernel: Callable[..., None]) -> Site:
    """Where the kernel is defined."""
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    code = getattr(kernel, "__code__", None)
    return Site(code.co_filename, code.co_firstlineno) if code else here()


def kernel_name(kernel: Callable[..., None]) -> str:
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    return getattr(kernel, "__name__", type(kernel).__name__)


def int_options(kernel: Callable[..., None]) -> dict[str, int]:
    """The kernel's keyword-only integers (tile sizes, say) and their values."""
    parameters = inspect.signature(kernel).parameters.values()
    return {
        p.name: int(p.default)
        for p in parameters
        if p.kind is inspect.Parameter.KEYWORD_ONLY
        and isinstance(p.default, int | np.integer)
        and not isinstance(p.default, bool)
    }


def argument_names(kernel: Callable[..., None], inputs: int, outputs: int) -> list[str]:
    """The kernel's own names of its tensors, for messages and printing."""
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    names = [
        p.name
        for p in inspect.signature(kernel).parameters.values()
        if p.kind in positional
    ][1:]
    found = names[: inputs + outputs]
    return found + [f"arg{n}" for n in range(len(found), inputs + outputs)]


def check_call(kernel: Callable[..., None], inputs: int, outputs: int) -> None:
    try:
        inspect.signature(kernel).bind(*range(1 + inputs + outputs))
    except TypeError as error:
        name = kernel_name(kernel)
        raise errors.KernelError(
            f"{name} is called with tl, {inputs} inputs and {outputs} outputs: {error}",
            got=f"{name}{inspect.signature(kernel)}",
            remedy="Pass one array a kernel input, and bind options with "
            "functools.partial",
        ) from None
