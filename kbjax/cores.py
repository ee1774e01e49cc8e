"""How many cores there are to use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that this process may run on; all of the machine's where its system
    does not say, as outside Linux. At least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
