"""Files that are whole or not there: what every export writes through.

A path is written to a temporary file beside it, which takes its name at the end; after
a failure or Ctrl-C the path is as it was. ``-`` is standard output; an object with a
`write` method, of text or of bytes, is written to as it is.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from kbjax import errors

Target = str | os.PathLike[str] | IO[Any]


@contextlib.contextmanager
def binary(target: Target) -> Iterator[IO[bytes]]:
    """A file of bytes that becomes `target` when the block ends without an exception.

    Args:
      target: a path (a link is followed; a device or pipe is written to directly),
        ``-``, or a file object that takes bytes, which is not closed.

    Raises:
      KbjaxError: naming the target and the reason, where it cannot be written.
    """
    with refusals(target):
        file = _file_object(target)
        if file is None:
            with _replacing(os.fspath(target)) as file:  # type: ignore[arg-type]
                yield file
        elif _takes_text(file):
            raise errors.KbjaxError(
                f"{name_of(target)} takes text, and this format is bytes",
                remedy='Give a path, or a file opened with mode "wb"',
            )
        elif isinstance(file, io.BufferedIOBase):
            yield file  # type: ignore[misc]
            file.flush()
        else:  # a raw file, whose `write` may write a part, or an object like a file
            raw = file if isinstance(file, io.RawIOBase) else _Raw(file)
            whole = io.BufferedWriter(raw)
            try:
                yield whole
            finally:
                whole.detach()  # after a flush; the file stays open


@contextlib.contextmanager
def text(target: Target) -> Iterator[Callable[[str], Any]]:
    """As `binary`, for text: a function that writes a piece of it, as UTF-8 and with
    line ends unchanged. Half of a surrogate pair, as in the name of a file that is not
    UTF-8, is written as its escape. A file object of text is given the text itself.
    """
    with refusals(target):
        file = _file_object(target)
        if file is not None and _takes_text(file):
            yield file.write
            _flush(file)
            return
    with binary(target) as file:
        yield codecs.getwriter("utf-8")(file, "backslashreplace").write


def write_text(target: Target, whole: str) -> int:
    """Write a text as `text` does; its size in bytes of UTF-8."""
    data = whole.encode("utf-8", "backslashreplace")
    with refusals(target):
        file = _file_object(target)
        if file is not None and _takes_text(file):
            file.write(whole)
            _flush(file)
            return len(data)
    with binary(target) as stream:
        stream.write(data)
    return len(data)


def check_keeps(
    option: str, target: Target, kept: Mapping[str, str | os.PathLike[str]]
) -> None:
    """Refuse a path of what a command reads, or writes besides.

    Args:
      option: that gives the target, as in ``--csv``.
      target: a path; nothing else can take a file's place.
      kept: what -> its path, as in ``{"the results": "s.sqlite"}``.

    Raises:
      KbjaxError: naming both.
    """
    if not isinstance(target, str | os.PathLike) or target == "-":
        return
    for what, path in kept.items():
        if _is_same(target, path):
            raise errors.KbjaxError(
                f"{option} {os.fspath(target)} would take the place of {what}",
                got=os.fspath(path),
                remedy="Give another path",
            )


def _is_same(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # one of them is not there
        return os.path.realpath(path) == os.path.realpath(other)


def name_of(target: Target) -> str:
    """What messages call it."""
    if hasattr(target, "write"):
        return str(getattr(target, "name", None) or f"a {type(target).__name__}")
    return "standard output" if target == "-" else str(target)


def _file_object(target: Target) -> Any:
    """The file object that is meant, or None for a path."""
    if target == "-":
        sys.stdout.flush()
        return getattr(sys.stdout, "buffer", sys.stdout)
    if not hasattr(target, "write"):
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
        if not isinstance(path, str) or not path or "\0" in path:
            raise errors.KbjaxError(
                f"cannot write to {target!r}",
                allowed='a path, "-" for standard output, or a file object',
            )
        return None
    if getattr(target, "closed", False):
        raise errors.KbjaxError(
            f"{name_of(target)} is closed", remedy="Give a path, or an open file"
        )
    if not getattr(target, "writable", lambda: True)():
        raise errors.KbjaxError(
            f"{name_of(target)} is open for reading only",
            remedy='Give a path, or a file opened with mode "w" or "wb"',
        )
    return target


def _takes_text(file: Any) -> bool:
    try:
        file.write("")
    except TypeError:
        return False
    return True


class _Raw(io.RawIOBase):
    """An object that has only a `write` that takes all, as a file."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        _flush(self._file)


def _flush(file: Any) -> None:
    """What a file object that has only `write` does not need."""
    getattr(file, "flush", lambda: None)()


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    if os.path.exists(path) and not os.path.isfile(path):
        # A device or pipe, whose link may lead to no path; a directory is refused.
        with open(path, "wb") as file:
            yield file
        return
    if path.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(8)}.tmp")
    if os.path.exists(path):
        open(path, "r+b").close()  # a file that may not be written is not replaced
    try:
        with open(temporary, "xb") as file:
            yield file
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def refusals(target: Target) -> Iterator[None]:
    """What the system says about `target`, as a message."""
    try:
        yield
    except OSError as error:
        name = name_of(target)
        reason = error.strerror or str(error)
        raise errors.KbjaxError(
            f"cannot write {name}: {reason}", remedy=_remedy(error, name)
        ) from error


def _remedy(error: OSError, name: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Make the folder {os.path.dirname(name) or '.'} first"
    if isinstance(error, IsADirectoryError):
        return "Give the path of a file in it"
    if isinstance(error, BrokenPipeError):
        return "Keep the reader open until all is written"
    if os.path.exists(name) and not os.path.isfile(name):  # a device or pipe
        return "Give another path"
    return "Give another path; what was there before is unchanged"
