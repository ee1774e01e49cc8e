#!/usr/bin/env python3
"""What ADR-0063 rejected, with numbers: its alternatives against scratch scopes.

    python scripts/study_alternatives.py
    python scripts/study_alternatives.py --small --run 256 --csv a.csv --plot a.png

One decode step of one KV head and its 8 query heads (Llama-70B: d = 128), on one PE, is
swept in tiles of keys in each of the ways that the ADR names, at contexts that double:

- unscoped: fresh scratch for every tile; A3 is the same with a larger budget.
- A1: every temporary goes to HBM and comes back. An op cannot name where its result
  goes, so a scope an op is needed as well: `A1 bare` is what it comes to without.
- A2: `tl.composite`, whose scratch the scheduler gives back.
- scoped: a scope a tile; `prefetch` loads the next tile meanwhile (2 buffers).

Shown are:

- peak scratch: bytes; `x` marks what does not fit the budget, and is not run.
- latency: of the op_log, in us, on the hardware that is named.
- DMA bytes: loaded and stored.
- overflows at: the smallest multiple of the tile that does not fit, found by bisection
  over the multiples up to the largest context (rounded up to one).
- limited by: as the op_log's summary says, at the largest context that is shown and
  fits; with it the DMA's share of the latency and of the op_log's rows.

`--run` executes the kernels as well, and compares them with float64. `--csv` writes a
line for each context and way, `--plot` a picture (PNG or SVG; needs matplotlib).
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kbjax import cases, catalogue, errors, extras, output, study_plots
from kbjax.hardware import Hardware, named

LEAST = 256
HEADS = 8  # query heads of a KV head


@dataclass(frozen=True)
class Way:
    """One way to sweep the keys: a shipped kernel.

    Attributes:
      about: in words.
      kernel: its name.
      sizes: of the kernel, but for context, tile and PEs.
      scratch_mb: the budget in MiB; that of the hardware where None.
    """

    about: str
    kernel: str
    sizes: dict[str, Any] = field(default_factory=dict)
    scratch_mb: float | None = None

    def case(self, context: int, tile: int, hardware: Hardware) -> cases.Case:
        """The kernel at one context."""
        if self.scratch_mb is not None:
            tcm = replace(hardware.pe_tcm, kernel_scratch_mb=self.scratch_mb)
            hardware = replace(hardware, pe_tcm=tcm)
        return catalogue.make(
            self.kernel, context=context, tile=tile, num_pes=1, hardware=hardware,
            **self.sizes,
        )  # fmt: skip


_ROWS = {"queries": HEADS}  # the heads are rows of one product
WAYS = {
    "unscoped": Way("no scope", "flash_unscoped", _ROWS),
    "A1": Way("temporaries in HBM, a scope an op", "flash_hbm_round_trip"),
    "A1 bare": Way(
        "temporaries in HBM, no scope", "flash_hbm_round_trip", {"scoped": False}
    ),
    "A2": Way("a composite, 2 buffers", "flash_composite"),
    "A3 4 MiB": Way("no scope, a larger budget", "flash_unscoped", _ROWS, 4),
    "A3 16 MiB": Way("no scope, a larger budget", "flash_unscoped", _ROWS, 16),
    "scoped": Way("a scope a tile", "gqa_decode"),
    "prefetch": Way("a scope a tile, 2 buffers", "gqa_decode", {"buffers": 2}),
}


@dataclass(frozen=True)
class Row:
    """One way at one context. Where it does not fit, what a run says is None.

    Attributes:
      peak_scratch_bytes: what it takes, whatever the budget.
      overflows_at: the smallest multiple of the tile that does not fit; None where
        none up to the largest context overflows.
      latency_ns: of the op_log.
      dma_bytes: loaded and stored.
      dma_share: of the latency, for which the DMA engine is busy.
      commands, dma_commands: rows of the op_log, and those of the DMA engine.
      limited_by: as the summary of the op_log says.
      error: largest, relative to the largest element; None where it was not run.
      tolerance: the largest error allowed.
    """

    context: int
    way: str
    peak_scratch_bytes: int
    budget_bytes: int
    fits: bool
    overflows_at: int | None
    latency_ns: float | None = None
    dma_bytes: int | None = None
    dma_share: float | None = None
    commands: int | None = None
    dma_commands: int | None = None
    limited_by: str | None = None
    error: float | None = None
    tolerance: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether it was run, and its error is too large or NaN."""
        if self.error is None or self.tolerance is None:
            return False
        return not self.error <= self.tolerance


