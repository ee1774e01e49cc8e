"""Studies on a Dask cluster, whose workers and scheduler are killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import LocalCluster

from kbjax import errors, study_pools, study_run, study_source, study_store
from kbjax.study_table import StudyTable
from tests.test_study import ONE, ROOT, six, toml
from tests.test_study_processes import slow, wait_for_attempt

# A scheduler, and a worker that is a thread of it, in a process of their own.
CLUSTER = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=1, threads_per_worker=1, processes=False,
                  protocol="tcp", dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def test_a_dask_cluster(tmp_path: Path) -> None:
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        options = study_run.Options(scheduler=cluster.scheduler_address)
        table = study_run.run(six(), tmp_path / "r.sqlite", options)
    assert table.counts["done"] == 6
    assert table.rows == study_run.run(six(), tmp_path / "r.sqlite", ONE).rows
    own = study_run.run(six(), tmp_path / "own.sqlite", ONE)
    assert table.columns()["peak_scratch_bytes"] == own.columns()["peak_scratch_bytes"]


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with made:
        try:
            yield made
        finally:
            made.kill()


def sleeps_in_point_4(folder: Path, address: str) -> Future[StudyTable]:
    """A study that goes on in the background and sleeps in its fourth point, until
    there is a file `go`."""
    file = slow(folder, "time.sleep(60 if context == 512 and not os.path.exists("
                f"{str(folder / 'go')!r}) else 0)")  # fmt: skip
    study = study_source.from_python(file)
    executor = ThreadPoolExecutor(1)
    options = study_run.Options(scheduler=address)
    future = executor.submit(study_run.run, study, folder / "r.sqlite", options)
    executor.shutdown(wait=False)
    wait_for_attempt(1, folder / "r.sqlite")
    return future


def refused_and_resumed(folder: Path, future: Future[StudyTable], says: str) -> None:
    with pytest.raises(errors.KbjaxError, match=f"(?s)cluster gave up.*{says}.*resume"):
        future.result(timeout=40)
    assert study_store.read(folder / "r.sqlite").counts == {
        "done": 3, "failed": 0, "error": 0, "running": 0, "pending": 3
    }  # fmt: skip
    (folder / "go").touch()
    study = study_source.from_python(str(folder / "slow.py"))
    assert study_run.run(study, folder / "r.sqlite", ONE).counts["done"] == 6


def test_a_scheduler_that_dies(tmp_path: Path) -> None:
    with process("-c", CLUSTER) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        future = sleeps_in_point_4(tmp_path, address)
        cluster.kill()
        refused_and_resumed(tmp_path, future, "scheduler ended|connection")


def test_the_last_worker_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_pools, "NO_WORKER_S", 1.0)
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        program = "from dask.__main__ import main; main()"
        with process("-c", program, "worker", address, "--no-nanny",
                     "--nthreads", "1", "--no-dashboard") as worker:  # fmt: skip
            with cluster.get_client() as client:
                client.wait_for_workers(1, timeout=40)
            future = sleeps_in_point_4(tmp_path, address)
            worker.kill()
            refused_and_resumed(tmp_path, future, "no worker")


def test_a_scheduler_that_dies_before_the_first_point(tmp_path: Path) -> None:
    """While a worker looks at the kernel: nothing is made."""
    began, own = tmp_path / "began", tmp_path / "own.py"
    toml(own, f"import time\nopen({str(began)!r}, 'w').close()\ntime.sleep(60)")
    with process("-c", CLUSTER) as cluster:
        assert cluster.stdout is not None
        options = study_run.Options(scheduler=cluster.stdout.readline().strip())
        executor = ThreadPoolExecutor(1)
        study = six(kernel=f"{own}:case")
        future = executor.submit(study_run.run, study, tmp_path / "r.sqlite", options)
        executor.shutdown(wait=False)
        until = time.monotonic() + 40
        while not began.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        cluster.kill()
        with pytest.raises(errors.KbjaxError, match=r"(?s)cluster gave up.*resume"):
            future.result(timeout=40)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["began", "own.py"]
