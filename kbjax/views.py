"""HbmTensor and HbmView, a kernel's tensors in HBM, and `ds`, which slices them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from kbjax import domain, errors, expr, index
from kbjax.dtypes import Shape, type_text
from kbjax.expr import Expr
from kbjax.handle import TensorHandle, foreign
from kbjax.index import Index
from kbjax.program import TensorSpec
from kbjax.refs import HbmRef, Span
from kbjax.site import here

if TYPE_CHECKING:
    from kbjax.dtypes import DType


@dataclass(frozen=True)
class Slice:
    """``ds(start, size)``: `size` elements from `start`, which may be symbolic, or from
    what the tile `by` holds."""

    start: Expr
    size: int
    by: TensorHandle | None = None


def ds(start: object, size: object) -> Slice:
    """A slice of static size at a start that may be symbolic, or a tile of one integer.

    Raises:
      ShapeError: when the size is not a non-negative integer, or the start no integer.
      DTypeError: for a tile that holds no integer.
    """
    by = _pointer(start)
    first = expr.ZERO if by is not None else index.as_expr(start)
    if first is None:
        raise errors.ShapeError(
            "ds takes an integer start",
            site=here(),
            got=repr(start),
            allowed="Python and symbolic integers, and tiles of one integer",
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
    return Slice(first, operator.index(size), by)  # type: ignore[arg-type]


def _pointer(value: object) -> TensorHandle | None:
    """The tile that says where a view starts; None where `value` is none.

    Raises:
      ShapeError: for one of several elements. DTypeError: for one of no integer.
    """
    if not isinstance(value, TensorHandle):
        return None
    if math.prod(value.shape) != 1:
        raise errors.ShapeError(
            "a tile that says where a view starts holds one element",
            site=here(),
            got=f"shape {value.shape}",
            remedy="Load the one element, as table[tl.ds(j, 1)], and index with it",
        )
    if value.dtype.kind != "int":
        raise errors.DTypeError(
            f"a {value.dtype} tile does not say where a view starts",
            site=here(),
            allowed="integers",
            remedy='Convert it with .to("int32")',
        )
    return value


def _needs_load(self: HbmView, *_: object) -> Any:
    raise errors.MemorySpaceError(
        f"{self} is in HBM, and arithmetic works on tiles in TCM",
        site=here(),
        remedy="tl.load it first",
    )


class HbmView:
    """A rectangle of an HBM tensor: `x[...]` with ints, slices and `tl.ds`; `.T`.

    A tile of one integer picks what its data says: `x[page]`, `x[tl.ds(first, 16)]`.
    `pointers` are these tiles, by tensor axis.
    """

    __slots__ = ("pointers", "ref", "spec")
    __hash__ = object.__hash__
    space = "hbm"

    def __init__(
        self, spec: TensorSpec, ref: HbmRef, pointers: Mapping[int, TensorHandle]
    ) -> None:
        self.spec, self.ref, self.pointers = spec, ref, pointers

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

    def _with(
        self, ref: HbmRef, pointers: Mapping[int, TensorHandle] = MappingProxyType({})
    ) -> HbmView:
        return HbmView(self.spec, ref, {**self.pointers, **pointers})

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
        spans, axes, pointers = list(self.ref.spans), [], {}
        for axis, one in zip(self.ref.axes, keys, strict=True):
            pointer = one.by if isinstance(one, Slice) else _pointer(one)
            spans[axis], keeps = self._narrow(spans[axis], one, pointer)
            if keeps:
                axes.append(axis)
            if pointer is not None:
                pointers[axis] = pointer
        ref = replace(self.ref, spans=tuple(spans), axes=tuple(axes))
        return self._with(ref, pointers)

    def _narrow(
        self, span: Span, key: object, pointer: TensorHandle | None
    ) -> tuple[Span, bool]:
        """The part of `span` that `key` picks; whether the axis stays."""
        if isinstance(key, slice) and key == slice(None):
            return span, True
        if span.by is not None:
            raise errors.ShapeError(
                "a part of what a tile's data picks is not taken again",
                site=here(),
                got=f"{key!r} of {self}",
                remedy="Add to the tile: x[tl.ds(first + 2, 4)]",
            )
        if isinstance(key, slice):
            start, size = self._static_slice(span, key)
            picked, keeps = expr.const(start), True
        elif isinstance(key, Slice):
            picked, size, keeps = key.start, key.size, True
        elif pointer is not None:
            picked, size, keeps = expr.ZERO, 1, False
        else:
            found = index.as_expr(key)
            if found is None or isinstance(key, bool | np.bool_):
                raise errors.ShapeError(
                    "an HBM view is indexed by something else than it takes",
                    site=here(),
                    got=repr(key),
                    allowed="ints, slices, tl.ds(start, size) and tiles of one integer",
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
        if pointer is not None:
            return Span(start_expr, size, (low, high), pointer.ref), keeps
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
        raise foreign(f"numpy.{ufunc.__name__}", self)

    @property
    def __jax_array__(self) -> Any:  # JAX asks for it before anything else
        raise foreign("JAX", self)

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
        super().__init__(spec, ref, {})
