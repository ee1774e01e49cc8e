"""The smallest kernel that still shows what a drawn one showed, found on its text.

`tests.programs` writes one tile a line, with its type in a comment; so statements can
be dropped with all that needs them, made constants, or taken out of their loop. Most
attempts are no legal kernels, which recording says in milliseconds; only legal ones are
compiled and run. Shrinking the random numbers instead (hypothesis) is slower: a number
that is dropped turns what is drawn after it into another kernel.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

HEAD = 3  # lines that every kernel starts with
_DEFINED = re.compile(r"^\s*(?:for )?(\w+) (?:=|in) ")
_TILE = re.compile(r"^(\s*)(t\d+) = (.*?)  # (\w+)(\[.*\])$")


def shrunk(
    source: str,
    legal: Callable[[str], bool],
    shows: Callable[[str], bool],
    runs: int,
) -> tuple[str, int]:
    """The smallest text found for which `shows` holds, and how often it was asked.

    Args:
      source: of a kernel for which it holds.
      legal: whether a text is a legal kernel; quick.
      shows: whether a legal kernel shows it; slow.
      runs: how often `shows` may be asked.
    """
    tried, asked = {source}, 0
    lines = source.splitlines()
    changed = True
    while changed:
        changed = False
        for make in (
            _sliced,
            _dropped,
            _as_constant,
            _as_another,
            _unwrapped,
            _hoisted,
        ):
            again = True
            while again:
                again = False
                for candidate in make(lines):
                    text = "\n".join(candidate) + "\n"
                    if text in tried:
                        continue
                    tried.add(text)
                    if asked == runs:
                        return "\n".join(lines) + "\n", asked
                    if not legal(text):
                        continue
                    asked += 1
                    if shows(text):
                        lines, again, changed = candidate, True, True
                        break
    return "\n".join(lines) + "\n", asked


def commands(source: str) -> int:
    """How many lines of a kernel do something."""
    return sum(
        not line.strip().startswith(("for ", "with ", "pass"))
        for line in source.splitlines()[HEAD:]
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block_end(lines: Sequence[str], start: int) -> int:
    """The line after the statement that starts at `start`."""
    end = start + 1
    while end < len(lines) and _indent(lines[end]) > _indent(lines[start]):
        end += 1
    return end


def _without(lines: Sequence[str], start: int, end: int) -> list[str]:
    """Without some lines, what is in their blocks, and all that needs their names."""
    gone: set[str] = set()
    kept = list(lines[:start])
    at = start
    while at < len(lines):
        line = lines[at]
        words = set(re.findall(r"\b[tifb]\d+\b|\bpe\b", line))
        if at < end or words & gone:
            stop = _block_end(lines, at)
            for dropped in lines[at:stop]:
                found = _DEFINED.match(dropped)
                if found:
                    gone.add(found[1])
            at = stop
            continue
        kept.append(line)
        at += 1
    return _filled(kept)


def _filled(lines: list[str]) -> list[str]:
    """Without blocks that hold nothing."""
    for at in range(len(lines) - 1, HEAD - 1, -1):
        opens = lines[at].endswith(":")
        if opens and _block_end(lines, at) == at + 1:
            del lines[at]
    if len(lines) == HEAD:
        lines.append("    pass")
    return lines


def _sliced(lines: list[str]) -> Iterator[list[str]]:
    """Without what no output needs; with one output alone, a late one first."""
    stores = [at for at, line in enumerate(lines) if "tl.store(" in line]
    for kept in (*reversed(stores), None):
        if kept is None:
            yield _needed(lines)
        elif len(stores) > 1:
            one = [x for at, x in enumerate(lines) if at == kept or at not in stores]
            yield _needed(_filled(one))


def _needed(lines: Sequence[str]) -> list[str]:
    """Without tiles that nothing reads, and copies into those."""
    kept = list(lines)
    while True:
        text = "\n".join(kept)
        for at in range(len(kept) - 1, HEAD - 1, -1):
            name = _DEFINED.match(kept[at])
            copied = re.match(r"\s*tl\.copy_to\((t\d+)\b", kept[at])
            found = name or copied
            if not found or kept[at].endswith(":"):
                continue
            if name and found[1] == "pe":
                continue
            uses = len(re.findall(rf"\b{found[1]}\b", text))
            writes = len(re.findall(rf"tl\.copy_to\({found[1]}\b", text))
            if uses == (1 if name else 1 + writes):
                del kept[at]
                break
        else:
            return _filled(kept)


def _dropped(lines: list[str]) -> Iterator[list[str]]:
    size = (len(lines) - HEAD) // 2
    while size:
        for start in range(len(lines) - size, HEAD - 1, -size):
            yield _without(lines, start, start + size)
        size //= 2


def _unwrapped(lines: list[str]) -> Iterator[list[str]]:
    """A block without its `with`; a loop as its first iteration, or with one trip."""
    for at in range(HEAD, len(lines)):
        if not lines[at].endswith(":"):
            continue
        end = _block_end(lines, at)
        body = [line[4:] for line in lines[at + 1 : end]]
        found = re.match(r"(\s*)for (\w+) in ([\w.]+)\((.*)\):$", lines[at])
        if not found:
            yield [*lines[:at], *body, *lines[end:]]
            continue
        indent, name, loop, trips = found.groups()
        start = trips.split(",")[0] if "," in trips else "0"
        yield [*lines[:at], f"{indent}{name} = {start}", *body, *lines[end:]]
        for fewer in ("1", "2"):
            if trips != fewer and (trips, fewer) != ("1", "2"):
                simple = f"{indent}for {name} in {loop}({fewer}):"
                yield [*lines[:at], simple, *lines[at + 1 :]]


def _as_constant(lines: list[str]) -> Iterator[list[str]]:
    for at, line in enumerate(lines):
        found = _TILE.match(line)
        if found and "tl.full(" not in line:
            indent, name, _, dtype, shape = found.groups()
            sizes = tuple(ast.literal_eval(shape))
            value = "True" if dtype == "bool" else "1"
            made = f'{indent}{name} = tl.full({sizes}, {value}, "{dtype}")'
            yield [*lines[:at], f"{made}  # {dtype}{shape}", *lines[at + 1 :]]


def _as_another(lines: list[str]) -> Iterator[list[str]]:
    """A tile as one of the same type that was made before."""
    made: dict[str, list[str]] = {}
    for at, line in enumerate(lines):
        found = _TILE.match(line)
        if not found:
            continue
        indent, name, text, dtype, shape = found.groups()
        kind = dtype + shape
        if not re.fullmatch(r"t\d+", text):
            for other in made.get(kind, [])[-3:]:
                new = f"{indent}{name} = {other}  # {kind}"
                yield [*lines[:at], new, *lines[at + 1 :]]
        else:  # use the other's name
            pattern = re.compile(rf"\b{name}\b")
            yield [*lines[:at], *(pattern.sub(text, x) for x in lines[at + 1 :])]
        made.setdefault(kind, []).append(name)


def _hoisted(lines: list[str]) -> Iterator[list[str]]:
    """A part of an expression instead of the whole."""
    for at in range(HEAD, len(lines)):
        code, _, comment = lines[at].partition("  # ")
        if code.endswith(":"):
            continue
        indent = " " * _indent(code)
        tree = ast.parse(code.strip())
        for number, node in enumerate(ast.walk(tree)):
            if isinstance(node, ast.BinOp | ast.Call | ast.UnaryOp):
                for part in range(len(_parts(node))):
                    again = ast.parse(code.strip())
                    target = list(ast.walk(again))[number]
                    chosen = _parts(target)[part]
                    text = ast.unparse(_replaced(again, target, chosen))
                    text = indent + text + (f"  # {comment}" if comment else "")
                    if text != lines[at]:
                        yield [*lines[:at], text, *lines[at + 1 :]]


def _parts(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    assert isinstance(node, ast.Call)
    held = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return [*node.args, *(x for x in held if ast.unparse(x) != "tl")]


def _replaced(tree: ast.AST, target: ast.AST, chosen: ast.AST) -> ast.AST:
    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return chosen if node is target else self.generic_visit(node)

    return Swap().visit(tree)
