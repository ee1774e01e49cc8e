#!/usr/bin/env python3
"""What PEs cost: many against one, two devices against one, and prefill on 8 PEs
against what the machine's cores can do, side by side.

    python scripts/bench_pes.py [--repeats N] [--only NAME]

One process with two CPU devices runs everything. What is compared with several devices
is kept to one by a mesh of one device, so that both share one allocator, one set of
arrays and one moment of the machine; XLA runs a device's program in one thread but for
large products, and the CPU time shows where it takes more. Every ratio is the median
over repeats of A and B run in turn, after a first call of each. On a machine that has
other work to do two devices get no second core: the first line says how many cores two
busy threads got before and after the table. Two columns depend on that less: the ratio
of CPU times, which is 1 where work is merely spread, and (on Linux) of the CPU time of
the busiest thread. The latter estimates A / B on free cores where both sides wait for
one thread, as two devices do; it says nothing of the rows against one PE.

"prefill rate" is a table of FLOP/s: 8 PEs of (128, 128) queries over 2048 keys in
float32, on two devices, over the machine's rate of float32 products. That is the best
of all repeats of square products of 1024 and 2048 in JAX and in NumPy, which spread
them over all cores, in the same process, among the rest. The second ratio is of FLOPs
a second of CPU time, which a busy machine changes less.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from attention_peers import DIM, Run, data, exact_of, flash_scan, sweep
from in_turn import cores, in_turn, pairs, timed
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

import kbjax as kb
from kbjax.hardware import PeTcm
from kbjax.kernels.gqa_decode import gqa_decode

ROWS, TILE = 8, 128
OUT_ROWS = 16_384  # of a PE's output, 8 MiB: 64 MiB for 8 PEs


def mesh(devices: int) -> Mesh:
    return Mesh(jax.devices()[:devices], ("pe",))


# --- the measurements: name -> (a, b) ------------------------------------------------


def live_against_one(pes: int, keys: int) -> tuple[Run, Run]:
    one, many = data(ROWS, keys), data(ROWS, keys, (pes,))
    single, call = sweep(ROWS), sweep(ROWS, num_pes=pes, mesh=mesh(1))
    return lambda: call(*many), lambda: [single(*one) for _ in range(pes)]


def one_device_against_two(
    pes: int, keys: int, rows: int = ROWS, exact: bool = False
) -> tuple[Run, Run]:
    """The arrays lie on the devices."""

    def on(devices: int) -> Run:
        where = NamedSharding(mesh(devices), PartitionSpec("pe"))
        arrays = [jax.device_put(x, where) for x in data(rows, keys, (pes,))]
        call = sweep(rows, num_pes=pes, mesh=mesh(devices))
        return exact_of(call, arrays) if exact else lambda: call(*arrays)

    return on(1), on(2)


def one_device_against_the_host(pes: int, keys: int) -> tuple[Run, Run]:
    """Without `mesh`: arrays are handed over, and outputs brought back."""
    arrays = data(ROWS, keys, (pes,))
    alone, spread = sweep(ROWS, num_pes=pes, mesh=mesh(1)), sweep(ROWS, num_pes=pes)
    return lambda: alone(*arrays), lambda: spread(*arrays)


def exact_against_one() -> tuple[Run, Run]:
    one, many = data(ROWS, 16_384), data(ROWS, 16_384, (8,))
    single, call = sweep(ROWS), sweep(ROWS, num_pes=8, mesh=mesh(1))
    alone = exact_of(single, one)
    return exact_of(call, many), lambda: [alone() for _ in range(8)]


def running_sum(tl: Any, x: Any, o: Any, *, pe: int | None = None) -> None:
    """Every tile so far, stored; the last `pe` tiles are left out. x, o: (S, D)."""
    me = tl.program_id() if pe is None else pe
    total = tl.zeros((TILE, x.shape[1]))
    for j in tl.range(x.shape[0] // TILE - me):
        with tl.scratch_scope():
            rows = tl.ds(j * TILE, TILE)
            tl.copy_to(total, total * 0.5 + tl.load(x[rows, :]))
            tl.store(o[rows, :], total)


def exact_trips_against_one() -> tuple[Run, Run]:
    """Trip counts differ by PE, and each PE's output is 8 MiB."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, OUT_ROWS, TILE), "f4"))
    out = jax.ShapeDtypeStruct((OUT_ROWS, TILE), "float32")
    many = kb.kernel_call(running_sum, out, num_pes=8, mesh=mesh(1))
    each = [kb.kernel_call(partial(running_sum, pe=pe), out) for pe in range(8)]
    runs = [exact_of(call, [x[pe]]) for pe, call in enumerate(each)]
    return exact_of(many, [x]), lambda: [run() for run in runs]


