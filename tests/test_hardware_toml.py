"""Hardware files and profiles: read, written, refused with the file and the line."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kbjax as kb
from kbjax import hardware_toml
from kbjax.hardware import PeDma, PeGemm, PeMath, PeTcm, named
from tests.hardwares import UNUSUAL, hardwares

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
UNITS = [field.name for field in dataclasses.fields(kb.Hardware)]
PROFILES = kb.Hardware.profiles()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hardware")


def read(folder: Path, text: str) -> kb.Hardware:
    file = folder / "hardware.toml"
    file.write_text(text, encoding="utf-8")
    return kb.Hardware.from_toml(file)


def refused(folder: Path, text: str) -> kb.KbjaxError:
    with pytest.raises(kb.KbjaxError) as caught:
        read(folder, text)
    assert str(folder / "hardware.toml") in str(caught.value)
    return caught.value


# --- written and read ----------------------------------------------------------------


@given(hardware=hardwares())
def test_round_trip(folder: Path, hardware: kb.Hardware) -> None:
    text = hardware.to_toml()
    found = read(folder, text)
    assert found == hardware and hash(found) == hash(hardware)
    assert found.to_toml() == text
    assert repr(found) == repr(hardware)  # the kind of each number too


@given(hardware=hardwares(), other=hardwares(), unit=st.sampled_from(UNITS))
def test_round_trip_of_a_replaced_unit(
    folder: Path, hardware: kb.Hardware, other: kb.Hardware, unit: str
) -> None:
    mixed = dataclasses.replace(hardware, **{unit: getattr(other, unit)})
    assert read(folder, mixed.to_toml()) == mixed


@pytest.mark.parametrize("hardware", [kb.Hardware(), UNUSUAL], ids=["default", "odd"])
def test_paths_are_text_or_paths(tmp_path: Path, hardware: kb.Hardware) -> None:
    assert read(tmp_path, hardware.to_toml()) == hardware
    assert kb.Hardware.from_toml(str(tmp_path / "hardware.toml")) == hardware


def test_the_toml_text_has_a_table_a_unit() -> None:
    assert list(tomllib.loads(kb.Hardware().to_toml())) == UNITS
    tables = tomllib.loads(UNUSUAL.to_toml())
    assert tables.pop("base") == "none"  # else the default's cycles would be added
    assert list(tables) == UNITS
    assert tables["pe_tcm"] == {
        "kernel_scratch_mb": 0.5, "scratch_base": 4096, "align": 64,
    }  # fmt: skip
    assert tables["pe_math"]["cycles"] == {"exp": 9, "copy": 2}


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        (kb.Hardware(), False),
        (kb.Hardware(pe_math=PeMath(cycles={**PeMath().cycles, "add": 2})), False),
        (kb.Hardware(pe_math=PeMath(cycles={})), True),
        (kb.Hardware(pe_gemm=PeGemm(rate={"float32": 1})), True),
    ],
)
def test_the_text_says_base_only_where_it_must(
    hardware: kb.Hardware, says: bool
) -> None:
    assert ("base" in tomllib.loads(hardware.to_toml())) is says


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    text = "[pe_dma]\nbandwidth_gb_s = 64\n[pe_math.cycles]\nexp = 2\n"
    found = read(tmp_path, text)
    assert found.pe_dma == PeDma(bandwidth_gb_s=64)
    assert found.pe_math.cycles == {**PeMath().cycles, "exp": 2}
    assert found.pe_gemm == PeGemm() and found.pe_tcm == PeTcm()
    assert read(tmp_path, "") == read(tmp_path, 'base = "default"') == kb.Hardware()


def test_fields_of_a_unit_may_move_together(tmp_path: Path) -> None:
    """The rule that ties two fields is for the file, not for each line of it."""
    found = read(tmp_path, "[pe_tcm]\nscratch_base = 8\nalign = 8\n")
    assert found.pe_tcm == PeTcm(scratch_base=8, align=8)


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_other_editors(tmp_path: Path, ends: str, mark: str) -> None:
    text = f"{mark}# a comment{ends}pe_dma.latency_ns = 5{ends}"
    (tmp_path / "hardware.toml").write_bytes(text.encode("utf-8"))
    found = kb.Hardware.from_toml(tmp_path / "hardware.toml")
    assert found == kb.Hardware(pe_dma=PeDma(latency_ns=5))


# --- base ----------------------------------------------------------------------------


def test_base_names_a_profile(tmp_path: Path) -> None:
    text = 'base = "a100_sm"\n[pe_gemm]\nrows = 4\n[pe_gemm.rate]\nint8 = 3\n'
    found = read(tmp_path, text)
    base = kb.Hardware.from_profile("a100_sm")
    rate = {**base.pe_gemm.rate, "int8": 3}
    gemm = dataclasses.replace(base.pe_gemm, rows=4, rate=rate)
    assert found == dataclasses.replace(base, pe_gemm=gemm)


def test_a_file_without_a_base_is_whole(tmp_path: Path) -> None:
    """Each key that is left out is missed, by name and with its table's line."""
    lines = UNUSUAL.to_toml().splitlines()
    assert read(tmp_path, "\n".join(lines)) == UNUSUAL
    table, missed, last = "", 0, ""
    for n, line in enumerate(lines):
        if line.startswith("["):
            table = line.strip("[]")
            last = str(lines.index(line) + 1)
        elif "=" in line and table and not table.endswith((".rate", ".cycles")):
            key = line.partition(" =")[0]
            error = refused(tmp_path, "\n".join(lines[:n] + lines[n + 1 :]))
            assert isinstance(error, kb.KernelError)
            assert error.problem == f"the file has no {table}.{key}"
            assert error.remedy == f"Add {key}"
            assert str(error).split(": ")[0].endswith(f"hardware.toml:{last}")
            missed += 1
    assert missed == 15


