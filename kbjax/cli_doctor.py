"""`kbjax doctor`: whether kbjax works on this machine, and what is missing."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kbjax.options import AsJson, say_json


def doctor(as_json: AsJson = False) -> None:
    """Say whether kbjax works here, and what is missing.

    Versions, devices and extras; and a decode over 64 keys, whose numbers are checked.
    """
    from kbjax import doctor as doctors

    found = doctors.examine()
    if as_json:
        say_json(found)
    else:
        _print(found)
    raise typer.Exit(0 if found["ok"] else 1)


def _print(found: dict[str, Any]) -> None:
    console = Console()
    table = Table("what", "found", show_header=False)
    for name, version in found["versions"].items():
        table.add_row(name, version or "not installed")
    jax = found["jax"]
    within = "within" if jax["within"] else "outside"
    table.add_row(
        "rounding", f"{within} the range tested, jax {jax['tested_range'] or 'unknown'}"
    )
    table.add_row("devices", escape(", ".join(found["devices"])))
    table.add_row("cores", str(found["cores"]))
    memory = found["memory_bytes"]
    table.add_row("memory", f"{memory / 2**30:,.1f} GiB" if memory else "unknown")
    table.add_row("platform", found["platform"])
    for extra, one in found["extras"].items():
        if one["missing"]:
            said = f"missing {', '.join(one['missing'])}: {one['install']}"
        else:
            said = ", ".join(
                [f"{n} {v}" for n, v in one["present"].items()]
                + [f"{n} is broken" for n in one["broken"]]
            )
        table.add_row(f"extra {extra}", escape(said))
    check = found["self_check"]
    verdict = "right" if check["ok"] else "wrong"
    said = f"{verdict}, {check['seconds']:.1f} s: {check['detail']}"
    table.add_row("self-check", escape(said))
    console.print(table)
    for kind in ("warnings", "problems"):
        for line in found[kind]:
            console.print(f"{kind[:-1]}: {line}", markup=False, soft_wrap=True)
    console.print("kbjax works here." if found["ok"] else "kbjax does not work here.")
