"""What a kernel's `with` and `for` statements enter: scopes, `when`, rolled loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from kbjax import errors
from kbjax.allocator import Level
from kbjax.expr import Expr
from kbjax.index import Index
from kbjax.recorder import Recorder
from kbjax.site import ScopeLine, here


@dataclass
class ScopeGuard:
    """What `with tl.scratch_scope():` and `with tl.when(condition):` enter. `opened`
    are its open scopes; one guard may be entered again."""

    recorder: Recorder
    line: ScopeLine
    condition: Expr | None = None
    opened: list[Level] = field(default_factory=list)

    def __bool__(self) -> bool:
        raise errors.KernelError(
            "a scope or a when is entered, and has no value",
            site=here(),
            remedy="Write `with tl.when(condition):` where `if` would stand",
        )

    def __enter__(self) -> None:
        self.opened.append(self.recorder.open_scope(self.line, self.condition))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del error, trace
        opened = self.opened.pop() if self.opened else None
        self.recorder.close_scope(opened, failed=kind is not None)


class RolledRange:
    """What `tl.range` gives: a `for` statement over it records one loop body."""

    def __init__(self, recorder: Recorder, start: Expr, stop: Expr, step: int) -> None:
        self._recorder, self._site = recorder, here()
        self._start, self._stop, self._step = start, stop, step

    def __iter__(self) -> Iterator[Index]:
        return self._recorder.loop(self._start, self._stop, self._step, self._site)

    def _no_sequence(self, *_: object) -> Any:
        raise errors.KernelError(
            "a tl.range is no sequence: it goes into a `for` statement",
            site=here(),
            remedy="Give it a negative step to go backwards, take the trip count from "
            "its bounds with tl.cdiv, or unroll with tl.static_range",
        )

    __reversed__ = __len__ = __getitem__ = __contains__ = __next__ = _no_sequence
