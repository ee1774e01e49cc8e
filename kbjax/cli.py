"""The command line: `kbjax run KERNEL` and `kbjax kernels`.

Exit status: 0 where the numbers agree, 1 where they do not or the kernel is refused,
2 for a command line that cannot be read. JAX is imported only by a command that runs.
"""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kbjax import errors

SCHEMA_VERSION = 1
app = typer.Typer(
    help="A functional emulator of a near-HBM accelerator PE.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Fidelity(StrEnum):
    """How phase 2 keeps tiles."""

    live = "live"
    exact = "exact"


@app.callback()
def _root() -> None:
    """A functional emulator of a near-HBM accelerator PE."""


@app.command()
def kernels(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the shipped kernels and their sizes."""
    import inspect

    from kbjax import cases

    found: dict[str, Any] = {}
    for name in cases.kernel_names():
        module = cases.kernel_module(name)
        parameters = inspect.signature(module.case).parameters
        found[name] = {
            "about": (module.__doc__ or "").strip().splitlines()[0],
            "sizes": {size: p.default for size, p in parameters.items()},
        }
    if as_json:
        typer.echo(json.dumps({"schema_version": SCHEMA_VERSION, "kernels": found}))
        return
    table = Table("kernel", "what", "sizes (defaults)")
    for name, about in found.items():
        sizes = ", ".join(f"{size}={value}" for size, value in about["sizes"].items())
        table.add_row(name, about["about"], sizes)
    Console().print(table)


@app.command()
def run(
    kernel: Annotated[str, typer.Argument(help="A name that `kbjax kernels` lists.")],
    context: Annotated[int | None, typer.Option(help="Keys, in tokens.")] = None,
    tile: Annotated[int | None, typer.Option(help="Keys a tile.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, ...")] = None,
    num_pes: Annotated[int | None, typer.Option(help="PEs that run it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random inputs.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any other size of the kernel."),
    ] = None,
    fidelity: Annotated[Fidelity, typer.Option(help="How tiles are kept.")] = (
        Fidelity.live
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Record a kernel, time it, execute it, and compare with its float64 reference."""
    named = {
        "context": context, "tile": tile, "dtype": dtype, "num_pes": num_pes,
        "seed": seed,
    }  # fmt: skip
    sizes = {name: value for name, value in named.items() if value is not None}
    sizes |= _parsed(size or [])
    console = Console(stderr=as_json)
    try:
        report, rows = _report(kernel, sizes, fidelity.value, console)
    except errors.KbjaxError as error:
        failure = {"class": type(error).__name__, "message": str(error)}
        if as_json:
            typer.echo(json.dumps({"schema_version": SCHEMA_VERSION, "error": failure}))
        else:
            Console(stderr=True).print(
                f"{failure['class']}: {failure['message']}",
                markup=False,
                soft_wrap=True,
            )
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _print(report, rows)
    raise typer.Exit(0 if report["verdict"] == "pass" else 1)


def _parsed(pairs: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` as integers, booleans or text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--size")
        try:
            value = json.loads(text.lower() if text in ("True", "False") else text)
        except json.JSONDecodeError:
            value = text
        found[name.replace("-", "_")] = value
    return found


def _report(
    kernel: str, sizes: dict[str, Any], fidelity: str, console: Console
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Everything that `kbjax run` has to say, as plain data; the log's summary also as
    rows for people."""
    seconds: dict[str, float] = {}

    def timed(step: str, work: Any) -> Any:
        start = time.perf_counter()
        with console.status(f"{kernel}: {step} ..."):
            result = work()
        seconds[step] = time.perf_counter() - start
        return result

    from kbjax import cases

    case = timed("making inputs", lambda: cases.make(kernel, **sizes))
    log = timed("recording and timing", lambda: case.call.op_log(*case.arrays))

    def execute() -> Any:
        if fidelity == "exact":
            return case.call.run(*case.arrays, fidelity="exact").outputs
        return case.call(*case.arrays)

    output = timed(
        "executing (with compilation)", lambda: execute().block_until_ready()
    )
    error = timed("comparing with float64", lambda: case.error_of(output))
    summary = log.summary()
    report = {
        "schema_version": SCHEMA_VERSION,
        "kernel": kernel,
        "sizes": sizes,
        "fidelity": fidelity,
        "inputs": [f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in case.arrays],
        "input_bytes": sum(int(a.nbytes) for a in case.arrays),
        "summary": summary.to_dict(),
        "seconds": seconds,
        "error": error if error == error else None,
        "tolerance": case.tolerance,
        "verdict": "pass" if error <= case.tolerance else "fail",
    }
    return report, summary.rows()


def _print(report: dict[str, Any], rows: list[tuple[str, str]]) -> None:
    inputs = ", ".join(report["inputs"])
    pes = report["summary"]["num_pes"]
    title = f"{report['kernel']} on {pes} PE{'s' if pes > 1 else ''}: {inputs}"
    table = Table(show_header=False, title=title, title_justify="left")
    for name, figure in rows:
        table.add_row(name, figure)
    for step, taken in report["seconds"].items():
        table.add_row(step, f"{taken:.2f} s")
    error = "NaN" if report["error"] is None else f"{report['error']:.2e}"
    table.add_row(
        "error", f"{error} of the largest element, {report['tolerance']:.2e} allowed"
    )
    console = Console()
    console.print(table)
    good = report["verdict"] == "pass"
    console.print(
        "[green]numbers agree[/green]" if good else "[red]NUMBERS DISAGREE[/red]",
        f"with the float64 reference ({report['fidelity']} replay)",
    )


def main() -> None:
    """The `kbjax` command."""
    app()


if __name__ == "__main__":
    main()
