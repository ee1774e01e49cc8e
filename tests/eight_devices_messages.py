"""Messages between devices: tests for a process with 8 CPU devices, which
`tests/test_mesh.py` starts (see tests/eight_devices.py)."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels.ring_gqa import ring_gqa
from tests.eight_devices import ALONE, MESHES
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.test_messages import FOUR, by_pe, by_pe_in_numpy, f32, ring_sum, rows


@pytest.mark.parametrize("name", ["2", "2 x 4", "reversed"])
def test_trip_counts_and_conditions_by_pe(name: str) -> None:
    x, want = rows(8, 4), by_pe_in_numpy(rows(8, 4))
    call = kb.kernel_call(by_pe, FOUR, num_pes=8, mesh=MESHES[name])
    np.testing.assert_array_equal(call(x), want)


def test_exact_replay_and_memory() -> None:
    x = rows(8, 4)
    one = kb.kernel_call(by_pe, FOUR, num_pes=8, mesh=ALONE).run(x, fidelity="exact")
    call = kb.kernel_call(by_pe, FOUR, num_pes=8, mesh=MESHES["4"])
    many = call.run(x, fidelity="exact")
    assert_same_bits(many.outputs, one.outputs)
    assert_same_tcm(call.record(x), many.tcm.memory, one.tcm.memory)


@pytest.mark.parametrize("num_pes", [8, 24])
def test_a_ring(num_pes: int) -> None:
    x = rows(num_pes, 4)
    call = kb.kernel_call(ring_sum, FOUR, num_pes=num_pes, mesh=MESHES["8"])
    want = np.broadcast_to(x.sum(0), x.shape)
    np.testing.assert_array_equal(jax.jit(call)(x), want)


def test_ring_attention() -> None:
    """`dot` and `exp` of PEs in lockstep too, in these shapes: 8 and 1 a device."""
    sizes = {"context": 128, "query_heads": 4, "kv_heads": 2, "dim": 16, "num_pes": 8}
    case = catalogue.make("ring_gqa", queries=4, tile=8, block=2, **sizes)
    kernel = partial(ring_gqa, tile=8, block=2)
    alone, got = (
        kb.kernel_call(kernel, f32((2, 4, 16)), num_pes=8, mesh=mesh)(*case.arrays)
        for mesh in (ALONE, MESHES["8"])
    )
    assert case.error_of(alone) <= case.tolerance
    assert_same_bits(got, alone)


def test_offsets_and_element_types() -> None:
    names = ("bool", "float8_e4m3fn", "bfloat16", "int16")

    def kernel(tl: Any, x: Any, *outputs: Any) -> None:
        for n, name in enumerate(names):
            tl.send(tl.cast(tl.load(x), name), 3 - 5 * n)
        for n, name in enumerate(names):
            tl.store(outputs[n], tl.recv((4,), name, 3 - 5 * n).wait())

    x = rows(16, 4) % 16
    out = tuple(jax.ShapeDtypeStruct((4,), name) for name in names)
    got = kb.kernel_call(kernel, out, num_pes=16, mesh=MESHES["8"])(x)
    for n, one in enumerate(got):
        want = np.roll(x, 3 - 5 * n, axis=0).astype(one.dtype)
        assert_same_bits(one, want)


def test_without_a_mesh_a_large_call_takes_all_devices() -> None:
    """And gives what one device does."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x[tl.ds(0, 8), :])
        tl.send(tile, 1)
        tl.store(o, tl.recv((8, 4096), "float32", 1).wait())

    x = rows(16, 16, 4096)
    got = kb.kernel_call(kernel, f32((8, 4096)), num_pes=16)(x)
    np.testing.assert_array_equal(got, np.roll(x[:, :8], 1, axis=0))
