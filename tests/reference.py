"""The bottleneck family in plain NumPy: an independent reference for tests and benchmarks.

This module does not import the package. The formulas are written out by hand from Gondek (2005),
"Non-redundant clustering", chapters 3 and 6, with its errata corrected, and the hard objective is
evaluated from its definition, cell by cell.

Conventions
-----------
* ``P`` (n, m): rows that sum to one (``"multinomial"``), values in [0, 1] (``"bernoulli"``) or
  reals scaled to unit variance (``"gaussian"``, spherical).
* ``weights`` (n,): mass of each row, 1 by default, so that every objective is in nats of the whole
  data set.  ``W = weights[:, None] * R`` are the joint masses of rows and clusters.
* Everything is a cost, lower is better.  The cost of one cell of mass w and mean q is ``w H(q)``
  (multinomial), ``w`` times the sum of the binary entropies (Bernoulli), or half its within sum of
  squares (Gaussian).  At inverse temperature beta the annealed quantity is::

      sum_(c,z) cost(c, z) + weight * coordination + I(C;X) / beta

* ``gamma`` replaces the conditional cost by the marginal one plus ``gamma * I(C;Z)``, the
  bottleneck with side information.
* float32 input is processed in float32, except by the greedy algorithms, which add and subtract
  rows and always accumulate in float64.
"""

from typing import NamedTuple

import numpy as np

FAMILIES = ("multinomial", "bernoulli", "gaussian")
EPS = 1e-12  # pseudo-mass of the group's mean in every cell


class Annealed(NamedTuple):
    """Result of `anneal`: hard labels and objective, then (beta, free energy) of every level."""

    labels: np.ndarray
    objective: float
    trace: list
    memberships: np.ndarray
    hard: bool
    n_iter: int


class Greedy(NamedTuple):
    """Result of `sequential` and `agglomerative`; the trace is per sweep, or (i, j, cost)."""

    labels: np.ndarray
    objective: float
    trace: list
    converged: bool


# --------------------------------------------------------------------------------------------------
# Small pieces
# --------------------------------------------------------------------------------------------------


def _float(P):
    P = np.asarray(P)
    return P if P.dtype in (np.float32, np.float64) else P.astype(np.float64)


def _weights(weights, P):
    if weights is None:
        return np.ones(len(P), P.dtype)
    return np.asarray(weights, P.dtype)


def _groups(z, n):
    """Consecutive integer codes of a known clustering, zeros without one."""
    if z is None:
        return np.zeros(n, int)
    return np.unique(np.asarray(z), return_inverse=True)[1].reshape(-1)


def _xlogx(a):
    return a * np.log(np.where(a > 0, a, 1))


def _clip(q, family):
    """Keep parameters where the logarithm is finite, in either precision."""
    single = q.dtype == np.float32
    if family == "multinomial":
        return np.maximum(q, q.dtype.type(1e-30 if single else 1e-300))
    if family == "bernoulli":
        d = 1e-6 if single else 1e-10
        return np.clip(q, q.dtype.type(d), q.dtype.type(1 - d))
    return q


def _smoothed_mean(T, w, base):
    """Mean of cells with statistics T and mass w, empty ones at `base`."""
    return (T + EPS * base) / (w + EPS)[..., None]


def _linear(q, family):
    """Cost of a row y at parameters q as ``y @ coef + offset``.

    The Gaussian's ``|y|^2 / 2`` is omitted, since it is the same for every cluster.
    """
    q = _clip(q, family)
    if family == "multinomial":
        return -np.log(q), np.zeros(q.shape[:-1], q.dtype)
    if family == "bernoulli":
        rest = np.log1p(-q)
        return rest - np.log(q), -rest.sum(-1)
    return -q, 0.5 * (q * q).sum(-1)


def _cost(P, q, family):
    """Cost of every row at every parameter vector of q, shape (n, K)."""
    coef, offset = _linear(q, family)
    cost = P @ coef.T + offset
    if family == "gaussian":
        cost = cost + 0.5 * (P * P).sum(1, keepdims=True)
    return cost


