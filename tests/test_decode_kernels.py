"""The decode kernels over ragged batches, split keys and latent caches: against float64
and a plain attention of the same dtype, and the cases that go wrong in the field."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels import _attention as attention
from kbjax.kernels.mla_decode import mla_decode
from kbjax.kernels.ragged_decode import ragged_decode
from kbjax.kernels.split_kv_decode import split_kv_decode
from tests.attention_data import counting, normal, numpy_dtype, zeros
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.plain_attention import plain

KERNELS = ("ragged_decode", "split_kv_decode", "mla_decode")


def of(shape: tuple[int, ...], dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@functools.cache  # tests share what a call has compiled
def call_of(
    kernel: Callable[..., None],
    *outputs: jax.ShapeDtypeStruct,
    num_pes: int = 1,
    shared: bool = False,
    **options: Any,
) -> kb.KernelCall:
    """With `shared`, all PEs have the same arrays."""
    axes = None if shared else 0
    return kb.kernel_call(
        partial(kernel, **options),
        outputs if len(outputs) > 1 else outputs[0],
        num_pes=num_pes,
        in_axes=axes,
        out_axes=axes,
    )


def ragged(
    lengths: Any, q: Any, k: Any, v: Any, tile: int = 4, buffers: int = 1
) -> np.ndarray:
    """lengths: (P,), q: (P, HQ, D), k and v: (P, H, S, D); of one PE with no P."""
    lengths = np.asarray(lengths, np.int32)
    call = call_of(
        ragged_decode,
        of(q.shape[-2:], q.dtype),
        num_pes=lengths.size,
        tile=tile,
        buffers=buffers,
    )
    lengths = lengths[:, None] if lengths.size > 1 else lengths.reshape(1)
    return np.asarray(call(lengths, q, k, v))


def split(
    q: Any, k: Any, v: Any, *, splits: int, tile: int
) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp; q: (HQ, D), k and v: (H, S, D)."""
    call = call_of(
        split_kv_decode,
        of(q.shape, q.dtype),
        of(q.shape[:1]),
        num_pes=splits,
        shared=True,
        tile=tile,
    )
    out, lse = call(q, k, v)
    return np.asarray(out), np.asarray(lse)


def log_sum_exp(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """(HQ,) float64; q: (HQ, D), k: (S, D) of all of them."""
    s = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[-1])
    return np.logaddexp.reduce(s, axis=-1, initial=-np.inf)


# --- against float64, and a plain attention of the same dtype ------------------------


def plain_ragged(length: Any, q: Any, k: Any, v: Any) -> np.ndarray:
    """As `ragged_decode.reference`."""
    if q.ndim == 2:
        n = int(length[0])
        return plain_split(q, k[:, :n], v[:, :n]) if n else np.zeros(q.shape)
    return np.stack([plain_ragged(*each) for each in zip(length, q, k, v, strict=True)])


def plain_split(q: Any, k: Any, v: Any) -> np.ndarray:
    groups = q.reshape(k.shape[0], -1, q.shape[-1])
    heads = [plain(*each, q.dtype) for each in zip(groups, k, v, strict=True)]
    return np.concatenate(heads)


def plain_mla(q: Any, cache: Any, rank: int, scale: float) -> np.ndarray:
    if q.ndim == 2:
        return plain(q, cache, cache[:, :rank], q.dtype, scale=scale)
    return np.stack([plain_mla(each, cache, rank, scale) for each in q])


# Over all: each dtype, head size (96 is in `test_head_sizes`), number of buffers, and
# multi-head, grouped and multi-query attention; of latents the published widths, too.
SIZES = ("dtype", "context", "tile", "buffers", "num_pes")
HEADS = (*SIZES, "dim", "query_heads", "kv_heads")
LATENT = (*SIZES, "rank", "rotary", "heads")
CASES = [
    ("ragged_decode", HEADS, ("float32", 174, 35, 3, 3, 80, 4, 2)),
    ("ragged_decode", HEADS, ("bfloat16", 36, 12, 1, 2, 256, 3, 3)),
    ("split_kv_decode", HEADS, ("bfloat16", 110, 29, 2, 2, 64, 4, 2)),
    ("split_kv_decode", HEADS, ("float16", 177, 26, 1, 1, 128, 5, 1)),
    ("mla_decode", LATENT, ("float32", 172, 19, 1, 3, 512, 64, 16)),
    ("mla_decode", LATENT, ("float16", 86, 33, 3, 1, 33, 7, 5)),
]


