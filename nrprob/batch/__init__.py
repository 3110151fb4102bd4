"""Run model files, which declare data, known structure, methods, measures and reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nrprob.batch.modelfile import read_model
    from nrprob.batch.report import write_report
    from nrprob.batch.runner import run
    from nrprob.batch.store import load

__all__ = ["load", "read_model", "run", "write_report"]

_HOMES = {
    "load": "nrprob.batch.store",
    "read_model": "nrprob.batch.modelfile",
    "run": "nrprob.batch.runner",
    "write_report": "nrprob.batch.report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
