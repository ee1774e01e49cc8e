#!/usr/bin/env python
"""The drawings of docs/memory_model.md and docs/timing_model.md, from op_logs.

    python scripts/pictures.py [FOLDER]

writes memory_model.svg and timing_model.svg, the same bytes each time; docs/ where no
folder is given. Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

import kbjax as kb
from kbjax.hardware import PeDma, PeGemm, PeMath

NO_METADATA = {"Date": None, "Creator": None}  # not when, nor by which matplotlib
DOCS = Path(__file__).resolve().parents[1] / "docs"
STYLE: Any = {
    "svg.hashsalt": "kbjax",  # names of clip paths: the same in each run
    "svg.fonttype": "path",  # text looks the same on every machine
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PERSISTENT, TILES, SLOTS, UNUSED = "#2f6f9f", "#d9822b", "#3f8f5f", "#d5d9dd"
DASHED: Any = {"color": "black", "linewidth": 0.8, "linestyle": (0, (4, 3))}
ENGINES = {"dma": PERSISTENT, "gemm": TILES, "math": SLOTS}

# --- kernels -------------------------------------------------------------------------


def unscoped(tl: Any, q: Any, k: Any, o: Any) -> None:
    """o = sum over tiles of exp(q k^T) k; q, o: (G, D), k: (S, D). Never rewinds."""
    query, acc = tl.load(q), tl.zeros(q.shape)
    for j in tl.range(k.shape[0] // TILE):
        tile = tl.load(k[tl.ds(j * TILE, TILE), :])
        p = tl.exp(tl.dot(query, tl.trans(tile)))
        tl.copy_to(acc, acc + tl.dot(p, tile))
    tl.store(o, acc)


def scoped(tl: Any, q: Any, k: Any, o: Any) -> None:
    """The same, with a scope around a tile."""
    query, acc = tl.load(q), tl.zeros(q.shape)
    for j in tl.range(k.shape[0] // TILE):
        with tl.scratch_scope():
            tile = tl.load(k[tl.ds(j * TILE, TILE), :])
            p = tl.exp(tl.dot(query, tl.trans(tile)))
            tl.copy_to(acc, acc + tl.dot(p, tile))
    tl.store(o, acc)


def buffered(tl: Any, q: Any, k: Any, o: Any) -> None:
    """The same, and the next tile is loaded meanwhile."""
    query, acc = tl.load(q), tl.zeros(q.shape)
    tiles = k.shape[0] // TILE
    ahead = tl.circular_buffer(2, (TILE, k.shape[1]))
    ahead.push(k[0:TILE, :])
    for j in tl.range(tiles):
        with tl.scratch_scope():
            with tl.when(j + 1 < tiles):
                ahead.push(k[tl.ds((j + 1) * TILE, TILE), :])
            tile = ahead.pop()
            p = tl.exp(tl.dot(query, tl.trans(tile)))
            tl.copy_to(acc, acc + tl.dot(p, tile))
    tl.store(o, acc)


def one_tile(tl: Any, x: Any, o: Any) -> None:
    """o = the sum of x[i] x[i]; x: (N, 4, 4). Each load goes to the same bytes."""
    acc = tl.zeros(o.shape)
    for i in tl.range(x.shape[0]):
        with tl.scratch_scope():
            tile = tl.load(x[i])
            tl.copy_to(acc, acc + tl.dot(tile, tile))
    tl.store(o, acc)


def two_tiles(tl: Any, x: Any, o: Any) -> None:
    """The same, loads going to two tiles in turn."""
    acc, ahead = tl.zeros(o.shape), tl.circular_buffer(2, o.shape)
    ahead.push(x[0])
    for i in tl.range(x.shape[0]):
        with tl.scratch_scope():
            with tl.when(i + 1 < x.shape[0]):
                ahead.push(x[i + 1])
            tile = ahead.pop()
            tl.copy_to(acc, acc + tl.dot(tile, tile))
    tl.store(o, acc)


TILE = 64
QUERY = jax.ShapeDtypeStruct((16, 64), "float32")
KEYS = jax.ShapeDtypeStruct((4 * TILE, 64), "float32")
SQUARE = jax.ShapeDtypeStruct((4, 4), "float32")
# docs/timing_model.md: of 4 x 4 float32 a load or store takes 100 ns, a dot 60, other
# ops 10.
ROUND = kb.Hardware(
    pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=36),
    pe_gemm=PeGemm(rows=4, cols=4, depth=4, overhead_ns=59, rate={"float32": 1}),
    pe_math=PeMath(lanes=16, overhead_ns=9, cycles={}),
)

# --- buffers of the scratch, from an op_log ------------------------------------------


@dataclass
class Held:
    """A slice of the scratch: taken from `start_ns` to `end_ns`, last used at
    `used_ns`."""

    address: int
    nbytes: int
    kind: str
    start_ns: float
    used_ns: float
    end_ns: float


def held(log: Any) -> list[Held]:
    """What the results of a log's commands take, in issue order. What a scope gives
    back is drawn up to the end of its iteration's last command."""
    last_ns: dict[str, float] = {}  # by iteration
    for row in log:
        last_ns[row.loop] = max(last_ns.get(row.loop, 0.0), row.end_ns)
    slots = [
        Held(a.cursor_bytes, a.nbytes, "slot", 0.0, 0.0, log.total_ns)
        for a in log.program.allocations.values()
        if a.op == "circular_buffer"
    ]
    found = [*slots]
    now: dict[int, Held] = {}
    for row in log:
        for address in row.src_addrs.split(";"):
            if address.isdigit():
                one = now[int(address)]
                one.used_ns = max(one.used_ns, row.end_ns)
        if not row.dst_addr.isdigit():
            continue
        address = int(row.dst_addr)
        if row.op_name == "copy":
            now[address].used_ns = row.end_ns
            continue
        in_slot = any(s.address <= address < s.address + s.nbytes for s in slots)
        kind = "slot" if in_slot else "tile" if row.loop else "persistent"
        scoped = row.scope_depth and not in_slot
        end_ns = last_ns[row.loop] if scoped else log.total_ns
        now[address] = Held(address, row.nbytes, kind, row.start_ns, row.end_ns, end_ns)
        found.append(now[address])
    return found


