"""How a mistake is written down, recorded, and checked.

A mistake is `kernel(tl, x, n, o)` on float32[8,4], int32[8,4] and the output
float32[8,4], unless its decorator says otherwise. The comment `# <-` ends the line that
the error must name.
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import pytest

import kbjax as kb
from kbjax.program import Program

Kernel = Callable[..., None]
X = jax.ShapeDtypeStruct((8, 4), "float32")
N = jax.ShapeDtypeStruct((8, 4), "int32")
BUILTIN: dict[type[kb.KbjaxError], type[Exception]] = {
    kb.ShapeError: ValueError,
    kb.DTypeError: TypeError,
    kb.MemorySpaceError: ValueError,
    kb.OutOfBoundsError: IndexError,
    kb.KernelError: RuntimeError,
    kb.HazardError: RuntimeError,
    kb.UseAfterScopeError: RuntimeError,
    kb.UninitializedReadError: RuntimeError,
    kb.ScratchOverflowError: RuntimeError,
}


def record(
    kernel: Kernel, arrays: Sequence[Any] = (X, N), out: Any = X, **options: Any
) -> Program:
    return kb.kernel_call(kernel, out, **options).record(*arrays)


def marked_lines(kernel: Kernel, mark: str = "<-") -> list[int]:
    """The lines of `kernel` that end in ``# <-``."""
    lines, first = inspect.getsourcelines(kernel)
    return [first + n for n, line in enumerate(lines) if line.rstrip().endswith(mark)]


def refused(
    kernel: Kernel, kind: type[kb.KbjaxError], *, late: bool = False, **options: Any
) -> Any:
    """The error of a kernel, checked for what every error has.

    Args:
      kernel: marks the line that the error must name.
      kind: the error's class, exactly.
      late: it is found when the kernel has returned, so that the traceback ends where
        kbjax was called; else it ends in the kernel's file.
      options: of `record`.
    """
    with warnings.catch_warnings(), pytest.raises(kb.KbjaxError) as caught:
        warnings.filterwarnings("ignore", ".* never stores to its output")
        record(kernel, **options)
    error = caught.value
    assert type(error) is kind, repr(error)
    assert isinstance(error, BUILTIN[kind])
    file, (line,) = kernel.__code__.co_filename, marked_lines(kernel)
    assert error.site is not None, str(error)
    assert (error.site.file, error.site.line) == (file, line), str(error)
    assert f"{Path(file).name}:{line}" in str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    ends = last.name == "called" if late else last.filename == file
    assert ends, f"the traceback ends in {last.filename}, {last.name}"
    assert error.__cause__ is None
    return error


@dataclass(frozen=True)
class Mistake:
    """A wrong kernel, its error, words of the message, and options of `refused`."""

    kernel: Kernel
    kind: type[kb.KbjaxError]
    words: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        module = self.kernel.__module__.rpartition(".")[2]
        return f"{module}-{self.kernel.__name__}"

    def refused(self) -> Any:
        return refused(self.kernel, self.kind, **self.options)


MISTAKES: list[Mistake] = []


def mistake(
    kind: type[kb.KbjaxError], *words: str, **options: Any
) -> Callable[[Kernel], Kernel]:
    """Register a kernel whose error is of `kind`, with `words` in its message."""

    def register(kernel: Kernel) -> Kernel:
        MISTAKES.append(Mistake(kernel, kind, words, options))
        return kernel

    return register
