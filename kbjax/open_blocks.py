"""The open blocks of a recording: commands are put into them, scopes and `when`s open
and close them, and what may be used depends on which are open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kbjax import carried, coverage, errors, expr, flight, queues, usage
from kbjax.allocator import Arena, Level
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.flight import Flights, Transfer
from kbjax.handle import TensorHandle
from kbjax.program import Block, Scope, Statement, When
from kbjax.queues import Counts, Slot
from kbjax.refs import Ref
from kbjax.site import ScopeLine, Site, here, kernel_frame
from kbjax.written import Written


@dataclass(frozen=True)
class Marks:
    """What bytes and buffers were at some moment."""

    written: int = 0
    flights: int = 0
    counts: Counts = field(default_factory=dict)


@dataclass
class OpenBlock:
    """A block that is being recorded. Of its start: `marks`, the domain `outside`, and
    what the kernel's variables held `before`, if it is a `when`."""

    statements: list[Statement] = field(default_factory=list)
    marks: Marks = field(default_factory=Marks)
    outside: Domain = field(default_factory=Domain)
    before: carried.Snapshot | None = None
    is_loop: bool = False


@dataclass
class OpenBlocks:
    """The state of one recording. `written` holds the bytes that have been
    written; `flights` the transfers in flight; `counts` how many tiles circular buffers
    were given; `pending` is an error to raise at the next call; `before` what the
    kernel's variables held before each loop; `unentered` the `when`s that were made and
    not entered."""

    arena: Arena
    program_id: Var
    domain: Domain = field(default_factory=Domain)
    written: Written = field(default_factory=Written)
    flights: Flights = field(default_factory=Flights)
    counts: Counts = field(default_factory=dict)
    pending: errors.KbjaxError | None = None
    before: dict[Var | None, carried.Snapshot] = field(default_factory=dict)
    blocks: list[OpenBlock] = field(default_factory=lambda: [OpenBlock()])
    unentered: dict[ScopeLine, None] = field(default_factory=dict)
    next_var: int = 1
    _had_when: bool = False  # so that proofs of one may be relied on outside it
    # The last recording of each open loop's body, while it is made once more.
    complete: dict[Var, Block] = field(default_factory=dict)

    def enter_call(self) -> Site:
        """The kernel line of the `tl` call that begins; raises what is pending."""
        self.raise_pending()
        return here()

    def raise_pending(self) -> None:
        if self.pending is not None:
            error, self.pending = self.pending, None
            raise error

    def emit(self, command: Statement) -> None:
        self.blocks[-1].statements.append(command)

    def finish(self) -> Block:
        self.raise_pending()
        if self.domain.loops:  # by break, with the iterator kept in a variable
            raise usage.loop_left_early(self.arena.loop_sites[self.domain.loops[-1]])
        self.check_closed(self.arena.levels[0])
        for line in self.unentered:
            raise errors.KernelError(
                "a tl.when was made and not entered, and does nothing",
                site=line.site,
                remedy="Write `with tl.when(condition):` around the commands",
            )
        self.close_buffers(self.arena.levels[0], "kernel")
        self.forget(self.flights.find(lambda transfer: True))
        self.flights.warn_of_never_waited_for()
        return tuple(self.blocks[0].statements)

    def check_closed(self, level: Level) -> None:
        """Refuse what is still open inside a block where the block ends."""
        inner = self.arena.innermost
        if inner is level:
            return
        if inner.index is not None:
            raise errors.KernelError(
                "a tl.range loop is still open where the body of another ends",
                site=inner.site,
                remedy="Use one tl.range and compute the other index from it: rolled "
                "loops nest, and are not run side by side",
            )
        raise errors.KernelError(
            f"a {inner.kind} opened here is still open where its block ends",
            site=inner.line.site if inner.line else here(),
            remedy=f"Write `with tl.{inner.kind}(...):` around the commands",
        )

    # --- scopes ----------------------------------------------------------------------

    def open_scope(self, line: ScopeLine, condition: Expr | None = None) -> Level:
        """Begin a scope; one that runs where the condition is not 0, if given."""
        self.unentered.pop(line, None)
        block = OpenBlock(marks=self.marks(), outside=self.domain)
        if condition is not None:
            self.use_index(condition, line.site)
            block.before = carried.snapshot(kernel_frame(), lambda tile: False)
            self.domain = self.domain.where(condition)
            self._had_when = True
        self.blocks.append(block)
        return self.arena.enter_scope(line, condition)

    def close_scope(self, scope: Level | None, failed: bool) -> None:
        """Rewind. What was recorded stays, also where an exception ends the scope. One
        that is not the innermost open block is an error at the next call.

        Args:
          scope: what `open_scope` gave.
          failed: whether an exception ends it.
        """
        if scope is not self.arena.innermost:
            self.pending = self.pending or errors.KernelError(
                "scopes and loops end in another order than they began",
                site=here(),
                remedy="Nest `with tl.scratch_scope():` blocks, and end in a loop's "
                "body what begins there",
            )
            return
        assert scope.line is not None
        lost = self._end_of_bytes(scope)
        block, line = self.blocks.pop(), scope.line
        body = tuple(block.statements)
        mark, rewound = self.arena.exit_scope()
        if scope.condition is None:
            if body or rewound:
                self.emit(Scope(body, mark, rewound, line.name, line.site))
        else:
            self.domain = block.outside
            if not self._is_certain(scope.condition):
                before = block.marks
                self.counts = queues.where(scope.condition, before.counts, self.counts)
                self.written.rewind(before.written)
                self.flights.rewind_waits(before.flights)
                self._check_python_state(scope, block, failed)
            if scope.runs and (body or rewound):
                self.emit(
                    When(body, mark, rewound, line.name, line.site, scope.condition)
                )
        if lost is not None and not failed:
            raise lost

    def abandon_scope(self, scope: Level) -> None:
        """Drop a scope that was refused, as if it had never been, with what is open
        inside it."""
        depth = self.arena.levels.index(scope)
        marks = self.blocks[depth].marks
        del self.blocks[depth:]
        self.arena.abandon(scope)
        self.domain, self.pending = scope.domain, None
        self.rewind(marks)

    def _end_of_bytes(self, scope: Level) -> errors.KbjaxError | None:
        """What is wrong with giving back the bytes of a scope, if anything is."""
        assert scope.line is not None
        if not scope.runs:
            self.flights.rewind(self.blocks[-1].marks.flights)
        lost = self.flights.drop(lambda t: t.ref.root >= scope.first_uid)
        try:
            if scope.condition is not None:
                mark = self.blocks[-1].marks.flights
                self.forget(self.flights.receives_since(mark))
            self.close_buffers(scope, scope.kind)
        except errors.KbjaxError as error:
            held: errors.KbjaxError | None = error
        else:
            held = None
        return flight.ended(lost[0], scope.kind, scope.line.site) if lost else held

    def _is_certain(self, condition: Expr) -> bool:
        """Whether it holds in every iteration that runs."""
        never = expr.predicate("eq", condition, expr.ZERO)
        return self.domain.find(never) == (True, None)

    def _check_python_state(self, scope: Level, block: OpenBlock, failed: bool) -> None:
        """Refuse what Python does in a `when` whether or not its condition holds; at
        the next call, where an exception ends it, which the kernel may not catch."""
        assert block.before is not None and scope.line is not None
        frame, first = kernel_frame(), scope.first_uid
        after = carried.snapshot(frame, lambda tile: tile.allocation.uid >= first)
        if failed:
            self.pending = self.pending or usage.left_early(scope.line.site)
            return
        usage.check_left_at_end(frame, scope.line.site)
        carried.check_when(block.before, after, frame, scope.line.site)

    # --- what may be used -------------------------------------------------------------

    def use_index(self, value: Expr, site: Site) -> Expr:
        """`value`, refused where it cannot be used here (kbjax.usage)."""
        usage.check_index(value, self.program_id, self.domain, self._had_when, site)
        return value

    def use_slot(self, tile: TensorHandle, slot: Slot, site: Site) -> None:
        """Refuse a tile of a circular buffer that was taken in an iteration which has
        ended, or whose slot may have been filled anew.

        Raises:
          HazardError: naming the iteration in which it was filled.
          KernelError: in a later iteration than the one that took it.
          UseAfterScopeError: after the loop.
        """
        if not self.is_open(slot.body):
            raise usage.taken_before(tile, slot, self.domain, site)
        self.use_index(slot.number, site)
        count = self.counts.get(tile.allocation.uid)
        if count is None or not (self.runs and self.knows_the_iteration):
            return
        most = expr.add(slot.number, expr.const(slot.depth))
        problem = self.domain.violation(count.pushed, most)
        if problem is not None:
            may = "was" if problem.decided else "is not certain not to have been"
            raise errors.HazardError(
                f"a tile of the circular_buffer of {tile.site} is used after its slot "
                f"{may} pushed again{problem}: it was taken at {slot.site}",
                site=site,
                got=f"push {slot.number}, and {count.pushed} pushed since the start",
                allowed=f"the {slot.depth} tiles that were pushed last",
                remedy="Use it before, copy it with tl.copy_to, or make the buffer "
                "deeper",
            )

    def receive(self, transfer: Transfer, site: Site) -> None:
        """Take its message, if it is in flight, after those of its offset that were to
        be received before it.

        Raises:
          KernelError: for a receive of other iterations or conditions than those here.
        """
        if transfer in self.flights.forgotten:
            raise _elsewhere(transfer, "after that block", site)
        for one in self.flights.up_to(transfer):
            if one.domain != self.domain:
                raise _elsewhere(one, str(self.domain), site)
            assert one.receive is not None
            self.flights.land(one)
            self.mark_written(one.receive.out)
            self.emit(one.receive)

    def forget(self, transfers: Iterable[Transfer]) -> None:
        """They are never waited for; what a receive waits for comes all the same."""
        for transfer in transfers:
            if transfer.receive is not None:
                self.receive(transfer, transfer.site)
            else:
                self.flights.land(transfer)
            self.flights.forget(transfer)

    @property
    def body(self) -> object:
        """The recording of the innermost loop body, or None."""
        return next((block for block in self.blocks[::-1] if block.is_loop), None)

    def is_open(self, body: object) -> bool:
        """Whether that recording, or the kernel for None, is still going on."""
        return body is None or any(block is body for block in self.blocks)

    @property
    def knows_the_iteration(self) -> bool:
        """Whether the counts of circular buffers are those of each iteration; in the
        first recording of a body, they are not yet."""
        return all(loop in self.complete for loop in self.domain.loops)

    def close_buffers(self, level: Level, block: str) -> None:
        """Forget the circular buffers that were made in the block, which ends.

        Raises:
          HazardError: for one that holds tiles.
        """
        own = {uid: c for uid, c in self.counts.items() if uid >= level.first_uid}
        self.counts = {u: c for u, c in self.counts.items() if u not in own}
        for uid, count in own.items():
            made = self.arena.allocations[uid]
            held, none = count.held, expr.ZERO
            if not (self.runs and self.knows_the_iteration):
                continue
            problem = self.domain.violation(held, none)
            if problem is not None:
                may = "holds" if problem.decided else "is not certain not to hold"
                raise errors.HazardError(
                    f"the {block} ends while the circular_buffer of {made.site} {may} "
                    f"tiles that were pushed and not popped{problem}",
                    site=made.site,
                    got=f"{count.pushed} pushed, {count.popped} popped",
                    remedy="Pop each tile that is pushed; push under a tl.when that "
                    "says whether there is a next tile",
                )

    @property
    def runs(self) -> bool:
        """Whether any iteration of the open loops runs at all; else the kernel is only
        type-checked here."""
        return self.arena.innermost.runs

    def is_written(self, ref: Ref) -> bool:
        """Whether a read of `ref` here finds every byte written, in every iteration
        that runs; where there are too many to tell, it is let pass, and finds the 0xFF
        of fresh bytes if not.

        In the first recording of a body the writes of earlier iterations are not all
        known: only a tile of this very iteration, which they cannot reach, is judged.
        """
        if not self.runs or self.written.covers(ref):
            return True
        made = self.arena.allocations[ref.root]
        known = [loop in self.complete for loop in self.domain.loops]
        if not all(known) and len(made.loops) < len(known):
            return True
        levels = [
            coverage.Level(
                block.statements,
                level.domain,
                level.index,
                self.complete.get(level.index) if level.index else None,
            )
            for block, level in zip(self.blocks, self.arena.levels, strict=True)
        ]
        read = coverage.reading(levels, ref)
        writes = list(coverage.writes(levels, ref.root))
        covered = coverage.is_covered(read, writes, made, self.program_id)
        return covered is not False

    def mark_written(self, ref: Ref) -> None:
        self.written.add(ref)

    def marks(self) -> Marks:
        return Marks(self.written.mark(), self.flights.mark(), self.counts)

    def rewind(self, marks: Marks) -> None:
        self.written.rewind(marks.written)
        self.flights.rewind(marks.flights)
        self.counts = marks.counts


def _elsewhere(transfer: Transfer, here: str, site: Site) -> errors.KernelError:
    return errors.KernelError(
        f"the recv of {transfer.site} is waited for in other iterations, or under "
        "other conditions, than those that issued it",
        site=site,
        got=f"issued {transfer.domain}, waited for {here}",
        remedy="Wait in the same loop body and under the same tl.when, before a later "
        "recv of its offset gets its message",
    )
