#!/usr/bin/env python3
"""Rings: attention over keys that are spread over 2 to 16 ranks, one PE each.

    python scripts/study_ring.py -o results
    python scripts/study_ring.py --small -o results

`ring_gqa` at one context: prefill, in which tiles of keys go around, and decode, in
which the partial results do. Executed, and compared with float64.
"""

from __future__ import annotations

import typer
from study_script import Folder, Jobs, Small, do

from kbjax.study import Study


def main(folder: Folder, small: Small = False, jobs: Jobs = None) -> None:
    """Run it. Exit status 1 where an output is wrong, or for what is refused."""
    study = Study(
        name="ring",
        kernel="ring_gqa",
        do="run",
        sizes={"context": 128, "dim": 16, "tile": 16} if small else {"context": 8_192},
        axes={
            "decode": [False, True],
            "num_pes": [2, 4] if small else [2, 4, 8, 16],
        },
    )
    raise typer.Exit(not do(study, folder, jobs, "num_pes").is_good)


if __name__ == "__main__":
    typer.run(main)
