"""Credible balls of partitions around a point estimate."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from nrprob.data.validation import as_number
from nrprob.posterior.draws import as_draws, canonical
from nrprob.posterior.estimates import given_or_estimated
from nrprob.posterior.losses import as_loss, distances

__all__ = ["CredibleBall", "credible_ball"]


@dataclasses.dataclass(frozen=True)
class CredibleBall:
    """Smallest ball around a partition that holds a given posterior probability.

    Attributes
    ----------
    center : ndarray of shape (n_samples,)
        Clusters of the centre, 0, 1, ... in order of first appearance.
    radius : float
        Largest distance from the centre within the ball, in units of the loss.
    probability : float
        Posterior probability of the ball; at least ``level`` of `credible_ball`.
    distances : ndarray of shape (chain, draw) or (draw,)
        Distance of every draw from the centre.
    members : ndarray of bool of shape (chain, draw) or (draw,)
        Draws within the ball.
    vertical_upper : ndarray of shape (n_partitions, n_samples)
        Partitions with the largest distance from the centre, among the members with the fewest
        clusters.
    vertical_lower : ndarray of shape (n_partitions, n_samples)
        Partitions with the largest distance from the centre, among the members with the most
        clusters.
    horizontal : ndarray of shape (n_partitions, n_samples)
        Members with the largest distance from the centre.

    Examples
    --------
    Three of the four draws are within the ball. The third draw splits a cluster of the centre.

    >>> from nrprob.posterior import credible_ball
    >>> draws = [[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]
    >>> ball = credible_ball(draws, [0, 0, 1, 1], level=0.7)
    >>> ball.probability, ball.distances.round(2).tolist()
    (0.75, [0.0, 0.0, 0.35, 0.69])
    >>> ball.horizontal
    array([[0, 1, 2, 2]])
    """

    center: np.ndarray
    radius: float
    probability: float
    distances: np.ndarray
    members: np.ndarray
    vertical_upper: np.ndarray
    vertical_lower: np.ndarray
    horizontal: np.ndarray


def credible_ball(
    draws: Any,
    center: Any = None,
    *,
    level: float = 0.95,
    loss: str = "vi",
    weights: Any = None,
    random_state: Any = None,
) -> CredibleBall:
    r"""Credible ball around a partition, and the bounds of the ball.

    The radius of the ball is

    .. math:: \epsilon^* = \min \{\epsilon: \Pr(d(c^*, z) \le \epsilon) \ge \text{level}\},

    where :math:`c^*` is the centre, z a partition from the posterior, and d the loss.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    center : array of int of shape (n_samples,), optional
        Centre of the ball; by default `point_estimate` of the same loss.
    level : float in (0, 1], default=0.95
        Minimum posterior probability of the ball.
    loss : {"vi", "binder"}, default="vi"
        Distance between partitions; see `expected_loss`.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for a centre.

    Returns
    -------
    CredibleBall
        The ball. The bounds of the ball are draws; each distinct partition is listed once.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match, the loss is unknown or the level is outside (0, 1].

    References
    ----------
    Wade & Ghahramani (2018), "Bayesian cluster analysis: point estimation and credible balls",
    Bayesian Analysis 13, section 4.

    Examples
    --------
    >>> from nrprob.posterior import credible_ball
    >>> ball = credible_ball([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 2, 3]], [0, 0, 1, 1], level=0.6)
    >>> ball.radius, int(ball.members.sum())
    (0.0, 2)
    """
    if not 0 < as_number(level, "level") <= 1:
        raise ValueError(f"level is a probability in (0, 1]; got {level}; 0.95 is the usual choice")
    checked = as_draws(draws, weights)
    table = as_loss(loss, 1.0, checked.n_samples)
    labels = given_or_estimated(checked, center, "center", random_state, table)
    middle = canonical(labels[None])[0].astype(np.int64)

    far = distances(middle, checked, table)
    slack = 1e-12 * max(1.0, float(far.max()))  # equal distances may differ in their last bits
    order = np.argsort(far, kind="stable")
    mass = np.cumsum(checked.weights[order])
    radius = float(far[order[min(int(np.searchsorted(mass, level - 1e-12)), len(order) - 1)]])
    inside = (far <= radius + slack) & (checked.weights > 0)

    def furthest(chosen: np.ndarray) -> np.ndarray:
        edge = chosen & (far >= far[chosen].max() - slack)
        return np.unique(checked.codes[edge], axis=0).astype(np.int64)

    k = checked.n_clusters
    return CredibleBall(
        center=middle,
        radius=radius,
        probability=float(min(1.0, checked.weights[inside].sum())),
        distances=far.reshape(checked.batch),
        members=inside.reshape(checked.batch),
        vertical_upper=furthest(inside & (k == k[inside].min())),
        vertical_lower=furthest(inside & (k == k[inside].max())),
        horizontal=furthest(inside),
    )
