"""TLContext, the `tl` that a kernel programs: checks at the kernel's line, allocates,
and emits exactly one command a call.

Elementwise and reduction methods are made from the rows of the op table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from kbjax import dtypes, errors, handle, index, ops
from kbjax.dtypes import DType
from kbjax.handle import HbmView, Slice, TensorHandle
from kbjax.index import Index
from kbjax.program import (
    Command,
    CopyCmd,
    LoadCmd,
    Operand,
    OpCmd,
    Ref,
    Scalar,
    Shape,
    Span,
    StoreCmd,
    type_text,
)
from kbjax.recorder import Checks, Recorder
from kbjax.site import Site, here


@dataclass
class _ScopeGuard:
    """What `with tl.scratch_scope():` enters."""

    recorder: Recorder
    name: str
    site: Site
    mark: int = 0

    def __enter__(self) -> None:
        self.mark = self.recorder.open_scope(self.site)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.recorder.close_scope(self.name, self.site, self.mark)


class TLContext:
    """The kernel's first argument. One method a Triton-like operation."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        num_pes: int = 1,
        writable: frozenset[int] = frozenset(),
        checks: Checks = "error",
    ) -> None:
        self._recorder, self._num_pes = recorder, num_pes
        self._writable, self._checks = writable, checks
        self.stored_slots: set[int] = set()
        self.contract_kept = checks != "off"

    if TYPE_CHECKING:  # the methods made from the op table

        def __getattr__(self, name: str) -> Callable[..., TensorHandle]: ...

    # --- memory ----------------------------------------------------------------------

    def load(self, view: HbmView, other: Scalar | None = None) -> TensorHandle:
        """Bring an HBM view into a fresh tile.

        Args:
          view: a kernel argument or a slice of one.
          other: fills elements outside the tensor; without it the view must be proven
            to lie inside.

        Raises:
          MemorySpaceError: when `view` is already a tile.
          OutOfBoundsError: when the view leaves its tensor in an iteration that runs.
          ScratchOverflowError: when the tile does not fit.
        """
        site = self._recorder.enter_call()
        self._require_hbm("load", view)
        ref = view.ref
        if other is not None:
            other = _python_scalar(other)
            if other is None:
                raise errors.DTypeError("load takes a number as other", site=site)
            ops.TABLE["full"].infer([other], {"shape": (), "dtype": ref.dtype})
        spans = self._proven_spans(view, "load", "other=", fill=other is not None)
        ref = replace(ref, spans=spans)
        if 0 in ref.shape:
            raise errors.ShapeError(
                "load of an empty view: a tile has at least one element",
                site=site,
                got=f"{view}, shape {ref.shape}",
            )
        out = self._allocate("load", ref.shape, ref.dtype, site)
        filling = other if ref.has_tail else None
        self._emit(LoadCmd(view=ref, out=out.ref, other=filling, **self._now(site)))
        return out

    def store(
        self, view: HbmView, tile: TensorHandle, boundary_check: bool = False
    ) -> None:
        """Write a tile to an HBM view of the same shape and dtype.

        Args:
          view: an output, or an input that an output aliases, or a slice of one.
          tile: what to write.
          boundary_check: drop the elements that fall outside the tensor; without it
            the view must be proven to lie inside.

        Raises:
          MemorySpaceError, ShapeError, DTypeError, OutOfBoundsError: at this line.
          KernelError: for an input that no output aliases.
        """
        site = self._recorder.enter_call()
        self._require_hbm("store", view)
        if view.ref.slot not in self._writable:
            raise errors.KernelError(
                f"store to the input {view.spec.name}",
                site=site,
                remedy="Store to an output, or alias the input to one with "
                "input_output_aliases",
            )
        src = self._read("store", tile, site)
        if src.shape != view.shape:
            raise errors.ShapeError(
                "store needs a tile of the view's shape",
                site=site,
                got=f"tile {src.shape}, view {view.shape} of {view.spec.name}",
                remedy="Slice the view with tl.ds, or reshape the tile",
            )
        if src.dtype != view.dtype:
            raise errors.DTypeError(
                f"store of {src.dtype} to the {view.dtype} tensor {view.spec.name}",
                site=site,
                remedy=f'Convert with tile.to("{view.dtype}")',
            )
        spans = self._proven_spans(
            view, "store", "boundary_check=True", fill=boundary_check
        )
        self.stored_slots.add(view.ref.slot)
        ref = replace(view.ref, spans=spans)
        self._emit(StoreCmd(view=ref, src=src, **self._now(site)))

    def empty(self, shape: object, dtype: object = "float32") -> TensorHandle:
        """A tile of unwritten bytes; no command. Write it before it is read."""
        site = self._recorder.enter_call()
        return self._allocate(
            "empty", self._shape(shape, site), self._dtype(dtype, site), site
        )

    def zeros(self, shape: object, dtype: object = "float32") -> TensorHandle:
        """A tile of zeros, shape `shape`."""
        site = self._recorder.enter_call()
        attrs = {"shape": self._shape(shape, site), "dtype": self._dtype(dtype, site)}
        return self._apply("zeros", (), attrs, site)

    def full(
        self, shape: object, value: Scalar | Index, dtype: object = "float32"
    ) -> TensorHandle:
        """A tile of one value, a number or a symbolic integer."""
        site = self._recorder.enter_call()
        attrs = {"shape": self._shape(shape, site), "dtype": self._dtype(dtype, site)}
        if isinstance(value, TensorHandle):
            raise errors.DTypeError(
                "full takes a number",
                site=site,
                got=str(value),
                remedy="Use tl.broadcast_to(tile, shape)",
            )
        return self._apply("full", (value,), attrs, site)

    def arange(self, start: int, stop: int | None = None) -> TensorHandle:
        """``start .. stop - 1`` (or ``0 .. start - 1``) as int32, shape (stop - start,).

        Both ends are static.
        """
        site = self._recorder.enter_call()
        low, high = (0, start) if stop is None else (start, stop)
        ends = [self._static(end, "arange", site) for end in (low, high)]
        shape = self._shape((ends[1] - ends[0],), site)
        attrs = {"shape": shape, "dtype": dtypes.INT32, "start": ends[0]}
        return self._apply("arange", (), attrs, site)

    def copy_to(self, dst: TensorHandle, src: TensorHandle) -> None:
        """Copy the bytes of `src` to the address of `dst`; both live in TCM.

        Raises:
          ShapeError, DTypeError, MemorySpaceError: where they differ.

        Source: ADR-0063, D3.1.
        """
        site = self._recorder.enter_call()
        read = self._read("copy_to", src, site)
        write = self._tile("copy_to", dst, site)
        if write.shape != read.shape:
            raise errors.ShapeError(
                "copy_to needs tiles of one shape",
                site=site,
                got=f"dst {write.shape}, src {read.shape}",
            )
        if write.dtype != read.dtype:
            raise errors.DTypeError(
                f"copy_to of {read.dtype} into {write.dtype}",
                site=site,
                remedy=f'Convert with src.to("{write.dtype}"), or make dst {read.dtype}',
            )
        self._emit(CopyCmd(src=read, dst=write, nbytes=read.nbytes, **self._now(site)))

    def scratch_scope(self, name: str = "") -> _ScopeGuard:
        """``with tl.scratch_scope():`` rewinds the cursor at its end (ADR-0063, D1)."""
        return _ScopeGuard(self._recorder, str(name), self._recorder.enter_call())

    # --- matrices, shapes, types -----------------------------------------------------

    def dot(self, a: TensorHandle, b: TensorHandle) -> TensorHandle:
        """(M, K) x (K, N) on the GEMM engine, accumulated and given in float32."""
        site = self._recorder.enter_call()
        # The data phase lowers a product with a transpose the same way in every
        # fidelity; which operand was made by trans is part of the program.
        made = tuple(getattr(x, "made_by", "") == "trans" for x in (a, b))
        return self._apply("dot", (a, b), {"transposed": made}, site)

    def trans(self, x: TensorHandle) -> TensorHandle:
        """The transpose of a tile of 2 axes: a math op with a slice of its own."""
        return self.apply("trans", x)

    def softmax(self, x: TensorHandle, axis: int = -1) -> TensorHandle:
        """exp(x - max) / sum along `axis`, in float32, given in x's dtype."""
        return self.apply("softmax", x, axis=axis)

    def cast(self, x: TensorHandle, dtype: object) -> TensorHandle:
        """x in another dtype, with one rounding; x itself where it has that dtype."""
        site = self._recorder.enter_call()
        wanted = self._dtype(dtype, site)
        if self._tile("cast", x, site).dtype == wanted:
            return x
        return self._apply("cast", (x,), {"dtype": wanted.name}, site)

    def broadcast_to(self, x: TensorHandle, shape: object) -> TensorHandle:
        """x repeated to `shape` by NumPy's rules: a math op."""
        site = self._recorder.enter_call()
        return self._apply(
            "broadcast_to", (x,), {"shape": self._shape(shape, site)}, site
        )

    def reshape(self, x: TensorHandle, shape: object) -> TensorHandle:
        """The same bytes under another shape; one size may be -1. No command."""
        site = self._recorder.enter_call()
        ref = self._tile("reshape", x, site)
        sizes = list(_as_tuple(shape))
        if sizes.count(-1) == 1:
            known = math.prod(size for size in sizes if size != -1)
            sizes[sizes.index(-1)] = ref.size // known if known else 0
        wanted = self._shape(sizes, site)
        if math.prod(wanted) != ref.size:
            raise errors.ShapeError(
                "reshape keeps the number of elements",
                site=site,
                got=f"{ref.shape} to {tuple(_as_tuple(shape))}",
            )
        return self._alias(x, replace(ref, shape=wanted), "reshape", site)

    def expand_dims(self, x: TensorHandle, axis: int) -> TensorHandle:
        """The same bytes with an axis of size 1 at `axis`. No command."""
        site = self._recorder.enter_call()
        ref = self._tile("expand_dims", x, site)
        at = ops.normalised_axis("expand_dims", axis, len(ref.shape) + 1)
        shape = (*ref.shape[:at], 1, *ref.shape[at:])
        return self._alias(x, replace(ref, shape=shape), "expand_dims", site)

    def view_of(self, x: TensorHandle, key: object) -> TensorHandle:
        """`x[key]`: None adds an axis, `tl.ds` or a slice narrows the leading axis."""
        site = self._recorder.enter_call()
        ref = self._tile("indexing", x, site)
        offset, shape, axis = ref.offset, [], 0
        for one in key if isinstance(key, tuple) else (key,):
            if one is None:
                shape.append(1)
                continue
            if axis >= len(ref.shape):
                raise errors.ShapeError(
                    f"too many indices into a tile of {len(ref.shape)} axes", site=site
                )
            if isinstance(one, slice) and one == slice(None):
                shape.append(ref.shape[axis])
            else:
                first, size = self._leading(one, axis, ref, site)
                row = math.prod(ref.shape[1:]) * ref.dtype.nbytes
                offset = index.add(offset, index.scale(first, row))
                shape.append(size)
            axis += 1
        full = (*shape, *ref.shape[axis:])
        return self._alias(x, replace(ref, offset=offset, shape=full), "view", site)

    def _leading(
        self, key: object, axis: int, ref: Ref, site: Site
    ) -> tuple[index.Expr, int]:
        rows = ref.shape[0]
        if isinstance(key, slice) and key.step in (None, 1):
            ends = [0 if key.start is None else key.start, key.stop]
            ends[1] = rows if key.stop is None else key.stop
            low, high = (self._static(end, "a slice", site) for end in ends)
            low, high = (end + rows if end < 0 else end for end in (low, high))
            key = Slice(index.const(low), high - low)
        if axis != 0 or not isinstance(key, Slice) or key.size < 1:
            raise errors.ShapeError(
                "a tile is indexed by None, and by slices of at least one row on its "
                "leading axis",
                site=site,
                got=str(key),
                remedy="Select elements with tl.where and tl.arange, or slice the HBM "
                "view before loading it",
            )
        first = self._recorder.use_index(key.start, site)
        too_low = index.predicate("lt", first, index.ZERO)
        last = index.add(first, index.const(key.size))
        too_high = index.predicate("lt", index.const(rows), last)
        for bad in (too_low, too_high):
            decided, where = self._recorder.domain.find(bad)
            if not decided or where is not None:
                raise errors.OutOfBoundsError(
                    f"rows {first}:+{key.size} leave a tile of {rows} rows"
                    f"{index.iteration_text(where)}",
                    site=site,
                )
        return first, key.size

    # --- control ---------------------------------------------------------------------

    ds = staticmethod(handle.ds)

    def range(
        self, start: int | Index, stop: int | Index | None = None, step: int = 1
    ) -> Iterator[Index]:
        """A rolled loop: the body is recorded once, whatever the trip count.

        Ends may be symbolic; the step is static and not 0.
        """
        site = self._recorder.enter_call()
        low, high = (0, start) if stop is None else (start, stop)
        ends = []
        for end in (low, high):
            value = index.as_expr(end)
            if value is None:
                raise errors.ShapeError(
                    "tl.range counts integers", site=site, got=repr(end)
                )
            ends.append(self._recorder.use_index(value, site))
        return self._recorder.loop(
            ends[0], ends[1], self._step(step, "tl.range", site), site
        )

    def static_range(self, start: int, stop: int | None = None, step: int = 1) -> range:
        """Python's own range: the body is unrolled when recorded."""
        site = self._recorder.enter_call()
        low, high = (0, start) if stop is None else (start, stop)
        ends = [self._static(end, "tl.static_range", site) for end in (low, high)]
        return range(*ends, self._step(step, "tl.static_range", site))

    def _step(self, step: object, op: str, site: Site) -> int:
        value = self._static(step, op, site)
        if value == 0:
            raise errors.ShapeError(f"{op} with step 0 never ends", site=site)
        return value

    def program_id(self) -> Index:
        """The number of this PE, symbolic: 0 to num_programs() - 1."""
        self._recorder.enter_call()
        return Index(index.var(self._recorder.program_id), self._recorder.domain)

    def num_programs(self) -> int:
        """How many PEs run this kernel."""
        self._recorder.enter_call()
        return self._num_pes

    def cdiv(self, a: int | Index, b: int | Index) -> Any:
        """ceil(a / b) of two integers, symbolic where one of them is."""
        site = self._recorder.enter_call()
        pair = [index.as_expr(x) for x in (a, b)]
        if pair[0] is None or pair[1] is None:
            raise errors.ShapeError("cdiv divides integers", site=site, got=f"{a}, {b}")
        if pair[1] == index.ZERO:
            raise errors.ShapeError("cdiv by 0", site=site, got=f"cdiv({a}, 0)")
        if pair[0].is_const and pair[1].is_const:
            return -(-pair[0].const // pair[1].const)
        return (a + (b - 1)) // b if index.bounds(pair[1])[0] > 0 else -(-a // b)

    # --- the op table ----------------------------------------------------------------

    def apply(self, name: str, *operands: object, **attrs: Any) -> Any:
        """Record op `name` of the table; what the `tl` methods and operators call."""
        site = self._recorder.enter_call()
        if name in ("minimum", "maximum") and len(operands) == 2:
            symbolic = _integers(name, operands)
            if symbolic is not None:
                return symbolic
        row = ops.TABLE[name]
        if len(operands) != len(row.parameters):
            raise errors.KernelError(
                f"{name} takes {len(row.parameters)} operands: "
                f"{', '.join(row.parameters)}",
                site=site,
                got=len(operands),
            )
        if not any(isinstance(x, TensorHandle | HbmView) for x in operands):
            raise errors.DTypeError(
                f"{name} needs a tile among its operands",
                site=site,
                got=", ".join(map(repr, operands)),
                remedy="Make one with tl.full",
            )
        return self._apply(name, operands, attrs, site)

    def _apply(
        self, name: str, operands: Sequence[object], attrs: dict[str, Any], site: Site
    ) -> TensorHandle:
        row = ops.TABLE[name]
        commanded: list[Operand] = [self._operand(name, x, site) for x in operands]
        arguments: list[ops.Argument] = [
            ops.Tile(x.shape, x.dtype) if isinstance(x, Ref) else x for x in commanded
        ]
        signature = row.infer(arguments, attrs)
        out = self._allocate(name, signature.shape, signature.dtype, site)
        frozen = tuple(
            (key, value.name if isinstance(value, DType) else value)
            for key, value in attrs.items()
        )
        self._emit(
            OpCmd(
                op=name,
                operands=tuple(commanded),
                out=out.ref,
                attrs=frozen,
                **self._now(site),
            )
        )
        return out

    def _operand(self, op: str, value: object, site: Site) -> Operand:
        if isinstance(value, TensorHandle):
            return self._read(op, value, site)
        if isinstance(value, Index):
            return self._recorder.use_index(value.expr, site)
        scalar = _python_scalar(value)
        if scalar is not None:
            return scalar
        self._tile(op, value, site)  # raises: it is none
        raise AssertionError("unreachable")

    # --- checks and state ------------------------------------------------------------

    def _tile(self, op: str, value: object, site: Site) -> Ref:
        """The bytes of a tile that may be written; its lifetime is checked."""
        if isinstance(value, HbmView):
            raise errors.MemorySpaceError(
                f"{op} works on tiles in TCM, and {value} is in HBM",
                site=site,
                remedy="tl.load it first",
            )
        if not isinstance(value, TensorHandle):
            array = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
            kind = errors.MemorySpaceError if array else errors.DTypeError
            raise kind(
                f"{op} takes tiles and numbers",
                site=site,
                got=f"a {type(value).__name__}",
                remedy="Pass arrays to the kernel as arguments and tl.load them"
                if array
                else "",
            )
        if value._context is not self:
            raise errors.KernelError(
                f"{op} was given a tile of another kernel run",
                site=site,
                got=str(value),
            )
        problem = self._recorder.lifetime_error(value, site)
        if problem is not None:
            self._complain(problem)
        return value.ref

    def _read(self, op: str, value: object, site: Site) -> Ref:
        """The bytes of a tile that is read: alive and written to."""
        ref = self._tile(op, value, site)
        if ref.root not in self._recorder.written:
            assert isinstance(value, TensorHandle)
            self._complain(
                errors.UninitializedReadError(
                    f"{op} reads a tile that nothing has been written to",
                    site=site,
                    got=str(value),
                    remedy="Write it with tl.copy_to first, or make it with tl.zeros",
                )
            )
        return ref

    def _complain(self, problem: errors.KbjaxError) -> None:
        """Raise, warn or pass, as `checks` says. What passes needs exact replay."""
        if self._checks == "error" or isinstance(problem, errors.KernelError):
            raise problem
        self.contract_kept = False
        if self._checks == "warn":
            warnings.warn(str(problem), stacklevel=2)

    def _require_hbm(self, op: str, view: object) -> None:
        if not isinstance(view, HbmView):
            raise errors.MemorySpaceError(
                f"{op} takes an HBM view",
                site=here(),
                got=str(view) if isinstance(view, TensorHandle) else repr(view),
                remedy="Use the tile as it is; only kernel arguments are in HBM"
                if isinstance(view, TensorHandle)
                else "Pass a kernel argument or a slice of one",
            )

    def _proven_spans(
        self, view: HbmView, op: str, remedy: str, fill: bool
    ) -> tuple[Span, ...]:
        """The view's spans, those proven to lie inside marked so.

        A span that is not proven keeps its valid range where `fill` says what to do
        with the tail, and is an error elsewhere.
        """
        return tuple(
            span
            if span.valid is None
            else self._proven_span(view, axis, span, op, remedy, fill)
            for axis, span in enumerate(view.ref.spans)
        )

    def _proven_span(
        self, view: HbmView, axis: int, span: Span, op: str, remedy: str, fill: bool
    ) -> Span:
        site = here()
        assert span.valid is not None
        low, high = (self._recorder.use_index(end, site) for end in span.valid)
        start = self._recorder.use_index(span.start, site)
        end = index.add(start, index.const(span.size))
        for first, last in ((low, start), (end, high)):  # first <= last must hold
            if index.bounds(index.sub(last, first))[0] >= 0:
                continue
            if fill:
                return span
            bad = index.predicate("lt", last, first)
            decided, where = self._recorder.domain.find(bad)
            if decided and where is None:
                continue
            at: object = start
            if where is not None:
                at = index.evaluate(start, where)
            verb = "leaves" if decided else "cannot be proven to stay inside"
            raise errors.OutOfBoundsError(
                f"{op} of {view.spec.name} {verb} the tensor"
                f"{index.iteration_text(where)}",
                site=site,
                got=f"{span.size} elements from {at} along axis {axis} of "
                f"{type_text(view.spec.shape, view.spec.dtype)}",
                allowed=f"elements {low} to {high}, end excluded",
                remedy=f"Pass {remedy} to say what happens past the end",
            )
        return replace(span, valid=None)

    def _allocate(
        self, op: str, shape: Shape, dtype: DType, site: Site
    ) -> TensorHandle:
        made = self._recorder.arena.allocate(op, shape, dtype, site)
        ref = Ref(made.uid, index.ZERO, shape, dtype)
        return TensorHandle(self, made, ref, op, site)

    def _alias(
        self, x: TensorHandle, ref: Ref, made_by: str, site: Site
    ) -> TensorHandle:
        del site  # an alias is made where its base is made
        return TensorHandle(self, x.allocation, ref, made_by, x.site)

    def _emit(self, command: Command) -> None:
        if command.writes is not None:
            self._recorder.mark_written(command.writes)
        self._recorder.emit(command)  # type: ignore[arg-type]

    def _now(self, site: Site) -> dict[str, Any]:
        arena = self._recorder.arena
        return {
            "site": site,
            "scope_depth": arena.scope_depth,
            "cursor_bytes": arena.cursor,
        }

    def _static(self, value: object, op: str, site: Site) -> int:
        found = index.as_expr(value)
        if found is None or not found.is_const:
            raise errors.ShapeError(
                f"{op} takes static integers",
                site=site,
                got=repr(value),
                remedy="Use tl.range or tl.ds where the value is symbolic"
                if found is not None
                else "",
            )
        return found.const

    def _shape(self, shape: object, site: Site) -> Shape:
        sizes = tuple(self._static(s, "a shape", site) for s in _as_tuple(shape))
        if any(size < 1 for size in sizes):
            raise errors.ShapeError(
                "a tile has at least one element along every axis",
                site=site,
                got=f"shape {sizes}",
            )
        return sizes

    def _dtype(self, dtype: object, site: Site) -> DType:
        try:
            return dtypes.of(dtype)
        except errors.DTypeError as error:
            raise errors.DTypeError(
                error.problem, site=site, allowed=error.allowed
            ) from None


def _as_tuple(shape: object) -> Sequence[Any]:
    return shape if isinstance(shape, tuple | list) else (shape,)


def _python_scalar(value: object) -> Scalar | None:
    """A Python or NumPy number as a Python one; else None."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, bool | int | float) else None


def _integers(name: str, operands: Sequence[object]) -> Any:
    """min or max of integers, symbolic where one is; None where one is no integer."""
    a, b = operands
    if isinstance(a, Index) and index.as_expr(b) is not None:
        return getattr(a, name)(b)
    if isinstance(b, Index) and index.as_expr(a) is not None:
        return getattr(b, name)(a)
    return None


def _install_methods() -> None:
    """`tl.exp(x)`, `tl.sum(x, axis)` ... from the rows of the op table."""

    def elementwise(row: ops.Op) -> Callable[..., Any]:
        def method(self: TLContext, *operands: object) -> Any:
            return self.apply(row.name, *operands)

        return method

    def reduction(row: ops.Op) -> Callable[..., Any]:
        def method(
            self: TLContext, x: object, axis: int | None = None, keepdims: bool = False
        ) -> Any:
            return self.apply(row.name, x, axis=axis, keepdims=keepdims)

        return method

    for row in ops.TABLE.values():
        make = {"elementwise": elementwise, "reduction": reduction}.get(row.group)
        if make is None or row.name in handle.BINARY_OPERATORS.values():
            continue
        method = make(row)
        shown = ", ".join(row.parameters)
        if row.group == "reduction":
            shown += ", axis=None, keepdims=False"
        method.__name__, method.__qualname__ = row.name, f"TLContext.{row.name}"
        method.__doc__ = f"``{row.name}({shown})``: {row.doc}"
        setattr(TLContext, row.name, method)


_install_methods()
