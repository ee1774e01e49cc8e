"""Inboxes: messages on their way to PEs, while a program is replayed. Immutable: a
message put in gives a new one."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kbjax.sealing import seal


class Inbox(NamedTuple):
    """Of one kind of message, to each PE of a device.

    Attributes:
      slots: (capacity, *lead, *shape), the messages; number n is in slot n modulo the
        capacity. `lead` is the PE axis, if any.
      sent, taken: (*lead,) int32, how many have been.
    """

    slots: jax.Array
    sent: jax.Array
    taken: jax.Array

    @staticmethod
    def empty(
        capacity: int, lead: tuple[int, ...], shape: tuple[int, ...], dtype: Any
    ) -> Inbox:
        none = jnp.zeros(lead, jnp.int32)
        return Inbox(jnp.zeros((capacity, *lead, *shape), dtype), none, none)

    @property
    def capacity(self) -> int:
        return self.slots.shape[0]

    def put(self, message: jax.Array, to: Any) -> Inbox:
        """With a message, (*lead, *shape), to the PEs of the mask `to`, (*lead,) bool;
        to all where it is None."""
        message = seal(message)
        kept = [
            _where(self._is_at(self.sent, slot, to), message, self.slots[slot])
            for slot in range(self.capacity)
        ]
        return self._replace(slots=jnp.stack(kept), sent=_counted(self.sent, to))

    def take(self, by: Any) -> tuple[jax.Array, Inbox]:
        """The oldest message of each PE, (*lead, *shape), taken by the PEs of the mask;
        by all where it is None. What the others find means nothing."""
        message = self.slots[0]
        for slot in range(1, self.capacity):
            here = self._is_at(self.taken, slot, None)
            message = _where(here, self.slots[slot], message)
        return seal(message), self._replace(taken=_counted(self.taken, by))

    def _is_at(self, count: jax.Array, slot: int, mask: Any) -> Any:
        """On which PEs the count is at the slot; None for all."""
        if self.capacity == 1:
            return mask
        here = lax.rem(count, jnp.int32(self.capacity)) == slot
        return here if mask is None else here & mask


def _where(mask: Any, new: jax.Array, old: jax.Array) -> jax.Array:
    if mask is None:
        return new
    return jnp.where(
        mask.reshape(*mask.shape, *(1,) * (new.ndim - mask.ndim)), new, old
    )


def _counted(count: jax.Array, mask: Any) -> jax.Array:
    return count + (1 if mask is None else mask.astype(jnp.int32))
