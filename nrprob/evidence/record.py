"""What a test of a clustering found, in numbers, in words, and as a picture."""

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
    """Whether clusters describe rows better than one cloud per known group; see `test`.

    ``str(evidence)`` says it in a sentence.

    Attributes
    ----------
    p_structure_ : float
        p-value of one elliptical cloud per known group; 1 for one cluster.
    statistic_ : float
        Student's t of ``gain_``; 0 for one cluster.
    gain_ : ndarray of shape (n_samples,)
        Nats that the half-and-half mixture of the clusters and of the cloud ``rival_`` gains over
        that cloud, in every row, by fits that have not seen it; the mean over splits.
    rival_ : str
        The cloud that does best against the clusters: the one of the largest p-value.
    p_by_rival_ : dict of str to float
        p-value of every cloud that was tried.
    labels_ : ndarray of shape (n_samples,)
        Cluster of every row, by the fit of the first split that has not seen it.
    place_ : ndarray of shape (n_samples,)
        Its place along the direction in which one cluster is furthest from the others, by the same
        fit, in standard deviations within clusters; 0 is half way.
    groups_ : ndarray of shape (n_samples,)
        Known group of every row, as numbers.
    group_names_ : sequence of str
    n_clusters, n_folds, n_splits, n_init : int
        How it was made; no fits were made for one cluster.
    alpha : float
        Level of the sentence.
    """

    p_structure_: float
    statistic_: float
    gain_: np.ndarray
    rival_: str
    p_by_rival_: dict[str, float]
    labels_: np.ndarray
    place_: np.ndarray
    groups_: np.ndarray
    group_names_: Sequence[str]
    n_clusters: int
    n_folds: int
    n_splits: int
    n_init: int
    alpha: float

    @property
    def summary(self) -> str:
        """What was found, in a sentence."""
        n = len(self.groups_)
        if self.n_clusters == 1:
            return f"no evidence of further structure: one cluster was asked for ({n} rows)"
        p = "p < .001" if self.p_structure_ < 0.001 else f"p = {self.p_structure_:.2g}"
        how = (
            f"{p}; {self.n_clusters} clusters, {n} rows, each held out once in "
            f"{self.n_splits} x {self.n_folds} fits"
        )
        if self.p_structure_ > self.alpha:
            return (
                f"no evidence of further structure ({how}); clusters that overlap, or few of the "
                "rows, may be there all the same"
            )
        each = " per known group" if len(self.group_names_) > 1 else ""
        return (
            f"not one elliptical cloud{each} ({how}): clusters, overlapping or not, would look "
            "like this, and so would skewness or a bend; see plot()"
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
            divided by cluster.
        """
        return draw_rows(self.place_, self.labels_, self.groups_, self.group_names_, ax)
