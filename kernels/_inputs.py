"""Optional tensors of a kernel that are inputs of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import kbjax as kb


def with_inputs(kernel: Callable[..., None], *names: str) -> Callable[..., None]:
    """A kernel whose keyword-only HBM tensors of these names are inputs, after those
    that it has: ``with_inputs(flash_prefill, "sinks")`` takes q, k, v, sinks and o.

    Raises:
      KernelError: for a name that the kernel does not have.
    """
    signature = inspect.signature(kernel)
    tensors = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    options = {p.name: p for p in signature.parameters.values() if p not in tensors}
    for name in names:
        if name not in options:
            raise kb.KernelError(
                f"{kernel.__name__} has no input {name!r}", allowed=", ".join(options)
            )
    given = [
        options.pop(name).replace(
            kind=inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty,
        )
        for name in names
    ]
    taken = signature.replace(
        parameters=[*tensors[:-1], *given, tensors[-1], *options.values()]
    )

    @functools.wraps(kernel)
    def called(*tensors: Any, **options: Any) -> None:
        kernel(**taken.bind(*tensors, **options).arguments)

    called.__signature__ = taken  # type: ignore[attr-defined]
    return called
