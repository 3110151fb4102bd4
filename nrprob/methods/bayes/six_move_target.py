"""Target distributions over mixtures with their parameters, for the six-move sampler.

A state has k components, and the component z(i) of every sample x_i (a *row*). Component j has a
weight w_j, mean mu_j and scale s_j of a Gaussian density per feature, and probabilities pi_j of the
classes y. The length of a state in nats (Yin, 2007, (4.22), signs corrected) is

    L = A(k) - sum_i [log w_z(i) + log N(x_i; mu_z(i), s_z(i))] - sum_labelled log pi_z(i)(y_i),

and ``exp(-L)`` is the density of the state with respect to a prior of the parameters:

- "nml": the weights are c_j / G, where c is uniform on the compositions of G into k parts, and G is
  the number of rows. Means and log scales are uniform in a box. A(k) is the parametric complexity
  of the labels. Components may be empty.
- "conjugate": weights have a symmetric Dirichlet prior, and means and variances a
  normal-inverse-gamma prior. No component is empty. Integrating the parameters out gives the
  distribution over partitions of `nrprob.statistics.codes`.

In both, the probabilities of classes have a symmetric Dirichlet prior. Components are unlabelled:
their k! permutations are one state.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from nrprob.engines.sample.target import Target, make_target
from nrprob.methods.bayes.six_move_draws import Box
from nrprob.statistics.codes import (
    CountCode,
    code_term,
    count_tables,
    label_code,
    normal_inverse_gamma,
    normal_nml,
)
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}


class Conjugate(NamedTuple):
    """Hyperparameters of the conjugate prior.

    Means are N(0, s^2 / kappa), variances s^2 are inverse-gamma with ``shape`` and ``scale``, and
    weights are symmetric Dirichlet with ``concentration``.
    """

    kappa: jax.Array
    shape: jax.Array
    scale: jax.Array
    concentration: jax.Array


class Mixture(NamedTuple):
    """State of the six-move sampler: a mixture with K slots for components.

    Values in inactive slots are arbitrary.

    Attributes
    ----------
    labels : (n',) component of every row
    active : (K,) whether a slot holds a component
    parts : (K,) weights of the components, times ``grid`` of `MixtureTarget`
    means, log_scales : (K, d) means and log standard deviations of the features
    class_probs : (K, C) probabilities of the classes
    """

    labels: jax.Array
    active: jax.Array
    parts: jax.Array
    means: jax.Array
    log_scales: jax.Array
    class_probs: jax.Array


@node
class MixtureTarget:
    """Target distribution over mixtures with their parameters; see `make_mixture_target`.

    Attributes
    ----------
    partition : target of partitions of the same rows, with parameters integrated out or coded
    prior : `Box` for "nml", else `Conjugate`
    grid : sum of `Mixture.parts` over the components: G units for "nml", else 1
    class_concentration : Dirichlet concentration of the prior of the class probabilities
    classes : code of the classes of a component's rows, with their probabilities integrated out
    n_features, n_classes : number of features d, and number of classes C
    """

    partition: Target
    prior: Box | Conjugate
    grid: jax.Array
    class_concentration: jax.Array
    classes: CountCode
    n_features: int = field(metadata=_STATIC)
    n_classes: int = field(metadata=_STATIC)

    @property
    def x(self) -> jax.Array:
        """Statistics (n', 2 d + C + 1): features, their squares, indicators of classes, mass."""
        return self.partition.x

    @property
    def mass(self) -> jax.Array:
        """Masses (n',): 1 for rows, 0 for padding."""
        return self.x[:, -1]

    @property
    def n_slots(self) -> int:
        """Number of slots K for components."""
        return self.partition.n_slots

    @property
    def max_clusters(self) -> jax.Array:
        """Largest number of components that the target allows."""
        return self.partition.max_clusters

    @property
    def box(self) -> Box:
        """Bounds of the parameters; only defined for "nml"."""
        assert isinstance(self.prior, Box)
        return self.prior

    @property
    def sizes(self) -> jax.Array:
        """Description length A(k) of the number of components, for every k (K + 1,)."""
        # The code of a partition has the term n log n, which the weights c / n of "nml" include.
        return self.partition.sizes - xlogy(self.grid, self.grid)

    def cells(self, labels: jax.Array) -> jax.Array:
        """Sums of statistics (K, p) over the rows of components, from labels (n',)."""
        return self.partition.cells(labels)[0]

    def coefficients(self, mixture: Mixture) -> jax.Array:
        """Coefficients (K, p) of the log density of a row in every component; always finite.

        The log density log w_j + log N(x; mu_j, s_j) + log pi_j(y) of a row with features x and
        class y is linear in the p statistics of the row.
        """
        t = mixture.log_scales
        inverse = jnp.exp(-2 * t)
        constant = -(0.5 * mixture.means**2 * inverse + t + 0.5 * np.log(2 * np.pi)).sum(-1)
        constant = constant + _safe_log(mixture.parts / self.grid)
        parts = [mixture.means * inverse, -0.5 * inverse, _safe_log(mixture.class_probs)]
        return jnp.concatenate([*parts, constant[:, None]], -1)

    def length(self, mixture: Mixture, cells: jax.Array) -> jax.Array:
        """Length L of a mixture in nats; ``cells`` (K, p) are the statistics of its components."""
        log_p = (self.coefficients(mixture) * cells).sum(-1)
        k = mixture.active.sum()
        return self.sizes[k] - jnp.where(mixture.active, log_p, 0).sum()


def _safe_log(p: jax.Array) -> jax.Array:
    """Logarithm with a finite value at 0, so that its product with 0 is 0."""
    return jnp.log(jnp.maximum(p, jnp.finfo(p.dtype).tiny))


def make_mixture_target(
    X: np.ndarray,
    onehot: np.ndarray | None,
    *,
    max_clusters: int,
    energy: str = "nml",
    low: Any = 0.2,
    high: Any = None,
    mean_range: Any = None,
    kappa: float = 0.3,
    shape: float = 2.0,
    scale: float = 0.5,
    concentration: float = 1.0,
    class_concentration: float = 1.0,
    unordered: bool = True,
    partners: np.ndarray | None = None,
    covariance: str = "diag",
) -> MixtureTarget:
    """Make the target distribution of the six-move sampler.

    Parameters
    ----------
    X : array-like of shape (n_samples, d)
        Features, centred and in units of their standard deviations.
    onehot : array-like of shape (n_samples, C) or None
        Known classes, one-hot; a row of zeros if the class is unknown.
    max_clusters : int
        Number of slots K.
    energy : {"nml", "conjugate"}, default="nml"
        Distribution; see the module docstring.
    low, high : float or array-like of shape (d,)
        Bounds of the scales for "nml"; by default 0.2 and half of ``mean_range``.
    mean_range : float or array-like of shape (d,), optional
        Width of the interval of the means for "nml", about the midpoint of the range of the data;
        by default the width of this range. The interval must contain the data.
    kappa, shape, scale, concentration : float
        Hyperparameters for "conjugate", of `normal_inverse_gamma` and of `label_code`.
    class_concentration : float, default=1
        Concentration of the Dirichlet prior of the class probabilities; 1 is uniform.
    unordered : bool, default=True
        Whether the prior omits the factor 1 / k! for k components. With False, k components cost
        log k! nats more.
    partners : array-like of int of shape (n_samples, q), optional
        The q nearest rows of each row, for proposals of splits and merges.
    covariance : {"diag"}
        Covariance of a component; features are independent.

    Returns
    -------
    MixtureTarget

    Raises
    ------
    ValueError
        If ``X`` is not a finite table, ``onehot`` is not one-hot, the interval of the means does
        not contain the data, or another parameter is out of its range.
    """
    X = np.asarray(X, np.float64)
    if X.ndim != 2 or 0 in X.shape or not np.isfinite(X).all():
        raise ValueError(
            f"features have to be a finite table; got shape {X.shape}; impute missing values"
        )
    n, d = X.shape
    classes = np.zeros((n, 1)) if onehot is None or np.size(onehot) == 0 else np.asarray(onehot)
    classes = classes.astype(np.float64)
    bad = classes.ndim != 2 or classes.shape[0] != n or not np.isin(classes, (0, 1)).all()
    if bad or classes.sum(1).max() > 1:
        raise ValueError(
            "known classes have to be zeros and at most one 1 per row; got shape "
            f"{classes.shape} for {n} rows; give zeros alone where the class is unknown"
        )
    if not 1 <= max_clusters <= n:
        raise ValueError(
            f"the number of slots has to be from 1 to {n}, the number of rows; got max_clusters="
            f"{max_clusters}; choose a number in this range"
        )
    if covariance != "diag":
        raise ValueError(
            f"covariance has to be 'diag'; got {covariance!r}; use the collapsed kernel"
        )
    _check_positive(class_concentration=class_concentration)
    if energy == "nml":
        box = _make_box(X, low, high, mean_range)
        prior: Box | Conjugate = box
        feature_code: Any = normal_nml(
            n, np.exp(box.low), np.exp(box.high), np.asarray(box.right - box.left)
        )
        labels, sizes = label_code(n, max_clusters, unordered=unordered)
    elif energy == "conjugate":
        _check_positive(kappa=kappa, shape=shape, scale=scale, concentration=concentration)
        prior = Conjugate(*(np.float64(v) for v in (kappa, shape, scale, concentration)))
        feature_code = normal_inverse_gamma(n, d, kappa=kappa, shape=shape, scale=scale)
        labels, sizes = label_code(
            n, max_clusters, concentration=concentration, unordered=unordered
        )
    else:
        raise ValueError(f"energy has to be 'nml' or 'conjugate'; got {energy!r}; choose one")
    n_classes = classes.shape[1]
    tables = count_tables(n_classes, n, class_concentration)
    class_code = CountCode(*tables, 2 * d, 2 * d + n_classes, True)
    terms = tuple(code_term(c) for c in (feature_code, class_code, labels))
    wide = np.concatenate([X, X * X, classes], 1)
    partition = make_target(terms, sizes, wide, partners=partners)
    grid = np.float64(n if energy == "nml" else 1)
    concentrations = np.float64(class_concentration)
    target = MixtureTarget(partition, prior, grid, concentrations, class_code, d, n_classes)
    return jax.tree.map(jnp.asarray, target)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} has to be positive; got {value!r}; choose a positive number")


def _make_box(X: np.ndarray, low: Any, high: Any, mean_range: Any) -> Box:
    d = X.shape[1]
    least, most = X.min(0), X.max(0)
    width = most - least if mean_range is None else np.broadcast_to(mean_range, d).astype(float)
    if (width < (most - least) * (1 - 1e-9)).any() or not (width > 0).all():
        raise ValueError(
            "mean_range has to be positive and wide enough to hold the data; got mean_range="
            f"{width.tolist()} for data of range {(most - least).tolist()}; drop constant features "
            "or raise mean_range"
        )
    low = np.broadcast_to(low, d).astype(float)
    high = width / 2 if high is None else np.broadcast_to(high, d).astype(float)
    if not ((low > 0) & (low < high)).all():
        raise ValueError(
            f"scales have to lie in 0 < low < high; got low={low.tolist()}, high={high.tolist()}; "
            "choose a lower bound below half the range"
        )
    middle = (least + most) / 2
    return Box(np.log(low), np.log(high), middle - width / 2, middle + width / 2)


def log_joint(draw: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Log density of new rows with each class, under one draw.

    ``log p(x, y | draw) = log sum_j w_j N(x; mu_j, s_j) pi_j(y)``, for features x and class y. The
    sum is over the components j, with weights w_j, means mu_j, scales s_j and class probabilities
    pi_j. The average of p(x, y | draw) over draws, normalised over y, is the prediction (Yin, 2007,
    (4.9), including the weights ``p(x | draw)``).

    Parameters
    ----------
    draw : dict of arrays
        Weights (K,), means and scales (K, d), class_probs (K, C) and active (K,).
    x : array of shape (rows, d)
        Features of the new rows.

    Returns
    -------
    array of shape (rows, C)
        Log densities of the rows with each of the C classes.
    """
    scales = draw["scales"]
    away = (x[:, None] - draw["means"]) / scales
    normal = -(0.5 * away**2 + jnp.log(scales) + 0.5 * np.log(2 * np.pi)).sum(-1)
    log_p = jnp.where(draw["active"], normal + _safe_log(draw["weights"]), -jnp.inf)
    return jax.nn.logsumexp(log_p[..., None] + _safe_log(draw["class_probs"]), 1)
