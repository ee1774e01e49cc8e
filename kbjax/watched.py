"""What every command of a program writes while it is replayed, in the order of their
runs; and where two replays first differ."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from kbjax import data_phase, hbm
from kbjax.data_phase import Fidelity, Replay
from kbjax.program import (
    Command,
    Loop,
    Program,
    Scope,
    SendCmd,
    StoreCmd,
)
from kbjax.state import State
from kbjax.tiles import Env

MOST_BYTES = 1 << 28  # that a watch keeps; what runs later is not looked at
_STEP_BYTES = 200  # of a Step itself, beside its value


@dataclass(frozen=True)
class Step:
    """A run of a command on one PE.

    Attributes:
      number: of the command in the program's listing, from 0.
      loop: the iteration of each loop around it, by name, outermost first.
      value: what it wrote: a tile, or, of a store, the elements of HBM; of a send, the
        tile that it sent.
      starts: of a store, where in its tensor; a start an axis.
    """

    number: int
    loop: tuple[tuple[str, int], ...]
    value: np.ndarray
    starts: tuple[int, ...] = ()


@dataclass
class Watch:
    """What ran on each PE.

    Attributes:
      commands: the program's, by number.
      steps: by PE.
      full: whether nothing was left out.
    """

    commands: tuple[Command, ...]
    steps: dict[int, list[Step]]
    full: bool = True
    _bytes: int = field(default=0, repr=False)

    def add(self, pe: int, step: Step) -> None:
        """After a run; nothing once `MOST_BYTES` are kept."""
        self._bytes += step.value.nbytes + _STEP_BYTES
        if self._bytes > MOST_BYTES:
            self.full = False
        else:
            self.steps[pe].append(step)

    def sentence(self, pe: int, step: Step) -> str:
        """``command 17 (add at file.py:27, iteration j=3): <the command>``."""
        command = self.commands[step.number]
        where = "".join(f", iteration {n}={i}" for n, i in step.loop)
        which = f" on PE {pe}" if len(self.steps) > 1 else ""
        return (
            f"command {step.number} ({command.op} at {command.site}{where}{which}): "
            f"{command}"
        )


@dataclass(frozen=True)
class _Watcher:
    """What a replay calls after every command: it adds what the command wrote.

    Attributes:
      kept: what it is added to.
      numbers: of each command, by its `id`.
    """

    kept: Watch
    numbers: Mapping[int, int]

    def __call__(
        self,
        replay: Replay,
        item: Command,
        before: State,
        after: State,
        env: Env,
        mask: Any,
    ) -> None:
        """The `on_command` of a replay."""
        lead = replay.lead
        starts: tuple[Any, ...] = ()
        if isinstance(item, StoreCmd):
            window = replay.window(item.view, before, env)
            value = hbm.load(
                after.tensors[item.view.slot],
                window,
                jnp.zeros((), item.view.dtype.numpy),
                lead,
                item.view.dtype.numpy,
                in_parts=False,
            )
            starts = window.starts[-len(item.view.spans) :]
        elif isinstance(item, SendCmd):
            value = after.tiles.read(item.src, env)
        else:
            assert item.writes is not None
            value = after.tiles.read(item.writes, env)
        indices = {v: i for v, i in env.items() if not v.is_pe}
        pes = jnp.ravel(jnp.asarray(env[replay.program.program_id]))

        def each(x: Any) -> Any:
            return jnp.broadcast_to(jnp.asarray(x), pes.shape)

        on = each(True if mask is None else mask)
        io_callback(
            functools.partial(
                self._add, self.numbers[id(item)], tuple(v.name for v in indices)
            ),
            None,
            pes,
            on,
            [jnp.asarray(i) for i in indices.values()],
            [each(start) for start in starts],
            value if lead else value[None],
            ordered=True,
        )

    def _add(
        self,
        number: int,
        names: Sequence[str],
        pes: Any,
        on: Any,
        indices: Any,
        starts: Any,
        value: Any,
    ) -> None:
        loop = tuple(zip(names, (int(i) for i in indices), strict=True))
        values = np.asarray(value)
        for row, (pe, runs) in enumerate(
            zip(np.asarray(pes).tolist(), np.asarray(on).tolist(), strict=True)
        ):
            if runs:
                at = tuple(int(np.asarray(start)[row]) for start in starts)
                self.kept.add(pe, Step(number, loop, values[row].copy(), at))


def watch(
    program: Program,
    arrays: Sequence[Any],
    fidelity: Fidelity,
    *,
    poison: bool = False,
) -> Watch:
    """Replay a program on one device and keep what every command writes.

    Args:
      program: recorded for the arrays.
      arrays: the caller's, with their PE axes.
      fidelity, poison: as of `KernelCall.run`.
    """
    commands = [i for i in program.walk() if not isinstance(i, Loop | Scope)]
    numbers = {id(command): n for n, command in enumerate(commands)}
    kept = Watch(tuple(commands), {pe: [] for pe in range(program.num_pes)})
    run = data_phase.lower(
        program,
        fidelity,
        with_memory=True,  # as KernelCall.run, whose bits are asked after
        poison=poison,
        on_command=_Watcher(kept, numbers),
    )
    jax.block_until_ready(run(*split_by_pe(program, arrays)))
    jax.effects_barrier()
    return kept


def split_by_pe(program: Program, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The caller's arrays as replay takes them: with the PE axis, if any, in front."""
    split = []
    for spec, array in zip(program.slots, map(np.asarray, arrays), strict=False):
        axis = spec.pe_axis
        split.append(array if axis is None else np.moveaxis(array, axis, 0))
    return split


