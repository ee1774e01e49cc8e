"""What a schedule comes to: totals, how busy the engines are, and what limits the
program. From the rolled rows, at a cost that does not depend on trip counts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbjax import critical, notebook, rolled
from kbjax.costs import ENGINES, Work
from kbjax.program import Program, has_messages
from kbjax.rolled import ENGINE, HAZARD, OPERAND, Node
from kbjax.timing import Schedule

SCHEMA_VERSION = 2
SATURATED = 0.9  # of the total: an engine this busy limits the program
MOSTLY = 0.5  # of the critical path
LINES = 8  # of the critical path, in the text


@dataclass(frozen=True)
class EngineUse:
    """`busy_ns` summed over PEs; `utilisation` is busy / (PEs x total)."""

    busy_ns: float
    utilisation: float
    commands: int


@dataclass(frozen=True)
class LineShare:
    """What a kernel line's commands of one kind take of the critical path."""

    file: str
    line: int
    op_name: str
    engine: str
    time_ns: float
    share: float


@dataclass(frozen=True)
class Summary:
    """Figures of one op_log.

    Attributes:
      gemm_flops, math_flops: the GEMM engine's 2 M N K, the vector engine's elements.
      intensity_flops_per_byte: both over the bytes loaded and stored; None for no
        bytes.
      roofline_ns: the most that any PE's bytes at full bandwidth, products at the peak
        rate or vectors at full width take: no order of the commands is faster.
      roofline_engine: the engine of that bound.
      critical_resource: the engine with the most busy time.
      limited_by: latency, where fixed costs (DMA latency, overheads) are at least half
        of the critical path; else dma, gemm, math or link, where that engine is busy
        for at least 90% of the total on the PE that ends last; else dependency. Of no
        commands: nothing.
      critical_path: its time by kernel line and op, largest first; it adds up to the
        total.
      critical_shares: of the critical path, by what the time goes into: dma, gemm,
        math, link (bytes, passes, vectors) and latency.
      critical_waits: of the critical path, by what its commands waited for last:
        engine, operand, hazard (or start, for the first).
      stalls_ns: summed over all commands. engine: ready, but its engine was busy;
        operand: its engine was idle until an operand was there; hazard: both were
        ready, but an earlier command still used the bytes it writes.
      walks: loops that were timed one iteration at a time, and why.
    """

    kernel: str
    num_pes: int
    total_ns: float
    commands: int
    engines: dict[str, EngineUse]
    bytes_loaded: int
    bytes_stored: int
    gemm_flops: int
    math_flops: int
    intensity_flops_per_byte: float | None
    roofline_ns: float
    roofline_engine: str
    critical_resource: str
    limited_by: str
    critical_path: tuple[LineShare, ...]
    critical_shares: dict[str, float]
    critical_waits: dict[str, float]
    stalls_ns: dict[str, float]
    peak_scratch_bytes: int
    budget_bytes: int
    walks: tuple[str, ...]

    @property
    def roofline_distance(self) -> float | None:
        """The total over the roofline bound: 1 is the best there can be."""
        return self.total_ns / self.roofline_ns if self.roofline_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with `schema_version`."""
        return {
            "schema_version": SCHEMA_VERSION,
            **vars(self),
            "engines": {name: vars(use) for name, use in self.engines.items()},
            "critical_path": [vars(line) for line in self.critical_path],
            "roofline_distance": self.roofline_distance,
            "walks": list(self.walks),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What a person reads: (name, figure with its unit), in order."""
        shown = [("latency", f"{self.total_ns:,.3f} ns, {self.commands:,} commands")]
        for name, use in self.engines.items():
            shown.append(
                (
                    f"{name} engine",
                    f"busy {use.busy_ns:,.3f} ns over all PEs, {use.utilisation:.1%} "
                    f"utilised (busy / (PEs x latency)), {use.commands:,} commands",
                )
            )
        used = self.peak_scratch_bytes / self.budget_bytes
        shown += [
            ("limited by", self._verdict()),
            ("critical path", _parts(self.critical_shares)),
            ("", f"its commands waited for: {_parts(self.critical_waits)}"),
            *(("", line) for line in self._lines()),
            (
                "stalls",
                ", ".join(f"{n} {ns:,.3f} ns" for n, ns in self.stalls_ns.items())
                + " (summed over all commands)",
            ),
            ("roofline", self._roofline()),
            (
                "HBM traffic",
                f"{self.bytes_loaded:,} B loaded, {self.bytes_stored:,} B stored",
            ),
            ("flops", self._flops()),
            (
                "peak scratch",
                f"{self.peak_scratch_bytes:,} of {self.budget_bytes:,} B ({used:.1%})",
            ),
        ]
        return shown + [("note", walk) for walk in self.walks]

    def _verdict(self) -> str:
        why = {
            "latency": "fixed costs are at least half of the critical path",
            "dependency": "no engine is busy for 90% of the latency: commands wait for "
            "each other",
            "nothing": "there are no commands",
        }
        busy = "busy for at least 90% of the latency"
        return f"{self.limited_by} ({why.get(self.limited_by, busy)})"

    def _lines(self) -> list[str]:
        shown = [
            f"{line.share:6.1%} {line.file.rpartition('/')[2]}:{line.line} "
            f"{line.op_name} ({line.engine}), {line.time_ns:,.3f} ns"
            for line in self.critical_path[:LINES]
        ]
        left = self.critical_path[LINES:]
        if left:
            share = sum(line.share for line in left)
            shown.append(f"{share:6.1%} in {len(left)} more")
        return shown

    def _roofline(self) -> str:
        if self.roofline_distance is None:
            return "none: nothing is moved or computed"
        return (
            f"{self.roofline_ns:,.3f} ns by {self.roofline_engine}; the latency is "
            f"{self.roofline_distance:.2f} times that"
        )

    def _flops(self) -> str:
        text = f"{self.gemm_flops:,} GEMM, {self.math_flops:,} vector"
        if self.intensity_flops_per_byte is None:
            return text
        return f"{text}, {self.intensity_flops_per_byte:,.2f} a byte of HBM traffic"

    def __str__(self) -> str:
        head = f"{self.kernel} on {self.num_pes} PE{'s' if self.num_pes > 1 else ''}"
        return "\n".join([head, *(f"  {n:<13} {text}" for n, text in self.rows())])

    def _repr_html_(self) -> str:
        return notebook.fields(str(self).splitlines()[0], self.rows())


