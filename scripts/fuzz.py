#!/usr/bin/env python3
"""Random kernels: every path through kbjax gives the same bits, and NumPy's.

    python scripts/fuzz.py --programs 100 --seed 1 --jobs 2

Each program is run in live and in exact, and by NumPy one command at a time. Of the
other properties (unrolled, unscoped, several PEs, inside jit ...) each program is
checked for one, drawn from the seed, so that a few dozen programs cover them all;
--all checks every program for all. A difference is printed with the smallest kernel
that shows it, the first command that differs, and the line that makes it again. Exit
status: 1 where there is a difference, else 0.
"""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import fuzzing

CHUNK = 5  # programs that a process takes at once


class Outcome(NamedTuple):
    number: int
    seconds: float
    properties: tuple[str, ...]
    report: str


def outcomes(seed: int, numbers: list[int], every: bool, runs: int) -> list[Outcome]:
    """What checking some programs gives; in a process of its own."""
    jax.config.update("jax_platforms", "cpu")
    found = []
    for number in numbers:
        start = time.perf_counter()
        drawn, derived = fuzzing.numbered(seed, number)
        derived = tuple(fuzzing.DERIVED) if every else derived
        difference = fuzzing.check(drawn, derived, runs)
        seconds = time.perf_counter() - start
        report = str(difference) if difference else ""
        found.append(Outcome(number, seconds, derived, report))
    jax.clear_caches()  # compiled programs are never needed again
    return found


def main(
    programs: Annotated[int, typer.Option(min=1, help="how many")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="which")] = 0,
    start: Annotated[int, typer.Option(min=0, help="number of the first")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="processes")] = 1,
    every: Annotated[
        bool, typer.Option("--all", help="every property on every program")
    ] = False,
    runs: Annotated[int, typer.Option(min=0, help="to find the smallest kernel")] = 80,
) -> None:
    """Check random kernels: live = exact = NumPy on each, and another property,
    drawn from the seed, so that a few dozen programs cover all (or --all on each)."""
    console = Console(soft_wrap=True)
    numbers = list(range(start, start + programs))
    chunks = [numbers[at : at + CHUNK] for at in range(0, programs, CHUNK)]
    covered: collections.Counter[str] = collections.Counter()
    seconds, differences = 0.0, 0
    began = time.perf_counter()
    columns = (
        TextColumn("seed {task.fields[seed]}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[found]} differences"),
    )
    # A fresh process each: JAX does not survive a fork.
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn")
    )
    with pool, Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=programs, seed=seed, found=0)
        waiting = [pool.submit(outcomes, seed, c, every, runs) for c in chunks]
        for done in concurrent.futures.as_completed(waiting):
            for outcome in done.result():
                covered.update(outcome.properties)
                seconds += outcome.seconds
                if outcome.report:
                    differences += 1
                    again = f"--seed {seed} --start {outcome.number} --programs 1"
                    console.print(f"\n{outcome.report}", markup=False, highlight=False)
                    console.print(f"again: scripts/fuzz.py {again}", highlight=False)
                progress.update(task, advance=1, found=differences)
    console.print(
        f"seed {seed}: {programs} programs, {differences} differences; "
        f"{seconds / programs:.2f} s a program, {time.perf_counter() - began:.0f} s "
        f"with {jobs} processes"
    )
    always = ", ".join(fuzzing.ALWAYS)
    console.print(f"on every program: {always}")
    for name, count in sorted(covered.items()):
        console.print(f"on {count}: {name}", highlight=False)
    raise typer.Exit(1 if differences else 0)


if __name__ == "__main__":
    typer.run(main)
