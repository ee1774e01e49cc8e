"""What notebooks show: well-formed, escaped, small."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import jax

import kbjax as kb
from kbjax import notebook

TILE = jax.ShapeDtypeStruct((8, 128), "float32")
EVIL = "<script>alert(1)</script>"


def kernel(tl: Any, x: Any, out: Any) -> None:
    with tl.scratch_scope(EVIL):
        for _ in tl.range(100):
            with tl.scratch_scope():
                tl.store(out, tl.load(x) * 2.0)


CALL = kb.kernel_call(kernel, TILE)


def text_of(html: str) -> str:
    """The text of the page's part, which is XML as well."""
    assert EVIL not in html and "<script" not in html
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    return " ".join(tree.itertext())


def test_a_program_is_its_listing() -> None:
    program = CALL.record(TILE)
    assert str(program) in text_of(program._repr_html_())
    assert EVIL in str(program) and "test_notebook.py:" in str(program)


def test_a_plan_is_its_headline_and_tables() -> None:
    plan = CALL.plan(TILE)
    shown = text_of(plan._repr_html_())
    assert plan.headline() in shown and EVIL in shown
    for table in plan.tables():
        assert table.title in shown
        for row in table.rows:
            assert all(cell in shown for cell in row)


def test_an_op_log_is_its_summary_and_first_rows() -> None:
    log = CALL.op_log(TILE)
    shown = text_of(log._repr_html_())
    assert "the first 10 of 300 rows" in shown and "limited by" in shown
    assert "j=3" not in shown and len(log._repr_html_()) < 20_000
    few = CALL.op_log(TILE)[:2]
    assert "rows" in text_of(few._repr_html_())
    assert "stalls" in text_of(few[:0]._repr_html_())


def test_a_long_table_is_cut() -> None:
    text = notebook.table("rows", ["n"], ([str(n)] for n in range(1_000)))
    assert text.count("<tr>") == 1 + notebook.TABLE_ROWS
    assert "rows (the first 400 of 1,000)" in text
    whole = notebook.table("rows", ["n"], ([str(n)] for n in range(400)))
    assert whole.count("<tr>") == 401 and "first" not in whole
