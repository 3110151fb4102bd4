"""Merge the components of every draw into clusters, at one depth of the dip or at all depths."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import as_number, check_choice
from nrprob.exceptions import short_repr
from nrprob.plotting.style import check_axes, nth_colour, nth_hatch, text_colour
from nrprob.posterior.components import trees_of_rows
from nrprob.posterior.convergence import count_probabilities, effective_size, r_hat
from nrprob.posterior.draws import as_draws
from nrprob.posterior.estimates import given_or_estimated
from nrprob.posterior.losses import as_loss
from nrprob.posterior.merge_trees import MergeTrees

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["ClusterPath", "Clusters", "cluster_path", "clusters"]

DIP, EXCHANGE = 0.5, 0.1  # default thresholds of the rules "dip" and "exchange"
LEAST_DIP = 0.001  # smallest threshold; much deeper dips are only bounded, not computed
_PLATEAU = 0.8
"""Minimum probability of one number of clusters on a plateau."""
_TICKS = (1, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.005, 0.001)
_THRESHOLDS = {"dip": np.geomspace(1, 0.02, 201), "exchange": np.geomspace(0.5, 0.01, 201)}
"""Thresholds of a path, from many clusters to few, evenly spaced on a logarithmic scale."""
_MAX_AREAS = 12
"""Largest number of areas of a plot; larger numbers of clusters share one area."""


@dataclasses.dataclass(frozen=True)
class Clusters:
    """Posterior over clusters, each of which is one or several components.

    Attributes
    ----------
    draws : ndarray of int of shape (chain, draw, n_samples) or (draw, n_samples)
        Clusters of every draw, 0, 1, ... in order of first appearance.
    labels : ndarray of int of shape (n_samples,)
        Point estimate: the partition of least expected variation of information.
    n_clusters : ndarray of int of shape (chain, draw) or (draw,)
        Number of clusters of at least ``floor`` samples.
    n_small : ndarray of int of shape (chain, draw) or (draw,)
        Number of smaller clusters. The largest cluster of a draw is never small.
    small_share : ndarray of shape (chain, draw) or (draw,)
        Share of samples in small clusters.
    probabilities : pandas.DataFrame
        Posterior distribution of ``n_clusters``, with the columns of `nrprob.posterior.n_clusters`.
    r_hat, ess : float
        Rank-normalised R-hat and bulk effective sample size of ``n_clusters``; NaN with fewer than
        4 draws per chain.
    rule : {"dip", "exchange"}
        What determines which components are merged: the dip of the density, or the probability
        that samples are exchanged.
    threshold : float
        The ``dip``, or the exchange probability above which components are merged.
    floor : float
        Minimum size of a cluster that counts: max(3, 0.02 n_samples).

    Examples
    --------
    Two components share one cluster, in all of eight draws.

    >>> import numpy as np
    >>> from nrprob import posterior
    >>> X = np.random.default_rng(0).normal(size=(40, 1))
    >>> result = posterior.clusters([[0, 1] * 20] * 8, X)
    >>> print(result)
    clusters, separated by a dip below 0.5 of the peaks: 1 (1.00); R-hat 1.000, ESS 8
    >>> result.n_clusters.tolist()
    [1, 1, 1, 1, 1, 1, 1, 1]
    """

    draws: np.ndarray
    labels: np.ndarray
    n_clusters: np.ndarray
    n_small: np.ndarray
    small_share: np.ndarray
    probabilities: pd.DataFrame
    r_hat: float
    ess: float
    rule: str
    threshold: float
    floor: float

    def __str__(self) -> str:
        p = self.probabilities["probability"]
        text = ", ".join(f"{k} ({p[k]:.2f})" for k in p.sort_values(ascending=False).index[:5])
        how = {
            "dip": f"a dip below {self.threshold:g} of the peaks",
            "exchange": f"an exchange probability of at most {self.threshold:g}",
        }[self.rule]
        return f"clusters, separated by {how}: {text}; R-hat {self.r_hat:.3f}, ESS {self.ess:.0f}"


def _as_trees(draws: Any, X: Any, covariance: str) -> MergeTrees:
    """Merge trees of the components of a fit, or of draws of labels and the samples ``X``."""
    check_choice("covariance", covariance, ("full", "diag", "tied"))
    make_trees = getattr(draws, "merge_trees", None)
    if callable(make_trees) and not isinstance(draws, type):
        if X is not None:
            raise ValueError(
                f"a fit has its own samples; got {type(draws).__name__} and X; leave X out, or "
                "pass the draws of components"
            )
        return make_trees()
    if X is None:
        raise ValueError(
            f"merging needs the samples of draws of labels; got {short_repr(draws)} without X; "
            "pass X, or a fitted MDLMixture"
        )
    return trees_of_rows(as_draws(draws), X, covariance)


def check_threshold(dip: Any, rule: str) -> float:
    """Return the threshold at which ``rule``, "dip" or "exchange", merges components.

    Raises ValueError if ``dip`` is out of its range. With "exchange", the rule of counts and binary
    features, ``dip`` must have its default value.
    """
    if not LEAST_DIP <= as_number(dip, "dip") <= 1:
        raise ValueError(
            f"dip must be at least {LEAST_DIP} and at most 1; got {short_repr(dip)}; use 0.5 for "
            "clusters between which the density falls below half of their peaks"
        )
    if rule == "dip":
        return float(dip)
    if dip != DIP:
        raise ValueError(
            "dip is for continuous features; counts and binary features are merged by the "
            f"probability that samples are exchanged; got dip={short_repr(dip)}; leave it at {DIP}"
        )
    return EXCHANGE


def clusters(
    draws: Any,
    X: Any = None,
    *,
    covariance: str = "full",
    dip: float = DIP,
    random_state: Any = None,
) -> Clusters:
    r"""Merge the components of every draw that are not separated by a dip of the density.

    Mixtures cover a cluster that is not Gaussian by several components. Two clusters are separate
    if the density between them falls below ``dip`` times the lower one of their peaks. For two
    equal Gaussian clusters at a distance of :math:`\delta` standard deviations, the ratio of the
    density between them to their peaks is

    .. math:: r = \frac{e^{u \tanh(u) / 2}}{\cosh u}, \quad \delta = 2 \sqrt{u / \tanh u},
        \quad u > 0,

    which is 0.64 at 3, 0.5 at 3.3 and 0.27 at 4 standard deviations. Up to 2 standard deviations,
    there is one peak, and the ratio is 1.

    Parameters
    ----------
    draws : fitted `nrprob.MDLMixture`, or array of int of shape (..., draw, n_samples)
        The fit, or components drawn by any sampler, perhaps with a first axis for the chain.
    X : array of shape (n_samples, n_features), optional
        The samples; required unless `draws` is a fit.
    covariance : {"full", "diag", "tied"}, default="full"
        Covariance of components, estimated from X. A fit has its own covariances.
    dip : float, default=0.5
        Ratio of densities, from 0.001 to 1. At 1, every component with a dip is a cluster. Smaller
        values merge more components.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for the point estimate.

    Returns
    -------
    Clusters
        The clusters of every draw, their point estimate and the probabilities of their number.

    Raises
    ------
    TypeError
        If labels or X are not numeric.
    ValueError
        If shapes do not match, X is missing or a parameter is outside its range.

    See Also
    --------
    cluster_path : Probabilities of the number of clusters for all values of ``dip``.
    n_clusters : Probabilities of the number of components.

    Notes
    -----
    For each pair of components of a draw, the difference of the means is shortened by its sampling
    error, and both densities are scaled to one height. The dip is the lowest value of their sum on
    the ridgeline between both peaks, relative to the lower peak. Then components merge in the order
    of the level of density that connects them: the lower one of two peaks is merged if it rises
    above this level by a factor of less than 1 / ``dip`` (the elder rule). The peak of a component
    with n samples and covariance C in d dimensions has the height :math:`n / |C|^{1 / (2 d)}`. So a
    small component between two clusters does not join them.

    For a fit with observed classes, components whose most frequent classes differ are never merged.
    A fit of counts or binary features has no peaks. There, the exchange probability of components a
    and b is the mean leave-one-out probability of b over the samples of a, or of a over the samples
    of b if this is larger. The pair with the largest exchange probability is merged first, until
    all exchange probabilities are at most 0.1.

    The covariance of a component with n samples and scatter matrix S is
    :math:`(S + f W) / (n + f)`, where W is the average covariance within the components of the
    draw. f is d + 2, or 3 with "diag". With "tied", the covariance is W.

    References
    ----------
    Ray, S. and Lindsay, B. G. (2005), "The topography of multivariate normal mixtures", Annals of
    Statistics 33 (5), doi:10.1214/009053605000000417, eq. (4).

    Chazal, F., Guibas, L. J., Oudot, S. Y. and Skraba, P. (2013), "Persistence-based clustering in
    Riemannian manifolds", Journal of the ACM 60 (6), doi:10.1145/2535927.

    Hennig, C. (2010), "Methods for merging Gaussian mixture components", Advances in Data Analysis
    and Classification 4, doi:10.1007/s11634-010-0058-3, for exchange probabilities.

    Examples
    --------
    Two components halve one Gaussian cluster; a third is ten standard deviations away.

    >>> import numpy as np
    >>> from nrprob import posterior
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(60, 2)), rng.normal(10, 1, size=(30, 2))])
    >>> draw = np.where(np.arange(90) < 60, X[:, 0] > 0, 2)
    >>> posterior.clusters(draw[None], X).probabilities["probability"].to_dict()
    {2: 1.0}
    """
    return summarise_clusters(_as_trees(draws, X, covariance), dip, random_state)


def summarise_clusters(trees: MergeTrees, dip: Any, random_state: Any) -> Clusters:
    """Merge components at the threshold ``dip``, and summarise the clusters."""
    threshold = check_threshold(dip, trees.rule)
    merged = trees.cut(threshold)
    number, n_small, small_share = (
        a.reshape(merged.batch) for a in trees.count_clusters(threshold)
    )
    trace = np.atleast_2d(number)
    loss = as_loss("vi", 1.0, merged.n_samples)
    return Clusters(
        draws=merged.codes.reshape(*merged.batch, -1),
        labels=given_or_estimated(merged, None, "labels", random_state, loss),
        n_clusters=number,
        n_small=n_small,
        small_share=small_share,
        probabilities=count_probabilities(trace),
        r_hat=r_hat(trace),
        ess=effective_size(trace, "bulk"),
        rule=trees.rule,
        threshold=threshold,
        floor=trees.floor,
    )


# Let 2 a be the distance of two equal Gaussian clusters in standard deviations. The peaks have the
# distance x from the middle, where x = a tanh(a x). With u = a x, a^2 = u / tanh(u) and
# x^2 = u tanh(u). Distances, and logarithms of the peaks relative to the middle, are tabulated for
# values of u.
_CURVE = np.geomspace(0.01, 400, 20_000)
_DISTANCES = np.concatenate([[2], 2 * np.sqrt(_CURVE / np.tanh(_CURVE))])
_DEPTHS = np.logaddexp(_CURVE, -_CURVE) - np.log(2) - _CURVE * np.tanh(_CURVE) / 2
_DEPTHS = np.concatenate([[0], _DEPTHS])


def ratio_at_distance(distance: np.ndarray) -> np.ndarray:
    """Density between two equal Gaussian clusters, relative to their peaks.

    ``distance`` is in standard deviations. The ratio is 1 up to 2 standard deviations, where both
    clusters have one peak.
    """
    return np.exp(-np.interp(distance, _DISTANCES, _DEPTHS))


def distance_at_ratio(ratio: np.ndarray) -> np.ndarray:
    """Distance of two equal Gaussian clusters, from the ``ratio`` of densities, at most 1.

    The function is the inverse of `ratio_at_distance` for distances from 2 to 40.
    """
    with np.errstate(divide="ignore"):
        return np.interp(-np.log(ratio), _DEPTHS, _DISTANCES)


@dataclasses.dataclass(frozen=True)
class ClusterPath:
    """Posterior distribution of the number of clusters for a range of thresholds.

    Attributes
    ----------
    thresholds : ndarray of shape (n_thresholds,)
        Dips or exchange probabilities, from the largest to the smallest.
    probabilities : pandas.DataFrame of shape (n_thresholds, n_values)
        Probability of every number of clusters (columns) at every threshold (index).
    plateaus : pandas.DataFrame
        Intervals of thresholds in which a number of clusters has a probability of at least 0.8:
        ``n_clusters``, and the first and last threshold (``start``, ``stop``). ``sd_start`` and
        ``sd_stop`` are the distances, in standard deviations, at which two equal Gaussian clusters
        have these dips; NaN for exchange probabilities.
    threshold : float
        The threshold that ``str`` and the plot refer to.
    rule : {"dip", "exchange"}
        See `Clusters`.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import posterior
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(50, 1)), rng.normal(4, 1, size=(50, 1))])
    >>> path = posterior.cluster_path([[0] * 50 + [1] * 50], X)
    >>> path.plateaus["n_clusters"].tolist()
    [2, 1]
    """

    thresholds: np.ndarray
    probabilities: pd.DataFrame
    plateaus: pd.DataFrame
    threshold: float
    rule: str

    def _interval(self, row: Any) -> str:
        number = f"{row.n_clusters:.0f} cluster{'s' * (row.n_clusters != 1)}"
        if self.rule == "exchange":
            return f"{number} for exchange probabilities from {row.start:.2f} to {row.stop:.2f}"
        if row.start == row.stop:
            return (
                f"{number} for a dip of {row.start:.2f} (the dip of two equal Gaussian clusters "
                f"{row.sd_start:.1f} sd apart)"
            )
        return (
            f"{number} for dips from {row.start:.2f} to "
            f"{row.stop:.{2 if row.stop >= 0.01 else 3}f} (dips of two equal Gaussian clusters "
            f"{row.sd_start:.1f} to {row.sd_stop:.1f} sd apart)"
        )

    def __str__(self) -> str:
        rows, name = (
            list(self.plateaus.itertuples()),
            self.rule.replace("exchange", "exchange probability"),
        )
        inside = [row for row in rows if row.stop <= self.threshold <= row.start]
        if inside:
            return self._interval(inside[0])
        before = [row for row in rows if row.stop > self.threshold]
        after = [row for row in rows if row.start < self.threshold]
        text = (
            f"the number of clusters depends on the threshold: at the {name} {self.threshold:g}, "
            f"no number has a probability of {_PLATEAU}"
        )
        nearest = [self._interval(row) for row in (*before[-1:], *after[:1])]
        return f"{text}; {'; '.join(nearest)}" if nearest else text

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the probabilities of the numbers of clusters as stacked areas over the threshold.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default in a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes. The upper axis has the distance of two equal Gaussian clusters in standard
            deviations. The dashed line is the threshold.
        """
        import matplotlib.pyplot as plt
        from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

        check_axes(ax)
        if ax is None:
            _, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        p, x = self.probabilities, self.thresholds
        shown = p.iloc[:, : _MAX_AREAS - 1] if p.shape[1] > _MAX_AREAS else p
        names, shares = [str(k) for k in shown.columns], shown.to_numpy().T
        if p.shape[1] > _MAX_AREAS:
            names.append(f"{p.columns[_MAX_AREAS - 1]} or more")
            shares = np.vstack([shares, p.iloc[:, _MAX_AREAS - 1 :].sum(axis=1)])
        colours = [nth_colour(i) for i in range(len(names))]
        areas = ax.stackplot(x, shares, colors=colours, edgecolor="white", linewidth=0.5)
        for i, area in enumerate(areas):
            area.set_hatch(nth_hatch(i))
        ends = np.cumsum(shares, axis=0)
        for i, name in enumerate(names):
            widest = _middle_of_longest(shares[i] >= 0.3)
            if widest is not None:
                height = ends[i, widest] - shares[i, widest] / 2
                ax.text(
                    x[widest], height, name, ha="center", va="center",
                    bbox={"fc": colours[i], "ec": "none", "pad": 2}, color=text_colour(colours[i]),
                )  # fmt: skip
        ax.axvline(self.threshold, color="black", linestyle="--", linewidth=1.2)
        ax.set_xscale("log")
        ax.set_xlim(x[0], x[-1])
        ax.set_ylim(0, 1)
        ax.set_ylabel("probability of the number of clusters")
        ticks = [t for t in _TICKS if x.min() <= t <= x.max()]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        if self.rule == "exchange":
            ax.set_xlabel("exchange probability above which components are merged")
            return ax
        ax.set_xlabel("dip: density between clusters, relative to their peaks")
        top = ax.secondary_xaxis("top", functions=(distance_at_ratio, ratio_at_distance))
        top.set_xlabel("distance of two equal Gaussian clusters (sd)")
        top.xaxis.set_major_locator(FixedLocator([2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6]))
        top.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        top.xaxis.set_minor_locator(NullLocator())
        return ax


