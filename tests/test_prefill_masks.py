"""Prefill with what models add to attention: sliding windows, sinks, soft caps, ALiBi;
against float64, closed forms, PyTorch and JAX, and the bytes that a window saves."""

from __future__ import annotations

import functools
import itertools
import math
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels import _attention as attention
from kbjax.kernels._inputs import with_inputs
from kbjax.kernels.flash_prefill import alibi_slopes, flash_prefill
from tests.attention_data import counting, zeros
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.plain_attention import NONE, after, error_bound, mask_of, plain


@functools.cache  # tests share what a call has compiled
def kernel_of(
    shape: tuple[int, ...], dtype: Any, given: tuple[str, ...], **options: Any
) -> kb.KernelCall:
    kernel = partial(with_inputs(flash_prefill, *given), **options)
    return kb.kernel_call(kernel, jax.ShapeDtypeStruct(shape, dtype))


def prefill(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    sinks: Any = None,
    slopes: Any = None,
    **options: Any,
) -> np.ndarray:
    """q: (G, M, D), k and v: (N, D), sinks and slopes: (G,)."""
    inputs = {"sinks": sinks, "slopes": slopes}
    given = {n: np.asarray(x, np.float32) for n, x in inputs.items() if x is not None}
    call = kernel_of(q.shape, q.dtype, tuple(given), **options)
    return np.asarray(call(q, k, v, *given.values()))


def normal(rng: np.random.Generator, dtype: Any, *shapes: tuple[int, ...]) -> Any:
    return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


# --- against float64 -----------------------------------------------------------------

DIMS = (64, 80, 96, 128, 256)
DTYPES = (np.dtype("float32"), np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))


# Over all: each dtype, and each input and option given and not; a head size of 64 is in
# `test_kernels`.
@pytest.mark.parametrize("seed", range(1, 5))
def test_the_error_is_that_of_plain_attention(seed: int) -> None:
    """At most twice the error of attention that rounds each step to the same dtype, as
    in FlashAttention's tests, and two roundings of 0.3 more."""
    rng = np.random.default_rng(seed)
    dim, dtype = DIMS[seed % 5], DTYPES[seed % 3]
    group, queries = int(rng.choice([1, 2, 4])), int(rng.choice([1, 5, 33, 64, 100]))
    keys = int(rng.integers(1, 200))
    options: dict[str, Any] = {
        "causal": bool(seed % 4 != 1),
        "window": int(rng.choice([0, 1, 7, 20, 64])),
        "softcap": float(rng.choice([0.0, 1.0, 15.0])),
    }
    heads = {}
    if rng.random() < 0.6:
        heads["sinks"] = rng.standard_normal(group)
    if rng.random() < 0.6:
        heads["slopes"] = alibi_slopes(group, (group,))
    sizes = {
        "tile": int(rng.choice([16, 32])), "block": int(rng.choice([16, 32])),
    }  # fmt: skip
    q, k, v = normal(rng, dtype, (group, queries, dim), (keys, dim), (keys, dim))
    got = prefill(q, k, v, **heads, **options, **sizes).astype(np.float64)
    for g in range(group):
        own = {name[:-1]: np.float32(x[g]) for name, x in heads.items()}
        want = plain(q[g], k, v, **options, **own)
        same = plain(q[g], k, v, dtype, **options, **own)
        assert np.abs(got[g] - want).max() <= error_bound(same, want, dtype)


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_plain_attention(causal: bool) -> None:
    """Also in blocks of queries: 3 million scores are more than one."""
    rng = np.random.default_rng(0)
    options = {"causal": causal, "window": 90, "softcap": 2.0, "slope": 0.01}
    for queries, keys in ((70, 40), (5, 9), (1100, 3000)):
        q, k, v = normal(rng, np.float32, (queries, 4), (keys, 4), (keys, 4))
        for sink in (NONE, 1.5):
            got = attention.attention_reference(q, k, v, sink=sink, **options)
            want = plain(q, k, v, sink=sink, **options)
            np.testing.assert_allclose(got, want, atol=1e-12)


