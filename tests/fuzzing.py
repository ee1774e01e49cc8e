"""What must hold of any legal kernel, checked on drawn ones; a difference is reported
with the smallest kernel that shows it.

`check` runs, on one kernel (tests.programs):

- live = exact: outputs, and the bytes of tiles alive at the end;
- exact = NumPy (tests.reference): outputs; of `exact_only` kernels all bytes of
  memory, too, bit for bit. Of the others, every command whose operands and result are
  still in memory is computed again from kbjax's own operands: bit for bit, or for `exp`
  and its kin within ULPS, for `dot` within the bound of its accumulation; and outputs
  are within FACTOR times what they change by where these results are moved by NUDGE;
- a quarter of the kernels are run in exact, and by NumPy, with what scopes give back
  poisoned, which changes no output;
- of the DERIVED ones (each is one more compilation) those asked for.

Not compared with NumPy: NaN payloads, and programs with subnormal float32 or bfloat16,
which XLA's CPU backend flushes.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import traceback
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import numpy as np

import kbjax as kb
from tests import reference, shrinking
from tests.helpers import assert_same_bits, assert_same_tcm, is_nan
from tests.program_ops import INEXACT
from tests.programs import PES, Drawn, random_kernel

ULPS = 16  # of float32, by which XLA's exp and its kin may miss
NUDGE = 2.0**-20  # relative, of a result whose last bits are open
FACTOR = 16
# How far outputs may be off where nothing amplifies, relative to the larger of 1 and
# the value: some ulps of their type.
TOLERANCE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2,
             "float8_e4m3fn": 0.14, "float8_e5m2": 0.27}  # fmt: skip
MOST_UNROLLED = 50  # commands, as compilations get slow

# Unrolled and unscoped kernels keep every tile of every iteration.
_TCM = dataclasses.replace(kb.Hardware().pe_tcm, kernel_scratch_mb=4)
ROOMY = dataclasses.replace(kb.Hardware(), pe_tcm=_TCM)
# A small scratch compiles and compares faster; a drawn kernel fits.
_SMALL = dataclasses.replace(kb.Hardware().pe_tcm, kernel_scratch_mb=0.25)
SMALL = dataclasses.replace(kb.Hardware(), pe_tcm=_SMALL)


@dataclass(frozen=True)
class Difference:
    """Two ways to run a kernel that differ.

    Attributes:
      paths: which two.
      found: where they differ first, with both values.
      drawn: the kernel, the smallest found.
      command: the first command whose result differs, with its line.
    """

    paths: str
    found: str
    drawn: Drawn
    command: str = ""

    def __str__(self) -> str:
        lines = self.drawn.source.splitlines()
        numbered = "\n".join(f"{n:3} {line}" for n, line in enumerate(lines, 1))
        inputs = ", ".join(
            f"{t.name}: {t.dtype}{list(t.shape)}" for t in self.drawn.inputs
        )
        return (
            f"{self.paths} differ in {self.drawn.name}\n{self.found}\n"
            f"first diverging command: {self.command or 'not isolated'}\n"
            f"inputs {inputs}\n{numbered}"
        )


# --- the ways to run a kernel --------------------------------------------------------


def stacked(drawn: Drawn) -> tuple[np.ndarray, ...]:
    """Inputs for PES PEs, each with data of its own."""
    rng = np.random.default_rng(1)
    return tuple(
        np.stack([first, *(tensor.draw(rng) for _ in range(PES - 1))])
        for tensor, first in zip(drawn.inputs, drawn.arrays, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Case:
    """A drawn kernel, run in several ways, each once."""

    drawn: Drawn

    @functools.cached_property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return stacked(self.drawn) if self.drawn.program_ids else self.drawn.arrays

    def made(self, num_pes: int = 1, hardware: Any = SMALL, **form: bool):
        return kb.kernel_call(
            functools.partial(self.drawn.kernel, **form),
            self.drawn.out_shapes,
            num_pes=PES if self.drawn.program_ids else num_pes,
            hardware=hardware,
        )

    @functools.cached_property
    def call(self) -> kb.KernelCall:
        return self.made()

    @functools.cached_property
    def program(self) -> Any:
        return self.call.record(*self.inputs)

    @functools.cached_property
    def live(self) -> Any:
        return self.call.run(*self.inputs, fidelity="live")

    @functools.cached_property
    def exact(self) -> Any:
        return self.call.run(*self.inputs, fidelity="exact", poison=self.poison)

    @property
    def poison(self) -> bool:
        return zlib.crc32(self.drawn.name.encode()) % 4 == 0

    @functools.cached_property
    def oracle(self) -> Oracle:
        return observed(self.program, self.inputs, self.poison)

    @functools.cached_property
    def ops(self) -> set[str]:
        return {c.op for c in self.program.walk() if hasattr(c, "op")}


def live_is_exact(case: Case) -> None:
    assert_same_bits(case.live.outputs, case.exact.outputs, "output")
    memories = case.live.tcm.memory, case.exact.tcm.memory
    assert_same_tcm(case.program, *memories)


def exact_is_numpy(case: Case) -> None:
    exact, oracle = case.exact, case.oracle
    if oracle.subnormal:
        return
    memory = np.asarray(exact.tcm.memory).reshape(case.program.num_pes, -1)
    for pe, machine in enumerate(oracle.machines):
        machine.compare_steps(memory[pe])
        if case.drawn.exact_only:
            machine.compare_bytes(memory[pe])
    if case.drawn.exact_only:
        assert_same_bits(exact.outputs, oracle.outputs, "output")
        return
    for number, (got, want, off) in enumerate(
        zip(exact.outputs, oracle.outputs, oracle.sensitivity(case), strict=True)
    ):
        assert_close(np.asarray(got), want, off, f"output [{number}]")


def call_is_run(case: Case) -> None:
    """The plain call compiles without the final memory."""
    assert_same_bits(case.call(*case.inputs), case.live.outputs, "output")


def rolled_is_unrolled(case: Case) -> None:
    """One loop body, run `trip` times, is its iterations written out."""
    call = case.made(hardware=ROOMY, unroll=True)
    program = call.record(*case.inputs)
    if sum(1 for c in program.walk() if hasattr(c, "op")) > MOST_UNROLLED:
        return
    assert_same_bits(call(*case.inputs), case.live.outputs, "output")


def scoped_is_unscoped(case: Case) -> None:
    """Rewinding the cursor changes addresses and nothing else."""
    unscoped = case.made(hardware=ROOMY, scoped=False)
    assert_same_bits(unscoped(*case.inputs), case.live.outputs, "output")


def many_are_one(case: Case) -> None:
    """A PE among others gives the bits of the PE alone; where exp or its kin are among
    the ops, what these may differ by."""
    if case.drawn.program_ids:
        return
    inputs = stacked(case.drawn)
    together = case.made(num_pes=PES)(*inputs)
    for pe in range(PES):
        mine = tuple(x[pe] for x in inputs)
        alone = case.call.run(*mine, fidelity="live").outputs
        open_bits = case.ops & {*INEXACT, "pow"} and not case.drawn.exact_only
        off = case.oracle.sensitivity(case, mine) if open_bits else [None] * len(alone)
        for number, (many, one) in enumerate(zip(together, alone, strict=True)):
            what = f"PE {pe}, output [{number}]"
            if open_bits:
                assert_close(np.asarray(many[pe]), np.asarray(one), off[number], what)
            else:
                assert_same_bits(many[pe], one, what)


def lockstep_is_in_turn(case: Case) -> None:
    """A message among PEs keeps them in lockstep, and changes nothing else; `exp` and
    its kin are the same code, an axis longer."""

    def with_message(tl: Any, *tensors: Any) -> None:
        tl.send(tl.zeros((1,)), 1)
        tl.recv((1,), "float32", 1).wait()
        case.drawn.kernel(tl, *tensors)

    many = case.made(num_pes=PES)
    lockstep = kb.kernel_call(
        with_message, case.drawn.out_shapes, num_pes=PES, hardware=ROOMY
    )
    inputs = stacked(case.drawn)
    assert_same_bits(lockstep(*inputs), many(*inputs), "output")


def inside_jit(case: Case) -> None:
    """XLA sees the kernel and its caller at once, and still rounds op by op."""
    inside = jax.jit(lambda *arrays: case.call(*arrays))(*case.inputs)
    assert_same_bits(inside, case.live.outputs, "output")


def constants_in_jit(case: Case) -> None:
    """Inputs that are compile-time constants are no invitation to fold roundings."""
    inside = jax.jit(lambda: case.call(*case.inputs))()
    assert_same_bits(inside, case.live.outputs, "output")


Property = Callable[[Case], None]
ALWAYS: dict[str, Property] = {
    "live and exact": live_is_exact,
    "exact and NumPy": exact_is_numpy,
}
DERIVED: dict[str, Property] = {
    "the plain call and run": call_is_run,
    "unrolled and rolled": rolled_is_unrolled,
    "unscoped and scoped": scoped_is_unscoped,
    "one PE among several and alone": many_are_one,
    "PEs in lockstep and in turn": lockstep_is_in_turn,
    "inside jit and plain": inside_jit,
    "constants inside jit and plain": constants_in_jit,
}


def numbered(seed: int, number: int) -> tuple[Drawn, tuple[str, ...]]:
    """Kernel `number` of a run with this seed, and the derived properties that it is
    to be checked for: over a few dozen kernels all of them."""
    exact_only, program_ids = number % 2 == 0, number % 5 == 4
    which = seed * 1_000_000 + number
    drawn = random_kernel(which, exact_only, program_ids)
    return drawn, tuple(random.Random(which).sample(list(DERIVED), 1))


def check(
    drawn: Drawn,
    derived: Sequence[str] = tuple(DERIVED),
    runs: int = 80,
    always: Sequence[str] = tuple(ALWAYS),
) -> Difference | None:
    """The first property that a kernel breaks, with the smallest kernel that does.

    Args:
      drawn: the kernel.
      derived, always: which of DERIVED and of ALWAYS to run.
      runs: how many smaller kernels are run in search of the smallest.
    """
    case = Case(drawn)
    for paths in (*always, *derived):
        holds = {**ALWAYS, **DERIVED}[paths]
        found = broken(case, holds)
        if found is None:
            continue
        if runs:
            drawn = _smallest(drawn, holds, found, runs)
            found = broken(Case(drawn), holds) or found
        return Difference(paths, found, drawn, _first_command(drawn, holds, found))
    return None


def broken(case: Case, holds: Property) -> str | None:
    """What is wrong, or None. A refusal is wrong, too: drawn kernels are legal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an output that a shrunk kernel never stores
        try:
            holds(case)
        except AssertionError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
    return None


