"""What the commands of the command line share: their options, how sizes and hardware
are read from them, how a refusal is shown, and the JSON they print.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console

from kbjax import errors
from kbjax.names import printable
from kbjax.user_files import raised

if TYPE_CHECKING:
    from kbjax.cases import Case
    from kbjax.hardware import Hardware

SCHEMA_VERSION = 1


def kernels_like(incomplete: str) -> list[str]:
    """For the shell: the shipped kernels that begin so; JAX is not imported."""
    from kbjax.shipped import kernel_names

    return [name for name in kernel_names() if name.startswith(incomplete)]


def profiles_like(incomplete: str) -> list[str]:
    """For the shell: the hardware profiles that begin so."""
    from kbjax.hardware import Hardware

    return [name for name in Hardware.profiles() if name.startswith(incomplete)]


def _dtypes_like(incomplete: str) -> list[str]:
    """For the shell: the element types that begin so."""
    from kbjax import dtypes

    return [name for name in dtypes.TABLE if name.startswith(incomplete)]


KernelName = Annotated[
    str,
    typer.Argument(
        help="A name that `kbjax kernels` lists, or your own as path.py:function.",
        autocompletion=kernels_like,
    ),
]
Context = Annotated[
    int | None, typer.Option(help="The size `context`: keys, in tokens.")
]
Tile = Annotated[
    int | None,
    typer.Option(help="The size `tile`: keys, or columns, that are worked on at once."),
]
DTypeName = Annotated[
    str | None,
    typer.Option(
        help="The size `dtype`: float32, bfloat16, ...", autocompletion=_dtypes_like
    ),
]
NumPes = Annotated[
    int | None, typer.Option(help="The size `num_pes`: PEs that run it.")
]
Seed = Annotated[
    int | None, typer.Option(help="The size `seed`: of the random inputs.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Any size of the kernel; `kbjax kernels` lists them."
    ),
]
HardwareName = Annotated[
    str,
    typer.Option(
        "--hardware",
        metavar="PROFILE_OR_FILE",
        help="A profile that `kbjax hardware` lists, or a TOML file.",
        autocompletion=profiles_like,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


def say_json(report: dict[str, Any]) -> None:
    """Print a report as JSON, with its schema version: its own where it has one."""
    whole = {"schema_version": SCHEMA_VERSION, **report}
    typer.echo(json.dumps(whole, default=str, allow_nan=False))


@contextlib.contextmanager
def refusals(as_json: bool) -> Iterator[None]:
    """Show a refusal, and what a user's own file raises, as text or JSON, and exit with
    status 1."""
    try:
        yield
    except (Exception, SystemExit) as error:
        refusal = error if isinstance(error, errors.KbjaxError) else raised(error)
        if refusal is None:
            raise
        if as_json:
            say_json({"error": refusal.to_dict()})
        else:
            Console(stderr=True).print(
                printable(f"{type(refusal).__name__}: {refusal}", keep="\n"),
                markup=False,
                soft_wrap=True,
            )
        raise typer.Exit(1) from None


def is_results(path: str) -> bool:
    """Whether a file that is named is a database, as the results of a study are."""
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return False


def named_hardware(name_or_path: str) -> Hardware:
    """What `--hardware` names."""
    from kbjax.hardware import named

    return named(name_or_path)


def hardware_report(name_or_path: str, found: Hardware) -> dict[str, Any]:
    """What a JSON report says of the hardware: its name or path, and all fields."""
    return {"name": name_or_path, **found.to_dict()}


@dataclass(frozen=True)
class Asked:
    """What the command line asks for.

    Attributes:
      kernel: its name.
      sizes: those that are given.
      hardware: the name or path.
    """

    kernel: str
    sizes: dict[str, Any]
    hardware: str

    @functools.cached_property
    def on(self) -> Hardware:
        """What `--hardware` names."""
        return named_hardware(self.hardware)

    def case(self) -> Case:
        """The kernel with these sizes, on this hardware."""
        from kbjax import catalogue

        return catalogue.make(self.kernel, hardware=self.on, **self.sizes)

    def files(self) -> dict[str, str]:
        """What is read: what it is -> its path; shipped ones are no files."""
        found = {}
        path, colon, _ = self.kernel.rpartition(":")
        if colon:
            found["the kernel's file"] = path
        if self.hardware.endswith(".toml"):
            found["the hardware"] = self.hardware
        return found

    def report(self) -> dict[str, Any]:
        """For JSON."""
        hardware = hardware_report(self.hardware, self.on)
        return {"kernel": self.kernel, "sizes": self.sizes, "hardware": hardware}


def of_a_kernel(
    command: Callable[..., None], argument: Any = KernelName
) -> Callable[..., None]:
    """A command with the argument and the options that say which kernel, in which sizes
    and on what hardware, before its own; it is given an `Asked` for them.

    Args:
      command: takes an `Asked`, and its own options by keyword.
      argument: the annotation of the argument.
    """

    def called(
        kernel: KernelName,
        *,
        context: Context = None,
        tile: Tile = None,
        dtype: DTypeName = None,
        num_pes: NumPes = None,
        seed: Seed = None,
        size: Sizes = None,
        hardware: HardwareName = "default",
        **own: Any,
    ) -> None:
        sizes = given_sizes(size, context=context, tile=tile, dtype=dtype,
                       num_pes=num_pes, seed=seed)  # fmt: skip
        command(Asked(kernel, sizes, hardware), **own)

    *shared, _ = inspect.signature(called).parameters.values()
    _, *own = inspect.signature(command).parameters.values()
    hints = get_type_hints(called, include_extras=True)
    hints |= get_type_hints(command, include_extras=True)
    hints["kernel"] = argument
    taken = [p.replace(annotation=hints[p.name]) for p in (*shared, *own)]
    # What Typer reads.
    called.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    called.__annotations__ = hints
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def given_sizes(pairs: list[str] | None, **named: Any) -> dict[str, Any]:
    """The sizes that the command line gives: those with options of their own, and
    ``NAME=VALUE`` as integers, floats, booleans, None or text."""
    given = {name: value for name, value in named.items() if value is not None}
    return given | _parsed(pairs or [])


_CONSTANTS = {"True": "true", "False": "false", "None": "null"}  # as Python has them


def _parsed(pairs: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--size")
        if name == "hardware":
            raise typer.BadParameter("hardware is no size; use --hardware",
                                     param_hint="--size")  # fmt: skip
        try:
            value = json.loads(_CONSTANTS.get(text, text), parse_constant=str)
        except ValueError:  # no JSON, or an integer of too many digits
            value = text
        if isinstance(value, list | dict):
            value = text
        found[name.replace("-", "_")] = value
    return found
