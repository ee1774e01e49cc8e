"""Wrong arguments of every method that a kernel sees. The usual mistakes are in
tests/mistakes/wrong_call.py."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import pytest

import kbjax as kb
from kbjax import surface
from kbjax.buffers import CircularBuffer
from kbjax.futures import LoadFuture, SendFuture
from kbjax.handle import TensorHandle

X = jax.ShapeDtypeStruct((8, 4), "float32")
KINDS: dict[type, str] = {
    kb.TLContext: "tl",
    TensorHandle: "tile",
    LoadFuture: "future",
    SendFuture: "future",
    CircularBuffer: "buffer",
}
# What kbjax calls itself, or refuses in words of its own.
NOT_CALLED = {
    kb.TLContext: {"apply", "push", "pop", "view_of", "wait_for"},
    LoadFuture: {"not_a_tile", "to"},
    SendFuture: {"not_a_tile", "to"},
    CircularBuffer: {"not_a_tile", "to"},
}


def methods(kind: type) -> set[str]:
    """Names of a class's public methods, of whatever base."""
    names = {name for name in dir(kind) if not name.startswith("_")}
    found = {name for name in names if inspect.isfunction(getattr(kind, name))}
    return found - NOT_CALLED.get(kind, set())


CALLS = [(kind, name) for kind in KINDS for name in sorted(methods(kind))]


@pytest.mark.parametrize(
    ("kind", "name"), CALLS, ids=[f"{kind.__name__}-{name}" for kind, name in CALLS]
)
def test_wrong_arguments_are_refused(kind: type, name: str) -> None:
    """At the kernel's line, under the kernel's name of the method, with what it takes;
    a kernel may catch it and go on."""
    told: list[kb.KernelError] = []

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tile, coming = tl.load(x), tl.load_async(x)
        held = {
            kb.TLContext: tl,
            TensorHandle: tile,
            LoadFuture: coming,
            SendFuture: tl.send(tile, 1),
            CircularBuffer: tl.circular_buffer(2, (4,)),
        }
        tl.recv((8, 4), "float32", 1).wait()
        method = getattr(held[kind], name)
        for operands, named in (([tile] * 9, {}), ([], {"no_such_name": tile})):
            with pytest.raises(kb.KernelError) as caught:
                method(*operands, **named)
            told.append(caught.value)
        coming.wait()
        tl.store(o, tile)

    program = kb.kernel_call(kernel, X).record(X)
    assert [command.op for command in program.commands] == [
        "load", "load", "send", "recv", "store",
    ]  # fmt: skip
    for error in told:
        assert error.site is not None and error.site.file == __file__
        assert error.__cause__ is None
        assert f"{name}(" in str(error.allowed)
        assert not any(one in str(error) for one in ("Transfers", "Emitter", "self"))
    wrong_count, wrong_name = (str(error) for error in told)
    if "takes" not in wrong_count:  # as the ops of the table say it
        assert f"{KINDS[kind]}.{name} is called with wrong arguments" in wrong_count
        assert f"Allowed: {KINDS[kind]}.{name}(" in wrong_name


def test_both_ways_of_saying_it_are_met() -> None:
    assert {("tl", "send"), ("tl", "exp"), ("tile", "to"), ("buffer", "pop")} <= {
        (KINDS[kind], name) for kind, name in CALLS
    }
    assert (SendFuture, "wait") in CALLS and (LoadFuture, "wait") in CALLS


# --- the wrapper ---------------------------------------------------------------------


class Base:
    """A class of three methods, whose own errors are its own."""

    def plain(self, a: int, *, b: int = 2) -> int:
        """Of `self`."""
        return a + b

    def failing(self, a: object) -> int:
        return a + ""  # type: ignore[operator]

    @staticmethod
    def static(a: int) -> int:
        return a


class Derived(Base):
    """One that inherits them."""


surface.refuse_wrong_arguments(Derived, "thing")


def test_right_arguments_pass() -> None:
    one = Derived()
    assert one.plain(1) == 3 and one.plain(a=1, b=1) == 2
    assert one.static(4) == Derived.static(a=4) == 4
    assert Derived.plain.__doc__ == "Of `self`."
    assert str(inspect.signature(Derived.plain)) == str(inspect.signature(Base.plain))


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        (lambda one: one.plain(), "thing.plain(a, *, b=2)"),
        (lambda one: one.plain(1, 2), "thing.plain(a, *, b=2)"),
        (lambda one: one.plain(1, self=1), "thing.plain(a, *, b=2)"),
        (lambda one: one.static(), "thing.static(a)"),
        (lambda one: one.static(1, b=1), "thing.static(a)"),
        (lambda one: one.failing(), "thing.failing(a)"),
    ],
)
def test_wrong_arguments_tell_the_signature(call: Any, allowed: str) -> None:
    with pytest.raises(kb.KernelError) as caught:
        call(Derived())
    assert caught.value.allowed == allowed
    with pytest.raises(TypeError) as plain:
        call(Base())
    assert type(plain.value) is TypeError


def test_the_errors_of_a_method_pass() -> None:
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        Derived().failing(1)
    assert type(caught.value) is TypeError
