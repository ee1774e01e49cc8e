#!/usr/bin/env python3
"""docs/report.png: a report in Chromium, the mouse on a buffer.

python scripts/picture_report.py [-o docs/report.png]
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PIL import Image

from kbjax import catalogue, report
from tests.browser import chromium


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", default="docs/report.png")
    options = parser.parse_args()
    case = catalogue.make("gqa_decode", context=1 << 20)
    made = report.of(case.call, *case.inputs.specs, title="gqa_decode",
                     sizes="context = 1048576", hardware="default")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, chromium(1300, 960) as browser:
        page = Path(folder) / "report.html"
        made.write(str(page))
        browser.open(page)
        columns = [browser.column("buffers", name)
                   for name in ("what", "left", "used", "bottom", "top")]  # fmt: skip
        places = list(zip(*columns, strict=True))
        loads = [place for place in places if place[0] == "load float32[128,128]"]
        _, left, used, bottom, top = loads[12]
        browser.point_at("memory", (left + used) / 2, (bottom + top) / 2)
        browser.wait("return document.querySelector('tr.lit')")
        picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png()))
        few = picture.convert("RGB").quantize(128)  # a third of the bytes
        few.save(options.output, optimize=True)


if __name__ == "__main__":
    main()
