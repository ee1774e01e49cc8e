"""Phase 1: a Program's schedule on the engines of each PE. Knows no values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kbjax import costs, errors, expr
from kbjax.costs import Work
from kbjax.expr import Expr
from kbjax.machine import Machine
from kbjax.mail import Mail
from kbjax.program import Loop, Program, When
from kbjax.rolled import Node
from kbjax.site import Site
from kbjax.steady import Walk

_ENDED = object()
MOST_PS = 2**63 - 1  # times are int64 columns of the op_log


@dataclass(frozen=True)
class Schedule:
    """What ran when.

    Attributes:
      works: the program's commands; rows number them.
      runs: for each PE its rows, in issue order, with numbers from 0.
      ends_ps, last_ops: for each PE when its last command ends, and that one's number
        (-1 for none).
      walks: loops that reached no steady state.
      sent_by: for a receive that waited for its message, by PE and number, the PE and
        the number of its send.
    """

    works: tuple[Work, ...]
    runs: tuple[tuple[Node, ...], ...]
    ends_ps: tuple[int, ...]
    last_ops: tuple[int, ...]
    walks: tuple[Walk, ...]
    sent_by: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def total_ps(self) -> int:
        """From the first command's issue to the last one's end."""
        return max(self.ends_ps, default=0)


def schedule(program: Program) -> Schedule:
    """Run the program's commands on the engines of each PE.

    Raises:
      ShapeError: for a total that no time column holds.
    """
    works = costs.works(program)
    pes = program.num_pes if _differs_by_pe(program, works) else 1
    mail = Mail(pes)
    machines = [Machine(program, works, pe, mail=mail) for pe in range(pes)]
    _run_together([machine.run() for machine in machines])
    copies = program.num_pes // pes  # PEs that run in the same time
    walks = Counter[tuple[Site, str]]()
    for machine in machines:
        for walk in machine.walks:
            walks[walk.site, walk.reason] += walk.iterations
    made = Schedule(
        works=works,
        runs=tuple(tuple(machine.rows) for machine in machines) * copies,
        ends_ps=tuple(machine.last.time[0] for machine in machines) * copies,
        last_ops=tuple(machine.last.number[0] for machine in machines) * copies,
        walks=tuple(Walk(site, n, why) for (site, why), n in walks.items()),
        sent_by=mail.sent_by,
    )
    if made.total_ps > MOST_PS:
        raise errors.ShapeError(
            f"{program.name} takes too long to be timed",
            got=f"about 1e{int(math.log10(made.total_ps))} ps",
            allowed="up to 2**63 - 1 ps, 106 days",
            remedy="Give the hardware higher rates or lower latencies",
        )
    return made


def _run_together(runs: Sequence[Iterator[None]]) -> None:
    """Run the PEs to their ends, each on while the messages that it waits for have been
    sent. `kbjax.messages` has proven that they all get there."""
    left = [*runs]
    while left:
        left = [run for run in left if next(run, _ENDED) is not _ENDED]


def _differs_by_pe(program: Program, works: Sequence[Work]) -> bool:
    """Whether any time or address depends on the PE."""
    if program.num_pes == 1:
        return False
    exprs: list[Expr] = []
    for item in program.walk():
        if isinstance(item, Loop | When):
            exprs.append(item.trip if isinstance(item, Loop) else item.condition)
    for work in works:
        exprs += [work.nbytes, *(at for at, _ in work.reads_at)]
        if work.writes_at is not None:
            exprs.append(work.writes_at[0])
    return program.program_id in expr.variables(*exprs)
