"""A clusterer with a density that depends on whether rows were in its fit."""

import numpy as np
from sklearn.base import BaseEstimator, clone


class Remembering(BaseEstimator):
    """A clusterer that recognises the rows of its fit, and predicts only these correctly."""

    def __init__(self, n_clusters=2, n_init=10, random_state=None, unseen=-3.0):
        self.n_clusters, self.n_init, self.random_state = n_clusters, n_init, random_state
        self.unseen = unseen

    @staticmethod
    def _angles(y):
        return np.round(np.arctan2(y[:, 1], y[:, 0]), 9)

    def fit(self, X, y=None, *, known=None):
        self.seen_ = self._angles(X)
        return self

    def predict(self, X, known=None):
        return (X[:, 0] > 0).astype(int) % self.n_clusters

    def clone_for_tests(self):
        return clone(self)

    def residuals_of(self, X, *, known=None):
        return X.copy()

    def log_density_of(self, X, *, known=None, scale=None):
        mine = np.isin(self._angles(X), self.seen_)
        return np.where(mine, 3.0, self.unseen) * (self.n_clusters > 1) - 100.0

    def mixture_covariance(self):
        return np.eye(2)

    def has_flexible_clusters(self):
        return False
