"""Base class of estimators that transform the features and fit a base clusterer.

Sizes: n rows of m features, p features after the transformation, k clusters.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design
from nrprob.data.validation import check_random_state
from nrprob.estimator.base import Restarts, row_means
from nrprob.estimator.bases import check_base, clone_with_seed, count_name
from nrprob.methods.alternatives.inputs import AlternativeClusterer
from nrprob.settings import few_threads
from nrprob.statistics.features import ALIKE

BASES = ("em", "kmeans")


@dataclass
class TransformTask:
    """Validated and transformed rows of one fit.

    Attributes
    ----------
    X : (n, m) rows
    y : (n, p) transformed rows, scaled to a mean square of 1, in the dtype of ``X``
    unit : factor that converts ``y`` to the units of ``X``
    alike : whether all rows of ``X`` are equal
    random : generator of the random seeds of the base clusterer
    calls : empty; tasks of other estimators list the calls of compiled programs here
    """

    X: np.ndarray
    y: np.ndarray
    unit: float
    alike: bool
    random: np.random.RandomState
    calls: tuple = ()


class BaseFit(NamedTuple):
    """Result of one run of the base clusterer.

    Attributes
    ----------
    labels : (n,) clusters of the rows
    membership : (n, k) membership probabilities
    objective : minimised objective, for the transformed rows in the units of ``X``
    n_iter : number of iterations
    converged : whether the base clusterer converged
    spheres : centres (k, p), variances (k,) and log weights (k,) of a spherical mixture, for "em"
        and "kmeans"; None if the user passed a base clusterer
    model : fitted base clusterer if the user passed one; else None
    """

    labels: np.ndarray
    membership: np.ndarray
    objective: float
    n_iter: int
    converged: bool
    spheres: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    model: Any = None


class TransformClusterer(AlternativeClusterer):
    """Base class of estimators that transform the rows and cluster them by a base clusterer.

    A subclass has the parameters ``base`` and ``tol``, and implements

    ``_learn_transform(x, design, random)``
        Learn the transformation from rows (n, m) of mean 0 and total variance 1; return the
        transformed rows (n, p).
    ``_apply_transform(x, known)``
        Transform new rows (n, m), which are centred and scaled like the rows of the fit; ``known``
        is the argument of `predict`.
    """

    base: Any
    tol: float
    max_iter: int
    random_state: Any

    def _learn_transform(
        self, x: np.ndarray, design: Design, random: np.random.RandomState
    ) -> np.ndarray:
        raise NotImplementedError

    def _apply_transform(self, x: np.ndarray, known: Any) -> np.ndarray:
        raise NotImplementedError

    # Fitting

    def check_parameters(self):
        """Validate the parameters that do not depend on the data."""
        super().check_parameters()
        check_base(self.base, BASES, ("fit_predict",), "cluster rows")

    def prepare(self, X, y, known=None) -> TransformTask:
        """Validate the input and transform the rows; see `Clusterer.prepare`."""
        X, self._scaled, design = self._take_rows(X, y, known)
        random = check_random_state(self.random_state)
        moved = self._learn_transform(self._scaled.x, design, random)
        self._row_scale = math.sqrt(float(np.mean(moved**2))) or 1.0
        rows = (moved / self._row_scale).astype(X.dtype)
        alike, self._scaled = self._scaled.all_equal, self._scaled.without_rows()
        return TransformTask(X, rows, self._row_scale * self._scaled.scale, alike, random)

    def compute(self, task):
        """Run all restarts of the base clusterer; see `Clusterer.compute`."""
        custom = not isinstance(self.base, str)
        runs = []
        for _ in range(1 if custom else self.n_init):
            seed = int(task.random.randint(2**31 - 1))
            with warnings.catch_warnings(), few_threads(len(task.y)):
                # `_store_results` warns if the best restart did not converge.
                warnings.simplefilter("ignore", ConvergenceWarning)
                runs.append(self._run(task, seed))
        if self.verbose:
            best = min(run.objective for run in runs)
            print(f"restarts {len(runs)}/{len(runs)}: objective {best:.6g}")
        return runs

    def _run(self, task: TransformTask, seed: int) -> BaseFit:
        """Fit the base clusterer once, with the random seed ``seed``."""
        k, (n, p) = self.n_clusters, task.y.shape
        common = {"n_init": 1, "max_iter": self.max_iter, "tol": self.tol, "random_state": seed}
        if not isinstance(self.base, str):
            return self._run_custom_base(task, seed)
        if self.base == "kmeans" or task.alike:
            from sklearn.cluster import KMeans

            means = KMeans(k, **common).fit(task.y)
            spheres = means.cluster_centers_, np.full(k, 0.5), np.zeros(k)
            labels, n_iter = means.labels_, int(means.n_iter_)
            objective = float(means.inertia_) * task.unit**2
            done = n_iter < self.max_iter
            return BaseFit(labels, np.eye(k)[labels], objective, n_iter, done, spheres)
        from sklearn.mixture import GaussianMixture

        mixture = GaussianMixture(
            k, covariance_type="spherical", init_params="random_from_data", **common
        )
        wide = task.y.astype(np.float64)  # float32 variances of tight clusters can be negative
        labels = mixture.fit_predict(wide)
        with np.errstate(divide="ignore"):
            spheres = mixture.means_, mixture.covariances_, np.log(mixture.weights_)
        objective = n * (p * math.log(task.unit) - float(mixture.lower_bound_))
        membership, n_iter = mixture.predict_proba(wide), int(mixture.n_iter_)
        return BaseFit(labels, membership, objective, n_iter, bool(mixture.converged_), spheres)

    def _run_custom_base(self, task: TransformTask, seed: int) -> BaseFit:
        """Fit a base clusterer that the user passed."""
        k, model, name = self.n_clusters, clone_with_seed(self.base, seed), count_name(self.base)
        if name is not None:
            model.set_params(**{name: k})
        labels = self._check_base_labels(model.fit_predict(task.y), len(task.y), model)
        membership = np.eye(k)[labels]
        wide = task.y.astype(np.float64)
        squares = float(((wide - row_means(wide, membership)[labels]) ** 2).sum())
        return BaseFit(labels, membership, squares * task.unit**2, 1, True, None, model)

    def _check_base_labels(self, labels: Any, n: int, model: Any) -> np.ndarray:
        """Return the labels (n,) of a base clusterer; raise ValueError for invalid labels."""
        labels, k = np.asarray(labels), self.n_clusters
        valid = labels.shape == (n,) and labels.dtype.kind in "iu"
        if not valid or labels.min() < 0 or labels.max() >= k:
            result = f"labels {np.unique(labels)[:5].tolist()}" if valid else "no integers"
            raise ValueError(
                f"base must assign every row to a cluster from 0 to {k - 1}; got {result} from "
                f"{type(model).__name__}; raise n_clusters, or use another base"
            )
        return labels

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        objective = np.array([run.objective for run in result])
        best = result[int(objective.argmin())]
        self._spheres, self._model = best.spheres, best.model
        self._store_results(
            Restarts(
                np.stack([run.labels for run in result]),
                objective,
                np.array([run.converged for run in result]),
            ),
            membership=best.membership / best.membership.sum(1, keepdims=True),
            trace=np.array([best.objective]),
            n_iter=best.n_iter,
            nothing_left=ALIKE if task.alike else "",
        )
        self.cluster_centers_ = row_means(task.X, self.membership_)
        return self

    # New rows

    def _transform_new_rows(self, X, known) -> np.ndarray:
        """Transform new rows as `fit` transformed the training rows."""
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        return (self._apply_transform(self._scaled(X), known) / self._row_scale).astype(
            self._scaled.dtype
        )

    def _log_membership(self, X, known) -> np.ndarray:
        y = self._transform_new_rows(X, known)
        if self._spheres is None:
            if not hasattr(self._model, "predict"):
                raise ValueError(
                    "new rows cannot be assigned by a base without predict; got "
                    f"{type(self._model).__name__}; use another base, or fit_predict"
                )
            labels = self._check_base_labels(self._model.predict(y), len(y), self._model)
            return np.where(labels[:, None] == np.arange(self.n_clusters), 0.0, -np.inf)
        centres, variances, log_weights = self._spheres
        square = cdist(y.astype(np.float64), centres.astype(np.float64), "sqeuclidean")
        log_p = log_weights - 0.5 * (y.shape[1] * np.log(variances) + square / variances)
        return np.where(self._holds_rows, log_p, -np.inf)

    def predict_proba(self, X, *, known=None):
        """Posterior probabilities of clusters for new rows; one-hot unless the base is "em".

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        if not (isinstance(self.base, str) and self.base == "em"):
            return super().predict_proba(X, known=known)
        X, known = self._split_known(X, known)
        return softmax(self._log_membership(X, known), axis=1)
