"""Render pages from templates: single HTML files without scripts that load nothing.

A page can therefore be sent, archived and printed.
"""

from __future__ import annotations

import importlib.resources
from typing import Any

from nrprob.batch.report import filters

__all__ = ["render"]


def _source(name: str) -> str:
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")


def render(template: str, **content: Any) -> str:
    """Fill a template of this folder; whatever is put into it is escaped."""
    import jinja2

    import nrprob

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {name: getattr(filters, name) for name in filters.__all__}
    return environment.get_template(template).render(**content, version=nrprob.__version__)
