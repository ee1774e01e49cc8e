"""The plan of small kernels by hand: buffers, scopes, verdict, and as data."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue, data_phase, plan
from kbjax.plan import Plan
from tests import footprints
from tests.footprints import MIB, OUT, call, calling, name_of

X = jax.ShapeDtypeStruct((64, 4), "float32")  # 1,024 bytes


def held(found: Plan) -> list[tuple[str, str, int, int, str]]:
    """The buffers as (op, tile, count, bytes, name of the scope) that add up to the
    peak."""
    assert sum(b.nbytes for b in found.buffers) == found.peak_scratch_bytes
    return [(b.op, b.tile, b.count, b.nbytes, name_of(b.scope)) for b in found.buffers]


def used(found: Plan) -> dict[str, tuple[int | None, int, int, int | None]]:
    """Scope -> (entered, high water, live at exit, allocated), without the store's."""
    return {
        s.scope.name: (
            s.entered,
            s.high_water_bytes,
            s.live_at_exit_bytes,
            s.allocated_bytes,
        )
        for s in found.scopes
        if s.scope.name != "io"
    }


# --- buffers and scopes --------------------------------------------------------------


def test_a_straight_line() -> None:
    def work(tl: Any) -> None:
        a = tl.full((5,), 1.0)  # 20 B take 32
        b = tl.zeros((2, 8), "float16") + 1.0  # two slices of 32 B
        del a, b

    found = calling(work).plan()
    assert held(found) == [
        ("full", "float32[5]", 1, 32, ""),
        ("zeros", "float16[2,8]", 1, 32, ""),
        ("add", "float16[2,8]", 1, 32, ""),
        ("full", "bool[16]", 1, 16, "io"),
    ]
    assert (found.peak_scratch_bytes, found.persistent_bytes) == (112, 96)
    line = work.__code__.co_firstlineno + 1
    assert [b.site.line for b in found.buffers[:3]] == [line, line + 1, line + 1]
    assert all(b.site.file == __file__ for b in found.buffers[:3])
    assert found.buffers[0].source == "a = tl.full((5,), 1.0)  # 20 B take 32"
    assert found.peak_at.startswith("full at footprints.py:")
    assert (found.kernel, found.budget_bytes, found.overflow) == ("kernel", MIB, None)
    assert found.fits and found.candidates == ()


def test_tiles_of_one_line_are_counted_together() -> None:
    def work(tl: Any) -> None:
        for n in (4, 4, 8):
            tl.zeros((n,))

    found = calling(work).plan()
    assert held(found)[:2] == [
        ("zeros", "float32[4]", 2, 32, ""),
        ("zeros", "float32[8]", 1, 32, ""),
    ]


def test_a_scope_gives_back_what_it_took() -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        with tl.scratch_scope("work"):
            tl.full((8,), 1.0)
            tl.full((8,), 2.0)
        tl.arange(4)

    found = calling(work).plan()
    assert [row[2:] for row in held(found)] == [
        (1, 16, ""),
        (1, 32, "work"),
        (1, 32, "work"),
    ]
    assert used(found) == {"work": (1, 64, 64, 64)}
    assert (found.peak_scratch_bytes, found.persistent_bytes) == (80, 32)
    (scope, _) = found.scopes
    assert scope.scope.site.line == work.__code__.co_firstlineno + 2
    assert scope.source == 'with tl.scratch_scope("work"):'
    assert found.buffers[1].scope == scope.scope
    assert str(scope.scope) == f"'work' of test_plan.py:{scope.scope.site.line}"


def test_nested_scopes() -> None:
    """The inner one is entered twice; its high water is not live at the outer exit."""

    def work(tl: Any) -> None:
        with tl.scratch_scope("outer"):
            tl.zeros((4,))  # 16
            for n in (25, 50):
                with tl.scratch_scope("inner"):
                    tl.zeros((n,))  # 112, 208
            tl.zeros((8,))  # 32

    found = calling(work).plan()
    assert used(found) == {
        "outer": (1, 224, 48, 16 + 112 + 208 + 32),
        "inner": (2, 208, 208, 112 + 208),
    }
    assert held(found) == [
        ("zeros", "float32[4]", 1, 16, "outer"),
        ("zeros", "float32[50]", 1, 208, "inner"),
    ]
    assert found.persistent_bytes == 0


def test_a_loop_that_grows() -> None:
    def work(tl: Any) -> None:
        tl.arange(4)
        for _ in tl.range(10):
            tl.zeros((4,))
            tl.full((5,), 1.0)

    found = calling(work).plan()
    assert held(found)[:3] == [
        ("arange", "int32[4]", 1, 16, ""),
        ("zeros", "float32[4]", 10, 160, ""),
        ("full", "float32[5]", 10, 320, ""),
    ]
    assert found.persistent_bytes == 496