def residuals(P, z, weights=None, scale="pooled"):
    """Deviations from the mean of the known group, scaled.

    Parameters
    ----------
    scale : {"pooled", "total", "common"}
        Divide each column by its pooled within-group standard deviation, by its standard deviation
        over all rows, or all columns by the same number (the root mean square of the deviations).
        With the last two, columns that the known clustering explains stay small.

    Columns that are constant within every group become zero.
    """
    P = _float(P)
    weights = _weights(weights, P)
    z = _groups(z, len(P))
    r = np.empty_like(P)
    for g in range(z.max() + 1):
        rows = z == g
        r[rows] = P[rows] - np.average(P[rows], axis=0, weights=weights[rows]).astype(P.dtype)
    within = (weights[:, None] * r * r).sum(0) / weights.sum()
    alive = np.sqrt(within) > 100 * np.finfo(P.dtype).eps * np.abs(P).max(0)
    if scale == "pooled":
        variance = within
    elif scale == "total":
        mean = weights @ P / weights.sum()
        variance = (weights[:, None] * (P - mean) ** 2).sum(0) / weights.sum()
    else:
        variance = np.full_like(within, within.mean())
    return np.where(alive, r, 0) / np.sqrt(np.where(alive, variance, 1))


# --------------------------------------------------------------------------------------------------
# Scores: derivatives of the cost with respect to the joint masses
# --------------------------------------------------------------------------------------------------


def score_marginal(P, W, family="multinomial"):
    """Derivative of sum_c cost(c) in W: ``-sum_y p(y|x) log q(y|c)`` for multinomial rows.

    Gondek (2005), the coordination factor of eq. (6.1.26).
    """
    P = _float(P)
    base = W.sum(1) @ P / W.sum()
    return _cost(P, _smoothed_mean(W.T @ P, W.sum(0), base), family)


def score_conditional(P, W, z, family="multinomial"):
    """Derivative of sum_(c,z) cost(c, z) in W: ``-sum_y p(y|x) log q(y|c,z(x))``.

    Gondek (2005), the conditional factor of eq. (6.1.26).
    """
    P = _float(P)
    z = _groups(z, len(P))
    score = np.empty_like(W)
    for g in range(z.max() + 1):
        rows = z == g
        score[rows] = score_marginal(P[rows], W[rows], family)
    return score


def score_residual(P, W, z, weights=None, scale="pooled"):
    """Derivative of the clusters' half within sums of squares of the residuals."""
    return score_marginal(residuals(P, z, weights, scale), W, "gaussian")


def score_side(W, z):
    """Derivative of I(C;Z), the penalty of the bottleneck with side information, in W."""
    z = _groups(z, len(W))
    joint = np.stack([W[z == g].sum(0) for g in range(z.max() + 1)])
    prior = joint.sum(1, keepdims=True) / joint.sum()
    return (np.log((joint + EPS * prior) / (joint.sum(0) + EPS)) - np.log(prior))[z]


# --------------------------------------------------------------------------------------------------
# Objectives
# --------------------------------------------------------------------------------------------------


def _cell(P, weights, family):
    """Cost of one cell from its definition."""
    mass = weights.sum()
    if mass == 0:
        return 0.0
    q = weights @ P / mass
    if family == "multinomial":
        return float(-mass * _xlogx(q).sum())
    if family == "bernoulli":
        return float(-mass * (_xlogx(q) + _xlogx(1 - q)).sum())
    return float(0.5 * (weights @ (P - q) ** 2).sum())


def _partition_cost(P, labels, weights, family):
    return sum(_cell(P[labels == c], weights[labels == c], family) for c in np.unique(labels))


def _label_entropy(labels, weights):
    p = np.bincount(labels, weights) / weights.sum()
    return float(-_xlogx(p).sum())


def objective(
    P,
    labels,
    z=None,
    family="multinomial",
    weights=None,
    *,
    coordination=None,
    weight=0.0,
    scale="pooled",
    gamma=None,
    beta=np.inf,
):
    """Objective of a hard partition, in nats of the whole data set, from the definition.

    Parameters
    ----------
    P, z, family, weights
        See the module's conventions; ``z=None`` is the unconditional bottleneck.
    labels : (n,) int
        The partition.
    coordination : {None, "marginal", "residual"}
        Addition to ``sum_(c,z) cost(c, z)``, times `weight`.
    scale : str
        Scale of the `residuals`.
    gamma : float, optional
        Bottleneck with side information: ``sum_c cost(c) + gamma * mass * I(C;Z)``.
    beta : float
        A finite value adds ``mass * H(C) / beta``, since I(C;X) = H(C) for hard labels.
    """
    P = _float(P).astype(np.float64)
    weights = _weights(weights, P)
    labels = np.asarray(labels)
    z = _groups(z, len(P))
    joint = _groups(labels * (z.max() + 1) + z, len(P))
    total = _partition_cost(P, labels if gamma is not None else joint, weights, family)
    if gamma is not None:
        information = _label_entropy(labels, weights) + _label_entropy(z, weights)
        total += gamma * weights.sum() * (information - _label_entropy(joint, weights))
    elif coordination == "marginal":
        total += weight * _partition_cost(P, labels, weights, family)
    elif coordination == "residual":
        r = residuals(P, z, weights, scale)
        total += weight * _partition_cost(r, labels, weights, "gaussian")
    if np.isfinite(beta):
        total += weights.sum() * _label_entropy(labels, weights) / beta
    return float(total)


