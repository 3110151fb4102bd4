"""Infer the type of features from their values: counts, binary or continuous."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

# Dense integer features are counts, as of words in documents, if at least this share of the entries
# is 0. Otherwise they are measurements, such as the grey levels of images.
_ZEROS = 0.5
FEW_VALUES = 20  # a column of fewer distinct values is discrete


def values_of(x: Any) -> Any:
    """Entries of dense rows, or the stored entries of sparse rows."""
    return x.data if sparse.issparse(x) else x


def guess_features(x: Any) -> str:
    """Infer the distribution of the features: "multinomial", "bernoulli" or "gaussian"."""
    values = values_of(x)
    if not values.size:
        return "multinomial"
    if not ((values >= 0) & (values == values.round())).all():
        return "gaussian"
    return "bernoulli" if (values <= 1).all() else "multinomial"


def kind_of(x: Any) -> str:
    """Infer the type of the features: "counts", "binary" or "real" (continuous)."""
    guess = guess_features(x)
    if guess == "bernoulli":
        return "binary"
    if sparse.issparse(x):
        return "counts"
    return "counts" if guess == "multinomial" and (x == 0).mean() >= _ZEROS else "real"


def describe_discrete(rows: np.ndarray) -> str | None:
    """Describe the values of features (n_samples, n_features) if they are discrete; else None.

    Messages use the description to explain why clusters of discrete features have no test.
    """
    kind = {"binary": "binary values", "counts": "counts"}.get(kind_of(rows))
    most = max(np.unique(column).size for column in rows.T)
    if kind is None and most < min(FEW_VALUES, len(rows)):
        return f"columns of at most {most} distinct values"
    return kind
