"""The table of sizes in a plan: which of an option's values fit the scratch."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import pytest

import kbjax as kb
from kbjax import sizes
from kbjax.plan import Plan
from tests.footprints import MIB, call

X = jax.ShapeDtypeStruct((64, 4), "float32")  # 1,024 bytes


def tiled(tl: Any, x: Any, o: Any, *, tile: int = 16, block: int = 8) -> None:
    """(16 tile + 4 block) bytes; the tile divides 64 rows, the block is below 64."""
    t = tl.reshape(tl.load(x[tl.ds(0, tile), :]), (tile, 4))
    if block >= 64:
        raise ValueError("block is below 64\nreally")
    tl.zeros((block,))
    tl.store(o, tl.full((16,), True, "bool"))
    del t


def vary(
    kernel: Any, scratch_bytes: int = MIB, **options: Any
) -> tuple[kb.KernelCall, Plan]:
    made = call(kernel, scratch_bytes)
    return made, made.plan(X, **options)


def test_the_table_agrees_with_recording_each_size() -> None:
    """Halved three times, doubled until it is refused."""
    budget = 16 * 32 + 4 * 8 + 16
    _, found = vary(tiled, budget)
    rows = [c for c in found.candidates if c.option == "tile"]
    assert [c.value for c in rows] == [2, 4, 8, 16, 32, 64]
    for c in rows:
        one = call(partial(tiled, tile=c.value), budget)
        if c.fits:
            assert c.peak_scratch_bytes == one.record(X).peak_scratch
            assert c.peak_scratch_bytes == 16 * c.value + 32 + 16
            assert not c.reason
        else:
            assert c.peak_scratch_bytes is None
            with pytest.raises(kb.ScratchOverflowError) as caught:
                one.record(X)
            assert c.reason == f"overflows at {caught.value.site}"
    assert [c.fits for c in rows] == [True] * 5 + [False]
    assert [c.value for c in rows if c.current] == [16]
    largest = sizes.largest_fitting(found.candidates, "tile")
    assert largest is not None and largest.value == 32
    marked = [c for c in found.to_dict()["candidates"] if c["largest_fitting"]]
    assert [(c["option"], c["value"]) for c in marked] == [("tile", 32), ("block", 32)]
    marked = [c for c in str(found).splitlines() if "largest that fits" in c]
    assert [row.split()[:2] for row in marked] == [["32", "560"], ["32", "400"]]


def test_a_size_that_the_kernel_refuses_is_a_row_with_its_words() -> None:
    _, found = vary(tiled)
    rows = {(c.option, c.value): c for c in found.candidates}
    assert rows["block", 64].reason == "refused: block is below 64"
    assert rows["tile", 64].fits
    assert ("tile", 128) not in rows  # no array is as long
    assert "refused: block is below 64" in str(found)

    def reshaped(tl: Any, x: Any, o: Any, *, tile: int = 64) -> None:
        tl.reshape(tl.load(x[0:32, :]), (128 // tile, tile))
        tl.store(o, tl.full((16,), True, "bool"))

    large = jax.ShapeDtypeStruct((256, 4), "float32")
    last = call(reshaped).plan(large).candidates[-1]
    assert (last.value, last.peak_scratch_bytes) == (256, None)
    with pytest.raises(kb.ShapeError) as caught:
        call(partial(reshaped, tile=256)).record(large)
    assert last.reason == f"refused: {str(caught.value).splitlines()[0]}"


def test_a_size_that_is_refused_without_words() -> None:
    def checked(tl: Any, x: Any, o: Any, *, tile: int = 16) -> None:
        if tile % 16:
            raise AssertionError
        tl.store(o, tl.full((16,), True, "bool"))

    _, found = vary(checked)
    reasons = {c.value: c.reason for c in found.candidates}
    assert reasons[8] == "refused: AssertionError" and reasons[16] == ""


def test_a_tile_that_does_not_fit_goes_down_until_one_fits() -> None:
    _, found = vary(partial(tiled, tile=64), 16 + 32 + 16)
    rows = [c for c in found.candidates if c.option == "tile"]
    assert [(c.value, c.fits) for c in rows] == [
        (1, True), (2, False), (4, False), (8, False), (16, False), (32, False),
        (64, False),
    ]  # fmt: skip
    assert rows[-1].current and not found.fits


def test_which_options_are_varied() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, depth: int = 2, flag: bool = True) -> None:
        tl.zeros((depth, 4))
        tl.store(o, tl.full((16,), True, "bool"))

    _, found = vary(tiled, vary=["block"])
    assert {c.option for c in found.candidates} == {"block"}
    assert vary(tiled, vary=[])[1].candidates == ()
    assert vary(kernel)[1].candidates == ()
    _, found = vary(kernel, vary=["depth"])
    assert {c.value: c.peak_scratch_bytes for c in found.candidates}[8] == 144
    for name in ("nothing", "flag"):
        with pytest.raises(kb.KernelError, match=f"kernel has .*'{name}'.*depth"):
            vary(kernel, vary=[name])


def test_options_of_zero_and_below_are_tried_once() -> None:
    """Twice nothing is nothing: the search ends."""
    for current in (0, -3):
        tried: list[int] = []

        def peak_of(value: int, tried: list[int] = tried) -> int:
            tried.append(value)
            assert len(tried) < 50, "the search does not end"
            return 16

        rows = sizes.candidates("skip", current, 64, peak_of)
        assert [row.value for row in rows if row.current] == [current]
