"""Memory that is named twice: overlapping copies and stores, loads after stores,
aliased outputs (FC-31); what a loop carries in memory (FC-32); and the transfers of
loops of any trip count (FC-33). The reference is `tests.plain`: the kernel's own lines
on NumPy.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from tests.helpers import assert_same_bits
from tests.plain import Tensor, play
from tests.shared_programs import shared_kernel
from tests.test_disjoint import is_in_conflict
from tests.written_programs import X as ROW
from tests.written_programs import rows_kernel

FIDELITIES = ("exact", "live")
LOOPS = ("range", "static_range")


def shape(*sizes: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def iota(*sizes: int, start: int = 1, dtype: Any = np.float32) -> np.ndarray:
    return (start + np.arange(np.prod(sizes))).reshape(sizes).astype(dtype)


def never_stored(out: jax.ShapeDtypeStruct) -> np.ndarray:
    kind = np.dtype(out.dtype)
    value = {"i": np.iinfo(np.int32).min, "b": False}.get(kind.kind, np.nan)
    return np.full(out.shape, value, kind)


def assert_as_numpy(
    kernel: Callable[..., None],
    outs: Sequence[jax.ShapeDtypeStruct],
    *arrays: np.ndarray,
    aliases: dict[int, int] | None = None,
    **options: Any,
) -> None:
    """Rolled, exact and live, and unrolled are the NumPy program; all PEs share every
    array, and the caller's arrays stay as they are."""
    aliases, pes = aliases or {}, options.get("num_pes", 1)
    for name in LOOPS:
        made = partial(kernel, loop=name)
        tensors = [Tensor(f"x{n}", array.copy()) for n, array in enumerate(arrays)]
        source = {out: into for into, out in aliases.items()}
        tensors += [
            tensors[source[n]] if n in source else Tensor(f"o{n}", never_stored(out))
            for n, out in enumerate(outs)
        ]
        play(made, pes, lambda pe, tensors=tensors: tensors)
        want = tuple(tensor.array for tensor in tensors[len(arrays) :])
        call = kb.kernel_call(
            made, tuple(outs), input_output_aliases=aliases, **options
        )
        kept = [array.copy() for array in arrays]
        for fidelity in FIDELITIES if name == "range" else ("live",):
            got = call.run(*arrays, fidelity=fidelity).outputs
            assert_same_bits(got, want, f"{name} {fidelity}")
        assert_same_bits(list(arrays), kept, "the caller's arrays")


# --- copies of overlapping rows ------------------------------------------------------

SLIDES: dict[str, tuple[int, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "down": (5, lambda i: i + 1, lambda i: i),
    "up": (5, lambda i: i, lambda i: i + 2),
    "either way": (4, lambda i: i, lambda i: 3 - i),
    "in place": (4, lambda i: i, lambda i: i),
    "by divisions": (6, lambda i: i % 3 * 2, lambda i: 4 - i // 2),
}


def slide(tl: Any, x: Any, o: Any, *, loop: str, at: str, rows: int = 12) -> None:
    """Rows of one tile over others of it, three times, with what is there by then."""
    size, to, of = SLIDES[at]
    tile = tl.load(x)
    for i in getattr(tl, loop)(3):
        tl.copy_to(tile[tl.ds(to(i), size)], tile[tl.ds(of(i), size)])
    tl.store(o, tile)


@pytest.mark.parametrize("at", SLIDES)
def test_a_copy_of_overlapping_rows_is_memmove(at: str) -> None:
    assert_as_numpy(partial(slide, at=at), [shape(12, 2)], iota(12, 2))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "bool"], ids=str)
def test_memmove_of_every_element_size(dtype: Any) -> None:
    """All at once: down, up and in place at symbolic rows, and static ones. Those above
    have 4 bytes."""

    def kernel(tl: Any, x: Any, o: Any, *, loop: str) -> None:
        tile = tl.load(x)
        for i in getattr(tl, loop)(3):
            tl.copy_to(tile[tl.ds(i + 1, 5)], tile[tl.ds(i, 5)])
            tl.copy_to(tile[tl.ds(2 - i, 4)], tile[tl.ds(4, 4)])
        tl.copy_to(tile[1:12], tile[0:11])
        tl.copy_to(tile[0:7], tile[3:10])
        tl.copy_to(tile[2:5], tile[2:5])
        tl.store(o, tile)

    values = np.random.default_rng(0).integers(0, 2, (12, 3))
    x = values.astype(dtype) if dtype == "bool" else iota(12, 3, dtype=dtype)
    assert_as_numpy(kernel, [shape(12, 3, dtype=dtype)], x)


