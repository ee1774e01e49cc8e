"""The shape of the package: what imports what, sizes, docstrings, public names."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import kbjax as kb

PACKAGE = Path(kb.__file__).parent
MOST_LINES = 400

# Module -> the kbjax modules that it imports. A new edge is a decision: write it here.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"call", "context", "errors", "hardware", "tcm"},
    "__main__": {"cli"},
    "abrupt": set(),
    "aliases": {
        "emitter",
        "errors",
        "expr",
        "handle",
        "refs",
        "signatures",
        "site",
        "views",
    },
    "allocator": {
        "domain",
        "dtypes",
        "errors",
        "expr",
        "footprint",
        "hardware",
        "site",
    },
    "arguments": {"dtypes", "errors", "hardware", "site"},
    "blocks": {"allocator", "errors", "expr", "index", "recorder", "site"},
    "buffers": {"dtypes", "errors", "futures", "handle", "refs", "site", "views"},
    "bytecode": set(),
    "call": {
        "allocator",
        "arguments",
        "context",
        "data_phase",
        "disjoint",
        "dtypes",
        "errors",
        "expr",
        "fold",
        "hardware",
        "mesh",
        "messages",
        "op_log",
        "plan",
        "program",
        "recorder",
        "replay",
        "site",
        "sizes",
        "tensors",
        "views",
    },
    "carried": {
        "bytecode",
        "errors",
        "expr",
        "handle",
        "index",
        "program",
        "reach",
        "site",
        "views",
    },
    "cases": {"call", "comparison", "cores", "dtypes", "errors", "names"},
    "catalogue": {"cases", "errors", "hardware", "names", "shipped", "user_files"},
    "checks": {
        "cases",
        "comparison",
        "divergence",
        "errors",
        "laws",
        "program",
        "subject",
        "tcm",
    },
    "chrome": {"log_view", "tracks"},
    "cli": {
        "catalogue",
        "cli_doctor",
        "cli_fuzz",
        "cli_report",
        "cli_study",
        "hardware",
        "hardware_toml",
        "names",
        "options",
        "output",
        "screens",
        "trace",
    },
    "cli_doctor": {"doctor", "options"},
    "cli_fuzz": {"fuzz", "options"},
    "cli_report": {
        "options",
        "output",
        "report",
        "report_page",
        "report_study",
        "study_store",
    },
    "cli_study": {
        "options",
        "study_curves",
        "study_run",
        "study_show",
        "study_source",
        "study_store",
    },
    "columns": {"costs", "expr", "program", "refs", "rolled"},
    "comparison": {"dtypes", "errors"},
    "composites": {
        "allocator",
        "errors",
        "expr",
        "names",
        "program",
        "recorder",
        "refs",
        "site",
        "transfers",
        "views",
    },
    "context": {
        "blocks",
        "buffers",
        "composites",
        "dtypes",
        "emitter",
        "errors",
        "expr",
        "futures",
        "handle",
        "index",
        "names",
        "ops",
        "program",
        "refs",
        "site",
        "surface",
        "views",
    },
    "cores": set(),
    "costs": {"dtypes", "expr", "hardware", "ops", "program", "refs"},
    "coverage": {"domain", "expr", "footprint", "program", "refs"},
    "critical": {"forms", "rolled"},
    "data_phase": {
        "dtypes",
        "expr",
        "hbm",
        "inbox",
        "layouts",
        "liveness",
        "mesh",
        "messages",
        "ops",
        "program",
        "refs",
        "rounding",
        "sealing",
        "state",
        "tcm",
        "tiles",
    },
    "disjoint": {"domain", "errors", "expr", "program", "refs"},
    "divergence": {"comparison", "subject", "watched"},
    "doctor": {"catalogue", "cores", "testing"},
    "domain": {"errors", "expr", "site"},
    "dtypes": {"errors"},
    "elementary": {"sealing"},
    "emitter": {
        "domain",
        "dtypes",
        "errors",
        "expr",
        "futures",
        "handle",
        "index",
        "ops",
        "program",
        "queues",
        "recorder",
        "refs",
        "signatures",
        "site",
        "usage",
        "views",
    },
    "errors": {"overflow", "site"},
    "exports": {"extras", "log_view", "output"},
    "expr": set(),
    "extras": {"errors"},
    "fingerprint": {"expr", "program", "refs"},
    "flight": {"domain", "errors", "expr", "program", "refs", "site"},
    "fma": {"sealing"},
    "fold": {
        "domain",
        "expr",
        "fingerprint",
        "footprint",
        "iterations",
        "program",
        "refs",
        "site",
    },
    "footprint": {"domain", "dtypes", "expr", "overflow", "site"},
    "forms": set(),
    "futures": {"errors", "flight", "handle", "site"},
    "fuzz": {
        "catalogue",
        "checks",
        "errors",
        "extras",
        "hardware",
        "testing",
        "user_files",
    },
    "handle": {"allocator", "dtypes", "errors", "expr", "footprint", "refs", "site"},
    "hardware": {"dtypes", "errors", "hardware_toml", "names", "ranges"},
    "hardware_toml": {"errors", "names", "ranges", "site"},
    "hbm": {"refs"},
    "inbox": {"sealing"},
    "index": {"domain", "errors", "expr", "site"},
    "iterations": {"fingerprint", "program"},
    "laws": {"costs", "expr", "op_log", "program"},
    "layouts": {"ops", "program", "refs"},
    "levels": {"expr", "forms", "program", "steady"},
    "liveness": {"expr", "program"},
    "log_view": {"program", "summary"},
    "machine": {
        "costs",
        "expr",
        "forms",
        "levels",
        "mail",
        "program",
        "rolled",
        "scratch_times",
        "steady",
        "strides",
    },
    "mail": set(),
    "mesh": {"errors"},
    "messages": {"dtypes", "errors", "expr", "program"},
    "names": {"errors"},
    "notebook": set(),
    "op_log": {
        "columns",
        "costs",
        "errors",
        "exports",
        "log_view",
        "notebook",
        "output",
        "program",
        "rolled",
        "steady",
        "summary",
        "timing",
        "trace",
    },
    "open_blocks": {
        "allocator",
        "carried",
        "coverage",
        "domain",
        "errors",
        "expr",
        "flight",
        "handle",
        "program",
        "queues",
        "refs",
        "site",
        "usage",
        "written",
    },
    "ops": {"dtypes", "signatures"},
    "options": {
        "cases",
        "catalogue",
        "dtypes",
        "errors",
        "hardware",
        "names",
        "shipped",
        "user_files",
    },
    "output": {"errors"},
    "overflow": {"site"},
    "placement": {"errors"},
    "plan": {
        "domain",
        "errors",
        "expr",
        "footprint",
        "notebook",
        "ops",
        "overflow",
        "program",
        "site",
        "sizes",
    },
    "products": {"layouts", "sealing"},
    "program": {
        "domain",
        "dtypes",
        "expr",
        "footprint",
        "hardware",
        "notebook",
        "refs",
        "site",
    },
    "queues": {"allocator", "expr", "site"},
    "ranges": {"errors", "names"},
    "reach": {"dtypes", "handle", "index", "site", "views"},
    "recorder": {
        "allocator",
        "bytecode",
        "carried",
        "domain",
        "errors",
        "expr",
        "footprint",
        "index",
        "open_blocks",
        "program",
        "queues",
        "site",
        "usage",
    },
    "reductions": {"sealing"},
    "refs": {"dtypes", "expr"},
    "replay": {
        "data_phase",
        "errors",
        "mesh",
        "placement",
        "program",
        "recorder",
        "tcm",
        "tensors",
        "unrolled",
    },
    "report": {
        "call",
        "op_log",
        "output",
        "plan",
        "report_figures",
        "report_overflow",
        "report_page",
        "report_source",
        "report_style",
        "summary",
        "tcm_map",
    },
    "report_engines": {"log_view", "report_style", "site", "tcm_map", "time_axis"},
    "report_figures": {
        "report_engines",
        "report_memory",
        "site",
        "tcm_map",
        "time_axis",
    },
    "report_memory": {"report_style", "site", "tcm_map", "time_axis"},
    "report_overflow": {"errors", "overflow", "plan"},
    "report_page": {"extras"},
    "report_source": {"plan", "site", "summary", "tcm_map"},
    "report_study": {
        "output",
        "report_page",
        "report_style",
        "study_curves",
        "study_table",
    },
    "report_style": set(),
    "rolled": {"forms"},
    "rounding": {
        "dtypes",
        "elementary",
        "fma",
        "layouts",
        "products",
        "reductions",
        "sealing",
    },
    "scratch_times": {"forms"},
    "screens": {"names", "plan"},
    "sealing": set(),
    "shipped": set(),
    "signatures": {"domain", "dtypes", "errors", "expr", "refs", "site"},
    "site": set(),
    "sizes": set(),
    "state": {"inbox", "messages", "program", "tiles"},
    "steady": {"forms", "scratch_times", "site"},
    "strides": {"expr"},
    "study": {"errors", "hardware", "names", "ranges", "study_axes"},
    "study_axes": {"errors", "names"},
    "study_curves": {"errors", "names", "study_row", "study_table"},
    "study_owner": set(),
    "study_plots": {
        "errors",
        "extras",
        "names",
        "output",
        "study_curves",
        "study_table",
    },
    "study_point": {
        "catalogue",
        "errors",
        "study",
        "study_status",
        "study_versions",
        "user_files",
    },
    "study_pools": {"errors", "extras"},
    "study_row": {"study_status"},
    "study_run": {
        "cores",
        "errors",
        "study",
        "study_point",
        "study_pools",
        "study_status",
        "study_store",
        "study_table",
        "study_versions",
    },
    "study_schema": {
        "errors",
        "names",
        "study",
        "study_axes",
        "study_row",
        "study_status",
        "study_table",
    },
    "study_show": {
        "errors",
        "names",
        "output",
        "study",
        "study_plots",
        "study_run",
        "study_table",
        "study_versions",
    },
    "study_source": {
        "errors",
        "hardware",
        "hardware_toml",
        "names",
        "shipped",
        "study",
        "user_files",
    },
    "study_status": set(),
    "study_store": {
        "errors",
        "output",
        "study",
        "study_owner",
        "study_row",
        "study_schema",
        "study_status",
        "study_table",
    },
    "study_table": {
        "extras",
        "names",
        "notebook",
        "output",
        "study_row",
        "study_status",
        "study_versions",
    },
    "study_versions": {"study_row"},
    "subject": {
        "call",
        "data_phase",
        "dtypes",
        "op_log",
        "program",
        "replay",
        "watched",
    },
    "summary": {"costs", "critical", "notebook", "program", "rolled", "timing"},
    "surface": {"errors", "site"},
    "tcm": {"dtypes", "errors", "hardware", "overflow"},
    "tcm_map": {"expr", "footprint", "log_view", "program", "refs", "site", "trace"},
    "tensors": {"arguments", "errors", "program"},
    "testing": {"call", "cases", "checks", "errors", "names", "subject"},
    "tiles": {"dtypes", "expr", "program", "refs", "sealing", "tcm"},
    "time_axis": set(),
    "timing": {
        "costs",
        "errors",
        "expr",
        "machine",
        "mail",
        "program",
        "rolled",
        "site",
        "steady",
    },
    "trace": {"chrome", "errors", "log_view", "output", "tracks"},
    "tracks": {"log_view"},
    "transfers": {
        "aliases",
        "buffers",
        "dtypes",
        "emitter",
        "errors",
        "expr",
        "flight",
        "futures",
        "handle",
        "program",
        "queues",
        "refs",
        "signatures",
        "site",
        "views",
    },
    "unrolled": {"expr", "fingerprint", "fold", "iterations", "program", "site"},
    "usage": {
        "abrupt",
        "allocator",
        "carried",
        "domain",
        "errors",
        "expr",
        "handle",
        "queues",
        "refs",
        "site",
    },
    "user_files": {"errors", "site"},
    "views": {
        "domain",
        "dtypes",
        "errors",
        "expr",
        "handle",
        "index",
        "program",
        "refs",
        "site",
    },
    "watched": {"data_phase", "hbm", "program", "state", "tiles"},
    "written": {"domain", "expr", "refs"},
}
MODULES = sorted(MAY_IMPORT)
NO_JAX = ("timing", "op_log")
RATES = ("pe_dma", "pe_gemm", "pe_math", "pe_link", "transfer_ps", "compute_ps")


def imported(tree: ast.AST) -> tuple[set[str], set[str]]:
    """(kbjax modules, other top-level packages) that a module's source imports."""
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            names = [node.module]
            if node.module == "kbjax":
                names = [f"kbjax.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "kbjax":
                ours.add(rest.partition(".")[0] or "__init__")
            else:
                others.add(top)
    return ours, others


def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))


