"""Phase 2: a Program becomes one jitted function on real data. Knows no times.

1. `lower` picks how tiles are kept: as bytes (`exact`: every command reads its operands
   from the byte array and writes its result into it, the definition of truth) or as
   typed values (`live`: bytes that no one can read any more are never written).
2. `Replay` walks the program once while JAX traces it: a `Loop` becomes `lax.scan`
   where its trip count is static, `lax.fori_loop` where it is symbolic, a `When`
   `lax.cond`. A message is moved to its PE's inbox by its send.
3. At the end live tiles are written back, where the caller asks for the memory.

PEs run one after another on their rows of the HBM tensors. Where they have messages for
each other they run in lockstep, with an axis of the L PEs of a device in front of every
tile, written by hand: the op table's functions are under `vmap`, and memory commands
only where PEs look at different places. On a mesh each device runs its own PEs
(kbjax.mesh).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from kbjax import dtypes, hbm, liveness, messages, ops, tcm
from kbjax.dtypes import FLOAT32, DType
from kbjax.expr import Expr
from kbjax.inbox import Inbox
from kbjax.layouts import Layouts, layouts
from kbjax.mesh import Pes
from kbjax.messages import Channel
from kbjax.program import (
    Block,
    CopyCmd,
    LoadCmd,
    Loop,
    OpCmd,
    Program,
    RecvCmd,
    Scope,
    SendCmd,
    Statement,
    StoreCmd,
    When,
    has_messages,
)
from kbjax.refs import HbmRef, Ref, Scalar
from kbjax.rounding import Rounding
from kbjax.sealing import always_true
from kbjax.state import State, Tensors, hand_on, put, stored_slots
from kbjax.tcm import TcmState
from kbjax.tiles import Bytes, Env, Tiles, Values, index_value

_DTYPES = {"dtype", "out_dtype"}  # attributes of ops that name an element type
Fidelity = Literal["live", "exact"]
# (replay, command, state before, state after, loop indices, mask of the PEs that run)
OnCommand = Callable[["Replay", Any, State, State, Env, Any], None]
Replayed = tuple[tuple[jax.Array, ...], TcmState | None]


def lower(
    program: Program,
    fidelity: Fidelity,
    with_memory: bool,
    poison: bool = False,
    wide: bool = False,
    mesh: Mesh | None = None,
    on_command: OnCommand | None = None,
) -> Callable[..., Replayed]:
    """One jitted function of the program's input arrays.

    Args:
      program: the recorded kernel.
      fidelity: how tiles are kept; both give the same bits.
      with_memory: whether the final TcmState is asked for.
      poison: fill what a scope gives back with 0xFF, at its end.
      wide: keep every float in float32 until it is stored (live only).
      mesh: over whose devices the PEs are spread.
      on_command: called as each command is traced, after its effect (kbjax.watched).

    Returns:
      A function from the inputs, (P, *shape) where split over PEs, to the outputs and
      the final memory (None unless `with_memory`).
    """
    pes = Pes.over(program.num_pes, mesh, lockstep=has_messages(program.commands))
    replay = Replay(program, pes, fidelity, with_memory, poison, wide, on_command)
    split = [spec.pe_axis is not None for spec in program.slots]
    replay_kernel = pes.spread(
        replay.run,
        split[: program.num_inputs],
        (tuple(split[slot] for slot in program.output_slots), program.num_pes > 1),
        mesh,
    )
    return jax.jit(replay_kernel)


# --- the walk ------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """One walk of a program.

    Attributes:
      rounding: made when traced.
      row: of the PE that runs, among its device's, where they run one after another.
      pes: where PEs run.
      Others: as `lower` takes them.
    """

    program: Program
    pes: Pes
    fidelity: Fidelity
    with_memory: bool
    poison: bool
    wide: bool
    on_command: OnCommand | None = None
    rounding: Rounding | None = None
    row: jax.Array | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        """The axis of PEs in front of every tile, where they run in lockstep."""
        return self.pes.lead

    @functools.cached_property
    def _layouts(self) -> Layouts:
        return layouts(self.program)

    def run(self, *inputs: jax.Array) -> Replayed:
        """The kernel on one device's inputs. Traced once by `jax.jit`."""
        rounding = Rounding(always_true(), physical=self.fidelity == "exact")
        return dataclasses.replace(self, rounding=rounding)._run(inputs)

    def _run(self, inputs: tuple[jax.Array, ...]) -> Replayed:
        program = self.program
        split = [spec.pe_axis is not None for spec in program.slots]
        outputs = tuple(
            hbm.fresh(
                spec.shape,
                spec.dtype.numpy,
                spec.dtype.never_stored,
                (self.pes.local,) if split[slot] else (),
            )
            for slot, spec in enumerate(program.slots)
            if slot >= program.num_inputs
        )
        # An outer jit may know the inputs, or have transposed them; what is folded
        # would round otherwise.
        inputs = lax.optimization_barrier(inputs)
        first = (*inputs, *outputs)
        if self.pes.together:
            last, memory = self._one(first, self.pes.ids())
        else:
            last, memory = self._in_turn(first)
        results = tuple(
            last[slot] if split[slot] else self.pes.merged(first[slot], last[slot])
            for slot in program.output_slots
        )
        return results, memory

    def _in_turn(self, tensors: Tensors) -> tuple[Tensors, TcmState | None]:
        """Each PE after the one before, on the tensors as that leaves them."""
        stored = stored_slots(self.program.commands)

        def run(row: Any, pe: Any, before: Any) -> Any:
            alone = dataclasses.replace(self, row=row)
            after, memory = alone._one(put(tensors, stored, before), pe)
            return [after[slot] for slot in stored], memory

        last, memory = self.pes.in_turn(run, [tensors[slot] for slot in stored])
        return put(tensors, stored, last), memory

    def _one(self, tensors: Tensors, ids: Any) -> tuple[Tensors, TcmState | None]:
        """The commands once, for one PE or for all of a device's in lockstep.

        Returns:
          The HBM tensors after them, and the final memory where it is asked for.
        """
        program = self.program
        mail = {
            channel: Inbox.empty(
                most, self.lead, channel.shape, self._held(channel.dtype).numpy
            )
            for channel, most in messages.checked(program).items()
        }
        state = State(self._fresh_tiles(), tensors, mail)
        state = self._block(program.commands, state, {program.program_id: ids}, None)
        return state.tensors, self._memory(state.tiles) if self.with_memory else None

    def _held(self, dtype: DType) -> DType:
        """The dtype in which a tile's values are kept and computed with."""
        return FLOAT32 if self.wide and dtype.is_float else dtype

    def _fresh_memory(self) -> TcmState:
        one = tcm.init(self.program.hardware)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (*self.lead, *x.shape)), one)

    def _fresh_tiles(self) -> Tiles:
        program = self.program
        fresh = self._fresh_memory()
        if self.fidelity == "exact":
            return Bytes(program, fresh.memory)
        kept = set(program.live_at_exit) if self.with_memory else set()
        crossing = liveness.carried_roots(program, kept)
        return Values(program, crossing, liveness.in_parts(program), fresh, self._held)

    def _memory(self, tiles: Tiles) -> TcmState:
        """The final scratchpad."""
        state = self._fresh_memory()
        cursor = jnp.full_like(state.cursor, self.program.exit_cursor_bytes)
        final = dataclasses.replace(state, memory=tiles.memory(), cursor=cursor)
        tcm.check(final)
        return final

    def _block(self, block: Block, state: State, env: Env, mask: Any) -> State:
        for item in block:
            after = self._statement(item, state, env, mask)
            if self.on_command is not None and not isinstance(item, Loop | Scope):
                self.on_command(self, item, state, after, env, mask)
            state = after
        return state

    def _statement(self, item: Statement, state: State, env: Env, mask: Any) -> State:
        if isinstance(item, When):
            return self._when(item, state, env, mask)
        if isinstance(item, Scope):
            return self._scope(item, state, env, mask)
        if isinstance(item, Loop):
            return self._loop(item, state, env, mask)
        if isinstance(item, StoreCmd):
            return self._store(item, state, env, mask)
        if isinstance(item, CopyCmd):
            return state.with_tiles(state.tiles.copied(item, env, mask))
        if isinstance(item, LoadCmd):
            value = self._load(item, state, env)
            return self._write(item.out, value, state, env, mask)
        if isinstance(item, SendCmd):
            return self._send(item, state, env, mask)
        if isinstance(item, RecvCmd):
            return self._receive(item, state, env, mask)
        return self._write(item.out, self._op(item, state, env), state, env, mask)

    def _scope(self, scope: Scope, state: State, env: Env, mask: Any) -> State:
        state = self._block(scope.body, state, env, mask)
        if not self.poison:
            return state
        return state.with_tiles(state.tiles.poisoned(scope, env, mask))

    # --- commands --------------------------------------------------------------------

    def _write(
        self, ref: Ref, value: jax.Array, state: State, env: Env, mask: Any
    ) -> State:
        chex.assert_shape(value, (*self.lead, *ref.shape))
        chex.assert_type(value, self._held(ref.dtype).numpy)
        return state.with_tiles(state.tiles.write(ref, env, value, mask))

    def _load(self, command: LoadCmd, state: State, env: Env) -> jax.Array:
        dtype, other = self._held(command.out.dtype), command.other
        value = hbm.load(
            state.tensors[command.view.slot],
            self.window(command.view, state, env),
            None if other is None else self._constant(other, dtype),
            self.lead,
            dtype.numpy,
            in_parts=self.fidelity == "live",
        )
        return lax.optimization_barrier(value) if self.wide else value

    def _cast(self, value: jax.Array, dtype: DType) -> jax.Array:
        assert self.rounding is not None
        return self.rounding.cast(value, dtype)

    def _store(self, command: StoreCmd, state: State, env: Env, mask: Any) -> State:
        tile = self._cast(state.tiles.read(command.src, env), command.src.dtype)
        window, slot = self.window(command.view, state, env), command.view.slot
        stored = hbm.store(state.tensors[slot], window, tile, mask, self.lead)
        return state.with_tensor(slot, stored)

    def window(self, view: HbmRef, state: State, env: Env) -> hbm.Window:
        """Where a view lies in its tensor, in an iteration."""

        def element(ref: Ref) -> jax.Array:
            return state.tiles.read(ref, env).reshape(self.lead).astype(jnp.int32)

        window = hbm.Window.of(view, lambda e: index_value(e, env), element)
        if self.row is None or self.program.slots[view.slot].pe_axis is None:
            return window
        return window.of_row(self.row)

    # --- messages --------------------------------------------------------------------

    def _send(self, command: SendCmd, state: State, env: Env, mask: Any) -> State:
        channel = Channel.of(command)
        message = self.pes.rotate(state.tiles.read(command.src, env), command.offset)
        to = None if mask is None else self.pes.rotate(mask, command.offset)
        return state.with_inbox(channel, state.mail[channel].put(message, to))

    def _receive(self, command: RecvCmd, state: State, env: Env, mask: Any) -> State:
        channel = Channel.of(command)
        message, inbox = state.mail[channel].take(mask)
        state = state.with_inbox(channel, inbox)
        return self._write(command.out, message, state, env, mask)

    # --- ops -------------------------------------------------------------------------

    def _op(self, command: OpCmd, state: State, env: Env) -> jax.Array:
        """The row's function on the operands, each in the row's operand dtype."""
        row = ops.TABLE[command.op]
        attrs = dict(command.attrs)
        for name in _DTYPES & attrs.keys():
            if attrs[name] is not None:
                attrs[name] = self._held(dtypes.of(attrs[name])).name
        values = []
        operands = zip(command.operands, command.operand_dtypes, strict=True)
        for operand, dtype in operands:
            if isinstance(operand, Ref):
                value = state.tiles.read(operand, env)
            else:
                value = self._scalar(operand, self._held(dtype), env)
            values.append(self._cast(value, self._held(dtype)))
        if row.engine == "gemm":
            made: Any = attrs.pop("transposed")
            attrs["layouts"] = tuple(map(self._layouts.of, command.reads[:2], made))
        compute = functools.partial(row.compute, self.rounding, **attrs)
        if row.engine == "gemm" or not self.lead:
            result = compute(*values)  # a matrix product takes the PE axis itself
        elif values:
            result = jax.vmap(compute)(*values)
        else:
            result = compute()
            result = jnp.broadcast_to(result, (*self.lead, *result.shape))
        return self._cast(result, self._held(command.out.dtype))

    def _scalar(self, value: Expr | Scalar, dtype: DType, env: Env) -> jax.Array:
        """A weak scalar, rounded once to the operand's dtype; one a PE. A scalar that
        all PEs share would be broadcast behind the barriers of `rounding`."""
        found = index_value(value, env) if isinstance(value, Expr) else value
        if not isinstance(found, jax.Array):
            found = self._constant(found, dtype)
        return jnp.broadcast_to(found, self.lead)

    def _constant(self, value: Scalar, dtype: DType) -> jax.Array:
        assert self.rounding is not None
        with np.errstate(over="ignore"):  # 1e6 is inf in float16
            found = jnp.asarray(np.asarray(value).astype(dtype.numpy))
        return self.rounding.unknown(found)

    # --- loops -----------------------------------------------------------------------

    def _when(self, when: When, state: State, env: Env, mask: Any) -> State:
        """A branch; in lockstep, where the condition differs by PE, all PEs run the
        body, and those which it leaves out write nothing."""
        holds = index_value(when.condition, env)
        if isinstance(holds, int):
            return self._scope(when, state, env, mask) if holds else state
        if holds.ndim:
            active = holds != 0 if mask is None else mask & (holds != 0)
            return self._scope(when, state, env, active)
        carry_of, resume = hand_on(when, state)

        def run(carry: Any) -> Any:
            return carry_of(self._scope(when, resume(carry), env, mask))

        return resume(lax.cond(holds != 0, run, lambda c: c, carry_of(state)))

    def _loop(self, loop: Loop, state: State, env: Env, mask: Any) -> State:
        trip = index_value(loop.trip, env)
        carry_of, resume = hand_on(loop, state)

        def body(i: Any, carry: Any) -> Any:
            active = mask
            if not isinstance(trip, int) and trip.ndim:  # PEs run different counts
                active = i < trip if mask is None else mask & (i < trip)
            inner = {**env, loop.index: i}
            return carry_of(self._block(loop.body, resume(carry), inner, active))

        first = carry_of(state)
        if isinstance(trip, int):
            last, _ = lax.scan(
                lambda carry, i: (body(i, carry), None),
                first,
                jnp.arange(trip, dtype=jnp.int32),
            )
        else:
            runs = trip if mask is None else jnp.where(mask, trip, 0)
            longest = jnp.max(runs) if runs.ndim else runs
            if has_messages(loop.body):  # which all devices take part in
                longest = self.pes.longest(longest)
            last = lax.fori_loop(0, longest, body, first)
        return resume(last)
