"""Where the points of a study are computed: processes of this machine, or a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from kbjax import errors, extras

NO_WORKER_S = 60.0  # of a cluster, until a study ends
_ASK_S = 2.0  # between two looks at a cluster


class Pool(Protocol):
    """Something that computes several calls at a time."""

    @property
    def size(self) -> int:
        """Calls at a time."""

    def submit(self, work: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Start one."""

    def check(self) -> None:
        """Raise a KbjaxError where what was started can never end."""

    def why_broken(self, future: Future[Any]) -> str:
        """How the process that had a call ended, where that is why it has no result."""

    def stop(self) -> None:
        """End, whatever still runs."""


class Processes:
    """Processes of this machine, one executor each: where one is killed, only the point
    that it had is lost. They end when this process does, however that ends."""

    def __init__(self, jobs: int) -> None:
        self.size = jobs
        self._free: list[Executor] = []
        self._children: list[BaseProcess] = []
        self._process: dict[Executor, BaseProcess] = {}
        self._child_of: WeakKeyDictionary[Future[Any], BaseProcess] = (
            WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def submit(self, work: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Start `work(argument)` in a process that has nothing to do."""
        with self._lock:
            executor = self._free.pop() if self._free else _executor()
        before = set(multiprocessing.active_children())
        with _no_signals():  # a child starts with those of its parent
            try:
                future = executor.submit(work, argument)
            except BrokenProcessPool:  # killed when it had nothing to do
                executor = _executor()
                future = executor.submit(work, argument)
        started = set(multiprocessing.active_children()) - before
        self._children += started
        for child in started:
            self._process[executor] = child
        self._child_of[future] = self._process[executor]

        def ended(done: Future[Any]) -> None:
            broken = not done.cancelled() and done.exception() is not None
            with self._lock:
                if broken:
                    executor.shutdown(wait=False)
                else:
                    self._free.append(executor)

        future.add_done_callback(ended)
        return future

    def check(self) -> None:
        """Nothing: a process that ends breaks the call that it had."""

    def why_broken(self, future: Future[Any]) -> str:
        """By which signal, or with which exit status."""
        child = self._child_of.get(future)
        if child is None:
            return "the worker process ended"
        child.join(1)
        code = child.exitcode
        if code is None:
            return "the worker process broke off"
        if code >= 0:
            return f"the worker process ended by itself, with exit status {code}"
        why = f"the worker process was killed by signal {-code}"
        return f"{why}, by the system for its memory perhaps" if code == -9 else why

    def stop(self) -> None:
        """Kill the processes: what they compute is not recorded."""
        for child in self._children:
            with contextlib.suppress(ValueError):
                child.kill()
        for executor in self._free:
            executor.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            with contextlib.suppress(ValueError):
                child.join(5)


class Cluster:
    """The workers of a Dask cluster, which must have the same kbjax.

    Args:
      address: of its scheduler, as ``tcp://host:8786``.

    Raises:
      KbjaxError: without `distributed`, or where there is no scheduler or worker.
    """

    def __init__(self, address: str) -> None:
        distributed = extras.module("distributed", extra="cluster", use="a cluster")
        try:
            self._client = distributed.Client(
                address, timeout="15s", set_as_default=False
            )
        except Exception as error:  # of several libraries
            raise errors.KbjaxError(
                f"there is no Dask scheduler at {address}",
                got=f"{type(error).__name__}: {error}",
                allowed="an address as tcp://host:8786",
            ) from error
        threads = self._client.nthreads()
        self.size = sum(threads.values())
        if not self.size:
            self._client.close()
            raise errors.KbjaxError(
                f"the scheduler at {address} has no workers",
                remedy=f"Start some: dask worker {address}",
            )
        self._executor = self._client.get_executor(pure=False, retries=0)
        self._address = address
        self._asked_s = self._manned_s = time.monotonic()

    def submit(self, work: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Start `work(argument)` on a worker.

        Raises:
          KbjaxError: where the cluster is gone.
        """
        try:
            return self._executor.submit(work, argument)
        except Exception as error:  # of several libraries
            raise lost_cluster(f"{type(error).__name__}: {error}") from error

    def check(self) -> None:
        """Refuse a cluster that is gone, or has had no worker for a while: Dask itself
        would wait for another one for ever.

        Raises:
          KbjaxError: saying which.
        """
        now = time.monotonic()
        if now - self._asked_s < _ASK_S:
            return
        self._asked_s = now
        if self._client.status != "running":
            raise lost_cluster(f"the connection to {self._address} is lost")
        with contextlib.suppress(Exception):  # of several libraries: as good as none
            if self._client.scheduler_info(n_workers=1)["workers"]:
                self._manned_s = now
        if now - self._manned_s > NO_WORKER_S:
            raise lost_cluster(
                f"it has had no worker for {now - self._manned_s:.0f} seconds"
            )

    def why_broken(self, future: Future[Any]) -> str:
        """Dask does not say."""
        return "the worker process ended"

    def stop(self) -> None:
        """Cancel what waits, and leave the cluster; it goes on without this process."""
        with contextlib.suppress(Exception):
            self._executor.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)


def lost_cluster(why: str) -> errors.KbjaxError:
    """The refusal to wait for a cluster that will not answer."""
    return errors.KbjaxError(
        "the Dask cluster gave up the study",
        got=why,
        remedy="What was recorded is kept; start the scheduler and its workers, and "
        "run the same command again to resume",
    )


def _executor() -> Executor:
    multiprocessing.resource_tracker.ensure_running()  # it would unblock signals
    return ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=_worker
    )


def _worker() -> None:
    """In a worker: Ctrl-C is the parent's, standard output too, and its end is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what a kernel prints must not mix with results
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """SIGINT waits, in this thread and in the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
