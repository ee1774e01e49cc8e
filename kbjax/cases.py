"""Cases: a kernel at one size, with data and an independent float64 reference.

Each shipped kernel's module has a function `case(...)` whose keyword arguments are its
sizes, with defaults; `kbjax run` and the tests call it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import numpy as np

from kbjax import dtypes, errors
from kbjax.call import KernelCall

_ALIGNMENT_BYTES = 64  # at which JAX takes a host array without a copy


@dataclass(frozen=True)
class Case:
    """What to call, on what, and what must come out.

    Attributes:
      call: the kernel with its outputs, PEs and hardware.
      arrays: the inputs.
      reference: gives the output in float64, computed without kbjax and without JAX.
      tolerance: largest error allowed, relative to the largest reference element.
    """

    call: KernelCall
    arrays: tuple[Any, ...]
    reference: Callable[[], np.ndarray]
    tolerance: float

    def error_of(self, output: Any) -> float:
        """max |output - reference| / max |reference|; NaN where either has one."""
        want = self.reference()
        got = np.asarray(output).astype(np.float64)
        if got.shape != want.shape:
            raise errors.ShapeError(
                "the output and the reference differ in shape",
                got=f"{got.shape} and {want.shape}",
            )
        scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
        return float(np.max(np.abs(got - want), initial=0.0)) / scale


_TOLERANCE = {"float32": 4e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def tolerance(dtype: str) -> float:
    """The largest error of a kernel that accumulates in float32 and gives `dtype`: two
    units in the last place of the output, and for float32 the rounding of long sums.

    Raises:
      DTypeError: for a dtype that is no float.
    """
    if dtype not in _TOLERANCE:
        raise errors.DTypeError(
            f"the kernel does not come in {dtype}", allowed=", ".join(_TOLERANCE)
        )
    return _TOLERANCE[dtype]


def random_arrays(
    seed: int, num_pes: int, dtype: str, *shapes: Sequence[int]
) -> tuple[Any, ...]:
    """Standard normal numbers rounded to `dtype`, one array a shape (of one PE), with a
    PE axis in front where there are several PEs.

    The JAX arrays share their memory with NumPy ones: a million tokens of K and V are
    not held twice.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise errors.ShapeError(
            "seed is a whole number", got=repr(seed), allowed=">= 0"
        )
    rng, kind = np.random.default_rng(seed), dtypes.of(dtype).numpy
    lead = (num_pes,) if num_pes > 1 else ()
    arrays = []
    for shape in shapes:
        array = _aligned_empty((*lead, *shape), kind)
        elements = array.reshape(-1)
        for start in range(0, elements.size, 1 << 22):
            part = elements[start : start + (1 << 22)]
            part[...] = rng.standard_normal(part.size, np.float32)
        arrays.append(jax.device_put(array, may_alias=True))
    return tuple(arrays)


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[skip : skip + nbytes].view(dtype).reshape(shape)


# --- shipped kernels -----------------------------------------------------------------


def kernel_names() -> list[str]:
    """The shipped kernels: modules of `kbjax.kernels`, helpers (`_name`) left out."""
    package = importlib.import_module("kbjax.kernels")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def kernel_module(name: str) -> ModuleType:
    """The module of a shipped kernel.

    Raises:
      KernelError: for a name that is none, listing those that are.
    """
    names = kernel_names()
    if name not in names:
        raise errors.KernelError(
            f"there is no kernel {name!r}", allowed=", ".join(names)
        )
    return importlib.import_module(f"kbjax.kernels.{name}")


def make(name: str, **sizes: Any) -> Case:
    """The case of a shipped kernel; sizes that are left out keep their defaults.

    Raises:
      KernelError: for a size that this kernel does not have.
    """
    build = kernel_module(name).case
    known = list(inspect.signature(build).parameters)
    for size in sizes:
        if size not in known:
            raise errors.KernelError(
                f"{name} has no size {size!r}", allowed=", ".join(known)
            )
    return build(**sizes)


def positive(**sizes: Any) -> None:
    """Refuse sizes that are no positive integers, by name.

    Raises:
      ShapeError: naming the first such size.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise errors.ShapeError(
                f"{name} is a positive integer", got=repr(size), allowed=">= 1"
            )
