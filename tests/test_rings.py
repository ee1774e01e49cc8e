"""Attention and all-reduce over a ring of PEs (FC-18), against float64."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels import ring_all_reduce, ring_gqa
from kbjax.kernels.flash_prefill import flash_prefill
from tests.helpers import assert_same_bits

BF16 = ml_dtypes.bfloat16


@cache  # with what it has compiled
def ring(ranks: int, tile: int, block: int, out: Any) -> kb.KernelCall:
    kernel = partial(ring_gqa.ring_gqa, tile=tile, block=block)
    return kb.kernel_call(kernel, out, num_pes=ranks)


def attend(q: Any, k: Any, v: Any, ranks: int, tile: int, block: int) -> Any:
    """Causal prefill of one head, every token a query: (S, D) over `ranks` ranks."""
    keys, dim = len(k) // ranks, k.shape[1]
    call = ring(ranks, tile, block, jax.ShapeDtypeStruct((1, keys, dim), q.dtype))
    lead = (ranks,) if ranks > 1 else ()
    shards = [x.reshape(*lead, keys, dim) for x in (q, k, v)]
    shards[0] = shards[0].reshape(*lead, 1, keys, dim)
    return np.asarray(call(*shards)).reshape(-1, dim)


def test_causal_by_global_positions() -> None:
    """FC-18a: with q = 0 token g is the mean of values 0 to g."""
    index = np.arange(32, dtype=np.float32)[:, None] * np.ones((1, 16), np.float32)
    out = attend(np.zeros_like(index), index, index, ranks=4, tile=8, block=8)
    np.testing.assert_allclose(out, index / 2, rtol=1e-6)


def test_a_ring_of_one_is_flash_attention() -> None:
    """FC-18b: to the bit."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((64, 32)).astype("float32") for _ in range(3))
    flash = kb.kernel_call(
        partial(flash_prefill, block=16, tile=16),
        jax.ShapeDtypeStruct((1, 64, 32), "float32"),
    )
    want = np.asarray(flash(q[None], k, v))[0]
    got = attend(q, k, v, ranks=1, tile=16, block=16)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("decode", [False, True])
def test_a_context_that_is_no_multiple_of_the_ranks(decode: bool) -> None:
    """FC-18c."""
    with pytest.raises(ValueError, match=r"context 10 and num_pes 4"):
        catalogue.make("ring_gqa", context=10, num_pes=4, decode=decode)


def test_the_error_does_not_grow_with_the_ring() -> None:
    """FC-18d: at most 2% from 1 to 16 ranks, and as large as the rounding of the
    output."""
    rng = np.random.default_rng(18)
    q, k, v = (rng.standard_normal((512, 64)).astype(BF16) for _ in range(3))
    want = ring_gqa.reference(q[None], k, v)[0]
    found = {}
    for ranks in (1, 16):
        out = attend(q, k, v, ranks, tile=32, block=32).astype(np.float64)
        found[ranks] = math.sqrt(np.mean((out - want) ** 2))
    assert found[16] <= 1.02 * found[1]
    rounded = want.astype(BF16).astype(np.float64)
    least = math.sqrt(np.mean((rounded - want) ** 2))
    assert found[1] <= 1.005 * least
    assert round(found[1], 7) == 2.695e-4


