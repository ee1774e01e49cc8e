"""Whether a `with` block is left by return, break or continue: from the source, which
says whether its body can end otherwise, and the code, where each way out calls
`__exit__` in a place of its own, the one at the body's end last (CPython)."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType

_LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_Block = ast.With | ast.AsyncWith


def leaves_early(frame: FrameType) -> bool:
    """Whether the frame, which runs the `__exit__` of a `with` block, has not come to
    its end; False where there is no source."""
    code = frame.f_code
    calls = _exit_calls(code)
    where = calls.get(frame.f_lasti)
    if where is None:
        return False
    block = _block_at(code.co_filename, where)
    if block is None:
        return False
    # Each way out leaves all items of the statement; up to 3.12 their calls are told
    # apart by nothing but order.
    together = len(block.items) if where == (block.lineno, block.col_offset) else 1
    at_end = sorted(at for at, place in calls.items() if place == where)[-together:]
    return frame.f_lasti not in at_end or not _can_end(block.body)


@lru_cache(maxsize=1024)
def _exit_calls(code: CodeType) -> dict[int, tuple[int, int]]:
    """The offset of each call ``__exit__(None, None, None)``, and the line and column
    of its `with` statement's item."""
    found = {}
    before: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "PRECALL":
            continue
        place = one.positions
        if (
            one.opname == "CALL"
            and len(before) == 3
            and all(b.opname == "LOAD_CONST" and b.argval is None for b in before)
            and place is not None
            and place.lineno is not None
            and place.col_offset is not None
        ):
            found[one.offset] = place.lineno, place.col_offset
        before = [*before[-2:], one]
    return found


def _block_at(filename: str, where: tuple[int, int]) -> _Block | None:
    """The `with` statement that has an item, or begins, at a line and column."""
    text = "".join(linecache.getlines(filename))
    return next((b for b in _blocks(text) if where in _places(b)), None)


def _places(block: _Block) -> Iterator[tuple[int, int]]:
    yield block.lineno, block.col_offset
    for item in block.items:
        yield item.context_expr.lineno, item.context_expr.col_offset


@lru_cache(maxsize=64)
def _blocks(text: str) -> tuple[_Block, ...]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # it has changed since
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, _Block))


def _can_end(body: Sequence[ast.stmt]) -> bool:
    """Whether execution can come to the body's end."""
    last = body[-1]
    if isinstance(last, _LEAVING):
        return False
    if isinstance(last, ast.If):
        return not last.orelse or _can_end(last.body) or _can_end(last.orelse)
    return _can_end(last.body) if isinstance(last, _Block) else True