MEASUREMENTS: dict[str, tuple[Callable[[], tuple[Run, Run]], str]] = {
    "live 8 PEs / 8 x 1 PE": (partial(live_against_one, 8, 16_384), "<= 1.1"),
    "live 64 PEs / 64 x 1 PE": (partial(live_against_one, 64, 2048), "<= 1.1"),
    "exact 8 PEs / 8 x 1 PE": (exact_against_one, "<= 1.25"),
    "exact 8 PEs, own trips, 64 MiB / 8 x 1": (exact_trips_against_one, "<= 1.25"),
    "live 8 PEs, 1 device / 2": (partial(one_device_against_two, 8, 16_384), ">= 1.7"),
    "live 64 PEs, 1 device / 2": (partial(one_device_against_two, 64, 2048), ">= 1.7"),
    "live prefill 8 PEs, 1 device / 2": (
        partial(one_device_against_two, 8, 2048, 128),
        "",
    ),
    "exact 8 PEs, 1 device / 2": (
        partial(one_device_against_two, 8, 8192, exact=True),
        "",
    ),
    "live 8 PEs, 1 device / no mesh": (
        partial(one_device_against_the_host, 8, 16_384),
        "> 1",
    ),
    "live 64 PEs, 1 device / no mesh": (
        partial(one_device_against_the_host, 64, 2048),
        "> 1",
    ),
}


def compared(a: Run, b: Run, repeats: int) -> list[str]:
    """A ms, B ms; and A / B, of the wall, of the CPU and of the busiest thread."""
    found = pairs(a, b, repeats)
    median = statistics.median
    return [
        f"{median(x[0] for x, _ in found) * 1e3:.1f}",
        f"{median(y[0] for _, y in found) * 1e3:.1f}",
        *(f"{median(x[of] / y[of] for x, y in found):.2f}" for of in range(3)),
    ]


# --- grid sizes ----------------------------------------------------------------------


def softmax(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.softmax(tl.load(x)))


def grids(repeats: int, devices: int) -> Table:
    """The same 64 x 64 softmax on ever more PEs: one compilation, time as the PEs."""
    title = f"64 x 64 softmax, devices: {devices}"
    table = Table("PEs", "first call ms", "then ms", "us a PE", title=title)
    out = jax.ShapeDtypeStruct((64, 64), "float32")
    for pes in (1, 16, 256, 1024):
        lead = (pes,) if pes > 1 else ()
        x = jnp.asarray(np.random.default_rng(0).standard_normal((*lead, 64, 64), "f4"))
        where = mesh(1 if pes == 1 else devices)
        call = kb.kernel_call(softmax, out, num_pes=pes, mesh=where)
        spec = PartitionSpec("pe") if pes > 1 else PartitionSpec()
        x = jax.device_put(x, NamedSharding(where, spec))
        run = partial(call, x)
        first = timed(run)[0]
        then = statistics.median(timed(run)[0] for _ in range(max(repeats, 3)))
        table.add_row(
            str(pes),
            f"{first * 1e3:.0f}",
            f"{then * 1e3:.2f}",
            f"{then / pes * 1e6:.1f}",
        )
    return table


# --- prefill against the machine's rate of products ----------------------------------

PES, QUERIES, KEYS = 8, 128, 2048
FLOPS = PES * 4 * QUERIES * KEYS * DIM  # two products, 2 MNK each


def products() -> dict[str, tuple[Run, int]]:
    """Large square ones, and their FLOPs."""
    found: dict[str, tuple[Run, int]] = {}
    dot = jax.jit(partial(jnp.dot, precision="highest"))
    for n in (1024, 2048):
        x = np.random.default_rng(0).standard_normal((n, n), np.float32)
        found[f"product of {n}, JAX"] = partial(dot, *[jnp.asarray(x)] * 2), 2 * n**3
        found[f"product of {n}, NumPy"] = partial(np.dot, x, x), 2 * n**3
    return found


def placed(devices: int) -> list[Any]:
    where = NamedSharding(mesh(devices), PartitionSpec("pe"))
    return [jax.device_put(x, where) for x in data(QUERIES, KEYS, (PES,))]


