"""What may be used where: symbolic integers and tiles, while their loops and scopes are
open, and `when` blocks that end where they end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import FrameType

from kbjax import abrupt, carried, errors, expr
from kbjax.allocator import Arena
from kbjax.domain import Domain, checked, nonzero
from kbjax.expr import Expr, Var
from kbjax.handle import TensorHandle
from kbjax.queues import Slot
from kbjax.refs import Ref
from kbjax.site import Site, kernel_frame


def check_index(
    value: Expr, program_id: Var, domain: Domain, prove_again: bool, site: Site
) -> None:
    """Refuse a symbolic integer that means nothing here.

    Args:
      value: the integer.
      program_id: the variable of the PE.
      domain: the iterations that run here.
      prove_again: whether what was proven where the integer was made may not hold here,
        since that was under another condition.
      site: of the use.

    Raises:
      KernelError: where it holds the index of a loop that has ended, leaves int32, or
        divides by 0.
    """
    current = {v: v for v in (program_id, *domain.loops)}
    for variable in expr.variables(value):
        found = current.get(variable)
        if found is not None and found is not variable:
            name = carried.name_of(carried.is_made_with(variable), kernel_frame())
            raise errors.KernelError(
                f"the loop index {variable.name} of an earlier iteration is used: "
                f"{f'`{name}`' if name else 'Python state'} carries it, or a view "
                "made with it, to the next one",
                site=site,
                got=str(value),
                remedy="Compute it anew in each iteration",
            )
        if found is None:
            raise errors.KernelError(
                f"the loop index {variable.name} is used after its loop",
                site=site,
                remedy="Use it inside the loop, or compute the last value from the "
                "loop's bounds",
            )
    if prove_again and not value.is_const:
        for node in expr.nodes(value):
            if node.op in ("floordiv", "mod"):
                nonzero(node.args[1], domain)
            checked(Expr(0, ((node, 1),)), domain)
        checked(value, domain)


def lifetime_error(
    handle: TensorHandle,
    arena: Arena,
    domain: Domain,
    before: Mapping[Var | None, carried.Snapshot],
    site: Site,
) -> errors.KbjaxError | None:
    """Why `handle` may not be used at `site`, or None while it is alive.

    Args:
      handle: the tile.
      arena: has the deaths.
      domain: the open loops.
      before: what the kernel's variables held before each loop.
      site: of the use.
    """
    death = arena.death_of(handle.allocation)
    if death is None:
        return None
    if death.cause == "scope":
        return errors.UseAfterScopeError(
            f"a tile is used after its {death.block} has ended: it was made at "
            f"{handle.site}, the scope of {death.site} ended, and it is used at "
            f"{site}",
            site=site,
            got=str(handle),
            remedy="Copy it to a tile made outside the scope, with tl.copy_to, "
            "before the scope ends",
        )
    if death.cause == "refused":
        return errors.KernelError(
            f"a tile of the loop at {death.site}, which was refused, is used",
            site=site,
            got=str(handle),
            remedy="Make the tile outside the loop that is tried",
        )
    if death.loop not in domain.loops:
        return errors.UseAfterScopeError(
            "a tile made in a tl.range body is used after that iteration: it was "
            f"made at {handle.site}, the loop of {death.site} ended, and it is "
            f"used at {site}",
            site=site,
            got=str(handle),
            remedy="Make the tile before the loop and write it in the body with "
            "tl.copy_to",
        )
    name = carried.name_of(lambda v: v is handle, kernel_frame())
    shown = f"`{name}`" if name else "Python state"
    return errors.KernelError(
        f"{shown} carries a tile from one iteration of the tl.range at "
        f"{death.site} to the next: it was made at {handle.site}, and its bytes "
        f"died with its iteration{_before_loop(before, death.loop, name)}",
        site=site,
        got=str(handle),
        remedy=f"Make {shown if name else 'the tile'} before the loop and update "
        f"it with tl.copy_to({name or 'tile'}, new)",
    )


def taken_before(
    handle: TensorHandle, slot: Slot, domain: Domain, site: Site
) -> errors.KbjaxError:
    """For a tile of a circular buffer that is used after the iteration that took it."""
    ended = next((loop for loop in slot.loops if loop not in domain.loops), None)
    if ended is not None:
        return errors.UseAfterScopeError(
            f"a tile of the circular_buffer of {handle.site} is used after the "
            f"iteration of the tl.range over {ended.name} that took it at {slot.site}",
            site=site,
            got=str(handle),
            remedy="Copy it in the body, with tl.copy_to, to a tile made before the "
            "loop",
        )
    name = carried.name_of(lambda v: v is handle, kernel_frame())
    return errors.KernelError(
        f"{f'`{name}`' if name else 'Python state'} carries a tile of the "
        f"circular_buffer of {handle.site}, which was taken at {slot.site}, from one "
        "iteration of a tl.range to the next",
        site=site,
        got=str(handle),
        remedy="Pop a tile in the iteration that uses it, or copy it with tl.copy_to "
        "to a tile made before the loop",
    )


def _before_loop(
    before: Mapping[Var | None, carried.Snapshot], loop: Var | None, name: str
) -> str:
    """``; before the loop `m` was ...``, or nothing."""
    shown = before[loop].named(name) if loop in before else None
    return f"; before the loop `{name}` was {shown}" if shown else ""


def last_bytes(
    handle: TensorHandle, arena: Arena, program_id: Var, domain: Domain
) -> Ref:
    """The handle's bytes, also where the loop that made it has ended: then those of its
    last iteration, as Python's variable would have it."""
    ref, made = handle.ref, handle.allocation
    ended = {
        loop: expr.maximum(expr.ZERO, expr.sub(loop.trip, expr.const(1)))
        for loop in (*made.loops, *expr.variables(ref.offset))
        if loop not in (program_id, *domain.loops)
    }
    offset = expr.substitute(ref.offset, ended)
    for loop in made.loops:
        if loop in ended:  # the program will add its index times its growth
            behind = expr.sub(ended[loop], expr.var(loop))
            growth = arena.growth_bytes.get(loop, 0)
            offset = expr.add(offset, expr.scale(behind, growth))
    return dataclasses.replace(ref, offset=offset)


def check_left_at_end(frame: FrameType, site: Site) -> None:
    """Refuse a `when` that is left by return, break or continue.

    Args:
      frame: of the kernel, while it leaves the block.
      site: of the `with` statement.

    Raises:
      KernelError: Python goes the same way whether or not the condition holds.
    """
    if abrupt.leaves_early(frame):
        raise left_early(site)


def left_early(site: Site) -> errors.KernelError:
    """For the `when` at a `with` statement."""
    return errors.KernelError(
        "the body of this tl.when is left by return, break, continue or an exception "
        "that is caught outside it, which Python does whether or not its condition "
        "holds",
        site=site,
        remedy="Put what follows under a tl.when of the opposite condition, select "
        "values with tl.where, or catch errors inside the body",
    )


def loop_left_early(site: Site) -> errors.KernelError:
    """For the rolled loop at a `for` statement."""
    return errors.KernelError(
        "a tl.range body was left by break, return or an exception that is caught "
        "outside it, and one loop body stands for all iterations",
        site=site,
        remedy="Use tl.where to select values, catch errors inside the body, or unroll "
        "with tl.static_range",
    )
