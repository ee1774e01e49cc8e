"""Studies: a kernel, axes of sizes and hardware, and what to do at every point.

A study is made in Python, or read from a TOML file, which runs no code. Its points are
the product of its axes, the last one fastest. No JAX is needed to make one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbjax import errors, study_axes
from kbjax.hardware import Hardware, named
from kbjax.hardware_toml import Source
from kbjax.names import shown
from kbjax.ranges import FrozenTable, Table
from kbjax.study_axes import MOST_VALUES, canonical, refuse_unknown, value_of, values

STEPS = ("plan", "time", "run")
_TOML_KEYS = (
    "name", "kernel", "do", "seed", "hardware", "sizes", "axes", "kernels",
)  # fmt: skip
_RESERVED = ("do", "name", "seed")  # of a study, and so no axes or sizes


@dataclass(frozen=True)
class Point:
    """One point of a study: all that a worker needs to know.

    Attributes:
      number: its place in the study, from 0.
      parameters: the kernel, and every size and hardware field that the study gives.
      do, seed: of the study.
      sizes: of the kernel.
      hardware: what it is called with.
    """

    number: int
    parameters: dict[str, Any]
    do: str
    seed: int
    kernel: str
    sizes: dict[str, Any]
    hardware: Hardware

    @property
    def key(self) -> str:
        """Canonical JSON of the parameters: what makes the point this one."""
        return canonical(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is swept, over what, and what is done at every point.

    Attributes:
      name: for titles.
      kernel: a shipped kernel, or ``path.py:function``; None where it is an axis.
      axes: name -> a list, or a range ``{"from":, "to":, "factor":}`` (or ``step``).
        A name is a size of the kernel, ``kernel``, ``hardware`` (profiles), or a
        hardware field, as ``pe_tcm.kernel_scratch_mb``.
      sizes: the sizes that stay, and hardware fields.
      kernels: kernel -> sizes of it alone.
      do: ``plan``, the footprint; ``time``, the op_log as well; ``run``, execution and
        the error against float64 as well.
      seed: of the random inputs.
      hardware: a `Hardware`, a profile or the path of a TOML file.

    Raises:
      KernelError, ShapeError: for what is none of this, naming it.
    """

    name: str
    axes: Mapping[str, Any]
    kernel: str | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    do: str = "time"
    seed: int = 0
    hardware: Hardware | str = "default"

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if not isinstance(self.name, str) or not self.name.isprintable():
            raise errors.KernelError("name is printable text", got=shown(self.name))
        if not 1 <= len(self.name) <= 1_000:
            raise errors.KernelError(
                "name is text", got=shown(self.name), allowed="1 to 1,000 letters"
            )
        if self.kernel is not None and not isinstance(self.kernel, str):
            raise errors.KernelError(
                "kernel is a name",
                got=shown(self.kernel),
                remedy="Give several as an axis: kernel = [...] among the axes",
            )
        if self.do not in STEPS:
            refuse_unknown("`do`", self.do, STEPS)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise errors.ShapeError("seed is a whole number", got=shown(self.seed))
        if not 0 <= self.seed < 2**63:
            raise errors.ShapeError(
                "seed is a whole number", got=self.seed, allowed="0 to 2**63 - 1"
            )
        for what in ("axes", "sizes", "kernels"):
            if not isinstance(getattr(self, what), Mapping):
                raise errors.KernelError(
                    f"{what} must be a table", got=shown(getattr(self, what))
                )
        axes = {n: values(n, v) for n, v in _dotted(self.axes).items()}
        put("axes", FrozenTable(axes))
        put("sizes", FrozenTable(_sizes("sizes", self.sizes)))
        kernels = {k: FrozenTable(_sizes(k, v)) for k, v in self.kernels.items()}
        put("kernels", FrozenTable(kernels))
        self._check_names()
        points = math.prod(map(len, axes.values()))
        if points > MOST_VALUES:
            raise errors.ShapeError(
                "the study has too many points", got=points,
                allowed=f"up to {MOST_VALUES}",
            )  # fmt: skip
        for name in (*self.axes, *self.sizes):
            if "." in name:
                _hardware_field(name)
        self._hardware_names()  # every one is read, and refused, now
        for _ in self.points():  # and every hardware field checked
            pass

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Study:
        """Read a study; see docs/studies.md. No code is run: kernels are shipped ones.

        Raises:
          KernelError: for a file that cannot be read or is no TOML, and for an unknown
            key, with the nearest one.
          ShapeError: for a value out of range. All name the file.
        """
        source = _read(path)
        tables = source.tables()
        for key in tables:
            with source.errors_at(key):
                if key not in _TOML_KEYS:
                    refuse_unknown("a study", key, _TOML_KEYS)
        with source.errors_at("hardware"):
            on = tables.get("hardware", "default")
            if isinstance(on, str) and on not in Hardware.profiles():
                beside = Path(path).parent / on
                if on.endswith(".toml") or os.sep in on:
                    on = str(beside)
                tables["hardware"] = on
        with source.errors_at():
            tables.setdefault("name", Path(path).stem)
            tables.setdefault("axes", {})
            found = cls(**tables)
            for kernel in found.kernel_names:
                if ":" in kernel or kernel.endswith(".py"):
                    raise errors.KernelError(
                        "a study in TOML runs no files of code",
                        got=f"the kernel {shown(kernel)}",
                        allowed="kernels that `kbjax kernels` lists",
                        remedy="Write the study in Python: study = Study(...)",
                    )
            return found

    @classmethod
    def from_python(cls, path: str | os.PathLike[str]) -> Study:
        """Run a Python file, and take the `study` that it defines.

        Raises:
          KernelError: where it cannot be read, or defines none.
        """
        try:
            names = runpy.run_path(os.fspath(path), run_name="kbjax_study")
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise errors.KernelError(f"cannot read {path}: {error}") from error
        found = names.get("study")
        if not isinstance(found, cls):
            raise errors.KernelError(
                f"{path} defines no study",
                got=shown(found),
                remedy="Write study = kbjax.study.Study(...)",
            )
        return found

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The kernels that it sweeps."""
        return self.axes.get("kernel") or (str(self.kernel),)

    def points(self) -> Iterator[Point]:
        """Every point, in order."""
        hardware = self._hardware_names()
        for number, chosen in enumerate(itertools.product(*self.axes.values())):
            at = dict(zip(self.axes, chosen, strict=True))
            kernel = at.pop("kernel", self.kernel)
            on = at.pop("hardware", None)
            given = {**self.sizes, **self.kernels.get(kernel, {}), **at}
            fields = {n: v for n, v in given.items() if "." in n}
            sizes = {n: v for n, v in given.items() if "." not in n}
            parameters = {"kernel": kernel, **sizes, **fields}
            if on is not None:
                parameters["hardware"] = on
            yield Point(
                number, parameters, self.do, self.seed, kernel, sizes,
                _with_fields(hardware[on], fields),
            )  # fmt: skip

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def to_dict(self) -> dict[str, Any]:
        """Plain types, the hardware in full: what a results file is made for."""
        return {
            "name": self.name,
            "kernel": self.kernel,
            "do": self.do,
            "seed": self.seed,
            "sizes": dict(self.sizes),
            "kernels": {name: dict(sizes) for name, sizes in self.kernels.items()},
            "axes": {name: list(found) for name, found in self.axes.items()},
            "hardware": {
                str(name or "all"): found.to_dict()
                for name, found in self._hardware_names().items()
            },
        }

    def _hardware_names(self) -> dict[str | None, Hardware]:
        """The hardware of each value of its axis; of None where it is none."""
        if "hardware" in self.axes:
            return {name: named(str(name)) for name in self.axes["hardware"]}
        on = self.hardware
        if isinstance(on, Hardware):
            return {None: on}
        if not isinstance(on, str):
            raise errors.KernelError("hardware is a profile or a file", got=shown(on))
        return {None: named(on)}

    def _check_names(self) -> None:
        if not self.axes:
            raise errors.KernelError(
                "the study has no axes", remedy="Give axes, as context = [4096, 8192]"
            )
        if (self.kernel is None) == ("kernel" not in self.axes):
            raise errors.KernelError(
                "a study has a kernel, or an axis of kernels",
                remedy="Give one of the two",
            )
        for kernel in self.kernel_names:
            if not isinstance(kernel, str):
                raise errors.KernelError("a kernel is text", got=shown(kernel))
        for kernel in self.kernels:
            if kernel not in self.kernel_names:
                refuse_unknown("the study", kernel, self.kernel_names)
        for name in (
            *self.axes,
            *self.sizes,
            *sum(map(tuple, self.kernels.values()), ()),
        ):
            if name in _RESERVED or not name.isprintable():
                raise errors.KernelError(
                    f"{shown(name)} is no size", remedy="Give it once, for the study"
                )
        for name in (*self.sizes, *sum(map(tuple, self.kernels.values()), ())):
            if name in self.axes or name in ("kernel", "hardware"):
                raise errors.KernelError(
                    f"{shown(name)} is given twice", allowed="an axis, or a size"
                )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two studies, as `Study.to_dict` gives them, differ in, one line each."""
    found = []
    for key in dict.fromkeys((*there, *here)):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += [f"{key}.{line}" for line in differences(old, new)]
        elif canonical(old) != canonical(new):
            found.append(f"{key}: {shown(old)} there, {shown(new)} here")
    return found


