"""`kbjax report KERNEL|RESULTS -o report.html`: a kernel's scratch and engines, or the
curves of a study's results, as one page."""

from __future__ import annotations

import functools
from typing import Annotated

import typer
from rich.console import Console

from kbjax.options import (
    AsJson,
    Asked,
    is_results,
    kernels_like,
    of_a_kernel,
    refusals,
    say_json,
)
from kbjax.output import check_keeps, name_of

KernelOrResults = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL|RESULTS",
        help="A name that `kbjax kernels` lists, your own as path.py:function, or a "
        "results file of `kbjax study`.",
        autocompletion=kernels_like,
    ),
]


@functools.partial(of_a_kernel, argument=KernelOrResults)
def report(
    asked: Asked,
    *,
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="The file; - is standard output."),
    ],
    pe: Annotated[
        int | None, typer.Option(min=0, help="The PE that is drawn; 0 by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a page, which any browser opens with no network: the map of the scratch,
    what the engines do, the kernel's source beside them, the summary and the plan.

    Of the results of a study: its curves and its points.
    A kernel that does not fit has a report as well, up to where it overflows, and exit
    status 1.
    """
    if as_json and output == "-":
        raise typer.BadParameter(
            "standard output cannot take both the report and --json", param_hint="-o"
        )
    console = Console(stderr=as_json or output == "-")
    if not is_results(asked.kernel):
        _report_kernel(asked, output, pe, as_json, console)
    elif asked.sizes or pe is not None or asked.hardware != "default":
        raise typer.BadParameter(
            "a study has its own sizes and hardware; give -o alone"
        )
    else:
        _report_study(asked.kernel, output, as_json, console)


def _report_kernel(
    asked: Asked, output: str, pe: int | None, as_json: bool, console: Console
) -> None:
    with refusals(as_json):
        from kbjax import report as reports
        from kbjax import report_page

        report_page.require_bokeh()  # before the work
        check_keeps("-o", output, asked.files())
        case = asked.case()
        with console.status(f"{asked.kernel}: recording and timing ..."):
            made = reports.of(
                case.call,
                *case.inputs.specs,
                pe=pe,
                title=asked.kernel,
                sizes=", ".join(f"{n} = {v}" for n, v in asked.sizes.items()),
                hardware=asked.hardware,
            )
        with console.status(f"{asked.kernel}: writing {output} ..."):
            nbytes = made.write(output)
    drawn = made.map
    if as_json:
        say_json(
            {
                **asked.report(),
                "path": output,
                "nbytes": nbytes,
                "pe": drawn.pe,
                "fits": made.plan.fits,
                "buffers": len(drawn.buffers),
                "shown_ops": len(drawn.ops),
                "folded_ops": sum(band.ops for band in drawn.bands),
                "dropped_ops": drawn.dropped_ops,
                "notes": made.notes(),
            }
        )
    else:
        found = [f"{name_of(output)}: {nbytes:,} B, {len(drawn.buffers):,} buffers and "
                 f"{len(drawn.ops):,} ops of PE {drawn.pe}",
                 *made.notes(), made.plan.headline()]  # fmt: skip
        console.print("\n".join(found), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if made.plan.fits else 1)


def _report_study(path: str, output: str, as_json: bool, console: Console) -> None:
    with refusals(as_json):
        from kbjax import report_study, study_store

        check_keeps("-o", output, {"the results": path})
        table = study_store.read(path)
        nbytes = report_study.write(table, output)
    if as_json:
        say_json({"study": table.study["name"], "results": path, "path": output,
                  "nbytes": nbytes, "counts": table.counts})  # fmt: skip
    else:
        done = f"{table.progress} of {table.study['name']}"
        told = f"{name_of(output)}: {nbytes:,} B, {done}"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
