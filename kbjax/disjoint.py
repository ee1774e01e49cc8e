"""Outputs that all PEs store to: proof that their ranges are disjoint.

Two proofs. Bounds: along some axis every PE stays in a stripe of its own. Where that
does not hold, the ranges of all iterations are enumerated, and painted PE by PE on a
grid whose cells are cut at every range's ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kbjax import errors, expr
from kbjax.domain import Domain
from kbjax.expr import Expr, Var
from kbjax.program import LoadCmd, Program, StoreCmd, walk_in_domain
from kbjax.refs import HbmRef

_MOST_CELLS = 1 << 23  # of a grid
_MOST_USES = 1 << 22  # ranges of elements, over all iterations and PEs


def check_shared_outputs(program: Program) -> None:
    """Refuse stores of several PEs to one array unless their ranges are disjoint, and
    loads from it of what another PE may store.

    Raises:
      HazardError: naming two PEs and the elements that both use, or saying that there
        are too many iterations to tell.
    """
    if program.num_pes == 1:
        return
    used: dict[int, list[_Access]] = {}
    for item, domain in walk_in_domain(program.commands):
        if isinstance(item, LoadCmd | StoreCmd):
            used.setdefault(item.view.slot, []).append(_Access(item, domain))
    for slot, accesses in used.items():
        stores = [a for a in accesses if isinstance(a.command, StoreCmd)]
        spec = program.slots[slot]
        if spec.pe_axis is not None or not stores:
            continue
        views = [access.command.view for access in accesses]
        if any(_in_stripes(program, views, axis) for axis in range(len(spec.shape))):
            continue
        boxes = _enumerated(program.program_id, accesses, spec.shape)
        if boxes is None:
            raise _undecided(stores[0])
        conflict = _conflict(boxes)
        if conflict is not None:
            raise _hazard(accesses, *conflict)


@dataclass(frozen=True)
class _Access:
    """A load or store, and the iterations that run it."""

    command: LoadCmd | StoreCmd
    domain: Domain


def _in_stripes(program: Program, views: Sequence[HbmRef], axis: int) -> bool:
    """Whether every view stays within `width` elements from ``pe * width + low`` along
    the axis, for one `width` and `low`."""
    pe = expr.var(program.program_id)
    if any(view.spans[axis].by for view in views):
        return False
    starts = [view.spans[axis].start for view in views]
    widths = {dict(start.terms).get(program.program_id, 0) for start in starts}
    if len(widths) != 1:
        return False
    (width,) = widths
    lows, highs = [], []
    for view, start in zip(views, starts, strict=True):
        low, high = expr.bounds(expr.sub(start, expr.scale(pe, width)))
        lows.append(low)
        highs.append(high + view.spans[axis].size)
    return max(highs) - min(lows) <= abs(width)


# --- by enumeration ------------------------------------------------------------------


@dataclass(frozen=True)
class _Boxes:
    """Ranges of elements, one row a use: `access` is its number, `low` and `high` are
    (rows, axes), end excluded."""

    pe: np.ndarray
    access: np.ndarray
    stores: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def of(self, rows: np.ndarray) -> _Boxes:
        return _Boxes(*(getattr(self, name)[rows] for name in self.__annotations__))


def _enumerated(
    pe: Var, accesses: Sequence[_Access], shape: tuple[int, ...]
) -> _Boxes | None:
    """Every use in every iteration that runs, on every PE; None where there are too
    many."""
    parts = []
    total = 0
    for number, access in enumerate(accesses):
        spans = access.command.view.spans
        ends: list[Expr] = []
        for span in spans:
            start, end = span.start, _plus(span.start, span.size)
            low, high = span.valid or (start, end)
            # Data says where a load starts: it may read all that exists.
            ends += [low, high] * 2 if span.by else [start, end, low, high]
        table = access.domain.table(expr.var(pe), *ends)
        if table is None:
            return None
        total += len(table[0])
        if total > _MOST_USES:
            return None
        columns = np.stack(table[1:], axis=1).reshape(-1, len(spans), 4)
        low = np.maximum(np.maximum(columns[..., 0], columns[..., 2]), 0)
        high = np.minimum(np.minimum(columns[..., 1], columns[..., 3]), shape)
        stores = isinstance(access.command, StoreCmd)
        rows = len(low)
        parts.append(
            _Boxes(table[0], np.full(rows, number), np.full(rows, stores), low, high)
        )
    every = _Boxes(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in _Boxes.__annotations__
        )
    )
    boxes = every.of(np.flatnonzero((every.low < every.high).all(axis=1)))
    cells = math.prod(
        len(np.unique(np.concatenate([boxes.low[:, a], boxes.high[:, a]])))
        for a in range(len(shape))
    )
    return None if cells > _MOST_CELLS else boxes


def _plus(value: Expr, n: int) -> Expr:
    return expr.add(value, expr.const(n))


def _conflict(boxes: _Boxes) -> tuple[_Boxes, _Boxes] | None:
    """Two uses of one element by two PEs, the first of them a store, as one row each;
    None where there are none.

    Along each axis the tensor is cut at all ends of boxes. On the grid of cells between
    the cuts, difference arrays count the boxes over each cell, and sum their PEs and
    squared PEs: PEs differ where the variance is not 0.
    """
    rank = boxes.low.shape[1]
    cuts = [np.unique(np.concatenate([boxes.low[:, a], boxes.high[:, a]]))
            for a in range(rank)]  # fmt: skip
    size = [len(cut) for cut in cuts]
    weights = (boxes.stores, np.ones(len(boxes.pe)), boxes.pe, boxes.pe**2)
    sums = np.zeros((len(weights), math.prod(size)))  # whole numbers below 2**53
    for corner in itertools.product((0, 1), repeat=rank):
        at = np.ravel_multi_index(
            tuple(
                np.searchsorted(cuts[a], (boxes.high if up else boxes.low)[:, a])
                for a, up in enumerate(corner)
            ),
            size,
        )
        sign = -1.0 if sum(corner) % 2 else 1.0
        for total, weight in zip(sums, weights, strict=True):
            total += sign * np.bincount(at, weight, minlength=len(total))
    grid = sums.reshape(len(weights), *size)
    for axis in range(1, rank + 1):
        np.cumsum(grid, axis=axis, out=grid)
    stores, uses, first, second = grid
    # One PE alone: sums of `uses` equal numbers, and of their squares.
    owner = np.rint(first / np.maximum(uses, 1))
    alone = (owner * uses == first) & (owner * owner * uses == second)
    wrong = (stores > 0) & ~alone
    if not wrong.any():
        return None
    cell = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    element = np.array([cut[at] for cut, at in zip(cuts, cell, strict=True)])
    over = np.flatnonzero(((boxes.low <= element) & (element < boxes.high)).all(axis=1))
    # Two stores say more than a store and a load.
    over = over[np.argsort(~boxes.stores[over], kind="stable")]
    other = over[boxes.pe[over] != boxes.pe[over[0]]][0]
    return boxes.of(over[0]), boxes.of(other)


# --- what to say ---------------------------------------------------------------------

_REMEDY = (
    "Start each PE's range at tl.program_id() * size, or give the output a PE axis "
    "with out_axes"
)


def _hazard(
    accesses: Sequence[_Access], store: _Boxes, other: _Boxes
) -> errors.HazardError:
    first = accesses[int(store.access)].command
    second = accesses[int(other.access)].command
    low = np.maximum(store.low, other.low)
    high = np.minimum(store.high, other.high)
    shown = _range(low, high)
    name = first.view.name
    verb = "stores" if isinstance(second, StoreCmd) else "loads"
    return errors.HazardError(
        f"PE {store.pe} and PE {other.pe} use the same elements {shown} of the shared "
        f"output {name}: PE {store.pe} stores them at {first.site}, PE {other.pe} "
        f"{verb} them at {second.site}",
        site=second.site,
        got=f"{name}{_range(store.low, store.high)} on PE {store.pe}, "
        f"{name}{_range(other.low, other.high)} on PE {other.pe}",
        allowed="elements that one PE alone uses where any PE stores to them",
        remedy=_REMEDY,
    )


def _range(low: np.ndarray, high: np.ndarray) -> str:
    spans = (f"{a}:{b}" for a, b in zip(low.tolist(), high.tolist(), strict=True))
    return f"[{', '.join(spans)}]"


def _undecided(access: _Access) -> errors.HazardError:
    view = access.command.view
    return errors.HazardError(
        f"all PEs store to the shared output {view.name}, and PE 0 and PE 1 cannot be "
        "proven to use different elements of it: there are too many iterations to "
        "compare",
        site=access.command.site,
        got=str(view),
        remedy=_REMEDY,
    )
