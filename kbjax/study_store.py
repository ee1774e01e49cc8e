"""The results file of a study: one SQLite database, a row a point.

Several processes may work on one file: a point is claimed in a transaction, and
recorded only by who holds the claim. Reading needs no lock (WAL). A file is looked at
before anything in it is believed: it must have this module's tables and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from kbjax import errors, study_owner
from kbjax.study import Study, differences
from kbjax.study_table import StudyTable

SCHEMA_VERSION = 1
_ID = 0x6B626A73  # "kbjs", SQLite's application_id of a results file
_STATUSES = ("pending", "running", "done", "failed", "error")
_FIGURES = {
    "peak_scratch_bytes": "INTEGER", "budget_bytes": "INTEGER", "fit": "TEXT",
    "total_ns": "REAL", "dma_utilisation": "REAL", "gemm_utilisation": "REAL",
    "math_utilisation": "REAL", "link_utilisation": "REAL",
    "bytes_loaded": "INTEGER", "bytes_stored": "INTEGER", "gemm_flops": "INTEGER",
    "math_flops": "INTEGER", "commands": "INTEGER", "roofline_ns": "REAL",
    "limited_by": "TEXT", "error": "REAL", "tolerance": "REAL", "verdict": "TEXT",
    "reason_kind": "TEXT", "reason": "TEXT", "notes": "TEXT", "seed": "INTEGER",
    "wall_s": "REAL", "started_at": "REAL", "finished_at": "REAL",
}  # fmt: skip
_META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
_POINTS = (
    "CREATE TABLE points (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, "
    "status TEXT NOT NULL, owner TEXT, heartbeat REAL, "
    "attempts INTEGER NOT NULL, versions TEXT, "
    + ", ".join(f"{name} {kind}" for name, kind in _FIGURES.items())
    + ") STRICT"
)
_BUSY_S = 30.0


class Store:
    """A results file that is open for work on a study; `close` it at the end.

    Args:
      path: of the file, which is made where there is none.
      study: what it is for.

    Raises:
      KbjaxError: where it cannot be written, is none of this study, or no results file.
    """

    def __init__(self, path: str, study: Study) -> None:
        self.path, self.owner = path, study_owner.me()
        self._numbers = range(len(study))
        with _refusals(path):
            self._db = _opened(path)
            try:
                self._begin(study)
            except BaseException:
                self._db.close()
                raise

    def _begin(self, study: Study) -> None:
        """Make the tables and all points, in one transaction, or find them there."""
        if _tables(self._db, self.path):
            _refuse_another(self.path, _study_of(self._db, self.path), study)
        _use_wal(self._db, self.path)
        with self._transaction():
            if _tables(self._db, self.path):  # another writer was first
                _refuse_another(self.path, _study_of(self._db, self.path), study)
                return
            self._db.execute(f"PRAGMA application_id = {_ID}")
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._db.execute(_META)
            self._db.execute(_POINTS)
            self._db.execute(
                "INSERT INTO meta VALUES ('study', ?)", (json.dumps(study.to_dict()),)
            )
            self._db.executemany(
                "INSERT INTO points (number, key, status, attempts, seed) "
                "VALUES (?, ?, 'pending', 0, ?)",
                ((one.number, one.key, study.seed) for one in study.points()),
            )

    def claim(self) -> tuple[int, int] | None:
        """The next point that nobody has done or runs, and which attempt at it this is;
        None where there is none now. One whose owner is gone is taken over."""
        with _refusals(self.path), self._transaction():
            found = self._db.execute(
                "SELECT number FROM points WHERE status = 'pending' "
                "ORDER BY number LIMIT 1"
            ).fetchone()
            if found is None:
                found = self._abandoned()
            if found is None:
                return None
            self._db.execute(
                "UPDATE points SET status = 'running', owner = ?, heartbeat = ?, "
                "attempts = attempts + 1 WHERE number = ?",
                (self.owner, time.time(), found[0]),
            )
            (attempt,) = self._db.execute(
                "SELECT attempts FROM points WHERE number = ?", found
            ).fetchone()
            return found[0], attempt

    def _abandoned(self) -> tuple[int] | None:
        gone: dict[tuple[str, float], bool] = {}
        for number, owner, heartbeat in self._db.execute(
            "SELECT number, owner, heartbeat FROM points WHERE status = 'running' "
            "AND owner <> ? ORDER BY number",
            (self.owner,),
        ):
            who = (owner, heartbeat or 0.0)
            if who not in gone:
                gone[who] = study_owner.is_gone(*who)
            if gone[who]:
                return (number,)
        return None

    def finish(self, claim: tuple[int, int], row: Mapping[str, Any]) -> bool:
        """Record a point. False where the claim was lost meanwhile, and nothing is
        recorded: whoever took it over does it."""
        cells = {n: _storable(v) for n, v in row.items() if n in _FIGURES}
        cells |= {"status": row["status"], "finished_at": time.time()}
        cells["versions"] = json.dumps(row.get("versions", {}), sort_keys=True)
        names = ", ".join(f"{name} = ?" for name in cells)
        with _refusals(self.path), self._transaction():
            done = self._db.execute(
                f"UPDATE points SET {names}, owner = NULL, heartbeat = NULL "
                "WHERE number = ? AND attempts = ? AND owner = ? "
                "AND status = 'running'",
                (*cells.values(), *claim, self.owner),
            )
            return done.rowcount == 1

    def beat(self) -> None:
        """Say that this process still runs its points."""
        with _refusals(self.path), self._transaction():
            self._db.execute(
                "UPDATE points SET heartbeat = ? WHERE owner = ?",
                (time.time(), self.owner),
            )

    def release(self) -> None:
        """Give back the points that this process has claimed and not finished."""
        with _refusals(self.path), self._transaction():
            self._db.execute(
                "UPDATE points SET status = 'pending', owner = NULL, heartbeat = NULL "
                "WHERE owner = ? AND status = 'running'",
                (self.owner,),
            )

    def retry(self) -> int:
        """Make what failed pending again; how many points that are."""
        blank = ", ".join(f"{name} = NULL" for name in _FIGURES if name != "seed")
        with _refusals(self.path), self._transaction():
            return self._db.execute(
                f"UPDATE points SET status = 'pending', {blank} "
                "WHERE status IN ('failed', 'error')"
            ).rowcount

    def counts(self) -> dict[str, int]:
        """Status -> points."""
        with _refusals(self.path):
            found = self._db.execute(
                "SELECT status, count(*) FROM points GROUP BY status"
            ).fetchall()
        return {**dict.fromkeys(_STATUSES, 0), **dict(found)}

    def others(self) -> list[str]:
        """The owners of points that other processes run."""
        with _refusals(self.path):
            found = self._db.execute(
                "SELECT DISTINCT owner FROM points WHERE status = 'running' "
                "AND owner <> ?",
                (self.owner,),
            ).fetchall()
        return [owner for (owner,) in found]

    def table(self) -> StudyTable:
        """What is there now."""
        with _refusals(self.path):
            return _table(self._db, self.path)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise


def read(path: str | os.PathLike[str]) -> StudyTable:
    """What a results file holds at this moment, whoever writes to it meanwhile.

    Raises:
      KbjaxError: where it cannot be read, or is no results file of a study.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise errors.KbjaxError(
            f"there is no results file {path}", remedy="Run the study first"
        )
    with _refusals(path, "read"):
        db = _connected(path, "mode=ro")
        try:
            try:
                db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except sqlite3.OperationalError:
                # A folder that cannot be written: nobody else writes there either.
                if os.path.exists(path + "-wal"):
                    raise
                db.close()
                db = _connected(path, "immutable=1")
            if not _tables(db, path):
                raise _no_results(path, "it has no tables")
            return _table(db, path)
        finally:
            db.close()


