"""Orthogonalization: cluster the data after removing the directions of known means."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np

from nrprob.estimator import parameters
from nrprob.known import Groups, Known
from nrprob.methods.alternatives.transforms import MovedClusterer
from nrprob.statistics.groups import group_means

_NOTHING = 1e-12  # of the mean square of the rows: a mean, or what is left, that is none
_KEPT = 1 - 1e-6  # share of the variance that is kept where directions are dropped


def own_directions(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Unit vectors (groups, m) along the groups' means; 0 where a mean is numerically 0."""
    means = group_means(x, codes)
    square = (means**2).sum(1, keepdims=True)
    some = square > _NOTHING * (x**2).sum(1).mean()
    return np.where(some, means, 0) / np.sqrt(np.where(some, square, 1))


def mean_space(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Orthonormal basis (r, m) of the span of the groups' means."""
    _, singular, basis = np.linalg.svd(group_means(x, codes), full_matrices=False)
    return basis[singular**2 > _NOTHING * (x**2).sum(1).mean()]


def without_own(x: np.ndarray, directions: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Rows without the direction of their own group's mean."""
    own = directions[codes]
    return x - own * (own * x).sum(1, keepdims=True)


def without_space(x: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Rows without their part in the span of an orthonormal basis (r, m)."""
    return x - (x @ basis.T) @ basis


@parameters.constructor
class Orthogonalization(MovedClusterer):
    r"""Cluster rows from which the means of the known groups are projected out.

    With the mean :math:`m_c` of the rows of known group c, from the mean of all rows, every row is
    moved before a base clusterer sees it:

    .. math::
        \text{"clustering"}: \quad x &\leftarrow x - m_c \, (m_c' x) / (m_c' m_c),
            \quad \text{c the row's own group} \\
        \text{"subspace"}: \quad x &\leftarrow x - Q Q' x,
            \quad Q \text{ an orthonormal basis of the span of all } m_c

    "clustering" takes one direction from every row, and leaves something in any two features.
    "subspace" takes the same directions from all rows, up to one less than there are groups, and
    leaves nothing where these are all directions. With two groups of one size they are the same.

    Parameters
    ----------
    <n_clusters>
    variant : {"clustering", "subspace"}, default="clustering"
        Which directions a row loses.
    base : {"em", "kmeans"} or clusterer, default="em"
        What clusters the moved rows: a mixture of spherical normal components from random rows, or
        k-means, both of scikit-learn, or a clusterer with ``fit_predict``, which gets
        ``n_clusters``, and a seed if it has none. It sees the moved rows along their principal
        directions, without those that hold less than 1e-6 of the variance.
    center : bool, default=True
        Whether means count from the mean of all rows. False takes the origin of the features, which
        is another method: what is removed then depends on where the origin is.
    n_init : int, default=10
        Number of restarts of the base, at most 10**6; the best by objective is kept. A clusterer of
        your own brings its own number.
    max_iter : int, default=300
        Most iterations of the base; at most 10**6.
    tol : float, default=1e-4
        When the base has converged, in its own terms; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the starts of the base.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(cluster given row) by the base "em"; else one-hot.
    <n_clusters_>
    objective_ : float
        Of the moved rows: minus the log likelihood in nats of the base "em"; the sum of squared
        distances to the centres of any other base, whatever it minimises.
    objective_trace_ : ndarray
        ``objective_`` alone, as the base tells of no step before.
    directions_ : list of ndarray of shape (n_groups, n_features) or (rank, n_features)
        What was removed for every known labeling: the unit vector of every group, 0 where its mean
        is that of all rows; or an orthonormal basis. Empty if nothing is known.
    <cluster_centers_>
    n_iter_ : int
        Iterations of the best restart of the base; 1 of a clusterer of your own.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    Several known labelings are removed one after the other, each from what the one before it left,
    as in the published sequence of views. For "subspace" their order does not matter. Without
    ``known`` the base clusters the rows as they are.

    "Clustering" moves the rows of every group along a line of its own: of two features it leaves
    one coordinate, in which clusters of different groups may fall together that lie far apart. New
    rows need ``known`` for "clustering" alone.

    References
    ----------
    Cui, Fern and Dy (2007), "Non-redundant multi-view clustering via orthogonalization", methods 1
    and 2; Algo1 and Algo2 of Dang and Bailey (2010), whose text gives "clustering" the span of all
    means, which leaves nothing of the data for which it reports results. "Subspace" is undefined
    where the centred means span all features, not where there are more groups than features.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import Orthogonalization
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * sought], 1) + rng.normal(size=(100, 2))
    >>> labels = Orthogonalization(2, random_state=0).fit(X, known=known).labels_
    >>> bool(max((labels == sought).mean(), (labels != sought).mean()) > 0.95)
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    variant: Annotated[str, parameters.Choice(("clustering", "subspace"))] = "clustering"
    base: Any = "em"
    center: parameters.Flag = True
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 300
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    @property
    def _own(self) -> bool:
        return self.variant == "clustering"

    @property
    def _of_singles(self) -> str:  # type: ignore[override]
        return "of which nothing is left" if self._own else ""

    def _learn(
        self, x: np.ndarray, known: Known, groups: Groups, random: np.random.RandomState
    ) -> np.ndarray:
        from sklearn.decomposition import PCA

        # Where the mean of all rows is among the scaled rows.
        self._origin = np.zeros(x.shape[1])
        if not self.center:
            self._origin = self._scaled.centre / self._scaled.scale
        before, x = float(np.mean(x**2)), x + self._origin
        self._removed = []
        for codes in known.labelings.T:
            if self._own:
                self._removed.append(own_directions(x, codes))
                x = without_own(x, self._removed[-1], codes)
            else:
                self._removed.append(mean_space(x, codes))
                x = without_space(x, self._removed[-1])
        self.directions_ = [directions.copy() for directions in self._removed]
        self._components = None
        left = float(np.mean((x - x.mean(0)) ** 2))
        if left <= _NOTHING * before:
            if before > 0:
                self._refuse(x.shape[1], groups.n_groups)
            return x
        self._components = PCA(n_components=_KEPT).fit(x)
        return self._components.transform(x)

    def _refuse(self, m: int, n_groups: int) -> None:
        span = f"the means of the known groups span all {m} features"
        raise ValueError(
            f"{span}, so nothing is left to cluster; got {n_groups} groups of rows with "
            f"n_features={m}; pass more features or fewer groups"
            + ("" if self._own else ", or use variant='clustering'")
        )

    def _move(self, x: np.ndarray, known: Any) -> np.ndarray:
        x = x + self._origin
        if self._own:
            groups = self._encoder.transform(known, len(x))
            labels = np.array(list(getattr(self._encoder, "combinations_", ())), int)
            for j, directions in enumerate(self._removed):
                x = without_own(x, directions, labels[groups.codes, j])
        else:
            for basis in self._removed:
                x = without_space(x, basis)
        return x if self._components is None else self._components.transform(x)

    def predict(self, X, *, known=None):
        """Cluster of new rows: moved as those of the fit, and placed by the base.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : as in `fit`; ignored by ``variant="subspace"``

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)
