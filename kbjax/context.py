"""TLContext, the `tl` that a kernel programs: checks at the kernel's line, allocates,
and emits one command a call (that of a `recv` at its wait).

Elementwise and reduction methods are made from the rows of the op table.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any

from kbjax import dtypes, errors, expr, index, ops, surface, views
from kbjax.blocks import RolledRange, ScopeGuard
from kbjax.buffers import CircularBuffer
from kbjax.composites import Composites
from kbjax.emitter import shown
from kbjax.futures import LoadFuture, SendFuture
from kbjax.handle import BINARY_OPERATORS, TensorHandle
from kbjax.index import Index
from kbjax.names import nearest
from kbjax.program import CopyCmd
from kbjax.refs import Scalar
from kbjax.site import ScopeLine, Site, here


class TLContext(Composites):
    """The kernel's first argument. One method a Triton-like operation."""

    def __getattr__(self, name: str) -> Callable[..., TensorHandle]:
        """For mypy, a method made from the op table; at run time, none is missing."""
        if name.startswith("_"):
            raise AttributeError(name)
        public = [n for n in dir(self) if not n.startswith("_")]
        raise errors.UnknownOpError(
            f"tl has no {name!r}",
            site=here(),
            allowed="what docs/ops.md lists",
            remedy=f"The nearest is tl.{nearest(name, public)}",
        )

    # --- memory ----------------------------------------------------------------------

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
        """``start .. stop - 1`` (``0 .. start - 1``) as int32, shape (stop - start,).

        Both ends are static.
        """
        site = self._recorder.enter_call()
        low, high = (0, start) if stop is None else (start, stop)
        ends = [self._static(end, "arange", site) for end in (low, high)]
        if not all(dtypes.INT32.holds(one) for one in (ends[0], ends[1] - 1)):
            raise errors.DTypeError(
                "arange counts in int32",
                site=site,
                got=f"{ends[0]} to {ends[1]}",
                allowed=f"{-(2**31):,} to {2**31:,}, end excluded",
            )
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
                remedy="Reshape or broadcast src, or make dst in its shape",
            )
        if write.dtype != read.dtype:
            raise errors.DTypeError(
                f"copy_to of {read.dtype} into {write.dtype}",
                site=site,
                remedy=f'Convert with src.to("{write.dtype}")',
            )
        self._emit(CopyCmd(src=read, dst=write, nbytes=read.nbytes, **self._now(site)))

    def scratch_scope(self, name: str = "") -> ScopeGuard:
        """``with tl.scratch_scope():`` rewinds the cursor at its end (ADR-0063, D1)."""
        site = self._recorder.enter_call()
        return ScopeGuard(self._recorder, ScopeLine(str(name), site))

    # --- matrices, shapes, types -----------------------------------------------------

    def dot(
        self,
        a: TensorHandle,
        b: TensorHandle,
        acc: TensorHandle | None = None,
        out_dtype: object = None,
    ) -> TensorHandle:
        """(M, K) x (K, N) on the GEMM engine.

        Args:
          a, b: tiles of any number type, each pair that promotes or holds a float8.
          acc: (M, N) in the accumulator's dtype, added to the product.
          out_dtype: of the result, rounded once; the accumulator's where None: float32,
            int32 for integers.
        """
        site = self._recorder.enter_call()
        # The data phase lowers a product with a transpose the same way in every
        # fidelity; which operand was made by trans is part of the program.
        made = tuple(getattr(x, "made_by", "") == "trans" for x in (a, b))
        wanted = None if out_dtype is None else self._dtype(out_dtype, site).name
        attrs = {"transposed": made, "out_dtype": wanted}
        return self._apply("dot", (a, b) if acc is None else (a, b, acc), attrs, site)

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
        return self.apply("broadcast_to", x, shape=self._shape(shape, site))

    # --- control ---------------------------------------------------------------------

    ds = staticmethod(views.ds)

    def range(
        self, start: int | Index, stop: int | Index | None = None, step: int = 1
    ) -> Iterable[Index]:
        """A rolled loop: one body, recorded twice, whatever the trip count.

        Ends may be symbolic; the step is static and not 0.
        """
        site = self._recorder.enter_call()
        low, high = (0, start) if stop is None else (start, stop)
        ends = []
        for end in (low, high):
            value = index.as_expr(end)
            if value is None:
                raise errors.ShapeError(
                    "tl.range counts integers",
                    site=site,
                    got=repr(end),
                    allowed="Python and symbolic integers",
                )
            ends.append(value)
        stride = self._step(step, "tl.range", site)
        return RolledRange(self._recorder, ends[0], ends[1], stride)

    def when(self, condition: int | Index) -> ScopeGuard:
        """``with tl.when(j + 1 < n):`` runs its commands where the condition is not 0:
        in those iterations, on those PEs. It is a scope, and has no else. Python runs
        the body once, whatever the condition: what it sets, and where it leaves to, may
        not matter after it.

        Args:
          condition: a comparison of symbolic integers, `&` of several, or an integer.

        Raises:
          KernelError: for a condition on a tile, whose values are not known here.
        """
        site = self._recorder.enter_call()
        found = index.as_expr(condition)
        if found is None:
            raise errors.KernelError(
                "tl.when takes a condition on loop indices, program_id() and Python "
                "integers",
                site=site,
                got=shown(condition),
                remedy="Use tl.where to select by the elements of a tile",
            )
        always = found.is_const and found.const
        line = ScopeLine(f"when {found}", site)
        self._recorder.unentered[line] = None
        return ScopeGuard(self._recorder, line, None if always else found)

    def static_range(
        self, start: int, stop: int | None = None, step: int = 1
    ) -> Iterable[int]:
        """Python's own range: the body is unrolled when recorded."""
        site = self._recorder.enter_call()
        low, high = (0, start) if stop is None else (start, stop)
        first, last = (
            self._static(end, "tl.static_range", site) for end in (low, high)
        )
        return builtins.range(first, last, self._step(step, "tl.static_range", site))

    def _step(self, step: object, op: str, site: Site) -> int:
        value = self._static(step, op, site)
        if value == 0:
            raise errors.ShapeError(
                f"{op} with step 0 never ends", site=site, allowed="any other step"
            )
        return value

    def program_id(self) -> Index:
        """The number of this PE, symbolic: 0 to num_programs() - 1."""
        self._recorder.enter_call()
        return Index(expr.var(self._recorder.program_id), self._recorder)

    def num_programs(self) -> int:
        """How many PEs run this kernel."""
        self._recorder.enter_call()
        return self._num_pes

    def cdiv(self, a: int | Index, b: int | Index) -> Any:
        """ceil(a / b) of two integers, symbolic where one of them is."""
        site = self._recorder.enter_call()
        pair = [index.as_expr(x) for x in (a, b)]
        if pair[0] is None or pair[1] is None:
            raise errors.ShapeError(
                "cdiv divides integers",
                site=site,
                got=f"{a}, {b}",
                allowed="Python and symbolic integers",
            )
        if pair[1] == expr.ZERO:
            raise errors.ShapeError(
                "cdiv by 0", site=site, got=f"cdiv({a}, 0)", allowed="any other divisor"
            )
        if pair[0].is_const and pair[1].is_const:
            return -(-pair[0].const // pair[1].const)
        return (a + (b - 1)) // b if expr.bounds(pair[1])[0] > 0 else -(-a // b)


def _install_methods() -> None:
    """`tl.exp(x)`, `tl.sum(x, axis)` ... from the rows of the op table, and its element
    types as `tl.float32` ... for the eyes of Triton's users."""

    def elementwise(row: ops.Op) -> Callable[..., Any]:
        def method(self: TLContext, /, *operands: object, **named: object) -> Any:
            order = row.parameters[len(operands) :]
            if named.keys() <= set(order):  # else the count or the name is wrong
                operands += tuple(named.pop(name) for name in order if name in named)
            return self.apply(row.name, *operands, **named)

        return method

    def reduction(row: ops.Op) -> Callable[..., Any]:
        def method(
            self: TLContext, x: object, axis: int | None = None, keepdims: bool = False
        ) -> Any:
            return self.apply(row.name, x, axis=axis, keepdims=keepdims)

        return method

    operators = {*BINARY_OPERATORS.values(), "neg", "invert"}
    for row in ops.TABLE.values():
        make = {"elementwise": elementwise, "reduction": reduction}.get(row.group)
        if make is None or row.name in operators:
            continue
        method = make(row)
        shown = ", ".join(row.parameters)
        if row.group == "reduction":
            shown += ", axis=None, keepdims=False"
        method.__name__, method.__qualname__ = row.name, f"TLContext.{row.name}"
        method.__doc__ = f"``{row.name}({shown})``: {row.doc}"
        setattr(TLContext, row.name, method)
    for dtype in dtypes.TABLE.values():
        setattr(TLContext, dtype.name, dtype)


_install_methods()
for _kind, _name in (
    (TLContext, "tl"),
    (TensorHandle, "tile"),
    (LoadFuture, "future"),
    (SendFuture, "future"),
    (CircularBuffer, "buffer"),
):
    surface.refuse_wrong_arguments(_kind, _name)
