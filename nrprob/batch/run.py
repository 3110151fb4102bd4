"""One run: data, fits, figures of merit, and the files that are written."""

from __future__ import annotations

import contextlib
import json
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from nrprob.batch import registry, tables
from nrprob.batch.modelfile import ModelFile, read_model
from nrprob.exceptions import InputError

__all__ = ["Fit", "Run", "fit_method", "known_array", "run_model", "save"]

# Called with a line that says what is going on; what it returns is entered while that goes on.
Progress = Callable[[str], AbstractContextManager[Any]]


def _silent(_: str) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


@dataclass
class Fit:
    """One fitted method and how it compares with the labelings of the data."""

    title: str
    estimator: Any
    seconds: float
    warnings: list[str] = field(default_factory=list)
    # labeling -> metric -> value
    scores: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def labels(self) -> np.ndarray:
        """Cluster of each row."""
        return np.asarray(self.estimator.labels_)


@dataclass
class Run:
    """A finished run."""

    title: str
    table: tables.Table
    known: list[str]
    main: Fit
    contrast: list[Fit]
    out: Path | None = None
    files: list[Path] = field(default_factory=list)


def known_array(labelings: Sequence[np.ndarray]) -> np.ndarray | None:
    """What `fit` takes as `known`: None, one labeling, or integer columns for several."""
    if not labelings:
        return None
    if len(labelings) == 1:
        return labelings[0]
    return np.column_stack([np.unique(z, return_inverse=True)[1] for z in labelings])


def fit_method(
    name: str,
    parameters: Mapping[str, Any],
    X: Any,
    known: np.ndarray | None,
    *,
    y: np.ndarray | None = None,
    title: str | None = None,
    where: str = "",
) -> Fit:
    """Fit a method by its short name; its warnings are kept and not shown.

    Parameters
    ----------
    name : str
        Short name of the method.
    parameters : mapping
        Parameters of its estimator.
    X : array or sparse matrix of shape (n_samples, n_features)
        The rows.
    known : array or None
        Known structure; not handed to methods that take none.
    y : array of shape (n_samples,), optional
        Wanted labels, -1 where unknown.
    title : str, optional
        Name in reports; the name of the class by default.
    where : str, default=""
        Prefix that tells the user where a wrong parameter stands.
    """
    method = registry.method(name)
    cls = method.load()
    registry.check_parameters(cls, parameters, where)
    estimator = cls(**parameters)
    keywords = {"known": known} if method.takes_known and known is not None else {}
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        estimator.fit(X, y, **keywords)
    seconds = time.perf_counter() - start
    messages = list(dict.fromkeys(str(w.message) for w in caught))
    return Fit(title or cls.__name__, estimator, seconds, messages)


def score(fit: Fit, labelings: Mapping[str, np.ndarray], metrics: Sequence[str]) -> None:
    """Compare the clusters of a fit with labelings, in place."""
    from nrprob import metrics as module

    fit.scores = {
        name: {metric: float(getattr(module, metric)(fit.labels, z)) for metric in metrics}
        for name, z in labelings.items()
    }


