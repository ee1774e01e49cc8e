"""What a running kernel's variables lead to, by name: locals of the kernel and of the
helpers that it is in, the globals that they use, and from there attributes, containers,
closure cells, default arguments and iterators.

kbjax's own objects, and those of array libraries, change for reasons of their own and
are not followed. What hides behind C code (a queue's lock, a file) is not seen, nor
arrays above 16 MiB, nor what lies beyond `_MOST` values; of the latter the caller is
told.
"""

from __future__ import annotations

import array
import contextlib
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import itertools
import sys
import types
import warnings
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from kbjax.dtypes import DType
from kbjax.handle import TensorHandle
from kbjax.index import Index
from kbjax.site import is_internal
from kbjax.views import HbmView, Slice

_DEEPEST = 12  # steps followed from a variable
_MOST_PARTS = 256  # of one container
_WHOLE = 16  # elements above which a container of plain values is one value
_MOST = 20_000  # values in all
_LARGEST_BYTES = 1 << 24  # of an array that counters may live in
_LIBRARIES = (
    "kbjax", "jax", "jaxlib", "numpy", "torch", "typing", "logging", "pytest",
    "_pytest",
)  # fmt: skip
_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), np.generic, range, bytearray,
    array.array, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time,
    datetime.timedelta,
)  # fmt: skip


_COUNTED = (
    enum.Enum, *_PLAIN, Index, itertools.count, Slice, np.ndarray, set, frozenset, list,
    tuple, deque,
)  # fmt: skip


def is_a(value: Any, kinds: Any) -> bool:
    """`isinstance`, which does not ask the value."""
    return issubclass(type(value), kinds)


_AS_THEY_ARE = frozenset({int, bool, str, bytes, type(None)})


class Reached(NamedTuple):
    """A value. `key` tells it apart from others of the same `name`, which is how the
    kernel spells it. `number` is what can be counted with, as `number` gives it."""

    key: str
    name: str
    value: Any
    number: object | None


def frames_of(frame: FrameType | None) -> list[FrameType]:
    """The kernel and its helpers: the frame, and those around it to the last that is
    not kbjax's own."""
    found = []
    while frame is not None and not is_internal(frame.f_code.co_filename):
        found.append(frame)
        frame = frame.f_back
    return found


def local(name: str, number_: int = 0) -> str:
    """The key of a local variable of one of `frames_of`."""
    return f"{number_}:{name}"


def values(frame: FrameType | None) -> Iterator[Reached]:
    """All that the frame's variables lead to, the innermost frame first; outwards to
    the last frame that is not kbjax's own, and then the globals that they use.

    Warns:
      UserWarning: where there is more than is followed.
    """
    search, frames = _Search(), frames_of(frame)
    for number_, one in enumerate(frames):
        yield from search.roots(local("", number_), one.f_locals.items())
    for one in frames:
        named = _globals(one.f_code, one.f_globals)
        yield from search.roots("global:", named)


def number(value: Any) -> object | None:
    """What can be counted with, in a form that compares; None where it is nothing of
    the kind, or does not let itself be looked at."""
    try:
        return _number(value)
    except Exception:  # a user's own __repr__, say: it is his, and not our concern
        return None


def text(value: Any) -> str:
    """A value in a message."""
    try:
        return "an array" if is_a(value, np.ndarray) else str(value)
    except Exception:  # as above
        return f"a {type(value).__name__}"


@lru_cache(maxsize=4096)
def _is_counted(kind: type) -> bool:
    """Whether some values of a type can be counted with."""
    return issubclass(kind, _COUNTED)


def _number(value: Any) -> object | None:
    if type(value) in _AS_THEY_ARE:
        return type(value), value
    if not _is_counted(type(value)):  # type: ignore[arg-type]
        return None
    if is_a(value, enum.Enum):
        return str(value)
    if is_a(value, _PLAIN):
        return repr(value)
    if is_a(value, (Index, itertools.count, Slice)):
        return str(value)
    if is_a(value, np.ndarray) and value.nbytes <= _LARGEST_BYTES:
        content = np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
        if value.dtype.hasobject:
            return None
        return value.shape, value.dtype.str, zlib.crc32(content)
    if is_a(value, (set, frozenset)):
        return tuple(sorted(repr(one) for one in value))
    if is_a(value, (list, tuple, deque)) and len(value) > _WHOLE:
        if all(type(one) in (int, float, bool, str) for one in value):
            return len(value), hash(tuple(value))
    return None


def identity(value: Any) -> object | None:
    """Which of the kernel's tiles, views, functions or types a value is, in a form that
    compares; None where it is none."""
    if is_a(value, TensorHandle):
        return "tile", value.allocation.uid, str(value.ref)
    if is_a(value, HbmView):
        return "view", str(value)
    if is_a(value, types.FunctionType):
        return "function", id(value.__code__)
    if is_a(value, types.MethodType):  # those of `tl` share their code
        return "method", id(value.__func__)
    if is_a(value, types.BuiltinFunctionType):
        return "function", value.__qualname__
    if is_a(value, (DType, np.dtype)):
        return "type", str(value)
    if is_a(value, type):
        return "type", type.__getattribute__(value, "__qualname__")
    return None


