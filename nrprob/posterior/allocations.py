"""Sample labels for samplers that integrate the labels out."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.validation import check_random_state
from nrprob.posterior.draws import by_dims

__all__ = ["draw_labels"]

_BLOCK = 2**22
"""Maximum number of entries of a temporary array."""
_ROUNDING = 1e-4
"""Tolerance for the sum of the probabilities of a sample, which may be in single precision."""


def draw_labels(probabilities: Any, *, random_state: Any = None) -> np.ndarray:
    r"""Sample labels for the draws of a sampler that sums the labels out.

    Stan, PyMC and NumPyro sample the parameters :math:`\theta` of a mixture, and can return the
    probability of every component for every sample. Given the parameters, the labels z are
    independent. So labels from :math:`p(z | \theta)` for every draw of the parameters are draws
    from the posterior of the partition. All other functions of `nrprob.posterior` take such draws.

    Parameters
    ----------
    probabilities : array of shape (chain, draw, sample, component) or (draw, sample, component)
        Probabilities of the components, with sum 1. The order of components is arbitrary within
        each draw. In a DataArray, the dimensions ``chain`` and ``draw`` are identified by their
        names; the last of the other two dimensions has the components.
    random_state : int, RandomState instance or None, default=None
        Seed.

    Returns
    -------
    ndarray of shape (chain, draw, observation) or (draw, observation), int64
        Labels, which are positions of components from 0. From the labels, `align` computes
        permutations that put the components of every draw into one order.

    Raises
    ------
    ValueError
        If `probabilities` has other axes or is empty, or does not hold probabilities.

    Examples
    --------
    >>> from nrprob.posterior import draw_labels
    >>> draw_labels([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]], random_state=0)
    array([[0, 1],
           [1, 0]])
    """
    p = by_dims(probabilities, "probabilities of labels", 2)
    if p.ndim not in (3, 4) or p.size == 0 or p.dtype.kind not in "fiub":
        raise ValueError(
            "probabilities of labels are numbers with the axes (chain, draw, sample, component) or "
            f"(draw, sample, component); got dtype {p.dtype} and shape {p.shape}; reshape them"
        )
    random = check_random_state(random_state)
    rows = p.reshape(-1, p.shape[-1])
    labels = np.empty(len(rows), dtype=np.int64)
    step = max(1, _BLOCK // p.shape[-1])
    for a in range(0, len(rows), step):
        some = rows[a : a + step].astype(float)
        total = some.sum(axis=1)
        # Comparisons with NaN are false, so NaN raises, too.
        if not (some.min() >= 0 and np.abs(total - 1).max() < _ROUNDING):
            raise ValueError(
                "probabilities of labels must be at least 0 and sum to 1 over their last axis, the "
                f"components; got values from {some.min()} to {some.max()} and sums from "
                f"{total.min()} to {total.max()}; pass scipy.special.softmax(log_p, axis=-1)"
            )
        below = np.cumsum(some, axis=1)
        u = random.random_sample((len(some), 1)) * below[:, -1:]
        labels[a : a + step] = (below <= u).sum(axis=1)
    return labels.reshape(p.shape[:-1])
