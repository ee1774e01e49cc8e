"""Where PEs run: all on one device, or spread over a mesh; in turn, or in lockstep.

With P PEs on D devices each device runs L = P / D of them: device `d` of the mesh (all
its axes together, in mesh order) the PEs from `d * L` up to `(d + 1) * L`. It runs them
one after another, each as a PE alone is run: tiles stay in the cache, and a PE does
its own trips. PEs that have messages for each other run in lockstep instead: a device's
tiles then have an axis of L in front where P > 1, also where L = 1, so that a message
under a condition is one that every device takes part in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kbjax import errors


@dataclass(frozen=True)
class Pes:
    """How many PEs there are, and which of them the current device runs.

    Attributes:
      total: P, all PEs.
      local: L, those of one device.
      axis_names: of the mesh; empty where PEs are not spread.
      lockstep: those of a device run all at once, not one after another.
    """

    total: int
    local: int
    axis_names: tuple[str, ...] = ()
    lockstep: bool = False

    @staticmethod
    def over(total: int, mesh: Mesh | None, lockstep: bool = False) -> Pes:
        """`total` PEs over all devices of the mesh, which `checked_mesh` gave."""
        if mesh is None:
            return Pes(total, total, (), lockstep)
        return Pes(total, total // mesh.size, tuple(mesh.axis_names), lockstep)

    @property
    def devices(self) -> int:
        """D."""
        return self.total // self.local

    @property
    def together(self) -> bool:
        """Whether the commands run once: for the only PE, or for all in lockstep."""
        return self.total == 1 or self.lockstep

    @property
    def lead(self) -> tuple[int, ...]:
        """The PE axis of a device's tiles: (L,), or () where each runs alone."""
        return (self.local,) if self.total > 1 and self.lockstep else ()

    def ids(self) -> Any:
        """The program ids of this device's PEs: (L,) int32, or 0 where there is one."""
        if self.total == 1:
            return 0
        mine = jnp.arange(self.local, dtype=jnp.int32)
        if not self.axis_names:
            return mine
        return mine + lax.axis_index(self.axis_names).astype(jnp.int32) * self.local

    def in_turn(
        self, run: Callable[[Any, Any, Any], tuple[Any, Any]], carry: Any
    ) -> tuple[Any, Any]:
        """This device's PEs one after another.

        Args:
          run: from a PE's row among this device's, its program id, and what the PE
            before it handed on, to what it hands on and what it gives.
          carry: what the first PE takes.

        Returns:
          What the last one handed on; and what each gave, with an axis of L in front.
        """
        rows = jnp.arange(self.local, dtype=jnp.int32)
        return lax.scan(lambda c, pe: run(*pe, c), carry, (rows, self.ids()))

    def spread(
        self,
        function: Callable[..., Any],
        in_split: Sequence[bool],
        out_split: Any,
        mesh: Mesh | None,
    ) -> Callable[..., Any]:
        """`function` of all PEs' arrays, made from one of a device's.

        Args:
          function: of one device's arrays. What it returns unsplit must be the same on
            every device.
          in_split: for each argument, whether it is split over PEs: (P, ...) outside,
            (L, ...) inside. Else it is the same on every device.
          out_split: the same for what `function` returns, a tree or the prefix of one.
          mesh: None: `function` as it is.
        """
        if mesh is None:
            return function
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=tuple(map(self._spec, in_split)),
            out_specs=jax.tree.map(self._spec, out_split),
            check_vma=False,  # loops carry constants beside what differs by device
        )

    def sharding(self, split: bool, mesh: Mesh) -> NamedSharding:
        """Of an array that is split over PEs, or is the same on every device."""
        return NamedSharding(mesh, self._spec(split))

    def _spec(self, split: bool) -> PartitionSpec:
        return PartitionSpec(self.axis_names) if split else PartitionSpec()

    def rotate(self, values: jax.Array, offset: int) -> jax.Array:
        """`values` of PEs in lockstep, (L, ...), with that of PE i moved to PE
        (i + offset) % P; as they are where P = 1.

        On a mesh, inside `spread`: what stays together moves together, in two
        `ppermute`s at most. `offset` may be negative or larger than P.
        """
        if self.total == 1:
            return values
        shift, rows = divmod(offset % self.total, self.local)
        split = self.local - rows
        head = self._sent(values[:split], shift)
        if not rows:
            return head
        tail = self._sent(values[split:], shift + 1)
        return jnp.concatenate([tail, head])

    def _sent(self, piece: jax.Array, shift: int) -> jax.Array:
        """The piece of the device `shift` places before this one, around the ring."""
        count = self.devices
        if shift % count == 0:
            return piece
        pairs = [(device, (device + shift) % count) for device in range(count)]
        return lax.ppermute(piece, self.axis_names, pairs)

    def longest(self, trips: jax.Array) -> jax.Array:
        """The largest of the devices' trip counts, on each of them."""
        return lax.pmax(trips, self.axis_names) if self.axis_names else trips

    def merged(self, before: jax.Array, after: jax.Array) -> jax.Array:
        """One array of the devices' copies of one that all PEs share.

        PEs store to disjoint elements, so at most one copy differs from `before` at an
        element: the bits that changed are added up, and exactly so.
        """
        if self.devices == 1:
            return after
        was = _bits(before)
        is_now = was ^ lax.psum(was ^ _bits(after), self.axis_names)
        if after.dtype == jnp.bool_:
            return is_now != 0
        return lax.bitcast_convert_type(is_now, after.dtype)


def _bits(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))


def checked_mesh(mesh: object, num_pes: int) -> Mesh | None:
    """The mesh, over which `num_pes` PEs can be spread.

    Raises:
      KernelError: for what is no mesh of devices.
      ShapeError: where devices would run different numbers of PEs.
    """
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        raise errors.KernelError(
            "mesh is a jax.sharding.Mesh of devices",
            got=repr(mesh),
            remedy='Make one, for example with Mesh(jax.devices(), ("pe",))',
        )
    if mesh.size == 0 or num_pes % mesh.size:
        raise errors.ShapeError(
            f"num_pes={num_pes} PEs are not split evenly over the {mesh.size} devices "
            "of the mesh",
            allowed=f"a mesh whose size divides {num_pes}",
            remedy="Take fewer devices into the mesh, or change num_pes",
        )
    return Mesh(mesh.devices, mesh.axis_names)  # its axes all of type Auto
