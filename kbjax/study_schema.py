"""The SQLite database that a study's results are in: its tables, and opening it.

A file is looked at before anything in it is believed: it must have these tables and no
others, so that no trigger or view of a stranger runs, and every cell is checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from kbjax import errors
from kbjax.names import shown
from kbjax.study import Study
from kbjax.study_axes import canonical
from kbjax.study_row import FIGURES, StudyRow
from kbjax.study_status import Status
from kbjax.study_table import StudyTable

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6B626A73  # "kbjs", SQLite's application_id of a results file
META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
POINTS = (
    "CREATE TABLE points (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, "
    "status TEXT NOT NULL, owner TEXT, heartbeat REAL, "
    "attempts INTEGER NOT NULL, versions TEXT, "
    + ", ".join(f"{name} {kind}" for name, kind in FIGURES.items())
    + ") STRICT"
)
_BUSY_S = 30.0


def connected(path: str, query: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.path.abspath(path))}?{query}"
    db = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def opened(path: str) -> sqlite3.Connection:
    db = connected(path, "mode=rwc")
    db.execute("PRAGMA synchronous = FULL")
    return db


def use_wal(db: sqlite3.Connection, path: str) -> None:
    """Write-ahead logging: readers and writers do not wait for each other."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:  # another writer makes the file
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.05)
    if mode != "wal":
        raise errors.KbjaxError(
            f"{path} cannot be used: its file system has no write-ahead log",
            got=f"SQLite's journal mode {mode}",
            remedy="Give -o a path on a local disk; network file systems have none",
        )


def has_tables(db: sqlite3.Connection, path: str) -> bool:
    """Whether the results' tables are there; False for an empty file.

    Raises:
      KbjaxError: for a database of anything else, triggers and views included.
    """
    found = db.execute(
        "SELECT type, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    ).fetchall()
    if not found:
        return False
    if sorted(found) != sorted([("table", META), ("table", POINTS)]):
        raise no_results(path, "it has other tables, or is of another version")
    return True


def no_results(path: str, why: str) -> errors.KbjaxError:
    return errors.KbjaxError(
        f"{path} is no results file of a study: {why}",
        remedy="Give -o another path; this one is unchanged",
    )


def study_of(db: sqlite3.Connection, path: str) -> dict[str, Any]:
    found = db.execute("SELECT value FROM meta WHERE name = 'study'").fetchone()
    study = _object(found[0] if found else "", path)
    if not isinstance(study.get("axes"), dict) or not isinstance(
        study.get("name"), str
    ):
        raise no_results(path, "it does not say of which study")
    return study


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two studies, as `Study.to_dict` gives them, differ in, one line each."""
    found = []
    for key in dict.fromkeys((*there, *here)):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += [f"{key}.{line}" for line in differences(old, new)]
        elif canonical(old) != canonical(new):
            found.append(f"{key}: {shown(old)} there, {shown(new)} here")
    return found


def refuse_another(db: sqlite3.Connection, path: str, study: Study) -> None:
    """Refuse a file that another study has made, naming what differs."""
    there = study_of(db, path)
    # As JSON has it, so that tuples are lists on both sides.
    here = json.loads(json.dumps(study.to_dict()))
    if found := differences(there, here):
        raise errors.KbjaxError(
            f"{path} has the results of another study",
            got="; ".join(found[:5]) + (" ..." if len(found) > 5 else ""),
            allowed="the study that the file was made for",
            remedy="Give -o another path, or remove the file",
        )


def table_of(db: sqlite3.Connection, path: str) -> StudyTable:
    columns = ["number", "key", "status", "attempts", "versions", *FIGURES]
    db.execute("BEGIN")  # one moment for both
    try:
        study = study_of(db, path)
        found = db.execute(
            f"SELECT {', '.join(columns)} FROM points ORDER BY number"
        ).fetchall()
    finally:
        db.execute("ROLLBACK")
    rows = [_row(dict(zip(columns, cells, strict=True)), path) for cells in found]
    if any(axis not in row.parameters for row in rows for axis in study["axes"]):
        raise no_results(path, "its points are not of its study")
    return StudyTable(study, rows, path)


def _row(cells: Mapping[str, Any], path: str) -> StudyRow:
    """A row, checked."""
    parameters = _object(cells["key"], path)
    versions = _object(cells["versions"] or "{}", path)
    if (
        cells["status"] not in list(Status)
        or not all(isinstance(v, int | float | str) for v in parameters.values())
        or not all(isinstance(v, str) for v in versions.values())
    ):
        raise no_results(path, f"the row of point {cells['number']} is damaged")
    return StudyRow(
        cells["number"],
        parameters,
        Status(cells["status"]),
        cells["attempts"],
        {name: cells[name] for name in FIGURES},
        versions,
    )


def _object(text: object, path: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise no_results(path, "what it says is damaged")
    return found


def storable(value: object) -> object:
    if isinstance(value, str):  # halves of surrogate pairs, and NULs, are no SQL text
        text = value.encode("utf-8", "backslashreplace").decode("utf-8")
        return text.replace("\0", "\\x00")
    if isinstance(value, int) and abs(value) >= 2**63:
        return None
    if isinstance(value, float) and value != value:
        return None
    return value


@contextlib.contextmanager
def refusals(path: str, verb: str = "write") -> Iterator[None]:
    """What SQLite says about the file, as a message."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = str(error)
        if isinstance(error, sqlite3.OperationalError) and "unable to open" in text:
            folder = os.path.dirname(path) or "."
            if not os.path.isdir(folder):
                text = "there is no folder " + folder
        raise errors.KbjaxError(
            f"cannot {verb} {path}: {text}",
            remedy="What was recorded before is kept; "
            "give -o another path, or run again to resume when the cause is gone",
        ) from error
