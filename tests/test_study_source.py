"""Where studies come from: files that are none, that raise, and kernels beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbjax import errors, study_source, study_store
from tests.test_study import invoke, six, toml

OWN = """
from kbjax import catalogue
def case(context: int = 64, *, hardware=None):
    return catalogue.make("gqa_decode", context=context, num_pes=1, dim=16, tile={tile},
                          hardware=hardware)
"""
STUDY = """
from kbjax.study import Study
study = Study(name="own", kernel="own.py:case", do="plan", axes={"context": [64, 128]})
"""


def test_a_kernel_beside_its_study_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one of the same name in the working directory; the results are of the
    same study wherever the command is given."""
    toml(tmp_path / "own.py", OWN.format(tile=16))
    file = toml(tmp_path / "s.py", STUDY)
    sub = tmp_path / "sub"
    sub.mkdir()
    toml(sub / "own.py", "1 / 0")
    monkeypatch.chdir(sub)
    assert invoke("../s.py", "--jobs", "1").exit_code == 0
    table = study_store.read(tmp_path / "s.sqlite")
    assert table.counts["done"] == 2
    assert {row.parameters["kernel"] for row in table.rows} == {"own.py:case"}
    monkeypatch.chdir(tmp_path)
    for again in ("s.py", file):
        result = invoke(again, "--jobs", "1")
        assert result.exit_code == 0 and "2 done" in result.output
    study = study_source.read(file)
    assert study.to_dict() == study_source.read("s.py").to_dict()
    assert {p.kernel for p in study.points()} == {f"{tmp_path / 'own.py'}:case"}
    result = invoke("s.py", "--csv", "own.py")
    assert result.exit_code == 1 and "take the place of the kernel" in result.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("open('none')", "FileNotFoundError"),
        ("import sys; sys.exit(0)", "sys.exit"),
        ("def f(:", "s.py:1: .*is not Python: invalid syntax"),
        ("study = 1", "defines no study"),
    ],
)
def test_a_python_file_that_is_no_study(text: str, says: str, tmp_path: Path) -> None:
    file = toml(tmp_path / "s.py", text)
    with pytest.raises(errors.KernelError, match=f"(?s){says}") as caught:
        study_source.read(file)
    assert "s.py" in str(caught.value)
    result = invoke(file)
    assert result.exit_code == 1 and "Traceback" not in result.output


def test_a_file_without_an_end_is_read_to_a_limit() -> None:
    with pytest.raises(errors.KernelError, match="more than 16,777,216 bytes"):
        study_source.read("/dev/zero")


@pytest.mark.parametrize("name", ["a\x1b[31m", "", "x" * 1_001, 3])
def test_a_name_is_printable_text(name: object) -> None:
    with pytest.raises(errors.KernelError, match=r"name is .*text") as caught:
        six(name=name)
    assert "integers" not in str(caught.value)
