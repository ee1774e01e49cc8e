"""Settings of every test: JAX refuses to mix dtypes or ranks silently, and a property
has no deadline (the machine may be busy). `--update-golden` rewrites golden files,
`--update-docs` the pages of docs that are made from the code."""

import gc
from typing import Any

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("kbjax", deadline=None)
settings.load_profile("kbjax")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the kernels give to tests/golden, instead of comparing",
    )
    parser.addoption(
        "--update-docs",
        action="store_true",
        help="write the docs pages made from the code, instead of comparing",
    )


@pytest.fixture
def update_docs(request: pytest.FixtureRequest) -> bool:
    """Whether pages of docs are rewritten."""
    return bool(request.config.getoption("--update-docs"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten."""
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which golden files and pages of docs were rewritten, also by the workers of
    pytest-xdist."""
    for report in terminalreporter.getreports("passed"):
        for name, what in report.user_properties:
            if name in ("golden", "docs"):
                terminalreporter.write_line(f"{name}: {what}")