def test_a_loop_that_grows_inside_a_scope() -> None:
    """The peak is in its last iteration, where only the first tile is in it ten
    times."""

    def work(tl: Any) -> None:
        with tl.scratch_scope("sweep"):
            for _ in tl.range(10):
                tl.zeros((4,))
                with tl.scratch_scope("tile"):
                    tl.full((8,), 1.0)

    found = calling(work).plan()
    assert held(found) == [
        ("zeros", "float32[4]", 10, 160, "sweep"),
        ("full", "float32[8]", 1, 32, "tile"),
    ]
    assert used(found) == {"sweep": (1, 192, 160, 480), "tile": (10, 32, 32, 320)}
    line = work.__code__.co_firstlineno + 2
    assert found.peak_at.endswith(f" in iteration 9 of the loop at test_plan.py:{line}")


def test_an_inner_loop_that_shrinks_while_the_outer_grows() -> None:
    """16 (i + 1) bytes stay, and 256 are taken while i < 2."""

    def work(tl: Any) -> None:
        for i in tl.range(5):
            tl.zeros((4,))
            for _ in tl.range(2 - i):
                with tl.scratch_scope("some"):
                    tl.full((64,), 1.0)

    found = calling(work).plan()
    assert held(found) == [
        ("zeros", "float32[4]", 2, 32, ""),
        ("full", "float32[64]", 1, 256, "some"),
    ]
    assert used(found) == {"some": (3, 256, 256, 768)}
    line = work.__code__.co_firstlineno + 1
    assert found.peak_at.endswith(
        f" in iteration 1 of the loop at test_plan.py:{line}, iteration 0 of the loop "
        f"at test_plan.py:{line + 2}"
    )
    assert found.persistent_bytes == 80


def test_the_peak_is_in_an_iteration_that_runs() -> None:
    """The inner loop runs first where i = 3."""

    def work(tl: Any) -> None:
        for i in tl.range(5):
            for _ in tl.range(i - 2):
                with tl.scratch_scope("some"):
                    tl.full((64,), 1.0)

    found = calling(work).plan()
    line = work.__code__.co_firstlineno + 1
    assert found.peak_at.endswith(
        f" in iteration 3 of the loop at test_plan.py:{line}, iteration 0 of the loop "
        f"at test_plan.py:{line + 1}"
    )


def test_a_scope_that_takes_nothing() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(3):
            with tl.scratch_scope("idle"):
                pass

    assert used(calling(work).plan()) == {"idle": (3, 0, 0, 0)}


def test_a_scope_that_takes_nothing_in_some_entries() -> None:
    def work(tl: Any) -> None:
        for n in range(4):
            with tl.scratch_scope("odd"):
                if n % 2:
                    tl.zeros((4,))

    assert used(calling(work).plan()) == {"odd": (4, 16, 16, 32)}


def test_an_empty_kernel() -> None:
    def kernel(tl: Any, o: Any) -> None:
        pass

    with pytest.warns(UserWarning, match="never stores"):
        found = call(kernel).plan()
    assert (found.peak_scratch_bytes, found.persistent_bytes) == (0, 0)
    assert (found.buffers, found.scopes, found.peak_at) == ((), (), "")
    assert found.fits and found.verdict == "fits"
    assert "peak scratch 0 B of 1,048,576 B (1 MiB), 0.0%: fits" in str(found)


def test_a_kernel_that_overflows_has_a_plan() -> None:
    def work(tl: Any) -> None:
        tl.zeros((4,))
        for _ in tl.range(100):
            tl.full((8,), 1.0)
            tl.arange(4)

    small, large = calling(work, 256), calling(work)
    with pytest.raises(kb.ScratchOverflowError) as caught:
        small.record()
    found = small.plan()
    assert not found.fits and found.verdict == "does not fit"
    assert found.budget_bytes == 256
    assert found.peak_scratch_bytes == large.record().peak_scratch == 16 + 4800 + 16
    assert held(found) == held(large.plan())
    assert found.scopes == large.plan().scopes
    assert isinstance(found.overflow, kb.ScratchOverflowError)
    told = str(found.overflow)
    assert told == str(caught.value)
    assert told.startswith("TLContext scratch overflow: full at test_plan.py")
    for part in (" in iteration 5 of the loop at test_plan.py:", caught.value.remedy):
        assert part in told and part in str(found)
    assert told.splitlines()[0] in str(found) and "does not fit" in str(found)
    shown = json.loads(json.dumps(found.to_dict()))["overflow"]
    assert shown == json.loads(json.dumps(caught.value.to_dict()))
    assert large.plan().overflow is None
    assert large.plan().to_dict()["overflow"] is None
    with pytest.raises(kb.ScratchOverflowError):
        small.record()  # the plan's program is not kept


