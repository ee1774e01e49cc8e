"""Every row of the op table, on every dtype: recorded, timed, or refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbjax as kb
from kbjax import dtypes, ops, signatures

SHAPE = (4, 6)
ROWS = [row for row in ops.TABLE.values() if row.group != "create"]


def applied(tl: Any, row: ops.Op, tile: Any) -> Any:
    """The op on copies of one tile."""
    if row.name == "dot":
        return tl.dot(tile, tl.trans(tile))
    if row.name == "cast":
        return tl.cast(tile, "float32" if tile.dtype.name != "float32" else "int8")
    if row.name == "broadcast_to":
        return tl.broadcast_to(tile, (2, *SHAPE))
    if row.name == "softmax":
        return tl.softmax(tile, axis=0)
    if row.name == "where":
        return tl.where(tile == tile, tile, tile)
    if row.group == "reduction":
        return getattr(tl, row.name)(tile, axis=1, keepdims=True)
    return tl.apply(row.name, *(tile for _ in row.parameters))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_recorded_and_timed(row: ops.Op) -> None:
    """With as many bytes as its dtype says, on the engine of its row, in the time of
    the hardware's table; or refused, saying what is taken."""
    for name, dtype in dtypes.TABLE.items():
        made: list[Any] = []

        def kernel(tl: Any, x: Any, o: Any, made: list[Any] = made) -> None:
            made.append(applied(tl, row, tl.load(x)))
            tl.store(o, tl.load(x))

        spec = jax.ShapeDtypeStruct(SHAPE, jnp.dtype(dtype.numpy))
        call = kb.kernel_call(kernel, spec)
        if dtype.kind not in row.accepts:
            with pytest.raises(kb.DTypeError) as caught:
                call.op_log(spec)
            for accepted in row.dtypes:
                assert accepted in str(caught.value)
            continue
        log = call.op_log(spec)
        (handle,) = made
        (record,) = (one for one in log if one.op_name == row.name)
        assert record.dtype == handle.dtype.name
        assert record.shape == "x".join(map(str, handle.shape))
        size = np.prod(handle.shape)
        assert record.nbytes == size * dtypes.of(handle.dtype).numpy.itemsize, name
        assert record.engine == row.engine
        if row.engine == "math":
            largest = max(size, np.prod(SHAPE))
            took = record.end_ns - record.start_ns
            expected = kb.Hardware().pe_math.compute_ns(int(largest), row.name)
            assert took == pytest.approx(expected)
            assert record.flops == largest
        else:
            assert record.flops == 2 * 4 * 4 * 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_accepted_kinds_have_a_signature(row: ops.Op) -> None:
    """`accepts` and the rule agree: no dtype is accepted by one and not the other."""
    for dtype in dtypes.TABLE.values():
        tile: Any = signatures.Tile((4, 4), dtype)
        operands = [tile] * (2 if row.name == "dot" else len(row.parameters))
        if row.name == "where":
            operands[0] = signatures.Tile((4, 4), dtypes.BOOL)
        attrs = {"axis": 0, "keepdims": False, "out_dtype": None}
        attrs |= {"dtype": "int8", "shape": (4, 4)}
        try:
            found = row.infer(operands, attrs)
        except kb.DTypeError:
            assert dtype.kind not in row.accepts
        else:
            assert dtype.kind in row.accepts
            assert len(found.operand_dtypes) == len(operands)


def test_a_dot_with_an_accumulator_is_timed_as_one_without() -> None:
    def kernel(tl: Any, x: Any, o: Any, *, with_acc: bool) -> None:
        tile = tl.load(x)
        acc = tl.zeros((4, 4))
        product = tl.dot(tile, tl.trans(tile), acc=acc if with_acc else None)
        tl.store(o, product)

    x = jax.ShapeDtypeStruct(SHAPE, "float32")
    out = jax.ShapeDtypeStruct((4, 4), "float32")
    totals = []
    for with_acc in (False, True):
        call = kb.kernel_call(
            lambda tl, x, o, w=with_acc: kernel(tl, x, o, with_acc=w), out
        )
        (dot,) = (one for one in call.op_log(x) if one.engine == "gemm")
        totals.append((dot.flops, dot.nbytes, dot.end_ns - dot.start_ns))
    assert totals[0] == totals[1]


def test_a_dot_of_two_types_takes_the_time_of_the_slower() -> None:
    """Whichever comes first."""

    def kernel(tl: Any, a: Any, b: Any, o: Any) -> None:
        tl.dot(tl.load(a), tl.load(b))
        tl.dot(tl.load(b), tl.load(a))
        tl.dot(tl.load(a), tl.load(a))
        tl.store(o, tl.load(b))

    a, b = (jax.ShapeDtypeStruct((64, 64), name) for name in ("float32", "int8"))
    log = kb.kernel_call(kernel, b).op_log(a, b)
    times = {round(r.end_ns - r.start_ns, 3) for r in log if r.engine == "gemm"}
    assert len(times) == 1


@pytest.mark.parametrize("name", dtypes.TABLE)
def test_element_types_are_attributes_of_tl(name: str) -> None:
    """As in Triton: `tl.float32`."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        dtype = getattr(tl, name)
        tl.store(o, tl.load(x).to(dtype))
        assert tl.zeros((2,), dtype).dtype == dtype
        assert str(dtype) == name

    spec = jax.ShapeDtypeStruct(SHAPE, jnp.dtype(dtypes.of(name).numpy))
    kb.kernel_call(kernel, spec).record(spec)
