"""Multi-view clustering with side information, and with selected numbers of clusters.

Side information are known groups, must-links, cannot-links and partial labels. Sizes: n rows, V
views, d features of a view, p pairs of a type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nrprob.data.labels import read_labels
from nrprob.data.validation import check_random_state
from nrprob.exceptions import warn
from nrprob.links import Components, Pairs, check_cannot_link, check_pairs, feasible_start
from nrprob.methods.mdl.annealed_restarts import AnnealedRestarts, published_parts
from nrprob.methods.mdl.cluster_costs import ClusterCosts
from nrprob.methods.mdl.configurations import CELLS, Configuration, dependence_gain
from nrprob.methods.mdl.informed_fit import (
    cluster_moments,
    initial_labels,
    make_features,
    residual_correlations,
    search_labels,
    words_saved,
)
from nrprob.methods.mdl.informed_length import InformedLength, Target
from nrprob.methods.mdl.informed_search import SearchResult
from nrprob.methods.mdl.label_forests import MAX_CELLS
from nrprob.methods.mdl.label_shares import LabelShares
from nrprob.methods.mdl.soft_pairs import make_words, soft_pairs
from nrprob.methods.mdl.views import Views
from nrprob.statistics.groups import group_means

_NO_PAIRS = np.zeros((0, 2), np.int64)
# With more than ``_MANY_VIEWS`` views, proposals start only from the ``_IMPROVED`` shortest results
# of single moves.
_MANY_VIEWS, _IMPROVED = 6, 3
_LINKED_ERRORS = 0.4  # canonical correlation of residuals above which views share their errors


@dataclass
class InformedTask:
    """Validated input of one multi-view fit.

    Attributes
    ----------
    tables : rows (n, d) of every view; continuous views are centred and scaled
    sizes : largest number of clusters of every view
    counts_used : for every view, whether the number of clusters is selected
    groups : (n,) known group of every sample
    must_link, cannot_link : (p, 2) pairs of samples that share, or do not share, a cluster of the
        first view
    classes : (n,) known class of every sample, -1 if unknown; None without classes
    kinds : for every view, type of the features: "gaussian", "bernoulli" or "multinomial"
    conditional : whether the labels of the first view are coded given the known groups
    constant : description length of the rows in units of X, minus the description length of the
        scaled rows
    annealed : input of the annealed restarts; None if restarts are not annealed
    calls : calls of the compiled solver for annealed restarts; empty without them
    """

    tables: list[np.ndarray]
    sizes: tuple[int, ...]
    counts_used: tuple[bool, ...]
    groups: np.ndarray
    must_link: np.ndarray
    cannot_link: np.ndarray
    classes: np.ndarray | None
    kinds: tuple[str, ...]
    conditional: bool
    constant: float
    annealed: Views | None = None
    calls: list[Any] = field(default_factory=list)

    def without_view(self, v: int) -> InformedTask:
        """Input without view ``v``; pairs and classes are removed together with the first view."""
        keep = [u for u in range(len(self.tables)) if u != v]
        return self._select(keep, has_target=v != 0)

    def only_view(self, v: int) -> InformedTask:
        """Input with view ``v`` alone; pairs and classes are kept only for the first view."""
        return self._select([v], has_target=v == 0)

    def _select(self, views: Sequence[int], *, has_target: bool) -> InformedTask:
        return InformedTask(
            [self.tables[v] for v in views],
            tuple(self.sizes[v] for v in views),
            tuple(self.counts_used[v] for v in views),
            self.groups,
            self.must_link if has_target else _NO_PAIRS,
            self.cannot_link if has_target else _NO_PAIRS,
            self.classes if has_target else None,
            tuple(self.kinds[v] for v in views),
            self.conditional and has_target,
            0.0,
        )


class InformedViews(AnnealedRestarts):
    """Base class of multi-view clusterers that use side information.

    One description length covers the features, labels and side information of all views; see
    `InformedLength`.
    """

    _kinds: tuple[str, ...]
    _costs: list[ClusterCosts]
    membership_: Any
    n_clusters_: Any
    cluster_centers_: Any
    scales_: Any

    def _informed_task(
        self, scaled: list[np.ndarray], sizes: tuple[int, ...], counts_used: tuple[bool, ...],
        y: Any, groups: np.ndarray, must_link: Any, cannot_link: Any,
    ) -> InformedTask:  # fmt: skip
        n = len(scaled[0])
        classes = None
        if y is not None:
            names, codes = read_labels(y, n)
            classes = codes.astype(np.int64) if names.size else None
        return InformedTask(
            scaled, sizes, counts_used, groups, check_pairs(must_link, n, "must_link"),
            check_cannot_link(cannot_link, n), classes, self._kinds,
            self.known_words == "given" and bool(groups.any()), self._unit_length(n),
        )  # fmt: skip

    def _length(self, task: InformedTask, dependent: bool) -> InformedLength:
        """Return the function that computes the description length of labels (n, V).

        ``dependent`` states whether the labels of all views are coded jointly.
        """
        n = len(task.tables[0])
        hard, linked = self.constraints == "hard", len(task.must_link) + len(task.cannot_link) > 0
        must, cannot = (
            [Pairs(pairs, name)] if hard else []
            for pairs, name in (
                (task.must_link, "must_link"), (task.cannot_link, "cannot_link")
            )
        )  # fmt: skip
        parts = Components(n, must, cannot)
        start = feasible_start(parts, task.sizes[0])[0] if len(parts.edges) else None
        link, apart = (
            soft_pairs(_NO_PAIRS if hard else pairs, parts)
            for pairs in (task.must_link, task.cannot_link)
        )
        words = make_words(parts, link, apart, task.sizes[0], start)
        if task.conditional and words is not None:
            raise ValueError(
                "known_words='given' takes must-links with constraints='hard' only; got "
                f"{len(task.cannot_link)} cannot-links and constraints={self.constraints!r}; use "
                "known_words='marginal'"
            )
        target = Target(parts.node, words, task.classes, task.groups if task.conditional else None)
        code = "independent"
        if dependent:
            few = math.prod(task.sizes) <= MAX_CELLS
            code = "table" if few and not linked and not task.conditional else "forest"
        features = [
            make_features(
                x, parts.node if v == 0 else np.arange(n), task.groups, k,
                features=kind, covariance=self._covariance,
                weight=1.0 if self.geometry == "exp" else x.shape[1] / 2,
                bounds=(float(self.scale_range[0]), float(self.scale_range[1])),
                shared=self.sigma == "view", centres_coded=self.centre_code == "half_log",
            )
            for v, (x, k, kind) in enumerate(
                zip(task.tables, task.sizes, task.kinds, strict=True)
            )
        ]  # fmt: skip
        return InformedLength(features, task.sizes, task.counts_used, code, target, task.constant)

    def _search(
        self, task: InformedTask, dependent: bool, seed: int
    ) -> tuple[InformedLength, SearchResult, list[SearchResult]]:
        length = self._length(task, dependent)
        random = np.random.RandomState(seed)
        starts = initial_labels(length, self.n_init, random, task.classes)

        def report(count: int, total: float) -> None:
            if self.verbose:
                print(f"restarts {count}: objective {total:.6g} nats")

        n_improved = _IMPROVED if length.n_views > _MANY_VIEWS else None
        best, results = search_labels(
            length, starts, 1e-9 * length.n, self.max_iter, report, n_improved
        )
        return length, best, results

    def _informed_length_at(self, task: InformedTask, labels: np.ndarray) -> float:
        """Description length of labels (n, V); infinite if labels violate a hard constraint.

        The result is the minimum over the codes of the labels that the parameters allow.
        """
        if self.constraints == "hard":
            must, cannot = labels[task.must_link, 0], labels[task.cannot_link, 0]
            if (must[:, 0] != must[:, 1]).any() or (cannot[:, 0] == cannot[:, 1]).any():
                return np.inf
        totals = []
        for dependent in self._coding_choices():
            length = self._length(task, dependent)
            length.refit(labels)
            totals.append(length.total(labels))
        return min(totals)

    def _search_informed(self, task: InformedTask) -> list[Any]:
        """Search for labels with every code of the labels that the parameters allow.

        Returns a list with one element: the results of all codes, and the result of `_view_gains`
        (None without view gains).
        """
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        runs = [self._search(task, dependent, seed) for dependent in self._coding_choices()]
        gains = None
        if self.view_gain and len(task.tables) > 1:
            gains = self._view_gains(task, min(run[1].total for run in runs), seed)
        return [(runs, gains)]

    def _view_gains(self, task: InformedTask, total: float, seed: int) -> np.ndarray:
        """Nats (V,) that a common description of all views saves for each view.

        The alternative is a description of the view alone, plus a description of all other views.
        ``total`` is the length of the common description.
        """
        gains = []
        for v in range(len(task.tables)):
            parts = (
                self._search(part, True, seed)[1].total
                for part in (task.only_view(v), task.without_view(v))
            )
            gains.append(sum(parts) + task.constant - total)
        return np.array(gains)

    def _finish_informed(self, task: InformedTask, result: list[Any]) -> None:
        """Set the fitted attributes from the results of `_search_informed`."""
        (runs, gains), annealed = result[0], task.annealed
        length, best, results = min(runs, key=lambda run: run[1].total)
        length.refit(best.labels)
        labels = _compact(best.labels, task)
        parts = [self._code_parts(task, length, r.labels) for r in results]
        self._runs = {
            "labels": np.stack([r.labels for r in results]),
            "objective": np.array([r.total for r in results]),
            "pdl": np.array([words for words, _ in parts]),
            "cdl": np.array([distances for _, distances in parts]),
            "converged": np.array([r.converged for r in results]),
            "start": np.zeros(len(results)) if annealed is None else self._starts(annealed),
        }
        self.dependent_ = length.code != "independent"
        self.objective_ = float(best.total)
        self.pdl_, self.cdl_ = self._code_parts(task, length, best.labels)
        self.tdl_ = self.pdl_ + self.cdl_
        self.complexity_ = self.objective_ - self.tdl_
        self.converged_ = best.converged
        self.objective_trace_ = np.array(best.trace)
        self.n_iter_, self.temperatures_ = len(best.trace), np.zeros(len(best.trace))
        if annealed is not None:
            # The search is the last step of the trace.
            if self.tdl_ < best.trace[-1] - 1e-9 * abs(best.trace[-1]):
                self.objective_trace_ = np.append(best.trace, self.tdl_)
            run = next(i for i, candidate in enumerate(results) if candidate is best)
            self.temperatures_ = self._temperatures(annealed, self.objective_trace_, run)
            self.n_iter_ = annealed.n_iter
        self.selection_ = _selection_table(runs)
        self.forest_ = length.parents
        self._set_reports(length, best.labels, gains)
        self._set_clusters(task, length, labels)
        self._check_errors(task, length, best.labels)

    @staticmethod
    def _code_parts(
        task: InformedTask, length: InformedLength, labels: np.ndarray
    ) -> tuple[float, float]:
        """Description length of the labels (n, V), and of the features given the labels.

        For annealed fits, `published_parts` computes both lengths.
        """
        if task.annealed is not None:
            return published_parts(length, labels)
        features = (length.feature_length(v, labels) for v in range(length.n_views))
        return length.word_length(labels), sum(features) + length.constant

    def _set_reports(
        self, length: InformedLength, labels: np.ndarray, gains: np.ndarray | None
    ) -> None:
        views = range(length.n_views)
        self.words_saved_ = words_saved(length, labels)
        self.uninformative_views_ = [v for v in views if np.unique(labels[:, v]).size == 1]
        parents = length.parents
        if length.code == "table":
            parents = length.shortest_parents(labels)
        self.unlinked_views_ = [v for v in views if parents[v] < 0 and not (parents == v).any()]
        if gains is not None:
            self.view_gain_ = gains
        groups = self._groups
        if groups.any():
            self.known_dependence_ = length.known_dependence(labels, groups)

    def _set_clusters(self, task: InformedTask, length: InformedLength, labels: np.ndarray) -> None:
        """Set the fitted labels (n, V), and the cluster parameters that predictions need."""
        n, sizes = labels.shape[0], []
        for v, k in enumerate(length.sizes):
            sizes.append(int(labels[:, v].max()) + 1 if task.counts_used[v] else k)
        fitted = self._length(
            replace(task, sizes=tuple(sizes), counts_used=(False,) * len(sizes)), self.dependent_
        )
        if fitted.code == "table" and length.code != "table":
            fitted.code = length.code
        fitted.parents = length.parents
        self._shares = LabelShares.from_labels(fitted, labels)
        self._costs = [
            features.cost_model(fitted.unit_labels(v, labels))
            for v, features in enumerate(fitted.features)
        ]
        centres, scales = [], []
        for v, (x, k, cost) in enumerate(zip(task.tables, sizes, self._costs, strict=True)):
            view = self._views[v]
            means, scale = cluster_moments(x, labels[:, v], k, task.groups, cost)
            centres.append(view.mean + view.scale * means)
            scales.append(view.scale**2 * scale)
        self.margins_ = [
            np.bincount(z, minlength=k) / n for z, k in zip(labels.T, sizes, strict=True)
        ]
        self.joint_ = None if self._shares.cells is None else self._shares.cells / n
        self.dependence_gain_ = dependence_gain(labels, sizes)
        configuration = Configuration(tuple(sizes), self.dependent_)
        is_small = max(configuration.code_sizes) <= CELLS
        approximation = configuration.label_complexity(n, "printed") if is_small else math.nan
        self.approximate_complexity_ = approximation
        self.approximate_length_ = self.tdl_ + self.approximate_complexity_
        self._present = tuple(np.unique(column).size for column in labels.T)
        membership = [np.eye(k)[z] for k, z in zip(sizes, labels.T, strict=True)]
        single = self._single
        self.alternatives_ = labels
        self.membership_ = membership[0] if single else membership
        self.n_clusters_ = self._present[0] if single else self._present
        self.cluster_centers_ = centres[0] if single else centres
        self.scales_ = scales[0] if single else scales

    def _check_errors(self, task: InformedTask, length: InformedLength, labels: np.ndarray) -> None:
        """Warn if the residuals within clusters of two views are correlated.

        The description length counts the evidence of such views twice. ``labels`` (n, V) are the
        clusters.
        """
        residuals = []
        for v, x in enumerate(task.tables):
            cell = labels[:, v] * (int(task.groups.max()) + 1) + task.groups
            cell = np.unique(cell, return_inverse=True)[1].ravel()
            residuals.append(x - group_means(x, cell, int(cell.max()) + 1)[cell])
        correlations, n = residual_correlations(residuals), len(labels)
        for u, v in itertools.combinations(range(len(residuals)), 2):
            noise = 3 * math.sqrt((residuals[u].shape[1] + residuals[v].shape[1]) / n)
            if correlations[u, v] > max(_LINKED_ERRORS, noise):
                warn(
                    f"views {u} and {v} share their errors (canonical correlation "
                    f"{correlations[u, v]:.2f} within clusters), so that their evidence counts "
                    "twice; stack them into one view"
                )


def _compact(labels: np.ndarray, task: InformedTask) -> np.ndarray:
    """Renumber labels (n, V), so that clusters with rows come first.

    Only views with a selected number of clusters are renumbered.
    """
    result = labels.copy()
    for v, used in enumerate(task.counts_used):
        if used:
            result[:, v] = np.unique(labels[:, v], return_inverse=True)[1].ravel()
    return result


def _selection_table(runs: list[Any]) -> Any:
    """DataFrame of the shortest description length of the restarts.

    The table has a row for every combination of the numbers of clusters with rows and of the coding
    of the labels, joint or separate.
    """
    import pandas as pd

    rows = []
    for length, _, results in runs:
        for result in results:
            present = [np.unique(column).size for column in result.labels.T]
            rows.append([*present, length.code != "independent", result.total])
    names = [f"n_clusters_{v}" for v in range(len(rows[0]) - 2)] + ["dependent"]
    table = pd.DataFrame(rows, columns=[*names, "objective"])
    return table.groupby(names, as_index=False, sort=False).min()
