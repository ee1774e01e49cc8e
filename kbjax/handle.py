"""What a kernel holds: TensorHandle (bytes in TCM), HbmTensor and HbmView (HBM)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kbjax import domain, errors, expr, index
from kbjax.allocator import Lease
from kbjax.dtypes import Shape, type_text
from kbjax.expr import Expr, Var
from kbjax.footprint import Allocation
from kbjax.index import Index
from kbjax.program import TensorSpec
from kbjax.refs import HbmRef, Ref, Span
from kbjax.site import Site, here

if TYPE_CHECKING:
    from kbjax.dtypes import DType


@dataclass(frozen=True)
class Slice:
    """``ds(start, size)``: `size` elements from `start`, which may be symbolic."""

    start: Expr
    size: int


def ds(start: object, size: object) -> Slice:
    """A slice of static size at a start that may be symbolic.

    Raises:
      ShapeError: when the size is not a non-negative integer, or the start no integer.
    """
    first = index.as_expr(start)
    if first is None:
        raise errors.ShapeError(
            "ds takes an integer start",
            site=here(),
            got=repr(start),
            allowed="Python and symbolic integers",
        )
    domain.checked(first, domain.Domain())
    if isinstance(size, Index) and size.expr.is_const:
        size = size.expr.const
    if isinstance(size, Index) or index.as_expr(size) is None or int(size) < 0:  # type: ignore[call-overload]
        raise errors.ShapeError(
            "ds takes a static size of at least 0",
            site=here(),
            got=str(size),
            remedy="Keep the size a Python integer; only the start may be symbolic",
        )
    return Slice(first, operator.index(size))  # type: ignore[arg-type]


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
            raise _foreign(f"numpy.{ufunc.__name__}", self)
        # NumPy hands its scalars over as arrays of no axes where it compares.
        scalars = (x[()] if type(x) is np.ndarray else x for x in operands)
        return self._context.apply(name, *scalars)

    @property
    def __jax_array__(self) -> Any:  # JAX asks for it before anything else
        raise _foreign("JAX", self)

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


def _foreign(function: str, held: TensorHandle | HbmView) -> errors.MemorySpaceError:
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


def _needs_load(self: HbmView, *_: object) -> Any:
    raise errors.MemorySpaceError(
        f"{self} is in HBM, and arithmetic works on tiles in TCM",
        site=here(),
        remedy="tl.load it first",
    )


class HbmView:
    """A rectangle of an HBM tensor: `x[...]` with ints, slices and `tl.ds`; `.T`."""

    __slots__ = ("ref", "spec")
    __hash__ = object.__hash__
    space = "hbm"

    def __init__(self, spec: TensorSpec, ref: HbmRef) -> None:
        self.spec, self.ref = spec, ref

    @property
    def shape(self) -> Shape:
        return self.ref.shape

    @property
    def dtype(self) -> DType:
        return self.ref.dtype

    @property
    def ndim(self) -> int:
        return len(self.ref.axes)

    @property
    def T(self) -> HbmView:
        """The axes reversed; the DMA engine transposes."""
        return self._with(replace(self.ref, axes=self.ref.axes[::-1]))

    def _with(self, ref: HbmRef) -> HbmView:
        return HbmView(self.spec, ref)

    def __getitem__(self, key: object) -> HbmView:
        keys = list(key) if isinstance(key, tuple) else [key]
        dots = [at for at, one in enumerate(keys) if one is Ellipsis]
        if len(dots) == 1:
            keys[dots[0] : dots[0] + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim or len(dots) > 1:
            raise errors.ShapeError(
                f"{len(keys)} indices into a view of {self.ndim} axes",
                site=here(),
                got=f"{self.spec.name} of shape {self.shape}",
                allowed=f"at most {self.ndim}",
            )
        keys += [slice(None)] * (self.ndim - len(keys))
        spans, axes = list(self.ref.spans), []
        for axis, one in zip(self.ref.axes, keys, strict=True):
            spans[axis], keeps = self._narrow(spans[axis], one)
            if keeps:
                axes.append(axis)
        return self._with(replace(self.ref, spans=tuple(spans), axes=tuple(axes)))

    def _narrow(self, span: Span, key: object) -> tuple[Span, bool]:
        """The part of `span` that `key` picks; whether the axis stays."""
        if isinstance(key, slice):
            if key == slice(None):
                return span, True
            start, size = self._static_slice(span, key)
            picked, keeps = expr.const(start), True
        elif isinstance(key, Slice):
            picked, size, keeps = key.start, key.size, True
        else:
            found = index.as_expr(key)
            if found is None or isinstance(key, bool | np.bool_):
                raise errors.ShapeError(
                    "an HBM view is indexed by something else than it takes",
                    site=here(),
                    got=repr(key),
                    allowed="ints, slices and tl.ds(start, size)",
                )
            picked, size, keeps = found, 1, False
            if picked.is_const and -span.size <= picked.const < 0:
                picked = expr.const(picked.const + span.size)
        # What exists of a view is what lies in it and, where it has a tail, exists.
        low, high = span.start, expr.add(span.start, expr.const(span.size))
        if span.valid is not None:
            low = expr.maximum(low, span.valid[0])
            high = expr.minimum(high, span.valid[1])
        start_expr = expr.add(span.start, picked)
        inside = picked.is_const and 0 <= picked.const <= span.size - size
        if inside and span.valid is None:
            return Span(start_expr, size), keeps
        return Span(start_expr, size, (low, high)), keeps

    def _static_slice(self, span: Span, key: slice) -> tuple[int, int]:
        if key.step not in (None, 1):
            raise errors.ShapeError(
                "a view has step 1",
                site=here(),
                got=f"step {key.step}",
                remedy="Load the rows and select with tl.where, or store a strided "
                "array as more axes",
            )
        ends = []
        for end, default in ((key.start, 0), (key.stop, span.size)):
            if isinstance(end, Index):
                raise errors.ShapeError(
                    "a slice with a symbolic end has no static size",
                    site=here(),
                    remedy="Use tl.ds(start, size)",
                )
            if end is not None and not isinstance(end, int | np.integer):
                raise errors.ShapeError(
                    "the ends of a slice are integers",
                    site=here(),
                    got=repr(end),
                    allowed="Python integers, or tl.ds(start, size)",
                )
            value = default if end is None else int(end)
            # Python clamps here; a PE would not, so only the sign is Python's.
            ends.append(value + span.size if value < 0 else value)
        return ends[0], max(ends[1] - ends[0], 0)

    def __setitem__(self, key: object, value: object) -> None:
        raise errors.MemorySpaceError(
            f"{self.spec.name} is in HBM and is not assigned to",
            site=here(),
            remedy="Write it with tl.store(view, tile)",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _needs_load
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _needs_load
    __mod__ = __rmod__ = __pow__ = __rpow__ = __and__ = __or__ = _needs_load
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _needs_load
    __neg__ = __pos__ = __abs__ = __invert__ = __matmul__ = __rmatmul__ = _needs_load
    __bool__ = __iter__ = __float__ = __int__ = __index__ = __complex__ = _needs_load
    __array__ = __round__ = __contains__ = _needs_load

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *_: object, **__: Any
    ) -> Any:
        raise _foreign(f"numpy.{ufunc.__name__}", self)

    @property
    def __jax_array__(self) -> Any:  # JAX asks for it before anything else
        raise _foreign("JAX", self)

    def __len__(self) -> int:
        return self.shape[0]

    def __str__(self) -> str:
        return f"{self.ref} of {type_text(self.spec.shape, self.spec.dtype)}"

    __repr__ = __str__


class HbmTensor(HbmView):
    """A kernel argument: a whole tensor in HBM."""

    __slots__ = ()

    def __init__(self, spec: TensorSpec, slot: int) -> None:
        spans = tuple(Span(expr.ZERO, size) for size in spec.shape)
        axes = tuple(range(len(spec.shape)))
        ref = HbmRef(slot, spec.name, spans, axes, spec.dtype)
        super().__init__(spec, ref)
