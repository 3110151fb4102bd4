"""Ensembles of labelings as statistics of rows: stacked indicators of the labels.

A consensus minimises the within-cluster scatter of these rows, which is quadratic mutual
information; see `nrprob.CondEns`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse


def stack_indicators(columns: np.ndarray, classes: Sequence[np.ndarray]) -> sparse.csr_array:
    """Stacked indicators (n, p) of labels (n, members); 0 for a label that is new.

    Parameters
    ----------
    classes : sorted labels of every member, of which each has a column
    """
    n, members = columns.shape
    sizes = np.array([len(known) for known in classes])
    codes = [np.searchsorted(k, c) for k, c in zip(classes, columns.T, strict=True)]
    places = np.minimum(np.stack(codes, 1), sizes - 1) + np.cumsum(sizes) - sizes
    ones = (np.concatenate(classes)[places] == columns).astype(float).ravel()
    ends = np.arange(0, ones.size + 1, members)
    return sparse.csr_array((ones, places.ravel(), ends), shape=(n, sizes.sum()))


def centroid_scores(x: sparse.csr_array, centres: np.ndarray, holds_rows: np.ndarray) -> np.ndarray:
    """Scores (n, k) of the clusters for rows of indicators: the nearest one's is the largest.

    Those that hold no rows, as ``holds_rows`` (k,) says, have -inf.
    """
    near = np.asarray(x @ centres.T) - 0.5 * (centres**2).sum(1)
    return np.where(holds_rows, near, -np.inf)
