"""Level: a loop whose next period is being run in forms (kbjax.machine), and why one
is run one iteration at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbjax import expr
from kbjax.expr import Var
from kbjax.forms import Form, Moment
from kbjax.program import Loop, has_messages, walk
from kbjax.steady import LONGEST_PERIOD


@dataclass
class Level:
    """A loop whose next period is being run in forms.

    Attributes:
      index: the loop's variable.
      step: iterations a period.
      steps: how many times more the period is as it was. 0 once anything differs: the
        level has stopped, and its period is run for its own sake.
      growth: bytes that a period moves the allocations of the loop.
      floor: where these begin; below, bytes have fixed addresses.
      first: number of the loop's first command.
      rows: commands a period.
      margins: by how much each maximum leads over what it was taken from, where that
        may turn negative.
      before: moments of bytes that the period has not reached, from before the loop.
      buried: whether it has stopped, and its component been made 0 in all forms.
      reason: why it has stopped.
    """

    index: Var
    step: int
    steps: int
    growth: int
    floor: int
    first: int
    rows: int
    margins: set[Form] = field(default_factory=set)
    before: tuple[Moment, ...] = ()
    buried: bool = False
    reason: str = ""

    def stop(self, reason: str) -> None:
        """What follows holds for the first time only."""
        if self.steps:
            self.steps, self.reason = 0, reason


def why_walked(loop: Loop) -> str:
    """Why the loop's times have no period."""
    if has_messages(loop.body):
        return "it sends or receives messages"
    for item in walk(loop.body):
        if isinstance(item, Loop) and loop.index in expr.variables(item.trip):
            return f"the trip count of the loop at {item.site} depends on it"
    return f"no period of up to {LONGEST_PERIOD} iterations"
