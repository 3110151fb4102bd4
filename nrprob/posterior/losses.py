r"""Losses between two partitions, as sums over the cells of their contingency table.

The contingency table of an estimate and a draw has the counts m. Clusters of the estimate have the
sizes n, and clusters of the draw have the sizes N. With a convex function F, both losses are, up to
a factor,

.. math:: L = a \Big[\sum F(N) - \sum F(m)\Big] + b \Big[\sum F(n) - \sum F(m)\Big],

where a is the cost of splitting samples that belong together, and b = 2 - a the cost of merging
samples that belong apart. F(x) = x log x gives the variation of information, F(x) = x(x-1)/2 the
pair loss of Binder.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.special import xlogy

from nrprob.data.validation import as_number, check_choice
from nrprob.posterior.draws import Draws, as_draws, as_labels, canonical

__all__ = ["Loss", "as_loss", "distances", "expected_loss"]


@dataclasses.dataclass(frozen=True)
class Loss:
    """Loss between partitions of `n_samples` samples; the module docstring defines F, a and b.

    Attributes
    ----------
    pairs : bool
        Whether the loss is Binder's pair loss.
    cell : ndarray of shape (n_samples + 2,)
        Table F(0), F(1), ...
    scale : float
        Factor from differences of sums of F to the reported loss.
    split_cost, merge_cost : float
        The costs a and b, which sum to 2.
    """

    pairs: bool
    cell: np.ndarray
    scale: float
    split_cost: float
    merge_cost: float


def as_loss(loss: str, split_cost: float, n_samples: int) -> Loss:
    """Check the name and the costs of a loss, and tabulate its function F."""
    check_choice("loss", loss, ("vi", "binder"))
    if not 0 < as_number(split_cost, "split_cost") < 2:
        raise ValueError(
            f"split_cost must lie strictly between 0 and 2; got {split_cost}; "
            "use 1 for equal costs, more for fewer clusters"
        )
    x = np.arange(n_samples + 2, dtype=float)
    if loss == "vi":
        cell, scale = xlogy(x, x), 1 / n_samples
    else:
        cell, scale = x * (x - 1) / 2, 2 / max(1, n_samples * (n_samples - 1))
    return Loss(loss == "binder", cell, scale, float(split_cost), 2 - float(split_cost))


def distances(codes: np.ndarray, draws: Draws, loss: Loss) -> np.ndarray:
    """Losses (n_draws,) between one partition and every draw.

    ``codes`` (n_samples,) are the clusters 0 .. k-1 of the partition.
    """
    size_term = loss.cell[np.bincount(codes)].sum()
    result = np.empty(draws.n_draws)
    for a, b, first, counts in draws.crossed(codes):
        theirs = np.add.reduceat(loss.cell[counts.sum(axis=1)], first[:-1])
        joint = np.add.reduceat(loss.cell[counts].sum(axis=1), first[:-1])
        result[a:b] = loss.split_cost * (theirs - joint) + loss.merge_cost * (size_term - joint)
    result *= loss.scale
    # Rounding errors are set to 0. The loss of two different partitions is much larger: at least
    # about 1 / n_samples (VI), or 1 / n_samples squared (Binder), times the smaller cost.
    rounding = 1e-13 * max(1.0, size_term * loss.scale)
    return np.where(result < rounding, 0.0, result)


def expected_loss(
    labels: Any,
    draws: Any,
    loss: str = "vi",
    *,
    split_cost: float = 1.0,
    weights: Any = None,
) -> Any:
    r"""Posterior expected loss of a partition: the weighted mean over all draws.

    .. math:: \sum_s w_s L(\hat c, z^{(s)})

    Here :math:`\hat c` is the partition, :math:`z^{(s)}` are the draws, :math:`w_s` their weights,
    and L is the loss.

    Parameters
    ----------
    labels : array of int of shape (n_samples,) or (n_partitions, n_samples)
        One partition, or several.
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    loss : {"vi", "binder"}, default="vi"
        "vi" is the variation of information H(a|b) + H(b|a) in nats (Meila 2007). "binder" is the
        share of pairs of samples that one partition joins and the other separates, which is 1 minus
        the Rand index (Binder 1978).
    split_cost : float in (0, 2), default=1.0
        Cost of separating two samples that belong together; the cost of joining two samples that
        belong apart is ``2 - split_cost``. ``split_cost`` multiplies H(estimate|draw), or the
        number of pairs that only the draw joins.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.

    Returns
    -------
    float or ndarray of shape (n_partitions,)

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match, or the loss is unknown.

    References
    ----------
    Wade & Ghahramani (2018), "Bayesian cluster analysis: point estimation and credible balls",
    Bayesian Analysis 13 (in bits); Dahl, Johnson & Mueller (2022), "Search algorithms and loss
    functions for Bayesian clustering", JCGS 31, for unequal costs.

    Examples
    --------
    >>> from nrprob.posterior import expected_loss
    >>> expected_loss([0, 0, 1], [[0, 0, 1], [5, 2, 2]], loss="binder")
    0.3333333333333333
    """
    checked = as_draws(draws, weights)
    table = as_loss(loss, split_cost, checked.n_samples)
    several = np.ndim(labels) == 2
    rows = list(labels) if several else [labels]
    values = []
    for row in rows:
        codes = canonical(as_labels(row, checked.n_samples, "labels")[None])[0]
        values.append(float(distances(codes, checked, table) @ checked.weights))
    return np.array(values) if several else values[0]
