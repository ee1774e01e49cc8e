"""Where in the kernel a call was made: the innermost frame outside kbjax."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = Path(__file__).resolve().parent
_ARRAYS = ("jax", "jaxlib", "numpy")
_KERNELS = _PACKAGE / "kernels"  # shipped kernels are user code, wherever installed


@dataclass(frozen=True)
class Site:
    """A line of kernel source; prints as ``file.py:12``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{_name_of(self.file)}:{self.line}"


@dataclass(frozen=True)
class ScopeLine:
    """A `with tl.scratch_scope(name):` of the kernel; prints as
    ``'name' of file.py:12``."""

    name: str
    site: Site

    def __str__(self) -> str:
        return f"{self.name!r} of {self.site}" if self.name else str(self.site)


@lru_cache(maxsize=4096)
def _name_of(filename: str) -> str:
    return Path(filename).name


@lru_cache(maxsize=4096)
def is_internal(filename: str) -> bool:
    """True for the source files of kbjax, and of JAX and NumPy, through which a kernel
    may have come back to it: no error may point at them."""
    parents = Path(filename).resolve().parents
    if _PACKAGE in parents:
        return _KERNELS not in parents
    return any(parent.name in _ARRAYS for parent in parents[:-1]) and any(
        parent.name == "site-packages" for parent in parents
    )


def kernel_frame() -> FrameType:
    """The innermost running frame that is not kbjax's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    assert frame is not None, "kbjax was entered from outside kbjax"
    return frame


def here() -> Site:
    """The kernel line that is being executed."""
    frame = kernel_frame()
    return Site(frame.f_code.co_filename, frame.f_lineno)


def user_frames(function: F) -> F:
    """A public function whose errors show the user's frames: a KbjaxError ends at the
    kernel's line, with one frame of kbjax before it."""

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            if getattr(error, "is_for_the_user", False):
                trace = without_internal_frames(error.__traceback__)
                raise error.with_traceback(trace) from None
            raise

    return cast(F, called)


def without_internal_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback that shows the user's frames only."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not is_internal(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for entry in reversed(kept):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown
