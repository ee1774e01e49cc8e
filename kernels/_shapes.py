"""The shapes that the tensors of a kernel need to have for each other."""

from __future__ import annotations

from typing import Any

import kbjax as kb


def agree(**tensors: tuple[Any, str]) -> None:
    """Refuse tensors that do not belong together: ``agree(q=(q, "G D"), k=(k, "S D"))``
    names the axes of each. An axis has the same size everywhere; one that is a number,
    that size. Tiles that reach past an end are filled or cut, so nothing else would
    tell.

    Raises:
      ShapeError: with the shapes of all of them.
    """
    sizes: dict[str, int] = {}

    def fits(shape: tuple[int, ...], axes: list[str]) -> bool:
        wanted = [
            int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
            for axis, size in zip(axes, shape, strict=False)
        ]
        return len(axes) == len(shape) and list(shape) == wanted

    if not all([fits(tensor.shape, axes.split()) for tensor, axes in tensors.values()]):
        wanted = (f"{n} ({', '.join(a.split())})" for n, (_, a) in tensors.items())
        raise kb.ShapeError(
            "the kernel's tensors do not belong together",
            got=", ".join(f"{n} {x.shape}" for n, (x, _) in tensors.items()),
            allowed=", ".join(wanted),
        )
