"""What the text of a random kernel means for its tiles, block by block: which bytes a
name stands for, when they die, and which elements have been written.

It shares no code with kbjax. Where it calls an element written, some iteration-by-
iteration run of the text would have written it before the read, whatever the PE.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Shape = tuple[int, ...]
# What a kernel keeps handles in besides fresh names; bound again and again.
PLACES = ('held["a"]', 'held["b"]', "kept[0]", "kept[1]", "box.a", "box.b", "n0", "n1",
          "n2")  # fmt: skip


@dataclass(eq=False)
class Frame:
    """An open block of the text.

    Attributes:
      certain: its body runs at least once wherever the block is reached.
      never: its body runs nowhere.
      read: what the body has read so far, by text.
      bound: what the body has bound, by text.
    """

    kind: Literal["kernel", "scope", "range", "static", "try"]
    certain: bool = True
    never: bool = False
    read: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)

    @property
    def is_loop(self) -> bool:
        return self.kind in ("range", "static")


@dataclass(frozen=True)
class Start:
    """Where a view starts: `text`, one of `values`; `frames`, in which the indices of
    the text exist; `complete` where `values` are taken whenever the loop has run."""

    text: str
    values: tuple[int, ...]
    frames: tuple[Frame, ...] = ()
    complete: bool = False

    def scaled(self, row: int, base: Start) -> Start:
        """``base + row * self``."""
        if base.text == "0":
            text = f"({self.text})*{row}"
        else:
            text = f"{base.text}+({self.text})*{row}"
        both = (*base.frames, *self.frames)
        values = {b + row * v for b in base.values for v in self.values}
        if not both:
            return Start(str(*values), tuple(values))
        complete = (self.complete or not self.frames) and (
            base.complete or not base.frames
        )
        return Start(text, tuple(sorted(values)), both, complete and len(both) == 1)


ZERO = Start("0", (0,))


@dataclass(eq=False)
class Root:
    """An allocation. `dies_with` is the block whose end is its end, `within` the blocks
    open when it was made; elements written for sure and perhaps; and views written for
    sure whose start holds an index."""

    dies_with: Frame
    within: tuple[Frame, ...]
    sure: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)
    views: dict[tuple[str, int], Start] = field(default_factory=dict)


@dataclass(frozen=True)
class Handle:
    """What a text stands for: elements of a root, from `start`."""

    text: str
    shape: Shape
    dtype: str
    root: Root
    start: Start = ZERO

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def elements(self) -> set[int]:
        """All that it may stand for."""
        return {v + n for v in self.start.values for n in range(self.size)}

    @property
    def is_written(self) -> bool:
        span = range(min(self.start.values), max(self.start.values) + self.size)
        return (self.start.text, self.size) in self.root.views or (
            self.root.sure.issuperset(span)
        )


@dataclass
class Text:
    """The text of a kernel so far, and what its names stand for by now.

    Attributes:
      frames: the open blocks.
      bound: what each text stands for.
      binding: the loops that were open when it was bound.
      roots: all allocations.
      indices: of the open loops, and the PE's number.
    """

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=lambda: [Frame("kernel")])
    bound: dict[str, Handle] = field(default_factory=dict)
    binding: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    indices: list[Start] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)

    def line(self, text: str) -> None:
        self.lines.append("    " * len(self.frames) + text)

    @contextlib.contextmanager
    def block(self, head: str, frame: Frame, index: Start | None = None) -> Any:
        """The statements of an indented block, and what its end means."""
        self.line(head)
        self.frames.append(frame)
        before = {r: (set(r.sure), dict(r.views), set(r.perhaps)) for r in self.roots}
        if index is not None:
            self.indices.append(index)
        yield
        if index is not None:
            self.indices.remove(index)
        self.frames.pop()
        if frame.is_loop:
            self.end_of_loop(frame, before)

    def end_of_loop(self, frame: Frame, before: dict[Root, Any]) -> None:
        for root in self.roots:
            if not frame.certain and root in before:
                root.sure, root.views, perhaps = before[root]
                root.perhaps = perhaps if frame.never else root.perhaps
                continue
            for key, start in list(root.views.items()):
                if frame in start.frames:
                    del root.views[key]
                    if start.complete and frame not in root.within:
                        size = key[1]
                        root.sure |= {v + n for v in start.values for n in range(size)}
        for text in frame.bound if not frame.certain else ():
            self.bound.pop(text, None)  # the body may not have run

    def loops(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.is_loop]

    def alive(self) -> list[Handle]:
        return [h for h in self.bound.values() if self.lives(h)]

    def lives(self, handle: Handle) -> bool:
        return handle.root.dies_with in self.frames and self.is_placed(handle)

    def is_placed(self, handle: Handle) -> bool:
        """Whether the indices that say where it is exist still."""
        return all(frame in self.frames for frame in handle.start.frames)

    def pick(
        self, wanted: Callable[[Handle], bool] = lambda h: True, written: bool = True
    ) -> Handle | None:
        """A handle that may be used, and read where `written`; rather a young one."""
        found = [h for h in self.alive() if h.is_written >= written and wanted(h)]
        if not found:
            return None
        return self.rng.choice(found[-5:] if self.rng.random() < 0.6 else found)

    def use(self, handle: Handle) -> str:
        for frame in self.frames:
            frame.read.add(handle.text)
        return handle.text

    def may_bind(self, text: str) -> bool:
        """Whether no loop body would read the text before it sets it."""
        now = self.loops()
        outside = self.binding.get(text, tuple(now))
        return all(text not in frame.read for frame in now if frame not in outside)

    def bind(self, handle: Handle, text: str | None = None, value: str = "") -> Handle:
        """``text = value``, which stands for what `handle` does."""
        text = text or f"t{next(self.names)}"
        self.line(f"{text} = {value or self.use(handle)}")
        self.bound.pop(text, None)
        made = replace(handle, text=text)
        self.bound[text] = made
        self.binding[text] = tuple(self.loops())
        for frame in self.frames:
            frame.bound.add(text)
        return made

    def new(self, value: str, shape: Shape, dtype: str, written: bool = True) -> Handle:
        """A fresh tile, under a fresh name or one that is bound again."""
        owners = [f for f in self.frames if f.kind in ("kernel", "scope", "range")]
        root = Root(owners[-1], tuple(self.frames))
        self.roots.append(root)
        handle = Handle("", shape, dtype, root)
        if written:
            self.write(handle)
        again = [text for text in PLACES if self.may_bind(text)]
        place = self.rng.choice(again) if again and self.rng.random() < 0.3 else None
        return self.bind(handle, place, value)

    def write(self, handle: Handle) -> None:
        handle.root.perhaps |= handle.elements
        if not handle.start.frames:
            handle.root.sure |= handle.elements
        else:
            handle.root.views[handle.start.text, handle.size] = handle.start

    def rows(self, count: int, length: int) -> Start:
        """Where `count` of `length` rows may start, static or symbolic."""
        found = [Start(str(n), (n,)) for n in range(length - count + 1)][-3:]
        for index in self.indices:
            for add in (0, 0, 1, 2):
                values = tuple(v + add for v in index.values)
                if min(values) >= 0 and max(values) + count <= length:
                    text = f"{index.text} + {add}" if add else index.text
                    found += [replace(index, text=text, values=values)] * 2
        return self.rng.choice(found)
