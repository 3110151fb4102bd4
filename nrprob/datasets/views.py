"""Several views of the same rows, with dependent clusterings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nrprob.data.validation import check_entries, check_number, check_random_state
from nrprob.datasets.generators import (
    RandomState,
    _check_dims,
    _check_fraction,
    _positive_int,
    total_columns,
)
from nrprob.datasets.sizes import dense_size, register_size

__all__ = ["make_gaussian_views"]


@register_size(lambda n_samples, dims, **_: dense_size(n_samples, total_columns(dims)))
def make_gaussian_views(
    n_samples: int = 1000,
    permuted: float = 0.0,
    *,
    dims: Sequence[int] = (2, 2),
    mean: float = 1.0,
    random_state: RandomState = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Simulate two Gaussian classes in several views with partly permuted rows.

    Features are independent with variance 1. Their mean is ``mean`` in class 0, and ``-mean`` in
    class 1. The first half of the rows has class 0. Then, in every view except the first, a random
    share of the rows is permuted. The permutation makes views less dependent, but does not change
    the distribution of a single view.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    permuted : float, default=0.0
        Share of permuted rows in every view except the first. At 0, the classes of all views are
        equal; at 1, they are independent.
    dims : sequence of int, default=(2, 2)
        Number of features of every view.
    mean : float, default=1.0
        Absolute mean of the classes in every feature.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (n_samples, sum(dims))
        The views side by side.
    labels : ndarray of shape (n_samples, len(dims)), dtype int64
        Class of every row in every view.

    Raises
    ------
    ValueError
        If a size is not positive, ``dims`` is empty, ``permuted`` is not a fraction, or ``mean`` is
        not finite.
    TypeError
        If a size is not an integer.

    See Also
    --------
    make_planar_shapes : Planar shapes with two groupings.
    nrprob.MDLMultiView : Clustering of several views.

    References
    ----------
    Yin (2007), section 3.4: Table 3.1 has data of the default sizes, and eq. (3.16) the
    correlations of the features at ``permuted=0``.

    Examples
    --------
    >>> from nrprob.datasets import make_gaussian_views
    >>> X, labels = make_gaussian_views(100, 0.25, random_state=0)
    >>> X.shape, labels.shape
    ((100, 4), (100, 2))
    """
    n_samples = _positive_int(n_samples, "n_samples")
    sizes = _check_dims(dims, "view")
    check_entries("X", n_samples * sum(sizes), "lower n_samples or dims")
    permuted = _check_fraction(permuted, "permuted")
    check_number("mean", mean, low=-1e100, high=1e100)
    rng = check_random_state(random_state)

    classes = (np.arange(n_samples) >= (n_samples + 1) // 2).astype(np.int64)
    centres = float(mean) * np.where(classes == 0, 1, -1)[:, None]
    views, labels = [], []
    for v, size in enumerate(sizes):
        x = centres + rng.normal(size=(n_samples, size))
        source = np.arange(n_samples)
        if v:
            chosen = rng.choice(n_samples, int(n_samples * permuted), replace=False)
            source[chosen] = rng.permutation(chosen)
        views.append(x[source])
        labels.append(classes[source])
    return np.hstack(views), np.stack(labels, axis=1)
