#!/usr/bin/env python3
"""docs/tcm_map.png: the scratch over time of two decode sweeps, one that climbs to the
budget and one that stays flat.

    python scripts/picture_tcm_map.py [-o docs/tcm_map.png]
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from kbjax import catalogue, report, report_style, tcm_map
from kbjax.tcm_map import TcmMap

CONTEXT = 640
TILE = 32
INK, BUDGET = report_style.INK, report_style.BUDGET
KERNELS = {  # the same mathematics, tile by tile
    "flash_unscoped": ("without scopes", {"queries": 16}),
    "gqa_decode": ("a scope a tile", {"num_pes": 1, "query_heads": 128}),
}


def drawn_map(name: str, sizes: dict[str, Any]) -> TcmMap:
    """The map of one kernel, every iteration drawn one by one."""
    case = catalogue.make(name, context=CONTEXT, tile=TILE, **sizes)
    log = report.of(case.call, *case.inputs.specs).log
    return tcm_map.of(log, folding=False)


def draw(axes: Any, found: TcmMap, title: str) -> None:
    """One panel: buffers as rectangles, full while in use and pale while held."""
    for buffer in found.buffers:
        colour = report_style.COLOURS[buffer.engine]
        height = (buffer.end_bytes - buffer.start_bytes) / 1024
        bottom, start = buffer.start_bytes / 1024, buffer.start_ps / 1e6
        for end_ps, alpha in ((buffer.end_ps, 0.2), (buffer.used_ps, 0.95)):
            axes.bar(start, height, end_ps / 1e6 - start, bottom, align="edge",
                     color=colour, alpha=alpha, linewidth=0)  # fmt: skip
    budget = found.budget_bytes / 1024
    axes.axhline(budget, color=BUDGET, linestyle="--", linewidth=1)
    axes.text(
        0.99,
        budget + 12,
        "budget 1,024 KiB",
        color=BUDGET,
        fontsize=8,
        ha="right",
        transform=axes.get_yaxis_transform(),
    )
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel("time, us", fontsize=9)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", default="docs/tcm_map.png")
    options = parser.parse_args()
    figure, panels = plt.subplots(
        1, 2, figsize=(9, 3.4), sharex=True, sharey=True, dpi=110
    )
    for axes, (name, (title, sizes)) in zip(panels, KERNELS.items(), strict=True):
        found = drawn_map(name, sizes)
        over = found.highest_bytes > found.budget_bytes
        draw(axes, found, f"{name}, {title}{': overflows' if over else ''}")
    panels[0].set_ylabel("scratch address, KiB", fontsize=9)
    panels[0].set_ylim(0, 1180)
    panels[0].set_xlim(left=0)
    figure.tight_layout()
    figure.savefig(options.output, metadata={"Software": None})


if __name__ == "__main__":
    main()
