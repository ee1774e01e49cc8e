"""PEs over the devices of a mesh: tests for a process with 8 CPU devices.

`tests/test_mesh.py` runs this file in a process of its own, because JAX fixes the
number of devices before its first use. By hand:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest tests/eight_devices.py
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

import kbjax as kb
from kbjax import placement
from kbjax.kernels.gqa_decode import gqa_decode
from kbjax.mesh import Pes
from tests.helpers import assert_same_bits, assert_same_tcm
from tests.shared_programs import shared_kernel
from tests.test_data_phase import by_pe
from tests.test_disjoint import is_in_conflict

DEVICES = jax.devices()
ALONE = Mesh(DEVICES[:1], ("pe",))  # keeps a call to one device
SMALL = kb.Hardware(pe_tcm=kb.hardware.PeTcm(kernel_scratch_mb=0.03125))
f32 = partial(jax.ShapeDtypeStruct, dtype="float32")


def over(count: int, *shape: int) -> Mesh:
    """The first `count` devices in a mesh of one axis, or of the shape's."""
    names = tuple("abc"[: len(shape)]) if shape else ("pe",)
    return Mesh(np.asarray(DEVICES[:count]).reshape(shape or (count,)), names)


MESHES = {"2": over(2), "4": over(4), "8": over(8), "2 x 4": over(8, 2, 4),
          "reversed": Mesh(DEVICES[::-1], ("pe",))}  # fmt: skip


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_there_are_eight_devices() -> None:
    assert len(DEVICES) == 8 and DEVICES[0].platform == "cpu"


# --- rotate --------------------------------------------------------------------------


