"""Whether the messages between PEs match: each is sent before it is waited for, and
received once, in a tile of its shape and dtype. Decided by running the sends and the
receives of all PEs when the kernel has been recorded, before any data.

Data is replayed with all PEs in lockstep, command by command. So a kernel whose
messages go from PE to PE in turn, where a PE sends further down in the program than
another waits for it, is refused.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kbjax import errors, expr
from kbjax.dtypes import DType, Shape, type_text
from kbjax.program import (
    Block,
    Loop,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    When,
    has_messages,
    walk,
)

_MOST = 1 << 22  # sends and receives that are run
_MOST_TOLD = 1 << 18  # and that are run again, to say more of what is wrong
_AT_ONCE = 1 << 16  # iterations times PEs that are compared


@dataclass(frozen=True)
class Channel:
    """Messages of one offset and type."""

    offset: int
    shape: Shape
    dtype: DType

    @staticmethod
    def of(command: SendCmd | RecvCmd) -> Channel:
        ref = command.src if isinstance(command, SendCmd) else command.out
        return Channel(command.offset, ref.shape, ref.dtype)

    def __str__(self) -> str:
        return type_text(self.shape, self.dtype)


def checked(program: Program) -> Mapping[Channel, int]:
    """How many messages of each channel are on their way to a PE at most.

    Raises:
      KernelError: naming PEs and kernel lines, for a message that is not received, or
        by a receive of another type, and a wait that never ends or that this cannot
        replay.
    """
    if not has_messages(program.commands):
        return {}
    exchange = _Exchange(program)
    for command, active in exchange.events(settling=True):
        for pe in np.flatnonzero(active).tolist():
            if isinstance(command, SendCmd):
                exchange.send(pe, command)
            else:
                exchange.receive(pe, command)
    exchange.check_empty()
    return exchange.most


@dataclass
class _Exchange:
    """Messages while they are run. PEs are one where no message depends on the PE.

    Attributes:
      most: of each channel, the most that were on their way to one PE.
      boxes: the sends whose messages are on their way, by receiver and offset.
    """

    program: Program
    most: Counter[Channel] = field(default_factory=Counter)
    boxes: defaultdict[tuple[int, int], deque[SendCmd]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    _held: Counter[tuple[int, Channel]] = field(default_factory=Counter)

    @functools.cached_property
    def pes(self) -> int:
        values = _deciding(self.program.commands)
        differs = self.program.program_id in expr.variables(*values)
        return self.program.num_pes if differs else 1

    def sender(self, pe: int, offset: int) -> int:
        """Whose messages a PE receives."""
        return (pe - offset) % self.program.num_pes

    def events(
        self, settling: bool = False, most: int = _MOST
    ) -> Iterator[tuple[SendCmd | RecvCmd, np.ndarray]]:
        """Each send and receive that is run, in program order, with which PEs run it.

        Args:
          settling: leave out iterations that repeat the one before them, once that has
            left as many messages on their way as it found.
          most: that are run.

        Raises:
          KernelError: where there are too many.
        """
        ids = np.arange(self.pes)
        env = {self.program.program_id: ids}
        everyone = np.ones(self.pes, bool)
        run = 0
        commands = self.program.commands
        on_their_way = self._on_their_way if settling else object
        for command, active in _events(commands, env, everyone, on_their_way):
            run += int(active.sum())
            if run > most:
                raise errors.KernelError(
                    f"the kernel sends and receives more than {most:,} messages that "
                    "do not repeat: whether they match cannot be proven",
                    site=command.site,
                    remedy="Send larger messages",
                )
            yield command, active

    def _on_their_way(self) -> object:
        return {of: [*box] for of, box in self.boxes.items() if box}

    def send(self, pe: int, command: SendCmd) -> None:
        channel, to = Channel.of(command), (pe + command.offset) % self.pes
        self.boxes[to, command.offset].append(command)
        self._held[to, channel] += 1
        self.most[channel] = max(self.most[channel], self._held[to, channel])

    def receive(self, pe: int, command: RecvCmd) -> None:
        box = self.boxes[pe, command.offset]
        if not box:
            raise self._blocked(pe, command)
        sent, channel = box.popleft(), Channel.of(command)
        self._held[pe, Channel.of(sent)] -= 1
        if Channel.of(sent) != channel:
            raise errors.KernelError(
                f"PE {pe} receives {channel} at {command.site}, and the message is the "
                f"{Channel.of(sent)} that PE {self.sender(pe, command.offset)} sends "
                f"at {sent.site}",
                site=command.site,
                remedy="Receive messages of one offset in the order of their sends, in "
                "their shapes and dtypes",
            )

    def _blocked(self, pe: int, command: RecvCmd) -> errors.KernelError:
        try:
            return _Blocked(self).error(pe, command)
        except errors.KernelError:  # too many messages to say why
            sender = self.sender(pe, command.offset)
            return errors.KernelError(
                f"PE {pe} waits at {command.site} for a message of PE {sender} that is "
                "never sent, or is sent further down in the program",
                site=command.site,
                got=f"none left of offset {command.offset}",
                remedy="Send before the wait, with the same offset and equally often",
            )

    def check_empty(self) -> None:
        for (pe, offset), box in self.boxes.items():
            for sent in box:
                raise errors.KernelError(
                    f"the {Channel.of(sent)} that PE {self.sender(pe, offset)} sends "
                    f"to PE {pe % self.program.num_pes} at {sent.site} is never "
                    "received",
                    site=sent.site,
                    got=f"{len(box)} left of offset {offset}",
                    remedy=f"Receive it with tl.recv(..., offset={offset}), or do not "
                    "send it",
                )


def _events(
    block: Block,
    env: dict[expr.Var, Any],
    active: np.ndarray,
    on_their_way: Callable[[], object],
) -> Iterator[tuple[SendCmd | RecvCmd, np.ndarray]]:
    if not active.any():
        return
    for item in block:
        if isinstance(item, SendCmd | RecvCmd):
            yield item, active
        elif isinstance(item, Loop) and has_messages(item.body):
            trips = np.broadcast_to(_values(item.trip, env), active.shape)
            for alike in _alike(item, env, trips, active):
                for n, i in enumerate(alike):
                    # At 0, 1, 3, 7 ...: a look takes as long as there are messages.
                    looks = n & (n + 1) == 0
                    before = on_their_way() if looks else None
                    # An array: what a `when` leaves out may divide by it being 0.
                    inner = {**env, item.index: np.asarray(i)}
                    running = active & (i < trips)
                    yield from _events(item.body, inner, running, on_their_way)
                    if looks and on_their_way() == before:
                        break
        elif isinstance(item, When) and has_messages(item.body):
            holds = _values(item.condition, env) != 0
            yield from _events(item.body, env, active & holds, on_their_way)
        elif isinstance(item, Scope):
            yield from _events(item.body, env, active, on_their_way)


def _alike(
    loop: Loop, env: Mapping[expr.Var, Any], trips: np.ndarray, active: np.ndarray
) -> Iterator[range]:
    """Runs of iterations in which each active PE sends and receives the same."""
    most, pes = int(trips[active].max()), len(active)
    values = _deciding(loop.body)
    free = expr.variables(*values)
    depends = loop.index in free
    if depends and not free <= {*env, loop.index}:  # on an inner loop's, too
        yield from (range(i, i + 1) for i in range(most))
        return
    step = max(_AT_ONCE // pes, 1) if depends else most
    for first in range(0, most, max(step, 1)):
        last = min(first + step, most)
        starts = {first, *(n for n in trips[active].tolist() if first < n < last)}
        if depends:
            every = {**env, loop.index: np.arange(first, last)[:, None]}
            for value in values:
                rows = np.broadcast_to(_values(value, every), (last - first, pes))
                differs = (rows[1:] != rows[:-1]).any(axis=1)
                starts |= {*(first + 1 + np.flatnonzero(differs)).tolist()}
        edges = [*sorted(starts), last]
        yield from map(range, edges, edges[1:])


def _values(value: expr.Expr, env: Mapping[expr.Var, Any]) -> np.ndarray:
    """Of each iteration and PE. Those that a `when` leaves out may divide by 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(expr.evaluate(value, env, np))


