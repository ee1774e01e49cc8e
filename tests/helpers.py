"""Comparisons that name what differs: the element, or the byte and the kernel line of
the command that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tests import reference


def is_nan(x: np.ndarray) -> np.ndarray:
    """Where `x` holds a NaN; nowhere for integers and bool."""
    return x != x


def assert_same_bits(got: Any, expected: Any, what: str = "") -> None:
    """The same dtype, shape and bits; any NaN is any NaN. Tuples pairwise.

    Raises:
      AssertionError: naming the first index that differs and both values.
    """
    if isinstance(expected, tuple | list):
        assert isinstance(got, tuple | list) and len(got) == len(expected)
        for n, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert_same_bits(a, b, f"{what} [{n}]".strip())
        return
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, f"{what}: {got.dtype} != {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape} != {expected.shape}"
    differs = _bits(got) != _bits(expected)
    differs &= ~(is_nan(got) & is_nan(expected))
    if differs.any():
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        a, b = got[at], expected[at]
        raise AssertionError(
            f"{what}: {int(differs.sum())} of {differs.size} {got.dtype} elements "
            f"differ, first at {at}: got {a!s} ({_hex(a)}), expected {b!s} ({_hex(b)})"
        )


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)


def _hex(x: Any) -> str:
    return "0x" + np.asarray(x).tobytes()[::-1].hex()


def assert_same_computation(call: Any, other: Any, *arrays: Any) -> None:
    """Two calls that are compiled from the same equations, so give the same bits; which
    is seen without compiling them. Arrays or their shapes."""
    one, two = (
        str(jax.make_jaxpr(lambda *xs, c=c: c(*xs))(*arrays)) for c in (call, other)
    )
    for a, b in zip(one.splitlines(), two.splitlines(), strict=False):
        assert a == b
    assert one == two


def leaves(
    block: Sequence[Any], env: Mapping[int, int]
) -> Iterator[tuple[Any, Mapping[int, int]]]:
    """Every command as often as it runs, with the loop indices it runs at."""
    for item in block:
        if not hasattr(item, "body"):
            yield item, env
        elif hasattr(item, "index"):
            for i in range(reference.evaluate(item.index.trip, env)):
                yield from leaves(item.body, {**env, item.index.uid: i})
        elif not hasattr(item, "condition") or reference.evaluate(item.condition, env):
            yield from leaves(item.body, env)


def live_allocations(program: Any) -> list[Any]:
    """The allocations alive at the kernel's end that some command has written in
    full."""
    full = set(program.live_at_exit)
    for pe in range(program.num_pes):  # trip counts may depend on the PE
        full &= {
            command.writes.root
            for command, _ in leaves(program.commands, {program.program_id.uid: pe})
            if command.writes is not None
            and command.writes.nbytes == program.allocations[command.writes.root].nbytes
        }
    return [program.allocations[uid] for uid in program.live_at_exit if uid in full]


def live_bytes_mask(program: Any) -> np.ndarray:
    """(T,) bool: the bytes of scratch whose final value is defined, by
    `live_allocations`."""
    mask = np.zeros(program.hardware.pe_tcm.scratch_bytes, np.bool_)
    for made in live_allocations(program):
        mask[made.cursor_bytes : made.cursor_bytes + made.nbytes] = True
    return mask


def assert_same_tcm(
    program: Any, got: Any, expected: Any, any_nan: bool = False
) -> None:
    """The same bytes wherever `program` defines them at its end.

    Args:
      program: says which bytes those are.
      got, expected: scratch regions, (T,) or (P, T) uint8.
      any_nan: whether any NaN is any NaN, whatever its payload.

    Raises:
      AssertionError: naming the first byte that differs, and the command and kernel
        line that wrote it last.
    """
    pes = program.num_pes
    got, expected = (np.asarray(x).reshape(pes, -1) for x in (got, expected))
    assert got.shape == expected.shape, f"{got.shape} != {expected.shape}"
    differs = (got != expected) & live_bytes_mask(program)
    if any_nan:
        for made in live_allocations(program):
            here = slice(made.cursor_bytes, made.cursor_bytes + made.nbytes)
            dtype = reference.DTYPES[made.dtype.name]
            a, b = (np.ascontiguousarray(x[:, here]) for x in (got, expected))
            both = is_nan(a.view(dtype)) & is_nan(b.view(dtype))
            differs[:, here] &= ~np.repeat(both, dtype.itemsize, axis=1)
    if not differs.any():
        return
    pe, at = (int(i) for i in np.argwhere(differs)[0])
    which = f" of PE {pe}" if pes > 1 else ""
    base = program.hardware.pe_tcm.scratch_base
    raise AssertionError(
        f"{last_writer(program, at, pe)}: byte {base + at:#x}{which} is "
        f"{got[pe, at]:02x}, expected {expected[pe, at]:02x}; "
        f"{int(differs.sum())} bytes differ"
    )


def last_writer(program: Any, at: int, pe: int = 0) -> str:
    """``command 17 (add, file.py:27)``: the last to write byte `at` of scratch.

    Commands are numbered as in the program's listing, from 0.
    """
    numbers = {}
    for item in program.walk():
        if not hasattr(item, "body"):
            numbers[id(item)] = len(numbers)
    found = "no command"
    for command, env in leaves(program.commands, {program.program_id.uid: pe}):
        if command.writes is None:
            continue
        start = reference.offset(program, command.writes, env)
        if start <= at < start + command.writes.nbytes:
            found = f"command {numbers[id(command)]} ({command.op}, {command.site})"
    return found
