"""What a replay changes: tiles, HBM tensors, messages; and what a block hands on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from kbjax.inbox import Inbox
from kbjax.messages import Channel
from kbjax.program import (
    Block,
    Loop,
    RecvCmd,
    SendCmd,
    StoreCmd,
    When,
    walk,
)
from kbjax.tiles import Tiles

Tensors = tuple[jax.Array, ...]


@dataclass(frozen=True)
class State:
    """Everything that commands change.

    Attributes:
      tiles: of the scratchpad.
      tensors: the HBM tensors by slot.
      mail: messages on their way.
    """

    tiles: Tiles
    tensors: Tensors
    mail: Mapping[Channel, Inbox]

    def with_tiles(self, tiles: Tiles) -> State:
        return dataclasses.replace(self, tiles=tiles)

    def with_tensor(self, slot: int, tensor: jax.Array) -> State:
        return dataclasses.replace(self, tensors=put(self.tensors, [slot], [tensor]))

    def with_inbox(self, channel: Channel, inbox: Inbox) -> State:
        return dataclasses.replace(self, mail={**self.mail, channel: inbox})


def stored_slots(block: Block) -> list[int]:
    """The HBM tensors to which commands of the block store."""
    return sorted({c.view.slot for c in walk(block) if isinstance(c, StoreCmd)})


def put(
    tensors: Tensors, slots: Iterable[int], changed: Iterable[jax.Array]
) -> Tensors:
    """`tensors` with those of `slots` replaced."""
    now = dict(zip(slots, changed, strict=True))
    return tuple(now.get(slot, tensor) for slot, tensor in enumerate(tensors))


def hand_on(
    block: Loop | When, state: State
) -> tuple[Callable[[State], Any], Callable[[Any], State]]:
    """What of a state changes in the block and is used after it, as JAX carries it; and
    the state again, which is else as it was before the block."""
    slots = stored_slots(block.body)
    moved = {
        Channel.of(c) for c in walk(block.body) if isinstance(c, SendCmd | RecvCmd)
    }
    channels = [channel for channel in state.mail if channel in moved]

    def carry_of(current: State) -> Any:
        return (
            current.tiles.carried(block),
            [current.tensors[slot] for slot in slots],
            [current.mail[channel] for channel in channels],
        )

    def resume(carry: Any) -> State:
        tiles, stored, inboxes = carry
        mail = {**state.mail, **dict(zip(channels, inboxes, strict=True))}
        tensors = put(state.tensors, slots, stored)
        return State(state.tiles.resumed(tiles), tensors, mail)

    return carry_of, resume
