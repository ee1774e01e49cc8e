"""One recording: rolled loops over the open blocks, and what their bodies may not do.

The body of a rolled loop is recorded twice. The second recording must equal the first;
where it does not, the body carries Python state from one iteration to the next, which
one loop body cannot mean.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal

from kbjax import carried, domain, errors, expr, queues, usage
from kbjax.allocator import Level
from kbjax.bytecode import in_for_statement
from kbjax.expr import Expr, Var
from kbjax.footprint import Allocation
from kbjax.index import Index
from kbjax.open_blocks import Marks, OpenBlock, OpenBlocks
from kbjax.program import Block, Loop, Scope, walk
from kbjax.queues import Counts
from kbjax.site import Site, kernel_frame

Checks = Literal["error", "warn", "off"]
_LOOP_TARGET = re.compile(r"\bfor\s+(\w+)\s+in\b")


@dataclass
class Recorder(OpenBlocks):
    """What `TLContext` writes into."""

    def loop(self, start: Expr, stop: Expr, step: int, site: Site) -> Iterator[Index]:
        """Record the body of ``for i in range(start, stop, step)`` as one `Loop`.

        The body is recorded twice, and once more, before, where it fills or empties a
        circular buffer that was made before the loop: the first time tells how many
        tiles an iteration gives it, so in which slot each iteration begins.
        """
        trip = self._trip(start, stop, step, site)
        name, uid = _target_name(site, self.next_var), self.next_var
        outside = self.domain
        loop_index = Var(uid, name, trip)
        value = domain.checked(
            _counted(loop_index, start, step), outside.inside(loop_index)
        )
        runs = not outside.inside(loop_index).never_runs()
        self.next_var = first_var = uid + 1
        marks = self.marks()
        level = self.arena.enter_loop(loop_index, site, runs)
        before = carried.snapshot(kernel_frame(), lambda t: loop_index in t.loops)
        self.before[loop_index] = before

        def recorded(
            index: Var, counts: Counts, variables: carried.Snapshot
        ) -> Generator[Index, None, carried.Recording]:
            self.counts = counts
            return (
                yield from self._body(level, index, start, step, site, variables, marks)
            )

        def again() -> None:
            self.arena.restart_iteration()
            self.written.rewind(marks.written)
            if expr.bounds(trip)[1] <= 1:  # else what it leaves in flight is met again
                self.flights.rewind(marks.flights)
            self.next_var = first_var

        # An equal variable each time: an index kept from one recording is told apart by
        # identity.
        first = yield from recorded(Var(uid, name, trip), marks.counts, before)
        end = self.counts
        if end != marks.counts:
            again()
            other_index = Var(uid, name, trip)
            again_from = self._iterated(level, marks, end, other_index, first.block)
            self.complete[loop_index] = first.block
            first = yield from recorded(other_index, again_from.inside, first.after)
        again()
        self.complete[loop_index] = first.block
        counted = self._iterated(level, marks, end, loop_index, first.block)
        second = yield from recorded(loop_index, counted.inside, first.after)
        del self.complete[loop_index]
        self.counts = counted.after
        certain = outside.violation(expr.const(1), trip) is None
        try:
            carried.check_alike(first, second, loop_index, certain, site)
            _check_growth(second.growth_bytes, trip, site)
        except errors.KbjaxError:
            self._abandon(level, marks)
            raise
        try:
            growth = self.arena.exit_loop()
        except errors.KbjaxError:
            self.rewind(marks)
            raise
        if certain:
            self.written.leave(outside)
        else:
            self.written.rewind(marks.written)
            self.flights.rewind_waits(marks.flights)
        if not runs:
            self.rewind(marks)
        elif second.block:
            shown = name if str(value) == name else f"{name} -> {value}"
            self.emit(Loop(loop_index, second.block, growth, shown, site))

    def _iterated(
        self, level: Level, marks: Marks, end: Counts, index: Var, body: Block
    ) -> queues.Iterated:
        """The buffers' counts in an iteration, given those after one of `body`.

        Raises:
          KernelError: where they follow no rule that is found here.
        """
        domain_inside = self.domain.inside(index)

        def is_empty(count: queues.Count) -> bool:
            return (
                domain_inside.violation(count.held, expr.ZERO) is None
                and domain_inside.violation(expr.ZERO, count.held) is None
            )

        found = queues.iterated(marks.counts, end, index, is_empty)
        if found.unknown:
            made = self.arena.allocations[found.unknown[0]]
            self.complete.pop(index, None)
            self._abandon(level, marks)
            raise _unknown_slots(made, index, body, self.arena.loop_sites[index])
        return found

    def _trip(self, start: Expr, stop: Expr, step: int, site: Site) -> Expr:
        """The trip count of a loop that a `for` statement begins here."""
        if not in_for_statement(kernel_frame()):
            raise errors.KernelError(
                "a tl.range is consumed by something else than a `for` statement",
                site=site,
                remedy="Write `for i in tl.range(...):`, whose body is recorded twice "
                "whatever the trip count, or unroll with tl.static_range",
            )
        for end in (start, stop):
            self.use_index(end, site)
        span = expr.sub(stop, start) if step > 0 else expr.sub(start, stop)
        domain.checked(expr.add(span, expr.const(abs(step) - 1)), self.domain)
        return domain.checked(expr.trip_count(start, stop, step), self.domain)

    def _body(
        self,
        level: Level,
        loop_index: Var,
        start: Expr,
        step: int,
        site: Site,
        before: carried.Snapshot,
        marks: Marks,
    ) -> Generator[Index, None, carried.Recording]:
        """Let the kernel run a loop's body once, from the variables `before`; back to
        the marks where it is left or refused."""
        outside, self.domain = self.domain, self.domain.inside(loop_index)
        value = Index(_counted(loop_index, start, step), self)
        depth = len(self.blocks)
        self.blocks.append(OpenBlock(is_loop=True))
        try:
            yield value
            self.raise_pending()
            self.check_closed(level)
            self.close_buffers(level, "tl.range body")
            own = self.flights.find(lambda t: t.ref.root >= level.first_uid)
            if level.runs:
                self.forget(own)
            else:
                self.flights.drop(own.__contains__)
        except (GeneratorExit, errors.KbjaxError) as left:
            if level in self.arena.levels:
                del self.blocks[depth:]
                self.complete.pop(loop_index, None)
                self._abandon(level, marks)
                self.domain = outside
                if isinstance(left, GeneratorExit):
                    self.pending = self.pending or usage.loop_left_early(site)
            raise
        self.domain = outside
        block = tuple(self.blocks.pop().statements)
        after = carried.snapshot(kernel_frame(), lambda t: loop_index in t.loops)
        return carried.Recording(block, self.arena.end_iteration(), before, after)

    def _abandon(self, level: Level, marks: Marks) -> None:
        self.arena.abandon(level)
        self.rewind(marks)


def _counted(loop_index: Var, start: Expr, step: int) -> Expr:
    """``start + step * iteration``."""
    return expr.add(start, expr.scale(expr.var(loop_index), step))


def _unknown_slots(
    made: Allocation, index: Var, body: Block, site: Site
) -> errors.KernelError:
    """For a loop whose iterations push into a buffer, or pop from it, by no rule that
    kbjax.queues finds.

    Args:
      made: the buffer.
      index: of the loop.
      body: what an iteration does.
      site: of the loop.
    """
    name, nested, how = index.name, "", "Push and pop in every iteration"
    inner = next(
        (i for i in walk(body) if isinstance(i, Loop) and _uses(i, made)), None
    )
    if inner is not None:
        nested = f", also in the loop of {inner.site} inside it"
        how = "Push in every iteration, and pop after the loops what is left"
    return errors.KernelError(
        f"the slots that this loop uses of the circular_buffer of {made.site} are not "
        f"known: its iterations push or pop different numbers of tiles{nested}, and "
        f"that they do so in one range of {name} could not be shown",
        site=site,
        allowed="the same pushes and pops in every iteration, or under a condition "
        f"that holds for one range of {name}, as tl.when({name} + 1 < n) does",
        remedy=f"{how}, unroll the loop over {name} with tl.static_range or Python's "
        "range, or make the buffer inside it",
    )


def _uses(loop: Loop, made: Allocation) -> bool:
    """Whether a command of the loop reads or writes the bytes."""
    commands = (c for c in walk(loop.body) if not isinstance(c, Loop | Scope))
    return any(
        ref is not None and ref.root == made.uid
        for command in commands
        for ref in (*command.reads, command.writes)
    )


def _check_growth(growth_bytes: int, trip: Expr, site: Site) -> None:
    if growth_bytes and not trip.is_const:
        raise errors.KernelError(
            f"each iteration leaves the cursor {growth_bytes:,} B higher in a loop "
            f"whose trip count {trip} is symbolic, so later addresses would not be "
            "static",
            site=site,
            remedy="Put the body inside `with tl.scratch_scope():`",
        )


def _target_name(site: Site, uid: int) -> str:
    """The loop variable's name in the source, for messages and printing."""
    found = _LOOP_TARGET.search(linecache.getline(site.file, site.line))
    return found.group(1) if found else f"i{uid}"
