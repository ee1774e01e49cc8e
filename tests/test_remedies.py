"""What an overflow tells its reader: following it works; its text and its JSON."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

import kbjax as kb
from tests.footprints import MIB, calling, groups, refused, steps, two_halves

# --- following it works --------------------------------------------------------------


def test_a_scope_around_the_body_works() -> None:
    """As the remedy of a rolled loop and of a Python loop says."""

    def swept(tl: Any, tiles: Any, scoped: bool) -> None:
        state = tl.zeros((64,))
        for _ in tiles(100):
            if scoped:
                with tl.scratch_scope():
                    tl.copy_to(state, tl.exp(state) + 1.0)
            else:
                tl.copy_to(state, tl.exp(state) + 1.0)

    for tiles in (lambda tl: tl.range, lambda tl: range):
        error = refused(lambda tl: swept(tl, tiles(tl), False), 1024)  # noqa: B023
        assert "inside `with tl.scratch_scope():`" in error.remedy
        program = calling(lambda tl: swept(tl, tiles(tl), True), 1024).record()  # noqa: B023
        assert program.peak_scratch == 3 * 256


@pytest.mark.parametrize("held", [0, 100, 3000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bool"])
@pytest.mark.parametrize("width", [1, 3, 100])
def test_the_fitting_shape_fits_and_a_row_more_does_not(
    held: int, dtype: str, width: int
) -> None:
    def work(tl: Any, rows: int) -> None:
        kept = tl.full((held,), True, "bool") if held else None
        tl.zeros((rows, width), dtype)
        del kept

    error = refused(lambda tl: work(tl, 5000), 4096)
    shape = error.overflow.fitting_shape
    assert shape is not None and shape[1:] == (width,)
    assert f"({dtype}[{shape[0]},{width}] fits)" in error.remedy
    assert refused(lambda tl: work_in_scope(tl, work, shape[0] + 1), 4096)
    assert calling(lambda tl: work_in_scope(tl, work, shape[0]), 4096).record()


def work_in_scope(tl: Any, work: Callable[[Any, int], None], rows: int) -> None:
    with tl.scratch_scope():
        work(tl, rows)


def test_a_fitting_shape_beside_what_is_held() -> None:
    """Where the tile alone is not too large, what is in use stays."""

    def work(tl: Any, rows: int) -> None:
        kept = tl.zeros((16,))
        tl.zeros((rows, 3))
        del kept

    assert refused(lambda tl: work(tl, 84), 1024).overflow.fitting_shape == (80, 3)
    assert calling(lambda tl: work_in_scope(tl, work, 80), 1024).record()
    assert refused(lambda tl: work_in_scope(tl, work, 81), 1024)


def test_the_fitting_shape_is_padded_as_any_tile() -> None:
    """A budget that is no multiple of 16 has a last slice that nothing fits in."""

    def work(tl: Any, rows: int) -> None:
        with tl.scratch_scope():
            tl.zeros((rows,))

    error = refused(lambda tl: work(tl, 1000), 1048)
    assert error.overflow.fitting_shape == (260,)
    assert calling(lambda tl: work(tl, 260), 1048).record()
    assert refused(lambda tl: work(tl, 261), 1048)


def raised(error: kb.ScratchOverflowError) -> int:
    """The bytes of the scratch that the remedy asks for."""
    remedy = error.remedy
    found = re.search(r"raise kernel_scratch_mb to (\d+(\.\d{1,3})?) or more", remedy)
    assert found is not None
    return int(float(found[1]) * MIB)


@pytest.mark.parametrize("extra", [4, 1000, 4096, 12_345, 1 << 19])
def test_raising_the_scratch_as_it_says_works(extra: int) -> None:
    def work(tl: Any) -> None:
        with tl.scratch_scope():
            kept = two_halves(tl)
            tl.zeros((extra,), "bool")
            del kept

    error = refused(work)
    enough = raised(error)
    assert MIB + extra <= enough <= MIB + extra + 16 + MIB // 1000 + 1
    assert calling(work, enough).record().peak_scratch == MIB + -(-extra // 16) * 16


@pytest.mark.parametrize("elements", [MIB // 4 + 1, 300_001, 1_000_003, 250 * MIB + 4])
def test_raising_the_scratch_for_one_tile_works(elements: int) -> None:
    def work(tl: Any) -> None:
        with tl.scratch_scope():
            tl.zeros((elements,))

    assert calling(work, raised(refused(work))).record()


# --- as data and as text -------------------------------------------------------------


def everything() -> kb.ScratchOverflowError:
    def work(tl: Any) -> None:
        kept = [tl.full((n,), n) for n in range(1, 12)]
        kept += [tl.zeros((1,)) for _ in range(9)]  # many, but small
        with tl.scratch_scope("sweep"):
            for _ in tl.range(100):
                tl.full((8, 3), 1.0)
        del kept

    return refused(work, 1024)


def test_the_message_lists_the_largest_lines_and_counts_the_rest() -> None:
    text = str(everything())
    o = everything().overflow
    shown = re.findall(r"^  (\d+) x ([\d,]+) B from ", text, re.MULTILINE)
    sizes = [int(n) * int(each.replace(",", "")) for n, each in shown]
    assert len(shown) == 8 and sizes == sorted(sizes, reverse=True)
    rest = re.search(r"^  (\d+) B from (\d+) more$", text, re.MULTILINE)
    assert rest is not None and int(rest[2]) == len(o.live) - 8 == 5
    assert sum(sizes) + int(rest[1]) == o.cursor_bytes
    assert f"Held, {o.cursor_bytes:,} B, by kernel line:" in text
    largest = re.search(r"^Largest live: (.*)\.$", text, re.MULTILINE)
    assert largest is not None
    assert [part.split()[0] for part in largest[1].split("; ")] == [
        "float32[9]",
        "float32[10]",
        "float32[11]",
    ]


def test_to_dict_holds_the_message_and_the_fields() -> None:
    error = everything()
    shown = json.loads(json.dumps(error.to_dict()))
    o, found = error.overflow, shown["overflow"]
    assert (shown["class"], shown["message"]) == ("ScratchOverflowError", str(error))
    assert (shown["file"], shown["remedy"]) == (__file__, error.remedy)
    for name in ("op", "requested_bytes", "aligned_bytes", "cursor_bytes", "nth"):
        assert found[name] == getattr(o, name)
    for name in ("budget_bytes", "free_bytes", "live_bytes", "dead_bytes", "kernel"):
        assert found[name] == getattr(o, name)
    assert found["live_set_fits"] is o.live_set_fits
    assert found["shape"] == [8, 3] and found["dtype"] == "float32"
    (loop,), (scope,) = found["loops"], found["scopes"]
    assert (loop["iteration"], loop["growth_bytes"]) == steps(o)[0]
    assert (
        loop["site"]["file"] == __file__ and shown["line"] == loop["site"]["line"] + 1
    )
    site = {"file": __file__, "line": loop["site"]["line"] - 1}
    assert scope == {
        "scope": {"name": "sweep", "site": site},
        "held_bytes": o.scopes[0].held_bytes,
    }
    keys = ("op", "tile", "count", "nbytes", "usable")
    want = [row[:5] for row in groups(o)]
    assert [tuple(group[key] for key in keys) for group in found["live"]] == want


def test_it_pickles() -> None:
    error = everything()
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == str(error) and back.overflow == error.overflow
    assert back.to_dict() == error.to_dict()
