"""TensorHandle, the tile in TCM that a kernel holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kbjax import errors
from kbjax.allocator import Lease
from kbjax.dtypes import Shape, type_text
from kbjax.expr import Var
from kbjax.footprint import Allocation
from kbjax.refs import Ref
from kbjax.site import Site, here

if TYPE_CHECKING:
    from kbjax.dtypes import DType


class TensorHandle:
    """A tile in TCM: `shape`, `dtype`, and the bytes that `ref` names.

    Arithmetic operators are those of the op table, by way of `tl`.
    """

    __slots__ = ("_context", "allocation", "lease", "loops", "made_by", "ref")
    __hash__ = object.__hash__
    space = "tcm"

    def __init__(
        self,
        context: Any,
        allocation: Allocation,
        ref: Ref,
        made_by: str,
        lease: Lease,
        loops: tuple[Var, ...],
    ) -> None:
        """`loops`: those whose bodies this handle, perhaps an alias, was made in."""
        self._context, self.allocation, self.ref = context, allocation, ref
        self.made_by, self.lease, self.loops = made_by, lease, loops

    @property
    def site(self) -> Site:
        """The kernel line that allocated the bytes."""
        return self.allocation.site

    @property
    def shape(self) -> Shape:
        return self.ref.shape

    @property
    def dtype(self) -> DType:
        return self.ref.dtype

    @property
    def ndim(self) -> int:
        return len(self.ref.shape)

    @property
    def nbytes(self) -> int:
        return self.ref.nbytes

    def to(self, dtype: object) -> TensorHandle:
        """`tl.cast(self, dtype)`."""
        return self._context.cast(self, dtype)

    @property
    def T(self) -> TensorHandle:
        """`tl.trans(self)`: a math op with a slice of its own."""
        return self._context.trans(self)

    def __getitem__(self, key: object) -> TensorHandle:
        return self._context.view_of(self, key)

    def __bool__(self) -> bool:
        raise errors.KernelError(
            "`if` on a tile: its values are not known when the kernel is recorded",
            site=here(),
            got=str(self),
            remedy="Select elements with tl.where(cond, a, b)",
        )

    def _as_python(self, *_: object) -> Any:
        raise errors.KernelError(
            "a tile has no Python value when the kernel is recorded",
            site=here(),
            got=str(self),
            remedy="Keep the computation in tl operations",
        )

    __iter__ = __len__ = __float__ = __int__ = __index__ = __array__ = _as_python
    __complex__ = __round__ = __contains__ = _as_python

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *operands: object, **options: object
    ) -> TensorHandle:
        """`numpy.float32(2) * tile` is ``tl.mul(2.0, tile)``; NumPy's functions are no
        `tl` operations."""
        name = _UFUNCS.get(ufunc.__name__)
        if name is None or method != "__call__" or options:
            raise foreign(f"numpy.{ufunc.__name__}", self)
        # NumPy hands its scalars over as arrays of no axes where it compares.
        scalars = (x[()] if type(x) is np.ndarray else x for x in operands)
        return self._context.apply(name, *scalars)

    @property
    def __jax_array__(self) -> Any:  # JAX asks for it before anything else
        raise foreign("JAX", self)

    def __matmul__(self, other: object) -> Any:
        raise errors.KernelError(
            "`@` is no operator of tiles",
            site=here(),
            got=str(self),
            remedy="Use tl.dot(a, b), which says its accumulator and its dtype",
        )

    __rmatmul__ = __matmul__

    def _no_operator(self, *_: object) -> Any:
        raise errors.KernelError(
            "this operator is none of tiles",
            site=here(),
            got=str(self),
            allowed="+ - * / // % **, unary -, comparisons, & | ~",
        )

    __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = _no_operator
    __rrshift__ = __divmod__ = __rdivmod__ = __pos__ = _no_operator

    def __setitem__(self, key: object, value: object) -> None:
        raise errors.KernelError(
            "a tile is not assigned to by index",
            site=here(),
            remedy="Write a whole tile with tl.copy_to(dst, src)",
        )

    def __str__(self) -> str:
        return f"{type_text(self.shape, self.dtype)} made at {self.site}"

    __repr__ = __str__


def foreign(function: str, held: Any) -> errors.MemorySpaceError:
    return errors.MemorySpaceError(
        f"{function} computes on arrays of the host, and was given {held}, which is "
        f"in {held.space.upper()}",
        site=here(),
        remedy="Use the function of `tl`: tl.exp(tile), tl.maximum(a, b), ...; pass "
        "arrays to the kernel as arguments and tl.load them",
    )


def _install_operators() -> None:
    """`a + b` is ``tl.add(a, b)`` and so on; `b + a` with a scalar likewise."""

    def forward(name: str) -> Callable[..., Any]:  # pow may have a modulus
        return lambda self, *others: self._context.apply(name, self, *others)

    def reflected(name: str) -> Callable[[TensorHandle, object], Any]:
        return lambda self, other: self._context.apply(name, other, self)

    def unary(name: str) -> Callable[[TensorHandle], Any]:
        return lambda self: self._context.apply(name, self)

    for dunder, name in UNARY_OPERATORS.items():
        setattr(TensorHandle, f"__{dunder}__", unary(name))
    for dunder, name in BINARY_OPERATORS.items():
        setattr(TensorHandle, f"__{dunder}__", forward(name))
        if dunder not in ("lt", "le", "gt", "ge", "eq", "ne"):
            setattr(TensorHandle, f"__r{dunder}__", reflected(name))


# Python's operator method -> row of the op table.
BINARY_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div",
    "floordiv": "floordiv", "mod": "mod", "pow": "pow", "and": "and", "or": "or",
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
}  # fmt: skip
UNARY_OPERATORS = {"neg": "neg", "invert": "invert", "abs": "abs"}
_install_operators()

# NumPy's name of an operator -> row of the op table.
_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "equal": "eq", "not_equal": "ne", "floor_divide": "floordiv", "remainder": "mod",
    "power": "pow", "bitwise_and": "and", "bitwise_or": "or",
}  # fmt: skip