def _h(T, w, family):
    """Cost of cells from their statistics; Gaussian cells without the second moment."""
    if family == "size":
        return -_xlogx(w)
    if family == "multinomial":
        return _xlogx(w) - _xlogx(T).sum(-1)
    if family == "bernoulli":
        other = np.maximum(w[..., None] - T, 0)
        return T.shape[-1] * _xlogx(w) - (_xlogx(T) + _xlogx(other)).sum(-1)
    return -0.5 * (T * T).sum(-1) / np.where(w > 0, w, 1)


def _terms(P, z, family, weights, coordination, weight, scale, gamma, beta):
    """The objective as a list of (rows, groups, family, multiplier), up to a constant."""
    one = np.zeros(len(P), int)
    if gamma is not None:
        # mass I(C;Z) = const - sum_c cost(c) of the indicators of z
        terms = [(P, one, family, 1.0), (np.eye(z.max() + 1)[z], one, "multinomial", -gamma)]
    else:
        terms = [(P, z, family, 1.0)]
        if coordination == "marginal":
            terms.append((P, one, family, weight))
        elif coordination == "residual":
            terms.append((residuals(P, z, weights, scale), one, "gaussian", weight))
    if np.isfinite(beta):
        terms.append((np.zeros((len(P), 0)), one, "size", 1 / beta))
    return terms


def free_energy(
    P,
    R,
    z=None,
    family="multinomial",
    weights=None,
    *,
    coordination=None,
    weight=0.0,
    scale="pooled",
    gamma=None,
    beta=np.inf,
    compression=1.0,
):
    """Free energy of soft memberships, in nats of the whole data set.

    For hard R it equals `objective`: ``sum_cells cost + ...``, plus ``mass / beta`` times
    ``compression * H(C) - H(C|X)``, which is I(C;X) for `compression` 1.
    """
    P = _float(P).astype(np.float64)
    R = np.asarray(R, np.float64)
    weights = _weights(weights, P)
    z = _groups(z, len(P))
    W = weights[:, None] * R
    total = 0.0
    for X, groups, name, multiplier in _terms(
        P, z, family, weights, coordination, weight, scale, gamma, np.inf
    ):
        for g in range(groups.max() + 1):
            rows = groups == g
            total += multiplier * _h(W[rows].T @ X[rows], W[rows].sum(0), name).sum()
        if name == "gaussian":
            total += multiplier * 0.5 * (weights @ X**2).sum()
    if gamma is not None:
        total += gamma * weights.sum() * _label_entropy(z, weights)
    if np.isfinite(beta):
        negative_entropy = (weights[:, None] * _xlogx(R)).sum()
        sizes_entropy = -W.sum() * _xlogx(W.sum(0) / W.sum()).sum()
        total += (compression * sizes_entropy + negative_entropy) / beta
    return float(total)


# --------------------------------------------------------------------------------------------------
# The first split, by dense eigen-decomposition
# --------------------------------------------------------------------------------------------------


def _response(P, groups, family, weights):
    """Symmetrised B: perturbing the log memberships by e makes the score -B e at equal clusters.

    For multinomial rows ``B(x, x') = p(x'|z) sum_y p(y|x) [p(y|x') / p(y|z) - 1]`` on pairs of one
    group. The similarity transform by the square roots of the weights leaves its eigenvalues.
    """
    P = P.astype(np.float64)
    weights = weights.astype(np.float64)
    B = np.zeros((len(P), len(P)))
    for g in range(groups.max() + 1):
        rows = np.flatnonzero(groups == g)
        mass = weights[rows].sum()
        mean = weights[rows] @ P[rows] / mass
        centred = P[rows] - mean
        if family == "multinomial":
            variance = mean
        elif family == "bernoulli":
            variance = mean * (1 - mean)
        else:
            variance = np.ones_like(mean)
        alive = variance > 1e-15
        U = centred[:, alive] / np.sqrt(variance[alive]) * np.sqrt(weights[rows] / mass)[:, None]
        B[np.ix_(rows, rows)] = U @ U.T
    return B


