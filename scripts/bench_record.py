#!/usr/bin/env python3
"""Phase 1: what recording and planning cost, and that checks cost phase 2 nothing.

    python scripts/bench_record.py [--repeats N]

Times are medians; ratios are the median of A over that of B, run in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import typer
from in_turn import medians
from rich.console import Console
from rich.table import Table

import kbjax as kb
from kbjax import catalogue

Run = Callable[[], Any]
OUT = jax.ShapeDtypeStruct((8, 128), "float32")
MILLION = 1 << 20


def twenty_ops(tl: Any, x: Any, o: Any) -> None:
    """A tile loop of 20 commands, no two alike."""
    low = tl.zeros((8, 1))
    total = tl.zeros((8, 128))
    for j in tl.range(x.shape[0] // 8):
        with tl.scratch_scope():
            t = tl.load(x[tl.ds(j * 8, 8), :])
            a = t * 2.0 + t
            b = tl.exp(a) - tl.max(a, axis=1, keepdims=True)
            c = tl.exp2(b) * tl.sum(b, axis=1, keepdims=True)
            d = tl.sqrt(tl.maximum(c, t)) / 3.0
            e = tl.where(d > 0.0, d, tl.minimum(d, a)) - d
            tl.copy_to(low, tl.sum(e, axis=1, keepdims=True))
            tl.copy_to(total, total * low + e)
    tl.store(o, total)


def recording(tiles: int, checks: Any = "error") -> Run:
    shape = jax.ShapeDtypeStruct((8 * tiles, 128), "float32")
    return lambda: kb.kernel_call(twenty_ops, OUT, checks=checks).record(shape)


def shipped(name: str, plan: bool = False, **sizes: Any) -> Run:
    def run() -> Any:
        case = catalogue.make(name, **sizes)
        phase_1 = case.call.plan if plan else case.call.record
        return phase_1(*case.inputs.specs)

    return run


def exact_replay(checks: Any) -> Run:
    """Phase 2 of the same program, whatever was checked when it was recorded."""
    call = kb.kernel_call(twenty_ops, OUT, checks=checks)
    x = jax.random.normal(jax.random.key(0), (8 * 2048, 128))
    run = lambda: call.run(x, fidelity="exact").outputs.block_until_ready()  # noqa: E731
    run()
    return run


TIMES: dict[str, tuple[Callable[[], Run], str]] = {
    "record a loop of 20 ops": (lambda: recording(1024), "aim 5 ms"),
    "record gqa_decode, 1M tokens": (
        lambda: shipped("gqa_decode", context=MILLION),
        "",
    ),
    "record flash_prefill, 1M tokens": (
        lambda: shipped("flash_prefill", context=MILLION),
        "",
    ),
    "plan gqa_decode, 1M tokens, with its tile sizes": (
        lambda: shipped("gqa_decode", plan=True, context=MILLION),
        "",
    ),
}
RATIOS: dict[str, tuple[Callable[[], list[Run]], str]] = {
    "record 131,072 tiles / 16 tiles": (
        lambda: [recording(131_072), recording(16)],
        "flat",
    ),
    'record checks="error" / "off"': (
        lambda: [recording(1024), recording(1024, "off")],
        "",
    ),
    'exact replay checks="error" / "off"': (
        lambda: [exact_replay("error"), exact_replay("off")],
        "1: checks cost phase 2 nothing",
    ),
}


def main(repeats: Annotated[int, typer.Option(min=1)] = 15) -> None:
    """Print a table."""
    table = Table("measured", "asked", "found")
    for name, (make, asked) in TIMES.items():
        (found,) = medians([make()], repeats)
        table.add_row(name, asked, f"{found * 1e3:.1f} ms")
    for name, (make_pair, asked) in RATIOS.items():
        a, b = medians(make_pair(), repeats)
        table.add_row(name, asked, f"{a / b:.2f} ({a * 1e3:.1f} / {b * 1e3:.1f} ms)")
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