@pytest.mark.parametrize("unit", [*UNITS, "pe_math.cycles", "pe_gemm.rate"])
def test_a_file_without_a_base_has_every_table(tmp_path: Path, unit: str) -> None:
    paragraphs = UNUSUAL.to_toml().split("\n\n")
    kept = [part for part in paragraphs if not part.startswith(f"[{unit}")]
    assert len(kept) < len(paragraphs)
    error = refused(tmp_path, "\n\n".join(kept))
    assert f"the file has no {unit}." in str(error)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('base = "defalt"', [":1: ", "no hardware profile 'defalt'", "is default"]),
        ('\nbase = "hbm3"', [":2: ", "'hbm3'", "is hbm3_channel", "default"]),
        ("base = 3", [":1: ", "no hardware profile 3"]),
        ("base = []", [":1: ", "no hardware profile []"]),
        ("base = {a = 1}", [":1: ", "no hardware profile {'a': 1}"]),
    ],
)
def test_an_unknown_base(tmp_path: Path, text: str, parts: list[str]) -> None:
    error = refused(tmp_path, text)
    assert all(part in str(error) for part in parts), error


# --- refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[pe_dmaa]\n", "pe_dmaa", "pe_dma"),
        ("[pe_dma]\nbandwith_gb_s = 1\n", "pe_dma.bandwith_gb_s", "bandwidth_gb_s"),
        ("[pe_tcm]\nkernel_mb = 2\n", "pe_tcm.kernel_mb", "kernel_scratch_mb"),
        ("[pe_math]\nlane = 2\n", "pe_math.lane", "lanes"),
        ("[pe_link]\nlatency = 2\n", "pe_link.latency", "latency_ns"),
        ("[pe_gemm.rate]\nfloat8_e4m3 = 2\n", "pe_gemm.rate.float8_e4m3",
         "float8_e4m3fn"),
        ("[pe_math.cycles]\nsoftmx = 2\n", "pe_math.cycles.softmx", "softmax"),
        ("[pe_math.cycles]\ndot = 2\n", "pe_math.cycles.dot", "mod"),
        ("[pe_math.rate]\nexp = 2\n", "pe_math.rate", "lanes"),
        ("bases = 2\n", "bases", "pe_tcm"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest(
    tmp_path: Path, text: str, key: str, nearest: str
) -> None:
    error = refused(tmp_path, text)
    assert isinstance(error, kb.KernelError)
    assert f"hardware has no {key}." in str(error)
    assert nearest in str(error.allowed)
    if key != "bases" and key != "pe_math.cycles.dot" and key != "pe_math.rate":
        assert error.remedy == f"The nearest is {nearest}"


@pytest.mark.parametrize("text", ["pe_dma = 3", "[pe_math]\ncycles = 3", "pe_tcm = []"])
def test_a_table_is_a_table(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, text)
    assert isinstance(error, kb.KernelError) and "must be a table" in error.problem
    assert error.site is not None and error.site.line == text.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("[pe_dma]\nlatency_ns = -5\n", 2, "pe_dma.latency_ns"),
        ("pe_dma.latency_ns = -5\n", 1, "pe_dma.latency_ns"),
        ("pe_dma = {latency_ns = -5}\n", 1, "pe_dma.latency_ns"),
        ("# latency_ns\n\n[pe_link]\nlatency_ns = 1\n[pe_dma]\n"
         "# latency_ns\nlatency_ns = nan", 7, "pe_dma.latency_ns"),
        ("[pe_math]\nclock_ghz=inf\n[pe_gemm]\nclock_ghz=1", 2, "pe_math.clock_ghz"),
        ("[pe_gemm.rate]\nfloat16=1\n\'float32\' = true", 3, "pe_gemm.rate.float32"),
        ("[pe_gemm]\nrate.float16=1\nrate.int8=\'1\'", 3, "pe_gemm.rate.int8"),
        ("[pe_math.cycles]\nexp=1\n[pe_gemm]\nrows=1.5", 4, "pe_gemm.rows"),
        ("[pe_gemm]\nrows=1979-05-27", 2, "pe_gemm.rows"),
        ("# a\u2028b\n[pe_gemm]\nrows=0", 3, "pe_gemm.rows"),
        ("[pe_gemm]\nrows={a=1}", 2, "pe_gemm.rows"),
        ("[pe_tcm]\nalign=3\nscratch_base = 8\n", 1, "pe_tcm.scratch_base"),
        ("[pe_dma]\nlatency_ns = [\n1]\n", None, "pe_dma.latency_ns"),
        ("[pe_dma]\n\"latency\\u005fns\" = -5\n", None, "pe_dma.latency_ns"),
    ],
)  # fmt: skip
def test_a_bad_value_has_its_line(
    tmp_path: Path, text: str, line: int | None, field: str
) -> None:
    """Where an entry is not one plain line of its own there is the file alone."""
    error = refused(tmp_path, text)
    file = str(tmp_path / "hardware.toml")
    assert isinstance(error, kb.ShapeError) and error.allowed is not None
    if line is None:
        assert error.site is None
        assert str(error).startswith(f"{file}: {field} is ")
    else:
        assert error.site is not None
        assert (error.site.file, error.site.line) == (file, line)
        assert str(error).startswith(f"{file}:{line}: {field} is ")
        assert error.to_dict()["file"] == file and error.to_dict()["line"] == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[pe_dma", 1),
        ("[pe_dma]\nlatency_ns 5\n", 2),
        ("[pe_dma]\nlatency_ns = 5\nlatency_ns = 6\n", 3),
        ("[pe_dma]\n\n[pe_dma]\n", 3),
        ("[pe_dma]\nlatency_ns = ", 2),
        ("[pe_dma]\nlatency_ns = 1e999999999_\n", 2),
        ("a = " + "[" * 5000, None),
        ("a = 1" + "0" * 5000, None),
        ("\x00", 1),
    ],
)
def test_what_is_not_toml(tmp_path: Path, text: str, line: int | None) -> None:
    error = refused(tmp_path, text)
    assert isinstance(error, kb.KernelError)
    assert "this is not TOML: " in str(error) and "Traceback" not in str(error)
    assert (error.site.line if error.site else None) == line


