"""Samples of a Gaussian mixture, for methods that estimate the number of components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nrprob.data.validation import as_array, check_entries, check_number, check_random_state
from nrprob.datasets.generators import RandomState, _positive_int
from nrprob.datasets.sizes import dense_size, register_size
from nrprob.exceptions import short_repr

__all__ = ["make_four_components"]


@register_size(lambda n_samples, **_: dense_size(n_samples, 2))
def make_four_components(
    n_samples: int = 80,
    *,
    separation: float = 4.0,
    elongation: float = 1.5,
    weights: Sequence[float] | None = None,
    random_state: RandomState = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    r"""Sample from a mixture of four Gaussian components in the plane.

    The means of components 0 to 3 are :math:`(-s, -s), (-s, s), (s, -s)` and :math:`(s, s)` divided
    by 2, where s is the ``separation``. The features of a component are independent. With
    elongation e, components 0 and 3 have standard deviations :math:`(\sqrt e, 1 / \sqrt e)`, and
    components 1 and 2 :math:`(1 / \sqrt e, \sqrt e)`: neighbours differ in shape, not in area.

    Parameters
    ----------
    n_samples : int, default=80
        Number of rows.
    separation : float, default=4.0
        Distance of neighbouring means; at 0 all means are equal.
    elongation : float, default=1.5
        Ratio of the standard deviations of a component, 1 for circles.
    weights : sequence of 4 floats, optional
        Probabilities of the components; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (n_samples, 2)
        The rows, in random order.
    labels : ndarray of shape (n_samples, 1), dtype int64
        Component of every row. Labels are sampled: a rare component may be absent.

    Raises
    ------
    ValueError
        If ``n_samples`` or ``elongation`` is not positive; if ``separation`` is negative; if
        ``separation`` or ``elongation`` is not finite; or if ``weights`` are not four probabilities
        that add up to 1.
    TypeError
        If ``n_samples`` is not an integer.

    See Also
    --------
    make_planar_shapes : Planar shapes with two groupings.
    nrprob.MDLMixture : Bayesian mixture with an unknown number of components.

    Notes
    -----
    For elongation 1 and equal weights, the Bayes-optimal classifier has accuracy
    :math:`\Phi(s / 2)^2`, with the standard normal distribution function :math:`\Phi`.

    References
    ----------
    Yin (2007), section 4.10, applies a sampler to a similar mixture (Figure 4.5) without stating
    its parameters or size. The values here are choices of this package.

    Examples
    --------
    >>> from nrprob.datasets import make_four_components
    >>> X, labels = make_four_components(80, random_state=0)
    >>> X.shape, labels.shape
    ((80, 2), (80, 1))
    """
    n_samples = _positive_int(n_samples, "n_samples")
    check_number("separation", separation, low=0, high=1e100)
    check_number("elongation", elongation, low=1e-6, high=1e6)
    check_entries("X", 2 * n_samples, "lower n_samples")
    p = np.full(4, 0.25) if weights is None else as_array(weights, "weights")
    real = p.shape == (4,) and p.dtype.kind in "biuf"
    if not real or not (p >= 0).all() or not np.isclose(p.sum(), 1):
        raise ValueError(
            "weights must be four probabilities that add up to 1; got "
            f"{short_repr(weights)}; correct them, or leave them out"
        )
    rng = check_random_state(random_state)

    labels = rng.choice(4, n_samples, p=p / p.sum())
    signs = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
    wide, narrow = np.sqrt(elongation), 1 / np.sqrt(elongation)
    scales = np.array([[wide, narrow], [narrow, wide], [narrow, wide], [wide, narrow]])
    X = separation / 2 * signs[labels] + scales[labels] * rng.normal(size=(n_samples, 2))
    return X, labels.astype(np.int64)[:, None]
