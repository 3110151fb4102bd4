"""Result of a significance test: p-values, a summary sentence and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nrprob.evidence.discriminant_plot import plot_discriminant_scores
from nrprob.evidence.p_values import one_sided_p_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Evidence:
    """Result of `nrprob.evidence.test`; ``str(evidence)`` returns a summary sentence.

    Attributes
    ----------
    p_structure_ : float or None
        p-value of the null hypothesis that every known group has one elliptical distribution. 1 if
        the estimator, or every refit, has one cluster. None if p-values are withheld; see
        ``withheld_``.
    p_gap_ : float or None
        p-value of the null hypothesis that there is no low-density gap: within every known group,
        the density has a single mode along every direction. 1 if the estimator, or every refit, has
        one cluster. None if values are discrete along the direction, if there are no numeric
        columns, or if p-values are withheld.
    statistic_ : float
        Student's t statistic of the mean of ``gain_`` over the samples ``distinct_``. 0 if the
        estimator has one cluster.
    gain_ : ndarray of shape (n_samples,)
        Held-out log-likelihood gain in nats, averaged over splits. The gain compares two densities:
        the mixture, with weights 1/2, of the clusters and ``null_model_``, and ``null_model_``
        alone.
    null_model_ : str
        Name of the null model with the largest p-value.
    p_by_null_model_ : dict of str to float
        p-value of every null model; empty if p-values are withheld.
    gain_by_null_model_ : dict of str to float
        Mean held-out gain over every null model, in nats per sample.
    withheld_ : str
        Reason why p-values are withheld; empty if they are not. The level of the test was measured
        for some kinds of tables only.
    labels_ : ndarray of shape (n_samples,)
        Cluster of every sample, predicted by the fit without this sample in the first split. If the
        estimator passed to `test` was fitted to ``n_samples`` samples, labels are matched to its
        labels. Otherwise, labels are matched to the clusters of the first fold.
    discriminant_score_ : ndarray of shape (n_samples,)
        Held-out discriminant score of every sample, by the same fit. The score is the position
        along the discriminant direction of one cluster against the others, in standard deviations
        within clusters. The centre of the low-density gap has the score 0. The score is NaN for
        samples with missing numeric values, if all features are discrete, and for folds whose refit
        has one cluster. All scores are 0 if the estimator has one cluster.
    gap_width_ : float
        Width of the low-density gap in the units of ``discriminant_score_``, averaged over folds.
    gap_cluster_ : int or None
        Cluster that ``discriminant_score_`` compares with the others. This cluster shows the
        strongest indication of a gap among the training samples of the first fold. None without
        scores.
    density_between_ : ndarray of shape (n_clusters, n_clusters) or None
        Held-out density in the gap between two clusters, divided by the density on the less
        populated side, in the first split. Values near 0 indicate a gap, and values of 1 or more
        none. The value is descriptive and has no p-value. NaN on the diagonal, and for pairs with
        fewer than ten samples about the gap. None for two clusters, and if values are discrete.
    gap_counts_ : ndarray of shape (n_splits, n_folds, 3)
        Three numbers per fold. The first is the number of distinct held-out samples on the less
        populated side of the gap, summed over known groups. The second is the number of distinct
        held-out samples in the gap. The third is the largest expected ratio of the first number to
        the sum of both if there is no gap. Empty if the estimator has one cluster, and without
        numeric columns.
    groups_ : ndarray of shape (n_samples,)
        Known group of every sample, as integers.
    group_names_ : sequence of str
        Names of the known groups.
    n_clusters, n_folds, n_splits, n_init : int
        Settings of the test. For an estimator with ``n_clusters="auto"``, ``n_clusters`` is the
        most frequent number among the refits.
    alpha : float
        Significance level that the summary sentence uses.
    distinct_ : ndarray of shape (n_distinct,)
        Index of the first sample of every set of exact copies. Only these samples were fitted and
        tested. Their copies have the same ``gain_``, ``labels_`` and ``discriminant_score_``.

    See Also
    --------
    test : Returns this result.
    confidence : Bootstrap confidences per sample, withheld if this test is not significant.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> result = evidence.test(ConditionalMixture(2), X, known=known, n_splits=1, random_state=0)
    >>> result.null_model_, result.p_gap_ < 0.001
    ('one cluster of the same estimator', True)
    >>> result.groups_.shape, result.discriminant_score_.shape
    ((100,), (100,))
    """

    p_structure_: float | None
    p_gap_: float | None
    statistic_: float
    gain_: np.ndarray
    null_model_: str
    p_by_null_model_: dict[str, float]
    labels_: np.ndarray
    discriminant_score_: np.ndarray
    gap_width_: float
    gap_counts_: np.ndarray
    groups_: np.ndarray
    group_names_: Sequence[str]
    n_folds: int
    n_splits: int
    n_init: int
    alpha: float
    n_clusters: int
    distinct_: np.ndarray
    withheld_: str = ""
    gain_by_null_model_: dict[str, float] = field(default_factory=dict)
    gap_cluster_: int | None = None
    density_between_: np.ndarray | None = None

    @property
    def supports_clusters(self) -> bool:
        """Whether the clusters predict held-out samples better than every null model.

        The value is True if ``p_structure_`` is at most ``alpha``. If p-values are withheld, the
        t-test of ``gain_`` decides. The level of this t-test is only approximate.
        """
        p = self.p_structure_
        if p is None:
            p = one_sided_p_value(self.statistic_, len(self.distinct_))
        return p <= self.alpha

    @property
    def has_gap(self) -> bool:
        """Whether ``p_gap_`` is at most ``alpha``; False if it is withheld."""
        return self.p_gap_ is not None and self.p_gap_ <= self.alpha

    @property
    def in_words(self) -> str:
        """Clause with the result, for readers who do not know the tests."""
        if self.n_clusters == 1 and self.p_structure_ == 1:
            return "one group describes the rows"
        if self.supports_clusters:
            result = "the groups predict new rows better than a model without groups"
        else:
            result = "the groups do not predict new rows clearly better than a model without groups"
        if self.p_structure_ is None:
            reason = self.withheld_.partition(" (")[0]
            return f"{result}; there is no p-value, since {reason}"
        result = f"{result} ({format_p(self.p_structure_)})"
        if self.p_gap_ is not None and self.has_gap:
            link = "and" if self.supports_clusters else "but"
            # The gap of the test is between one cluster and all others.
            several = "at least one group is separated from the others by a gap"
            gap = several if self.n_clusters > 2 else "there is a gap between the groups"
            return f"{gap} ({format_p(self.p_gap_)}), {link} {result}"
        if not self.supports_clusters:
            return f"{result}; small or overlapping groups cannot be excluded"
        if self.p_gap_ is None:
            return f"{result}; gaps between groups cannot be tested, since values are discrete"
        return f"{result}; without a gap between them, they may be parts of one skewed group"

    @property
    def summary(self) -> str:
        """Summary of the result in one sentence."""
        n, n_distinct = len(self.groups_), len(self.distinct_)
        samples = f"{n} samples" if n == n_distinct else f"{n_distinct} distinct samples of {n}"
        single = self.n_clusters == 1
        if single and self.p_structure_ == 1:
            return f"no evidence of further structure: one cluster describes {samples}"
        clusters = "one cluster in most fits" if single else f"{self.n_clusters} clusters"
        splits = "1 split" if self.n_splits == 1 else f"{self.n_splits} splits"
        fits = f"{clusters}, {samples} held out in {splits} into {self.n_folds} folds"
        if self.p_structure_ is None:
            better = "better than" if self.supports_clusters else "no better than"
            return (
                f"clusters are {better} {self.null_model_}, the strongest null model: held-out "
                f"gain of {np.mean(self.gain_[self.distinct_]):+.3f} in mean log likelihood "
                f"({fits}); no p-value, since {self.withheld_}"
            )
        p = f"{format_p(self.p_structure_)}; {fits}"
        groups = " per known group" if len(self.group_names_) > 1 else ""
        null = one_null = f"one elliptical distribution{groups}"
        if any(name.startswith("the column") for name in self.gain_by_null_model_):
            null, one_null = "every model without clusters", "a model without clusters"
        has_structure = self.p_structure_ <= self.alpha
        if self.p_gap_ is not None and self.has_gap:
            gap = f"a low-density gap between them ({format_p(self.p_gap_)})"
            if has_structure:
                return f"clusters with {gap}; {null} is rejected ({p})"
            return (
                f"clusters with {gap}, but {one_null} is not rejected ({p}); a cluster may be "
                "small or of unusual shape"
            )
        if not has_structure:
            return (
                f"no evidence of further structure ({p}); overlapping or small clusters cannot be "
                "excluded"
            )
        gap = "test for a low-density gap, since values are discrete"
        if self.p_gap_ is not None:
            gap = f"low-density gap between clusters ({format_p(self.p_gap_)})"
        return (
            f"{null} is rejected ({p}), but there is no {gap}; overlapping clusters, skewness or "
            "curvature would give the same result"
        )

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"<Evidence: {self.summary}>"

    def plot(self, ax: Axes | None = None, *, cluster_names: Sequence[str] | None = None) -> Axes:
        """Plot held-out discriminant scores by cluster and known group.

        The score of a sample is computed by a fit to other samples. Scores of training samples
        would show a gap even if there are no clusters. Samples with missing numeric values have no
        score, and are left out.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. By default, a new figure is created.
        cluster_names : sequence of str, optional
            One name per cluster for the legend, in the order of the labels.

        Returns
        -------
        matplotlib.axes.Axes
            Axes with one histogram per known group, for the twelve largest groups. The bars are
            divided by cluster. The low-density gap is grey.

        Raises
        ------
        ValueError
            If there is not one name per cluster, or if no sample has a score: without numeric
            features, or if every refit has one cluster.
        TypeError
            If `cluster_names` is not a list or array.
        """
        return plot_discriminant_scores(
            self.discriminant_score_, self.labels_, self.groups_, self.group_names_,
            self.gap_width_, ax, cluster_names,
        )  # fmt: skip


def format_p(p: float) -> str:
    """Format a p-value as in "p = 0.02"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
