"""HTML report of a run: tables with published values, figures, timing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nrprob.batch.fit_result import plan_result
from nrprob.batch.formats import PAGE, PLAN
from nrprob.batch.manifest import read_file, write_files
from nrprob.batch.plan import Plan
from nrprob.batch.report.chart import make_chart
from nrprob.batch.report.comparison import compare_published, summarize_all
from nrprob.batch.report.fit_page import Chapter
from nrprob.batch.report.results import collect_results, measure_performance, summarize_run
from nrprob.batch.report.template import MARKS, count_marks, format_counts, render
from nrprob.batch.store import Store, read_plan
from nrprob.exceptions import InputError
from nrprob.files import as_path, make_folder

if TYPE_CHECKING:
    import xarray

__all__ = ["write_report"]


def write_report(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write results as one HTML page.

    Parameters
    ----------
    folder : Path or str
        Folder of the results of `nrprob.batch.run`, or a folder of such folders.
    out : Path or str, optional
        File to write, or a folder for it; ``report.html`` in the folder by default.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are no results, a file of results is damaged, or the page cannot be written; in the
        first two cases nothing is written.

    See Also
    --------
    nrprob.batch.run : Run a model file.
    nrprob.batch.load : Results of a run.

    Examples
    --------
    >>> from nrprob import batch
    >>> spec = {"data": {"loader": "iris"}, "methods": [{"name": "ib", "n_clusters": 3}]}
    >>> results = batch.run(spec, "results/iris")
    >>> batch.write_report("results/iris").name
    'report.html'
    """
    folder = as_path(folder, "folder")
    path = as_path(out, "out") if out is not None else folder / PAGE
    if path.is_dir():
        path = path / PAGE
    elif out is not None and path.is_symlink():
        path = path.resolve()  # a path from the user may be a link
    runs = [folder] if (folder / PLAN).exists() else _run_folders(folder)
    sections = [_make_section(run, f"run-{i}") for i, run in enumerate(runs or [folder], 1)]
    if not any(section["info"]["n_done"] for section in sections):
        planned = sum(section["info"]["n_planned"] for section in sections)
        raise InputError(
            f"no fit is finished yet; {folder} has 0 of {planned} fits; run the model file before "
            "the report"
        )
    title = sections[0]["title"] if len(sections) == 1 else f"Results in {folder.resolve().name}"
    page = render("page.html.jinja", sections=sections, title=title, marks=MARKS)
    make_folder(path.parent)
    write_files(path.parent, {path.name: page.encode()})
    return path


def _run_folders(folder: Path) -> list[Path]:
    """Folders of runs in a folder, sorted by name; "table 10" comes after "table 9"."""

    def sort_key(run: Path) -> list[str | int]:
        return [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", run.name)]

    return sorted((plan.parent for plan in folder.glob("*/plan.json")), key=sort_key)


def _make_section(folder: Path, anchor: str) -> dict[str, Any]:
    """Content of the section of one run for the HTML template; ``anchor`` is its HTML id."""
    dataset, plan = Store(folder).results(), read_plan(folder)
    model = plan.model
    results = collect_results(dataset, plan)
    info = summarize_run(results)
    alerts, chapter = _alerts(info, dataset.attrs), None
    alerts += [f"{text}." for text in plan.origin.get("prepared", {}).get("warnings", [])]
    if model.is_single and info["n_done"] == info["n_planned"]:
        try:
            chapter = _make_chapter(folder, plan, dataset)
        except InputError as error:
            alerts.append(f"The clusters are not on this page: {error}.")
    if chapter is not None and chapter.run.alert:
        alerts.insert(0, f"{chapter.run.alert}.")
    tables = [compare_published(results, t) for t in model.tables] or [summarize_all(results)]
    marks = count_marks(entry for table in tables for entry in table.entries)
    return {
        "anchor": anchor,
        "title": model.title or folder.resolve().name,
        "plan": plan,
        "info": info,
        "alerts": alerts,
        "tables": tables,
        "charts": [make_chart(results, figure) for figure in model.figures],
        "performance": measure_performance(results),
        "chapter": chapter,
        "marks": marks,
        "n_marked": sum(marks.values()),
    }


def _make_chapter(folder: Path, plan: Plan, dataset: xarray.Dataset) -> Chapter:
    """Make the chapter about the clusters of a run with one data set and one fit per method.

    The data are loaded again. InputError is raised if the number of rows of the data has changed.
    """
    chapter = Chapter(plan_result(plan, dataset))
    n_rows, n_labels = chapter.run.table.X.shape[0], len(chapter.fit.labels)
    if n_labels != n_rows:
        raise InputError(
            f"the data have changed since the fit; {n_rows} rows for {n_labels} labels; run the "
            "model file in a new folder"
        )
    picture = folder / (plan.model.report.picture or "")
    if picture.is_file():
        chapter.add_clusters(read_file(folder, picture.name), picture.name)
    return chapter


def _alerts(info: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    """Warnings about missing, infeasible and incomparable fits, for the page.

    ``info`` is from `summarize_run`. ``notes`` has the numbers of skipped and failed fits, by
    reason, as JSON.
    """
    result = []
    if info["missing"]:
        missing = ", ".join(f"{method} {count}" for method, count in info["missing"].items())
        result.append(
            f"{info['n_planned'] - info['n_done']} of {info['n_planned']} fits are missing "
            f"({missing}). Run the model file again to compute them, or to see why they fail."
        )
        result += [
            f"{count} fits were {name}: {reason}."
            for name in ("skipped", "failed")
            for reason, count in json.loads(notes.get(name, "{}")).items()
        ]
    if info["infeasible"]:
        refused = ", ".join(f"{method} {count}" for method, count in info["infeasible"].items())
        result.append(
            f"{sum(info['infeasible'].values())} fits were infeasible ({refused}): no clustering "
            'satisfies their constraints. All averages except "infeasible" exclude them.'
        )
    mixed = [
        f"{name} {format_counts(values)}"
        for name, values in info["versions"].items()
        if len(values) > 1
    ]
    if mixed:
        result.append(f"Fits were computed by different versions: {'; '.join(mixed)}.")
    if len(info["devices"]) > 1 or len(info["hosts"]) > 1:
        result.append("Fits were computed on different devices: their times are not comparable.")
    return result
