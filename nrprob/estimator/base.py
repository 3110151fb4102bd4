"""Base class of every clusterer: input, restarts, fitted state, warnings, prediction."""

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
from nrprob.data.frames import check_same_order, column_names, has_columns, split_columns, take_out
from nrprob.data.labels import are_blank, are_minus_one, is_missing, plain, refuse_own_groups
from nrprob.data.storage.stored import Stored, apply_to_pieces, as_stored
from nrprob.data.validation import (
    LARGEST,
    check_choice,
    check_number,
    check_rows,
)
from nrprob.engines import sharding
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.parameters import check_parameters
from nrprob.exceptions import DegenerateClusterWarning, warn
from nrprob.settings import standard
from nrprob.statistics.features import check_range, largest_magnitude
from nrprob.statistics.single_feature import warn_of_single_feature

_SMALL_CLUSTER = 2  # samples
_SUSPICIOUS_MEAN_SIZE = 50  # samples per cluster from which on small clusters are reported
_LISTED = 12  # cluster sizes in a warning


class Restarts(NamedTuple):
    """All restarts of a fit.

    Attributes
    ----------
    labels : (restarts, n); None where they are not kept
    objective : (restarts,), minimised
    converged : (restarts,)
    """

    labels: Any
    objective: np.ndarray
    converged: np.ndarray


class Renamed:
    """An attribute's old name, which gives its value with a warning for one release."""

    def __init__(self, new: str):
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, estimator: Any, owner: type) -> Any:
        """Return the attribute of the new name."""
        if estimator is None:
            return self
        value = getattr(estimator, self.new)
        warn(f"{self.old} is called {self.new} now; the old name goes", FutureWarning)
        return value


def labelings(estimator: Any) -> np.ndarray:
    """What a fitted estimator found: ``labels_`` (n,), or the ``alternatives_`` (n, m)."""
    several = getattr(estimator, "alternatives_", None)
    return estimator.labels_ if several is None or several.shape[1] == 1 else several


def row_means(X: Any, membership: np.ndarray) -> np.ndarray:
    """Means (k, m) of raw rows (n, m) by membership (n, k); of all rows where there is none."""
    size = membership.sum(0)
    # Shares, so that no sum leaves the type of X; in another type, all of X would be copied.
    shares = np.column_stack([membership / np.where(size > 0, size, 1), np.ones(len(membership))])
    shares[:, -1] /= len(membership)
    weights = shares.T.astype(X.dtype)
    if isinstance(X, jax.Array):
        means = jax.numpy.matmul(weights, X, precision=jax.lax.Precision.HIGHEST)
    else:
        means = weights @ X
    means = np.asarray(means, np.float64)
    return np.where((size > 0)[:, None], means[:-1], means[-1])


