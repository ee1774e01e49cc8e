"""Random kernels: every path through kbjax gives the same bits, and the right ones; and
the harness that says so finds faults that are put in, and shrinks what shows them.

`scripts/fuzz.py` runs more kernels. A failing test prints the smallest one.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import kbjax as kb
from kbjax import data_phase, hbm, products, reductions, tiles
from kbjax.rounding import Rounding
from kbjax.sealing import canonical, seal
from tests import fuzzing, reference, shrinking
from tests.helpers import assert_same_bits
from tests.programs import Drawn, random_kernel

SILENT = [fuzzing.numbered(0, number) for number in range(4)]


@pytest.mark.parametrize("drawn, derived", SILENT, ids=lambda x: getattr(x, "name", ""))
def test_drawn_kernels_have_no_differences(drawn: Drawn, derived: Any) -> None:
    difference = fuzzing.check(drawn, derived)
    assert difference is None, str(difference)


def test_the_same_seed_gives_the_same_kernel() -> None:
    one, other = random_kernel(3, exact_only=False), random_kernel(3, exact_only=False)
    assert one.source == other.source
    assert one.source != random_kernel(4, exact_only=False).source
    assert_same_bits(one.arrays, other.arrays)


OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div",
    ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow", ast.BitAnd: "and",
    ast.BitOr: "or", ast.Invert: "invert", ast.USub: "neg", ast.Lt: "lt", ast.LtE: "le",
    ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


def surface(source: str) -> set[str]:
    """The ops that a kernel's lines of tiles use, and its other `tl` names."""
    found = {"cast"} if ".to(" in source else set()
    for line in source.splitlines():
        if re.match(r"\s*t\d+ = ", line):
            for node in ast.walk(ast.parse(line.strip())):
                found.add(OPERATORS.get(type(node), ""))
    return found | set(re.findall(r"\btl\.(\w+)\(", source))


@pytest.mark.parametrize("exact_only", (True, False))
def test_the_surface_is_covered(exact_only: bool) -> None:
    """Over many seeds every op is drawn, and what holds them."""
    found: set[str] = set()
    for seed in range(500):
        found |= surface(random_kernel(seed, exact_only, seed % 5 == 4).source)
    inexact = set(fuzzing.INEXACT)
    wanted = {*reference.OPS, "load", "store", "copy_to", "empty", "when", "ds",
              "load_async", "circular_buffer"}  # fmt: skip
    assert wanted - found == (inexact if exact_only else set())
    assert not (exact_only and inexact & found)


# --- faults --------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A way to break kbjax: `holder.name` becomes what `make` makes of it.

    Attributes:
      needs: what a kernel's text holds that can show it, a regular expression.
      seed: of a kernel that shows it, tried first.
      shown_by: the property.
      exact: whether in an `exact_only` kernel.
    """

    holder: Any
    name: str
    make: Callable[[Any], Any]
    needs: str
    seed: int
    shown_by: str = "exact and NumPy"
    exact: bool = True

    def applied(self) -> Any:
        broken = self.make(getattr(self.holder, self.name))
        return mock.patch.object(self.holder, self.name, broken)


def _swapped_in_live(subtract: Any) -> Any:
    def wrong(self: Rounding, a: Any, b: Any) -> Any:
        return subtract(self, a, b) if self.physical else subtract(self, b, a)

    return wrong


def _only_sealed(_: Any) -> Any:
    """No select that ends contraction."""
    return lambda self, a, b: seal(jnp.multiply(*jnp.broadcast_arrays(a, b)))


def _by_reciprocal(_: Any) -> Any:
    def wrong(self: Rounding, a: Any, b: Any) -> Any:
        a, b = jnp.broadcast_arrays(a, b)
        return seal(canonical(a * seal(1 / b)))

    return wrong


def _negative_from_zero(_: Any) -> Any:
    """-0.0 is 0.0 as in 0 - x."""
    return lambda self, x: jnp.where(x == 0, jnp.zeros_like(x), -x)


def _toward_zero(floor_divide: Any) -> Any:
    def wrong(self: Rounding, a: Any, b: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.floating):
            return floor_divide(self, a, b)
        a, b = jnp.broadcast_arrays(a, b)
        return jnp.where(b == 0, 0, jax.lax.div(a, jnp.where(b == 0, 1, b)))

    return wrong


def _from_left(_: Any) -> Any:
    """A sum in another order."""

    def wrong(self: Rounding, x: Any, axis: int | None, keepdims: bool) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.sum(x, axis, keepdims=keepdims, dtype=x.dtype)
        flat = jnp.cumsum(x.reshape(-1) if axis is None else x, axis or 0)
        total = jax.lax.index_in_dim(flat, -1, axis or 0, keepdims=False)
        if not keepdims:
            return seal(total)
        shape = [1] * x.ndim if axis is None else jnp.sum(x, axis, keepdims=True).shape
        return seal(total.reshape(shape))

    return wrong


def _last_of_equals(_: Any) -> Any:
    def wrong(x: Any, axis: int | None, keepdims: bool, largest: bool) -> Any:
        find = jnp.argmax if largest else jnp.argmin
        if axis is None:
            found = x.size - 1 - find(x.reshape(-1)[::-1])
            shape = (1,) * x.ndim if keepdims else ()
            return found.reshape(shape).astype(jnp.int32)
        found = x.shape[axis] - 1 - find(jnp.flip(x, axis), axis, keepdims=keepdims)
        return found.astype(jnp.int32)

    return wrong


def _two_roundings(_: Any) -> Any:
    return lambda self, a, b, c: self.add(self.multiply(a, b), c)


def _bfloat16_product(product: Any) -> Any:
    def wrong(a: Any, b: Any, *how: Any) -> Any:
        if a.dtype != jnp.float32:
            return product(a, b, *how)
        short = (x.astype(jnp.bfloat16).astype(jnp.float32) for x in (a, b))
        return product(*short, *how)

    return wrong


def _off(exp: Any) -> Any:
    return lambda self, x: exp(self, x) * jnp.asarray(1.01, x.dtype)


def _stale(resumed: Any) -> Any:
    """What a loop carries first comes out as it went in."""

    def wrong(self: Any, carried: Any) -> Any:
        held = dict(carried)
        for root in [r for r in held if r in self.values][:1]:
            held[root] = self.values[root]
        return resumed(self, held)

    return wrong


def _first_row(element: Any) -> Any:
    """A view of a tile starts at the tile's own start."""
    return lambda self, ref, env: element(self, ref, env) * 0


