"""Out-of-core fits of estimators whose objective is a sum of terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nrprob.data.feature_types import guess_features
from nrprob.data.storage.blocks import Blocks, gather_arrays
from nrprob.data.storage.stored import Chunk, Survey
from nrprob.data.validation import check_random_state
from nrprob.engines.optimise import out_of_core, solve
from nrprob.engines.optimise.out_of_core import KnownBlock
from nrprob.estimator.base import Restarts
from nrprob.statistics import families
from nrprob.statistics.families import FeatureMap
from nrprob.statistics.rows import make_layout, make_rows

_ROWS = 1 << 16  # maximum per block
_LEAST = 1 << 12
_ENTRIES = 1 << 25  # maximum number of memberships, and of products of statistics, of a block


@dataclass(frozen=True)
class LayGroups:
    """Arrange rows in a `Block`, sorted by known group, with the statistics of ``features``."""

    features: FeatureMap
    n_groups: int
    labelled: bool

    def __call__(self, chunk: Chunk) -> KnownBlock:
        """Arrange the rows of a chunk."""
        n = int(chunk.is_row.sum())
        x = self.features(chunk.x[:n])
        x = np.pad(x, ((0, len(chunk.x) - n), (0, 0)))
        layout = make_layout(chunk.arrays["codes"], self.n_groups)
        rows = make_rows(x, layout, self.n_groups, mass=chunk.is_row)
        rows = replace(rows, number=layout.to_blocks(chunk.number))
        fixed = (
            layout.to_blocks(chunk.arrays["fixed"].astype(np.int32), -1) if self.labelled else None
        )
        return KnownBlock(rows, fixed)


def block_size(n_init: int, n_clusters: int) -> int:
    """Rows per block, limited by the memory for the memberships of all restarts."""
    return int(np.clip(_ENTRIES // (n_init * n_clusters), _LEAST, _ROWS))


def feature_map(survey: Survey, name: str, binarize: float | None) -> FeatureMap:
    """Return the map from raw rows to statistics; see `nrprob.statistics.families.fit_features`."""
    if binarize is not None:
        return FeatureMap("bernoulli", float(binarize))
    moments = survey.moments
    if name == "auto":
        example = 0.5 if not moments.is_count else 1.0 if moments.is_binary else 2.0
        name = guess_features(np.array([[example]]))
    if name == "gaussian":
        variance = float((moments.square / moments.n_rows).mean())
        return FeatureMap("gaussian", None, moments.mean, variance**0.5 if variance > 0 else 1.0)
    return families.get_family(name).fit(np.zeros((1, len(moments.mean))))


def start_seed(estimator: Any, survey: Survey) -> int:
    """Seed of the restarts; the same in all processes."""
    seed = check_random_state(estimator.random_state).randint(2**31 - 1)
    return int(gather_arrays(np.asarray(seed))[0]) if survey.rows.processes else seed


def check_survey(estimator: Any, survey: Survey) -> np.ndarray | None:
    """Set the input attributes of an estimator; return the clusters of labelled rows."""
    if survey.target_labels is not None and survey.rows.processes:
        raise ValueError(
            "partial labels of rows of several processes cannot be compared; got y; leave it out"
        )
    source = survey.source
    estimator.n_features_in_ = len(survey.moments.mean)
    if source.features is not None:
        estimator.feature_names_in_ = np.asarray(source.features, object)
    estimator._store_magnitude(survey.moments.largest, source.dtype)
    estimator._check_size(survey.n_all)
    estimator._total_mass = float(survey.n_all)
    return estimator._target_clusters(survey.target_labels, survey.n_samples)


def collect_labels(
    survey: Survey, parts: Any, n_columns: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return labels (n_samples,), and memberships or None, from the results of blocks.

    A block has the indices of its rows, their labels (-1 on padding), and memberships or None.
    """
    n, path = survey.n_samples, survey.rows.labels
    labels: Any = np.empty(n, np.int64)
    if path is not None:
        labels = np.lib.format.open_memmap(path, "w+", np.int64, (n,))
    membership = np.empty((n, n_columns)) if survey.rows.membership else None
    for number, block_labels, w in parts:
        real = block_labels.reshape(-1) >= 0
        # Indices are modulo 2**32.
        rows = (number.reshape(-1)[real] - np.uint32(survey.first % 2**32)).astype(np.int64)
        labels[rows] = block_labels.reshape(-1)[real]
        if membership is not None:
            membership[rows] = w.reshape(-1, w.shape[-1])[real, :n_columns]
    if path is not None:
        labels.flush()
    return labels, membership


