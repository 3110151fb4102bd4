"""Configurations of a multi-view clustering, and the parts of their lengths that are constant.

A configuration has a number K_v of clusters for each of V views v, and states whether the labels of
the views are coded jointly. There are n rows, and d features of a view. A *cell* is a combination
of clusters, one of each view. Parts of the description length that do not depend on the labels are
constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nrprob import codelength

CELLS = 4096  # largest number of cells of a joint table


@dataclass
class Configuration:
    """Numbers of clusters of all views, and whether the labels of the views are coded jointly.

    Attributes
    ----------
    sizes : number of clusters of every view
    dependent : whether the labels of all views are coded jointly; if False, separately
    """

    sizes: tuple[int, ...]
    dependent: bool

    @property
    def view_groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of views whose labels are coded jointly, as tuples of indices of views."""
        every = tuple(range(len(self.sizes)))
        return (every,) if self.dependent else tuple((v,) for v in every)

    def label_complexity(self, n: int, form: Literal["exact", "printed"] = "exact") -> float:
        """Parametric complexity in nats of the labels of ``n`` rows in all views.

        ``form`` selects a formula of `nrprob.codelength.multinomial_complexity`.
        """
        return sum(
            float(codelength.multinomial_complexity(size, n, form=form)) for size in self.code_sizes
        )

    @property
    def code_sizes(self) -> list[int]:
        """For every group in ``view_groups``, the number of combinations of clusters."""
        return [math.prod(self.sizes[v] for v in group) for group in self.view_groups]

    def constant_length(self, n: int, view_sizes: Sequence[int] | None) -> float:
        """Parametric complexity of the labels of ``n`` rows, plus the code length of the centres.

        Parameters
        ----------
        n : number of rows
        view_sizes : numbers of features of the views; None if the centres are not coded
        """
        value = self.label_complexity(n)
        if view_sizes is not None:
            coordinates = sum(k * d for k, d in zip(self.sizes, view_sizes, strict=True))
            value += 0.5 * coordinates * max(math.log(n / (2 * math.pi)), 0.0)
        return float(value)


def dependence_gain(labels: np.ndarray, sizes: Sequence[int]) -> float:
    """Nats by which a joint code of labels (n, V) is shorter than separate codes of V views.

    ``sizes`` are the numbers of clusters of the views. The result is NaN for more than 4096 cells,
    which are combinations of clusters, one of each view.
    """
    n = labels.shape[0]
    if math.prod(sizes) > CELLS:
        return math.nan
    cells = np.unique(labels, axis=0, return_counts=True)[1]
    joint = codelength.maximum_likelihood_length(cells)
    joint += codelength.multinomial_complexity(math.prod(sizes), n)
    separate = sum(
        codelength.nml_length(np.bincount(column, minlength=k))
        for column, k in zip(labels.T, sizes, strict=True)
    )
    return float(separate - joint)


def sum_of_critical_temperatures(scaled: Sequence[np.ndarray], weights: np.ndarray) -> float:
    """Sum over views of the critical temperature of a view.

    At its critical temperature, a single cluster of all rows of the view splits. ``scaled`` has the
    rows (n, d) of every view, with total variance 1. ``weights`` (V,) are the factors of the
    squared distances of the views in the description length.
    """
    splits = []
    for x, w in zip(scaled, weights, strict=True):
        n, d = x.shape
        wide = x.astype(np.float64)
        square = wide.T @ wide if d <= n else wide @ wide.T
        splits.append(2 * w * float(np.linalg.eigvalsh(square / n)[-1]))
    return sum(splits)


def best_cells(joint: np.ndarray, scores: list[np.ndarray]) -> np.ndarray:
    """Find the most probable cell of every row; ties go to the first cell.

    A cell is a combination of clusters, one of each of V views.

    Parameters
    ----------
    joint : (K_1, ..., K_V) log shares of the cells
    scores : for every view v, the log densities (n, K_v) of the rows in its clusters

    Returns
    -------
    (n, V) for every row, clusters of the cell with the largest sum of log share and log densities
    """
    n, axes = scores[0].shape[0], range(1, len(scores) + 1)
    out = np.empty((n, len(scores)), np.int64)
    step = max(1, (1 << 22) // joint.size)
    for first in range(0, n, step):
        total = joint[None]
        for v, score in zip(axes, scores, strict=True):
            block = score[first : first + step]
            total = total + np.expand_dims(block, [u for u in axes if u != v])
        best = total.reshape(total.shape[0], -1).argmax(1)
        out[first : first + step] = np.stack(np.unravel_index(best, joint.shape), 1)
    return out
