"""Models of the features of a cluster.

`CodedFeatures` have a fixed code: normalised maximum likelihood, or a conjugate prior with fixed
hyperparameters. `SampledGaussian` has hyperparameters that are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nrprob.data.design import Design
from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.target import make_target
from nrprob.methods.bayes.full_covariance import SeparateCovariances, moments
from nrprob.methods.bayes.hierarchical_covariance import (
    SHRINKAGE,
    VARIANCES,
    CommonCovarianceUpdate,
    HierarchicalCovariances,
)
from nrprob.methods.bayes.hyperparameters import (
    GRID,
    Hyperparameters,
    HyperparameterUpdate,
    initial_hyperparameters,
)
from nrprob.methods.bayes.joint_target import JointTarget, begin_joint
from nrprob.methods.bayes.shared_covariance import SharedCovariance
from nrprob.methods.bayes.student_t import make_scale_weights
from nrprob.methods.bayes.yeo_johnson import make_yeo_johnson
from nrprob.statistics.codes import (
    BinaryCode,
    CellCode,
    CodeTerm,
    CountCode,
    NormalWishart,
    code_term,
    count_tables,
    normal_inverse_gamma,
    normal_inverse_wishart,
    normal_nml,
)
from nrprob.statistics.groups import group_sums
from nrprob.statistics.rows import padded_count

COUNT_FACTOR = 10  # largest total count of a new sample, relative to the largest total of the fit
_MAX_COORDINATION = 0.3  # largest automatic weight of the code of clusters across known groups


class FeatureModel:
    """Model of the features of a cluster.

    Attributes
    ----------
    name : value of the parameter ``features`` of `nrprob.MDLMixture`
    energy, covariance, errors, transformation : values of the parameters of `nrprob.MDLMixture`
        with these names
    power : likelihood tempering exponent
    """

    name: ClassVar[str] = "gaussian"
    energy: ClassVar[str] = "conjugate"
    covariance: str = "diag"
    power: float = 1.0
    errors: str = "gaussian"
    transformation: str = "identity"

    def statistics(self, X: np.ndarray, design: Design | None = None) -> np.ndarray:
        """Sufficient statistics (n, q) of samples ``X`` (n, m): features and their products."""
        return np.asarray(moments(X, full=self.covariance != "diag"))

    def neighbour_features(self, X: np.ndarray) -> np.ndarray:
        """Coordinates of the samples, in which neighbours for split-merge moves are searched."""
        return X


@dataclass(frozen=True, kw_only=True)
class CodedFeatures(FeatureModel):
    """Model of features whose description length is a sum over clusters or over cells.

    A cell is the set of samples of one cluster in one known group.
    """

    def code(self, X: np.ndarray) -> CellCode:
        """Make the code of the features of a cell; ``X`` (n, m) are all samples."""
        raise NotImplementedError

    def terms(self, X: np.ndarray, x: np.ndarray, group: np.ndarray | None) -> list[CodeTerm]:
        """Make the terms of the description length of samples ``X`` (n, m).

        ``x`` (n, p) are statistics of the samples, and ``group`` (n,) the known groups.
        """
        return [code_term(self.code(X))]

    def groups(self, design: Design | None) -> np.ndarray | None:
        """Known groups (n,) that define the cells, or None if there is one cell per cluster."""
        return None

    def mixture_prior(self, X: np.ndarray) -> dict[str, Any]:
        """Arguments of `make_mixture_target` for the prior of the parameters, by name."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BoundedGaussian(CodedFeatures):
    """Independent Gaussian features with bounded parameters, by normalised maximum likelihood.

    Attributes
    ----------
    floor : smallest standard deviation of a feature in a cluster, in units of the standard
        deviation of the feature
    """

    energy: ClassVar[str] = "nml"
    floor: float

    def code(self, X: np.ndarray) -> CellCode:
        """Code of the features of a cluster of up to n + 1 samples; ``X`` has n samples."""
        width = np.ptp(X, axis=0)
        return normal_nml(len(X) + 1, np.minimum(self.floor, 0.4 * width), width / 2, width)

    def mixture_prior(self, X: np.ndarray) -> dict[str, Any]:
        """Arguments of `make_mixture_target` for the prior of the parameters, by name."""
        return {"low": np.minimum(self.floor, 0.4 * np.ptp(X, axis=0))}


