"""Which tiles cross the iterations of a loop: backward liveness over a program.

Live replay keeps a tile's value as a typed array and carries through a loop only what
the body writes, was made outside it, and is read before a definite write or after the
loop. So it does out of a `when`. A write of part of a tile, under a `when`, or in a
loop that may run zero times, is no definite write: the old value stays live.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from kbjax import expr
from kbjax.program import Block, Command, Loop, Program, Scope, When, walk

Roots = frozenset[int]


def carried_roots(program: Program, live_at_exit: Set[int]) -> Mapping[int, Roots]:
    """For each loop, the roots (allocation uids) that its iterations hand on, and for
    each `when` those that it does; by the `id` of the statement.

    Args:
      program: the recorded kernel.
      live_at_exit: the roots that are read after the kernel's end.
    """
    found: dict[int, Roots] = {}
    _live_before(program, program.commands, frozenset(live_at_exit), found)
    return found


def _live_before(
    program: Program, block: Block, live: Roots, found: dict[int, Roots]
) -> Roots:
    for item in reversed(block):
        if isinstance(item, When):
            found[id(item)] = written_roots(item.body) & live
            live |= _live_before(program, item.body, live, found)
        elif isinstance(item, Scope):
            live = _live_before(program, item.body, live, found)
        elif isinstance(item, Loop):
            live = _before_loop(program, item, live, found)
        else:
            live = _before_command(program, item, live)
    return live


def _before_command(program: Program, command: Command, live: Roots) -> Roots:
    out = command.writes
    if out is not None and out.nbytes == program.allocations[out.root].nbytes:
        live -= {out.root}
    return live | {ref.root for ref in command.reads}


def _before_loop(
    program: Program, loop: Loop, after: Roots, found: dict[int, Roots]
) -> Roots:
    entering = after
    while True:  # what the next iteration needs is live at this one's end
        grown = entering | _live_before(program, loop.body, entering, found)
        if grown == entering:
            break
        entering = grown
    inside = {
        uid for uid, made in program.allocations.items() if loop.index in made.loops
    }
    found[id(loop)] = (written_roots(loop.body) & entering) - inside
    runs = expr.bounds(loop.trip)[0] >= 1
    if not runs:
        return entering - inside
    return _live_before(program, loop.body, entering, found) - inside


def written_roots(block: Block) -> Roots:
    """The roots that any command of the block writes."""
    found: set[int] = set()
    for item in block:
        if isinstance(item, Loop | Scope):
            found |= written_roots(item.body)
        elif item.writes is not None:
            found.add(item.writes.root)
    return frozenset(found)


def in_parts(program: Program) -> Roots:
    """The roots that some command takes or writes in part."""
    refs = [
        ref
        for command in walk(program.commands)
        if not isinstance(command, Loop | Scope)
        for ref in (*command.reads, command.writes)
        if ref is not None
    ]
    whole = program.allocations
    return frozenset(r.root for r in refs if r.nbytes != whole[r.root].nbytes)
