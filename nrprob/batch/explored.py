"""The files of an exploration: labels, what was tested, and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nrprob.batch import single
from nrprob.batch.csv_files import write_csv
from nrprob.batch.fits import cluster_sizes, outcome, versions
from nrprob.batch.formats import RESULTS
from nrprob.batch.manifest import write_files
from nrprob.batch.tables import Table
from nrprob.files import make_folder
from nrprob.successive import Exploration

__all__ = ["runs", "save"]


def _summary(model: Any, evidence: Any, alert: str = "") -> dict[str, Any]:
    parameters = model.get_params(deep=False)
    found = {
        "method": type(model).__name__,
        "parameters": {name: single.plain(value) for name, value in parameters.items()},
        "n_clusters": int(model.n_clusters_),
        "cluster_sizes": cluster_sizes(model.labels_),
        "objective": float(model.objective_),
    }
    if alert:
        found["warnings"] = [alert]
    if evidence is not None:
        found |= {
            "p_structure": evidence.p_structure_,
            "p_gap": evidence.p_gap_,
            "evidence": str(evidence),
        }
    return found


def runs(
    found: Exploration,
    table: Table,
    known: Sequence[str],
    origin: Mapping[str, Any],
    measured: np.ndarray | None = None,
) -> list[single.Single]:
    """Every clustering of an exploration as a single run, to which those before it are known.

    Parameters
    ----------
    found : Exploration
    table : rows, and all labelings of them
    known : names of the labelings that were known
    origin : what is to be said of the data and of the command
    measured : numbers (n, m) that were known as well
    """
    every = []
    names = [f"clustering_{r + 1}" for r in range(found.labels_.shape[1])]
    for r, model in enumerate(found.estimators_):
        before = dict(zip(names[:r], found.labels_.T, strict=False))
        one = single.Single(
            names[r].replace("_", " "),
            replace(table, labelings=table.labelings | before),
            [*known, *before],
            [outcome(type(model).__name__, model, 0.0, [])],
            origin=dict(origin),
            measured=measured,
        )
        every.append(one)
    return every


def save(
    found: Exploration, every: Sequence[single.Single], out: Path, pictures: bool
) -> list[Path]:
    """Write an exploration into a folder.

    Parameters
    ----------
    found : Exploration
    every : its clusterings, by `runs`
    out : folder
    pictures : whether to draw, of every clustering, its centres and, if it was tested, its rows

    Returns
    -------
    list of Path
        The files that were written.
    """
    import matplotlib

    from nrprob.batch.report import found as pages

    make_folder(out)
    table, known, origin = every[0].table, every[0].known, every[0].origin
    rows = table.row_names if table.row_names is not None else np.arange(len(found.labels_))
    names = [f"clustering_{r + 1}" for r in range(found.labels_.shape[1])]
    columns = {"row": rows, **dict(zip(names, found.labels_.T, strict=True)), **table.labelings}
    evidence = found.evidence_ or [None] * len(names)
    rejected = None if found.rejected_ is None else _summary(*found.rejected_)
    result = {
        "n_samples": int(table.X.shape[0]),
        "n_features": int(table.X.shape[1]),
        "known": list(known),
        **origin,
        "clusterings": [
            _summary(model, own, one.alert)
            for model, own, one in zip(found.estimators_, evidence, every, strict=True)
        ],
        "rejected": rejected,
        "reason": found.reason_,
        "information": found.table.to_dict(),
        "versions": versions(),
    }
    labels = write_csv(columns)
    summary = json.dumps(result, indent=2) + "\n"
    drawn: dict[str, bytes] = {}
    chapters = []
    for name, run, own in zip(names, every, evidence, strict=True):
        chapter = pages.Chapter(run, evidence=() if own is None else (str(own),))
        if pictures:
            drawn[f"{name}.png"] = picture = single.draw(run, "png")
            chapter.pictures = single.seen(run, {f"{name}.png": picture})
            if own is not None:
                with matplotlib.rc_context(single.NAMES):
                    figure = own.plot().figure
                drawn[f"{name}_evidence.png"] = picture = single.as_file(figure, "png")
                chapter.add_evidence(picture)
        chapters.append(chapter)
    page = pages.page(chapters, ending=found.reason_)
    files = (labels.encode(), summary.encode(), page.encode())
    contents = dict(zip(RESULTS, files, strict=True)) | drawn
    write_files(out, contents)
    return [out / name for name in contents]