def _parts(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) or "none"


# --- from rows to figures ------------------------------------------------------------


class _Totals(NamedTuple):
    """Sums over rows, in ps and bytes, exact but for `bounds`."""

    busy: Counter[str]
    commands: Counter[str]
    moved: Counter[str]
    flops: Counter[str]
    stalls: Counter[int]
    bounds: defaultdict[str, float]

    @classmethod
    def of(cls, works: Sequence[Work], nodes: Sequence[Node]) -> _Totals:
        self = cls(
            Counter(), Counter(), Counter(), Counter(), Counter(), defaultdict(float)
        )
        for row, counts in rolled.rows(nodes):
            work, times = works[row.work], math.prod(counts)
            self.busy[work.engine] += row.cost * times
            self.commands[work.engine] += times
            self.flops[work.engine] += work.flops * times
            self.stalls[row.cause] += rolled.total(row.waited, counts)
            if work.engine == "dma":
                self.moved[work.op_name] += row.nbytes * times
            self.bounds[work.engine] += work.least_ps(row.nbytes) * times
        return self


def of(
    program: Program,
    schedule: Schedule,
    runs: Sequence[tuple[int, tuple[Node, ...]]],
) -> Summary:
    """The summary of some rows of a schedule.

    Args:
      runs: (PE, its rows).
    """
    works, total_ps = schedule.works, schedule.total_ps
    made: dict[int, _Totals] = {}  # PEs in the same time share their rows
    each = []
    for _, nodes in runs:
        if id(nodes) not in made:
            made[id(nodes)] = _Totals.of(works, nodes)
        each.append(made[id(nodes)])
    whole = total_ps * program.num_pes
    engines: dict[str, EngineUse] = {}
    for name in ENGINES:
        busy = sum(one.busy[name] for one in each)
        count = sum(one.commands[name] for one in each)
        if name == "link" and not has_messages(program.commands):
            continue
        engines[name] = EngineUse(busy / 1000, busy / whole if whole else 0.0, count)
    loaded = sum(one.moved["load"] for one in each)
    stored = sum(one.moved["store"] for one in each)
    gemm, vector = (sum(one.flops[name] for one in each) for name in ("gemm", "math"))
    bounds = {n: max((one.bounds[n] for one in each), default=0.0) for n in ENGINES}
    roof = max(bounds, key=bounds.__getitem__)
    last = max(range(len(schedule.ends_ps)), key=schedule.ends_ps.__getitem__)
    steps = critical.path(
        schedule.runs, (last, schedule.last_ops[last]), schedule.sent_by
    )
    shares, waits, lines = _critical(works, steps)
    busiest = max(engines, key=lambda name: engines[name].busy_ns)
    slowest = _Totals.of(works, schedule.runs[last]).busy
    return Summary(
        kernel=program.name,
        num_pes=program.num_pes,
        total_ns=total_ps / 1000,
        commands=sum(one.commands.total() for one in each),
        engines=engines,
        bytes_loaded=loaded,
        bytes_stored=stored,
        gemm_flops=gemm,
        math_flops=vector,
        intensity_flops_per_byte=(
            (gemm + vector) / (loaded + stored) if loaded + stored else None
        ),
        roofline_ns=bounds[roof] / 1000,
        roofline_engine=roof if bounds[roof] else "none",
        critical_resource=busiest,
        limited_by=_limit(slowest, shares, total_ps),
        critical_path=lines,
        critical_shares=shares,
        critical_waits=waits,
        stalls_ns={
            rolled.CAUSE_NAMES[cause]: sum(one.stalls[cause] for one in each) / 1000
            for cause in (ENGINE, OPERAND, HAZARD)
        },
        peak_scratch_bytes=program.peak_scratch,
        budget_bytes=program.hardware.pe_tcm.scratch_bytes,
        walks=tuple(map(str, schedule.walks)),
    )


