#!/usr/bin/env python3
"""Kill studies: SIGKILL at random moments, resume, and count every point once.

    python scripts/kill_study.py --kills 50 --seed 1

A study is started in a process of its own, killed, looked at, and started again until
it is complete; then another one, until there were as many kills. After each kill the
file is read: rows that were there must be there unchanged. At the end every point of
every study is there once, with the figures of a run that was left alone, and no worker
process is left over.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from kbjax import study_store
from kbjax.study_row import StudyRow

STUDY = """\
name = "killed"
kernel = "gqa_decode"
do = "plan"
[sizes]
num_pes = 1
dim = 16
[axes]
tile = [16, 32, 48, 64]
context = {{from = 64, to = {last}, step = 64}}
"""
_SAME = ("peak_scratch_bytes", "budget_bytes", "fit", "reason")


def started(file: Path, results: Path, jobs: int) -> subprocess.Popen[bytes]:
    """The study's process, in a group of its own."""
    command = [sys.executable, "-m", "kbjax", "study", str(file), "-o", str(results),
               "--jobs", str(jobs)]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def recorded(results: Path) -> dict[int, StudyRow]:
    """The finished points by number."""
    if not results.exists() or not results.stat().st_size:
        return {}
    try:
        rows = study_store.read(results).rows
    except Exception as error:
        if "has no tables" in str(error):  # killed before they were made
            return {}
        raise
    assert len({row.number for row in rows}) == len(rows)
    return {row.number: row for row in rows if row.status.is_finished}


def group_is_empty(group: int, within_s: float = 10) -> bool:
    """Whether all processes of the group end by themselves."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def kill_once(
    file: Path, results: Path, jobs: int, after_s: float
) -> tuple[bool, dict[int, StudyRow]]:
    """Start, kill after a while; whether it was killed, and what is recorded then."""
    process = started(file, results, jobs)
    try:
        _, told = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)  # this process alone, not its workers
        process.communicate()
        if not group_is_empty(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            raise SystemExit("a worker outlived its study") from None
        return True, recorded(results)
    assert process.returncode == 0, told.decode()
    return False, recorded(results)


def main(
    kills: Annotated[int, typer.Option(min=1, help="in all")] = 50,
    seed: Annotated[int, typer.Option(help="of the moments")] = 1,
    points: Annotated[int, typer.Option(min=4, help="of a study")] = 400,
    jobs: Annotated[int, typer.Option(min=1, help="points at a time")] = 2,
    most_s: Annotated[float, typer.Option(help="until a kill, at most")] = 10.0,
) -> None:
    """Run it. Exit status 1 where a point was lost, doubled or changed."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder, done, studies, held_back = Path(name), 0, 0, 0
        file = folder / "study.toml"
        file.write_text(STUDY.format(last=64 * (points // 4)), encoding="utf-8")
        clean = folder / "clean.sqlite"
        assert started(file, clean, jobs).wait() == 0
        want = recorded(clean)
        assert len(want) == points // 4 * 4
        while done < kills:
            results, known = folder / f"{studies}.sqlite", dict[int, StudyRow]()
            while True:
                after_s = rng.uniform(0.05, most_s) if done < kills else 600.0
                killed, found = kill_once(file, results, jobs, after_s)
                for number, row in known.items():
                    if found.get(number) != row:
                        raise SystemExit(f"point {number} was lost or changed")
                known, done = found, done + killed
                if killed:
                    held_back += len(found) not in (0, len(want))
                    typer.echo(f"kill {done}: {len(found)} of {len(want)} points")
                else:
                    break
            for number, row in want.items():
                got = known[number]
                if got.status != row.status or any(
                    got.figures[name] != row.figures[name] for name in _SAME
                ):
                    raise SystemExit(f"point {number} has other figures")
            assert len(known) == len(want)
            studies += 1
        typer.echo(
            f"{done} kills, {held_back} of them between the first and the last point, "
            f"studies of {len(want)} points: {studies}; every point is there once"
        )


if __name__ == "__main__":
    typer.run(main)
