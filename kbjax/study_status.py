"""How far a point of a study is, in the words of results files and exports."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """In the order in which they are counted for people."""

    DONE = "done"
    FAILED = "failed"  # kbjax refused it: it does not fit, or is no such case
    ERROR = "error"  # any other exception, or the end of its worker
    RUNNING = "running"
    PENDING = "pending"

    @property
    def is_finished(self) -> bool:
        """Whether nothing more happens to it, unless it is asked to be done again."""
        return self not in (Status.RUNNING, Status.PENDING)


AGAIN = (Status.FAILED, Status.ERROR)  # what --retry-failed does again
