"""What notebooks show of programs, plans, op_logs and studies: small HTML, escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

Table = tuple[str, Sequence[str], Iterable[Sequence[str]]]
ROWS = 10  # of an op_log
LINES = 400  # of a program
TABLE_ROWS = 400  # of a table
_SHOWN = ("op", "pe", "engine", "op_name", "start_ns", "end_ns", "shape", "dtype",
          "loop", "line")  # fmt: skip


def program(text: str) -> str:
    """A program's listing, with its kernel lines."""
    lines = text.splitlines()
    left = len(lines) - LINES
    shown = lines[:LINES] + ([f"... {left:,} more lines"] if left > 0 else [])
    return f'<pre style="line-height:1.3">{html.escape(chr(10).join(shown))}</pre>'


def plan(headline: str, notes: Iterable[str], tables: Iterable[Table]) -> str:
    """A plan's headline, notes and tables (title, header, rows)."""
    parts = [f"<p><b>{html.escape(headline)}</b></p>"]
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    parts += [table(title, header, rows) for title, header, rows in tables]
    return "".join(parts)


def op_log(summary: str, records: Iterable[object], rows: int) -> str:
    """An op_log's summary, which is HTML, and its first records of `rows` rows."""
    cells = [tuple(str(getattr(one, name)) for name in _SHOWN) for one in records]
    left = rows - len(cells)
    title = f"the first {len(cells):,} of {rows:,} rows" if left > 0 else "rows"
    return summary + table(title, _SHOWN, cells)


def fields(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, a row each."""
    body = "".join(f"<tr>{_cell('th', n)}{_cell('td', text)}</tr>" for n, text in rows)
    return (
        f"<table><caption>{html.escape(title)}</caption><tbody>{body}</tbody></table>"
    )


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text as a table; of many rows, the first `TABLE_ROWS`, and how many are left."""
    head = _row("th", header)
    rows = list(rows)
    body = "".join(_row("td", row) for row in rows[:TABLE_ROWS])
    if len(rows) > TABLE_ROWS:
        title += f" (the first {TABLE_ROWS:,} of {len(rows):,})"
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(_cell(kind, cell) for cell in cells)}</tr>"


def _cell(kind: str, text: str) -> str:
    return f'<{kind} style="text-align:left">{html.escape(text)}</{kind}>'