def test_rows_computed_from_rows_that_they_overwrite() -> None:
    """Two copies are enough: reads must not be fused with writes in place."""

    def kernel(tl: Any, x: Any, o: Any, p: Any, *, loop: str) -> None:
        tile, sums = tl.load(x), tl.load(x)
        tl.copy_to(tile[1:6], tile[0:5])
        tl.copy_to(tile[2:7], tile[1:6])
        for i in getattr(tl, loop)(1):
            tl.copy_to(sums[1:6], sums[0:5] + (i + 1))
            tl.copy_to(sums[2:7], sums[1:6] * 2.0)
        tl.store(o, tile)
        tl.store(p, sums)

    assert_as_numpy(kernel, [shape(12, 2), shape(12, 2)], iota(12, 2))


def test_a_copy_outlives_what_it_was_copied_from_and_to() -> None:
    """A destination that ends before its source; a source that ends before its
    destination; a chain of both through the scratch of one scope."""

    def kernel(tl: Any, x: Any, o: Any, p: Any, *, loop: str) -> None:
        source, kept = tl.load(x), tl.zeros((8,))
        for i in getattr(tl, loop)(3):
            with tl.scratch_scope():
                short = tl.empty((8,))
                tl.copy_to(short, source)
                with tl.scratch_scope():
                    inner = short + (i + 1)
                    tl.copy_to(short, inner)
                tl.copy_to(kept, short)
            tl.copy_to(source, source + 10.0)
        tl.store(o, source)
        tl.store(p, kept)

    assert_as_numpy(kernel, [shape(8), shape(8)], iota(8))


