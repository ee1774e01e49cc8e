"""The drawings of docs/ are what their script makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pictures, drawn anew."""
    folder = tmp_path_factory.mktemp("pictures")
    subprocess.run(
        [sys.executable, "scripts/pictures.py", str(folder)], cwd=ROOT, check=True
    )
    return folder


def test_they_are_those_of_docs(made: Path) -> None:
    """To the byte; `scripts/pictures.py` writes them anew."""
    names = sorted(path.name for path in made.iterdir())
    assert names == sorted(path.name for path in (ROOT / "docs").glob("*.svg"))
    for name in names:
        assert (made / name).read_bytes() == (ROOT / "docs" / name).read_bytes(), name


@pytest.mark.parametrize("name", ["memory_model", "timing_model"])
def test_each_is_small_and_on_its_page(made: Path, name: str) -> None:
    assert 1_000 < (made / f"{name}.svg").stat().st_size < 100_000
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert f"]({name}.svg)" in page
