"""Handles that name the bytes of another: reshape, expand_dims, `x[...]`.

No command, no bytes, no time."""

from __future__ import annotations

import math
from dataclasses import replace

from kbjax import errors, expr, signatures
from kbjax.emitter import Emitter, as_tuple
from kbjax.expr import Expr
from kbjax.handle import TensorHandle
from kbjax.refs import Ref
from kbjax.site import Site
from kbjax.views import Slice


class Aliases(Emitter):
    """The part of `tl` that makes aliases. An alias lives as long as its base."""

    def _aliased(self, op: str, x: TensorHandle, site: Site) -> Ref:
        """The bytes that an alias of `x` names: those of `x` in the iteration that made
        it, also where that is over."""
        self._tile(op, x, site)
        return x.ref

    def reshape(self, x: TensorHandle, shape: object) -> TensorHandle:
        """The same bytes under another shape; one size may be -1. No command."""
        site = self._recorder.enter_call()
        ref = self._aliased("reshape", x, site)
        sizes = [self._static(size, "a shape", site) for size in as_tuple(shape)]
        if sizes.count(-1) == 1:
            known = math.prod(size for size in sizes if size != -1)
            sizes[sizes.index(-1)] = ref.size // known if known else 0
        wanted = self._shape(sizes, site)
        if math.prod(wanted) != ref.size:
            raise errors.ShapeError(
                "reshape keeps the number of elements",
                site=site,
                got=f"{ref.shape} to {tuple(as_tuple(shape))}",
                allowed=f"shapes of {ref.size} elements",
            )
        return self._alias(x, replace(ref, shape=wanted), "reshape")

    def expand_dims(self, x: TensorHandle, axis: int) -> TensorHandle:
        """The same bytes with an axis of size 1 at `axis`. No command."""
        site = self._recorder.enter_call()
        ref = self._aliased("expand_dims", x, site)
        at = signatures.normalised_axis("expand_dims", axis, len(ref.shape) + 1)
        shape = (*ref.shape[:at], 1, *ref.shape[at:])
        return self._alias(x, replace(ref, shape=shape), "expand_dims")

    def view_of(self, x: TensorHandle, key: object) -> TensorHandle:
        """`x[key]`: None adds an axis, `tl.ds` or a slice narrows the leading axis."""
        site = self._recorder.enter_call()
        ref = self._aliased("indexing", x, site)
        offset, shape, axis = ref.offset, [], 0
        for one in key if isinstance(key, tuple) else (key,):
            if one is None:
                shape.append(1)
                continue
            if axis >= len(ref.shape):
                raise errors.ShapeError(
                    f"too many indices into a tile of {len(ref.shape)} axes",
                    site=site,
                    allowed=f"{len(ref.shape)}, and None for new axes",
                )
            if isinstance(one, slice) and one == slice(None):
                shape.append(ref.shape[axis])
            else:
                first, size = self._leading(one, axis, ref, site)
                row = math.prod(ref.shape[1:]) * ref.dtype.nbytes
                offset = expr.add(offset, expr.scale(first, row))
                shape.append(size)
            axis += 1
        full = (*shape, *ref.shape[axis:])
        return self._alias(x, replace(ref, offset=offset, shape=full), "view")

    def _leading(
        self, key: object, axis: int, ref: Ref, site: Site
    ) -> tuple[Expr, int]:
        rows = ref.shape[0]
        if isinstance(key, slice) and key.step in (None, 1):
            ends = [0 if key.start is None else key.start, key.stop]
            ends[1] = rows if key.stop is None else key.stop
            low, high = (self._static(end, "a slice", site) for end in ends)
            low, high = (end + rows if end < 0 else end for end in (low, high))
            key = Slice(expr.const(low), high - low)
        if (
            axis != 0
            or not isinstance(key, Slice)
            or key.by is not None
            or key.size < 1
        ):
            raise errors.ShapeError(
                "a tile is indexed by None, and by slices of at least one row on its "
                "leading axis",
                site=site,
                got=str(key),
                remedy="Select elements with tl.where and tl.arange, or slice the HBM "
                "view before loading it",
            )
        first = self._recorder.use_index(key.start, site)
        end, domain = expr.add(first, expr.const(key.size)), self._recorder.domain
        problem = domain.violation(expr.ZERO, first) or domain.violation(
            end, expr.const(rows)
        )
        if problem is not None:
            raise errors.OutOfBoundsError(
                f"rows {first}:+{key.size} leave a tile of {rows} rows{problem}",
                site=site,
                allowed=f"rows 0 to {rows}, end excluded",
            )
        return first, key.size
