"""The footprint of a kernel without running it: what holds the scratch at its peak,
what each scope takes and gives back, and which tile sizes fit."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from kbjax import footprint, notebook, ops
from kbjax.domain import Domain
from kbjax.errors import ScratchOverflowError
from kbjax.expr import Var
from kbjax.footprint import Allocation, Event, LoopTrace, Moment, ScopeTrace
from kbjax.overflow import size_text
from kbjax.program import OpCmd, Program
from kbjax.site import ScopeLine, Site
from kbjax.sizes import Candidate

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
      scope: the innermost scope around them; None where they are persistent.
      site, source: the kernel line.
    """

    op: str
    tile: str
    count: int
    nbytes: int
    scope: ScopeLine | None
    site: Site
    source: str


@dataclass(frozen=True)
class ScopeUse:
    """What one `with tl.scratch_scope():` line does, all that it encloses included.

    Attributes:
      entered: how often, on the PE that enters it most.
      high_water_bytes: the most that it took above its save point, in any entry.
      live_at_exit_bytes: the most that it gave back at its end.
      allocated_bytes: what was allocated in it, over all entries on one PE. None, as
        `entered`, where there are too many iterations to count.
    """

    scope: ScopeLine
    entered: int | None
    high_water_bytes: int
    live_at_exit_bytes: int
    allocated_bytes: int | None
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
      overflow: the error that recording within the budget ends in, if any.
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
    overflow: ScratchOverflowError | None = None

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
        return verdict(self.peak_scratch_bytes, self.budget_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`; sites as ``{"file", "line"}``."""
        fields = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        fields["buffers"] = [dataclasses.asdict(one) for one in self.buffers]
        fields["scopes"] = [dataclasses.asdict(one) for one in self.scopes]
        fields["candidates"] = [
            {
                **dataclasses.asdict(one),
                "verdict": self._verdict_of(one),
                "largest_fitting": one is self.largest_fitting(one.option),
            }
            for one in self.candidates
        ]
        fields["overflow"] = self.overflow.to_dict() if self.overflow else None
        return {
            "schema_version": SCHEMA_VERSION,
            **fields,
            "fits": self.fits,
            "utilisation": self.utilisation,
            "verdict": self.verdict,
            "op_temporaries_bytes": 0,
        }

    def largest_fitting(self, option: str) -> Candidate | None:
        """The candidate with the option's largest value among those that fit."""
        fitting = [
            one
            for one in self.candidates
            if one.option == option and one.fits(self.budget_bytes)
        ]
        return max(fitting, key=lambda one: one.value, default=None)

    def _verdict_of(self, one: Candidate) -> str:
        if one.peak_scratch_bytes is None:
            return "refused"
        return verdict(one.peak_scratch_bytes, self.budget_bytes)

    # --- for people ------------------------------------------------------------------

    def headline(self) -> str:
        return (
            f"{self.kernel}: peak scratch {self.peak_scratch_bytes:,} B of "
            f"{size_text(self.budget_bytes)}, {self.utilisation:.1%}: {self.verdict}"
        )

    def notes(self) -> list[str]:
        """What the tables leave unsaid."""
        told = str(self.overflow) if self.overflow else ""
        inside = "; ".join(f"{op}'s {what}" for op, what in self.op_temporaries.items())
        return [
            *([f"{told.splitlines()[0]} {told.splitlines()[-1]}"] if told else []),
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

    def _buffer_table(self, scope: ScopeLine | None) -> Table:
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
                str(s.scope),
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
        largest = self.largest_fitting(option)
        rows = []
        for one in self.candidates:
            if one.option != option:
                continue
            peak, used = one.reason, ""
            if one.peak_scratch_bytes is not None:
                peak = f"{one.peak_scratch_bytes:,}"
                used = f"{one.peak_scratch_bytes / self.budget_bytes:.1%}"
            marks = [self._verdict_of(one)]
            marks += ["the largest that does"] if one is largest else []
            marks += ["this plan"] if one.current else []
            rows.append((f"{one.value:,}", peak, used, ", ".join(marks)))
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

    def _repr_html_(self) -> str:
        return notebook.plan(self.headline(), self.notes(), self.tables())


def verdict(peak_bytes: int, budget_bytes: int) -> str:
    """What a peak is to a budget."""
    if peak_bytes > budget_bytes:
        return "does not fit"
    return "tight" if peak_bytes >= TIGHT * budget_bytes else "fits"


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
        peak_at = _place(events, top)
        buffers = tuple(
            Buffer(g.op, g.tile, g.count, g.nbytes, g.scope, g.site, _source(g.site))
            for g in footprint.grouped(top.holding)
        )
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


def _place(events: Sequence[Event], top: Moment) -> str:
    """``add at k.py:9 in iteration 0 of the loop at k.py:5``."""
    loops = [e for e in footprint.walk(events) if isinstance(e, LoopTrace)]
    sites = {loop.index: loop.site for loop in loops}
    steps = [
        f"iteration {top.iterations.get(loop, 0)} of the loop at {sites[loop]}"
        for loop in top.made.loops
    ]
    pe = [f"PE {n}" for var, n in top.iterations.items() if var.is_pe]
    where = ", ".join([*pe, *steps])
    return f"{top.made.op} at {top.made.site}" + (f" in {where}" if where else "")


def _source(site: Site) -> str:
    return linecache.getline(site.file, site.line).strip()


def _scopes(events: Sequence[Event], pe: Var) -> tuple[ScopeUse, ...]:
    """One row a `with` line, in the order in which they are entered first."""
    counted: dict[Domain, list[int] | None] = {}

    def runs(domain: Domain) -> list[int] | None:
        """How many iterations run, on each PE."""
        if domain not in counted:
            found = domain.counts(pe)
            counted[domain] = None if found is None else [int(n) for n in found]
        return counted[domain]

    found: dict[ScopeLine, list[ScopeTrace]] = {}
    for scope in footprint.walk(events):
        if isinstance(scope, ScopeTrace):
            found.setdefault(scope.line, []).append(scope)
    rows = []
    for line, members in found.items():
        inside = [
            (made.aligned_bytes, runs(made.domain))
            for scope in members
            for made in footprint.walk(scope.events)
            if isinstance(made, Allocation)
        ]
        rows.append(
            ScopeUse(
                scope=line,
                entered=_most([(1, runs(scope.domain)) for scope in members]),
                high_water_bytes=max(
                    max(scope.highest_bytes - scope.mark_bytes, 0) for scope in members
                ),
                live_at_exit_bytes=max(
                    sum(held.nbytes for held in footprint.left_by(scope.events))
                    for scope in members
                ),
                allocated_bytes=_most(inside),
                source=_source(line.site),
            )
        )
    return tuple(rows)


def _most(terms: Sequence[tuple[int, list[int] | None]]) -> int | None:
    """The largest entry of the weighted sum, one entry a PE."""
    total = [0]
    for weight, runs in terms:
        if runs is None:
            return None
        total = [n + weight * m for n, m in zip_longest(total, runs, fillvalue=0)]
    return max(total)
