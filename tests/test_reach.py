"""Where Python keeps numbers: a counter is refused by name wherever it is kept. What is
no counter is left alone, whatever it does when it is looked at.

A kernel here is one text, ``{before}``, a loop of 5 iterations around ``{body}``, and a
store of ``{after}``: recorded twice, the body counts to 2 where Python counts to 5.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import reach
from tests.programs import compiled

X = np.arange(1, 17, dtype=np.float32)
OUT = jax.ShapeDtypeStruct((16,), "float32")
HEAD = """\
import array, collections, dataclasses, decimal, enum, fractions, functools, itertools
import logging, random, types
import jax.numpy as jnp
import numpy as np
__name__ = "tests.test_reach"  # dataclasses look it up
_count = 0
"""
KERNEL = """\
def kernel(tl, x, o):
{before}
    for i in tl.range(5):
{body}
        with tl.scratch_scope():
            tl.store(o[tl.ds(i, 1)], tl.load(x[tl.ds(i, 1)]))
    tl.store(o[8:16], tl.full((8,), {after}))
"""


class Kept(NamedTuple):
    """A counter: `top` stands before the kernel, `name` must be in the message."""

    before: str
    body: str
    after: str
    name: str = ""
    top: str = ""


def kernel_of(kept: Kept, name: str) -> Callable[..., None]:
    before = textwrap.indent(textwrap.dedent(kept.before).strip() or "pass", " " * 4)
    body = textwrap.indent(textwrap.dedent(kept.body).strip(), " " * 8)
    text = KERNEL.format(before=before, body=body, after=kept.after)
    top = textwrap.dedent(kept.top)
    return compiled(HEAD + top + "\n" + text, f"kept_{name}.py")


def record(kernel: Callable[..., None]) -> Any:
    return kb.kernel_call(kernel, OUT).record(X)


MAKE = """
def make():
    n = 0
    def bump():
        nonlocal n
        n += 1
        return n
    return bump
"""
ROWS = """
def rows(n=0):
    while True:
        n += 1
        yield n
