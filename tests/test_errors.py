"""Exceptions as objects: they travel, and say the same when they arrive."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import errors
from kbjax.site import Site

X = np.arange(8, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((8,), "float32")


@pytest.mark.parametrize(
    "error",
    [
        errors.ShapeError(
            "bad", site=Site("k.py", 3), got="3", allowed="4", remedy="Do"
        ),
        errors.ScratchOverflowError(
            errors.Overflow("load", 10, 16, 1 << 20, 1 << 20), site=Site("k.py", 3)
        ),
    ],
)
def test_errors_pickle(error: errors.KbjaxError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.site == error.site


def test_a_caught_refusal_leaves_no_trace() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        try:
            for _ in tl.range(100):
                tl.zeros((16384,))
        except kb.ScratchOverflowError:
            pass
        tl.store(o, tl.load(x))

    program = kb.kernel_call(kernel, OUT).record(X)
    assert program.peak_scratch == 32
    assert len(program.commands) == 2


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"input_output_aliases": {0: 1}}, kb.KernelError),
        ({"input_output_aliases": {0: 0, 1: 0}}, kb.KernelError),
        ({"num_pes": 2, "out_axes": 5}, kb.ShapeError),
        ({"in_axes": 0.5}, kb.ShapeError),
        ({"checks": "loud"}, kb.KernelError),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], kind: Any) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    with pytest.raises(kind):
        kb.kernel_call(kernel, OUT, **options).record(X)


def test_handles_and_tensors_of_another_run_are_refused() -> None:
    kept: list[Any] = []

    def kernel(tl: Any, x: Any, o: Any) -> None:
        kept.append(x)
        tl.store(o, tl.load(kept[0]))

    kb.kernel_call(kernel, OUT).record(X)
    with pytest.raises(kb.KernelError, match="another kernel run"):
        kb.kernel_call(kernel, OUT).record(X)


def test_arrays_of_another_byte_order_are_refused() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    with pytest.raises(kb.DTypeError, match="byte order"):
        kb.kernel_call(kernel, OUT)(X.astype(">f4"))
