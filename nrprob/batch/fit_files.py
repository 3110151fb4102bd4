"""Write the files of a single fit: labels, a summary and a plot."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.batch import registry
from nrprob.batch.csv_files import with_labelings, write_csv
from nrprob.batch.draws import PARTS
from nrprob.batch.fit_result import FitResult
from nrprob.batch.fits import Fit, cluster_sizes, combined, versions
from nrprob.batch.formats import EVIDENCE, PICTURE, RESULTS
from nrprob.batch.manifest import write_files
from nrprob.batch.plan import Plan
from nrprob.batch.provenance import as_key
from nrprob.batch.sources import load_data
from nrprob.files import make_folder

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


__all__ = ["NAMES", "as_file", "draw", "names", "plain", "read", "save", "seen"]

NAMES = {"text.parse_math": False}  # of matplotlib: a dollar in a column's name is a dollar


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _summary(fit: Fit) -> dict[str, Any]:
    return {
        "title": fit.title,
        "method": fit.method,
        "parameters": {k: plain(v) for k, v in fit.parameters.items()},
        "seed": plain(fit.parameters.get("random_state")),
        "objective": None if np.isnan(fit.objective) else fit.objective,
        "n_clusters": fit.n_clusters,
        "cluster_sizes": cluster_sizes(fit.labels),
        "converged": fit.converged,
        "n_iter": fit.n_iter,
        "seconds": round(fit.seconds, 4),
        "warnings": fit.warnings,
        "scores": fit.scores,
    }


def names(picture: str | None) -> list[str]:
    """Names of the files that `save` writes."""
    return [*RESULTS, *([picture] if picture else [])]


def save(run: FitResult, out: Path, picture: str | None = PICTURE) -> None:
    """Write ``labels.csv``, ``result.json``, ``report.html`` and the picture of a run."""
    import matplotlib

    from nrprob.batch.report import fit_page

    make_folder(out)
    fit = run.fits[0]
    named = run.table.row_names
    rows = named if named is not None else np.arange(len(fit.labels))
    columns: dict[str, Any] = {"row": rows, **_of_views("cluster", fit.labels)}
    if fit.membership is not None:
        columns["membership"] = np.round(np.fmax.reduce(np.asarray(fit.membership), axis=1), 6)
    if run.tested is not None and run.tested.confidence is not None:
        columns["confidence"] = np.round(np.asarray(run.tested.confidence.rows_), 6)
    if fit.labelled is not None:
        columns["labelled"] = fit.labelled.astype(int)
    if fit.part is not None:
        names = {number: name for name, number in PARTS.items()}
        columns["part"] = [names.get(number, "") for number in fit.part.tolist()]
    if fit.predicted is not None:
        columns |= _of_views("predicted", fit.predicted)
    table = write_csv(with_labelings(columns, run.table.labelings))

    result = {
        **_summary(fit),
        "title": run.title,
        "warnings": [*filter(None, [run.alert]), *fit.warnings],
        "n_samples": int(run.table.X.shape[0]),
        "n_features": int(run.table.X.shape[1]),
        "known": list(run.known),
        **run.origin,
        **({} if run.tested is None else run.tested.summary),
        "contrast": [_summary(other) for other in run.fits[1:]],
        "versions": versions(),
    }
    summary = json.dumps(result, indent=2) + "\n"
    pictures = {}
    if picture and (drawn := draw(run, Path(picture).suffix[1:])):
        pictures[picture] = drawn
    chapter = fit_page.Chapter(run, seen(run, pictures))
    if run.tested is not None and (evidence := run.tested.evidence) is not None and pictures:
        with matplotlib.rc_context(NAMES):
            pictures[EVIDENCE] = as_file(evidence.plot().figure, "png")
        chapter.add_evidence(pictures[EVIDENCE])
    page = fit_page.page([chapter], run.title)
    files = (table.encode(), summary.encode(), page.encode())
    contents = dict(zip(RESULTS, files, strict=True)) | pictures
    write_files(out, contents)
    run.files = [out / name for name in contents]


def _of_views(name: str, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of labels: one, or one for every view."""
    if labels.ndim == 1:
        return {name: labels}
    return {f"{name}_{v}": column for v, column in enumerate(labels.T)}


