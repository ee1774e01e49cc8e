"""Inboxes: messages on their way to PEs, while a program is replayed. Immutable: a
message put in gives a new one."""

from __future__ import annotations

import functools
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
        kept = _where(self._next_slot(to), message[None], self.slots)
        return self._replace(slots=kept, sent=_counted(self.sent, to))

    def take(self, by: Any) -> tuple[jax.Array, Inbox]:
        """The oldest message of each PE, (*lead, *shape), taken by the PEs of the mask;
        by all where it is None. What the others find means nothing."""
        if self.capacity == 1:
            message = self.slots[0]
        else:
            slot = lax.rem(self.taken, jnp.int32(self.capacity))
            find = functools.partial(lax.dynamic_index_in_dim, axis=0, keepdims=False)
            if self.taken.ndim:
                find = jax.vmap(find, in_axes=(1, 0))
            message = find(self.slots, slot)
        return seal(message), self._replace(taken=_counted(self.taken, by))

    def _next_slot(self, to: Any) -> Any:
        """(capacity, *lead) bool, where a message to the PEs of the mask is put; None
        for everywhere."""
        if self.capacity == 1:
            return None if to is None else to[None]
        slots = lax.broadcasted_iota(
            jnp.int32, (self.capacity, *self.sent.shape), dimension=0
        )
        here = lax.rem(self.sent, jnp.int32(self.capacity))[None] == slots
        return here if to is None else here & to[None]


def _where(mask: Any, new: jax.Array, old: jax.Array) -> jax.Array:
    if mask is None:
        return new
    mask = mask.reshape(*mask.shape, *(1,) * (new.ndim - mask.ndim))
    return jnp.where(mask, new, old)


def _counted(count: jax.Array, mask: Any) -> jax.Array:
    return count + (1 if mask is None else mask.astype(jnp.int32))
