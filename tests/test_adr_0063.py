"""The five tests that ADR-0063 requires, by its names, and the mechanics of copy_to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import tcm
from kbjax.catalogue import make
from kbjax.hardware import PeTcm
from kbjax.kernels._attention import attention_reference
from kbjax.kernels.flash_unscoped import flash_unscoped
from kbjax.kernels.gqa_decode import gqa_decode
from tests.helpers import assert_same_bits, assert_same_tcm

FIDELITIES = ("live", "exact")
ROWS, COLUMNS = 16, 32
TILE_BYTES = 4 * ROWS * COLUMNS


def shape(*sizes: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


# --- 1. recycling --------------------------------------------------------------------

PERSISTENT_BYTES = 4 * ROWS  # the running sum
# load, x * 2, its row sum, the running sum plus that.
FOOTPRINT_BYTES = 2 * TILE_BYTES + 2 * 4 * ROWS


def sweep(tl: Any, x: Any, o: Any, *, scoped: bool, rolled: bool) -> None:
    """The running row sum of 2 x, a tile of ROWS x COLUMNS a step."""
    total = tl.zeros((ROWS, 1))

    def step(j: Any) -> None:
        doubled = tl.load(x[tl.ds(j * ROWS, ROWS), :]) * 2.0
        tl.copy_to(total, total + tl.sum(doubled, axis=1, keepdims=True))

    tiles = x.shape[0] // ROWS
    for j in tl.range(tiles) if rolled else range(tiles):
        if scoped:
            with tl.scratch_scope():
                step(j)
        else:
            step(j)
    tl.store(o, total)


def peak(tiles: int, *, scoped: bool, rolled: bool) -> int:
    call = kb.kernel_call(partial(sweep, scoped=scoped, rolled=rolled), shape(ROWS, 1))
    return call.record(shape(tiles * ROWS, COLUMNS)).peak_scratch


@pytest.mark.parametrize("tiles", [1, 2, 3, 17, 128, 1024, 16384])
def test_recycling(tiles: int) -> None:
    """The peak cursor is one tile's footprint, whatever N; without scopes it grows by
    a footprint a tile, then overflows."""
    assert peak(tiles, scoped=True, rolled=True) == PERSISTENT_BYTES + FOOTPRINT_BYTES
    unscoped = PERSISTENT_BYTES + tiles * FOOTPRINT_BYTES
    if unscoped <= 1 << 20:
        assert peak(tiles, scoped=False, rolled=True) == unscoped
    else:
        with pytest.raises(kb.ScratchOverflowError):
            peak(tiles, scoped=False, rolled=True)


@pytest.mark.parametrize("tiles", [1, 2, 3, 17, 128])
def test_recycling_in_a_python_loop(tiles: int) -> None:
    """The ADR's own pattern is a Python loop: the same peaks."""
    assert peak(tiles, scoped=True, rolled=False) == PERSISTENT_BYTES + FOOTPRINT_BYTES
    assert (
        peak(tiles, scoped=False, rolled=False)
        == PERSISTENT_BYTES + tiles * FOOTPRINT_BYTES
    )


def test_recycling_reuses_the_same_addresses() -> None:
    """Every tile's allocations start at the save-point."""
    call = kb.kernel_call(partial(sweep, scoped=True, rolled=False), shape(ROWS, 1))
    program = call.record(shape(5 * ROWS, COLUMNS))
    loads = [a for a in program.allocations.values() if a.op == "load"]
    assert len(loads) == 5
    assert {a.cursor_bytes for a in loads} == {PERSISTENT_BYTES}
    assert program.exit_cursor_bytes == PERSISTENT_BYTES


# --- 2. correctness ------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (5, "bfloat16")])
def test_correctness(rows: int, dtype: str) -> None:
    """A flash sweep with scopes gives the bits that it gives without."""
    rng = np.random.default_rng(rows)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    q = rng.standard_normal((rows, 16)).astype(kind)
    k, v = (rng.standard_normal((100, 16)).astype(kind) for _ in range(2))
    outs = [
        np.asarray(
            kb.kernel_call(partial(kernel, tile=32), shape(rows, 16, dtype=kind))(
                q, k, v
            )
        )
        for kernel in (gqa_decode, flash_unscoped)
    ]
    assert_same_bits(outs[0], outs[1], "scoped against unscoped")
    want = attention_reference(q, k, v)
    np.testing.assert_allclose(
        outs[0].astype(np.float64), want, atol=2e-6 if dtype == "float32" else 2e-2
    )


# --- 3. long context -----------------------------------------------------------------


