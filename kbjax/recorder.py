"""One recording: the blocks being filled, the loops and scopes that are open, and what
a rolled loop's body may not do.

The body of a rolled loop is recorded twice. The second recording must equal the first;
where it does not, the body carries Python state from one iteration to the next, which
one loop body cannot mean.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from kbjax import carried, coverage, domain, errors, expr, usage
from kbjax.allocator import Arena, Level
from kbjax.bytecode import in_for_statement
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.index import Index
from kbjax.program import Block, Loop, Scope, Statement, When
from kbjax.refs import Ref
from kbjax.site import ScopeLine, Site, here, kernel_frame
from kbjax.written import Written

Checks = Literal["error", "warn", "off"]
_LOOP_TARGET = re.compile(r"\bfor\s+(\w+)\s+in\b")


@dataclass
class _Block:
    """A block that is being recorded. Of its start: the mark of `written`, the domain
    `outside`, and what the kernel's variables held `before`, if it is a `when`."""

    statements: list[Statement] = field(default_factory=list)
    written: int = 0
    outside: Domain = field(default_factory=Domain)
    before: carried.Snapshot | None = None


@dataclass
class Recorder:
    """What `TLContext` writes into. `written` holds the bytes that have been
    written; `pending` is an error to raise at the next call; `before` what the kernel's
    variables held before each loop; `unentered` the `when`s that were made and not
    entered."""

    arena: Arena
    program_id: Var
    domain: Domain = field(default_factory=Domain)
    written: Written = field(default_factory=Written)
    pending: errors.KbjaxError | None = None
    before: dict[Var | None, carried.Snapshot] = field(default_factory=dict)
    _blocks: list[_Block] = field(default_factory=lambda: [_Block()])
    unentered: dict[ScopeLine, None] = field(default_factory=dict)
    _next_var: int = 1
    _had_when: bool = False  # so that proofs of one may be relied on outside it
    # The first recording of each open loop's body, while the second is made.
    _complete: dict[Var, Block] = field(default_factory=dict)

    def enter_call(self) -> Site:
        """The kernel line of the `tl` call that begins; raises what is pending."""
        self.raise_pending()
        return here()

    def raise_pending(self) -> None:
        if self.pending is not None:
            error, self.pending = self.pending, None
            raise error

    def emit(self, command: Statement) -> None:
        self._blocks[-1].statements.append(command)

    def finish(self) -> Block:
        self.raise_pending()
        if self.domain.loops:  # by break, with the iterator kept in a variable
            raise _left_early(self.arena.loop_sites[self.domain.loops[-1]])
        self._check_closed(self.arena.levels[0])
        for line in self.unentered:
            raise errors.KernelError(
                "a tl.when was made and not entered, and does nothing",
                site=line.site,
                remedy="Write `with tl.when(condition):` around the commands",
            )
        return tuple(self._blocks[0].statements)

    def _check_closed(self, level: Level) -> None:
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
        block = _Block(written=self.written.mark(), outside=self.domain)
        if condition is not None:
            self.use_index(condition, line.site)
            block.before = carried.snapshot(kernel_frame(), lambda tile: False)
            self.domain = self.domain.where(condition)
            self._had_when = True
        self._blocks.append(block)
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
        block, line = self._blocks.pop(), scope.line
        body = tuple(block.statements)
        mark, rewound = self.arena.exit_scope()
        if scope.condition is None:
            if body or rewound:
                self.emit(Scope(body, mark, rewound, line.name, line.site))
            return
        self.domain = block.outside
        if not self._is_certain(scope.condition):
            self.written.rewind(block.written)
            self._check_python_state(scope, block, failed)
        if scope.runs and (body or rewound):
            self.emit(When(body, mark, rewound, line.name, line.site, scope.condition))

    def _is_certain(self, condition: Expr) -> bool:
        """Whether it holds in every iteration that runs."""
        never = expr.predicate("eq", condition, expr.ZERO)
        return self.domain.find(never) == (True, None)

    def _check_python_state(self, scope: Level, block: _Block, failed: bool) -> None:
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

    # --- rolled loops ----------------------------------------------------------------

    def loop(self, start: Expr, stop: Expr, step: int, site: Site) -> Iterator[Index]:
        """Record the body of ``for i in range(start, stop, step)`` as one `Loop`."""
        trip = self._trip(start, stop, step, site)
        name, uid = _target_name(site, self._next_var), self._next_var
        outside = self.domain
        # An equal variable each time: an index kept from the first recording is told
        # apart by identity.
        first_index, loop_index = Var(uid, name, trip), Var(uid, name, trip)
        value = domain.checked(
            _counted(loop_index, start, step), outside.inside(loop_index)
        )
        runs = not outside.inside(loop_index).never_runs()
        self._next_var = first_var = uid + 1
        written = self.written.mark()
        level = self.arena.enter_loop(loop_index, site, runs)
        before = carried.snapshot(kernel_frame(), lambda t: loop_index in t.loops)
        self.before[loop_index] = before
        first = yield from self._body(level, first_index, start, step, site, before)
        self.arena.restart_iteration()
        self.written.rewind(written)
        self._next_var = first_var
        self._complete[loop_index] = first.block
        second = yield from self._body(
            level, loop_index, start, step, site, first.after
        )
        del self._complete[loop_index]
        certain = outside.violation(expr.const(1), trip) is None
        try:
            carried.check_alike(first, second, loop_index, certain, site)
            _check_growth(second.growth_bytes, trip, site)
        except errors.KbjaxError:
            self._abandon(level, written)
            raise
        try:
            growth = self.arena.exit_loop()
        except errors.KbjaxError:
            self.written.rewind(written)
            raise
        if certain:
            self.written.leave(outside)
        else:
            self.written.rewind(written)
        if runs and second.block:
            counted = str(value)
            shown = name if counted == name else f"{name} -> {counted}"
            self.emit(Loop(loop_index, second.block, growth, shown, site))

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
    ) -> Generator[Index, None, carried.Recording]:
        """Let the kernel run a loop's body once, from the variables `before`."""
        outside, self.domain = self.domain, self.domain.inside(loop_index)
        value = Index(_counted(loop_index, start, step), self)
        depth, written = len(self._blocks), self.written.mark()
        self._blocks.append(_Block())
        try:
            yield value
            self.raise_pending()
            self._check_closed(level)
        except (GeneratorExit, errors.KbjaxError) as left:
            if level in self.arena.levels:
                del self._blocks[depth:]
                self._complete.pop(loop_index, None)
                self._abandon(level, written)
                self.domain = outside
                if isinstance(left, GeneratorExit):
                    self.pending = self.pending or _left_early(site)
            raise
        self.domain = outside
        block = tuple(self._blocks.pop().statements)
        after = carried.snapshot(kernel_frame(), lambda t: loop_index in t.loops)
        return carried.Recording(block, self.arena.end_iteration(), before, after)

    def _abandon(self, level: Level, written: int) -> None:
        self.arena.abandon_loop(level)
        self.written.rewind(written)

    # --- what may be used ------------------------------------------------------------

    def use_index(self, value: Expr, site: Site) -> Expr:
        """`value`, refused where it cannot be used here (kbjax.usage)."""
        usage.check_index(value, self.program_id, self.domain, self._had_when, site)
        return value

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
        known = [loop in self._complete for loop in self.domain.loops]
        if not all(known) and len(made.loops) < len(known):
            return True
        levels = [
            coverage.Level(
                block.statements,
                level.domain,
                level.index,
                self._complete.get(level.index) if level.index else None,
            )
            for block, level in zip(self._blocks, self.arena.levels, strict=True)
        ]
        read = coverage.reading(levels, ref)
        writes = list(coverage.writes(levels, ref.root))
        covered = coverage.is_covered(read, writes, made, self.program_id)
        return covered is not False

    def mark_written(self, ref: Ref) -> None:
        self.written.add(ref)


def _counted(loop_index: Var, start: Expr, step: int) -> Expr:
    """``start + step * iteration``."""
    return expr.add(start, expr.scale(expr.var(loop_index), step))


def _check_growth(growth_bytes: int, trip: Expr, site: Site) -> None:
    if growth_bytes and not trip.is_const:
        raise errors.KernelError(
            f"each iteration leaves the cursor {growth_bytes:,} B higher in a loop "
            f"whose trip count {trip} is symbolic, so later addresses would not be "
            "static",
            site=site,
            remedy="Put the body inside `with tl.scratch_scope():`",
        )


def _left_early(site: Site) -> errors.KernelError:
    return errors.KernelError(
        "a tl.range body was left by break, return or an exception that is caught "
        "outside it, and one loop body stands for all iterations",
        site=site,
        remedy="Use tl.where to select values, catch errors inside the body, or unroll "
        "with tl.static_range",
    )


def _target_name(site: Site, uid: int) -> str:
    """The loop variable's name in the source, for messages and printing."""
    found = _LOOP_TARGET.search(linecache.getline(site.file, site.line))
    return found.group(1) if found else f"i{uid}"
