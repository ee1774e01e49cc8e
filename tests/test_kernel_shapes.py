"""The shipped kernels refuse tensors that do not belong together, and options that make
no tiles, when they are called without their cases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import catalogue
from kbjax.kernels._shapes import agree
from kbjax.kernels.dequant_matmul import dequant_matmul
from kbjax.kernels.gqa_decode import gqa_decode
from kbjax.kernels.matmul import matmul
from kbjax.kernels.mla_decode import mla_decode
from kbjax.kernels.ring_gqa import ring_gqa, ring_gqa_decode
from kbjax.kernels.rmsnorm import rmsnorm
from kbjax.kernels.softmax import softmax

# Axes, by number of the input and its axis, that no other tensor of the kernel has.
FREE = {
    "mla_decode": {(1, 0)},  # the tokens of the cache
    "paged_decode": {(1, 0)},  # the pages of a sequence
}


@pytest.mark.parametrize("name", catalogue.kernel_names())
def test_one_axis_longer_than_it_is_elsewhere(name: str) -> None:
    small = {**catalogue.kernel_module(name).SMALL, "num_pes": 1}
    case = catalogue.make(name, **small)
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in case.arrays]
    case.call.record(*specs)
    taken = set()
    for number, spec in enumerate(specs):
        for axis, size in enumerate(spec.shape):
            shape = (*spec.shape[:axis], size + 1, *spec.shape[axis + 1 :])
            changed = jax.ShapeDtypeStruct(shape, spec.dtype)
            try:
                case.call.record(*specs[:number], changed, *specs[number + 1 :])
            except kb.ShapeError:
                continue
            taken.add((number, axis))
    assert taken == FREE.get(name, set())


def test_the_message_has_every_tensor_and_what_its_axes_are() -> None:
    q, k, v = (jax.ShapeDtypeStruct((n, 8), "float32") for n in (2, 20, 10))
    with pytest.raises(kb.ShapeError) as refused:
        kb.kernel_call(gqa_decode, q).record(q, k, v)
    assert refused.value.got == "q (2, 8), k (20, 8), v (10, 8), o (2, 8)"
    assert refused.value.allowed == "q (G, D), k (S, D), v (S, D), o (G, D)"


@pytest.mark.parametrize(
    ("shapes", "axes", "fit"),
    [
        ([(2, 3), (3, 4)], ["A B", "B C"], True),
        ([(2, 3), (4, 4)], ["A B", "B C"], False),
        ([(2, 3)], ["A A"], False),
        ([(2, 3)], ["A"], False),
        ([(2,)], ["A B"], False),
        ([(1,)], ["1"], True),
        ([(2,)], ["1"], False),
    ],
)
def test_agree(shapes: list[Any], axes: list[str], fit: bool) -> None:
    tensors = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    given = {f"x{i}": pair for i, pair in enumerate(zip(tensors, axes, strict=True))}
    if fit:
        return agree(**given)
    with pytest.raises(kb.ShapeError):
        agree(**given)


ROW, SQUARE = (2, 8), (8, 8)


@pytest.mark.parametrize(
    ("kernel", "shapes", "named"),
    [
        (partial(gqa_decode, tile=0), (ROW, SQUARE, SQUARE), "tile"),
        (partial(gqa_decode, buffers=-2), (ROW, SQUARE, SQUARE), "buffers"),
        (partial(gqa_decode, tile=2.0), (ROW, SQUARE, SQUARE), "tile"),
        (partial(matmul, buffers=0), (ROW, SQUARE), "buffers"),
        (partial(softmax, tile=0), (ROW,), "tile"),
        (partial(rmsnorm, eps=-1.0), (ROW, (8,)), "eps"),
        (partial(rmsnorm, eps=float("nan")), (ROW, (8,)), "eps"),
        (partial(ring_gqa_decode, tile=5), (ROW, SQUARE, SQUARE), "tile"),
        (partial(mla_decode, scale=float("nan")), ((2, 12), (9, 12)), "scale"),
        (partial(dequant_matmul, group=0), (ROW, SQUARE, (1, 8)), "group"),
    ],
)
def test_options_are_refused_by_name(
    kernel: Callable[..., None], shapes: tuple[Any, ...], named: str
) -> None:
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    with pytest.raises(kb.ShapeError, match=named):
        kb.kernel_call(kernel, specs[0]).record(*specs)


@pytest.mark.parametrize("options", [{"tile": 3}, {"block": 3}])
def test_a_ring_refuses_tiles_that_would_leave_keys_out(
    options: dict[str, int],
) -> None:
    q, k = (jax.ShapeDtypeStruct(s, "float32") for s in ((1, 4, 8), (8, 8)))
    kernel = partial(ring_gqa, **{"tile": 4, "block": 2, **options})
    with pytest.raises(kb.ShapeError, match=f"a multiple of {next(iter(options))}"):
        kb.kernel_call(kernel, q).record(q, k, k)


def test_scalars_of_numpy_are_numbers() -> None:
    """As Python's own, and to the bit."""
    rng = np.random.default_rng(0)
    x, weight, cache = (rng.standard_normal(s, np.float32) for s in (ROW, 8, SQUARE))
    for kernel, option, arrays in (
        (rmsnorm, {"eps": 0.25}, (x, weight)),
        (mla_decode, {"scale": 0.25, "tile": 4}, (x, cache)),
    ):
        out = jax.ShapeDtypeStruct((2, 8 if kernel is rmsnorm else 4), "float32")
        first = next(iter(option))
        numpys = option | {first: np.float32(option[first])}
        ours, theirs = (
            kb.kernel_call(partial(kernel, **given), out)(*arrays)
            for given in (option, numpys)
        )
        np.testing.assert_array_equal(ours, theirs)


def test_integers_of_numpy_are_integers() -> None:
    q, k = (jax.ShapeDtypeStruct((n, 8), "float32") for n in (2, 20))
    plain, numpys = (
        kb.kernel_call(partial(gqa_decode, tile=t, buffers=b), q).record(q, k, k)
        for t, b in ((4, 2), (np.int64(4), np.int32(2)))
    )
    assert plain.commands == numpys.commands