COMBINED = {
    **catalogue.kernel_module("flash_prefill").SMALL, "context": 50, "queries": 24,
    "tile": 8, "block": 8, "window": 13, "softcap": 1.5, "sinks": True, "alibi": True,
    "buffers": 1,
}  # fmt: skip


def test_everything_together_exact_is_live() -> None:
    """Two PEs, each with its own sinks and slopes: outputs against float64, and the
    bits of outputs and memory."""
    case = catalogue.make("flash_prefill", **COMBINED)
    live = case.call.run(*case.arrays)
    assert case.error_of(live.outputs) <= case.tolerance
    exact = case.call.run(*case.arrays, fidelity="exact")
    assert_same_bits(np.asarray(live.outputs), np.asarray(exact.outputs))
    assert_same_tcm(case.call.record(*case.arrays), live.tcm.memory, exact.tcm.memory)


# --- closed forms --------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_counts_the_token_itself(causal: bool) -> None:
    """W = 6: five before and itself, and five after where it is not causal."""
    v = counting(40, 8)
    got = prefill(
        zeros(1, 40, 8), zeros(40, 8), v, window=6, causal=causal, tile=8, block=8
    )
    last = [r if causal else min(r + 5, 39) for r in range(40)]
    want = [(max(0, r - 5) + last[r]) / 2 for r in range(40)]
    np.testing.assert_allclose(got[0, :, 0], want, rtol=3e-7)


def test_a_window_of_a_tile() -> None:
    """With tiles that are loaded ahead."""
    got = prefill(
        zeros(1, 130, 1), zeros(130, 1), counting(130), window=64, tile=64, block=64,
        buffers=2,
    )[0, :, 0]  # fmt: skip
    want = [(max(0, r - 63) + r) / 2 for r in range(130)]
    np.testing.assert_allclose(got, want, rtol=5e-7)
    assert [want[r] for r in (63, 64, 129)] == [31.5, 32.5, 97.5]


@pytest.mark.parametrize(
    ("causal", "want"), [(True, [0, 0, 0, 3, 5]), (False, [0, 0, 3, 5, 5])]
)
def test_rows_that_see_nothing_are_zero(causal: bool, want: list[float]) -> None:
    """More queries than keys, with a window of 2; the sinks of -inf are none."""
    q, k = zeros(2, 5, 1), zeros(2, 1)
    v = np.array([[3], [7]], np.float32)
    got = prefill(
        q, k, v, sinks=[NONE, 0], window=2, causal=causal, tile=2, block=2
    )  # fmt: skip
    np.testing.assert_allclose(got[0, :, 0], want, rtol=3e-7)
    # The second head's sink is one more key of score 0 and value 0.
    seen = mask_of(5, 2, causal, 2).sum(axis=1)
    np.testing.assert_allclose(got[1, :, 0], want * seen / (seen + 1), rtol=3e-7)


def test_slopes_of_heads() -> None:
    """With slopes ln 2 and ln 3 a key has half or a third of the weight of the next."""
    v = counting(45, 8)
    got = prefill(
        zeros(2, 20, 8), zeros(45, 8), v, sinks=[NONE, NONE], slopes=np.log([2, 3]),
        window=9, causal=True, tile=8, block=8,
    )  # fmt: skip
    for g, base in enumerate((2.0, 3.0)):
        weights = np.where(mask_of(20, 45, True, 9), base ** after(20, 45), 0)
        want = weights @ v / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[g], want, rtol=2e-6)


