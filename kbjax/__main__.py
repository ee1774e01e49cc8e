"""`python -m kbjax` is the `kbjax` command."""

from __future__ import annotations

from kbjax import cli

if __name__ == "__main__":
    cli.main()
