"""Libraries that kbjax can do without: each belongs to an extra of its own."""

from __future__ import annotations

import importlib
from typing import Any

from kbjax import errors


def module(name: str, *, extra: str, use: str) -> Any:
    """Import an optional module.

    Args:
      name: of the module.
      extra: that installs it, as in ``pip install 'kbjax[plot]'``.
      use: what needs it, the subject of the message.

    Raises:
      KbjaxError: where it is not installed or broken, naming what to install.
    """
    library = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name not in (library, name):  # of what it needs itself
            raise errors.KbjaxError(
                f"{use} needs {library}, which cannot be imported: {error}",
                remedy=f"Install it anew: pip install --force-reinstall {library}",
            ) from error
        raise errors.KbjaxError(
            f"{use} needs {library}, which is not installed",
            remedy=f"Run pip install 'kbjax[{extra}]'",
        ) from error