"""
COUNTERS: dict[str, Kept] = {
    # numbers, and what else counts
    "bool": Kept("odd = False", "odd = not odd", "float(odd)", "`odd`: True"),
    "none": Kept("n = None", "n = 1 if n is None else n + 1", "n", "`n`: 1, then 2"),
    "complex": Kept("n = 0j", "n += 1j", "n.imag", "`n`: 1j, then 2j"),
    "huge": Kept("n = 1 << 99", "n <<= 1", "float(n)", "`n`"),
    "string": Kept("n = ''", "n += 'a'", "len(n)", "`n`: a, then aa"),
    "bytes": Kept("n = b''", "n += b'a'", "len(n)", "`n`"),
    "numpy scalar": Kept("n = np.int64(0)", "n = n + 1", "float(n)", "`n`: 1, then 2"),
    "numpy array": Kept("n = np.zeros((2, 2))", "n[1, 1] += 1", "n[1, 1]", "`n`"),
    "fraction": Kept("n = fractions.Fraction()", "n += 1", "float(n)", "`n"),
    "decimal": Kept("n = decimal.Decimal(0)", "n += 1", "float(n)", "`n"),
    "enum": Kept("n = Level.LOW", "n = Level(n.value + 1)", "n.value", "`n", top="""
        class Level(enum.Enum):
            LOW, *_rest = range(9)
            B, C, D, E, F = range(1, 6)"""),
    "tuple": Kept("n = ()", "n = (*n, 1)", "len(n)", "`len(n)`: 1, then 2"),
    # containers
    "dict": Kept("n = {}", "n[len(n)] = 0", "len(n)", "`len(n)`: 1, then 2"),
    "set": Kept("n = set()", "n.add(len(n))", "len(n)", "`n`: {0}, then"),
    "frozenset": Kept("n = frozenset()", "n |= {len(n)}", "len(n)", "`n`"),
    "element of a set": Kept("n = {0}", "n.add(n.pop() + 1)", "max(n)", "`n"),
    "key of a dict": Kept("n = {0: 0}", "n[n.popitem()[0] + 1] = 0", "max(n)", "`n"),
    "deque": Kept("n = collections.deque([0])", "n[0] += 1", "n[0]", "`n[0]`"),
    "counter": Kept("n = collections.Counter()", "n['a'] += 1", "n['a']", "`n['a']`"),
    "bytearray": Kept("n = bytearray(1)", "n[0] += 1", "n[0]", "`n"),
    "array": Kept("n = array.array('i', [0])", "n[0] += 1", "n[0]", "`n"),
    "nested 4 deep": Kept("n = {'a': [({'b': [0]},)]}", "n['a'][0][0]['b'][0] += 1",
                          "n['a'][0][0]['b'][0]", "`n['a'][0][0]['b'][0]`: 1, then 2"),
    # objects
    "namespace": Kept("n = types.SimpleNamespace(k=0)", "n.k += 1", "n.k", "`n.k`: 1"),
    "dataclass": Kept("n = Box()", "n.k += 1", "n.k", "`n.k`: 1, then 2", """
        @dataclasses.dataclass
        class Box:
            k: int = 0"""),
    "slotted dataclass": Kept("n = Box()", "n.k += 1", "n.k", "`n.k`: 1, then 2", """
        @dataclasses.dataclass(slots=True)
        class Box:
            k: int = 0"""),
    "slots and dict": Kept("n = Box()", "n.k += 1", "n.k", "`n.k`: 1, then 2", """
        class Base:
            __slots__ = ("k",)
        class Box(Base):
            def __init__(self):
                self.k, self.other = 0, 1"""),
    "private slot": Kept("n = Box()", "n.bump()", "n.bump()", "`n.", """
        class Box:
            __slots__ = ("__k",)
            def __init__(self):
                self.__k = 0
            def bump(self):
                self.__k += 1
                return self.__k"""),
    "behind a property": Kept("n = Box()", "n.k += 1", "n.k", "`n._k`: 1, then 2", """
        class Box:
            _k = 0
            k = property(lambda self: self._k, lambda self, k: setattr(self, "_k", k))
            """),
    "class attribute": Kept("", "Box.k += 1", "Box.k", "`Box.k`: 1, then 2", """
        class Box:
            k = 0"""),
    "class of an instance": Kept("n = Box()", "type(n).k += 1", "n.k", "k`: 1", """
        class Hidden:
            k = 0
        def Box():
            return Hidden()
        """),
    "number of attributes": Kept("n = types.SimpleNamespace()",
        "setattr(n, f'k{len(vars(n))}', 0)", "len(vars(n))", "`"),
    # functions
    "closure": Kept("bump = make()", "bump()", "bump()", "`n`: 1, then 2", MAKE),
    "one of two closures": Kept("other, bump = make(), make()", "bump()", "bump()",
                                "n`: 1, then 2", MAKE),
    "closure by another's name": Kept("n, bump = 7, make()", "bump()", "bump() + n",
                                      "n`: 1, then 2", MAKE),
    "two levels down": Kept("bump = (lambda f: lambda: f())(make())", "bump()",
                            "bump()", "`n`: 1, then 2", MAKE),
    "function attribute": Kept("", "bump.k += 1", "bump.k", "`bump.k`", """
        def bump(): ...
        bump.k = 0"""),
    "global": Kept("", "bump()", "_count", "`_count`", """
        def bump():
            global _count
            _count += 1"""),
    "global two levels down": Kept("", "middle()", "_count", "`_count`", """
        def bump():
            global _count
            _count += 1
        def middle():
            bump()"""),
    "default argument": Kept("", "bump()", "bump()", "`bump.k[0]`: 1, then 2", """
        def bump(a=1, *, k=[0]):
            k[0] += 1
            return k[0]"""),
    "partial": Kept("bump = functools.partial(add, [0])", "bump()", "bump()", "0]`", """
        def add(k):
            k[0] += 1
            return k[0]"""),
    "keyword of a partial": Kept("bump = functools.partial(add, k=[0])", "bump()",
                                 "bump()", "[0]`: 1, then 2", """
        def add(k):
            k[0] += 1
            return k[0]"""),
    "bound method": Kept("bump = Box().bump", "bump()", "bump()", "__self__.k`", """
        class Box:
            k = 0
            def bump(self):
                self.k += 1
                return self.k"""),
    # iterators
    "count": Kept("n = itertools.count()", "next(n)", "next(n)", "`n`: count(1)"),
    "list iterator": Kept("n = iter([*range(9)])", "next(n)", "next(n)", "`n`: 8 left"),
    "range iterator": Kept("n = iter(range(9))", "next(n)", "next(n)", "`n`: 8 left"),
    "dict iterator": Kept("n = iter({k: 0 for k in range(9)})", "next(n)", "next(n)",
                          "`n`: 8 left"),
    "generator": Kept("n = rows()", "next(n)", "next(n)", "n`: 1, then 2", ROWS),
    "generator's local by another's name": Kept(
        "n, r = 7, rows()", "next(r)", "next(r) + n", "n`: 1, then 2", ROWS),
    "line of a generator": Kept("n = steps()", "next(n)", "next(n)", "line of n", """
        def steps():
            yield 0
            yield 1
            yield 2
            yield 3
            yield 4
            yield 5"""),
    "generator in a list": Kept("n = [rows()]", "next(n[0])", "next(n[0])", "n`: 1, ",
                                ROWS),
    # behind much else
    "behind a large table": Kept("table, n = [[k] * 256 for k in range(256)], 0",
                                 "n += 1", "n", "`n`: 1, then 2"),
    "behind a large global": Kept("", "table[0]\nbump()", "_count", "`_count`", """
        table = [[k] * 256 for k in range(256)]
        def bump():
            global _count
            _count += 1"""),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_is_refused_by_name(name: str) -> None:
    kernel = kernel_of(COUNTERS[name], name.replace(" ", "_"))
    with pytest.raises(kb.KernelError, match="counts in Python") as caught:
        record(kernel)
    assert COUNTERS[name].name in str(caught.value)


class Layer:
    """A kernel that is a method, or an object that is called."""

    kinds = 0

    def __init__(self) -> None:
        self.calls, self.state = 0, {"rows": 0}

    def method(self, tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(5):
            self.calls += 1
        tl.store(o, tl.full((16,), self.calls))

    def nested(self, tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(5):
            self.state["rows"] += 1
        tl.store(o, tl.full((16,), self.state["rows"]))

    def of_the_class(self, tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(5):
            type(self).kinds += 1
        tl.store(o, tl.full((16,), self.kinds))

    @classmethod
    def class_method(cls, tl: Any, x: Any, o: Any) -> None:
        for _ in tl.range(5):
            cls.kinds += 1
        tl.store(o, tl.full((16,), cls.kinds))

    def __call__(self, tl: Any, x: Any, o: Any) -> None:
        def step() -> None:
            self.calls += 1

        for _ in tl.range(5):
            step()
        tl.store(o, tl.full((16,), self.calls))


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (Layer().method, "`self.calls`: 1, then 2"),
        (Layer().nested, "`self.state['rows']`: 1, then 2"),
        (Layer().of_the_class, "kinds`"),
        (Layer.class_method, "`cls.kinds`"),
        (Layer(), "`self.calls`: 1, then 2"),
    ],
    ids=["method", "nested", "of_the_class", "class_method", "object"],
)
def test_a_counter_of_self_is_refused_by_name(kernel: Any, name: str) -> None:
    with pytest.raises(kb.KernelError, match="counts in Python") as caught:
        record(kernel)
    assert name in str(caught.value)


def seen_from(**names: object) -> list[reach.Reached]:
    """What the search visits from a kernel with these locals."""
    visited: list[list[reach.Reached]] = []

    def kernel(tl: Any, x: Any, o: Any, held: dict[str, object]) -> None:
        tl.store(o, tl.load(x))
        visited.append(list(reach.values(sys._getframe())))

    record(partial(kernel, held=names))
    return visited[0]


@pytest.mark.parametrize(
    "large",
    [
        [*range(1_000_000)],
        dict.fromkeys(range(100_000), 0),
        {n: [n] * 100 for n in range(10_000)},
        [[[n] * 50] * 50 for n in range(1000)],
        np.zeros(1 << 24, np.uint8),
    ],
    ids=["list", "dict", "lists", "nested", "array"],
)
def test_large_values_are_not_searched_whole(large: Any) -> None:
    visited = seen_from(large=large)
    assert 0 < len(visited) <= 20_000
    sizes = [len(v) for _, _, v, _ in visited if isinstance(v, str | bytes)]
    assert max(sizes, default=0) < 1 << 17


def test_what_is_seen_twice_is_visited_once() -> None:
    """Cycles end, and a value that is shared by many is not searched by each."""
    cycle: list[Any] = [0]
    cycle.append(cycle)
    shared = [[*range(200)]]
    for _ in range(20):
        shared = [shared, shared]
    none = len(seen_from())
    assert none < len(seen_from(cycle=cycle)) < none + 8
    assert none < len(seen_from(shared=shared)) < none + 300


# --- objects that do not like to be looked at ----------------------------------------

HOSTILE = """
class Broken(RuntimeError): ...
def fails(*_, **__):
    raise Broken("user code was run")