@pytest.mark.parametrize("which", ["tile", "view", "loop"])
def test_a_destination_that_is_dead_already_is_refused(which: str) -> None:
    """By the death of its scope or its iteration, also where the bytes are free."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        source = tl.load(x)
        if which == "loop":
            for _ in tl.range(2):
                dead = tl.zeros((8,))
        else:
            with tl.scratch_scope():
                dead = tl.zeros((8,))
                dead = dead[tl.ds(0, 8)] if which == "view" else dead
        tl.copy_to(dead, source)
        tl.store(o, source)

    line = inspect.getsourcelines(kernel)[1] + 9
    with pytest.raises(kb.UseAfterScopeError, match=rf"^test_aliasing\.py:{line}: "):
        kb.kernel_call(kernel, shape(8)).record(shape(8))


# --- stores and loads in program order (FC-31) ---------------------------------------


def full_row_then_suffix(tl: Any, x: Any, o: Any, p: Any, *, loop: str) -> None:
    """1 to [0:16], then 2 to [8:16]; the other way round; and with tails."""
    for i in getattr(tl, loop)(2):
        with tl.scratch_scope():
            tile = tl.full((16,), i + 1)
            tl.store(o[tl.ds(i * 8, 16)], tile, boundary_check=True)
            tl.store(p[tl.ds(8 - i * 12, 16)], tile, boundary_check=True)


def partly_overlapping(tl: Any, x: Any, o: Any, p: Any, *, loop: str) -> None:
    """Each store covers half of the one before, down and up, and past both ends."""
    for i in getattr(tl, loop)(6):
        with tl.scratch_scope():
            tile = tl.load(x[0:4]) + (i + 1) * 100
            tl.store(o[tl.ds(i * 2, 4)], tile)
            tl.store(p[tl.ds(14 - i * 3, 4)], tile, boundary_check=True)


def load_store_load(tl: Any, x: Any, o: Any, p: Any, *, loop: str) -> None:
    """A load, a store of it + 1 to the same rows, and a load again; four times."""
    tl.store(o, tl.load(x))
    for i in getattr(tl, loop)(4):
        with tl.scratch_scope():
            before = tl.load(o[tl.ds(i, 8)])
            tl.store(o[tl.ds(i, 8)], before + 1.0)
            after = tl.load(o[tl.ds(i + 1, 8)])
            tl.store(p[tl.ds(i, 8)], after + before)


def through_the_tail(tl: Any, x: Any, o: Any, p: Any, *, loop: str) -> None:
    """What a tail left out is the fill when it is loaded again."""
    for i in getattr(tl, loop)(3):
        with tl.scratch_scope():
            tl.store(o[tl.ds(i * 6, 6)], tl.load(x[0:6]) + i, boundary_check=True)
            tail = tl.load(o[tl.ds(i * 6 + 1, 6)], other=-7.0)
            tl.store(p[tl.ds(i * 5, 6)], tail)


@pytest.mark.parametrize(
    "kernel",
    [full_row_then_suffix, partly_overlapping, load_store_load, through_the_tail],
    ids=lambda kernel: kernel.__name__,
)
def test_stores_win_and_are_seen_in_program_order(kernel: Any) -> None:
    assert_as_numpy(kernel, [shape(16), shape(16)], iota(16))


def in_place(tl: Any, x: Any, y: Any, o: Any, p: Any, *, loop: str) -> None:
    """o is x, and p is y: stores by either name are seen by both."""
    for i in getattr(tl, loop)(4):
        with tl.scratch_scope():
            tl.store(o[tl.ds(i, 8)], tl.load(x[tl.ds(i, 8)]) + 1.0)
            tl.store(y[tl.ds(i, 8)], tl.load(o[tl.ds(i + 1, 8)]))
            tl.store(x[0:1], tl.load(p[tl.ds(i, 1)]))


def test_two_aliased_outputs_see_the_stores_of_each_other() -> None:
    x, y = iota(16), iota(16, start=100)
    outs = [shape(16), shape(16)]
    assert_as_numpy(in_place, outs, x, y, aliases={0: 0, 1: 1})
    assert_as_numpy(
        lambda tl, x, y, p, o, *, loop: in_place(tl, x, y, o, p, loop=loop),
        outs, x, y, aliases={0: 1, 1: 0},
    )  # fmt: skip


def test_the_same_array_as_input_and_output() -> None:
    """One array is passed twice and aliased once: the other keeps its values."""

    def kernel(tl: Any, x: Any, same: Any, o: Any, p: Any, *, loop: str) -> None:
        for i in getattr(tl, loop)(4):
            with tl.scratch_scope():
                tl.store(o, tl.load(x) + 1.0)
                tl.store(p[tl.ds(i * 4, 4)], tl.load(same[tl.ds(i, 4)]))

    x = iota(16)
    assert_as_numpy(kernel, [shape(16), shape(16)], x, x, aliases={0: 0})
    on_device = jax.numpy.asarray(x)
    call = kb.kernel_call(
        partial(kernel, loop="range"), (shape(16), shape(16)),
        input_output_aliases={0: 0},
    )  # fmt: skip
    for _ in range(2):
        assert_same_bits(call(on_device, on_device)[0], x + 4)
    assert_same_bits(on_device, x)


def test_two_pes_update_their_rows_of_one_array_in_place() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, loop: str) -> None:
        pe = tl.program_id()
        for i in getattr(tl, loop)(4):
            with tl.scratch_scope():
                rows = tl.ds((i * 2 + pe) * 2, 2)
                tl.store(o[rows], tl.load(x[rows]) + 1.0)
                tl.store(x[rows], tl.load(o[rows]) * 3.0)

    options: Any = {"num_pes": 2, "in_axes": None, "out_axes": None}
    assert_as_numpy(kernel, [shape(18)], iota(18), aliases={0: 0}, **options)


@pytest.mark.parametrize("loop", LOOPS)
def test_two_pes_that_store_to_the_same_rows_are_refused(loop: str) -> None:
    """The same words each time."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in getattr(tl, loop)(2):
            with tl.scratch_scope():
                tl.store(o[tl.ds(i * 2, 2)], tl.full((2,), tl.program_id() + 1))

    options: Any = {"num_pes": 2, "in_axes": None, "out_axes": None}
    said = set()
    for _ in range(3):
        with pytest.raises(kb.HazardError, match="PE 0 and PE 1") as caught:
            kb.kernel_call(kernel, shape(4), **options).record(shape(4))
        said.add(str(caught.value))
    assert len(said) == 1


