"""The command line: what it prints, its JSON, its errors and its exit status."""

from __future__ import annotations

import functools
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from kbjax import catalogue, cli, hardware
from kbjax.call import KernelCall
from kbjax.options import SCHEMA_VERSION
from kbjax.plan import Plan
from tests import pages

SMALL = ["--context", "128", "--tile", "64", "--num-pes", "2", "--size", "dim=32"]


NAMES = catalogue.kernel_names()
OVERFLOWING = ["flash_unscoped", "--context", "131072"]


def invoke(*arguments: str, columns: int = 80) -> Result:
    environment = {"COLUMNS": str(columns)}
    return CliRunner().invoke(cli.app, list(arguments), env=environment)


@functools.cache  # a run compiles, and tests share it
def ran(*options: str) -> tuple[Result, list[dict[str, Any]]]:
    """`run` of a small gqa_decode, and what the call was asked for each time."""
    asked: list[dict[str, Any]] = []
    run = KernelCall.run

    def watched(self: KernelCall, *arrays: Any, **options: Any) -> Any:
        asked.append(options)
        return run(self, *arrays, **options)

    with mock.patch.object(KernelCall, "run", watched):
        return invoke("run", "gqa_decode", *SMALL, *options), asked


def what_is_asked(call: KernelCall, *arrays: Any) -> str:
    """The kernel, its options, the shapes and the hardware."""
    shapes = [(one.shape, str(one.dtype)) for one in arrays]
    return repr((call._kernel, call._num_pes, call._hardware, shapes))


OUTPUTS: dict[object, Any] = {}


@pytest.fixture
def outputs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live run of the same is compiled once: the tests are of what is said of it.
    Inputs are of one seed."""
    compute = KernelCall.__call__

    def computed(self: KernelCall, *arrays: Any) -> Any:
        key = what_is_asked(self, *arrays)
        if key not in OUTPUTS:
            OUTPUTS[key] = compute(self, *arrays)
        return OUTPUTS[key]

    monkeypatch.setattr(KernelCall, "__call__", computed)


PLANS: dict[object, Plan] = {}


@pytest.fixture
def plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the same is made once: the tests are of how it is shown."""
    make = KernelCall.plan

    def made(self: KernelCall, *arrays: Any, vary: Any = None) -> Plan:
        key = (what_is_asked(self, *arrays), repr(vary))
        if key not in PLANS:
            PLANS[key] = make(self, *arrays, vary=vary)
        return PLANS[key]

    monkeypatch.setattr(KernelCall, "plan", made)


def words(text: str) -> str:
    """The text with its line breaks as spaces."""
    return " ".join(text.split())


@pytest.mark.usefixtures("outputs_once")
def test_run_prints_the_summary_and_the_verdict() -> None:
    result = invoke("run", "gqa_decode", *SMALL)
    assert result.exit_code == 0, result.output
    for part in ("latency", "dma engine", "gemm engine", "math engine", "HBM traffic"):
        assert part in result.output
    assert "peak scratch" in result.output
    assert "1,048,576 B" in result.output
    assert "numbers agree" in result.output


