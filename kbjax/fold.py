"""Equal iterations of a Python loop, recorded one after the other, become one `Loop`.

A kernel may count its tiles with Python's own `range`, as that of ADR-0063 does, and
its program then holds the body once an iteration. Where iterations are the same
commands at the same kernel lines, with addresses, views, scalars and trip counts affine
in the iteration, one body with a loop variable says the same: the same commands in the
same order, on the same bytes. What nothing outside an iteration uses becomes the
loop's own; iterations that leave something behind stay as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from kbjax import expr
from kbjax.domain import Domain
from kbjax.expr import Expr, Node, Var
from kbjax.fingerprint import Fingerprints, may_move
from kbjax.footprint import Allocation
from kbjax.iterations import Iterations, Run, lines_repeat
from kbjax.program import (
    Block,
    CopyCmd,
    LoadCmd,
    Loop,
    OpCmd,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    Statement,
    StoreCmd,
    When,
    walk,
)
from kbjax.refs import HbmRef, Operand, Ref, Span
from kbjax.site import Site

# Fewer iterations stay unrolled: they compile soon, and XLA can overlap them.
FEWEST = 8


def folded(program: Program) -> Program:
    """The program with its equal iterations folded: the same rows in its op_log (but
    for their loop column), the same bytes in both fidelities.

    `footprint` stays as recorded. Of the allocations of folded iterations the first
    one's stay, with the new loop in their domain.
    """
    folder = Folder.of(program)
    commands = folder.block(program.commands, ())
    if commands is program.commands:
        return program
    return replace(program, commands=commands, allocations=folder.allocations)


def uses_of(program: Program) -> np.ndarray:
    """How often each allocation is used, by uid, the kernel's end counted where it is
    alive then."""
    used = [
        ref.root
        for item in program.walk()
        if not isinstance(item, Loop | Scope)
        for ref in (*item.reads, item.writes)
        if ref is not None
    ]
    size = max(program.allocations, default=0) + 1
    return np.bincount([*used, *program.live_at_exit], minlength=size)


@dataclass
class Folder:
    """A program while it is folded.

    Attributes:
      prints: fingerprints of its statements.
      uses: of each root, in what is left of the program.
      allocations: what is left of them.
      next_uid: of the next variable, larger than all.
    """

    prints: Fingerprints
    uses: np.ndarray
    allocations: dict[int, Allocation]
    next_uid: int

    @staticmethod
    def of(program: Program) -> Folder:
        return Folder(
            prints=Fingerprints(program),
            uses=uses_of(program),
            allocations=dict(program.allocations),
            next_uid=1 + max((v.uid for v in program.growth_bytes), default=0),
        )

    def block(self, block: Block, loops: tuple[Var, ...]) -> Block:
        """The block, which lies in the loops, with all that it holds folded."""
        items = [self._inside(item, loops) for item in block]
        while lines_repeat(items, FEWEST):
            found = self._once(items, loops)
            if len(found) == len(items):
                break
            items = found  # outer iterations that hold equal loops now are equal
        same = len(items) == len(block) and all(map(operator.is_, items, block))
        return block if same else tuple(items)

    def _inside(self, item: Statement, loops: tuple[Var, ...]) -> Statement:
        if not isinstance(item, Loop | Scope):
            return item
        if isinstance(item, Loop):
            loops = (*loops, item.index)
        body = self.block(item.body, loops)
        return item if body is item.body else replace(item, body=body)

    def iterations(
        self, items: Sequence[Statement], loops: tuple[Var, ...]
    ) -> Iterations:
        """What repeats in a block that lies in the loops."""

        def is_inside(root: int) -> bool:
            return self.allocations[root].loops[: len(loops)] == loops

        return Iterations(
            [self.prints.of(item) for item in items], self.uses, is_inside
        )

    def _once(self, items: list[Statement], loops: tuple[Var, ...]) -> list[Statement]:
        """From the first statement on, each run that is long enough as one loop."""
        iterations = self.iterations(items, loops)
        found: list[Statement] = []
        place = 0
        while place < len(items):
            run = iterations.longest(place, FEWEST)
            if run is None:
                found.append(items[place])
                place += 1
            else:
                found.append(self._fold(items, iterations, run, loops))
                place = run.end
        return found

    def _fold(
        self,
        items: list[Statement],
        iterations: Iterations,
        run: Run,
        loops: tuple[Var, ...],
    ) -> Loop:
        """The run as a loop inside others, with all that its body holds folded."""
        first, second = (
            items[start : start + run.period]
            for start in (run.start, run.start + run.period)
        )
        index = Var(self.next_uid, _name(first, loops), expr.const(run.trips))
        steps = iterations.steps(run)
        body = _Body(index, iter(steps.tolist()), self.next_uid + 1)
        block = tuple(map(body.statement, first, second))
        self.next_uid = body.next_uid
        roots = iterations.roots_of(run)
        for uid in np.unique(roots[0, roots[0] != roots[1]]).tolist():
            self.allocations[uid] = body.allocation(self.allocations[uid], len(loops))
        gone = roots[1:]
        for uid in np.unique(gone[:, roots[0] != roots[1]]).tolist():
            del self.allocations[uid]
        np.subtract.at(self.uses, gone.reshape(-1), 1)
        return Loop(
            index=index,
            body=self.block(block, (*loops, index)),
            growth_bytes=iterations.growth_bytes(run),
            shown=f"{index.name} over equal Python iterations",
            site=first[0].site,
        )


def _name(first: list[Statement], loops: tuple[Var, ...]) -> str:
    """``line17``, and something else than the loops inside and around are called."""
    inside = {item.index.name for item in walk(tuple(first)) if isinstance(item, Loop)}
    taken = inside | {loop.name for loop in loops}
    site: Site = first[0].site
    name = f"line{site.line}"
    if name not in taken:
        return name
    return next(f"{name}_{n}" for n in count(2) if f"{name}_{n}" not in taken)


@dataclass
class _Body:
    """The first of the iterations while it becomes the body: integers that move by a
    step become expressions in `index`, and the loops inside get variables of their own,
    since those of an inner loop have the larger uid.

    `steps` come in the order of `kbjax.fingerprint`.
    """

    index: Var
    steps: Iterator[int]
    next_uid: int
    renamed: dict[Var, Var] = field(default_factory=dict)
    conditions: dict[Expr, Expr] = field(default_factory=dict)

    def allocation(self, made: Allocation, depth: int) -> Allocation:
        """As the body makes it, inside `depth` loops."""
        around, inside = made.loops[:depth], made.loops[depth:]
        inside = tuple(self.renamed.get(loop, loop) for loop in inside)
        conditions = (self.conditions.get(c, c) for c in made.domain.conditions)
        domain = Domain((*around, self.index, *inside), tuple(conditions))
        return replace(made, domain=domain)

    def statement(self, item: Statement, next_one: Statement) -> Statement:
        """The statement in the body, given that of the next iteration."""
        if isinstance(item, Loop):
            assert isinstance(next_one, Loop)
            trip = self._expr(item.trip)
            index = Var(self.next_uid, item.index.name, trip)
            self.next_uid += 1
            self.renamed[item.index] = index
            body = tuple(map(self.statement, item.body, next_one.body))
            shown = item.shown if item.shown == next_one.shown else index.name
            return replace(item, index=index, body=body, shown=shown)
        if isinstance(item, Scope):
            assert isinstance(next_one, Scope)
            next(self.steps)
            name = item.name if item.name == next_one.name else ""
            if isinstance(item, When):
                condition = self._expr(item.condition)
                self.conditions[item.condition] = condition
                item, name = replace(item, condition=condition), f"when {condition}"
            body = tuple(map(self.statement, item.body, next_one.body))
            return replace(item, body=body, name=name)
        next(self.steps)  # of the cursor
        if isinstance(item, OpCmd):
            operands = tuple([self._operand(x) for x in item.operands])
            return replace(item, operands=operands, out=self._ref(item.out))
        if isinstance(item, LoadCmd):
            view = self._view(item.view)
            return replace(item, view=view, out=self._ref(item.out))
        if isinstance(item, StoreCmd):
            view = self._view(item.view)
            return replace(item, view=view, src=self._ref(item.src))
        if isinstance(item, SendCmd):
            return replace(item, src=self._ref(item.src))
        if isinstance(item, RecvCmd):
            return replace(item, out=self._ref(item.out))
        assert isinstance(item, CopyCmd)
        src = self._ref(item.src)
        return replace(item, src=src, dst=self._ref(item.dst))

    def _operand(self, x: Operand) -> Operand:
        if isinstance(x, Ref):
            return self._ref(x)
        if isinstance(x, Expr):
            return self._expr(x)
        if not may_move(x):
            return x
        step = next(self.steps)
        return self._moved(expr.const(x), step) if step else x

    def _ref(self, ref: Ref) -> Ref:
        next(self.steps)  # of its allocation
        return replace(ref, offset=self._expr(ref.offset))

    def _view(self, view: HbmRef) -> HbmRef:
        return replace(view, spans=tuple([self._span(span) for span in view.spans]))

    def _span(self, span: Span) -> Span:
        start, valid = self._expr(span.start), span.valid
        if valid is not None:
            valid = (self._expr(valid[0]), self._expr(valid[1]))
        by = span.by and self._ref(span.by)
        return replace(span, start=start, valid=valid, by=by)

    def _expr(self, value: Expr) -> Expr:
        total = self._moved(expr.const(value.const), next(self.steps))
        for atom, k in value.terms:
            if isinstance(atom, Var):
                one = expr.var(self.renamed.get(atom, atom))
            else:
                a, b = atom.args
                node = Node(atom.op, (self._expr(a), self._expr(b)))
                one = Expr(0, ((node, 1),))
            total = expr.add(total, expr.scale(one, k))
        return total

    def _moved(self, value: Expr, step: int) -> Expr:
        return expr.add(value, expr.scale(expr.var(self.index), step))
