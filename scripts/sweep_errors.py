#!/usr/bin/env python3
"""The attention kernels' errors against float64, beside those of a plain attention.

    python scripts/sweep_errors.py [--kernel NAME] [--dtype NAME] [--dim N]

Every attention kernel x dtype x head size x mask runs its small case. The error may be
twice that of an attention which rounds each step to the same dtype, and two roundings
of 0.3 more, as in FlashAttention's tests. Exit status: 1 where one is larger, else 0.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import ml_dtypes
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kbjax import cases
from kbjax.kernels import _attention as attention
from tests.plain_attention import error_bound, plain

DTYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip
DIMS = (64, 80, 96, 128, 256)
MASKS: dict[str, list[dict[str, Any]]] = {
    "flash_prefill": [
        {},
        {"causal": False},
        {"window": 20},
        {"causal": False, "window": 20},
        {"softcap": 5.0},
        {"sinks": True},
        {"alibi": True},
        {"window": 20, "softcap": 5.0, "sinks": True, "alibi": True},
    ],
    "ring_gqa": [{}, {"causal": False}, {"decode": True}],
}
# Their references do not go by heads of one size.
OTHERS = ("mla_decode", "matmul", "dequant_matmul", "softmax", "rmsnorm",
          "ring_all_reduce")  # fmt: skip
KERNELS = tuple(name for name in cases.kernel_names() if name not in OTHERS)


def error_of(name: str, sizes: dict[str, Any]) -> tuple[float, float, float]:
    """The kernel's error, that of plain attention, and the bound."""
    module = cases.kernel_module(name)
    case = cases.make(name, **{**module.SMALL, **sizes})
    arrays = [np.asarray(x) for x in case.arrays]
    want, dtype = case.reference(*arrays), DTYPES[sizes["dtype"]]
    rounded = partial(plain, dtype=dtype)
    with mock.patch.object(attention, "attention_reference", rounded):
        rough = case.reference(*arrays)
    got = np.asarray(case.call(*arrays)).astype(np.float64)
    errors = [float(np.abs(x - want).max()) for x in (got, rough)]
    return errors[0], errors[1], error_bound(rough, want, dtype)


def chosen(kernel: str, dtype: str, dim: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, kind, size in itertools.product(KERNELS, DTYPES, DIMS):
        if kernel in ("", name) and dtype in ("", kind) and dim in (0, size):
            for mask in MASKS.get(name, [{}]):
                yield name, {"dtype": kind, "dim": size, **mask}


def main(
    kernel: Annotated[str, typer.Option(help="only this one")] = "",
    dtype: Annotated[str, typer.Option(help="only this one")] = "",
    dim: Annotated[int, typer.Option(help="only this head size")] = 0,
) -> None:
    """Compare the kernels' errors with those of a plain attention."""
    runs = [*chosen(kernel, dtype, dim)]
    if not runs:
        raise typer.BadParameter(
            f"kernels: {', '.join(KERNELS)}; dtypes: {', '.join(DTYPES)}; "
            f"head sizes: {', '.join(map(str, DIMS))}"
        )
    console = Console(soft_wrap=True)
    rows: dict[tuple[str, str], list[tuple[float, float, float, str]]] = {}
    above = 0
    for name, sizes in track(runs, "kernels", console=console, transient=True):
        got, rough, bound = error_of(name, sizes)
        above += got > bound
        options = {n: x for n, x in sizes.items() if n != "dtype"}
        text = " ".join(f"{n}={x}" for n, x in options.items())
        of = rows.setdefault((name, sizes["dtype"]), [])
        of.append((got / rough, got, rough, text))
    table = Table(title="error / that of plain attention, the largest")
    for column in ("kernel", "dtype", "runs", "ratio", "error", "plain"):
        table.add_column(column, no_wrap=True)
    table.add_column("of")
    for (name, kind), found in rows.items():
        ratio, got, rough, text = max(found)
        figures = (f"{ratio:.2f}", f"{got:.1e}", f"{rough:.1e}")
        table.add_row(name, kind, str(len(found)), *figures, text)
    console.print(table)
    console.print(f"{len(runs)} runs, {above} above the bound", highlight=False)
    raise typer.Exit(1 if above else 0)


if __name__ == "__main__":
    typer.run(main)
