"""TcmState and its pure functions: bytes, addresses, save points; jit and vmap."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import kbjax as kb
from kbjax import dtypes, tcm
from kbjax.hardware import PeTcm
from tests.helpers import assert_same_bits

SMALL = PeTcm(kernel_scratch_mb=1 / 1024)  # 1 KiB
BASED = PeTcm(kernel_scratch_mb=1 / 1024, scratch_base=0x4000)
SHAPES = [(), (1,), (5,), (3, 7), (2, 3, 4)]


def values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random numbers with the awkward ones among them."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "int" in dtype:
        ends = np.iinfo(dtype)
        return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    x = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.1, -3.7, 1e-40], shape)
    return np.asarray(x).astype(getattr(ml_dtypes, dtype, dtype))


def same_memory(state: kb.TcmState, memory: np.ndarray) -> None:
    assert_same_bits(state.memory, memory, "memory")


def blank(*lead: int) -> np.ndarray:
    return np.full((*lead, 1024), 0xFF, np.uint8)


# --- init ----------------------------------------------------------------------------


def test_init_is_filled_with_0xff() -> None:
    """NaN in every float type, -1 in int32."""
    state = tcm.init()
    assert isinstance(state, kb.TcmState)
    assert state.memory.shape == (1 << 20,) and state.memory.dtype == jnp.uint8
    assert (np.asarray(state.memory) == 0xFF).all()
    assert (int(state.cursor), state.scratch_base, state.align) == (0, 0, 16)
    for name in ("float32", "float16", "bfloat16"):
        got = np.asarray(tcm.read(state, 64, (3,), name)).astype(np.float32)
        assert np.isnan(got).all(), name
    assert_same_bits(tcm.read(state, 64, (3,), "int32"), np.full(3, -1, np.int32))


@pytest.mark.parametrize("pes", [1, 2, 5])
def test_init_of_many_pes_has_a_leading_axis(pes: int) -> None:
    lead = (pes,) if pes > 1 else ()
    state = tcm.init(kb.Hardware(pe_tcm=BASED), pes)
    assert state.memory.shape == (*lead, 1024)
    assert state.cursor.shape == lead
    assert state.scratch_base == 0x4000
    same_memory(tcm.init(BASED, pes), np.asarray(state.memory))


# --- alloc ---------------------------------------------------------------------------


def test_alloc_rounds_up_to_16() -> None:
    """addr = scratch_base + cursor; the cursor moves by nbytes rounded up."""
    state, found = tcm.init(BASED), []
    for nbytes in (1, 15, 16, 17, 0, 32, 33):
        state, address = tcm.alloc(state, nbytes)
        found.append(int(address))
    sums = np.cumsum([0, 16, 16, 16, 32, 0, 32]) + 0x4000
    assert found == sums.tolist()
    assert int(state.cursor) == 16 * 10
    same_memory(state, blank())  # allocating writes nothing


def test_alloc_follows_the_hardware_alignment() -> None:
    state = tcm.init(PeTcm(kernel_scratch_mb=1 / 1024, align=64))
    state, first = tcm.alloc(state, 1)
    state, second = tcm.alloc(state, 65)
    assert (int(first), int(second), int(state.cursor)) == (0, 64, 192)


def test_alloc_fits_to_the_last_byte() -> None:
    """Fits while cursor <= size; the last byte included, one more not."""
    state, _ = tcm.alloc(tcm.init(SMALL), 1024)
    assert int(state.cursor) == 1024
    with pytest.raises(kb.ScratchOverflowError, match=r"^TLContext scratch overflow:"):
        tcm.alloc(state, 1)
    with pytest.raises(kb.ScratchOverflowError) as e:
        tcm.alloc(tcm.init(SMALL), 1025)
    event = e.value.overflow
    assert (event.requested_bytes, event.aligned_bytes) == (1025, 1040)
    assert (event.cursor_bytes, event.budget_bytes) == (0, 1024)
    assert int(state.cursor) == 1024  # a failed allocation leaves it alone


def test_alloc_under_jit() -> None:
    """Where nothing can raise, an overflow is address -1 and the cursor stays."""

    @jax.jit
    def take(state: kb.TcmState) -> Any:
        state, a = tcm.alloc(state, 1000)
        state, b = tcm.alloc(state, 17)
        state, c = tcm.alloc(state, 16)
        return state, jnp.stack([a, b, c])

    state, addresses = take(tcm.init(BASED))
    assert addresses.tolist() == [0x4000, -1, 0x4000 + 1008]
    assert int(state.cursor) == 1024
    assert (state.scratch_base, state.align) == (0x4000, 16)


@pytest.mark.parametrize("jitted", [False, True])
def test_alloc_of_many_pes(jitted: bool) -> None:
    """One allocation a PE, each from its own cursor."""
    state = tcm.restore(tcm.init(SMALL, 3), jnp.array([0, 16, 1024], jnp.int32))
    if not jitted:
        with pytest.raises(kb.ScratchOverflowError):
            tcm.alloc(state, 16)
        return
    state, address = jax.jit(lambda s: tcm.alloc(s, 10))(state)
    assert address.tolist() == [0, 16, -1]
    assert state.cursor.tolist() == [16, 32, 1024]


# --- read and write ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(dtypes.TABLE))
@pytest.mark.parametrize("base", [0, 0x4000])
def test_round_trip(dtype: str, base: int) -> None:
    """Every dtype and rank, at odd addresses too, touches its bytes and no others."""
    state = tcm.init(PeTcm(kernel_scratch_mb=1 / 1024, scratch_base=base))
    memory = blank()
    for seed, shape in enumerate(SHAPES):
        for at in (0, 1, 3, 17, 254, 500 + seed):
            x = values(dtype, shape, seed)
            state = tcm.write(state, base + at, x)
            memory[at : at + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
            assert_same_bits(tcm.read(state, base + at, shape, dtype), x, f"{at}")
            # The raw bytes too: what a read gives back could be canonicalised.
            same_memory(state, memory)


def test_bytes_are_little_endian() -> None:
    state = tcm.write(tcm.init(SMALL), 2, jnp.int32(0x01020304))
    assert np.asarray(state.memory)[:8].tolist() == [255, 255, 4, 3, 2, 1, 255, 255]
    assert int(tcm.read(state, 3, (), "int32")) == -0xFEFDFD  # 0xFF010203


def test_any_nonzero_byte_is_true() -> None:
    """Fresh bytes read as bool are True, and bools are written as 0 and 1."""
    state = tcm.write(tcm.init(SMALL), 1, jnp.array([True, False]))
    assert np.asarray(state.memory)[:4].tolist() == [255, 1, 0, 255]
    got = tcm.read(state, 0, (4,), "bool")
    assert_same_bits(got, np.array([True, True, False, True]))


def test_a_write_is_pure() -> None:
    """TcmState goes in, TcmState comes out."""
    before = tcm.init(SMALL)
    after = tcm.write(before, 0, jnp.zeros(4, jnp.float32))
    same_memory(before, blank())
    assert (np.asarray(after.memory)[:16] == 0).all()


@pytest.mark.parametrize("jitted", [False, True])
def test_static_address_out_of_range(jitted: bool) -> None:
    """At either end, and by size: never clamped."""
    state = tcm.init(BASED)

    def read(address: int) -> None:
        def f(s: kb.TcmState) -> jax.Array:
            return tcm.read(s, address, (4,), "float32")

        (jax.jit(f) if jitted else f)(state)

    def write(address: int) -> None:
        def f(s: kb.TcmState) -> kb.TcmState:
            return tcm.write(s, address, jnp.zeros(4, jnp.float32))

        (jax.jit(f) if jitted else f)(state)

    for access in (read, write):
        for fits in (0x4000, 0x4000 + 1008):
            access(fits)
        for leaves in (0, 0x3FFF, 0x4000 + 1009, 0x4000 + 1024, -1):
            with pytest.raises(kb.OutOfBoundsError, match="leave the scratch region"):
                access(leaves)
    with pytest.raises(IndexError):
        read(np.int32(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", list(dtypes.TABLE))
def test_round_trip_under_jit_at_a_traced_address(dtype: str) -> None:
    """One compiled function for all addresses."""
    x = values(dtype, (3, 5))
    traces = []

    @jax.jit
    def move(state: kb.TcmState, source: Any, target: Any) -> kb.TcmState:
        traces.append(1)
        return tcm.write(state, target, tcm.read(state, source, (3, 5), dtype))

    for source, target in ((0, 512), (7, 300), (33, 40)):
        state = tcm.write(tcm.init(BASED), 0x4000 + source, x)
        state = move(state, jnp.int32(0x4000 + source), jnp.int32(0x4000 + target))
        assert_same_bits(tcm.read(state, 0x4000 + target, (3, 5), dtype), x)
    assert len(traces) == 1


# --- many PEs ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(dtypes.TABLE))
@pytest.mark.parametrize("how", ["axis", "vector", "vmap", "vmap jit"])
def test_round_trip_of_many_pes(dtype: str, how: str) -> None:
    """A leading PE axis written by hand and vmap agree, at one address or one a PE."""
    x = values(dtype, (3, 2, 5))
    at = np.array([16, 16, 16] if how == "axis" else [1, 33, 250], np.int32)
    memory = blank(3)
    for pe in range(3):
        raw = np.frombuffer(x[pe].tobytes(), np.uint8)
        memory[pe, at[pe] : at[pe] + raw.size] = raw
    if how.startswith("vmap"):

        def one(state: kb.TcmState, address: Any, value: Any) -> Any:
            state = tcm.write(state, address, value)
            return state, tcm.read(state, address, (2, 5), dtype)

        run = jax.vmap(one)
        run = jax.jit(run) if "jit" in how else run
        state, back = run(tcm.init(SMALL, 3), jnp.asarray(at), x)
    else:
        address: Any = 16 if how == "axis" else jnp.asarray(at)
        state = tcm.write(tcm.init(SMALL, 3), address, x)
        back = tcm.read(state, address, (2, 5), dtype)
    same_memory(state, memory)
    assert_same_bits(back, x)


def test_the_functions_are_vmappable_together() -> None:
    """alloc, write, save, restore under jit of vmap, as one PE after another."""

    def one(state: kb.TcmState, value: Any) -> Any:
        state, kept = tcm.alloc(state, 20)
        mark = tcm.save(state)
        state, scratch = tcm.alloc(state, 16)
        state = tcm.write(state, scratch, value)
        state = tcm.write(state, kept, value * 2)
        return tcm.restore(state, mark, poison=True), kept

    x = jnp.arange(8, dtype=jnp.float32).reshape(2, 4)
    states, addresses = jax.jit(jax.vmap(one))(tcm.init(SMALL, 2), x)
    for pe in range(2):
        alone, address = one(tcm.init(SMALL), x[pe])
        assert_same_bits(states.memory[pe], alone.memory)
        assert int(states.cursor[pe]) == int(alone.cursor) == 32
        assert int(addresses[pe]) == int(address) == 0


# --- save points ---------------------------------------------------------------------


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("pes", [1, 3])
def test_restore(pes: int, jitted: bool, poison: bool) -> None:
    """Rewinds the cursor; with poison, what was rewound is 0xFF, and nothing else."""

    def run(state: kb.TcmState) -> kb.TcmState:
        state, outer = tcm.alloc(state, 32)
        state = tcm.write(state, 0, jnp.zeros((*lead, 8), jnp.int32))
        mark = tcm.save(state)
        state, _ = tcm.alloc(state, 48)
        state = tcm.write(state, 32, jnp.zeros((*lead, 12), jnp.int32))
        # Beyond the cursor: not rewound, so not poisoned.
        state = tcm.write(state, 96, jnp.zeros((*lead, 2), jnp.int32))
        del outer
        return tcm.restore(state, mark, poison=poison)

    lead = (pes,) if pes > 1 else ()
    state = (jax.jit(run) if jitted else run)(tcm.init(SMALL, pes))
    want = blank(*lead)
    want[..., :32] = 0
    want[..., 96:104] = 0
    if not poison:
        want[..., 32:80] = 0
    same_memory(state, want)
    assert np.asarray(state.cursor).tolist() == ([32] * pes if pes > 1 else 32)


def test_nested_save_points() -> None:
    """An outer restore rewinds past an inner one."""
    state, _ = tcm.alloc(tcm.init(SMALL), 16)
    outer = tcm.save(state)
    state, _ = tcm.alloc(state, 16)
    inner = tcm.save(state)
    state, _ = tcm.alloc(state, 16)
    state = tcm.restore(state, inner)
    assert int(state.cursor) == 32
    state, again = tcm.alloc(state, 16)
    assert int(again) == 32
    assert int(tcm.restore(state, outer).cursor) == 16


def test_restore_is_a_scan_body() -> None:
    """A tile loop in constant scratch: the state threads through lax.scan."""

    def tile(state: kb.TcmState, x: Any) -> Any:
        mark = tcm.save(state)
        state, address = tcm.alloc(state, 512)
        total = tcm.read(state, 0, (), "float32") + x
        state = tcm.write(state, address, jnp.full(128, x))
        state = tcm.write(state, 0, total)
        return tcm.restore(state, mark), address

    state, _ = tcm.alloc(tcm.init(SMALL), 4)
    state = tcm.write(state, 0, jnp.float32(0))
    xs = jnp.arange(100, dtype=jnp.float32)
    state, addresses = jax.jit(lambda s: jax.lax.scan(tile, s, xs))(state)
    assert float(tcm.read(state, 0, (), "float32")) == 4950
    assert set(addresses.tolist()) == {16}
    assert int(state.cursor) == 16


def test_a_state_of_the_wrong_kind_is_refused() -> None:
    """The contract of the byte array: uint8 bytes, one int32 cursor a PE."""
    wrong = kb.TcmState(jnp.zeros(64, jnp.float32), jnp.int32(0))
    with pytest.raises(AssertionError):
        tcm.read(wrong, 0, (1,), "float32")
    lost = kb.TcmState(jnp.zeros((2, 64), jnp.uint8), jnp.int32(0))
    with pytest.raises(AssertionError):
        tcm.write(lost, 0, jnp.zeros((2, 1), jnp.float32))
