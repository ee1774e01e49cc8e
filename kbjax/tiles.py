"""Two ways to keep tiles while a program is replayed: as bytes (exact), or as typed
values (live). Both are immutable: a write gives a new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from kbjax import expr, tcm
from kbjax.dtypes import DType
from kbjax.expr import Expr, Var
from kbjax.program import CopyCmd, Loop, Program, Scope, When
from kbjax.refs import Ref
from kbjax.sealing import zero_of
from kbjax.tcm import TcmState

Env = Mapping[Var, Any]


def index_value(value: Expr, env: Env) -> Any:
    """A symbolic integer in an iteration: an int, or an int32 array, () or (P,)."""
    return expr.evaluate(value, env, jnp)


class Tiles(Protocol):
    """What replay needs of the memory. Values are (*lead, *ref.shape), where `lead` is
    the PE axis, if any."""

    def read(self, ref: Ref, env: Env) -> jax.Array: ...
    def write(self, ref: Ref, env: Env, value: jax.Array, mask: Any) -> Any:
        """After a write on the PEs of the mask, (P,) bool; on all where it is None."""

    def copied(self, copy: CopyCmd, env: Env, mask: Any) -> Any:
        """After a copy from tile to tile on the PEs of the mask."""

    def poisoned(self, scope: Scope, env: Env, mask: Any) -> Any:
        """After a scope's end, on the PEs of the mask: what it gave back is 0xFF."""

    def carried(self, block: Loop | When) -> Any:
        """What the loop's iterations, or the `when`, hand on."""

    def resumed(self, carried: Any) -> Any: ...
    def memory(self) -> jax.Array:
        """All bytes of scratch: (*lead, T) uint8."""


@dataclass(frozen=True)
class Bytes:
    """Exact: the byte array. A read passes a barrier, so that nothing is fused or
    folded across memory."""

    program: Program
    array: jax.Array

    def read(self, ref: Ref, env: Env) -> jax.Array:
        raw = tcm.read_bytes(self.array, self._offset(ref, env), ref.nbytes)
        return lax.optimization_barrier(tcm.to_values(raw, ref.shape, ref.dtype))

    def write(self, ref: Ref, env: Env, value: jax.Array, mask: Any) -> Bytes:
        raw = tcm.to_bytes(value, self.array.ndim - 1)
        return self._with_bytes(self._offset(ref, env), raw, mask)

    def copied(self, copy: CopyCmd, env: Env, mask: Any) -> Bytes:
        """The bytes as they are, whatever they mean."""
        raw = tcm.read_bytes(self.array, self._offset(copy.src, env), copy.nbytes)
        raw = lax.optimization_barrier(raw)
        return self._with_bytes(self._offset(copy.dst, env), raw, mask)

    def poisoned(self, scope: Scope, env: Env, mask: Any) -> Bytes:
        if not scope.rewound_bytes:
            return self
        mark = self.program.moved(expr.const(scope.mark_bytes), env)
        size = (*self.array.shape[:-1], scope.rewound_bytes)
        fill = jnp.full(size, tcm.FRESH, jnp.uint8)
        return self._with_bytes(index_value(mark, env), fill, mask)

    def _with_bytes(self, offset: Any, raw: jax.Array, mask: Any) -> Bytes:
        if mask is not None:
            if not jnp.ndim(offset):
                offset = offset + zero_of(mask)
            kept = tcm.read_bytes(self.array, offset, raw.shape[-1])
            raw = jnp.where(mask[:, None], raw, kept)
        return self._with(tcm.write_bytes(self.array, offset, raw))

    def carried(self, block: Loop | When) -> jax.Array:
        del block
        return self.array

    def resumed(self, carried: jax.Array) -> Bytes:
        return self._with(carried)

    def memory(self) -> jax.Array:
        return self.array

    def _offset(self, ref: Ref, env: Env) -> Any:
        return index_value(self.program.offset(ref), env)

    def _with(self, array: jax.Array) -> Bytes:
        return dataclasses.replace(self, array=array)


@dataclass(frozen=True)
class Values:
    """Live: a typed array a root; `crossing` says what each loop hands on, `held` in
    which dtype values of a dtype are kept.

    A root that some command takes or writes in part is kept flat, behind a barrier:
    XLA's CPU backend turns a slice of a reshaped array into one of the array, fuses it
    with the update of the flat one, in place, and so reads what it has just written
    (jax 0.10.2; `f` of tests/test_aliasing.py).
    """

    program: Program
    crossing: Mapping[int, frozenset[int]]
    in_parts: frozenset[int]
    fresh: TcmState
    held: Callable[[DType], DType]
    values: Mapping[int, jax.Array] = dataclasses.field(default_factory=dict)

    @property
    def lead(self) -> tuple[int, ...]:
        return self.fresh.cursor.shape

    def _value(self, root: int) -> jax.Array:
        """As it is kept; bytes never written are 0xFF, as in fresh TCM."""
        if root in self.values:
            return self.values[root]
        made = self.program.allocations[root]
        raw = jnp.full((*self.lead, made.nbytes), tcm.FRESH, jnp.uint8)
        value = tcm.to_values(raw, made.shape, made.dtype)
        return self._kept(root, value.astype(self.held(made.dtype).numpy))

    def _kept(self, root: int, value: jax.Array) -> jax.Array:
        shape = self.program.allocations[root].shape
        if root in self.in_parts:
            return lax.optimization_barrier(value.reshape(*self.lead, -1))
        return value.reshape(*self.lead, *shape)

    def _covers(self, ref: Ref) -> bool:
        return ref.nbytes == self.program.allocations[ref.root].nbytes

    def read(self, ref: Ref, env: Env) -> jax.Array:
        value = self._value(ref.root)
        if not self._covers(ref):
            value = tcm.read_bytes(value, self._element(ref, env), ref.size)
        return value.reshape(*self.lead, *ref.shape)

    def write(self, ref: Ref, env: Env, value: jax.Array, mask: Any) -> Values:
        if mask is not None:
            writes = mask.reshape(-1, *(1 for _ in ref.shape))
            value = jnp.where(writes, value, self.read(ref, env))
        if not self._covers(ref):
            part, at = value.reshape(*self.lead, -1), self._element(ref, env)
            value = tcm.write_bytes(self._value(ref.root), at, part)
        kept = self._kept(ref.root, value)
        return dataclasses.replace(self, values={**self.values, ref.root: kept})

    def _element(self, ref: Ref, env: Env) -> Any:
        return index_value(ref.offset, env) // ref.dtype.nbytes

    def copied(self, copy: CopyCmd, env: Env, mask: Any) -> Values:
        return self.write(copy.dst, env, self.read(copy.src, env), mask)

    def poisoned(self, scope: Scope, env: Env, mask: Any) -> Values:
        """As it is: what a scope gave back was never written as bytes."""
        del scope, env, mask
        return self

    def carried(self, block: Loop | When) -> dict[int, jax.Array]:
        return {r: self._value(r) for r in sorted(self.crossing[id(block)])}

    def resumed(self, carried: Mapping[int, jax.Array]) -> Values:
        return dataclasses.replace(self, values={**self.values, **carried})

    def memory(self) -> jax.Array:
        """Fresh bytes, with the tiles written back that are alive at the end."""
        memory = self.fresh.memory
        for root in self.program.live_at_exit:
            if root in self.values:
                made = self.program.allocations[root]
                value = self.values[root].astype(made.dtype.numpy)
                raw = tcm.to_bytes(value, len(self.lead))
                memory = tcm.write_bytes(memory, made.cursor_bytes, raw)
        return memory