def _sizes(what: str, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise errors.KernelError(f"{what} must be a table of sizes", got=shown(given))
    return {name: value_of(name, value) for name, value in _dotted(given).items()}


def _dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """With tables of hardware units, as ``pe_tcm.align = 16`` is in TOML, flat."""
    found: dict[str, Any] = {}
    units = [unit.name for unit in dataclasses.fields(Hardware)]
    for name, value in given.items():
        if name in units and isinstance(value, Mapping):
            found |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            found[str(name)] = value
    return found


def _hardware_field(name: str) -> study_axes.Any:
    """What the hardware field `name` takes."""
    unit, _, key = name.partition(".")
    units = {one.name: one for one in dataclasses.fields(Hardware)}
    if unit not in units:
        refuse_unknown("hardware", unit, units)
    fields = {
        one.name: one.metadata["allowed"] for one in dataclasses.fields(units[unit].default)  # type: ignore[arg-type]  # noqa: E501
        if not isinstance(one.metadata["allowed"], Table)
    }  # fmt: skip
    if key not in fields:
        refuse_unknown(unit, key, fields)
    return fields[key]


def _with_fields(hardware: Hardware, fields: Mapping[str, Any]) -> Hardware:
    for name, value in fields.items():
        unit, _, key = name.partition(".")
        changed = dataclasses.replace(getattr(hardware, unit), **{key: value})
        hardware = dataclasses.replace(hardware, **{unit: changed})
    return hardware


def _read(path: str | os.PathLike[str]) -> Source:
    try:
        return Source(str(path), Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text: {error.reason} at byte {error.start}"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    raise errors.KernelError(
        f"cannot read the study {str(path)!r}: {reason}",
        allowed="a TOML file, or a Python file that defines `study`",
        remedy="docs/studies.md has one to start from",
    )