def open_problem(path: str, study: Study) -> None:
    """Refuse a results file that could not be used, before any work; make nothing.

    Raises:
      KbjaxError: see `Store`.
    """
    if os.path.lexists(path) and not os.path.exists(path):
        raise errors.KbjaxError(f"cannot write {path}: it is a link to nothing")
    if os.path.exists(path):
        if not os.path.isfile(path):
            raise errors.KbjaxError(
                f"cannot write {path}: it is no file", remedy="Give a file's path"
            )
        with _refusals(path), contextlib.suppress(FileNotFoundError):
            db = _connected(path, "mode=rw")
            try:
                if _tables(db, path):
                    _refuse_another(path, _study_of(db, path), study)
                db.execute("BEGIN IMMEDIATE")  # refused where it is read-only
                db.execute("ROLLBACK")
            finally:
                db.close()
        return
    from kbjax import output

    with output._refusals(path):
        probe = f"{path}.{os.getpid()}.probe"
        with open(probe, "xb"):
            pass
        os.unlink(probe)


# --- the database --------------------------------------------------------------------


def _connected(path: str, query: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.path.abspath(path))}?{query}"
    db = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def _opened(path: str) -> sqlite3.Connection:
    db = _connected(path, "mode=rwc")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _use_wal(db: sqlite3.Connection, path: str) -> None:
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


