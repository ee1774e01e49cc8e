"""The footprint of a kernel without running it: what holds the scratch at its peak,
what each scope takes and gives back, and which tile sizes fit."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kbjax import footprint, ops
from kbjax.domain import Domain
from kbjax.expr import Var
from kbjax.footprint import Allocation, Event, Held, LoopTrace, ScopeTrace
from kbjax.overflow import size_text
from kbjax.program import OpCmd, Program
from kbjax.site import Site
from kbjax.sizes import Candidate, largest_fitting

SCHEMA_VERSION = 1
TIGHT = 0.95  # of the budget, from where a plan is marked


class Table(NamedTuple):
    """Rows for people, as text."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Buffer:
    """What one kernel line holds at the moment of the peak.

    Attributes:
      op, tile: what made it, and its type (``float32[8,128]``).
      count: how many of them.
      nbytes: all of them, padding included.
      scope: the innermost scope around them, as text, or "" where they are persistent.
      site, source: the kernel line.
    """

    op: str
    tile: str
    count: int
    nbytes: int
    scope: str
    site: Site
    source: str


@dataclass(frozen=True)
class ScopeUse:
    """What one `with tl.scratch_scope():` line does, all that it encloses included.

    Attributes:
      entered: how often, on the PE that enters it most.
      high_water_bytes: the most that it took above its save point, in any entry.
      live_at_exit_bytes: the most that it gave back at its end.
      allocated_bytes: what was allocated in it, over all entries on one PE.
    """

    name: str
    entered: int | None
    high_water_bytes: int
    live_at_exit_bytes: int
    allocated_bytes: int | None
    site: Site
    source: str