# --- what a loop carries in memory (FC-32) -------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", ml_dtypes.bfloat16], ids=str)
def test_an_accumulator_keeps_its_type_where_the_body_converts(dtype: Any) -> None:
    """acc starts narrow, a float32 tile is added, and the sum is rounded each time."""

    def kernel(tl: Any, x: Any, o: Any, *, loop: str) -> None:
        acc = tl.zeros((4,), np.dtype(dtype).name)
        for i in getattr(tl, loop)(4):
            with tl.scratch_scope():
                wide = acc + tl.load(x[tl.ds(i, 4)])
                tl.copy_to(acc, wide.to(acc.dtype.name))
        tl.store(o, acc)

    x = (np.arange(8) * 10.3 + 0.7).astype(np.float32)
    want = np.zeros(4, dtype)
    for i in range(4):
        want = (want.astype(np.float32) + x[i : i + 4]).astype(dtype)
    for loop in LOOPS:
        call = kb.kernel_call(partial(kernel, loop=loop), shape(4, dtype=dtype))
        for fidelity in FIDELITIES:
            got = call.run(x, fidelity=fidelity).outputs
            assert_same_bits(got, want, f"{loop} {fidelity}")


@pytest.mark.parametrize(
    ("start", "value", "error", "words"),
    [
        ("int32", "acc + t", kb.DTypeError, ("float32", "int32", '.to("int32")')),
        ("bfloat16", "acc + t", kb.DTypeError, ("bfloat16", "float32")),
        ("float32", "acc + wide", kb.ShapeError, ("(64, 1)", "(64, 64)")),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_an_accumulator_of_another_type_is_refused_by_both(
    loop: str, start: str, value: str, error: Any, words: Any
) -> None:
    """The error has both types, its line and what to do."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        acc = tl.zeros((64, 1), start)
        for _ in getattr(tl, loop)(4):
            with tl.scratch_scope():
                t, wide = tl.load(x[:, 0:1]), tl.load(x)
                names = {"acc": acc, "t": t, "wide": wide}
                new = eval(value, names)
                tl.copy_to(acc, new)

    line = inspect.getsourcelines(kernel)[1] + 7
    with pytest.raises(error, match=rf"^test_aliasing\.py:{line}: ") as caught:
        kb.kernel_call(kernel, shape(64, 1)).record(shape(64, 64))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.remedy


# --- transfers of loops (FC-33) ------------------------------------------------------


def assert_rows_are_uses(call: kb.KernelCall, arrays: Any, log: Any) -> None:
    """The op_log has a DMA row for each load and store that ran, PE by PE and line by
    line, in order."""
    ran = [(use.pe, "store" if use.stores else "load", use.line) for use in log.uses]
    rows = [row for row in call.op_log(*arrays) if row.engine == "dma"]
    found = [(row.pe, row.op_name, row.line) for row in rows]
    assert collections.Counter(found) == collections.Counter(ran)
    for pe in {use.pe for use in log.uses}:
        assert [f for f in found if f[0] == pe] == [r for r in ran if r[0] == pe]


def test_the_op_log_has_the_transfers_of_the_trips_that_run() -> None:
    """Random nests: empty, reversed, triangular, and of a PE's own trip counts."""
    counted = 0
    for seed in range(60):
        shared, rows = shared_kernel(seed), rows_kernel(seed)
        if shared is not None:
            log, _ = shared.played()
            if not is_in_conflict(log):
                assert_rows_are_uses(shared.call(), shared.arrays(), log)
                counted += 1
        log, _ = rows.played()
        if not log.unwritten:
            assert_rows_are_uses(rows.call(), [ROW], log)
            counted += 1
    assert counted > 20
