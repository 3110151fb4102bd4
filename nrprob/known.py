"""Soft known structure: probabilities of the known groups of samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.frames import describe_columns, float_columns, is_frame, is_pandas, quote_names
from nrprob.data.labels import as_plain_array

__all__ = ["Memberships"]


class Memberships:
    """Soft known structure: probabilities of the known groups for every row.

    Pass the object as ``known`` if group labels are uncertain. An example is the posterior of a
    classifier.

    Parameters
    ----------
    probabilities : array-like of shape (n_samples, n_groups)
        p(group given row); rows sum to 1.

    Attributes
    ----------
    probabilities : ndarray of shape (n_samples, n_groups)

    Raises
    ------
    ValueError
        If an entry is negative or not finite, or a row does not sum to 1 within 1e-6.

    See Also
    --------
    nrprob.CCIB : Conditional information bottleneck, which takes memberships.
    nrprob.ConditionalMixture : Mixture model given known groups, which takes memberships.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import CCIB
    >>> from nrprob.known import Memberships
    >>> random = np.random.default_rng(0)
    >>> shares = random.dirichlet([0.3, 0.3], 40)
    >>> X = random.poisson(4.0, (40, 6)) + 3 * (shares[:, :1] > 0.5)
    >>> CCIB(2, random_state=0).fit(X, known=Memberships(shares)).labels_.shape
    (40,)
    """

    def __init__(self, probabilities: Any):
        z = as_plain_array(probabilities, "known memberships")
        columns = probabilities.columns if is_frame(probabilities) else []
        if z.dtype.kind not in "biuf":
            got = f"dtype {z.dtype}"
            if len(columns):
                is_float = float_columns(probabilities)
                got = describe_columns(columns[is_float], columns[~is_float])
            raise ValueError(f"known memberships must be numbers; got {got}; pass probabilities")
        z = np.array(z, float)
        # Rows may have names: see `nrprob.data.frames.check_same_order`.
        self.index = probabilities.index if is_pandas(probabilities) else None
        if z.ndim != 2:
            raise ValueError(
                "known memberships must be a 2-D array of probabilities; "
                f"got {z.ndim} dimension(s); pass one row per sample and one column per group"
            )
        if not np.isfinite(z).all() or (z < 0).any() or (abs(z.sum(1) - 1) > 1e-6).any():
            where = f" in {quote_names(columns)}" if len(columns) else ""
            raise ValueError(
                "known memberships must be probabilities; found a negative or missing entry, or a "
                f"row that does not sum to 1{where}; normalise the rows"
            )
        self.probabilities = z
