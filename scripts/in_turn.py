"""Times of runs in turn, so that all share one moment of the machine."""

from __future__ import annotations

import hashlib
import math
import random
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

Run = Callable[[], Any]
Times = tuple[float, float, float]  # as `timed` gives them
PAUSE_S = 0.05  # idle threads of OpenBLAS, PyTorch and XLA spin before they sleep


def in_turn(runs: dict[str, Run], repeats: int) -> dict[str, list[Times]]:
    """What `timed` gives of each run in each repeat, right after a call of the same run
    that is not timed: caches and threads are then as it leaves them itself. The order
    is drawn anew for each repeat, as idle threads spin on beyond any short pause."""
    times: dict[str, list[Times]] = {name: [] for name in runs}
    order = random.Random(0)
    for _ in range(repeats):
        for name in order.sample(list(runs), len(runs)):
            time.sleep(PAUSE_S)
            jax.block_until_ready(runs[name]())
            times[name].append(timed(runs[name]))
    return times


def thread_seconds() -> dict[str, float]:
    """The CPU time of each thread so far; empty where /proc does not tell."""
    files = Path("/proc/self/task").glob("*/schedstat")
    return {f.parent.name: int(f.read_text().split()[0]) / 1e9 for f in files}


def timed(run: Run) -> Times:
    """Seconds of the wall, of the CPU, and of the CPU in the busiest thread."""
    threads, wall, cpu = thread_seconds(), time.perf_counter(), time.process_time()
    jax.block_until_ready(run())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    spent = (t - threads.get(name, 0) for name, t in thread_seconds().items())
    return wall, cpu, max(spent, default=math.nan)


def cores() -> float:
    """How many cores two busy threads get."""
    block = bytes(1 << 20)

    def work() -> None:
        for _ in range(150):
            hashlib.sha256(block)

    threads = [threading.Thread(target=work) for _ in range(2)]
    wall, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def pairs(a: Run, b: Run, repeats: int) -> list[tuple[Times, Times]]:
    """What `timed` gives of a and then of b, after a first call of each."""
    for run in (a, b):  # compile and warm up
        jax.block_until_ready(run())
    return [(timed(a), timed(b)) for _ in range(repeats)]


def medians(runs: list[Run], repeats: int) -> list[float]:
    """Median seconds of each, run in turn, after a first call of each."""
    for run in runs:
        run()
    found = [[seconds(run) for run in runs] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def seconds(run: Run) -> float:
    """Of the wall; the run waits for its own results."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