def closure(modules: Iterable[str]) -> set[str]:
    """The modules, and all that they import, directly or not."""
    found: set[str] = set()
    todo = list(modules)
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += MAY_IMPORT[module]
    return found


def loads_jax(statement: str) -> bool:
    """Whether a fresh interpreter has imported JAX after `statement`."""
    code = f"{statement}\nimport sys\nprint('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ("True", "False"), done.stdout
    return done.stdout.strip() == "True"


# --- imports -------------------------------------------------------------------------


def test_the_table_names_every_module() -> None:
    assert set(MODULES) == {path.stem for path in PACKAGE.glob("*.py")}


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_those_of_the_table(module: str) -> None:
    ours, _ = imported(parsed(module))
    extra, unused = ours - MAY_IMPORT[module], MAY_IMPORT[module] - ours
    assert not extra, f"{module}.py may not import {sorted(extra)}"
    assert not unused, f"the table lets {module}.py import {sorted(unused)} for nothing"


def test_imports_point_one_way() -> None:
    order = list(graphlib.TopologicalSorter(MAY_IMPORT).static_order())
    assert set(order) == set(MODULES)


def test_both_import_forms_are_seen() -> None:
    source = (
        "import kbjax.tcm\nfrom kbjax import ops, expr\nfrom kbjax.dtypes import of\n"
        "import jax.numpy as jnp\nfrom numpy import array\nimport kbjax"
    )
    ours, others = imported(ast.parse(source))
    assert ours == {"tcm", "ops", "expr", "dtypes", "__init__"}
    assert others == {"jax", "numpy"}


