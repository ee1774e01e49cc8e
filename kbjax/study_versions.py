"""What a point was done with: versions, and the code of kbjax and of a user's kernel.

A study that is resumed after one of them changed has rows that may not be compared;
that is told, and the rows are kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterable
from importlib import resources

from kbjax.study_row import StudyRow

_PACKAGES = ("kbjax", "jax", "jaxlib", "numpy")


class StudyVersionsWarning(UserWarning):
    """A study is resumed with other versions or code than its rows were done with."""


def here(kernel: str) -> dict[str, str]:
    """Each of `study_row.VERSIONS` of this process, for points of a kernel.

    Args:
      kernel: shipped, or ``path.py:function``: of the file that it names, not of others
        that it imports, there is a hash.
    """
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from a clone
            found[package] = "not installed"
    found["kbjax_code"] = _kbjax_code()
    path, colon, _ = kernel.rpartition(":")
    found["kernel_file"] = "kbjax's"
    if colon:
        found["kernel_file"] = "not there"
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            found["kernel_file"] = _short(hashlib.sha256(file.read()))
    return found


def changed(rows: Iterable[StudyRow], now: dict[str, dict[str, str]]) -> list[str]:
    """What finished rows were done with that is another one now, a line each.

    Args:
      rows: of one study.
      now: kernel, as the rows call it -> `here` of it.
    """
    found = Counter(
        (name, version, now[row.parameters["kernel"]][name])
        for row in rows
        for name, version in row.versions.items()
        if version != now[row.parameters["kernel"]].get(name, version)
    )
    return [
        f"{name}: {then} of {_points(count)}, {today} now"
        for (name, then, today), count in found.items()
    ]


def mixed(rows: Iterable[StudyRow]) -> list[str]:
    """What rows of the same kernel were done with different ones of, a line each."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        for name, version in row.versions.items():
            at = (str(row.parameters["kernel"]), name)
            found.setdefault(at, Counter())[version] += 1
    lines = {
        f"{name}: " + ", ".join(f"{v} of {_points(n)}" for v, n in versions.items())
        for (_, name), versions in found.items()
        if len(versions) > 1
    }
    return sorted(lines)


def _points(count: int) -> str:
    return f"{count:,} point{'s' * (count != 1)}"


@functools.cache
def _kbjax_code() -> str:
    """A hash of all modules and kernels of kbjax, also of a clone."""
    found = hashlib.sha256()
    for package in ("kbjax", "kbjax.kernels"):
        files = resources.files(package).iterdir()
        for file in sorted(files, key=lambda file: file.name):
            if file.name.endswith(".py"):
                found.update(file.name.encode() + b"\0" + file.read_bytes())
    return _short(found)


def _short(found: hashlib._Hash) -> str:
    return f"sha256:{found.hexdigest()[:16]}"
