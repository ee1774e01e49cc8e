"""`kbjax study`: a sweep over a kernel's sizes and hardware, into one results file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from kbjax import errors
from kbjax.options import AsJson, refusals
from kbjax.study_status import Status

if TYPE_CHECKING:
    from kbjax.study import Study
    from kbjax.study_run import Options
    from kbjax.study_store import Store
    from kbjax.study_table import StudyTable

_MOST_ROWS = 200  # shown to people
_CSV_S = 1.0  # between two writes of a CSV file while the study runs


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
    from kbjax import study_curves, study_run, study_source, study_store

    if as_json and csv == "-":
        raise typer.BadParameter(
            "standard output cannot take both CSV and --json", param_hint="--csv"
        )
    options = study_run.Options(jobs, scheduler, retry_failed)
    with refusals(as_json):
        results = file if _is_sqlite(file) else output or default_output(file)
        exports = {"--csv": csv, "--parquet": parquet, "--plot": plot}
        check_exports(exports, {"the study": file, "the results": results})
        if show or results == file:
            table = study_store.read(results)
        else:
            found = study_source.read(file)
            check_exports(exports, _files_of(found))
            if plot:
                study_curves.axis_of(found.axes)  # refused now, not after hours
            table = ran(found, results, options, csv)
        if not as_json:  # first, for an export may be refused yet
            print_table(table, Console(stderr=csv == "-"))
        exported(table, csv=csv, parquet=parquet, plots=[plot] if plot else [])
    if as_json:
        typer.echo(json.dumps(table.to_dict()))
    complete = table.finished == len(table.rows)
    raise typer.Exit(0 if table.is_good or (show and complete) else 1)


def ran(
    study: Study, output: str, options: Options, csv: str | None = None
) -> StudyTable:
    """Run a study with progress on standard error.

    Ctrl-C ends with status 130 and a message that names the file; the CSV file has
    then what is done.

    Raises:
      KbjaxError: see `study_run.run`.
    """
    from kbjax import study_run

    try:
        with _progress(study, csv) as seen, _told_warnings():
            return study_run.run(study, output, options, seen)
    except study_run.InterruptedStudyError as error:
        if csv and csv != "-":
            error.table.to_csv(csv)
        typer.echo(str(error), err=True)
        raise typer.Exit(128 + error.signal) from None


def exported(
    table: StudyTable,
    *,
    csv: str | None = None,
    parquet: str | None = None,
    plots: list[str] = [],  # noqa: B006
) -> None:
    """Write the files that were asked for."""
    if csv:
        table.to_csv(csv)
    if parquet:
        table.to_parquet(parquet)
    if plots:
        from kbjax import study_plots

        for path in plots:
            study_plots.write(table, path)


def print_table(table: StudyTable, console: Console | None = None) -> None:
    """The rows for people, how many are done or failed, and the file."""
    from kbjax.names import printable

    if isinstance(sys.stdout, io.TextIOWrapper):  # in a locale that has no such letter
        sys.stdout.reconfigure(errors="backslashreplace")
    console = console or Console()
    name = escape(printable(str(table.study["name"])))
    names, rows = table.short()
    drawn = Table(box=box.SIMPLE_HEAD, title=f"{name}: {table.progress}")
    for column in names:
        drawn.add_column(escape(printable(column)), no_wrap=True)
    for row in rows[:_MOST_ROWS]:
        drawn.add_row(*(escape(cell) for cell in row))
    console.width = max(console.width, _width(drawn, console))  # none is cut
    _say(console, drawn)
    if len(rows) > _MOST_ROWS:
        _say(console, f"{len(rows) - _MOST_ROWS:,} more rows are in the file")
    reasons = {
        (
            str(row.figures["reason_kind"]),
            _first_line(row.figures["reason"]),
        ): row.number
        for row in reversed(table.rows)
        if row.figures["reason"]
    }
    for (kind, reason), number in list(reversed(reasons.items()))[:5]:
        _say(console, f"point {number}: {escape(printable(f'{kind}: {reason}'))}")
    if len(reasons) > 5:
        _say(console, f"{len(reasons) - 5:,} more reasons are in the file")
    if mixed := table.mixed_versions:
        said = escape(printable("; ".join(mixed)))
        _say(console, f"not all points were done with the same: {said}")
    counts = ", ".join(f"{n:,} {status}" for status, n in table.counts.items() if n)
    _say(console, f"{counts}; {escape(printable(table.path))}")


def _first_line(text: object) -> str:
    return next(iter(str(text).splitlines()), "")


def default_output(file: str) -> str:
    """The results file of a study's file: beside it."""
    return str(Path(file).with_suffix(".sqlite"))


