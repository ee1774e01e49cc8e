"""Hardware files: reading TOML with errors that name the file and line, writing it, and
the profiles that ship in `kbjax/profiles`.

Knows frozen dataclasses of ranges (`kbjax.ranges`), not which units there are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kbjax import errors, ranges
from kbjax.names import shown, unknown
from kbjax.site import Site

T = TypeVar("T")


@dataclass(frozen=True)
class Line(Site):
    """A line of a hardware file; prints with the path, as ``folder/my.toml:12``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Source:
    """A hardware file.

    Attributes:
      name: its path, as given, for messages.
      text: what it holds.
    """

    name: str
    text: str

    def tables(self) -> dict[str, Any]:
        """The file's tables.

        Raises:
          KernelError: for what is not TOML, with the line.
        """
        try:
            return tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "nested too deep"
            found = re.search(r"at (?:line (\d+)|end of document)", reason)
            last = self.text.count("\n") + 1
            line = int(found[1] or last) if found else None
        raise self._at(errors.KernelError(f"this is not TOML: {reason}"), line)

    @contextlib.contextmanager
    def errors_at(self, *keys: str) -> Iterator[None]:
        """Errors inside name the file, and the line of the entry `keys` if there is
        one."""
        try:
            yield
        except errors.KbjaxError as error:
            raise self._at(error, self.line_of(keys)) from None

    def line_of(self, keys: tuple[str, ...]) -> int | None:
        """The line that defines the entry `keys`, counted from 1; None where it is not
        one line of its own.

        tomllib tells no lines: this is the first line that has the key's text and with
        which the file so far is TOML that has the entry.
        """
        lines = self.text.split("\n")
        for n, line in enumerate(lines, 1):
            if keys and keys[-1] in line:
                with contextlib.suppress(ValueError, RecursionError):
                    if _has(tomllib.loads("\n".join(lines[:n])), keys):
                        return n
        return None

    def _at(self, error: errors.KbjaxError, line: int | None) -> errors.KbjaxError:
        """The same error with the file, and the line where it is known."""
        return type(error)(
            error.problem if line else f"{self.name}: {error.problem}",
            site=Line(self.name, line) if line else None,
            got=error.got,
            allowed=error.allowed,
            remedy=error.remedy,
        )


def _has(table: object, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(table, Mapping) or key not in table:
            return False
        table = table[key]
    return True


def read(path: str | os.PathLike[str]) -> Source:
    """The file at `path`; a byte order mark is dropped.

    Raises:
      KernelError: where there is none, or it cannot be read as UTF-8.
    """
    name = str(path)
    try:
        return Source(name, Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text: {error.reason} at byte {error.start}"
    except OSError as error:
        reason = error.strerror or str(error)
    except (TypeError, ValueError) as error:  # no path, or one with a NUL in it
        reason = str(error)
    raise errors.KernelError(
        f"cannot read the hardware file {name!r}: {reason}",
        allowed="a TOML file",
        remedy="`kbjax hardware default` prints one to start from",
    )


def fill(
    target: T,
    table: Mapping[str, Any],
    source: Source,
    keys: tuple[str, ...] = (),
    complete: bool = False,
) -> T:
    """`target` with what `table` says.

    Args:
      target: a frozen dataclass, of units or of one unit's fields.
      table: new values, by field.
      source: the file that `table` comes from.
      keys: where in the file `table` is.
      complete: whether every field must be there, and a table field is what the file
        says; else its entries are added to those that `target` has.

    Raises:
      KernelError: for an unknown or missing key.
      ShapeError: for a value out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(target)}  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in table.items():
        here = (*keys, key)
        path = ".".join(here)
        current = getattr(target, key, None)
        allowed = fields[key].metadata.get("allowed") if key in fields else None
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                with source.errors_at(*here):
                    ranges.refuse_no_table(path, value, "a unit's fields")
            changes[key] = fill(current, value, source, here, complete)
            continue
        if isinstance(allowed, ranges.Table) and isinstance(value, Mapping):
            for name, entry in value.items():
                with source.errors_at(*here, name):
                    allowed.entry(path, name, entry)
            changes[key] = value if complete else {**(current or {}), **value}
            continue
        with source.errors_at(*here):
            if allowed is None:
                raise unknown(f"hardware has no {path}", key, fields)
            changes[key] = allowed.checked(path, value)
    missing = [name for name in fields if name not in table]
    with source.errors_at(*keys):
        if complete and missing:
            raise errors.KernelError(
                f"the file has no {'.'.join((*keys, missing[0]))}",
                allowed='only a file that does not say base = "none" leaves keys out',
                remedy=f"Add {', '.join(missing)}",
            )
        return dataclasses.replace(target, **changes)  # type: ignore[type-var]


def text_of(tables: Mapping[str, Any]) -> str:
    """`tables` as TOML."""
    import tomli_w  # only those who write a file wait for it

    return tomli_w.dumps(tables)


# --- profiles ------------------------------------------------------------------------


def profile_names() -> tuple[str, ...]:
    """The profiles that ship with kbjax, in alphabetical order."""
    from importlib import resources

    files = resources.files("kbjax").joinpath("profiles").iterdir()
    suffix = ".toml"
    return tuple(
        sorted(f.name.removesuffix(suffix) for f in files if f.name.endswith(suffix))
    )


def profile(name: str) -> Source:
    """The file of a shipped profile.

    Raises:
      KernelError: for a name that is none, with the nearest.
    """
    from importlib import resources

    names = profile_names()
    if name not in names:
        raise unknown(
            f"there is no hardware profile {shown(name)}", name, names,
            or_else="or a file by its path, which ends in .toml or has a /",
        )  # fmt: skip
    file = resources.files("kbjax").joinpath("profiles", f"{name}.toml")
    return Source(f"profiles/{name}.toml", file.read_text(encoding="utf-8"))


def about(name: str) -> str:
    """The first line of a shipped profile's comment."""
    return profile(name).text.partition("\n")[0].removeprefix("#").strip()
