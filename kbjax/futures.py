"""What a kernel holds of a transfer that was issued: LoadFuture, SendFuture."""

from __future__ import annotations

from typing import Any

from kbjax import errors
from kbjax.flight import Transfer
from kbjax.handle import BINARY_OPERATORS, UNARY_OPERATORS, TensorHandle
from kbjax.site import here


class NotATile:
    """What a kernel holds that is no tile, and says so where it is used as one: in
    arithmetic, comparisons of size, subscripts, a tile's attributes, and what Python
    asks of a number, a sequence or an array."""

    __slots__ = ()

    def not_a_tile(self) -> errors.KbjaxError:
        """For a use of this where a tile belongs."""
        raise NotImplementedError

    def _refused(self, *_: object, **__: object) -> Any:
        raise self.not_a_tile()

    __iter__ = __len__ = __float__ = __int__ = __index__ = _refused
    __getitem__ = __setitem__ = __matmul__ = __rmatmul__ = __pos__ = _refused
    __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused
    __divmod__ = __rdivmod__ = __complex__ = __round__ = __contains__ = _refused
    __array__ = __array_ufunc__ = to = _refused
    __jax_array__ = T = shape = dtype = ndim = nbytes = property(_refused)


def _install_refusals() -> None:
    """Every operator of a tile is refused, but that any two objects may be equal."""
    for name in BINARY_OPERATORS:
        if name in ("eq", "ne"):
            continue
        setattr(NotATile, f"__{name}__", NotATile._refused)
        if name not in ("lt", "le", "gt", "ge"):
            setattr(NotATile, f"__r{name}__", NotATile._refused)
    for name in UNARY_OPERATORS:
        setattr(NotATile, f"__{name}__", NotATile._refused)


_install_refusals()


class LoadFuture(NotATile):
    """A tile that a load or a receive is writing. `wait()` gives the tile."""

    __slots__ = ("_context", "tile", "transfer")

    def __init__(self, context: Any, tile: TensorHandle, transfer: Transfer) -> None:
        self._context, self.tile, self.transfer = context, tile, transfer

    def wait(self) -> TensorHandle:
        """The tile, once its data is there; a second call gives the same tile.

        Costs no time of its own: what reads the tile waits for the data.

        Raises:
          KernelError: in another iteration than the one that issued it.
        """
        self._context.wait_for(self.transfer)
        return self.tile

    def not_a_tile(self) -> errors.HazardError:
        """For a use of the future where a tile belongs."""
        transfer = self.transfer
        return errors.HazardError(
            f"the {transfer.op} of {transfer.site} is used before it is waited for",
            site=here(),
            got=f"its future, of {self.tile}",
            remedy="Use the tile that its wait() gives",
        )

    __eq__ = __ne__ = NotATile._refused
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"the {self.transfer.op} of {self.transfer.site}"

    __repr__ = __str__


class SendFuture(NotATile):
    """A message on its way. `wait()` gives its source back to the kernel."""

    __slots__ = ("_context", "transfer")

    def __init__(self, context: Any, transfer: Transfer) -> None:
        self._context, self.transfer = context, transfer

    def wait(self) -> None:
        """The source may be written from here on; a second call does nothing.

        Raises:
          KernelError: in another iteration than the one that issued it.
        """
        self._context.wait_for(self.transfer)

    def not_a_tile(self) -> errors.KernelError:
        """For a use of the future where a tile belongs."""
        return errors.KernelError(
            "a send gives no tile",
            site=here(),
            got=str(self),
            remedy="Use the tile that was sent; what another PE sends comes from "
            "tl.recv",
        )

    def __bool__(self) -> bool:  # `if sent:` asks whether there was one
        return True

    def __str__(self) -> str:
        return f"the send of {self.transfer.site}"

    __repr__ = __str__
