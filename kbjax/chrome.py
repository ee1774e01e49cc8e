"""Chrome's JSON trace format: a picture as text, event by event.

A process is a PE and a thread is a track. Times are in microseconds, printed from
integers of picoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kbjax import tracks
from kbjax.log_view import FoldedOps, Op
from kbjax.tracks import Picture, Scope, Track


def file(about: dict[str, Any], events: Iterable[str]) -> Iterator[str]:
    """The pieces of a file, all ASCII: `about` as ``otherData``, and the events."""
    yield f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":['
    for n, event in enumerate(events):
        yield f"{',' if n else ''}\n{event}"
    yield "\n]}\n"


def events(picture: Picture, notes: Sequence[str], end_ps: int) -> Iterator[str]:
    """Every event as JSON text; `notes` are one event, at `end_ps`."""
    groups = [*tracks.GROUPS, *sorted({track.group for track in picture.tracks})]
    ordered = sorted(
        picture.tracks, key=lambda t: (t.pe, groups.index(t.group), t.lane)
    )
    number = {track: 1 + n for n, track in enumerate(ordered)}
    for pe in sorted({track.pe for track in ordered}):
        yield _named("process", {"pid": pe + 1}, f"PE {pe}")
        yield _named("process", {"pid": pe + 1}, pe)
    for track in ordered:
        name = f"{track.group} {track.lane + 1}" if track.lane else track.group
        at = {"pid": track.pe + 1, "tid": number[track]}
        yield _named("thread", at, name)
        yield _named("thread", at, number[track])

    def event(ph: str, track: Track, ps: int, **more: Any) -> str:
        return _timed({"ts": ps}, ph=ph, pid=track.pe + 1, tid=number[track], **more)

    for drawn in picture.slices:
        times = {"ts": drawn.start_ps, "dur": drawn.dur_ps}
        where = {"pid": drawn.track.pe + 1, "tid": number[drawn.track]}
        yield _timed(times, ph="X", **where, **_described(drawn.what))
    for load, load_track, use, use_track in picture.arrows:
        same = {"cat": "load", "name": "load", "id": load.op}
        yield event("s", load_track, load.start_ps, **same)
        yield event("f", use_track, use.start_ps, bp="e", **same)
    for pe, at_ps, cursor in picture.samples:
        args = {"cursor_bytes": cursor}
        yield _timed({"ts": at_ps}, ph="C", pid=pe + 1, name="scratch", args=args)
    if notes:
        first = ordered[0].pe + 1 if ordered else 1
        name = "; ".join(notes)
        yield _timed({"ts": end_ps}, ph="i", s="g", pid=first, tid=1, name=name)


def _named(kind: str, where: dict[str, int], name: str | int) -> str:
    """The name of a process or thread, or, for a number, its place."""
    key = "name" if isinstance(name, str) else "sort_index"
    return json.dumps(
        {"ph": "M", **where, "name": f"{kind}_{key}", "args": {key: name}}
    )


def _timed(times_ps: dict[str, int], **event: Any) -> str:
    """An event, its times in microseconds to the picosecond: the json module, whose
    numbers are floats, prints all but these."""
    times = (f'"{k}":{ps // 10**6}.{ps % 10**6:06d},' for k, ps in times_ps.items())
    return "{" + "".join(times) + json.dumps(event)[1:]


def _described(what: tracks.What) -> dict[str, Any]:
    """The category, name and arguments of a slice."""
    if isinstance(what, Op):
        args = {
            "op": what.op,
            "source": f"{what.file}:{what.line}",
            "loop": what.loop,
            "shape": what.shape,
            "dtype": what.dtype,
            "nbytes": what.nbytes,
            "flops": what.flops,
            "src_addrs": what.src_addrs,
            "dst_addr": what.dst_addr,
            "start_ps": what.start_ps,
            "end_ps": what.end_ps,
        }
        return {"cat": "op", "name": what.op_name, "args": args}
    if isinstance(what, Scope):
        first = what.first
        args = {
            "op": first.op,
            "source": f"{first.file}:{first.line}",
            "depth": what.depth,
            "ops": what.ops,
            "start_ps": what.start_ps,
            "end_ps": what.end_ps,
        }
        name = f"scope, depth {what.depth}"
        if isinstance(first, FoldedOps) and first.rows == what.ops:
            name = _folded_name(first)  # the scopes of all its iterations
        return {"cat": "scope", "name": name, "args": args}
    loop, span = what
    args = {
        "op": loop.op,
        "source": f"{loop.file}:{loop.line}",
        "loop": loop.loop,
        "iterations": loop.iterations,
        "ops": span.ops,
        "busy_ps": span.busy_ps,
        "start_ps": span.start_ps,
        "end_ps": span.end_ps,
    }
    return {"cat": "fold", "name": _folded_name(loop), "args": args}


def _folded_name(loop: FoldedOps) -> str:
    return f"{loop.loop}: {loop.iterations:,} steady iterations"
