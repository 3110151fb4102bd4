"""Which versions made a result."""

from __future__ import annotations

import contextlib
import platform
from importlib import metadata

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("nrprob", "jax", "jaxlib", "numpy", "scipy", "scikit-learn")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
