"""The op_log: columns, rows, summary, by hand and against the program."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import kbjax as kb
from kbjax import op_log
from kbjax.hardware import PeDma, PeGemm, PeMath, PeTcm
from kbjax.op_log import OpLog, OpRecord

COLUMNS = (
    "op pe engine op_kind op_name start_ns end_ns shape dtype nbytes flops src_addrs "
    "dst_addr scope_depth cursor_bytes loop file line"
).split()
HARDWARE = kb.Hardware(
    pe_tcm=PeTcm(scratch_base=4096),
    pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=10),
    pe_gemm=PeGemm(
        rows=4, cols=4, depth=4, clock_ghz=1, overhead_ns=5, rate={"float32": 1}
    ),
    pe_math=PeMath(lanes=4, clock_ghz=1, overhead_ns=2, cycles={}),
)


def tensor(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def log_of(
    kernel: Callable[..., None], *inputs: Any, out: Any = None, **options: Any
) -> OpLog:
    options.setdefault("hardware", HARDWARE)
    return kb.kernel_call(kernel, out or tensor(4, 4), **options).op_log(*inputs)


def _sweep(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((4, 4))
    for i in tl.range(2):
        with tl.scratch_scope():
            t = tl.load(x[i])
            tl.copy_to(total, total + tl.dot(t, tl.trans(t)))
    tl.store(o, total)


def sweep() -> OpLog:
    return log_of(_sweep, tensor(2, 4, 4))


# --- columns and rows ----------------------------------------------------------------


def test_the_columns_are_those_of_the_design() -> None:
    columns = sweep().columns()
    assert list(columns) == COLUMNS
    assert list(OpRecord.__dataclass_fields__) == COLUMNS


def test_every_column_has_a_cell_a_row() -> None:
    log = sweep()
    assert len(log) == 12
    for name, column in log.columns().items():
        assert isinstance(column, np.ndarray) and column.shape == (12,), name
        assert column.dtype in (np.int64, np.float64, object), name
        assert column.dtype != object or set(map(type, column)) == {str}, name
    assert log.columns()["op"].tolist() == list(range(12))


def test_rows_by_hand() -> None:
    log = sweep()
    first = _sweep.__code__.co_firstlineno
    wanted = [
        # engine, name, start, end, nbytes, flops, source, target, depth, loop, line
        ("math", "zeros", 0, 6, 64, 16, "", "4096", 0, "", 1),
        ("dma", "load", 0, 74, 64, 0, "x+0", "4160", 1, "i=0", 4),
        ("math", "trans", 74, 80, 64, 16, "4160", "4224", 1, "i=0", 5),
        ("gemm", "dot", 80, 86, 64, 128, "4160;4224", "4288", 1, "i=0", 5),
        ("math", "add", 86, 92, 64, 16, "4096;4288", "4352", 1, "i=0", 5),
        ("math", "copy", 92, 98, 64, 16, "4352", "4096", 1, "i=0", 5),
        ("dma", "load", 86, 160, 64, 0, "x+64", "4160", 1, "i=1", 4),
        ("math", "trans", 160, 166, 64, 16, "4160", "4224", 1, "i=1", 5),
        ("gemm", "dot", 166, 172, 64, 128, "4160;4224", "4288", 1, "i=1", 5),
        ("math", "add", 172, 178, 64, 16, "4096;4288", "4352", 1, "i=1", 5),
        ("math", "copy", 178, 184, 64, 16, "4352", "4096", 1, "i=1", 5),
        ("dma", "store", 184, 258, 64, 0, "4096", "o+0", 0, "", 6),
    ]
    found = [
        (
            r.engine, r.op_name, r.start_ns, r.end_ns, r.nbytes, r.flops, r.src_addrs,
            r.dst_addr, r.scope_depth, r.loop, r.line - first,
        )
        for r in log
    ]  # fmt: skip
    assert found == wanted
    assert {r.op_kind for r in log} == {"math", "dma", "gemm"}
    assert all(r.op_kind == r.engine for r in log)
    assert {(r.pe, r.shape, r.dtype, r.file) for r in log} == {
        (0, "4x4", "float32", __file__)
    }
    assert [r.cursor_bytes for r in log][:6] == [64, 128, 192, 256, 320, 320]
    assert log.total_ns == 258 and log.peak_scratch == 320


def test_iterating_indexing_and_columns_agree() -> None:
    log = sweep()
    columns = log.columns()
    rows = list(log)
    assert len(rows) == len(log)
    for n, row in enumerate(rows):
        assert row == log[n] == log[n - len(log)]
        for name, column in columns.items():
            value = getattr(row, name)
            assert value == column[n]
            assert type(value) in (int, float, str), name
    with pytest.raises(IndexError):
        log[len(log)]


def test_a_caller_cannot_change_the_log() -> None:
    log = sweep()
    log.columns().clear()
    assert list(log.columns()) == COLUMNS


def test_a_copy_is_math_and_never_dma() -> None:
    columns = sweep().columns()
    copies = columns["op_name"] == "copy"
    assert copies.sum() == 2
    assert set(columns["op_kind"][copies]) == {"math"}
    assert set(columns["op_name"][columns["op_kind"] == "dma"]) == {"load", "store"}


def test_addresses_and_cursors_follow_a_growing_loop() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        for i in tl.range(2):
            for j in tl.range(2):
                tl.load(x[2 * i + j])
            tl.zeros((4,))
        tl.store(o, tl.zeros((4, 4)))

    rows = list(log_of(kernel, tensor(4, 4)))
    loads = [r for r in rows if r.op_name == "load"]
    assert [r.src_addrs for r in loads] == ["x+0", "x+16", "x+32", "x+48"]
    assert [int(r.dst_addr) - 4096 for r in loads] == [0, 16, 48, 64]
    assert [r.cursor_bytes for r in loads] == [16, 32, 64, 80]
    assert [r.loop for r in loads] == ["i=0;j=0", "i=0;j=1", "i=1;j=0", "i=1;j=1"]
    zeros = [int(r.dst_addr) - 4096 for r in rows if r.op_name == "zeros"]
    assert zeros == [32, 80, 96]


def test_hbm_addresses_are_bytes_from_the_tensors_start() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o[1:3, 2:4], tl.load(x[2:4, 1:3]))

    load, store = log_of(
        kernel, tensor(4, 5, dtype="float16"), out=tensor(4, 6, dtype="float16")
    )
    assert (load.src_addrs, load.shape, load.nbytes) == ("x+22", "2x2", 8)
    assert (store.dst_addr, store.dtype) == ("o+16", "float16")


def test_no_cell_has_a_comma() -> None:
    for name, column in sweep().columns().items():
        assert not any("," in str(cell) for cell in column.tolist()), name


def test_a_tail_counts_the_bytes_inside() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x[tl.ds(2, 4)], other=0.0))

    log = log_of(kernel, tensor(4, 4))
    assert [(r.nbytes, r.shape) for r in log] == [(32, "4x4"), (64, "4x4")]
    assert log.summary().bytes_loaded == 32


# --- PEs -----------------------------------------------------------------------------


def test_rows_of_pes_that_do_the_same() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.store(o, tl.load(x) + 1.0)

    log = log_of(kernel, tensor(3, 4, 4), num_pes=3)
    assert [r.pe for r in log] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    alone = list(log_of(kernel, tensor(4, 4)))
    for pe in range(3):
        mine = [r for r in log if r.pe == pe]
        same = ("op_name", "start_ns", "end_ns", "src_addrs", "dst_addr", "nbytes")
        for a, b in zip(mine, alone, strict=True):
            assert [getattr(a, n) for n in same] == [getattr(b, n) for n in same]


def test_rows_of_pes_that_differ() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        pe = tl.program_id()
        for i in tl.range(pe + 1):
            with tl.scratch_scope():
                tl.store(o[pe + i], tl.load(x[pe + i]))

    log = log_of(kernel, tensor(4, 8, 4), num_pes=4, out=tensor(8, 4))
    loads = [r for r in log if r.op_name == "load"]
    assert [(r.pe, r.loop, r.src_addrs) for r in loads] == [
        (pe, f"i={i}", f"x+{16 * (pe + i)}") for pe in range(4) for i in range(pe + 1)
    ]
    ends = [max(r.end_ns for r in log if r.pe == pe) for pe in range(4)]
    assert ends == [52 * (pe + 1) for pe in range(4)]
    assert log.total_ns == 208


# --- summary -------------------------------------------------------------------------


def test_the_summary_by_hand() -> None:
    summary = sweep().summary()
    assert (summary.kernel, summary.num_pes, summary.commands) == ("_sweep", 1, 12)
    assert summary.total_ns == 258
    busy = {name: (use.busy_ns, use.commands) for name, use in summary.engines.items()}
    assert busy == {"dma": (222, 3), "gemm": (12, 2), "math": (42, 7)}
    assert summary.engines["dma"].utilisation == 222 / 258
    assert (summary.bytes_loaded, summary.bytes_stored) == (128, 64)
    assert (summary.gemm_flops, summary.math_flops) == (256, 7 * 16)
    assert (summary.peak_scratch_bytes, summary.budget_bytes) == (320, 1 << 20)
    assert summary.critical_resource == "dma"
    assert summary.limited_by == "dependency"  # the DMA engine is busy for 86%


@pytest.mark.parametrize("num_pes", [1, 3])
def test_the_figures_add_up(num_pes: int) -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        t = tl.load(x)
        for _ in tl.range(tl.program_id() + 1):
            with tl.scratch_scope():
                tl.copy_to(t, tl.dot(t, tl.exp(t)))
        tl.store(o, t)

    shape = (4, 4) if num_pes == 1 else (num_pes, 4, 4)
    log = log_of(kernel, tensor(*shape), num_pes=num_pes)
    summary, columns = log.summary(), log.columns()
    took = columns["end_ns"] - columns["start_ns"]
    assert summary.total_ns == columns["end_ns"].max() == log.total_ns
    assert (
        summary.commands
        == len(log)
        == sum(use.commands for use in summary.engines.values())
    )
    for name, use in summary.engines.items():
        mine = columns["engine"] == name
        assert use.commands == mine.sum()
        assert use.busy_ns == pytest.approx(took[mine].sum())
        assert use.utilisation == pytest.approx(
            use.busy_ns / (num_pes * summary.total_ns)
        )
        assert 0 <= use.utilisation <= 1
    flops = summary.gemm_flops + summary.math_flops
    assert flops == columns["flops"].sum()
    for name, moved in (
        ("load", summary.bytes_loaded), ("store", summary.bytes_stored),
    ):  # fmt: skip
        assert moved == columns["nbytes"][columns["op_name"] == name].sum()
        assert moved == 64 * num_pes


def test_flops_are_2mnk_and_elements() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        a = tl.load(x)  # 8 x 12
        s = tl.dot(a, tl.trans(a))  # 2 x 8 x 8 x 12
        tl.store(o, s + tl.sum(s, axis=1, keepdims=True))

    flops = {
        r.op_name: r.flops for r in log_of(kernel, tensor(8, 12), out=tensor(8, 8))
    }
    assert flops == {
        "load": 0, "trans": 96, "dot": 1536, "sum": 64, "add": 64, "store": 0,
    }  # fmt: skip


def test_the_summary_prints_units_and_definitions() -> None:
    text = str(sweep().summary())
    for part in (
        "258.000 ns", "12 commands", "busy 222.000 ns", "86.0%",
        "(busy / (PEs x latency))", "128 B loaded", "64 B stored", "320 of",
        "1,048,576 B", "limited by    dependency", "1 PE\n",
    ):  # fmt: skip
        assert part in text, part


def test_to_dict_is_plain_and_versioned() -> None:
    found = sweep().summary().to_dict()
    assert found["schema_version"] == op_log.SCHEMA_VERSION
    again = json.loads(json.dumps(found))
    assert again == found
    assert found["engines"]["dma"] == {
        "busy_ns": 222.0, "utilisation": 222 / 258, "commands": 3,
    }  # fmt: skip
    assert found["total_ns"] == 258 and found["kernel"] == "_sweep"


# --- the ends of the range -----------------------------------------------------------


def test_an_empty_log() -> None:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        tl.empty((4, 4))

    with pytest.warns(UserWarning, match="never stores"):
        log = log_of(kernel, tensor(4, 4))
    assert len(log) == 0 and list(log) == [] and log.total_ns == 0
    assert list(log.columns()) == COLUMNS
    assert all(len(column) == 0 for column in log.columns().values())
    summary = log.summary()
    assert summary.commands == 0 and summary.gemm_flops == 0
    assert all(use.utilisation == 0 for use in summary.engines.values())
    json.dumps(summary.to_dict())
    assert "0 commands" in str(summary)
    with pytest.raises(IndexError):
        log[0]


def test_arrays_and_shapes_give_the_same_log() -> None:
    call = kb.kernel_call(_sweep, tensor(4, 4), hardware=HARDWARE)
    shapes = call.op_log(tensor(2, 4, 4))
    arrays = call.op_log(np.zeros((2, 4, 4), np.float32))
    assert list(shapes) == list(arrays)


def test_the_hardware_of_the_call_is_that_of_the_log() -> None:
    slow = log_of(
        _sweep,
        tensor(2, 4, 4),
        hardware=kb.Hardware(pe_dma=PeDma(bandwidth_gb_s=1, latency_ns=1e6)),
    )
    assert slow.total_ns > 3e6
    assert slow.summary().critical_resource == "dma"
    assert slow.summary().limited_by == "latency"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"engine": "DMA"}, r"no engine 'DMA'.*dma, gemm, math"),
        ({"op_name": "matmul"}, r"no op 'matmul'.*dot"),
        ({"pe": 1}, r"no such PE.*Got 1.*0 to 0"),
    ],
)
def test_a_filter_of_what_cannot_be(wanted: Any, message: str) -> None:
    with pytest.raises(kb.KbjaxError, match=message):
        sweep().filter(**wanted)


def test_an_op_that_the_kernel_does_not_use_has_no_rows() -> None:
    assert len(sweep().filter(op_name="exp")) == 0


def test_chunks_have_rows() -> None:
    with pytest.raises(kb.ShapeError, match="chunks have rows"):
        list(sweep().chunks(-1))


def test_a_log_says_what_it_is() -> None:
    log = sweep()
    assert repr(log) == (
        f"<OpLog of _sweep: {len(log)} rows, {log.total_ns:,.3f} ns in all>"
    )
