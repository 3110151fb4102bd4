"""HTML page of the fits of one data set."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nrprob.batch import registry
from nrprob.batch.fit_result import FitResult
from nrprob.batch.fits import Fit, combined, versions
from nrprob.batch.registry import Method
from nrprob.batch.report.template import render
from nrprob.statistics.top_features import Crossing, Findings, cross_labels, find_top_features

__all__ = ["Chapter", "page", "source"]

_CLUSTERS = 20  # the largest, of which features and examples are shown
_GROUPS = 20  # of a labeling, that are told apart
_FEATURES = 8
_VALUES = 4  # of an example
_TYPES = {"jpg": "jpeg", "svg": "svg+xml"}


def source(picture: bytes, kind: str) -> str:
    """Address of an image that holds it; empty for what no page can show, or for nothing."""
    if not picture or kind == "pdf":
        return ""
    return f"data:image/{_TYPES.get(kind, kind)};base64,{base64.b64encode(picture).decode()}"


@dataclass
class Chapter:
    """One clustering as it stands on a page.

    Attributes
    ----------
    run : the data set and its fits, of which the first is shown
    pictures : addresses of images, what is seen on each, and how to read it
    evidence : what tests of it said, in sentences; empty where there were none
    """

    run: FitResult
    pictures: list[tuple[str, str, str]] = field(default_factory=list)
    evidence: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.run.tested is not None:
            self.evidence = self.run.tested.said

    def add_evidence(self, picture: bytes) -> None:
        """Show the picture of a test, a PNG."""
        told = (
            "Rows along the direction that tells clusters apart, by known group, each where a fit "
            "that has not seen it puts it; grey is the valley between clusters."
        )
        seen = f"{self.title}. Rows by cluster and known group. {'. '.join(self.sights())}."
        self.pictures.append((source(picture, "png"), seen, told))

    @property
    def confidence(self) -> np.ndarray | None:
        """How sure the rows of every cluster are over refits, where that was asked and is said."""
        tested = self.run.tested
        if tested is None or tested.confidence is None:
            return None
        return np.asarray(tested.confidence.clusters_)

    @property
    def fit(self) -> Fit:
        """The fit that is shown."""
        return self.run.fits[0]

    @property
    def title(self) -> str:
        """What it is called among others."""
        return self.run.title or self.fit.title

    @property
    def prepared(self) -> dict[str, Any]:
        """What was done to the rows before the fit."""
        return self.run.origin.get("prepared", {})

    @property
    def method(self) -> Method | None:
        """Its method, if it is one that model files know."""
        name = self.fit.method
        if "." in name:
            return registry.method(name)
        return next((m for m in registry.METHODS.values() if m.class_name == name), None)

    @property
    def informed(self) -> bool:
        """Whether something was known, and its method was told of it."""
        something = bool(self.run.known) or self.run.measured is not None
        return something and (self.method is None or bool(self.method.capabilities.known))

    @property
    def finds_number(self) -> bool:
        """Whether the fit found how many clusters there are, and was not told."""
        told = [self.fit.parameters.get(name) for name in ("n_clusters", "n_components")]
        return all(number is None or isinstance(number, str) for number in told)

    @cached_property
    def fitted(self) -> np.ndarray:
        """Rows (n,) that have a cluster."""
        return self.fit.labels.reshape(len(self.fit.labels), -1)[:, 0] >= 0

    @cached_property
    def codes(self) -> np.ndarray:
        """Clusters of the fitted rows, or the combinations of those of all views."""
        return combined(self.fit.labels[self.fitted])

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows of every cluster."""
        return np.bincount(self.codes)

    @cached_property
    def clusters(self) -> list[int]:
        """The clusters that are shown."""
        largest = np.argsort(-self.sizes, kind="stable")[:_CLUSTERS]
        return sorted(c for c in largest.tolist() if self.sizes[c])

    @cached_property
    def names(self) -> list[str]:
        """Names of the clusters that are shown."""
        labels = self.fit.labels[self.fitted]
        first = [labels[np.argmax(self.codes == cluster)] for cluster in self.clusters]
        return [", ".join(map(str, np.atleast_1d(label).tolist())) for label in first]

    @property
    def left(self) -> tuple[int, int]:
        """How many clusters are not shown, and how many rows these have."""
        rows = int(self.sizes.sum() - self.sizes[self.clusters].sum())
        return int((self.sizes > 0).sum()) - len(self.clusters), rows

    @property
    def memberships(self) -> list[float] | None:
        """Of every cluster shown, the mean of its rows' largest membership; None without any."""
        if self.fit.membership is None:
            return None
        largest = np.fmax.reduce(np.asarray(self.fit.membership), axis=1)[self.fitted]
        return [float(largest[self.codes == cluster].mean()) for cluster in self.clusters]

    @cached_property
    def crossings(self) -> list[tuple[bool, Crossing]]:
        """Clusters against every labeling, and whether that was known."""
        result = []
        for name, labels in self.run.table.labelings.items():
            own = np.asarray(labels)[self.fitted]
            crossing = cross_labels(name, own, self.codes, self.clusters, _GROUPS)
            result.append((name in self.run.known, crossing))
        return result

    def sights(self, most: int = 6) -> list[str]:
        """Of the largest clusters, how many rows they have, and in which known group most are."""
        order = sorted(range(len(self.clusters)), key=lambda at: -self.sizes[self.clusters[at]])
        crossing = next((crossing for known, crossing in self.crossings if known), None)
        result = []
        for place in order[:most]:
            text = f"Cluster {self.names[place]}: {self.sizes[self.clusters[place]]} rows"
            if crossing is not None:
                counts = crossing.counts[place]
                group = int(counts.argmax())
                text += f", {counts[group]} of them in {crossing.groups[group]}"
            result.append(text)
        return result

    @property
    def known(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """What was known of all rows: every labeling, with its groups and their sizes."""
        result = []
        for name in self.run.known:
            labels = np.asarray(self.run.table.labelings[name])
            groups = cross_labels(name, labels, np.zeros(len(labels), int), [0], _GROUPS)
            result.append((name, [*zip(groups.groups, groups.counts[0].tolist(), strict=True)]))
        return result

    @cached_property
    def features(self) -> Findings | None:
        """What tells the clusters apart; None for a single one."""
        if len(self.clusters) < 2:
            return None
        known = [self.run.table.labelings[name][self.fitted] for name in self.run.known]
        groups = [np.unique(labels, return_inverse=True)[1].ravel() for labels in known]
        number = combined(np.stack(groups, 1)) if groups else np.zeros(len(self.codes), int)
        measured = self.run.measured
        return find_top_features(
            self.run.table.X if self.fitted.all() else self.run.table.X[self.fitted],
            self.codes,
            self.clusters,
            number,
            None if measured is None else measured[self.fitted],
        )

    def name(self, feature: int) -> str:
        """Name of a feature."""
        names = self.run.table.feature_names
        return f"feature {feature}" if names is None else str(names[feature])

    def telling(self, place: int) -> list[tuple[str, float, float, float]]:
        """Of the cluster at a place: features, their differences, and means within and without."""
        features = self.features
        assert features is not None
        shown = features.most_different(place, _FEATURES)
        names = [self.name(j) for j in shown]
        differences = features.differences[place, shown].tolist()
        means = (features.inside[place, shown], features.outside[place, shown])
        inside, outside = (self._in_units(names, part).tolist() for part in means)
        return [*zip(names, differences, inside, outside, strict=True)]

    def mirrored(self, place: int) -> bool:
        """Whether a cluster is the other one of two, so that its differences are known."""
        return place == 1 and len(self.clusters) == 2 and not self.left[0]

    def _in_units(self, names: Sequence[str], values: np.ndarray) -> np.ndarray:
        """Values (..., m) of some features in the units that the table came in."""
        scales = self.prepared.get("scales", {})
        mean, deviation = np.array([scales.get(n, (0.0, 1.0)) for n in names]).reshape(-1, 2).T
        return np.asarray(values) * deviation + mean

    def examples(self, place: int) -> tuple[list[str], list[tuple[str, list[float]]]]:
        """Of the cluster at a place: names of some features, and rows with their values."""
        features, table = self.features, self.run.table
        assert features is not None
        shown = features.most_different(place, _VALUES)
        nearest = np.flatnonzero(self.fitted)[features.nearest[place]]
        rows = nearest if table.row_names is None else table.row_names[nearest]
        cells = table.X[nearest][:, shown]
        names = [self.name(j) for j in shown]
        values = cells.toarray() if hasattr(cells, "toarray") else np.asarray(cells)
        values = self._in_units(names, values).tolist()
        return names, [*zip(map(str, rows), values, strict=True)]


def page(chapters: Sequence[Chapter], title: str = "", ending: str = "") -> str:
    """Write the page of some clusterings of one data set.

    Parameters
    ----------
    chapters : the clusterings; what the first says of the data and of the command holds for all
    title : of the page; by default what it is about
    ending : why there are no more
    """
    run = chapters[0].run
    files = run.origin.get("files", {})
    numbers = [n for n in chapters[0].prepared.get("known", []) if n not in run.known]
    told = ", ".join([*run.known, *numbers])
    what = " of ".join(["Clusters", *(Path(file).name for file in [*files][:1])])
    return render(
        "found.html.jinja",
        title=title or (f"{what} beyond {told}" if told else what),
        chapters=chapters,
        files=files | run.origin.get("model_file", {}),
        prepared=chapters[0].prepared,
        warned=run.origin.get("warnings", []),
        command=run.origin.get("command"),
        ending=ending,
        versions=versions(),
    )
