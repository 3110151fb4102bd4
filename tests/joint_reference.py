"""The objective of the conditional mixture in plain NumPy, from its definition."""

import numpy as np
from scipy.special import digamma, gammaln, logsumexp


def log_softmax(values):
    return values - logsumexp(values)


def _log_probabilities(column, where, j, theta, cluster, group):
    if column.scores is None:
        return log_softmax(theta.beta[cluster, where] + theta.u[group, where])
    slope = theta.slope[cluster, j] + theta.group_slope[group, j]
    return log_softmax(theta.alpha[where] + slope * column.standard_scores)


def log_joint(x, columns, groups, q, state):
    """Log share plus log density (n, K) of every sample and cluster."""
    gaussian, theta, shares = state.gaussian, state.discrete, state.shares
    n, k = len(groups), shares.log_share.shape[1]
    first = np.cumsum([0, *(c.n_values for c in columns)])
    out = np.zeros((n, k))
    for i, z in enumerate(groups):
        for c in range(k):
            value = shares.log_share[z, c]
            seen = np.flatnonzero(~np.isnan(x[i])) if x is not None else []
            if len(seen):
                sigma = gaussian.sigma[np.ix_(seen, seen)]
                mean = gaussian.m[z][seen] + gaussian.b[c][seen]
                if q is not None:
                    mean = mean + (q[i] @ gaussian.slopes)[seen]
                r = x[i, seen] - mean
                _, log_det = np.linalg.slogdet(2 * np.pi * sigma)
                value -= 0.5 * (r @ np.linalg.solve(sigma, r) + log_det)
            for j, column in enumerate(columns):
                if column.codes[i] >= 0:
                    where = slice(first[j], first[j + 1])
                    value += _log_probabilities(column, where, j, theta, c, z)[column.codes[i]]
            out[i, c] = value
    return out


def dirichlet_divergence(post, prior):
    """KL[Dir(post) || Dir(prior)]."""
    return (
        gammaln(post.sum())
        - gammaln(post).sum()
        - gammaln(prior.sum())
        + gammaln(prior).sum()
        + (post - prior) @ (digamma(post) - digamma(post.sum()))
    )


def _gaussian_penalty(x, groups, n_groups, theta, ridge, form):
    d = x.shape[1]
    sigma, t = theta.sigma[:d, :d], theta.t[:d, :d]
    inverse, slopes = np.linalg.inv(sigma), theta.slopes[:, :d]
    log_det = np.linalg.slogdet(sigma)[1]
    value = -ridge.nu0 / 2 * (log_det + theta.s0 * np.trace(inverse) - d * np.log(theta.s0))
    value -= ridge.location / 2 * np.trace(slopes @ inverse @ slopes.T)
    if form == "absent":
        return value
    inverse_t, log_det_t = np.linalg.inv(t), np.linalg.slogdet(t)[1]
    for z in range(n_groups):
        s, m = theta.s[z][:d, :d], theta.m[z][:d]
        log_det_s = np.linalg.slogdet(s)[1]
        if form == "fixed":
            value += 0.5 * log_det_s + d / 2
        else:
            value -= 0.5 * (np.trace(inverse_t @ s) + m @ inverse_t @ m - d + log_det_t - log_det_s)
    if form != "fixed":
        value -= ridge.nu_t / 2 * (log_det_t + ridge.tau0 * np.trace(inverse_t))
    return value


def _curvature(column):
    """Information of a group effect along its eigenvectors."""
    if column.scores is not None:
        return np.ones(1)
    p = column.marginal
    return np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[1:]


def expected_loss(x, columns, groups, state, ridge, form):
    """Cost (n,) per sample of uncertain group effects and rounding errors."""
    out = np.zeros(len(groups))
    for i, z in enumerate(groups):
        seen = np.flatnonzero(~np.isnan(x[i])) if x is not None else []
        if len(seen):
            part = np.ix_(seen, seen)
            uncertain = ridge.rounding[part] + (form != "absent") * state.gaussian.s[z][part]
            out[i] += 0.5 * np.trace(np.linalg.solve(state.gaussian.sigma[part], uncertain))
        for j, column in enumerate(columns):
            if column.codes[i] >= 0 and form not in ("absent", "fixed"):
                curvature = _curvature(column)
                out[i] += 0.5 * curvature @ state.discrete.v[z, j, : len(curvature)]
    return out


def _discrete_penalty(columns, groups, n_groups, theta, ridge, form):
    first = np.cumsum([0, *(c.n_values for c in columns)])
    value = 0.0
    for j, column in enumerate(columns):
        where, p = slice(first[j], first[j + 1]), column.marginal
        for c in range(len(theta.beta)):
            if column.scores is None:
                log_p = log_softmax(theta.beta[c, where])
            else:
                log_p = log_softmax(theta.alpha[where] + theta.slope[c, j] * column.standard_scores)
            value += ridge.pseudo * p @ (log_p - np.log(p))
        if form in ("absent", "fixed"):
            continue
        rank, tau2 = len(_curvature(column)), theta.tau2[j]
        for z in range(n_groups):
            v = theta.v[z, j, :rank]
            square = theta.group_slope[z, j] ** 2
            if column.scores is None:
                square = (theta.u[z, where] ** 2).sum()
            value -= 0.5 * square / tau2
            value -= 0.5 * (v / tau2 - 1 - np.log(v / tau2)).sum()
        value -= ridge.nu * rank / 2 * (np.log(tau2 / ridge.scale) + ridge.scale / tau2 - 1)
    return value


def objective(
    x, columns, groups, q, state, ridge, tilt_ridge, form, shares, noise=0.0, log_noise=0.0
):
    """F at the parameters of ``state``; ``form`` is "random", "held", "fixed" or "absent"."""
    n_groups, k = groups.max() + 1, state.shares.log_share.shape[1]
    log_density = logsumexp(log_joint(x, columns, groups, q, state), axis=1)
    log_density = log_density - expected_loss(x, columns, groups, state, ridge, form)
    value = log_density.sum()
    if noise:
        value = np.log((1 - noise) * np.exp(log_density) + noise * np.exp(log_noise)).sum()
    if x is not None:
        value += _gaussian_penalty(x, groups, n_groups, state.gaussian, ridge, form)
    if columns:
        value += _discrete_penalty(columns, groups, n_groups, state.discrete, tilt_ridge, form)
    if shares == "by_group":
        prior = state.shares.concentration
        for z in range(n_groups):
            value -= dirichlet_divergence(state.shares.counts[z] + prior, prior)
    if shares == "free":
        value += state.shares.log_share[0].sum() + k * np.log(k)
    return value
