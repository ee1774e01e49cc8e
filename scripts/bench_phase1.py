#!/usr/bin/env python3
"""Phase 1 as tiles grow: recording and timing, expansion of the op_log, its memory.

    python scripts/bench_phase1.py [--repeats N] [--rows N]

Times are medians; ratios are the median of A over that of B, run in turn.
"""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import typer
from in_turn import medians
from rich.console import Console
from rich.table import Table

import kbjax as kb
from kbjax import catalogue, op_log
from kbjax.op_log import OpLog

TILE = 128
FEW, MANY = 16, 16_384
NUMERIC = (
    "op", "pe", "start_ns", "end_ns", "nbytes", "flops", "scope_depth", "cursor_bytes",
    "line",
)  # fmt: skip
OUT = jax.ShapeDtypeStruct((8, 128), "float32")


def decode(tiles: int) -> Any:
    """One scoped loop."""
    case = catalogue.make("gqa_decode", context=tiles * TILE, tile=TILE)
    return case.call, case.inputs.specs


def prefill(tiles: int) -> Any:
    """One block of queries over many tiles of keys."""
    case = catalogue.make("flash_prefill", context=tiles * TILE, queries=TILE)
    return case.call, case.inputs.specs


def _nested(tl: Any, x: Any, o: Any, *, inner: int) -> None:
    total = tl.zeros((8, 128))
    for i in tl.range(x.shape[0] // (8 * inner)):
        for j in tl.range(inner):
            with tl.scratch_scope():
                t = tl.load(x[tl.ds((i * inner + j) * 8, 8), :])
                tl.copy_to(total, total + tl.exp(t))
    tl.store(o, total)


def nested(tiles: int) -> Any:
    """A loop of four tiles in a loop."""
    call = kb.kernel_call(partial(_nested, inner=4), OUT)
    return call, (jax.ShapeDtypeStruct((8 * tiles, 128), "float32"),)


def _unscoped(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((8, 128))
    for j in tl.range(x.shape[0] // 8):
        tl.copy_to(total, total + tl.exp(tl.load(x[tl.ds(j * 8, 8), :])))
    tl.store(o, total)


def unscoped(tiles: int) -> Any:
    """A loop that gives nothing back, in a scratch of 256 MiB."""
    tcm = dataclasses.replace(kb.Hardware().pe_tcm, kernel_scratch_mb=256)
    hardware = dataclasses.replace(kb.Hardware(), pe_tcm=tcm)
    call = kb.kernel_call(_unscoped, OUT, hardware=hardware)
    return call, (jax.ShapeDtypeStruct((8 * tiles, 128), "float32"),)


KERNELS: dict[str, Callable[[int], Any]] = {
    "gqa_decode": decode,
    "flash_prefill, 128 queries": prefill,
    "nested loops": nested,
    "unscoped loop": unscoped,
}


def logged(make: Callable[[int], Any], tiles: int) -> Callable[[], OpLog]:
    """Recording and timing, from nothing."""

    def run() -> OpLog:
        call, specs = make(tiles)
        return call.op_log(*specs)

    return run


def kept_bytes(make: Callable[[int], Any], tiles: int) -> int:
    """Memory that a timed log keeps, beside its program."""
    call, specs = make(tiles)
    program = call.record(*specs)
    op_log.of(program)  # what is cached with the program is its own
    gc.collect()
    tracemalloc.start()
    log = op_log.of(program)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del log
    return kept


def main(
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    rows: Annotated[int, typer.Option(min=1, help="of the expanded log")] = 3_000_000,
) -> None:
    """Print a table."""
    table = Table("measured", "asked", "found")
    for name, make in KERNELS.items():
        a, b = medians([logged(make, MANY), logged(make, FEW)], repeats)
        table.add_row(
            f"record and time {name}, {MANY:,} / {FEW} tiles",
            "at most 2",
            f"{a / b:.2f} ({a * 1e3:.1f} / {b * 1e3:.1f} ms)",
        )
        many, few = kept_bytes(make, MANY), kept_bytes(make, FEW)
        table.add_row(
            f"memory of its op_log, {MANY:,} / {FEW} tiles",
            "flat",
            f"{many / few:.2f} ({many:,} / {few:,} B)",
        )
    log = logged(decode, max(rows // (8 * 22), 1))()
    for what, names, asked in (
        ("numeric columns", NUMERIC, "10 M rows/s"),
        ("all columns", None, "3 M rows/s"),
    ):
        (taken,) = medians([partial(log.columns, names)], repeats)
        table.add_row(
            f"expand {len(log):,} rows, {what}",
            asked,
            f"{len(log) / taken / 1e6:.1f} M rows/s",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
