"""When messages between PEs arrive, while the PEs' schedules are made."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Sent(NamedTuple):
    """When a send ends, in ps; the PE and the number of its command."""

    end_ps: int
    pe: int
    number: int


@dataclass
class Mail:
    """What has been sent and received. A message arrives where its send ends.

    Attributes:
      num_pes: n; 1 where all PEs do the same at the same time, and each may take its
        own message for that of another.
      sent_by: for a receive that waited for its message, by PE and number, the PE and
        the number of its send.
    """

    num_pes: int = 1
    sent_by: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _boxes: defaultdict[tuple[int, int], deque[Sent]] = field(
        default_factory=lambda: defaultdict(deque)
    )  # by receiver and offset

    def send(self, pe: int, offset: int, sent: Sent) -> None:
        """Send to PE (pe + offset) % n."""
        self._boxes[(pe + offset) % self.num_pes, offset].append(sent)

    def take(self, pe: int, offset: int) -> Sent | None:
        """Take the next message that was sent to the PE with the offset; None, and
        nothing taken, where it has not been sent yet."""
        box = self._boxes[pe, offset]
        return box.popleft() if box else None