def test_an_overflow_that_the_kernel_catches_leaves_no_trace() -> None:
    def work(tl: Any) -> None:
        with pytest.raises(kb.ScratchOverflowError):
            for _ in tl.range(100):
                with tl.scratch_scope("lost"):
                    tl.zeros((8,))
                tl.zeros((16_384,))

    found = calling(work).plan()
    assert (found.peak_scratch_bytes, found.persistent_bytes) == (16, 0)
    assert held(found) == [("full", "bool[16]", 1, 16, "io")]
    assert used(found) == {} and found.fits and not found.overflow


@pytest.mark.parametrize(
    ("taken", "verdict"),
    [(15_184, "fits"), (15_200, "tight"), (16_000, "tight"), (16_016, "does not fit")],
)
def test_the_verdict(taken: int, verdict: str) -> None:
    """Tight from 95% of the budget, 100% included, and not one slice more."""
    found = calling(lambda tl: tl.zeros((taken - 16,), "bool"), 16_000).plan()
    assert found.peak_scratch_bytes == taken
    assert found.utilisation == taken / 16_000
    assert found.verdict == verdict and found.fits == (verdict != "does not fit")
    assert found.headline().endswith(f"{taken / 16_000:.1%}: {verdict}")
    shown = found.to_dict()
    assert (shown["verdict"], shown["fits"]) == (verdict, found.fits)
    assert shown["utilisation"] == found.utilisation


def test_temporaries_inside_ops_take_no_scratch() -> None:
    def work(tl: Any) -> None:
        tl.softmax(tl.zeros((8, 4)))

    found = calling(work).plan()
    assert [row[0] for row in held(found)] == ["zeros", "softmax", "full"]
    assert held(found)[1] == ("softmax", "float32[8,4]", 1, 128, "")
    assert list(found.op_temporaries) == ["softmax"]
    shown = found.to_dict()
    assert shown["op_temporaries"] == found.op_temporaries
    assert shown["op_temporaries_bytes"] == 0
    assert "softmax's maxima, exponentials and sums stay in the engine" in str(found)
    assert calling(lambda tl: None).plan().op_temporaries == {}


# --- as data -------------------------------------------------------------------------


def test_to_dict() -> None:
    def work(tl: Any) -> None:
        for _ in tl.range(3):
            tl.full((1000, 4), 1.0)

    found = calling(work).plan()
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["schema_version"] == plan.SCHEMA_VERSION == 1
    keys = {"peak_scratch_bytes", "budget_bytes", "buffers", "scopes", "fits"}
    assert keys <= set(shown)
    assert shown["peak_scratch_bytes"] == 48_016 and shown["budget_bytes"] == MIB
    first, scope = shown["buffers"][0], shown["scopes"][0]
    assert (first["op"], first["count"], first["nbytes"]) == ("full", 3, 48_000)
    line = work.__code__.co_firstlineno + 2
    assert first["site"] == {"file": __file__, "line": line}
    assert first["scope"] is None
    assert (scope["entered"], scope["allocated_bytes"]) == (1, 16)
    io = found.scopes[0].scope.site
    site = {"file": footprints.__file__, "line": io.line}
    assert scope["scope"] == {"name": "io", "site": site}
    text = str(found)
    for part in (
        "48,016 B",
        "48,000",
        "float32[1000,4]",
        f"test_plan.py:{line}",
        "4.6%",
    ):
        assert part in text


def test_no_data_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million tokens are planned from shapes, and nothing is lowered."""

    def lowered(*_: Any, **__: Any) -> None:
        raise AssertionError("a plan has no data phase")

    monkeypatch.setattr(data_phase, "lower", lowered)
    peaks = set()
    for context in (1 << 14, 1 << 20):
        case = catalogue.make("gqa_decode", context=context)
        found = case.call.plan(*case.inputs.specs)
        run, keys = found.scopes
        assert (run.entered, keys.entered) == (context // 8192, context // 128)
        peaks.add(found.peak_scratch_bytes)
    assert len(peaks) == 1
    prefill = catalogue.make("flash_prefill", context=1 << 20, queries=1 << 12)
    assert prefill.call.plan(*prefill.inputs.specs).fits
    with pytest.raises(AssertionError, match="no data phase"):
        calling(lambda tl: None)()


def test_arrays_do_as_well_as_shapes() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, tile: int = 16) -> None:
        tl.store(o, tl.cast(tl.load(x[tl.ds(0, tile), 0]), "bool"))

    made = kb.kernel_call(kernel, OUT)
    assert made.plan(np.zeros((64, 4), np.float32)) == made.plan(X)