def test_a_hop_in_the_future_does_nothing() -> None:
    """NaN keys and values of later ranks reach no one before them, and cost no time."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((32, 16)).astype("float32") for _ in range(3))
    clean = attend(q, k, v, ranks=4, tile=8, block=8)
    k[24:] = v[24:] = np.nan
    dirty = attend(q, k, v, ranks=4, tile=8, block=8)
    assert_same_bits(dirty[:24], clean[:24])
    assert np.isnan(dirty[24:]).any(axis=1).all()
    case = catalogue.make("ring_gqa", context=64, num_pes=4, tile=16, dim=16)
    log = case.call.op_log(*case.inputs.specs)
    dots = [len(log.filter(pe=pe, op_name="dot")) for pe in range(4)]
    assert dots == [2, 4, 6, 8]  # two a tile that a rank sees


# Live replay of each size's other values; exact too of a causal ring and of decode.
EXACT: tuple[dict[str, Any], ...] = (
    {"block": 8, "tile": 4, "dtype": "bfloat16", "num_pes": 2},
    {"decode": True, "buffers": 3},
)
LIVE: tuple[dict[str, Any], ...] = (
    {"causal": False, "buffers": 2},
    {"scoped": False, "block": 2, "tile": 16, "queries": 6},
)


@pytest.mark.parametrize("sizes", [*EXACT, *LIVE], ids=str)
def test_ring_gqa(sizes: dict[str, Any]) -> None:
    case = catalogue.make("ring_gqa", **{**ring_gqa.SMALL, **sizes})
    live = case.call(*case.arrays)
    assert case.error_of(live) <= case.tolerance
    if sizes in EXACT:
        exact = case.call.run(*case.arrays, fidelity="exact").outputs
        assert_same_bits(np.asarray(live), np.asarray(exact))


def test_the_unscoped_ring_overflows() -> None:
    """And the scoped one has one peak, whatever the ring."""
    sizes = {**ring_gqa.SMALL, "causal": False}

    def peak(ranks: int, scoped: bool) -> int:
        asked = {**sizes, "num_pes": ranks, "context": 32 * ranks, "scoped": scoped}
        case = catalogue.make("ring_gqa", **asked)
        return case.call.plan(*case.inputs.specs, vary=[]).peak_scratch_bytes

    scoped = [peak(ranks, True) for ranks in (2, 4, 8)]
    unscoped = [peak(ranks, False) for ranks in (2, 4, 8)]
    assert len(set(scoped)) == 1
    assert unscoped[1] - unscoped[0] == (unscoped[2] - unscoped[1]) / 2 > scoped[0]
    with pytest.raises(kb.ScratchOverflowError, match="scratch overflow: "):
        case = catalogue.make("ring_gqa", context=2048, causal=False, scoped=False)
        case.call.record(*case.inputs.specs)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ring_all_reduce(ranks: int, dtype: str) -> None:
    """Every PE has the same bits, and sends 2 (n - 1) / n of the array."""
    case = catalogue.make(
        "ring_all_reduce", rows=20, columns=8, num_pes=ranks, dtype=dtype
    )
    out = np.asarray(case.call(*case.arrays))
    assert case.error_of(out) <= case.tolerance
    for one in out if ranks > 1 else ():
        assert_same_bits(one, out[0])
    log = case.call.op_log(*case.inputs.specs)
    sent = log.filter(op_name="send", pe=0).columns(["nbytes"])["nbytes"].sum()
    whole = 20 * 8 * case.inputs.specs[0].dtype.itemsize
    assert sent == 2 * (ranks - 1) * whole // ranks
    assert ring_all_reduce.reference(np.ones((3, 2, 2)))[0, 0, 0] == 3


def test_a_ring_overlaps_its_messages_with_compute() -> None:
    """The hop's send is on the link while the GEMM engine works on the same tile."""
    case = catalogue.make("ring_gqa", context=512, num_pes=4, causal=False, dim=64)
    log = case.call.op_log(*case.inputs.specs).filter(pe=1)
    columns = log.columns(["engine", "start_ps", "end_ps"])

    def spans(engine: str) -> list[tuple[int, int]]:
        mine = columns["engine"] == engine
        pairs = zip(columns["start_ps"][mine], columns["end_ps"][mine], strict=True)
        return [(int(a), int(b)) for a, b in pairs]

    both = sum(
        max(0, min(stop, end) - max(start, begin))
        for start, stop in spans("link")
        for begin, end in spans("gemm")
    )
    assert both > 0
    assert log.summary().engines["link"].commands > 0
