"""Warn of skewed features, whose logarithms form Gaussian clusters better than their values."""

from __future__ import annotations

import numpy as np

from nrprob.data.design import Design
from nrprob.data.frames import quote_names
from nrprob.data.logarithms import compare_logarithms
from nrprob.exceptions import warn
from nrprob.methods.conditional.table_fit import TableInput

# Smallest gain of a logarithm, in nats per sample, that leads to a warning. Normal, t and uniform
# values, with clusters of any shares, gain at most 0.1. Log-normal clusters, whose logarithms have
# the standard deviation 0.5, gain 0.4.
_LEAST_GAIN = 0.2
# Largest numbers of rows (evenly spaced) and of features (the most skewed) that are compared.
_MAX_ROWS, _MAX_FEATURES = 10_000, 50
_LEAST_COMPONENTS, _MOST_COMPONENTS = 3, 10  # bounds of the number of components per feature


def warn_of_skewed(table: TableInput, design: Design, n_clusters: int) -> float:
    """Warn of numeric columns whose logarithms form Gaussian clusters better than their values.

    Returns the sum of the gains of such columns, in nats per sample; 0 without such columns.
    The maximum number of Gaussian components per feature is ``n_clusters``, but at least 3 and at
    most 10.
    """
    positions = table.columns.numeric_positions
    if not positions:
        return 0.0
    n_components = min(max(n_clusters, _LEAST_COMPONENTS), _MOST_COMPONENTS)
    rows = np.linspace(0, table.n_samples - 1, min(table.n_samples, _MAX_ROWS)).astype(int)
    values = table.cells[rows][:, positions]
    # Few components are quick to fit, and show which features to compare with more components.
    gain = compare_logarithms(values, design.codes[rows], _LEAST_COMPONENTS, _MAX_FEATURES).gain
    skewed = np.flatnonzero(gain > _LEAST_GAIN)
    if skewed.size and n_components > _LEAST_COMPONENTS:
        gain = compare_logarithms(values[:, skewed], design.codes[rows], n_components).gain
        skewed = skewed[gain > _LEAST_GAIN]
    if not skewed.size:
        return 0.0
    names = [table.columns.columns[positions[j]].name for j in skewed]
    shown = quote_names(names) if isinstance(names[0], str) else ", ".join(map(str, names))
    warn(
        f"skewed features hide clusters; got {shown}, whose logarithms form Gaussian clusters "
        f"better (up to {gain.max():.2f} nats per sample); compare with the clusters of the "
        "logarithms, by log='auto' of nrprob.prepare"
    )
    return float(gain[gain > _LEAST_GAIN].sum())