def _eigmax(B):
    return float(np.linalg.eigvalsh(B)[-1])


def leading_eigenvalues(P, z, family="multinomial", weights=None, scale="pooled"):
    """Leading eigenvalues of the conditional, marginal and residual terms, as a dict."""
    P = _float(P)
    weights = _weights(weights, P)
    z = _groups(z, len(P))
    one = np.zeros(len(P), int)
    return {
        "conditional": _eigmax(_response(P, z, family, weights)),
        "marginal": _eigmax(_response(P, one, family, weights)),
        "residual": _eigmax(_response(residuals(P, z, weights, scale), one, "gaussian", weights)),
    }


def automatic_weight(
    P, z, family="multinomial", weights=None, *, coordination, kappa=1.0, scale="pooled"
):
    """The scale-free weight of the coordination term.

    ``min(.3, .5 s_c / s_m)`` for marginal coordination, ``kappa s_c / s_res`` for residual.
    """
    s = leading_eigenvalues(P, z, family, weights, scale)
    if coordination == "marginal":
        return min(0.3, 0.5 * s["conditional"] / s["marginal"])
    return kappa * s["conditional"] / s["residual"]


def critical_beta(
    P,
    z=None,
    family="multinomial",
    weights=None,
    *,
    coordination=None,
    weight=0.0,
    scale="pooled",
):
    """Inverse temperature of the first split, ``1 / eigmax(B)``; infinite without structure."""
    P = _float(P)
    weights = _weights(weights, P)
    z = _groups(z, len(P))
    one = np.zeros(len(P), int)
    B = _response(P, z, family, weights)
    if coordination == "marginal":
        B += weight * _response(P, one, family, weights)
    elif coordination == "residual":
        B += weight * _response(residuals(P, z, weights, scale), one, "gaussian", weights)
    s = _eigmax(B)
    return 1 / s if s > 1e-12 else np.inf


# --------------------------------------------------------------------------------------------------
# Annealing
# --------------------------------------------------------------------------------------------------


def _normalise(log_r):
    """Normalised memberships and their logarithms."""
    log_r = log_r - log_r.max(1, keepdims=True)
    R = np.exp(log_r)
    total = R.sum(1, keepdims=True)
    return R / total, log_r - np.log(total)


