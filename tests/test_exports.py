"""CSV, JSON Lines and Parquet: every cell read back, and files that are whole or not
there, whatever goes wrong."""

from __future__ import annotations

import csv
import errno
import io
import json
import locale
import os
import signal
import stat
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

import kbjax as kb
from kbjax import errors, exports, op_log, output, trace
from kbjax.op_log import OpLog
from tests.logs import NAMES, RowsLog, long_log, of_rows

Writer = Callable[..., Any]
WRITERS: tuple[Writer, ...] = (
    exports.write_csv,
    exports.write_jsonl,
    exports.write_parquet,
    trace.write_trace,
)
TEXTS = ("engine", "op_kind", "op_name", "shape", "dtype", "src_addrs", "dst_addr",
         "loop", "file")  # fmt: skip
TIMES = {"start_ns": "start_ps", "end_ns": "end_ps"}


def real_log(num_pes: int = 2) -> OpLog:
    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((4, 4))
        for i in tl.range(6):
            with tl.scratch_scope():
                t = tl.load(x[i])
                tl.copy_to(total, total + tl.dot(t, tl.trans(t)))
        tl.store(o, total)

    out = jax.ShapeDtypeStruct((4, 4), "float32")
    x = jax.ShapeDtypeStruct((num_pes, 6, 4, 4), "float32")
    return kb.kernel_call(kernel, out, num_pes=num_pes).op_log(x)


def hostile_log() -> RowsLog:
    """Names that need quotes, and times that no float64 of ns holds."""
    names = ["a,b.py", 'say "x".py', "two\nlines.py", "cr\r.py", "crlf\r\n.py", " s.py",
             "é\u4e2d\U0001f600.py", "tab\t.py", "", "'", "\ud800.py"]  # fmt: skip
    times = [0, 1, 999, 1000, 2**31 * 1000 + 1, 2**53 - 1, 2**53 + 1, 2**62 + 123]
    return of_rows(
        *({"file": name, "loop": "j=1;i=2", "line": n} for n, name in enumerate(names)),
        *({"start_ps": t, "end_ps": t + 1, "engine": "dma"} for t in times),
        name='kernel "k", é',
    )


def logs() -> list[Any]:
    return [
        pytest.param(real_log(), id="kernel"),
        pytest.param(hostile_log(), id="hostile"),
        pytest.param(of_rows(), id="empty"),
    ]


def cells(log: Any) -> dict[str, list[Any]]:
    """The columns, with times as exact decimals."""
    found = {name: column.tolist() for name, column in log.columns().items()}
    for name, exact in TIMES.items():
        ps = log.columns([exact])[exact].tolist()
        found[name] = [Decimal(t).scaleb(-3) for t in ps]
    return found


def test_the_schema_page_is_that_of_the_log() -> None:
    page = (Path(__file__).parents[1] / "docs" / "op_log.md").read_text("utf-8")
    assert f"schema version {op_log.SCHEMA_VERSION}," in page
    types: dict[str, str] = {}
    section = page.partition("## Columns")[2].partition("## The summary")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            names, kinds, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            found = [name.strip("` ") for name in names.split(",")]
            types |= dict(zip(found, kinds.split(", "), strict=True))
    log = real_log()
    columns = log.columns([*op_log.COLUMNS, *op_log.MORE_COLUMNS])
    assert list(log.columns()) == list(op_log.COLUMNS)
    assert list(types) == list(columns)
    for name, column in columns.items():
        objects = {str: "text", tuple: "tuples"}
        is_object = column.dtype == object
        kind = objects[type(column[0])] if is_object else column.dtype.name
        assert types[name] == kind, name


