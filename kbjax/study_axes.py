"""What an axis of a study takes: a list, or a range of steps or of factors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kbjax import errors
from kbjax.names import shown, unknown

MOST_VALUES = 100_000  # of one axis, and points of a study
_RANGE = ("from", "to", "step", "factor")
_FORMS = (
    "a list of values, or {from =, to =, step =} or {from =, to =, factor =}, "
    "both ends included"
)
_WHOLE = 2**63  # SQLite's and Arrow's integers are below


def values(name: str, given: object) -> tuple[Any, ...]:
    """The values of the axis `name`, in order.

    Args:
      name: for messages.
      given: a list, or a mapping of ``from``, ``to`` and one of ``step``, ``factor``.

    Raises:
      KernelError: for what is neither, for an unknown key, and for a value twice.
      ShapeError: for an axis of no values, or of too many.
    """
    found: list[Any]
    if isinstance(given, Mapping):
        found = [*_stepped(name, given)]
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        found = [value_of(name, one) for one in given]
    else:
        _refuse(f"the axis {name} is no axis", shown(given), _FORMS)
    if not found:
        raise errors.ShapeError(f"the axis {name} has no values", allowed=_FORMS)
    if len(found) > MOST_VALUES:
        _refuse_many(name, len(found))
    seen = set()
    for one in found:
        same = ("number", one) if _is_number(one) else (type(one).__name__, one)
        if same in seen:
            _refuse(f"the axis {name} has a value twice", shown(one), "each once")
        seen.add(same)
    return tuple(found)


def value_of(name: str, value: object) -> int | float | bool | str:
    """A size's value, checked.

    Raises:
      KernelError: for what is no number, true, false or printable text.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _WHOLE:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= 1_000 and value.isprintable():
        return value
    _refuse(
        f"{name} is no size",
        shown(value),
        "integers below 2**63, finite numbers, true, false, or printable text",
    )


def canonical(value: object) -> str:
    """JSON that is the same for equal values: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _stepped(name: str, given: Mapping[Any, Any]) -> list[int | float]:
    for key in given:
        if key not in _RANGE:
            raise unknown(f"the axis {name} has no {shown(key)}", key, _RANGE)
    by = [key for key in ("step", "factor") if key in given]
    if len(by) != 1 or "from" not in given or "to" not in given:
        _refuse(f"the axis {name} is no range", ", ".join(map(str, given)), _FORMS)
    for key, number in given.items():
        if not _is_number(number) or not math.isfinite(number) or abs(number) >= _WHOLE:
            _refuse(f"{key} of the axis {name} is no number", shown(number), _FORMS)
    first, last, stride = given["from"], given["to"], given[by[0]]
    if by == ["step"]:
        if stride <= 0:
            _refuse_stride(name, "step", stride, "> 0")
        count = math.floor((last - first) / stride + 1e-9) + 1
        if count > MOST_VALUES:
            _refuse_many(name, count)
        return _whole(first, [first + n * stride for n in range(count)])
    if stride <= 1 or first <= 0:
        _refuse_stride(name, "factor", stride, "> 1, from a number > 0")
    found: list[int | float] = []
    while first <= last and len(found) <= MOST_VALUES:
        found.append(first)
        first = first * stride
    return _whole(given["from"], found)


def _whole(first: int | float, found: list[int | float]) -> list[int | float]:
    """From an integer on, whole values as integers: a step or factor of 1.5 gives sizes
    where it can."""
    if not isinstance(first, int):
        return found
    return [int(value) if value == int(value) else value for value in found]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse(problem: str, got: object, allowed: str) -> NoReturn:
    raise errors.KernelError(problem, got=got, allowed=allowed)


def _refuse_stride(name: str, key: str, stride: object, allowed: str) -> NoReturn:
    raise errors.ShapeError(
        f"{key} of the axis {name} is out of range", got=shown(stride), allowed=allowed
    )


def _refuse_many(name: str, count: int) -> NoReturn:
    raise errors.ShapeError(
        f"the axis {name} has too many values",
        got=count,
        allowed=f"up to {MOST_VALUES}",
    )