# --- two watches ---------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The first run of a command whose results differ.

    Attributes:
      index: the first element that does; `byte` its first differing byte in the value.
      one, other: the values there.
    """

    pe: int
    step: Step
    index: tuple[int, ...]
    byte: int
    one: Any
    other: Any


def first_difference(
    one: Watch, other: Watch, pairs: Sequence[tuple[int, int]]
) -> Difference | None:
    """The first run whose value has other bits; any NaN is any NaN.

    Args:
      one, other: watches of the same commands.
      pairs: which PE of the first is which of the other.
    """
    found: list[tuple[int, Difference]] = []
    for pe, its_pe in pairs:
        both = zip(one.steps[pe], other.steps[its_pe], strict=False)
        for place, (a, b) in enumerate(both):
            at = first_unlike(a.value, b.value)
            if at is not None:
                raw = [np.asarray(x.value[at]).tobytes() for x in (a, b)]
                byte = next(
                    n for n, (x, y) in enumerate(zip(*raw, strict=True)) if x != y
                )
                flat = int(np.ravel_multi_index(at, a.value.shape)) if at else 0
                byte += flat * a.value.itemsize
                here = Difference(pe, a, at, byte, a.value[at], b.value[at])
                found.append((place, here))
                break
    return min(found, key=lambda x: x[0])[1] if found else None


def first_with_nan(kept: Watch) -> tuple[int, Step] | None:
    """The first run on a PE that wrote a NaN, with the PE."""
    found = []
    for pe, steps in kept.steps.items():
        for place, step in enumerate(steps):
            if bool((step.value != step.value).any()):
                found.append((place, pe, step))
                break
    return min(found, key=lambda x: x[:2])[1:] if found else None


def unlike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays of one shape and dtype differ in their bits; any NaN is any
    NaN."""
    bits = [
        np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)
        for x in (one, other)
    ]
    return (bits[0] != bits[1]) & ~((one != one) & (other != other))


def first_unlike(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """The first index where they do."""
    differs = unlike(one, other)
    return tuple(int(i) for i in np.argwhere(differs)[0]) if differs.any() else None


def last_store(
    kept: Watch, program: Program, output: int, element: Sequence[int], pe: int
) -> tuple[int, Step] | None:
    """The last run of a store that covers an element of an output, with its PE.

    Args:
      output: its number.
      element: its index in one PE's array.
      pe: whose; of an output that all PEs share, any PE is looked at.
    """
    slot = program.output_slots[output]
    shared = program.slots[slot].pe_axis is None
    found = None
    for each in sorted(kept.steps) if shared else [pe]:
        for step in kept.steps[each]:
            command = kept.commands[step.number]
            if isinstance(command, StoreCmd) and command.view.slot == slot:
                spans = zip(step.starts, command.view.spans, element, strict=True)
                if all(low <= at < low + span.size for low, span, at in spans):
                    found = each, step
    return found
