"""Cross-entropy clustering from its definitions, in NumPy, one cluster at a time."""

import numpy as np


def label_entropy(y):
    """Entropy of the classes of the labelled rows (y >= 0)."""
    counts = np.bincount(y[y >= 0])
    p = counts[counts > 0] / max(counts.sum(), 1)
    return -(p * np.log(p)).sum() if p.size else 0.0


def model_cost(x, covariance, ridge, fixed=None):
    """N times the minimum cross-entropy of a cluster's rows, with ridge."""
    n, d = x.shape
    away = x - x.mean(0)
    scatter = away.T @ away
    if covariance == "fixed":
        inverse = np.linalg.inv(fixed)
        log_det = np.linalg.slogdet(fixed)[1]
        return 0.5 * (n * d * np.log(2 * np.pi) + np.trace(inverse @ scatter) + n * log_det)
    scatter = scatter + np.diag(ridge)
    if covariance == "full":
        log_det = np.linalg.slogdet(scatter / n)[1]
    elif covariance == "diag":
        log_det = np.log(np.diag(scatter) / n).sum()
    else:
        log_det = d * np.log(np.trace(scatter) / n / d)
    return 0.5 * n * (d * np.log(2 * np.pi * np.e) + log_det)


def terms(X, labels, y=None, beta=1.0, covariance="full", reg=0.0, fixed=None):
    """Terms of features, sizes and labels, in nats of all rows."""
    n = len(X)
    ridge = reg * X.var(0)
    total = np.zeros(3)
    for c in np.unique(labels):
        member = labels == c
        size = member.sum()
        total[0] += model_cost(X[member], covariance, ridge, fixed)
        total[1] -= size * np.log(size / n)
        if y is not None:
            total[2] += beta * size * label_entropy(y[member])
    return total


def improvements(X, labels, **given):
    """Change of the objective (n, clusters) when one row moves."""
    now = terms(X, labels, **given).sum()
    k = labels.max() + 1
    change = np.zeros((len(X), k))
    for i in range(len(X)):
        for c in range(k):
            moved = labels.copy()
            moved[i] = c
            change[i, c] = terms(X, moved, **given).sum() - now
    return change