def _deciding(block: Block) -> list[expr.Expr]:
    """The conditions and trip counts in a block that sends and receives depend on."""
    return [
        item.trip if isinstance(item, Loop) else item.condition
        for item in walk(block)
        if isinstance(item, Loop | When) and has_messages(item.body)
    ]


class _Blocked:
    """Why a receive finds no message: PEs that run each for itself, until none can."""

    def __init__(self, exchange: _Exchange) -> None:
        self.exchange = exchange
        program, pes = exchange.program, exchange.program.num_pes
        self.runs: list[list[SendCmd | RecvCmd]] = [[] for _ in range(pes)]
        for command, active in exchange.events(most=_MOST_TOLD):
            for pe in range(pes):
                if active[pe % len(active)]:
                    self.runs[pe].append(command)
        self.at, sent = [0] * pes, Counter[Any]()
        self.taken = taken = Counter[tuple[int, int]]()
        todo = [*range(pes)]
        while todo:
            pe = todo.pop()
            run = self.runs[pe]
            while self.at[pe] < len(run):
                command = run[self.at[pe]]
                if isinstance(command, SendCmd):
                    to = (pe + command.offset) % program.num_pes
                    sent[to, command.offset] += 1
                    if to != pe:
                        todo.append(to)
                elif taken[pe, command.offset] < sent[pe, command.offset]:
                    taken[pe, command.offset] += 1
                else:
                    break
                self.at[pe] += 1

    def waits(self, pe: int) -> RecvCmd | None:
        """Where the PE waits for ever; None where it gets to its end."""
        run = self.runs[pe]
        if self.at[pe] == len(run):
            return None
        command = run[self.at[pe]]
        assert isinstance(command, RecvCmd)
        return command

    def error(self, pe: int, command: RecvCmd) -> errors.KernelError:
        sender = self.exchange.sender(pe, command.offset)
        stuck = [one for one in range(len(self.runs)) if self.waits(one) is not None]
        if not stuck:
            return errors.KernelError(
                f"PE {pe} waits at {command.site} for a message that PE {sender} sends "
                "further down in the program: PEs run in lockstep, and kbjax does not "
                "replay messages that go from PE to PE in turn",
                site=command.site,
                remedy="Send before the wait, in a loop of as many steps as PEs take "
                "part",
            )
        for one in stuck:
            waits = self.waits(one)
            assert waits is not None
            sender = self.exchange.sender(one, waits.offset)
            count = sum(
                isinstance(c, SendCmd) and c.offset == waits.offset
                for c in self.runs[sender]
            )
            if count == self.taken[one, waits.offset]:
                return self._never_sent(one, waits, sender, count)
        return errors.KernelError(
            f"PEs wait for each other's messages for ever: {self._round(stuck[0])}",
            site=command.site,
            remedy="Send before waiting for what the other PE sends in return",
        )

    def _never_sent(
        self, pe: int, waits: RecvCmd, sender: int, count: int
    ) -> errors.KernelError:
        """For a receive of more than the `count` messages that PE `sender` has for it;
        where those that it lacks were sent with another number for its way, of that."""
        other = self._of_another_offset(pe, sender, waits.offset)
        if other is not None:
            return errors.KernelError(
                f"PE {pe} waits at {waits.site} for a message of offset {waits.offset} "
                f"of PE {sender}, which sends it with offset {other.offset} at "
                f"{other.site}: both lead to PE {pe} of {len(self.runs)}, but only "
                "equal offsets pair",
                site=waits.site,
                remedy=f"Receive with offset={other.offset}, or send with "
                f"offset={waits.offset}",
            )
        return errors.KernelError(
            f"PE {pe} waits at {waits.site} for a message of PE {sender} that is never "
            "sent",
            site=waits.site,
            got=f"{count} messages of offset {waits.offset} from PE {sender}",
            remedy="Send and receive with the same offset, equally often",
        )

    def _of_another_offset(self, pe: int, sender: int, offset: int) -> SendCmd | None:
        """The sender's first message to the PE that the PE does not take, of an offset
        that leads there as `offset` does."""
        sent = Counter[int]()
        for command in self.runs[sender]:
            step = command.offset
            leads_there = step != offset and (step - offset) % len(self.runs) == 0
            if isinstance(command, SendCmd) and leads_there:
                sent[step] += 1
                if sent[step] > self.taken[pe, step]:
                    return command
        return None

    def _round(self, pe: int) -> str:
        """``PE 0 at a.py:3 for PE 1, PE 1 at ...``, once around."""
        told: dict[int, str] = {}
        while pe not in told:
            waits = self.waits(pe)
            assert waits is not None
            sender = self.exchange.sender(pe, waits.offset)
            told[pe] = f"PE {pe} at {waits.site} for PE {sender}"
            pe = sender
        return ", ".join(told.values())