def test_long_context() -> None:
    """A context that overflows without scopes completes with them, and is right."""
    context = 16_384
    scoped = make(
        "gqa_decode", context=context, tile=64, num_pes=1, query_heads=4, kv_heads=1,
        dim=32,
    )  # fmt: skip
    unscoped = make("flash_unscoped", context=context, tile=64, queries=4, dim=32)
    with pytest.raises(
        kb.ScratchOverflowError, match=r"^TLContext scratch overflow:"
    ) as e:
        unscoped.call(*scoped.arrays)
    assert isinstance(e.value, RuntimeError)
    short = make("flash_unscoped", context=64, tile=64, queries=4, dim=32)
    needed = short.call.record(*short.arrays).peak_scratch * context // 64
    assert needed > 1 << 20
    assert scoped.call.record(*scoped.arrays).peak_scratch < 1 << 16
    assert scoped.error_of(scoped.call(*scoped.arrays)) <= scoped.tolerance


# --- 4. isolation --------------------------------------------------------------------


def running(tl: Any, x: Any, o: Any) -> None:
    """m, l, O over tiles: running maximum, sum, and sum of 0.5 x; then a scope that
    fills what was rewound with 7."""
    m = tl.full((4, 1), float("-inf"))
    l = tl.zeros((4, 1))  # noqa: E741
    acc = tl.zeros((4, 8))
    for j in tl.range(x.shape[0] // 4):
        with tl.scratch_scope():
            tile = tl.load(x[tl.ds(j * 4, 4), :])
            tl.copy_to(l, l + tl.sum(tile, axis=1, keepdims=True))
            tl.copy_to(acc, acc + tile * 0.5)
            tl.copy_to(m, tl.maximum(m, tl.max(tile, axis=1, keepdims=True)))
    with tl.scratch_scope():
        noise = tl.full((64, 8), 7.0)
        tl.store(o, noise)


@pytest.mark.parametrize(("fidelity", "base"), [("live", 0), ("exact", 4096)])
def test_isolation(fidelity: Any, base: int) -> None:
    """The running state keeps its addresses and values after the scopes' ends."""
    x = np.random.default_rng(0).integers(-50, 50, (20, 8)).astype(np.float32)
    hardware = kb.Hardware(pe_tcm=PeTcm(scratch_base=base))
    call = kb.kernel_call(running, shape(64, 8), hardware=hardware)
    program = call.record(x)
    tiles = x.reshape(5, 4, 8)
    want = [
        tiles.max((0, 2))[:, None],
        tiles.sum((0, 2))[:, None],
        (tiles * np.float32(0.5)).sum(0),
    ]
    state = call.run(x, fidelity=fidelity).tcm
    alive = [program.allocations[uid] for uid in program.live_at_exit]
    assert [a.shape for a in alive] == [(4, 1), (4, 1), (4, 8)]
    assert [a.cursor_bytes for a in alive] == [0, 16, 32]
    for made, value in zip(alive, want, strict=True):
        got = tcm.read(state, base + made.cursor_bytes, made.shape, made.dtype)
        assert_same_bits(got, value, made.op)
    assert int(state.cursor) == 32 + 128
    if fidelity == "exact":  # the rewound bytes were in fact overwritten
        noise = tcm.read(state, base + 160, (64, 8), "float32")
        assert_same_bits(noise, np.full((64, 8), 7.0, np.float32))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_isolation_of_a_flash_sweep(fidelity: Any) -> None:
    """m, l and O of the shipped sweep, in the final bytes."""
    rng = np.random.default_rng(3)
    q = rng.integers(-3, 4, (4, 16)).astype(np.float32)
    k, v = (rng.integers(-3, 4, (48, 16)).astype(np.float32) for _ in range(2))
    call = kb.kernel_call(partial(gqa_decode, tile=16), shape(4, 16))
    program = call.record(q, k, v)
    state = call.run(q, k, v, fidelity=fidelity).tcm
    s = (q @ k.T).astype(np.float64) / 4
    p = np.exp(s - s.max(1, keepdims=True))
    full, l_, acc = (a for a in program.allocations.values() if a.op in _RUNNING)
    for made, want in (
        (full, s.max(1, keepdims=True)),
        (l_, p.sum(1, keepdims=True)),
        (acc, p @ v),
    ):
        got = np.asarray(tcm.read(state, made.cursor_bytes, made.shape, made.dtype))
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    m = tcm.read(state, full.cursor_bytes, full.shape, full.dtype)
    assert_same_bits(m, s.max(1, keepdims=True).astype(np.float32), "m is exact")


_RUNNING = ("full", "zeros")


def test_a_handle_of_a_scope_cannot_be_read_after_it() -> None:
    """D2, caught when the program is recorded, with all three lines."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        with tl.scratch_scope():
            inner = tl.load(x)
        tl.store(o, inner)

    first = inspect.getsourcelines(kernel)[1]
    with pytest.raises(kb.UseAfterScopeError) as e:
        kb.kernel_call(kernel, shape(4)).record(shape(4))
    for line in (first + 1, first + 2, first + 3):
        assert f"test_adr_0063.py:{line}" in str(e.value)


# --- 5. nesting ----------------------------------------------------------------------


def recorded(kernel: Callable[..., None]) -> Any:
    with pytest.warns(UserWarning, match="never stores"):
        return kb.kernel_call(kernel, shape(1)).record()


def starts(program: Any) -> list[int]:
    return [a.cursor_bytes for a in program.allocations.values()]


def test_nesting() -> None:
    """An inner exit rewinds to the inner save-point, an outer exit further."""

    def kernel(tl: Any, o: Any) -> None:
        tl.zeros((4,))  # 0
        with tl.scratch_scope():
            tl.zeros((8,))  # 16
            with tl.scratch_scope():
                tl.zeros((16,))  # 48
                with tl.scratch_scope():
                    tl.zeros((100,))  # 112
                tl.zeros((1,))  # 112
            tl.zeros((1,))  # 48
            with tl.scratch_scope():
                tl.zeros((1,))  # 64
            tl.zeros((1,))  # 64
        tl.zeros((4,))  # 16

    program = recorded(kernel)
    assert starts(program) == [0, 16, 48, 112, 112, 48, 64, 64, 16]
    marks = [item.mark_bytes for item in program.walk() if hasattr(item, "mark_bytes")]
    assert marks == [16, 48, 112, 64]
    assert program.peak_scratch == 112 + 400
    assert program.exit_cursor_bytes == 32
    depths = [a.scope_depth for a in program.allocations.values()]
    assert depths == [0, 1, 2, 3, 2, 1, 2, 1, 0]


def test_nesting_around_a_rolled_loop() -> None:
    """An outer scope a block of queries around an inner scope a tile of keys (D4)."""

    def kernel(tl: Any, o: Any) -> None:
        for _ in tl.range(1000):
            with tl.scratch_scope():
                tl.zeros((256,))
                for _ in tl.range(1000):
                    with tl.scratch_scope():
                        tl.zeros((512,))
                tl.zeros((16,))

    program = recorded(kernel)
    assert starts(program) == [0, 1024, 1024]
    assert program.peak_scratch == 1024 + 2048
    assert program.exit_cursor_bytes == 0


def test_nesting_by_exception() -> None:
    """An exception rewinds each scope that it leaves, and no other."""

    class Mine(Exception):
        pass

    def kernel(tl: Any, o: Any) -> None:
        tl.zeros((4,))  # 0
        with tl.scratch_scope():
            tl.zeros((4,))  # 16
            try:
                with tl.scratch_scope():
                    tl.zeros((4,))  # 32
                    with tl.scratch_scope():
                        tl.zeros((4,))  # 48
                        raise Mine
            except Mine:
                tl.zeros((4,))  # 32
            with pytest.raises(kb.ShapeError):
                with tl.scratch_scope():
                    tl.zeros((4,)) + tl.zeros((3,))  # 48, 64, nothing
            tl.zeros((4,))  # 48
        tl.zeros((4,))  # 16

    program = recorded(kernel)
    assert starts(program) == [0, 16, 32, 48, 32, 48, 64, 48, 16]
    assert program.exit_cursor_bytes == 32


def test_nesting_survives_a_failed_allocation() -> None:
    """A refused allocation leaves the cursor alone, inside a scope too."""

    def kernel(tl: Any, o: Any) -> None:
        with tl.scratch_scope():
            tl.zeros((4,))
            with pytest.raises(kb.ScratchOverflowError):
                tl.zeros((1 << 20,))
            tl.zeros((4,))
        tl.zeros((4,))

    assert starts(recorded(kernel)) == [0, 16, 0]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_nesting_keeps_values(fidelity: Any) -> None:
    """What an outer scope holds survives the inner scopes that reuse bytes."""
    x = np.arange(24, dtype=np.float32).reshape(3, 8)

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(3):
            with tl.scratch_scope():
                outer = tl.load(x[i, :])
                for _ in tl.range(2):
                    with tl.scratch_scope():
                        tl.copy_to(outer, outer + (outer * 0.0 + 10.0))
                with tl.scratch_scope():
                    tl.full((8,), 99.0)
                tl.store(o[i, :], outer)

    got = kb.kernel_call(kernel, shape(3, 8)).run(x, fidelity=fidelity).outputs
    assert_same_bits(got, x + 20)


# --- D3.1: copy_to -------------------------------------------------------------------


def copies(tl: Any, x: Any, o: Any) -> None:
    held = tl.empty((4, 8))
    with tl.scratch_scope():
        tl.copy_to(held, tl.load(x))
    tl.store(o, held)


def test_copy_to_is_one_command() -> None:
    """CopyCmd(src, dst, nbytes, data_op=True); no allocation, no DMA."""
    call = kb.kernel_call(copies, shape(4, 8))
    program = call.record(shape(4, 8))
    (copy,) = (c for c in program.walk() if type(c).__name__ == "CopyCmd")
    held, loaded = program.allocations.values()
    assert (copy.src.root, copy.dst.root) == (loaded.uid, held.uid)
    assert (copy.nbytes, copy.data_op) == (128, True)
    assert len(program.allocations) == 2
    log = call.op_log(shape(4, 8))
    (row,) = (r for r in log if r.op_name == "copy")
    assert (row.op_kind, row.engine, row.nbytes) == ("math", "math", 128)
    assert [r.op_name for r in log if r.op_kind == "dma"] == ["load", "store"]
    cost = kb.Hardware().pe_math.compute_ns(4 * 8, "copy")
    assert row.end_ns - row.start_ns == pytest.approx(cost, abs=1e-6)
    assert (row.src_addrs, row.dst_addr) == ("128", "0")


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool"])
def test_copy_to_copies_bytes(dtype: str, fidelity: Any) -> None:
    """Bit for bit, NaN and both zeros too, to the destination's address."""
    x = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.0, 3.0]] * 4)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    with np.errstate(invalid="ignore"):
        x = x.astype(kind)

    def kernel(tl: Any, x: Any, o: Any) -> None:
        held = tl.empty((4, 8), dtype)
        with tl.scratch_scope():
            tl.copy_to(held, tl.load(x))
        tl.store(o, held)

    call = kb.kernel_call(kernel, shape(4, 8, dtype=kind))
    result = call.run(x, fidelity=fidelity)
    assert_same_bits(result.outputs, x)
    raw = np.asarray(result.tcm.memory)[: x.nbytes]
    assert raw.tobytes() == x.tobytes()


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_copy_to_of_overlapping_rows_is_memmove(fidelity: Any, down: bool) -> None:
    """FC-31: elements 0..7 to 1..8 of one tile, and back."""
    x = np.arange(9, dtype=np.float32)

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile = tl.load(x)
        low, high = tile[tl.ds(0, 8)], tile[tl.ds(1, 8)]
        tl.copy_to(*((high, low) if down else (low, high)))
        tl.store(o, tile)

    call = kb.kernel_call(kernel, shape(9))
    want = x.copy()
    if down:
        want[1:] = x[:8]
    else:
        want[:8] = x[1:]
    result = call.run(x, fidelity=fidelity)
    assert_same_bits(result.outputs, want)
    exact = call.run(x, fidelity="exact").tcm.memory
    assert_same_tcm(call.record(x), result.tcm.memory, exact)


