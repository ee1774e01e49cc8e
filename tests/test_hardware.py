"""Hardware: costs by hand, and what is refused. Files: see test_hardware_toml.py."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kbjax as kb
from kbjax import dtypes, ops
from kbjax.hardware import MATH_OPS, PeDma, PeGemm, PeLink, PeMath, PeTcm
from tests.hardwares import RATES, TIMES, UNUSUAL, hardwares

UNITS = [type(field.default) for field in dataclasses.fields(kb.Hardware)]

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
    rates = {"float16": 1, "float32": 0.5}
    gemm = PeGemm(rows=4, cols=8, depth=16, overhead_ns=5, rate=rates)
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
    """By the unit itself, and through `replace`."""
    default = getattr(kb.Hardware(), unit)
    makers: tuple[Callable[..., Any], ...] = (
        type(default), lambda **new: dataclasses.replace(default, **new),
    )  # fmt: skip
    for make in makers:
        with pytest.raises(kb.ShapeError, match=f"^{unit}.* is out of range") as caught:
            make(**fields)
        (field,) = fields
        assert caught.value.problem.startswith(f"{unit}.{field}")
        assert caught.value.allowed is not None and caught.value.got is not None
        assert isinstance(caught.value, ValueError)


ODD: list[Any] = [
    True, False, np.True_, "3", b"3", None, 3j, np.complex64(3), float("nan"),
    float("inf"), float("-inf"), -1, -1e-300, np.float32("nan"), np.float64("inf"),
    10**400, -(10**400), 10**5000, Fraction(1, 3), Decimal("0.5"), np.array(3.0), [3],
    {"exp": 1}, np.timedelta64(5, "ns"), object(),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_what_is_no_number_of_the_range_is_refused(value: Any) -> None:
    for kind in UNITS:
        for field in dataclasses.fields(kind):
            if isinstance(field.default, dict):
                (key, *_) = field.default
                given, path = {key: value}, f"{kind.unit}.{field.name}.{key}"
            else:
                given, path = value, f"{kind.unit}.{field.name}"
            with pytest.raises(kb.ShapeError) as caught:
                kind(**{field.name: given})
            assert caught.value.problem == f"{path} is out of range"
            assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PeDma(bandwidth_gb_s=0),
            "pe_dma.bandwidth_gb_s is out of range. Got 0. "
            "Allowed: finite numbers > 0.",
        ),
        (
            lambda: PeGemm(rows=1.0),  # type: ignore[arg-type]
            "pe_gemm.rows is out of range. Got 1.0. "
            "Allowed: whole numbers from 1 to 2**31 - 1.",
        ),
        (
            lambda: PeTcm(scratch_base=8),
            "pe_tcm.scratch_base is not a multiple of pe_tcm.align. Got 8 and 16. "
            "Allowed: multiples of 16.",
        ),
        (
            lambda: PeMath(cycles={"softmx": 2}),
            "hardware has no pe_math.cycles.softmx. "
            f"Allowed: {', '.join(MATH_OPS)}. The nearest is softmax.",
        ),
        (
            lambda: PeGemm(rate={"floa16": 2}),
            "hardware has no pe_gemm.rate.floa16. "
            f"Allowed: {', '.join(dtypes.TABLE)}. The nearest is float16.",
        ),
        (
            lambda: PeMath(cycles=[("exp", 2)]),  # type: ignore[arg-type]
            "pe_math.cycles must be a table. Got [('exp', 2)]. "
            "Allowed: a table of cycles a vector by op.",
        ),
        (
            lambda: kb.Hardware(pe_dma=PeLink()),  # type: ignore[arg-type]
            "pe_dma is a kbjax.hardware.PeDma. "
            "Got PeLink(bandwidth_gb_s=64.0, latency_ns=1000.0).",
        ),
        (
            lambda: PeDma(bandwidth_gb_s=5e-324).transfer_ps(1),
            "one command takes pe_dma too long to be timed. Got about 1e326 ps. "
            "Allowed: up to 2**63 - 1 ps, 106 days. Change pe_dma.bandwidth_gb_s.",
        ),
    ],
)
def test_messages(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(kb.KbjaxError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda: PeTcm(kernel_scratch_mb=2**-20 / 2), "a byte"),
        (lambda: PeTcm(kernel_scratch_mb=2**43), "ends below address 2**63"),
        (lambda: PeTcm(kernel_scratch_mb=1e300), "ends below address 2**63"),
        (lambda: PeTcm(scratch_base=2**63 - 2**20), "ends below address 2**63"),
        (lambda: PeTcm(align=2**31), "2**31 - 1"),
        (lambda: PeDma(latency_ns=1e16), "2**63 - 1 ps"),
    ],
)
def test_the_largest_and_the_smallest(make: Callable[[], Any], allowed: str) -> None:
    with pytest.raises(kb.ShapeError) as caught:
        make()
    assert allowed in str(caught.value.allowed)


def test_what_is_just_in_range_is_taken() -> None:
    assert PeTcm(kernel_scratch_mb=2**-20).scratch_bytes == 1
    assert PeTcm(kernel_scratch_mb=2**43 - 1).scratch_bytes == 2**63 - 2**20
    assert PeTcm(scratch_base=2**63 - 2**20 - 16).scratch_base % 16 == 0
    assert PeGemm(rows=2**31 - 1).compute_ps(2**31, 1, 1, "float16") == 34_000
    assert PeDma(latency_ns=9e15).transfer_ps(0) == 9 * 10**18


# --- keyword-only, frozen, hashable --------------------------------------------------


@pytest.mark.parametrize("kind", [*UNITS, kb.Hardware])
def test_fields_are_keyword_only(kind: Any) -> None:
    first = dataclasses.fields(kind)[0].default
    with pytest.raises(TypeError, match="positional"):
        kind(first)


@pytest.mark.parametrize("kind", UNITS)
def test_fields_have_their_unit_in_their_name_and_a_range(kind: Any) -> None:
    counts = {"rows", "cols", "depth", "lanes", "rate", "cycles"}
    addresses = {"scratch_base", "align"}
    for field in dataclasses.fields(kind):
        assert field.metadata["allowed"].words
        assert field.name in counts | addresses or field.name.endswith(
            ("_mb", "_gb_s", "_ns", "_ghz")
        )


def test_units_are_frozen() -> None:
    hardware = kb.Hardware()
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.pe_dma.latency_ns = 0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.pe_dma = PeDma()  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.__setitem__("exp", 1),
        lambda table: table.__delitem__("exp"),
        lambda table: table.update(exp=1),
        lambda table: table.setdefault("add", 1),
        lambda table: table.pop("exp"),
        lambda table: table.popitem(),
        lambda table: table.clear(),
        lambda table: table.__ior__({"exp": 1}),
    ],
)
def test_tables_are_frozen(change: Callable[[Any], Any]) -> None:
    unit = PeMath()
    before = dict(unit.cycles)
    with pytest.raises(TypeError, match="frozen"):
        change(unit.cycles)
    assert unit.cycles == before and len(before) > 1


def test_tables_are_copies() -> None:
    cycles = {"exp": 3}
    unit = PeMath(cycles=cycles)
    cycles["exp"] = 5
    assert unit.cycles == {"exp": 3}
    assert {**unit.cycles, "log": 2} == {"exp": 3, "log": 2}
    plain = unit.cycles.copy()  # type: ignore[attr-defined]
    plain["exp"] = 7
    assert unit.cycles["exp"] == 3


@given(hardwares())
def test_equal_hardware_has_one_hash(hardware: kb.Hardware) -> None:
    again = kb.Hardware(**{
        unit.name: dataclasses.replace(getattr(hardware, unit.name))
        for unit in dataclasses.fields(hardware)
    })  # fmt: skip
    for same in (
        again,
        copy.deepcopy(hardware),
        pickle.loads(pickle.dumps(hardware)),
        dataclasses.replace(hardware),
    ):
        assert same == hardware and hash(same) == hash(hardware)
    assert {hardware: 1}[again] == 1


def test_different_hardware_is_not_equal() -> None:
    different = {
        kb.Hardware(),
        UNUSUAL,
        kb.Hardware(pe_dma=PeDma(latency_ns=1)),
        kb.Hardware(pe_math=PeMath(cycles={})),
        kb.Hardware(pe_gemm=PeGemm(rate={})),
    }
    assert len(different) == 5
    assert kb.Hardware(pe_dma=PeDma(bandwidth_gb_s=256)) in different  # 256 == 256.0


def test_it_is_plain_data() -> None:
    for plain in (UNUSUAL.to_dict(), dataclasses.asdict(UNUSUAL)):
        assert json.loads(json.dumps(plain)) == plain
    assert list(UNUSUAL.to_dict()) == [f.name for f in dataclasses.fields(kb.Hardware)]
    assert UNUSUAL.to_dict()["pe_math"] == {
        "lanes": 3, "clock_ghz": 0.1, "overhead_ns": 7,
        "cycles": {"exp": 9, "copy": 2},
    }  # fmt: skip
    assert type(UNUSUAL.to_dict()["pe_math"]["cycles"]) is dict


# --- numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.1), 0.1),
        (np.float16(0.5), 0.5),
        (np.int8(3), 3),
        (np.uint64(2**63), 2**63),
        (7, 7),
        (0.1, 0.1),
    ],
)
def test_numpy_scalars_are_taken_by_value(value: Any, number: float) -> None:
    for found in (
        PeDma(bandwidth_gb_s=value).bandwidth_gb_s,
        PeGemm(rate={"int8": value}).rate["int8"],
    ):
        assert found == number and type(found) is type(number)


def test_numpy_integers_are_counts() -> None:
    assert type(PeGemm(rows=np.int64(8)).rows) is int  # type: ignore[arg-type]


def exact(number: float) -> Fraction:
    return Fraction(Decimal(repr(number)))


@given(RATES, TIMES, st.integers(0, 2**40))
def test_transfers_are_exact(rate: float, latency: float, nbytes: int) -> None:
    want = math.ceil(1000 * (exact(latency) + nbytes / exact(rate)))
    for kind in (PeDma, PeLink):
        unit = kind(bandwidth_gb_s=rate, latency_ns=latency)
        if want < 2**63:
            assert unit.transfer_ps(nbytes) == want
        else:
            with pytest.raises(kb.ShapeError, match="too long"):
                unit.transfer_ps(nbytes)


@given(RATES, RATES, TIMES, st.integers(1, 2**40))
def test_ops_are_exact(rate: float, clock: float, overhead: float, n: int) -> None:
    over, vectors = math.ceil(1000 * exact(overhead)), -(-n // 8)
    unit = PeMath(lanes=8, clock_ghz=clock, overhead_ns=overhead, cycles={"exp": rate})
    gemm = PeGemm(
        rows=8, cols=1, depth=1, clock_ghz=clock, overhead_ns=overhead,
        rate={"int8": rate},
    )  # fmt: skip
    cases: list[tuple[Callable[[], int], Fraction]] = [
        (lambda: unit.compute_ps(n, "exp"), vectors * exact(rate)),
        (lambda: unit.compute_ps(n), Fraction(vectors)),
        (lambda: gemm.compute_ps(n, 1, 1, "int8"), vectors / exact(rate)),
        (lambda: gemm.compute_ps(n, 1, 1, "bool"), Fraction(vectors)),
    ]
    for cost, clocks in cases:
        want = over + math.ceil(1000 * clocks / exact(clock))
        if want < 2**63:
            assert cost() == want
        else:
            with pytest.raises(kb.ShapeError, match="too long"):
                cost()


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9, 1e300, 10**300])
def test_extreme_rates_end_in_a_time_or_a_kbjax_error(rate: float) -> None:
    hardware = kb.Hardware(
        pe_dma=PeDma(bandwidth_gb_s=rate),
        pe_gemm=PeGemm(clock_ghz=rate, rate={"float32": rate}),
        pe_math=PeMath(clock_ghz=rate, cycles={"exp": rate}),
    )
    costs: list[Callable[[], float]] = [
        lambda: hardware.pe_dma.transfer_ps(64),
        lambda: hardware.pe_gemm.compute_ps(1, 1, 1, "float32"),
        lambda: hardware.pe_math.compute_ns(1),
        lambda: hardware.pe_math.compute_ns(1, "exp"),
    ]
    for cost in costs:
        try:
            assert cost() > 0
        except kb.ShapeError as error:
            assert rate <= 1e-9 and "too long" in error.problem
    assert hardware.pe_gemm.peak_flops_per_ns("float32") >= 0


@pytest.mark.parametrize(
    ("mb", "wanted"),
    [(0.7, 734_003), (1 / 3, 349_525), (3 / 2**20, 3), (1, 2**20), (1.5, 1_572_864)],
)
def test_what_is_left_of_a_byte_is_dropped(mb: float, wanted: int) -> None:
    assert PeTcm(kernel_scratch_mb=mb).scratch_bytes == wanted
    assert PeTcm(kernel_scratch_mb=wanted / 2**20).scratch_bytes == wanted


def test_the_rest_beyond_the_alignment_is_not_used() -> None:
    import jax

    shape = jax.ShapeDtypeStruct((4,), "float32")

    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + 1.0)  # two slices of 16 bytes

    def recorded(scratch_bytes: int) -> int:
        tcm = PeTcm(kernel_scratch_mb=scratch_bytes / 2**20)
        call = kb.kernel_call(kernel, shape, hardware=kb.Hardware(pe_tcm=tcm))
        return call.record(shape).peak_scratch

    assert recorded(32) == recorded(47) == 32
    with pytest.raises(kb.ScratchOverflowError):
        recorded(31)


def test_the_ops_with_cycles_are_those_of_the_op_table() -> None:
    """A new row of the vector engine in kbjax/ops.py has its name in
    kbjax.hardware.MATH_OPS too, so that `cycles` may have it."""
    rows = [row.name for row in ops.TABLE.values() if row.engine == "math"]
    assert sorted(MATH_OPS) == sorted([*rows, "copy"])
    assert PeMath(cycles=dict.fromkeys(MATH_OPS, 2)).compute_ps(1, "copy") == 18_000
    rates = dict.fromkeys(dtypes.TABLE, 2)
    assert PeGemm(rate=rates).compute_ps(1, 1, 1, "bool") == 32_500


@pytest.mark.parametrize("given", ["hbm3_channel", {"pe_dma": {}}, kb.Hardware])
def test_what_is_no_hardware_is_refused_by_the_call(given: Any) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x))

    tile = jax.ShapeDtypeStruct((4, 4), "float32")
    with pytest.raises(kb.KernelError, match=r"is a kbjax.Hardware.*from_profile"):
        kb.kernel_call(kernel, tile, hardware=given)


def test_a_cost_of_what_cannot_be() -> None:
    with pytest.raises(kb.ShapeError, match="no -1 bytes"):
        PeDma().transfer_ps(-1)
    with pytest.raises(kb.ShapeError, match="no -5 elements"):
        PeMath().compute_ns(-5)
