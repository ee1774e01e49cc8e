"""`tl` in plain Python on NumPy arrays: the kernel's own source, run PE by PE and
iteration by iteration.

It shares no code with kbjax and records nothing, so it says what a kernel means: which
elements of which tensor each line uses on each PE, which lines read rows of a tile that
were never written, and what the tensors hold in the end. Only the part of `tl` that the
kernels of these tests use; where a kernel leaves a tile or a tensor it raises
`IndexError`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
_OPERATORS = {"__add__": np.add, "__sub__": np.subtract, "__mul__": np.multiply}


class Use(NamedTuple):
    """A load or store that ran: `elements` are flat positions in the tensor."""

    pe: int
    line: int
    stores: bool
    tensor: str
    elements: frozenset[int]


@dataclass
class Log:
    """What ran.

    Attributes:
      uses: every load and store, in the order they ran, PE by PE.
      unwritten: the lines that read a row which nothing had written.
      ends: by tensor, the highest end along each axis that had to exist.
      rows: the highest end of a view of a tile, by the number of the tile's rows.
    """

    uses: list[Use] = field(default_factory=list)
    unwritten: set[int] = field(default_factory=set)
    ends: dict[str, list[int]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ds:
    start: int
    size: int


class Tensor:
    """A view of an HBM array: `ids` are flat positions, -1 where nothing exists."""

    def __init__(self, name: str, array: Array, ids: Array | None = None) -> None:
        self.name, self.array = name, array
        whole = np.arange(array.size).reshape(array.shape)
        self.ids = whole if ids is None else ids

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ids.shape

    @property
    def T(self) -> Tensor:
        return Tensor(self.name, self.array, self.ids.T)

    def __getitem__(self, key: Any) -> Tensor:
        ids, axis = self.ids, 0
        for one in key if isinstance(key, tuple) else (key,):
            if isinstance(one, Ds):
                at = np.arange(one.start, one.start + one.size)
                exists = (at >= 0) & (at < ids.shape[axis])
                picked = np.take(ids, np.where(exists, at, 0), axis)
                shape = [1] * picked.ndim
                shape[axis] = one.size
                ids = np.where(exists.reshape(shape), picked, -1)
            elif isinstance(one, slice):
                ids = ids[(slice(None),) * axis + (one,)]
            else:
                ids = np.take(ids, one, axis)
                continue
            axis += 1
        return Tensor(self.name, self.array, ids)


class Tile:
    """Rows of a tile: views of its values and of what has been written."""

    def __init__(self, tl: PlainTl, values: Array, written: Array) -> None:
        self.tl, self.values, self.written = tl, values, written

    def read(self) -> Array:
        if not self.written.all():
            self.tl.log.unwritten.add(_line())
        return self.values.copy()

    def __getitem__(self, key: Any) -> Tile:
        if isinstance(key, Ds):
            rows = len(self.values)
            self.tl.log.rows[rows] = max(
                self.tl.log.rows.get(rows, 0), key.start + key.size
            )
            if key.start < 0 or key.start + key.size > rows:
                raise IndexError(f"{key} of {rows} rows")
            key = slice(key.start, key.start + key.size)
        return Tile(self.tl, self.values[key], self.written[key])


def _install_operators() -> None:
    def method(function: Callable[..., Array]) -> Callable[[Tile, Any], Tile]:
        def apply(self: Tile, other: Any) -> Tile:
            dtype = self.values.dtype
            right = other.read() if isinstance(other, Tile) else dtype.type(other)
            return self.tl.made(function(self.read(), right).astype(dtype))

        return apply

    for name, function in _OPERATORS.items():
        setattr(Tile, name, method(function))


_install_operators()


class PlainTl:
    """The `tl` of one PE."""

    range = staticmethod(range)
    static_range = staticmethod(range)
    ds = staticmethod(Ds)

    def __init__(self, pe: int, num_pes: int, log: Log) -> None:
        self.pe, self.num_pes, self.log = pe, num_pes, log

    def made(self, values: Array, written: bool = True) -> Tile:
        return Tile(self, values, np.full(values.shape, written))

    def program_id(self) -> int:
        return self.pe

    def num_programs(self) -> int:
        return self.num_pes

    def scratch_scope(self, name: str = "") -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def minimum(self, a: int, b: int) -> int:
        return min(a, b)

    def maximum(self, a: int, b: int) -> int:
        return max(a, b)

    def cdiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> Tile:
        return self.made(np.zeros(shape, dtype), written=False)

    def zeros(self, shape: tuple[int, ...], dtype: str = "float32") -> Tile:
        return self.made(np.zeros(shape, dtype))

    def full(self, shape: tuple[int, ...], value: Any, dtype: str = "float32") -> Tile:
        return self.made(np.full(shape, value, dtype))

    def copy_to(self, dst: Tile, src: Tile) -> None:
        dst.values[...] = src.read()
        dst.written[...] = True

    def load(self, view: Tensor, other: Any = None) -> Tile:
        self._used(view, False, other is None)
        found = view.array.reshape(-1)[np.maximum(view.ids, 0)]
        filler = view.array.dtype.type(0 if other is None else other)
        return self.made(np.where(view.ids >= 0, found, filler))

    def store(self, view: Tensor, tile: Tile, boundary_check: bool = False) -> None:
        values = tile.read()
        if values.shape != view.ids.shape:
            raise IndexError(f"store of {values.shape} to {view.ids.shape}")
        self._used(view, True, not boundary_check)
        exists = view.ids >= 0
        view.array.reshape(-1)[view.ids[exists]] = values[exists]

    def _used(self, view: Tensor, stores: bool, strict: bool) -> None:
        if strict:
            if (view.ids < 0).any():
                raise IndexError(f"{view.name} is left at line {_line()}")
            last = np.unravel_index(view.ids, view.array.shape)
            ends = self.log.ends.setdefault(view.name, [0] * len(last))
            self.log.ends[view.name] = [
                max(end, int(at.max()) + 1) for end, at in zip(ends, last, strict=True)
            ]
        elements = frozenset(view.ids[view.ids >= 0].tolist())
        self.log.uses.append(Use(self.pe, _line(), stores, view.name, elements))


def play(
    kernel: Callable[..., None],
    num_pes: int,
    tensors_of: Callable[[int], Sequence[Tensor]],
) -> Log:
    """Run the kernel on PE 0, then on PE 1 ..., each on its own tensors."""
    log = Log()
    for pe in range(num_pes):
        kernel(PlainTl(pe, num_pes, log), *tensors_of(pe))
    return log


def _line() -> int:
    """The kernel line that is being executed."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_lineno