@dataclass(frozen=True)
class Plan:
    """The footprint of a recorded kernel. Sizes in bytes, of one PE's scratch.

    Attributes:
      buffers: what holds the scratch at the first moment of the peak; their `nbytes`
        add up to `peak_scratch_bytes`.
      peak_at: the allocation that reaches the peak, and its loop iterations, as text.
      persistent_bytes: what is allocated outside any scope and held to the end.
      op_temporaries: op -> what it computes inside, none of which takes scratch: one
        call, one slice (DESIGN, section 4).
      candidates: other sizes of the kernel's options.
      overflow: where the budget is passed first and what would help, or "".
    """

    kernel: str
    peak_scratch_bytes: int
    budget_bytes: int
    peak_at: str
    buffers: tuple[Buffer, ...]
    scopes: tuple[ScopeUse, ...]
    persistent_bytes: int
    op_temporaries: dict[str, str]
    candidates: tuple[Candidate, ...] = ()
    overflow: str = ""

    @property
    def fits(self) -> bool:
        return self.peak_scratch_bytes <= self.budget_bytes

    @property
    def utilisation(self) -> float:
        """Peak over budget."""
        return self.peak_scratch_bytes / self.budget_bytes

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` (from 95% of the budget) or ``does not fit``."""
        if not self.fits:
            return "does not fit"
        return "tight" if self.utilisation >= TIGHT else "fits"

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`; sites as ``{"file", "line"}``."""
        fields = dataclasses.asdict(self)
        for candidate, shown in zip(self.candidates, fields["candidates"], strict=True):
            largest = largest_fitting(self.candidates, candidate.option)
            shown |= {"fits": candidate.fits, "largest_fitting": candidate is largest}
        return {
            "schema_version": SCHEMA_VERSION,
            **fields,
            "fits": self.fits,
            "utilisation": self.utilisation,
            "verdict": self.verdict,
            "op_temporaries_bytes": 0,
        }

    # --- for people ------------------------------------------------------------------

    def headline(self) -> str:
        return (
            f"{self.kernel}: peak scratch {self.peak_scratch_bytes:,} B of "
            f"{size_text(self.budget_bytes)}, {self.utilisation:.1%}: {self.verdict}"
        )

    def notes(self) -> list[str]:
        """What the tables leave unsaid."""
        inside = "; ".join(f"{op}'s {what}" for op, what in self.op_temporaries.items())
        return [
            *([self.overflow] if self.overflow else []),
            *([f"Peak: {self.peak_at}."] if self.peak_at else []),
            f"Persistent, outside any scope: {self.persistent_bytes:,} B.",
            "Temporaries inside ops take no scratch: one call, one slice"
            + (f" ({inside} stay in the engine)." if inside else "."),
        ]

    def tables(self) -> Iterator[Table]:
        """Peak, scopes, and the sizes of each option."""
        for scope in dict.fromkeys(b.scope for b in self.buffers):
            yield self._buffer_table(scope)
        if self.scopes:
            yield self._scope_table()
        for option in dict.fromkeys(c.option for c in self.candidates):
            yield self._size_table(option)

    def _buffer_table(self, scope: str) -> Table:
        buffers = [b for b in self.buffers if b.scope == scope]
        rows = [
            (f"{b.nbytes:,}", f"{b.count:,}", f"{b.op} {b.tile}", str(b.site), b.source)
            for b in buffers
        ]
        where = f"in scope {scope}" if scope else "persistent"
        total = sum(b.nbytes for b in buffers)
        header = ("bytes", "count", "tile", "line", "source")
        return Table(f"held at the peak: {total:,} B {where}", header, rows)

    def _scope_table(self) -> Table:
        rows = [
            (
                footprint.scope_text(s.name, s.site),
                _counted(s.entered),
                f"{s.high_water_bytes:,}",
                f"{s.live_at_exit_bytes:,}",
                _counted(s.allocated_bytes),
            )
            for s in self.scopes
        ]
        header = ("scope", "entered", "high water", "at exit", "allocated")
        return Table("scopes, bytes above their save points", header, rows)

    def _size_table(self, option: str) -> Table:
        largest = largest_fitting(self.candidates, option)
        rows = []
        for c in self.candidates:
            if c.option != option:
                continue
            peak = used = ""
            if c.peak_scratch_bytes is not None:
                peak = f"{c.peak_scratch_bytes:,}"
                used = f"{c.peak_scratch_bytes / self.budget_bytes:.1%}"
            marks = ["largest that fits"] if c is largest else []
            marks += ["this plan"] if c.current else []
            marks += [c.reason] if c.reason else []
            rows.append((f"{c.value:,}", peak, used, ", ".join(marks)))
        return Table(
            f"sizes of {option}", (option, "peak bytes", "of budget", ""), rows
        )

    def __str__(self) -> str:
        lines = [self.headline(), *self.notes()]
        for table in self.tables():
            columns = list(zip(table.header, *table.rows, strict=True))
            widths = [max(map(len, column)) for column in columns]
            lines += ["", table.title]
            for row in (table.header, *table.rows):
                cells = [f"{c:<{w}}" for c, w in zip(row, widths, strict=True)]
                lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join(lines)


def _counted(value: int | None) -> str:
    return "too many to count" if value is None else f"{value:,}"


# --- from a program ------------------------------------------------------------------


def of(program: Program, budget_bytes: int) -> Plan:
    """The plan of a program, which may have been recorded without a budget."""
    events, peak = program.footprint, program.peak_scratch
    buffers: tuple[Buffer, ...] = ()
    peak_at = ""
    if peak:
        top = footprint.moment(events, peak - 1)
        sites = {loop.index: loop.site for loop in _nodes(events, LoopTrace)}
        peak_at = f"{top.made.op} at {top.made.site}" + "".join(
            f" in iteration {i} of the loop at {sites[loop]}"
            for loop, i in top.iterations.items()
        )
        buffers = _buffers(top.holding)
    used = {item.op for item in program.walk() if isinstance(item, OpCmd)}
    return Plan(
        kernel=program.name,
        peak_scratch_bytes=peak,
        budget_bytes=budget_bytes,
        peak_at=peak_at,
        buffers=buffers,
        scopes=_scopes(events, program.program_id),
        persistent_bytes=program.exit_cursor_bytes,
        op_temporaries={
            name: row.temporaries
            for name, row in ops.TABLE.items()
            if name in used and row.temporaries
        },
    )


def _nodes(events: Sequence[Event], kind: type) -> Iterator[Any]:
    for event in events:
        if isinstance(event, kind):
            yield event
        if not isinstance(event, Allocation):
            yield from _nodes(event.events, kind)


def _buffers(held: Sequence[Held]) -> tuple[Buffer, ...]:
    """By kernel line, op, type and scope; in the order in which they were made."""
    groups: dict[tuple[Site, str, str, str], tuple[int, int]] = {}
    for one in held:
        key = (one.made.site, one.made.op, one.made.tile, one.scope)
        count, nbytes = groups.get(key, (0, 0))
        groups[key] = (count + one.count, nbytes + one.nbytes)
    return tuple(
        Buffer(op, tile, count, nbytes, scope, site, _source(site))
        for (site, op, tile, scope), (count, nbytes) in groups.items()
    )


def _source(site: Site) -> str:
    return linecache.getline(site.file, site.line).strip()


def _scopes(events: Sequence[Event], pe: Var) -> tuple[ScopeUse, ...]:
    """One row a `with` line, in the order in which they are entered first."""
    counted: dict[tuple[Var, ...], np.ndarray | None] = {}

    def runs(loops: tuple[Var, ...]) -> np.ndarray | None:
        """How often what lies in the loops runs, (PEs,)."""
        if loops not in counted:
            counted[loops] = Domain(loops).counts(pe)
        return counted[loops]

    found: dict[tuple[str, Site], list[tuple[ScopeTrace, tuple[Var, ...]]]] = {}
    for scope, loops in _scopes_in(events, ()):
        found.setdefault((scope.name, scope.site), []).append((scope, loops))
    rows = []
    for (name, site), members in found.items():
        inside = [
            (made.aligned_bytes, runs(made.loops))
            for scope, _ in members
            for made in _nodes(scope.events, Allocation)
        ]
        rows.append(
            ScopeUse(
                name=name,
                entered=_most([(1, runs(loops)) for _, loops in members]),
                high_water_bytes=max(
                    footprint.highest(scope) - scope.mark_bytes for scope, _ in members
                ),
                live_at_exit_bytes=max(
                    sum(held.nbytes for held in footprint.left_by(scope.events))
                    for scope, _ in members
                ),
                allocated_bytes=_most(inside),
                site=site,
                source=_source(site),
            )
        )
    return tuple(rows)


def _scopes_in(
    events: Sequence[Event], loops: tuple[Var, ...]
) -> Iterator[tuple[ScopeTrace, tuple[Var, ...]]]:
    for event in events:
        if isinstance(event, ScopeTrace):
            yield event, loops
            yield from _scopes_in(event.events, loops)
        elif isinstance(event, LoopTrace):
            yield from _scopes_in(event.events, (*loops, event.index))


def _most(terms: Sequence[tuple[int, np.ndarray | None]]) -> int | None:
    """The largest entry of the weighted sum, one entry a PE."""
    total = np.zeros(1, np.int64)
    for weight, runs in terms:
        if runs is None:
            return None
        total = total + weight * runs
    return int(total.max())
