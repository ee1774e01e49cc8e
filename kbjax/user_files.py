"""A user's own Python file: run once; what goes wrong in it is said of its line."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType

from kbjax import errors
from kbjax.site import Site

_PREFIX = "_kbjax_user_"  # of the modules' names


def module_at(path: str) -> ModuleType:
    """The module in a file, run once for each of the file's versions; the modules
    beside it can be imported, as from a script.

    Raises:
      KernelError: for a file that cannot be read, or is not Python.
    """
    try:
        changed_ns = os.stat(path).st_mtime_ns
        return _loaded(os.path.realpath(path), changed_ns)
    except (OSError, SyntaxError, ValueError) as error:  # ValueError: of a NUL
        if raised(error) is not None:  # something that the file runs
            raise
        if isinstance(error, OSError):
            text = f"cannot read {path}: {error.strerror}"
            raise errors.KernelError(text) from error
        line = getattr(error, "lineno", None)
        raise errors.KernelError(
            f"{path} is not Python: {getattr(error, 'msg', error)}",
            site=Site(path, line) if line else None,
        ) from error


@functools.lru_cache(maxsize=32)
def _loaded(path: str, changed_ns: int) -> ModuleType:
    folder, file = os.path.split(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
    name = f"{_PREFIX}{file.removesuffix('.py')}_{digest[:12]}"  # of this path alone
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a path that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def raised(error: BaseException) -> errors.KernelError | None:
    """What a line of a user's file raised, or a library that it calls, as a refusal
    that names the line; None for what no such line raised, and for a fault of kbjax.
    """
    line = _line_of(error)
    if line is None:
        return None
    what = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SystemExit):
        what = f"sys.exit({error.code!r}) was called, and nothing is left to do"
    return errors.KernelError(what, site=line)


def located(error: errors.KbjaxError) -> errors.KbjaxError:
    """A refusal of what a user's file asks for, said of its line."""
    line = None if error.site else _line_of(error, of_refusal=True)
    return error.at(line) if line else error


def _line_of(error: BaseException, of_refusal: bool = False) -> Site | None:
    """The innermost line of a user's files: those that were named, and what they import
    from beside them. None where kbjax was called from there, unless it refused."""
    loaded = [m for name, m in sys.modules.items() if name.startswith(_PREFIX)]
    folders = tuple(os.path.join(os.path.dirname(str(m.__file__)), "") for m in loaded)
    line = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        file = frame.f_code.co_filename
        if module.startswith("kbjax.") and not module.startswith("kbjax.kernels."):
            line = line if of_refusal else None
        elif file.startswith(folders) and "site-packages" not in file:
            line = Site(file, number)
    return line