@dataclass(frozen=True, kw_only=True)
class FixedGaussian(CodedFeatures):
    """Gaussian features under a conjugate prior with fixed hyperparameters.

    Attributes
    ----------
    covariance : "diag" or "full"
    mean_precision, shape, scale : normal-inverse-gamma prior of each feature
    """

    covariance: str = "diag"
    mean_precision: float
    shape: float
    scale: float

    def code(self, X: np.ndarray) -> CellCode:
        """Code of the features of a cluster of up to n + 1 samples; ``X`` has n samples."""
        n, m = X.shape
        prior = {"kappa": self.mean_precision}
        if self.covariance == "diag":
            prior |= {"shape": self.shape, "scale": self.scale}
            return normal_inverse_gamma(n + 1, m, **prior)
        # Under this prior, the marginal of one feature is normal-inverse-gamma with ``shape`` and
        # ``scale``.
        return normal_inverse_wishart(
            n + 1, m, nu=2 * self.shape + m - 1, scale=2 * self.scale, **prior
        )

    def mixture_prior(self, X: np.ndarray) -> dict[str, Any]:
        """Arguments of `make_mixture_target` for the prior of the parameters, by name."""
        return {"kappa": self.mean_precision, "shape": self.shape, "scale": self.scale}


@dataclass(frozen=True, kw_only=True)
class DiscreteFeatures(CodedFeatures):
    """Counts or binary features, with a separate code for each cluster in each known group.

    Attributes
    ----------
    concentration : Dirichlet concentration of the prior of the probabilities in a cell, that is, in
        one cluster and one known group; None for normalised maximum likelihood
    coordination : weight of a second code, of each cluster pooled over all known groups; None for
        "auto"
    """

    concentration: float | None = 0.5
    coordination: float | None = None

    @property
    def energy(self) -> str:  # type: ignore[override]
        """Type of the code of a cell: "nml" or "conjugate"."""
        return "nml" if self.concentration is None else "conjugate"

    def statistics(self, X: np.ndarray, design: Design | None = None) -> np.ndarray:
        """Statistics (n, m) of the features, which are the features themselves."""
        return X

    def groups(self, design: Design | None) -> np.ndarray | None:
        """Known groups (n,) that define the cells, or None without known groups."""
        return design.codes if design is not None and design.n_groups > 1 else None

    def terms(self, X: np.ndarray, x: np.ndarray, group: np.ndarray | None) -> list[CodeTerm]:
        """Make the terms of the description length of samples ``X`` (n, m).

        The terms are the code of the cells and, with known groups, the weighted code of clusters
        pooled over these groups. ``x`` (n, p) are statistics, and ``group`` (n,) the known groups.
        """
        code = self.code(X)
        if group is None or self.coordination == 0:
            return [code_term(code, by_group=group is not None)]
        weight = self.coordination
        if weight is None:
            weight = _balanced_weight(code, np.column_stack([x, np.ones(len(x))]), group)
        return [code_term(code, by_group=True), code_term(code, weight=weight)]


@dataclass(frozen=True, kw_only=True)
class CountFeatures(DiscreteFeatures):
    """Multinomial counts: code of the tokens of each sample, given the number of its tokens."""

    name: ClassVar[str] = "multinomial"

    def code(self, X: np.ndarray) -> CellCode:
        """Make the code of the counts of a cell; ``X`` (n, m) are all samples."""
        m = X.shape[1]
        return CountCode(*count_tables(m, max_count(X), self.concentration), 0, m)

    def neighbour_features(self, X: np.ndarray) -> np.ndarray:
        """Square roots of proportions, whose Euclidean distances are Hellinger distances."""
        return np.sqrt(X / np.maximum(X.sum(1, keepdims=True), 1))


