"""The base of every estimator: validation, restarts, choice of the best, fitted attributes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import sparse
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted, validate_data

from nrprob.engines import merge, sharding, solve
from nrprob.exceptions import DegenerateClusterWarning
from nrprob.known import Groups, KnownEncoder, is_missing, plain
from nrprob.settings import standard
from nrprob.statistics.costs import FEATURES
from nrprob.statistics.features import fit_features, largest
from nrprob.statistics.rows import Layout, Rows, arrange, bucket, make_rows
from nrprob.validation import (
    ITERATIONS,
    LARGEST,
    MOST,
    check_choice,
    check_number,
    check_random_state,
    check_rows,
    check_same_order,
)

_MEMORY = 1.5e9  # bytes that the restarts of one compiled run may take on a device
_SOLVERS = ("anneal", "sequential", "batched", "agglomerative")


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
        # A sampler that is interrupted keeps what it has drawn.
        if isinstance(error, Exception) or "labels_" not in state:
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


@dataclass
class Task:
    """Checked and laid out input of one fit, and the calls of solvers that remain to be made."""

    x: Any
    rows: Rows
    hyper: solve.Hyper
    fixed: np.ndarray | None
    layout: Layout
    groups: Groups
    build: solve.Build
    calls: list[solve.Call] = field(default_factory=list)


class TermEstimator(ClusterMixin, BaseEstimator):
    """Estimator whose objective is a sum of terms over cells.

    A method's class states its parameters and gives ``_problem(features, groups, known)``: the
    hashable builder of its terms and the numbers that the builder reads from ``hyper``.
    """

    _takes_known = True
    # Whether the parameters ask for an algorithm as published; `_problem` says so.
    _faithful = False
    _solvers: tuple[str, ...] = _SOLVERS
    # Results that may be infinite, or NaN, as the docstring says.
    _rarely_finite: tuple[str, ...] = ("beta_", "critical_beta_")
    # Attributes that receive the weights of the terms, in order; "" for a weight of no interest.
    _weight_names: tuple[str, ...] = ()

    def __sklearn_tags__(self):
        """Return scikit-learn's description of what the estimator accepts."""
        tags = super().__sklearn_tags__()
        # Sequential reassignment takes sparse counts, but not every sparse matrix.
        tags.input_tags.sparse = self.solver in ("anneal", "agglomerative")
        # scikit-learn's checks take whoever has `predict_proba` for a classifier of two classes, or
        # of as many as its data have.
        tags.classifier_tags = ClassifierTags(multi_class=self.n_clusters > 2)
        return tags

    def _fit_features(self, X: Any) -> Any:
        """What turns raw rows into statistics."""
        return fit_features(X, self.features, self.binarize)

    def _mass(self, fixed: np.ndarray | None) -> np.ndarray | None:
        """Weights of the rows; None where all are equal."""
        return None

    def _problem(self, features: str, groups: Groups, known: Any) -> tuple[solve.Build, dict]:
        raise NotImplementedError

    # Parameters

    _check_choice = staticmethod(check_choice)
    _check_number = staticmethod(check_number)

    def _check_counts(self) -> None:
        self._check_number("n_clusters", self.n_clusters, low=1, high=MOST, integer=True)
        for name in ("n_init", "max_iter"):
            self._check_number(name, getattr(self, name), low=1, high=ITERATIONS, integer=True)
        self._check_verbose()

    def _check_verbose(self) -> None:
        if not isinstance(self.verbose, bool | np.bool_):
            self._check_number("verbose", self.verbose, low=0, high=1000, integer=True)

    def _check_tol(self) -> None:
        self._check_number("tol", self.tol, low=0, high=1)

    def _check_common(self) -> None:
        self._check_counts()
        self._check_tol()
        self._check_number("noise", self.noise, low=0, high=10)
        self._check_number("cooling", self.cooling, low=1.01, high=1e6)
        if isinstance(self.quench, str):
            self._check_choice("quench", self.quench, ("auto",), "or a number")
        else:
            self._check_number("quench", self.quench, low=1, high=1e5)
        self._check_choice("solver", self.solver, self._solvers)
        self._check_choice("features", self.features, ("auto", *FEATURES))
        if getattr(self, "beta", None) is not None:
            self._check_number("beta", self.beta, low=1e-9, high=1e12, infinite=True)
        if getattr(self, "binarize", None) is not None:
            self._check_number("binarize", self.binarize, low=-LARGEST, high=LARGEST)

    def _check_size(self, n_samples: int) -> None:
        if n_samples < self.n_clusters:
            raise ValueError(
                f"n_samples={n_samples} should be >= n_clusters={self.n_clusters}; "
                "lower n_clusters or pass more rows"
            )

    def _check_one_device(self) -> None:
        if sharding.asked_for() is not None:
            raise ValueError(
                f"{type(self).__name__} cannot shard rows over devices; got a fit within "
                "nrprob.sharded; fit outside of it"
            )

    def _quench(self) -> float:
        if isinstance(self.quench, str):
            return 1.0 if self._faithful else 100.0
        return float(self.quench)

    # Fitting

    def fit(self, X, y=None, *, known=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            Float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Wanted labels, -1 where unknown. Cluster i is the i-th of the sorted labels; further
            clusters are free.
        known : array-like, optional
            Structure to avoid: labels of shape (n_samples,), several labelings as a 2-D array of
            integers or strings, `nrprob.known.Memberships`, or (`CCIB`) continuous structure as a
            2-D array of floats.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        check_same_order(X, y=y, known=known)
        with fitting(self), standard():
            return self._fit(X, y, known)

    def _fit(self, X, y, known):
        task = self._prepare(X, y, known)
        if task.calls:
            found = []
            for done, call in enumerate(task.calls, 1):
                found.append(call())
                if self.verbose:
                    best = min(f.objective.min() for f in found)
                    restarts = done * self.n_init // len(task.calls)
                    print(f"restarts {restarts}/{self.n_init}: objective {best:.6g} nats")
        else:
            found = [self._merge(task)]
        return self._finish(task, found)

    def _prepare(self, X, y, known) -> Task:
        """Check the input and lay it out: all of `fit` that comes before something is compiled."""
        self._check_common()
        mesh = self._mesh(X)
        X = self._validate(X, reset=True)
        n_samples = X.shape[0]
        self._check_size(n_samples)
        fixed = self._wanted(y, n_samples)
        if known is not None and not self._takes_known:
            raise ValueError(
                f"{type(self).__name__} takes no known structure; got known=...; "
                "use CCIB or IBSI, or leave it out"
            )
        self._encoder = KnownEncoder()
        groups = self._encoder.fit(known, n_samples)
        self._check_groups(groups, known)
        self._features = self._fit_features(X)
        self._sparse_counts = sparse.issparse(X) and self._features.features == "multinomial"
        x = self._features(X)
        self._faithful = False
        build, numbers_ = self._problem(self._features.features, groups, known)
        self._check_solver(x, groups, build)
        layout = arrange(groups.codes, groups.n_blocked, 1 if mesh is None else mesh.size)
        mass = self._mass(fixed)
        rows = make_rows(x, layout, groups.n_groups, share=groups.share, mass=mass)
        dtype = np.dtype(x.dtype)
        beta = getattr(self, "beta", None)
        hyper = {
            "n_clusters": np.asarray(self.n_clusters, np.int32),
            "max_iter": np.asarray(self.max_iter, np.int32),
            "beta": np.asarray(np.inf if beta is None else beta, dtype),
            "quench": np.asarray(self._quench(), dtype),
            **{n: np.asarray(getattr(self, n), dtype) for n in ("cooling", "noise", "tol")},
            **{n: np.asarray(value, dtype) for n, value in numbers_.items()},
        }
        if mesh is not None:
            sharding.check_same((rows, hyper, fixed), mesh)
            rows = sharding.shard_rows(rows, mesh)
        task = Task(x, rows, hyper, fixed, layout, groups, build)
        if self.solver != "agglomerative":
            task.calls = self._restarts(task)
        return task

    def _restarts(self, task: Task) -> list[solve.Call]:
        """Calls that make the restarts, all alike but for the seed."""
        rows, layout = task.rows, task.layout
        n_clusters = self.n_clusters
        # Random starts depend on the number of clusters, which must not depend on the devices.
        if rows.mass.size - layout.n_spare * layout.n_rows <= 16384:
            n_clusters = max(bucket(n_clusters, 64), 2)
        each = rows.mass.size // layout.n_shards * n_clusters * 5 + rows.n_groups * n_clusters * (
            rows.x.n_statistics * 8
        )
        solver, static = self._solver(task)
        static |= {"build": task.build, "n_clusters": n_clusters}
        return self._calls(task, solver, static, each, [task.hyper])

    def _calls(
        self,
        task: Task,
        solver: Callable[..., Any],
        static: dict[str, Any],
        each: int,
        hypers: list[solve.Hyper],
    ) -> list[solve.Call]:
        """Calls of ``solver`` with every one of ``hypers``, each from the same starts.

        ``each`` is the number of array elements that one restart takes on a device, which decides
        into how many calls the restarts are divided.
        """
        rows, layout = task.rows, task.layout
        mesh = rows.mesh if isinstance(rows, sharding.ShardedRows) else None
        random = check_random_state(self.random_state)
        each *= rows.mass.dtype.itemsize
        fits = int(max(_MEMORY // each, 1))
        size = max(d for d in range(1, self.n_init + 1) if self.n_init % d == 0 and d <= fits)
        fixed = None if task.fixed is None else layout.spread(task.fixed, -1)
        seeds = [random.randint(2**31 - 1) for _ in range(self.n_init // size)]
        if mesh is not None:
            fixed = sharding.split(fixed, mesh)
            seeds = [sharding.agree(seed, mesh) for seed in seeds]
        data = sum(a.nbytes for a in jax.tree.leaves(rows)) // layout.n_shards
        return [
            solve.Call(
                solver,
                (rows, hyper, np.asarray(seed, np.uint32), fixed),
                tuple({**static, "n_init": size}.items()),
                data + each * size,
                self._factorises,
            )
            for hyper in hypers
            for seed in seeds
        ]

    @property
    def _factorises(self) -> bool:
        """Whether the compiled program of a fit calls LAPACK; see `nrprob.engines.solve.Call`."""
        return False

    def _solver(self, task: Task) -> tuple[Callable[..., solve.Solution], dict[str, Any]]:
        """Compiled solver of the restarts, and its static arguments but for sizes and terms."""
        prior = getattr(self, "prior", True)
        soft = bool(np.isfinite(task.hyper["beta"]))
        if self.solver == "anneal":
            return solve.solve_anneal, {
                "rule": "information" if prior else "entropy",
                "damped": bool(getattr(self, "damped", False)),
                "soft": soft,
            }
        return solve.solve_reassign, {"solver": self.solver, "compressed": bool(prior and soft)}

    def _finish(self, task: Task, found: list[solve.Solution]):
        """Set the fitted attributes."""
        self._store(found, task.layout, task.groups, task.x.shape[1])
        return self

    def _merge(self, task: Task) -> solve.Solution:
        x, rows, hyper, fixed = task.x, task.rows, task.hyper, task.fixed
        layout, groups, build = task.layout, task.groups, task.build
        n, m = x.shape
        cluster = np.arange(n)
        classes = np.full(n, -1)
        if fixed is not None:
            # Labelled rows of one class start as one cluster, under the name of the first of them.
            for c in range(fixed.max() + 1):
                members = np.flatnonzero(fixed == c)
                cluster[members] = members[0]
                classes[members[0]] = c
        used, cluster = np.unique(cluster, return_inverse=True)
        classes = classes[used]
        size = max(bucket(used.size, 8192), 2)
        p = rows.x.n_statistics
        cells = np.zeros((groups.n_groups, 1, size, p), x.dtype)
        dense = np.asarray(x.toarray() if sparse.issparse(x) else x)
        np.add.at(cells[:, 0, :, :m], (groups.codes, cluster), dense)
        np.add.at(cells[:, 0, :, -1], (groups.codes, cluster), 1)
        alive = np.arange(size) < used.size
        classes = np.concatenate([classes, np.full(size - used.size, -1)])
        compressed = bool(np.isfinite(hyper["beta"]) and getattr(self, "prior", True))
        merged = solve.solve_merge(
            rows, hyper, cells, alive, classes, build=build, compressed=compressed
        )
        pairs, costs = np.asarray(merged.pairs), np.asarray(merged.costs, float)
        allowed = np.isfinite(costs)
        pairs, costs = pairs[allowed], costs[allowed]
        sizes = np.bincount(cluster, minlength=used.size)
        self.linkage_ = merge.linkage(pairs, costs, sizes)
        self.merge_costs_ = costs
        labels = merge.cut(pairs, used.size, self.n_clusters)
        if fixed is not None:
            labels = _class_order(labels, classes[: used.size], fixed.max() + 1)
        labels = layout.spread(labels[cluster].astype(np.int32))
        found = solve.evaluate(
            rows, hyper, labels, None if fixed is None else layout.spread(fixed, -1),
            build=build, n_clusters=max(self.n_clusters, 2), compressed=compressed,
        )  # fmt: skip
        found = jax.device_get(found)
        steps = max(used.size - self.n_clusters, 0)
        lost = np.concatenate([[0.0], np.cumsum(costs[:steps])])
        trace = found.objective[0] - lost[-1] + lost
        return found._replace(n_iter=np.asarray(max(steps, 1)), trace=trace)

    # Input

    def _mesh(self, X):
        """Devices to shard the rows over: those asked for, or those that share ``X``; or None."""
        mesh = sharding.asked_for()
        if self.solver == "anneal":
            return sharding.mesh_of(X) if mesh is None else mesh
        if mesh is not None:
            raise ValueError(
                f"solver={self.solver!r} cannot shard rows over devices; got {mesh.size} device(s) "
                "from nrprob.sharded; use solver='anneal', or fit outside of it"
            )
        return None

    def _validate(self, X, *, reset: bool):
        if isinstance(X, jax.Array) and X.ndim == 2 and X.size:
            if not (X.is_fully_addressable or X.is_fully_replicated):
                raise ValueError(
                    "X must lie in this process; got an array of which other processes hold a "
                    "part; pass the same NumPy array in every process"
                )
            whole = X.is_fully_replicated and sharding.asked_for() is None
            if whole and _on_accelerator(X):
                return self._validate_device(X, reset=reset)
            X = np.asarray(X)  # on a CPU, the same memory
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
        most = largest(X)
        if reset:
            self._reach = (most or 1.0) * (1e15 if X.dtype == np.float32 else LARGEST)
        elif most > self._reach:
            raise ValueError(
                f"new rows must lie within {self._reach:.3g}, or squares leave the type of the "
                f"fit; got a value of size {most:.3g}; pass them in the units of the fit"
            )

    def _validate_device(self, X, *, reset: bool):
        """Check a JAX array where it lies."""
        if X.dtype != np.float32:
            X = X.astype(np.float64)
        if not bool(jax.numpy.isfinite(X).all()):
            raise ValueError("Input X contains NaN or infinity; remove or impute those values")
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        self._check_reach(X, reset=reset)
        return X

    def _wanted(self, y, n: int) -> np.ndarray | None:
        """Cluster of every labelled row, else -1; None where there is no label at all."""
        if y is None:
            return None
        classes, fixed = read_labels(y, n)
        if not classes.size:
            return None
        if classes.size > self.n_clusters and (fixed >= 0).all():
            # A complete labeling with more classes than clusters cannot be wanted labels: it is the
            # y that pipelines and searches hand to every estimator and that clusterers ignore.
            warnings.warn(
                f"y labels every row and has {classes.size} classes, more than "
                f"n_clusters={self.n_clusters}; it is ignored; mark unknown labels by -1 to use it",
                UserWarning,
                stacklevel=5,
            )
            return None
        if classes.size > self.n_clusters:
            raise ValueError(
                f"y has {classes.size} classes, more than n_clusters={self.n_clusters}; "
                "raise n_clusters, or mark unknown labels by -1"
            )
        self.classes_ = classes
        return fixed

    def _check_groups(self, groups: Groups, known: Any) -> None:
        if known is None or groups.share is not None:
            return
        sizes = np.bincount(groups.codes)
        if sizes.size == 1 and groups.codes.size > 1:
            warnings.warn(
                "known has one group only, so there is nothing to avoid; got a constant labeling; "
                "leave known out",
                DegenerateClusterWarning,
                stacklevel=5,
            )
        elif sizes.size == groups.codes.size and groups.codes.size > 1:
            raise ValueError(
                "every row has its own known group, so no clustering says anything more; "
                f"got {sizes.size} groups for {groups.codes.size} rows; pass fewer groups"
            )
        elif (sizes == 1).any():
            warnings.warn(
                f"{(sizes == 1).sum()} known group(s) have a single member, which the conditional "
                "term cannot place; got group sizes down to 1; merge small groups if that matters",
                DegenerateClusterWarning,
                stacklevel=5,
            )

    def _warn_uncoordinated(self) -> None:
        warnings.warn(
            "coordination_weight=0 leaves clusters without a common meaning across known groups; "
            "compare labels within groups only, or raise it",
            UserWarning,
            stacklevel=6,
        )

    def _check_solver(self, x: Any, groups: Groups, build: Any) -> None:
        if groups.share is not None and self.solver != "anneal":
            raise ValueError(
                f"solver={self.solver!r} needs known labels; got soft Memberships; "
                "use solver='anneal'"
            )
        if self.solver == "agglomerative":
            size = groups.n_groups * x.shape[0] * x.shape[1]
            if x.shape[0] > 20000 or size > 2e8:
                raise ValueError(
                    f"solver='agglomerative' keeps statistics of every row in every group; got "
                    f"{x.shape[0]} rows, {x.shape[1]} columns and {groups.n_groups} groups; "
                    "use solver='anneal' or 'sequential'"
                )
        if not sparse.issparse(x):
            return
        separable = self._features.features == "multinomial" and (
            getattr(build, "coordination", "marginal") == "marginal"
        )
        if self.solver == "batched" or (self.solver == "sequential" and not separable):
            raise ValueError(
                f"solver={self.solver!r} cannot take sparse X with this objective; got "
                f"features={self._features.features!r}; use solver='anneal'"
                + ("" if self.solver == "batched" else ", or coordination='marginal' with counts")
                + ", or pass a dense array"
            )

    # Results

    def _store(self, chunks, layout: Layout, groups: Groups, m: int) -> None:
        k = self.n_clusters
        best = min(chunks, key=lambda c: c.objective.min())
        at = int(best.objective.argmin())
        self._labels = np.concatenate([layout.collect(c.labels).T for c in chunks])
        self._objectives = np.concatenate([c.objective for c in chunks])
        self._converged = np.concatenate([c.converged for c in chunks])
        self.labels_ = layout.collect(best.labels)[:, at].astype(np.int64)
        w = layout.collect(best.w)[:, :k].astype(np.float64)
        self.membership_ = w / w.sum(1, keepdims=True)
        self.objective_ = float(best.objective[at])
        trace = best.trace.astype(float)
        self.objective_trace_ = trace[~np.isnan(trace)]
        self.n_iter_ = int(best.n_iter)
        self.converged_ = bool(best.converged[at])
        self.beta_ = float(best.beta)
        self.critical_beta_ = float(best.critical_beta)
        for name, value in zip(self._weight_names, best.weights, strict=False):
            if name:
                setattr(self, name, float(value))
        self._coef = best.slope[:, :k, :m]
        self._intercept = best.slope[:, :k, -1]
        self._log_prior = best.log_prior[:k].astype(np.float64)
        present = np.unique(self.labels_)
        self.n_clusters_ = int(present.size)
        if not np.isfinite(self.critical_beta_) and k > 1:
            what = "once the known structure is accounted for" if groups.n_groups > 1 else "in X"
            message = f"there is no structure left {what}; all rows are alike"
            self._degenerate(message)
        elif self.n_clusters_ < k:
            self._degenerate(f"found {self.n_clusters_} clusters, fewer than n_clusters={k}")
        if not self.converged_:
            named = "solver" in self.get_params(deep=False)
            which = f" of solver={self.solver!r}" if named else ""
            warnings.warn(
                f"the best restart{which} did not converge; "
                f"got max_iter={self.max_iter}; raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _degenerate(self, message: str) -> None:
        warnings.warn(message, DegenerateClusterWarning, stacklevel=6)

    @property
    def _holds_rows(self) -> np.ndarray:
        """Which clusters (n_clusters,) hold rows of the fit."""
        return np.bincount(self.labels_, minlength=self.n_clusters) > 0

    @property
    def restarts_(self):
        """All restarts: an `xarray.Dataset` over restart and sample."""
        check_is_fitted(self)
        import xarray

        return xarray.Dataset(
            {
                "labels": (("restart", "sample"), self._labels),
                "objective": (("restart",), self._objectives),
                "converged": (("restart",), self._converged),
            }
        )

    # New rows

    def _rows(self, X, known) -> tuple[Any, Groups]:
        """Statistics of new rows, and their known groups."""
        check_is_fitted(self)
        with standard():
            X = self._validate(X, reset=False)
            x = self._features(X)
        if isinstance(x, jax.Array):
            x = np.asarray(x)
        return x, self._encoder.transform(known, x.shape[0])

    def _log_membership(self, X, known) -> np.ndarray:
        x, groups = self._rows(X, known)
        # Without what is common to the clusters, lest a large beta multiply its rounding.
        coef = self._coef - self._coef.mean(1, keepdims=True)
        intercept = self._intercept - self._intercept.mean(1, keepdims=True)
        cost = _linear(x, groups, coef, intercept)
        # An infinite inverse temperature leaves an arg min; any large finite one has the same.
        if np.isinf(self.beta_):
            # What is left in the limit: the largest of the clusters that cost least.
            cost = np.where(np.isfinite(self._log_prior), cost, np.inf)
            return np.where(cost == cost.min(1, keepdims=True), self._log_prior, -np.inf)
        return self._log_prior - self.beta_ * cost

    def _row_scores(self, X, known) -> np.ndarray:
        """Minus what every new row (n,) adds to the objective, in nats; see `ScoreMixin`."""
        x, groups = self._rows(X, known)
        cost = _linear(x, groups, self._coef, self._intercept)
        cost += self._common_cost(x, groups)[:, None]
        return self._mix(cost)

    def _common_cost(self, x, groups: Groups) -> np.ndarray:
        """What a row (n,) adds in any cluster, beside what is linear in its statistics."""
        gaussian = self._features.features == "gaussian"
        return half_squares(x) if gaussian else np.zeros(x.shape[0])

    def _mix(self, cost: np.ndarray) -> np.ndarray:
        """Scores of rows that cost (n, k): of the best cluster, or at the objective's beta."""
        beta, prior = getattr(self, "beta", None), getattr(self, "prior", True)
        if beta is None or np.isinf(self.beta_):
            if beta is not None and prior:  # hard labels that pay for their entropy
                cost = cost + (1 + np.log(self.labels_.size)) / beta
            return np.where(np.isfinite(self._log_prior), -cost, -np.inf).max(1)
        log_prior = self._log_prior
        if prior:
            log_prior = log_prior - logsumexp(log_prior)
        return logsumexp(log_prior - beta * cost, axis=1) / beta

    def predict(self, X, *, known=None):
        """Cluster of new rows: the one whose score is best under the fitted statistics.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_same_order(X, known=known)
        return self._log_membership(X, known).argmax(1)

    def predict_proba(self, X, *, known=None):
        """p(cluster given row) of new rows at the final inverse temperature.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        check_same_order(X, known=known)
        log_r = self._log_membership(X, known)
        if np.isinf(self.beta_):
            return np.eye(self.n_clusters)[log_r.argmax(1)]
        return softmax(log_r, axis=1)


class ScoreMixin:
    """`score`, for estimators whose fit says what new rows cost: they give ``_row_scores``."""

    def score(self, X, y=None, *, known=None):
        r"""Minus what new rows add to the objective under the fitted statistics, per row.

        With the cost d(x, c) of a row in a cluster, which is linear in the row's mass,

        .. math:: -\frac{1}{n} \sum_i \min_c d(x_i, c) \qquad \text{or} \qquad
            \frac{1}{n} \sum_i \frac{1}{\beta} \log \sum_c p(c) e^{-\beta d(x_i, c)}

        for hard labels or at a finite ``beta`` (without p(c) for ``prior=False``). Of the rows of
        the fit it is ``-objective_ / n``, up to the tolerance of the fit. It compares fits whose
        objective and whose units are the same: not different weights in the objective. Hard labels
        mostly gain from more clusters on new rows as well, as in k-means.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        y : ignored
        known : as in `predict`

        Returns
        -------
        float
            In nats per row; higher is better.
        """
        check_same_order(X, known=known)
        return float(self._row_scores(X, known).mean())  # type: ignore[attr-defined]


def half_squares(x: Any) -> np.ndarray:
    """Half the sum of the squares (n,) of rows."""
    square = x.multiply(x) if sparse.issparse(x) else x * x
    return 0.5 * np.asarray(square.sum(1)).reshape(-1)


def _linear(x: Any, groups: Groups, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """Return ``x @ coef + intercept`` (n, k), with those (groups, k, m) of every row's group."""
    cost = np.zeros((x.shape[0], intercept.shape[1]))
    for g in range(groups.n_groups):
        if groups.share is None:
            member = groups.codes == g
            if member.any():
                cost[member] = x[member] @ coef[g].T + intercept[g]
        else:
            cost += groups.share[:, g, None] * (x @ coef[g].T + intercept[g])
    return cost


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
    if is_missing(y) or (y.dtype.kind in "fc" and not np.isfinite(y).all()):
        raise ValueError(
            "y must not contain None, NaN or infinity; found one; mark unknown labels by -1"
        )
    labelled = np.asarray(y != -1, bool)
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


def _on_accelerator(x: jax.Array) -> bool:
    return any(device.platform != "cpu" for device in x.devices())


def _class_order(labels: np.ndarray, classes: np.ndarray, n_classes: int) -> np.ndarray:
    """Rename clusters so that those of class c are called c, and the free ones come after."""
    name = np.full(labels.max() + 1, -1)
    for c in range(n_classes):
        name[labels[np.flatnonzero(classes == c)[0]]] = c
    free = np.flatnonzero(name < 0)
    name[free] = n_classes + np.arange(free.size)
    return name[labels]
