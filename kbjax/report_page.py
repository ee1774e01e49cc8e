"""A page that opens with no network, from a template and Bokeh's figures. What users
named is escaped: by the template, or as data by Bokeh."""

from __future__ import annotations

from importlib import resources
from typing import Any

from kbjax import extras


def require_bokeh() -> None:
    """Refuse to go on without Bokeh.

    Raises:
      KbjaxError: naming what to install.
    """
    extras.module("bokeh.plotting", extra="report", use="a report")


def rendered(template: str, figures: Any, **values: Any) -> str:
    """A template of the package with its values, which are escaped.

    Args:
      template: its file's name.
      figures: a Bokeh figure, or a layout of them.
      **values: what the template asks for.

    Raises:
      KbjaxError: where Bokeh is not installed.
    """
    require_bokeh()
    import jinja2  # with markupsafe, comes with Bokeh
    import markupsafe
    from bokeh.embed import components
    from bokeh.resources import Resources

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_template),
    )
    script, div = components(figures)
    library = Resources(mode="inline", components=["bokeh"]).render_js()
    made = {
        "library": markupsafe.Markup(library),
        "script": markupsafe.Markup(script),
        "div": markupsafe.Markup(div),
    }
    return environment.get_template(template).render(**made, **values)


def _template(name: str) -> str:
    return resources.files("kbjax").joinpath("templates", name).read_text("utf-8")
