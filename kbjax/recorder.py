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
from kbjax.allocator import Arena
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.handle import TensorHandle
from kbjax.index import Index
from kbjax.program import Block, Loop, Ref, Scope, Statement
from kbjax.site import Site, here, in_for_statement, kernel_frame
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
    growth_bytes: dict[Var, int] = field(default_factory=dict)
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
        self._check_scopes_closed(1)
        return tuple(self._blocks[0])

    def _check_scopes_closed(self, depth: int) -> None:
        if len(self._blocks) != depth:
            loop = self.arena.innermost_loop
            if loop is not None:
                raise errors.KernelError(
                    "a tl.range loop is still open where the body of another ends",
                    site=loop,
                    remedy="Use one tl.range and compute the other index from it: "
                    "rolled loops nest, and are not run side by side",
                )
            raise errors.KernelError(
                "a scratch_scope opened here is still open where its block ends",
                site=self.arena.scope_sites[-1] if self.arena.scope_depth else here(),
                remedy="Write `with tl.scratch_scope():` around the commands",
            )

    # --- scopes ----------------------------------------------------------------------

    def open_scope(self, name: str, site: Site) -> None:
        self._blocks.append([])
        self.arena.enter_scope(name, site)

    def close_scope(self, name: str, site: Site) -> None:
        """Rewind. What was recorded stays, also where an exception ends the scope."""
        body = tuple(self._blocks.pop())
        mark, rewound = self.arena.exit_scope()
        if body or rewound:
            self.emit(Scope(body, mark, rewound, name, site))

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
        span = expr.sub(stop, start) if step > 0 else expr.sub(start, stop)
        domain.checked(expr.add(span, expr.const(abs(step) - 1)), self.domain)
        trip = domain.checked(expr.trip_count(start, stop, step), self.domain)
        name, uid = _target_name(site, self._next_var), self._next_var
        self._next_var += 1
        outside = self.domain
        runs = not outside.inside(Var(uid, name, trip)).never_runs()
        loop_index = Var(uid, name, trip)
        written, first_var = self.written, self._next_var
        self.arena.enter_loop(loop_index, site, runs)
        first = yield from self._body(loop_index, start, step, site)
        self.arena.restart_iteration()
        self.written, self._next_var = written, first_var
        self._complete[loop_index] = first.block
        # An equal variable of its own: an index kept from the first recording is told
        # apart by identity.
        loop_index = Var(uid, name, trip)
        second = yield from self._body(loop_index, start, step, site)
        del self._complete[loop_index]
        written_in_body, self.written = self.written, written
        try:
            carried.check_alike(first, second, loop_index.name, site)
            _check_growth(second.growth_bytes, trip, site)
        except errors.KbjaxError:
            self.arena.abandon_loop()
            raise
        growth = self.arena.exit_loop(trip.const if trip.is_const else None)
        if outside.violation(expr.const(1), trip) is None:  # it runs in any case
            self.written = written_in_body.outside(outside)
        if runs and second.block:
            self.growth_bytes[loop_index] = growth
            value = str(_counted(loop_index, start, step))
            shown = name if value == name else f"{name} -> {value}"
            self.emit(Loop(loop_index, second.block, growth, shown, site))

    def _body(
        self, loop_index: Var, start: Expr, step: int, site: Site
    ) -> Generator[Index, None, carried.Recording]:
        """Let the kernel run a loop's body once."""
        outside, self.domain = self.domain, self.domain.inside(loop_index)
        counted = _counted(loop_index, start, step)
        value = Index(domain.checked(counted, self.domain), self)
        depth = len(self._blocks)
        self._blocks.append([])
        written, before = self.written, carried.snapshot(kernel_frame())
        self.before.setdefault(loop_index, before)
        try:
            yield value
            self.raise_pending()
            self._check_scopes_closed(depth + 1)
        except (GeneratorExit, errors.KbjaxError) as left:
            del self._blocks[depth:]
            self._complete.pop(loop_index, None)
            self.arena.abandon_loop()
            self.domain, self.written = outside, written
            if isinstance(left, GeneratorExit):
                self.pending = _left_early(site)
            raise
        self.domain = outside
        block = tuple(self._blocks.pop())
        after = carried.snapshot(kernel_frame())
        return carried.Recording(block, self.arena.end_iteration(), before, after)

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
        shown = self.before[loop].shown.get(name) if loop in self.before else None
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
                growth = self.growth_bytes.get(loop, 0)
                offset = expr.add(offset, expr.scale(behind, growth))
        return dataclasses.replace(ref, offset=offset)

    @property
    def runs(self) -> bool:
        """Whether any iteration of the open loops runs at all; else the kernel is only
        type-checked here."""
        return self.arena.runs()

    def is_written(self, ref: Ref) -> bool:
        """Whether a read of `ref` here is certain to find every byte written, in every
        iteration that runs. In the first recording of a body it is not asked yet: the
        writes of earlier iterations are not all known."""
        if not self.runs or self.written.covers(ref):
            return True
        if any(loop not in self._complete for loop in self.domain.loops):
            return True
        levels = [
            coverage.Level(block, loop, self._complete[loop] if loop else ())
            for block, loop in zip(self._blocks, self.arena.level_loops, strict=True)
        ]
        read = coverage.reading(levels, ref)
        writes = list(coverage.writes(levels, ref.root))
        made = self.arena.allocations[ref.root]
        return bool(coverage.is_covered(read, writes, made, self.program_id))

    def mark_written(self, ref: Ref) -> None:
        self.written = self.written.with_bytes(ref)


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
        "a tl.range body was left by break, return or an exception, and one loop body "
        "stands for all iterations",
        site=site,
        remedy="Use tl.where to select values, or tl.static_range to unroll",
    )


def _target_name(site: Site, uid: int) -> str:
    """The loop variable's name in the source, for messages and printing."""
    found = _LOOP_TARGET.search(linecache.getline(site.file, site.line))
    return found.group(1) if found else f"i{uid}"
