"""Outputs that several PEs share: refused where, and only where, two PEs use one
element that one of them stores. The reference is `tests.plain`, which runs every
iteration of every PE.

A failing random kernel is printed; `shared_kernel(seed)` makes it again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import disjoint
from tests.helpers import assert_same_bits
from tests.plain import Log, Tensor, play
from tests.shared_programs import Shared, shared_kernel

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


# --- random kernels ------------------------------------------------------------------

DRAWN, CHUNK = 200, 100
MESSAGE = re.compile(
    r"PE (?P<a>\d+) and PE (?P<b>\d+) use the same elements \[(?P<range>.*)\] of the "
    r"shared output (?:o|y): PE (?P=a) stores them at \S+\.py:(?P<first>\d+), "
    r"PE (?P=b) (?P<verb>stores|loads) them at \S+\.py:(?P<second>\d+)"
)


@contextlib.contextmanager
def shown(drawn: Shared) -> Iterator[None]:
    """Print the kernel where the block fails."""
    try:
        yield
    except BaseException:
        print(f"{drawn.name} on {drawn.num_pes} PEs, o of {drawn.shape}")
        print(drawn.source)
        raise


def is_in_conflict(log: Log) -> bool:
    """Whether two PEs use one element of o, one of them storing."""
    stored: dict[int, set[int]] = {}
    used: dict[int, set[int]] = {}
    for use in log.uses:
        for element in use.elements if use.tensor == "o" else ():
            used.setdefault(element, set()).add(use.pe)
            if use.stores:
                stored.setdefault(element, set()).add(use.pe)
    return any(len(used[element]) > 1 for element in stored)


def assert_names_a_conflict(error: Any, log: Log, shape: tuple[int, ...]) -> None:
    """Both lines run on the PEs that the message names, and use all its elements."""
    found = MESSAGE.search(str(error))
    assert found is not None, str(error)
    assert found["a"] != found["b"], str(error)
    spans = [map(int, span.split(":")) for span in found["range"].split(", ")]
    ids = np.arange(np.prod(shape)).reshape(shape)
    elements = ids[tuple(slice(*span) for span in spans)].ravel().tolist()
    assert elements, f"no elements: {error}"

    def truly(pe: str, line: str, stores: bool) -> bool:
        return any(
            use.elements.issuperset(elements)
            for use in log.uses
            if use.tensor == "o"
            and (use.pe, use.line, use.stores) == (int(pe), int(line), stores)
        )

    assert truly(found["a"], found["first"], True), str(error)
    assert truly(found["b"], found["second"], found["verb"] == "stores"), str(error)
    assert error.site.line == int(found["second"])


@pytest.mark.parametrize(
    "seeds", [range(n, n + CHUNK) for n in range(0, DRAWN, CHUNK)], ids=str
)
def test_refused_where_two_pes_use_one_element(seeds: range) -> None:
    legal = refused = 0
    for seed in seeds:
        drawn = shared_kernel(seed)
        if drawn is None:
            continue
        log, _ = drawn.played()
        with shown(drawn):
            if is_in_conflict(log):
                with pytest.raises(kb.HazardError) as caught:
                    drawn.call().record(*drawn.arrays())
                assert_names_a_conflict(caught.value, log, drawn.shape)
                refused += 1
            else:
                drawn.call().record(*drawn.arrays())
                legal += 1
    assert legal > CHUNK // 10 and refused > CHUNK // 10


def legal_kernels(count: int) -> list[int]:
    """Seeds of long kernels that keep their PEs apart."""
    found: list[int] = []
    seed = DRAWN
    while len(found) < count:
        drawn = shared_kernel(seed)
        if drawn is not None:
            log, _ = drawn.played()
            if len(log.uses) > 16 and not is_in_conflict(log):
                found.append(seed)
        seed += 1
    return found


@pytest.mark.parametrize("seed", legal_kernels(3))
def test_what_records_equals_numpy_pe_by_pe(seed: int) -> None:
    drawn = shared_kernel(seed)
    assert drawn is not None
    call, arrays, (_, want) = drawn.call(), drawn.arrays(), drawn.played()
    with shown(drawn):
        for fidelity in ("live", "exact"):
            got = call.run(*arrays, fidelity=fidelity).outputs
            assert_same_bits(got, want, fidelity)


# --- legal ones ----------------------------------------------------------------------


def grid_stride(tl: Any, x: Any, o: Any) -> None:
    pe = tl.program_id()
    for j in tl.range(tl.cdiv(24 - 2 * pe, 2 * tl.num_programs())):
        with tl.scratch_scope():
            rows = tl.ds((j * tl.num_programs() + pe) * 2, 2)
            tl.store(o[rows, :], tl.load(x[rows, :]) + 1.0)


def one_writer(tl: Any, x: Any, o: Any) -> None:
    """A loop that PE 0 alone runs, once."""
    for _ in tl.range(1 - tl.minimum(tl.program_id(), 1)):
        with tl.scratch_scope():
            tl.store(o, tl.full((24, 6), 5.0))
            tl.store(o[2:4, :], tl.load(o[0:2, :]) + tl.load(x[0:2, :]))


def columns(tl: Any, x: Any, o: Any) -> None:
    """Rows are shared by all; a column is one PE's."""
    mine = tl.ds(tl.program_id(), 1)
    for j in tl.range(24):
        with tl.scratch_scope():
            tl.store(o[tl.ds(j, 1), mine], tl.load(x[tl.ds(j, 1), mine]) * 3.0)


