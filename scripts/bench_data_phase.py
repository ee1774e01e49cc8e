#!/usr/bin/env python3
"""Phase 2 against hand-written JAX: ratios, measured side by side in one run.

    python scripts/bench_data_phase.py [--repeats N] [--only NAME]

Every ratio is the median over repeats of A and B run in turn. The hand-written side is
`flash_scan` below: the same tile, dtype and mathematics in plain `lax.scan`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax
from rich.console import Console
from rich.table import Table

import kbjax as kb
from kbjax.hardware import PeTcm
from kbjax.kernels.gqa_decode import gqa_decode

Run = Callable[[], Any]
DIM = 128


@partial(jax.jit, static_argnames="tile")
def flash_scan(q: Any, k: Any, v: Any, tile: int) -> Any:
    """Flash attention as one would write it in JAX: q (M, D), k and v (S, D)."""

    def fold(carry: Any, start: Any) -> Any:
        m, l, acc = carry  # noqa: E741
        kt = lax.dynamic_slice_in_dim(k, start, tile)
        vt = lax.dynamic_slice_in_dim(v, start, tile)
        s = jnp.dot(q, kt.T, precision="highest") * DIM**-0.5
        m_new = jnp.maximum(m, s.max(axis=1, keepdims=True))
        p = jnp.exp(s - m_new)
        scale = jnp.exp(m - m_new)
        l = l * scale + p.sum(axis=1, keepdims=True)  # noqa: E741
        acc = acc * scale + jnp.dot(p, vt, precision="highest")
        return (m_new, l, acc), None

    rows = q.shape[0]
    first = (
        jnp.full((rows, 1), -jnp.inf),
        jnp.zeros((rows, 1)),
        jnp.zeros((rows, DIM)),
    )
    starts = jnp.arange(0, k.shape[0], tile)
    (_, l, acc), _ = lax.scan(fold, first, starts)  # noqa: E741
    return acc / l


def flash_sweep(tl: Any, q: Any, k: Any, v: Any, o: Any, *, tile: int) -> None:
    """The kernel that is compared: one sweep, q (M, D), k and v (S, D)."""
    qh = tl.load(q)
    m = tl.full((q.shape[0], 1), float("-inf"))
    l = tl.zeros((q.shape[0], 1))  # noqa: E741
    acc = tl.zeros(q.shape)
    for j in tl.range(k.shape[0] // tile):
        with tl.scratch_scope():
            kt = tl.load(k[tl.ds(j * tile, tile), :])
            s = tl.dot(qh, tl.trans(kt)) * DIM**-0.5
            m_new = tl.maximum(m, tl.max(s, axis=1, keepdims=True))
            p = tl.exp(s - m_new)
            scale = tl.exp(m - m_new)
            vt = tl.load(v[tl.ds(j * tile, tile), :])
            tl.copy_to(l, l * scale + tl.sum(p, axis=1, keepdims=True))
            tl.copy_to(acc, acc * scale + tl.dot(p, vt))
            tl.copy_to(m, m_new)
    tl.store(o, acc / l)


def data(rows: int, keys: int, lead: tuple[int, ...] = ()) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [(*lead, n, DIM) for n in (rows, keys, keys)]
    return [jnp.asarray(rng.standard_normal(s, np.float32)) for s in shapes]


def sweep(rows: int, **options: Any) -> kb.KernelCall:
    return kb.kernel_call(
        partial(flash_sweep, tile=128),
        jax.ShapeDtypeStruct((rows, DIM), "float32"),
        **options,
    )


def ratio(a: Run, b: Run, repeats: int) -> tuple[float, float, float]:
    """Median seconds of a and of b, and the median of the pairwise ratio a / b."""
    times: list[tuple[float, float]] = []
    for run in (a, b):  # compile and warm up
        jax.block_until_ready(run())
    for _ in range(repeats):
        pair = []
        for run in (a, b):
            start = time.perf_counter()
            jax.block_until_ready(run())
            pair.append(time.perf_counter() - start)
        times.append((pair[0], pair[1]))
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return medians[0], medians[1], statistics.median(x / y for x, y in times)


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


def exact_of(call: kb.KernelCall, arrays: list[Any]) -> Run:
    return lambda: call.run(*arrays, fidelity="exact").outputs


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


def pallas_interpreter() -> tuple[Run, Run]:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    arrays, call = data(8, 131_072), sweep(8)

    def kernel(q: Any, k: Any, v: Any, o: Any, m: Any, l: Any, acc: Any) -> None:  # noqa: E741
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            m[...] = jnp.full_like(m, -jnp.inf)
            l[...] = jnp.zeros_like(l)
            acc[...] = jnp.zeros_like(acc)

        s = jnp.dot(q[...], k[...].T, precision="highest") * DIM**-0.5
        m_new = jnp.maximum(m[...], s.max(axis=1, keepdims=True))
        p = jnp.exp(s - m_new)
        scale = jnp.exp(m[...] - m_new)
        l[...] = l[...] * scale + p.sum(axis=1, keepdims=True)
        acc[...] = acc[...] * scale + jnp.dot(p, v[...], precision="highest")
        m[...] = m_new

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _() -> None:
            o[...] = acc[...] / l[...]

    tiles = pl.BlockSpec((128, DIM), lambda j: (j, 0))
    whole = pl.BlockSpec((8, DIM), lambda j: (0, 0))
    interpreted = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, DIM), jnp.float32),
        grid=(131_072 // 128,),
        in_specs=[whole, tiles, tiles],
        out_specs=whole,
        scratch_shapes=[
            pltpu.VMEM((8, 1), jnp.float32),
            pltpu.VMEM((8, 1), jnp.float32),
            pltpu.VMEM((8, DIM), jnp.float32),
        ],
        interpret=pltpu.InterpretParams(),
    )
    run = jax.jit(interpreted)
    np.testing.assert_allclose(run(*arrays), call(*arrays), atol=1e-5)
    return lambda: run(*arrays), lambda: call(*arrays)


MEASUREMENTS: dict[str, tuple[Callable[[], tuple[Run, Run]], str]] = {
    "live decode / hand-written": (live_decode, "<= 1.10, aim 1.05"),
    "live prefill / hand-written": (live_prefill, "<= 1.10, aim 1.05"),
    "live kernels/gqa_decode.py / hand-written": (live_shipped, ""),
    "exact decode / hand-written": (exact_decode, "<= 9"),
    "exact prefill / hand-written": (exact_prefill, "<= 9"),
    "exact 8 PEs / 8 x exact 1 PE": (exact_8_pes, "<= 1.25"),
    "live 8 PEs / 8 x live 1 PE": (live_8_pes, ""),
    "exact 1 MiB of TCM / exact 256 KiB": (exact_tcm_growth, "no growth"),
    "Pallas TPU interpreter / live": (pallas_interpreter, "> 200"),
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
        slow = "Pallas" in name
        seconds_a, seconds_b, found = ratio(a, b, min(repeats, 2) if slow else repeats)
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
