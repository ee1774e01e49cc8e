"""Studies for people: run with progress on standard error, printed, and exported."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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

from kbjax import errors, output, study_plots, study_run
from kbjax.names import printable
from kbjax.study import Study
from kbjax.study_table import StudyTable
from kbjax.study_versions import StudyVersionsWarning

_MOST_ROWS = 200  # shown


def run(study: Study, results: str, options: study_run.Options) -> StudyTable:
    """Run a study with progress and warnings on standard error.

    Raises:
      KbjaxError: see `study_run.run`.
      SystemExit: after a signal and a message that names the file, with the status
        that is usual for the signal.
    """
    try:
        with _progress(study) as progress, _told_warnings():
            return study_run.run(study, results, options, progress)
    except study_run.InterruptedStudyError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_status) from None


def exported(
    table: StudyTable,
    *,
    csv: str | None = None,
    parquet: str | None = None,
    plots: Sequence[str] = (),
    x: str | None = None,
) -> None:
    """Write the files that are asked for: plots against the axis `x`.

    Raises:
      KbjaxError: for the first that cannot be written.
    """
    if csv:
        table.to_csv(csv)
    if parquet:
        table.to_parquet(parquet)
    for path in plots:
        study_plots.write(table, path, x)


def check_exports(exports: Mapping[str, str | None], kept: Mapping[str, str]) -> None:
    """Refuse what could not be written, before the first point.

    Args:
      exports: option -> the path that it names.
      kept: what -> a path that no export may take the place of.

    Raises:
      KbjaxError: for a path in no folder, one of `kept`, one of another export, and for
        a plot that could not be drawn.
    """
    taken = dict(kept)
    for own in kept.values():
        taken |= {f"the {end} of {own}": f"{own}-{end}" for end in ("wal", "shm")}
    for option, path in exports.items():
        if path and path != "-":
            output.check_keeps(option, path, taken)
            taken[option] = path
            folder = os.path.dirname(path) or "."
            if not os.path.isdir(folder) or os.path.isdir(path):
                raise errors.KbjaxError(
                    f"cannot write {path}", got="no such folder, or a folder's path",
                    remedy="Give the path of a file in a folder that is there",
                )  # fmt: skip
    if plot := exports.get("--plot"):
        study_plots.format_of(plot)


def files_of(study: Study) -> dict[str, str]:
    """What the study reads: hardware and kernels that are files."""
    names = [study.hardware, *study.axes.get("hardware", ())]
    found = {str(n): f"the hardware {n}" for n in names if str(n).endswith(".toml")}
    for name in study.kernel_names:
        path, colon, _ = study.located(name).rpartition(":")
        if colon:
            found[path] = f"the kernel {name}"
    return {what: path for path, what in found.items()}


def print_table(table: StudyTable, console: Console | None = None) -> None:
    """The rows for people, how many are done or failed, and the file."""
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
    for reason in table.reasons():
        _say(console, escape(reason))
    if mixed := table.mixed_versions:
        said = escape(printable("; ".join(mixed)))
        _say(console, f"not all points were done with the same: {said}")
    counts = ", ".join(f"{n:,} {status}" for status, n in table.counts.items() if n)
    file = f"; {escape(printable(table.path))}" if table.path else ""
    _say(console, counts + file)


def _width(drawn: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=1_000), drawn).maximum


def _say(console: Console, what: Any) -> None:
    console.print(what, highlight=False, soft_wrap=isinstance(what, str))


@contextlib.contextmanager
def _told_warnings() -> Iterator[None]:
    """Warnings of kbjax about a study as a line on standard error."""

    def tell(message: Warning | str, *rest: Any, **more: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", StudyVersionsWarning)
        warnings.showwarning = tell
        yield


@contextlib.contextmanager
def _progress(study: Study) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; what it gives takes how many points are finished."""
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
    is_first = True
    with bar:
        task = bar.add_task(study.name, total=len(study))

        def told(finished: int) -> None:
            nonlocal is_first
            if is_first:  # what was there before says nothing of the speed
                bar.reset(task, completed=finished)
                is_first = False
            bar.update(task, completed=finished)

        yield told
