"""`kbjax study`: a sweep over a kernel's sizes and hardware, into one results file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kbjax.options import AsJson, is_results, refusals


def study(
    file: Annotated[
        str,
        typer.Argument(
            help="A study: TOML, or Python that defines `study`. Or a results file."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="The results file; FILE.sqlite by default."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Points at a time.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a Dask cluster to run on."),
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="PATH", help="- is standard output.")
    ] = None,
    parquet: Annotated[
        str | None, typer.Option(metavar="PATH", help="Needs pyarrow.")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Ends in .png or .svg; needs matplotlib."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing; print what is there.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do points that failed again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sweep a kernel over sizes and hardware; one row a point in one SQLite file.

    What was killed is resumed by the same command. Exit status: 0 where every point is
    done with right numbers or does not fit, 1 for anything else, 130 after Ctrl-C.
    """
    from kbjax import study_curves, study_run, study_show, study_source, study_store

    if as_json and csv == "-":
        raise typer.BadParameter(
            "standard output cannot take both CSV and --json", param_hint="--csv"
        )
    sheet = csv if csv != "-" else None
    options = study_run.Options(jobs, scheduler, retry_failed, sheet)
    with refusals(as_json):
        results = file if is_results(file) else output or default_output(file)
        exports = {"--csv": csv, "--parquet": parquet, "--plot": plot}
        study_show.check_exports(exports, {"the study": file, "the results": results})
        if show or results == file:
            table = study_store.read(results)
        else:
            found = study_source.read(file)
            study_show.check_exports(exports, study_show.files_of(found))
            if plot:
                study_curves.axis_of(found.axes)  # refused now, not after hours
            table = study_show.run(found, results, options)
        if not as_json:  # first, for an export may be refused yet
            study_show.print_table(table, Console(stderr=csv == "-"))
        plots = [plot] if plot else []
        study_show.exported(table, csv=csv, parquet=parquet, plots=plots)
    if as_json:
        typer.echo(json.dumps(table.to_dict()))
    complete = table.finished == len(table.rows)
    raise typer.Exit(0 if table.is_good or (show and complete) else 1)


def default_output(file: str) -> str:
    """The results file of a study's file: beside it."""
    return str(Path(file).with_suffix(".sqlite"))