def shown(text: str) -> str:
    """A text as UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# --- CSV -----------------------------------------------------------------------------


@pytest.mark.parametrize("log", logs())
def test_csv_reads_back(log: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    exports.write_csv(log, path)
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    assert tuple(header) == NAMES
    assert len(rows) == len(log)
    for name, column in zip(header, zip(*rows, strict=True), strict=False):
        want = cells(log)[name]
        if name in TEXTS:
            assert list(column) == [shown(text) for text in want], name
        elif name in TIMES:
            assert list(map(Decimal, column)) == want, name
            assert all(len(cell.partition(".")[2]) == 3 for cell in column)
        else:
            assert list(map(int, column)) == want, name


def test_csv_to_the_byte(tmp_path: Path) -> None:
    row = {"file": 'a "b",c.py', "start_ps": 1, "end_ps": 2**53 + 1, "src_addrs": "x+0"}
    path = tmp_path / "log.csv"
    exports.write_csv(of_rows(row, {"file": "é\n.py", "line": 2}), path)
    assert path.read_bytes().decode("utf-8") == (
        "op,pe,engine,op_kind,op_name,start_ns,end_ns,shape,dtype,nbytes,flops,"
        "src_addrs,dst_addr,scope_depth,cursor_bytes,loop,file,line\r\n"
        "0,0,math,math,add,0.001,9007199254740.993,4x4,float32,64,16,x+0,,0,0,,"
        '"a ""b"",c.py",1\r\n'
        '1,0,math,math,add,0.000,0.000,4x4,float32,64,16,,,0,0,,"é\n.py",2\r\n'
    )


def test_the_users_locale_does_not_show(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    german = {**locale.localeconv(), "decimal_point": ",", "thousands_sep": "."}
    german["grouping"] = [3, 3, 0]
    log = of_rows({"start_ps": 1_234_567_891, "end_ps": 1_234_567_892})
    for writer in (exports.write_csv, exports.write_jsonl, trace.write_trace):
        writer(log, tmp_path / "plain")
        with monkeypatch.context() as patch:
            patch.setattr(locale, "localeconv", lambda: german)
            assert locale.str(1.5) == "1,5"
            writer(log, tmp_path / "german")
        plain, other = (tmp_path / name for name in ("plain", "german"))
        assert plain.read_text("utf-8").replace("plain", "german") == (
            other.read_text("utf-8")
        )


@pytest.mark.parametrize("writer", WRITERS[:3], ids=lambda w: w.__name__)
def test_memory_is_bounded(writer: Writer, tmp_path: Path) -> None:
    """No more rows are asked for at once than a piece has."""
    log = long_log(2, 40_000, folded=False)
    writer(log, tmp_path / "log")
    assert len(log) > 3 * exports.ROWS
    assert max(log.asked) == exports.ROWS
    assert sum(log.asked) == len(log)


def test_decimals() -> None:
    values = np.array([0, 1, 999, 1000, 1001, 2**63 - 1])
    assert exports.decimals(values) == [
        "0.000", "0.001", "0.999", "1.000", "1.001", "9223372036854775.807",
    ]  # fmt: skip


def each_sign() -> list[Any]:
    """A log for each sign that may need quotes, with no other such sign in it."""
    return [
        pytest.param(of_rows({"file": f"a{sign}b.py"}, {}), id=repr(sign))
        for sign in ",\"\r\n;\t '\0"
    ]


@pytest.mark.parametrize("log", [*logs(), *each_sign()])
def test_csv_is_what_the_csv_module_writes(log: Any) -> None:
    want, got = io.StringIO(newline=""), io.StringIO(newline="")
    rows = cells(log)
    writer = csv.writer(want)
    writer.writerow(rows)
    writer.writerows(
        [f"{cell:.3f}" if isinstance(cell, Decimal) else cell for cell in row]
        for row in zip(*rows.values(), strict=True)
    )
    exports.write_csv(log, got)
    assert got.getvalue() == want.getvalue()


# --- JSON Lines ----------------------------------------------------------------------


@pytest.mark.parametrize("log", logs())
def test_json_lines_read_back(log: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    exports.write_jsonl(log, path)
    lines = path.read_bytes().decode("ascii").split("\n")
    assert lines.pop() == ""
    about, *rows = (json.loads(line, parse_float=Decimal) for line in lines)
    assert about == {
        "schema_version": log.schema_version,
        "kernel": log.program.name,
        "num_pes": log.program.num_pes,
        "rows": len(log),
        "columns": list(NAMES),
    }
    assert len(rows) == len(log)
    for n, row in enumerate(rows):
        assert list(row) == list(NAMES)
        assert row == {name: column[n] for name, column in cells(log).items()}
        assert all(type(row[name]) is str for name in TEXTS)


# --- Parquet -------------------------------------------------------------------------


@pytest.mark.parametrize("log", logs())
def test_parquet_reads_back(log: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    exports.write_parquet(log, path)
    table = pq.read_table(path)
    assert tuple(table.column_names) == NAMES
    assert table.num_rows == len(log)
    for name, column in log.columns().items():
        got = table[name].to_pylist()
        kind = str(table.schema.field(name).type)
        if name in TEXTS:
            assert kind.startswith("dictionary<values=string, indices=int32")
            assert got == [shown(text) for text in column.tolist()], name
        else:
            assert kind == ("double" if name in TIMES else "int64")
            assert got == column.tolist(), name
    about = table.schema.metadata
    assert about[b"schema_version"] == str(log.schema_version).encode()
    assert about[b"kernel"] == log.program.name.encode()
    assert about[b"num_pes"] == str(log.program.num_pes).encode()


def test_a_row_group_a_piece(tmp_path: Path) -> None:
    log = long_log(2, 25_000, folded=False)
    path = tmp_path / "log.parquet"
    exports.write_parquet(log, path)
    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert groups == [exports.ROWS, exports.ROWS, len(log) - 2 * exports.ROWS]
    assert file.read()["loop"].to_pylist() == log.arrays["loop"].tolist()


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.KbjaxError, match=r"pip install 'kbjax\[parquet\]"):
        exports.write_parquet(real_log(), tmp_path / "log.parquet")
    assert not list(tmp_path.iterdir())


# --- files ---------------------------------------------------------------------------


@pytest.fixture(params=WRITERS, ids=lambda w: w.__name__)
def writer(request: pytest.FixtureRequest) -> Writer:
    return request.param


class Failing(RowsLog):
    """A log that goes wrong in its second piece."""

    def columns(self, names: Any = None) -> dict[str, np.ndarray]:
        if self.arrays["op"].size and self.arrays["op"][0] >= exports.ROWS:
            self.fail()
        return super().columns(names)

    def __getitem__(self, rows: slice) -> RowsLog:
        part = super().__getitem__(rows)
        made = type(self)(part.arrays, (), self.num_pes, self.name, self.asked)
        return made

    def fail(self) -> None:
        raise NotImplementedError


class Interrupted(Failing):
    def fail(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Broken(Failing):
    def fail(self) -> None:
        raise RuntimeError("a fault of the log")


@pytest.mark.parametrize("before", [None, "what was there"])
@pytest.mark.parametrize(
    ("kind", "error"), [(Interrupted, KeyboardInterrupt), (Broken, RuntimeError)]
)
def test_an_export_that_is_stopped(
    writer: Writer, kind: type[Failing], error: type, before: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    if before is not None:
        path.write_text(before)
    log = kind(long_log(2, 40_000, folded=False).arrays, num_pes=2)
    with pytest.raises(error):
        writer(log, path)
    found = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert found == ({} if before is None else {"log": before})


class Stopped(io.BytesIO):
    """A disk that is full, or a Ctrl-C, after so many bytes."""

    def __init__(self, room: int, error: BaseException) -> None:
        super().__init__()
        self._room, self._error = room, error

    def write(self, data: Any) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise self._error
        return super().write(data)


@pytest.mark.parametrize("room", [0, 600])
@pytest.mark.parametrize("before", [None, "what was there"])
@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errors.KbjaxError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["full", "ctrl-c"],
)
def test_a_write_that_fails(
    writer: Writer, room: int, before: str | None, raised: BaseException, seen: type,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "log"
    if before is not None:
        path.write_text(before)
    opened: list[str] = []

    def failing(file: str, mode: str) -> Any:
        if mode != "xb":
            return open(file, mode)
        open(file, mode).close()  # the file is there, and takes no more
        opened.append(file)
        return Stopped(room, raised)

    with monkeypatch.context() as patch:
        patch.setattr("kbjax.output.open", failing, raising=False)
        with pytest.raises(seen) as caught:
            writer(real_log(), path)
    assert len(opened) == 1 and Path(opened[0]).parent == tmp_path
    if seen is errors.KbjaxError:
        assert str(path) in str(caught.value)
        assert "No space left on device" in str(caught.value)
    found = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert found == ({} if before is None else {"log": before})


def test_devices_are_written_to(writer: Writer) -> None:
    writer(real_log(), os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    with pytest.raises(errors.KbjaxError, match="cannot write /dev/full: No space"):
        writer(real_log(), "/dev/full")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_path_that_cannot_be(writer: Writer, tmp_path: Path) -> None:
    log = real_log()
    missing = tmp_path / "no" / "log"
    with pytest.raises(
        errors.KbjaxError, match=r"Make the folder .*no first"
    ) as caught:
        writer(log, missing)
    assert f"cannot write {missing}: No such file" in str(caught.value)
    with pytest.raises(errors.KbjaxError, match="Is a directory") as caught:
        writer(log, tmp_path)
    assert f"cannot write {tmp_path}: " in str(caught.value)
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.KbjaxError, match="Not a directory"):
        writer(log, tmp_path / "file" / "log")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", ["xb", "r+b"])
def test_a_path_that_may_not_be_written(
    writer: Writer, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only folder (no file can be made), and a read-only file in it."""
    path = tmp_path / "log"
    path.write_text("kept")

    def refusing(file: str, opened: str) -> Any:
        if opened == mode:
            raise PermissionError(errno.EACCES, "Permission denied", file)
        return open(file, opened)

    with monkeypatch.context() as patch:
        patch.setattr("kbjax.output.open", refusing, raising=False)
        with pytest.raises(errors.KbjaxError, match="Permission denied") as caught:
            writer(real_log(), path)
    assert f"cannot write {path}: " in str(caught.value)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["kept"]