def _middle_of_longest(marked: np.ndarray) -> int | None:
    """Middle index of the longest run of true values in ``marked``; None if all are false."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(int), [0]])))
    starts, stops = edges[::2], edges[1::2]
    if not starts.size:
        return None
    longest = (stops - starts).argmax()
    return int(starts[longest] + stops[longest] - 1) // 2


def cluster_path(
    draws: Any, X: Any = None, *, covariance: str = "full", dip: float = DIP
) -> ClusterPath:
    """Posterior distribution of the number of clusters for all values of the dip.

    A number of clusters that has a high probability over a long interval does not depend on the
    choice of the dip. Merge trees are computed once, so the path costs little more than `clusters`.

    Parameters
    ----------
    draws, X, covariance
        As for `clusters`.
    dip : float, default=0.5
        The dip that ``str`` and the plot refer to, from 0.001 to 1.

    Returns
    -------
    ClusterPath
        Probabilities of every number of clusters, and plateaus. ``str`` of the result names the
        plateau that contains ``dip``, or else the plateaus on both sides of ``dip``.

    Raises
    ------
    TypeError
        If labels or X are not numeric.
    ValueError
        If shapes do not match, X is missing or a parameter is outside its range.

    See Also
    --------
    clusters : Clusters at one dip, and how components are merged.

    Notes
    -----
    Clusters of fewer than max(3, 0.02 n) samples do not count. Clusters that are not convex, such
    as crescents, appear as a plateau at dips below 0.2. If classes overlap without a dip, there is
    no plateau, or one at a single cluster: no merging rule can recover such classes.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import posterior
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(50, 1)), rng.normal(6, 1, size=(50, 1))])
    >>> print(posterior.cluster_path([[0] * 50 + [1] * 50], X))
    2 clusters for dips from 1.00 to 0.02 (dips of two equal Gaussian clusters 2.0 to 6.1 sd apart)
    """
    import pandas as pd

    trees = _as_trees(draws, X, covariance)
    threshold = check_threshold(dip, trees.rule)
    grid = _THRESHOLDS[trees.rule]
    if threshold < grid[-1]:
        grid = np.geomspace(grid[0], threshold, len(grid))
    counts = np.stack([trees.count_clusters(value)[0] for value in grid])
    values = np.unique(counts)
    weights = trees.draws.weights
    shares = np.stack([(counts == value) @ weights for value in values], axis=1)
    table = pd.DataFrame(
        shares,
        index=pd.Index(grid, name="dip" if trees.rule == "dip" else "exchange_probability"),
        columns=pd.Index(values, name="n_clusters"),
    )
    rows = []
    for column, value in enumerate(values):
        marked = np.concatenate([[False], shares[:, column] >= _PLATEAU, [False]])
        edges = np.flatnonzero(np.diff(marked.astype(int)))
        rows += [
            (value, grid[a], grid[b - 1]) for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]
    plateaus = pd.DataFrame(rows, columns=["n_clusters", "start", "stop"])
    plateaus = plateaus.sort_values("start", ascending=False, ignore_index=True)
    ends = plateaus[["start", "stop"]].to_numpy(float)
    apart = distance_at_ratio(ends) if trees.rule == "dip" else np.full(ends.shape, np.nan)
    plateaus[["sd_start", "sd_stop"]] = apart
    return ClusterPath(grid, table, plateaus, threshold, trees.rule)
