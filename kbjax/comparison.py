"""Outputs beside their references: the one rule of how far off an output is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kbjax import dtypes, errors

_ALLOWED = "an array of real numbers, or a tuple of one for each output"


@dataclass(frozen=True)
class Comparison:
    """An output and its reference, of one shape.

    A NaN on either side is wrong. An infinity is right where the other side has the
    same. All else is measured against the largest finite element of the reference.

    Attributes:
      got: the output.
      want: the reference; of any dtype of real numbers.
    """

    got: np.ndarray
    want: np.ndarray

    @cached_property
    def off(self) -> np.ndarray:
        """|got - want| of each element, in float64: NaN where either is, inf where one
        alone is infinite."""
        got, want = self.got.astype(np.float64), self.want.astype(np.float64)
        with np.errstate(all="ignore"):
            return np.where(got == want, 0.0, np.abs(got - want))

    @cached_property
    def scale(self) -> float:
        """The largest |want| that is finite; 1 where that is 0 or there is none."""
        want = np.abs(self.want.astype(np.float64))
        return float(np.max(want, initial=0.0, where=np.isfinite(want))) or 1.0

    @property
    def error(self) -> float:
        """The largest `off` over `scale`; NaN wins, and no elements give 0."""
        return float(np.max(self.off, initial=0.0)) / self.scale

    def wrong(self, rtol: float, atol: float = 0.0) -> np.ndarray:
        """Which elements are off by more than rtol x scale + atol."""
        return ~(self.off <= rtol * self.scale + atol)


def compared(outputs: Any, references: Any) -> list[Comparison]:
    """Each reference with its output; outputs past the last reference are left out.

    Args:
      outputs, references: an array, or a tuple or list of arrays.

    Raises:
      DTypeError: for a reference that is no array of real numbers.
      ShapeError: where there is no reference, there are more than outputs, or one and
        its output differ in shape.
    """
    outs, wanted = _all(outputs), _all(references)
    if not wanted:
        raise errors.ShapeError(
            "the reference is empty: there is nothing to compare", allowed=_ALLOWED
        )
    if len(wanted) > len(outs):
        raise errors.ShapeError(
            "there are more references than outputs",
            got=f"{len(wanted)} and {len(outs)}",
        )
    pairs = []
    for number, one in enumerate(wanted):
        which = f" of output {number}" if len(outs) > 1 else ""
        got, want = np.asarray(outs[number]), _numbers(one, which)
        if got.shape != want.shape:
            raise errors.ShapeError(
                f"the output and the reference{which} differ in shape",
                got=f"{got.shape} and {want.shape}",
            )
        pairs.append(Comparison(got, want))
    return pairs


def result_of(reference: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """What a reference gives for the arrays, which it may read and not change."""
    given = []
    for array in arrays:
        view = np.asarray(array).view()
        view.flags.writeable = False
        given.append(view)
    return reference(*given)


def _all(arrays: Any) -> Sequence[Any]:
    return arrays if isinstance(arrays, tuple | list) else (arrays,)


def _numbers(reference: Any, which: str) -> np.ndarray:
    """A reference as an array, if it is one of real numbers."""
    if isinstance(reference, np.ma.MaskedArray):
        raise errors.DTypeError(
            f"the reference{which} is a masked array",
            allowed=_ALLOWED,
            remedy="Fill it, as with reference.filled(0)",
        )
    try:
        array = np.asarray(reference)
    except (TypeError, ValueError):  # rows of several lengths, what refuses to be one
        array = np.asarray(None)
    if array.dtype.name in dtypes.TABLE or array.dtype.kind in "biuf":
        return array
    is_array = isinstance(reference, np.ndarray | np.generic)
    got = f"an array of {array.dtype}" if is_array else f"a {type(reference).__name__}"
    raise errors.DTypeError(
        f"the reference{which} is not real numbers",
        got="None" if reference is None else got,
        allowed=_ALLOWED,
        remedy="Return what the kernel must give" if reference is None else "",
    )
