"""Triton's own interpreter, which runs kernels on NumPy without a GPU, as a witness.

Importing this module skips the importing test where PyTorch or Triton is missing.

Triton reads TRITON_INTERPRET when it is imported, when a kernel is decorated and when
one is launched. It is set for just these moments, so no other test sees it. The
interpreter also writes names of its own into the globals of a module that holds
kernels, hence this module: tests hand expressions to `run`, and kernels of their own to
`launch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

_WHY = "Triton's interpreter is the witness: pip install 'kbjax[witness]'"


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """TRITON_INTERPRET is set, and NumPy computes NaN and inf without a warning."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setenv("TRITON_INTERPRET", "1")
        yield


torch: Any = pytest.importorskip("torch", reason=_WHY)
with interpreting():
    triton: Any = pytest.importorskip("triton", reason=_WHY)
    import triton.language as tl
    from triton.errors import TritonError as TritonError

if isinstance(tl.sum, triton.JITFunction):
    raise RuntimeError("triton was imported before, without TRITON_INTERPRET=1")

# kbjax's name of an element type -> the name on triton.language.
TRITON_NAMES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8e4nv",
    "float8_e5m2": "float8e5",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "uint32": "uint32",  # no type of kbjax's, but some of Triton's results have it
    "bool": "int1",
}
_OURS = {getattr(tl, theirs).name: ours for ours, theirs in TRITON_NAMES.items()}
_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if name in _EXTENDED else name)


def to_torch(x: np.ndarray) -> Any:
    """The same bits as a PyTorch tensor; NumPy's own types do not cover bfloat16."""
    bits = np.array(x).view(f"int{8 * x.itemsize}")
    return torch.from_numpy(bits).view(getattr(torch, x.dtype.name))


def to_numpy(x: Any) -> np.ndarray:
    name = str(x.dtype).removeprefix("torch.")
    bits = x.view(getattr(torch, f"int{8 * x.element_size()}")).numpy()
    return bits.view(numpy_dtype(name))


def launch(kernel: Callable[..., Any], grid: tuple[int, ...], *args: Any) -> None:
    """Run `kernel`, a plain function whose annotations are Triton's, on each program of
    `grid`."""
    with interpreting():
        triton.jit(kernel)[grid](*args)


def run(expression: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """``expression(tl, *tiles)`` with Triton's `tl`, in the dtype that Triton gives it.

    Every size is a power of two, as `tl.arange` wants.
    """
    inputs = tuple(to_torch(x) for x in arrays)
    shapes = [x.shape for x in arrays]
    found: dict[str, Any] = {}
    launch(_apply, (1,), expression, inputs, shapes, None, found)
    out = torch.empty(found["shape"], dtype=getattr(torch, _OURS[found["dtype"]]))
    launch(_apply, (1,), expression, inputs, shapes, out, found)
    return to_numpy(out)


def _apply(
    EXPRESSION: tl.constexpr,
    inputs: Any,
    SHAPES: tl.constexpr,
    out: Any,
    FOUND: tl.constexpr,
) -> None:
    tiles = [tl.load(p + _offsets(s)) for p, s in zip(inputs, SHAPES, strict=True)]
    result = EXPRESSION(tl, *tiles)
    FOUND["shape"] = tuple(int(n) for n in result.shape)
    FOUND["dtype"] = result.dtype.name
    if out is not None:  # known from a first run
        tl.store(out + _offsets(FOUND["shape"]), result)


def _offsets(shape: tuple[int, ...]) -> Any:
    """Of each element of a row-major array."""
    if not shape:
        return 0
    offsets = tl.arange(0, shape[-1])
    if len(shape) == 2:
        offsets = tl.arange(0, shape[0])[:, None] * shape[1] + offsets[None, :]
    return offsets
