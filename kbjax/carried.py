"""Python state that a kernel carries from one iteration of a rolled loop to the next.

A body is recorded twice; the second recording must equal the first, and must leave the
numbers that the kernel can reach (variables, attributes, containers, NumPy arrays,
closure cells) as the first one did. What a kernel counts where no variable of its frame
leads (inside a generator expression, say) is not seen.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from kbjax import errors
from kbjax.index import Index
from kbjax.program import Block, Loop, Scope, Statement
from kbjax.site import Site, is_internal

_DEEPEST = 3  # attributes and containers followed from a variable
_LARGEST_BYTES = 1 << 16  # of an array that counters may live in
_COUNTERS = (bool, int, float, complex, str, bytes, np.generic)
Numbers = Mapping[str, object]


@dataclass(frozen=True)
class Recording:
    """One recording of a body, and the kernel's numbers before and after it."""

    block: Block
    growth_bytes: int
    before: Numbers
    after: Numbers


def numbers(frame: FrameType | None) -> Numbers:
    """What the variables of the kernel and its helpers lead to that Python can count
    with, by name; those of the innermost frame first."""
    found: dict[str, object] = {}
    while frame is not None and not is_internal(frame.f_code.co_filename):
        for name, value in frame.f_locals.items():
            for path, number in _reached(name, value, _DEEPEST):
                found.setdefault(path, number)
        frame = frame.f_back
    return found


def _reached(path: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, _COUNTERS):
        yield path, value
    elif isinstance(value, Index):
        yield path, str(value)
    elif isinstance(value, np.ndarray) and value.nbytes <= _LARGEST_BYTES:
        yield path, (value.shape, value.dtype.str, value.tobytes())
    elif depth:
        for name, part in _parts(path, value):
            yield from _reached(name, part, depth - 1)


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """What a container, an object or a function holds. kbjax's own objects, modules and
    classes change for reasons of their own."""
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", one) for key, one in value.items())
    elif isinstance(value, list | tuple):
        if all(isinstance(one, _COUNTERS) for one in value):
            yield f"len({path})", len(value)
        yield from ((f"{path}[{n}]", one) for n, one in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield f"len({path})", len(value)
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        for name, cell in cells:
            try:
                yield name, cell.cell_contents
            except ValueError:  # not set yet
                continue
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif not isinstance(value, type | types.ModuleType) and not _is_ours(value):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f"{path}.{name}", one) for name, one in attributes.items())


def _is_ours(value: object) -> bool:
    return type(value).__module__.split(".")[0] in ("kbjax", "jax", "jaxlib")


def check_alike(
    first: Recording, second: Recording, loop_name: str, site: Site
) -> None:
    """Refuse a body whose second recording is another.

    Raises:
      KernelError: naming what changed.
    """
    if (first.block, first.growth_bytes) == (second.block, second.growth_bytes):
        # A counter that no command has seen yet would be seen after the loop.
        counted = _changed(second.before, second.after, loop_name)
        if counted:
            raise errors.KernelError(
                "the body of this tl.range is recorded twice, whatever the trip count, "
                f"and counts in Python: {', '.join(counted)}",
                site=site,
                remedy="Compute it from the loop's bounds, keep it in a tile written "
                "with tl.copy_to, or unroll with tl.static_range",
            )
        return
    changed = _changed(first.before, second.before, loop_name)
    a, b = _first_difference(first.block, second.block)
    shown = f" ({', '.join(changed)})" if changed else ""
    if str(a) == str(b):
        got = f"`{a}` under other scopes or with other bytes in the second iteration"
    else:
        got = f"`{a}` in the first iteration, `{b}` in the second"
    raise errors.KernelError(
        "the body of this tl.range changes from one iteration to the next, because it "
        f"carries Python state{shown}",
        site=_site_of(b) or _site_of(a) or site,
        got=got,
        remedy="Keep the state in a tile written with tl.copy_to, compute it from the "
        "loop index, or unroll with tl.static_range",
    )


def _changed(before: Numbers, after: Numbers, loop_name: str) -> list[str]:
    """Names of numbers that one recording left with another value. NaN is itself."""
    return [
        f"`{name}`: {_shown(before[name])}, then {_shown(value)}"
        for name, value in after.items()
        if name != loop_name and name in before and repr(before[name]) != repr(value)
    ]


def _shown(value: object) -> str:
    text = "an array" if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def name_of(wanted: Callable[[object], bool], names: Mapping[str, Any]) -> str:
    """The kernel's name of a value: a variable, or what leads to it from one."""

    def search(path: str, value: object, depth: int) -> str:
        if wanted(value):
            return path
        found = (
            (search(*part, depth - 1) for part in _parts(path, value)) if depth else ()
        )
        return next(filter(None, found), "")

    tries = (search(name, value, _DEEPEST) for name, value in names.items())
    return next(filter(None, tries), "")


def _first_difference(
    first: Block, second: Block
) -> tuple[Statement | str, Statement | str]:
    for a, b in zip(first, second, strict=False):
        if a != b:
            if isinstance(a, Loop | Scope) and type(a) is type(b):
                inner = _first_difference(a.body, b.body)
                if inner[0] != inner[1]:
                    return inner
            return a, b
    n = min(len(first), len(second))
    ends: list[Statement | str] = [
        block[n] if len(block) > n else "nothing" for block in (first, second)
    ]
    return ends[0], ends[1]


def _site_of(item: Statement | str) -> Site | None:
    return None if isinstance(item, str) else item.site