def draw_scratch(axes: Axes, log: Any) -> None:
    colours = {"persistent": PERSISTENT, "tile": TILES, "slot": SLOTS}
    for one in held(log):
        for end_ns, colour in ((one.end_ns, UNUSED), (one.used_ns, colours[one.kind])):
            axes.add_patch(
                Rectangle(
                    (one.start_ns / 1000, one.address / 1024),
                    (end_ns - one.start_ns) / 1000,
                    one.nbytes / 1024,
                    facecolor=colour,
                    edgecolor="white",
                    linewidth=0.4,
                )
            )


def memory_model() -> Figure:
    """Three kernels' scratch over time."""
    panels = (
        ("no scope", unscoped),
        ("a scope a tile", scoped),
        ("and loaded ahead", buffered),
    )
    figure, every = plt.subplots(1, 3, figsize=(9, 3.6), sharex=True, sharey=True)
    for axes, (title, kernel) in zip(every, panels, strict=True):
        log = kb.kernel_call(kernel, QUERY).op_log(QUERY, KEYS)
        draw_scratch(axes, log)
        peak = log.peak_scratch / 1024
        axes.axhline(peak, **DASHED)
        head = f"{title}: {peak:.0f} KiB, {log.total_ns / 1000:.2f} us"
        axes.set_title(head, loc="left", fontsize=9)
        axes.set_xlim(0, 4.4)
        axes.set_ylim(0, 212)
        axes.set_xlabel("time, us")
    every[0].set_ylabel("address in the scratch, KiB")
    names = {
        PERSISTENT: "persistent, in use",
        TILES: "made for one tile, in use",
        SLOTS: "slot of the circular buffer, in use",
        UNUSED: "taken, not in use",
    }
    figure.legend(
        handles=[
            *(Patch(facecolor=c, label=name) for c, name in names.items()),
            Line2D([], [], label="peak", **DASHED),
        ],
        loc="lower center",
        ncols=5,
        frameon=False,
        fontsize=8.5,
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


# --- engines, from an op_log ---------------------------------------------------------


def draw_engines(axes: Axes, log: Any) -> None:
    columns = log.columns(["waits_for", "waited_ps"])
    waits = zip(columns["waits_for"], columns["waited_ps"] / 1000, strict=True)
    seen: Counter[str] = Counter()
    for row, (cause, waited_ns) in zip(log, waits, strict=True):
        lane = [*reversed(ENGINES)].index(row.engine)
        length_ns = row.end_ns - row.start_ns
        axes.barh(
            lane, length_ns, 0.62, row.start_ns,
            color=ENGINES[row.engine], edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        if row.engine == "math":
            if row.op_name != "add":  # which is written together with its copy
                name = "add, copy" if row.op_name == "copy" else row.op_name
                axes.text(row.end_ns + 3, lane, name, va="center", fontsize=7.5)
        else:
            turn = "" if row.op_name == "store" else f" {seen[row.op_name]}"
            axes.text(
                row.start_ns + length_ns / 2, lane, row.op_name + turn,
                color="white", ha="center", va="center", fontsize=7.5,
            )  # fmt: skip
        seen[row.op_name] += 1
        if cause == "hazard":
            axes.barh(
                lane, waited_ns, 0.62, row.start_ns - waited_ns,
                facecolor="white", edgecolor="#666666", hatch="////", linewidth=0.6,
            )  # fmt: skip
    axes.set_yticks(range(len(ENGINES)), [*reversed(ENGINES)])
    axes.tick_params(axis="y", length=0)


def timing_model() -> Figure:
    """Two kernels' engines over time."""
    panels = (("one tile", one_tile), ("two tiles in turn", two_tiles))
    figure, every = plt.subplots(2, 1, figsize=(9, 4.0), sharex=True)
    tiles = jax.ShapeDtypeStruct((4, 4, 4), "float32")
    for axes, (title, kernel) in zip(every, panels, strict=True):
        log = kb.kernel_call(kernel, SQUARE, hardware=ROUND).op_log(tiles)
        draw_engines(axes, log)
        axes.set_title(f"{title}: {log.total_ns:.0f} ns", loc="left", fontsize=9)
        axes.set_xlim(0, 770)
        axes.set_xticks(range(0, 770, 50))
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
    every[-1].set_xlabel("time, ns")
    hatched = Patch(
        facecolor="white",
        edgecolor="#666666",
        hatch="////",
        label="hazard: the engine and the operands are ready, the bytes are still read",
    )
    figure.legend(handles=[hatched], loc="lower center", frameon=False, fontsize=8.5)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "memory_model": memory_model,
    "timing_model": timing_model,
}


def write(folder: Path) -> None:
    """Draw all pictures into a folder."""
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.savefig(
                folder / f"{name}.svg", metadata=NO_METADATA, facecolor="white"
            )
            plt.close(figure)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
