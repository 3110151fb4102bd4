"""Write the files of an exploration: labels, tests and plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nrprob.batch import fit_files
from nrprob.batch.csv_files import with_labelings, write_csv
from nrprob.batch.evidence import tested
from nrprob.batch.fit_result import FitResult
from nrprob.batch.fits import cluster_sizes, default_measures, outcome, score, versions
from nrprob.batch.formats import RESULTS
from nrprob.batch.manifest import write_files
from nrprob.batch.tables import Table
from nrprob.files import make_folder
from nrprob.successive import Exploration

__all__ = ["add_tests", "runs", "save"]


def runs(
    result: Exploration,
    table: Table,
    known: Sequence[str],
    origin: Mapping[str, Any],
    measured: np.ndarray | None = None,
) -> list[FitResult]:
    """Clusterings of an exploration as runs of their own, to each of which those before are known.

    Parameters
    ----------
    result : Exploration
    table : rows, and all labelings of them, with which every clustering is compared
    known : names of the labelings that were known
    origin : what is to be said of the data and of the command
    measured : numbers (n, m) that were known as well
    """
    names = [f"clustering_{r + 1}" for r in range(result.labels_.shape[1])]
    made = []
    for r, model in enumerate(result.estimators_):
        fit = outcome(type(model).__name__, model, 0.0, [])
        score(fit, table.labelings, default_measures([*table.labelings]))
        before = dict(zip(names[:r], result.labels_.T, strict=False))
        own = replace(table, labelings=table.labelings | before)
        title = names[r].replace("_", " ")
        made.append(
            FitResult(title, own, [*known, *before], [fit], origin=dict(origin), measured=measured)
        )
    return made


def add_tests(every: Sequence[FitResult], result: Exploration, alpha: float) -> None:
    """Test the clusters of every run, unless the search has, and ask how sure their rows are."""
    evidence = result.evidence_ or [None] * len(every)
    for run, model, own in zip(every, result.estimators_, evidence, strict=True):
        labels = [run.table.labelings[name].astype(str) for name in run.known]
        known = np.column_stack(labels) if labels else None
        run.tested = tested(model, run.table.X, known, alpha=alpha, evidence=own, alert=run.alert)


def _summary(model: Any, evidence: Any, run: FitResult | None = None) -> dict[str, Any]:
    parameters = model.get_params(deep=False)
    result = {
        "method": type(model).__name__,
        "parameters": {name: fit_files.plain(value) for name, value in parameters.items()},
        "n_clusters": int(model.n_clusters_),
        "cluster_sizes": cluster_sizes(model.labels_),
        "objective": float(model.objective_),
    }
    if run is not None:
        result["scores"] = run.fits[0].scores
    if run is not None and run.alert:
        result["warnings"] = [run.alert]
    if run is not None and run.tested is not None:
        evidence = run.tested.evidence
        result |= {
            "said": list(run.tested.said),
            "confidence": run.tested.summary.get("confidence"),
        }
    if evidence is not None:
        result |= {
            "p_structure": evidence.p_structure_,
            "p_gap": evidence.p_gap_,
            "evidence": str(evidence),
        }
    return result


def save(
    solution: Exploration, every: Sequence[FitResult], out: Path, pictures: bool
) -> list[Path]:
    """Write an exploration into a folder.

    Parameters
    ----------
    result : Exploration
    every : its `runs`
    out : folder
    pictures : whether to draw, of every clustering, its centres and, if it was tested, its rows

    Returns
    -------
    list of Path
        The files that were written.
    """
    import matplotlib

    from nrprob.batch.report import fit_page as pages

    make_folder(out)
    table, known = every[0].table, every[0].known  # to the first, no clustering is known
    rows = table.row_names if table.row_names is not None else np.arange(len(solution.labels_))
    names = [f"clustering_{r + 1}" for r in range(len(every))]
    columns = {"row": rows, **dict(zip(names, solution.labels_.T, strict=True))}
    for r, run in enumerate(every, 1):
        if run.tested is not None and run.tested.confidence is not None:
            columns[f"confidence_{r}"] = np.round(np.asarray(run.tested.confidence.rows_), 6)
    evidence = solution.evidence_ or [None] * len(names)
    rejected = None if solution.rejected_ is None else _summary(*solution.rejected_)
    result = {
        "n_samples": int(table.X.shape[0]),
        "n_features": int(table.X.shape[1]),
        "known": list(known),
        **every[0].origin,
        "clusterings": [
            _summary(*own) for own in zip(solution.estimators_, evidence, every, strict=True)
        ],
        "rejected": rejected,
        "reason": solution.reason_,
        "information": solution.table.to_dict(),
        "versions": versions(),
    }
    labels = write_csv(with_labelings(columns, table.labelings))
    summary = json.dumps(result, indent=2) + "\n"
    drawn: dict[str, bytes] = {}
    chapters = []
    for name, run, own in zip(names, every, evidence, strict=True):
        chapter = pages.Chapter(run, evidence=() if own is None else (str(own),))
        if run.tested is not None:
            own = run.tested.evidence
        if pictures:
            drawn[f"{name}.png"] = picture = fit_files.draw(run, "png")
            chapter.pictures = fit_files.seen(run, {f"{name}.png": picture})
            if own is not None:
                with matplotlib.rc_context(fit_files.NAMES):
                    figure = own.plot().figure
                drawn[f"{name}_evidence.png"] = picture = fit_files.as_file(figure, "png")
                chapter.add_evidence(picture)
        chapters.append(chapter)
    page = pages.page(chapters, ending=solution.reason_)
    files = (labels.encode(), summary.encode(), page.encode())
    contents = dict(zip(RESULTS, files, strict=True)) | drawn
    write_files(out, contents)
    return [out / name for name in contents]