def draw(run: FitResult, kind: str) -> bytes:
    """Draw the clusters of the first fit, as a file of this kind; nothing where it has none."""
    import matplotlib

    from nrprob.plotting import plot_centroids

    measured = ", ".join(run.origin.get("prepared", {}).get("known", []))
    name = run.known[0] if run.known else measured or "nothing"
    labels = run.fits[0].labels
    # Of views, one row of the picture is a combination of their clusters.
    fitted = labels.reshape(len(labels), -1)[:, 0] >= 0
    if not fitted.any():
        return b""
    table, labels = run.table.rows(fitted), combined(labels[fitted])
    labelings = table.labelings
    known = labelings[name] if run.known else np.full(len(labels), "all rows")
    # Tables with more rows than this cannot be read; three is what fits beside each other.
    others = [key for key, z in labelings.items() if key != name and len(np.unique(z)) <= 12][:3]
    with matplotlib.rc_context(NAMES):
        figure = plot_centroids(
            table.X,
            labels,
            known,
            table.image_shape,
            table.feature_names,
            labels_name=run.fits[0].title,
            known_name=name,
            others={key: labelings[key] for key in others},
            title=run.title or None,
        )
    return as_file(figure, kind)


def seen(run: FitResult, pictures: Mapping[str, bytes]) -> list[tuple[str, str, str]]:
    """Of the pictures of `draw`: addresses that hold them, what is seen, and how to read them."""
    from nrprob.batch.report.fit_page import Chapter, source

    groups = f"the groups of {run.known[0]}" if run.known else "all rows"
    unit = "images" if run.table.image_shape else "profiles, in standard deviations from the mean"
    told = (
        f"First, means of {groups} and of the clusters as {unit}; then, how many rows of each "
        "group are in each cluster, which a table says as well."
    )
    sights = [f"Means and numbers of rows of clusters and {groups}", *Chapter(run).sights()]
    text = f"{run.title or run.fits[0].title}. {'. '.join(sights)}."
    addresses = (source(drawn, Path(file).suffix[1:]) for file, drawn in pictures.items())
    return [(one, text, told) for one in addresses if one]


def as_file(figure: Figure, kind: str) -> bytes:
    """Contents of a file of this kind that shows a figure, which is closed."""
    import matplotlib.pyplot as plt

    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # Letters that the font lacks are seen as boxes, and their names are on the page.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(drawn, format=kind, dpi=110)
    plt.close(figure)
    return drawn.getvalue()


def _rows(result: xarray.Dataset, name: str) -> np.ndarray | None:
    """Numbers of rows of one cell, by view if its method clusters views; None without any."""
    if f"view_{name}" in result:
        values = result[f"view_{name}"].values
        if (values >= 0).any():
            return values[:, (values >= 0).any(0)]
    return result[name].values if name in result else None


def read(plan: Plan, dataset: xarray.Dataset) -> FitResult:
    """Results of a plan with one data set and one fit of every method.

    Where something is known, a method that is told of it comes first.
    """
    model = plan.model
    table = load_data(model, plan.cells[0].data, plan.cells[0].seed)
    if model.measures:
        others = (one.labeling for one in (*model.drawn.values(), *model.measures.values()))
        shown = dict.fromkeys([*model.known_names, *filter(None, others)])
        table.labelings = {name: table.labelings[name] for name in shown}
    fits, names = [], dataset["measure"].values.tolist()
    # Methods of two titles and the same parameters share their fits.
    dataset = dataset.drop_duplicates("cell")
    cells = list(plan.cells)
    if model.known_names:
        cells.sort(key=lambda cell: not registry.method(cell.name).capabilities.known)
    for cell in cells:
        result = dataset.sel(cell=cell.id)
        estimator, kind = registry.make_estimator(cell.name, cell.parameters), cell.name
        if not isinstance(registry.method(kind), registry.Rival):
            kind = type(estimator).__name__
        labels = _rows(result, "labels")
        assert labels is not None
        fits.append(
            Fit(
                title=cell.method,
                method=kind,
                parameters=estimator.get_params(deep=False),
                labels=labels,
                seconds=float(result["seconds"]),
                membership=result["membership"].values if "membership" in result else None,
                objective=float(result["objective"]),
                n_clusters=int(result["n_clusters_found"]),
                converged=bool(result["converged"]),
                n_iter=int(result["n_iter"]),
                warnings=str(result["warnings"].values).splitlines(),
                scores=dict(zip(names, result["score"].values.tolist(), strict=True)),
                labelled=result["labelled"].values == 1 if "labelled" in result else None,
                part=result["part"].values if "part" in result else None,
                predicted=_rows(result, "predicted"),
                refusal=str(result["refusal"].values) if "refusal" in result else None,
            )
        )
    return FitResult(model.title, table, model.known_names, fits, origin=plan.origin, say=as_key)