def test_what_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes("# caf\u00e9".encode("latin-1"))
    wide = tmp_path / "wide.toml"
    wide.write_bytes("a = 1".encode("utf-16"))
    paths: list[tuple[Any, str, str]] = [
        (tmp_path / "none.toml", "none.toml", "No such file"),
        (str(tmp_path / "none.toml"), "none.toml", "No such file"),
        (tmp_path, tmp_path.name, "directory"),
        (latin, "latin.toml", "not UTF-8 text: "),
        (wide, "wide.toml", "not UTF-8 text: "),
        ("a\0b.toml", "a\\x00b.toml", "null byte"),
        ("a" * 5000, "aaa", "File name too long"),
        (3, "3", "int"),
        (None, "None", "NoneType"),
        (b"a.toml", "a.toml", "bytes"),
    ]
    for path, name, reason in paths:
        with pytest.raises(kb.KernelError) as caught:
            kb.Hardware.from_toml(path)
        text = str(caught.value)
        assert text.startswith("cannot read the hardware file ")
        assert name in text and reason in text, text
        assert caught.value.remedy


@given(text=st.text(max_size=60) | st.text('[]pe_dma.tcm=\n"#1 lns{}', max_size=60))
def test_any_text_is_hardware_or_a_kbjax_error(folder: Path, text: str) -> None:
    source = hardware_toml.Source("x.toml", text)
    try:
        found = kb.Hardware._of(source)
    except kb.KbjaxError as error:
        assert "x.toml" in str(error)
    else:
        assert isinstance(found, kb.Hardware)


