"""Plots of the samples in the plane in which clusters separate most."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

__all__ = ["draw_sample_plane"]

_SIZE = (4.8, 4.0)  # inches
# Words for readers who do not know the terms of the axes.
_PLAIN_WORDS = {
    "discriminant": "separating direction",
    "principal direction of the remainder": "direction of the largest remaining variation",
}
_MAX_ENTRIES = 5 * 10**7  # entries of larger tables take too long


def draw_sample_plane(X: Any, labels: Any, known: np.ndarray | None) -> list[bytes]:
    """Plot samples, adjusted for known groups, in the plane that separates clusters most.

    ``X`` (n, m) are the features, ``labels`` (n,) the clusters, and ``known`` (n, n_labelings) the
    known labelings, or None. Returns the contents of two PNG files, in which samples are marked by
    known group and by cluster. Without known labelings, only the second file is returned; for large
    tables, the list is empty.
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
            for axis in (ax.xaxis, ax.yaxis):
                text = axis.get_label_text()
                for term, words in _PLAIN_WORDS.items():
                    text = text.replace(term, words)
                axis.set_label_text(text)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
            plt.close(figure)
            files.append(buffer.getvalue())
    return files if known is not None else files[1:]
