#!/usr/bin/env python3
"""The attention kernels' errors against float64, beside those of a plain attention.

    python scripts/sweep_errors.py [--kernel NAME] [--dtype NAME] [--dim N]

Every attention kernel x dtype x head size x mask runs its small case (but MLA's, whose
heads have two sizes: the tests hold it to the same bound), beside a plain attention
that rounds each step to the same dtype. It has the matrix products of XLA, as the
kernel has; of float32 a product's order of adding is most of the error, and NumPy's
adds in more partial sums. Shown, for each kernel and dtype, is the largest of its runs'

    rms        root mean square of the error, over plain attention's
    of NumPy's the same, with NumPy's products in plain attention
    bound      the largest error, over what FlashAttention's tests allow: twice plain
               attention's, and two roundings of 0.3; above 1 the exit status is 1

and the root mean square and the sizes of the run with the largest rms.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kbjax import catalogue, dtypes
from kbjax.kernels import _attention as attention
from tests.plain_attention import error_bound, plain

DTYPES = ("float32", "float16", "bfloat16")
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
KERNELS = tuple(
    name
    for name in catalogue.kernel_names()
    if "dim" in catalogue.sizes_of(name) and name != "mla_decode"
)


class Run(NamedTuple):
    """A kernel's error against float64, over what it is compared with.

    Attributes:
      rms: the root mean square, over that of plain attention.
      of_numpys: over that of plain attention with NumPy's products.
      bound: the largest element's, over what FlashAttention's tests allow.
      error: the root mean square.
      sizes: of the case.
    """

    rms: float
    of_numpys: float
    bound: float
    error: float
    sizes: str


def root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt((x**2).mean()))


def xlas_product(a: np.ndarray, b: np.ndarray) -> Any:
    return jnp.matmul(a, b, precision="highest")


def run_of(name: str, sizes: dict[str, Any]) -> Run:
    module = catalogue.kernel_module(name)
    case = catalogue.make(name, **{**module.SMALL, **sizes})
    arrays = [np.asarray(x) for x in case.arrays]
    want, dtype = np.asarray(case.reference(*arrays)), dtypes.of(sizes["dtype"]).numpy

    def plain_by(product: Callable[..., Any]) -> np.ndarray:
        rounded = partial(plain, dtype=dtype, product=product)
        with mock.patch.object(attention, "attention_reference", rounded):
            return np.asarray(case.reference(*arrays))

    rough = plain_by(xlas_product)
    output, *_ = jax.tree.leaves(case.call(*arrays))  # the others are workspace
    off = np.asarray(output).astype(np.float64) - want
    mine = root_mean_square(off)
    return Run(
        mine / root_mean_square(rough - want),
        mine / root_mean_square(plain_by(np.matmul) - want),
        float(np.abs(off).max()) / error_bound(rough, want, dtype),
        mine,
        " ".join(f"{n}={x}" for n, x in sizes.items()),
    )


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
    table = Table(title="errors, the largest of each")
    for column in ("kernel", "dtype", "runs", "rms", "of NumPy's", "bound", "error"):
        table.add_column(column, no_wrap=True)
    table.add_column("of")
    for (name, kind), some in found.items():
        worst = max(some, key=lambda run: run.rms)
        ratios = (
            worst.rms,
            max(run.of_numpys for run in some),
            max(run.bound for run in some),
        )
        table.add_row(
            name,
            kind,
            str(len(some)),
            *(f"{ratio:.2f}" for ratio in ratios),
            f"{worst.error:.1e}",
            worst.sizes.partition(" ")[2],
        )
    console.print(table)
    raise typer.Exit(any(run.bound > 1 for some in found.values() for run in some))


if __name__ == "__main__":
    typer.run(main)
