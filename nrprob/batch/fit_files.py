"""Write the files of a fit or an exploration: labels, a summary, a page and plots."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.batch.fit_result import FitResult
from nrprob.batch.fits import Fit, cluster_sizes, combine_views, package_versions, record_fit
from nrprob.batch.formats import (
    EVIDENCE,
    LABELS,
    PAGE,
    PICTURE,
    SUMMARY,
    results_in,
    with_labelings,
    write_csv,
)
from nrprob.batch.manifest import write_files
from nrprob.batch.report.fit_page import Chapter, write_page
from nrprob.batch.report.sample_plane import draw_sample_plane
from nrprob.batch.splits import PARTS
from nrprob.batch.tables import take_rows
from nrprob.files import make_folder
from nrprob.successive import Exploration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_clusters", "save_exploration", "save_fit", "save_labels"]

# Axis of the plot of a test, for readers who do not know discriminants.
_AXIS = "position (standard deviations within clusters)"
_PLAIN_TEXT = {"text.parse_math": False}  # a dollar in a column name is no formula
# Entries of the summary of a clustering within an exploration.
_OF_CLUSTERING = ("method", "parameters", "n_clusters", "cluster_sizes", "objective", "scores")


def _as_json(value: Any) -> Any:
    """Convert a value to a type that JSON can represent; unsuitable values become text."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _summarize_fit(fit: Fit) -> dict[str, Any]:
    """Entries of ``result.json`` about one fit."""
    return {
        "title": fit.title,
        "method": fit.method,
        "parameters": {k: _as_json(v) for k, v in fit.parameters.items()},
        "seed": _as_json(fit.parameters.get("random_state")),
        "objective": None if np.isnan(fit.objective) else fit.objective,
        "n_clusters": fit.n_clusters,
        "cluster_sizes": cluster_sizes(fit.labels),
        "converged": fit.converged,
        "n_iter": fit.n_iter,
        "seconds": round(fit.seconds, 4),
        "warnings": fit.warnings,
        "scores": fit.scores,
        **({} if fit.posterior is None else {"posterior": fit.posterior}),
    }


def _summarize_clustering(fit: Fit, evidence: Any, result: FitResult | None) -> dict[str, Any]:
    """Summarize one clustering of an exploration, as an entry of ``result.json``.

    ``evidence`` is the significance test of the clustering in the search, or None. ``result`` has
    scores, warnings and later tests; it is None for the clustering that the exploration rejected.
    """
    summary = {name: _summarize_fit(fit)[name] for name in _OF_CLUSTERING}
    if result is None:
        del summary["scores"]
    else:
        summary |= _named_clusters(result)
        if result.alert:
            summary["warnings"] = [result.alert]
    if result is not None and (tested := result.tested) is not None:
        evidence = tested.evidence
        confidence = tested.summary.get("confidence")
        summary |= {"said": list(tested.said), "confidence": confidence}
    if evidence is not None:
        p_values = {"p_structure": evidence.p_structure_, "p_gap": evidence.p_gap_}
        summary |= {**p_values, "evidence": str(evidence)}
    return summary


