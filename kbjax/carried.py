"""Python state that a kernel carries from one iteration of a rolled loop to the next,
or out of a `when`.

A body is recorded twice; the second recording must equal the first, and must leave the
numbers that the kernel can reach as the first one did. What a kernel counts where no
variable leads (inside C code, or a generator expression) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from kbjax import errors, expr, reach
from kbjax.bytecode import Unread, unread, unread_after
from kbjax.expr import Var
from kbjax.handle import TensorHandle
from kbjax.index import Index
from kbjax.program import Block, Loop, Scope, Statement
from kbjax.site import Site
from kbjax.views import HbmView, Slice


@dataclass(frozen=True)
class Snapshot:
    """What the kernel's variables lead to at one moment, by key (kbjax.reach).

    Attributes:
      numbers: what Python can count with, and which tile, view or function a name
        holds, in a form that compares.
      shown: each as (name, text).
      unread: locals of the innermost frame whose value is carried nowhere.
    """

    numbers: Mapping[str, object]
    shown: Mapping[str, tuple[str, str]]
    unread: Unread

    def named(self, name: str) -> str | None:
        """What a name holds, as text."""
        return next((text for one, text in self.shown.values() if one == name), None)


def snapshot(frame: FrameType, made_in: Callable[[TensorHandle], bool]) -> Snapshot:
    """Of the kernel and its helpers, whose innermost runs a rolled loop or a `when`.
    Tiles that were `made_in` its body are left out of what compares."""
    numbers: dict[str, object] = {}
    shown: dict[str, tuple[str, str]] = {}
    for key, name, value, number in reach.values(frame):
        if reach.is_a(value, TensorHandle):
            shown[key] = name, f"the tile {value} (%{value.ref.root})"
            if made_in(value):
                continue
        if number is not None:
            numbers[key] = number
            shown[key] = name, reach.text(value)
            continue
        held = reach.identity(value)
        if held is not None:
            numbers[key] = held
            if key not in shown:
                shown[key] = name, str(value)
    return Snapshot(numbers, shown, unread(frame))


@dataclass(frozen=True)
class Recording:
    """One recording of a body, and the kernel's variables before and after it."""

    block: Block
    growth_bytes: int
    before: Snapshot
    after: Snapshot


def check_alike(
    first: Recording, second: Recording, loop: Var, runs: bool, site: Site
) -> None:
    """Refuse a body whose second recording is another, or that leaves other Python
    state than it found.

    Args:
      first, second: the recordings.
      loop: the loop's index.
      runs: whether it is certain that an iteration runs.
      site: of the loop.

    Raises:
      KernelError: naming what changed.
    """
    if (first.block, first.growth_bytes) == (second.block, second.growth_bytes):
        # State that no command has seen yet would be seen after the loop.
        counted = _changed(second.before, second.after, loop.name)
        if counted:
            raise errors.KernelError(
                "the body of this tl.range is recorded twice, whatever the trip count, "
                f"and counts in Python: {', '.join(counted)}",
                site=site,
                remedy="Compute it from the loop's bounds, keep it in a tile written "
                "with tl.copy_to, or unroll with tl.static_range",
            )
        left = [] if runs else _set_for_later(first.before, second.after, loop.name)
        if left:
            raise errors.KernelError(
                "this tl.range may run no iteration, and its body, which is recorded "
                f"all the same, sets what was set before: {', '.join(left)}",
                site=site,
                remedy="Give it another name in the body, keep it in a tile written "
                "with tl.copy_to, or use tl.static_range",
            )
        return
    changed = (
        _changed(first.before, second.before, loop.name)
        or _changed(second.before, second.after, loop.name, also_unread=True)
        or _other_tiles(first.before, second.before, loop.name)
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


def check_when(before: Snapshot, after: Snapshot, frame: FrameType, site: Site) -> None:
    """Refuse a `when` that leaves other Python state than it found.

    Args:
      before, after: the kernel's variables where its body begins and ends.
      frame: that leaves the body; what nothing reads from there on is left out.
      site: of the `with` statement.

    Raises:
      KernelError: naming what changed.
    """
    old = before.numbers
    unread_ = {
        reach.local(name, number)
        for number, one in enumerate(reach.frames_of(frame))
        for name in unread_after(one)
    }
    read = {key: new for key, new in after.numbers.items() if key not in unread_}
    keys = [key for key, new in read.items() if key in old and old[key] != new]
    changed = _listed(keys, before, after, "")
    for key in read.keys() - old.keys():
        name, text = after.shown[key]
        if key == reach.local(name):
            changed.append(f"`{name}`: {_short(text)}, first set here")
    if changed:
        raise errors.KernelError(
            "the body of this tl.when is recorded whether or not its condition holds, "
            f"and sets in Python what is used after it: {', '.join(changed)}",
            site=site,
            remedy="Keep it in a tile written with tl.copy_to, compute it from the "
            "condition, or use it in the body only",
        )


def _changed(
    before: Snapshot, after: Snapshot, loop_name: str, also_unread: bool = False
) -> list[str]:
    """Names of what changed from one moment to the next, and is carried."""
    old = before.numbers
    keys = [key for key, new in after.numbers.items() if key in old and old[key] != new]
    names = () if also_unread else after.unread.at_iteration
    local = {reach.local(name) for name in names}
    return _listed([k for k in keys if k not in local], before, after, loop_name)


def _set_for_later(before: Snapshot, after: Snapshot, loop_name: str) -> list[str]:
    """Locals that a body sets, and that something reads after the loop."""
    old = before.numbers
    keys = [
        key
        for key, new in after.numbers.items()
        if key in old and old[key] != new and key == reach.local(after.shown[key][0])
    ]
    unread_ = {reach.local(name) for name in after.unread.after_loop}
    return _listed([k for k in keys if k not in unread_], before, after, loop_name)


def _other_tiles(before: Snapshot, after: Snapshot, loop_name: str) -> list[str]:
    """Names that held something else before, a tile before or after."""
    old, new = before.shown, after.shown
    keys = [key for key in new if key in old and old[key] != new[key]]
    return _listed(keys, before, after, loop_name)


def _listed(
    keys: list[str], before: Snapshot, after: Snapshot, loop_name: str
) -> list[str]:
    found: dict[str, None] = {}  # one variable may be met in several ways
    for key in keys:
        (name, old), (_, new) = before.shown[key], after.shown[key]
        if name != loop_name:
            found[f"`{name}`: {_short(old)}, then {_short(new)}"] = None
    return [*found]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def name_of(wanted: Callable[[Any], bool], frame: FrameType | None) -> str:
    """The kernel's name of a value: a variable, or what leads to it from one."""
    return next((one.name for one in reach.values(frame) if wanted(one.value)), "")


def is_made_with(variable: Var) -> Callable[[object], bool]:
    """Whether a value is an index, a slice or a view that holds this very variable."""

    def made(value: Any) -> bool:
        if reach.is_a(value, Index):
            found = [value.expr]
        elif reach.is_a(value, Slice):
            found = [value.start]
            if value.by is not None:
                found.append(value.by.ref.offset)
        elif reach.is_a(value, HbmView):
            found = [span.start for span in value.ref.spans]
            found += [ref.offset for ref in value.ref.by]
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
