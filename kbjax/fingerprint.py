"""A statement of a program, taken apart: what it does at which kernel line, and the
integers in it that may differ from one iteration of a Python loop to the next.

Two statements with one fingerprint number differ in their integers and roots only.
These are in a fixed order, in which kbjax.fold puts a statement together again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from kbjax.expr import Expr, Var
from kbjax.program import (
    Command,
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
)
from kbjax.refs import HbmRef, Operand, Ref

# cursor: `cursor_bytes` of a command, `mark_bytes` of a scope; root: the cursor of the
# allocation that a reference names; index: the constant of a symbolic integer; scalar:
# a Python integer that is an operand.
Kind = Literal["cursor", "root", "index", "scalar"]
INT32 = 1 << 31
# Up to here every integer is a float32. Beyond, a Python integer becomes a bfloat16 by
# way of float32, and a symbolic one with one rounding.
LARGEST_SCALAR = 1 << 24

Bound = Mapping[Var, int]


@dataclass(frozen=True)
class Fingerprint:
    """What a statement is.

    Attributes:
      number: equal for statements that differ in integers and roots only.
      integers, kinds: the integers, and what each is.
      roots: the allocation that each reference names, one an integer of kind root.
    """

    number: int
    integers: tuple[int, ...]
    kinds: tuple[Kind, ...]
    roots: tuple[int, ...]


@dataclass
class _Parts:
    integers: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add(self, kind: Kind, value: int) -> None:
        self.integers.append(value)
        self.kinds.append(kind)


class Fingerprints:
    """Those of one program's statements, each made once. Loops inside a statement are
    told apart by how deep they are, those around it by their variables."""

    def __init__(self, program: Program) -> None:
        made = program.allocations
        self._cursors = {uid: one.cursor_bytes for uid, one in made.items()}
        self._numbers: dict[Hashable, int] = {}
        # With the statement, which keeps its id from being another's.
        self._known: dict[int, tuple[Statement, Fingerprint]] = {}

    def of(self, item: Statement, *bound: Var) -> Fingerprint:
        """That of a statement, whatever variables are in the place of those that are
        bound."""
        known = None if bound else self._known.get(id(item))
        if known is not None:
            return known[1]
        parts = _Parts()
        number = self._statement(item, {v: n for n, v in enumerate(bound)}, parts)
        made = Fingerprint(
            number, tuple(parts.integers), tuple(parts.kinds), tuple(parts.roots)
        )
        if not bound:
            self._known[id(item)] = item, made
        return made

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _statement(self, item: Statement, bound: Bound, parts: _Parts) -> int:
        if isinstance(item, Loop):
            trip = self._expr(item.trip, bound, parts)
            inner = {**bound, item.index: len(bound)}
            body = tuple([self._statement(one, inner, parts) for one in item.body])
            line = item.site.file, item.site.line
            return self._number(("loop", line, trip, item.growth_bytes, body))
        if isinstance(item, Scope):
            parts.add("cursor", item.mark_bytes)
            holds: Hashable = "always"
            if isinstance(item, When):
                holds = ("when", self._expr(item.condition, bound, parts))
            body = tuple([self._statement(one, bound, parts) for one in item.body])
            line = item.site.file, item.site.line
            return self._number(("scope", line, item.rewound_bytes, holds, body))
        return self._number(self._command(item, bound, parts))

    def _command(self, item: Command, bound: Bound, parts: _Parts) -> Hashable:
        parts.add("cursor", item.cursor_bytes)
        said: tuple[Any, ...]
        if isinstance(item, OpCmd):
            said = (
                repr(item.attrs),
                *[self._operand(x, bound, parts) for x in item.operands],
                *[dtype.name for dtype in item.operand_dtypes],
                self._ref(item.out, bound, parts),
            )
        elif isinstance(item, LoadCmd):
            said = (
                self._view(item.view, bound, parts),
                self._ref(item.out, bound, parts),
                _scalar(item.other),
            )
        elif isinstance(item, StoreCmd):
            said = (
                self._view(item.view, bound, parts),
                self._ref(item.src, bound, parts),
            )
        elif isinstance(item, SendCmd | RecvCmd):
            end = item.src if isinstance(item, SendCmd) else item.out
            said = (item.offset, self._ref(end, bound, parts))
        else:
            assert isinstance(item, CopyCmd)
            said = (
                self._ref(item.src, bound, parts),
                self._ref(item.dst, bound, parts),
                item.nbytes,
                item.data_op,
            )
        site = item.site
        return (item.op, site.file, site.line, item.scope_depth, *said)

    def _operand(self, x: Operand, bound: Bound, parts: _Parts) -> Hashable:
        if isinstance(x, Ref):
            return self._ref(x, bound, parts)
        if isinstance(x, Expr):
            return ("index", self._expr(x, bound, parts))
        if may_move(x):
            parts.add("scalar", x)
            return "scalar"
        return _scalar(x)

    def _ref(self, ref: Ref, bound: Bound, parts: _Parts) -> Hashable:
        parts.roots.append(ref.root)
        parts.add("root", self._cursors[ref.root])
        offset = self._expr(ref.offset, bound, parts)
        return (ref.shape, ref.dtype.name, offset)

    def _view(self, view: HbmRef, bound: Bound, parts: _Parts) -> Hashable:
        spans = []
        for span in view.spans:
            start = self._expr(span.start, bound, parts)
            valid = span.valid and tuple(
                [self._expr(end, bound, parts) for end in span.valid]
            )
            by = span.by and self._ref(span.by, bound, parts)
            spans.append((start, span.size, valid, by))
        return (view.slot, view.axes, view.dtype.name, *spans)

    def _expr(self, value: Expr, bound: Bound, parts: _Parts) -> Hashable:
        const = value.const
        large = not -INT32 <= const < INT32  # then it belongs to what must be equal
        parts.add("index", 0 if large else const)
        if not value.terms:
            return const if large else None
        terms: list[Hashable] = [const if large else None]
        for atom, k in value.terms:
            if isinstance(atom, Var):
                terms.append((k, bound.get(atom, atom)))
            else:
                args = [self._expr(arg, bound, parts) for arg in atom.args]
                terms.append((k, atom.op, *args))
        return tuple(terms)


def may_move(x: Operand) -> TypeGuard[int]:
    """Whether an operand is an integer that means the same as a symbolic one."""
    return type(x) is int and -LARGEST_SCALAR <= x <= LARGEST_SCALAR


def _scalar(value: object) -> Hashable:
    """Tells 0, 0.0, -0.0 and False apart; all NaN are one."""
    return (type(value).__name__, repr(value))