def _tables(db: sqlite3.Connection, path: str) -> bool:
    """Whether the results' tables are there; False for an empty file.

    Raises:
      KbjaxError: for a database of anything else, triggers and views included.
    """
    found = db.execute(
        "SELECT type, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    ).fetchall()
    if not found:
        return False
    if sorted(found) != sorted([("table", _META), ("table", _POINTS)]):
        raise _no_results(path, "it has other tables, or is of another version")
    return True


def _no_results(path: str, why: str) -> errors.KbjaxError:
    return errors.KbjaxError(
        f"{path} is no results file of a study: {why}",
        remedy="Give -o another path; this one is unchanged",
    )


def _study_of(db: sqlite3.Connection, path: str) -> dict[str, Any]:
    found = db.execute("SELECT value FROM meta WHERE name = 'study'").fetchone()
    study = _object(found[0] if found else "", path)
    if not isinstance(study.get("axes"), dict) or not isinstance(
        study.get("name"), str
    ):
        raise _no_results(path, "it does not say of which study")
    return study


def _refuse_another(path: str, there: Mapping[str, Any], study: Study) -> None:
    # As JSON has it, so that tuples are lists on both sides.
    here = json.loads(json.dumps(study.to_dict()))
    if found := differences(there, here):
        raise errors.KbjaxError(
            f"{path} has the results of another study",
            got="; ".join(found[:5]) + (" ..." if len(found) > 5 else ""),
            allowed="the study that the file was made for",
            remedy="Give -o another path, or remove the file",
        )


def _table(db: sqlite3.Connection, path: str) -> StudyTable:
    columns = ["number", "key", "status", "attempts", "versions", *_FIGURES]
    db.execute("BEGIN")  # one moment for both
    try:
        study = _study_of(db, path)
        found = db.execute(
            f"SELECT {', '.join(columns)} FROM points ORDER BY number"
        ).fetchall()
    finally:
        db.execute("ROLLBACK")
    rows = [_row(columns, cells, path) for cells in found]
    own = dict.fromkeys((*study["axes"], *(n for each in rows for n in each[0])))
    versions = dict.fromkeys(n for each in rows for n in each[2])
    return StudyTable(
        study,
        [
            {
                "number": row.pop("number"),
                **{n if n not in row else f"{n}_": each.get(n) for n in own},
                **row,
                **{f"{n}_version": by.get(n) for n in versions},
            }
            for each, row, by in rows
        ],
        path,
    )


def _row(
    columns: Sequence[str], cells: Sequence[Any], path: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A row's parameters, figures and versions, checked."""
    row = dict(zip(columns, cells, strict=True))
    parameters = _object(row.pop("key"), path)
    versions = _object(row.pop("versions") or "{}", path)
    if row["status"] not in _STATUSES or any(
        not isinstance(value, int | float | str)
        for value in (*parameters.values(), *versions.values())
    ):
        raise _no_results(path, f"the row of point {row['number']} is damaged")
    return parameters, row, versions


def _object(text: object, path: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _no_results(path, "what it says is damaged")
    return found


def _storable(value: object) -> object:
    if isinstance(value, str):  # halves of surrogate pairs, and NULs, are no SQL text
        text = value.encode("utf-8", "backslashreplace").decode("utf-8")
        return text.replace("\0", "\\x00")
    if isinstance(value, int) and abs(value) >= 2**63:
        return None
    if isinstance(value, float) and value != value:
        return None
    return value


@contextlib.contextmanager
def _refusals(path: str, verb: str = "write") -> Iterator[None]:
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