def prefill(devices: int, tile: int, buffers: int = 1) -> Run:
    """On kbjax. A tile of 256 takes 1.2 MiB of scratch."""
    call = kb.kernel_call(
        partial(gqa_decode, tile=tile, buffers=buffers),
        jax.ShapeDtypeStruct((QUERIES, DIM), "float32"),
        num_pes=PES,
        mesh=mesh(devices),
        hardware=kb.Hardware(pe_tcm=PeTcm(kernel_scratch_mb=2)),
    )
    return partial(call, *placed(devices))


def prefill_of_host() -> Run:
    """Without `mesh`: arrays are handed over, and outputs brought back."""
    return partial(sweep(QUERIES, num_pes=PES), *data(QUERIES, KEYS, (PES,)))


def hand_written_prefill(devices: int, tile: int) -> Run:
    """Under `shard_map`; a device's PEs one after another, as on kbjax."""

    def of_device(*arrays: Any) -> Any:
        return lax.map(lambda one: flash_scan(*one, tile=tile), arrays)

    spec = PartitionSpec("pe")
    run = jax.shard_map(
        of_device, mesh=mesh(devices), in_specs=spec, out_specs=spec, check_vma=False
    )
    return partial(jax.jit(run), *placed(devices))


PREFILLS: dict[str, tuple[Callable[[], Run], str]] = {
    "kbjax, 2 devices, tile 64": (partial(prefill, 2, 64), ""),
    "kbjax, 2 devices, tile 128": (partial(prefill, 2, 128), ">= 0.60"),
    "kbjax, 2 devices, tile 256": (partial(prefill, 2, 256), ""),
    "kbjax, 2 devices, tile 128, prefetched": (partial(prefill, 2, 128, 2), ""),
    "kbjax, no mesh, tile 128": (prefill_of_host, ""),
    "kbjax, 1 device, tile 128": (partial(prefill, 1, 128), ""),
    "hand-written, 2 devices, tile 64": (partial(hand_written_prefill, 2, 64), ""),
    "hand-written, 2 devices, tile 128": (partial(hand_written_prefill, 2, 128), ""),
    "hand-written, 2 devices, tile 256": (partial(hand_written_prefill, 2, 256), ""),
    "hand-written, 1 device, tile 128": (partial(hand_written_prefill, 1, 128), ""),
}


def rates(repeats: int) -> Table:
    """GFLOP/s, and GFLOP a second of CPU time, of medians; each over the best rate of
    a product."""
    work = products()
    largest = list(work)
    work |= {name: (make(), FLOPS) for name, (make, _) in PREFILLS.items()}
    for run, _ in work.values():  # compile and warm up
        jax.block_until_ready(run())
    times = in_turn({name: run for name, (run, _) in work.items()}, repeats)
    peak, peak_cpu = (
        max(work[n][1] / min(t[of] for t in times[n]) for n in largest) for of in (0, 1)
    )
    table = Table(
        "prefill rate", "asked", "ms", "GFLOP/s", "/ product", "GFLOP/CPU s",
        "/ product", title=f"product: {peak / 1e9:.0f} GFLOP/s",
    )  # fmt: skip
    for name, (_, flops) in work.items():
        wall, cpu = (statistics.median(t[of] for t in times[name]) for of in (0, 1))
        table.add_row(
            name,
            PREFILLS[name][1] if name in PREFILLS else "",
            f"{wall * 1e3:.1f}",
            f"{flops / wall / 1e9:.0f}",
            f"{flops / wall / peak:.2f}",
            f"{flops / cpu / 1e9:.0f}",
            f"{flops / cpu / peak_cpu:.2f}",
        )
    return table


def main(
    repeats: Annotated[int, typer.Option(min=1)] = 15,
    only: Annotated[str, typer.Option(help="a part of the names to measure")] = "",
) -> None:
    """Print tables of ratios and times."""
    jax.config.update("jax_num_cpu_devices", 2)
    before = cores()
    columns = (
        "measured",
        "asked",
        "A ms",
        "B ms",
        "A / B",
        "CPU A / B",
        "thread A / B",
    )
    table = Table(*columns)
    for name, (make, asked) in MEASUREMENTS.items():
        if only in name:
            table.add_row(name, asked, *compared(*make(), repeats))
    console = Console(width=115)
    sizes = [grids(repeats, n) for n in (1, 2)] if only in "softmax grids" else []
    sizes += [rates(repeats)] if only in "prefill rate" else []
    console.print(f"cores for two threads: {before:.2f} before, {cores():.2f} after")
    for shown in (table, *sizes):
        if shown.row_count:
            console.print(shown)


if __name__ == "__main__":
    typer.run(main)
