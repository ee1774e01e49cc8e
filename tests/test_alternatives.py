"""ADR-0063's alternatives: A1's kernel against `gqa_decode` and against counts made by
hand, and the study that sets them side by side."""

from __future__ import annotations

import csv
import importlib.util
import math
import runpy
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import kbjax as kb
from kbjax import cases, catalogue, cli
from kbjax.kernels.flash_hbm_round_trip import SMALL, widths
from kbjax.study_row import DOES_NOT_FIT
from kbjax.study_table import StudyTable
from tests import pages
from tests.footprints import assert_plan_is_of_the_bytes
from tests.helpers import assert_same_bits, assert_same_tcm

ROOT = Path(__file__).parent.parent
A1 = "flash_hbm_round_trip"


def small(name: str = A1, **sizes: Any) -> cases.Case:
    return catalogue.make(name, **{**SMALL, **sizes})


# --- A1: the kernel ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "scoped"),
    [
        ({"dtype": "bfloat16", "num_pes": 1, "context": 128}, False),
        ({"num_pes": 1, "query_heads": 2, "dim": 33, "context": 65}, True),
    ],
)
def test_a1_has_the_bits_of_gqa_decode(sizes: dict[str, Any], scoped: bool) -> None:
    """Also in a last tile, of one row."""
    case, want = small(**sizes, scoped=scoped), small("gqa_decode", **sizes)
    out, _ = case.call(*case.arrays)
    assert_same_bits(out, np.asarray(want.call(*want.arrays)))


def test_a1_exact_is_live_and_its_state_is_in_hbm() -> None:
    """Outputs, workspace and final bytes; o is acc / l of the workspace."""
    case = small(num_pes=1, context=128)
    live = case.call.run(*case.arrays)
    exact = case.call.run(*case.arrays, fidelity="exact")
    program = case.call.record(*case.arrays)
    assert_same_bits(live.outputs, tuple(map(np.asarray, exact.outputs)))
    assert_same_tcm(program, live.tcm.memory, exact.tcm.memory)
    assert_plan_is_of_the_bytes(case.call.plan(*case.arrays), exact.tcm)
    out, work = map(np.asarray, live.outputs)
    sizes = widths(dim=32, tile=64)
    ends = dict(zip(sizes, np.cumsum([*sizes.values()]), strict=True))
    held = {name: work[:, ends[name] - sizes[name] : ends[name]] for name in sizes}
    assert_same_bits(held["acc"] / held["l"], out)
    q, k, _ = map(np.asarray, case.arrays)
    most = (q.astype(np.float64) @ k.T / math.sqrt(32)).max(axis=1, keepdims=True)
    np.testing.assert_allclose(held["m"], most, rtol=1e-6)


# What one tile moves through the workspace, counted op by op: the scores (group, tile)
# 4 times there and 6 back, columns (group, 1) 9 and 13, numerators (group, D) 3 and 3.
SCORES, COLUMNS, NUMERATORS = 4 + 6, 9 + 13, 3 + 3


def a1_dma_bytes(context: int, tile: int, group: int, dim: int) -> int:
    """Of float32; a last tile moves only its keys."""
    tiles = math.ceil(context / tile)
    columns, numerators = COLUMNS * group, NUMERATORS * group * dim
    elements = context * (2 * dim + SCORES * group) + tiles * (columns + numerators)
    elements += group * dim  # q
    elements += 2 * group + group * dim  # the first state
    elements += group + group * dim  # l and acc at the end
    return 4 * (elements + group * dim)  # and o


@pytest.mark.parametrize("context", [5, 64, 300, 1024])
@pytest.mark.parametrize("scoped", [True, False])
def test_a1_moves_the_bytes_that_were_counted(context: int, scoped: bool) -> None:
    """In 40 transfers a tile; `gqa_decode` has 2. A scope moves nothing."""
    sizes = {"context": context, "num_pes": 1}
    case, plain = small(scoped=scoped, **sizes), small("gqa_decode", **sizes)
    logs = [each.call.op_log(*each.inputs.specs).columns() for each in (case, plain)]
    dma = [log["nbytes"][log["engine"] == "dma"] for log in logs]
    assert dma[0].sum() == a1_dma_bytes(context, 64, 4, 32)
    assert dma[1].sum() == 4 * 32 * (2 * 4 + 2 * context)
    tiles = math.ceil(context / 64)
    assert [len(each) for each in dma] == [40 * tiles + 7, 2 * tiles + 2]