@pytest.mark.parametrize("local", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_rotate_is_roll(count: int, local: int) -> None:
    total, mesh = count * local, over(count)
    pes = Pes.over(total, mesh)
    offsets = sorted({*range(-local - 1, local + 2), total - 1, total, 3 * total + 1,
                      -2 * total - 1, total // 2})  # fmt: skip
    values = np.arange(total * 3).reshape(total, 3)

    def all_of_them(x: jax.Array) -> tuple[jax.Array, ...]:
        return (pes.ids(), *(pes.rotate(x, offset) for offset in offsets))

    split = total > 1  # one PE has no axis
    spread = pes.spread(all_of_them, [split], (split,) * (1 + len(offsets)), mesh)
    ids, *got = jax.jit(spread)(values)
    np.testing.assert_array_equal(ids, np.arange(total) if split else 0)
    for offset, rotated in zip(offsets, got, strict=True):
        want = np.roll(values, offset, axis=0)
        np.testing.assert_array_equal(rotated, want, f"offset {offset}")


def test_rotate_over_two_axes_follows_the_order_of_the_mesh() -> None:
    mesh = MESHES["2 x 4"]
    pes, values = Pes.over(16, mesh), np.arange(16)
    for offset in (1, 3, 8, -5):
        spread = pes.spread(lambda x, n=offset: pes.rotate(x, n), [True], True, mesh)
        np.testing.assert_array_equal(jax.jit(spread)(values), np.roll(values, offset))


# --- the same bits -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "fidelity"), [(MESHES["4"], "exact"), (MESHES["reversed"], "live")],
    ids=["4", "8"],
)  # fmt: skip
def test_trip_counts_that_depend_on_the_pe(mesh: Mesh, fidelity: Any) -> None:
    """Outputs and memory, with values, starts and HBM stores that do as well."""
    x, out = normal(0, 8, 9, 4), (f32((4,)), f32((9, 4)))
    options: Any = {"num_pes": 8, "hardware": SMALL}
    one = kb.kernel_call(by_pe, out, mesh=ALONE, **options)
    many = kb.kernel_call(by_pe, out, mesh=mesh, **options)
    want, got = one.run(x, fidelity=fidelity), many.run(x, fidelity=fidelity)
    assert_same_bits(got.outputs, want.outputs)
    assert_same_bits(got.tcm.cursor, want.tcm.cursor)
    assert_same_tcm(many.record(x), got.tcm.memory, want.tcm.memory)


def conditions(tl: Any, x: Any, table: Any, o: Any) -> None:
    """`when` by PE, a row of a shared table by PE, a tile in part, and a tail."""
    pe = tl.program_id()
    tile = tl.load(x)
    row = tl.load(table[pe % 3])
    with tl.when(pe % 2 == 0):
        tl.copy_to(tile[tl.ds(pe // 4, 2)], tile[tl.ds(1, 2)] * 3.0 + row)
        with tl.when(pe > 3):
            tl.copy_to(tile, tile - pe)
    tl.store(o, tile)
    tail = tl.load(x[tl.ds(pe - 2, 3)], other=-1.0)
    tl.store(o[tl.ds(pe, 3)], tail + row, boundary_check=True)


def test_conditions_by_pe() -> None:
    x, table = normal(1, 8, 5, 6), normal(2, 3, 6)
    make = partial(
        kb.kernel_call, conditions, f32((5, 6)), num_pes=8, in_axes=(0, None),
        hardware=SMALL,
    )  # fmt: skip
    one = make(mesh=ALONE)
    want, exact = one(x, table), one.run(x, table, poison=True)
    assert_same_bits(exact.outputs, want)
    assert_same_bits(make(mesh=MESHES["reversed"])(x, table), want, "reversed")
    got = make(mesh=MESHES["2 x 4"]).run(x, table, poison=True)
    assert_same_bits(got.outputs, want, "poison")
    np.testing.assert_array_equal(got.tcm.memory, exact.tcm.memory)


def test_attention() -> None:
    """`dot` bit for bit in these shapes; `exp` may differ in its last bit, which the
    sums carry on."""
    arrays = normal(3, 8, 4, 16), normal(4, 8, 64, 16), normal(5, 8, 64, 16)
    kernel = partial(gqa_decode, tile=32)
    make = partial(kb.kernel_call, kernel, f32((4, 16)), num_pes=8)
    want = make(mesh=ALONE)(*arrays)
    got = make(mesh=over(2))(*arrays)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


def products(tl: Any, a: Any, b: Any, o: Any, e: Any) -> None:
    x, y = tl.load(a), tl.load(b)
    s = tl.dot(x, y) * 0.37 + tl.sum(x, axis=1, keepdims=True)
    tl.store(o, s / 3.0)
    tl.store(e, tl.exp(s * 0.1))


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_products_are_the_same_bits_and_exp_within_one_ulp(rows: int) -> None:
    a, b = normal(6, 8, rows, 24), normal(7, 8, 24, 7)
    make = partial(kb.kernel_call, products, (f32((rows, 7)),) * 2, num_pes=8)
    want, got = make(mesh=ALONE)(a, b), make(mesh=over(8))(a, b)
    assert_same_bits(got[0], want[0], "products")
    np.testing.assert_array_max_ulp(*map(np.asarray, (got[1], want[1])), maxulp=1)


# --- outputs that PEs share ----------------------------------------------------------

DTYPES = ("float32", "bfloat16", "float8_e5m2", "int32", "int16", "uint8", "bool")


def rows_of_mine(tl: Any, *tensors: Any) -> None:
    """PE i stores to rows i, i + P, ..., but not to the last row of all."""
    inputs, outputs = tensors[: len(DTYPES)], tensors[len(DTYPES) :]
    for x, o in zip(inputs, outputs, strict=True):
        for j in tl.range(2):
            with tl.scratch_scope():
                row = tl.program_id() + j * tl.num_programs()
                tl.store(o[row], tl.load(x[row]))


def test_a_shared_output_has_what_each_pe_stored() -> None:
    """Every bit of it, NaNs and all; what none stored is as it was."""
    rng = np.random.default_rng(8)
    xs = []
    for name in DTYPES:
        kind = np.dtype(getattr(ml_dtypes, name, name))
        raw = rng.integers(0, 256, (17, 6 * kind.itemsize), np.uint8)
        xs.append(raw % 2 == 1 if name == "bool" else raw.view(kind))
    call = kb.kernel_call(
        rows_of_mine, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs),
        num_pes=8, mesh=over(8), in_axes=None, out_axes=None,
    )  # fmt: skip
    others = call(*map(np.zeros_like, xs))
    for name, x, got, other in zip(DTYPES, xs, call(*xs), others, strict=True):
        assert got.sharding.is_fully_replicated, name
        assert_same_bits(got[:16], x[:16], name)
        assert_same_bits(got[16:], other[16:], f"{name}, the row of no PE")


def test_an_aliased_array_that_all_share_is_updated_in_place() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        mine = tl.ds(tl.program_id() * 2, 2)
        for _ in tl.range(3):
            with tl.scratch_scope():
                tl.store(o[mine], tl.load(x[mine]) * 2.0 + tl.program_id())

    x = normal(9, 20, 3)
    want = x.copy()
    for pe in range(8):
        for _ in range(3):
            want[2 * pe : 2 * pe + 2] = want[2 * pe : 2 * pe + 2] * 2 + np.float32(pe)
    for mesh in (MESHES["2"], MESHES["2 x 4"]):
        call = kb.kernel_call(
            kernel, f32(x.shape), num_pes=8, mesh=mesh, in_axes=None, out_axes=None,
            input_output_aliases={0: 0},
        )  # fmt: skip
        assert_same_bits(call(x), want)


def legal_shared(count: int) -> list[int]:
    """Seeds of drawn kernels whose PEs keep apart and use `o` a good deal."""
    found: list[int] = []
    seed = 1000
    while len(found) < count:
        drawn = shared_kernel(seed)
        if drawn is not None and drawn.num_pes == 4:
            log, _ = drawn.played()
            if len(log.uses) > 16 and not is_in_conflict(log):
                found.append(seed)
        seed += 1
    return found


@pytest.mark.parametrize("seed", legal_shared(2))
def test_drawn_kernels_with_a_shared_output_equal_plain_python(seed: int) -> None:
    drawn = shared_kernel(seed)
    assert drawn is not None
    call, (_, want) = drawn.call(mesh=over(4)), drawn.played()
    got = call.run(*drawn.arrays(), fidelity="live").outputs
    assert_same_bits(got, want, drawn.source)


def test_two_pes_that_store_to_the_same_rows_are_refused_on_any_mesh() -> None:
    """FC-31: the same words each time, whatever the devices, and before any data."""

    def kernel(tl: Any, o: Any) -> None:
        tl.store(o[tl.ds(tl.program_id() // 2, 1)], tl.full((1,), tl.program_id()))

    said = set()
    for mesh in (None, *MESHES.values()):
        call = kb.kernel_call(kernel, f32((4,)), num_pes=8, out_axes=None, mesh=mesh)
        with pytest.raises(kb.HazardError, match="PE 0 and PE 1") as caught:
            call()
        said.add(str(caught.value))
    assert len(said) == 1


# --- arrays, jit, compilation --------------------------------------------------------


def scaled(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.load(x) * 2.0 + tl.program_id())


def twice(x: np.ndarray) -> np.ndarray:
    return x * 2 + np.arange(len(x), dtype=np.float32)[:, None]


def test_outputs_lie_on_the_mesh() -> None:
    x, mesh = normal(10, 8, 3), MESHES["2 x 4"]
    rows = NamedSharding(mesh, PartitionSpec(("a", "b")))
    call = kb.kernel_call(scaled, f32((3,)), num_pes=8, mesh=mesh)
    places = (rows, NamedSharding(mesh, PartitionSpec()), DEVICES[5])
    for given in (x, jnp.asarray(x), *(jax.device_put(x, place) for place in places)):
        got = call(given)
        assert got.sharding.is_equivalent_to(rows, 2)
        assert_same_bits(got, twice(x))
    memory = call.run(x).tcm.memory
    assert memory.sharding.is_equivalent_to(rows, 2)


def test_any_axis_may_be_the_one_of_pes() -> None:
    x = normal(11, 3, 8)
    mesh = over(4)
    call = kb.kernel_call(
        scaled, f32((3,)), num_pes=8, in_axes=1, out_axes=-1, mesh=mesh
    )
    got = call(x)
    assert_same_bits(got, twice(x.T).T)
    assert got.sharding.is_equivalent_to(
        NamedSharding(mesh, PartitionSpec(None, "pe")), 2
    )


def test_inside_jit() -> None:
    x, mesh = normal(12, 8, 3), over(4)
    call = kb.kernel_call(scaled, f32((3,)), num_pes=8, mesh=mesh)
    rows = NamedSharding(mesh, PartitionSpec("pe"))
    inside = jax.jit(lambda y: call(y * 3.0) - 1.0)
    for given in (x, jax.device_put(x, rows)):
        assert_same_bits(inside(given), twice(x * np.float32(3)) - np.float32(1))
    assert_same_bits(jax.jit(lambda: call(x))(), twice(x), "a constant")


@pytest.mark.parametrize("count", [2, 8])
def test_arrays_that_are_traced_on_another_number_of_devices(count: int) -> None:
    """JAX cannot move them inside `jax.jit`; a plain call does."""
    x = normal(12, 8, 3)
    call = kb.kernel_call(scaled, f32((3,)), num_pes=8, mesh=over(4))
    placed = jax.device_put(x, NamedSharding(over(count), PartitionSpec("pe")))
    for function in (lambda y: call(y), lambda y: call(y * 3.0)):
        with pytest.raises(kb.KernelError, match="on other devices") as caught:
            jax.jit(function)(placed)
        assert f"a mesh of {count}, pe={count}" in str(caught.value.got)
        assert "mesh of 4, CPU devices 0, 1, 2, 3" in str(caught.value.got)
    assert_same_bits(call(placed), twice(x))
    moved = jax.device_put(placed, NamedSharding(over(4), PartitionSpec()))
    assert_same_bits(jax.jit(lambda y: call(y))(moved), twice(x))


@pytest.mark.parametrize(
    ("place", "ids"),
    [
        (NamedSharding(Mesh(DEVICES[4:], ("pe",)), PartitionSpec()), "4, 5, 6, 7"),
        (NamedSharding(Mesh(DEVICES[3::-1], ("pe",)), PartitionSpec()), "3, 2, 1, 0"),
        (SingleDeviceSharding(DEVICES[5]), "5"),
    ],
    ids=["as many", "another order", "one"],
)
def test_arrays_that_are_mapped_on_other_devices(place: Any, ids: str) -> None:
    x, mesh = np.stack([normal(12, 8, 3)] * 2), over(4)
    call = kb.kernel_call(scaled, f32((3,)), num_pes=8, mesh=mesh)
    placed = jax.device_put(x, place)
    with pytest.raises(kb.KernelError, match="on other devices") as caught:
        jax.vmap(call)(placed)
    assert f"an array on CPU devices {ids};" in str(caught.value.got)
    assert "mesh of 4, CPU devices 0, 1, 2, 3" in str(caught.value.got)
    brought = jax.device_put(placed, NamedSharding(mesh, PartitionSpec()))
    assert_same_bits(jax.vmap(call)(brought)[1], twice(x[1]))


def test_a_mesh_with_explicit_axes_does_as_well() -> None:
    x = normal(13, 8, 3)
    mesh = jax.make_mesh((8,), ("pe",), axis_types=(AxisType.Explicit,))
    call = kb.kernel_call(scaled, f32((3,)), num_pes=8, mesh=mesh)
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("pe")))
    assert_same_bits(call(x), twice(x))
    assert_same_bits(call(placed), twice(x))
    assert_same_bits(jax.jit(lambda y: call(y))(placed), twice(x))
    with jax.set_mesh(mesh), pytest.raises(kb.KernelError, match="mesh of its own"):
        call(x)
    with jax.set_mesh(over(8)):
        assert_same_bits(call(x), twice(x))
    with jax.set_mesh(over(2)), pytest.raises(kb.KernelError, match="mesh of its own"):
        call(x)


def test_it_is_compiled_once(caplog: pytest.LogCaptureFixture) -> None:
    call = kb.kernel_call(scaled, f32((3,)), num_pes=8, mesh=over(8))
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        for seed in range(5):
            jax.block_until_ready(call(normal(seed, 8, 3)))
    compiled = [r for r in caplog.records if "Finished XLA compil" in r.getMessage()]
    assert len(compiled) == 1


# --- one PE, and meshes that do not fit ----------------------------------------------


def test_one_pe_runs_on_a_mesh_of_one_device() -> None:
    x = normal(14, 3)
    call = kb.kernel_call(scaled, f32((3,)), mesh=Mesh(DEVICES[3:4], ("pe",)))
    got = call(x)
    assert got.devices() == {DEVICES[3]}
    assert_same_bits(got, x * 2)
    assert call.run(x).tcm.memory.ndim == 1


@pytest.mark.parametrize(("num_pes", "count"), [(1, 2), (6, 4), (4, 8), (9, 8)])
def test_pes_that_do_not_divide_are_refused(num_pes: int, count: int) -> None:
    with pytest.raises(kb.ShapeError, match=f"num_pes={num_pes} .* {count} devices"):
        kb.kernel_call(scaled, f32((3,)), num_pes=num_pes, mesh=over(count))


# --- the order of PEs ----------------------------------------------------------------


def prefix_sums(tl: Any, x: Any, o: Any) -> None:
    """Knows nothing of its program id."""
    total = tl.zeros((4,))
    for j in tl.range(6):
        with tl.scratch_scope():
            tl.copy_to(total, total * 0.9 + tl.load(x[j]))
            tl.store(o[j], total / 3.0)


@pytest.mark.parametrize(
    ("count", "fidelity"), [(2, "live"), (8, "exact")], ids=["2", "8"]
)
def test_shuffled_pes_give_shuffled_outputs(count: int, fidelity: Any) -> None:
    x, order = normal(15, 8, 6, 4), np.random.default_rng(16).permutation(8)
    call = kb.kernel_call(
        prefix_sums, f32((6, 4)), num_pes=8, mesh=over(count), hardware=SMALL
    )
    want, got = (call.run(a, fidelity=fidelity) for a in (x, x[order]))
    assert_same_bits(got.outputs, np.asarray(want.outputs)[order], fidelity)
    program = call.record(x)
    assert_same_tcm(program, got.tcm.memory, np.asarray(want.tcm.memory)[order])


# --- the host's own devices ----------------------------------------------------------


@pytest.mark.parametrize(
    ("num_pes", "count"), [(1, None), (2, 2), (12, 6), (7, 7), (11, None), (64, 8)]
)
def test_as_many_devices_as_divide_the_pes(num_pes: int, count: int | None) -> None:
    mesh = placement.of_host(num_pes, placement.LEAST_BYTES, [])
    assert (mesh and mesh.size) == count
    assert placement.of_host(num_pes, placement.LEAST_BYTES - 1, []) is None


def test_pes_are_spread_over_the_host_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int | None] = []
    found = placement.of_host

    def watched(num_pes: int, nbytes: int, arrays: Any) -> Mesh | None:
        assert nbytes == 2 * 4 * 3 * 4
        mesh = found(num_pes, nbytes, arrays)
        seen.append(mesh and mesh.size)
        return mesh

    monkeypatch.setattr(placement, "of_host", watched)
    monkeypatch.setattr(placement, "LEAST_BYTES", 96)
    x = normal(17, 4, 3)
    call = kb.kernel_call(scaled, f32((3,)), num_pes=4)
    plain = call(x)
    assert_same_bits(plain, twice(x))
    assert plain.devices() == {DEVICES[0]} and not plain.committed
    assert_same_bits(call(plain), twice(twice(x)))
    memory = call.run(x).tcm.memory
    assert memory.devices() == {DEVICES[0]} and memory.shape[0] == 4
    assert seen == [4, 4, 4]
    # A device that the caller chose is kept, and so is an outer jit's.
    there = jax.device_put(x, DEVICES[6])
    assert call(there).devices() == {DEVICES[6]}
    with jax.default_device(DEVICES[2]):
        assert call(x).devices() == {DEVICES[2]}
    with jax.set_mesh(over(2)):
        call(x)
    assert_same_bits(jax.jit(lambda y: call(y))(x), twice(x))
    assert_same_bits(jax.jit(lambda: call(x))(), twice(x))
    assert seen == [4, 4, 4, *[None] * 5]
    # And a mesh of one device keeps a call to it.
    seen.clear()
    kb.kernel_call(scaled, f32((3,)), num_pes=4, mesh=ALONE)(x)
    assert not seen
