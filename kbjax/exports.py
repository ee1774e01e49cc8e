"""The op_log as CSV, JSON Lines and Parquet; docs/op_log.md is the schema.

All are written a piece of the log at a time, so memory does not grow with its length.
CSV and JSON Lines print times from integers of picoseconds, as ns with three decimals.
"""

from __future__ import annotations

import csv
import io
import json
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from kbjax import extras, output
from kbjax.log_view import ROWS, Log

_EXACT = {"start_ns": "start_ps", "end_ns": "end_ps"}


def write_csv(log: Log, target: output.Target) -> None:
    """RFC 4180: a header, then a row an op; UTF-8, CRLF, quotes where they are needed.

    Args:
      log: what to write.
      target: a path, ``-``, or a file object (one of text is opened with
        ``newline=""``).

    Raises:
      KbjaxError: where `target` cannot be written; a path is then as it was.
    """
    with output.text(target) as write:
        write(_csv([log[0:0].columns()]))
        for columns in _pieces(log, _quoted):
            write("\r\n".join([*map(",".join, columns), ""]))


def write_jsonl(log: Log, target: output.Target) -> None:
    """JSON Lines: a line about the log (`schema_version`, kernel, columns), then an
    object an op. Takes and raises what `write_csv` does."""
    names = list(log[0:0].columns())
    about = {
        "schema_version": log.schema_version,
        "kernel": log.program.name,
        "num_pes": log.program.num_pes,
        "rows": len(log),
        "columns": names,
    }
    line = "{" + ",".join(f"{json.dumps(name)}:%s" for name in names) + "}\n"
    with output.text(target) as write:
        write(json.dumps(about) + "\n")
        for columns in _pieces(log, _strings):
            write("".join([line % row for row in columns]))


def write_parquet(log: Log, target: output.Target) -> None:
    """Parquet: a row group a piece; int64, float64 and strings by dictionary, and the
    `schema_version`, kernel and number of PEs in the file's metadata.

    Args:
      log: what to write.
      target: a path, ``-``, or a file object that takes bytes.

    Raises:
      KbjaxError: without pyarrow, or where `target` cannot be written; a path is then
        as it was.
    """
    arrow = extras.module("pyarrow", extra="parquet", use="Parquet")
    parquet = extras.module("pyarrow.parquet", extra="parquet", use="Parquet")
    word = arrow.dictionary(arrow.int32(), arrow.string())
    fields = [
        (name, word if column.dtype == object else arrow.from_numpy_dtype(column.dtype))
        for name, column in log[0:0].columns().items()
    ]
    about = {
        "schema_version": str(log.schema_version),
        "kernel": _unicode(log.program.name),
        "num_pes": str(log.program.num_pes),
    }
    schema = arrow.schema(fields, metadata=about)
    with (
        output.binary(target) as file,
        parquet.ParquetWriter(file, schema) as writer,
    ):
        for columns in log.chunks():
            arrays = [
                _dictionary(arrow, column)
                if column.dtype == object
                else arrow.array(column)
                for column in columns.values()
            ]
            batch = arrow.record_batch(arrays, schema=schema)
            writer.write_batch(batch, row_group_size=ROWS)


def decimals(ps: np.ndarray) -> list[str]:
    """Picoseconds, not negative, as exact nanoseconds: 1234 gives 1.234."""
    whole, rest = np.divmod(ps, 1000)
    tails = [f".{n:03d}" for n in range(1000)]
    ends = map(tails.__getitem__, rest.tolist())
    return list(map(operator.add, map(str, whole.tolist()), ends))


def _pieces(
    log: Log, tokens: Callable[[list[str]], list[str]]
) -> Iterator[Iterator[tuple[str, ...]]]:
    """The rows, some at a time, as text; `tokens` makes that of a column of text."""
    names = list(log[0:0].columns())
    for found in log.chunks(names=[_EXACT.get(name, name) for name in names]):
        columns = []
        for name, column in found.items():
            if name in _EXACT.values():
                columns.append(decimals(column))
            elif column.dtype == object:
                columns.append(tokens(column.tolist()))
            else:
                columns.append(_each(str, column.tolist()))
        yield zip(*columns, strict=True)


def _each(text: Callable[[Any], str], cells: list[Any]) -> list[str]:
    """The text of each cell, made once for those that are equal."""
    texts = {cell: text(cell) for cell in set(cells)}
    return [texts[cell] for cell in cells]


def _csv(rows: Iterable[Iterable[str]]) -> str:
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows(rows)
    return lines.getvalue()


def _quoted(cells: list[str]) -> list[str]:
    """The cells as the csv module writes them. It is asked only where a cell may need
    quotes: to write every row by it takes three times as long."""
    together = "".join(cells)
    if not any(sign in together for sign in ',"\r\n'):
        return cells
    return _each(lambda cell: _csv([[cell, ""]])[: -len(",\r\n")], cells)


def _strings(cells: list[str]) -> list[str]:
    """The cells as JSON. The rest of a row is numbers, with exact decimals, which the
    json module cannot print: its numbers are floats."""
    return _each(json.dumps, cells)


def _dictionary(arrow: Any, column: np.ndarray) -> Any:
    """A column of text as an Arrow dictionary array."""
    try:
        return arrow.array(column, arrow.string()).dictionary_encode()
    except UnicodeEncodeError:
        words = _each(_unicode, column.tolist())
        return arrow.array(words, arrow.string()).dictionary_encode()


def _unicode(word: str) -> str:
    """Without halves of surrogate pairs, which UTF-8 does not have."""
    return word.encode("utf-8", "backslashreplace").decode("utf-8")