@pytest.mark.parametrize(("name", "options", "values"), CASES, ids=[
    f"{name}-{'-'.join(map(str, values))}" for name, _, values in CASES
])  # fmt: skip
def test_at_most_twice_the_error_of_plain_attention(
    name: str, options: tuple[str, ...], values: tuple[Any, ...]
) -> None:
    """The bound of FlashAttention's own tests."""
    case = catalogue.make(name, **dict(zip(options, values, strict=True)))
    arrays = [np.asarray(x) for x in case.arrays]
    want = case.reference(*arrays)
    if name == "mla_decode":
        rough = plain_mla(*arrays, **case.reference.keywords)  # rank and scale
    else:
        plain_of = {"ragged_decode": plain_ragged, "split_kv_decode": plain_split}
        rough = plain_of[name](*arrays)
    got = np.asarray(case.call(*arrays)).astype(np.float64)
    most = np.abs(rough - want).max()
    assert 0 < most < 0.1  # the plain attention is one
    assert np.abs(got - want).max() <= 2 * most


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ragged_decode", {"num_pes": 1}),
        ("split_kv_decode", {"num_pes": 2, "query_heads": 2, "context": 128}),
        ("mla_decode", {"num_pes": 1, "context": 96, "buffers": 2}),
    ],
)
def test_exact_is_live(name: str, sizes: dict[str, int]) -> None:
    """Outputs and final bytes; of two PEs, where they send to each other."""
    case = catalogue.make(name, **{**catalogue.kernel_module(name).SMALL, **sizes})
    live = case.call.run(*case.arrays)
    exact = case.call.run(*case.arrays, fidelity="exact")
    assert_same_bits(live.outputs, np.asarray(exact.outputs))
    assert_same_tcm(case.call.record(*case.arrays), live.tcm.memory, exact.tcm.memory)


@pytest.mark.parametrize("name", KERNELS)
def test_defaults_fit_whatever_the_context(name: str) -> None:
    """Of more tiles than one run."""
    peaks = set()
    for context in (1 << 18, 1 << 20):
        case = catalogue.make(name, context=context)
        peaks.add(case.call.record(*case.inputs.specs).peak_scratch)
    assert len(peaks) == 1
    assert peaks.pop() <= 1 << 20


# --- ragged lengths ------------------------------------------------------------------

