"""Out-of-core fits of estimators whose objective is a sum of terms.

A *survey* (`nrprob.data.storage.stored.Survey`) is the result of a first pass over stored rows:
their moments, labels and known structure. Shapes: m statistics of a row, k clusters.
"""

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

_ROWS = 1 << 16  # maximum number of rows per block
_LEAST = 1 << 12  # minimum number of rows per block
_ENTRIES = 1 << 25  # maximum number of memberships, and of products of statistics, of a block


@dataclass(frozen=True)
class LayGroups:
    """Function that turns a chunk of raw rows into a block of statistics, sorted by known group.

    Attributes
    ----------
    features : map from raw rows to statistics
    n_groups : number of known groups
    labelled : whether chunks have an array "fixed": the clusters of labelled rows, -1 for others
    """

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
    """Number of rows of a block, limited by the memory for the memberships of all restarts.

    ``n_init`` is the number of restarts.
    """
    return int(np.clip(_ENTRIES // (n_init * n_clusters), _LEAST, _ROWS))


def feature_map(survey: Survey, name: str, binarize: float | None) -> FeatureMap:
    """Return the map from raw rows to statistics; see `nrprob.statistics.families.fit_features`.

    The moments of the survey determine the map. ``name`` is the family of the features or
    "auto", and ``binarize`` a threshold or None.
    """
    if binarize is not None:
        return FeatureMap("bernoulli", float(binarize))
    moments = survey.moments
    if name == "auto":
        # Choose the family from one value of the type that the rows have.
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
    """Set the estimator's attributes that describe its input; return clusters of labelled rows.

    The result has the clusters (n_samples,), -1 for unlabelled rows. The result is None without
    labels.
    """
    if survey.target_labels is not None and survey.rows.processes:
        raise ValueError("rows of several processes take no partial labels; got y; leave y out")
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

    ``parts`` yields, for every block, the indices of its rows modulo 2**32, their labels (-1 on
    padding), and their memberships or None. ``n_columns`` is the number of clusters.
    """
    n, path = survey.n_samples, survey.rows.labels
    labels: Any = np.empty(n, np.int64)
    if path is not None:
        labels = np.lib.format.open_memmap(path, "w+", np.int64, (n,))
    membership = np.empty((n, n_columns)) if survey.rows.membership else None
    for number, block_labels, w in parts:
        real = block_labels.reshape(-1) >= 0
        # Subtract the index of the first row of this process, modulo 2**32.
        rows = (number.reshape(-1)[real] - np.uint32(survey.first % 2**32)).astype(np.int64)
        labels[rows] = block_labels.reshape(-1)[real]
        if membership is not None:
            membership[rows] = w.reshape(-1, w.shape[-1])[real, :n_columns]
    if path is not None:
        labels.flush()
    return labels, membership


def fit_terms(estimator: Any, survey: Survey) -> Any:
    """Fit a `nrprob.estimator.terms.TermEstimator` to stored rows, by annealing.

    Every iteration is one pass over the blocks of rows.
    """
    # Read the labels, and choose the family of the features from the survey.
    fixed = check_survey(estimator, survey)
    dtype, k = survey.source.dtype, estimator.n_clusters
    estimator._features = feature_map(survey, estimator.features, estimator.binarize)
    task = estimator.stored_task(survey, fixed)
    design = task.design
    m = len(survey.moments.mean)
    if design.n_groups * (m + 1) ** 2 > 2 * _ENTRIES:
        raise ValueError(
            "stored rows have too many known groups or columns; got groups x columns^2 above "
            f"{2 * _ENTRIES}, with {design.n_groups} groups and {m} columns; pass fewer groups or "
            "fewer columns"
        )
    # Define the problem and the options of its minimisation.
    build, parameters = estimator._problem(task)
    estimator._minimised = descent = estimator._descent()
    settings = solve.make_settings(
        dtype, n_clusters=k, max_iter=estimator.max_iter, method=parameters,
        **{name: getattr(descent, name) for name in solve.FLOATS},
    )  # fmt: skip
    # Arrange the rows in blocks, and sum their moments in a first pass.
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
    # Compute labels, memberships and sizes in a last pass, and set the fitted attributes.
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
    """Cluster centres (k, m) from ``sums``, whose columns are sums of m statistics and the mass.

    The centres are means of raw rows if these follow from means of statistics (Gaussian features),
    else means of statistics. An empty cluster has the mean of all rows.
    """
    size, total = sums[:, -1:], sums.sum(0)
    means = np.where(size > 0, sums[:, :m] / np.maximum(size, 1e-300), total[:m] / total[-1])
    if features.centre is not None:
        return means * features.scale + features.centre
    return means
