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
        one = partial(tiled, tile=c.value)
        assert c.peak_scratch_bytes == call(one).record(X).peak_scratch
        assert c.peak_scratch_bytes == 16 * c.value + 32 + 16
        assert not c.reason
        if c.fits(budget):
            assert call(one, budget).record(X).peak_scratch == c.peak_scratch_bytes
        else:
            with pytest.raises(kb.ScratchOverflowError):
                call(one, budget).record(X)
    assert [c.fits(budget) for c in rows] == [True] * 5 + [False]
    assert [c.value for c in rows if c.current] == [16]
    largest = found.largest_fitting("tile")
    assert largest is not None and largest.value == 32
    assert found.largest_fitting("nothing") is None
    shown = found.to_dict()["candidates"]
    # 560 of 560 bytes is full.
    verdicts = ["fits"] * 4 + ["tight", "does not fit"]
    assert [c["verdict"] for c in shown if c["option"] == "tile"] == verdicts
    marked = [c for c in shown if c["largest_fitting"]]
    assert [(c["option"], c["value"]) for c in marked] == [("tile", 32), ("block", 32)]
    marked = [c for c in str(found).splitlines() if "the largest that does" in c]
    assert [row.split()[:2] for row in marked] == [["32", "560"], ["32", "400"]]


def test_a_size_that_the_kernel_refuses_is_a_row_with_its_words() -> None:
    _, found = vary(tiled)
    rows = {(c.option, c.value): c for c in found.candidates}
    assert rows["block", 64].reason == "refused: block is below 64"
    assert rows["tile", 64].fits(MIB)
    assert not rows["block", 64].fits(MIB)
    assert rows["block", 64].peak_scratch_bytes is None
    shown = {(c["option"], c["value"]): c for c in found.to_dict()["candidates"]}
    assert shown["block", 64]["verdict"] == "refused"
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
    budget = 16 + 32 + 16
    _, found = vary(partial(tiled, tile=64), budget)
    rows = [c for c in found.candidates if c.option == "tile"]
    assert [(c.value, c.fits(budget)) for c in rows] == [
        (1, True), (2, False), (4, False), (8, False), (16, False), (32, False),
        (64, False),
    ]  # fmt: skip
    assert [c.peak_scratch_bytes for c in rows] == [16 * c.value + 48 for c in rows]
    assert rows[-1].current and not found.fits
    largest = found.largest_fitting("tile")
    assert largest is not None and largest.value == 1


def test_which_options_are_varied() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, depth: int = 2, flag: bool = True) -> None:
        tl.zeros((depth, 4))
        tl.store(o, tl.full((16,), True, "bool"))

    _, found = vary(tiled, vary=["block"])
    assert {c.option for c in found.candidates} == {"block"}
    assert vary(tiled, vary="block")[1].candidates == found.candidates
    assert vary(tiled, vary=[])[1].candidates == ()
    assert vary(kernel)[1].candidates == ()
    _, found = vary(kernel, vary=["depth"])
    assert {c.value: c.peak_scratch_bytes for c in found.candidates}[8] == 144
    for name in ("nothing", "flag"):
        with pytest.raises(kb.KernelError, match=f"kernel has .*'{name}'.*depth"):
            vary(kernel, vary=[name])


@pytest.mark.parametrize("current", [0, -3])
def test_options_of_zero_and_below_are_no_sizes(current: int) -> None:
    """They are not varied by themselves, and refused where they are named."""

    def kernel(tl: Any, x: Any, o: Any, *, tile: int, block: int = 8) -> None:
        tl.zeros((block,))
        tl.store(o, tl.full((16,), tile < 1, "bool"))

    varied = partial(kernel, tile=current)
    assert {c.option for c in vary(varied)[1].candidates} == {"block"}
    for names in ("tile", ["tile"], ["block", "tile"]):
        with pytest.raises(kb.ShapeError, match=f"tile = {current} .*>= 1"):
            vary(varied, vary=names)


def test_each_value_is_tried_once() -> None:
    """Up to the first that does not fit, and not above the most."""
    for most, values in ((64, [1, 2, 4, 8, 16]), (6, [1, 2, 4])):
        tried: list[int] = []

        def peak_of(value: int, tried: list[int] = tried) -> int | str:
            tried.append(value)
            return 16 * value

        rows = sizes.candidates("tile", 4, most, 200, peak_of)
        assert [row.value for row in rows] == values == sorted(tried)
        assert [row.value for row in rows if row.current] == [4]
        assert [row.fits(200) for row in rows] == [value < 16 for value in values]
