"""What kbjax finds on this machine: versions, devices, extras, and whether a small
decode gives the right numbers."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import time
from dataclasses import dataclass
from typing import Any

from kbjax.cores import usable_cores

PACKAGES = ("jax", "jaxlib", "numpy", "ml_dtypes", "chex", "typer", "rich", "tomli-w")
_DECODE: dict[str, Any] = {
    "context": 64,
    "tile": 16,
    "num_pes": 1,
    "dim": 32,
    "query_heads": 8,
    "kv_heads": 1,
}
_IMPORTED = ("matplotlib", "bokeh", "pyarrow", "distributed", "hypothesis")  # of extras
_OPERATORS = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


@dataclass(frozen=True)
class Requirement:
    """A line of a distribution's metadata: ``jax<0.11,>=0.10; extra == "dev"``.

    The library `packaging` reads such lines too, but is no requirement of kbjax, and
    what looks for missing libraries cannot need one more.

    Attributes:
      name: of the distribution.
      extras: of it that are needed.
      allowed: versions, as in ``<0.11,>=0.10``.
      extra: the extra of kbjax that needs it; None: kbjax itself.
    """

    name: str
    extras: tuple[str, ...]
    allowed: str
    extra: str | None

    @classmethod
    def of(cls, line: str) -> Requirement:
        """From the text of a line."""
        what, _, marker = line.partition(";")
        found = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?\s*(.*?)\s*", what)
        assert found, line
        name, extras, allowed = found.groups()
        extra = re.search(r"extra\s*==\s*[\"']([\w.-]+)[\"']", marker)
        inside = tuple(part.strip() for part in (extras or "").split(",") if part)
        return cls(name, inside, allowed.strip("() "), extra[1] if extra else None)

    def holds(self, version: str) -> bool:
        """Whether a version is allowed; by its numbers, which is all that kbjax's own
        requirements need."""
        for clause in filter(None, self.allowed.split(",")):
            found = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*([\w.]+)\s*", clause)
            if found is None:
                return False
            a, b = _numbers(version), _numbers(found[2])
            size = max(len(a), len(b))
            a, b = (x + (0,) * (size - len(x)) for x in (a, b))
            if not _OPERATORS[found[1]](a, b):
                return False
        return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def installed(name: str) -> str | None:
    """The version of a distribution, or None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_error(name: str) -> str:
    """What stands in the way of importing a library that kbjax uses; nothing of those
    that it does not import."""
    if name not in _IMPORTED:
        return ""
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken one raises what it likes
        return f"{type(error).__name__}: {error}"
    return ""


def requirements() -> list[Requirement]:
    """Of the installed kbjax; none where it runs from a checkout that is not
    installed."""
    try:
        lines = importlib.metadata.requires("kbjax") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Requirement.of(line) for line in lines]


def extras(needed: list[Requirement]) -> dict[str, dict[str, Any]]:
    """For each extra what is present, what is missing or too old, what is there and
    does not import, and the command that installs what is missing."""

    def of(extra: str, seen: frozenset[str]) -> dict[str, Requirement]:
        found: dict[str, Requirement] = {}
        for one in needed:
            if one.extra != extra:
                continue
            if one.name == "kbjax":
                for inner in set(one.extras) - seen:
                    found |= of(inner, seen | {inner})
            else:
                found[one.name] = one
        return found

    report: dict[str, dict[str, Any]] = {}
    for extra in dict.fromkeys(one.extra for one in needed if one.extra):
        present, missing, broken = {}, {}, {}
        for name, one in sorted(of(extra, frozenset([extra])).items()):
            version = installed(name)
            if version is None or not one.holds(version):
                missing[name] = one.allowed
            elif why := import_error(name):
                broken[name] = why
            else:
                present[name] = version
        report[extra] = {
            "present": present,
            "missing": missing,
            "broken": broken,
            "install": f"pip install 'kbjax[{extra}]'" if missing else "",
        }
    return report


def examine() -> dict[str, Any]:
    """All of it, as plain data; `ok` where every core part works.

    A JAX outside the tested range is a warning: what it computes is what the self-check
    looks at.
    """
    needed = requirements()
    versions = {"kbjax": installed("kbjax"), "python": platform.python_version()}
    versions |= {name: installed(name) for name in PACKAGES}
    problems, warnings = [], []
    for one in needed:
        version = installed(one.name)
        if one.extra is not None:
            continue
        if version is None:
            problems.append(f"{one.name} is missing: pip install '{one.name}'")
        elif not one.holds(version):
            warnings.append(f"{one.name} {version} is outside {one.allowed}")
    found_extras = extras(needed)
    broken = {n: why for x in found_extras.values() for n, why in x["broken"].items()}
    warnings += [f"{name} does not import: {why}" for name, why in broken.items()]
    if not needed:
        warnings.append("kbjax is not installed: its requirements are not known")
    jax_range = next((n for n in needed if n.name == "jax" and not n.extra), None)
    version = versions["jax"]
    tested = bool(jax_range and version and jax_range.holds(version))
    if not tested:
        warnings.append(
            "the cures of rounding are not tested on this JAX: bits may differ from "
            "NumPy's"
        )
    check = self_check()
    if not check["ok"]:
        problems.append(f"the self-check fails: {check['detail']}")
    return {
        "ok": not problems,
        "versions": versions,
        "jax": {
            "tested_range": jax_range.allowed if jax_range else None,
            "within": tested,
        },
        "devices": _devices(),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "platform": platform.platform(),
        "extras": found_extras,
        "self_check": check,
        "problems": problems,
        "warnings": warnings,
    }


def self_check() -> dict[str, Any]:
    """A decode over 64 keys: exact = live = float64."""
    start = time.perf_counter()
    try:
        from kbjax import catalogue, testing

        case = catalogue.make("gqa_decode", **_DECODE)
        found = testing.report_case(case, checks=["numbers", "fidelity", "op_log"])
        ok, detail = not found.failed, "; ".join(map(str, found.findings))
    except Exception as error:  # whatever is broken here is what is asked for
        ok, detail = False, f"{type(error).__name__}: {error}"
    return {
        "kernel": "gqa_decode",
        "sizes": _DECODE,
        "ok": ok,
        "detail": detail,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _devices() -> list[str]:
    try:
        import jax

        return [f"{device.platform} {device.id}" for device in jax.devices()]
    except Exception as error:  # a broken plug-in raises what it likes
        return [f"none: {type(error).__name__}: {error}"]


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