def test_a_soft_cap() -> None:
    """Scores of +-2^40, 0 and 2 under a cap of 2: weights e^2, e^-2, 1 and e^(2 tanh
    1). The cap comes before the bias and the mask, and sinks are not capped."""
    q = np.full((1, 1, 1), 2, np.float32)
    k = np.array([[2.0**39], [-(2.0**39)], [0], [1]], np.float32)
    v = np.eye(4, 1, dtype=np.float32)
    weights = np.exp(2 * np.array([1, -1, 0, math.tanh(1)]))
    run = partial(prefill, q, k, v, softcap=2.0, tile=2, block=2)
    got = run(slopes=[0], sinks=[NONE])
    np.testing.assert_allclose(got, [[[weights[0] / weights.sum()]]], rtol=2e-6)
    weights *= np.exp([-9, -6, -3, 0])
    got = run(slopes=[3], sinks=[4])
    want = weights[0] / (weights.sum() + math.exp(4))
    np.testing.assert_allclose(got, [[[want]]], rtol=2e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_keys_outside_the_window_do_not_leak(causal: bool) -> None:
    """A NaN key reaches the rows within the window of it and no others; a NaN value of
    a tile that a block skips reaches none of its rows."""
    rng = np.random.default_rng(6)
    q, k, v = normal(rng, np.float32, (1, 40, 8), (40, 8), (40, 8))
    run = partial(prefill, window=6, causal=causal, tile=8, block=8)
    clean = run(q, k, v)[0]
    dirty = k.copy()
    dirty[13] = np.nan
    got = run(q, dirty, v)[0]
    sees = mask_of(40, 40, causal, 6)[:, 13]
    assert np.isnan(got[sees]).all()
    assert_same_bits(got[~sees], clean[~sees], "key 13")
    dirty = v.copy()
    dirty[13] = np.nan
    got = run(q, k, dirty)[0]
    loads = mask_of(40, 40, causal, 6)[:, 8:16].reshape(5, 64).any(axis=1).repeat(8)
    assert not loads.all()
    assert_same_bits(got[~loads], clean[~loads], "value 13")


# --- outside witnesses ---------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_against_jax(causal: bool) -> None:
    """Its `local_window_size` is how many keys are seen before and after the own."""
    rng = np.random.default_rng(7)
    q, k, v = normal(rng, np.float32, (1, 40, 8), (40, 8), (40, 8))
    one = [x.reshape(1, 40, 1, 8) for x in (q, k, v)]
    want = jax.jit(partial(
        jax.nn.dot_product_attention, local_window_size=(5, 0 if causal else 5)
    ))(*one)  # fmt: skip
    got = prefill(q, k, v, window=6, causal=causal, tile=8, block=8)
    np.testing.assert_allclose(got[0], np.asarray(want)[0, :, 0], atol=2e-6)


def test_windows_sinks_and_slopes_against_torch() -> None:
    """A sink is a key of value 0 whose score is the mask's."""
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
    rng = np.random.default_rng(8)
    sinks, slopes = rng.standard_normal(2), alibi_slopes(2, (2,))
    q, k, v = normal(rng, np.float32, (2, 20, 8), (45, 8), (45, 8))
    bias = slopes[:, None, None] * after(20, 45)
    bias[:, ~mask_of(20, 45, True, 9)] = NONE
    every = [sinks[:, None, None].repeat(20, axis=1), bias]
    mask = torch.from_numpy(np.concatenate(every, axis=2).astype(np.float32))
    keys = [torch.from_numpy(np.concatenate([zeros(1, 8), x])) for x in (k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(q), *(x.expand(2, -1, -1) for x in keys), attn_mask=mask
    )
    got = prefill(
        q, k, v, sinks=sinks, slopes=slopes, window=9, causal=True, tile=8, block=8
    )
    np.testing.assert_allclose(got, want.numpy(), atol=2e-6)


# --- what a window saves -------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "causal", "window", "buffers"),
    [
        *itertools.product([(40, 40)], [True, False], [1, 17], [1]),
        *itertools.product([(13, 61), (30, 9)], [True, False], [5], [1]),
        ((13, 61), True, 0, 1),
        ((13, 61), True, 17, 2),
    ],
)
def test_the_dma_moves_the_tiles_that_are_seen(
    lengths: tuple[int, int], causal: bool, window: int, buffers: int
) -> None:
    """Each tile that some row of a block sees, once, and no other; the tiles of which a
    row does not see some key, and no others, are masked."""
    (queries, keys), tile, block, dim = lengths, 4, 8, 2
    sizes = {"tile": tile, "block": block, "buffers": buffers, "window": window}
    call = kernel_of((1, queries, dim), "float32", (), causal=causal, **sizes)
    shapes = [(1, queries, dim), (keys, dim), (keys, dim)]
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    columns = call.op_log(*specs).columns()
    seen = mask_of(queries, keys, causal, window)
    rows, masked = 0, 0
    for i, j in itertools.product(range(0, queries, block), range(0, keys, tile)):
        part = seen[i : i + block, j : j + tile]
        rows += part.shape[1] if part.any() else 0
        masked += part.any() and not (part.shape[1] == tile and part.all())
    moved = columns["nbytes"][columns["op_kind"] == "dma"]
    assert moved.sum() == 4 * dim * (2 * queries + 2 * rows)
    compared = columns["op_name"] == ("gt" if window else "le")
    assert compared.sum() == masked


def test_a_long_context_costs_its_window() -> None:
    """Of a million tokens, a block of queries loads those of its window."""
    sizes = {"context": 1 << 20, "queries": 128, "query_heads": 1, "kv_heads": 1}
    case = catalogue.make("flash_prefill", window=4096, **sizes)
    columns = case.call.op_log(*case.inputs.specs).columns()
    loads = columns["nbytes"][columns["op_name"] == "load"]
    assert loads.sum() == 4 * 128 * (128 + 2 * (4096 + 128))


# --- sizes and inputs ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"window": -1}, kb.ShapeError), ({"window": True}, kb.ShapeError),
        ({"window": 2.0}, kb.ShapeError), ({"softcap": -1.0}, kb.ShapeError),
        ({"softcap": math.inf}, kb.ShapeError), ({"softcap": "2"}, kb.ShapeError),
        ({"softcap": math.nan}, kb.ShapeError), ({"softcap": 1e31}, kb.ShapeError),
        ({"softcap": 1e-31}, kb.ShapeError), ({"softcap": 10**400}, kb.ShapeError),
        ({"sinks": 1}, kb.DTypeError),
        ({"alibi": "yes"}, kb.DTypeError),
    ],
)  # fmt: skip
def test_sizes_that_are_refused(option: dict[str, Any], error: type) -> None:
    """By name, with what was got."""
    ((name, value),) = option.items()
    with pytest.raises(error, match=rf"{name} is .*") as refused:
        catalogue.make("flash_prefill", context=1 << 40, **option)
    assert repr(value)[:50] in str(refused.value)


