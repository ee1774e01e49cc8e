"""Names in messages: which of those that there are may be meant by one that is none,
and text of users as a terminal may be given it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kbjax import errors


def unknown(
    problem: str, name: object, known: Iterable[str], *, or_else: str = ""
) -> errors.KernelError:
    """The refusal of a name, with those that there are and the nearest of them.

    Args:
      problem: what is said of it, as in "there is no kernel 'gemm'".
      name: what was given.
      known: the names that there are, in the order of the message.
      or_else: what may be given besides a name.
    """
    known = list(known)
    return errors.KernelError(
        problem,
        allowed=", ".join(known + [or_else] * bool(or_else)) or "none",
        remedy=f"The nearest is {nearest(str(name), known)}" if known else "",
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The spelling among `known` that is most like `name`."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def shown(value: object) -> str:
    """`value` for a message, in at most one short line."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "an integer of too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def printable(text: str, keep: str = "") -> str:
    """`text` with what moves a cursor or changes a colour as its escape, but for the
    characters to keep."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)