@dataclass
class _Search:
    """One walk. `seen` are the objects that have been followed."""

    seen: set[int] = field(default_factory=set)
    count: int = 0

    def roots(self, where: str, named: object) -> Iterator[Reached]:
        for name, value in [*named]:  # type: ignore[misc]
            yield from self.reached(f"{where}{name}", name, value, _DEEPEST)

    def reached(self, key: str, name: str, value: Any, depth: int) -> Iterator[Reached]:
        self.count += 1
        if self.count == _MOST:
            warnings.warn(
                f"the kernel's variables lead to more than {_MOST:,} values; whether a "
                "tl.range body counts in others is not checked",
                UserWarning,
                stacklevel=2,
            )
        if self.count >= _MOST:
            return
        counted = number(value)
        yield Reached(key, name, value, counted)
        if not depth or counted is not None or id(value) in self.seen:
            return
        self.seen.add(id(value))
        parts: list[_Part] = []
        with contextlib.suppress(Exception):  # of a user's own properties, say
            for found in itertools.islice(_parts(name, value), _MOST_PARTS):
                parts.append(found)
        for part, shown, one in parts:
            yield from self.reached(f"{key}/{part}", shown, one, depth - 1)


_Part = tuple[str, str, object]  # key, name, value


def _parts(path: str, value: Any) -> Iterator[_Part]:
    """What a container, an object, a function or an iterator holds."""
    if is_a(value, (TensorHandle, HbmView)):
        return
    if is_a(value, dict):
        held = [*dict.items(value)]
        yield from _named(f"len({path})", len(held))
        yield from _named(f"{path}.keys()", tuple(key for key, _ in held))
        for key, one in held:
            yield from _named(f"{path}[{key!r}]", one)
    elif is_a(value, (list, tuple, deque)):
        kind = next(k for k in (list, tuple, deque) if is_a(value, k))
        elements = [*kind.__iter__(value)]
        yield from _named(f"len({path})", len(elements))
        for n, one in enumerate(elements):
            yield from _named(f"{path}[{n}]", one)
    elif is_a(value, types.FunctionType):
        yield from _of_function(path, value)
    elif is_a(value, types.MethodType):
        yield from _named(f"{path}.__self__", value.__self__)
    elif is_a(value, functools.partial):
        yield from _parts(path, (value.func, *value.args))
        for key, one in value.keywords.items():
            yield from _named(f"{path}({key}=)", one)
    elif is_a(value, types.GeneratorType):
        inside = value.gi_frame
        if inside is not None and not is_internal(inside.f_code.co_filename):
            yield from _named(f"line of {path}", inside.f_lineno)
            for name, one in [*inside.f_locals.items()]:
                yield f"{path}.{name}", name, one
    elif is_a(value, contextvars.ContextVar):
        yield from _named(path, value.get(None))
    elif is_a(value, types.ModuleType):
        if _is_user_file(getattr(value, "__file__", None) or ""):
            for name, one in [*vars(value).items()]:
                if number(one) is not None and not name.startswith("__"):
                    yield from _named(f"{path}.{name}", one)
    elif is_a(value, type):
        if not _is_library(value.__module__):
            for name, one in [*vars(value).items()]:
                if not name.startswith("__"):
                    yield from _named(f"{path}.{name}", one)
    elif not is_a(value, types.BuiltinFunctionType):
        yield from _of_object(path, value)


def _named(name: str, value: Any) -> Iterator[_Part]:
    yield name, name, value


def _of_function(path: str, function: types.FunctionType) -> Iterator[_Part]:
    """Cells, default arguments, attributes, and the globals that a user's function
    names."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{path}.{name}", name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    kept = {
        **dict(zip(names, defaults, strict=True)),
        **(function.__kwdefaults__ or {}),
    }
    for name, one in [*kept.items(), *vars(function).items()]:
        yield from _named(f"{path}.{name}", one)
    for name, one in _globals(code, function.__globals__):
        yield f"global {name}", name, one


def _of_object(path: str, value: Any) -> Iterator[_Part]:
    kind = type(value)
    if hasattr(kind, "__next__"):
        yield from _of_iterator(path, value)
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        return
    if not _is_library(kind.__module__):
        yield from _named(f"type({path})", kind)
    attributes = inspect.getattr_static(value, "__dict__", None)
    if is_a(attributes, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        attributes = attributes.__get__(value, kind)
    if is_a(attributes, dict):
        yield from _named(f"len(vars({path}))", len(attributes))
        for name, one in [*attributes.items()]:
            yield from _named(f"{path}.{name}", one)
    for base in type.mro(kind):
        for name, member in [*vars(base).items()]:
            member_ = is_a(member, types.MemberDescriptorType)
            if member_ and name not in ("__dict__", "__weakref__"):
                with contextlib.suppress(AttributeError):  # not set yet
                    yield from _named(f"{path}.{name}", member.__get__(value, kind))


def _of_iterator(path: str, value: Any) -> Iterator[_Part]:
    """What is left of an iterator of Python's own, and what it takes from."""
    hint = getattr(type(value), "__length_hint__", None)
    if hint is not None:
        yield from _named(path, f"{hint(value)} left")
    elif type(value).__module__ in ("builtins", "itertools"):
        with warnings.catch_warnings():  # Python 3.12 deprecates it
            warnings.simplefilter("ignore")
            try:
                state = value.__reduce__()
            except TypeError:  # made by C code that cannot be copied
                return
        for part in state[1:]:
            yield from _named(path, part)


def _globals(code: CodeType, names: dict[str, object]) -> Iterator[tuple[str, object]]:
    """The globals that a user's code names."""
    if _is_user_file(code.co_filename):
        for name in code.co_names:
            if names.get(name) is not None:
                yield name, names[name]


@lru_cache(maxsize=4096)
def _is_user_file(filename: str) -> bool:
    """Neither kbjax's own, nor the standard library's or an installed package's."""
    if not filename or is_internal(filename):
        return False
    parents = Path(filename).resolve().parents
    library = {Path(np.__file__).resolve().parents[1], Path(types.__file__).parent}
    return not library.intersection(parents)


@lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    """Whether the classes of a module are not a kernel's own."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names
