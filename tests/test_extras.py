"""Libraries that kbjax can do without: missing ones and broken ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kbjax as kb
from kbjax import extras


def test_one_that_is_there() -> None:
    assert extras.module("json.decoder", extra="plot", use="a test").JSONDecoder


@pytest.mark.parametrize("name", ["no_such_library", "no_such_library.part"])
def test_one_that_is_missing(name: str) -> None:
    with pytest.raises(kb.KbjaxError) as caught:
        extras.module(name, extra="plot", use="a test")
    assert str(caught.value) == (
        "a test needs no_such_library, which is not installed. "
        "Run pip install 'kbjax[plot]'."
    )


def test_one_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To install the extra would do nothing."""
    (tmp_path / "broken_library.py").write_text("import nothing_such")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kb.KbjaxError) as caught:
        extras.module("broken_library", extra="plot", use="a test")
    assert "cannot be imported: No module named 'nothing_such'" in str(caught.value)
    assert "kbjax[plot]" not in str(caught.value)
    assert "broken_library" not in sys.modules
