#!/usr/bin/env python3
"""Context: what a decode step takes from 4,096 to 1,048,576 tokens, scoped and not.

    python scripts/study_context.py -o results
    python scripts/study_context.py --small -o results

`gqa_decode` has one scratch scope a tile, `flash_unscoped` none: peak scratch, latency,
utilisation, and the error of the executed kernel against float64. One KV head and its 8
query heads, d = 128, float32, tiles of 128 keys. In the plots, x marks what does not
fit. A run that was killed is resumed.
"""

from __future__ import annotations

import typer
from study_script import Folder, Jobs, Small, do

from kbjax.study import Study


def main(folder: Folder, small: Small = False, jobs: Jobs = None) -> None:
    """Run it. Exit status 1 where an output is wrong, or for what is refused."""
    first, last = (256, 2_048) if small else (4_096, 1_048_576)
    study = Study(
        name="context",
        do="run",
        sizes={"tile": 128, "num_pes": 1, "dim": 128},
        kernels={"flash_unscoped": {"queries": 8}},  # the heads are rows of a product
        axes={
            "kernel": ["gqa_decode", "flash_unscoped"],
            "context": {"from": first, "to": last, "factor": 2},
        },
    )
    raise typer.Exit(not do(study, folder, jobs, "context").is_good)


if __name__ == "__main__":
    typer.run(main)