def test_the_timing_phase_imports_no_jax() -> None:
    for module in closure(NO_JAX):
        _, others = imported(parsed(module))
        assert not others & {"jax", "jaxlib", "chex"}, f"{module}.py imports JAX"


@pytest.mark.parametrize("module", NO_JAX)
def test_the_timing_phase_loads_no_jax(module: str) -> None:
    assert not loads_jax(f"import kbjax.{module}")


def test_loading_jax_is_noticed() -> None:
    assert loads_jax("import kbjax.tcm")


def test_import_kbjax_loads_no_jax() -> None:
    assert not loads_jax("import kbjax; kbjax.Hardware(); kbjax.KbjaxError")


@pytest.mark.parametrize("module", ["data_phase", "tcm"])
def test_the_data_phase_sees_no_times(module: str) -> None:
    reached = closure([module])
    assert not reached & {"timing", "op_log", "call"}
    tree = parsed(module)
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {*RATES, "PeDma", "PeGemm", "PeMath", "PeLink"}


def test_the_names_of_rates_are_those_of_the_hardware() -> None:
    hardware = kb.Hardware()
    for name in RATES:
        units = (hardware, *vars(hardware).values())
        assert any(hasattr(unit, name) for unit in units), f"no rate {name}"


def test_timing_sees_no_values() -> None:
    assert not closure(NO_JAX) & {"data_phase", "tcm", "hbm", "rounding"}


