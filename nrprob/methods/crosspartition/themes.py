"""Number of themes that subsets share, by prediction of features that were held out.

Shapes: n rows, m features, V subsets, K themes. Labels of the rows come from one half of the
features, and are scored on the other half.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from sklearn.base import clone

from nrprob.data.validation import check_random_state
from nrprob.engines.optimise import splitting
from nrprob.methods.crosspartition.inputs import Subsets

ETAS = (1.5, 1.0, 0.6, 0.3)  # exponents that are compared, in order
_MAX_THEMES = 20
_PATIENCE = 2  # levels without an improvement after which a path ends
_TOL, _MAX_ITER = 1e-5, 1000  # of paths whose labels alone are used
_LIFT_EXPONENTS = np.array([0.25, 0.5, 0.75, 1.0])


class ThemeScore(NamedTuple):
    """Score of a number of themes.

    Attributes
    ----------
    eta : exponent of the geometric mean over subsets
    n_clusters : number of themes
    gain : mean gain of rows, in nats per count
    error : standard error of the difference between this gain and the largest one for this ``eta``
    """

    eta: float
    n_clusters: int
    gain: float
    error: float


def shared_gains(rows: Any, mass: np.ndarray, share: np.ndarray, labels: np.ndarray) -> np.ndarray:
    r"""Log-likelihood gains of rows by what their theme has in common with other subsets.

    A row of subset w and theme c is predicted by

    .. math:: m_w(y|c) \propto p(y|w) \prod_{v \ne w}
        \Big(\frac{p(y|c,v)}{p(y|v)}\Big)^{\lambda\, p(v) / (1 - p(w))}

    and its gain is :math:`\sum_y p(y|x) \log(m_w(y|c) / p(y|w))`. Clusters of a single subset have
    no gain, since the rows of subset w do not enter the product. The exponent :math:`\lambda` is
    the best of four. Each p(y|c,v) includes one average row of p(y|v).

    Parameters
    ----------
    rows : (n, m) p(y|x), dense or sparse
    mass : (n,) p(x)
    share : (n, V) p(w|x)
    labels : (n,) themes of the rows

    Returns
    -------
    ndarray of shape (n,)
        Gains in nats per count.
    """
    n, n_subsets = share.shape
    k = int(labels.max()) + 1
    member = labels[:, None] == np.arange(k)
    weights = (share[:, :, None] * member[:, None] * mass[:, None, None]).reshape(n, -1)
    joint = np.asarray(weights.T @ rows).reshape(n_subsets, k, -1)
    cells, sizes = weights.sum(0).reshape(n_subsets, k, 1), share.T @ mass
    profiles = joint.sum(1, keepdims=True) / sizes[:, None, None]
    occurs = profiles > 0
    log_profiles = np.log(np.where(occurs, profiles, 1))
    # Log lifts p(y|c,v) / p(y|v), and their mean over the other subsets.
    smoothed = (joint + profiles / n) / (cells + 1 / n)
    lifts = np.where(occurs, np.log(np.where(occurs, smoothed, 1)) - log_profiles, 0)
    lifts = sizes[:, None, None] * lifts
    others = (lifts.sum(0) - lifts) / (1 - sizes)[:, None, None]
    best = np.full(n, -np.inf)
    for exponent in _LIFT_EXPONENTS:
        raised = exponent * others
        total = logsumexp(np.where(occurs, log_profiles + raised, -np.inf), axis=2, keepdims=True)
        gains = np.where(occurs, raised - total, 0).reshape(n_subsets * k, -1)
        by_cell = np.asarray(rows @ gains.T).reshape(n, n_subsets, k)
        by_row = (share * by_cell[np.arange(n), :, labels]).sum(1)
        if mass @ by_row > mass @ best or not np.isfinite(best).all():
            best = by_row
    return best


class ThemeSearch:
    """Choice of the number of themes, and of ``eta``.

    Parameters
    ----------
    model : `CrossPartition`, whose other parameters apply
    X : (n, m) counts
    subsets : subsets as passed to `fit`
    design : the same subsets
    """

    def __init__(self, model: Any, X: Any, subsets: Any, design: Subsets) -> None:
        self._model, self._subsets, self._share = model, subsets, design.share
        if self._share.shape[1] == 1:
            raise ValueError(
                "n_clusters='auto' needs at least two subsets; got one; pass subsets, or a number "
                "of clusters"
            )
        # Every theme has a row in every subset.
        rows_per_subset = int((self._share > 0).sum(0).min())
        self._limit = max(1, min(_MAX_THEMES, rows_per_subset))
        order = check_random_state(model.random_state).permutation(X.shape[1])
        size = X.shape[1] // 2  # two halves of the same size share compiled programs
        if size == 0:
            raise ValueError(
                "n_clusters='auto' needs at least two features, half of which are held out; got "
                "one; pass a number of clusters"
            )
        self._halves = [X[:, np.sort(half)] for half in (order[:size], order[size : 2 * size])]
        self.scores: list[ThemeScore] = []

    def choose_number(self, eta: float) -> int:
        """Smallest number of themes whose gain is not significantly below the largest gain.

        The difference of the gains is compared with its standard error over the rows.
        """
        tasks, paths = [], []
        for half in self._halves:
            model = clone(self._model).set_params(
                n_clusters=self._limit,
                eta=eta,
                tol=max(self._model.tol, _TOL),
                max_iter=min(self._model.max_iter, _MAX_ITER),
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the final fit warns
                tasks.append(model.prepare(half, None, subsets=self._subsets))
            paths.append(model.iterate_levels(tasks[-1]))
        mass = sum(task.mass for task in tasks) / 2
        gains: list[np.ndarray] = []
        for k, levels in enumerate(zip(*paths, strict=False), 1):
            gains.append(self._held_out_gains(tasks, levels, k))
            means = np.array([mass @ gain for gain in gains])
            if k - 1 - means.argmax() >= _PATIENCE:
                break
        differences = gains[means.argmax()] - np.stack(gains)
        mean = differences @ mass
        errors = np.sqrt(((differences - mean[:, None]) ** 2) @ mass**2)
        self.scores += [
            ThemeScore(eta, k, float(gain), float(error))
            for k, (gain, error) in enumerate(zip(means, errors, strict=True), 1)
        ]
        return int((mean <= errors).argmax()) + 1

    def _held_out_gains(
        self, tasks: list[Any], levels: tuple[splitting.Level, ...], k: int
    ) -> np.ndarray:
        """Gains (n,) of the labels of each half on the features of the other half."""
        result = np.zeros(len(self._share))
        for task, level, test in zip(tasks, levels, tasks[::-1], strict=True):
            log_q = task.layout.from_blocks(np.asarray(level.carry[1]))[:, 0, :k]
            result += shared_gains(test.rows, test.mass, self._share, log_q.argmax(1)) / 2
        return result

    def is_shared(self, labels: np.ndarray, k: int) -> bool:
        """Whether every subset has rows in each of ``k`` themes, by ``labels`` (n,)."""
        member = labels[:, None] == np.arange(k)
        return bool((self._share.T @ member > 0).all())