def _limit(busy: Counter[str], shares: dict[str, float], total_ps: int) -> str:
    if not total_ps:
        return "nothing"
    if shares["latency"] >= MOSTLY:
        return "latency"
    engine = max(ENGINES, key=busy.__getitem__)
    return engine if busy[engine] >= SATURATED * total_ps else "dependency"


def _critical(
    works: Sequence[Work], steps: Counter[critical.Step]
) -> tuple[dict[str, float], dict[str, float], tuple[LineShare, ...]]:
    """The critical path's shares by resource, by cause, and by kernel line."""
    total = sum(step.cost * times for step, times in steps.items())
    into: Counter[str] = Counter(dict.fromkeys((*ENGINES, "latency"), 0))
    waits: Counter[str] = Counter()
    lines: Counter[tuple[str, int, str, str]] = Counter()
    for step, times in steps.items():
        work, time = works[step.work], step.cost * times
        fixed = min(work.fixed_ps, step.cost) * times
        into["latency"] += fixed
        into[work.engine] += time - fixed
        waits[rolled.CAUSE_NAMES[step.cause] or "start"] += time
        site = work.command.site
        lines[site.file, site.line, work.op_name, work.engine] += time
    shown = tuple(
        LineShare(*key, time_ns=time / 1000, share=time / total if total else 0.0)
        for key, time in lines.most_common()
    )

    def share(times: Counter[str]) -> dict[str, float]:
        return {name: time / total if total else 0.0 for name, time in times.items()}

    return share(into), share(waits), shown
