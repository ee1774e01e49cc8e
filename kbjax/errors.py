"""Every exception a user can meet, built from fields.

A message is one paragraph: where (the kernel's file and line), what went wrong, what
was got, what is allowed, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kbjax.site import Site


class KbjaxError(Exception):
    """Base of all errors that kbjax raises for a user's mistake.

    Args:
      problem: one clause without a full stop.
      site: the kernel line, or None where no kernel is running.
      got: what was passed.
      allowed: what would have been accepted.
      remedy: what to do, an imperative sentence without a full stop.
    """

    is_for_the_user = True  # shown without kbjax's own frames

    def __init__(
        self,
        problem: str,
        *,
        site: Site | None = None,
        got: object = None,
        allowed: object = None,
        remedy: str = "",
    ) -> None:
        self.problem, self.site, self.remedy = problem, site, remedy
        self.got, self.allowed = got, allowed
        super().__init__(self._message())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def _message(self) -> str:
        where = f"{self.site}: " if self.site else ""
        parts = [f"{where}{self.problem}."]
        if self.got is not None:
            parts.append(f"Got {self.got}.")
        if self.allowed is not None:
            parts.append(f"Allowed: {self.allowed}.")
        if self.remedy:
            parts.append(f"{self.remedy}.")
        return " ".join(parts)


def _restored(
    kind: type[KbjaxError], args: tuple[Any, ...], fields: dict[str, Any]
) -> KbjaxError:
    """An error that came through pickle, from a worker process say."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UseAfterScopeError(KbjaxError, RuntimeError):
    """A handle was used after the scope or loop iteration that owned its bytes."""


class UninitializedReadError(KbjaxError, RuntimeError):
    """A handle was read before anything was written to it."""


class HazardError(KbjaxError, RuntimeError):
    """Bytes in flight, or bytes of another PE, were touched."""


class ShapeError(KbjaxError, ValueError):
    """Shapes, axes, steps or counts that do not fit."""


class DTypeError(KbjaxError, TypeError):
    """An element type that an op does not take."""


class MemorySpaceError(KbjaxError, ValueError):
    """An HBM tensor where a TCM handle belongs, or the reverse."""


class OutOfBoundsError(KbjaxError, IndexError):
    """A view that leaves its tensor."""


class KernelError(KbjaxError, RuntimeError):
    """Any other mistake in a kernel."""


@dataclass(frozen=True)
class LiveGroup:
    """Live allocations made by one kernel line: `count` of them, `nbytes` in all."""

    site: Site
    op: str
    count: int
    nbytes: int
    scoped: bool

    def __str__(self) -> str:
        where = "inside a scope" if self.scoped else "outside any scope"
        each = self.nbytes // self.count
        return f"{self.count} x {each:,} B from {self.site} ({self.op}, {where})"


@dataclass(frozen=True)
class Overflow:
    """What was asked of the scratch, and what it held. Sizes in bytes.

    `iterations` lists (loop line, iteration from 0), outermost loop first.
    """

    op: str
    requested_bytes: int
    aligned_bytes: int
    cursor_bytes: int
    budget_bytes: int
    iterations: tuple[tuple[Site, int], ...] = ()
    scopes: tuple[Site, ...] = ()
    live: Sequence[LiveGroup] = field(default=())

    @property
    def free_bytes(self) -> int:
        return self.budget_bytes - self.cursor_bytes


class ScratchOverflowError(KbjaxError, RuntimeError):
    """The bump cursor would pass the end of the scratch budget.

    The fields of the event are in `.overflow`.
    """

    def __init__(self, overflow: Overflow, *, site: Site | None = None) -> None:
        self.overflow = overflow
        super().__init__("scratch overflow", site=site, remedy=_remedy(overflow))

    def _message(self) -> str:
        o = self.overflow
        at = "".join(
            f" in iteration {i} of the loop at {line}" for line, i in o.iterations
        )
        where = f" at {self.site}" if self.site else ""
        padding = o.aligned_bytes - o.requested_bytes
        parts = [
            f"TLContext scratch overflow: {o.op}{where}{at} asks for "
            f"{o.requested_bytes:,} B (+{padding} B padding) at cursor "
            f"{o.cursor_bytes:,} B, with {max(o.free_bytes, 0):,} B free of a budget "
            f"of {o.budget_bytes:,} B ({o.budget_bytes / 2**20:g} MiB)."
        ]
        if o.live:
            largest = sorted(o.live, key=lambda group: -group.nbytes)[:3]
            parts.append("Largest live: " + "; ".join(map(str, largest)) + ".")
        return " ".join([*parts, f"{self.remedy}."])


def _remedy(overflow: Overflow) -> str:
    if overflow.aligned_bytes > overflow.budget_bytes:
        return "No scope can help: take a smaller tile, or raise kernel_scratch_mb"
    if overflow.scopes:
        return (
            f"The scope of {overflow.scopes[-1]} is rewound only at its end: nest "
            "another tl.scratch_scope() inside it, or take a smaller tile"
        )
    return (
        "Put the work of one tile inside `with tl.scratch_scope():` and keep running "
        "state outside it with tl.copy_to"
    )