@dataclass(frozen=True, kw_only=True)
class BinaryFeatures(DiscreteFeatures):
    """Binary features: code of independent features that are 0 or 1."""

    name: ClassVar[str] = "bernoulli"

    def code(self, X: np.ndarray) -> CellCode:
        """Code of the binary features of a cell of up to n + 1 samples; ``X`` has n samples."""
        return BinaryCode(*count_tables(2, len(X) + 1, self.concentration), 0, X.shape[1])


def max_count(X: np.ndarray) -> int:
    """Largest total count that the code of a cell needs.

    The result is the number of all tokens of ``X`` (n, m), plus the largest allowed number of
    tokens of one new sample: `COUNT_FACTOR` times the largest number of tokens of a sample in
    ``X``.
    """
    total = X.sum(1)
    return int(total.sum() + COUNT_FACTOR * max(total.max(initial=0), 1))


@jit_by_size()
def _grouping_gain(code: CellCode, cells: Any) -> Any:
    """Nats that one code per known group saves, compared with one code of all samples.

    ``cells`` (groups, p) are the sums of statistics of the known groups.
    """
    return code(cells.sum(0)) - code(cells).sum()


def _balanced_weight(code: CellCode, x: np.ndarray, group: np.ndarray) -> float:
    """Weight of the code of clusters pooled over known groups, at most `_MAX_COORDINATION`.

    The partition into the known groups makes the pooled code shorter than one cluster does, but the
    labels of the partition cost nats. At the returned weight, the weighted saving is half of the
    cost of the labels. ``x`` (n, p) are statistics, and ``group`` (n,) the known groups.
    """
    cells = group_sums(x, group)
    pad = padded_count(len(cells), x.size) - len(cells)
    gain = float(_grouping_gain(code, np.pad(cells, ((0, pad), (0, 0)))))
    size = cells[:, -1]
    entropy = float(size @ np.log(size.sum() / size))
    return min(_MAX_COORDINATION, 0.5 * entropy / gain) if gain > 0 else _MAX_COORDINATION