@pytest.mark.usefixtures("outputs_once")
@pytest.mark.parametrize("fidelity", ["live", "exact"])
def test_json_holds_the_same_figures(fidelity: str) -> None:
    result, _ = ran("--fidelity", fidelity, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["schema_version"] == SCHEMA_VERSION
    assert report["verdict"] == "pass"
    assert 0 < report["error"] <= report["tolerance"]
    summary = report["summary"]
    assert summary["num_pes"] == 2
    # K and V of both PEs, and the queries.
    assert summary["bytes_loaded"] == 2 * (2 * 128 * 32 + 8 * 32) * 4
    assert summary["budget_bytes"] == hardware.PeTcm().scratch_bytes


@pytest.mark.usefixtures("outputs_once")
def test_wrong_numbers_are_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbjax.kernels import gqa_decode

    right = gqa_decode.reference
    monkeypatch.setattr(gqa_decode, "reference", lambda q, k, v: right(q, k, v) + 1.0)
    result = invoke("run", "gqa_decode", *SMALL, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] == "fail"


@pytest.mark.usefixtures("outputs_once")
def test_nan_is_never_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbjax.kernels import gqa_decode

    right = gqa_decode.reference
    monkeypatch.setattr(
        gqa_decode, "reference", lambda q, k, v: right(q, k, v) * float("nan")
    )
    result = invoke("run", "gqa_decode", *SMALL, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["verdict"], report["error"]) == ("fail", None)


@pytest.mark.parametrize(
    ("arguments", "kind", "parts"),
    [
        (["gqa_decod"], "KernelError", ["no kernel 'gqa_decod'", "gqa_decode"]),
        (["gqa_decode", "--tile", "0"], "ShapeError", ["tile", "positive"]),
        (["gqa_decode", "--context", "-1"], "ShapeError", ["context", "positive"]),
        (["gqa_decode", "--num-pes", "0"], "ShapeError", ["num_pes", "positive"]),
        (["gqa_decode", "--size", "blok=3"], "KernelError", ["'blok'", "tile"]),
        (["gqa_decode", "--size", "name=3"], "KernelError", ["'name'", "tile"]),
        (
            ["gqa_decode", "--hardware", "hbm3"],
            "KernelError",
            ["no hardware profile 'hbm3'", "nearest is hbm3_channel"],
        ),
        (["gqa_decode", "--hardware", "no.toml"], "KernelError", ["'no.toml'"]),
        (["gqa_decode", "--dtype", "float64"], "DTypeError", ["float64", "float32"]),
        (["gqa_decode", "--size", "kv_heads=7"], "ShapeError", ["64", "7"]),
        (
            ["flash_unscoped", "--context", "131072"],
            "ScratchOverflowError",
            ["TLContext scratch overflow:", "flash_unscoped.py:", "iteration"],
        ),
    ],
)
def test_a_mistake_is_one_message_and_exit_status_1(
    arguments: list[str], kind: str, parts: list[str]
) -> None:
    result = invoke("run", *arguments)
    assert result.exit_code == 1
    text = result.stderr.strip()
    assert len(text.splitlines()) == 1 or kind == "ScratchOverflowError"
    assert text.startswith(f"{kind}: ")
    assert all(part in text for part in parts), text
    assert "Traceback" not in result.output
    as_json = invoke("run", *arguments, "--json")
    assert as_json.exit_code == 1
    failure = json.loads(as_json.stdout)["error"]
    assert f"{failure['class']}: {failure['message']}" == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "gqa_decode", "--tiles", "4"],
        ["run", "gqa_decode", "--tile", "four"],
        ["run", "gqa_decode", "--size", "dim"],
        ["run", "gqa_decode", "--fidelity", "fast"],
        ["run"],
        ["rum"],
        ["plan"],
        ["plan", "gqa_decode", "--tile", "four"],
        ["plan", "gqa_decode", "--size", "dim"],
        ["plan", "gqa_decode", "--poison"],
        ["plan", "gqa_decode", "--hardware"],
        ["run", "gqa_decode", "--size", "hardware=default"],
        ["plan", "gqa_decode", "--size", "hardware=default"],
        ["hardware", "default", "a100_sm"],
    ],
)
def test_an_unreadable_command_line_is_exit_status_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["run", "plan"])
def test_names_from_users_are_not_markup(command: str) -> None:
    assert "[red]x[/red]" in invoke(command, "[red]x[/red]").stderr
    result = invoke(command, "gqa_decode", "--size", "[red]y[/red]=3")
    assert result.exit_code == 1 and "'[red]y[/red]'" in result.stderr


# --- what a run adds -----------------------------------------------------------------


def test_run_with_poison() -> None:
    """It is exact, and gives the same numbers as an exact run without."""
    reports, poisons = [], []
    for options in (["--poison"], ["--fidelity", "exact"]):
        result, asked = ran(*options, "--json")
        assert result.exit_code == 0, result.output
        reports.append(json.loads(result.stdout))
        poisons += [one["poison"] for one in asked]
    poisoned, exact = reports
    assert poisons == [True, False]
    assert (poisoned["poison"], exact["poison"]) == (True, False)
    assert poisoned["fidelity"] == exact["fidelity"] == "exact"
    assert poisoned["error"] == exact["error"]


