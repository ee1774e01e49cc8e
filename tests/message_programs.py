"""Random programs in which PEs send to each other, and what they do: a simulator with a
coroutine for each PE and a queue for each (sender, receiver, offset). It knows nothing
of kbjax.

A program is a list of statements, tuples:

    ("send", kind, offset)           3 * state + PE, of one kind
    ("recv", name, kind, offset)     post
    ("wait", name)                   state = 5 * state + message
    ("math",), ("load",), ("work",)  on the state
    ("when", condition, body), ("loop", index, trip, body)

The state of a PE is a tile of each kind. A `wait` takes the message of its receive,
after those of its offset that were posted before it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import jax
import numpy as np

import kbjax as kb
from tests.programs import compiled

KINDS = ("a", "b")
SHAPES = {"a": (4,), "b": (2, 3)}
OFFSETS = (1, 1, -1, 2, 0, 5)
Statement = tuple[Any, ...]


class Drawn(NamedTuple):
    """A program for `num_pes` PEs; `x` is (P, 4) int32, or (4,) of one PE."""

    num_pes: int
    statements: list[Statement]
    x: np.ndarray

    @property
    def source(self) -> str:
        """The kernel."""
        lines = ["a = tl.load(x)", "b = tl.full((2, 3), tl.program_id(), 'int32')"]
        lines += written(self.statements)
        lines += ["tl.store(oa, a)", "tl.store(ob, b)"]
        body = "".join(f"    {line}\n" for line in ["pe = tl.program_id()", *lines])
        return f"def kernel(tl, x, oa, ob):\n{body}"


# --- drawing -------------------------------------------------------------------------


def drawn_program(seed: int) -> Drawn:
    rng = Random(seed)
    num_pes = rng.choice((1, 2, 3, 4))
    writer = _Writer(rng, flaw=rng.choice((0.0, 0.0, 0.15)))
    statements = writer.block(0, ())
    x = np.arange(num_pes * 4, dtype=np.int32).reshape(num_pes, 4) + seed
    return Drawn(num_pes, statements, x if num_pes > 1 else x[0])


class _Writer:
    def __init__(self, rng: Random, flaw: float) -> None:
        self.rng, self.flaw, self.names = rng, flaw, 0

    def name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def block(self, depth: int, indices: tuple[str, ...]) -> list[Statement]:
        rng, found = self.rng, list[Statement]()
        for _ in range(rng.randint(1, 3)):
            what = rng.random()
            if what < 0.5 or depth == 2:
                found += self.exchange()
            elif what < 0.65:
                found.append(rng.choice((("math",), ("load",), ("work",))))
            elif what < 0.8:
                conditions = ["pe % 2 == 0", "pe > 0", "pe >= 0"]
                conditions += [f"{i} != 1" for i in indices] * 2
                condition = rng.choice(conditions)
                found.append(("when", condition, self.block(depth + 1, indices)))
            elif what < 0.96:
                index = self.name("i")
                trip = rng.choice(("2", "5", "pe % 2 + 1", "pe", *indices))
                body = self.block(depth + 1, (*indices, index))
                found.append(("loop", index, trip, body))
            else:
                found += self.chain()
        return found

    def exchange(self) -> list[Statement]:
        """Sends and their receives; or nearly so."""
        rng = self.rng
        sends, receives = list[Statement](), list[Statement]()
        for _ in range(rng.randint(1, 3)):
            kind, offset = rng.choice(KINDS), rng.choice(OFFSETS)
            sends.append(("send", kind, offset))
            receives.append(("recv", self.name("r"), kind, offset))
        if rng.random() < self.flaw:
            receives.pop(rng.randrange(len(receives)))
        if rng.random() < self.flaw:
            sends.pop(rng.randrange(len(sends)))
        if rng.random() < self.flaw and receives:
            at = rng.randrange(len(receives))
            receives[at] = (*receives[at][:2], rng.choice(KINDS), rng.choice(OFFSETS))
        waits = [("wait", receive[1]) for receive in receives]
        rng.shuffle(waits)
        early = receives if rng.random() < 0.5 else []
        if rng.random() < self.flaw:
            return [*receives, *waits, *sends]
        middle = [("math",)] if rng.random() < 0.3 else []
        return [*early, *sends, *middle, *([] if early else receives), *waits]

    def chain(self) -> list[Statement]:
        """Each PE waits for the one before it, then sends to the one after it."""
        name = self.name("r")
        return [
            ("when", "pe > 0", [("recv", name, "a", 1), ("wait", name)]),
            ("when", "pe < n - 1", [("send", "a", 1)]),
        ]


def written(statements: Sequence[Statement]) -> list[str]:
    """Lines of the kernel."""
    found, kinds = list[str](), dict[str, str]()
    for what, *rest in statements:
        if what == "send":
            kind, offset = rest
            found.append(f"tl.send({kind} * 3 + pe, {offset}).wait()")
        elif what == "recv":
            name, kind, offset = rest
            kinds[name] = kind
            found.append(f"{name} = tl.recv({SHAPES[kind]}, 'int32', {offset})")
        elif what == "wait":
            (name,) = rest
            kind = kinds[name]
            found.append(f"tl.copy_to({kind}, {kind} * 5 + {name}.wait())")
        elif what == "math":
            found.append("tl.copy_to(b, b * 7 + 1)")
        elif what == "load":
            found.append("tl.copy_to(a, a + tl.load(x))")
        elif what == "work":
            found += ["for _ in tl.range(20):", "    with tl.scratch_scope():",
                      "        tl.copy_to(a, a * 3 + 1)"]  # fmt: skip
        elif what == "when":
            condition, body = rest
            condition = condition.replace("n -", "tl.num_programs() -")
            found.append(f"with tl.when({condition}):")
            found += [f"    {line}" for line in written(body)] or ["    pass"]
        else:
            index, trip, body = rest
            found += [
                f"for {index} in tl.range({trip}):",
                "    with tl.scratch_scope():",
            ]
            found += [f"        {line}" for line in written(body)] or ["        pass"]
    return found


# --- what it does --------------------------------------------------------------------


class Message(NamedTuple):
    kind: str
    value: np.ndarray


class Simulation:
    """All PEs of a program.

    Attributes:
      states: of each PE, a tile of each kind.
      faults: "type", "unread" and "never", those found.
    """

    def __init__(self, drawn: Drawn) -> None:
        self.drawn, self.n = drawn, drawn.num_pes
        x = drawn.x.reshape(self.n, 4)
        self.states = [
            {"a": x[pe].copy(), "b": np.full((2, 3), pe, np.int32)}
            for pe in range(self.n)
        ]
        self.x = x
        self.arrived = [dict[str, Message]() for _ in range(self.n)]
        self.queues = defaultdict[tuple[int, int, int], deque[Message]](deque)
        self.faults = set[str]()
        self.moves = 0

    def run(self) -> set[str]:
        """Each PE for itself, until none gets further."""
        left = [self.pe(pe, self.drawn.statements, {"pe": pe}) for pe in range(self.n)]
        while left:
            before = self.moves
            left = [one for one in left if next(one, "ended") != "ended"]
            if left and self.moves == before:
                self.faults.add("never")
                break
        if any(self.queues.values()):
            self.faults.add("unread")
        return self.faults

    # --- a PE ------------------------------------------------------------------------

    def pe(
        self, pe: int, statements: Sequence[Statement], env: dict[str, int]
    ) -> Iterator[None]:
        state, pending = self.states[pe], list[Statement]()
        for statement in statements:
            what, *rest = statement
            self.moves += 1
            if what == "recv":
                pending.append(statement)
            elif what == "wait":
                for one in due(pending, rest[0]):
                    while not self.queue_to(pe, one[3]):
                        yield
                    self.moves += 1
                    self.take(pe, one)
                kind, message = self.arrived[pe].pop(rest[0])
                state[kind] = state[kind] * np.int32(5) + message
            elif what == "when":
                if value(rest[0], env, self.n):
                    yield from self.pe(pe, rest[1], env)
            elif what == "loop":
                for i in range(value(rest[1], env, self.n)):
                    yield from self.pe(pe, rest[2], {**env, rest[0]: i})
            else:
                self.do(pe, what, rest)

    def queue_to(self, pe: int, offset: int) -> deque[Message]:
        return self.queues[(pe - offset) % self.n, pe, offset]

    def do(self, pe: int, what: str, rest: Sequence[Any]) -> None:
        state = self.states[pe]
        if what == "send":
            kind, offset = rest
            message = Message(kind, state[kind] * np.int32(3) + np.int32(pe))
            self.queues[pe, (pe + offset) % self.n, offset].append(message)
        elif what == "math":
            state["b"] = state["b"] * np.int32(7) + np.int32(1)
        elif what == "load":
            state["a"] = state["a"] + self.x[pe]
        else:
            for _ in range(20):
                state["a"] = state["a"] * np.int32(3) + np.int32(1)

    def take(self, pe: int, receive: Statement) -> None:
        _, name, kind, offset = receive
        message = self.queue_to(pe, offset).popleft()
        if message.kind != kind:
            self.faults.add("type")
            message = Message(kind, np.zeros(SHAPES[kind], np.int32))
        self.arrived[pe][name] = message


def due(pending: list[Statement], name: str) -> list[Statement]:
    """The receives that a `wait` of one takes, which are then no longer pending."""
    names = [one[1] for one in pending]
    if name not in names:
        return []
    upto = pending[: names.index(name) + 1]
    wanted = upto[-1]
    found = [one for one in upto if one[3] == wanted[3]]
    pending[:] = [one for one in pending if one not in found]
    return found


def value(text: str, env: dict[str, int], n: int) -> int:
    return int(eval(text, {"n": n}, env))


def runs_in_lockstep(drawn: Drawn) -> bool:
    """Whether every message is there when all PEs do each statement together."""
    n, there = drawn.num_pes, Counter[tuple[int, int]]()

    def run(statements: Sequence[Statement], envs: list[dict[str, int]]) -> bool:
        pending = list[Statement]()
        for statement in statements:
            what, *rest = statement
            if what == "send":
                for env in envs:
                    there[(env["pe"] + rest[1]) % n, rest[1]] += 1
            elif what == "recv":
                pending.append(statement)
            elif what == "wait":
                for *_, offset in due(pending, rest[0]):
                    for env in envs:
                        there[env["pe"], offset] -= 1
                        if there[env["pe"], offset] < 0:
                            return False
            elif what == "when":
                inside = [env for env in envs if value(rest[0], env, n)]
                if not run(rest[1], inside):
                    return False
            elif what == "loop":
                for i in range(max((value(rest[1], e, n) for e in envs), default=0)):
                    inside = [e for e in envs if i < value(rest[1], e, n)]
                    if not run(rest[2], [{**e, rest[0]: i} for e in inside]):
                        return False
        return True

    return run(drawn.statements, [{"pe": pe} for pe in range(n)])


def call_of(drawn: Drawn, seed: int, **options: Any) -> kb.KernelCall:
    """The kernel, with outputs of the two kinds."""
    kernel = compiled(drawn.source, f"<messages {seed}>")
    outs = tuple(jax.ShapeDtypeStruct(SHAPES[kind], "int32") for kind in KINDS)
    return kb.kernel_call(kernel, outs, num_pes=drawn.num_pes, **options)
