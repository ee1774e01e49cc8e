"""The names of the shipped kernels, found without importing any of them."""

from __future__ import annotations

import importlib.util
import pkgutil


def kernel_names() -> list[str]:
    """The modules of `kbjax.kernels`, in order, helpers (`_name`) left out."""
    spec = importlib.util.find_spec("kbjax.kernels")
    assert spec is not None and spec.submodule_search_locations is not None
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    return sorted(one.name for one in found if not one.name.startswith("_"))
