"""The commands of a recorded kernel, and `Program`, which prints readably.

A command reads and writes references (`kbjax.refs`). `Loop` and `Scope` hold commands.
Everything is frozen; both phases read the same program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kbjax import expr, footprint, notebook
from kbjax.domain import Domain
from kbjax.dtypes import DType, Shape, type_text
from kbjax.expr import Expr, Var
from kbjax.footprint import Allocation, Event
from kbjax.hardware import Hardware
from kbjax.refs import HbmRef, Operand, Ref, Scalar
from kbjax.site import Site

# --- commands ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Command:
    """What one `tl` call asks the hardware to do, and the kernel line that asked."""

    site: Site = field(compare=False)
    scope_depth: int
    cursor_bytes: int

    op = "?"  # each kind of command has its own

    @property
    def reads(self) -> tuple[Ref, ...]:
        return ()

    @property
    def writes(self) -> Ref | None:
        return None


@dataclass(frozen=True, kw_only=True)
class LoadCmd(Command):
    """HBM -> TCM. `other` fills what a tail leaves out."""

    view: HbmRef
    out: Ref
    other: Scalar | None = None

    op = "load"

    @property
    def reads(self) -> tuple[Ref, ...]:
        return self.view.by

    @property
    def writes(self) -> Ref:
        return self.out

    def __str__(self) -> str:
        other = "" if self.other is None else f", other={self.other}"
        return f"{self.out} = load {self.view}{other}"


@dataclass(frozen=True, kw_only=True)
class StoreCmd(Command):
    """TCM -> HBM. Elements outside a span's valid range are dropped."""

    view: HbmRef
    src: Ref

    op = "store"

    @property
    def reads(self) -> tuple[Ref, ...]:
        return (self.src,)

    def __str__(self) -> str:
        return f"store {self.view}, {self.src}"


@dataclass(frozen=True, kw_only=True)
class OpCmd(Command):
    """A row of the op table applied to operands, each taken in its operand dtype."""

    op: str
    operands: tuple[Operand, ...]
    operand_dtypes: tuple[DType, ...]
    out: Ref
    attrs: tuple[tuple[str, object], ...] = ()

    @property
    def reads(self) -> tuple[Ref, ...]:
        return tuple(x for x in self.operands if isinstance(x, Ref))

    @property
    def writes(self) -> Ref:
        return self.out

    def __str__(self) -> str:
        shown = [*map(str, self.operands), *(f"{k}={v}" for k, v in self.attrs)]
        return f"{self.out} = {self.op} {', '.join(shown)}"


@dataclass(frozen=True, kw_only=True)
class CopyCmd(Command):
    """TCM -> TCM on the vector engine (ADR-0063, D3.1)."""

    src: Ref
    dst: Ref
    nbytes: int
    data_op: bool = True

    op = "copy"

    @property
    def reads(self) -> tuple[Ref, ...]:
        return (self.src,)

    @property
    def writes(self) -> Ref:
        return self.dst

    def __str__(self) -> str:
        return f"copy {self.dst}, {self.src}"


@dataclass(frozen=True, kw_only=True)
class SendCmd(Command):
    """TCM -> a message to PE (i + offset) % n, which its receive of that offset takes;
    messages of one offset in program order."""

    src: Ref
    offset: int

    op = "send"

    @property
    def reads(self) -> tuple[Ref, ...]:
        return (self.src,)

    def __str__(self) -> str:
        return f"send {self.src} to pe{self.offset:+}"


@dataclass(frozen=True, kw_only=True)
class RecvCmd(Command):
    """The next message of PE (i - offset) % n -> TCM. It stands where the kernel waits
    for the data; its `site` is that of the `recv`."""

    out: Ref
    offset: int

    op = "recv"

    @property
    def writes(self) -> Ref:
        return self.out

    def __str__(self) -> str:
        return f"{self.out} = recv from pe{-self.offset:+}"


@dataclass(frozen=True)
class Loop:
    """`body`, run for ``index = 0 .. trip - 1``; each iteration leaves the cursor
    `growth_bytes` higher."""

    index: Var
    body: Block
    growth_bytes: int
    shown: str
    site: Site = field(compare=False)

    @property
    def trip(self) -> Expr:
        return self.index.trip

    def __str__(self) -> str:
        return f"loop {self.shown}, trips {self.trip}"


@dataclass(frozen=True)
class Scope:
    """`body`, after which the cursor goes back by `rewound_bytes`, to `mark_bytes` (in
    iteration 0 of the loops around it)."""

    body: Block
    mark_bytes: int
    rewound_bytes: int
    name: str
    site: Site = field(compare=False)

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"scope{name}, rewinds {self.rewound_bytes:,} B to {self.mark_bytes:#x}"


@dataclass(frozen=True)
class When(Scope):
    """A scope that runs in the iterations and on the PEs where `condition` is not 0.

    What asks only for the commands of a body sees a scope; what runs bodies asks for
    a `When` first.
    """

    condition: Expr

    def __str__(self) -> str:
        gives = f"rewinds {self.rewound_bytes:,} B to {self.mark_bytes:#x}"
        return f"when {self.condition}, {gives}"


Statement = LoadCmd | StoreCmd | OpCmd | CopyCmd | SendCmd | RecvCmd | Loop | Scope
Block = tuple[Statement, ...]


