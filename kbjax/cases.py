"""Cases: a kernel at one size, with data and an independent float64 reference.

Each shipped kernel's module has a function `case(...)` that makes one; `catalogue`
finds it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import jax
import numpy as np

from kbjax import dtypes, errors
from kbjax.call import KernelCall
from kbjax.comparison import compared, result_of
from kbjax.cores import usable_cores
from kbjax.names import nearest

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_ALIGNMENT_BYTES = 64  # at which JAX takes a host array without a copy
_OF_LONG_SUMS = 4e-6  # relative error of float32


@dataclass(frozen=True)
class Drawn:
    """An input that is not normal numbers: lengths, indices, quantised weights.

    Attributes:
      shape: of one PE's array.
      dtype: of its elements.
      draw: ``draw(rng, shape)``, elements of that shape, a PE axis in front included.
    """

    shape: tuple[int, ...]
    dtype: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Inputs:
    """What a case's arrays are drawn from; they are made when they are asked for.

    Attributes:
      seed: the same seed draws the same data.
      dtype: what standard normal numbers are rounded to.
      shapes: of one PE's arrays, or how they are drawn otherwise; a PE axis goes in
        front where there are several PEs.
      shared: which of them all PEs have alike, with no PE axis.
    """

    seed: int
    num_pes: int
    dtype: str
    shapes: tuple[tuple[int, ...] | Drawn, ...]
    shared: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        seed = self.seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise errors.ShapeError(
                "seed is a whole number", got=repr(seed), allowed=">= 0"
            )

    @property
    def specs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes, with no data behind them."""
        lead = (self.num_pes,) if self.num_pes > 1 else ()
        specs = []
        for n, asked in enumerate(self.shapes):
            if isinstance(asked, Drawn):
                shape, kind = asked.shape, asked.dtype
            else:
                shape, kind = asked, self.dtype
            whole = shape if n in self.shared else (*lead, *shape)
            specs.append(jax.ShapeDtypeStruct(whole, dtypes.of(kind).numpy))
        return tuple(specs)

    def arrays(self) -> tuple[Any, ...]:
        """The data: the same for the same seed.

        The JAX arrays share their memory with NumPy ones: a million tokens of K and V
        are not held twice.
        """
        arrays = []
        for n, (spec, asked) in enumerate(zip(self.specs, self.shapes, strict=True)):
            array = _aligned_empty(spec.shape, np.dtype(spec.dtype))
            seeds = [self.seed, n]
            if isinstance(asked, Drawn):
                array[...] = asked.draw(np.random.default_rng(seeds), spec.shape)
            else:
                _fill_normal(array.reshape(-1), seeds)
            arrays.append(jax.device_put(array, may_alias=True))
        return tuple(arrays)


@dataclass(frozen=True)
class Case:
    """What to call, on what, and what must come out.

    Attributes:
      call: the kernel with its outputs, PEs and hardware.
      inputs: what the arrays are drawn from.
      reference: the output in float64 from the arrays as NumPy has them, computed
        without kbjax and without JAX, and not changing them; a tuple where several
        outputs have one, the first of them.
      tolerance: largest error allowed, relative to the largest reference element.
    """

    call: KernelCall
    inputs: Inputs
    reference: Callable[..., np.ndarray | tuple[np.ndarray, ...]]
    tolerance: float

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The inputs' data."""
        return self.inputs.arrays()

    def error_of(self, output: Any) -> float:
        """The largest |output - reference| over the largest finite |reference|; NaN
        where either has one (`kbjax.comparison`).

        Of several outputs, a tuple, the largest error. Those past the last reference
        are workspace, and may hold anything.

        Raises:
          ShapeError: where there is no reference, an output and its reference differ in
            shape, or there are more references than outputs.
          DTypeError: for a reference that is no array of real numbers.
        """
        want = result_of(self.reference, self.arrays)
        return float(np.max([one.error for one in compared(output, want)]))  # NaN wins


def tolerance(dtype: str) -> float:
    """The largest error of a kernel that accumulates in float32 and gives `dtype`,
    relative to the largest element: what its last bit is worth there, which is twice
    its rounding; for float32 the rounding of long sums; 0 for integers and bool.

    Raises:
      DTypeError: for a name that is no element type.
    """
    row = dtypes.of(dtype)
    return _OF_LONG_SUMS if row == dtypes.FLOAT32 else row.eps


def check_dtype(dtype: str, *others: str) -> None:
    """Refuse a dtype that a kernel does not come in.

    Args:
      dtype: of the inputs.
      others: those it takes besides float32, float16 and bfloat16.

    Raises:
      DTypeError: with the dtypes that are taken.
    """
    taken = ("float32", "float16", "bfloat16", *others)
    if dtype not in taken:
        raise errors.DTypeError(
            f"the kernel does not come in {dtype}",
            allowed=", ".join(taken),
            remedy=_meant(dtype, taken),
        )


def flags(**given: Any) -> None:
    """Refuse what is neither true nor false, by name.

    Raises:
      DTypeError: naming the first.
    """
    for name, flag in given.items():
        if not isinstance(flag, bool):
            raise errors.DTypeError(f"{name} is true or false", got=repr(flag))


def positive(**sizes: Any) -> None:
    """Refuse sizes that are no positive integers, by name.

    Raises:
      ShapeError: naming the first such size.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise errors.ShapeError(
                f"{name} is a positive integer", got=repr(size), allowed=">= 1"
            )


def between(least: float, most: float, **numbers: Any) -> None:
    """Refuse what is no number from `least` to `most`, by name.

    Raises:
      ShapeError: naming the first.
    """
    for name, number in numbers.items():
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if not is_number or not least <= number <= most:  # a NaN is not, either
            raise errors.ShapeError(
                f"{name} is a number",
                got=repr(number),
                allowed=f"{least:.2g} to {most:.2g}",
            )


def shard(what: str, whole: int, by: str, parts: int) -> int:
    """whole / parts.

    Raises:
      ShapeError: where that is no whole number, naming both.
    """
    if whole % parts:
        raise errors.ShapeError(
            f"{what} is a multiple of {by}", got=f"{what} {whole} and {by} {parts}"
        )
    return whole // parts


def _meant(dtype: str, taken: Sequence[str]) -> str:
    """Of a name that is no element type, the nearest that is taken."""
    try:
        np.dtype(dtype)
    except (TypeError, ValueError):  # ValueError: of what numpy takes for a record
        return f"The nearest is {nearest(str(dtype), taken)}"
    return ""


def _fill_normal(elements: np.ndarray, seeds: list[int]) -> None:
    """Each part from a generator of its own, so that all cores make some."""
    size = 1 << 22

    def fill(n: int) -> None:
        part = elements[n * size : (n + 1) * size]
        rng = np.random.default_rng([*seeds, n])
        if part.dtype == np.float32:
            rng.standard_normal(dtype=np.float32, out=part)
        else:
            part[...] = rng.standard_normal(part.size, np.float32)

    with futures.ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(fill, range(-(-elements.size // size))))


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[skip : skip + nbytes].view(dtype).reshape(shape)
