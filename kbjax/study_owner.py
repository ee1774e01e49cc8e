"""Who runs a point: an owner in this process, and whether one of any still lives."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from pathlib import Path

LEASE_S = 120.0  # without a heartbeat, of an owner that cannot be looked up


_NUMBERS = itertools.count()
_HERE: set[str] = set()  # owners of this process that still work


def enter() -> str:
    """A new owner in this process, ``place|pid|start|number``: no other has or had the
    same, in this process or another one."""
    pid = os.getpid()
    owner = f"{_place()}|{pid}|{_start(pid)}|{next(_NUMBERS)}"
    _HERE.add(owner)
    return owner


def leave(owner: str) -> None:
    """End an owner of this process: what it still claims is free."""
    _HERE.discard(owner)


def is_gone(owner: str, heartbeat: float) -> bool:
    """Whether who claimed a point works no more.

    A process of this place is looked up, so one that is stopped keeps its points, and
    the points of one that was killed are free at once. Of another place (a container,
    the machine before it was started anew) only the heartbeat is known.

    Args:
      owner: as `enter` gave it there.
      heartbeat: seconds since 1970 when it last said that it runs.
    """
    place, _, rest = owner.partition("|")
    pid, _, rest = rest.partition("|")
    start, _, _ = rest.partition("|")
    if place == _place() and pid.isdigit():
        if int(pid) == os.getpid() and start == _start(os.getpid()):
            return owner not in _HERE
        return not _lives(int(pid)) or (bool(start) and _start(int(pid)) != start)
    return abs(time.time() - heartbeat) > LEASE_S


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    # A zombie is dead, only nobody has asked yet.
    return _stat(pid)[:1] != ["Z"]


def _place() -> str:
    """Where process ids mean the same: a host since its start, and a container."""
    parts = [socket.gethostname().replace("|", "_")]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def _start(pid: int) -> str:
    """When the process was started, in clock ticks; empty where it is not known."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; empty where there is none."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()
    return []
