"""What the study scripts share: run a study, print its table, write its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kbjax import errors, options, study_plots, study_show
from kbjax.study import Study
from kbjax.study_run import Options
from kbjax.study_table import StudyTable

Small = Annotated[bool, typer.Option("--small", help="a few seconds")]
Folder = Annotated[
    str, typer.Option("--output", "-o", metavar="FOLDER", help="for all files")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="points at a time")]


def do(study: Study, folder: str, jobs: int | None, x: str) -> StudyTable:
    """Run or resume it in `folder`; its table, a CSV file, and plots against `x`.

    Exit status 1 for what is refused, 130 after Ctrl-C.
    """
    with options.refusals(False):
        base = Path(folder) / study.name
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.KbjaxError(
                f"cannot make {folder}: {error.strerror}"
            ) from error
        study_plots.format_of("x.png")  # refused before the work, not after
        csv = f"{base}.csv"
        table = study_show.run(study, f"{base}.sqlite", Options(jobs, csv=csv))
        plots = [f"{base}.{kind}" for kind in study_plots.FORMATS]
        study_show.exported(table, csv=csv, plots=plots, x=x)
    study_show.print_table(table)
    typer.echo(f"{csv}, {base}.png and {base}.svg are written")
    return table
