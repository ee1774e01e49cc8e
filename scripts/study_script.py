"""What the study scripts share: run a study, print its table, write its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kbjax import cli_study, errors, options
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
        from kbjax import study_plots

        base = Path(folder) / study.name
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.KbjaxError(
                f"cannot make {folder}: {error.strerror}"
            ) from error
        study_plots.format_of("x.png")  # refused before the work, not after
        csv = f"{base}.csv"
        table = cli_study.ran(study, f"{base}.sqlite", Options(jobs), csv)
        cli_study.exported(table, csv=csv)
        for kind in study_plots.FORMATS:
            study_plots.write(table, f"{base}.{kind}", x)
    cli_study.print_table(table)
    typer.echo(f"{csv}, {base}.png and {base}.svg are written")
    return table
