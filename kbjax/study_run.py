"""Running a study: its points are claimed, computed and recorded until none is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from kbjax import errors, study_point, study_store, study_versions
from kbjax.cores import usable_cores
from kbjax.study import Point, Study
from kbjax.study_pools import Cluster, Pool, Processes, lost_cluster
from kbjax.study_status import Status
from kbjax.study_store import Store
from kbjax.study_table import StudyTable

_TICK_S = 0.2  # how soon a signal is seen
_BEAT_S = 5.0
_CSV_S = 1.0  # between two writes of a CSV file


class InterruptedStudyError(errors.KbjaxError):
    """A study was ended by a signal; what was done is in its file.

    Attributes:
      signal: its number.
      exit_status: of a command that it ends.
      table: what the file holds.
    """

    def __init__(self, table: StudyTable, number: int) -> None:
        self.signal, self.exit_status, self.table = number, 128 + number, table
        super().__init__(
            f"interrupted: {table.path} has {table.progress}",
            remedy="Run the same command again to resume",
        )


@dataclass(frozen=True)
class Options:
    """How a study is run.

    Attributes:
      jobs: points at a time; None for one a core, and for one alone where points are
        executed, which uses all cores by itself.
      scheduler: the address of a Dask cluster's; None for processes of this machine.
      retry_failed: whether points that failed are done again.
      csv: a file that is kept up to date meanwhile, about once a second, and after a
        signal; the last one is for the caller to write.
    """

    jobs: int | None = None
    scheduler: str | None = None
    retry_failed: bool = False
    csv: str | None = None


def run(
    study: Study,
    path: str | os.PathLike[str],
    options: Options = Options(),
    progress: Callable[[int], None] = lambda finished: None,
) -> StudyTable:
    """Do what is left of a study, and return what its file then holds.

    Args:
      study: what to do.
      path: of the results file: made, or resumed where it is of the same study.
      options: where and how.
      progress: called several times a second with how many points are finished.

    Raises:
      KbjaxError: for a kernel or size that there is none of, a file that cannot be
        written or is of another study, a cluster that is not there.
      InterruptedStudyError: after SIGINT or SIGTERM.

    Warns:
      StudyVersionsWarning: where the file has rows of other versions, or of other code
        of kbjax or of the kernel; they are kept.
    """
    path = os.fspath(path)
    study_store.check_usable(path, study)
    if _is_there(path):
        with contextlib.closing(Store(path, study)) as store:
            counts = store.counts()
            if options.retry_failed:
                counts[Status.PENDING] += counts[Status.FAILED] + counts[Status.ERROR]
            if options.scheduler is None:
                kept = [Status.DONE] if options.retry_failed else [*Status]
                _warn_of_others(study, store.table(), kept)
            if not counts[Status.PENDING] and not counts[Status.RUNNING]:
                return store.table()
    with _signals() as stop:
        pool = _pool(study, options)
        try:
            _check_points(study, pool, stop)
            with _opened(study, path) as store:
                if options.retry_failed and not stop:
                    store.retry()
                _work(study, store, pool, stop, _Watch(options.csv, progress))
        finally:
            pool.stop()
    with contextlib.closing(Store(path, study)) as store:
        table = store.table()  # whose end leaves one file: a mere reader may not
    if stop:
        if options.csv:
            table.to_csv(options.csv)
        raise InterruptedStudyError(table, stop[0])
    return table


class _Watch:
    """What is told and written while a study runs."""

    def __init__(self, csv: str | None, progress: Callable[[int], None]) -> None:
        self._csv, self._progress = csv, progress
        self._written_s, self._known = time.monotonic(), -1

    def look(self, store: Store) -> None:
        """Called several times a second."""
        counts = store.counts()
        finished = sum(counts[each] for each in Status if each.is_finished)
        self._progress(finished)
        start_s = time.monotonic()
        if finished != self._known and start_s - self._written_s > _CSV_S and self._csv:
            store.table().to_csv(self._csv)
            # At most a twentieth of the time goes into it.
            self._written_s = time.monotonic() + 20 * (time.monotonic() - start_s)
            self._known = finished


def _warn_of_others(study: Study, table: StudyTable, kept: Sequence[Status]) -> None:
    now = {k: study_versions.here(study.located(k)) for k in study.kernel_names}
    rows = [row for row in table.rows if row.status in kept]
    if lines := study_versions.changed(rows, now):
        warnings.warn(
            f"{table.path} has rows that were done with something else: "
            f"{'; '.join(lines)}. They are kept; to do all points again, give another "
            "path, or remove the file",
            study_versions.StudyVersionsWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def _opened(study: Study, path: str) -> Iterator[Store]:
    """The file, made where there is none; at the end, points not done are free."""
    with contextlib.closing(Store(path, study)) as store:
        try:
            yield store
        finally:
            with contextlib.suppress(errors.KbjaxError):  # the first error counts
                store.release()


def _is_there(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def _pool(study: Study, options: Options) -> Pool:
    if options.scheduler is not None:
        return Cluster(options.scheduler)
    jobs = options.jobs
    if jobs is None:
        jobs = 1 if study.do == "run" else usable_cores()
    if jobs < 1:
        raise errors.ShapeError("jobs is a positive integer", got=jobs)
    return Processes(min(jobs, len(study)))


def _check_points(study: Study, pool: Pool, stop: list[int]) -> None:
    """Refuse unknown kernels and sizes: a worker knows, for it has JAX."""
    names: dict[str, dict[str, None]] = {}
    for point in study.points():
        names.setdefault(point.kernel, {}).update(dict.fromkeys(point.sizes))
    future = pool.submit(
        study_point.check, {kernel: tuple(sizes) for kernel, sizes in names.items()}
    )
    while not wait([future], timeout=_TICK_S).done:
        if stop:
            return
        pool.check()
    if future.cancelled():
        raise lost_cluster("its scheduler ended")
    try:
        future.result()
    except BrokenProcessPool as error:
        raise errors.KbjaxError(
            "a worker process ended before its first point",
            remedy="Give --jobs 1, or more memory; in a script, call the study under "
            "if __name__ == '__main__'",
        ) from error


def _work(
    study: Study,
    store: Store,
    pool: Pool,
    stop: list[int],
    watch: _Watch,
) -> None:
    points = list(study.points())
    flying: dict[Future[Any], tuple[int, int]] = {}
    beaten = time.monotonic()
    while not stop:
        left = True
        while len(flying) < pool.size and left and not stop:
            claim = store.claim()
            left = claim is not None
            if claim is not None:
                flying[pool.submit(study_point.measure, points[claim[0]])] = claim
        if not flying and not store.others_run():
            if store.counts()[Status.PENDING]:
                continue  # given back in between
            return
        done = wait(flying, timeout=_TICK_S, return_when=FIRST_COMPLETED).done
        if not flying:
            time.sleep(_TICK_S)  # for points that another process has
        for future in done:
            if not future.cancelled():
                claim = flying.pop(future)
                store.finish(claim, _row(pool, future, points[claim[0]]))
        if any(future.cancelled() for future in done):
            raise lost_cluster("its scheduler ended")
        pool.check()
        if time.monotonic() - beaten > _BEAT_S:
            store.beat()
            beaten = time.monotonic()
        watch.look(store)


def _row(pool: Pool, future: Future[Any], point: Point) -> dict[str, Any]:
    error = future.exception()
    if error is None:
        row = dict(future.result())
    else:  # the worker was killed, or its row lost; never an exit of this process
        why = str(error)
        if isinstance(error, BrokenProcessPool):
            why = pool.why_broken(future)
        row = {"status": Status.ERROR, "reason_kind": type(error).__name__}
        row["reason"] = why
    return {**row, "seed": point.seed}


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that gets the number of a signal that asks to end; a second one of them
    ends at once. In another thread than the main one, signals are left alone."""
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def asked(number: int, frame: object) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    before = {n: signal.signal(n, asked) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
