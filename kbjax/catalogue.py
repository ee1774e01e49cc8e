"""The kernels that can be named: shipped ones, and a user's by ``path.py:function``.

A named kernel is a function `case(...)` that returns a `Case`: its parameters are the
kernel's sizes, with defaults, and `hardware`. Shipped kernels have one in their module;
a user's file may have several.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from kbjax import errors, user_files
from kbjax.cases import Case
from kbjax.hardware import Hardware
from kbjax.names import unknown
from kbjax.shipped import kernel_names as kernel_names

REQUIRED = inspect.Parameter.empty  # the default of a size that has none


def kernel_module(name: str) -> ModuleType:
    """The module of a shipped kernel.

    Raises:
      KernelError: for a name that is none, listing those that are.
    """
    names = kernel_names()
    if name not in names:
        raise unknown(
            f"there is no kernel {name!r}", name, names,
            or_else="or your own as path.py:function",
        )  # fmt: skip
    return importlib.import_module(f"kbjax.kernels.{name}")


def sizes_of(name: str) -> dict[str, Any]:
    """The sizes of a kernel, with their defaults; `REQUIRED` where a user's has
    none.

    Raises:
      KernelError: for a name that is none.
    """
    return _sizes(_case_function(name))


def check_sizes(name: str, sizes: Iterable[str]) -> None:
    """Refuse names that are no sizes of a kernel.

    Raises:
      KernelError: naming the first of them and the nearest size; and for a kernel that
        does not exist.
    """
    known = _sizes(_case_function(name))
    for size in sizes:
        if size not in known:
            raise unknown(f"{name} has no size {size!r}", size, known)


def size_types(name: str) -> dict[str, type | None]:
    """The type of each size: of its default, or as it is annotated; None where neither
    says that it is an int, a bool or text.

    Raises:
      KernelError: for a name that is none.
    """
    function = _case_function(name)
    known = {"int": int, "bool": bool, "str": str}
    found: dict[str, type | None] = {}
    for size, default in _sizes(function).items():
        noted = function.__annotations__.get(size)
        kind = (
            known.get(noted if isinstance(noted, str) else noted.__name__)
            if (default is REQUIRED and noted is not None)
            else known.get(type(default).__name__)
        )
        found[size] = kind
    return found


def small_sizes(name: str) -> dict[str, Any]:
    """The sizes at which a kernel runs in a moment: those that `SMALL` in its module
    names, a dict; none where it has no `SMALL`.

    Raises:
      KernelError: for a name that is none.
    """
    function = _case_function(name)
    small = function.__globals__.get("SMALL", {})
    return {size: small[size] for size in _sizes(function) if size in small}


def make(name: str, /, *, hardware: Hardware | None = None, **sizes: Any) -> Case:
    """The case of a kernel; sizes that are left out keep their defaults.

    Args:
      name: of a shipped kernel, or ``path.py:function``.
      hardware: what it is called with; the default hardware where None.
      **sizes: of the kernel, by name.

    Raises:
      KernelError: for a name that is none, a size that this kernel does not have or
        lacks, and for a function that returns no `Case`.
    """
    function = _case_function(name)
    known = _sizes(function)
    check_sizes(name, sizes)
    missing = [
        size
        for size, default in known.items()
        if default is REQUIRED and size not in sizes
    ]
    if missing:
        raise errors.KernelError(
            f"{name} needs {', '.join(missing)}", remedy="Give --size NAME=VALUE"
        )
    found = function(**sizes, hardware=hardware)
    if not isinstance(found, Case):
        raise errors.KernelError(
            f"{name} is no case",
            got=f"it returned a {type(found).__name__}",
            remedy=_RETURN_A_CASE,
        )
    return found


_RETURN_A_CASE = (
    "Name a function that takes the kernel's sizes and the keyword `hardware`, and "
    "returns a kbjax.cases.Case, as `case` in each of kbjax's kernels"
)


def _sizes(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = [p for p in parameters if p.kind in named and p.name != "hardware"]
    return {p.name: p.default for p in taken}


def _case_function(name: str) -> Callable[..., Any]:
    path, colon, function_name = name.rpartition(":")
    if not colon and name.endswith(".py"):
        raise errors.KernelError(
            "a file of one's own is named with the function in it",
            got=name,
            remedy=f"Give {name}:case, if `case` is the function's name",
        )
    if not colon or not path.endswith(".py"):
        return kernel_module(name).case
    module = user_files.module_at(path)
    function = getattr(module, function_name, None)
    if not inspect.isfunction(function):
        functions = [n for n, f in vars(module).items() if _may_be_a_case(f)]
        problem = f"{path} has no function {function_name!r}"
        if functions:
            raise unknown(problem, function_name, functions)
        raise errors.KernelError(
            problem,
            allowed="none: no function in it takes `hardware`",
            remedy=_RETURN_A_CASE,
        )
    if not _may_be_a_case(function):
        raise errors.KernelError(
            f"{name} is no case",
            got="it takes no `hardware`",
            remedy=_RETURN_A_CASE,
        )
    return function


def _may_be_a_case(value: object) -> bool:
    return (
        inspect.isfunction(value) and "hardware" in inspect.signature(value).parameters
    )
