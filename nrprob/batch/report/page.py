"""HTML report of a run: tables with published values, figures, timing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nrprob.batch.fit_result import plan_result
from nrprob.batch.formats import PAGE, PLAN
from nrprob.batch.manifest import read_file, write_files
from nrprob.batch.plan import Plan
from nrprob.batch.report import filters
from nrprob.batch.report.chart import chart
from nrprob.batch.report.comparison import Comparison, compare, overview
from nrprob.batch.report.filters import listed
from nrprob.batch.report.fit_page import Chapter
from nrprob.batch.report.picture import Picture, draw
from nrprob.batch.report.quality import Quality, quality
from nrprob.batch.report.results import collect
from nrprob.batch.report.run_info import Facts, facts, timings
from nrprob.batch.report.template import render
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store, read_plan
from nrprob.exceptions import InputError
from nrprob.files import as_path, make_folder

if TYPE_CHECKING:
    import pandas as pd
    import xarray

__all__ = ["write_report"]


@dataclass
class _Section:
    """A run."""

    anchor: str
    title: str
    model: ModelFile
    facts: Facts
    alerts: list[str]
    tables: list[Comparison]
    pictures: list[Picture]
    quality: tuple[list[Quality], list[Quality]]
    timings: tuple[pd.DataFrame, pd.DataFrame]
    chapter: Chapter | None
    origin: dict[str, Any]

    @property
    def marks(self) -> dict[str, int]:
        """How often our values are worse, within the error, at least as good."""
        return filters.counted(entry for table in self.tables for entry in table.entries)

    @property
    def n_marked(self) -> int:
        """How many of our values stand beside a published one that says which is better."""
        return sum(self.marks.values())


def write_report(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write results as one HTML page.

    Parameters
    ----------
    folder : Path or str
        What `nrprob.batch.run` wrote to, or a folder of such folders.
    out : Path or str, optional
        File to write, or a folder for it; ``report.html`` in the folder by default.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are no results, a file of them is damaged, or the page cannot be written; in the
        first two cases nothing is written.

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
        path = path.resolve()  # a place that the user names may be a link
    runs = [folder] if (folder / PLAN).exists() else _folders(folder)
    sections = [_section(run, f"run-{i}") for i, run in enumerate(runs or [folder], 1)]
    if not any(section.facts.n_done for section in sections):
        planned = sum(section.facts.n_planned for section in sections)
        raise InputError(
            f"nothing is finished yet; {folder} has 0 of {planned} fits; "
            "run the model file, and report then"
        )
    content = _render(sections, folder.resolve().name)
    make_folder(path.parent)
    write_files(path.parent, {path.name: content.encode()})
    return path


def _folders(folder: Path) -> list[Path]:
    """Folders of runs in a folder, "table 10" after "table 9"."""

    def parts(run: Path) -> list[str | int]:
        return [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", run.name)]

    return sorted((plan.parent for plan in folder.glob("*/plan.json")), key=parts)


def _section(folder: Path, anchor: str) -> _Section:
    dataset = Store(folder).results()
    plan = read_plan(folder)
    model, origin = plan.model, plan.origin
    results = collect(dataset, plan)
    told = facts(results)
    alerts, chapter = _alerts(told, dataset.attrs), None
    alerts += [f"{text}." for text in origin.get("prepared", {}).get("warnings", [])]
    if model.is_single and told.n_done == told.n_planned:
        try:
            chapter = _chapter(folder, plan, dataset)
        except InputError as error:
            alerts.append(f"What the clusters are is not on this page: {error}.")
    if chapter is not None and chapter.run.alert:
        alerts.insert(0, f"{chapter.run.alert}.")
    return _Section(
        anchor,
        model.title or folder.resolve().name,
        model,
        told,
        alerts,
        [compare(results, table) for table in model.tables] or [overview(results)],
        [draw(chart(results, figure)) for figure in model.figures],
        quality(results),
        timings(results),
        chapter,
        origin,
    )


def _chapter(folder: Path, plan: Plan, dataset: xarray.Dataset) -> Chapter:
    """What a single run found, which takes its data once more."""
    run = plan_result(plan, dataset)
    if len(run.fits[0].labels) != run.table.X.shape[0]:
        raise InputError(
            f"the data are not those that were fitted; {run.table.X.shape[0]} rows for "
            f"{len(run.fits[0].labels)} labels; run the model file in a new folder"
        )
    picture = folder / (plan.model.report.picture or "")
    chapter = Chapter(run)
    if picture.is_file():
        chapter.add_clusters(read_file(folder, picture.name), picture.name)
    return chapter


def _alerts(facts: Facts, notes: Mapping[str, Any]) -> list[str]:
    """What a reader has to know before the numbers, in words."""
    result = []
    if facts.missing:
        lacking = ", ".join(f"{method} {count}" for method, count in facts.missing.items())
        result.append(
            f"{facts.n_planned - facts.n_done} of {facts.n_planned} fits are missing ({lacking}). "
            "Running the model file again does what is missing and says why not."
        )
        result += [
            f"{count} fits were {name}: {reason}."
            for name in ("skipped", "failed")
            for reason, count in json.loads(notes.get(name, "{}")).items()
        ]
    if facts.infeasible:
        refused = ", ".join(f"{method} {count}" for method, count in facts.infeasible.items())
        result.append(
            f"{sum(facts.infeasible.values())} fits were infeasible ({refused}): their constraints "
            'cannot be kept. They are in no average but that of "infeasible".'
        )
    mixed = [
        f"{name} {listed(values)}" for name, values in facts.versions.items() if len(values) > 1
    ]
    if mixed:
        result.append(f"Fits were made by different versions: {'; '.join(mixed)}.")
    if len(facts.devices) > 1 or len(facts.hosts) > 1:
        result.append("Fits were made on different devices: their times do not compare.")
    return result


def _render(sections: list[_Section], name: str) -> str:
    return render(
        "page.html.jinja",
        sections=sections,
        title=sections[0].title if len(sections) == 1 else f"Results in {name}",
        marks=filters.MARKS,
    )