def columns_of_the_transpose(tl: Any, x: Any, o: Any) -> None:
    mine = tl.ds((tl.num_programs() - 1 - tl.program_id()) * 2, 2)
    tl.store(o.T[mine, :], tl.load(x.T[mine, :]) + 4.0)


def halves(tl: Any, x: Any, o: Any) -> None:
    mine = tl.ds(tl.program_id() % 2 * 12, 12)
    tl.store(o[mine, :], tl.load(x[mine, :]) + 2.0)


def tails(tl: Any, x: Any, o: Any) -> None:
    """13 elements a PE, of which the last PE's end outside."""
    mine = tl.ds(tl.program_id() * 13, 13)
    tile = tl.load(x[mine, :], other=0.0)
    tl.store(o[mine, :], tile + 2.0, boundary_check=True)


@pytest.mark.parametrize(
    ("kernel", "num_pes"),
    [
        (grid_stride, 5),
        (one_writer, 3),
        (columns, 6),
        (columns_of_the_transpose, 3),
        (halves, 2),
        (tails, 2),
    ],
)
def test_pes_that_are_apart_record(kernel: Callable[..., None], num_pes: int) -> None:
    x = np.arange(24 * 6, dtype=np.float32).reshape(24, 6)
    want = np.full_like(x, np.nan)
    play(kernel, num_pes, lambda pe: [Tensor("x", x), Tensor("o", want)])
    call = kb.kernel_call(
        kernel,
        jax.ShapeDtypeStruct(x.shape, "float32"),
        **SHARED | {"num_pes": num_pes},
    )
    assert_same_bits(call(x), want)


@pytest.mark.parametrize("num_pes", [3, 4, 5])
def test_halves_are_for_two_pes(num_pes: int) -> None:
    call = kb.kernel_call(
        halves,
        jax.ShapeDtypeStruct((24, 6), "float32"),
        **SHARED | {"num_pes": num_pes},
    )
    with pytest.raises(kb.HazardError, match="PE 0 and PE 2"):
        call.record(np.zeros((24, 6), np.float32))


def test_the_last_element_in_the_last_iteration_counts() -> None:
    """The tiles of the last PE and the first meet in one element of one iteration."""

    def kernel(tl: Any, x: Any, o: Any, *, step: int) -> None:
        pe = tl.program_id()
        for j in tl.range(8):
            with tl.scratch_scope():
                at = pe * step + j * 2
                tl.store(o[tl.ds(at, 3)], tl.load(x[tl.ds(at, 3)]))

    x = np.zeros(100, np.float32)
    out = jax.ShapeDtypeStruct(x.shape, "float32")
    kb.kernel_call(partial(kernel, step=17), out, **SHARED).record(x)
    with pytest.raises(kb.HazardError, match=r"elements \[16:17\] of the shared"):
        kb.kernel_call(partial(kernel, step=16), out, **SHARED).record(x)


# --- many iterations -----------------------------------------------------------------


def strided(tl: Any, o: Any, *, trips: int, length: int, clash: int = 0) -> None:
    pe, pes = tl.program_id(), tl.num_programs()
    for j in tl.range(trips):
        with tl.scratch_scope():
            at = tl.minimum((j * pes + pe) * 2, length - 2 - clash)
            tl.store(o[tl.ds(at, 2)], tl.full((2,), 1.0))


def test_64_pes_of_1024_iterations_record() -> None:
    """And two elements of them all that meet are found."""
    length = 64 * 1024 * 2
    out = jax.ShapeDtypeStruct((length,), "float32")
    options: Any = {"num_pes": 64, "out_axes": None}
    kernel = partial(strided, trips=1024, length=length)
    kb.kernel_call(kernel, out, **options).record()
    with pytest.raises(kb.HazardError, match="PE 62 and PE 63") as caught:
        kb.kernel_call(partial(kernel, clash=1), out, **options).record()
    assert f"elements [{length - 3}:{length - 2}]" in str(caught.value)


def test_too_many_iterations_to_enumerate_says_so() -> None:
    trips = (1 << 24) // 2 + 1  # times 2 PEs
    out = jax.ShapeDtypeStruct((4 * trips,), "float32")
    kernel = partial(strided, trips=trips, length=4 * trips)
    with pytest.raises(
        kb.HazardError, match="too many iterations to compare"
    ) as caught:
        kb.kernel_call(kernel, out, num_pes=2, out_axes=None).record()
    assert "test_disjoint.py:" in str(caught.value) and caught.value.remedy


def test_a_grid_of_too_many_cells_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    out = jax.ShapeDtypeStruct((16 * 2 * 2,), "float32")
    kernel = partial(strided, trips=16, length=64)
    kb.kernel_call(kernel, out, num_pes=2, out_axes=None).record()
    monkeypatch.setattr(disjoint, "_MOST_CELLS", 8)
    with pytest.raises(kb.HazardError, match="too many iterations to compare"):
        kb.kernel_call(kernel, out, num_pes=2, out_axes=None).record()
