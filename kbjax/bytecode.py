"""What a frame's code says about the `for` statement that it runs (CPython)."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
Names = frozenset[str]


def in_for_statement(frame: FrameType) -> bool:
    """Whether the frame runs a `for` statement (or `yield from`) rather than a call or
    a comprehension that takes an iterator's values."""
    code = frame.f_code
    running = dis.opname[code.co_code[frame.f_lasti]]
    return running in ("FOR_ITER", "SEND") and code.co_name not in _COMPREHENSIONS


@dataclass(frozen=True)
class Unread:
    """Local variables of a frame whose value nothing reads before it is set again.

    Attributes:
      at_iteration: where the running `for` statement takes its next value, so neither
        in the next iteration nor after the loop.
      after_loop: after the loop.
    """

    at_iteration: Names
    after_loop: Names


def unread(frame: FrameType) -> Unread:
    """Of the `for` statement that the frame runs; nothing where it runs none, and no
    variable that a closure shares."""
    code = frame.f_code
    flow = _flow(code)
    exit_ = flow.ends.get(frame.f_lasti)
    if exit_ is None:
        return Unread(frozenset(), frozenset())
    live, names = flow.live, _own_locals(code)
    return Unread(names - live[frame.f_lasti], names - live.get(exit_, frozenset()))


def unread_after(frame: FrameType) -> Names:
    """Local variables of a frame whose value nothing reads, from the instruction that
    it runs on, before it is set again."""
    flow = _flow(frame.f_code)
    follows = flow.after.get(frame.f_lasti)
    if follows is None:
        return frozenset()
    return _own_locals(frame.f_code).difference(*(flow.live[at] for at in follows))


def _own_locals(code: CodeType) -> Names:
    """The local variables that no closure shares."""
    return frozenset(code.co_varnames) - {*code.co_cellvars, *code.co_freevars}


@dataclass(frozen=True)
class _Flow:
    """A code's data flow, by the offset of the instruction.

    Attributes:
      after: where execution may go on.
      live: the locals that are read before they are set from there on.
      ends: for each FOR_ITER, where its loop ends.
    """

    after: dict[int, list[int]]
    live: dict[int, Names]
    ends: dict[int, int]


@lru_cache(maxsize=1024)
def _flow(code: CodeType) -> _Flow:
    """Backward, to a fixed point."""
    instructions = [*dis.get_instructions(code)]
    after = {
        one.offset: _successors(code, one, following)
        for one, following in zip(instructions, [*instructions[1:], None], strict=True)
    }
    live: dict[int, Names] = dict.fromkeys(after, frozenset())
    changed = True
    while changed:
        changed = False
        for one in reversed(instructions):
            out = frozenset().union(*(live.get(at, ()) for at in after[one.offset]))
            sets, reads = _touches(one)
            into = (out - sets) | reads
            if into != live[one.offset]:
                live[one.offset] = into
                changed = True
    ends = {one.offset: one.argval for one in instructions if one.opname == "FOR_ITER"}
    return _Flow(after, live, ends)


def _successors(
    code: CodeType, one: dis.Instruction, following: dis.Instruction | None
) -> list[int]:
    """Where execution may go on, exception handlers included."""
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    found = [one.argval] if jumps else []
    leaves = one.opname in _ENDS or one.opname.startswith(("JUMP_FORWARD", "JUMP_BACK"))
    if following is not None and not leaves:
        found.append(following.offset)
    return found + [
        entry.target
        for entry in _exception_table(code)
        if entry.start <= one.offset < entry.end
    ]


@lru_cache(maxsize=1024)
def _exception_table(code: CodeType) -> tuple[dis._ExceptionTableEntry, ...]:  # type: ignore[name-defined]
    return tuple(dis._parse_exception_table(code))  # type: ignore[attr-defined]


def _touches(one: dis.Instruction) -> tuple[Names, Names]:
    """(set, read): locals that the instruction sets, and that it reads before. Python
    3.13 has instructions that do two things."""
    named = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    if one.opname == "STORE_FAST_LOAD_FAST":
        return frozenset(named[:1]), frozenset(named[1:]) - frozenset(named[:1])
    if one.opname.startswith("STORE_FAST"):
        return frozenset(named), frozenset()
    if one.opname.startswith(("LOAD_FAST", "DELETE_FAST")):
        return frozenset(), frozenset(named)
    return frozenset(), frozenset()