def fit_terms(estimator: Any, survey: Survey) -> Any:
    """Anneal the cells of a `nrprob.estimator.terms.TermEstimator` in passes over the rows."""
    fixed = check_survey(estimator, survey)
    dtype, k = survey.source.dtype, estimator.n_clusters
    estimator._features = feature_map(survey, estimator.features, estimator.binarize)
    task = estimator.stored_task(survey, fixed)
    design = task.design
    m = len(survey.moments.mean)
    if design.n_groups * (m + 1) ** 2 > 2 * _ENTRIES:
        raise ValueError(
            f"stored rows take known groups x columns^2 up to {2 * _ENTRIES}; got "
            f"{design.n_groups} groups and {m} columns; pass fewer of either"
        )
    build, parameters = estimator._problem(task)
    estimator._minimised = descent = estimator._descent()
    settings = solve.make_settings(
        dtype, n_clusters=k, max_iter=estimator.max_iter, method=parameters,
        **{name: getattr(descent, name) for name in solve.FLOATS},
    )  # fmt: skip
    lay = LayGroups(estimator._features, design.n_groups, fixed is not None)
    arrays = {"codes": design.codes.astype(np.int32)}
    if fixed is not None:
        arrays["fixed"] = fixed
    n_init = estimator.n_init
    blocks: Blocks = survey.make_blocks(block_size(n_init, k), lay, arrays)
    moments = out_of_core.sum_moments(blocks)
    problem = build(out_of_core.SummedRows(moments), settings)
    seed = start_seed(estimator, survey)

    def print_progress(n_iter: int, beta: float) -> None:
        if estimator.verbose:
            print(f"{n_iter} passes over the rows: inverse temperature {beta:.4g}")

    result, terms = out_of_core.anneal_cells(
        blocks, problem, moments, settings, seed, n_clusters=k, n_init=n_init,
        dtype=dtype, report=print_progress,
    )  # fmt: skip
    fit = result.fit(terms, descent.compression)
    estimator._keep_costs(fit.slope, fit.log_prior, m, beta=fit.beta, critical=fit.critical_beta)
    estimator._keep_weights(fit.weights)
    active = np.ones(k, bool)
    parts = out_of_core.iterate_labels(blocks, result, active, survey.rows.membership)
    labels, membership = collect_labels(survey, parts, k)
    hard = result.hard[:, result.best].sum(0)
    estimator._store_results(
        Restarts(None, result.objective, result.converged),
        labels=labels, sizes=hard[:, -1], membership=membership,
        trace=result.trace[:, result.best], n_iter=result.n_iter,
        nothing_left=estimator._nothing_left(design.has_structure),
    )  # fmt: skip
    estimator.cluster_centers_ = _cluster_centres(
        estimator._features, result.cells[:, result.best].sum(0), m
    )
    return estimator


def _cluster_centres(features: FeatureMap, sums: np.ndarray, m: int) -> np.ndarray:
    """Means (k, m) of the statistics of the clusters, or of raw rows if they determine them."""
    size, total = sums[:, -1:], sums.sum(0)
    means = np.where(size > 0, sums[:, :m] / np.maximum(size, 1e-300), total[:m] / total[-1])
    if features.centre is not None:
        return means * features.scale + features.centre
    return means
