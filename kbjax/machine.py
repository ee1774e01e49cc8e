"""One PE's engines and scratch while its schedule is made. Knows no values.

Each engine runs its commands in issue order. A command starts when its engine is free,
its operands are ready, and no earlier command still reads or writes bytes that it will
write. Issuing costs nothing. All times are integers of picoseconds.

A loop is run one iteration at a time until every time in the machine (engines, bytes)
has moved by a constant of its own over `period` iterations. One more period is then run
with each time a linear form of how often it is repeated. If the forms come out as they
went in, moved by those constants, then by induction all following periods are the same
until, at one of the maxima, a faster time overtakes: each maximum notes when. The loop
jumps there, or to its end, and goes on. So the result is the schedule that running all
iterations would give, not an approximation. Loops inside are run in forms, too. A loop
that sends or receives is run one iteration at a time, together with the other PEs.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kbjax import expr
from kbjax.costs import ENGINES, Work
from kbjax.expr import Expr, Var
from kbjax.forms import Moment, less, never, standing, without
from kbjax.levels import Level, why_walked
from kbjax.mail import Mail, Sent
from kbjax.program import (
    Block,
    Loop,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    When,
    has_messages,
)
from kbjax.rolled import AT_ONCE, ENGINE, HAZARD, OPERAND, Node, Repeat, Row
from kbjax.scratch_times import Piece, ScratchTimes
from kbjax.steady import (
    LONGEST_PERIOD,
    WALKED,
    Frame,
    Instant,
    Walk,
    changes,
    each_moment,
    foreign,
    has_moved,
    in_forms,
    landed,
    periods,
    view,
)
from kbjax.strides import stride, together


@dataclass
class Machine:
    """One PE while its schedule is made."""

    program: Program
    works: Sequence[Work]
    pe: int
    rows: list[Node] = field(default_factory=list)
    walks: list[Walk] = field(default_factory=list)
    _scratch: ScratchTimes = field(default_factory=ScratchTimes.fresh)
    _free: dict[str, Moment] = field(
        default_factory=lambda: {engine: never(1) for engine in ENGINES}
    )
    _env: dict[Var, int] = field(default_factory=dict)
    _levels: list[Level] = field(default_factory=list)
    mail: Mail = field(default_factory=Mail)
    _number: int = 0
    _scopes: int = 0  # around the command; outside any, the cursor only grows

    def run(self) -> Iterator[None]:
        """Fill `rows` and `walks`. Stops where it waits for a message of another PE
        that has not been sent, to be asked again."""
        self._position = {id(w.command): i for i, w in enumerate(self.works)}
        self._env[self.program.program_id] = self.pe
        yield from self._block(self.program.commands, ())
        del self._scratch  # only the rows outlive the run

    @property
    def last(self) -> Moment:
        return max(self._free.values())

    def _block(self, block: Block, iteration: tuple[int, ...]) -> Iterator[None]:
        for item in block:
            if any(not (x.steps or x.buried) for x in self._levels):
                self._bury()
            if isinstance(item, When) and not self._held(item.condition, "its `when`"):
                continue
            if isinstance(item, Scope):
                self._scopes += 1
                yield from self._block(item.body, iteration)
                self._scopes -= 1
            elif isinstance(item, Loop):
                yield from self._loop(item, iteration)
            elif isinstance(item, RecvCmd):
                while (arrival := self.mail.take(self.pe, item.offset)) is None:
                    yield
                self._receive(self._position[id(item)], arrival, iteration)
            else:
                self._command(self._position[id(item)], iteration)

    def _held(self, value: Expr, what: str, is_address: bool = False) -> int:
        """The value in this iteration; levels are held back from iterations in which it
        is another, but that an address moves with the allocations of its loop.

        How far it stays is found loop by loop, which is right for all of them together
        where no node of it has two of their variables.
        """
        if value.is_const and not is_address:
            return value.const
        at = expr.evaluate(value, self._env)
        moving = [level for level in self._levels if level.steps]
        bound = together(value) if len(moving) > 1 else frozenset()
        for level in moving:
            if level.index in bound and level is not moving[-1]:
                level.stop(f"{what} depends on several loops at once")
                continue
            _, change, steps = stride(value, self._env, level.index, level.step)
            grows = level.growth if is_address and at >= level.floor else 0
            if change != grows:
                level.stop(f"{what} depends on the iteration")
            elif steps < level.steps:
                level.steps = steps
                if not steps:
                    level.reason = f"{what} depends on the iteration"
        return at

    # --- commands --------------------------------------------------------------------

    def _command(self, position: int, iteration: tuple[int, ...]) -> None:
        work, scratch = self.works[position], self._scratch
        nbytes = self._held(work.nbytes, "a transfer's size")
        cost = work.cost_at(nbytes)
        reads = [self._place(*where) for where in work.reads_at]
        free = self._free[work.engine]
        operands: list[Moment] = []
        for span in reads:
            pieces = scratch.within(*span)
            operands += [piece.writer for piece in pieces]
            for level in self._meeting(span[0], pieces):
                level.stop("it reads bytes from before it")
        ready = self._latest(operands) if operands else None
        start, cause = free, ENGINE
        if ready is not None:
            start = self._latest((free, ready))
            cause = ENGINE if start is free else OPERAND
        waited = less(start.time, (free if cause == OPERAND else ready or start).time)
        if work.writes_at is not None:
            target = self._place(*work.writes_at)
            hazard = self._hazard(start, *target)
            if hazard is not start:
                waited = less(hazard.time, start.time)
                start, cause = hazard, HAZARD
        if start.number[0] < 0:
            cause = AT_ONCE
        number = (self._number, *(0 if x.buried else x.rows for x in self._levels))
        end = Moment((start.time[0] + cost, *start.time[1:]), number)
        for span in reads:
            scratch.read(*span, work.engine, end)
        if work.writes_at is not None:
            scratch.write(*target, end)
        self._free[work.engine] = end
        self._number += 1
        row = Row(position, number, start.time, cause, start.number, waited, cost,
                  nbytes, iteration)  # fmt: skip
        self.rows.append(row)

        if isinstance(work.command, SendCmd):
            sent = Sent(end.time[0], self.pe, number[0])
            self.mail.send(self.pe, work.command.offset, sent)

    def _receive(
        self, position: int, arrival: Sent, iteration: tuple[int, ...]
    ) -> None:
        """A receive, from when its bytes are free to when its message is there. No loop
        with messages is run in forms."""
        work = self.works[position]
        assert work.writes_at is not None
        target = self._place(*work.writes_at)
        start = self._hazard(never(1), *target)
        number, end_ps = (self._number,), max(start.time[0], arrival.end_ps)
        self._scratch.write(*target, Moment((end_ps,), number))
        if arrival.end_ps > start.time[0]:
            self.mail.sent_by[self.pe, number[0]] = arrival.pe, arrival.number
        self._number += 1
        cause = HAZARD if start.number[0] >= 0 else AT_ONCE
        self.rows.append(
            Row(position, number, start.time, cause, start.number, (0,),
                end_ps - start.time[0], work.nbytes.const, iteration)
        )  # fmt: skip

    def _place(self, at: Expr, nbytes: int) -> tuple[int, int]:
        """The bytes of the scratch, first and past the last."""
        if at.is_const and not any(level.growth for level in self._levels):
            return at.const, at.const + nbytes
        first = self._held(at, "an address", is_address=True)
        return first, first + nbytes

    def _latest(self, moments: Sequence[Moment]) -> Moment:
        """The maximum; a level in progress notes by how much it leads."""
        best = max(moments)
        if self._levels and len(moments) > 1:
            margins = self._levels[-1].margins
            for one in moments:
                margin = less(best.time, one.time)
                if min(margin) < 0:
                    margins.add(margin)
        return best

    def _hazard(self, start: Moment, first: int, stop: int) -> Moment:
        """The latest of `start` and what still uses the bytes, which wins no tie."""
        pieces = self._scratch.within(first, stop)
        users = [moment for piece in pieces for moment in piece.moments()]
        latest = self._latest((start, *users))
        if latest.time == start.time:
            latest = start
        for level in self._meeting(first, pieces):
            # Told when the level was made: they stand still in loops further in.
            components = len(latest.time)
            before = [standing(moment, components) for moment in level.before]
            if self._latest((latest, *before)).time != latest.time:
                level.stop("it writes bytes that are still in use from before it")
            if latest is not start and latest.number[0] < level.first:
                level.stop("it waits for what used its bytes before it")
        return latest

    def _meeting(self, first: int, pieces: Sequence[Piece]) -> Iterator[Level]:
        """The levels whose every step finds other bytes at these places: which move
        with the loop, and which the loop itself has not written."""
        for level in self._levels:
            if level.growth and level.steps and first >= level.floor:
                if any(piece.writer.number[0] < level.first for piece in pieces):
                    yield level

    # --- loops -----------------------------------------------------------------------

    def _now(self) -> Instant:
        return Instant(dict(self._free), self._scratch.copy(), self._number)

    def _be(self, instant: Instant) -> None:
        self._free, self._scratch = dict(instant.free), instant.scratch

    def _loop(self, loop: Loop, iteration: tuple[int, ...]) -> Iterator[None]:
        trip = self._held(loop.trip, "an inner loop's trip count")
        floor = self._floor(loop)
        growth = 0 if floor is None else self.program.growth_bytes[loop.index]
        first, at, walked, reason = self._number, 0, 0, ""
        past: deque[Instant] = deque(maxlen=2 * LONGEST_PERIOD + 1)
        retry = [0] * (LONGEST_PERIOD + 1)
        messages = has_messages(loop.body)
        whole = False  # whether a short period has just misled: look for a longer one
        while at < trip:
            frame = Frame(floor, (floor or 0) + growth * at, first)
            if frame.floor is not None:
                self._scratch.split(frame.floor)
                self._scratch.split(frame.base)
            past.append(self._now())
            ready = [at >= when for when in retry]
            found = periods(past, trip - at, ready, whole)
            period = 0 if messages else next(found, 0)
            if whole and len(past) == past.maxlen and not period:
                whole = False
            level = period and self._level(
                loop, past, frame, period, growth * period, trip - at
            )
            if not level:
                if period:
                    retry[period] = at + max(period, at // 2)
                self._env[loop.index] = at
                yield from self._block(loop.body, (*iteration, at))
                at, walked = at + 1, walked + 1
                continue
            times = self._in_forms(loop, level, frame, at, iteration)
            at += times * period
            if times > 1:
                whole = times * period <= 2 * LONGEST_PERIOD
                past.clear()
                retry = [0] * (LONGEST_PERIOD + 1)
                continue
            walked, reason = walked + period, level.reason or reason
            retry[period] = at + max(period, at // 2)
            if period > 1:  # the instants in between are not known
                past.clear()
        self._env.pop(loop.index, None)
        if walked >= WALKED and not self._levels:
            self.walks.append(Walk(loop.site, walked, reason or why_walked(loop)))

    def _floor(self, loop: Loop) -> int | None:
        """Where the loop's allocations begin in its iteration 0; None where no command
        uses bytes that move with it."""
        growth = self.program.growth_bytes
        if not growth.get(loop.index, 0):
            return None
        cursors = []
        for made in self.program.allocations.values():
            if loop.index in made.loops:
                around = made.loops[: made.loops.index(loop.index)]
                moved = sum(growth.get(one, 0) * self._env[one] for one in around)
                cursors.append(made.cursor_bytes + moved)
        return min(cursors, default=None)

    def _level(
        self,
        loop: Loop,
        past: Sequence[Instant],
        frame: Frame,
        period: int,
        growth: int,
        left: int,
    ) -> Level | None:
        """Put the machine in forms, if it has moved as it did a period before."""
        now, before = past[-1], past[-1 - period]
        seen = view(now, frame)
        seen_before = view(before, frame._replace(base=frame.base - growth))
        if seen is None or seen_before is None:
            return None
        moved = changes(seen, seen_before)
        if moved is None:
            if len(past) == LONGEST_PERIOD * 2 + 1:  # let this loop be jumped at least
                for level in self._levels:
                    level.stop("an inner loop's times depend on it")
            return None
        self._be(in_forms(now, seen, moved))
        return Level(
            index=loop.index,
            step=period,
            steps=left // period - 1,
            growth=growth,
            floor=frame.floor or 0,
            first=frame.first,
            rows=now.number - before.number,
            before=foreign(self._now(), frame),
        )

    def _in_forms(
        self,
        loop: Loop,
        level: Level,
        frame: Frame,
        at: int,
        iteration: tuple[int, ...],
    ) -> int:
        """Run a period in forms, then jump. Returns how many periods are done."""
        seen, outer, number = view(self._now(), frame), self.rows, self._number
        self.rows = []
        self._levels.append(level)
        for one in range(at, at + level.step):
            self._env[loop.index] = one
            for _ in self._block(loop.body, (*iteration, one)):
                raise AssertionError("a loop with messages is not run in forms")
        self._levels.pop()
        after = frame._replace(base=frame.base + level.growth)
        if level.growth:
            self._scratch.split(after.base)
        same = self._number - number == level.rows
        if not (level.steps and same and has_moved(seen, view(self._now(), after))):
            level.stop("")
        for margin in level.margins:
            if margin[-1] < 0:
                level.steps = min(level.steps, margin[0] // -margin[-1])
        if self._levels:
            for margin in level.margins:
                k = level.steps if margin[-1] < 0 else 0
                left = (margin[0] + k * margin[-1], *margin[1:-1])
                if min(left) < 0:
                    self._levels[-1].margins.add(left)
        forget = not self._scopes and not self.program.needs_exact
        self._be(landed(self._now(), frame, level.steps, level.growth, forget))
        self._number += level.steps * level.rows
        repeat = Repeat(
            nodes=tuple(self.rows),
            count=level.steps + 1,
            level=len(self._levels),
            position=len(iteration),
            step=level.step,
        )
        self.rows = outer
        if repeat.nodes:
            self.rows += repeat.some(0, repeat.count)
        return repeat.count

    def _bury(self) -> None:
        """Let all stand still in levels that hold for one time only, so that loops
        inside can be jumped whatever these do."""
        for component, level in enumerate(self._levels, 1):
            if level.steps == 0 and not level.buried:
                level.buried = True
                still = functools.partial(without, component=component)
                self._be(each_moment(self._now(), still))
