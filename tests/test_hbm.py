"""Loads and stores: windows, tails, views of views, PE axes; against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from tests.helpers import assert_same_bits

FIDELITIES = ("live", "exact")


def shape(*sizes: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def numbers(*sizes: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(1, 1 + int(np.prod(sizes))).reshape(sizes).astype(dtype)


def window(x: np.ndarray, starts: Any, sizes: Any, other: Any) -> np.ndarray:
    """``sizes`` elements from ``starts``, `other` where there are none."""
    tile = np.full(sizes, other, x.dtype)
    for at in np.ndindex(*sizes):
        source = tuple(s + i for s, i in zip(starts, at, strict=True))
        if all(0 <= i < n for i, n in zip(source, x.shape, strict=True)):
            tile[at] = x[source]
    return tile


def stored(
    y: np.ndarray, starts: Any, tile: np.ndarray, guard: float = np.nan
) -> np.ndarray:
    """`y` with the part of `tile` that lies inside."""
    y = y.copy()
    for at in np.ndindex(*tile.shape):
        target = tuple(s + i for s, i in zip(starts, at, strict=True))
        if all(0 <= i < n for i, n in zip(target, y.shape, strict=True)):
            y[target] = tile[at]
    return y


def draw_windows(seed: int, count: int) -> list[tuple[list[int], list[int], bool]]:
    """Starts and sizes around a 5 x 7 tensor: inside, tails at both ends, larger than
    the tensor, wholly outside; and whether the view is transposed."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(count):
        sizes = [int(rng.integers(1, 12)), int(rng.integers(1, 12))]
        starts = [int(rng.integers(-n - 2, 10)) for n in sizes]
        drawn.append((starts, sizes, bool(rng.random() < 0.3)))
    corners = [([0, 0], [5, 7]), ([-20, 0], [3, 7]), ([5, 0], [2, 7]),
               ([40, -1], [1, 9]), ([-2, -2], [9, 11]), ([4, 6], [1, 1]),
               ([-3, 6], [3, 4])]  # fmt: skip
    return drawn + [(a, b, flip) for a, b in corners for flip in (False, True)]


def view_of(tl: Any, x: Any, starts: Any, sizes: Any, flip: bool) -> Any:
    view = x[tuple(tl.ds(s, n) for s, n in zip(starts, sizes, strict=True))]
    return view.T if flip else view


# --- windows -------------------------------------------------------------------------

WINDOWS = draw_windows(0, 10)