def sliced(*elements: int) -> int:
    """Bytes that slices of so many float32 take."""
    return sum(-(-4 * n // 16) * 16 for n in elements)


def test_a1_takes_the_scratch_of_one_op_whatever_the_context() -> None:
    """q, two operands, a tile of keys, and the largest op: the transpose of the keys
    with the product that it feeds. Without scopes, every result of every tile."""
    group, tile, dim = 8, 128, 128
    persistent = sliced(group * dim, *[group * max(tile, dim)] * 2, tile * dim)
    for context in (1 << 10, 1 << 20):
        case = catalogue.make(A1, context=context, num_pes=1)
        plan = case.call.plan(*case.inputs.specs, vary=[])
        assert plan.peak_scratch_bytes == persistent + sliced(dim * tile, group * tile)
        assert plan.persistent_bytes == persistent
        bare = catalogue.make(A1, context=context, num_pes=1, scoped=False)
        took = bare.call.plan(*bare.inputs.specs, vary=[]).peak_scratch_bytes
        # trans; 4 tiles of scores; 8 columns and a bool one; 3 numerators.
        growth = sliced(
            dim * tile, *[group * tile] * 4, *[group] * 8, *[group * dim] * 3
        )
        growth += 16
        ends = sliced(group, group, group * dim) + 16 + sliced(*[group * dim] * 2)
        assert took == persistent + context // tile * growth + ends


def test_a1_runs_from_the_command_line() -> None:
    """Which compares the first output; here of less than a tile."""
    small = {**SMALL, "context": 5, "num_pes": 1}
    sizes = [f"--size={n}={v}" for n, v in small.items()]
    assert CliRunner().invoke(cli.app, ["run", A1, *sizes]).exit_code == 0


def test_a1_says_what_it_does_not_take() -> None:
    """A flag that is none, and a tile that the workspace was not made for."""
    with pytest.raises(kb.DTypeError, match="scoped"):
        small(scoped=1)
    case = small(num_pes=1)
    plan = case.call.plan(*case.inputs.specs, vary=["tile"])
    reasons = {each.value: each.reason for each in plan.candidates}
    assert reasons[64] == ""
    assert "Got 128 keys. Allowed: up to 64" in reasons[128]


# --- A2: the kernel ------------------------------------------------------------------


@pytest.mark.parametrize("tiles", [64, 140])
def test_a2_has_the_bits_of_gqa_decode_in_whole_tiles(tiles: int) -> None:
    """The most that are one run, and runs with a last one that is shorter."""
    sizes = {"num_pes": 1, "context": tiles * 16, "tile": 16}
    case, want = small("flash_composite", **sizes), small("gqa_decode", **sizes)
    out = case.call(*case.arrays)
    assert_same_bits(out, np.asarray(want.call(*want.arrays)))


@pytest.mark.parametrize("context", [5, 100, 128])
def test_a2_loads_keys_and_values_once(context: int) -> None:
    """For all heads of the group."""
    case = small("flash_composite", num_pes=1, context=context)
    summary = case.call.op_log(*case.inputs.specs).summary()
    moved = summary.bytes_loaded, summary.bytes_stored
    assert moved == (4 * 32 * (4 + 2 * context), 4 * 32 * 4)


# --- cases of several outputs --------------------------------------------------------


def test_outputs_past_the_references_are_not_compared() -> None:
    case = small(num_pes=1)
    want = case.reference(*map(np.asarray, case.arrays))
    nan = np.full(3, np.nan)
    assert case.error_of((want, nan)) == case.error_of([want]) == 0
    assert math.isnan(case.error_of((want * np.nan, nan)))
    pair = replace(case, reference=lambda *_: (want, np.ones(3)))
    assert pair.error_of((want, np.array([1.0, 1.5, 1.0]))) == 0.5
    assert pair.error_of((want, np.ones(3), nan)) == 0
    for outputs in ((want, nan), (want * np.nan, np.ones(3))):
        assert math.isnan(pair.error_of(outputs))
    with pytest.raises(kb.ShapeError, match="2 and 1"):
        pair.error_of(want)
    with pytest.raises(kb.ShapeError, match="differ in shape"):
        pair.error_of((want, np.ones(4)))


# --- the study -----------------------------------------------------------------------


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


study = loaded("study_alternatives")
MIB = 1 << 20


CONTEXTS = [256, 512, 1024, 2048, 4096]


@pytest.fixture(scope="module")
def table() -> StudyTable:
    """Of tiles of 64."""
    assert study.contexts_up_to(5000) == CONTEXTS
    made: StudyTable = study.study(CONTEXTS, 64, kb.Hardware())
    return made


@pytest.fixture(scope="module")
def limits() -> dict[str, int | None]:
    found: dict[str, int | None] = study.overflows(CONTEXTS, 64, kb.Hardware())
    return found


def figures_of(table: StudyTable, way: str) -> list[Any]:
    """At each of `CONTEXTS`."""
    mine = [row for row in table.rows if row.parameters["way"] == way]
    assert [row.parameters["context"] for row in mine] == CONTEXTS
    return [row.figures for row in mine]


def unscoped_bytes(context: int, tile: int, group: int = 8, dim: int = 128) -> int:
    """Peak of the sweep without scopes, a line a tile that it makes."""
    a_tile = (
        sliced(
            tile * dim,
            dim * tile,
            tile * dim,  # keys, their transpose, values
            *[group * tile] * 4,  # product, scaled, less the maximum, exp
            *[group] * 5,  # maximum, with the old, without -inf, old less new, exp
            *[group] * 3,  # l scaled, sum, l
            *[group * dim] * 3,  # acc scaled, product, acc
        )
        + 16
    )  # fmt: skip - a bool a row, whether the maximum is -inf
    ends = sliced(group * dim, group, group, group * dim, *[group * dim] * 2) + 16
    return context // tile * a_tile + ends


@pytest.mark.parametrize("budget", [1, 4, 16])
def test_unscoped_overflows_where_it_must(
    table: StudyTable, limits: dict[str, int | None], budget: int
) -> None:
    name = "unscoped" if budget == 1 else f"A3 {budget} MiB"
    tiles = range(64, 4097, 64)
    over = [context for context in tiles if unscoped_bytes(context, 64) > budget * MIB]
    assert limits[name] == (over[0] if over else None)
    for context, got in zip(CONTEXTS, figures_of(table, name), strict=True):
        took = unscoped_bytes(context, 64)
        assert (got["peak_scratch_bytes"], got["budget_bytes"]) == (took, budget * MIB)
        fits = took <= budget * MIB
        assert fits == (got["fit"] != DOES_NOT_FIT) == (got["total_ns"] is not None)
        # q, keys and values; o
        moved = (4 * 128 * (8 + 2 * context), 4 * 128 * 8) if fits else (None, None)
        assert (got["bytes_loaded"], got["bytes_stored"]) == moved
    assert bool(over) == (budget < 16)  # both kinds are met


def test_scopes_never_overflow(
    table: StudyTable, limits: dict[str, int | None]
) -> None:
    """Peaks are equal: `gqa_decode` splits only sweeps of more than 64 tiles."""
    for name in ("A1", "A2", "scoped", "prefetch"):
        mine = figures_of(table, name)
        assert len({got["peak_scratch_bytes"] for got in mine}) == 1
        assert all(got["total_ns"] for got in mine) and limits[name] is None
    pairs = zip(figures_of(table, "A1"), figures_of(table, "scoped"), strict=True)
    for context, (a1, scoped) in zip(CONTEXTS, pairs, strict=True):
        moved = a1["bytes_loaded"] + a1["bytes_stored"]
        assert moved == a1_dma_bytes(context, 64, 8, 128)
        assert a1["total_ns"] > 10 * scoped["total_ns"]


def test_the_table_of_the_readme() -> None:
    """At 1,048,576 tokens, in tiles of 128; ways in brackets are 16 MiB's."""
    readme = (pages.ROOT / "README.md").read_text("utf-8")
    table = readme[readme.index("| way | peak scratch, B") :].split("\n\n")[0]
    _, _, *lines = table.split("\n")
    ways = ["unscoped", "A1", "A2", "A3 4 MiB", "scoped", "prefetch"]
    context, hardware = 1 << 20, kb.Hardware()
    for way, line in zip(ways, lines, strict=True):
        got = study.row(0, way, context, 128, hardware, False).figures
        at = None  # what fits here fits below: scratch does not shrink with the context
        if not got["total_ns"]:
            at = study.first_overflow(study.WAYS[way], 128, hardware, context)
        expected = [f"{got['peak_scratch_bytes']:,}", f"{at:,}" if at else "never"]
        if at:
            expected += ["", "", ""]
        else:
            call = study.WAYS[way].case(context, 128, hardware)
            dma = call.call.op_log(*call.inputs.specs).summary().engines["dma"]
            moved = got["bytes_loaded"] + got["bytes_stored"]
            expected += [f"{got['total_ns'] / 1e3:,.0f}", f"{moved / 1e6:,.0f}",
                         f"{dma.commands:,}"]  # fmt: skip
        if way == "A3 4 MiB":
            larger = study.first_overflow(
                study.WAYS["A3 16 MiB"], 128, hardware, context
            )
            expected[1] += f" ({larger:,})"
        assert [cell.strip() for cell in line.split("|")[2:-1]] == expected, way


def test_each_way_has_a_line_of_its_dma(
    table: StudyTable, limits: dict[str, int | None]
) -> None:
    """At the largest context that fits; a way that never does has no figures."""

    def lines(table: StudyTable) -> dict[str, list[str]]:
        shown = study.comes_to(table, 64, kb.Hardware(), limits)
        columns = [[*column.cells] for column in shown.columns]
        return {way: line for way, *line in zip(*columns, strict=True)}

    ways = lines(table)
    moved = f"{a1_dma_bytes(4096, 64, 8, 128) / 1e6:,.1f}"
    assert ways["A1"][1:-1] == ["> 4,096", "4,096", moved, f"{40 * 64 + 7:,}"]
    assert ways["scoped"][3:-1] == ["4.2", f"{2 * 64 + 2}"]
    assert ways["unscoped"][1:3] == [f"{limits['unscoped']:,}", "512"]
    never = [
        row
        for row in table.rows
        if row.parameters["way"] != "unscoped" or row.figures["fit"] == DOES_NOT_FIT
    ]
    assert lines(replace(table, rows=never))["unscoped"][2:] == [""] * 4


@pytest.mark.parametrize("error", [1e-3, math.nan])
def test_a_wrong_output_is_told(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "WAYS", {"scoped": study.WAYS["scoped"]})
    monkeypatch.setattr(cases.Case, "error_of", lambda *_: error)
    wrong = invoked("--run", "256")
    assert wrong.exit_code == 1 and " fail " in wrong.output
    assert invoked().exit_code == 0  # none was run


def test_ctrl_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(cases.Case, "error_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.row(0, "scoped", 64, 64, kb.Hardware(), True)


@pytest.mark.parametrize("tile", [100, 300, 1000])
def test_the_bisection_finds_the_first_multiple_that_does_not_fit(tile: int) -> None:
    for name, most in (("unscoped", 2000), ("A1 bare", 2000), ("unscoped", 99)):
        way, on = study.WAYS[name], kb.Hardware()

        def fits(context: int, way: Any = way, on: Any = on) -> bool:
            case = way.case(context, tile, on)
            return case.call.plan(*case.inputs.specs, vary=[]).fits

        multiples = range(tile, most + tile, tile)  # the last is `most` or just past it
        over = [n for n in multiples if not fits(n)]
        want = over[0] if over else None
        assert study.first_overflow(way, tile, on, most) == want


def read(path: Path) -> list[dict[str, str]]:
    """Rows, from CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


ARGUMENTS = ["--small", "--max-context", "256"]


def invoked(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(study.main)
    return CliRunner().invoke(app, [*ARGUMENTS, *arguments])


def test_a_plot_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Is refused before the work; the rest does without."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    target = tmp_path / "a.csv"
    result = invoked("--plot", str(tmp_path / "a.png"), "--csv", str(target))
    assert result.exit_code == 1
    assert "pip install 'kbjax[plot]'" in result.stderr
    assert not list(tmp_path.iterdir())
    assert invoked("--csv", str(target)).exit_code == 0
    assert [row["context"] for row in read(target)] == ["256"] * len(study.WAYS)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--plot", "a.pdf"], 1, ".png, .svg"),
        (["--csv", "nowhere/a.csv"], 1, "Give the path of a file in a folder"),
        (["--hardware", "hbm9"], 1, "hbm9"),
        (["--tile", "0"], 2, "--tile"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], status: int, said: str, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = invoked(*arguments)
    assert result.exit_code == status
    assert said in result.stderr and "Traceback" not in result.stderr


def test_the_script_runs_as_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line of its docstring that is small; in this process, as `python` does it."""
    (line,) = (x for x in study.__doc__.splitlines() if "--small" in x)
    python, script, *words = shlex.split(line)
    assert python == "python"
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(script, run_name="__main__")
    shown, said = capsys.readouterr()
    assert done.value.code == 0, said
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    found = read(tmp_path / "a.csv")
    at = {(row["context"], row["way"]) for row in found}
    assert at == {(f"{n}", way) for n in CONTEXTS[:-1] for way in study.WAYS}
    for row in found:
        assert row["verdict"] == ("pass" if row["context"] == "256" else "")
        assert f"{int(row['peak_scratch_bytes']):,}" in shown
        assert (row["total_ns"] == "") == (row["fit"] == DOES_NOT_FIT)
        if row["total_ns"]:
            assert f"{float(row['total_ns']):,.1f}" in shown