def _view_columns(name: str, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of a CSV file by name: one for labels (n,), or one per view for labels (n, V)."""
    if labels.ndim == 1:
        return {name: labels}
    return {f"{name}_{v}": column for v, column in enumerate(labels.T)}


def _name_column(result: FitResult, name: str) -> dict[str, list[str]]:
    labels = result.fits[0].labels
    if not result.cluster_names or labels.ndim > 1:
        return {}
    return {name: [result.name_cluster(c) for c in labels.tolist()]}


def _named_clusters(result: FitResult) -> dict[str, list[str]]:
    return {"cluster_names": result.cluster_names} if result.cluster_names else {}


def _confidence_column(result: FitResult, name: str) -> dict[str, np.ndarray]:
    if result.tested is None or result.tested.confidence is None:
        return {}
    return {name: np.round(np.asarray(result.tested.confidence.samples_), 6)}


def save_fit(result: FitResult, out: Path, picture: str | None = PICTURE) -> None:
    """Write ``labels.csv``, ``result.json``, ``report.html`` and the plots of a fit to ``out``.

    The labels and the summary are written first, so that an interrupt during the plots does not
    lose them. ``picture`` is the file name of the plot of the clusters; empty or None for no plots.
    """
    files = save_labels(result, out)
    chapter = Chapter(result)
    result.profiles = chapter.profiles
    pictures = _draw_chapter(chapter, picture, EVIDENCE)
    result.files = files + _write_page(out, write_page([chapter], result.title), pictures)


def save_labels(result: FitResult, out: Path) -> list[Path]:
    """Write ``labels.csv`` and ``result.json`` of a fit to ``out``; return their paths.

    The page and the plots of an earlier fit are removed from ``out``.
    """
    fit = result.fits[0]
    columns: dict[str, Any] = _view_columns("cluster", fit.labels)
    columns |= _name_column(result, "cluster_name")
    if fit.membership is not None:
        columns["membership"] = np.round(np.fmax.reduce(np.asarray(fit.membership), axis=1), 6)
    columns |= _confidence_column(result, "confidence")
    if fit.labelled is not None:
        columns["labelled"] = fit.labelled.astype(int)
    if fit.part is not None:
        names = {code: name for name, code in PARTS.items()}
        columns["part"] = [names.get(code, "") for code in fit.part.tolist()]
    if fit.predicted is not None:
        columns |= _view_columns("predicted", fit.predicted)
    summary = {
        **_summarize_fit(fit),
        "title": result.title,
        "warnings": [*filter(None, [result.alert]), *fit.warnings],
        **({} if result.tested is None else result.tested.summary),
        **_named_clusters(result),
        "contrast": [_summarize_fit(other) for other in result.fits[1:]],
    }
    return _write_labels(result, out, columns, summary)


def save_exploration(
    solution: Exploration, results: Sequence[FitResult], out: Path, pictures: bool
) -> list[Path]:
    """Write the files of an exploration, with or without plots; return their paths.

    ``results`` are the accepted clusterings, from `nrprob.batch.fit_result.exploration_results`.
    """
    names = [f"clustering_{r + 1}" for r in range(len(results))]
    columns: dict[str, Any] = dict(zip(names, solution.labels_.T, strict=True))
    evidence = solution.evidence_ or [None] * len(names)
    for r, (name, result) in enumerate(zip(names, results, strict=True), 1):
        columns |= _name_column(result, f"{name}_name")
        columns |= _confidence_column(result, f"confidence_{r}")
    rejected = None
    if solution.rejected_ is not None:
        estimator, test = solution.rejected_
        fit = record_fit(type(estimator).__name__, estimator, 0.0, [])
        rejected = _summarize_clustering(fit, test, None)
    summary = {
        "clusterings": [
            _summarize_clustering(result.fits[0], test, result)
            for test, result in zip(evidence, results, strict=True)
        ],
        "rejected": rejected,
        "reason": solution.reason_,
        "information": solution.table.to_dict(),
    }
    files = _write_labels(results[0], out, columns, summary)
    # Write the plots and the page after the labels, so that an interrupt does not lose the labels.
    chapters, drawings = [], dict[str, bytes]()
    for name, result, test in zip(names, results, evidence, strict=True):
        chapter = Chapter(result, test)
        if pictures:
            drawings |= _draw_chapter(chapter, f"{name}.png", f"{name}_evidence.png", test)
        chapters.append(chapter)
    return files + _write_page(out, write_page(chapters, ending=solution.reason_), drawings)


def _write_labels(
    result: FitResult, out: Path, columns: Mapping[str, Any], summary: Mapping[str, Any]
) -> list[Path]:
    """Write labels and summary to the folder ``out``; return the paths.

    The page and the plots of an earlier fit are removed. Labelings and provenance of the data come
    from ``result``. ``columns`` are columns of the CSV file, and ``summary`` has entries of the
    JSON file.
    """
    n_samples, n_features = map(int, result.table.X.shape)
    rows = result.table.row_names
    columns = {"row": np.arange(n_samples) if rows is None else rows, **columns}
    labels = write_csv(with_labelings(columns, result.table.labelings))
    data = {"n_samples": n_samples, "n_features": n_features, "known": list(result.known)}
    summary = {**data, **result.origin, **summary, "versions": package_versions()}
    texts = (labels, json.dumps(summary, indent=2) + "\n")
    contents = {name: text.encode() for name, text in zip((LABELS, SUMMARY), texts, strict=True)}
    make_folder(out)
    for path in results_in(out):
        if path.name not in contents:
            path.unlink(missing_ok=True)
    write_files(out, contents)
    return [out / name for name in contents]


def _write_page(out: Path, page: str, pictures: Mapping[str, bytes]) -> list[Path]:
    """Write the HTML page and the plots to the folder ``out``; return the paths."""
    contents = {PAGE: page.encode(), **pictures}
    write_files(out, contents)
    return [out / name for name in contents]


def _draw_chapter(
    chapter: Chapter, name: str | None, evidence_name: str, evidence: Any = None
) -> dict[str, bytes]:
    """Plot the clusters and the test of one clustering, and add the plots to its chapter.

    Returns the contents of the plots by file name: ``name`` for the clusters, and ``evidence_name``
    for the test. ``evidence`` is the test by the search of `nrprob explore`; it is plotted if the
    chapter has no later test.
    """
    import matplotlib

    result, pictures = chapter.run, dict[str, bytes]()
    if name and (picture := draw_clusters(chapter, Path(name).suffix[1:])):
        pictures[name] = picture
        chapter.add_clusters(picture, name)
        if len(chapter.clusters) > 1:
            shown = chapter.codes
            if result.fits[0].labels.ndim > 1:
                titles = dict(zip(chapter.clusters, chapter.cluster_titles, strict=True))
                shown = np.array([titles.get(c, "other clusters") for c in shown.tolist()])
            else:
                shown = result.name_clusters(shown)
            table = result.table
            known = [table.labelings[z][chapter.fitted].astype(str) for z in result.known]
            X = take_rows(chapter.described.X, chapter.fitted)
            chapter.add_planes(
                draw_sample_plane(X, shown, np.column_stack(known) if known else None)
            )
    if result.tested is not None:
        evidence = result.tested.evidence
    if evidence is not None and pictures and np.isfinite(evidence.discriminant_score_).any():
        names = None
        if result.cluster_names:
            names = [result.title_cluster(c) for c in range(evidence.labels_.max() + 1)]
        with matplotlib.rc_context(_PLAIN_TEXT):
            ax = evidence.plot(cluster_names=names)
            ax.set_xlabel(_AXIS)
            title = ax.get_title().replace("sample", "row").replace("a score", "a position")
            ax.title.set_text(title)
            pictures[evidence_name] = _encode_figure(ax.figure, "png")
        chapter.add_evidence(pictures[evidence_name])
    return pictures


def draw_clusters(chapter: Chapter, suffix: str) -> bytes:
    """Plot the clusters of a chapter; return the content of an image file.

    ``suffix`` is the format, such as "png". The content is empty if no row has a cluster, or if
    there is neither a second cluster nor another labeling to compare.
    """
    import matplotlib

    from nrprob.plotting.centroids import draw_centroids

    result = chapter.run
    covariates = ", ".join(result.origin.get("prepared", {}).get("known", []))
    name = result.known[0] if result.known else covariates or "nothing"
    labels = result.fits[0].labels
    # With views, one row of the plot is a combination of their clusters.
    if not chapter.fitted.any():
        return b""
    table, labels = result.table.rows(chapter.fitted), combine_views(labels[chapter.fitted])
    if not table.labelings and (labels == labels[0]).all():
        return b""
    named = result.fits[0].labels.ndim == 1
    labelings = table.labelings
    known = labelings[name] if result.known else np.full(len(labels), "all rows")
    # Show at most three further labelings, which fit side by side, with at most 12 groups each.
    others = [key for key, z in labelings.items() if key != name and len(np.unique(z)) <= 12][:3]
    with matplotlib.rc_context(_PLAIN_TEXT):
        figure = draw_centroids(
            take_rows(chapter.described.X, chapter.fitted),
            result.name_clusters(labels) if named else labels,
            known,
            table.image_shape,
            chapter.described.feature_names_,
            labels_name=result.fits[0].title,
            known_name=name,
            others={key: labelings[key] for key in others},
            title=result.title or None,
            units=chapter.units,
        )
    return _encode_figure(figure, suffix)


def _encode_figure(figure: Figure, suffix: str) -> bytes:
    """Save a figure as an image file in memory and close the figure; return the content.

    ``suffix`` is the format, such as "png".
    """
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Letters that the font lacks appear as boxes; the HTML page shows the names correctly.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(buffer, format=suffix, dpi=110)
    plt.close(figure)
    return buffer.getvalue()