# --- the study -----------------------------------------------------------------------


def contexts_up_to(most: int) -> list[int]:
    """Powers of two from `LEAST`."""
    return [1 << n for n in range(LEAST.bit_length() - 1, most.bit_length())]


def first_overflow(way: Way, tile: int, hardware: Hardware, most: int) -> int | None:
    """The smallest multiple of the tile that does not fit, up to the context `most`
    rounded up to one; None where all fit. Scratch does not shrink with the context."""

    def overflows(tiles: int) -> bool:
        case = way.case(tiles * tile, tile, hardware)
        return not case.call.plan(*case.inputs.specs, vary=[]).fits

    multiples = range(1, -(-most // tile) + 1)
    found = bisect.bisect_left(multiples, True, key=overflows)
    return multiples[found] * tile if found < len(multiples) else None


def row(
    name: str,
    context: int,
    tile: int,
    hardware: Hardware,
    overflows_at: int | None,
    run: bool,
) -> Row:
    """One way at one context; `run` executes it, where it fits."""
    case = WAYS[name].case(context, tile, hardware)
    plan = case.call.plan(*case.inputs.specs, vary=[])
    found = Row(
        context, name, plan.peak_scratch_bytes, plan.budget_bytes, plan.fits,
        overflows_at,
    )  # fmt: skip
    if not plan.fits:
        return found
    summary = case.call.op_log(*case.inputs.specs).summary()
    dma = summary.engines["dma"]
    return replace(
        found,
        latency_ns=summary.total_ns,
        dma_bytes=summary.bytes_loaded + summary.bytes_stored,
        dma_share=dma.utilisation,
        commands=summary.commands,
        dma_commands=dma.commands,
        limited_by=summary.limited_by,
        error=case.error_of(case.call(*case.arrays)) if run else None,
        tolerance=case.tolerance if run else None,
    )


def study(
    contexts: list[int], tile: int, hardware: Hardware, run: int = 0
) -> list[Row]:
    """Every way at every context; executed at those up to `run`."""
    if tile < 1:
        raise errors.ShapeError("tile is a positive integer", got=tile, allowed=">= 1")
    progress, most = Console(stderr=True), max(contexts)
    at = {
        name: first_overflow(way, tile, hardware, most)
        for name, way in track(WAYS.items(), "overflows", console=progress)
    }
    each = [(name, context) for context in contexts for name in WAYS]
    return [
        row(name, context, tile, hardware, at[name], context <= run)
        for name, context in track(each, "contexts", console=progress)
    ]


# --- what it gives -------------------------------------------------------------------


def write_csv(rows: list[Row], target: str) -> None:
    """A header of `Row`'s fields and a line a row; None is an empty cell."""
    names = [each.name for each in dataclasses.fields(Row)]
    with output.text(target) as write:
        writer = csv.DictWriter(SimpleNamespace(write=write), names)
        writer.writeheader()
        writer.writerows(dataclasses.asdict(each) for each in rows)


PANELS = (
    ("peak scratch", "bytes", lambda r: r.peak_scratch_bytes),
    ("latency", "us", lambda r: r.latency_ns and r.latency_ns / 1000),
    ("DMA bytes", "bytes", lambda r: r.dma_bytes),
)


def show(rows: list[Row], console: Console) -> None:
    """A table a panel, what each way comes to, and the errors of those that ran."""
    console.width = max(console.width, 132)  # no figure is cut
    cells = {(each.context, each.way): each for each in rows}
    contexts, ways = (list(dict.fromkeys(x)) for x in zip(*cells, strict=True))
    for title, unit, figure in PANELS:
        table = _table(f"{title}, {unit}", "context", *ways)
        for context in contexts:
            found = [cells[context, way] for way in ways]
            table.add_row(f"{context:,}", *(_cell(r, figure(r)) for r in found))
        console.print(table)
    table = _table(
        "what each comes to", "", "overflows at", "at context", "limited by",
        "DMA busy", "DMA rows", "of rows", "what",
    )  # fmt: skip
    for way in ways:
        ran = [cells[c, way] for c in contexts if cells[c, way].fits]
        limit = cells[contexts[0], way].overflows_at
        shown = [way, f"{limit:,}" if limit else f"> {contexts[-1]:,}"]
        if ran:
            r = ran[-1]
            shown += [f"{r.context:,}", f"{r.limited_by}", f"{r.dma_share:.0%}",
                      f"{r.dma_commands:,}", f"{r.commands:,}"]  # fmt: skip
        else:
            shown += ["x"] * 5
        table.add_row(*shown, WAYS[way].about)
    console.print(table)
    checked = [each for each in rows if each.error is not None]
    if checked:
        table = _table("outputs against float64", "context", "", "error", "allowed")
        for r in checked:
            table.add_row(f"{r.context:,}", r.way, f"{r.error:.1e}",
                          f"{r.tolerance:.1e}" + " wrong" * r.is_wrong)  # fmt: skip
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(r: Row, figure: float | None) -> str:
    if figure is None:
        return "x"
    text = f"{figure:,}" if isinstance(figure, int) else f"{figure:,.1f}"
    return text if r.fits else f"{text} x"


def figure_of(path: str) -> tuple[Any, str]:
    """An empty figure of matplotlib, and the format that the path asks for.

    Raises:
      KbjaxError: for another format, and without matplotlib.
    """
    kind = study_plots.format_of(path)
    figures = extras.module("matplotlib.figure", extra="plot", use="a plot")
    return figures.Figure(figsize=(16, 5), layout="constrained"), kind


def write_plot(rows: list[Row], path: str) -> None:
    """Peak scratch, latency and DMA bytes against context, on logarithmic axes. A line
    ends in an x where the next context does not fit; scratch goes on, dashed.

    Raises:
      KbjaxError: as `figure_of`, and where the file cannot be written.
    """
    figure, kind = figure_of(path)
    panels = figure.subplots(1, len(PANELS))
    ways = list(dict.fromkeys(each.way for each in rows))
    for panel, (title, unit, of) in zip(panels, PANELS, strict=True):
        for n, way in enumerate(ways):
            mine = [each for each in rows if each.way == way]
            fits = [each for each in mine if each.fits]
            over = [each for each in mine if not each.fits and of(each) is not None]
            color, width = f"C{n}", 1 + 0.7 * (len(ways) - n)  # equal lines all show
            marker = "osD^v<>p"[n % 8]
            _line(panel, fits, of, label=way, marker=marker, color=color, lw=width)
            if over:
                _line(panel, [*fits[-1:], *over], of, color=color, lw=width, ls="--")
                _line(panel, over, of, color=color, ls="", marker="x", ms=8)
            elif len(fits) < len(mine):
                _line(
                    panel,
                    fits[-1:],
                    of,
                    color=color,
                    ls="",
                    marker="x",
                    ms=14,
                    zorder=9,
                )
        panel.set(title=title, xlabel="context, tokens", ylabel=unit)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    for budget in sorted({each.budget_bytes for each in rows}):
        label = f"budget, {budget / 2**20:g} MiB"
        panels[0].axhline(budget, color="black", linewidth=0.8, linestyle=":")
        most = max(each.context for each in rows)
        panels[0].annotate(label, (most, budget), ha="right", va="bottom", fontsize=8)
    panels[0].legend(fontsize=8)
    with output.binary(path) as file:
        figure.savefig(file, format=kind)


def _line(panel: Any, rows: list[Row], figure: Any, **style: Any) -> None:
    panel.plot([each.context for each in rows], list(map(figure, rows)), **style)


def main(
    small: Annotated[
        bool, typer.Option("--small", help="up to 2,048 tokens: a few seconds")
    ] = False,
    max_context: Annotated[int, typer.Option(min=LEAST, help="the largest")] = 1 << 20,
    tile: Annotated[int, typer.Option(min=1, help="keys a tile")] = 128,
    hardware: Annotated[
        str, typer.Option(help="a profile of `kbjax hardware`, or a TOML file")
    ] = "default",
    run: Annotated[
        int, typer.Option(metavar="CONTEXT", help="execute up to this context")
    ] = 0,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="- is standard output")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="ends in .png or .svg")
    ] = None,
) -> None:
    """Run it. Exit status 1 where an output is wrong, or for what is refused."""
    try:
        if plot:
            figure_of(plot)  # refused before the work, not after
        contexts = contexts_up_to(min(max_context, 2_048) if small else max_context)
        rows = study(contexts, tile, named(hardware), run)
        if csv_file:
            write_csv(rows, csv_file)
        if plot:
            write_plot(rows, plot)
    except errors.KbjaxError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from None
    console = Console(stderr=csv_file == "-")
    console.print(f"{HEADS} heads, tiles of {tile} keys, float32, {hardware}",
                  markup=False, highlight=False)  # fmt: skip
    show(rows, console)
    raise typer.Exit(any(each.is_wrong for each in rows))


if __name__ == "__main__":
    typer.run(main)
