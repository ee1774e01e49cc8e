"""Decode over pages: against float64, against the same keys in one piece, and what a
block table may hold."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels.paged_decode import paged_decode, reference
from tests.attention_data import normal
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.test_decode_kernels import of, plain_ragged, ragged

# A batch of sequences whose tables have room for 3 pages of 4 tokens, in a pool that
# has more pages than they use. 2 KV heads of size 8.
LENGTHS = (0, 1, 4, 5, 10, 12)
PES, COUNT, N, HEADS, DIM = len(LENGTHS), 3, 4, 2, 8
POOL = PES * COUNT + 2


@functools.cache  # tests share what a call has compiled
def call_of(buffers: int) -> kb.KernelCall:
    return kb.kernel_call(
        partial(paged_decode, buffers=buffers),
        of((2 * HEADS, DIM)),
        num_pes=PES,
        in_axes=(0, 0, 0, None, None),
    )


def paged(
    table: np.ndarray, q: Any, k: Any, v: Any, lengths: Any = LENGTHS, buffers: int = 1
) -> np.ndarray:
    """table: (P, COUNT), q: (P, HQ, D), k and v: (POOL, H, N, D)."""
    lengths = np.asarray(lengths, np.int32)[:, None]
    return np.asarray(call_of(buffers)(lengths, table.astype(np.int32), q, k, v))


def batch(seed: int) -> tuple[np.ndarray, ...]:
    """A table of pages that are all different, queries, and the keys and values of each
    sequence in one piece, (P, H, COUNT * N, D)."""
    rng = np.random.default_rng(seed)
    table = rng.permutation(POOL)[: PES * COUNT].reshape(PES, COUNT)
    q = normal(rng, PES, 2 * HEADS, DIM)
    return (table, q, *normal(rng, 2, PES, HEADS, COUNT * N, DIM))


def pool_of(table: np.ndarray, cache: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """The pages that hold the live tokens of the cache; `fill` in all other places."""
    pool = np.full((POOL, HEADS, N, DIM), fill, np.float32)
    for pe, length in enumerate(LENGTHS):
        for s in range(length):
            pool[table[pe, s // N], :, s % N] = cache[pe, :, s]
    return pool


# --- against float64, and a plain attention of the same dtype ------------------------

SIZES = ("dtype", "dim", "query_heads", "kv_heads", "buffers", "num_pes", "context",
         "page")  # fmt: skip


@pytest.mark.parametrize(
    "sizes",
    [
        ("float32", 128, 6, 2, 3, 1, 33, 64),
        ("float16", 80, 5, 1, 2, 3, 97, 7),
        ("bfloat16", 256, 2, 2, 1, 2, 48, 1),
    ],
)  # fmt: skip - each dtype, number of buffers, and kind of heads
def test_at_most_twice_the_error_of_plain_attention(sizes: tuple[Any, ...]) -> None:
    """The bound of FlashAttention's own tests; the last case has pages of one token."""
    case = catalogue.make("paged_decode", **dict(zip(SIZES, sizes, strict=True)))
    length, table, q, k, v = map(np.asarray, case.arrays)
    want = case.reference(length, table, q, k, v)
    # The keys of all pages of a sequence, one after the other.
    pieces = [
        np.concatenate([pool[table[..., j]] for j in range(table.shape[-1])], axis=-2)
        for pool in (k, v)
    ]
    most = np.abs(plain_ragged(length, q, *pieces) - want).max()
    got = np.asarray(case.call(*case.arrays)).astype(np.float64)
    assert 0 < most < 0.1  # the plain attention is one
    assert np.abs(got - want).max() <= 2 * most


@pytest.mark.parametrize("buffers", [1, 3])
def test_the_bits_are_those_of_the_keys_in_one_piece(buffers: int) -> None:
    table, q, k, v = batch(buffers)
    got = paged(table, q, pool_of(table, k), pool_of(table, v), buffers=buffers)
    assert_same_bits(got, ragged(LENGTHS, q, k, v, tile=N))
    assert (got[0] == 0).all() and (got[1:] != 0).all()


def test_pages_by_hand() -> None:
    """With q = 0 a sequence has the mean of its values, which are the pages' numbers:
    10 tokens of pages 5, 0 and 2 have (4 x 5 + 4 x 0 + 2 x 2) / 10."""
    q = np.zeros((PES, 2 * HEADS, DIM), np.float32)
    k = np.zeros((POOL, HEADS, N, DIM), np.float32)
    v = k + np.arange(POOL, dtype=np.float32)[:, None, None, None]
    table = np.tile([5, 0, 2], (PES, 1))
    want = np.array([0, 5, 5, 4, 2.4, 7 / 3])[:, None, None] + q
    np.testing.assert_allclose(paged(table, q, k, v), want, rtol=3e-7)
    lengths = np.array(LENGTHS)[:, None]
    np.testing.assert_allclose(reference(lengths, table, q, k, v), want, rtol=1e-12)


def test_exact_is_live() -> None:
    """Outputs and final bytes of two PEs that load pages ahead."""
    sizes = {**catalogue.kernel_module("paged_decode").SMALL, "num_pes": 2}
    case = catalogue.make("paged_decode", **{**sizes, "buffers": 2})
    live = case.call.run(*case.arrays)
    exact = case.call.run(*case.arrays, fidelity="exact")
    assert_same_bits(live.outputs, np.asarray(exact.outputs))
    assert_same_tcm(case.call.record(*case.arrays), live.tcm.memory, exact.tcm.memory)


