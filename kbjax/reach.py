"""What a running kernel's variables lead to, by name: locals of the kernel and of the
helpers that it is in, the globals that they use, and from there attributes, containers,
closure cells, default arguments and iterators.

kbjax's own objects, and those of array libraries, change for reasons of their own and
are not followed. What hides behind C code (a queue's lock, a file) is not seen.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

from kbjax.index import Index
from kbjax.site import is_internal

_DEEPEST = 6  # steps followed from a variable
_MOST_PARTS = 256  # of one container
_MOST = 4096  # values in all
_LARGEST_BYTES = 1 << 16  # of an array that counters may live in
_LIBRARIES = ("kbjax", "jax", "jaxlib", "numpy", "torch", "typing")
COUNTERS = (bool, int, float, complex, str, bytes, type(None), np.generic)
Named = tuple[str, object]


def values(frame: FrameType | None) -> Iterator[Named]:
    """(name, value) of all that the frame's variables lead to, the innermost frame
    first; outwards to the last frame that is not kbjax's own."""
    seen: set[int] = set()
    budget = itertools.count()
    while frame is not None and not is_internal(frame.f_code.co_filename):
        roots = itertools.chain(
            frame.f_locals.items(), _globals(frame.f_code, frame.f_globals)
        )
        for name, value in roots:
            for found in _reached(name, value, _DEEPEST, seen):
                if next(budget) > _MOST:
                    return
                yield found
        frame = frame.f_back


def number(value: object) -> object | None:
    """What can be counted with, in a form that compares; None where it is nothing of
    the kind."""
    if isinstance(value, COUNTERS):
        return repr(value)
    if isinstance(value, Index | itertools.count):
        return str(value)
    if isinstance(value, np.ndarray) and value.nbytes <= _LARGEST_BYTES:
        return value.shape, value.dtype.str, value.tobytes()
    return None


def _reached(path: str, value: object, depth: int, seen: set[int]) -> Iterator[Named]:
    yield path, value
    if depth == 0 or number(value) is not None or id(value) in seen:
        return
    seen.add(id(value))
    for name, part in itertools.islice(_parts(path, value), _MOST_PARTS):
        yield from _reached(name, part, depth - 1, seen)


def _parts(path: str, value: object) -> Iterator[Named]:
    """What a container, an object, a function or an iterator holds."""
    if isinstance(value, dict):
        yield f"len({path})", len(value)
        yield from ((f"{path}[{key!r}]", one) for key, one in [*value.items()])
    elif isinstance(value, list | tuple | deque):
        yield f"len({path})", len(value)
        yield from ((f"{path}[{n}]", one) for n, one in enumerate([*value]))
    elif isinstance(value, set | frozenset):
        yield f"len({path})", len(value)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(path, value)
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from _parts(path, (value.func, *value.args))
        yield from ((f"{path}({key}=)", one) for key, one in value.keywords.items())
    elif isinstance(value, types.GeneratorType):
        inside = value.gi_frame
        if inside is not None and not is_internal(inside.f_code.co_filename):
            yield f"line of {path}", inside.f_lineno
            yield from inside.f_locals.items()
    elif isinstance(value, type):
        if not _is_library(value.__module__):
            yield from (
                (f"{path}.{name}", one)
                for name, one in [*vars(value).items()]
                if not name.startswith("__")
            )
    elif not isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        yield from _of_object(path, value)


def _of_function(path: str, function: types.FunctionType) -> Iterator[Named]:
    """Cells, default arguments, and the globals that a user's function names."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    yield from (
        (f"{path}.{name}", one) for name, one in zip(names, defaults, strict=True)
    )
    for name, one in (function.__kwdefaults__ or {}).items():
        yield f"{path}.{name}", one
    yield from _globals(code, function.__globals__)


def _of_object(path: str, value: object) -> Iterator[Named]:
    kind = type(value)
    hint = getattr(kind, "__length_hint__", None)
    if hint is not None and hasattr(kind, "__next__"):
        yield path, f"{hint(value)} left"
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        return
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((f"{path}.{name}", one) for name, one in [*attributes.items()])
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f"{path}.{name}", getattr(value, name)


def _globals(code: CodeType, names: dict[str, object]) -> Iterator[Named]:
    """The globals that a user's code names."""
    if not _is_user_file(code.co_filename):
        return
    for name in code.co_names:
        value = names.get(name)
        if value is not None and not isinstance(value, types.ModuleType):
            yield name, value


@lru_cache(maxsize=4096)
def _is_user_file(filename: str) -> bool:
    """Neither kbjax's own, nor the standard library's or an installed package's."""
    if is_internal(filename):
        return False
    parents = Path(filename).resolve().parents
    library = {Path(np.__file__).resolve().parents[1], Path(types.__file__).parent}
    return not library.intersection(parents)


@lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    """Whether the objects and classes of a module are not a kernel's own."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names