"""
BROKEN: dict[str, str] = {
    "__getattr__": "class H:\n    __getattr__ = fails",
    "__getattr__ with slots": """
        class H:
            __slots__ = ()
            __getattr__ = fails""",
    "__getattribute__": "class H:\n    __getattribute__ = fails",
    "property": "class H:\n    k = property(fails)",
    "__dict__": "class H:\n    __dict__ = property(fails)",
    "__class__": "class H:\n    __class__ = property(fails)",
    "__len__": "class H:\n    __len__ = __bool__ = __iter__ = __contains__ = fails",
    "__eq__": "class H:\n    __eq__ = __ne__ = __hash__ = fails",
    "__repr__": "class H:\n    __repr__ = __str__ = __format__ = fails",
    "__repr__ of a key": """
        class Key:
            __repr__ = __str__ = fails
        def H():
            return {Key(): 0}""",
    "__repr__ of an int": "class H(int):\n    __repr__ = __str__ = fails",
    "__repr__ of a str": "class H(str):\n    __repr__ = __str__ = fails",
    "an overridden slot": """
        class Base:
            __slots__ = ("k",)
        class H(Base):
            k = property(fails)""",
    "a dict": "class H(dict):\n    items = __len__ = __iter__ = keys = fails",
    "a list": "class H(list):\n    __len__ = __iter__ = __getitem__ = fails",
    "an array": """
        class H(np.ndarray):
            def __new__(cls):
                return np.zeros(3).view(cls)
            __array_finalize__ = lambda *_: None
            __eq__ = __bool__ = __repr__ = __str__ = fails""",
    "length hint": """
        class H:
            __next__ = __length_hint__ = fails
            __iter__ = lambda self: self""",
    "a metaclass": """
        class Meta(type):
            __getattribute__ = fails
        class Hidden(metaclass=Meta): ...
        def H():
            return Hidden""",
}


@pytest.mark.parametrize("name", BROKEN)
def test_user_code_is_not_run_or_does_not_escape(name: str) -> None:
    """Held in a local, a list, an attribute and a default argument, beside a loop that
    counts nothing; and the objects hide no counter behind them."""
    before = """
        held = H()
        kept, other = [held], types.SimpleNamespace(a=held)
        def f(default=held): ..."""
    top = HOSTILE + textwrap.dedent(BROKEN[name])
    record(kernel_of(Kept(before, "pass", "1.0", "", top), "hostile"))
    counts = Kept(before + "\n        n = 0", "n += 1", "n", "", top)
    with pytest.raises(kb.KernelError, match="`n`: 1, then 2"):
        record(kernel_of(counts, "hostile_counter"))


def test_an_integer_too_long_to_print_is_no_matter() -> None:
    record(kernel_of(Kept("k = 1 << 20_000", "pass", "1.0"), "long"))
    with pytest.raises(kb.KernelError, match="`k`"):
        record(kernel_of(Kept("k = 1 << 20_000", "k += 1", "1.0"), "long_counter"))
