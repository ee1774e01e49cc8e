"""The command line: its commands, those of one kernel among them.

Exit status: 0 where the numbers agree or the plan fits, 1 where they do not or the
kernel is refused, 2 for a command line that cannot be read, which is said on standard
error with `--json`, too. JAX is imported only by a command that needs it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kbjax import cli_doctor, cli_fuzz, cli_report, cli_study, screens
from kbjax.names import printable
from kbjax.options import (
    AsJson,
    Asked,
    hardware_report,
    named_hardware,
    of_a_kernel,
    profiles_like,
    refusals,
    say_json,
)
from kbjax.output import check_keeps

app = typer.Typer(
    help="A functional emulator of a near-HBM accelerator PE.",
    epilog="Exit status: 0 where the plan fits, the numbers agree and all checks pass; "
    "1 where they do not, or the kernel is refused; 2 for a command line that cannot "
    "be read (on standard error, with --json, too). `kbjax COMMAND --help` has an "
    "example of each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Fidelity(StrEnum):
    """How phase 2 keeps tiles."""

    live = "live"
    exact = "exact"


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"kbjax {version('kbjax')}")
        except PackageNotFoundError:
            typer.echo("kbjax, not installed")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_say_version,
            is_eager=True,
            help="Print the version and stop.",
        ),
    ] = False,
) -> None:
    """A functional emulator of a near-HBM accelerator PE."""


@app.command(epilog="Example: kbjax kernels --json")
def kernels(as_json: AsJson = False) -> None:
    """List the shipped kernels and their sizes."""
    from kbjax import catalogue

    found: dict[str, Any] = {}
    for name in catalogue.kernel_names():
        module = catalogue.kernel_module(name)
        found[name] = {
            "about": (module.__doc__ or "").strip().splitlines()[0],
            "sizes": catalogue.sizes_of(name),
        }
    if as_json:
        say_json({"kernels": found})
        return
    table = Table("kernel", "what", "sizes (defaults)")
    for name, about in found.items():
        sizes = ", ".join(f"{size}={value}" for size, value in about["sizes"].items())
        table.add_row(name, about["about"], sizes)
    Console().print(table)


@app.command(epilog="Example: kbjax hardware hbm3_channel > mine.toml")
def hardware(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROFILE_OR_FILE]",
            help="The one to print; all are listed where none is given.",
            autocompletion=profiles_like,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the hardware profiles, or print one as TOML: a profile with the source of
    each number, a file with what it leaves out."""
    from kbjax import hardware_toml
    from kbjax.hardware import Hardware

    if name is not None:
        with refusals(as_json):
            found = named_hardware(name)
            is_profile = name in Hardware.profiles()
            text = hardware_toml.profile(name).text if is_profile else found.to_toml()
        if as_json:
            say_json({"hardware": hardware_report(name, found)})
        else:
            typer.echo(text, nl=False)
        return
    table = Table("profile", "what")
    reports = {}
    for profile in Hardware.profiles():
        about = hardware_toml.about(profile)
        table.add_row(profile, about)
        report = hardware_report(profile, Hardware.from_profile(profile))
        reports[profile] = {"about": about, **report}
    if as_json:
        say_json({"profiles": reports})
    else:
        Console().print(table)


