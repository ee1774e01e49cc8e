"""Studies: a kernel, axes of sizes and hardware, and what to do at every point.

The points of a study are the product of its axes, the last one fastest. No JAX is
needed to make one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from kbjax import errors
from kbjax.hardware import Hardware, named
from kbjax.names import shown, unknown
from kbjax.ranges import FrozenTable, Table
from kbjax.study_axes import MOST_VALUES, canonical, value_of, values

Step = Literal["plan", "time", "run"]
STEPS: tuple[Step, ...] = get_args(Step)
_RESERVED = ("do", "name", "seed")  # of a study, and so no axes or sizes


@dataclass(frozen=True)
class Point:
    """One point of a study: all that a worker needs to know.

    Attributes:
      number: its place in the study, from 0.
      parameters: the kernel, and every size and hardware field that the study gives.
      do, seed: of the study.
      kernel: as `catalogue.make` takes it, wherever the worker runs.
      sizes: of the kernel.
      hardware: what it is called with.
    """

    number: int
    parameters: dict[str, Any]
    do: Step
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
      folder: where relative paths of kernels begin; the working directory by default.
        It is no part of what makes the study this one.

    Raises:
      KernelError, ShapeError: for what is none of this, naming it.
    """

    name: str
    axes: Mapping[str, Any]
    kernel: str | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    do: Step = "time"
    seed: int = 0
    hardware: Hardware | str = "default"
    folder: str = ""

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
            raise unknown(f"`do` has no {shown(self.do)}", self.do, STEPS)
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
                _check_hardware_field(name)
        self._hardware_names()  # every one is read, and refused, now
        for _ in self.points():  # and every hardware field checked
            pass

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The kernels that it sweeps."""
        return self.axes.get("kernel") or (str(self.kernel),)

    def located(self, kernel: str) -> str:
        """The kernel with the path of its file, where it has one, from the root."""
        path, colon, function = kernel.rpartition(":")
        return (
            f"{os.path.abspath(os.path.join(self.folder, path))}:{function}"
            if (colon and path.endswith(".py"))
            else kernel
        )

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
                number, parameters, self.do, self.seed, self.located(kernel), sizes,
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
                raise unknown(
                    f"the study has no {shown(kernel)}", kernel, self.kernel_names
                )
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


def _check_hardware_field(name: str) -> None:
    """Refuse a ``unit.field`` that hardware does not have, or that is a table."""
    unit, _, key = name.partition(".")
    units = {one.name: one.default for one in dataclasses.fields(Hardware)}
    if unit not in units:
        raise unknown(f"hardware has no {shown(unit)}", unit, units)
    fields = dataclasses.fields(cast(Any, units[unit]))
    known = [f.name for f in fields if not isinstance(f.metadata["allowed"], Table)]
    if key not in known:
        raise unknown(f"{unit} has no {shown(key)}", key, known)


def _with_fields(hardware: Hardware, fields: Mapping[str, Any]) -> Hardware:
    for name, value in fields.items():
        unit, _, key = name.partition(".")
        changed = dataclasses.replace(getattr(hardware, unit), **{key: value})
        hardware = dataclasses.replace(hardware, **{unit: changed})
    return hardware
