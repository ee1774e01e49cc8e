"""Hardware and its units: sizes (both phases) and rates (timing only); TOML.

Times are integers of picoseconds inside. Every default below is assumed: no silicon
exists yet.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from kbjax import errors


def _ps(cycles: int | Fraction, clock_ghz: float) -> int:
    """Clock cycles to picoseconds, rounded up."""
    return math.ceil(Fraction(cycles) * 1000 / Fraction(str(clock_ghz)))


def _transfer_ps(nbytes: int, latency_ns: float, bandwidth_gb_s: float) -> int:
    """latency + bytes / bandwidth; 1 GB/s is one byte a nanosecond."""
    wire_ps = Fraction(nbytes) * 1000 / Fraction(str(bandwidth_gb_s))
    return math.ceil(Fraction(str(latency_ns)) * 1000 + wire_ps)


@dataclass(frozen=True)
class PeTcm:
    """The scratchpad. `scratch_base` and `align` are in bytes."""

    kernel_scratch_mb: float = 1
    scratch_base: int = 0
    align: int = 16

    @property
    def scratch_bytes(self) -> int:
        return int(self.kernel_scratch_mb * 2**20)

    def aligned(self, nbytes: int) -> int:
        """`nbytes` rounded up to the alignment (ADR-0063: to 16)."""
        return -(-nbytes // self.align) * self.align


@dataclass(frozen=True)
class PeDma:
    """HBM <-> TCM. Assumed: 256 GB/s a PE, 500 ns a transfer."""

    bandwidth_gb_s: float = 256.0
    latency_ns: float = 500.0

    def transfer_ps(self, nbytes: int) -> int:
        return _transfer_ps(nbytes, self.latency_ns, self.bandwidth_gb_s)


@dataclass(frozen=True)
class PeGemm:
    """A rows x cols x depth array; `rate` is passes a clock by dtype. Assumed."""

    rows: int = 16
    cols: int = 16
    depth: int = 16
    clock_ghz: float = 1.0
    overhead_ns: float = 32.0
    rate: Mapping[str, float] = field(
        default_factory=lambda: {"float32": 0.5, "float16": 1.0, "bfloat16": 1.0}
    )

    def compute_ps(self, m: int, n: int, k: int, dtype: str) -> int:
        """ceil(M/rows) ceil(N/cols) ceil(K/depth) passes, plus the overhead."""
        passes = -(-m // self.rows) * -(-n // self.cols) * -(-k // self.depth)
        cycles = Fraction(passes) / Fraction(str(self.rate.get(dtype, 1.0)))
        return _ps(cycles, self.clock_ghz) + _ns(self.overhead_ns)

    def peak_flops_per_ns(self, dtype: str) -> float:
        """2 flops a multiply-add, over all of the array; the roofline's height."""
        macs = self.rows * self.cols * self.depth
        return 2 * macs * self.rate.get(dtype, 1.0) * self.clock_ghz