@app.command(
    epilog="Example: kbjax run gqa_decode --context 8192 --tile 64 --num-pes 2"
)
@of_a_kernel
def run(
    asked: Asked,
    *,
    fidelity: Annotated[
        Fidelity | None, typer.Option(help="How tiles are kept; live by default.")
    ] = None,
    poison: Annotated[
        bool,
        typer.Option("--poison", help="Fill what a scope gives back with 0xFF."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Record a kernel, time it, execute it, and compare with its float64 reference."""
    if poison and fidelity is Fidelity.live:
        raise typer.BadParameter("poison has no effect on live", param_hint="--poison")
    how = fidelity.value if fidelity else "exact" if poison else "live"
    with refusals(as_json):
        report, rows = _judged(asked, how, poison, Console(stderr=as_json))
    if as_json:
        say_json(report)
    else:
        screens.print_run(report, rows)
    raise typer.Exit(0 if report["verdict"] == "pass" else 1)


@app.command(epilog="Example: kbjax plan gqa_decode --context 1048576 --vary tile")
@of_a_kernel
def plan(
    asked: Asked,
    *,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A size of the kernel function to try."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a kernel's footprint without running it: the peak by buffer, what scopes
    take and give back, and which tile sizes fit."""
    with refusals(as_json):
        case = asked.case()
        found = case.call.plan(*case.inputs.specs, vary=vary)
    if as_json:
        say_json({**found.to_dict(), **asked.report()})
    else:
        screens.print_plan(found)
        Console().print(f"\nhardware: {escape(asked.hardware)}", highlight=False)
    raise typer.Exit(0 if found.fits else 1)


@app.command(epilog="Example: kbjax trace gqa_decode --context 65536 -o trace.json")
@of_a_kernel
def trace(
    asked: Asked,
    *,
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="The file; - is standard output."),
    ],
    max_events: Annotated[
        int, typer.Option(min=1, help="Events that the file may have.")
    ] = 200_000,
    pe: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A PE to draw; all by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time a kernel and write what ran when as a trace, which ui.perfetto.dev opens.

    Steady iterations of long loops are folded into one slice; what is left out beside
    is counted in the file and here.
    """
    if as_json and output == "-":
        raise typer.BadParameter(
            "standard output cannot take both the trace and --json", param_hint="-o"
        )
    console = Console(stderr=as_json or output == "-")
    with refusals(as_json):
        from kbjax import trace as traces

        check_keeps("-o", output, asked.files())
        case = asked.case()
        with console.status(f"{asked.kernel}: recording and timing ..."):
            log = case.call.op_log(*case.inputs.specs)
        with console.status(f"{asked.kernel}: writing {output} ..."):
            report = traces.write_trace(log, output, max_events, pe)
    if as_json:
        summary = {"summary": log.summary().to_dict()}
        say_json({**report.to_dict(), **asked.report(), **summary})
    else:
        said = printable(str(report), keep="\n")
        console.print(said, markup=False, highlight=False, soft_wrap=True)


app.command(epilog="Example: kbjax report gqa_decode -o report.html")(cli_report.report)
app.command(epilog="Example: kbjax study context.toml --csv context.csv")(
    cli_study.study
)


def _judged(
    asked: Asked, fidelity: str, poison: bool, console: Console
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Everything that `kbjax run` has to say, as plain data; the log's summary also as
    rows for people."""
    seconds: dict[str, float] = {}

    def timed(step: str, work: Any) -> Any:
        start = time.perf_counter()
        with console.status(f"{asked.kernel}: {step} ..."):
            result = work()
        seconds[step] = time.perf_counter() - start
        return result

    import jax

    case = asked.case()
    log = timed("recording and timing", lambda: case.call.op_log(*case.inputs.specs))
    timed("making inputs", lambda: case.arrays)

    def execute() -> Any:
        if fidelity == "exact":
            return case.call.run(*case.arrays, fidelity="exact", poison=poison).outputs
        return case.call(*case.arrays)

    output = timed(
        "executing (with compilation)", lambda: jax.block_until_ready(execute())
    )
    error = timed("comparing with float64", lambda: case.error_of(output))
    summary = log.summary()
    report = {
        **asked.report(),
        "fidelity": fidelity,
        "poison": poison,
        "inputs": [f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in case.arrays],
        "input_bytes": sum(int(a.nbytes) for a in case.arrays),
        "summary": summary.to_dict(),
        "seconds": seconds,
        "error": error if math.isfinite(error) else None,
        "tolerance": case.tolerance,
        "verdict": "pass" if error <= case.tolerance else "fail",
    }
    return report, summary.rows()


app.command(epilog="Example: kbjax doctor --json")(cli_doctor.doctor)
app.command(epilog="Example: kbjax fuzz gqa_decode --size num_pes=1 --examples 10")(
    cli_fuzz.fuzz
)


def main() -> None:
    """The `kbjax` command."""
    try:
        try:
            app(prog_name="kbjax")  # as `python -m kbjax`, too
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # a file's; this is standard output's
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is not tried again
        sys.exit(f"cannot write to standard output: {error.strerror}")