def test_sinks_of_other_heads_are_refused() -> None:
    q, k = zeros(2, 3, 4), zeros(5, 4)
    with pytest.raises(kb.ShapeError, match=r"per_head \(3,\)"):
        prefill(q, k, k, sinks=[0.0, 0.0, 0.0], tile=2, block=2)


def test_an_input_that_the_kernel_does_not_have() -> None:
    with pytest.raises(kb.KernelError, match="flash_prefill has no input 'sink'") as e:
        with_inputs(flash_prefill, "sinks", "sink")
    assert "slopes" in str(e.value)


def test_optional_inputs_keep_the_kernels_name_and_options() -> None:
    """Names in listings and messages, and tile sizes that a plan varies."""
    case = catalogue.make("flash_prefill", **{**COMBINED, "window": 0})
    program = case.call.record(*case.inputs.specs)
    assert program.name == "flash_prefill"
    names = [slot.name for slot in program.slots]
    assert names == ["q", "k", "v", "sinks", "slopes", "o"]
    varied = case.call.plan(*case.inputs.specs, vary="tile").candidates
    assert {one.option for one in varied} == {"tile"}
    assert len({one.peak_scratch_bytes for one in varied}) > 1


def test_the_slopes_are_those_of_the_paper() -> None:
    """8 heads: 1/2, 1/4 ... 1/256; over two PEs of four heads, in order."""
    want = 0.5 ** np.arange(1, 9)
    np.testing.assert_array_equal(alibi_slopes(8, (2, 4)), want.reshape(2, 4))
