"""Hardware: costs by hand, TOML, and what is refused."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kbjax as kb
from kbjax.hardware import PeDma, PeGemm, PeLink, PeMath, PeTcm

UNUSUAL = kb.Hardware(
    pe_tcm=PeTcm(kernel_scratch_mb=0.5, scratch_base=4096, align=64),
    pe_dma=PeDma(bandwidth_gb_s=100.5, latency_ns=0),
    pe_gemm=PeGemm(8, 4, 2, clock_ghz=1.5, overhead_ns=0.25, rate={"bfloat16": 2}),
    pe_math=PeMath(lanes=3, clock_ghz=0.1, overhead_ns=7, cycles={"exp": 9, "a b": 2}),
    pe_link=PeLink(bandwidth_gb_s=1e-3, latency_ns=1e6),
)


# --- costs by hand -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "align", "wanted"),
    [(1, 16, 16), (16, 16, 16), (17, 16, 32), (0, 16, 0), (100, 64, 128), (5, 1, 5)],
)
def test_alignment(nbytes: int, align: int, wanted: int) -> None:
    assert PeTcm(align=align).aligned(nbytes) == wanted


def test_the_budget_is_a_mebibyte() -> None:
    tcm = kb.Hardware().pe_tcm
    assert (tcm.scratch_bytes, tcm.scratch_base, tcm.align) == (1 << 20, 0, 16)
    assert PeTcm(kernel_scratch_mb=0.5).scratch_bytes == 1 << 19


@pytest.mark.parametrize("unit", [PeDma, PeLink])
@pytest.mark.parametrize(
    ("nbytes", "wanted_ps"),
    [(0, 100_000), (1, 100_500), (64, 132_000), (1 << 20, 524_388_000)],
)
def test_a_transfer_is_latency_and_bytes_over_bandwidth(
    unit: Any, nbytes: int, wanted_ps: int
) -> None:
    assert unit(bandwidth_gb_s=2.0, latency_ns=100.0).transfer_ps(nbytes) == wanted_ps


def test_times_are_exact_integers_rounded_up() -> None:
    slow = PeDma(bandwidth_gb_s=0.3, latency_ns=0.1)
    assert slow.transfer_ps(3) == 100 + 10_000  # 0.1 and 0.3 are decimal
    assert slow.transfer_ps(1) == 100 + 3_334
    assert isinstance(slow.transfer_ps(1), int)


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "wanted_ps"),
    [
        (4, 8, 16, "float16", 1_000 + 5_000),  # one pass
        (5, 8, 16, "float16", 2_000 + 5_000),
        (4, 9, 17, "float16", 4_000 + 5_000),
        (8, 16, 32, "float16", 8_000 + 5_000),
        (8, 16, 32, "float32", 16_000 + 5_000),  # half the rate
        (1, 1, 1, "float32", 2_000 + 5_000),
        (1, 1, 1, "int8", 1_000 + 5_000),  # no rate: one pass a clock
    ],
)
def test_a_product_is_passes_of_the_array(
    m: int, n: int, k: int, dtype: str, wanted_ps: int
) -> None:
    gemm = PeGemm(4, 8, 16, overhead_ns=5, rate={"float16": 1, "float32": 0.5})
    assert gemm.compute_ps(m, n, k, dtype) == wanted_ps
    assert gemm.peak_flops_per_ns("float32") == 2 * 4 * 8 * 16 * 0.5
    faster = dataclasses.replace(gemm, clock_ghz=2.0)
    assert faster.compute_ps(m, n, k, dtype) == (wanted_ps - 5_000) // 2 + 5_000


@pytest.mark.parametrize(
    ("n", "op", "wanted_ps"),
    [
        (1, "copy", 3_000 + 500),
        (8, "copy", 3_000 + 500),
        (9, "copy", 3_000 + 1_000),
        (9, "exp", 3_000 + 4_000),
        (80, "unknown", 3_000 + 5_000),
    ],
)
def test_a_vector_op_is_overhead_and_vectors(n: int, op: str, wanted_ps: int) -> None:
    math = PeMath(lanes=8, clock_ghz=2.0, overhead_ns=3, cycles={"exp": 4})
    assert math.compute_ps(n, op) == wanted_ps
    assert math.compute_ns(n, op) == wanted_ps / 1000
    assert math.compute_ns(n) == math.compute_ns(n, "copy")


@given(st.integers(1, 10**9), st.integers(0, 10**6))
def test_more_work_never_costs_less(n: int, more: int) -> None:
    hardware = kb.Hardware()
    assert hardware.pe_dma.transfer_ps(n) <= hardware.pe_dma.transfer_ps(n + more)
    assert hardware.pe_math.compute_ps(n) <= hardware.pe_math.compute_ps(n + more)
    small = hardware.pe_gemm.compute_ps(n, 16, 16, "float32")
    assert small <= hardware.pe_gemm.compute_ps(n + more, 16, 16, "float32")


# --- TOML ----------------------------------------------------------------------------


def read(path: Path, text: str) -> kb.Hardware:
    file = path / "hardware.toml"
    file.write_text(text, encoding="utf-8")
    return kb.Hardware.from_toml(file)


@pytest.mark.parametrize("hardware", [kb.Hardware(), UNUSUAL], ids=["default", "odd"])
def test_toml_round_trip(tmp_path: Path, hardware: kb.Hardware) -> None:
    text = hardware.to_toml()
    found = read(tmp_path, text)
    if hardware is UNUSUAL:  # tables are merged into the defaults
        hardware = dataclasses.replace(
            hardware,
            pe_gemm=dataclasses.replace(
                hardware.pe_gemm, rate={**PeGemm().rate, **hardware.pe_gemm.rate}
            ),
            pe_math=dataclasses.replace(
                hardware.pe_math, cycles={**PeMath().cycles, **hardware.pe_math.cycles}
            ),
        )
    assert found == hardware
    assert kb.Hardware.from_toml(str(tmp_path / "hardware.toml")) == hardware
    assert read(tmp_path, found.to_toml()) == found


def test_the_toml_text_has_a_table_a_unit() -> None:
    tables = tomllib.loads(UNUSUAL.to_toml())
    assert set(tables) == {f.name for f in dataclasses.fields(kb.Hardware)}
    assert tables["pe_tcm"] == {
        "kernel_scratch_mb": 0.5, "scratch_base": 4096, "align": 64,
    }  # fmt: skip
    assert tables["pe_math"]["cycles"] == {"exp": 9, "a b": 2}


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    text = "[pe_dma]\nbandwidth_gb_s = 64\n[pe_math.cycles]\nexp = 2\n"
    found = read(tmp_path, text)
    assert found.pe_dma == PeDma(bandwidth_gb_s=64)
    assert found.pe_math.cycles == {**PeMath().cycles, "exp": 2}
    assert found.pe_gemm == PeGemm() and found.pe_tcm == PeTcm()
    assert read(tmp_path, "") == kb.Hardware()


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[pe_dmaa]\n", "pe_dmaa", "pe_dma"),
        ("[pe_dma]\nbandwith_gb_s = 1\n", "pe_dma.bandwith_gb_s", "bandwidth_gb_s"),
        ("[pe_tcm]\nkernel_mb = 2\n", "pe_tcm.kernel_mb", "kernel_scratch_mb"),
        ("[pe_math]\nlane = 2\n", "pe_math.lane", "lanes"),
        ("[pe_link]\nlatency = 2\n", "pe_link.latency", "latency_ns"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    tmp_path: Path, text: str, key: str, nearest: str
) -> None:
    with pytest.raises(kb.KernelError, match=f"no {key}\\.") as caught:
        read(tmp_path, text)
    assert caught.value.remedy == f"The nearest is {nearest}"


@pytest.mark.parametrize("text", ["pe_dma = 3", "[pe_math]\ncycles = 3"])
def test_a_table_is_a_table(tmp_path: Path, text: str) -> None:
    with pytest.raises(kb.KernelError, match="must be a table"):
        read(tmp_path, text)


# --- what is refused -----------------------------------------------------------------

_BAD: list[tuple[str, dict[str, Any]]] = [
    ("pe_tcm", {"kernel_scratch_mb": 0}),
    ("pe_tcm", {"scratch_base": -16}),
    ("pe_tcm", {"align": 0}),
    ("pe_dma", {"bandwidth_gb_s": 0}),
    ("pe_dma", {"bandwidth_gb_s": float("inf")}),
    ("pe_dma", {"latency_ns": -1}),
    ("pe_gemm", {"rows": 0}),
    ("pe_gemm", {"clock_ghz": -1.0}),
    ("pe_gemm", {"rate": {"float32": 0}}),
    ("pe_math", {"lanes": True}),
    ("pe_math", {"overhead_ns": float("nan")}),
    ("pe_math", {"cycles": {"exp": -1}}),
    ("pe_link", {"bandwidth_gb_s": "fast"}),
]


@pytest.mark.parametrize(("unit", "fields"), _BAD)
def test_values_out_of_range_are_refused(unit: str, fields: dict[str, Any]) -> None:
    default = getattr(kb.Hardware(), unit)
    with pytest.raises(kb.ShapeError, match=f"{unit}.* is out of range") as caught:
        kb.Hardware(**{unit: dataclasses.replace(default, **fields)})
    (field,) = fields
    assert field in str(caught.value) and caught.value.allowed is not None
    assert isinstance(caught.value, ValueError)


def test_scratch_base_is_aligned() -> None:
    with pytest.raises(kb.ShapeError, match="not a multiple of pe_tcm"):
        kb.Hardware(pe_tcm=PeTcm(scratch_base=8))


def test_a_file_with_a_bad_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kb.ShapeError, match=r"pe_dma\.latency_ns is out of range"):
        read(tmp_path, "[pe_dma]\nlatency_ns = -5\n")


def test_units_are_frozen() -> None:
    hardware = kb.Hardware()
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.pe_dma.latency_ns = 0  # type: ignore[misc]
