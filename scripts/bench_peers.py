#!/usr/bin/env python3
"""The same attention on kbjax and on its peers, side by side in one run.

    python scripts/bench_peers.py [--repeats N] [--only NAME] [--tile N] [--long]
        [--markdown]

Every peer gets the same arrays, and the same tile where it has tiles. All are run once
a repeat, in an order drawn anew, each right after an untimed call of its own. Times are
medians; a ratio is the median over the repeats of the peer's time over that of kbjax
live in the same repeat. The ratio of CPU times depends less on what else the machine
does. An error is the largest difference from float64 in NumPy, over the largest element
of that. A peer whose packages are missing has a row that says how to get them:
pip install 'kbjax[witness]' for PyTorch and Triton.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import jax
import numpy as np
import typer
from attention_peers import (
    LIVE,
    PEERS,
    Peer,
    Problem,
    Run,
    arrays_of,
    as_float64,
    reference,
)
from in_turn import cores, in_turn
from rich.console import Console
from rich.table import Table

import kbjax as kb

CASES = {
    "decode, 8 x 4,096": Problem(8, 4096),
    "prefill, 128 x 2,048": Problem(128, 2048),
    "decode, 8 x 4,096, bfloat16": Problem(8, 4096, "bfloat16"),
}
LONG = {"decode, 8 x 131,072": Problem(8, 131_072)}
ASKED_IN = ("decode, 8 x 4,096", "decode, 8 x 131,072")
MOST_INTERPRETED = 4096  # keys: an interpreter's time is only a multiple of it beyond
ASKED = {  # of the ratio to kbjax live, in ASKED_IN
    "PyTorch SDPA": "> 1",
    "PyTorch SDPA, 1 thread": "> 1",
    "Pallas TPU interpreter": ">= 200",
    "Triton interpreter": ">= 150",
}


@dataclass(frozen=True)
class Row:
    """What one peer did in one case.

    Attributes:
      peer: its name.
      reason: why it was not run; empty where it was.
      seconds: the median.
      ratio: to kbjax live, of times.
      cpu_ratio: to kbjax live, of CPU times.
      error: the largest, relative to the largest element of the reference.
    """

    peer: str
    reason: str = ""
    seconds: float = math.nan
    ratio: float = math.nan
    cpu_ratio: float = math.nan
    error: float = math.nan


def why_not(peer: Peer, problem: Problem) -> str:
    """Why the peer is not run on the problem; empty where it is."""
    if peer.interpreter and problem.keys > MOST_INTERPRETED:
        return f"only up to {MOST_INTERPRETED:,} keys, as it is an interpreter"
    return peer.wrong_for.get(problem.dtype, "")


def measured(problem: Problem, names: Sequence[str], repeats: int) -> list[Row]:
    """A row for each of the peers; kbjax live is run in any case."""
    arrays = arrays_of(problem)
    expected = reference(arrays)
    runs: dict[str, Run] = {}
    reasons: dict[str, str] = {}
    errors: dict[str, float] = {}
    for name in dict.fromkeys((LIVE, *names)):
        peer = PEERS[name]
        if reason := why_not(peer, problem):
            reasons[name] = reason
            continue
        try:
            run = peer.make(problem, arrays)
        except ImportError as error:
            reasons[name] = f"missing, {peer.install} ({error})"
            continue
        off = np.abs(as_float64(run()) - expected).max()  # compiles, and warms up
        errors[name], runs[name] = float(off / np.abs(expected).max()), run
    times = in_turn(runs, repeats)

    def ratio(name: str, column: int) -> float:
        pairs = zip(times[name], times[LIVE], strict=True)
        return statistics.median(peer[column] / live[column] for peer, live in pairs)

    return [
        Row(name, reasons[name])
        if name in reasons
        else Row(
            name,
            "",
            statistics.median(wall for wall, _, _ in times[name]),
            ratio(name, 0),
            ratio(name, 1),
            errors[name],
        )
        for name in names
    ]


def number(x: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def table(case: str, problem: Problem, rows: Sequence[Row]) -> Table:
    """One case."""
    shown = Table(title=f"{case}: q ({problem.rows}, {problem.dim}), one KV head, "
                        f"{problem.dtype}, tile {problem.tile}")  # fmt: skip
    for heading in ("peer", "ms", "/ live", "asked", "CPU / live", "max error"):
        shown.add_column(heading, justify="left" if heading == "peer" else "right")
    for row in rows:
        if row.reason:
            shown.add_row(f"{row.peer}\n  not run: {row.reason}")
            continue
        shown.add_row(
            row.peer,
            number(row.seconds * 1e3),
            number(row.ratio),
            ASKED.get(row.peer, "") if case in ASKED_IN else "",
            number(row.cpu_ratio),
            f"{row.error:.1e}",
        )
    return shown


def markdown(results: dict[str, list[Row]]) -> str:
    """One table of all cases: a row a peer, a column a case."""

    def cell(rows: list[Row], name: str) -> str:
        row = next((row for row in rows if row.peer == name), None)
        if row is None:
            return ""
        if row.reason:
            return row.reason
        return f"{number(row.seconds * 1e3)} ms, {number(row.ratio)}, {row.error:.0e}"

    names = dict.fromkeys(row.peer for rows in results.values() for row in rows)
    lines = [
        ["median time, ratio to kbjax live, max error", *results],
        ["---"] * (1 + len(results)),
        *([name, *(cell(rows, name) for rows in results.values())] for name in names),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(
    repeats: Annotated[int, typer.Option(min=1)] = 15,
    only: Annotated[str, typer.Option(help="a part of 'case / peer' to run")] = "",
    tile: Annotated[int, typer.Option(min=16, help="keys at a time")] = 128,
    long: Annotated[bool, typer.Option(help="with a decode of 131,072 keys")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="one table, for a page")
    ] = False,
) -> None:
    """Print a table a case; with --markdown one of all."""
    console = Console(width=110)
    before = cores()
    results: dict[str, list[Row]] = {}
    for case, default in (CASES | (LONG if long else {})).items():
        names = [name for name in PEERS if only in f"{case} / {name}"]
        if not names:
            continue
        if default.keys % tile:
            raise typer.BadParameter(f"--tile {tile} does not divide {default.keys}")
        problem = dataclasses.replace(default, tile=tile)
        try:
            results[case] = measured(problem, names, repeats)
        except kb.ScratchOverflowError as error:
            why = str(error).splitlines()[0]
            raise typer.BadParameter(f"--tile {tile}, {case}: {why}") from None
        if not as_markdown:
            console.print(table(case, problem, results[case]))
    if not results:
        every = ", ".join([*CASES, *LONG, *PEERS])
        raise typer.BadParameter(f"{only!r} is no part of any: {every}")
    if as_markdown:
        print(markdown(results))
    console.print(
        f"jax {jax.__version__}, medians of {repeats}; cores for two threads: "
        f"{before:.2f} before, {cores():.2f} after"
    )


if __name__ == "__main__":
    typer.run(main)
