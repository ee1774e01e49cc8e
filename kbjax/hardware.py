"""Hardware and its units: sizes (both phases) and rates (timing only).

Times are integers of picoseconds inside, computed in exact arithmetic from the decimal
that each number prints as, and rounded up. Every default below is assumed but those
that name a source: no silicon exists yet.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from kbjax import dtypes, errors, hardware_toml, ranges
from kbjax.names import shown
from kbjax.ranges import FrozenTable, Range, Table

_MOST = 2**63 - 1  # addresses and times are int64 columns of the op_log
_COUNT = Range(
    "whole numbers from 1 to 2**31 - 1", lowest=1, highest=2**31 - 1, whole=True
)
_RATE = Range("finite numbers > 0", above=True)
_TIME = Range("numbers >= 0, up to 2**63 - 1 ps", highest=_MOST // 1000)
_MEBIBYTES = Range("finite numbers >= 2**-20, which is a byte", lowest=2**-20)
_ADDRESS = Range("whole numbers from 0 to 2**63 - 1", highest=_MOST, whole=True)

# What the vector engine does: the ops of kbjax.ops on it (a test holds the two equal;
# that module imports this one), and the copy of `tl.copy_to`.
MATH_OPS = tuple(
    """copy
    add sub mul div floordiv mod pow maximum minimum lt le gt ge eq ne and or invert neg
    abs where clamp fma floor ceil exp exp2 log log2 sqrt rsqrt sigmoid tanh erf
    sum max min argmax argmin softmax trans cast broadcast_to zeros full arange
    """.split()
)
_PASSES = Table(tuple(dtypes.TABLE), _RATE, "passes a clock by dtype")
_CYCLES = Table(MATH_OPS, _RATE, "cycles a vector by op")


def _field(default: Any, allowed: Range | Table) -> Any:
    return field(default=default, metadata={"allowed": allowed})


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A unit of a PE; every field is checked when it is made.

    Raises:
      ShapeError: for a number out of range, naming the field.
      KernelError: for a table with an unknown name, with the nearest.
    """

    unit: ClassVar[str]
    speed: ClassVar[str] = ""  # the fields that a command's time depends on

    def __post_init__(self) -> None:
        ranges.check_fields(self, f"{self.unit}.")

    def _ps(self, *times_ns: Fraction) -> int:
        """A command's time, the sum of its parts, each rounded up to a picosecond.

        Raises:
          ShapeError: for one that no time column holds.
        """
        whole_ps = sum(math.ceil(time_ns * 1000) for time_ns in times_ns)
        if whole_ps > _MOST:
            raise errors.ShapeError(
                f"one command takes {self.unit} too long to be timed",
                got=f"about 1e{int(math.log10(whole_ps))} ps",
                allowed="up to 2**63 - 1 ps, 106 days",
                remedy=f"Change {self.speed}",
            )
        return whole_ps


def _exact(number: float) -> Fraction:
    """The decimal that the number prints as."""
    return Fraction(str(number))


