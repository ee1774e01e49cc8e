"""Python state that a kernel carries from one iteration of a rolled loop to the next.

A body is recorded twice; the second recording must equal the first, and must leave the
numbers that the kernel can reach as the first one did. What a kernel counts where no
variable leads (inside C code, or a generator expression) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

from kbjax import errors, expr, reach
from kbjax.expr import Var
from kbjax.handle import HbmView, Slice, TensorHandle
from kbjax.index import Index
from kbjax.program import Block, Loop, Scope, Statement
from kbjax.site import Site


@dataclass(frozen=True)
class Snapshot:
    """What the kernel's variables lead to at one moment, by name.

    Attributes:
      numbers: what Python can count with, in a form that compares.
      shown: the same and tiles, as text.
    """

    numbers: Mapping[str, object]
    shown: Mapping[str, str]


def snapshot(frame: FrameType | None) -> Snapshot:
    """Of the kernel and its helpers; a name in an inner frame hides an outer one."""
    numbers: dict[str, object] = {}
    shown: dict[str, str] = {}
    for name, value in reach.values(frame):
        if name in shown:
            continue
        if isinstance(value, TensorHandle):
            shown[name] = f"the tile {value} (%{value.ref.root})"
            continue
        found = reach.number(value)
        if found is not None:
            numbers[name] = found
            shown[name] = "an array" if isinstance(found, tuple) else str(value)
    return Snapshot(numbers, shown)


@dataclass(frozen=True)
class Recording:
    """One recording of a body, and the kernel's variables before and after it."""

    block: Block
    growth_bytes: int
    before: Snapshot
    after: Snapshot


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
    changed = (
        _changed(first.before, second.before, loop_name)
        or _changed(second.before, second.after, loop_name)
        or _other_tiles(first.before, second.before, loop_name)
    )
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


def _changed(before: Snapshot, after: Snapshot, loop_name: str) -> list[str]:
    """Names of numbers that changed from one moment to the next."""
    old = before.numbers
    names = [n for n, new in after.numbers.items() if n in old and old[n] != new]
    return _listed(names, before, after, loop_name)


def _other_tiles(before: Snapshot, after: Snapshot, loop_name: str) -> list[str]:
    """Names that held something else before, a tile before or after."""
    old, new = before.shown, after.shown
    names = [n for n in new if n in old and old[n] != new[n]]
    return _listed(names, before, after, loop_name)


def _listed(
    names: list[str], before: Snapshot, after: Snapshot, loop_name: str
) -> list[str]:
    return [
        f"`{n}`: {_short(before.shown[n])}, then {_short(after.shown[n])}"
        for n in names
        if n != loop_name
    ]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def name_of(wanted: Callable[[object], bool], frame: FrameType | None) -> str:
    """The kernel's name of a value: a variable, or what leads to it from one."""
    return next((name for name, value in reach.values(frame) if wanted(value)), "")


def is_made_with(variable: Var) -> Callable[[object], bool]:
    """Whether a value is an index, a slice or a view that holds this very variable."""

    def made(value: object) -> bool:
        if isinstance(value, Index):
            found = [value.expr]
        elif isinstance(value, Slice):
            found = [value.start]
        elif isinstance(value, HbmView):
            found = [span.start for span in value.ref.spans]
        else:
            return False
        return any(one is variable for one in expr.variables(*found))

    return made


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
