"""Plots of the samples in the plane in which clusters separate most."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

__all__ = ["draw_sample_plane"]

_SIZE = (4.8, 4.0)  # inches
_MAX_ENTRIES = 5 * 10**7  # entries of larger tables take too long


def draw_sample_plane(X: Any, labels: Any, known: np.ndarray | None) -> list[bytes]:
    """Plot samples adjusted for known groups; return PNG files by known group and by cluster.

    The list has only the second plot without known structure, and is empty for large tables.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    from nrprob.plotting import plot_residuals

    if X.shape[0] * X.shape[1] > _MAX_ENTRIES:
        return []
    figures = [plt.figure(figsize=_SIZE) for _ in range(2)]
    files = []
    with matplotlib.rc_context({"text.parse_math": False}):
        axes = [figure.add_subplot() for figure in figures]
        plot_residuals(X, labels, known, axes, random_state=0)
        for figure, ax in zip(figures, axes, strict=True):
            ax.set_title("")  # the page has a caption instead
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
            plt.close(figure)
            files.append(buffer.getvalue())
    return files if known is not None else files[1:]