@dataclass(frozen=True, kw_only=True)
class PeTcm(_Unit):
    """The scratchpad.

    Attributes:
      kernel_scratch_mb: budget of a kernel, in MiB; what is left of a byte is dropped.
        Source: ADR-0063.
      scratch_base: address of its first byte; a multiple of `align`.
      align: bytes to which an allocation is rounded up; what the budget has beyond a
        multiple of it is never used. Source: ADR-0063.
    """

    unit: ClassVar[str] = "pe_tcm"
    kernel_scratch_mb: float = _field(1, _MEBIBYTES)
    scratch_base: int = _field(0, _ADDRESS)
    align: int = _field(16, _COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scratch_base % self.align:
            raise errors.ShapeError(
                "pe_tcm.scratch_base is not a multiple of pe_tcm.align",
                got=f"{self.scratch_base} and {self.align}",
                allowed=f"multiples of {self.align}",
            )
        if self.scratch_base + self.scratch_bytes > _MOST:
            raise errors.ShapeError(
                "pe_tcm.kernel_scratch_mb is out of range",
                got=shown(self.kernel_scratch_mb),
                allowed="a scratch that ends below address 2**63",
            )

    @property
    def scratch_bytes(self) -> int:
        return math.floor(Fraction(self.kernel_scratch_mb) * 2**20)

    def aligned(self, nbytes: int) -> int:
        """`nbytes` rounded up to the alignment (ADR-0063: to 16)."""
        return -(-nbytes // self.align) * self.align


@dataclass(frozen=True, kw_only=True)
class _Wire(_Unit):
    """What moves bytes."""

    bandwidth_gb_s: float
    latency_ns: float

    def transfer_ps(self, nbytes: int) -> int:
        """latency + bytes / bandwidth; 1 GB/s is one byte a nanosecond."""
        _count(nbytes, "bytes")
        wire_ns = Fraction(nbytes) / _exact(self.bandwidth_gb_s)
        return self._ps(_exact(self.latency_ns) + wire_ns)


@dataclass(frozen=True, kw_only=True)
class PeDma(_Wire):
    """HBM <-> TCM. Assumed: 256 GB/s a PE, 500 ns a transfer."""

    unit: ClassVar[str] = "pe_dma"
    speed: ClassVar[str] = "pe_dma.bandwidth_gb_s"
    bandwidth_gb_s: float = _field(256.0, _RATE)
    latency_ns: float = _field(500.0, _TIME)


@dataclass(frozen=True, kw_only=True)
class PeGemm(_Unit):
    """The matrix engine. Assumed.

    Attributes:
      rows, cols, depth: multiply-adds of the array; a pass is one use of all of it.
      clock_ghz: clocks a nanosecond.
      overhead_ns: of each product.
      rate: passes a clock by dtype of the operands; 1 where it says nothing.
    """

    unit: ClassVar[str] = "pe_gemm"
    speed: ClassVar[str] = "pe_gemm.clock_ghz or pe_gemm.rate"
    rows: int = _field(16, _COUNT)
    cols: int = _field(16, _COUNT)
    depth: int = _field(16, _COUNT)
    clock_ghz: float = _field(1.0, _RATE)
    overhead_ns: float = _field(32.0, _TIME)
    rate: Mapping[str, float] = _field(
        FrozenTable(float32=0.5, float16=1.0, bfloat16=1.0), _PASSES
    )

    def compute_ps(self, m: int, n: int, k: int, dtype: str) -> int:
        """ceil(M/rows) ceil(N/cols) ceil(K/depth) passes, plus the overhead."""
        passes = -(-m // self.rows) * -(-n // self.cols) * -(-k // self.depth)
        clocks = Fraction(passes) / _exact(self.rate.get(dtype, 1))
        return _clocked(self, clocks)

    def peak_flops_per_ns(self, dtype: str) -> float:
        """2 flops a multiply-add, over all of the array; the roofline's height."""
        macs = self.rows * self.cols * self.depth
        return 2 * macs * self.rate.get(dtype, 1.0) * self.clock_ghz


@dataclass(frozen=True, kw_only=True)
class PeMath(_Unit):
    """The vector engine. Assumed.

    Attributes:
      lanes: elements of a vector.
      clock_ghz: clocks a nanosecond.
      overhead_ns: of each op.
      cycles: clocks a vector by op, `copy` among them; 1 where it says nothing.
    """

    unit: ClassVar[str] = "pe_math"
    speed: ClassVar[str] = "pe_math.clock_ghz or pe_math.cycles"
    lanes: int = _field(128, _COUNT)
    clock_ghz: float = _field(1.0, _RATE)
    overhead_ns: float = _field(16.0, _TIME)
    cycles: Mapping[str, float] = _field(
        FrozenTable(
            exp=4, exp2=4, log=4, log2=4, sqrt=4, rsqrt=4, div=4, floordiv=4, mod=4,
            pow=8, sigmoid=8, tanh=8, erf=8, softmax=12,
        ),
        _CYCLES,
    )  # fmt: skip

    def compute_ps(self, n: int, op: str = "copy") -> int:
        """overhead + ceil(n / lanes) x cycles of the op / clock, in picoseconds."""
        _count(n, "elements")
        return _clocked(self, -(-n // self.lanes) * _exact(self.cycles.get(op, 1)))

    def compute_ns(self, n: int, op: str = "copy") -> float:
        """`compute_ps` in nanoseconds, as ADR-0063 states the cost of a copy."""
        return self.compute_ps(n, op) / 1000


def _count(n: int, what: str) -> None:
    if n < 0:
        raise errors.ShapeError(f"a command has no {n} {what}", allowed=">= 0")


def _clocked(unit: PeGemm | PeMath, clocks: Fraction) -> int:
    """The unit's overhead and `clocks` of its clock, in picoseconds."""
    return unit._ps(_exact(unit.overhead_ns), clocks / _exact(unit.clock_ghz))


@dataclass(frozen=True, kw_only=True)
class PeLink(_Wire):
    """A link to a neighbour PE. Assumed: 64 GB/s, 1 us."""

    unit: ClassVar[str] = "pe_link"
    speed: ClassVar[str] = "pe_link.bandwidth_gb_s"
    bandwidth_gb_s: float = _field(64.0, _RATE)
    latency_ns: float = _field(1000.0, _TIME)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One PE and its links, one frozen dataclass a unit. Hashable.

    The units check their fields; `dataclasses.replace` makes variants.

    Raises:
      KernelError: for a unit that is not of its class.
    """

    pe_tcm: PeTcm = PeTcm()
    pe_dma: PeDma = PeDma()
    pe_gemm: PeGemm = PeGemm()
    pe_math: PeMath = PeMath()
    pe_link: PeLink = PeLink()

    def __post_init__(self) -> None:
        for unit in dataclasses.fields(self):
            kind, value = type(unit.default), getattr(self, unit.name)
            if not isinstance(value, kind):
                raise errors.KernelError(
                    f"{unit.name} is a kbjax.hardware.{kind.__name__}",
                    got=shown(value),
                )

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Hardware:
        """Read a file of one table a unit, with the units' fields.

        What a file leaves out keeps what the profile has that it names at its top,
        ``base = "hbm3_channel"``; without that, the default. The entries of `rate` and
        `cycles` are added to those of the base. With ``base = "none"`` nothing is
        added, and the file must have every key.

        Raises:
          KernelError: for a file that cannot be read or is no TOML, for a key that no
            unit has, with the nearest one, and for a missing one.
          ShapeError: for a value out of range. All name the file, and the line where
            it is known.
        """
        return cls._of(hardware_toml.read(path))

    @classmethod
    def from_profile(cls, name: str) -> Hardware:
        """A hardware that ships with kbjax; `profiles()` has their names.

        Raises:
          KernelError: for a name that is none, with the nearest.
        """
        return cls._of(hardware_toml.profile(name))

    @staticmethod
    def profiles() -> tuple[str, ...]:
        """The names that `from_profile` takes."""
        return hardware_toml.profile_names()

    @classmethod
    def _of(cls, source: hardware_toml.Source) -> Hardware:
        tables = source.tables()
        base = tables.pop("base", "default")
        start = cls()
        if base not in ("none", "default"):
            with source.errors_at("base"):
                start = cls.from_profile(base)
        return hardware_toml.fill(start, tables, source, complete=base == "none")

    def to_toml(self) -> str:
        """The same hardware as TOML text; `from_toml` reads it back equal.

        It says ``base = "none"`` where `rate` or `cycles` lacks an entry of the
        default, which reading would else add.
        """
        tables = self.to_dict()
        lacks = any(
            set(entries) - set(tables[unit][name])
            for unit, fields in Hardware().to_dict().items()
            for name, entries in fields.items()
            if isinstance(entries, dict)
        )
        return hardware_toml.text_of({"base": "none", **tables} if lacks else tables)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON: every field of every unit."""
        return {
            unit.name: {
                name: dict(value) if isinstance(value, Mapping) else value
                for name, value in vars(getattr(self, unit.name)).items()
            }
            for unit in dataclasses.fields(self)
        }


def named(name_or_path: str) -> Hardware:
    """The profile of that name, or else the file at that path.

    Raises:
      KernelError, ShapeError: see `Hardware.from_profile` and `Hardware.from_toml`.
    """
    is_profile = name_or_path in Hardware.profiles()
    looks_like_a_path = name_or_path.endswith(".toml") or os.sep in name_or_path
    if not is_profile and (looks_like_a_path or os.path.exists(name_or_path)):
        return Hardware.from_toml(name_or_path)
    return Hardware.from_profile(name_or_path)
