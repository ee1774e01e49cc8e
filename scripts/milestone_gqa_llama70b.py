#!/usr/bin/env python3
"""The milestone bench: GQA with Llama-70B's shapes in a ring, at contexts up to 1M.

    python scripts/milestone_gqa_llama70b.py [--small] [--json]

64 query heads share 8 KV heads, d = 128; one ring of ranks serves one KV head and its 8
query heads, 16 queries a rank. ADR-0063's bench stopped at S_kv = 16 keys a rank: the
unscoped kernel takes fresh scratch for every tile and hop, and overflows 1 MiB. Shown
are, for each number of keys a rank and of ranks: the peak scratch without scopes and
with them, the latency with 1 to 4 tile buffers, and how much of it overlaps; then the
outputs of prefill and decode against float64, up to the context that is asked for.

- peak scratch: bytes of one PE; `x` marks what does not fit the budget.
- latency: of the whole ring, in us, on the hardware that is named.
- overlap: (serial - latency) / (serial - busiest) on the PE that ends last, where
  serial is the sum of its engines' busy times and busiest the largest of them: 100%
  where the latency is that of the busiest engine alone, 0% where no two engines work at
  a time, less where a PE waits.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kbjax import cases, catalogue
from kbjax.hardware import Hardware, named
from kbjax.op_log import OpLog

SCHEMA_VERSION = 1
KEYS = (16, 256, 4_096, 16_384)
RANKS = (1, 4, 16, 64)
BUFFERS = (1, 2, 4)


@dataclass(frozen=True)
class Row:
    """Prefill with so many keys a rank and ranks; times by number of buffers."""

    keys_per_rank: int
    ranks: int
    context: int
    unscoped_bytes: int
    scoped_bytes: dict[int, int]
    latency_us: dict[int, float]
    overlap: dict[int, float]
    limited_by: dict[int, str]
    seconds: float


@dataclass(frozen=True)
class Check:
    """An output against float64: the largest error, relative to the largest element."""

    what: str
    context: int
    ranks: int
    error: float
    tolerance: float
    seconds: float


def ring(keys: int, ranks: int, hardware: Hardware, **sizes: Any) -> cases.Case:
    """The ring at one size, not causal, so that all ranks do the same."""
    sizes = {"tile": min(64, keys), "causal": False, **sizes}
    context = keys * ranks
    return catalogue.make(
        "ring_gqa", context=context, num_pes=ranks, hardware=hardware, **sizes
    )


def overlap_of(log: OpLog) -> float:
    """The share of what could overlap that does; see the top of this file."""
    engines = log.summary().engines
    busy = [use.busy_ns / log.program.num_pes for use in engines.values()]
    serial, busiest = sum(busy), max(busy)
    if serial == busiest:
        return 1.0
    return (serial - log.total_ns) / (serial - busiest)


def row(keys: int, ranks: int, hardware: Hardware, buffers: tuple[int, ...]) -> Row:
    """Phase 1 at one size."""
    start = time.perf_counter()
    plain = ring(keys, ranks, hardware, scoped=False)
    unscoped = plain.call.plan(*plain.inputs.specs, vary=[])
    peaks, latency, overlap, limits = {}, {}, {}, {}
    for depth in buffers:
        case = ring(keys, ranks, hardware, buffers=depth)
        log = case.call.op_log(*case.inputs.specs)
        peaks[depth], latency[depth] = log.peak_scratch, log.total_ns / 1000
        overlap[depth], limits[depth] = overlap_of(log), log.summary().limited_by
    return Row(
        keys_per_rank=keys,
        ranks=ranks,
        context=keys * ranks,
        unscoped_bytes=unscoped.peak_scratch_bytes,
        scoped_bytes=peaks,
        latency_us=latency,
        overlap=overlap,
        limited_by=limits,
        seconds=time.perf_counter() - start,
    )


def check(what: str, keys: int, ranks: int, hardware: Hardware) -> Check:
    """Phase 2 at one size, compilation included."""
    start = time.perf_counter()
    options = {"decode": True} if what == "decode" else {"causal": True}
    case = ring(keys, ranks, hardware, **options)
    error = case.error_of(case.call(*case.arrays))
    seconds = time.perf_counter() - start
    return Check(what, keys * ranks, ranks, error, case.tolerance, seconds)


def show(rows: list[Row], checks: list[Check], budget: int, hardware: str) -> None:
    """Both tables."""
    console = Console()
    console.width = max(console.width, 132)  # no figure is cut
    depths = list(rows[0].latency_us) if rows else []
    table = Table(title=f"ring prefill, 16 queries a rank, float32, {hardware}")
    for name in ("keys/rank", "ranks", "context", "unscoped B", "scoped B"):
        table.add_column(name, justify="right", no_wrap=True)
    for depth in depths:
        table.add_column(f"{depth} buf, us", justify="right", no_wrap=True)
        table.add_column("overlap", justify="right", no_wrap=True)
    for one in rows:
        over = "" if one.unscoped_bytes <= budget else " x"
        most = max(one.scoped_bytes.values())
        cells = [f"{one.keys_per_rank:,}", f"{one.ranks}", f"{one.context:,}",
                 f"{one.unscoped_bytes:,}{over}", f"{most:,}"]  # fmt: skip
        for depth in depths:
            cells += [f"{one.latency_us[depth]:,.1f}", f"{one.overlap[depth]:.0%}"]
        table.add_row(*cells)
    console.print(table)
    found = Table(title="outputs against float64")
    for name in ("what", "context", "ranks", "error", "allowed", "seconds"):
        found.add_column(name, justify="right", no_wrap=True)
    for check in checks:
        found.add_row(
            check.what,
            f"{check.context:,}",
            f"{check.ranks}",
            f"{check.error:.1e}",
            f"{check.tolerance:.1e}",
            f"{check.seconds:.1f}",
        )
    console.print(found)


def main(
    small: Annotated[bool, typer.Option("--small", help="a few seconds")] = False,
    hardware: Annotated[
        str, typer.Option(help="a profile of `kbjax hardware`, or a TOML file")
    ] = "default",
    prefill_context: Annotated[
        int, typer.Option(help="the largest context that prefill is run at")
    ] = 65_536,
    decode_context: Annotated[
        int, typer.Option(help="the largest context that decode is run at")
    ] = 1_048_576,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Run it. Exit status 1 where an output is wrong."""
    on = named(hardware)
    keys_: tuple[int, ...] = KEYS
    ranks_: tuple[int, ...] = RANKS
    buffers: tuple[int, ...] = BUFFERS
    if small:
        keys_, ranks_, buffers = (16, 128), (1, 4), (1, 2)
        prefill_context, decode_context = 512, 4_096
    sizes = [(keys, ranks) for keys in keys_ for ranks in ranks_]
    progress = Console(stderr=True)
    rows = [
        row(*size, on, buffers) for size in track(sizes, "phase 1", console=progress)
    ]
    most = max(ranks_)
    runs = [
        ("prefill", max(prefill_context // most, 16), most),
        ("decode", max(decode_context // most, 16), most),
    ]
    checks = [check(*one, on) for one in track(runs, "phase 2", console=progress)]
    if as_json:
        report = {
            "schema_version": SCHEMA_VERSION,
            "hardware": hardware,
            "rows": [asdict(one) for one in rows],
            "checks": [asdict(one) for one in checks],
        }
        typer.echo(json.dumps(report))
    else:
        show(rows, checks, on.pe_tcm.scratch_bytes, hardware)
    raise typer.Exit(any(not one.error <= one.tolerance for one in checks))


if __name__ == "__main__":
    typer.run(main)
