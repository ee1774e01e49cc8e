"""The report's figures of a kernel, on one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbjax import report_engines, report_memory, time_axis
from kbjax.site import Site
from kbjax.tcm_map import TcmMap


def of(tcm_map: TcmMap, lines: Mapping[Site, int]) -> Any:
    """Both figures, one above the other.

    Args:
      tcm_map: what to draw.
      lines: numbers of the kernel lines, by which the page finds what they made.
    """
    from bokeh.layouts import gridplot
    from bokeh.models import Range1d

    axis = time_axis.of(
        tcm_map.end_ps,
        [(band.start_ps, band.end_ps) for band in tcm_map.bands],
        [(op.start_ps, op.end_ps) for op in tcm_map.ops],
    )
    edge = axis.end_us * 0.01
    span = Range1d(
        start=-edge, end=axis.end_us + edge, bounds=(-edge * 2, axis.end_us * 1.03)
    )
    upper = report_memory.draw(tcm_map, axis, span, lines)
    lower = report_engines.draw(tcm_map, axis, span, lines)
    return gridplot(
        [[upper], [lower]],
        merge_tools=True,
        toolbar_location="above",
        toolbar_options={"logo": None},
        sizing_mode="stretch_width",
    )
