"""TcmState and its pure functions: the scratchpad as an immutable byte array.

Shapes: `T` scratch bytes, `P` PEs. Every function takes one PE's state or, with a
leading axis of `P`, all PEs' at once (the axis is written by hand: `vmap` would turn an
update of a carried byte array into a scatter, 72 times slower). All are jittable and
vmappable.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kbjax import dtypes, errors
from kbjax.dtypes import DType
from kbjax.hardware import Hardware, PeTcm
from kbjax.overflow import Overflow

FRESH = 0xFF  # reads as NaN in every float type and as -1 in signed integers


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TcmState:
    """One PE's scratchpad, or all PEs' with a leading axis.

    Attributes:
      memory: (T,) or (P, T) uint8, the scratch region.
      cursor: () or (P,) int32, bytes allocated.
      scratch_base: absolute address of the region's first byte.
      align: bytes to which allocations are rounded up.
    """

    memory: jax.Array
    cursor: jax.Array
    scratch_base: int = dataclasses.field(default=0, metadata={"static": True})
    align: int = dataclasses.field(default=16, metadata={"static": True})

    @property
    def scratch_bytes(self) -> int:
        return self.memory.shape[-1]


def check(state: TcmState) -> None:
    """The invariants of a state: dtypes, and a cursor a PE.

    Raises:
      AssertionError: by chex, when one does not hold.
    """
    chex.assert_type(state.memory, jnp.uint8)
    chex.assert_type(state.cursor, jnp.int32)
    chex.assert_shape(state.cursor, state.memory.shape[:-1])


def init(hardware: Hardware | PeTcm | None = None, num_pes: int = 1) -> TcmState:
    """A fresh scratchpad, every byte 0xFF; a leading axis where `num_pes` > 1."""
    tcm = hardware or PeTcm()
    if isinstance(tcm, Hardware):
        tcm = tcm.pe_tcm
    lead = (num_pes,) if num_pes > 1 else ()
    return TcmState(
        memory=jnp.full((*lead, tcm.scratch_bytes), FRESH, jnp.uint8),
        cursor=jnp.zeros(lead, jnp.int32),
        scratch_base=tcm.scratch_base,
        align=tcm.align,
    )


def alloc(state: TcmState, nbytes: int) -> tuple[TcmState, jax.Array]:
    """Take the next slice: `nbytes` rounded up, at `scratch_base + cursor`.

    Returns:
      The state and the absolute address, () or (P,) int32. Where the slice does not
      fit the cursor stays; inside `jit`, where nothing can raise, the address is -1.

    Raises:
      ScratchOverflowError: outside `jit`, when the slice does not fit.
    """
    check(state)
    aligned = -(-nbytes // state.align) * state.align
    end = state.cursor + aligned
    fits = end <= state.scratch_bytes
    if not isinstance(fits, jax.core.Tracer) and not bool(jnp.all(fits)):
        raise errors.ScratchOverflowError(
            Overflow(
                op="alloc",
                requested_bytes=nbytes,
                aligned_bytes=aligned,
                cursor_bytes=int(jnp.max(state.cursor)),
                budget_bytes=state.scratch_bytes,
            )
        )
    address = jnp.where(fits, state.scratch_base + state.cursor, -1)
    cursor = jnp.where(fits, end, state.cursor)
    return dataclasses.replace(state, cursor=cursor), address


def read(
    state: TcmState, addr: Any, shape: tuple[int, ...], dtype: object
) -> jax.Array:
    """The value at absolute address `addr`: `shape` (after the PE axis), `dtype`.

    Args:
      state: the scratchpad.
      addr: an integer, or an int32 array, () or (P,). A traced address is not checked:
        the recorder has proven it.
      shape: of one PE's value.
      dtype: any of kbjax.dtypes.

    Raises:
      OutOfBoundsError: for a static address outside the scratch region.
    """
    check(state)
    kind = dtypes.of(dtype)
    offset = _offset(state, addr, math.prod(shape) * kind.nbytes)
    raw = read_bytes(state.memory, offset, math.prod(shape) * kind.nbytes)
    return to_values(raw, tuple(shape), kind)


def write(state: TcmState, addr: Any, value: jax.Array) -> TcmState:
    """The state with `value` at absolute address `addr`; see `read`."""
    check(state)
    lead = state.memory.ndim - 1
    raw = to_bytes(jnp.asarray(value), lead)
    offset = _offset(state, addr, raw.shape[-1])
    return dataclasses.replace(state, memory=write_bytes(state.memory, offset, raw))


def save(state: TcmState) -> jax.Array:
    """A save-point: the cursor, () or (P,) int32."""
    return state.cursor


def restore(state: TcmState, mark: Any, poison: bool = False) -> TcmState:
    """Rewind the cursor to `mark`; with `poison`, fill what was rewound with 0xFF."""
    check(state)
    cursor = jnp.broadcast_to(jnp.asarray(mark, jnp.int32), state.cursor.shape)
    memory = state.memory
    if poison:
        byte = lax.broadcasted_iota(jnp.int32, memory.shape, memory.ndim - 1)
        rewound = (byte >= cursor[..., None]) & (byte < state.cursor[..., None])
        memory = jnp.where(rewound, jnp.uint8(FRESH), memory)
    return dataclasses.replace(state, memory=memory, cursor=cursor)


def _offset(state: TcmState, addr: Any, nbytes: int) -> Any:
    if isinstance(addr, jax.core.Tracer):
        return addr - state.scratch_base
    offset = addr - state.scratch_base
    highest = state.scratch_bytes - nbytes
    if not np.all((np.asarray(offset) >= 0) & (np.asarray(offset) <= highest)):
        raise errors.OutOfBoundsError(
            f"{nbytes:,} B at address {addr} leave the scratch region",
            allowed=f"addresses {state.scratch_base} to "
            f"{state.scratch_base + state.scratch_bytes}, end excluded",
        )
    return offset if isinstance(offset, jax.Array) else int(offset)


# --- bytes ---------------------------------------------------------------------------


def read_bytes(memory: jax.Array, offset: Any, nbytes: int) -> jax.Array:
    """(T,) or (P, T) uint8 -> (nbytes,) or (P, nbytes), from `offset`.

    An offset of shape (P,), one a PE, is a gather; any other is a slice.
    """
    if isinstance(offset, int):
        return lax.slice_in_dim(memory, offset, offset + nbytes, axis=memory.ndim - 1)
    if offset.ndim:
        return jax.vmap(lambda m, o: read_bytes(m, o, nbytes))(memory, offset)
    starts, sizes = _with_pe_axis(memory, offset, nbytes)
    return lax.dynamic_slice(memory, starts, sizes, allow_negative_indices=False)


def write_bytes(memory: jax.Array, offset: Any, raw: jax.Array) -> jax.Array:
    """`memory` with `raw`, (nbytes,) or (P, nbytes) uint8, at `offset`."""
    if not isinstance(offset, int) and offset.ndim:
        return jax.vmap(write_bytes)(memory, offset, raw)
    starts, _ = _with_pe_axis(memory, offset, raw.shape[-1])
    return lax.dynamic_update_slice(memory, raw, starts, allow_negative_indices=False)


def _with_pe_axis(
    memory: jax.Array, offset: Any, nbytes: int
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    at = jnp.asarray(offset, jnp.int32)
    lead = memory.shape[:-1]
    return (*(jnp.int32(0) for _ in lead), at), (*lead, nbytes)


def to_values(raw: jax.Array, shape: tuple[int, ...], dtype: DType) -> jax.Array:
    """(..., nbytes) uint8 -> (..., *shape) of `dtype`. With `to_bytes`, the only place
    where bytes become values."""
    lead = raw.shape[:-1]
    if dtype.kind == "bool":
        return (raw != 0).reshape(*lead, *shape)
    if dtype.nbytes > 1:
        raw = raw.reshape(*lead, -1, dtype.nbytes)
    return lax.bitcast_convert_type(raw, dtype.numpy).reshape(*lead, *shape)


def to_bytes(value: jax.Array, lead: int) -> jax.Array:
    """(*lead axes, *shape) -> (*lead axes, nbytes) uint8, little-endian."""
    axes = value.shape[:lead]
    if value.dtype == jnp.bool_:
        return value.astype(jnp.uint8).reshape(*axes, -1)
    return lax.bitcast_convert_type(value, jnp.uint8).reshape(*axes, -1)