def _scorer(P, z, family, weights, coordination, weight, scale, gamma):
    """The weighted sum of scores as a function of W, for rows sorted by known group.

    Every score is linear in the row once the cells' parameters are fitted, so all terms together
    need one product per group to fit and one to score. Scores are relative to the score of the
    group's mean (of the mean of all rows, for coordination), which keeps the numbers small and
    accurate in float32.
    """
    n_groups = z.max() + 1
    bounds = np.searchsorted(z, np.arange(n_groups + 1))
    blocks = [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    if family == "gaussian":
        P = P - (weights @ P / weights.sum()).astype(P.dtype)
    mass = np.array([weights[s].sum() for s in blocks], P.dtype)
    means = np.stack([weights[s] @ P[s] for s in blocks]) / mass[:, None]
    mean = mass @ means / mass.sum()
    coef_g, offset_g = _linear(means, family)
    coef_0, offset_0 = _linear(mean, family)
    log_prior = np.log(mass / mass.sum())
    if coordination == "residual":
        r = residuals(P, z, weights, scale)

    def fit(T, w, base, coef_base, offset_base):
        coef, offset = _linear(_smoothed_mean(T, w, base), family)
        return coef - coef_base, offset - offset_base

    def score(W):
        w = np.stack([W[s].sum(0) for s in blocks])  # (L, K)
        if gamma is not None:
            coef, offset = fit(W.T @ P, w.sum(0), mean, coef_0, offset_0)
            prior = np.exp(log_prior)[:, None]
            side = np.log((w + EPS * prior) / (w.sum(0) + EPS)) - log_prior[:, None]
            return P @ coef.T + offset + (gamma * side)[z]
        T = np.stack([W[s].T @ P[s] for s in blocks])  # (L, K, m)
        coef, offset = fit(T, w, means[:, None], coef_g[:, None], offset_g[:, None])
        if coordination == "marginal":
            coef_c, offset_c = fit(T.sum(0), w.sum(0), mean, coef_0, offset_0)
            coef = coef + weight * coef_c
            offset = offset + weight * offset_c
        S = np.concatenate([P[s] @ coef[g].T + offset[g] for g, s in enumerate(blocks)])
        if coordination == "residual":
            centre = (W.T @ r) / (w.sum(0) + EPS)[:, None]
            S += weight * (0.5 * (centre * centre).sum(1) - r @ centre.T)
        return S

    return score


def anneal(
    P,
    z=None,
    K=2,
    family="multinomial",
    coordination=None,
    weight="auto",
    *,
    weights=None,
    scale="pooled",
    gamma=None,
    damped=True,
    compression=1.0,
    cooling=1.15,
    noise=1e-3,
    tol=1e-4,
    max_iter=100,
    beta0=None,
    max_ratio=1e5,
    rng=None,
):
    """Deterministic annealing, one restart: daIB, daCIB, daCCIB, and daIBwS.

    Gondek (2005), algorithm 6.5 with the update of eq. (6.1.26)::

        log R[x, c] = log q(c) - beta * (score of the terms)[x, c] + const(x)

    Parameters
    ----------
    P, z, family, weights
        See the module's conventions; ``z=None`` is the unconditional bottleneck.
    K : int
        Number of clusters.
    coordination : {None, "marginal", "residual"}
        The term that gives labels the same meaning in every known group.
    weight : float or "auto"
        Its weight in the objective (for kappa see `automatic_weight`).
    scale : str
        Scale of the `residuals`.
    gamma : float, optional
        Bottleneck with side information instead, eq. (8.6.1).  `damped` steps the logarithms by
        ``1 / (1 + beta gamma)``, which always decreases the free energy; the printed update
        does not.
    compression : float
        Factor of log q(c); 0 is information distortion.
    cooling, noise, tol, max_iter
        Factor of beta, perturbation at each level, inner tolerance of the memberships (times the
        step length if damped) and maximum number of inner iterations.
    beta0 : float, optional
        First inverse temperature, by default 0.95 of the critical one.
    max_ratio : float
        Stop at ``beta0 * max_ratio`` if the memberships have not become hard before.
    rng : numpy.random.Generator or int

    Returns
    -------
    Annealed
    """
    P = _float(P)
    weights = _weights(weights, P)
    rng = np.random.default_rng(rng)
    codes = _groups(z, len(P))
    order = np.argsort(codes, kind="stable")
    back = np.argsort(order)
    if coordination is None:
        weight = 0.0
    elif weight == "auto":
        weight = automatic_weight(P, codes, family, weights, coordination=coordination, scale=scale)
    weight = float(weight)
    terms = {"coordination": coordination, "weight": weight, "scale": scale}
    if beta0 is None:
        known = None if gamma is not None else codes
        beta0 = 0.95 * critical_beta(P, known, family, weights, **terms)
    if not np.isfinite(beta0):
        raise ValueError("no structure left once the known clustering is accounted for")
    beta = beta0 = float(beta0)
    P_sorted, mass = P[order], weights[order][:, None]
    score = _scorer(P_sorted, codes[order], family, weights[order], **terms, gamma=gamma)
    tiny = np.finfo(P.dtype).tiny

    def normal():
        return rng.standard_normal((len(P), K)).astype(P.dtype)[order]

    R, log_r = _normalise(0.1 * normal())
    trace, labels, n_iter = [], None, 0
    while True:
        R, log_r = _normalise(log_r + noise * normal())
        step = 1 / (1 + beta * gamma) if gamma is not None and damped else 1.0
        for _ in range(max_iter):
            W = mass * R
            new = -beta * score(W)
            q = W.sum(0)
            new += compression * np.log(np.maximum(q / q.sum(), tiny))
            if step < 1:
                new = (1 - step) * log_r + step * new
            old = R
            R, log_r = _normalise(new)
            n_iter += 1
            if np.abs(R - old).max() < tol * step:
                break
        F = free_energy(
            P_sorted,
            R,
            codes[order],
            family,
            weights[order],
            gamma=gamma,
            beta=beta,
            compression=compression,
            **terms,
        )
        trace.append((beta, F))
        previous, labels = labels, R.argmax(1)
        sharp = (R.max(1) > 0.999).mean() >= 0.999
        hard = bool(sharp and previous is not None and np.array_equal(labels, previous))
        if hard or beta > max_ratio * beta0:
            break
        beta *= cooling
    labels = labels[back]
    value = objective(P, labels, codes, family, weights, gamma=gamma, **terms)
    return Annealed(labels, value, trace, R[back], hard, n_iter)


def iib(
    P,
    K,
    beta,
    R0=None,
    family="multinomial",
    weights=None,
    *,
    tol=1e-6,
    max_iter=200,
    compression=1.0,
    rng=None,
):
    """Iterative information bottleneck at a fixed beta, Gondek (2005), section 3.5.3.

    Returns
    -------
    R : (n, K)
        Memberships.
    lagrangian : float
        ``compression H(C) - H(C|X) - beta I(C;Y)`` in nats per unit of mass.
    trace : list
        The Lagrangian before each iteration.
    """
    P = _float(P)
    weights = _weights(weights, P)
    if R0 is None:
        R0 = _normalise(0.1 * np.random.default_rng(rng).standard_normal((len(P), K)))[0]
    R = np.asarray(R0, P.dtype)
    total = weights.sum()
    everything = np.ones((len(P), 1))

    def lagrangian(R):
        # cost = mass * H(Y|C), and H(Y) is the cost of one cluster holding everything
        F = free_energy(P, R, None, family, weights, beta=beta, compression=compression)
        return float(beta * (F - free_energy(P, everything, None, family, weights)) / total)

    trace = []
    for _ in range(max_iter):
        trace.append(lagrangian(R))
        W = weights[:, None] * R
        new = -beta * score_marginal(P, W, family)
        tiny = np.finfo(P.dtype).tiny
        new += compression * np.log(np.maximum(W.sum(0) / total, tiny))
        old, R = R, _normalise(new)[0]
        if np.abs(R - old).max() < tol:
            break
    return R, lagrangian(R), trace


# --------------------------------------------------------------------------------------------------
# Greedy algorithms on hard partitions
# --------------------------------------------------------------------------------------------------


class _Cells:
    """Joint masses and statistics of the cells (c, z) of every term, for hard labels."""

    def __init__(self, terms, weights, labels, K):
        self.terms = terms
        self.weights = weights
        self.K = K
        self.refit(labels)

    def refit(self, labels):
        """Recompute the cells from the labels, which removes the drift of subtraction."""
        self.T, self.w = [], []
        for X, groups, _, _ in self.terms:
            T = np.zeros((self.K, groups.max() + 1, X.shape[1]))
            w = np.zeros((self.K, groups.max() + 1))
            np.add.at(T, (labels, groups), self.weights[:, None] * X)
            np.add.at(w, (labels, groups), self.weights)
            self.T.append(T)
            self.w.append(w)

    def total(self):
        """The objective up to its constant."""
        return sum(
            term[3] * _h(T, w, term[2]).sum()
            for term, T, w in zip(self.terms, self.T, self.w, strict=True)
        )

    def remove(self, i, c):
        """Remove row i from cluster c."""
        for (X, groups, name, _), T, w in zip(self.terms, self.T, self.w, strict=True):
            g = groups[i]
            T[c, g] -= self.weights[i] * X[i]
            w[c, g] -= self.weights[i]
            if name != "gaussian":
                np.maximum(T[c, g], 0, out=T[c, g])
            if w[c, g] < EPS * self.weights[i]:
                T[c, g] = w[c, g] = 0

    def add(self, i, c):
        """Add row i to cluster c."""
        for (X, groups, _, _), T, w in zip(self.terms, self.T, self.w, strict=True):
            T[c, groups[i]] += self.weights[i] * X[i]
            w[c, groups[i]] += self.weights[i]

    def joining_costs(self, i):
        """Increase of the objective when row i joins each cluster, shape (K,)."""
        cost = np.zeros(self.K)
        for (X, groups, name, multiplier), T, w in zip(self.terms, self.T, self.w, strict=True):
            T, w, mass = T[:, groups[i]], w[:, groups[i]], self.weights[i]
            cost += multiplier * (_h(T + mass * X[i], w + mass, name) - _h(T, w, name))
        return cost

    def merging_costs(self, i, others):
        """Increase of the objective when cluster i merges with each of `others`."""
        cost = np.zeros(len(others))
        for (_, _, name, multiplier), T, w in zip(self.terms, self.T, self.w, strict=True):
            joined = _h(T[others] + T[i], w[others] + w[i], name)
            cost += multiplier * (joined - _h(T[others], w[others], name)).sum(1)
            cost -= multiplier * _h(T[i], w[i], name).sum()
        return cost

    def merge(self, i, j):
        """Merge cluster j into cluster i."""
        for T, w in zip(self.T, self.w, strict=True):
            T[i] += T[j]
            w[i] += w[j]
            T[j] = 0
            w[j] = 0


def _prepare(P, z, family, weights, coordination, weight, scale, gamma, beta):
    P = _float(P).astype(np.float64)
    weights = _weights(weights, P)
    z = _groups(z, len(P))
    if coordination is None:
        weight = 0.0
    elif weight == "auto":
        weight = automatic_weight(P, z, family, weights, coordination=coordination, scale=scale)
    if family == "gaussian":
        P = P - weights @ P / weights.sum()
    terms = _terms(P, z, family, weights, coordination, weight, scale, gamma, beta)
    options = {
        "coordination": coordination,
        "weight": weight,
        "scale": scale,
        "gamma": gamma,
        "beta": beta,
    }
    return P, z, weights, terms, options


def sequential(
    P,
    z=None,
    K=2,
    family="multinomial",
    coordination=None,
    weight="auto",
    *,
    weights=None,
    scale="pooled",
    gamma=None,
    beta=np.inf,
    labels=None,
    max_iter=100,
    rng=None,
):
    """Sequential clustering: sIB, seqCCIB and seqIBwS.

    Gondek (2005), algorithm 6.6 corrected: each row is removed from its cluster and joins the
    cluster with the smallest increase of the objective (its own if tied), in a random order, until
    a sweep moves no row. It starts from a random balanced partition unless `labels` are passed.
    """
    rng = np.random.default_rng(rng)
    P, z, weights, terms, options = _prepare(
        P, z, family, weights, coordination, weight, scale, gamma, beta
    )
    n = len(P)
    labels = rng.permutation(np.arange(n) % K) if labels is None else np.array(labels)
    cells = _Cells(terms, weights, labels, K)
    margin = 1e-13 * weights.sum()
    trace, converged = [], False
    for _ in range(max_iter):
        moved = False
        for i in rng.permutation(n):
            cells.remove(i, labels[i])
            cost = cells.joining_costs(i)
            best = cost.argmin()
            if cost[best] < cost[labels[i]] - margin:
                labels[i] = best
                moved = True
            cells.add(i, labels[i])
        cells.refit(labels)
        trace.append(objective(P, labels, z, family, weights, **options))
        if not moved:
            converged = True
            break
    return Greedy(labels, trace[-1], trace, converged)


def agglomerative(
    P,
    z=None,
    K=2,
    family="multinomial",
    coordination=None,
    weight="auto",
    *,
    weights=None,
    scale="pooled",
    gamma=None,
    beta=np.inf,
    labels=None,
):
    """Agglomerative clustering from single rows (or `labels`) down to K clusters.

    Gondek (2005), eq. (6.3.14) corrected: the cheapest pair merges, at the cost ``sum_z p(cbar,z)
    JS_z + weight * p(cbar) JS - p(cbar) H(Pi) / beta``. The trace holds (i, j, cost), where i keeps
    its label.
    """
    P, z, weights, terms, options = _prepare(
        P, z, family, weights, coordination, weight, scale, gamma, beta
    )
    labels = np.arange(len(P)) if labels is None else _groups(labels, len(P))
    n = labels.max() + 1
    cells = _Cells(terms, weights, labels, n)
    cost = np.full((n, n), np.inf)
    for i in range(n - 1):
        cost[i, i + 1 :] = cells.merging_costs(i, np.arange(i + 1, n))
    alive = np.full(n, True)
    merges = []
    for _ in range(n - K):
        i, j = np.unravel_index(cost.argmin(), cost.shape)
        merges.append((int(i), int(j), float(cost[i, j])))
        cells.merge(i, j)
        labels[labels == j] = i
        alive[j] = False
        cost[j] = cost[:, j] = np.inf
        others = np.flatnonzero(alive)
        others = others[others != i]
        new = cells.merging_costs(i, others)
        cost[np.minimum(i, others), np.maximum(i, others)] = new
    labels = _groups(labels, len(P))
    return Greedy(labels, objective(P, labels, z, family, weights, **options), merges, True)
