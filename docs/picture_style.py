"""Colours, markers and helpers that the scripts of the pictures share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

COLOURS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
MARKERS = "o", "^", "s", "D", "v", "P"


def scatter(
    ax, X: np.ndarray, labels: np.ndarray, markers: np.ndarray | None = None, size: float = 16
) -> None:
    """Plot two features (n, 2); negative labels are left out.

    Labels determine the colours. Markers follow from ``markers`` (n,), by default from the labels.
    """
    markers = labels if markers is None else markers
    for group in np.unique(labels[labels >= 0]):
        for shape in np.unique(markers[labels == group]):
            ax.scatter(
                *X[(labels == group) & (markers == shape)].T, s=size, color=COLOURS[group],
                marker=MARKERS[shape], alpha=0.75, lw=0,
            )  # fmt: skip


def save(figure, name: str, dpi: int = 110) -> None:
    """Write a picture into the folder of this file."""
    figure.savefig(Path(__file__).with_name(f"{name}.png"), dpi=dpi)
    plt.close(figure)


def plot_selected(*pictures: Callable[[], None]) -> None:
    """Plot all pictures, or those whose function is named as an argument of the script."""
    for plot in pictures:
        if len(sys.argv) == 1 or plot.__name__ in sys.argv[1:]:
            plot()
