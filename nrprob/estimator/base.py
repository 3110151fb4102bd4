"""Base class of all clusterers: input, restarts, fitted attributes, warnings, prediction.

Shapes: n samples, m features, k clusters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted, validate_data

from nrprob.data.design import Design
from nrprob.data.frames import (
    check_same_order,
    column_names,
    extract_known,
    has_columns,
    split_columns,
)
from nrprob.data.labels import read_labels, refuse_own_groups
from nrprob.data.storage.stored import Stored, apply_to_pieces, as_stored
from nrprob.data.validation import (
    LARGEST,
    check_choice,
    check_number,
    check_rows,
)
from nrprob.engines import sharding
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.dependence import warn_of_dependence
from nrprob.estimator.parameters import check_parameters
from nrprob.estimator.weights import fit_weighted
from nrprob.exceptions import DegenerateClusterWarning, warn
from nrprob.settings import standard
from nrprob.statistics.features import check_range, largest_magnitude

# `fit` warns of clusters of at most `_SMALL_CLUSTER` samples, if clusters have at least
# `_SUSPICIOUS_MEAN_SIZE` samples on average.
_SMALL_CLUSTER = 2
_SUSPICIOUS_MEAN_SIZE = 50
_MAX_LISTED_SIZES = 12  # maximum number of cluster sizes in a warning


class Restarts(NamedTuple):
    """All restarts of a fit.

    Attributes
    ----------
    labels : (restarts, n) cluster of every sample; None for stored rows
    objective : (restarts,) final objective, which the fit minimises
    converged : (restarts,) whether the restart converged
    """

    labels: Any
    objective: np.ndarray
    converged: np.ndarray


def fitted_labelings(estimator: Any) -> np.ndarray:
    """Labelings of a fitted estimator: ``alternatives_`` (n, labelings) or ``labels_`` (n,).

    The result is ``labels_`` if the estimator has a single labeling.
    """
    alternatives = getattr(estimator, "alternatives_", None)
    if alternatives is None or alternatives.shape[1] == 1:
        return estimator.labels_
    return alternatives


def row_means(X: Any, membership: np.ndarray) -> np.ndarray:
    """Cluster means (k, m) of the features ``X`` (n, m), weighted by ``membership`` (n, k).

    If samples have weights, the caller multiplies ``membership`` by the weights. An empty cluster
    has the mean of all samples.
    """
    size = membership.sum(0)
    # Divide the weights of a cluster by their sum, so that no sum of rows overflows the type of X.
    # The weights have the type of X, since a product of two types would copy X.
    shares = np.column_stack([membership / np.where(size > 0, size, 1), membership.sum(1)])
    shares[:, -1] /= size.sum()
    weights = shares.T.astype(X.dtype)
    if isinstance(X, jax.Array):
        means = jax.numpy.matmul(weights, X, precision=jax.lax.Precision.HIGHEST)
    else:
        means = weights @ X
    means = np.asarray(means, np.float64)
    return np.where((size > 0)[:, None], means[:-1], means[-1])


@contextlib.contextmanager
def fit_context(estimator: Any) -> Iterator[None]:
    """Context of a fit: delete the fitted attributes of the previous fit on entry.

    If the code inside the ``with`` raises an exception, the attributes that it has set are deleted,
    too. An interrupted fit (KeyboardInterrupt) keeps its attributes if the class sets
    `Clusterer._keeps_interrupted`.
    """
    state = vars(estimator)
    for name in state.pop("_set_by_fit", ()):
        state.pop(name, None)
    before = set(state)
    try:
        yield
        check_finite(estimator)
    except BaseException as error:
        keeps = estimator._keeps_interrupted and "labels_" in state
        if isinstance(error, Exception) or not keeps:
            for name in set(state) - before:
                del state[name]
        raise
    finally:
        state["_set_by_fit"] = sorted(set(state) - before)


def check_finite(estimator: Any) -> None:
    """Raise an error for NaN and infinity in fitted attributes.

    The class attribute ``_rarely_finite`` names attributes that are not checked.
    """
    for name, value in vars(estimator).items():
        if name.startswith("_") or not name.endswith("_") or name in estimator._rarely_finite:
            continue
        parts = value if isinstance(value, list) else [value]
        parts = [p for p in parts if isinstance(p, float | np.ndarray)]
        if any(np.asarray(p).dtype.kind == "f" and not np.isfinite(p).all() for p in parts):
            raise ValueError(
                f"the results are not finite; got NaN or infinity in {name}; bring the columns of "
                "X to a common scale, pass float64, or choose less extreme parameters"
            )


class Clusterer(ClusterMixin, BaseEstimator):
    """Base class of clusterers.

    `fit` calls ``check_parameters``, ``prepare``, ``compute`` and ``finish``, in this order. A
    subclass has the parameters ``n_clusters``, ``n_init``, ``max_iter``, ``random_state`` and
    ``verbose``, and usually ``tol``. It declares its `capabilities`, and defines these methods:

    ``check_parameters()``
        Validate parameters that do not depend on the data. Bounds of single parameters are
        annotations (`nrprob.estimator.parameters`); the method checks combinations of parameters.
    ``prepare(X, y, known=None)``
        Validate and encode the data, and return a task. A task is an object whose ``calls`` are the
        compiled runs of the restarts (`nrprob.engines.optimise.solve.SolverCall`). Batch runs
        execute the calls of many fits together. ``calls`` is empty if the computation is not a set
        of independent compiled runs. If `capabilities` include ``weights``, the method also takes
        ``sample_weight``: positive weights (n,), or None.
    ``compute(task)``
        Return the results of ``task.calls``, or of the whole computation if there are no calls.
    ``finish(task, result)``
        Set the fitted attributes from these results, usually by `_store_results`, and return the
        estimator.
    ``_log_membership(X, known)``
        Return scores (n, n_clusters) of new rows; `predict` returns the cluster with the largest
        score.

    A subclass with several labelings sets ``alternatives_`` (n, labelings), and one of its columns
    as ``labels_`` (n,). The class attributes below are options of a subclass, with their defaults.

    See Also
    --------
    nrprob.estimator.terms.TermEstimator : Base class for weighted sums of cell costs.
    nrprob.estimator.dense.PlainClusterer : Base class for dense rows without known structure.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    # Fitted attributes that may be infinite or NaN.
    _rarely_finite: tuple[str, ...] = ()
    # Whether `fit` warns if fewer than ``n_clusters`` clusters have samples.
    _fixes_number = True
    # Whether an interrupted fit that has set ``labels_`` keeps its attributes.
    _keeps_interrupted = False
    # Whether one cluster may contain several classes of the partial labels.
    _classes_share = False
    # Whether no move of one sample to another cluster lowers the objective at ``labels_``. Such an
    # estimator defines `_objective_at`.
    hard_objective: bool = False
    # Remedy in the warning about clusters of one or two samples.
    _small_remedy = "remove samples that are outliers, or change n_clusters or other parameters"
    # Whether `fit` warns if one discrete feature determines the clusters.
    _warns_of_single_feature = False
    # Whether `fit` warns if a cluster lies in one known group.
    _warns_of_single_group = False
    # Mask (n,) of samples with a positive weight; None if all weights are positive.
    _has_weight: np.ndarray | None = None

    def __sklearn_tags__(self):
        """Return scikit-learn's description of accepted inputs."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse
        tags.input_tags.positive_only = self.capabilities.nonnegative
        tags.input_tags.allow_nan = tags.input_tags.categorical = self.capabilities.mixed
        # scikit-learn's checks treat an estimator with `predict_proba` as a classifier.
        tags.classifier_tags = ClassifierTags(multi_class=self._many_clusters)
        return tags

    @property
    def _takes_sparse(self) -> bool:
        """Whether X may be sparse; a class overrides this if the answer depends on parameters."""
        return self.capabilities.sparse

    @property
    def _takes_stored(self) -> bool:
        """Whether X may be stored rows, which are not in memory; see `nrprob.stored`."""
        return False

    @property
    def _unit(self) -> str:
        """Subject of the sentence "... did not converge" in the warning of `_warn_convergence`."""
        return "the best restart"

    @property
    def _many_clusters(self) -> bool:
        """Whether a fit returns a single labeling that may have more than two clusters."""
        return self.n_clusters > 2

    @property
    def _cluster_limit(self) -> int:
        """Largest number of clusters of a fit."""
        return self.n_clusters

    # Parameters

    _check_choice = staticmethod(check_choice)
    _check_number = staticmethod(check_number)

    def check_parameters(self) -> None:
        """Validate the parameters that do not depend on the data."""
        check_parameters(self)

    def _check_size(self, n_samples: int) -> None:
        if n_samples < self.n_clusters:
            raise ValueError(
                f"n_clusters={self.n_clusters} is more than the number of rows; got "
                f"n_samples={n_samples}; lower n_clusters, or pass more rows"
            )

    def _check_one_device(self) -> None:
        if sharding.active_mesh() is not None:
            raise ValueError(
                f"{type(self).__name__} cannot shard rows over devices; got a fit within "
                "nrprob.sharded; call fit outside of nrprob.sharded"
            )

    # Fitting

    def fit(self, X, y=None, *, known=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix, JAX array, frame or AnnData of shape (n_samples, n_features)
            Features. Float32 input is computed in float32, and all other input in float64. Of
            AnnData, the estimator uses ``X``, or the part that `nrprob.rows_of` selects. Some
            estimators accept sparse matrices, and rows that do not fit into memory
            (`nrprob.stored`).
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Cluster i corresponds to the i-th of the sorted
            labels; further clusters have no label.
        known : array-like, optional
            Known structure: labels of shape (n_samples,), or several labelings as a 2-D array of
            integers or strings. Some estimators accept soft `nrprob.known.Memberships`; some accept
            continuous covariates (a 2-D array of floats, or a frame with float columns and label
            columns). If ``X`` is a frame or AnnData, ``known`` may also be a column name or a list
            of column names (of ``obs`` in AnnData). These columns are then not features.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data are invalid, or do not suit the parameters.
        """
        return self._fit(X, y, known=known)

    def fit_predict(self, X, y=None, **keywords):
        """Cluster the rows of ``X`` and return ``labels_``; see `fit`.

        Parameters
        ----------
        X, y, **keywords : as in `fit`

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.fit(X, y, **keywords).labels_

    def _fit(self, X, y, *, sample_weight=None, **keywords):
        """Fit ``X`` of any type; ``keywords`` are the keyword arguments of `prepare`."""
        self.check_parameters()
        known_as = self.capabilities.known_as
        rows = as_stored(X) if self._takes_stored or isinstance(X, Stored) else None
        if rows is not None:
            if sample_weight is not None:
                raise ValueError(
                    "stored rows all have weight 1; got sample_weight; pass an array or a "
                    "frame, or leave the weights out"
                )
            self._fit_stored(rows, y, **keywords)
            self._known_columns = column_names(keywords.get(known_as))
            return self
        check_same_order(X, y=y, sample_weight=sample_weight)
        argument = keywords.get(known_as)
        X, known = extract_known(X, argument, known_as)
        if known is not None:
            keywords[known_as] = known
        with fit_context(self), standard():
            # If the user passed column names, `extract_known` returned a frame of these columns.
            self._known_columns = [] if known is argument else [*known.columns]
            if sample_weight is None:
                self._fit_samples(X, y, **keywords)
            else:
                fit_weighted(self, X, y, sample_weight, keywords)
        warn_of_dependence(self, X, known)
        return self

    def _fit_samples(self, X, y, **keywords) -> None:
        """Fit samples in memory; ``keywords`` are the keyword arguments of `prepare`."""
        task = self.prepare(X, y, **keywords)
        self.finish(task, self.compute(task))

    def _absent_values(self, X, known) -> dict[str, Any]:
        """Values of fitted attributes for n samples ``X`` of weight 0, with known structure.

        Such samples take no part in the fit. The result maps names of attributes to values (n,
        ...), or to one value for all samples. The mapping has the attributes with one entry per
        sample, except ``labels_``, ``membership_`` and ``restarts_``.
        """
        return {}

    def _fit_stored(self, rows: Stored, y, known=None):
        """Fit stored rows; known structure and partial labels may be column names."""
        raise TypeError(
            f"{type(self).__name__} needs rows in memory; got stored rows; pass an "
            "array, or use CCIB, IB or ConditionalMixture"
        )

    def prepare(self, X, y, known=None) -> Any:
        """Validate and encode the data; return the task of the fit, as the class describes it."""
        raise NotImplementedError

    def compute(self, task: Any) -> list[Any]:
        """Run the calls of the task; return their results, in the same order."""
        result = []
        for done, call in enumerate(task.calls, 1):
            result.append(call())
            if self.verbose:
                best = min(f.objective.min() for f in result)
                restarts = done * self.n_init // len(task.calls)
                print(f"restarts {restarts}/{self.n_init}: objective {best:.6g} nats")
        return result

    def finish(self, task: Any, result: Any):
        """Set the fitted attributes from the results of `compute`.

        Parameters
        ----------
        task : object
            Task of `prepare`.
        result : list
            Results of the calls of the task, in their order.

        Returns
        -------
        self
        """
        raise NotImplementedError

    def _objective_at(self, task: Any, labels: np.ndarray) -> float:
        """Objective at hard ``labels`` (n,); infinite if the fit may not return them."""
        raise NotImplementedError

    # Input

    def _validate(self, X, *, reset: bool):
        """Validate rows, dense or sparse, and copy them to host memory."""
        X = np.asarray(X) if isinstance(X, jax.Array) else X
        X = self._check_rows(X, reset=reset, accept_sparse="csr")
        if sparse.issparse(X) and (X.indices.dtype != np.int32 or X.indptr.dtype != np.int32):
            # scikit-learn's k-means requires 32-bit column indices; row pointers may need 64 bits.
            ends = X.indptr.astype(np.int32) if X.nnz < 2**31 else X.indptr
            X = sparse.csr_array((X.data, X.indices.astype(np.int32), ends), shape=X.shape)
        return X

    def _check_rows(self, X, *, reset: bool, **settings):
        """Validate rows by scikit-learn's ``validate_data``, and check their range."""
        validate = partial(validate_data, self, reset=reset)
        X = check_rows(X, validate, dtype=[np.float64, np.float32], **settings)
        self._check_magnitude(X, reset=reset)
        return X

    def _check_magnitude(self, X, *, reset: bool) -> None:
        """Raise an error if squares of features overflow or underflow.

        ``reset`` is True for the samples of `fit`, and False for new rows, which must not exceed a
        limit that `fit` has stored.
        """
        if reset and self.capabilities.squares:
            check_range(X)
        most = largest_magnitude(X)
        if reset:
            self._store_magnitude(most, X.dtype)
        elif most > self._max_magnitude:
            raise ValueError(
                f"new rows must lie within {self._max_magnitude:.3g}, since their squares would "
                f"overflow; got a value of size {most:.3g}; pass new rows in the units of the fit"
            )

    def _store_magnitude(self, most: float, dtype: Any) -> None:
        """Store the largest absolute value that new rows may have.

        ``most`` is the largest absolute value of the samples of the fit, of type ``dtype``.
        """
        self._max_magnitude = (most or 1.0) * (1e15 if dtype == np.float32 else LARGEST)

    def _check_input(self, X, y) -> tuple[Any, np.ndarray | None]:
        """Validate parameters, rows and partial labels of an estimator that uses one device.

        Returns the rows, and the result of `_target_clusters`.
        """
        self.check_parameters()
        self._check_one_device()
        X = self._validate(X, reset=True)
        self._check_size(X.shape[0])
        return X, self._target_clusters(y, X.shape[0])

    def _target_clusters(self, y, n: int) -> np.ndarray | None:
        """Clusters (n,) that the partial labels ``y`` determine, -1 for unlabelled samples.

        The result is None if no sample is labelled.
        """
        if y is None:
            return None
        classes, fixed = read_labels(y, n)
        if not classes.size:
            return None
        too_many = classes.size > self._cluster_limit and not self._classes_share
        if too_many and (fixed >= 0).all():
            # Pipelines and searches pass a complete y to each estimator, and clusterers ignore it.
            # A complete labeling with more classes than clusters cannot be partial labels.
            warn(
                f"y labels every row and has {classes.size} classes, more than "
                f"n_clusters={self._cluster_limit}; the fit ignores y; to use y, mark unknown "
                "labels by -1"
            )
            return None
        if too_many:
            raise ValueError(
                f"y has {classes.size} classes, more than n_clusters={self._cluster_limit}; "
                "raise n_clusters, or mark unknown labels by -1"
            )
        self.classes_ = classes
        return fixed

    def _check_groups(self, design: Design) -> None:
        """Check the sizes of the known groups.

        Raises ValueError if every group has one sample. Warns if some groups have one sample, or if
        there is only one group.
        """
        if design.kind != "labels" or design.columns is not None:
            return
        sizes = np.bincount(design.codes)
        if sizes.size == 1 and design.n_samples > 1:
            self._warn_degenerate(
                "known has one group only, so that it has no effect; got a constant labeling"
                f"{design.where}; leave known out"
            )
            return
        refuse_own_groups(sizes.size, design.n_samples, design.where)
        if (sizes == 1).any():
            self._warn_degenerate(
                f"{(sizes == 1).sum()} known group(s) have a single member, for which the "
                "conditional term cannot prefer a cluster; got group sizes down to 1; merge small "
                "groups if these samples matter"
            )

    # Results

    def _store_results(
        self,
        restarts: Restarts,
        *,
        membership: np.ndarray | None,
        trace: np.ndarray,
        n_iter: int,
        nothing_left: str = "",
        chosen: Restarts | None = None,
        labels: np.ndarray | None = None,
        sizes: np.ndarray | None = None,
    ) -> None:
        """Set the attributes of the best restart, and warn of degenerate or unconverged results.

        Parameters
        ----------
        restarts : Restarts
            All restarts, for the attribute ``restarts_``.
        membership : memberships (n, k) of the best restart, or None
        trace : objective after each iteration of the best restart; NaN after the last one
        n_iter : number of iterations of the best restart
        nothing_left : text of a warning that X has no structure beyond the known structure; empty
            if X has such structure
        chosen : refined restarts, the best of which is the result; None if ``restarts`` are final
        labels, sizes : labels (n,) of the best restart and sizes (k,) of its clusters, if
            ``restarts`` has no labels
        """
        self._restarts = restarts
        restarts = restarts if chosen is None else chosen
        best = int(restarts.objective.argmin())
        self.labels_ = restarts.labels[best].astype(np.int64) if labels is None else labels
        if membership is not None:
            self.membership_ = membership
        self.objective_ = float(restarts.objective[best])
        trace = trace.astype(float)
        self.objective_trace_ = trace[~np.isnan(trace)]
        self.n_iter_ = int(n_iter)
        self.converged_ = bool(restarts.converged[best])
        used = np.unique(self.labels_) if sizes is None else np.flatnonzero(sizes)
        self.n_clusters_ = int(used.size)
        k = self._cluster_limit
        if nothing_left and k > 1:
            self._warn_degenerate(nothing_left)
        elif self._fixes_number and self.n_clusters_ < k:
            self._warn_degenerate(
                f"found {self.n_clusters_} clusters, fewer than n_clusters={k}; all other clusters "
                "are empty; lower n_clusters, or raise n_init"
            )
        self._warn_small_clusters(np.bincount(self.labels_) if sizes is None else sizes)
        self._warn_convergence()

    def _warn_small_clusters(self, sizes: np.ndarray, where: str = "") -> None:
        """Warn of clusters of one or two samples if there are many samples per cluster.

        ``sizes`` (k,) are the sizes of the clusters. If there are several clusterings, ``where``
        names the clustering.
        """
        sizes = np.sort(np.rint(sizes[sizes > 0]).astype(int))
        n, small = sizes.sum(), (sizes <= _SMALL_CLUSTER).sum()
        if small and n >= _SUSPICIOUS_MEAN_SIZE * sizes.size:
            more = ", ..." if sizes.size > _MAX_LISTED_SIZES else ""
            self._warn_degenerate(
                f"{small} cluster(s){where} have one or two of {n} samples; got clusters of sizes "
                f"{', '.join(map(str, sizes[:_MAX_LISTED_SIZES]))}{more}; {self._small_remedy}"
            )

    def _warn_cluster_limit(self, selected: int, limit: int, where: str = "") -> None:
        """Warn if a selected number of clusters is ``max_clusters``.

        See `_warn_small_clusters` for ``where``.
        """
        if 1 < selected == limit:
            warn(
                f"the selected number of clusters{where} is the largest allowed, so more clusters "
                f"may fit better; got max_clusters={limit}; raise max_clusters"
            )

    def _warn_convergence(self) -> None:
        """Warn if the fit did not converge."""
        if not self.converged_:
            remedy = "max_iter or tol" if "tol" in self.get_params(deep=False) else "max_iter"
            warn(
                f"{self._unit} did not converge; got max_iter={self.max_iter}; raise {remedy}",
                ConvergenceWarning,
            )

    def _warn_degenerate(self, message: str) -> None:
        warn(message, DegenerateClusterWarning)

    @property
    def _holds_rows(self) -> np.ndarray:
        """Mask (n_clusters,) of the clusters that have samples of the fit."""
        return np.bincount(self.labels_, minlength=self.n_clusters) > 0

    @property
    def restarts_(self):
        """All restarts, as an `xarray.Dataset` with dimensions restart and sample."""
        check_is_fitted(self)
        import xarray

        dims = {"labels": ("restart", "sample")}
        return xarray.Dataset(
            {
                name: (dims.get(name, "restart"), a)
                for name, a in self._restarts._asdict().items()
                if a is not None
            }
        )

    # New rows

    def _split_known(self, X, known) -> tuple[Any, Any]:
        """Split new rows into features and known structure; see `nrprob.data.frames.extract_known`.

        Without ``known``, the columns whose names `fit` received are the known structure.
        """
        names = vars(self).get("_known_columns")
        if known is None and names and has_columns(X, names):
            return split_columns(X, names, self.capabilities.known_as)
        return extract_known(X, known)

    def _stored_known(self, known) -> Any:
        """Known structure of new stored rows: ``known``, or the default if ``known`` is None.

        The default is the list of known columns that `fit` received by name.
        """
        return known if known is not None else vars(self).get("_known_columns") or None

    def _log_membership(self, X, known) -> np.ndarray:
        """Scores (n, n_clusters) of new rows; the largest determines the cluster."""
        raise NotImplementedError

    def predict(self, X, *, known=None):
        """Predict the cluster of each new row: the cluster with the largest score.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows.
        known : as in `fit`; required if the model was fitted with it
            If `fit` took column names, the default are the columns of ``X`` with these names.

        Returns
        -------
        ndarray of shape (n_samples,)
            Cluster of every row.
        """
        if isinstance(X, Stored):
            known = self._stored_known(known)
            return apply_to_pieces(lambda x, z: Clusterer.predict(self, x, known=z), X, known)
        return self._log_membership(*self._split_known(X, known)).argmax(1)

    def predict_proba(self, X, *, known=None):
        """Predict one-hot memberships of new rows: 1 for the cluster of `predict`, else 0.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows.
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return np.eye(self.n_clusters)[self.predict(X, known=known)]