@dataclass(frozen=True)
class PeMath:
    """The vector engine; `cycles` is cycles a vector of `lanes` by op. Assumed."""

    lanes: int = 128
    clock_ghz: float = 1.0
    overhead_ns: float = 16.0
    cycles: Mapping[str, float] = field(
        default_factory=lambda: {
            "exp": 4, "exp2": 4, "log": 4, "log2": 4, "sqrt": 4, "rsqrt": 4, "div": 4,
            "floordiv": 4, "mod": 4, "pow": 8, "sigmoid": 8, "tanh": 8, "erf": 8,
            "softmax": 12,
        }
    )  # fmt: skip

    def compute_ps(self, n: int, op: str = "copy") -> int:
        """overhead + ceil(n / lanes) x cycles of the op / clock, in picoseconds."""
        vectors = Fraction(-(-n // self.lanes))
        cycles = vectors * Fraction(str(self.cycles.get(op, 1)))
        return _ns(self.overhead_ns) + _ps(cycles, self.clock_ghz)

    def compute_ns(self, n: int, op: str = "copy") -> float:
        """`compute_ps` in nanoseconds, as ADR-0063 states the cost of a copy."""
        return self.compute_ps(n, op) / 1000


@dataclass(frozen=True)
class PeLink:
    """A link to a neighbour PE. Assumed: 64 GB/s, 1 us."""

    bandwidth_gb_s: float = 64.0
    latency_ns: float = 1000.0

    def transfer_ps(self, nbytes: int) -> int:
        return _transfer_ps(nbytes, self.latency_ns, self.bandwidth_gb_s)


def _ns(value: float) -> int:
    return math.ceil(Fraction(str(value)) * 1000)


_WHOLE = frozenset({"scratch_base", "align", "rows", "cols", "depth", "lanes"})
# Field name -> (lowest value, whether the lowest itself is allowed).
_LOWEST: dict[str, tuple[float, bool]] = {
    "scratch_base": (0, True),
    "latency_ns": (0, True),
    "overhead_ns": (0, True),
}


@dataclass(frozen=True)
class Hardware:
    """One PE and its links, one frozen dataclass a unit.

    Raises:
      ShapeError: when a size or rate is out of range, naming the field.
    """

    pe_tcm: PeTcm = PeTcm()
    pe_dma: PeDma = PeDma()
    pe_gemm: PeGemm = field(default_factory=PeGemm)
    pe_math: PeMath = field(default_factory=PeMath)
    pe_link: PeLink = PeLink()

    def __post_init__(self) -> None:
        for unit in dataclasses.fields(self):
            for name, value in vars(getattr(self, unit.name)).items():
                self._check(f"{unit.name}.{name}", name, value)
        if self.pe_tcm.scratch_base % self.pe_tcm.align:
            raise errors.ShapeError(
                "pe_tcm.scratch_base is not a multiple of pe_tcm.align",
                got=f"{self.pe_tcm.scratch_base} and {self.pe_tcm.align}",
            )

    def _check(self, path: str, name: str, value: object) -> None:
        if isinstance(value, Mapping):
            for key, entry in value.items():
                self._check(f"{path}.{key}", key, entry)
            return
        if name in _WHOLE and (isinstance(value, bool) or not isinstance(value, int)):
            raise errors.ShapeError(
                f"{path} is out of range", got=repr(value), allowed="whole numbers"
            )
        lowest, inclusive = _LOWEST.get(name, (0, False))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and math.isfinite(value):  # type: ignore[arg-type]
            if value > lowest or (inclusive and value == lowest):  # type: ignore[operator]
                return
        relation = ">=" if inclusive else ">"
        raise errors.ShapeError(
            f"{path} is out of range", got=repr(value), allowed=f"{relation} {lowest}"
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> Hardware:
        """Read a file of one table a unit; what it leaves out keeps its default.

        Raises:
          KernelError: for a key that no unit has, naming the nearest one.
          ShapeError: for a value out of range.
        """
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return _fill(cls(), tables, "")

    def to_toml(self) -> str:
        """The same hardware as TOML text; `from_toml` reads it back equal."""
        lines: list[str] = []
        for unit in dataclasses.fields(self):
            plain: list[tuple[str, Any]] = []
            nested: list[tuple[str, Any]] = []
            for name, value in vars(getattr(self, unit.name)).items():
                target = nested if isinstance(value, Mapping) else plain
                target.append((name, value))
            lines.append(f"[{unit.name}]")
            lines += [f"{name} = {json.dumps(value)}" for name, value in plain]
            for name, table in nested:
                lines.append(f"[{unit.name}.{name}]")
                lines += [
                    f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items()
                ]
            lines.append("")
        return "\n".join(lines)


def _fill(target: Any, table: Mapping[str, Any], prefix: str) -> Any:
    known = [f.name for f in dataclasses.fields(target)]
    changes: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise errors.KernelError(
                f"hardware has no {prefix}{key}", remedy=f"The nearest is {near[0]}"
            )
        current = getattr(target, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise errors.KernelError(f"{prefix}{key} must be a table", got=value)
            value = _fill(current, value, f"{prefix}{key}.")
        elif isinstance(current, Mapping):
            if not isinstance(value, Mapping):
                raise errors.KernelError(f"{prefix}{key} must be a table", got=value)
            value = {**current, **value}
        changes[key] = value
    return dataclasses.replace(target, **changes)
