"""`Index`, the symbolic integer that a kernel holds: an `Expr` with Python's
operators, each result checked to stay in int32 over the iterations that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kbjax import errors, expr, site
from kbjax.domain import Domain, checked, nonzero
from kbjax.expr import Expr
from kbjax.site import Site


def as_expr(value: object) -> Expr | None:
    """The expression of an `Index` or a Python or NumPy integer; else None."""
    if isinstance(value, Index):
        return value.expr
    if isinstance(value, bool | np.bool_):
        return expr.const(int(value))
    if isinstance(value, int | np.integer):
        return expr.const(int(value))
    return None


class Recording(Protocol):
    """What knows which loops are open."""

    domain: Domain

    def use_index(self, value: Expr, site: Site) -> Expr: ...


class Index:
    """A symbolic integer in a kernel: a loop index, a program id, and what is made
    of them. `+ - * // %`, comparisons, `& |`, `tl.minimum` and `tl.maximum` work."""

    __slots__ = ("_recording", "expr")
    __array_ufunc__ = None  # NumPy scalars defer to the reflected operators here

    def __init__(self, value: Expr, recording: Recording) -> None:
        self.expr, self._recording = value, recording

    @property
    def domain(self) -> Domain:
        """The iterations that run where the kernel is now."""
        return self._recording.domain

    def _combine(
        self, other: object, make: Callable[[Expr, Expr], Expr], swap: bool = False
    ) -> Any:
        value = as_expr(other)
        if value is None:
            if isinstance(other, float | np.floating):
                raise errors.KernelError(
                    "a symbolic integer and a float make no symbolic number",
                    site=site.here(),
                    got=f"{self} and {other}",
                    remedy="Multiply the tile by the one, then by the other",
                )
            return NotImplemented
        for operand in (self.expr, value):
            self._recording.use_index(operand, site.here())
        pair = (value, self.expr) if swap else (self.expr, value)
        return Index(checked(make(*pair), self.domain), self._recording)

    def __add__(self, other: object) -> Any:
        return self._combine(other, expr.add)

    def __radd__(self, other: object) -> Any:
        return self._combine(other, expr.add)

    def __sub__(self, other: object) -> Any:
        return self._combine(other, expr.sub)

    def __rsub__(self, other: object) -> Any:
        return self._combine(other, expr.sub, swap=True)

    def __mul__(self, other: object) -> Any:
        return self._combine(other, expr.mul)

    def __rmul__(self, other: object) -> Any:
        return self._combine(other, expr.mul)

    def __neg__(self) -> Any:
        return self._combine(-1, expr.mul)

    def __pos__(self) -> Any:
        return self

    def __floordiv__(self, other: object) -> Any:
        return self._divide(other, expr.floordiv)

    def __rfloordiv__(self, other: object) -> Any:
        return self._divide(other, expr.floordiv, swap=True)

    def __truediv__(self, other: object) -> Any:
        if isinstance(other, int | float | np.generic | Index):
            raise errors.KernelError(
                f"{self} / {other}: a symbolic integer has no quotient",
                site=site.here(),
                remedy="Divide with //, or divide a tile",
            )
        return NotImplemented

    __rtruediv__ = __truediv__

    def __mod__(self, other: object) -> Any:
        return self._divide(other, expr.mod)

    def __rmod__(self, other: object) -> Any:
        return self._divide(other, expr.mod, swap=True)

    def _divide(
        self, other: object, make: Callable[[Expr, Expr], Expr], swap: bool = False
    ) -> Any:
        divisor = self.expr if swap else as_expr(other)
        if divisor is not None:
            nonzero(divisor, self.domain)
        return self._combine(other, make, swap)

    def __lt__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("lt", a, b))

    def __le__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("le", a, b))

    def __gt__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("lt", b, a))

    def __ge__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("le", b, a))

    def __eq__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("eq", a, b))

    def __ne__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("ne", a, b))

    def __and__(self, other: object) -> Any:
        return self._combine(other, lambda a, b: expr.predicate("and", a, b))

    __rand__ = __and__

    def __or__(self, other: object) -> Any:
        def either(a: Expr, b: Expr) -> Expr:
            holds = (expr.predicate("ne", x, expr.ZERO) for x in (a, b))
            return expr.maximum(*holds)

        return self._combine(other, either)

    __ror__ = __or__

    def _no_operator(self, *_: object) -> Any:
        raise errors.KernelError(
            f"this operator is none of symbolic integers, as {self}",
            site=site.here(),
            allowed="+ - * // %, comparisons, & |, tl.minimum and tl.maximum",
            remedy="Compare the other way round instead of ~",
        )

    __invert__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = _no_operator
    __rshift__ = __rrshift__ = __pow__ = __rpow__ = __abs__ = _no_operator
    __divmod__ = __rdivmod__ = _no_operator

    def minimum(self, other: object) -> Any:
        return self._combine(other, expr.minimum)

    def maximum(self, other: object) -> Any:
        return self._combine(other, expr.maximum)

    def __bool__(self) -> bool:
        raise errors.KernelError(
            f"`if` on the symbolic integer {self}: its value differs by iteration",
            site=site.here(),
            remedy="Use `with tl.when(cond):`, or tl.static_range for an index that "
            "Python can branch on",
        )

    def _as_python(self, *_: object) -> Any:
        raise errors.KernelError(
            f"the symbolic integer {self} has no single Python value",
            site=site.here(),
            remedy="Loop with tl.range, slice with tl.ds(start, size), or unroll with "
            "tl.static_range",
        )

    __index__ = __int__ = __float__ = __complex__ = __round__ = _as_python

    def __hash__(self) -> int:
        raise errors.KernelError(
            f"the symbolic integer {self} is no key: its value differs by iteration",
            site=site.here(),
            remedy="Use tl.static_range for an index that picks from a dict or a set",
        )

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = __str__
