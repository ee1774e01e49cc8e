"""How a matrix product takes its operands, so that both fidelities compute the same.

XLA folds a transposition into a product, whose kernel then adds in another order. What
is folded is decided here, from the program alone: an operand that `tl.trans` made of a
plain tile is taken untransposed; one that may be a transposition in some other way (a
transposed view, a copy or an alias of one, what is computed from one) is first written
out in its own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kbjax import ops
from kbjax.program import (
    Command,
    CopyCmd,
    LoadCmd,
    Loop,
    OpCmd,
    Program,
    RecvCmd,
    Scope,
)
from kbjax.refs import Ref

Layout = Literal["plain", "untransposed", "physical"]


@dataclass(frozen=True)
class Layouts:
    """Roots by what their value may be.

    Attributes:
      lazy: a transposition that has not been made.
      transposed: the output of one `trans` of a tile that is not lazy, and no more.
    """

    lazy: frozenset[int]
    transposed: frozenset[int]

    def of(self, ref: Ref, made_by_trans: bool) -> Layout:
        """How a product takes the operand."""
        if made_by_trans and ref.root in self.transposed:
            return "untransposed"
        return "physical" if ref.root in self.lazy else "plain"


def layouts(program: Program) -> Layouts:
    """The layouts of a program's roots, whatever the order of its commands."""
    commands = [c for c in program.walk() if not isinstance(c, Loop | Scope)]
    lazy: frozenset[int] = frozenset()
    while True:  # copies hand laziness on, through loops too
        grown = lazy | {
            c.writes.root
            for c in commands
            if c.writes is not None and _may_be_lazy(c, lazy)
        }
        if grown == lazy:
            break
        lazy = grown
    return Layouts(lazy, _transposed_once(commands, lazy))


def _may_be_lazy(command: Command, lazy: frozenset[int]) -> bool:
    if isinstance(command, LoadCmd):
        return list(command.view.axes) != sorted(command.view.axes)
    if isinstance(command, CopyCmd):
        return command.src.root in lazy
    if isinstance(command, RecvCmd):  # the message of a send may be anything
        return True
    if isinstance(command, OpCmd) and ops.TABLE[command.op].engine == "gemm":
        return False
    return command.op == "trans" or any(ref.root in lazy for ref in command.reads)


def _transposed_once(
    commands: Sequence[Command], lazy: frozenset[int]
) -> frozenset[int]:
    writers: dict[int, list[Command]] = {}
    for command in commands:
        if command.writes is not None:
            writers.setdefault(command.writes.root, []).append(command)
    return frozenset(
        root
        for root, (first, *more) in writers.items()
        if not more
        and isinstance(first, OpCmd)
        and first.op == "trans"
        and first.reads[0].root not in lazy
    )