def test_the_log_writes_itself(tmp_path: Path) -> None:
    log, path = real_log(), tmp_path / "log"
    methods = (log.to_csv, log.to_jsonl, log.to_parquet, log.to_perfetto)
    for writer, method in zip(WRITERS, methods, strict=True):
        data = io.BytesIO()
        writer(log, data)
        method(path)
        assert path.read_bytes() == data.getvalue()
    report = log.to_perfetto(path, max_events=50, pes=[1])
    assert report == trace.write_trace(log, path, 50, [1])


def written(writer: Writer, tmp_path: Path) -> bytes:
    path = tmp_path / "wanted"
    writer(real_log(), path)
    return path.read_bytes()


def test_what_was_there_is_replaced_with_its_mode(
    writer: Writer, tmp_path: Path
) -> None:
    want = written(writer, tmp_path)
    path, link = tmp_path / "old", tmp_path / "link"
    path.write_text("old" * 100_000)
    path.chmod(0o640)
    link.symlink_to(path)
    writer(real_log(), str(link))
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_bytes() == want
    fresh = tmp_path / "wanted"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~umask


def test_file_objects(writer: Writer, tmp_path: Path) -> None:
    want = written(writer, tmp_path)
    data = io.BytesIO()
    writer(real_log(), data)
    assert data.getvalue() == want and not data.closed
    with open(tmp_path / "own", "wb") as file:
        file.write(b"before")
        writer(real_log(), file)
        file.write(b"after")
    assert (tmp_path / "own").read_bytes() == b"before" + want + b"after"
    text = io.StringIO(newline="")
    if writer is exports.write_parquet:
        with pytest.raises(errors.KbjaxError, match=r'StringIO takes text.*"wb"'):
            writer(real_log(), text)
    else:
        writer(real_log(), text)
        assert text.getvalue().encode("utf-8") == want


