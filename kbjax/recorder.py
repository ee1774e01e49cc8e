"""One recording: the blocks being filled, the loops and scopes that are open, and what
a rolled loop's body may not do.

The body of a rolled loop is recorded twice. The second recording must equal the first;
where it does not, the body carries Python state from one iteration to the next, which
one loop body cannot mean.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from kbjax import carried, coverage, domain, errors, expr
from kbjax.allocator import Arena, Level
from kbjax.bytecode import in_for_statement
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.handle import TensorHandle
from kbjax.index import Index
from kbjax.program import Block, Loop, Ref, Scope, Statement
from kbjax.site import ScopeLine, Site, here, kernel_frame
from kbjax.written import Written

Checks = Literal["error", "warn", "off"]
_LOOP_TARGET = re.compile(r"\bfor\s+(\w+)\s+in\b")


@dataclass
class Recorder:
    """What `TLContext` writes into. `written` holds the bytes that have been
    written; `pending` is an error to raise at the next call; `before` what the kernel's
    variables held before each loop."""

    arena: Arena
    program_id: Var
    domain: Domain = field(default_factory=Domain)
    written: Written = field(default_factory=Written)
    pending: errors.KbjaxError | None = None
    before: dict[Var | None, carried.Snapshot] = field(default_factory=dict)
    _blocks: list[list[Statement]] = field(default_factory=lambda: [[]])
    _next_var: int = 1
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
        self._blocks[-1].append(command)

    def finish(self) -> Block:
        self.raise_pending()
        if self.domain.loops:  # by break, with the iterator kept in a variable
            raise _left_early(self.arena.loop_sites[self.domain.loops[-1]])
        self._check_closed(self.arena.levels[0])
        return tuple(self._blocks[0])

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
            "a scratch_scope opened here is still open where its block ends",
            site=inner.line.site if inner.line else here(),
            remedy="Write `with tl.scratch_scope():` around the commands",
        )

    # --- scopes ----------------------------------------------------------------------

    def open_scope(self, line: ScopeLine) -> Level:
        self._blocks.append([])
        return self.arena.enter_scope(line)

    def close_scope(self, scope: Level | None) -> None:
        """Rewind. What was recorded stays, also where an exception ends the scope. One
        that is not the innermost open block is an error at the next call."""
        if scope is not self.arena.innermost:
            self.pending = self.pending or errors.KernelError(
                "scopes and loops end in another order than they began",
                site=here(),
                remedy="Nest `with tl.scratch_scope():` blocks, and end in a loop's "
                "body what begins there",
            )
            return
        assert scope.line is not None
        body = tuple(self._blocks.pop())
        mark, rewound = self.arena.exit_scope()
        if body or rewound:
            self.emit(Scope(body, mark, rewound, scope.line.name, scope.line.site))

    # --- rolled loops ----------------------------------------------------------------

    def loop(self, start: Expr, stop: Expr, step: int, site: Site) -> Iterator[Index]:
        """Record the body of ``for i in range(start, stop, step)`` as one `Loop`."""
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
        trip = domain.checked(expr.trip_count(start, stop, step), self.domain)
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
        before = carried.snapshot(kernel_frame(), loop_index)
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
        self._blocks.append([])
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
        block = tuple(self._blocks.pop())
        after = carried.snapshot(kernel_frame(), loop_index)
        return carried.Recording(block, self.arena.end_iteration(), before, after)

    def _abandon(self, level: Level, written: int) -> None:
        self.arena.abandon_loop(level)
        self.written.rewind(written)

    # --- what may be used ------------------------------------------------------------

    def use_index(self, value: Expr, site: Site) -> Expr:
        """`value`, refused where it holds the index of a loop that has ended."""
        current = {v: v for v in (self.program_id, *self.domain.loops)}
        for variable in expr.variables(value):
            found = current.get(variable)
            if found is not None and found is not variable:
                name = carried.name_of(carried.is_made_with(variable), kernel_frame())
                raise errors.KernelError(
                    f"the loop index {variable.name} of an earlier iteration is used: "
                    f"{f'`{name}`' if name else 'Python state'} carries it, or a view "
                    "made with it, to the next one",
                    site=site,
                    got=str(value),
                    remedy="Compute it anew in each iteration",
                )
            if found is None:
                raise errors.KernelError(
                    f"the loop index {variable.name} is used after its loop",
                    site=site,
                    remedy="Use it inside the loop, or compute the last value from the "
                    "loop's bounds",
                )
        return value

    def lifetime_error(
        self, handle: TensorHandle, site: Site
    ) -> errors.KbjaxError | None:
        """Why `handle` may not be used at `site`, or None while it is alive."""
        death = self.arena.death_of(handle.allocation)
        if death is None:
            return None
        if death.cause == "scope":
            return errors.UseAfterScopeError(
                f"a tile is used after its scratch_scope has ended: it was made at "
                f"{handle.site}, the scope of {death.site} ended, and it is used at "
                f"{site}",
                site=site,
                got=str(handle),
                remedy="Copy it to a tile made outside the scope, with tl.copy_to, "
                "before the scope ends",
            )
        if death.cause == "refused":
            return errors.KernelError(
                f"a tile of the loop at {death.site}, which was refused, is used",
                site=site,
                got=str(handle),
                remedy="Make the tile outside the loop that is tried",
            )
        if death.loop not in self.domain.loops:
            return errors.UseAfterScopeError(
                "a tile made in a tl.range body is used after that iteration: it was "
                f"made at {handle.site}, the loop of {death.site} ended, and it is "
                f"used at {site}",
                site=site,
                got=str(handle),
                remedy="Make the tile before the loop and write it in the body with "
                "tl.copy_to",
            )
        name = carried.name_of(lambda v: v is handle, kernel_frame())
        shown = f"`{name}`" if name else "Python state"
        return errors.KernelError(
            f"{shown} carries a tile from one iteration of the tl.range at "
            f"{death.site} to the next: it was made at {handle.site}, and its bytes "
            f"died with its iteration{self._before_loop(death.loop, name)}",
            site=site,
            got=str(handle),
            remedy=f"Make {shown if name else 'the tile'} before the loop and update "
            f"it with tl.copy_to({name or 'tile'}, new)",
        )

    def _before_loop(self, loop: Var | None, name: str) -> str:
        """``; before the loop `m` was ...``, or nothing."""
        shown = self.before[loop].named(name) if loop in self.before else None
        return f"; before the loop `{name}` was {shown}" if shown else ""

    def last_bytes(self, handle: TensorHandle) -> Ref:
        """The handle's bytes, also where the loop that made it has ended: then those
        of its last iteration, as Python's variable would have it."""
        ref, made = handle.ref, handle.allocation
        ended = {
            loop: expr.maximum(expr.ZERO, expr.sub(loop.trip, expr.const(1)))
            for loop in (*made.loops, *expr.variables(ref.offset))
            if loop not in (self.program_id, *self.domain.loops)
        }
        offset = expr.substitute(ref.offset, ended)
        for loop in made.loops:
            if loop in ended:  # the program will add its index times its growth
                behind = expr.sub(ended[loop], expr.var(loop))
                growth = self.arena.growth_bytes.get(loop, 0)
                offset = expr.add(offset, expr.scale(behind, growth))
        return dataclasses.replace(ref, offset=offset)

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
            coverage.Level(block, level.index, self._complete.get(level.index))
            if level.index is not None
            else coverage.Level(block)
            for block, level in zip(self._blocks, self.arena.levels, strict=True)
        ]
        read = coverage.reading(levels, ref)
        writes = list(coverage.writes(levels, ref.root))
        covered = coverage.is_covered(read, writes, made, self.program_id)
        return covered is not False

    def mark_written(self, ref: Ref) -> None:
        self.written.add(ref)


class RolledRange:
    """What `tl.range` gives: a `for` statement over it records one loop body."""

    def __init__(self, recorder: Recorder, start: Expr, stop: Expr, step: int) -> None:
        self._recorder, self._site = recorder, here()
        self._start, self._stop, self._step = start, stop, step

    def __iter__(self) -> Iterator[Index]:
        return self._recorder.loop(self._start, self._stop, self._step, self._site)

    def _no_sequence(self, *_: object) -> Any:
        raise errors.KernelError(
            "a tl.range is no sequence: it goes into a `for` statement",
            site=here(),
            remedy="Give it a negative step to go backwards, take the trip count from "
            "its bounds with tl.cdiv, or unroll with tl.static_range",
        )

    __reversed__ = __len__ = __getitem__ = __contains__ = __next__ = _no_sequence


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