@contextlib.contextmanager
def fitting(estimator: Any) -> Iterator[None]:
    """Context of a fit: it begins from the parameters alone, and ends whole or not at all.

    What an earlier fit has set is forgotten first, and what this one has set if it fails.
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
    """Refuse results that are no numbers; a class names those that may be infinite or NaN."""
    for name, value in vars(estimator).items():
        if name.startswith("_") or not name.endswith("_") or name in estimator._rarely_finite:
            continue
        parts = value if isinstance(value, list) else [value]
        parts = [p for p in parts if isinstance(p, float | np.ndarray)]
        if any(np.asarray(p).dtype.kind == "f" and not np.isfinite(p).all() for p in parts):
            raise ValueError(
                f"the results are no numbers; got NaN or infinity in {name}; bring the columns of "
                "X to a common scale, pass float64, or choose less extreme parameters"
            )


class Clusterer(ClusterMixin, BaseEstimator):
    """An estimator of clusters.

    A class that derives from it has the parameters ``n_clusters``, ``n_init``, ``max_iter`` and
    ``verbose``, mostly ``tol`` and ``random_state``, and gives

    ``check_parameters()``
        What is wrong with its parameters by themselves, beyond the bounds that are declared with
        them (`nrprob.estimator.parameters`).
    ``prepare(X, y, known=None)``
        All of `fit` that comes before something is computed: an object whose ``calls`` are the
        compiled runs that make the restarts (see `nrprob.engines.optimise.solve.SolverCall`), which
        whoever runs many fits may run in its own order and place. They are empty where the
        estimator has to compute by itself.
    ``compute(task)``
        Results of the calls of what `prepare` gave. Where there are no calls, it computes.
    ``finish(task, result)``
        Sets the fitted attributes from these results, mostly by `_store`, and returns itself.
    ``_log_membership(X, known)``
        Scores (n, n_clusters) of new rows; the largest says the cluster.

    What else a class may change is beside these, with its default. A class that finds several
    labelings sets ``alternatives_`` (n, m), and the chosen one as ``labels_`` (n,).
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    # Results that may be infinite, or NaN, as the docstring says.
    _rarely_finite: tuple[str, ...] = ()
    # Whether ``n_clusters`` is the number of clusters that there should be, not only the first one.
    _fixes_number = True
    # Whether a fit that is interrupted, and has set ``labels_``, keeps what it has.
    _keeps_interrupted = False
    # Whether several classes of wanted labels may be in one cluster.
    _classes_share = False
    # What to do about clusters of one or two samples.
    _small_remedy = "remove samples that are outliers, or change n_clusters or other parameters"
    # Whether `fit` warns if one discrete feature determines the clusters.
    _warns_of_single_feature = False

    def __sklearn_tags__(self):
        """Return scikit-learn's description of what the estimator accepts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse
        tags.input_tags.positive_only = self.capabilities.nonnegative
        # scikit-learn's checks take whoever has `predict_proba` for a classifier of two classes, or
        # of as many as its data have.
        tags.classifier_tags = ClassifierTags(multi_class=self._many_clusters)
        return tags

    @property
    def _takes_sparse(self) -> bool:
        """Whether X may be sparse; a class overrides it if that depends on its parameters."""
        return self.capabilities.sparse

    @property
    def _takes_stored(self) -> bool:
        """Whether rows are taken that are not in memory; see `nrprob.stored`."""
        return False

    @property
    def _unit(self) -> str:
        """What has not converged where the best restart has not."""
        return "the best restart"

    @property
    def _many_clusters(self) -> bool:
        """Whether there are more than two clusters, of one labeling."""
        return self.n_clusters > 2

    # Parameters

    _check_choice = staticmethod(check_choice)
    _check_number = staticmethod(check_number)

    def check_parameters(self) -> None:
        """Refuse parameters that are wrong whatever the data; see `nrprob.estimator.parameters`."""
        check_parameters(self)

    def _check_size(self, n_samples: int) -> None:
        if n_samples < self.n_clusters:
            raise ValueError(
                f"n_samples={n_samples} should be >= n_clusters={self.n_clusters}; "
                "lower n_clusters or pass more rows"
            )

    def _check_one_device(self) -> None:
        if sharding.active_mesh() is not None:
            raise ValueError(
                f"{type(self).__name__} cannot shard rows over devices; got a fit within "
                "nrprob.sharded; fit outside of it"
            )

    # Fitting

    def fit(self, X, y=None, *, known=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix, JAX array, frame or AnnData of shape (n_samples, n_features)
            Float32 input is computed in float32, all else in float64. Annotated data stand for
            their ``X``, or for what `nrprob.rows_of` names. Some estimators also take rows that do
            not fit into memory; see `nrprob.stored`.
        y : array-like of shape (n_samples,), optional
            Wanted labels, -1 where unknown. Cluster i is the i-th of the sorted labels; further
            clusters are free.
        known : array-like, optional
            Structure to avoid: labels of shape (n_samples,), several labelings as a 2-D array of
            integers or strings, `nrprob.known.Memberships`, or (`CCIB`, `ResidualMixture`,
            `ResidualSpectral`) continuous structure as a 2-D array of floats, or a frame that has
            columns of both. Where ``X`` is a frame, the name of one of its columns or a list of
            such, which then are no features; where it is annotated data, of columns of ``obs``.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y, known=known)

    def fit_predict(self, X, y=None, **keywords):
        """Cluster the rows of ``X``, and return ``labels_``; see `fit`.

        Parameters
        ----------
        X, y, **keywords : as in `fit`

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.fit(X, y, **keywords).labels_

    def _fit(self, X, y, **given):
        """Fit, with what else `prepare` takes."""
        self.check_parameters()
        rows = as_stored(X) if self._takes_stored or isinstance(X, Stored) else None
        if rows is not None:
            self._fit_stored(rows, y, **given)
            self._known_columns = column_names(given.get(self.capabilities.known_as))
            return self
        check_same_order(X, y=y)
        passed = given.get(self.capabilities.known_as)
        X, told = take_out(X, passed, self.capabilities.known_as)
        if told is not None:
            given[self.capabilities.known_as] = told
        with fitting(self), standard():
            # A frame that was not passed holds the columns that were named.
            self._known_columns = [] if told is passed else [*told.columns]
            task = self.prepare(X, y, **given)
            self.finish(task, self.compute(task))
        if self._warns_of_single_feature:
            warn_of_single_feature(X, self.labels_)
        return self

    def _fit_stored(self, rows: Stored, y, known=None):
        """Fit rows that are not in memory; known structure and wanted labels may be columns."""
        raise TypeError(
            f"{type(self).__name__} needs its rows in memory; got rows that are stored; pass an "
            "array, or use CCIB, IB or ResidualMixture"
        )

    def prepare(self, X, y, known=None) -> Any:
        """Check the input and lay it out: all of `fit` that comes before something is computed."""
        raise NotImplementedError

    def compute(self, task: Any) -> list[Any]:
        """Results of the task's calls."""
        result = []
        for done, call in enumerate(task.calls, 1):
            result.append(call())
            if self.verbose:
                best = min(f.objective.min() for f in result)
                restarts = done * self.n_init // len(task.calls)
                print(f"restarts {restarts}/{self.n_init}: objective {best:.6g} nats")
        return result

    def finish(self, task: Any, result: Any):
        """Set the fitted attributes from the results of the task's calls, and return the estimator.

        Parameters
        ----------
        task : what `prepare` gave
        result : list
            Results of its calls, in their order.

        Returns
        -------
        self
        """
        raise NotImplementedError

    # Input

    def _validate(self, X, *, reset: bool):
        """Checked rows in host memory; who takes no sparse ones says so in words of its own."""
        X = np.asarray(X) if isinstance(X, jax.Array) else X
        X = self._checked(X, reset=reset, accept_sparse="csr")
        if sparse.issparse(X) and (X.indices.dtype != np.int32 or X.indptr.dtype != np.int32):
            # scikit-learn's k-means takes no others; what they count may still need 64 bits.
            ends = X.indptr.astype(np.int32) if X.nnz < 2**31 else X.indptr
            X = sparse.csr_array((X.data, X.indices.astype(np.int32), ends), shape=X.shape)
        return X

    def _checked(self, X, *, reset: bool, **settings):
        """Rows as scikit-learn's ``validate_data`` returns them."""
        validate = partial(validate_data, self, reset=reset)
        X = check_rows(X, validate, dtype=[np.float64, np.float32], **settings)
        self._check_reach(X, reset=reset)
        return X

    def _check_reach(self, X, *, reset: bool) -> None:
        """Refuse new rows so far from those of the fit that squares leave the type of the fit."""
        if reset and self.capabilities.squares:
            check_range(X)
        most = largest_magnitude(X)
        if reset:
            self._keep_reach(most, X.dtype)
        elif most > self._reach:
            raise ValueError(
                f"new rows must lie within {self._reach:.3g}, or squares leave the type of the "
                f"fit; got a value of size {most:.3g}; pass them in the units of the fit"
            )

    def _keep_reach(self, most: float, dtype: Any) -> None:
        """Keep how far new rows may lie, by the largest value of those of the fit."""
        self._reach = (most or 1.0) * (1e15 if dtype == np.float32 else LARGEST)

    def _take_in(self, X, y) -> tuple[Any, np.ndarray | None]:
        """Checked rows and wanted labels, of who fits on one device."""
        self.check_parameters()
        self._check_one_device()
        X = self._validate(X, reset=True)
        self._check_size(X.shape[0])
        return X, self._wanted(y, X.shape[0])

    def _wanted(self, y, n: int) -> np.ndarray | None:
        """Cluster of every labelled row, else -1; None where there is no label at all."""
        if y is None:
            return None
        classes, fixed = read_labels(y, n)
        if not classes.size:
            return None
        too_many = classes.size > self.n_clusters and not self._classes_share
        if too_many and (fixed >= 0).all():
            # A complete labeling with more classes than clusters cannot be wanted labels: it is the
            # y that pipelines and searches hand to every estimator and that clusterers ignore.
            warn(
                f"y labels every row and has {classes.size} classes, more than "
                f"n_clusters={self.n_clusters}; it is ignored; mark unknown labels by -1 to use it"
            )
            return None
        if too_many:
            raise ValueError(
                f"y has {classes.size} classes, more than n_clusters={self.n_clusters}; "
                "raise n_clusters, or mark unknown labels by -1"
            )
        self.classes_ = classes
        return fixed

    def _check_groups(self, design: Design) -> None:
        if design.kind != "labels" or design.columns is not None:
            return
        sizes = np.bincount(design.codes)
        if sizes.size == 1 and design.n_samples > 1:
            self._degenerate(
                "known has one group only, so there is nothing to avoid; got a constant labeling"
                f"{design.where}; leave known out"
            )
            return
        refuse_own_groups(sizes.size, design.n_samples, design.where)
        if (sizes == 1).any():
            self._degenerate(
                f"{(sizes == 1).sum()} known group(s) have a single member, which the conditional "
                "term cannot place; got group sizes down to 1; merge small groups if that matters"
            )

    # Results

    def _store(
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
        """Set what every estimator has, of the best of the restarts, and say what is wrong with it.

        ``trace`` may end in NaN; ``nothing_left`` says why there is nothing to find, where that is
        so; ``chosen`` is what was made of the best restarts, and stands for them. Where restarts
        keep no labels, ``labels`` are those of the best, and ``sizes`` the rows of its clusters.
        """
        self._restarts = restarts
        restarts = restarts if chosen is None else chosen
        at = int(restarts.objective.argmin())
        self.labels_ = restarts.labels[at].astype(np.int64) if labels is None else labels
        if membership is not None:
            self.membership_ = membership
        self.objective_ = float(restarts.objective[at])
        trace = trace.astype(float)
        self.objective_trace_ = trace[~np.isnan(trace)]
        self.n_iter_ = int(n_iter)
        self.converged_ = bool(restarts.converged[at])
        used = np.unique(self.labels_) if sizes is None else np.flatnonzero(sizes)
        self.n_clusters_ = int(used.size)
        k = self.n_clusters
        if nothing_left and k > 1:
            self._degenerate(nothing_left)
        elif self._fixes_number and self.n_clusters_ < k:
            self._degenerate(f"found {self.n_clusters_} clusters, fewer than n_clusters={k}")
        self._tell_small(np.bincount(self.labels_) if sizes is None else sizes)
        self._tell_convergence()

    def _tell_small(self, sizes: np.ndarray, where: str = "") -> None:
        """Warn of clusters of one or two samples if there are many samples per cluster.

        ``sizes`` (k,) are those of the clusters, and ``where`` names their clustering if there are
        several.
        """
        sizes = np.sort(np.rint(sizes[sizes > 0]).astype(int))
        n, small = sizes.sum(), (sizes <= _SMALL_CLUSTER).sum()
        if small and n >= _SUSPICIOUS_MEAN_SIZE * sizes.size:
            more = ", ..." if sizes.size > _LISTED else ""
            self._degenerate(
                f"{small} cluster(s){where} have one or two of {n} samples; got clusters of sizes "
                f"{', '.join(map(str, sizes[:_LISTED]))}{more}; {self._small_remedy}"
            )

    def _tell_convergence(self) -> None:
        if not self.converged_:
            remedy = "max_iter or tol" if "tol" in self.get_params(deep=False) else "max_iter"
            warn(
                f"{self._unit} did not converge; got max_iter={self.max_iter}; raise {remedy}",
                ConvergenceWarning,
            )

    def _degenerate(self, message: str) -> None:
        warn(message, DegenerateClusterWarning)

    @property
    def _holds_rows(self) -> np.ndarray:
        """Which clusters (n_clusters,) hold rows of the fit."""
        return np.bincount(self.labels_, minlength=self.n_clusters) > 0

    @property
    def restarts_(self):
        """All restarts: an `xarray.Dataset` over restart and sample."""
        check_is_fitted(self)
        import xarray

        dims = {"labels": ("restart", "sample")}
        return xarray.Dataset(
            {
                name: (dims.get(name, "restart"), a)
                for name, a in self._restarts._asdict().items()
                if a is not None  # labels of stored rows are not kept
            }
        )

    # New rows

    def _take_out(self, X, known) -> tuple[Any, Any]:
        """New rows and what is known of them; see `nrprob.data.frames.take_out`.

        Columns that `fit` took by their names are taken from ``X`` where ``known`` is not given.
        """
        names = vars(self).get("_known_columns")
        if known is None and names and has_columns(X, names):
            return split_columns(X, names, self.capabilities.known_as)
        return take_out(X, known)

    def _known_of(self, known) -> Any:
        """What is known of new rows that are stored: as given, or the columns named in `fit`."""
        return known if known is not None else vars(self).get("_known_columns") or None

    def _log_membership(self, X, known) -> np.ndarray:
        """Scores (n, n_clusters) of new rows; the largest says the cluster."""
        raise NotImplementedError

    def predict(self, X, *, known=None):
        """Cluster of new rows: the one whose score is best under the fitted statistics.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            Or `nrprob.stored` rows.
        known : as in `fit`; required if the model was fitted with it
            Columns that `fit` took by name are taken from a frame ``X`` by themselves.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        if isinstance(X, Stored):
            known = self._known_of(known)
            return apply_to_pieces(lambda x, own: Clusterer.predict(self, x, known=own), X, known)
        return self._log_membership(*self._take_out(X, known)).argmax(1)

    def predict_proba(self, X, *, known=None):
        """One-hot form of `predict`.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return np.eye(self.n_clusters)[self.predict(X, known=known)]


class DenseClusterer(Clusterer):
    """Clusterer of dense rows in host memory."""

    def _validate(self, X, *, reset: bool) -> np.ndarray:
        X = np.asarray(X) if isinstance(X, jax.Array) else X
        return self._checked(X, reset=reset)


def read_labels(y: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted classes, and the class (n,) of every row as a number: -1 stands for none.

    Raises
    ------
    ValueError
        If ``y`` has another length or shape, a missing label, or labels that have no order.
    """
    y = plain(y, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n,):
        raise ValueError(
            f"y must hold one label per row of X; got shape {y.shape} for {n} samples; "
            "pass -1 where the label is unknown"
        )
    infinite = y.dtype.kind in "fc" and not np.isfinite(y).all()
    if infinite or is_missing(y) or are_blank(y).any():
        raise ValueError(
            "y must not contain None, NaN, infinity or empty text; found one; "
            "mark unknown labels by -1"
        )
    labelled = ~are_minus_one(y)
    codes = np.full(n, -1, np.int32)
    try:
        classes, codes[labelled] = np.unique(y[labelled], return_inverse=True)
    except TypeError:
        types = sorted({type(value).__name__ for value in y[labelled].tolist()})
        raise ValueError(
            f"y must hold labels that can be sorted; got {', '.join(types)}; "
            "pass numbers, or text, with -1 where the label is unknown"
        ) from None
    return classes, codes
