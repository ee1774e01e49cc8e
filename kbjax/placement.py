"""Where arrays lie: brought to the devices of a mesh, and back from the host's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from kbjax import errors

# Of HBM, below which a call on one device is done before another has been handed its
# part: that costs 0.8 ms a call, in which a device goes through some 2 MB.
LEAST_BYTES = 1 << 22


def of_host(num_pes: int, nbytes: int, arrays: Sequence[Any]) -> Mesh | None:
    """A mesh of the host's CPU devices for a call that was given none: the largest
    number of them that divides `num_pes`; or None, where one device does.

    None where JAX has one CPU device (its default) or another backend; where there are
    fewer than LEAST_BYTES; where the caller has chosen a device (an array committed to
    one, `jax.default_device`, `jax.set_mesh`); and inside an outer `jax.jit`, which has
    devices of its own.

    Args:
      num_pes: P.
      nbytes: of all HBM tensors of all PEs.
      arrays: the inputs.
    """
    if num_pes == 1 or nbytes < LEAST_BYTES or jax.default_backend() != "cpu":
        return None
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if num_pes % n == 0)
    chosen = (
        getattr(jax.config, "jax_default_device", None) is not None
        or not jax.sharding.get_abstract_mesh().empty
        or any(isinstance(a, jax.Array) and _has_devices(a) for a in arrays)
    )
    if count == 1 or chosen or isinstance(jnp.zeros(()), jax.core.Tracer):
        return None
    return Mesh(np.asarray(devices[:count]), ("pe",))


def _has_devices(array: jax.Array) -> bool:
    return isinstance(array, jax.core.Tracer) or array.committed


def check_context(mesh: Mesh) -> None:
    """Refuse a mesh other than that of `jax.set_mesh` or of a `jax.shard_map` around
    the call, which JAX cannot change inside.

    Raises:
      KernelError: naming both.
    """
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and context != mesh.abstract_mesh:
        raise errors.KernelError(
            "the call has a mesh of its own inside another",
            got=f"{mesh.abstract_mesh} inside {context}",
            allowed="the same mesh, with axes of type Auto",
            remedy="Call the kernel outside jax.set_mesh and jax.shard_map",
        )


def check_traced(arrays: Sequence[Any], mesh: Mesh) -> None:
    """Refuse arrays that JAX traces and knows to be on other devices than the mesh,
    which it cannot change inside `jax.jit`.

    While it traces, JAX knows how many devices an array is on, and of what platform;
    which they are, only afterwards, and then it is JAX that refuses them.

    Raises:
      KernelError: naming both.
    """
    for array in arrays:
        if not isinstance(array, jax.core.Tracer):
            continue
        placed = jax.typeof(array).sharding.mesh
        if not placed.empty and placed.size != mesh.size:
            axes = ", ".join(f"{name}={size}" for name, size in placed.shape.items())
            raise _elsewhere(f"an array on a mesh of {placed.size}, {axes}", mesh)


_DEVICE_IDS = re.compile(r"device ids \[([\d, ]+)\] on platform (\w+)")


def as_refusal(error: ValueError, mesh: Mesh) -> errors.KernelError | None:
    """JAX's own refusal of arrays on other devices than the mesh, as ours; None for
    any other error."""
    found = _DEVICE_IDS.search(str(error))
    if "incompatible devices" not in str(error) or found is None:
        return None
    return _elsewhere(f"an array on {found[2]} devices {found[1]}", mesh)


def _elsewhere(placed: str, mesh: Mesh) -> errors.KernelError:
    devices = [*mesh.devices.flat]
    ids = ", ".join(str(device.id) for device in devices)
    return errors.KernelError(
        "arrays that JAX traces are on other devices than the mesh of the call",
        got=f"{placed}; a call on a mesh of {mesh.size}, "
        f"{devices[0].platform.upper()} devices {ids}",
        allowed="arrays on the devices of the mesh, in its order",
        remedy="Place them before with jax.device_put(x, NamedSharding(mesh, "
        "PartitionSpec())), or call the kernel outside jax.jit, jax.vmap and jax.grad, "
        "which brings them",
    )


def brought(array: Any, sharding: NamedSharding) -> Any:
    """The array on the devices of `sharding`.

    A NumPy array, or a JAX array of this process, is the same global value on every
    process. What JAX traces stays: its place follows from the computation. An array of
    the host is handed over as slices of the same memory, without a copy where JAX takes
    its alignment.
    """
    if isinstance(array, jax.core.Tracer):
        return array
    if isinstance(array, jax.Array):
        if array.sharding.is_equivalent_to(sharding, array.ndim):
            return array
        if not array.is_fully_addressable:
            return jax.device_put(array, sharding)
        if _on_host(array):
            array = np.asarray(array)
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda at: whole[at])


def _on_host(array: jax.Array) -> bool:
    return (
        len(devices := array.devices()) == 1 and next(iter(devices)).platform == "cpu"
    )


def back(array: jax.Array) -> jax.Array:
    """The array on the default device, as a call on one device gives it: free to be
    used beside arrays of any other."""
    return jnp.asarray(np.asarray(array))