def test_a_closed_or_read_only_file_object(writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("kept")
    with open(path, "rb") as file, pytest.raises(errors.KbjaxError, match=str(path)):
        writer(real_log(), file)
    with pytest.raises(errors.KbjaxError, match="log is closed"):
        writer(real_log(), file)
    assert path.read_text() == "kept"


@pytest.mark.parametrize("target", [None, "", "a\0b", b"log.csv", 7])
def test_what_is_no_target(writer: Writer, target: Any) -> None:
    with pytest.raises(errors.KbjaxError, match="cannot write to") as raised:
        writer(real_log(), target)
    assert "a path" in str(raised.value)


def test_a_path_of_a_folder_that_is_not_there(writer: Writer, tmp_path: Path) -> None:
    with pytest.raises(errors.KbjaxError, match="Is a directory"):
        writer(real_log(), f"{tmp_path}/log/")
    assert not list(tmp_path.iterdir())


class _Slow(io.RawIOBase):
    """Takes at most 7 bytes a write, as a raw file may."""

    def __init__(self) -> None:
        self.found = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.found += bytes(data[:7])
        return min(len(data), 7)


def test_a_raw_file_that_takes_a_part_gets_all(writer: Writer, tmp_path: Path) -> None:
    slow, path = _Slow(), tmp_path / "log"
    writer(real_log(), slow)
    assert not slow.closed
    writer(real_log(), path)
    assert slow.found == path.read_bytes()


class _OnlyWrite:
    def __init__(self) -> None:
        self.found = b""

    def write(self, data: bytes) -> None:
        self.found += data + b""  # text is a TypeError


def test_an_object_that_only_writes(writer: Writer, tmp_path: Path) -> None:
    file, path = _OnlyWrite(), tmp_path / "log"
    writer(real_log(), file)
    writer(real_log(), path)
    assert file.found == path.read_bytes()


def test_a_device_that_is_full(writer: Writer) -> None:
    with pytest.raises(errors.KbjaxError, match="No space left") as raised:
        writer(real_log(), "/dev/full")
    assert "unchanged" not in str(raised.value)


def test_standard_output(
    writer: Writer, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    want = written(writer, tmp_path)
    print("before")
    writer(real_log(), "-")
    assert capfdbinary.readouterr().out == b"before\n" + want
    assert not Path("-").exists()


def test_standard_output_of_text(tmp_path: Path, monkeypatch: Any) -> None:
    """As a notebook's, which has no bytes below."""
    want = written(exports.write_csv, tmp_path)
    out = io.StringIO(newline="")
    monkeypatch.setattr(sys, "stdout", out)
    exports.write_csv(real_log(), "-")
    assert out.getvalue().encode("utf-8") == want


def test_a_pipe_by_its_name_is_written_to(tmp_path: Path) -> None:
    """`-o >(gzip > t.gz)` names a pipe whose link leads to no path."""
    read, write = os.pipe()
    rows_of = of_rows({"op_name": "exp"})
    exports.write_csv(rows_of, f"/dev/fd/{write}")
    os.close(write)
    with open(read, "rb") as file:
        assert file.read().startswith(b"op,pe,engine")


def test_a_text_is_written_whole_and_measured(tmp_path: Path) -> None:
    """Also with half of a surrogate pair, as in the name of a file."""
    data = b"caf\xc3\xa9 \\udc80\n"
    path, raw, words = tmp_path / "page.html", io.BytesIO(), io.StringIO()
    for target in (path, raw, words):
        assert output.write_text(target, "caf\xe9 \udc80\n") == len(data)
    assert path.read_bytes() == raw.getvalue() == data
    assert words.getvalue() == "caf\xe9 \udc80\n"
    with pytest.raises(errors.KbjaxError, match="cannot write"):
        output.write_text(tmp_path / "none" / "page.html", "x")
