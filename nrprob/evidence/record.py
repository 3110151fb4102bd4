"""Result of a significance test: p-values, a sentence and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nrprob.evidence.pictures import draw_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Evidence:
    """Whether clusters describe rows better than one cloud per known group, and have gaps between.

    See `test`.

    ``str(evidence)`` says it in a sentence.

    Attributes
    ----------
    p_structure_ : float
        p-value of one elliptical cloud per known group; 1 for one cluster.
    p_gap_ : float or None
        p-value of no gap: that rows of every known group have one peak in every direction; 1 for
        one cluster. None where rows lie on a lattice, which has gaps of its own.
    statistic_ : float
        Student's t of ``gain_`` over the samples ``distinct_``; 0 for one cluster.
    gain_ : ndarray of shape (n_samples,)
        Nats that the half-and-half mixture of the clusters and of the cloud ``rival_`` gains over
        that cloud, in every row, by fits that have not seen it; the mean over splits.
    rival_ : str
        The cloud that does best against the clusters: the one of the largest p-value.
    p_by_rival_ : dict of str to float
        p-value of every cloud that was tried.
    labels_ : ndarray of shape (n_samples,)
        Cluster of every sample, by the fit of the first split that has not seen it. The labels are
        those of the estimator handed to `test` if it was fitted to as many samples, else those of
        the first fold.
    place_ : ndarray of shape (n_samples,)
        Its place along the direction in which one cluster is best told from the others, by the same
        fit, in standard deviations within clusters; 0 is the middle of the valley between them.
    valley_ : float
        Width of that valley.
    gap_counts_ : ndarray of shape (n_splits, n_folds, 3)
        Of every fold, its distinct rows on the side of the valley that has fewer (by known group),
        its distinct rows in the valley, and what the side has of both at most where there is no
        gap, in the mean.
    groups_ : ndarray of shape (n_samples,)
        Known group of every row, as numbers.
    group_names_ : sequence of str
    n_clusters, n_folds, n_splits, n_init : int
        How it was made; no fits were made for one cluster. If their number was found anew in every
        fit, it is the one found most often.
    alpha : float
        Level of the sentence.
    distinct_ : ndarray of shape (n_distinct,)
        Index of the first sample of every set of exact copies. Only these samples were fitted and
        tested; their copies have the same ``gain_``, ``labels_`` and ``place_``.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> found = evidence.test(ResidualMixture(2), X, known=known, n_splits=1, random_state=0)
    >>> found.rival_, found.p_gap_ < 0.001
    ('the fit of one cluster', True)
    >>> found.groups_.shape, found.place_.shape
    ((100,), (100,))
    """

    p_structure_: float
    p_gap_: float | None
    statistic_: float
    gain_: np.ndarray
    rival_: str
    p_by_rival_: dict[str, float]
    labels_: np.ndarray
    place_: np.ndarray
    valley_: float
    gap_counts_: np.ndarray
    groups_: np.ndarray
    group_names_: Sequence[str]
    n_folds: int
    n_splits: int
    n_init: int
    alpha: float
    n_clusters: int
    distinct_: np.ndarray

    @property
    def summary(self) -> str:
        """What was found, in a sentence."""
        n, n_distinct = len(self.groups_), len(self.distinct_)
        rows = f"{n} rows" if n == n_distinct else f"{n_distinct} distinct rows of {n}"
        one = self.n_clusters == 1
        if one and self.p_structure_ == 1:
            return f"no evidence of further structure: one cluster describes {rows}"
        how = (
            f"{'one cluster in most fits' if one else f'{self.n_clusters} clusters'}, {rows}, "
            f"each held out once in {self.n_splits} x {self.n_folds} fits"
        )
        each = " per known group" if len(self.group_names_) > 1 else ""
        p, gap = _words(self.p_structure_), "no test of a gap: rows lie on a lattice"
        is_gap = self.p_gap_ is not None and self.p_gap_ <= self.alpha
        if self.p_gap_ is not None:
            gap = f"{'a' if is_gap else 'no'} gap between them ({_words(self.p_gap_)})"
        if self.p_structure_ > self.alpha and is_gap:
            return (
                f"{gap}, though one elliptical cloud{each} describes the rows as well ({p}; "
                f"{how}): a cluster that is small or of unusual shape"
            )
        if self.p_structure_ > self.alpha:
            return (
                f"no evidence of further structure ({p}; {how}); clusters that overlap, or few of "
                "the rows, may be there all the same"
            )
        if is_gap:
            return f"clusters with {gap}, not one elliptical cloud{each} ({p}; {how})"
        return (
            f"not one elliptical cloud{each} ({p}; {how}), but {gap}: clusters that overlap, "
            "skewness or a bend would look like this"
        )

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"<Evidence: {self.summary}>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the rows along the direction that tells clusters apart, by known group.

        Every row lies where a fit that has not seen it puts it, so that what is seen is not what
        the search for clusters made of noise.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure when it is None.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on: a histogram of every known group (the twelve largest), its bars
            divided by cluster. The valley is grey.
        """
        return draw_rows(
            self.place_, self.labels_, self.groups_, self.group_names_, self.valley_, ax
        )


def _words(p: float) -> str:
    return "p < .001" if p < 0.001 else f"p = {p:.2g}"
