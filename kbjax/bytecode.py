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
    live, ends = _liveness(code)
    exit_ = ends.get(frame.f_lasti)
    if exit_ is None:
        return Unread(frozenset(), frozenset())
    names = frozenset(code.co_varnames) - {*code.co_cellvars, *code.co_freevars}
    return Unread(names - live[frame.f_lasti], names - live.get(exit_, frozenset()))


def unread_after(frame: FrameType) -> Names:
    """Local variables of a frame whose value nothing reads, from the instruction that
    it runs on, before it is set again."""
    code = frame.f_code
    live, _ = _liveness(code)
    instructions = [*dis.get_instructions(code)]
    at = next(n for n, one in enumerate(instructions) if one.offset == frame.f_lasti)
    follows = _successors(code, instructions[at], instructions[at + 1])
    names = frozenset(code.co_varnames) - {*code.co_cellvars, *code.co_freevars}
    return names.difference(*(live[offset] for offset in follows))


@lru_cache(maxsize=1024)
def _liveness(code: CodeType) -> tuple[dict[int, Names], dict[int, int]]:
    """For each instruction's offset, the locals that are read before they are set from
    there on; for each FOR_ITER, where its loop ends. Backward data flow, to a fixed
    point."""
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
    return live, ends


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
