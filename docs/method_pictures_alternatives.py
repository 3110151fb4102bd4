"""Plot the pictures of the pages on alternatives of any shape and on cross-partition clustering.

``python docs/method_pictures_alternatives.py`` plots all pictures; names of pictures as arguments
select some of them.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from picture_style import save, scatter
from sklearn.metrics import adjusted_rand_score

from nrprob import NACI, Orthogonalization
from nrprob.datasets import make_planar_shapes


def separated_rings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of a disc and a ring, cut into two halves; the halves and the shapes."""
    X, labels = make_planar_shapes(400, "rings", random_state=0)
    half, shape = labels.T
    X[:, 0] += 1.5 * half
    return X, half, shape


def plot_alternatives_of_any_shape() -> None:
    """Plot halves of rings: known groups, a projection, and NACI without and with penalty."""
    X, half, shape = separated_rings()
    projected = Orthogonalization(2, random_state=0).fit(X, known=half)
    free = NACI(2, eta=0).fit(X, known=half)
    model = NACI(2).fit(X, known=half)
    figure, axes = plt.subplots(2, 2, figsize=(7.6, 6.4), layout="constrained")
    panels = {
        "known: left or right half": half,
        "NACI, eta=0": free.labels_,
        "Orthogonalization": projected.labels_,
        "NACI, given the halves": model.labels_,
    }
    for ax, (title, labels) in zip(axes.ravel(), panels.items(), strict=True):
        scatter(ax, X, labels, half)
        if ax is not axes[0, 0]:
            agreement = [adjusted_rand_score(true, labels) + 0.0 for true in (half, shape)]
            print(title, np.round(agreement, 2))
        ax.set(title=title, xticks=[], yticks=[], aspect="equal")
    save(figure, "alternatives-of-any-shape")


PICTURES = {
    "alternatives-of-any-shape": plot_alternatives_of_any_shape,
}


def main(names: list[str]) -> None:
    """Plot the pictures with these names, or all."""
    for name in names or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
