"""Emitter, what is behind every `tl` call: checks operands at the kernel's line,
allocates the result, and emits one command."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kbjax import dtypes, errors, expr, index, ops, signatures, usage
from kbjax.domain import Violation
from kbjax.dtypes import DType, Shape, type_text
from kbjax.expr import Expr
from kbjax.futures import NotATile
from kbjax.handle import TensorHandle
from kbjax.index import Index
from kbjax.program import Command, OpCmd, TensorSpec
from kbjax.queues import Slot
from kbjax.recorder import Checks, Recorder
from kbjax.refs import HbmRef, Operand, Ref, Scalar, Span
from kbjax.site import Site, here
from kbjax.views import HbmView

_NAN = float("nan")


class Emitter:
    """The state of one recording, and the checks that all `tl` calls share.

    Attributes:
      needs_exact: True where the scope contract is not promised: under checks="off",
        or once checks="warn" let a break of it pass.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        specs: Sequence[TensorSpec] = (),
        num_pes: int = 1,
        writable: frozenset[int] = frozenset(),
        checks: Checks = "error",
    ) -> None:
        self._recorder, self._num_pes, self._specs = recorder, num_pes, specs
        self._writable, self._checks = writable, checks
        self.needs_exact = checks == "off"

    # --- the op table ----------------------------------------------------------------

    def apply(self, name: str, /, *operands: object, **attrs: Any) -> Any:
        """Record op `name` of the table; what the `tl` methods and operators call."""
        site = self._recorder.enter_call()
        if name in ("minimum", "maximum") and len(operands) == 2:
            symbolic = _integers(name, operands)
            if symbolic is not None:
                return symbolic
        row = ops.TABLE[name]
        unknown = list(attrs) if row.group == "elementwise" else []
        if len(operands) != len(row.parameters) or unknown:
            raise errors.KernelError(
                f"{name} takes {len(row.parameters)} operands",
                site=site,
                got=", ".join([str(len(operands)), *unknown]),
                allowed=f"{name}({', '.join(row.parameters)})",
            )
        if not any(isinstance(x, TensorHandle | HbmView | NotATile) for x in operands):
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
        arguments: list[signatures.Argument] = [self._argument(x) for x in commanded]
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
                operand_dtypes=signature.operand_dtypes,
                out=out.ref,
                attrs=frozen,
                **self._now(site),
            )
        )
        return out

    def _argument(self, x: Operand) -> signatures.Argument:
        """An operand as the table's rules see it."""
        if isinstance(x, Ref):
            return signatures.Tile(x.shape, x.dtype)
        if isinstance(x, Expr):
            return signatures.Symbolic(x, self._recorder.domain)
        return x

    def _operand(self, op: str, value: object, site: Site) -> Operand:
        if isinstance(value, TensorHandle):
            return self._read(op, value, site)
        if isinstance(value, Index):
            return self._recorder.use_index(value.expr, site)
        scalar = python_scalar(value)
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
                remedy="tl.load it first, or write it with tl.store(view, tile)"
                if op == "copy_to"
                else "tl.load it first",
            )
        if isinstance(value, NotATile):
            raise value.not_a_tile()
        if not isinstance(value, TensorHandle):
            array = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
            kind = errors.MemorySpaceError if array else errors.DTypeError
            raise kind(
                f"{op} cannot take a {type(value).__name__} here",
                site=site,
                got=shown(value),
                remedy="Pass arrays to the kernel as arguments and tl.load them"
                if array
                else "Make a tile with tl.full or tl.load",
            )
        if value._context is not self:
            raise errors.KernelError(
                f"{op} was given a tile of another kernel run",
                site=site,
                got=str(value),
                remedy="Make tiles inside the kernel that uses them",
            )
        recorder = self._recorder
        problem = usage.lifetime_error(
            value, recorder.arena, recorder.domain, recorder.before, site
        )
        if problem is None:
            if isinstance(value.lease, Slot):
                recorder.use_slot(value, value.lease, site)
            recorder.use_index(value.ref.offset, site)
            return value.ref
        self._complain(problem)
        return usage.last_bytes(
            value, recorder.arena, recorder.program_id, recorder.domain
        )

    def _read(self, op: str, value: object, site: Site) -> Ref:
        """The bytes of a tile that is read: alive, written to, and not in flight."""
        ref = self._tile(op, value, site)
        recorder = self._recorder
        if recorder.runs:
            recorder.flights.check_read(op, ref, recorder.domain, site)
        if not recorder.is_written(ref):
            assert isinstance(value, TensorHandle)
            self._complain(
                errors.UninitializedReadError(
                    f"{op} reads bytes of a tile that are not certain to be written",
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
        self.needs_exact = True
        if self._checks == "warn":
            site = problem.site or here()
            warnings.warn_explicit(str(problem), UserWarning, site.file, site.line)

    def _require_hbm(self, op: str, view: object) -> None:
        if isinstance(view, HbmView) and view.spec not in self._specs:
            raise errors.KernelError(
                f"{op} was given a tensor of another kernel run",
                site=here(),
                got=str(view),
                remedy="Use the kernel's own arguments",
            )
        if not isinstance(view, HbmView):
            raise errors.MemorySpaceError(
                f"{op} takes an HBM view",
                site=here(),
                got=shown(view),
                remedy="Use the tile as it is; only kernel arguments are in HBM"
                if isinstance(view, TensorHandle)
                else "Pass a kernel argument or a slice of one",
            )

    def _require_writable(self, op: str, view: HbmView, site: Site) -> None:
        if view.ref.slot not in self._writable:
            raise errors.KernelError(
                f"{op} to the input {view.spec.name}",
                site=site,
                remedy="Store to an output, or alias the input to one with "
                "input_output_aliases",
            )

    def _proven(self, op: str, view: HbmView, remedy: str, fill: bool) -> HbmRef:
        """The view with each span that is proven to lie inside marked so.

        A span that is not proven keeps its valid range where `fill` says what to do
        with the tail.

        Raises:
          OutOfBoundsError: for one that is not proven elsewhere.
        """
        spans = []
        for axis, span in enumerate(view.ref.spans):
            self._recorder.use_index(span.start, here())
            if span.by is not None:
                by = self._read(op, view.pointers[axis], here())
                spans.append(replace(span, by=by))
                continue
            problem = self._leaves(span)
            if problem is None:
                spans.append(replace(span, valid=None))
            elif fill:
                spans.append(span)
            else:
                raise self._out_of_bounds(op, view, axis, problem, remedy)
        return replace(view.ref, spans=tuple(spans))

    def _leaves(self, span: Span) -> Violation | None:
        """The first iteration in which the span leaves its valid range, if any."""
        if span.valid is None:
            return None
        low, high = span.valid
        end = expr.add(span.start, expr.const(span.size))
        domain = self._recorder.domain
        return domain.violation(low, span.start) or domain.violation(end, high)

    def _out_of_bounds(
        self, op: str, view: HbmView, axis: int, problem: Violation, remedy: str
    ) -> errors.OutOfBoundsError:
        span = view.ref.spans[axis]
        assert span.valid is not None
        low, high = span.valid
        start: object = span.start
        if problem.iteration is not None:
            start = expr.evaluate(span.start, problem.iteration)
        verb = "leaves" if problem.decided else "cannot be proven to stay inside"
        return errors.OutOfBoundsError(
            f"{op} of {view.spec.name} {verb} the tensor{problem}",
            site=here(),
            got=f"{span.size} elements from {start} along axis {axis} of "
            f"{type_text(view.spec.shape, view.spec.dtype)}",
            allowed=f"elements {low} to {high}, end excluded",
            remedy=remedy,
        )

    def _allocate(
        self, op: str, shape: Shape, dtype: DType, site: Site, slots: int = 0
    ) -> TensorHandle:
        made, lease = self._recorder.arena.allocate(op, shape, dtype, site, slots)
        ref = Ref(made.uid, expr.ZERO, shape, dtype)
        return TensorHandle(self, made, ref, op, lease, made.loops)

    def _alias(self, x: TensorHandle, ref: Ref, made_by: str) -> TensorHandle:
        loops = self._recorder.domain.loops
        return TensorHandle(self, x.allocation, ref, made_by, x.lease, loops)

    def _emit(self, command: Command) -> None:
        recorder, ref = self._recorder, command.writes
        if ref is not None:
            if recorder.runs:
                domain, site = recorder.domain, command.site
                recorder.flights.check_write(command.op, ref, domain, site)
            recorder.mark_written(ref)
        recorder.emit(command)  # type: ignore[arg-type]

    def _now(self, site: Site) -> dict[str, Any]:
        arena = self._recorder.arena
        return {
            "site": site,
            "scope_depth": arena.innermost.scope_depth,
            "cursor_bytes": arena.cursor,
        }

    def _static(
        self,
        value: object,
        op: str,
        site: Site,
        if_symbolic: str = "Use tl.range or tl.ds where the value is symbolic",
    ) -> int:
        truth = isinstance(value, bool | np.bool_)
        found = None if truth else index.as_expr(value)
        if found is None or not found.is_const:
            raise errors.ShapeError(
                f"{op} takes static integers",
                site=site,
                got=repr(value),
                remedy="Give Python integers" if found is None else if_symbolic,
            )
        return found.const

    def _shape(self, shape: object, site: Site) -> Shape:
        sizes = tuple(self._static(s, "a shape", site) for s in as_tuple(shape))
        if any(size < 1 for size in sizes):
            raise errors.ShapeError(
                "a tile has at least one element along every axis",
                site=site,
                got=f"shape {sizes}",
                allowed="sizes of at least 1",
            )
        return sizes

    def _dtype(self, dtype: object, site: Site) -> DType:
        try:
            return dtypes.of(dtype)
        except errors.DTypeError as error:
            raise errors.DTypeError(
                error.problem, site=site, allowed=error.allowed
            ) from None


def shown(value: object) -> str:
    """A value in a message: an array by its type, anything else shortly."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return str(value) if hasattr(value, "space") else _array_text(value)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _array_text(array: Any) -> str:
    sizes = ",".join(map(str, array.shape))
    return f"an array {array.dtype}[{sizes}]"


def as_tuple(shape: object) -> Sequence[Any]:
    return shape if isinstance(shape, tuple | list) else (shape,)


def python_scalar(value: object) -> Scalar | None:
    """A Python or NumPy number as a Python one; else None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value != value:
        return _NAN  # one object, so that equal commands compare equal
    return value if isinstance(value, bool | int | float) else None


def _integers(name: str, operands: Sequence[object]) -> Any:
    """min or max of integers, symbolic where one is; None where one is no integer."""
    a, b = operands
    values = [index.as_expr(x) for x in operands]
    if all(value is not None and value.is_const for value in values):
        pick = min if name == "minimum" else max
        return pick(value.const for value in values if value is not None)
    if isinstance(a, Index) and index.as_expr(b) is not None:
        return getattr(a, name)(b)
    if isinstance(b, Index) and index.as_expr(a) is not None:
        return getattr(b, name)(a)
    return None
