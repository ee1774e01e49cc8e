"""What the fields of a hardware description take: ranges of numbers, and frozen tables.

A field's dataclass metadata holds its `Range` or `Table` under "allowed"; the units of
`kbjax.hardware` and the reader of TOML files check with the same functions.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from kbjax import errors
from kbjax.names import shown, unknown


@dataclass(frozen=True)
class Range:
    """Finite numbers from `lowest` (itself excluded where `above`) to `highest`.

    Attributes:
      whole: whether only integers are allowed.
      words: how a message describes the range.
    """

    words: str
    lowest: float = 0
    above: bool = False
    highest: float = sys.float_info.max
    whole: bool = False

    def checked(self, path: str, value: object) -> int | float:
        """`value` as a Python number; NumPy scalars are taken by value.

        Args:
          path: the field's name in messages, as in ``pe_dma.latency_ns``.
          value: a Python or NumPy integer or float.

        Raises:
          ShapeError: for what is no such number.
        """
        number = _python_number(value)
        if number is not None and (isinstance(number, int) or not self.whole):
            # A NaN is in no range, nor an infinity, nor an integer that no float holds.
            low = self.lowest < number or (self.lowest == number and not self.above)
            if low and number <= self.highest:
                return number
        raise errors.ShapeError(
            f"{path} is out of range", got=shown(value), allowed=self.words
        )


def _python_number(value: object) -> int | float | None:
    """A Python or NumPy integer or float as Python's own; None for all else."""
    if isinstance(value, bool | np.timedelta64):  # which are kinds of integers
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if isinstance(value, float | np.floating) else None


@dataclass(frozen=True)
class Table:
    """Tables from known names to numbers.

    Attributes:
      keys: the names.
      entries: the range of the numbers.
      words: what the names are, for messages.
    """

    keys: tuple[str, ...]
    entries: Range
    words: str

    def checked(self, path: str, value: object) -> FrozenTable:
        """A frozen copy of `value`, every entry checked.

        Raises:
          KernelError: for what is no mapping, and for a name that is none of `keys`.
          ShapeError: for a number out of range.
        """
        if not isinstance(value, Mapping):
            refuse_no_table(path, value, self.words)
        return FrozenTable(
            {key: self.entry(path, key, number) for key, number in value.items()}
        )

    def entry(self, path: str, key: object, number: object) -> int | float:
        """The checked number of one entry of the table at `path`; raises as above."""
        if key not in self.keys:
            raise unknown(f"hardware has no {path}.{key}", key, self.keys)
        return self.entries.checked(f"{path}.{key}", number)


class FrozenTable(dict[str, Any]):
    """A dict that nothing changes: hashable, and equal to a dict of its entries.

    It is a dict so that JSON and `dataclasses.asdict` take it. `copy()` and `|` give
    plain dicts.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def _frozen(self, *args: Any, **named: Any) -> NoReturn:
        raise TypeError("a hardware's tables are frozen; use dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = _frozen
    clear = pop = popitem = setdefault = update = _frozen


def check_fields(unit: Any, prefix: str = "") -> None:
    """Check every field of a frozen dataclass in its `__post_init__`, and set it to the
    Python number or frozen table that it is.

    Raises:
      KernelError, ShapeError: see `Range.checked` and `Table.checked`.
    """
    for field in dataclasses.fields(unit):
        value = getattr(unit, field.name)
        value = field.metadata["allowed"].checked(prefix + field.name, value)
        object.__setattr__(unit, field.name, value)


def refuse_no_table(path: str, value: object, words: str) -> NoReturn:
    """Raise the KernelError of a value where a table of `words` belongs."""
    raise errors.KernelError(
        f"{path} must be a table", got=shown(value), allowed=f"a table of {words}"
    )
