"""Calls of the methods that a kernel sees: one with arguments that the method does not
take is refused at the kernel's line, under the name that the kernel knows, with what
would be taken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from kbjax import errors
from kbjax.site import here


def refuse_wrong_arguments(kind: type, name: str) -> None:
    """Let every public method of a class, its bases' among them, do so; one that takes
    any number of arguments says itself which.

    Args:
      kind: the class.
      name: of its objects, as messages have it.
    """
    for attribute in dir(kind):
        found = inspect.getattr_static(kind, attribute)
        is_static = isinstance(found, staticmethod)
        method = found.__func__ if is_static else found
        if attribute.startswith("_") or not isinstance(method, FunctionType):
            continue
        if method.__code__.co_flags & inspect.CO_VARARGS:
            continue
        checked = _checked(method, f"{name}.{attribute}", bound=not is_static)
        setattr(kind, attribute, staticmethod(checked) if is_static else checked)


def _checked(method: Callable[..., Any], name: str, bound: bool) -> Callable[..., Any]:
    """The method; `bound` where its first parameter is the object."""

    @functools.wraps(method)
    def called(*operands: Any, **named: Any) -> Any:
        try:
            return method(*operands, **named)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # of the method's body
                raise
            signature = inspect.signature(method)
            try:
                signature.bind(*operands, **named)
            except TypeError as reason:
                raise errors.KernelError(
                    f"{name} is called with wrong arguments: {reason}",
                    site=here(),
                    allowed=name + _without_types(signature, skip=int(bound)),
                ) from None
            raise

    return called


def _without_types(signature: inspect.Signature, skip: int) -> str:
    """``(view, other=None)``: without the first `skip` parameters."""
    kept = [*signature.parameters.values()][skip:]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in kept]
    return str(inspect.Signature(plain))
