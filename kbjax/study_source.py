"""Where a study comes from: a TOML file, which runs no code, or a Python file."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from kbjax import errors, user_files
from kbjax.hardware import Hardware
from kbjax.hardware_toml import Source
from kbjax.names import shown, unknown
from kbjax.shipped import kernel_names
from kbjax.study import Study

_KEYS = ("name", "kernel", "do", "seed", "hardware", "sizes", "axes", "kernels")
_MOST_BYTES = 16 << 20  # of a file: more is no study, but /dev/zero perhaps


def read(path: str) -> Study:
    """The study of a file: of Python where it is called so, else of TOML. Raises as
    `from_toml` and `from_python`."""
    return from_python(path) if path.endswith(".py") else from_toml(path)


def from_toml(path: str | os.PathLike[str]) -> Study:
    """Read a study; see docs/studies.md. No code is run: kernels are shipped ones.

    Raises:
      KernelError: for a file that cannot be read or is no TOML, and for an unknown key,
        with the nearest one.
      ShapeError: for a value out of range. All name the file.
    """
    source = Source(str(path), _text(path))
    tables = source.tables()
    for key in tables:
        with source.errors_at(key):
            if key not in _KEYS:
                raise unknown(f"a study has no {shown(key)}", key, _KEYS)
    with source.errors_at("hardware"):
        on = tables.get("hardware", "default")
        if isinstance(on, str) and on not in Hardware.profiles():
            beside = Path(path).parent / on
            if on.endswith(".toml") or os.sep in on:
                on = str(beside)
            tables["hardware"] = on
    with source.errors_at():
        tables.setdefault("name", Path(path).stem)
        tables.setdefault("axes", {})
        found = Study(**tables)
        for kernel in found.kernel_names:
            if ":" in kernel or kernel.endswith(".py"):
                raise errors.KernelError(
                    "a study in TOML runs no files of code",
                    got=f"the kernel {shown(kernel)}",
                    allowed="kernels that `kbjax kernels` lists",
                    remedy="Write the study in Python: study = Study(...)",
                )
            if kernel not in kernel_names():
                raise unknown(f"there is no kernel {kernel!r}", kernel, kernel_names())
        return found


def from_python(path: str | os.PathLike[str]) -> Study:
    """Run a Python file, and take the `study` that it defines. Kernels of it that are
    files are looked for beside it, unless it says of which folder they are.

    Raises:
      KernelError: where it cannot be read, defines none, or raises an exception, naming
        the line.
    """
    file = os.path.abspath(path)
    try:
        found = getattr(user_files.module_at(file), "study", None)
    except errors.KbjaxError as error:
        raise user_files.located(error) from None
    except (Exception, SystemExit) as error:
        if (refusal := user_files.raised(error)) is not None:
            raise refusal from error
        raise
    if not isinstance(found, Study):
        raise errors.KernelError(
            f"{path} defines no study",
            got=shown(found),
            remedy="Write study = kbjax.study.Study(...)",
        )
    folder = found.folder or os.path.dirname(file)
    return dataclasses.replace(found, folder=folder)


def _text(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            return data.decode("utf-8-sig").replace("\r\n", "\n")
        reason = f"it has more than {_MOST_BYTES:,} bytes"
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text: {error.reason} at byte {error.start}"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    raise errors.KernelError(
        f"cannot read the study {str(path)!r}: {reason}",
        allowed="a TOML file, or a Python file that defines `study`",
        remedy="docs/studies.md has one to start from",
    )
