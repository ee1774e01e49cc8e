"""All-reduce over a ring: every PE ends with the sum of all PEs' arrays.

A reduce-scatter and an all-gather of n - 1 steps each, in which every PE sends one of n
chunks to the next (Patarasuk and Yuan, 2009): 2 (n - 1) / n of the array's bytes a
link, whatever n. Each chunk is added up in the order of the ring, so all PEs have the
same bits.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import kbjax as kb
from kbjax.cases import Case, Inputs, check_dtype, positive, shard, tolerance
from kbjax.kernels._shapes import agree


def ring_all_reduce(tl: Any, x: Any, o: Any) -> None:
    """x and o: (N, C), with N a multiple of the number of PEs."""
    ranks, rank = tl.num_programs(), tl.program_id()
    agree(x=(x, "N C"), o=(o, "N C"))
    rows, columns = x.shape
    size = shard("rows", rows, "num_pes", ranks)
    total = tl.load(x)

    def chunk(number: Any) -> Any:
        return total[tl.ds(number % ranks * size, size)]

    for step in tl.range(ranks - 1):  # then chunk rank + 1 is the sum of all
        with tl.scratch_scope("reduce"):
            sent = tl.send(chunk(rank - step), 1)
            into = chunk(rank - step - 1)
            tl.copy_to(into, into + tl.recv((size, columns), x.dtype, 1).wait())
            sent.wait()
    for step in tl.range(ranks - 1):
        with tl.scratch_scope("gather"):
            sent = tl.send(chunk(rank - step + 1), 1)
            into = chunk(rank - step)
            tl.copy_to(into, tl.recv((size, columns), x.dtype, 1).wait())
            sent.wait()
    tl.store(o, total)


def reference(x: np.ndarray) -> np.ndarray:
    """float64; x: ([R,] N, C)."""
    if x.ndim == 2:
        return x.astype(np.float64)
    return np.broadcast_to(x.astype(np.float64).sum(axis=0), x.shape)


def case(
    rows: int = 512,
    columns: int = 128,
    dtype: str = "float32",
    num_pes: int = 8,
    seed: int = 0,
    *,
    hardware: kb.Hardware | None = None,
) -> Case:
    """An array of (rows, columns) on each of `num_pes` PEs."""
    check_dtype(dtype)
    positive(rows=rows, columns=columns, num_pes=num_pes)
    shard("rows", rows, "num_pes", num_pes)
    call = kb.kernel_call(
        ring_all_reduce,
        jax.ShapeDtypeStruct((rows, columns), dtype),
        num_pes=num_pes,
        hardware=hardware,
    )
    inputs = Inputs(seed, num_pes, dtype, ((rows, columns),))
    allowed = tolerance(dtype) * num_pes  # each sum rounds to the dtype
    return Case(call, inputs, reference, allowed)


SMALL = {"rows": 12, "columns": 16, "num_pes": 3}
