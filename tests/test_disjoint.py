"""Outputs that several PEs share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb

X = np.arange(8, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((8,), "float32")
SHARED: dict[str, Any] = {"num_pes": 2, "in_axes": None, "out_axes": None}


def test_disjoint_stores_and_own_loads_are_allowed() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        mine = tl.ds(tl.program_id() * 4, 4)
        tl.store(o[mine], tl.load(x[mine]) + 1.0)
        tl.store(o[mine], tl.load(o[mine]) * 2.0)

    got = kb.kernel_call(kernel, OUT, **SHARED)(X)
    np.testing.assert_array_equal(got, (X + 1) * 2)


def test_a_load_of_what_another_pe_stores_is_a_hazard() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe = tl.program_id()
        tl.store(o[tl.ds(pe * 4, 4)], tl.load(x[tl.ds(pe * 4, 4)]))
        tl.load(o[tl.ds((1 - pe) * 4, 4)])

    with pytest.raises(kb.HazardError, match=r"test_disjoint\.py:"):
        kb.kernel_call(kernel, OUT, **SHARED).record(X)


def test_an_iteration_that_a_pe_does_not_run_leaves_its_output_alone() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe = tl.program_id()
        tl.store(o, tl.load(x))
        for j in tl.range(2 - pe):
            with tl.scratch_scope():  # PE 1 would start at -4 in iteration 1
                tl.store(o[tl.ds((1 - j - pe) * 4, 4)], tl.full((4,), 100.0))

    x = np.stack([X, X + 8])
    call = kb.kernel_call(kernel, OUT, num_pes=2)
    want = np.array([[100.0] * 8, [100.0] * 4 + [12, 13, 14, 15]], np.float32)
    np.testing.assert_array_equal(call(x), want)
    np.testing.assert_array_equal(call.run(x, fidelity="exact").outputs, want)
