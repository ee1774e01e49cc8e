"""The cores that are used, also where the system does not say which may be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kbjax import catalogue, cores, study_run
from tests.test_study import six


def test_no_more_than_this_process_may_use() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert cores.usable_cores() == len(os.sched_getaffinity(0))
    assert 1 <= cores.usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("count", [3, None])
def test_where_the_system_does_not_say(
    count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS and Windows: a study without --jobs, and random inputs."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert cores.usable_cores() == (count or 1)
    study = six(axes={"context": [64, 128]})
    assert study_run.run(study, tmp_path / "r.sqlite").counts["done"] == 2
    small = {"context": 64, "num_pes": 1, "dim": 16, "tile": 16}
    arrays = catalogue.make("gqa_decode", **small).arrays  # made with a thread a core
    assert all(np.isfinite(np.asarray(each)).all() for each in arrays)