@dataclass(frozen=True, kw_only=True)
class SampledGaussian(FeatureModel):
    """Gaussian features whose hyperparameters are sampled jointly with the partition.

    Attributes
    ----------
    covariance : "diag", "full", "shrunk" or "tied"
    mean_precision, shape, scale : normal-inverse-gamma prior of each feature; None for
        hyperparameters that are sampled
    power : likelihood tempering exponent
    errors : "gaussian" or "t"
    transformation : "identity" or "yeo-johnson"
    """

    covariance: str
    mean_precision: float | None = None
    shape: float | None = None
    scale: float | None = None
    power: float = 1.0
    errors: str = "gaussian"
    transformation: str = "identity"

    def statistics(self, X: np.ndarray, design: Design | None = None) -> np.ndarray:
        """Sufficient statistics (n, q) of samples ``X`` (n, m).

        Statistics are features and covariates for "tied" covariance, else features and their
        products. With ``errors="t"``, a column of scale weights follows, which are 1.
        """
        weight = [np.ones((len(X), 1))] if self.errors == "t" else []
        if self.covariance != "tied":
            return np.concatenate([super().statistics(X), *weight], 1)
        return np.concatenate([_with_covariates(X, design), *weight], 1)

    def fix_prior(self, default: tuple[float, float, float] | None) -> FeatureModel:
        """Return a model with fixed hyperparameters if possible, else the model itself.

        Values of ``default``, if given, replace the hyperparameters that would be sampled. A model
        with fixed hyperparameters needs values of all three hyperparameters, "diag" or "full"
        covariance, Gaussian errors, no transformation and no tempering.
        """
        prior = self.mean_precision, self.shape, self.scale
        if default is not None:
            prior = tuple(b if a is None else a for a, b in zip(prior, default, strict=True))  # type: ignore[assignment]
        mean_precision, shape, scale = prior
        plain = self.power == 1 and self.errors == "gaussian" and self.transformation == "identity"
        if not plain or self.covariance not in ("diag", "full"):
            return self
        if mean_precision is None or shape is None or scale is None:
            return self
        return FixedGaussian(
            covariance=self.covariance, mean_precision=mean_precision, shape=shape, scale=scale
        )

    def grid(self, *, grouped: bool) -> Hyperparameters:
        """Grids of the hyperparameters; a fixed hyperparameter has a grid of one value.

        ``grouped`` states whether there is known structure. Without known structure, the grid of
        ``group_precision`` has one value.
        """
        grid = GRID if grouped else GRID._replace(group_precision=GRID.group_precision[-1:])
        if self.covariance == "shrunk":
            grid = grid._replace(freedom=SHRINKAGE, variance=VARIANCES)
        if self.mean_precision is not None:
            grid = grid._replace(centre_precision=np.asarray([self.mean_precision]))
        if self.shape is not None:
            if self.shape <= 1:
                raise ValueError(
                    "variance_shape must be above 1 if other hyperparameters are sampled; got "
                    f"{self.shape:g}; raise it, or fix all hyperparameters: set mean_precision to "
                    "a number, and covariance='diag' or 'full'"
                )
            grid = grid._replace(freedom=np.asarray([2.0 * self.shape - 2]))
            if self.scale is not None:
                grid = grid._replace(variance=np.asarray([self.scale / (self.shape - 1)]))
        return grid

    def joint_target(
        self,
        X: np.ndarray,
        x: np.ndarray,
        terms: Sequence[CodeTerm],
        sizes: np.ndarray,
        partners: np.ndarray,
        design: Design | None,
        updates: Any,
    ) -> JointTarget:
        """Make the joint distribution of the partition and the jointly sampled variables.

        Parameters
        ----------
        X, x : features (n, m) and statistics (n, p) of the samples
        terms : codes of labels and classes, without the features
        sizes : function A(k) of the number of clusters
        partners : neighbours (n, q) of the samples, q for every sample
        design : known structure
        updates : function of the number of slots, which returns the updates of the concentrations
        """
        informed = design is not None and design.has_structure
        grid = self.grid(grouped=informed)
        shared = self.covariance == "tied"
        group = design.codes if shared and design is not None and design.n_groups > 1 else None
        sent = frozenset({"data", "parameters"})  # what the code of the likelihood describes
        partition = make_target(terms, sizes, x, partners=partners, group=group, sent=sent)
        rows = np.pad(X, ((0, partition.x.shape[0] - len(X)), (0, 0)))
        first = HyperparameterUpdate if self.covariance != "shrunk" else CommonCovarianceUpdate
        used: list[Any] = [first(grid)]
        if self.transformation == "yeo-johnson" and X.size:
            used.append(make_yeo_johnson(rows, partition.x[:, -1] > 0))
        if self.errors == "t":
            used.append(make_scale_weights(len(rows)))
        likelihood = self._likelihood(X, initial_hyperparameters(grid), design, group is not None)
        used += updates(partition.n_slots)
        return begin_joint(JointTarget(partition, likelihood, rows, tuple(used)))

    def _likelihood(
        self, X: np.ndarray, initial: Hyperparameters, design: Design | None, grouped: bool
    ) -> Any:
        power, weighted, m = np.float64(self.power), self.errors == "t", X.shape[1]
        if self.covariance == "tied":
            both = _with_covariates(X, design)
            return SharedCovariance(
                both.T @ both, initial, power, m, weighted, both.shape[1] - m, grouped
            )
        unset = np.float64(1)  # `begin_joint` sets the hyperparameters
        code = NormalWishart(unset, unset, unset, m, self.covariance != "diag", power, weighted)
        if self.covariance == "shrunk":
            return HierarchicalCovariances(code, initial, np.eye(m) * initial.variance)
        return SeparateCovariances(code, initial)


def _with_covariates(X: np.ndarray, design: Design | None) -> np.ndarray:
    covariates = None if design is None else design.columns
    return X if covariates is None else np.concatenate([X, covariates], 1)