# --- sizes, docstrings, names --------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_small_and_say_what_they_are(module: str) -> None:
    lines = (PACKAGE / f"{module}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES, f"{module}.py has {len(lines)} lines"
    assert ast.get_docstring(parsed(module)), f"{module}.py has no docstring"


@pytest.mark.parametrize("module", MODULES)
def test_public_classes_are_described(module: str) -> None:
    for node in parsed(module).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}.{node.name} has no docstring"


@pytest.mark.parametrize("name", kb.__all__)
def test_public_names_exist_and_are_described(name: str) -> None:
    found = getattr(kb, name)
    own = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    assert own and not own.startswith(f"{name}("), f"kb.{name} has no docstring"


def test_public_names_of_the_package() -> None:
    assert len(kb.__all__) == len(set(kb.__all__))
    assert set(kb.__all__) <= set(dir(kb))
    with pytest.raises(AttributeError, match="no attribute 'kernel_cal'"):
        _ = kb.kernel_cal


def test_files_beside_the_modules_are_packaged() -> None:
    """What is read at run time, profiles and templates, is in a wheel too."""
    text = (PACKAGE.parent / "pyproject.toml").read_text("utf-8")
    globs = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["kbjax"]
    packaged = {path for pattern in globs for path in PACKAGE.glob(pattern)}
    there = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert packaged == there and len(there) > 5


def test_no_module_shadows_a_public_name() -> None:
    assert not set(kb.__all__) & set(MODULES)


@pytest.mark.parametrize(
    "name", [name for name in dir(kb.TLContext) if not name.startswith("_")]
)
def test_tl_methods_are_described(name: str) -> None:
    assert getattr(kb.TLContext, name).__doc__, f"tl.{name} has no docstring"


@pytest.mark.parametrize(
    "name",
    """load store empty zeros full arange copy_to scratch_scope ds maximum minimum where
    exp exp2 log sqrt rsqrt sum max softmax dot trans cast broadcast_to reshape
    expand_dims range static_range program_id num_programs cdiv""".split(),
)
def test_tl_has(name: str) -> None:
    assert callable(getattr(kb.TLContext, name))
