"""Every mistake is refused at its line, by its error, with a remedy."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import kbjax as kb
from tests.mistakes import (
    carried_state,
    counted_state,
    dtype,
    hazard,
    kernel,
    memory_space,
    out_of_bounds,
    scratch_overflow,
    shape,
    uninitialised_read,
    use_after_scope,
    wrong_call,
)
from tests.mistakes.catalogue import (
    BUILTIN,
    MISTAKES,
    Mistake,
    marked_lines,
    refused,
)

CLASS_OF = {
    carried_state: kb.KernelError,
    counted_state: kb.KernelError,
    dtype: kb.DTypeError,
    hazard: kb.HazardError,
    kernel: kb.KernelError,
    memory_space: kb.MemorySpaceError,
    out_of_bounds: kb.OutOfBoundsError,
    scratch_overflow: kb.ScratchOverflowError,
    shape: kb.ShapeError,
    uninitialised_read: kb.UninitializedReadError,
    use_after_scope: kb.UseAfterScopeError,
    wrong_call: kb.KernelError,
}
OVERFLOWS = [case for case in MISTAKES if case.kind is kb.ScratchOverflowError]
FOLLOW_CHECKS = (kb.UseAfterScopeError, kb.UninitializedReadError)  # as README has it
ALWAYS = [case for case in MISTAKES if case.kind not in FOLLOW_CHECKS]
LATE = [case for case in MISTAKES if case.kind is kb.UseAfterScopeError]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_a_mistake_is_refused(case: Mistake) -> None:
    error = case.refused()
    message = str(error)
    missing = [part for part in case.words if part not in message]
    assert not missing, f"no {missing} in: {message}"
    assert error.remedy or error.allowed is not None, f"no remedy in: {message}"
    for absent in ("kbjax/", "site-packages", "Traceback", "Site("):
        assert absent not in message, f"{absent!r} in: {message}"
    # An overflow lists what is held, a line each.
    assert "\n" not in message or case.kind is kb.ScratchOverflowError


@pytest.mark.parametrize("case", ALWAYS, ids=lambda case: case.name)
def test_checks_do_not_turn_it_off(case: Mistake) -> None:
    options = {**case.options, "checks": "off"}
    refused(case.kernel, case.kind, **options)


def test_a_mistake_is_small() -> None:
    for case in MISTAKES:
        code = case.kernel.__code__
        last = max(line for *_, line in code.co_lines() if line)
        assert last - code.co_firstlineno <= 12, case.name


@pytest.mark.parametrize("case", LATE, ids=lambda case: case.name)
def test_use_after_scope_names_three_lines(case: Mistake) -> None:
    message = str(case.refused())
    file = re.escape(Path(case.kernel.__code__.co_filename).name)
    (line,) = marked_lines(case.kernel)
    assert re.search(rf"made at {file}:\d+, .* {file}:\d+ ended", message), message
    assert f"used at {Path(case.kernel.__code__.co_filename).name}:{line}" in message
    assert "tl.copy_to" in message


@pytest.mark.parametrize("case", OVERFLOWS, ids=lambda case: case.name)
def test_an_overflow_says_what_is_asked_and_what_is_free(case: Mistake) -> None:
    error = case.refused()
    message, told = str(error), error.overflow
    assert message.startswith("TLContext scratch overflow: ")
    assert told.cursor_bytes + told.aligned_bytes > told.budget_bytes
    for size in (told.requested_bytes, told.cursor_bytes, told.budget_bytes):
        assert f"{size:,} B" in message
    assert f"{told.budget_bytes - told.cursor_bytes:,} B free" in message
    assert f"{told.budget_bytes / 2**20:g} MiB" in message


def test_an_overflow_names_its_kernel() -> None:
    (case,) = (c for c in OVERFLOWS if c.name.endswith("-third_tile"))
    assert "third_tile" in str(case.refused())


def test_an_overflow_shows_the_largest_live_tiles() -> None:
    (case,) = (c for c in OVERFLOWS if c.name.endswith("-third_tile"))
    message = str(case.refused())
    (line,) = marked_lines(case.kernel)
    for n in (line - 2, line - 1):
        assert f"1 x 524,288 B from scratch_overflow.py:{n}" in message
    assert "float32[256,512]" in message


def test_every_class_of_error_has_mistakes_of_its_own() -> None:
    exported = {getattr(kb, name) for name in kb.__all__ if name.endswith("Error")}
    assert exported - {kb.KbjaxError} == set(BUILTIN) == set(CLASS_OF.values())
    for kind, builtin in BUILTIN.items():
        assert issubclass(kind, builtin) and issubclass(kind, kb.KbjaxError)
    counts = Counter(case.kind for case in MISTAKES)
    assert len(MISTAKES) >= 100
    assert min(counts[kind] for kind in BUILTIN) >= 5, counts


def test_a_mistake_stands_in_the_module_of_its_class() -> None:
    classes = {module.__name__: kind for module, kind in CLASS_OF.items()}
    for case in MISTAKES:
        assert classes[case.kernel.__module__] is case.kind, case.name
    names = [case.name for case in MISTAKES]
    assert len(set(names)) == len(names)


def test_every_module_of_mistakes_is_run() -> None:
    here = Path(__file__).parent
    modules = {path.stem for path in here.glob("*.py")}
    run = {module.__name__.rpartition(".")[2] for module in CLASS_OF}
    assert modules == run | {"__init__", "catalogue", "test_mistakes"}