# --- the program ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """An HBM tensor as one PE sees it. `pe_axis` is the axis of the caller's array
    that is split over PEs, or None where all PEs see the same array."""

    name: str
    shape: Shape
    dtype: DType
    pe_axis: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {type_text(self.shape, self.dtype)}"


@dataclass(frozen=True, eq=False)
class Program:
    """A recorded kernel.

    Attributes:
      slots: the HBM tensors: inputs, then the outputs that alias no input.
      output_slots: the slot of each output.
      allocations: every slice of scratch, by uid; of iterations that kbjax.fold made
        one loop of, those of the first.
      footprint: what took scratch, as a tree of allocations, scopes and loops, where
        nothing is folded.
      exit_cursor_bytes: the cursor at the kernel's end.
      live_at_exit: uids of the allocations whose handles are alive then.
      needs_exact: True where the scope contract is not promised (`checks`), so that
        only exact replay is right.
    """

    name: str
    slots: tuple[TensorSpec, ...]
    num_inputs: int
    output_slots: tuple[int, ...]
    num_pes: int
    program_id: Var
    hardware: Hardware
    commands: Block
    allocations: Mapping[int, Allocation]
    footprint: tuple[Event, ...]
    exit_cursor_bytes: int
    live_at_exit: tuple[int, ...]
    needs_exact: bool = False

    @cached_property
    def growth_bytes(self) -> Mapping[Var, int]:
        """What each loop adds to the cursor an iteration."""
        loops = (item for item in self.walk() if isinstance(item, Loop))
        return {
            **footprint.growths(self.footprint),
            **{loop.index: loop.growth_bytes for loop in loops},  # folded ones too
        }

    @cached_property
    def peak_scratch(self) -> int:
        """The highest cursor over all iterations, in bytes: exact, or safe where there
        are too many iterations to enumerate."""
        return footprint.highest(self.footprint)

    def offset(self, ref: Ref) -> Expr:
        """Bytes from the start of the scratch region, affine in the loop indices."""
        made = self.allocations[ref.root]
        first = expr.add(expr.const(made.cursor_bytes), ref.offset)
        return self.moved(first, made.loops)

    def moved(self, offset: Expr, loops: Iterable[Var]) -> Expr:
        """Where the iterations of `loops` move an offset of their iteration 0."""
        for loop in loops:
            grown = expr.scale(expr.var(loop), self.growth_bytes.get(loop, 0))
            offset = expr.add(offset, grown)
        return offset

    def address(self, ref: Ref) -> Expr:
        """The absolute TCM address: `scratch_base` plus `offset`."""
        return expr.add(expr.const(self.hardware.pe_tcm.scratch_base), self.offset(ref))

    def walk(self) -> Iterator[Statement]:
        """Every statement once, loops and scopes before their bodies."""
        return walk(self.commands)

    def __str__(self) -> str:
        budget = self.hardware.pe_tcm.scratch_bytes
        shown = ", ".join(str(slot) for slot in self.slots)
        head = [
            f"kernel {self.name}({shown})"
            + (f" on {self.num_pes} PEs" if self.num_pes > 1 else ""),
            f"peak scratch {self.peak_scratch:,} of {budget:,} B",
        ]
        return "\n".join(head + list(self._lines(self.commands, 1)))

    def _repr_html_(self) -> str:
        return notebook.program(str(self))

    def _lines(self, block: Block, indent: int) -> Iterator[str]:
        pad = "  " * indent
        for item in block:
            if isinstance(item, Loop):
                grows = f", +{item.growth_bytes} B" if item.growth_bytes else ""
                yield f"{pad}{item}{grows}  # {item.site}"
                yield from self._lines(item.body, indent + 1)
            elif isinstance(item, Scope):
                yield f"{pad}{item}  # {item.site}"
                yield from self._lines(item.body, indent + 1)
            else:
                yield f"{pad}{item}{self._where(item)}  # {item.site}"

    def _where(self, command: Command) -> str:
        out = command.writes or command.reads[0]
        where = self.address(out)
        at = f"{where.const:#x}" if where.is_const else str(where)
        kind = type_text(out.shape, out.dtype)
        return f"  {kind} @ {at}, depth {command.scope_depth}"


def walk_in_domain(
    block: Block, domain: Domain | None = None
) -> Iterator[tuple[Statement, Domain]]:
    """Every statement once, with the iterations that run it."""
    domain = domain or Domain()
    for item in block:
        yield item, domain
        if isinstance(item, Loop | Scope):
            yield from walk_in_domain(item.body, inside(item, domain))


def inside(item: Loop | Scope, domain: Domain) -> Domain:
    """The iterations that run what `item`, itself run by `domain`, holds."""
    if isinstance(item, Loop):
        return domain.inside(item.index)
    return domain.where(item.condition) if isinstance(item, When) else domain


def has_messages(block: Block) -> bool:
    """Whether any command of the block sends or receives."""
    return any(isinstance(item, SendCmd | RecvCmd) for item in walk(block))


def walk(block: Block) -> Iterator[Statement]:
    """Every statement once, loops and scopes before their bodies."""
    for item in block:
        yield item
        if isinstance(item, Loop | Scope):
            yield from walk(item.body)