def _unmasked_store(store: Any) -> Any:
    def wrong(tensor: Any, window: Any, *rest: Any) -> Any:
        whole = tuple(None for _ in window.valid)
        return store(tensor, dataclasses.replace(window, valid=whole), *rest)

    return wrong


def _poison_too_much(poisoned: Any) -> Any:
    """A rewind to below the scope's mark."""

    def wrong(self: Any, scope: Any, env: Any, mask: Any) -> Any:
        if scope.mark_bytes >= 16 and scope.rewound_bytes:
            more = scope.rewound_bytes + 16
            mark = scope.mark_bytes - 16
            scope = dataclasses.replace(scope, mark_bytes=mark, rewound_bytes=more)
        return poisoned(self, scope, env, mask)

    return wrong


def _always(when: Any) -> Any:
    del when
    return lambda self, item, state, env, mask: self._scope(item, state, env, mask)


LIVE = "live and exact"
FAULTS = {
    "operands swapped in live": Fault(
        Rounding, "subtract", _swapped_in_live, r"t\d+ - t", 24, LIVE
    ),
    "contraction": Fault(
        Rounding,
        "multiply",
        _only_sealed,
        r"(t\d+) = t\d+ \* t\d+  #.*\n.* = (\1 [+-]|t\d+ [+-] \1\b)",
        422,
        LIVE,
    ),
    "a reciprocal": Fault(Rounding, "divide", _by_reciprocal, r"/ (3|7|1\.1)", 765),
    "a flipped zero": Fault(Rounding, "neg", _negative_from_zero, r"= -t.*# f", 360),
    "integers divided toward 0": Fault(
        Rounding, "floor_divide", _toward_zero, r"//.*# int", 712
    ),
    "a sum in another order": Fault(
        Rounding, "sum", _from_left, r"tl.sum.*# float32", 200
    ),
    "the last of equals": Fault(
        reductions, "position", _last_of_equals, r"tl.arg(max|min)", 534
    ),
    "fma rounded twice": Fault(
        Rounding, "fma", _two_roundings, r"tl.fma.*# float32", 762
    ),
    "a product in bfloat16": Fault(
        products, "product", _bfloat16_product, r"tl.dot.*# float32", 676, exact=False
    ),
    "an exp that is off": Fault(Rounding, "exp", _off, r"tl.exp\(", 577, exact=False),
    "a stale carried value": Fault(
        tiles.Values,
        "resumed",
        _stale,
        r" in loop\([23]\):\n(?: {8}.*\n)* {8,}tl\.copy_to",
        200,
        LIVE,
    ),
    "the wrong part of a tile": Fault(
        tiles.Values, "_element", _first_row, r"t\d+\[(-1:|tl.ds\(1,)", 734, LIVE
    ),
    "an unmasked tail store": Fault(
        hbm, "store", _unmasked_store, r"streamed.*[+-] 1.*boundary_check", 112
    ),
    "a rewind to below the mark": Fault(
        tiles.Bytes, "poisoned", _poison_too_much, r"with scope", 721
    ),
    "a when that always runs": Fault(
        data_phase.Replay, "_when", _always, r"tl.when", 430
    ),
}
TRIES = 12
MOST = 7  # commands of a shrunk kernel, of 10 to 20


@functools.cache
def kernels(exact_only: bool) -> list[Drawn]:
    return [random_kernel(seed, exact_only) for seed in range(800)]


SHRUNK = ("operands swapped in live", "fma rounded twice")  # one of each property


def able(fault: Fault) -> Iterator[Drawn]:
    """Kernels whose text can show it: one that did, then the plainest of many."""
    yield random_kernel(fault.seed, fault.exact)
    found = [
        drawn
        for drawn in kernels(fault.exact)
        if re.search(fault.needs, drawn.source)
        and (fault.name != "poisoned" or fuzzing.Case(drawn).poison)
    ]
    yield from sorted(found, key=lambda drawn: shrinking.commands(drawn.source))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    """In a few kernels whose text can show it. Some are shrunk too, which takes longer:
    what is left of the kernel is a few commands."""
    fault, runs = FAULTS[name], 10 if name in SHRUNK else 0
    with fault.applied():
        for one in itertools.islice(able(fault), TRIES):
            difference = fuzzing.check(one, (), runs=runs, always=(fault.shown_by,))
            if difference is not None:
                break
        else:
            pytest.fail(f"not found in {TRIES} kernels")
    print(difference)
    assert not runs or shrinking.commands(difference.drawn.source) <= MOST


def test_a_refused_kernel_is_a_difference() -> None:
    """Drawn kernels are legal, so a KbjaxError is a fault as well."""
    drawn = random_kernel(0, exact_only=True)
    wrong = drawn.with_source(drawn.source + "    tl.load(x[1000:1001])\n")
    difference = fuzzing.check(wrong, ())
    assert difference is not None and "OutOfBoundsError" in difference.found
    assert "tl.load(x[1000:1001])" in difference.command
    assert kb.OutOfBoundsError.__name__ in str(difference)