LENGTHS = (0, 1, 3, 4, 5, 10)  # of a room of 10 in tiles of 4


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 3e38])
def test_what_lies_past_the_length_does_not_leak(garbage: float) -> None:
    """The bits are those with zeros there, and length 0 gives 0."""
    rng = np.random.default_rng(4)
    q = normal(rng, 6, 4, 8)
    k, v = normal(rng, 2, 6, 2, 10, 8)
    want = np.stack([
        attention.attention_reference(q[pe, h : h + 1], k[pe, h // 2, :n],
                                      v[pe, h // 2, :n])
        for pe, n in enumerate(LENGTHS) for h in range(4)
    ]).reshape(q.shape)  # fmt: skip
    past = np.arange(10)[None, None, :, None] >= np.reshape(LENGTHS, (-1, 1, 1, 1))
    outputs = []
    for fill in (0.0, garbage):
        dirty = [np.where(past, np.float32(fill), x) for x in (k, v)]
        outputs.append(ragged(LENGTHS, q, *dirty))
    assert_same_bits(outputs[1], outputs[0])
    np.testing.assert_allclose(outputs[1], want, atol=1e-6)
    assert (outputs[1][0] == 0).all()


def test_a_nan_that_is_seen_reaches_its_own_heads() -> None:
    """Key 2 of KV head 1 of the sequences: seen by those of length 3 and more."""
    rng = np.random.default_rng(5)
    q = normal(rng, 6, 4, 8)
    k, v = normal(rng, 2, 6, 2, 10, 8)
    clean = ragged(LENGTHS, q, k, v)
    for cache in (k, v):
        kept = cache.copy()
        cache[:, 1, 2, 3] = np.nan
        got = ragged(LENGTHS, q, k, v)
        hit = np.isnan(got[2:, 2:])
        assert (hit if cache is k else hit[..., 3]).all()
        assert_same_bits(got[:, :2], clean[:, :2], "the other KV head")
        assert_same_bits(got[:2], clean[:2], "shorter sequences")
        cache[...] = kept


def test_lengths_out_of_range_count_as_the_nearer_end() -> None:
    rng = np.random.default_rng(6)
    q = normal(rng, 6, 4, 8)
    k, v = normal(rng, 2, 6, 2, 10, 8)
    got = ragged((-1, -(2**31), 11, 13, 2**31 - 1, 10), q, k, v)
    assert_same_bits(got, ragged((0, 0, 10, 10, 10, 10), q, k, v))


def test_a_room_of_no_keys() -> None:
    assert (ragged([3], zeros(2, 8), zeros(1, 0, 8), zeros(1, 0, 8)) == 0).all()


# --- split keys ----------------------------------------------------------------------


def fc03() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q: (1, 16), k and v: (1, 130, 16)."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((n, 16)) for n in (1, 130, 130))
    return tuple(np.float32(x) for x in (q, k[None], v[None]))


def test_each_split_alone() -> None:
    """64, 64, 2 and no keys: the log-sum-exp of no keys is -inf, and its output 0."""
    q, k, v = fc03()
    splits = ((0, 64), (64, 128), (128, 130), (130, 130))
    found = [split(q, k[:, a:b], v[:, a:b], splits=1, tile=64) for a, b in splits]
    lse = np.concatenate([each[1] for each in found])
    np.testing.assert_allclose(
        lse, [5.04956965, 4.86227911, 3.27321149, -np.inf], rtol=2e-7
    )
    assert (found[3][0] == 0).all()


def test_splits_without_keys() -> None:
    """130 keys in tiles of 64: 4 splits have 64, 64, 2 and 0 of them. The one that is
    empty changes no bit of what 3 splits give."""
    q, k, v = fc03()
    want = attention.attention_reference(q, k[0], v[0])
    found = [split(q, k, v, splits=splits, tile=64) for splits in (3, 4)]
    for out, lse in found:
        np.testing.assert_allclose(out, want, rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(lse, [5.74194464], rtol=2e-7)
    assert_same_bits(found[1], found[0])


def test_merging_empty_states_changes_no_bit() -> None:
    """No keys at all, and three empty states with a real one before, between and after
    them."""

    def merged(tl: Any, m: Any, l: Any, acc: Any, o: Any, lse: Any) -> None:  # noqa: E741
        parts = [
            attention.Running(*[tl.load(x[i]) for x in (m, l, acc)]) for i in range(4)
        ]
        for other in parts[1:]:
            attention.merge(tl, parts[0], other)
        tl.store(o, attention.finish(tl, parts[0]))
        tl.store(lse, parts[0].m + tl.log(parts[0].l))

    value = normal(np.random.default_rng(7), 2, 3)
    call = call_of(merged, of((2, 3)), of((2, 1)))
    for real in (None, 0, 1, 3):
        m, total, acc = zeros(4, 2, 1) - np.inf, zeros(4, 2, 1), zeros(4, 2, 3)
        if real is not None:
            m[real], total[real], acc[real] = 1.5, 1, value
        out, lse = call(m, total, acc)
        want = zeros(2, 3) if real is None else value
        assert_same_bits(np.asarray(out), want, f"real {real}")
        assert (np.asarray(lse) == (-np.inf if real is None else 1.5)).all()


@pytest.mark.parametrize("splits", range(1, 17))
def test_every_key_and_every_state_counts_once(splits: int) -> None:
    """Each key is loaded by one split, and each split but 0 sends its state once, to
    one before it, when it has received those that come to it: so 0 ends with all."""
    rng = np.random.default_rng(splits)
    context, tile = int(rng.integers(1, 400)), int(rng.integers(1, 70))
    case = catalogue.make(
        "split_kv_decode", context=context, tile=tile, num_pes=splits, dim=32
    )
    columns = case.call.op_log(*case.inputs.specs).columns()
    share = math.ceil(math.ceil(context / tile) / splits) * tile
    for pe in range(splits):
        own = {name: column[columns["pe"] == pe] for name, column in columns.items()}
        rows = own["nbytes"][own["op_name"] == "load"].sum() / (32 * 4)
        keys = min(max(context - pe * share, 0), share)
        assert rows == 8 + 2 * keys, (context, tile, pe)  # 8 of q
        sent = own["start_ns"][own["op_name"] == "send"]
        came = own["end_ns"][own["op_name"] == "recv"]
        assert len(sent) == (3 if pe else 0)
        assert not (sent[:, None] < came[None, :]).any()
        after = [d for d in (1, 2, 4, 8) if pe % (2 * d) == 0 and pe + d < splits]
        assert len(came) == 3 * len(after)


# --- field cases ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_beyond_float16(dtype: str) -> None:
    """q . k of 741,455 (of 4 million, where the cache is latent) overflows float16
    before it is scaled; the output is 1 exactly."""
    kind = numpy_dtype(dtype)
    q = np.full((1, 128), 256).astype(kind)
    k, v = (
        np.stack([np.full(128, a), np.full(128, b)])[None].astype(kind)
        for a, b in ((256, 255), (1, 2))
    )
    want = np.full((1, 128), 1, kind)
    if dtype == "float16":
        assert_same_bits(ragged([2], q, k, v), want)
        out, lse = split(q, k, v, splits=1, tile=1)
        assert_same_bits(out, want)
        np.testing.assert_allclose(lse, [741455.2], rtol=1e-6)
    cache = np.concatenate([v[0, :, :64], k[0, :, :64]], axis=1)
    q[:, :64] = 0
    call = call_of(mla_decode, of((1, 64), kind), tile=2)
    assert_same_bits(np.asarray(call(q, cache)), want[:, :64])


FC06 = (2.80178467, 3.16984602)  # output, natural log-sum-exp


def test_the_log_sum_exp_is_natural() -> None:
    """Scores 0, 1 and 3: the first two in one split, the last in another."""
    k = np.array([[[0], [1], [3]]], np.float32)
    v = np.array([[[1], [2], [3]]], np.float32)
    out, lse = split(np.ones((1, 1), np.float32), k, v, splits=2, tile=2)
    np.testing.assert_allclose((out[0, 0], lse[0]), FC06, rtol=2e-7)


def test_kernel_in_base_2_merges_alike() -> None:
    """It computes with exp2 and log2, and hands the natural log-sum-exp of each part
    on, which `merge` takes."""

    def softmax(tl: Any, s: Any, v: Any) -> tuple[Any, Any]:
        s = s * (1 / np.log(2))
        m = tl.max(s, axis=1, keepdims=True)
        p = tl.exp2(s - m)
        total = tl.sum(p, axis=1, keepdims=True)
        return (m + tl.log2(total)) * np.log(2), tl.dot(p, v) / total

    def kernel(tl: Any, s: Any, v: Any, o: Any, lse: Any) -> None:
        states = []
        for keys in (slice(0, 2), slice(2, 3)):
            natural, out = softmax(tl, tl.load(s[:, keys]), tl.load(v[keys, :]))
            states.append(attention.Running(natural, tl.full((1, 1), 1.0), out))
        attention.merge(tl, *states)
        tl.store(o, attention.finish(tl, states[0]))
        tl.store(lse, states[0].m + tl.log(states[0].l))

    call = call_of(kernel, of((1, 1)), of((1, 1)))
    got = call(np.array([[0, 1, 3]], np.float32), np.array([[1], [2], [3]], np.float32))
    np.testing.assert_allclose(np.ravel(got), FC06, rtol=3e-7)


@pytest.mark.parametrize(
    ("name", "dim", "want"),
    [("ragged_decode", 96, 2.366650675), ("split_kv_decode", 80, 2.423376470)],
)  # others are in `CASES`
def test_head_sizes(name: str, dim: int, want: float) -> None:
    """The last column is used, and the scale is that of the true width."""
    q = zeros(2, dim)
    q[:, -1] = 8
    k = zeros(1, 4, dim)
    k[0, :, -1] = np.arange(4)
    v = counting(4, dim)[None]
    if name == "ragged_decode":
        got = ragged([4], q, k, v, tile=2)
    else:
        got, _ = split(q, k, v, splits=1, tile=2)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_scale_of_latent_attention() -> None:
    """By the keys' size before compression, 192: not the 576 of the cache, 512 or 64.
    The last rotary column is used."""
    q = zeros(2, 576)
    q[:, -1] = 8
    cache = zeros(4, 576)
    cache[:, :512] = np.arange(4)[:, None]
    cache[:, -1] = np.arange(4)
    got = np.asarray(call_of(mla_decode, of((2, 512)), tile=2)(q, cache))
    p = np.exp(8 * np.arange(4) / np.sqrt(192))
    np.testing.assert_allclose(got, p @ np.arange(4) / p.sum(), rtol=1e-6)


def test_which_kv_head() -> None:
    """V of KV head h is h + 1: query head h of 28 reads KV head h // 7 of 4. As many
    KV heads as query heads, and one, are in `CASES`."""
    rng = np.random.default_rng(9)
    q, k = normal(rng, 28, 4), normal(rng, 4, 3, 4)
    v = np.tile(np.arange(1, 5, dtype=np.float32)[:, None, None], (1, 3, 4))
    want = np.repeat(1.0 + np.arange(28)[:, None] // 7, 4, 1)
    np.testing.assert_allclose(ragged([3], q, k, v, tile=2), want, rtol=1e-6)
    out, lse = split(q, k, v, splits=1, tile=2)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    each = [log_sum_exp(q[h : h + 1], k[h // 7]) for h in range(28)]
    np.testing.assert_allclose(lse, np.concatenate(each), rtol=1e-5)


@pytest.mark.parametrize("counts", [(3, 2), (33, 2), (2, 4), (4, 0)])
@pytest.mark.parametrize("name", ["ragged_decode", "split_kv_decode"])
def test_counts_that_do_not_divide(name: str, counts: tuple[int, int]) -> None:
    """A ValueError that names both: of the case, and of the kernel itself."""
    query_heads, kv_heads = counts
    both = rf"\b{query_heads}\b.*\b{kv_heads}\b"
    with pytest.raises(ValueError, match=both):
        catalogue.make(
            name, query_heads=query_heads, kv_heads=kv_heads, context=1 << 40
        )
    q, k = zeros(query_heads, 4), zeros(kv_heads, 3, 4)
    with pytest.raises(ValueError, match=both):
        ragged([3], q, k, k) if "ragged" in name else split(q, k, k, splits=1, tile=2)


# --- latent attention ----------------------------------------------------------------


def test_a_latent_is_loaded_once() -> None:
    """Each PE loads its queries and the cache, and that is all. By default it has 16
    heads of DeepSeek-V2, and loading ahead pays, since scores and values wait for one
    tile."""
    case = catalogue.make("mla_decode", num_pes=1, context=1000)
    columns = case.call.op_log(*case.inputs.specs).columns()
    loads = columns["op_name"] == "load"
    assert columns["nbytes"][loads].sum() == (16 + 1000) * 576 * 4
    assert case.inputs.specs[0].shape == (16, 576)
    at_once = catalogue.make("mla_decode", num_pes=1, context=1000, buffers=1)
    ahead, late = (x.call.op_log(*x.inputs.specs).total_ns for x in (case, at_once))
    assert ahead < late


def test_latent_attention_is_attention_of_its_parts() -> None:
    """With the up-projections applied: the scores and outputs of DeepSeek-V2's heads,
    whose keys are k = (W_k c, r) and whose values are W_v c."""
    rng = np.random.default_rng(10)
    heads, size, rank, rotary, context = 2, 8, 16, 4, 37
    w_k, w_v = rng.standard_normal((2, heads, size, rank)) / np.sqrt(rank)
    q = rng.standard_normal((heads, size + rotary))
    cache = normal(rng, context, rank + rotary)
    latent, r = cache[:, :rank].astype(np.float64), cache[:, rank:]
    absorbed = np.einsum("hd,hdr->hr", q[:, :size], w_k)
    absorbed = np.concatenate([absorbed, q[:, size:]], axis=1).astype(np.float32)
    scale = (size + rotary) ** -0.5
    call = call_of(mla_decode, of((heads, rank)), tile=16, scale=scale)
    got = np.asarray(call(absorbed, cache))
    for h in range(heads):
        k = np.concatenate([latent @ w_k[h].T, r], axis=1)
        v = np.pad(latent @ w_v[h].T, ((0, 0), (0, rotary)))
        want = attention.attention_reference(q[h : h + 1], k, v)[0, :size]
        np.testing.assert_allclose(w_v[h] @ got[h], want, atol=2e-6)
