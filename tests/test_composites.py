"""`tl.composite`: the bits, the commands and the scratch of the kernel of the same
tiling, and tiles that fit in what is left."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax.kernels import _attention as attention
from kbjax.kernels.flash_prefill import flash_prefill
from kbjax.kernels.matmul import matmul
from tests.helpers import assert_same_computation

GEMM = ((40, 100), (100, 70), (40, 70))  # a, b, out
FLASH = ((2, 40, 32), (150, 32), (150, 32), (2, 40, 32))  # q, k, v, out


def spec(shape: tuple[int, ...], dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def composite(tl: Any, *views: Any, kind: str, **options: Any) -> None:
    tl.composite(kind, *views, **options)


def commands(program: kb.Program) -> list[tuple[str, Any]]:
    """What is run, and what each command writes."""
    log = [(type(c).__name__, c.writes) for c in program.walk() if hasattr(c, "writes")]
    return [(kind, ref and (ref.shape, str(ref.dtype))) for kind, ref in log]


# --- the hand-written kernel of the same tiling --------------------------------------

TWINS = [
    ("gemm", GEMM, matmul, {}, {"tile_m": 16, "tile_n": 32, "tile_k": 8}),
    ("gemm", GEMM, matmul, {"buffers": 3}, {"tile_m": 8, "tile_n": 8, "tile_k": 32}),
    ("flash", FLASH, flash_prefill, {}, {"block": 16, "tile": 32}),
    (
        "flash",
        FLASH,
        flash_prefill,
        {"window": 50, "softcap": 20.0, "buffers": 1},
        {"block": 8, "tile": 64},
    ),
    (
        "flash",
        FLASH,
        flash_prefill,
        {"window": np.int32(50), "softcap": np.float32(20), "causal": np.True_},
        {"block": 16, "tile": 32},
    ),
]


@pytest.mark.parametrize(("kind", "shapes", "kernel", "options", "tiles"), TWINS)
def test_it_is_the_kernel_of_the_same_tiling(
    kind: str, shapes: Any, kernel: Any, options: Any, tiles: Any
) -> None:
    """What it computes, its commands and times, and its scratch."""
    *arrays, out = map(spec, shapes)
    tile = tuple(tiles.values())
    mine = kb.kernel_call(partial(composite, kind=kind, tile=tile, **options), out)
    own = kb.kernel_call(partial(kernel, **tiles, **{"buffers": 2, **options}), out)
    assert_same_computation(mine, own, *arrays)
    programs = [call.record(*arrays) for call in (mine, own)]
    assert commands(programs[0]) == commands(programs[1])
    assert programs[0].peak_scratch == programs[1].peak_scratch
    logs = [call.op_log(*arrays) for call in (mine, own)]
    assert logs[0].total_ns == logs[1].total_ns > 0


WRONG: tuple[dict[str, Any], ...] = (
    {"tile": (512, 512, 512)}, {"tile": 512, "buffers": 9}, {"tile": 0},
)  # fmt: skip


def refused_first(tl: Any, a: Any, b: Any, o: Any, *, wrong: Any = WRONG) -> None:
    for options in wrong:
        with pytest.raises(kb.KbjaxError):
            tl.composite("gemm", a, b, o, **options)
    tl.composite("gemm", a, b, o, tile=16)


def refused_in_a_loop(tl: Any, a: Any, b: Any, o: Any, *, wrong: Any = WRONG) -> None:
    for _ in tl.range(2):
        refused_first(tl, a, b, o, wrong=wrong)


@pytest.mark.parametrize("kernel", [refused_first, refused_in_a_loop])
def test_a_refused_composite_changes_nothing(kernel: Any) -> None:
    """It may be caught, and the kernel goes on as if it had never been called."""
    arrays, out = [spec((512, 512))] * 2, spec((512, 512))
    call = kb.kernel_call(kernel, out)
    own = kb.kernel_call(partial(kernel, wrong=()), out)
    found, want = call.record(*arrays), own.record(*arrays)
    assert found.peak_scratch == want.peak_scratch
    assert commands(found) == commands(want)
    assert_same_computation(call, own, *arrays)


def test_int8_sums_in_int32() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, s, np.int8) for s in GEMM[:2])
    call = kb.kernel_call(partial(composite, kind="gemm"), spec(GEMM[2], "int32"))
    np.testing.assert_array_equal(call(a, b), a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("int8", "float32"),
        ("float32", "int8"),
        ("int16", "bfloat16"),
        ("int8", "int16"),
    ],
)
def test_mixes_of_types(a: str, b: str) -> None:
    """Small integers, which every one of the types has."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 8, shape) for shape in GEMM[:2])
    call = kb.kernel_call(partial(composite, kind="gemm"), spec(GEMM[2]))
    arrays = x.astype(jnp.dtype(a)), y.astype(jnp.dtype(b))
    np.testing.assert_array_equal(call(*arrays), x @ y)


def test_no_more_buffers_than_tiles() -> None:
    """Asking for more neither costs scratch nor changes what is run."""
    for kind, shapes, tile, most in (
        ("gemm", GEMM, (16, 32, 25), 4),
        ("flash", FLASH, (16, 50), 3),
    ):
        *arrays, out = map(spec, shapes)
        peaks = []
        for buffers in (most - 1, most, most + 1, 50):
            kernel = partial(composite, kind=kind, tile=tile, buffers=buffers)
            peaks.append(kb.kernel_call(kernel, out).plan(*arrays).peak_scratch_bytes)
        assert peaks[0] < peaks[1] == peaks[2] == peaks[3]