# --- profiles ------------------------------------------------------------------------


def text_of(name: str) -> str:
    file = resources.files("kbjax") / "profiles" / f"{name}.toml"
    return file.read_text(encoding="utf-8")


def test_profiles_are_the_files_of_the_package() -> None:
    folder = resources.files("kbjax") / "profiles"
    names = {file.name for file in folder.iterdir()}
    assert names == {f"{name}.toml" for name in PROFILES}
    assert set(PROFILES) == {"default", "hbm_pe_wide", "hbm3_channel", "a100_sm"}
    assert list(PROFILES) == sorted(PROFILES)


def test_profiles_are_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    package = Path(kb.__file__).parent
    shipped = {
        file
        for pattern in project["tool"]["setuptools"]["package-data"]["kbjax"]
        for file in package.glob(pattern)
    }
    assert {package / "profiles" / f"{name}.toml" for name in PROFILES} <= shipped
    needed = [text.split(">")[0] for text in project["project"]["dependencies"]]
    assert "tomli-w" in needed


def test_the_default_profile_is_the_default() -> None:
    assert kb.Hardware.from_profile("default") == kb.Hardware()
    assert repr(kb.Hardware.from_profile("default")) == repr(kb.Hardware())


@pytest.mark.parametrize("name", PROFILES)
def test_every_number_of_a_profile_has_its_source(name: str) -> None:
    text = text_of(name)
    keys = [line for line in text.splitlines() if re.match(r"\s*[^#\[\s]", line)]
    assert len(keys) > 25
    for line in keys:
        assert re.search(r"\S  # (assumed(: \S.+)?|source: \S.+)$", line), line
    found = kb.Hardware.from_profile(name)
    entries = sum(
        len(value) if isinstance(value, dict) else 1
        for fields in found.to_dict().values()
        for value in fields.values()
    )
    assert len(keys) == entries + 1  # one a line, and the base
    assert tomllib.loads(text)["base"] == "none"
    assert text.startswith("# ") and hardware_toml.about(name) in text


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_round_trip(tmp_path: Path, name: str) -> None:
    found = kb.Hardware.from_profile(name)
    assert read(tmp_path, found.to_toml()) == read(tmp_path, text_of(name)) == found