@pytest.mark.parametrize(
    ("dtype", "symbolic", "fidelity"),
    [
        ("float32", True, "exact"),
        ("bfloat16", True, "live"),
        ("bool", False, "live"),
    ],
)
def test_loads_of_random_windows(dtype: str, symbolic: bool, fidelity: Any) -> None:
    """Static starts, and symbolic ones (of a loop that runs once)."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = numbers(5, 7).astype(kind) if dtype != "bool" else numbers(5, 7) % 3 == 0
    other = {"bool": True}.get(dtype, -2.5)

    def kernel(tl: Any, x: Any, *outs: Any) -> None:
        for out, (starts, sizes, flip) in zip(outs, WINDOWS, strict=True):
            for i in tl.range(1) if symbolic else (0,):
                at = [s + i for s in starts]
                with tl.scratch_scope():
                    view = view_of(tl, x, at, sizes, flip)
                    tl.store(out, tl.load(view, other=other))

    wants = [window(x, s, n, other) for s, n, _ in WINDOWS]
    wants = [w.T if f else w for w, (_, _, f) in zip(wants, WINDOWS, strict=True)]
    call = kb.kernel_call(kernel, tuple(shape(*w.shape, dtype=kind) for w in wants))
    got = call.run(x, fidelity=fidelity).outputs
    for one, want, case in zip(got, wants, WINDOWS, strict=True):
        assert_same_bits(one, want, str(case))


@pytest.mark.parametrize(("symbolic", "fidelity"), [(False, "exact"), (True, "live")])
def test_stores_of_random_windows(symbolic: bool, fidelity: Any) -> None:
    """What falls outside is dropped; elements around what was written stay NaN."""
    tiles = [numbers(*(sizes[::-1] if flip else sizes)) for _, sizes, flip in WINDOWS]

    def kernel(tl: Any, *tensors: Any) -> None:
        inputs, outs = tensors[: len(WINDOWS)], tensors[len(WINDOWS) :]
        for x, out, (starts, sizes, flip) in zip(inputs, outs, WINDOWS, strict=True):
            for i in tl.range(1) if symbolic else (0,):
                at = [s + i for s in starts]
                with tl.scratch_scope():
                    view = view_of(tl, out, at, sizes, flip)
                    tl.store(view, tl.load(x), boundary_check=True)

    call = kb.kernel_call(kernel, (shape(5, 7),) * len(WINDOWS))
    got = call.run(*tiles, fidelity=fidelity).outputs
    blank = np.full((5, 7), np.nan, np.float32)
    for one, tile, (starts, sizes, flip) in zip(got, tiles, WINDOWS, strict=True):
        want = stored(blank, starts, tile.T if flip else tile)
        assert_same_bits(one, want, f"{starts} {sizes} {flip}")


@pytest.mark.parametrize("length", [1, 63, 64, 65, 100])
def test_a_last_tile_is_never_pulled_back(length: int) -> None:
    """FC-10: JAX would clamp the start of the last slice, and read rows twice."""
    x = numbers(length, 3)

    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in tl.range(tl.cdiv(x.shape[0], 64)):
            with tl.scratch_scope():
                tile = tl.load(x[tl.ds(j * 64, 64), :], other=0.0)
                tl.store(o[tl.ds(j * 64, 64), :], tile * 2.0, boundary_check=True)

    call = kb.kernel_call(kernel, shape(length, 3))
    assert_same_bits(call(x), 2 * x)
    clamped = jax.lax.dynamic_slice(np.arange(100), (64,), (64,))
    assert int(clamped[0]) == 36  # the trap is real


def test_other_is_rounded_to_the_tensors_type() -> None:
    """other=0.1 of a float16 tensor is float16(0.1); -inf, NaN and ints pass."""

    def kernel(tl: Any, x: Any, *outs: Any) -> None:
        for out, other in zip(outs, OTHERS, strict=True):
            tl.store(out, tl.load(x[tl.ds(1, 3)], other=other))

    x = numbers(2).astype(np.float16)
    call = kb.kernel_call(kernel, (shape(3, dtype="float16"),) * len(OTHERS))
    for got, other in zip(call(x), OTHERS, strict=True):
        assert_same_bits(got, np.array([2, other, other], np.float16))


OTHERS = (0.1, float("-inf"), float("nan"), 3, -0.0, np.float32(1.5))


# --- views ---------------------------------------------------------------------------

VIEWS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "int": (lambda tl, x: x[2], lambda x: x[2]),
    "negative int": (lambda tl, x: x[-1], lambda x: x[-1]),
    "ints": (lambda tl, x: x[1, -2], lambda x: x[1, -2]),
    "all ints": (lambda tl, x: x[1, 2, 3], lambda x: x[1, 2, 3]),
    "int in the middle": (lambda tl, x: x[:, 1, :], lambda x: x[:, 1, :]),
    "ellipsis": (lambda tl, x: x[..., 2], lambda x: x[..., 2]),
    "slice": (lambda tl, x: x[1:3, :, 2:], lambda x: x[1:3, :, 2:]),
    "negative slice": (lambda tl, x: x[-2:, :-1], lambda x: x[-2:, :-1]),
    "T": (lambda tl, x: x.T, lambda x: x.T),
    "T of int": (lambda tl, x: x[1].T, lambda x: x[1].T),
    "int of T": (lambda tl, x: x.T[1], lambda x: x.T[1]),
    "slice of T": (lambda tl, x: x.T[1:4, :, 2], lambda x: x.T[1:4, :, 2]),
    "T of T": (lambda tl, x: x.T[:, 1].T, lambda x: x.T[:, 1].T),
    "view of view": (
        lambda tl, x: x[tl.ds(1, 3)][tl.ds(1, 2), 1:][-1, tl.ds(0, 1)],
        lambda x: x[1:4][1:3, 1:][-1, 0:1],
    ),
    "ds": (lambda tl, x: x[tl.ds(1, 2), 0, tl.ds(3, 2)], lambda x: x[1:3, 0, 3:5]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_numpys(name: str) -> None:
    """Loads and stores of one view; the rest of the output stays NaN."""
    of_tensor, of_array = VIEWS[name]
    x = numbers(4, 3, 5)
    part = np.asarray(of_array(x))

    def kernel(tl: Any, x: Any, o: Any, whole: Any) -> None:
        tile = tl.load(of_tensor(tl, x))
        tl.store(o, tile)
        tl.store(of_tensor(tl, whole), tile)

    call = kb.kernel_call(kernel, (shape(*part.shape), shape(*x.shape)))
    got, whole = call(x)
    assert_same_bits(got, part)
    want = np.full_like(x, np.nan)
    if part.ndim:
        of_array(want)[...] = part
    else:
        want[1, 2, 3] = part
    assert_same_bits(whole, want)


@pytest.mark.parametrize(
    ("pes", "rings", "table_type", "fidelity"),
    [(1, False, "int32", "live"), (1, False, "int8", "exact"),
     (3, False, "int32", "exact"), (3, False, "int8", "live"),
     (3, True, "int32", "live"), (3, True, "int8", "exact")],
)  # fmt: skip
def test_data_says_where_a_load_starts(
    pes: int, rings: bool, table_type: str, fidelity: Any
) -> None:
    """Pages by a block table, rows by a tile of one integer; alone, one PE after
    another and in lockstep, each with every type and every fidelity. What lies outside
    is `other`, however far out it is."""
    rows, width, largest = 4, 3, np.iinfo(table_type).max
    entries = [5, 0, 6, -1, 2, largest, -largest - 1]
    table = np.stack([np.roll(entries, pe) for pe in range(pes)]).astype(table_type)
    pages = np.stack([numbers(6, rows, width) + 100 * pe for pe in range(pes)])

    def kernel(tl: Any, table: Any, pages: Any, by_page: Any, by_row: Any) -> None:
        if rings:  # in lockstep
            tl.send(tl.zeros((1,)), 1)
            tl.recv((1,), "float32", 1).wait()
        buffer = tl.circular_buffer(2, (rows, width), "float32")
        for j in tl.range(len(entries)):
            with tl.scratch_scope():
                page = tl.load(table[tl.ds(j, 1)])
                buffer.push(pages[page], other=-1.0)
                tl.store(by_row[j], tl.load(pages[2, tl.ds(page, 2)], other=7.0))
                tl.store(by_page[j], buffer.pop())

    def padded(array: np.ndarray, start: int, size: int, other: float) -> np.ndarray:
        found = np.full((size, *array.shape[1:]), other, np.float32)
        for at in range(size):
            if 0 <= start + at < len(array):
                found[at] = array[start + at]
        return found

    def wanted(table: np.ndarray, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts = table.tolist()
        return (
            np.stack([padded(pages, at, 1, -1.0)[0] for at in starts]),
            np.stack([padded(pages[2], at, 2, 7.0) for at in starts]),
        )

    n = len(entries)
    call = kb.kernel_call(
        kernel, (shape(n, rows, width), shape(n, 2, width)), num_pes=pes
    )
    want = [wanted(*both) for both in zip(table, pages, strict=True)]
    if pes == 1:
        outputs = call.run(table[0], pages[0], fidelity=fidelity).outputs
        assert_same_bits(outputs, want[0])
    else:
        outputs = call.run(table, pages, fidelity=fidelity).outputs
        stacked = [np.stack(parts) for parts in zip(*want, strict=True)]
        assert_same_bits(outputs, tuple(stacked))


def test_a_load_waits_for_the_data_that_says_where_it_starts() -> None:
    """The op_log has it after the op that made the tile, and names the tile."""

    def kernel(tl: Any, table: Any, pages: Any, o: Any) -> None:
        page = tl.load(table) + 1
        tl.store(o, tl.load(pages[page], other=0.0))

    table = jax.ShapeDtypeStruct((1,), "int32")
    log = kb.kernel_call(kernel, shape(4, 8)).op_log(table, shape(3, 4, 8))
    add, load = (row for row in log if row.op in (1, 2))
    assert (add.op_name, load.op_name) == ("add", "load")
    assert load.start_ns == add.end_ns
    assert load.src_addrs == f"pages+?;{add.dst_addr}"


def test_symbolic_int_indices() -> None:
    """x[i] and x[:, 2 - i] in a loop, also backwards."""
    x = numbers(3, 4)

    def kernel(tl: Any, x: Any, rows: Any, back: Any) -> None:
        for i in tl.range(3):
            with tl.scratch_scope():
                tl.store(rows[2 - i], tl.load(x[i]))
        for i in tl.range(3, -1, -1):
            with tl.scratch_scope():
                tl.store(back[:, 3 - i], tl.load(x[:, i]))

    rows, back = kb.kernel_call(kernel, (shape(3, 4), shape(3, 4)))(x)
    assert_same_bits(rows, x[::-1].copy())
    assert_same_bits(back, x[:, ::-1].copy())


def test_a_view_of_a_tail_fills_outside_the_view() -> None:
    """Rows 3:6 of rows 1:5: the third does not exist, although the tensor has it; as
    NumPy has it for x[1:5][2:5]."""

    def kernel(tl: Any, x: Any, o: Any, written: Any) -> None:
        tile = tl.load(x[1:5][tl.ds(2, 3)], other=-1.0)
        tl.store(o, tile)
        tl.store(written[1:5][tl.ds(2, 3)], tile, boundary_check=True)

    got, written = kb.kernel_call(kernel, (shape(3), shape(8)))(numbers(8))
    assert_same_bits(got, np.array([4, 5, -1], np.float32))
    want = np.full(8, np.nan, np.float32)
    want[3:5] = 4, 5
    assert_same_bits(written, want)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_view_of_a_tail_at_its_low_end(symbolic: bool) -> None:
    """Two before row 0 of rows 3:6, which the tensor has and the view has not."""

    def kernel(tl: Any, x: Any, o: Any, written: Any) -> None:
        for i in tl.range(1) if symbolic else (0,):
            with tl.scratch_scope():
                part = tl.ds(i - 2, 4)
                tile = tl.load(x[3:6][part], other=-1.0)
                tl.store(o, tile)
                tl.store(written[3:6][part], tile, boundary_check=True)

    got, written = kb.kernel_call(kernel, (shape(4), shape(8)))(numbers(8))
    assert_same_bits(got, np.array([-1, -1, 4, 5], np.float32))
    want = np.full(8, np.nan, np.float32)
    want[3:5] = 4, 5
    assert_same_bits(written, want)


@pytest.mark.parametrize(
    "view",
    [
        lambda tl, x: x[8:12],
        lambda tl, x: x[tl.ds(8, 4)],
        lambda tl, x: x[tl.ds(-1, 2)],
        lambda tl, x: x[10],
        lambda tl, x: x[-11],
        lambda tl, x: x[2:4][tl.ds(0, 3)],
    ],
)
def test_out_of_bounds_is_refused_not_clamped(view: Any) -> None:
    def load(tl: Any, x: Any, o: Any) -> None:
        tl.load(view(tl, x))

    def store(tl: Any, x: Any, o: Any) -> None:
        there = view(tl, o)
        tl.store(there, tl.zeros(there.shape))

    for kernel in (load, store):
        with pytest.raises(kb.OutOfBoundsError, match=r"^test_hbm.py:\d+"):
            kb.kernel_call(kernel, shape(10)).record(shape(10))


def test_out_of_bounds_names_the_iteration() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for j in tl.range(4):
            with tl.scratch_scope():
                tl.store(o, tl.load(x[tl.ds(j * 3, 3)]))

    with pytest.raises(kb.OutOfBoundsError, match="j = 3"):
        kb.kernel_call(kernel, shape(3)).record(shape(11))
    kb.kernel_call(kernel, shape(3)).record(shape(12))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_zero_length_dimensions(fidelity: Any) -> None:
    """An empty tensor fills a tile with `other`, takes a store that drops it all, and
    passes through."""

    def kernel(tl: Any, x: Any, o: Any, empty: Any) -> None:
        tile = tl.load(x[tl.ds(0, 2), :], other=5.0)
        tl.store(o, tile)
        tl.store(empty[tl.ds(0, 2), :], tile, boundary_check=True)
        for j in tl.range(x.shape[0]):
            tl.store(o[j], tl.load(x[j]))

    call = kb.kernel_call(kernel, (shape(2, 3), shape(0, 3)))
    got, empty = call.run(np.zeros((0, 3), np.float32), fidelity=fidelity).outputs
    assert_same_bits(got, np.full((2, 3), 5, np.float32))
    assert empty.shape == (0, 3)


def test_a_tile_has_no_zero_length() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.load(x)

    with pytest.raises(kb.ShapeError, match="at least one element"):
        kb.kernel_call(kernel, shape(1)).record(shape(0, 3))


# --- PEs -----------------------------------------------------------------------------


@pytest.mark.parametrize(("tail", "fidelity"), [(False, "exact"), (True, "live")])
def test_starts_that_depend_on_the_pe(tail: bool, fidelity: Any) -> None:
    """Each PE reads its own rows of one replicated array and writes to an output of
    its own, and to its rows of a shared one."""
    pes, rows = 3, 4
    x = numbers(pes * rows - (2 if tail else 0), 5)

    def kernel(tl: Any, x: Any, own: Any, shared: Any) -> None:
        pe = tl.program_id()
        tile = tl.load(x[tl.ds(pe * rows, rows), :], other=-1.0 if tail else None)
        tl.store(own, tile)
        tl.store(shared[tl.ds(pe * rows, rows), :], tile * 2.0, boundary_check=tail)

    call = kb.kernel_call(
        kernel, (shape(rows, 5), shape(*x.shape)), num_pes=pes, in_axes=None,
        out_axes=(0, None),
    )  # fmt: skip
    own, shared = call.run(x, fidelity=fidelity).outputs
    wants = [window(x, (pe * rows, 0), (rows, 5), -1.0) for pe in range(pes)]
    assert_same_bits(own, np.stack(wants))
    assert_same_bits(shared, 2 * x)


@pytest.mark.parametrize(
    ("in_axis", "out_axis", "fidelity"),
    [(0, 2, "live"), (1, 0, "exact"), (2, 1, "live"), (-1, -2, "exact")],
)  # fmt: skip
def test_pe_axes_are_those_of_vmap(in_axis: int, out_axis: int, fidelity: Any) -> None:
    x = numbers(3, 3, 3)
    y = numbers(4, 2, 3)

    def kernel(tl: Any, x: Any, y: Any, o: Any, p: Any) -> None:
        pe = tl.program_id()
        tl.store(o, tl.load(x).T * (tl.load(x) * 0.0 + pe))
        tl.store(p, tl.load(y) + 1.0)

    call = kb.kernel_call(
        kernel, (shape(3, 3), shape(4, 2)), num_pes=3, in_axes=(in_axis, 2),
        out_axes=(out_axis, 1),
    )  # fmt: skip

    def one(x: Any, y: Any, pe: Any) -> Any:
        return x.T * pe, y + 1

    pes = np.arange(3, dtype=np.float32)
    mapped = jax.vmap(one, in_axes=(in_axis, 2, 0), out_axes=(out_axis, 1))
    for got, want in zip(
        call.run(x, y, fidelity=fidelity).outputs, mapped(x, y, pes), strict=True
    ):
        assert_same_bits(got, np.asarray(want))


def test_replicated_inputs_beside_split_ones() -> None:
    x, w = numbers(2, 3, 4), numbers(3, 4)

    def kernel(tl: Any, x: Any, w: Any, o: Any) -> None:
        for i in tl.range(3):
            with tl.scratch_scope():
                tl.store(o[i], tl.load(x[i]) * tl.load(w[i]))

    call = kb.kernel_call(kernel, shape(3, 4), num_pes=2, in_axes=(0, None))
    assert_same_bits(call(x, w), x * w)
    one = kb.kernel_call(kernel, shape(3, 4), num_pes=1, in_axes=(0, None))
    assert_same_bits(one(x[0], w), x[0] * w)  # one PE: no PE axis, whatever in_axes


def test_a_pe_axis_of_the_wrong_length_is_refused() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    call = kb.kernel_call(kernel, shape(3), num_pes=2, in_axes=0)
    for wrong in (shape(3, 3), shape(3)):
        with pytest.raises(kb.ShapeError, match="one a PE"):
            call.record(wrong)


def test_a_shared_output_must_be_proven_disjoint() -> None:
    """Two PEs that may write the same element: an error, when recorded."""

    def overlapping(tl: Any, x: Any, o: Any) -> None:
        tl.store(o[tl.ds(tl.program_id() * 2, 3)], tl.load(x), boundary_check=True)

    def same(tl: Any, x: Any, o: Any) -> None:
        tl.store(o[0:3], tl.load(x))

    for kernel in (overlapping, same):
        call = kb.kernel_call(kernel, shape(7), num_pes=3, in_axes=None, out_axes=None)
        with pytest.raises(kb.HazardError, match="shared output o"):
            call.record(shape(3))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_pe_sees_its_own_stores_to_a_shared_output(fidelity: Any) -> None:
    """In a loop, two columns a PE: out[:, 2 pe + i] = x + i, read back and doubled."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe = tl.program_id()
        for i in tl.range(2):
            with tl.scratch_scope():
                column = o[:, tl.ds(pe * 2 + i, 1)]
                tl.store(column, tl.load(x) + i)
                tl.store(column, tl.load(column) * 2.0)

    x = numbers(3, 4, 1)
    call = kb.kernel_call(kernel, shape(4, 6), num_pes=3, out_axes=None)
    got = call.run(x, fidelity=fidelity).outputs
    want = np.concatenate([(x[pe] + i) * 2 for pe in range(3) for i in range(2)], 1)
    assert_same_bits(got, want)