def _smallest(drawn: Drawn, holds: Property, found: str, runs: int) -> Drawn:
    """The kernel with less text that breaks the property in the same way."""
    raised = found.partition(":")[0] if "Traceback" in found else ""

    def legal(source: str) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                _ = Case(drawn.with_source(source)).program
            except Exception as error:
                return type(error).__name__ == raised
        return True

    def shows(source: str) -> bool:
        again = broken(Case(drawn.with_source(source)), holds)
        if again is None:
            return False
        return again.startswith(raised) and ("Traceback" in again) == bool(raised)

    try:
        source, _ = shrinking.shrunk(drawn.source, legal, shows, runs)
    finally:
        drawn.with_source(drawn.source)
    return drawn.with_source(source)


def _first_command(drawn: Drawn, holds: Property, found: str) -> str:
    """The first line whose tile differs, by storing every tile to an output of its
    own; else the line that `found` names."""
    lines = drawn.source.splitlines()
    named = re.search(re.escape(drawn.name) + r":(\d+)", found)
    if named:
        at = int(named[1])
        return f"line {at}: {lines[at - 1].strip()}"
    shapes, probed, where = list(drawn.out_shapes), [], []
    for number, line in enumerate(lines, 1):
        probed.append(line)
        tile = re.match(r"(\s*)(t\d+) = .*  # (\w+)\[(.*)\]$", line)
        if not tile or "tl.empty" in line:
            continue
        indent, name, dtype, sizes = tile.groups()
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
        probed.append(f"{indent}tl.store(probe{number}, {name})")
        shapes.append(jax.ShapeDtypeStruct(shape, reference.DTYPES[dtype]))
        where.append(number)
    extra = "".join(f", probe{number}" for number in where)
    probed[0] = probed[0].replace(", *,", f"{extra}, *,")
    with_probes = drawn._replace(out_shapes=tuple(shapes))
    try:
        with_probes = with_probes.with_source("\n".join(probed) + "\n")
        again = broken(Case(with_probes), holds) or ""
    finally:
        drawn.with_source(drawn.source)  # the lines of the file as they were
    differing = [int(n) for n in re.findall(r"\[(\d+)\]: .* elements differ", again)]
    probes = [n - len(drawn.out_shapes) for n in differing]
    if probes and probes[0] >= 0:
        at = where[probes[0]]
        return f"line {at}: {lines[at - 1].strip()}"
    return ""


