"""Kernels of a user's own file: what goes wrong in it is said of its line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kbjax import catalogue, cli
from kbjax.hardware import Hardware
from kbjax.options import given_sizes

HEAD = """
import sys
import jax, numpy as np
import kbjax as kb
from kbjax.cases import Case, Inputs

def double(tl, x, o):
    BODY
    tl.store(o, tl.load(x) * 2.0)

def case(rows=4, *, hardware=None):
    MADE
    out = jax.ShapeDtypeStruct((rows, 8), "float32")
    call = kb.kernel_call(double, out, hardware=hardware)
    return Case(call, Inputs(0, 1, "float32", ((rows, 8),)), reference, 1e-6)

def reference(x):
    WANTED
    return 2.0 * x.astype(np.float64)

TOP
"""
PLACES = ("BODY", "MADE", "WANTED", "TOP")
LINES = {
    place: 1 + [line.strip() for line in HEAD.splitlines()].index(place)
    for place in PLACES
}
COMMANDS = {
    "BODY": ("run", "plan", "trace", "report"),
    "MADE": ("run", "plan"),
    "WANTED": ("run",),
    "TOP": ("run", "plan"),
}


def written(folder: Path, place: str = "", line: str = "pass") -> str:
    """The file, with a line in one of its places, and the path and name of its case."""
    text = HEAD
    for name in PLACES:
        text = text.replace(name, line if name == place else "pass")
    path = folder / "mine.py"
    path.write_text(text)
    return f"{path}:case"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise ValueError('no [red] luck')", "ValueError: no [red] luck"),
        ("assert not 'so'", "AssertionError"),
        ("np.zeros(3) + np.zeros(4)", "could not be broadcast"),
        ("open('/no/such')", "FileNotFoundError"),
        ("eval('1 +')", "SyntaxError"),
        ("sys.exit(0)", "sys.exit(0) was called"),
        ("sys.exit('bye')", "sys.exit('bye') was called"),
        ("raise SystemExit", "sys.exit(None) was called"),
    ],
)
def test_what_it_raises(tmp_path: Path, place: str, line: str, said: str) -> None:
    """One message that names the line, and status 1; never status 0."""
    name = written(tmp_path, place, line)
    for command in COMMANDS[place]:
        to = ["-o", str(tmp_path / "out")] if command in ("trace", "report") else []
        result = CliRunner().invoke(cli.app, [command, name, *to])
        assert result.exit_code == 1, (command, result.output)
        assert result.stderr.startswith(f"KernelError: mine.py:{LINES[place]}: ")
        assert said in result.stderr
    result = CliRunner().invoke(cli.app, ["run", name, "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == report["schema_version"] == 1
    assert report["error"]["line"] == LINES[place]
    assert said in report["error"]["message"]


def test_it_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["run", written(tmp_path)])
    assert result.exit_code == 0, result.output


def test_a_fault_of_kbjax_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised as it is, with its frames, which a report of it needs."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("of kbjax")

    monkeypatch.setattr("kbjax.recorder.Recorder.emit", broken)
    result = CliRunner().invoke(cli.app, ["run", written(tmp_path)])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def case(:\n", "mine.py:1: .*mine.py is not Python: invalid syntax"),
        (b"x = 1\n  y = 2\n", "mine.py:2: .*unexpected indent"),
        (b"\xff\xfe\x00", "is not Python"),
        (b"x = '\0'\n", "is not Python"),
        (b"", "no function 'case'.* none: no function in it takes `hardware`"),
    ],
)
def test_a_file_that_is_no_python(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    result = CliRunner().invoke(cli.app, ["run", f"{path}:case"])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert re.search(said, result.stderr), result.stderr


def test_a_folder_and_a_function_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for name, said in (
        (f"{tmp_path}/folder.py:case", "Is a directory"),
        (f"{tmp_path}/none.py:case", "No such file"),
        (f"{tmp_path}/mine.py", f"Give {tmp_path}/mine.py:case"),
        (written(tmp_path)[:-1], "Allowed: case. The nearest is case"),
        (written(tmp_path)[:-4] + "reference", "it takes no `hardware`"),
    ):
        result = CliRunner().invoke(cli.app, ["run", name])
        assert result.exit_code == 1
        assert said in result.stderr


@pytest.mark.parametrize(
    ("signature", "sizes"),
    [
        ("n=4, *, rows=4, hardware=None", ["rows", "n"]),
        ("hardware, rows=4, **more", ["rows"]),
    ],
)
def test_sizes_by_name_however_they_are_taken(
    tmp_path: Path, signature: str, sizes: list[str]
) -> None:
    name = written(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace("rows=4, *, hardware=None", signature))
    assert set(catalogue.sizes_of(name)) == set(sizes)
    result = CliRunner().invoke(cli.app, ["plan", name, "--size", "rows=8", "--json"])
    assert json.loads(result.stdout)["sizes"] == {"rows": 8}


def test_json_of_an_infinite_error(tmp_path: Path) -> None:
    """JSON has no infinity: null, as for a NaN."""
    name = written(tmp_path, "BODY", "tl.store(o, tl.load(x) / 0.0); return")
    result = CliRunner().invoke(cli.app, ["run", name, "--json"])
    report = json.loads(result.stdout, parse_constant=pytest.fail)
    assert (report["verdict"], report["error"], result.exit_code) == ("fail", None, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("9" * 5000, "9" * 5000),
     ("None", None), ("[1, 2]", "[1, 2]"), ("{}", "{}"), ("null", None),
     ("True", True), ("false", False), ("1.5", 1.5),
     ("Infinity", "Infinity"), ("NaN", "NaN"), ("float32", "float32"), ("12", 12)],
)  # fmt: skip
def test_a_size_is_read_as_python_or_json_writes_it(text: str, value: object) -> None:
    assert given_sizes([f"some-size={text}"]) == {"some_size": value}


@pytest.mark.parametrize("command", ["plan", "run"])
def test_terminal_codes_in_names_are_shown_as_escapes(
    tmp_path: Path, command: str
) -> None:
    """Of a file and a scope; in what is printed, and in a refusal."""
    written(tmp_path, "BODY", "tl.scratch_scope('a\\x1b[2Jb').__enter__()")
    path = tmp_path / "mine\x1b[31m.py"
    (tmp_path / "mine.py").rename(path)
    for of in (f"{path}:case", f"{path}:none"):
        result = CliRunner().invoke(cli.app, [command, of], env={"COLUMNS": "300"})
        assert "mine\\x1b[31m.py" in result.output
        assert "\x1b" not in result.output


def test_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    names = []
    for folder, rows in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        names.append(written(tmp_path / folder, "TOP", f"SMALL = {{'rows': {rows}}}"))
    assert [catalogue.small_sizes(name)["rows"] for name in names] == [2, 3]
    files = {getattr(module, "__file__", None) for module in sys.modules.values()}
    assert {name.removesuffix(":case") for name in names} <= files  # pickles find both


@pytest.mark.parametrize("command", ["trace", "report"])
def test_what_is_read_is_not_written_over(tmp_path: Path, command: str) -> None:
    """The kernel's file and the hardware's, by another spelling too."""
    name = written(tmp_path)
    toml = tmp_path / "mine.toml"
    toml.write_text(Hardware().to_toml())
    before = {path: path.read_bytes() for path in tmp_path.glob("mine.*")}
    for path in before:
        to = tmp_path / "." / ".." / tmp_path.name / path.name
        options = ["-o", str(to), "--hardware", str(toml)]
        result = CliRunner().invoke(cli.app, [command, name, *options])
        assert result.exit_code == 1
        assert "would take the place of the" in result.stderr
    assert before == {path: path.read_bytes() for path in before}


def test_what_a_file_beside_it_raises(tmp_path: Path) -> None:
    """Kernels in one file and cases in another."""
    name = written(tmp_path)
    path = tmp_path / "mine.py"
    (tmp_path / "beside.py").write_text("def double(tl, x, o):\n    1 / 0\n")
    text = path.read_text().replace("def double", "def unused")
    path.write_text(text + "\nfrom beside import double\n")
    result = CliRunner().invoke(cli.app, ["plan", name])
    assert result.exit_code == 1
    assert result.stderr.startswith("KernelError: beside.py:2: ZeroDivisionError")
