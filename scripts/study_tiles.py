#!/usr/bin/env python3
"""Tiles: tile size and buffer depth against the scratch budget.

    python scripts/study_tiles.py -o results
    python scripts/study_tiles.py --small -o results

A decode step of `gqa_decode` at one context, on one PE: tiles from 16 to 1,024 keys, 1
to 4 of them in flight. A larger tile pays the DMA's latency less often, a deeper buffer
hides it; both take scratch until the budget is spent. Timed, not executed.
"""

from __future__ import annotations

import typer
from study_script import Folder, Jobs, Small, do

from kbjax.study import Study


def main(folder: Folder, small: Small = False, jobs: Jobs = None) -> None:
    """Run it. Exit status 1 for what is refused."""
    study = Study(
        name="tiles",
        kernel="gqa_decode",
        do="time",
        sizes={"context": 2_048 if small else 131_072, "num_pes": 1},
        axes={
            "buffers": [1, 2] if small else [1, 2, 3, 4],
            "tile": {"from": 64 if small else 16, "to": 1_024, "factor": 2},
        },
    )
    raise typer.Exit(not do(study, folder, jobs, "tile").is_good)


if __name__ == "__main__":
    typer.run(main)
