#!/usr/bin/env python3
"""Phase 2 against hand-written JAX: ratios, measured side by side in one run.

    python scripts/bench_data_phase.py [--repeats N] [--only NAME]

Every ratio is the median over repeats of A and B run in turn. The hand-written side is
`flash_scan` of attention_peers: the same tile, dtype and mathematics in plain
`lax.scan`. bench_peers compares with other peers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import jax
import typer
from attention_peers import DIM, Run, data, exact_of, flash_scan, products_scan, sweep
from in_turn import pairs
from rich.console import Console
from rich.table import Table

import kbjax as kb
from kbjax.hardware import PeTcm
from kbjax.kernels.gqa_decode import gqa_decode


def ratio(a: Run, b: Run, repeats: int) -> tuple[float, float, float]:
    """Median seconds of a and of b, and the median of the pairwise ratio a / b."""
    walls = [(x[0], y[0]) for x, y in pairs(a, b, repeats)]
    medians = [statistics.median(column) for column in zip(*walls, strict=True)]
    return medians[0], medians[1], statistics.median(x / y for x, y in walls)


# --- the measurements: name -> (a, b, times that b counts) -------------------------


def live_decode() -> tuple[Run, Run]:
    arrays, call = data(8, 131_072), sweep(8)
    return lambda: call(*arrays), lambda: flash_scan(*arrays, tile=128)


def live_prefill() -> tuple[Run, Run]:
    arrays, call = data(128, 16_384), sweep(128)
    return lambda: call(*arrays), lambda: flash_scan(*arrays, tile=128)


def live_shipped() -> tuple[Run, Run]:
    arrays = data(8, 131_072)
    call = kb.kernel_call(gqa_decode, jax.ShapeDtypeStruct((8, DIM), "float32"))
    return lambda: call(*arrays), lambda: flash_scan(*arrays, tile=128)


def products_of_decode() -> tuple[Run, Run]:
    arrays, call = data(8, 4_096), sweep(8)
    return lambda: products_scan(*arrays, tile=128), lambda: call(*arrays)


def products_of_prefill() -> tuple[Run, Run]:
    arrays, call = data(128, 2_048), sweep(128)
    return lambda: products_scan(*arrays, tile=128), lambda: call(*arrays)


def exact_decode() -> tuple[Run, Run]:
    arrays, call = data(8, 32_768), sweep(8)
    return exact_of(call, arrays), lambda: flash_scan(*arrays, tile=128)


def exact_prefill() -> tuple[Run, Run]:
    arrays, call = data(128, 16_384), sweep(128)
    return exact_of(call, arrays), lambda: flash_scan(*arrays, tile=128)


def exact_8_pes() -> tuple[Run, Run]:
    one, eight = data(8, 16_384), data(8, 16_384, (8,))
    single, many = sweep(8), sweep(8, num_pes=8)

    def one_after_another() -> Any:
        return [exact_of(single, one)() for _ in range(8)]

    return exact_of(many, eight), one_after_another


def live_8_pes() -> tuple[Run, Run]:
    one, eight = data(8, 16_384), data(8, 16_384, (8,))
    single, many = sweep(8), sweep(8, num_pes=8)
    return lambda: many(*eight), lambda: [single(*one) for _ in range(8)]


def exact_tcm_growth() -> tuple[Run, Run]:
    arrays = data(8, 32_768)
    calls = [
        sweep(8, hardware=kb.Hardware(pe_tcm=PeTcm(kernel_scratch_mb=mb)))
        for mb in (1, 0.25)
    ]
    return exact_of(calls[0], arrays), exact_of(calls[1], arrays)


MEASUREMENTS: dict[str, tuple[Callable[[], tuple[Run, Run]], str]] = {
    "live decode / hand-written": (live_decode, "<= 1.10, aim 1.05"),
    "live prefill / hand-written": (live_prefill, "<= 1.10, aim 1.05"),
    "live kernels/gqa_decode.py / hand-written": (live_shipped, ""),
    "the products of a decode of 4,096 keys alone / live": (products_of_decode, ""),
    "the products of a prefill, 2,048 keys, alone / live": (products_of_prefill, ""),
    "exact decode / hand-written": (exact_decode, "<= 9"),
    "exact prefill / hand-written": (exact_prefill, "<= 9"),
    "exact 8 PEs / 8 x exact 1 PE": (exact_8_pes, "<= 1.25"),
    "live 8 PEs / 8 x live 1 PE": (live_8_pes, ""),
    "exact 1 MiB of TCM / exact 256 KiB": (exact_tcm_growth, "no growth"),
}


def compile_seconds(tiles: int) -> float:
    """Record, trace and compile a decode over `tiles` tiles; no data."""
    shapes = [jax.ShapeDtypeStruct((n, DIM), "float32") for n in (8, 128 * tiles)]
    call = sweep(8)
    start = time.perf_counter()
    jax.jit(lambda *arrays: call(*arrays)).lower(*shapes, shapes[1]).compile()
    return time.perf_counter() - start


def main(
    repeats: Annotated[int, typer.Option(min=1)] = 15,
    only: Annotated[str, typer.Option(help="a part of the names to measure")] = "",
) -> None:
    """Print a table of ratios."""
    table = Table("measured", "asked", "A ms", "B ms", "A / B")
    for name, (make, asked) in MEASUREMENTS.items():
        if only not in name:
            continue
        a, b = make()
        seconds_a, seconds_b, found = ratio(a, b, repeats)
        table.add_row(
            name,
            asked,
            f"{seconds_a * 1e3:.1f}",
            f"{seconds_b * 1e3:.1f}",
            f"{found:.2f}",
        )
    if only in "compile time, live decode":
        counts = (16, 1024, 16_384)
        shown = ", ".join(f"{n} tiles {compile_seconds(n):.2f} s" for n in counts)
        table.add_row("compile time, live decode", "flat", "", "", shown)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