@pytest.mark.parametrize(
    ("window", "causal"), [(150, False), (150, True), (2**31, True), (2**40, False)]
)
def test_a_window_that_holds_all(window: int, causal: bool) -> None:
    """It is none, whatever it is beyond the keys."""

    def flash(window: int) -> kb.KernelCall:
        kernel = partial(composite, kind="flash", window=window, causal=causal, tile=32)
        return kb.kernel_call(kernel, spec(FLASH[-1]))

    assert_same_computation(flash(window), flash(0), *map(spec, FLASH[:-1]))


def test_queries_without_heads() -> None:
    """(Q, D) is (1, Q, D); sinks too."""

    def kernel(tl: Any, q: Any, k: Any, v: Any, sinks: Any, o: Any) -> None:
        tl.composite("flash", q, k, v, o, causal=False, sinks=sinks)

    q, k, v = normal((24, 16), (90, 16), (90, 16))
    sink = np.asarray([0.5], np.float32)
    got = kb.kernel_call(kernel, spec((24, 16)))(q, k, v, sink)
    want = attention.attention_reference(q, k, v, sink=0.5)
    np.testing.assert_allclose(got, want, atol=2e-6)


# --- tiles that fit ------------------------------------------------------------------


@pytest.mark.parametrize("held_kib", [0, 900, 1000])
@pytest.mark.parametrize(
    ("kind", "shapes", "tiles"),
    [
        ("gemm", ((512, 512), (512, 512), (512, 512)), (128, 128, 256)),
        ("flash", ((1, 300, 128), (700, 128), (700, 128), (1, 300, 128)), (128, 128)),
    ],
)
def test_the_tiles_are_the_largest_that_fit(
    kind: str, shapes: Any, tiles: tuple[int, ...], held_kib: int
) -> None:
    """Beside what the kernel holds: with the last halving undone, they overflow."""
    *inputs, out = map(spec, shapes)

    def kernel(tl: Any, *views: Any, tile: Any = None) -> None:
        if held_kib:
            tl.zeros((held_kib, 256))
        tl.composite(kind, *views, tile=tile)

    program = kb.kernel_call(kernel, out).record(*inputs)
    halvings = [tiles]
    while max(halvings[-1]) > 1:
        at = int(np.argmax(halvings[-1]))
        halvings.append(
            tuple(s // 2 if n == at else s for n, s in enumerate(halvings[-1]))
        )
    overflow = 0
    for tile in halvings:
        try:
            of = kb.kernel_call(partial(kernel, tile=tile), out).record(*inputs)
        except kb.ScratchOverflowError:
            overflow += 1
            continue
        break  # the first that fits: what is smaller is not looked at
    assert program.peak_scratch == of.peak_scratch
    assert commands(program) == commands(of)
    if held_kib >= 900:
        assert overflow


def test_tiles_are_no_larger_than_the_axis() -> None:
    call = kb.kernel_call(partial(composite, kind="gemm"), spec((5, 9)))
    program = call.record(spec((5, 20)), spec((20, 9)))
    shapes = {shape for _, (shape, _) in filter(lambda c: c[1], commands(program))}
    assert (8, 32) in shapes and (32, 16) in shapes


def test_where_nothing_fits() -> None:
    tcm = kb.hardware.PeTcm(kernel_scratch_mb=2**-10)
    call = kb.kernel_call(
        partial(composite, kind="flash"), spec(FLASH[-1]),
        hardware=kb.Hardware(pe_tcm=tcm),
    )  # fmt: skip
    with pytest.raises(kb.ScratchOverflowError, match=r"composite flash.*test_compos"):
        call.record(*map(spec, FLASH[:-1]))


# --- beside scopes, loops and PEs ----------------------------------------------------


@pytest.mark.parametrize("fidelity", ["live", "exact"])
def test_among_scopes_loops_and_pes(fidelity: Any) -> None:
    """Two products after each other, on views that depend on the loop and the PE; what
    the kernel holds meanwhile stays, and the cursor is where it was."""

    def kernel(tl: Any, a: Any, b: Any, sums: Any, o: Any) -> None:
        total = tl.zeros((16, 16))
        for i in tl.range(3):
            with tl.scratch_scope("step"):
                rows = tl.ds(i * 16, 16)
                tl.composite("gemm", a[rows, :], b, o[rows, :], tile=8)
                tl.copy_to(total, total + tl.load(o[rows, :]))
        tl.store(sums, total)
        with tl.when(tl.program_id() == 1):
            tl.composite("gemm", a[:16, :], b, sums, tile=(16, 8, 4))

    a, b = normal((2, 48, 20), (2, 20, 16))
    call = kb.kernel_call(kernel, (spec((16, 16)), spec((48, 16))), num_pes=2)
    done = call.run(a, b, fidelity=fidelity)
    sums, products = map(np.asarray, done.outputs)
    want = a.astype(np.float64) @ b
    np.testing.assert_allclose(products, want, atol=3e-5)
    parts = want.reshape(2, 3, 16, 16)
    np.testing.assert_allclose(sums[0], parts[0].sum(0), atol=3e-5)
    np.testing.assert_allclose(sums[1], parts[1, 0], atol=3e-5)
    assert np.asarray(done.tcm.cursor).max() == 16 * 16 * 4


def test_its_scope_is_in_the_plan_and_its_tiles_in_the_log() -> None:
    call = kb.kernel_call(partial(composite, kind="gemm"), spec(GEMM[2]))
    plan = str(call.plan(*map(spec, GEMM[:2])))
    assert "'composite gemm' of test_composites.py" in plan
    log = call.op_log(*map(spec, GEMM[:2]))
    assert {"load", "dot", "store"} <= {record.op_name for record in log}