def test_the_figures_of_public_parts() -> None:
    hbm3 = kb.Hardware.from_profile("hbm3_channel")
    assert hbm3.pe_dma.bandwidth_gb_s * 16 == pytest.approx(6.4 * 1024 / 8)
    assert hbm3 == dataclasses.replace(kb.Hardware(), pe_dma=hbm3.pe_dma)
    a100 = kb.Hardware.from_profile("a100_sm")
    assert a100.pe_dma.bandwidth_gb_s * 108 == pytest.approx(1555, rel=1e-4)
    assert a100.pe_tcm.scratch_bytes == 164 * 1024
    for dtype, tflops in (("bfloat16", 312), ("float16", 312), ("float32", 19.5),
                          ("int8", 624)):  # fmt: skip
        peak = a100.pe_gemm.peak_flops_per_ns(dtype) * 108 / 1000
        assert peak == pytest.approx(tflops, rel=2e-3)
    fp32 = a100.pe_math.lanes * a100.pe_math.clock_ghz * 2 * 108 / 1000
    assert fp32 == pytest.approx(19.5, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "near"), [("defalt", "default"), ("a100", "a100_sm"), (3, ""), (None, "")]
)
def test_an_unknown_profile(name: Any, near: str) -> None:
    with pytest.raises(kb.KernelError, match="there is no hardware profile") as caught:
        kb.Hardware.from_profile(name)
    by_path = "or a file by its path, which ends in .toml or has a /"
    assert caught.value.allowed == ", ".join((*PROFILES, by_path))
    assert caught.value.remedy.startswith(f"The nearest is {near}")


def test_a_name_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = kb.Hardware(pe_dma=PeDma(latency_ns=7))
    for file in ("mine.toml", "mine", "default"):
        (tmp_path / file).write_text(mine.to_toml(), encoding="utf-8")
    assert named("mine.toml") == named("mine") == named("./default") == mine
    assert named("default") == kb.Hardware()
    assert named("a100_sm") == kb.Hardware.from_profile("a100_sm")
    with pytest.raises(kb.KernelError, match="no hardware profile 'minee'"):
        named("minee")
    for path in ("minee.toml", "./minee", "."):
        with pytest.raises(kb.KernelError, match=f"cannot read .* '{path}'"):
            named(path)
    for name in ("", "a" * 5000):
        with pytest.raises(kb.KernelError, match="no hardware profile"):
            named(name)


# --- the page ------------------------------------------------------------------------


def test_the_page_has_every_field_and_profile() -> None:
    for unit, fields in kb.Hardware().to_dict().items():
        for name in fields:
            assert f"`{unit}.{name}`" in PAGE
    rows = re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)
    assert sorted(rows) == list(PROFILES)


def test_the_file_on_the_page_is_as_told(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = read(tmp_path, text)
    base = kb.Hardware.from_profile("hbm3_channel")
    assert found.pe_dma == dataclasses.replace(base.pe_dma, latency_ns=350)
    assert found.pe_gemm.rate == {**base.pe_gemm.rate, "int8": 2}
    assert found.pe_math.cycles == {**base.pe_math.cycles, "exp": 2}
    assert (found.pe_tcm, found.pe_link) == (base.pe_tcm, base.pe_link)


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    defaults = kb.Hardware().to_dict()
    rows = re.findall(
        r"^\| (`pe_.*?) \|.*?\| (\S+?)(?: \(.*?\))? \|", PAGE, re.MULTILINE
    )
    checked = 0
    for names, shown in rows:
        for unit, field in re.findall(r"`(\w+)\.(\w+)`", names):
            if not isinstance(defaults[unit][field], dict):
                assert float(shown) == defaults[unit][field]
                checked += 1
    assert checked == 15
