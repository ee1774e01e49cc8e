"""Studies that are signalled or killed, that share a file, and whose points raise."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbjax import errors, study_plots, study_pools, study_run, study_store
from tests.test_study import ONE, ROOT, invoke, six, toml

# A study of the user's own: its points sleep, so that there is time for a signal.
SLOW = """
import time, os, sys
from kbjax import catalogue
from kbjax.study import Study

def case(context: int = 64, *, hardware=None):
    {body}
    return catalogue.make("gqa_decode", context=context, num_pes=1, dim=16, tile=16,
                          hardware=hardware)

study = Study(name="slow", kernel=__file__ + ":case", do="plan",
              axes={{"context": [64, 128, 256, 512, 1024, 2048]}})
"""


def slow(folder: Path, body: str) -> str:
    return toml(folder / "slow.py", SLOW.format(body=body))


def started(file: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kbjax", "study", file, "--jobs", "1", *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def wait_for_attempt(number: int, results: Path) -> None:
    """Until point 4 runs for that many times, and the three before it are recorded."""
    until = time.monotonic() + 50
    while time.monotonic() < until:
        if results.exists():
            try:
                table = study_store.read(results)
            except errors.KbjaxError as error:
                assert "no tables" in str(error)
                continue
            running = [r.attempts for r in table.rows if r.status == "running"]
            if table.counts["done"] == 3 and running == [number]:
                return
        time.sleep(0.05)
    raise AssertionError("the study did not get there")


def test_signals_in_point_4(tmp_path: Path) -> None:
    """One after the other: three rows are on disk, nothing runs on, and the rest is
    done afterwards, while a reader of both files never sees a torn row."""
    file = slow(tmp_path, "time.sleep(60 if context == 512 and not os.path.exists("
                f"{str(tmp_path / 'go')!r}) else 0)")  # fmt: skip
    results, sheet = tmp_path / "slow.sqlite", tmp_path / "s.csv"
    before = None
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    for attempt, number in enumerate(signals, 1):
        process = started(file, "--csv", str(sheet))
        wait_for_attempt(attempt, results)
        partial = tmp_path / "partial.svg"
        study_plots.write(study_store.read(results), str(partial))
        assert "partial: 3 of 6 points" in partial.read_text("utf-8")
        sheet.unlink(missing_ok=True)
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
        if number == signal.SIGKILL:
            assert process.returncode == -9
        else:
            assert process.returncode == 128 + number
            assert str(results) in told and "resume" in told
            assert "Traceback" not in told
            assert len(sheet.read_text("utf-8").splitlines()) >= 7
        table = study_store.read(results)
        assert table.counts["done"] == 3
        done = [row for row in table.rows if row.status == "done"]
        assert before in (None, done), number
        before = done
    (tmp_path / "go").touch()
    process = started(file, "--csv", str(sheet))
    while process.poll() is None:
        assert len(study_store.read(results).rows) == 6
        if sheet.exists():
            with open(sheet, newline="", encoding="utf-8") as opened:
                rows = list(csv.reader(opened))
            assert len(rows) == 7 and len({len(row) for row in rows}) == 1
        time.sleep(0.02)
    _, told = process.communicate()
    assert process.returncode == 0, told
    table = study_store.read(results)
    assert table.counts["done"] == 6 and list(table.rows[:3]) == before
    assert [row.attempts for row in table.rows] == [1, 1, 1, 4, 1, 1]


def test_two_writers_share_a_study(tmp_path: Path) -> None:
    """This process and another one; the first point waits for the second."""
    log = tmp_path / "log"
    file = slow(
        tmp_path,
        f"""log = {str(log)!r}
    with open(log, "a") as opened: opened.write(f"{{context}}\\n")
    until = time.monotonic() + 40
    while time.monotonic() < until and len(open(log).readlines()) < 2:
        time.sleep(0.01)""",
    )
    other = started(file)
    result = invoke(file, "--jobs", "1")
    assert result.exit_code == 0, result.output
    _, told = other.communicate(timeout=50)
    assert other.returncode == 0, told
    table = study_store.read(tmp_path / "slow.sqlite")
    assert table.counts["done"] == 6
    assert {row.attempts for row in table.rows} == {1}
    assert sorted(map(int, log.read_text().split())) == [64, 128, 256, 512, 1024, 2048]


def test_points_that_raise_and_workers_that_die(tmp_path: Path) -> None:
    """The rest runs; the exit status says so; --retry-failed does them again."""
    flag = tmp_path / "flag"
    file = slow(tmp_path, f"""good = os.path.exists({str(flag)!r})
    if context == 128 and not good: raise ValueError("[red]=x[/red]")
    if context == 256 and not good: os.kill(os.getpid(), 9)
    if context == 512 and not good: os._exit(3)
    print("noise")""")  # fmt: skip
    process = started(file, "--json")
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    rows = json.loads(out)["rows"]
    assert [row["status"] for row in rows] == ["done", *["error"] * 3, "done", "done"]
    assert rows[1]["reason_kind"] == "ValueError" and "slow.py" in rows[1]["reason"]
    assert rows[2]["reason_kind"] == rows[3]["reason_kind"] == "BrokenProcessPool"
    assert "killed by signal 9" in rows[2]["reason"]
    assert "exit status 3" in rows[3]["reason"]
    assert "[red]=x[/red]" in invoke(str(tmp_path / "slow.sqlite")).output
    flag.touch()
    result = invoke(file, "--jobs", "1", "--retry-failed")
    assert result.exit_code == 0, result.output
    assert study_store.read(tmp_path / "slow.sqlite").counts["done"] == 6


def test_a_kernel_that_exits_is_a_row(tmp_path: Path) -> None:
    """Not the end of the study, with a status that says that all is well."""
    file = slow(
        tmp_path,
        """if context == 64: sys.exit("bye [b]x[/b]")
    if context == 128: sys.exit(0)
    if context == 256: raise KeyboardInterrupt""",
    )
    result = invoke(file, "--jobs", "1")
    assert result.exit_code == 1 and "6 of 6 points" in result.output
    table = study_store.read(tmp_path / "slow.sqlite")
    assert [row.status for row in table.rows] == ["error"] * 3 + ["done"] * 3
    ends = [row.figures for row in table.rows[:3]]
    kinds = ["SystemExit", "SystemExit", "KeyboardInterrupt"]
    assert [end["reason_kind"] for end in ends] == kinds
    assert all("slow.py:" in end["reason"] for end in ends)


@pytest.mark.parametrize("top", ["import sys; sys.exit(0)", "1 / 0"])
def test_a_kernels_file_that_ends_at_once_is_refused(top: str, tmp_path: Path) -> None:
    toml(tmp_path / "own.py", top)
    kernel = f"{tmp_path / 'own.py'}:case"
    with pytest.raises(errors.KernelError, match=r"(?s)own\.py.*1"):
        study_run.run(six(kernel=kernel), tmp_path / "r.sqlite", ONE)
    assert not (tmp_path / "r.sqlite").exists()


def test_a_worker_that_is_killed_when_it_has_nothing_to_do() -> None:
    pool = study_pools.Processes(1)
    try:
        assert pool.submit(abs, -1).result(timeout=50) == 1
        (child,) = pool._children
        child.kill()
        child.join()
        until = time.monotonic() + 20
        while pool.submit(abs, -2).exception(timeout=50):  # it was not known yet
            assert time.monotonic() < until
        assert pool.submit(abs, -3).result(timeout=50) == 3
    finally:
        pool.stop()
