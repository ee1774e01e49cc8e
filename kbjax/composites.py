"""Composites: an algorithm on HBM views. The scheduler chooses its tiles, loads them
ahead and gives their scratch back (ADR-0063, alternative A2).

What the scheduler runs is a shipped kernel, recorded in a scope of its own: a composite
has its bits, its commands in the op_log, and its scratch in the footprint.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbjax import errors, expr
from kbjax.allocator import Arena
from kbjax.expr import Var
from kbjax.names import nearest
from kbjax.program import TensorSpec
from kbjax.recorder import Recorder
from kbjax.refs import HbmRef, Span
from kbjax.site import ScopeLine, Site
from kbjax.transfers import Transfers
from kbjax.views import HbmTensor, HbmView


@dataclass(frozen=True)
class Composite:
    """What runs for a composite.

    Attributes:
      kernel: a module of kbjax.kernels, and its function of the same name.
      operands: the axes of each, a letter each, the output's last. Axes of one letter
        are of one size. "G" may be left out where it is 1.
      by_name: the axes of the views that the kernel takes by name.
      tiles: the kernel's options that `tile` gives, in order, with the axis of each.
      options: what else the kernel takes by name.
      floats: whether all views are of floats.
    """

    kernel: str
    operands: Mapping[str, str]
    by_name: Mapping[str, str]
    tiles: Mapping[str, str]
    options: tuple[str, ...]
    floats: bool = False

    def function(self) -> Callable[..., None]:
        module = importlib.import_module(f"kbjax.kernels.{self.kernel}")
        found: Callable[..., None] = getattr(module, self.kernel)
        return found


TABLE = {
    "gemm": Composite(
        kernel="matmul",
        operands={"a": "MK", "b": "KN", "out": "MN"},
        by_name={},
        tiles={"tile_m": "M", "tile_n": "N", "tile_k": "K"},
        options=("buffers",),
    ),
    "flash": Composite(
        kernel="flash_prefill",
        operands={"q": "GQD", "k": "SD", "v": "SD", "out": "GQD"},
        by_name={"sinks": "G", "slopes": "G"},
        tiles={"block": "Q", "tile": "S"},
        options=("buffers", "causal", "window", "softcap"),
        floats=True,
    ),
}


class Composites(Transfers):
    """The `tl.composite` of a kernel."""

    def composite(
        self, kind: str = "", /, *operands: Any, tile: object = None, **options: Any
    ) -> None:
        """Run a whole algorithm on HBM views.

        `composite("gemm", a, b, out)`: out (M, N) = a (M, K) @ b (K, N), as
        kernels/matmul.py. `tile`: of M, N and K.

        `composite("flash", q, k, v, out)`: attention of q (G, Q, D), or (Q, D), over k
        and v (S, D), as kernels/flash_prefill.py, whose options `causal` (True where it
        is not given), `window`, `softcap`, `sinks` and `slopes` it takes. `tile`: of Q
        and S.

        Args:
          operands: HBM views, the output last.
          tile: a tile's size along each of these axes, or one for all. None: the
            kernel's own, no larger than the axis needs; the largest is halved until
            they fit in the scratch that is left; in a loop, in that of its first
            iteration.
          options: of the kernel. `buffers`: tiles are loaded `buffers` - 1 ahead; 2
            where it is not given.

        Raises:
          KernelError: for a composite that there is not, or other arguments than its.
          ShapeError, DTypeError, MemorySpaceError, OutOfBoundsError: for views that do
            not fit.
          ScratchOverflowError: where no tile fits.
        """
        site = self._recorder.enter_call()
        row = TABLE.get(kind) if isinstance(kind, str) else None
        if row is None:
            raise errors.KernelError(
                "composite takes the name of what it runs first",
                site=site,
                got=repr(kind),
                allowed=", ".join(f"composite({name!r}, ...)" for name in TABLE),
                remedy=f"The nearest is {nearest(kind, TABLE)!r}"
                if isinstance(kind, str) and kind
                else "",
            )
        op = f"composite {kind!r}"
        allowed = {*row.options, *row.by_name}
        if len(operands) != len(row.operands) or not options.keys() <= allowed:
            names = [*row.operands, "tile", *row.options, *row.by_name]
            raise errors.KernelError(
                f"{op} is called with wrong arguments",
                site=site,
                got=", ".join([f"{len(operands)} views", *options]),
                allowed=f"composite({kind!r}, {', '.join(names)})",
            )
        views = dict(zip(row.operands, operands, strict=True))
        views |= {n: options.pop(n) for n in row.by_name if options.get(n) is not None}
        self._check_views(op, row, views, site)
        sizes = _sizes(op, row, views, site)
        options = {"buffers": 2, **options}
        if not _is_count(options["buffers"]):
            raise errors.ShapeError(
                "buffers is a number of tiles",
                site=site,
                got=repr(options["buffers"]),
                allowed=">= 1",
            )
        scope = self._recorder.open_scope(ScopeLine(f"composite {kind}", site))
        try:
            options |= self._tiles(op, row, views, sizes, tile, options, site)
            _run(self, row, views, options)
            self._recorder.close_scope(scope, failed=False)
        except errors.KbjaxError as error:
            traceback.clear_frames(error.__traceback__)  # its open loops end here
            self._recorder.abandon_scope(scope)
            if isinstance(error, errors.ScratchOverflowError):
                raise  # says which tile of the kernel, and in which scopes it is
            raise error.at(site).with_traceback(None) from None

    def _check_views(
        self, op: str, row: Composite, views: Mapping[str, Any], site: Site
    ) -> None:
        """Refuse views that it can't take, whatever their sizes.

        Raises:
          MemorySpaceError, DTypeError, ShapeError, OutOfBoundsError, KernelError.
        """
        for name, view in views.items():
            self._require_hbm(op, view)
            if row.floats and not view.dtype.is_float:
                raise errors.DTypeError(
                    f"{op} takes floats",
                    site=site,
                    got=f"{name} of {view.dtype.name}",
                    allowed="views of a float dtype",
                )
            if view.pointers:
                raise errors.OutOfBoundsError(
                    f"{op} of {view.spec.name} starts where data says, perhaps outside",
                    site=site,
                    got=str(view),
                    allowed="places that are known when the kernel is recorded",
                )
            if 0 in view.shape:
                raise errors.ShapeError(
                    f"{op} takes views of at least one element",
                    site=site,
                    got=f"{name} of shape {view.shape}",
                    allowed="sizes of at least 1",
                )
            self._proven(op, view, "Take a view that lies inside", fill=False)
        *_, output = row.operands
        self._require_writable(op, views[output], site)
        for name, view in views.items():
            if name != output and self._may_overlap(view.ref, views[output].ref):
                raise errors.KernelError(
                    f"{op} writes its output where it may still read {name}",
                    site=site,
                    got=f"{view} and {views[output]}",
                    remedy="Give it an output of its own",
                )

    def _tiles(
        self,
        op: str,
        row: Composite,
        views: Mapping[str, Any],
        sizes: Mapping[str, int],
        tile: object,
        options: Mapping[str, Any],
        site: Site,
    ) -> dict[str, int]:
        """The kernel's options for the sizes of tiles.

        Raises:
          ShapeError: for a `tile` that is none.
        """
        if tile is not None:
            each = tile if isinstance(tile, tuple | list) else (tile,) * len(row.tiles)
            if len(each) != len(row.tiles) or not all(map(_is_count, each)):
                raise errors.ShapeError(
                    f"{op} takes a tile's sizes",
                    site=site,
                    got=f"tile={tile!r}",
                    allowed=f"{len(row.tiles)} positive integers, of "
                    f"{', '.join(row.tiles.values())}, or one for all",
                )
            return dict(zip(row.tiles, map(int, each), strict=True))
        defaults = inspect.signature(row.function()).parameters
        tiles = {
            name: min(defaults[name].default, 1 << (sizes[axis] - 1).bit_length())
            for name, axis in row.tiles.items()
        }
        while not self._fits(row, views, {**options, **tiles}):
            largest = max(tiles, key=tiles.__getitem__)
            if tiles[largest] == 1:
                break  # recording with these says that none fits
            tiles[largest] //= 2
        return tiles

    def _may_overlap(self, a: HbmRef, b: HbmRef) -> bool:
        """Whether both name an element, in the iterations that run now."""

        def ends_before(one: Span, other: Span) -> bool:
            end = expr.add(one.start, expr.const(one.size))
            return self._recorder.domain.violation(end, other.start) is None

        return a.slot == b.slot and not any(
            ends_before(one, other) or ends_before(other, one)
            for one, other in zip(a.spans, b.spans, strict=True)
        )

    def _fits(
        self, row: Composite, views: Mapping[str, Any], options: Mapping[str, Any]
    ) -> bool:
        """Whether the kernel, recorded for itself, fits in the scratch that is left."""
        tcm = self._recorder.arena.tcm
        left = max(tcm.scratch_bytes - self._recorder.arena.cursor, 0)
        specs = [TensorSpec(n, view.shape, view.dtype) for n, view in views.items()]
        alone = Recorder(Arena(tcm, left), Var(0, "pe", expr.const(self._num_pes)))
        context = type(self)(
            alone, specs=specs, num_pes=self._num_pes,
            writable=frozenset(range(len(specs))), checks=self._checks,
        )  # fmt: skip
        tensors = {spec.name: HbmTensor(spec, n) for n, spec in enumerate(specs)}
        try:
            _run(context, row, tensors, options)
        except errors.ScratchOverflowError:
            return False
        return True


def _run(
    tl: Composites, row: Composite, views: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """The kernel of a composite, on its views."""
    operands = [views[name] for name in row.operands]
    if _is_one_head(row, views):
        operands = [
            _OneHead(view) if "G" in axes else view
            for view, axes in zip(operands, row.operands.values(), strict=True)
        ]
    named = {name: views[name] for name in row.by_name if name in views}
    row.function()(tl, *operands, **named, **options)


def _sizes(
    op: str, row: Composite, views: Mapping[str, Any], site: Site
) -> dict[str, int]:
    """The size of each axis, by its letter.

    Raises:
      ShapeError: for views that do not fit each other.
    """
    sizes: dict[str, int] = {}
    by_operand = row.operands
    if _is_one_head(row, views):
        sizes["G"] = 1
        by_operand = {n: axes.replace("G", "") for n, axes in by_operand.items()}
    for name, axes in {**by_operand, **row.by_name}.items():
        if name not in views:
            continue
        shape = views[name].shape
        known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        fits = len(shape) == len(axes)
        for axis, size in zip(axes, shape, strict=False):
            fits = fits and sizes.setdefault(axis, size) == size
        if not fits:
            shapes = (f"{n} ({', '.join(own)})" for n, own in by_operand.items())
            raise errors.ShapeError(
                f"{op} needs {name} of shape ({', '.join(axes)})",
                site=site,
                got=f"{shape}" + (f", with {known}" if known else ""),
                allowed=", ".join(shapes),
            )
    return sizes


def _is_one_head(row: Composite, views: Mapping[str, Any]) -> bool:
    """Whether the axis of heads is left out, of the first operand."""
    first, axes = next(iter(row.operands.items()))
    return "G" in axes and len(views[first].shape) == len(axes) - 1


def _is_count(value: object) -> bool:
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return integer and value > 0  # type: ignore[operator]


class _OneHead:
    """A view (Q, D) as the (1, Q, D) that the kernel indexes."""

    def __init__(self, view: HbmView) -> None:
        self.view, self.dtype, self.shape = view, view.dtype, (1, *view.shape)

    def __getitem__(self, key: tuple[Any, ...]) -> HbmView:
        return self.view[key[1:]]
