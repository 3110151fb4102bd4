"""Bayesian mixture model with an unknown number of components, and its target distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nrprob.data.design import Design
from nrprob.engines.sample.target import make_target
from nrprob.methods.bayes.concentrations import make_class_concentration, make_size_concentration
from nrprob.methods.bayes.feature_models import CodedFeatures, FeatureModel, SampledGaussian
from nrprob.methods.bayes.six_move_target import MixtureTarget, make_mixture_target
from nrprob.statistics.codes import CountCode, code_term, count_tables, label_code

_N_NEIGHBOURS, _MAX_SEARCHED = 20, 5000  # neighbours of a sample, and number of candidates
FIXED_CONCENTRATION, FIXED_CLASS_CONCENTRATION = 1.0, 0.5  # for "auto" without sampled variables


class NewRows(NamedTuple):
    """New samples of unknown class.

    Attributes
    ----------
    x : (b, p) sufficient statistics of b samples
    group : (b,) known groups of the samples
    """

    x: Any
    group: Any


@dataclass(frozen=True, kw_only=True)
class MixtureModel:
    """Mixture with an unknown number of components; some samples may have a known class.

    Attributes
    ----------
    features : model of the features of a cluster
    concentration, class_concentration : Dirichlet concentrations of cluster sizes and of the
        classes of a cluster; None if sampled. Models without sampled variables use 1 and 0.5
        instead of None, and normalised maximum likelihood has no concentration.
    unordered : whether the prior treats clusters as a set; if False, the description length of k
        clusters has log k! nats more
    """

    features: FeatureModel
    concentration: float | None = None
    class_concentration: float | None = None
    unordered: bool = False

    @property
    def samples_parameters(self) -> bool:
        """Whether variables such as hyperparameters are sampled jointly with the partition."""
        return isinstance(self.features, SampledGaussian)

    def statistics(
        self,
        X: np.ndarray,
        codes: np.ndarray,
        n_classes: int,
        design: Design | None = None,
    ) -> np.ndarray:
        """Sufficient statistics (n, p) of samples ``X`` (n, m), followed by one-hot classes.

        ``codes`` (n,) are the classes, -1 where unknown, and ``design`` is the known structure.
        """
        classes = (codes[:, None] == np.arange(n_classes)).astype(float)
        return np.concatenate([self.features.statistics(X, design), classes], 1)

    def new_rows(self, X: np.ndarray, n_classes: int, design: Design | None = None) -> NewRows:
        """Statistics and known groups of samples ``X`` (b, m) to be predicted."""
        x = self.statistics(X, np.full(len(X), -1), n_classes, design)
        group = np.zeros(len(x), np.int32) if design is None else design.codes
        return NewRows(np.concatenate([x, np.ones((len(x), 1))], 1), group)

    def _concentrations(self) -> tuple[float | None, float | None]:
        """Dirichlet concentrations of cluster sizes and of classes.

        The values are fixed, or initial values of concentrations that are sampled. Both are None
        for normalised maximum likelihood.
        """
        if self.features.energy == "nml":
            return None, None
        sizes, classes = self.concentration, self.class_concentration
        return (
            FIXED_CONCENTRATION if sizes is None else sizes,
            FIXED_CLASS_CONCENTRATION if classes is None else classes,
        )

    def target(
        self,
        X: np.ndarray,
        codes: np.ndarray,
        n_classes: int,
        max_clusters: int,
        design: Design | None = None,
    ) -> Any:
        """Make the posterior distribution over partitions of samples ``X`` (n, m).

        The terms of the target are codes: of the features, of the cluster sizes, of the classes,
        and of clusters pooled over known groups. If variables are sampled jointly with the
        partition, a likelihood replaces the code of the features. ``codes`` (n,) are the classes,
        -1 where unknown.

        Returns
        -------
        Target, or `JointTarget` if variables are sampled jointly with the partition
        """
        n = len(X)
        of_sizes, of_classes = self._concentrations()
        labels, sizes = label_code(
            n, max_clusters, concentration=of_sizes, unordered=self.unordered
        )
        x = self.statistics(X, codes, n_classes, design)
        terms = [code_term(labels)]
        if n_classes:
            tables = count_tables(n_classes, n + 1, of_classes)
            first = x.shape[1] - n_classes
            terms.append(code_term(CountCode(*tables, first, x.shape[1], single=True)))
        partners = find_neighbours(self.features.neighbour_features(X))
        features: Any = self.features
        if not self.samples_parameters:
            assert isinstance(features, CodedFeatures)
            group = features.groups(design)
            first_term, *rest = features.terms(X, x, group)
            terms = [first_term, *terms, *rest]
            return make_target(terms, sizes, x, partners=partners, group=group)

        def concentration_updates(n_slots: int) -> list[Any]:
            updates: list[Any] = []
            if self.concentration is None:
                updates.append(
                    make_size_concentration(n, max_clusters, n_slots, unordered=self.unordered)
                )
            if n_classes and self.class_concentration is None:
                updates.append(make_class_concentration(n, n_classes))
            return updates

        return features.joint_target(X, x, terms, sizes, partners, design, concentration_updates)

    def mixture_target(
        self, X: np.ndarray, codes: np.ndarray, n_classes: int, max_clusters: int
    ) -> MixtureTarget:
        """Make the distribution over mixtures with their parameters, for the six-move kernel.

        ``X`` (n, m) are the samples, and ``codes`` (n,) their classes, -1 where unknown. Under the
        conjugate prior, integrating the parameters out gives the distribution `target`.
        """
        features: Any = self.features
        prior = features.mixture_prior(X)
        of_sizes, of_classes = self._concentrations()
        if of_sizes is not None:
            prior |= {"concentration": of_sizes, "class_concentration": of_classes}
        classes = (codes[:, None] == np.arange(n_classes)).astype(float)
        return make_mixture_target(
            X, classes, max_clusters=max_clusters, energy=features.energy,
            unordered=self.unordered, **prior,
        )  # fmt: skip


def find_neighbours(X: np.ndarray) -> np.ndarray:
    """Indices (n, q) of the q nearest neighbours of samples ``X`` (n, d), for split-merge moves.

    If there are more than `_MAX_SEARCHED` samples, only `_MAX_SEARCHED` evenly spaced samples may
    be neighbours.
    """
    from sklearn.neighbors import NearestNeighbors

    n = len(X)
    if n < 2 or not X.size:
        return np.zeros((n, 1), int)
    if n <= _MAX_SEARCHED:
        return NearestNeighbors(n_neighbors=min(_N_NEIGHBOURS, n - 1)).fit(X).kneighbors()[1]
    some = np.unique(np.linspace(0, n - 1, _MAX_SEARCHED).round().astype(int))
    return some[NearestNeighbors(n_neighbors=_N_NEIGHBOURS).fit(X[some]).kneighbors(X)[1]]
