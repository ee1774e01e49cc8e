#!/usr/bin/env python3
"""The attention kernels' errors against float64, beside those of a plain attention.

    python scripts/sweep_errors.py [--kernel NAME] [--dtype NAME] [--dim N]

Every attention kernel x dtype x head size x mask runs its small case, beside an
attention that rounds each step to the same dtype. Shown are the kernel's error over
that one's, root mean square and largest element, in the worst run of each, and how many
runs have a root mean square of more than twice the other's. In float32 some do: an
online softmax rounds more often than one pass does, and NumPy's matrix product adds in
more partial sums than XLA's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest import mock

import jax
import ml_dtypes
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kbjax import catalogue
from kbjax.kernels import _attention as attention
from tests.plain_attention import plain

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
KERNELS = tuple(name for name in catalogue.kernel_names() if name not in OTHERS)


class Run(NamedTuple):
    """Errors against float64, as (root mean square, largest element)."""

    mine: tuple[float, float]
    plain: tuple[float, float]
    sizes: str

    @property
    def ratios(self) -> tuple[float, float]:
        return self.mine[0] / self.plain[0], self.mine[1] / self.plain[1]


def run_of(name: str, sizes: dict[str, Any]) -> Run:
    module = catalogue.kernel_module(name)
    case = catalogue.make(name, **{**module.SMALL, **sizes})
    arrays = [np.asarray(x) for x in case.arrays]
    want = case.reference(*arrays)
    rounded = partial(plain, dtype=DTYPES[sizes["dtype"]])
    with mock.patch.object(attention, "attention_reference", rounded):
        rough = case.reference(*arrays)
    output, *_ = jax.tree.leaves(case.call(*arrays))  # the others are workspace
    got = np.asarray(output).astype(np.float64)
    errors = [np.abs(x - want) for x in (got, rough)]
    mine, other = ((float(np.sqrt((e**2).mean())), float(e.max())) for e in errors)
    return Run(mine, other, " ".join(f"{n}={x}" for n, x in sizes.items()))


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
    found: dict[tuple[str, str], list[Run]] = {}
    for name, sizes in track(runs, "kernels", console=console, transient=True):
        found.setdefault((name, sizes["dtype"]), []).append(run_of(name, sizes))
    table = Table(title="error / that of plain attention, the worst run of each")
    for column in ("kernel", "dtype", "runs", "rms", "largest", "above 2", "error"):
        table.add_column(column, no_wrap=True)
    table.add_column("of")
    for (name, kind), some in found.items():
        worst = max(some, key=lambda run: run.ratios[0])
        largest = max(run.ratios[1] for run in some)
        above = sum(run.ratios[0] > 2 for run in some)
        rms, of = worst.ratios[0], worst.sizes.partition(" ")[2]
        figures = (f"{rms:.2f}", f"{largest:.2f}", str(above), f"{worst.mine[0]:.1e}")
        table.add_row(name, kind, str(len(some)), *figures, of)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