def _plain(value: Any) -> Any:
    """Turn a value into what JSON can hold."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _versions() -> dict[str, str]:
    names = ("nrprob", "jax", "jaxlib", "numpy", "scipy", "scikit-learn")
    versions = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _summary(fit: Fit) -> dict[str, Any]:
    estimator = fit.estimator
    return {
        "method": type(estimator).__name__,
        "parameters": {k: _plain(v) for k, v in estimator.get_params(deep=False).items()},
        "seed": _plain(estimator.get_params(deep=False).get("random_state")),
        "objective": float(estimator.objective_),
        "n_clusters": int(estimator.n_clusters_),
        "cluster_sizes": np.bincount(fit.labels).tolist(),
        "converged": bool(estimator.converged_),
        "n_iter": _plain(estimator.n_iter_),
        "seconds": round(fit.seconds, 4),
        "warnings": fit.warnings,
        "scores": fit.scores,
    }


def save(run: Run, out: Path, picture: str | None = "summary.png") -> None:
    """Write ``labels.csv``, ``result.json`` and the picture of a run into a folder."""
    import pandas as pd

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the output folder; {out}: {error.strerror}; choose another"
        ) from error
    labels = run.main.labels
    rows = run.table.row_names if run.table.row_names is not None else np.arange(len(labels))
    columns: dict[str, Any] = {"row": rows, "cluster": labels}
    membership = getattr(run.main.estimator, "membership_", None)
    if membership is not None:
        columns["membership"] = np.round(np.asarray(membership).max(axis=1), 6)
    columns |= run.table.labelings
    pd.DataFrame(columns).to_csv(out / "labels.csv", index=False)

    result = {
        "title": run.title,
        "n_samples": int(run.table.X.shape[0]),
        "n_features": int(run.table.X.shape[1]),
        "known": run.known,
        **_summary(run.main),
        "contrast": [_summary(fit) for fit in run.contrast],
        "versions": _versions(),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    run.out, run.files = out, [out / "labels.csv", out / "result.json"]
    if picture:
        _draw(run, out / picture)
        run.files.append(out / picture)


def _draw(run: Run, path: Path) -> None:
    import matplotlib.pyplot as plt

    from nrprob.plotting import plot_centroids

    name = run.known[0] if run.known else "everything"
    labelings = run.table.labelings
    known = labelings[name] if run.known else np.full(len(run.main.labels), "all rows")
    # Tables with more rows than this cannot be read; three is what fits beside each other.
    others = [key for key, z in labelings.items() if key != name and len(np.unique(z)) <= 12][:3]
    figure = plot_centroids(
        run.table.X,
        run.main.labels,
        known,
        run.table.image_shape,
        run.table.feature_names,
        labels_name=run.main.title,
        known_name=name,
        others={key: labelings[key] for key in others},
        title=run.title or None,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _derive(table: tables.Table, name: str, of: str, groups: Mapping[str, Sequence[Any]]) -> None:
    labels = [str(v) for v in table.labelings[of]]
    group_of = {str(value): group for group, values in groups.items() for value in values}
    missing = sorted(set(labels) - set(group_of))
    if missing:
        raise InputError(
            f"every value of {of!r} belongs to a group; data.labelings.{name} has none for "
            f"{', '.join(missing)}; add them to a group, or leave their rows out with data.keep"
        )
    table.labelings[name] = np.asarray([group_of[v] for v in labels])


def _require(name: str, table: tables.Table, where: str) -> None:
    if name not in table.labelings:
        advice = registry.nearest(name, table.labelings) if table.labelings else "define it first"
        raise InputError(f"no labeling of that name; {where} = {name!r}; {advice}")


def load_data(model: ModelFile) -> tables.Table:
    """Load, select, label and transform the data that a model file names."""
    data = model.data
    if data.loader is not None:
        table = tables.load(data.loader)
    elif data.generator is not None:
        table = tables.generate(data.generator, data.parameters, data.seed)
    else:
        assert data.file is not None
        table = tables.read(
            data.file, columns=data.columns, drop=data.drop, labelings=data.label_columns
        )
        table.labelings = {
            name: tables.as_labels(z, f"column {name!r}") for name, z in table.labelings.items()
        }
    if data.image_shape is not None:
        table.image_shape = data.image_shape
    for name, values in data.keep.items():
        _require(name, table, "data.keep")
        kept = {str(v) for v in values}
        table = table.rows(np.asarray([str(v) in kept for v in table.labelings[name]]))
        if not table.X.shape[0]:
            raise InputError(f"no row is left; data.keep.{name} = {values}; name existing labels")
    for name, labeling in data.labelings.items():
        _require(labeling.of, table, f"data.labelings.{name}.of")
        _derive(table, name, labeling.of, labeling.groups)
    if data.binarize is not None:
        table.X = (table.X > data.binarize).astype(np.int8)
    if data.standardize:
        from sklearn.preprocessing import StandardScaler

        table.X = StandardScaler().fit_transform(table.X)
    return table


def run_model(
    path: Path | str, out: Path | str | None = None, *, progress: Progress = _silent
) -> Run:
    """Do what a model file says.

    Parameters
    ----------
    path : Path or str
        The model file.
    out : Path or str, optional
        Folder for what is written; by default the file's ``report.out``, else
        ``results/<name of the file>``.
    progress : callable, optional
        Called with a line before each step; the context manager it returns is entered for as long
        as the step takes.

    Returns
    -------
    Run
        The fits with their scores, and the files that were written.
    """
    path = Path(path)
    model = read_model(path)
    with progress("loading the data"):
        table = load_data(model)
    for name in model.known_names:
        _require(name, table, "known")
    if model.report.compare is not None:
        for name in model.report.compare:
            _require(name, table, "report.compare")
        shown = dict.fromkeys([*model.known_names, *model.report.compare])
        table.labelings = {name: table.labelings[name] for name in shown}
    known = known_array([table.labelings[name] for name in model.known_names])

    fits = []
    specs = [("method.", model.method)]
    specs += [(f"contrast.{i}.", spec) for i, spec in enumerate(model.contrast)]
    for where, spec in specs:
        with progress(f"fitting {spec.title or spec.name.upper()}"):
            fit = fit_method(
                spec.name, spec.parameters, table.X, known, title=spec.title, where=where
            )
        score(fit, table.labelings, model.report.metrics)
        fits.append(fit)

    run = Run(model.title, table, model.known_names, fits[0], fits[1:])
    with progress("writing the results"):
        folder = Path(out) if out else model.report.out or Path("results") / path.stem
        save(run, folder, model.report.picture)
    return run