# --- what a table and its pages may hold ---------------------------------------------

FAR = 2**31 - 1


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 3e38])
def test_what_lies_past_the_length_does_not_leak(garbage: float, buffers: int) -> None:
    """In the rest of a page, in pages of no sequence, and in those that unused entries
    name: none at all, stale ones, and pages of other sequences."""
    table, q, k, v = batch(4)
    pools = [pool_of(table, x) for x in (k, v)]
    want = paged(table, q, *pools, buffers=buffers)
    assert np.isfinite(want).all()
    dirty = [pool_of(table, x, garbage) for x in (k, v)]
    spare = np.setdiff1d(np.arange(POOL), table)
    unused = np.arange(COUNT) * N >= np.array(LENGTHS)[:, None]
    for entry in (-1, POOL, FAR, -FAR - 1, spare[0], table[5, 0]):
        named = np.where(unused, entry, table)
        got = paged(named, q, *dirty, buffers=buffers)
        assert_same_bits(got, want, f"unused entries {entry}")


def test_sequences_share_pages() -> None:
    """The first 8 tokens of the longest two, as of two answers to one prompt; and one
    page twice in a sequence."""
    table, q, k, v = batch(5)
    table[4, :2] = table[5, :2]
    table[3, 1] = table[3, 0]
    for x in (k, v):
        x[4, :, : 2 * N] = x[5, :, : 2 * N]
        x[3, :, N : 2 * N] = x[3, :, :N]
    got = paged(table, q, pool_of(table, k), pool_of(table, v))
    assert_same_bits(got, ragged(LENGTHS, q, k, v, tile=N))


@pytest.mark.parametrize("which", ["keys", "values"])
def test_a_nan_that_is_seen_reaches_its_own_heads(which: str) -> None:
    """Token 2 of KV head 1, in a page that two sequences share; one sees it."""
    table, q, k, v = batch(6)
    table[1, 0] = table[5, 0]  # of which sequence 1 sees token 0 only
    pools = {"keys": pool_of(table, k), "values": pool_of(table, v)}
    clean = paged(table, q, *pools.values())
    pools[which][table[5, 0], 1, 2, 3] = np.nan
    got = paged(table, q, *pools.values())
    hit = np.isnan(got[5, HEADS:])
    assert (hit if which == "keys" else hit[:, 3]).all()
    assert_same_bits(got[5, :HEADS], clean[5, :HEADS], "the other KV head")
    assert_same_bits(got[:5], clean[:5], "the other sequences")


def test_a_page_that_does_not_exist_is_one_of_zeros() -> None:
    table, q, k, v = batch(7)
    pools = [pool_of(table, x) for x in (k, v)]
    outputs = []
    for entry in (-1, POOL, FAR):
        named = table.copy()
        named[5, 1] = entry
        outputs.append(paged(named, q, *pools))
    for pool in pools:
        pool[table[5, 1]] = 0
    want = paged(table, q, *pools)
    for got in outputs:
        assert_same_bits(got, want)


def test_lengths_out_of_range_count_as_the_nearer_end() -> None:
    rng = np.random.default_rng(8)
    table, q, _, _ = batch(8)
    k, v = normal(rng, 2, POOL, HEADS, N, DIM)
    got = paged(table, q, k, v, (-1, -FAR - 1, 13, FAR, 12, 0))
    assert_same_bits(got, paged(table, q, k, v, (0, 0, 12, 12, 12, 0)))


# --- what it costs -------------------------------------------------------------------


def test_a_page_is_loaded_once_a_head() -> None:
    """And the table, the length and the queries once."""
    case = catalogue.make("paged_decode", num_pes=1, context=1000, buffers=2)
    columns = case.call.op_log(*case.inputs.specs).columns()
    loads = columns["nbytes"][columns["op_name"] == "load"]
    pages, page, heads, dim = 8, 128, 2, 128
    keys_and_values = 2 * pages * heads * page * dim
    assert loads.sum() == 4 * (1 + pages + 16 * dim + keys_and_values)


def test_scratch_grows_by_the_table_and_by_the_pages_ahead() -> None:
    """4 bytes a page of the table, so that a million tokens fit; and a page of keys and
    one of values for each that is loaded ahead."""

    def peak(**sizes: int) -> int:
        case = catalogue.make("paged_decode", **sizes)
        return case.call.record(*case.inputs.specs).peak_scratch

    million = peak(context=1 << 20)
    assert million - peak(context=1 << 14) == 4 * ((1 << 20) - (1 << 14)) // 128
    assert million <= 1 << 20
    ahead = [peak(buffers=buffers) - peak(buffers=1) for buffers in (2, 3)]
    assert ahead == [2 * 128 * 128 * 4, 4 * 128 * 128 * 4]


@pytest.mark.parametrize("counts", [(3, 2), (2, 4)])
def test_counts_that_do_not_divide(counts: tuple[int, int]) -> None:
    """A ValueError that names both: of the case, and of the kernel itself."""
    query_heads, kv_heads = counts
    both = rf"\b{query_heads}\b.*\b{kv_heads}\b"
    with pytest.raises(ValueError, match=both):
        catalogue.make("paged_decode", query_heads=query_heads, kv_heads=kv_heads)
    pool = of((POOL, kv_heads, N, DIM))
    with pytest.raises(ValueError, match=both):
        kb.kernel_call(paged_decode, of((query_heads, DIM))).record(
            of((1,), "int32"), of((COUNT,), "int32"), of((query_heads, DIM)), pool, pool
        )
