"""Who does which point: claims on the rows of a study's results file.

Several processes may work on one file: a point is claimed in a transaction, and
recorded only by who holds the claim. Reading needs no lock (WAL).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kbjax import errors, output, study_owner, study_schema
from kbjax.study import Study
from kbjax.study_row import FIGURES
from kbjax.study_status import AGAIN, Status
from kbjax.study_table import StudyTable


class Store:
    """A results file that is open for work on a study; `close` it at the end.

    Args:
      path: of the file, which is made where there is none.
      study: what it is for.

    Raises:
      KbjaxError: where it cannot be written, is none of this study, or no results file.
    """

    def __init__(self, path: str, study: Study) -> None:
        self.path = path
        self._numbers = range(len(study))
        with study_schema.refusals(path):
            self._db = study_schema.opened(path)
            try:
                self._begin(study)
            except BaseException:
                self._db.close()
                raise
        self.owner = study_owner.enter()

    def _begin(self, study: Study) -> None:
        """Make the tables and all points, in one transaction, or find them there."""
        if study_schema.has_tables(self._db, self.path):
            study_schema.refuse_another(self._db, self.path, study)
        study_schema.use_wal(self._db, self.path)
        with self._transaction():
            if study_schema.has_tables(self._db, self.path):  # another writer was first
                study_schema.refuse_another(self._db, self.path, study)
                return
            self._db.execute(f"PRAGMA application_id = {study_schema.APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {study_schema.SCHEMA_VERSION}")
            self._db.execute(study_schema.META)
            self._db.execute(study_schema.POINTS)
            self._db.execute(
                "INSERT INTO meta VALUES ('study', ?)", (json.dumps(study.to_dict()),)
            )
            self._db.executemany(
                "INSERT INTO points (number, key, status, attempts, seed) "
                f"VALUES (?, ?, '{Status.PENDING}', 0, ?)",
                ((one.number, one.key, study.seed) for one in study.points()),
            )

    def claim(self) -> tuple[int, int] | None:
        """The next point that nobody has done or runs, and which attempt at it this is;
        None where there is none now. One whose owner is gone is taken over."""
        with study_schema.refusals(self.path), self._transaction():
            found = self._db.execute(
                f"SELECT number FROM points WHERE status = '{Status.PENDING}' "
                "ORDER BY number LIMIT 1"
            ).fetchone()
            if found is None:
                found = self._abandoned()
            if found is None:
                return None
            self._db.execute(
                "UPDATE points SET status = ?, owner = ?, heartbeat = ?, "
                "attempts = attempts + 1 WHERE number = ?",
                (Status.RUNNING, self.owner, time.time(), found[0]),
            )
            (attempt,) = self._db.execute(
                "SELECT attempts FROM points WHERE number = ?", found
            ).fetchone()
            return found[0], attempt

    def _abandoned(self) -> tuple[int] | None:
        gone: dict[tuple[str, float], bool] = {}
        for number, owner, heartbeat in self._db.execute(
            "SELECT number, owner, heartbeat FROM points "
            f"WHERE status = '{Status.RUNNING}' AND owner <> ? ORDER BY number",
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
        cells = {n: study_schema.storable(v) for n, v in row.items() if n in FIGURES}
        cells |= {"status": row["status"], "finished_at": time.time()}
        cells["versions"] = json.dumps(row.get("versions", {}), sort_keys=True)
        names = ", ".join(f"{name} = ?" for name in cells)
        with study_schema.refusals(self.path), self._transaction():
            done = self._db.execute(
                f"UPDATE points SET {names}, owner = NULL, heartbeat = NULL "
                "WHERE number = ? AND attempts = ? AND owner = ? "
                f"AND status = '{Status.RUNNING}'",
                (*cells.values(), *claim, self.owner),
            )
            return done.rowcount == 1

    def beat(self) -> None:
        """Say that this owner still runs its points."""
        with study_schema.refusals(self.path), self._transaction():
            self._db.execute(
                "UPDATE points SET heartbeat = ? WHERE owner = ?",
                (time.time(), self.owner),
            )

    def release(self) -> None:
        """Give back the points that it has claimed and not finished."""
        with study_schema.refusals(self.path), self._transaction():
            self._db.execute(
                f"UPDATE points SET status = '{Status.PENDING}', owner = NULL, "
                f"heartbeat = NULL WHERE owner = ? AND status = '{Status.RUNNING}'",
                (self.owner,),
            )

    def retry(self) -> int:
        """Make what failed pending again; how many points that are."""
        blank = ", ".join(f"{name} = NULL" for name in FIGURES if name != "seed")
        with study_schema.refusals(self.path), self._transaction():
            return self._db.execute(
                f"UPDATE points SET status = ?, versions = NULL, {blank} "
                "WHERE status IN (?, ?)",
                (Status.PENDING, *AGAIN),
            ).rowcount

    def counts(self) -> dict[str, int]:
        """Status -> points."""
        with study_schema.refusals(self.path):
            found = self._db.execute(
                "SELECT status, count(*) FROM points GROUP BY status"
            ).fetchall()
        return {**{each.value: 0 for each in Status}, **dict(found)}

    def others_run(self) -> bool:
        """Whether others run points of it."""
        with study_schema.refusals(self.path):
            found = self._db.execute(
                f"SELECT 1 FROM points WHERE status = '{Status.RUNNING}' "
                "AND owner <> ? LIMIT 1",
                (self.owner,),
            ).fetchone()
        return found is not None

    def table(self) -> StudyTable:
        """What is there now."""
        with study_schema.refusals(self.path):
            return study_schema.table_of(self._db, self.path)

    def close(self) -> None:
        """Close the file. What it claims and has not finished is free to others."""
        study_owner.leave(self.owner)
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
    with study_schema.refusals(path, "read"):
        db = study_schema.connected(path, "mode=ro")
        try:
            try:
                db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except sqlite3.OperationalError:
                # A folder that cannot be written: nobody else writes there either.
                if os.path.exists(path + "-wal"):
                    raise
                db.close()
                db = study_schema.connected(path, "immutable=1")
            if not study_schema.has_tables(db, path):
                raise study_schema.no_results(path, "it has no tables")
            return study_schema.table_of(db, path)
        finally:
            db.close()


def check_usable(path: str, study: Study) -> None:
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
        with study_schema.refusals(path), contextlib.suppress(FileNotFoundError):
            db = study_schema.connected(path, "mode=rw")
            try:
                if study_schema.has_tables(db, path):
                    study_schema.refuse_another(db, path, study)
                db.execute("BEGIN IMMEDIATE")  # refused where it is read-only
                db.execute("ROLLBACK")
            finally:
                db.close()
        return
    with output.refusals(path):
        probe = f"{path}.{os.getpid()}.probe"
        with open(probe, "xb"):
            pass
        os.unlink(probe)