def test_an_overflow_is_structured_json() -> None:
    result = invoke("run", *OVERFLOWING, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    error = report["error"]
    found = error["overflow"]
    assert report["schema_version"] == SCHEMA_VERSION
    assert found["kernel"] == "flash_unscoped"
    assert found["budget_bytes"] - found["cursor_bytes"] == found["free_bytes"]
    assert sum(group["nbytes"] for group in found["live"]) == found["cursor_bytes"]
    assert found["free_bytes"] < found["aligned_bytes"] == 8192
    (loop,) = found["loops"]
    assert loop["iteration"] == 19 and loop["growth_bytes"] == 53_776
    assert loop["site"]["file"].endswith("flash_unscoped.py")
    assert error["file"] == loop["site"]["file"] and error["line"] > 0
    assert error["remedy"] in error["message"]


# --- plan ----------------------------------------------------------------------------


def given(sizes: dict[str, Any]) -> list[str]:
    return [part for n, v in sizes.items() for part in ("--size", f"{n}={v}")]


@pytest.mark.parametrize(
    ("name", "which"), [*((name, "default") for name in NAMES), ("gqa_decode", "small")]
)
@pytest.mark.usefixtures("plans_once")
def test_plan_shows_the_figures_of_the_call(name: str, which: str) -> None:
    sizes = {} if which == "default" else catalogue.kernel_module(name).SMALL
    case = catalogue.make(name, **sizes)
    plan = case.call.plan(*case.inputs.specs)
    result = invoke("plan", name, *given(sizes), "--json")
    assert result.exit_code == 0, result.output
    want = json.loads(json.dumps(plan.to_dict()))
    said = {"name": "default", **hardware.Hardware().to_dict()}
    assert json.loads(result.stdout) == {**want, "sizes": sizes, "hardware": said}
    result = invoke("plan", name, *given(sizes), columns=200)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(plan.headline())
    for note in plan.notes():
        assert words(note) in words(result.stdout)
    for table in plan.tables():
        assert table.title in result.stdout
        for row in table.rows:
            assert all(cell in result.stdout for cell in row), row


@pytest.mark.usefixtures("plans_once")
def test_the_source_is_not_markup() -> None:
    source = "return self.tl.load(self._rows(self.k, j), other=0.0)"
    assert source in invoke("plan", "gqa_decode", columns=200).stdout


@pytest.mark.usefixtures("plans_once")
def test_plan_of_a_kernel_that_does_not_fit() -> None:
    result = invoke("plan", *OVERFLOWING, columns=200)
    assert result.exit_code == 1
    shown = words(result.stdout)
    refusal = json.loads(invoke("run", *OVERFLOWING, "--json").stdout)["error"]
    assert "42015.6%: does not fit" in shown and words(refusal["remedy"]) in shown
    assert words(refusal["message"].splitlines()[0]) in shown
    assert "Traceback" not in result.output
    as_json = invoke("plan", *OVERFLOWING, "--json")
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert (report["fits"], report["verdict"]) == (False, "does not fit")
    assert report["peak_scratch_bytes"] == 440_565_904
    assert report["overflow"] == refusal
    assert report["sizes"] == {"context": 131_072}


@pytest.mark.usefixtures("plans_once")
def test_plan_varies_an_option() -> None:
    def options(*arguments: str) -> list[str]:
        result = invoke("plan", "gqa_decode", *arguments, "--json")
        assert result.exit_code == 0, result.output
        rows = json.loads(result.stdout)["candidates"]
        assert sum(row["current"] for row in rows) == len({r["option"] for r in rows})
        return list(dict.fromkeys(row["option"] for row in rows))

    sizes = given(catalogue.kernel_module("gqa_decode").SMALL)
    assert options(*sizes) == ["tile", "buffers"]
    assert options(*sizes, "--vary", "buffers") == ["buffers"]
    text = invoke("plan", "gqa_decode", *sizes, "--vary", "buffers").stdout
    assert "sizes of buffers" in text and "sizes of tile" not in text


@pytest.mark.parametrize(
    ("arguments", "kind", "parts"),
    [
        (["gqa_decode", "--vary", "nothing"], "KernelError", ["'nothing'", "tile"]),
        (["gqa_decode", "--tile", "0"], "ShapeError", ["tile", "positive"]),
        (["gqa_decod"], "KernelError", ["no kernel 'gqa_decod'", "gqa_decode"]),
    ],
)
def test_a_plan_that_is_refused(
    arguments: list[str], kind: str, parts: list[str]
) -> None:
    result = invoke("plan", *arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"{kind}: ")
    assert all(part in result.stderr for part in parts)
    error = json.loads(invoke("plan", *arguments, "--json").stdout)["error"]
    assert f"{error['class']}: {error['message']}" == result.stderr.strip()


@functools.cache
def planned(*arguments: str) -> str:
    return invoke("plan", *arguments, "--json").stdout


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(
    "arguments", [["gqa_decode"], ["flash_prefill"], OVERFLOWING], ids=lambda a: a[0]
)
@pytest.mark.usefixtures("plans_once")
def test_no_width_loses_a_figure(arguments: list[str], columns: int) -> None:
    """What is cut in a narrow terminal is text, never a number of bytes."""
    result = invoke("plan", *arguments, columns=columns)
    report = json.loads(planned(*arguments))
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    cells = {cell for line in lines for cell in line.split()}
    for buffer in report["buffers"]:
        assert f"{buffer['nbytes']:,}" in cells
        assert f"{buffer['count']:,}" in cells
    for row in report["candidates"]:
        peak = row["peak_scratch_bytes"]
        assert f"{row['value']:,}" in cells and (not peak or f"{peak:,}" in cells)
    for scope in report["scopes"]:
        assert f"{scope['entered']:,}" in cells
        for figure in ("high_water_bytes", "live_at_exit_bytes", "allocated_bytes"):
            assert f"{scope[figure]:,}" in cells


def test_kernels_lists_every_shipped_kernel() -> None:
    found = json.loads(invoke("kernels", "--json").stdout)["kernels"]
    assert set(found) == set(catalogue.kernel_names()) > {"gqa_decode", "ring_gqa"}
    assert found["gqa_decode"]["sizes"]["context"] == 131_072
    assert all(name in invoke("kernels").output for name in found)


# --- hardware ------------------------------------------------------------------------

PAGE = pages.ROOT / "docs" / "hardware.md"
(PAGE_FILE,) = pages.blocks(PAGE, "toml")
PROFILES = hardware.Hardware.profiles()
SLOW = "[pe_dma]\nbandwidth_gb_s = 1\n[pe_tcm]\nkernel_scratch_mb = 0.5\n"


@pytest.fixture
def slow(tmp_path: Path) -> str:
    file = tmp_path / "slow.toml"
    file.write_text(SLOW, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_on_its_hardware(name: str, slow: str) -> None:
    """Every shipped kernel's `case` takes it, and it is none of the sizes."""
    module = catalogue.kernel_module(name)
    for on in (hardware.Hardware.from_toml(slow), None):
        case = catalogue.make(name, hardware=on, **module.SMALL)
        assert case.call.record(*case.inputs.specs).hardware == (
            on or hardware.Hardware()
        )
    parameter = inspect.signature(module.case).parameters["hardware"]
    assert parameter.kind is parameter.KEYWORD_ONLY
    assert "hardware" not in catalogue.sizes_of(name)
    assert set(module.SMALL) <= set(catalogue.sizes_of(name))


@pytest.mark.usefixtures("outputs_once")
def test_run_on_a_hardware(slow: str) -> None:
    reports = []
    for options in (["--fidelity", "live"], ["--hardware", slow]):
        result, _ = ran(*options, "--json")
        assert result.exit_code == 0, result.output
        reports.append(json.loads(result.stdout))
    usual, on_slow = reports
    want = hardware.Hardware.from_toml(slow)
    assert usual["hardware"] == {"name": "default", **hardware.Hardware().to_dict()}
    assert on_slow["hardware"] == {"name": slow, **want.to_dict()}
    assert on_slow["summary"]["budget_bytes"] == 2**19
    case = catalogue.make("gqa_decode", hardware=want, **on_slow["sizes"])
    log = case.call.op_log(*case.inputs.specs)
    assert on_slow["summary"]["total_ns"] == log.summary().to_dict()["total_ns"]
    assert on_slow["summary"]["total_ns"] > 2 * usual["summary"]["total_ns"]
    assert on_slow["error"] == usual["error"]  # data does not depend on rates
    shown = invoke("run", "gqa_decode", *SMALL, "--hardware", slow, columns=200)
    assert re.search(rf"hardware +. {re.escape(slow)} ", shown.stdout)


def test_plan_on_a_hardware(slow: str) -> None:
    result = invoke("plan", "gqa_decode", "--hardware", slow, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["budget_bytes"] == 2**19
    want = hardware.Hardware.from_toml(slow)
    assert report["hardware"] == {"name": slow, **want.to_dict()}
    shown = invoke("plan", "gqa_decode", "--hardware", slow, columns=200)
    assert shown.stdout.endswith(f"\nhardware: {slow}\n")
    small = invoke("plan", "gqa_decode", "--hardware", "a100_sm", "--json")
    assert small.exit_code == 1 and json.loads(small.stdout)["fits"] is False


def test_a_bad_hardware_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[pe_dma]\nlatncy_ns = 1\n", encoding="utf-8")
    for command in (["run", "gqa_decode", "--hardware"], ["plan", "gqa_decode",
                    "--hardware"], ["hardware"]):  # fmt: skip
        result = invoke(*command, str(file))
        assert result.exit_code == 1 and result.stdout == ""
        assert result.stderr == (
            f"KernelError: {file}:2: hardware has no pe_dma.latncy_ns. "
            "Allowed: bandwidth_gb_s, latency_ns. The nearest is latency_ns.\n"
        )
        error = json.loads(invoke(*command, str(file), "--json").stdout)["error"]
        assert (error["file"], error["line"]) == (str(file), 2)


def test_hardware_lists_the_profiles() -> None:
    result = invoke("hardware", columns=200)
    assert result.exit_code == 0
    found = json.loads(invoke("hardware", "--json").stdout)
    assert found["schema_version"] == SCHEMA_VERSION
    assert list(found["profiles"]) == list(PROFILES)
    for name, profile in found["profiles"].items():
        assert name in result.stdout and profile.pop("about") in result.stdout
        want = hardware.Hardware.from_profile(name).to_dict()
        assert profile == {"name": name, **want}


@pytest.mark.parametrize("name", PROFILES)
def test_hardware_prints_a_profile_with_its_sources(name: str, tmp_path: Path) -> None:
    result = invoke("hardware", name, columns=20)  # no line is broken
    file = tmp_path / "copy.toml"
    file.write_text(result.stdout, encoding="utf-8")
    want = hardware.Hardware.from_profile(name)
    assert hardware.Hardware.from_toml(file) == want
    assert result.stdout.count("  # assumed") + result.stdout.count("  # source: ") > 25
    found = json.loads(invoke("hardware", name, "--json").stdout)
    assert found["hardware"] == {"name": name, **want.to_dict()}


def test_hardware_prints_a_file_with_what_it_leaves_out(
    slow: str, tmp_path: Path
) -> None:
    file = tmp_path / "filled.toml"
    file.write_text(invoke("hardware", slow).stdout, encoding="utf-8")
    want = hardware.Hardware.from_toml(slow)
    assert hardware.Hardware.from_toml(file) == want
    assert "bandwidth_gb_s = 1\nlatency_ns = 500.0\n" in file.read_text("utf-8")
    found = json.loads(invoke("hardware", slow, "--json").stdout)
    assert found["hardware"] == {"name": slow, **want.to_dict()}


@pytest.mark.parametrize("arguments", [["--help"], ["hardware"], ["hardware", "x"]])
def test_no_jax_where_it_is_not_needed(arguments: list[str]) -> None:
    program = (
        "import sys; from kbjax import cli\n"
        f"try: cli.app({arguments})\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout or b"no hardware profile" in done.stderr


def test_python_m_kbjax_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kbjax", "kernels"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in NAMES)


@pytest.mark.parametrize("command", ["--help", "hardware", "hardware --json"])
def test_a_full_disk_at_standard_output(command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kbjax", *command.split()],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "cannot write to standard output: No space left on device\n"


def lines_of(kernel: str) -> list[str]:
    path = pages.ROOT / "kernels" / f"{kernel}.py"
    return path.read_text("utf-8").splitlines()


@pytest.mark.parametrize("columns", [20, 80, 400])
def test_a_narrow_terminal_loses_no_column_unsaid(columns: int) -> None:
    arguments = ("plan", "gqa_decode", "--context", "4096")
    text = invoke(*arguments, columns=columns).output
    kernel = lines_of("gqa_decode")
    loads = next(n for n, line in enumerate(kernel, 1) if "tl.load(q)" in line)
    assert "load float32[8,128]" in text and f"gqa_decode.py:{loads}" in text
    assert ("   source" in text) == (columns != 20)
    assert ("m, l = tl.full(..." in text) == (columns == 80)
    source = next(line for line in lines_of("_attention") if "m, l = tl.full" in line)
    assert (source.strip() in text) == (columns == 400)
