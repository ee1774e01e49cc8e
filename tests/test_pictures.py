"""The drawings of docs/ are what their script makes."""

from __future__ import annotations

import ast
import re
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


def artists(picture: Path) -> list[str]:
    """What is drawn; how an artist is written depends on the version of matplotlib."""
    return re.findall(r'<g id="(\w+)"', picture.read_text("utf-8"))


def test_they_are_those_of_docs(made: Path) -> None:
    """Artist by artist; `scripts/pictures.py` writes them anew."""
    names = sorted(path.name for path in made.iterdir())
    assert names == sorted(path.name for path in (ROOT / "docs").glob("*.svg"))
    for name in names:
        found = artists(made / name)
        assert len(found) > 20
        assert found == artists(ROOT / "docs" / name), name


@pytest.mark.parametrize("name", ["memory_model", "timing_model"])
def test_each_is_small_and_on_its_page(made: Path, name: str) -> None:
    assert 1_000 < (made / f"{name}.svg").stat().st_size < 100_000
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert f"]({name}.svg)" in page


def bodies(source: str) -> dict[str, list[str]]:
    """The statements of each function, its docstring left out."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            found[node.name] = [ast.unparse(statement) for statement in body]
    return found


@pytest.mark.parametrize(
    ("page", "kernels"),
    [("memory_model", ["buffered"]), ("timing_model", ["one_tile", "two_tiles"])],
)
def test_what_is_drawn_is_what_the_page_has(page: str, kernels: list[str]) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    shown = bodies("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    drawn = bodies((ROOT / "scripts" / "pictures.py").read_text("utf-8"))
    for name in kernels:
        assert shown[name] == drawn[name]


def test_every_script_that_draws_is_run() -> None:
    """By the tests above, or by `.ci/run`: none may stop working unseen."""
    steps = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    scripts = sorted(path.stem for path in ROOT.glob("scripts/picture_*.py"))
    assert scripts == ["picture_report", "picture_tcm_map"]
    for script in scripts:
        picture = script.removeprefix("picture_") + ".png"
        assert f"step python scripts/{script}.py -o build/{picture}" in steps
        assert (ROOT / "docs" / picture).stat().st_size > 5000