# --- NumPy, watched ------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """A command that has written memory: where, and from where it has read."""

    command: Any
    at: int
    read_at: tuple[int, ...]
    scalars: tuple[Any, ...]


class Watched(reference.Machine):
    """The oracle, which notes what wrote every byte last."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.events: list[Event] = []
        self.written = np.full(self.memory.size, -1, np.int64)
        self.subnormal = False

    def block(self, block: Sequence[Any]) -> None:
        for item in block:
            super().block((item,))
            if getattr(item, "writes", None) is not None:
                self._note(item)

    def do_Scope(self, scope: Any) -> None:
        super().do_Scope(scope)
        if self.poison:
            at = scope.mark_bytes
            at += reference.grown(self.program, self.open_loops, self.env)
            self.written[at : at + scope.rewound_bytes] = -1

    def _note(self, command: Any) -> None:
        def at(ref: Any) -> int:
            return reference.offset(self.program, ref, self.env)

        ref, reads = command.writes, tuple(at(r) for r in command.reads)
        scalars = tuple(
            reference.evaluate(x, self.env) if hasattr(x, "terms") else x
            for x in getattr(command, "operands", ())
        )
        self.written[at(ref) : at(ref) + ref.nbytes] = len(self.events)
        self.events.append(Event(command, at(ref), reads, scalars))
        value = self.value(self.memory, ref, at(ref))
        if ref.dtype.name in ("float32", "bfloat16"):
            size = np.abs(value.astype(np.float64))
            self.subnormal |= bool(((size > 0) & (size < 2.0**-126)).any())

    def value(self, memory: np.ndarray, ref: Any, at: int) -> np.ndarray:
        dtype = reference.DTYPES[ref.dtype.name]
        raw = np.ascontiguousarray(memory[at : at + ref.nbytes])
        values = raw != 0 if dtype == reference.BOOL else raw.view(dtype)
        return values.reshape(ref.shape)

    def compare_bytes(self, got: np.ndarray) -> None:
        """All of memory, NaN payloads aside; names the first command that differs."""
        differs = got != self.memory
        for time in np.unique(self.written[differs]):
            where = int(np.argwhere(differs)[0, 0])
            assert time >= 0, f"memory: byte {where:#x} is not to be written"
            event = self.events[time]
            ref = event.command.writes
            a, b = (self.value(m, ref, event.at) for m in (got, self.memory))
            mine = self.written[event.at : event.at + ref.nbytes] == time
            itemsize = reference.DTYPES[ref.dtype.name].itemsize
            mine = mine.reshape(-1, itemsize).all(axis=1).reshape(ref.shape)
            unlike = mine & (a != b) & ~(is_nan(a) & is_nan(b))
            bits = a.view(f"u{itemsize}") != b.view(f"u{itemsize}")
            unlike |= mine & bits & ~(is_nan(a) & is_nan(b))
            if unlike.any():
                raise AssertionError(self._told(event, a, b, unlike, "memory"))

    def _told(self, event: Event, a: Any, b: Any, unlike: Any, what: str) -> str:
        index = tuple(int(i) for i in np.argwhere(unlike)[0])
        ref = event.command.writes
        flat = int(np.ravel_multi_index(index, ref.shape)) if ref.shape else 0
        byte = event.at + flat * ref.dtype.nbytes
        return (
            f"{what}: {event.command.op} at {event.command.site}, byte {byte:#x}, "
            f"element {index} of {ref.dtype}{list(ref.shape)}: kbjax {a[index]!r}, "
            f"NumPy {b[index]!r}"
        )

    def compare_steps(self, got: np.ndarray) -> None:
        """Each op whose operands and result are in memory still, by itself."""
        for time, event in enumerate(self.events):
            command = event.command
            if not hasattr(command, "operands"):
                continue
            spans = [(event.at, command.writes.nbytes)]
            if not (self.written[event.at :][: spans[0][1]] == time).all():
                continue
            reads = zip(event.read_at, command.reads, strict=True)
            if any((self.written[at : at + r.nbytes] >= time).any() for at, r in reads):
                continue
            places = iter(zip(event.read_at, command.reads, strict=True))
            operands = []
            for x in event.scalars:
                if hasattr(x, "root"):
                    at, ref = next(places)
                    operands.append(self.value(got, ref, at))
                else:
                    operands.append(x)
            with np.errstate(all="ignore"):
                want = np.asarray(
                    reference.OPS[command.op](*operands, **dict(command.attrs))
                )
            have = self.value(got, command.writes, event.at)
            slack = _slack(command.op, operands, want, dict(command.attrs))
            unlike = _unlike(have, want, slack)
            if unlike.any():
                raise AssertionError(self._told(event, have, want, unlike, "step"))


def _spacing(x: np.ndarray) -> np.ndarray:
    """The distance to the next number of the type, at least of a normal one."""
    bits = {"float32": 23, "float16": 10, "bfloat16": 7, "float8_e4m3fn": 3,
            "float8_e5m2": 2}[x.dtype.name]  # fmt: skip
    low = {"float16": -14, "float8_e4m3fn": -6, "float8_e5m2": -14}
    with np.errstate(all="ignore"):
        _, places = np.frexp(np.abs(x.astype(np.float64)))
    return np.ldexp(1.0, np.maximum(places - 1, low.get(x.dtype.name, -120)) - bits)


def _slack(op: str, operands: Sequence[Any], want: np.ndarray, attrs: Any) -> Any:
    """By how much a result may be off; 0 where it is exact."""
    if want.dtype.name not in TOLERANCE:
        return 0.0
    if op in (*INEXACT, "pow"):
        small = _spacing(want) * (ULPS if want.dtype == np.float32 else 1)
        return small + ULPS * 2.0**-24 * (np.abs(want.astype(np.float64)) + 0.1)
    if op == "dot":
        a, b, *acc = (np.abs(x.astype(np.float64)) for x in operands)
        size = a @ b
        for one in acc:
            size = size + one
        return (a.shape[1] + 2) * 2.0**-23 * size + _spacing(want)
    if op in ("max", "min", "maximum", "minimum", "clamp"):
        return 1e-300  # which zero is open
    return 0.0


def _unlike(got: np.ndarray, want: np.ndarray, slack: Any) -> np.ndarray:
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.abs(a - b) > slack
        off |= np.isnan(a) != np.isnan(b)
        off |= np.isinf(a) & (a != b)
    if np.ndim(slack) == 0 and slack == 0.0 and want.dtype.name in TOLERANCE:
        off |= (np.signbit(a) != np.signbit(b)) & ~np.isnan(a)
    return off


@dataclass(frozen=True)
class Oracle:
    """What NumPy makes of a program, and its machines, one a PE."""

    outputs: tuple[np.ndarray, ...]
    machines: tuple[Watched, ...]

    @property
    def subnormal(self) -> bool:
        return any(machine.subnormal for machine in self.machines)

    def sensitivity(self, case: Case, inputs: Any = None) -> list[Any]:
        """By how much each output may be off: FACTOR times what it changes by where
        open last bits are others."""
        inputs = case.inputs if inputs is None else inputs
        plain = reference.run(case.program, inputs).outputs
        rng = np.random.default_rng(0)
        runs = []
        for _ in range(3):
            nudged = {
                op: _nudged(function, op, rng)
                for op, function in reference.OPS.items()
                if op in (*INEXACT, "pow", "dot")
            }
            with mock.patch.dict(reference.OPS, nudged):
                runs.append(reference.run(case.program, inputs).outputs)
        off = []
        for number, base in enumerate(plain):
            wide = base.astype(np.float64)
            with np.errstate(all="ignore"):
                moved = [np.abs(r[number].astype(np.float64) - wide) for r in runs]
            off.append(FACTOR * max(float(np.nanmax(m, initial=0.0)) for m in moved))
        return off


def _nudged(function: Callable[..., Any], op: str, rng: Any) -> Callable[..., Any]:
    def apply(*operands: Any, **attrs: Any) -> np.ndarray:
        plain = np.asarray(function(*operands, **attrs))
        if plain.dtype.name not in TOLERANCE:
            return plain
        size = np.abs(plain.astype(np.float64))
        if op == "dot":
            a, b = (np.abs(x.astype(np.float64)) for x in operands[:2])
            size = a @ b
        sign = rng.uniform(-1, 1, plain.shape)
        moved = plain.astype(np.float64) + sign * NUDGE * size
        return reference.convert(moved, plain.dtype)

    return apply


def observed(program: Any, inputs: Sequence[Any], poison: bool) -> Oracle:
    machines: list[Watched] = []

    def machine(*arguments: Any) -> Watched:
        machines.append(Watched(*arguments))
        return machines[-1]

    with mock.patch.object(reference, "Machine", machine):
        result = reference.run(program, inputs, poison)
    return Oracle(result.outputs, tuple(machines))


def assert_close(got: np.ndarray, want: np.ndarray, off: float, what: str) -> None:
    """Equal for bool and int; else within TOLERANCE and `off`; NaN and inf alike."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    if got.dtype.name not in TOLERANCE:
        assert_same_bits(got, want, what)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    limit = TOLERANCE[got.dtype.name] * np.maximum(1.0, np.abs(b)) + off
    with np.errstate(all="ignore"):
        unlike = (np.abs(a - b) > limit) | (np.isnan(a) != np.isnan(b))
        unlike |= np.isinf(a) & (a != b)
    if unlike.any():
        at = tuple(int(i) for i in np.argwhere(unlike)[0])
        allowed = np.broadcast_to(limit, a.shape)[at]
        raise AssertionError(
            f"{what}: {int(unlike.sum())} of {a.size} elements differ, first at {at}: "
            f"got {got[at]!s}, expected {want[at]!s} to {allowed:.3g}"
        )