def _width(drawn: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=1_000), drawn).maximum


def _say(console: Console, what: Any) -> None:
    console.print(what, highlight=False, soft_wrap=isinstance(what, str))


def _is_sqlite(file: str) -> bool:
    try:
        with open(file, "rb") as opened:
            return opened.read(16) == b"SQLite format 3\0"
    except (OSError, ValueError):
        return False


def check_exports(exports: Mapping[str, str | None], kept: Mapping[str, str]) -> None:
    """Refuse what could not be written, before the first point.

    Args:
      exports: option -> the path that it names.
      kept: what -> a path that no export may take the place of.

    Raises:
      KbjaxError: for a path in no folder, one of `kept`, one of another export, and for
        a plot that could not be drawn.
    """
    taken = {path: what for what, path in kept.items()}
    for own in kept.values():
        taken |= dict.fromkeys((f"{own}-wal", f"{own}-shm"), f"of {own}")
    for option, path in exports.items():
        if path and path != "-":
            for other, what in taken.items():
                if _is_same(path, other):
                    raise errors.KbjaxError(
                        f"{option} {path} would take the place of {what}",
                        got=other,
                        remedy="Give another path",
                    )
            taken[path] = option
            folder = os.path.dirname(path) or "."
            if not os.path.isdir(folder) or os.path.isdir(path):
                raise errors.KbjaxError(
                    f"cannot write {path}", got="no such folder, or a folder's path",
                    remedy="Give the path of a file in a folder that is there",
                )  # fmt: skip
    if plot := exports.get("--plot"):
        from kbjax import study_plots

        study_plots.format_of(plot)


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # one of them is not there
        return os.path.realpath(path) == os.path.realpath(other)


def _files_of(study: Study) -> dict[str, str]:
    """What the study reads: hardware and kernels that are files."""
    names = [study.hardware, *study.axes.get("hardware", ())]
    found = {str(n): f"the hardware {n}" for n in names if str(n).endswith(".toml")}
    for name in study.kernel_names:
        path, colon, _ = study.located(name).rpartition(":")
        if colon:
            found[path] = f"the kernel {name}"
    return {what: path for path, what in found.items()}


@contextlib.contextmanager
def _told_warnings() -> Iterator[None]:
    """Warnings of kbjax about a study as a line on standard error."""
    from kbjax.study_versions import StudyVersionsWarning

    def tell(message: Warning | str, *rest: Any, **more: Any) -> None:
        typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", StudyVersionsWarning)
        warnings.showwarning = tell
        yield


@contextlib.contextmanager
def _progress(study: Study, csv: str | None) -> Iterator[Any]:
    """A bar on standard error; what it gives is to be called as points are recorded."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    last, known = time.monotonic(), -1
    with bar:
        task = bar.add_task(study.name, total=len(study))

        def seen(store: Store) -> None:
            nonlocal last, known
            counts = store.counts()
            finished = sum(counts[each] for each in Status if each.is_finished)
            if known < 0:  # what was there before says nothing of the speed
                bar.reset(task, completed=finished)
            bar.update(task, completed=finished)
            if csv and csv != "-" and finished != known:
                start = time.monotonic()
                if start - last > _CSV_S:
                    store.table().to_csv(csv)
                    # At most a twentieth of the time goes into it.
                    last = time.monotonic() + 20 * (time.monotonic() - start)
            known = finished

        yield seen
