"""Orthogonalization: cluster rows after projecting out the means of known groups.

Sizes: n rows, m features, r dimensions of the span of the group means.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np

from nrprob.data.design import Design
from nrprob.estimator import parameters
from nrprob.methods.alternatives.transforms import TransformClusterer
from nrprob.statistics.groups import group_means

_RELATIVE_ZERO = 1e-12  # means and remainders below this share of the mean square are 0
_RETAINED_VARIANCE = 1 - 1e-6  # share of the variance that the principal components retain


def group_directions(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Unit vectors (groups, m) along the means of known groups.

    ``x`` (n, m) are the rows, and ``codes`` (n,) their groups. The vector is 0 for a group whose
    mean is 0 up to rounding errors.
    """
    means = group_means(x, codes)
    square = (means**2).sum(1, keepdims=True)
    nonzero = square > _RELATIVE_ZERO * (x**2).sum(1).mean()
    return np.where(nonzero, means, 0) / np.sqrt(np.where(nonzero, square, 1))


def mean_subspace(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Orthonormal basis (r, m) of the span of the means of known groups.

    ``x`` (n, m) are the rows, and ``codes`` (n,) their groups.
    """
    _, singular, basis = np.linalg.svd(group_means(x, codes), full_matrices=False)
    return basis[singular**2 > _RELATIVE_ZERO * (x**2).sum(1).mean()]


def remove_group_direction(x: np.ndarray, directions: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Project every row of ``x`` (n, m) orthogonally to the direction of its known group.

    ``directions`` (groups, m) are unit vectors or 0, and ``codes`` (n,) the groups of the rows.
    """
    direction = directions[codes]
    return x - direction * (direction * x).sum(1, keepdims=True)


def remove_subspace(x: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Project rows ``x`` (n, m) orthogonally to the span of an orthonormal ``basis`` (r, m)."""
    return x - (x @ basis.T) @ basis


@parameters.constructor
class Orthogonalization(TransformClusterer):
    r"""Alternative clustering by projecting out the means of known groups.

    Let :math:`m_c` be the mean of known group c, relative to the mean of all rows. Every row x is
    projected before a base clusterer clusters the rows:

    .. math::
        \text{"clustering"}: \quad x &\leftarrow x - m_c \, (m_c' x) / (m_c' m_c), \\
        \text{"subspace"}: \quad x &\leftarrow x - Q Q' x,

    where c is the known group of x, and Q an orthonormal basis of the span of all :math:`m_c`.

    Parameters
    ----------
    <n_clusters>
    variant : {"clustering", "subspace"}, default="clustering"
        "clustering" removes one direction from each row. "subspace" removes the same directions
        from all rows: with ``center=True``, their number is at most the number of groups minus 1.
        "subspace" needs more features than directions. For two groups and ``center=True``, the
        variants agree.
    base : {"em", "kmeans"} or clusterer, default="em"
        Clusterer of the projected rows. "em" is a spherical Gaussian mixture, initialised at random
        rows, and "kmeans" is k-means, both from scikit-learn. Any clusterer with ``fit_predict`` is
        accepted; `Orthogonalization` sets the number of clusters of this clusterer, and
        ``random_state`` of this clusterer if it is None. The base clusters the principal components
        of the projected rows that retain all but 1e-6 of the variance.
    center : bool, default=True
        Whether group means are relative to the mean of all rows. With False they are relative to
        the origin, so the result depends on the origin of the features.
    n_init : int, default=10
        Number of restarts of the base; the solution with the best objective is kept. A base that
        you pass is fitted once. At most 10**6.
    max_iter : int, default=300
        Maximum number of iterations of the base; at most 10**6.
    tol : float, default=1e-4
        Convergence tolerance of the base, as scikit-learn defines it; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the initial values of the base.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        Posterior probabilities of the clusters for base "em"; one-hot for all other bases.
    <n_clusters_>
    objective_ : float
        For base "em", the negative log likelihood of the projected rows in nats. For all other
        bases, the sum of squared distances to the cluster means of the projected rows.
    objective_trace_ : ndarray of shape (1,)
        ``objective_``; the bases report no earlier iterations.
    directions_ : list of ndarray of shape (n_groups, n_features) or (rank, n_features)
        Removed directions of each known labeling. For "clustering", these are the unit vectors of
        all groups, or 0 if the mean of a group is the mean of all rows. For "subspace", they are
        the orthonormal basis. Empty without ``known``.
    <cluster_centers_>
    n_iter_ : int
        Iterations of the best restart of the base; 1 for a base that you pass.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    ADFT : Inverts a metric that is learnt from the known groups.
    ConditionalMixture : Gaussian mixture of the residuals from known structure.
    NACI : Alternative clusters of any shape.

    Notes
    -----
    Algorithm:

    1. For each known labeling in turn, compute the group means of the current rows, and project the
       rows. The order of the labelings matters for "clustering" only.
    2. Compute the principal components of the projected rows.
    3. Fit the base to the components.

    Steps 1 and 2 take O(np^2) time and O(np) memory for n rows and p features. Without ``known``
    the rows are not projected.

    "clustering" projects each group along a different line. With two features, one coordinate
    remains, and distant clusters of different groups can coincide. New rows need ``known`` for
    "clustering" only.

    References
    ----------
    Cui, Y., Fern, X. Z. and Dy, J. G. (2007), "Non-redundant multi-view clustering via
    orthogonalization", IEEE International Conference on Data Mining, 133-142,
    doi:10.1109/ICDM.2007.94. Methods 1 and 2.

    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", ACM SIGKDD, 573-582,
    doi:10.1145/1835804.1835878. Algo1 and Algo2. The text of this paper removes the span of all
    group means in "clustering", which would remove all variance of the data sets in the paper.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import Orthogonalization, metrics
    >>> rng = np.random.default_rng(0)
    >>> known, target = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * target], 1) + rng.normal(size=(100, 2))
    >>> model = Orthogonalization(2, random_state=0).fit(X, known=known)
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, target):.2f}")
    1.00
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
    def _groupwise(self) -> bool:
        return self.variant == "clustering"

    @property
    def _singleton_note(self) -> str:  # type: ignore[override]
        return "whose rows are projected to the origin" if self._groupwise else ""

    def _learn_transform(
        self, x: np.ndarray, design: Design, random: np.random.RandomState
    ) -> np.ndarray:
        from sklearn.decomposition import PCA

        # Position of the origin: the mean of all rows, or the origin of the features.
        self._origin = np.zeros(x.shape[1])
        if not self.center:
            self._origin = self._scaled.centre / self._scaled.scale
        before, x = float(np.mean(x**2)), x + self._origin
        self._removed = []
        for codes in design.labelings.T:
            if self._groupwise:
                self._removed.append(group_directions(x, codes))
                x = remove_group_direction(x, self._removed[-1], codes)
            else:
                self._removed.append(mean_subspace(x, codes))
                x = remove_subspace(x, self._removed[-1])
        # Represent the projected rows by their principal components.
        self.directions_ = [directions.copy() for directions in self._removed]
        self._components = None
        left = float(np.mean((x - x.mean(0)) ** 2))
        if left <= _RELATIVE_ZERO * before:
            if before > 0:
                self._raise_nothing_left(x.shape[1], design.n_groups)
            return x
        self._components = PCA(n_components=_RETAINED_VARIANCE).fit(x)
        return self._components.transform(x)

    def _raise_nothing_left(self, m: int, n_groups: int) -> None:
        span = f"the means of the known groups span all {m} features"
        raise ValueError(
            f"{span}, so no variance remains to cluster; got {n_groups} groups of rows with "
            f"n_features={m}; pass more features or fewer groups"
            + ("" if self._groupwise else ", or use variant='clustering'")
        )

    def _apply_transform(self, x: np.ndarray, known: Any) -> np.ndarray:
        x = x + self._origin
        if self._groupwise:
            design = self._encoder.transform(known, len(x))
            for j, directions in enumerate(self._removed):
                x = remove_group_direction(x, directions, design.labelings[:, j])
        else:
            for basis in self._removed:
                x = remove_subspace(x, basis)
        return x if self._components is None else self._components.transform(x)

    def predict(self, X, *, known=None):
        """Project new rows, and assign them to clusters by the base clusterer.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : as in `fit`; ignored by ``variant="subspace"``

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)
