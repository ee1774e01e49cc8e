"""Every exception a user can meet, built from fields.

A message says where (the kernel's file and line), what went wrong, what was got, what
is allowed, and what to do.
"""

from __future__ import annotations

from typing import Any

from kbjax import overflow as overflow_text
from kbjax.overflow import Overflow
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

    def at(self, site: Site) -> KbjaxError:
        """This error, changed to be said of this line."""
        self.site = site
        self.args = (self._message(),)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON: the message, and the fields that it is made of."""
        return {
            "class": type(self).__name__,
            "message": str(self),
            "file": self.site.file if self.site else None,
            "line": self.site.line if self.site else None,
            "problem": self.problem,
            "got": None if self.got is None else str(self.got),
            "allowed": None if self.allowed is None else str(self.allowed),
            "remedy": self.remedy,
        }

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


class UnknownOpError(KernelError, AttributeError):
    """A name that `tl` does not have; `hasattr` finds it missing."""


class ScratchOverflowError(KbjaxError, RuntimeError):
    """The bump cursor would pass the end of the scratch budget.

    The fields of the event are in `.overflow`.
    """

    def __init__(self, overflow: Overflow, *, site: Site | None = None) -> None:
        self.overflow = overflow
        remedy = overflow_text.remedy(overflow)
        super().__init__("scratch overflow", site=site, remedy=remedy)

    def _message(self) -> str:
        return f"{overflow_text.message(self.overflow, self.site)}\n{self.remedy}."

    def to_dict(self) -> dict[str, Any]:
        """As of any error, with the fields of the event under `overflow`."""
        return {**super().to_dict(), "overflow": self.overflow.to_dict()}