@pytest.mark.parametrize(
    ("dst", "src", "error"),
    [
        ("tl.zeros((4, 1))", "tl.zeros((4,))", kb.ShapeError),
        ("tl.zeros((4,))", "tl.zeros((1,))", kb.ShapeError),
        ("tl.zeros((4,))", 'tl.zeros((4,), "float16")', kb.DTypeError),
        ("x", "tl.zeros((4,))", kb.MemorySpaceError),
        ("o", "tl.zeros((4,))", kb.MemorySpaceError),
        ("tl.zeros((4,))", "x", kb.MemorySpaceError),
        ("tl.zeros((4,))", "x[tl.ds(0, 4)]", kb.MemorySpaceError),
        ("tl.zeros((4,))", "1.0", kb.DTypeError),
        ("tl.zeros((4,))", "np.zeros(4, np.float32)", kb.MemorySpaceError),
        ("tl.zeros((4,))", "tl.empty((4,))", kb.UninitializedReadError),
    ],
)
def test_copy_to_refuses_at_its_line(dst: str, src: str, error: Any) -> None:
    """Author errors surface in phase 1, at the kernel's line."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        names = {"tl": tl, "x": x, "o": o, "np": np}
        pair = eval(dst, names), eval(src, names)
        tl.copy_to(*pair)

    line = inspect.getsourcelines(kernel)[1] + 3
    with pytest.raises(error, match=f"^test_adr_0063.py:{line}: "):
        kb.kernel_call(kernel, shape(4)).record(shape(4))
