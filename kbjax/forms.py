"""Times as linear forms of the loops that are being jumped over.

A `Form` is a time in picoseconds (or a command's number): its value now, then how much
it moves a step of each such loop, outermost first. Forms compare as tuples, so that of
two that are equal now the faster is larger.
"""

from __future__ import annotations

from typing import NamedTuple

Form = tuple[int, ...]


class Moment(NamedTuple):
    """When a command ends, and its number; the number is -1 before all commands."""

    time: Form
    number: Form


def never(components: int) -> Moment:
    """Before all commands, in forms of so many components."""
    still = (0,) * (components - 1)
    return Moment((0, *still), (-1, *still))


def less(a: Form, b: Form) -> Form:
    """a - b, of forms in the same loops."""
    return tuple([x - y for x, y in zip(a, b, strict=True)])


def stepped(form: Form) -> Form:
    """A step of the innermost loop on."""
    return (form[0] + form[-1], *form[1:])


def moving(moment: Moment, time: int, number: int) -> Moment:
    """With a loop more inside, a step of which moves it so."""
    return Moment((*moment.time, time), (*moment.number, number))


def standing(moment: Moment, components: int) -> Moment:
    """The moment in forms of so many components: it does not move in loops further in
    than its own."""
    more = (0,) * (components - len(moment.time))
    return Moment((*moment.time, *more), (*moment.number, *more))


def landed(moment: Moment, steps: int) -> Moment:
    """Steps of the innermost loop on, without its component."""
    time, number = moment
    return Moment(
        (time[0] + steps * time[-1], *time[1:-1]),
        (number[0] + steps * number[-1], *number[1:-1]),
    )


def without(moment: Moment, component: int) -> Moment:
    """The moment standing still in one component."""

    def still(form: Form) -> Form:
        return (*form[:component], 0, *form[component + 1 :])

    return Moment(still(moment.time), still(moment.number))
