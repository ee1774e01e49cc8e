#!/usr/bin/env python
"""The reference page of ops, made from the op table: docs/ops.md.

    python scripts/ops_page.py > docs/ops.md

What an op takes and gives is asked of the table's own rules, dtype by dtype.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbjax import errors, ops
from kbjax.dtypes import TABLE as DTYPES
from kbjax.hardware import Hardware
from kbjax.signatures import Argument, Tile

_GROUPS = {
    "elementwise": "Elementwise",
    "reduction": "Reductions",
    "matrix": "Matrices and softmax",
    "type": "Types and shapes",
    "create": "Making tiles",
}
_ABOUT = {
    "elementwise": "Operands broadcast as in NumPy. Tiles promote as in `jax.numpy`; "
    "Python and NumPy scalars and symbolic integers are weak. Each op rounds once, to "
    "the result's dtype.",
    "reduction": "Over one `axis`, or all where it is None; `keepdims` keeps the axes "
    "at size 1.",
    "matrix": "On tiles of 2 axes, but for softmax, which takes any tile.",
    "type": "`cast` to the dtype that a tile has is the tile itself. `reshape`, "
    "`expand_dims`, `x[None, :]` and `x[tl.ds(i, n)]` on the leading axis are aliases: "
    "no bytes, no time.",
    "create": "Every dtype. `tl.empty(shape, dtype)` allocates and emits nothing.",
}
_OPTIONS = {
    "softmax": "axis=-1",
    "dot": "acc=None, out_dtype=None",
    "cast": "dtype",
    "broadcast_to": "shape",
    "zeros": 'shape, dtype="float32"',
    "full": 'shape, value, dtype="float32"',
    "arange": "start, stop",
}
_SYMBOLS = {
    "add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b",
    "floordiv": "a // b", "mod": "a % b", "pow": "a ** b", "and": "a & b",
    "or": "a | b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b",
    "eq": "a == b", "ne": "a != b", "neg": "-x", "invert": "~x",
}  # fmt: skip


def spelling(row: ops.Op) -> str:
    """How a kernel writes the op."""
    if row.name in _SYMBOLS:
        return f"`{_SYMBOLS[row.name]}`"
    parameters = [] if row.group == "create" else list(row.parameters)
    if row.group == "reduction":
        parameters.append("axis=None, keepdims=False")
    if row.name in _OPTIONS:
        parameters.append(_OPTIONS[row.name])
    return f"`tl.{row.name}({', '.join(parameters)})`"


def given(row: ops.Op, name: str) -> str | None:
    """The dtype of the result for tiles of one dtype; None where they are refused."""
    tile: Argument = Tile((2, 2), DTYPES[name])
    operands = [tile] * (2 if row.name == "dot" else len(row.parameters))
    attrs: dict[str, object] = {"axis": 0, "keepdims": False, "out_dtype": None}
    attrs |= {"shape": (2, 2), "dtype": name}
    if row.name == "where":
        operands[0] = Tile((2, 2), DTYPES["bool"])
    if row.group == "create":
        operands = [0] * len(row.parameters)
    try:
        return row.infer(operands, attrs).dtype.name
    except errors.DTypeError:
        return None


def listed(names: list[str]) -> str:
    missing = [name for name in DTYPES if name not in names]
    if not missing:
        return "every dtype"
    if len(missing) <= 2:
        return f"every dtype but {', '.join(missing)}"
    return ", ".join(names)


def takes_and_gives(row: ops.Op) -> tuple[str, str]:
    """Accepted dtypes, and what the result is of them."""
    results = {name: given(row, name) for name in DTYPES}
    accepted = [name for name, result in results.items() if result is not None]
    if row.name == "arange":
        return "static integers", "int32"
    if row.name == "cast" or row.group == "create":
        return listed(accepted), "`dtype`"
    if len({results[name] for name in accepted}) == 1:
        return listed(accepted), str(results[accepted[0]])
    by_result: dict[str, list[str]] = {}
    for name in accepted:
        result = "as taken" if results[name] == name else str(results[name])
        by_result.setdefault(result, []).append(name)
    shown = [
        result if result == "as taken" else f"{result} of {', '.join(names)}"
        for result, names in by_result.items()
    ]
    return listed(accepted), "; ".join(shown)


def cost(row: ops.Op) -> str:
    """On the engine: cycles a vector of lanes, or passes of the array."""
    if row.engine == "gemm":
        return "gemm: passes"
    return f"math: {Hardware().pe_math.cycles.get(row.name, 1):g}"


def page() -> Iterator[str]:
    """Lines of Markdown."""
    yield "# Ops"
    yield ""
    yield (
        "Made from the op table (`kbjax/ops.py`) by `scripts/ops_page.py`; a test "
        "holds the two together. Each call is one command with a slice of scratch for "
        "its result. What an op does not take is a `DTypeError` that lists what it "
        "does."
    )
    yield ""
    yield (
        "*Cost*: cycles of the vector engine for each vector of `lanes` elements, by "
        "default (`Hardware.pe_math.cycles`, assumed), or passes of the GEMM array. "
        "Elements are the larger of what the op takes and gives."
    )
    for group, title in _GROUPS.items():
        yield ""
        yield f"## {title}"
        yield ""
        yield _ABOUT[group]
        yield ""
        yield "| op | what | takes | gives | cost |"
        yield "| --- | --- | --- | --- | --- |"
        for row in ops.TABLE.values():
            if row.group == group:
                takes, gives = takes_and_gives(row)
                doc = row.doc.replace("|", "\\|")
                name = spelling(row).replace("|", "\\|")
                yield f"| {name} | {doc} | {takes} | {gives} | {cost(row)} |"


if __name__ == "__main__":
    print("\n".join(page()))
