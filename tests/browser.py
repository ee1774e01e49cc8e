"""Debian's Chromium, driven by Selenium: opens a page as a user does, with no
network."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.actions.action_builder import ActionBuilder

_PATIENCE_S = 30

# All text of a page, that of shadow trees (Bokeh's tooltips) included.
_TEXT = """
const texts = (node) => {
  if (node.nodeType === Node.TEXT_NODE) return [node.nodeValue];
  if (["SCRIPT", "STYLE"].includes(node.nodeName)) return [];
  const inside = [...(node.shadowRoot ? node.shadowRoot.childNodes : []),
                  ...node.childNodes];
  return inside.flatMap(texts);
};
return texts(document.body).join(" ");
"""
# Where a point of a figure's data is, in pixels of the window.
_POINT = """
const [name, x, y] = arguments;
const model = Bokeh.documents[0].get_model_by_name(name);
const view = Bokeh.index.find_one(model);
const box = view.canvas_view.el.getBoundingClientRect();
return [box.left + view.frame.x_scale.compute(x),
        box.top + view.frame.y_scale.compute(y)];
"""


class Browser:
    """A window on one page at a time."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Load a file, and wait until its figures are drawn."""
        self.driver.get(path.resolve().as_uri())
        self.wait("return window.Bokeh && Bokeh.documents[0]?.is_idle")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any) -> Any:
        """What a script gives once that is something."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            found = self.run(script, *arguments)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}")

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        log = self.driver.get_log("browser")
        return [json.dumps(e) for e in log if e["level"] not in ("INFO", "DEBUG")]

    def text(self) -> str:
        return self.run(_TEXT)

    def column(self, source: str, name: str) -> list[Any]:
        """A column of a source of the figures."""
        script = """const s = Bokeh.documents[0].get_model_by_name(arguments[0]);
        return Array.from(s.data[arguments[1]]);"""
        return self.run(script, source, name)

    def selected(self, source: str) -> list[int]:
        script = """return Array.from(Bokeh.documents[0]
        .get_model_by_name(arguments[0]).selected.indices);"""
        return self.run(script, source)

    def point_at(self, figure: str, x: float, y: float) -> None:
        """Move the mouse to a point of a figure's data."""
        left, top = self.run(_POINT, figure, x, y)
        for step in (2, 0):  # a mouse comes from somewhere
            actions = ActionBuilder(self.driver)
            actions.pointer_action.move_to_location(round(left) + step, round(top))
            actions.perform()

    def move_to(self, selector: str) -> None:
        """Move the mouse onto an element."""
        place = """const e = document.querySelector(arguments[0]);
        e.scrollIntoView({block: "center"});
        const b = e.getBoundingClientRect();
        return [b.left + 20, b.top + b.height / 2];"""
        left, top = self.run(place, selector)
        actions = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(round(left), round(top))
        actions.perform()


@contextlib.contextmanager
def chromium(width: int = 1500, height: int = 1000) -> Iterator[Browser]:
    """A headless Chromium."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    assert all(found), (
        "the report's tests need Chromium: apt-get install chromium chromium-driver"
    )
    options = Options()
    options.binary_location = found[0]
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        f"--window-size={width},{height}",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(found[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
