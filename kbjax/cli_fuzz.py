"""`kbjax fuzz`: a kernel at drawn sizes, and the smallest at which it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kbjax.options import (
    AsJson,
    HardwareName,
    KernelName,
    Sizes,
    given_sizes,
    hardware_report,
    named_hardware,
    refusals,
    say_json,
)

if TYPE_CHECKING:
    from kbjax.fuzz import FuzzReport


def fuzz(
    kernel: KernelName,
    size: Sizes = None,
    examples: Annotated[
        int, typer.Option(min=1, help="How many drawn sizes to run.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    hardware: HardwareName = "default",
    as_json: AsJson = False,
) -> None:
    """Run a kernel at drawn sizes, and find the smallest that fail.

    Every check of kbjax.testing is made at each. Sizes given with --size stay as they
    are. Needs the extra fuzz.
    """
    sizes = given_sizes(size)
    console = Console(stderr=True)
    with refusals(as_json):
        from kbjax import fuzz as fuzzing

        on = named_hardware(hardware)
        name = escape(kernel)
        with console.status(f"{name}: drawing sizes ...") as status:
            found = fuzzing.fuzz(
                kernel,
                sizes=sizes,
                examples=examples,
                seed=seed,
                hardware=on,
                hardware_name=hardware,
                progress=lambda text: status.update(f"{name}: {escape(text)}"),
            )
    if as_json:
        say_json({**found.to_dict(), "hardware": hardware_report(hardware, on)})
    else:
        _print(found)
    raise typer.Exit(0 if found.verdict == "pass" else 1)


def _print(found: FuzzReport) -> None:
    say = typer.echo

    drawn = ", ".join(found.varied) or "nothing"
    say(f"{found.kernel}: {found.ran} sizes run; drawn: {drawn}")
    if found.too_large:
        say(f"{found.too_large} were left out: too much work for an example")
    if found.refused:
        say(f"{found.refused.total()} were refused, which is no failure:")
        for reason, times in found.refused.most_common(5):
            say(f"  {times} x {reason}")
    if found.failure is not None:
        shown = ", ".join(f"{name}={value}" for name, value in found.failure.items())
        say(
            f"\nFAILS at {shown}\n{found.detail}\n\nReproduce it with:\n{found.command}"
        )
    elif not found.ran:
        say("No drawn sizes could be run: fix some with --size NAME=VALUE.")
    else:
        say("All of them pass every check.")
