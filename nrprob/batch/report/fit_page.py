"""Write the HTML page of the fits of one data set of n rows."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nrprob.batch import registry
from nrprob.batch.fit_result import FitResult
from nrprob.batch.fits import combine_views, package_versions
from nrprob.batch.report.fit_summary import (
    Distribution,
    answer_in_words,
    compare_cluster,
    compare_shares,
    describe_gap,
    describe_logarithms,
    summarize_feature,
)
from nrprob.batch.report.template import render
from nrprob.data.annotated import has_counts
from nrprob.data.feature_types import kind_of
from nrprob.data.frames import is_frame
from nrprob.data.preparation.columns import is_binary
from nrprob.data.preparation.prepare import Prepared, as_indicators
from nrprob.evidence.inputs import has_confidence, reason_without_test
from nrprob.evidence.record import Evidence
from nrprob.statistics.table_units import TableUnits, format_numbers
from nrprob.statistics.top_features import (
    Crossing,
    TopFeatures,
    cross_labels,
    features_in_turn,
    find_nearest_counts,
    find_top_features,
)

__all__ = ["Chapter", "write_page"]

_MAX_CLUSTERS = 20  # number of largest clusters whose features and examples are shown
_MAX_GROUPS = 20  # number of groups of a labeling; smaller groups are merged
_MAX_FEATURES = 8
_MAX_DISTRIBUTIONS = 6
_MAX_VALUES = 4  # maximum number of columns that describe an example row
_TYPES = {"jpg": "jpeg", "svg": "svg+xml"}


class Chapter:
    """Chapter of a page about one clustering: the first fit of a data set of n rows.

    Attributes
    ----------
    run : the data set with its fits
    fit : the first fit
    pictures : data URI, text alternative and caption of each plot, and whether it is too wide for
        telephones
    planes : data URI, text alternative and caption of plots of the samples
    evidence : sentences with the results of the tests, except for ``test``
    test : test of the clusters; None without a test
    confidence : bootstrap confidence of every cluster; None if it was not computed
    method : entry of the method in `nrprob.batch.registry`; None for a method without an entry
    has_known : whether there is known structure
    is_informed : whether the fit is conditioned on the known structure
    finds_number : whether the fit has estimated the number of clusters
    fitted : (n,) mask of the rows that have a cluster
    codes : clusters of the rows in ``fitted`` as integers; with views, every combination of
        clusters of all views counts as a cluster
    sizes : sizes of the clusters
    clusters, cluster_names : integers and names of the clusters that the page shows
    cluster_titles : the same names, after the word "cluster" if the user has not named the cluster
    hidden : number of clusters that the page does not show, and number of their rows
    memberships : for every cluster, the mean over its rows of the largest membership; None without
        memberships
    """

    def __init__(self, run: FitResult, test: Evidence | None = None):
        self.run, self.fit, tested = run, run.fits[0], run.tested
        self.pictures: list[tuple[str, str, str, bool]] = []
        self.test = test if tested is None else tested.evidence
        sentences = () if tested is None else tested.said
        # The first sentence is about the test.
        self.evidence = sentences if self.test is None else sentences[1:]
        self.confidence = None
        self.planes: list[tuple[str, str, str]] = []
        if tested is not None and tested.confidence is not None:
            self.confidence = np.asarray(tested.confidence.clusters_)
        self.title = run.title or self.fit.title
        methods = (m for m in registry.METHODS.values() if m.class_name == self.fit.method)
        is_external = "." in self.fit.method
        self.method = registry.find_method(self.fit.method) if is_external else next(methods, None)
        self.has_known = bool(run.known) or run.measured is not None
        takes_known = self.method is None or bool(self.method.capabilities.known)
        self.is_informed = self.has_known and takes_known
        counts = [self.fit.parameters.get(name) for name in ("n_clusters", "n_components")]
        self.finds_number = all(count is None or isinstance(count, str) for count in counts)
        # Clusters of the fitted rows: their sizes, and the largest clusters, which are shown.
        labels = self.fit.labels
        self.fitted = labels.reshape(len(labels), -1)[:, 0] >= 0
        labels = labels[self.fitted]
        self.codes = combine_views(labels)
        self.sizes = np.bincount(self.codes)
        largest = np.argsort(-self.sizes, kind="stable")[:_MAX_CLUSTERS]
        self.clusters: list[int] = sorted(c for c in largest.tolist() if self.sizes[c])
        first = [np.atleast_1d(labels[np.argmax(self.codes == c)]) for c in self.clusters]
        self.cluster_names = [", ".join(map(str, views.tolist())) for views in first]
        if self.fit.labels.ndim == 1:
            self.cluster_names = [run.name_cluster(int(views[0])) for views in first]
        self.cluster_titles = [f"cluster {name}" for name in self.cluster_names]
        if self.fit.labels.ndim == 1:
            self.cluster_titles = [run.title_cluster(int(views[0])) for views in first]
        n_hidden = int((self.sizes > 0).sum()) - len(self.clusters)
        self.hidden = n_hidden, int(self.sizes.sum() - self.sizes[self.clusters].sum())
        self.memberships: list[float] | None = None
        if self.fit.membership is not None:
            largest = np.fmax.reduce(np.asarray(self.fit.membership), axis=1)[self.fitted]
            self.memberships = [float(largest[self.codes == c].mean()) for c in self.clusters]

    @property
    def prepared(self) -> dict[str, Any]:
        """How the rows were prepared, from the provenance; empty if unknown."""
        return self.run.origin.get("prepared", {})

    def add_clusters(self, picture: bytes, name: str) -> None:
        """Add the plot of the clusters to the page, unless it is a PDF file.

        ``picture`` is the content of the file, and ``name`` its name.
        """
        groups = f"the groups of {self.run.known[0]}" if self.run.known else "all rows"
        unit = "colours, in standard deviations from the mean"
        unit = "images" if self.run.table.image_shape else unit
        caption = (
            f"First, means of {groups} and of the clusters as {unit}; then, the number of rows of "
            "each group in each cluster, which are also in a table below."
        )
        suffix = Path(name).suffix[1:]
        if suffix != "pdf":
            content = f"Means and numbers of rows of clusters and {groups}"
            self._add_picture(picture, suffix, content, caption, True)

    def add_evidence(self, picture: bytes) -> None:
        """Add the plot of the test to the page; ``picture`` is the content of a PNG file."""
        assert self.test is not None
        caption = f"Rows by known group. {describe_gap(self.test, self.run.title_cluster)}"
        self._add_picture(picture, "png", "Rows by cluster and known group", caption)

    def add_planes(self, pictures: Sequence[bytes]) -> None:
        """Add the plots of the samples by known group and by cluster, which are PNG files."""
        known = ", ".join(self.run.known)
        adjusted = f", adjusted for {known}" if known else ""
        captions = [f"The same rows by {known}.", f"Rows{adjusted}, by cluster."]
        for picture, caption in zip(pictures[::-1], captions[::-1], strict=False):
            image = base64.b64encode(picture).decode()
            text = f"{self.title}. Plane that separates the clusters. {caption}"
            self.planes.append((f"data:image/png;base64,{image}", text, caption))

    def _add_picture(
        self, picture: bytes, suffix: str, content: str, caption: str, is_wide: bool = False
    ) -> None:
        image = base64.b64encode(picture).decode()
        text = f"{self.title}. {'. '.join([content, *self.describe_clusters()])}."
        uri = f"data:image/{_TYPES.get(suffix, suffix)};base64,{image}"
        self.pictures.append((uri, text, caption, is_wide))

    @cached_property
    def crossings(self) -> list[tuple[bool, Crossing]]:
        """For every labeling, whether it is known, and the contingency table with the clusters."""
        return [
            (
                name in self.run.known,
                cross_labels(
                    name, np.asarray(z)[self.fitted], self.codes, self.clusters, _MAX_GROUPS
                ),
            )
            for name, z in self.run.table.labelings.items()
        ]

    def describe_clusters(self, n_clusters: int = 6) -> list[str]:
        """Describe the largest clusters by their sizes and their most frequent known groups.

        Returns one text for each of at most ``n_clusters`` clusters.
        """
        order = sorted(range(len(self.clusters)), key=lambda i: -self.sizes[self.clusters[i]])
        crossing = next((crossing for known, crossing in self.crossings if known), None)
        sentences = []
        for i in order[:n_clusters]:
            text = f"Cluster {self.cluster_names[i]}: {self.sizes[self.clusters[i]]} rows"
            if crossing is not None:
                group = int(crossing.counts[i].argmax())
                text += f", {crossing.counts[i][group]} of them in {crossing.groups[group]}"
            sentences.append(text)
        return sentences

    @property
    def known_groups(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """Known labelings of all rows, with the sizes of their groups."""
        result = []
        for name in self.run.known:
            labels = np.asarray(self.run.table.labelings[name])
            groups = cross_labels(name, labels, np.zeros(len(labels), int), [0], _MAX_GROUPS)
            result.append((name, [*zip(groups.groups, groups.counts[0].tolist(), strict=True)]))
        return result

    @cached_property
    def features(self) -> TopFeatures | None:
        """Features that distinguish the clusters; None for a single cluster."""
        if len(self.clusters) < 2:
            return None
        known = [self.run.table.labelings[name][self.fitted] for name in self.run.known]
        codes = [np.unique(labels, return_inverse=True)[1].ravel() for labels in known]
        groups = combine_views(np.stack(codes, 1)) if codes else np.zeros(len(self.codes), int)
        X, measured = self.described.X, self.run.measured
        X = X if self.fitted.all() else X[self.fitted]
        measured = None if measured is None else measured[self.fitted]
        arguments = X, self.codes, self.clusters, groups, measured
        result = find_top_features(*arguments)
        if not self.are_counts:
            return result
        return replace(result, nearest=find_nearest_counts(*arguments))

    @cached_property
    def are_counts(self) -> bool:
        """Whether the features are counts, whose sum differs between rows without a meaning.

        A method for mixed tables models every column separately, so that its features do not count.
        """
        X, method = self.run.table.X, self.method
        if is_frame(X) or (method is not None and method.capabilities.mixed):
            return False
        return kind_of(X) == "counts" and has_counts(X)

    @cached_property
    def described(self) -> Prepared:
        """The features as numbers, with a binary column for every value of a text column."""
        table = self.run.table
        indicators = self.prepared.get("indicators", {})
        if is_frame(table.X):
            ready = as_indicators(table.X)
            return replace(ready, indicators_=indicators | ready.indicators_)
        names = table.feature_names
        if names is None:
            names = [f"feature {j}" for j in range(table.X.shape[1])]
        rows = np.arange(table.X.shape[0])
        return Prepared(table.X, None, [*map(str, names)], rows, indicators_=indicators)

    @cached_property
    def about_tests(self) -> str:
        """Sentence on how to test clusters that were not tested, or on why they have no test."""
        if self._estimator is not None:
            reason = reason_without_test(self._estimator, self.run.table.X)
            if reason:
                return f"The clusters were not tested. These clusters have no test: {reason}."
        return (
            "The clusters were not tested. To test clusters of a table, use the option --test, or "
            "nrprob.evidence.test in Python."
        )

    @property
    def about_memberships(self) -> str:
        """Sentences on the meaning of the memberships, and on bootstrap confidences."""
        estimator, texts = self._estimator, [self._meaning_of_memberships()]
        confident = estimator is not None and has_confidence(estimator, self.run.table.X)
        if self.run.tested is None and confident:
            texts.append(
                "nrprob.evidence.confidence computes the confidence of rows over refits to "
                "resampled rows."
            )
        return " ".join(texts)

    def _meaning_of_memberships(self) -> str:
        if self.fit.membership is None:
            return "The method gives no memberships."
        if self.fit.posterior:
            return (
                "Memberships are averages over the draws of the posterior, for the clusters of the "
                "point estimate."
            )
        if self.method is not None and self.method.capabilities.votes:
            return (
                "A membership is the weighted share of the clusterings of the ensemble that assign "
                "the row to the cluster. Memberships measure the agreement of these clusterings, "
                "and are not probabilities of the clusters."
            )
        if np.isin(np.asarray(self.fit.membership)[self.fitted], (0, 1)).all():
            return "All memberships are 0 or 1, so they do not show which rows are uncertain."
        return (
            "Memberships are conditional on the centres of this one fit, and overconfident where "
            "clusters overlap."
        )

    @cached_property
    def _estimator(self) -> Any:
        """Unfitted estimator of the fit; None for a method without an entry."""
        if self.method is None:
            return None
        parameters = self.fit.parameters
        names = parameters.keys() & self.method.parameters
        return self.method.load()(**{name: parameters[name] for name in names})

    @property
    def known_names(self) -> list[str]:
        """Names of known labelings and of known continuous covariates."""
        covariates = [n for n in self.prepared.get("known", []) if n not in self.run.known]
        return [*self.run.known, *covariates]

    @property
    def answer(self) -> list[str]:
        """Sentences that state the result of the fit; see `answer_in_words`."""
        if not self.clusters:
            return []
        texts = [""] * len(self.clusters)
        if (features := self.features) is not None:
            arguments = self.described.feature_names_, self.units, self.known_names
            texts = [compare_cluster(features, i, *arguments) for i in range(len(self.clusters))]
        sizes = [int(self.sizes[c]) for c in self.clusters]
        clusters = dict(zip(self.cluster_titles, zip(sizes, texts, strict=True), strict=True))
        return answer_in_words(
            clusters, self.known_names, self.is_informed, self.test, self.hidden,
            self._compare_shares(), self.fit.posterior_in_words,
        )  # fmt: skip

    def _compare_shares(self) -> str:
        """Sentence on shares of clusters that differ between the groups of a known labeling."""
        texts = (
            compare_shares(crossing, self.cluster_titles)
            for is_known, crossing in self.crossings
            if is_known and not crossing.joined
        )
        return next(filter(None, texts), "")

    @property
    def distributions(self) -> list[Distribution]:
        """Distributions of the features that distinguish each cluster most, in turn."""
        features, described = self.features, self.described
        if features is None or self.run.table.image_shape:
            return []
        result = []
        for j in features_in_turn(np.abs(features.differences), _MAX_DISTRIBUTIONS).tolist():
            name, column = described.feature_names_[j], described.X[:, [j]]
            column = column.toarray() if hasattr(column, "toarray") else np.asarray(column)
            column = self.units.restore(name, column)[self.fitted, 0]
            label = self.units.label(name)
            is_share = name in self.units.indicators or (label == name and {*column} <= {0, 1})
            result.append(summarize_feature(label, column, self.codes, self.clusters, is_share))
        return result

    @property
    def kinds(self) -> list[str]:
        """Texts that list the columns of every type, except for numbers, and with missing values.

        Examples are "count: visits" and "missing values: age (3)".
        """
        names: dict[str, list[str]] = {}
        for name, kind in self.prepared.get("kinds", {}).items():
            if kind != "number":
                names.setdefault(kind, []).append(name)
        if is_frame(X := self.run.table.X):
            missing = X.isna().sum()
            names["missing values"] = [f"{n} ({k})" for n, k in missing.items() if k]
        return [f"{kind}: {', '.join(columns)}" for kind, columns in names.items() if columns]

    def profile(self, i: int) -> str:
        """Describe cluster ``i`` by the columns in which it differs most from all other rows."""
        assert self.features is not None
        return self.features.describe(i, self.described.feature_names_, self.units)

    @property
    def profiles(self) -> dict[str, str]:
        """Texts of `profile` by name of the cluster, without clusters with an empty text."""
        if self.features is None:
            return {}
        texts = {name: self.profile(i) for i, name in enumerate(self.cluster_names)}
        return {name: text for name, text in texts.items() if text}

    @cached_property
    def units(self) -> TableUnits:
        """Units of the features; columns of 0 and 1 without a unit count as indicators."""
        X, names, prepared = self.described.X, self.described.feature_names_, self.prepared
        other = [prepared.get(key, {}) for key in ("scales", "logarithms", "units")]
        indicators = dict(self.described.indicators_)
        for j, name in enumerate(names if isinstance(X, np.ndarray) else []):
            if not any(name in named for named in (indicators, *other)) and is_binary(X[:, j]):
                indicators[name] = (name, "0", "1")
        return TableUnits(indicators, *other)

    @property
    def about_logarithms(self) -> str:
        """Sentences about columns modelled as logarithms; empty without such columns."""
        return describe_logarithms(self.units)

    def top_features(self, i: int) -> list[tuple[str, float, list[str]]]:
        """Features that distinguish cluster ``i`` most.

        Each is a tuple: label, difference in standard deviations, and the texts of the mean of the
        cluster and the mean of all other rows.
        """
        features, units = self.features, self.units
        assert features is not None
        result = []
        for j in features.most_different(i, _MAX_FEATURES).tolist():
            name, difference = self.described.feature_names_[j], features.differences[i, j]
            label = units.label(name) + ", geometric mean" * (name in units.logarithms)
            means = units.format_means(name, (features.inside[i, j], features.outside[i, j]))
            result.append((label, float(difference), means))
        return result

    def is_mirrored(self, i: int) -> bool:
        """Whether cluster ``i`` is the second of two, so that it needs no table of differences.

        The differences of the second cluster are the differences of the first with opposite signs.
        """
        return i == 1 and len(self.clusters) == 2 and not self.hidden[0]

    def examples(self, i: int) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Typical rows of cluster ``i``.

        Returns the names of the columns in which the cluster differs most. Returns also, for every
        row near the centre of the cluster, the name of the row and the values of these columns.
        """
        features, table, described = self.features, self.run.table, self.described
        assert features is not None
        order = features.most_different(i, len(described.feature_names_))
        nearest = np.flatnonzero(self.fitted)[features.nearest[i]]
        rows = nearest if table.row_names is None else table.row_names[nearest]
        sources = [self._source(j) for j in order.tolist()]
        columns = [*dict.fromkeys(sources)][:_MAX_VALUES]
        names = [self.units.label(name) for name, _ in columns]
        values = [self._values(name, j, nearest) for name, j in columns]
        cells = [list(row) for row in zip(*values, strict=True)] or [[] for _ in rows]
        return names, [*zip(map(str, rows), cells, strict=True)]

    def _source(self, j: int) -> tuple[str, int]:
        """Column of the table from which feature ``j`` was made, and index of the feature.

        The index is -1 if the column is text.
        """
        name, table = self.described.feature_names_[j], self.run.table
        if is_frame(table.X) and name not in table.X:
            return self.described.indicators_[name][0], -1
        return name, j

    def _values(self, name: str, j: int, rows: np.ndarray) -> list[str]:
        """Texts of the values of a column in the rows ``rows``, in the unit of the table.

        ``name`` and ``j`` are the column and the index of its feature, from `_source`.
        """
        X = self.run.table.X
        if j < 0:
            return ["missing" if value != value else str(value) for value in X[name].iloc[rows]]
        values = self.described.X[rows][:, [j]]
        values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
        return format_numbers(self.units.restore(name, values)[:, 0])


def write_page(chapters: Sequence[Chapter], title: str = "", ending: str = "") -> str:
    """Return the HTML page about clusterings of one data set, one chapter per clustering.

    The data and the command are described from the first chapter. ``ending`` is the reason why an
    exploration ended, or empty.
    """
    run = chapters[0].run
    files = run.origin.get("files", {})
    known = ", ".join(chapters[0].known_names)
    subject = " of ".join(["Clusters", *(Path(file).name for file in [*files][:1])])
    return render(
        "fit_page.html.jinja",
        title=title or (f"{subject} beyond {known}" if known else subject),
        chapters=chapters,
        files=files | run.origin.get("model_file", {}),
        prepared=chapters[0].prepared,
        warned=run.origin.get("warnings", []),
        command=run.origin.get("command"),
        ending=ending,
        versions=package_versions(),
    )
