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

A line for each context and way has the figures of a study (docs/studies.md): peak
scratch against the budget, and where it fits the latency of the op_log on the hardware
that is named, how busy the engines are, and what limits it. Below it, for each way:

- overflows at: the smallest multiple of the tile that does not fit, found by bisection
  over the multiples up to the largest context (rounded up to one).
- DMA MB: loaded and stored, at the largest context that is shown and fits; DMA rows:
  the DMA engine's in the op_log there, of all its rows.

`--run` executes the kernels as well, and compares them with float64. `--csv` writes the
lines as a study's CSV, `--plot` its curves (PNG or SVG; needs matplotlib).
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kbjax import cases, catalogue, options, study_point, study_show
from kbjax.hardware import Hardware, named
from kbjax.study import Point
from kbjax.study_row import FIGURES, StudyRow
from kbjax.study_table import StudyTable

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

    def sizes_at(self, context: int, tile: int) -> dict[str, Any]:
        """All sizes of the kernel."""
        return {"context": context, "tile": tile, "num_pes": 1, **self.sizes}

    def on(self, hardware: Hardware) -> Hardware:
        """The hardware with this way's budget."""
        if self.scratch_mb is None:
            return hardware
        tcm = replace(hardware.pe_tcm, kernel_scratch_mb=self.scratch_mb)
        return replace(hardware, pe_tcm=tcm)

    def case(self, context: int, tile: int, hardware: Hardware) -> cases.Case:
        """The kernel at one context."""
        sizes = self.sizes_at(context, tile)
        return catalogue.make(self.kernel, hardware=self.on(hardware), **sizes)


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


# --- the study -----------------------------------------------------------------------


def contexts_up_to(most: int) -> list[int]:
    """Powers of two from `LEAST`."""
    return [1 << n for n in range(LEAST.bit_length() - 1, most.bit_length())]


def first_overflow(way: Way, tile: int, hardware: Hardware, most: int) -> int | None:
    """The smallest multiple of the tile that does not fit, up to the context `most`
    rounded up to one; None where all fit. Scratch does not shrink with the context."""

    def does_not_fit(tiles: int) -> bool:
        case = way.case(tiles * tile, tile, hardware)
        return not case.call.plan(*case.inputs.specs, vary=[]).fits

    multiples = range(1, -(-most // tile) + 1)
    found = bisect.bisect_left(multiples, True, key=does_not_fit)
    return multiples[found] * tile if found < len(multiples) else None


def row(
    number: int, name: str, context: int, tile: int, hardware: Hardware, run: bool
) -> StudyRow:
    """One way at one context, planned and timed; `run` executes it, where it fits."""
    way = WAYS[name]
    parameters = {"context": context, "way": name, "kernel": way.kernel}
    point = Point(
        number, parameters, "run" if run else "time", 0, way.kernel,
        way.sizes_at(context, tile), way.on(hardware),
    )  # fmt: skip
    got = study_point.measure(point)
    if got.get("reason_kind") == "KeyboardInterrupt":
        raise KeyboardInterrupt  # in a study a row; here it ends the script
    figures = {figure: got.get(figure) for figure in FIGURES}
    return StudyRow(number, parameters, got["status"], 1, figures, got["versions"])


def study(
    contexts: list[int], tile: int, hardware: Hardware, run: int = 0, path: str = ""
) -> StudyTable:
    """Every way at every context; executed at those up to `run`. `path`, where there
    is one, is named below the table."""
    each = [(context, name) for context in contexts for name in WAYS]
    shown = track(each, "contexts", console=Console(stderr=True))
    rows = [
        row(number, name, context, tile, hardware, context <= run)
        for number, (context, name) in enumerate(shown)
    ]
    axes = {"context": contexts, "way": list(WAYS)}
    return StudyTable({"name": "alternatives", "axes": axes}, rows, path)


def overflows(
    contexts: list[int], tile: int, hardware: Hardware
) -> dict[str, int | None]:
    """`first_overflow` of every way."""
    most = max(contexts)
    return {
        name: first_overflow(way, tile, hardware, most)
        for name, way in track(WAYS.items(), "overflows", console=Console(stderr=True))
    }


def comes_to(
    table: StudyTable, tile: int, hardware: Hardware, at: Mapping[str, int | None]
) -> Table:
    """A line a way: what it is, where it overflows, and what its DMA does."""
    shown = Table(title="what each comes to")
    for heading in ("way", "what", "overflows at", "at context", "DMA MB", "DMA rows",
                    "of rows"):  # fmt: skip
        is_text = heading in ("way", "what")
        shown.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for name, way in WAYS.items():
        mine = [each for each in table.rows if each.parameters["way"] == name]
        most = f"> {mine[-1].parameters['context']:,}"
        cells = [name, way.about, f"{at[name]:,}" if at[name] else most]
        if fits := [each for each in mine if each.figures["commands"] is not None]:
            context, figures = fits[-1].parameters["context"], fits[-1].figures
            case = way.case(context, tile, hardware)
            dma = case.call.op_log(*case.inputs.specs).summary().engines["dma"]
            moved = figures["bytes_loaded"] + figures["bytes_stored"]
            cells += [f"{context:,}", f"{moved / 1e6:,.1f}", f"{dma.commands:,}",
                      f"{figures['commands']:,}"]  # fmt: skip
        shown.add_row(*cells)
    return shown


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
    contexts = contexts_up_to(min(max_context, 2_048) if small else max_context)
    with options.refusals(False):
        study_show.check_exports({"--csv": csv_file, "--plot": plot}, {})
        on = named(hardware)
        table = study(contexts, tile, on, run, csv_file or "")
        at = overflows(contexts, tile, on)
        plots = [plot] if plot else []
        study_show.exported(table, csv=csv_file, plots=plots, x="context")
        console = Console(stderr=csv_file == "-")
        console.print(f"{HEADS} heads, tiles of {tile} keys, float32, {hardware}",
                      markup=False, highlight=False)  # fmt: skip
        study_show.print_table(table, console)
        console.print(comes_to(table, tile, on, at))
    raise typer.Exit(not table.is_good)


if __name__ == "__main__":
    typer.run(main)
