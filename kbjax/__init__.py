"""kbjax: a functional emulator of a near-HBM accelerator PE, backed by JAX.

`import kbjax as kb`; see `kb.kernel_call`. Names are imported on first use (PEP 562),
so that `kbjax --help` and the timing phase do not wait for JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbjax.call import KernelCall as KernelCall
    from kbjax.call import kernel_call as kernel_call
    from kbjax.context import TLContext as TLContext
    from kbjax.errors import DTypeError as DTypeError
    from kbjax.errors import HazardError as HazardError
    from kbjax.errors import KbjaxError as KbjaxError
    from kbjax.errors import KernelError as KernelError
    from kbjax.errors import MemorySpaceError as MemorySpaceError
    from kbjax.errors import OutOfBoundsError as OutOfBoundsError
    from kbjax.errors import ScratchOverflowError as ScratchOverflowError
    from kbjax.errors import ShapeError as ShapeError
    from kbjax.errors import UninitializedReadError as UninitializedReadError
    from kbjax.errors import UseAfterScopeError as UseAfterScopeError
    from kbjax.hardware import Hardware as Hardware
    from kbjax.tcm import TcmState as TcmState

# The public name -> the module that defines it. No module may have a public name's
# spelling: importing it would shadow the name.
_HOME = {
    "kernel_call": "call",
    "KernelCall": "call",
    "Hardware": "hardware",
    "TcmState": "tcm",
    "TLContext": "context",
    **dict.fromkeys(
        (
            "KbjaxError", "ScratchOverflowError", "UseAfterScopeError",
            "UninitializedReadError", "HazardError", "ShapeError", "DTypeError",
            "MemorySpaceError", "OutOfBoundsError", "KernelError",
        ),
        "errors",
    ),
}  # fmt: skip
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(importlib.import_module(f"kbjax.{_HOME[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'kbjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
