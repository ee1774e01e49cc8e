"""What the command line shows to people: tables as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kbjax.names import printable

if TYPE_CHECKING:
    from kbjax.plan import Plan

_LEAST_WIDTH = 60  # of a table: below that the terminal breaks its lines


def print_plan(found: Plan) -> None:
    """The footprint, as its headline, notes and tables."""
    console = Console()
    colour = {"fits": "green", "tight": "yellow"}.get(found.verdict, "red")
    wide = Console(width=max(console.width, _LEAST_WIDTH))
    headline = _plain(found.headline(), keep="\n")
    console.print(f"[{colour}]{headline}[/{colour}]", highlight=False)
    for note in found.notes():
        console.print(_plain(note, keep="\n"), highlight=False)
    for title, header, rows in found.tables():
        console.print(f"\n[bold]{_plain(title)}[/bold]", highlight=False)
        wide.print(_fitted(header, rows, wide.width))


def _fitted(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int
) -> Table:
    """A table whose figures are whole in any terminal: where it is narrow, the kernel's
    source is cut, which `...` says, or left out, and words are folded."""
    taken = sum(
        max(map(len, column)) + 3
        for column in zip(header, *rows, strict=True)
        if column[0] != "source"
    )
    room = width - taken - 4
    kept = [n for n, name in enumerate(header) if name != "source" or room >= 8]
    table = Table(box=box.SIMPLE_HEAD)
    for n in kept:
        words = any(letter.isalpha() for row in rows for letter in row[n])
        table.add_column(header[n], no_wrap=not words, overflow="fold")
    for row in rows:
        cells = ((header[n], row[n]) for n in kept)
        table.add_row(
            *(_plain(_cut(c, room) if n == "source" else c) for n, c in cells)
        )
    return table


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."


def print_run(report: dict[str, Any], rows: list[tuple[str, str]]) -> None:
    """What `kbjax run` found: the report, and the summary's rows."""
    inputs = ", ".join(report["inputs"])
    pes = report["summary"]["num_pes"]
    title = f"{report['kernel']} on {pes} PE{'s' if pes > 1 else ''}: {inputs}"
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_row("hardware", _plain(report["hardware"]["name"]))
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


def _plain(text: str, keep: str = "") -> str:
    """Text of a user: no markup of Rich's, no codes of the terminal's."""
    return escape(printable(text, keep))
