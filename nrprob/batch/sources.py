"""Load the data that a model file names; select, label and transform them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.batch import registry, tables
from nrprob.batch.schema import SELECTORS, Data, ModelFile
from nrprob.exceptions import InputError

__all__ = ["known_array", "load_data", "load_selected", "require"]


def known_array(labelings: Sequence[np.ndarray]) -> np.ndarray | None:
    """What `fit` takes as `known`: None, one labeling, or integer columns for several."""
    if not labelings:
        return None
    if len(labelings) == 1:
        return labelings[0]
    return np.column_stack([np.unique(z, return_inverse=True)[1] for z in labelings])


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


def require(name: str, table: tables.Table, where: str) -> None:
    """Refuse a labeling that the data do not have; `where` names the place."""
    if name not in table.labelings:
        advice = registry.nearest(name, table.labelings) if table.labelings else "define it first"
        raise InputError(f"no labeling of that name; {where} = {name!r}; {advice}")


def _read(
    data: Data, parameters: Mapping[str, Any], seed: int | None, partial: Collection[str]
) -> tables.Table:
    """Rows and labelings, of which those named in ``partial`` may have empty cells."""
    if data.loader is not None:
        return _without(data.drop, tables.load(data.loader, parameters))
    if data.generator is not None:
        return tables.generate(data.generator, parameters, seed)
    assert data.file is not None
    table = tables.read(
        data.file, columns=data.columns, drop=data.drop, labelings=data.label_columns
    )
    wrong: list[str] = []
    for name, z in table.labelings.items():
        try:
            read = tables.partial_labels if name in partial else tables.as_labels
            table.labelings[name] = read(z, f"column {name!r}")
        except InputError as error:
            wrong.append(str(error))
    if wrong:  # all columns at once
        raise InputError("\n".join(wrong))
    return table


def _without(drop: Sequence[str], table: tables.Table) -> tables.Table:
    """The table without some of its columns."""
    if not drop:
        return table
    names = table.feature_names or []
    for name in drop:
        registry.refuse_unknown(name, names, f"no such column; data.drop: {name!r}")
    left = [i for i, name in enumerate(names) if name not in drop]
    if not left:
        raise InputError(f"no column is left; data.drop = {list(drop)}; drop fewer")
    return replace(table, X=table.X[:, left], feature_names=[names[i] for i in left])


def _components(wanted: float, table: tables.Table) -> tables.Table:
    """Leading principal components of the rows: so many, or as many as hold a share."""
    from sklearn.decomposition import PCA

    if scipy.sparse.issparse(table.X):
        raise InputError(
            f"principal components are of dense rows; data.components = {wanted} of a sparse "
            "table; leave it out"
        )
    X = np.asarray(table.X, float)
    if (X == X[:1]).all():
        raise InputError(
            f"rows that are all alike have no components; data.components = {wanted}; leave it out"
        )
    if wanted > min(X.shape):
        raise InputError(
            f"there are not so many principal components; data.components = {wanted} for at most "
            f"{min(X.shape)}; lower it"
        )
    X = PCA(wanted, svd_solver="full").fit_transform(X)
    names = [f"component {i + 1}" for i in range(X.shape[1])]
    return replace(table, X=X, feature_names=names, image_shape=None)


def _cut_views(views: Sequence[Any], table: tables.Table) -> list[np.ndarray]:
    """Numbers of the columns of every view."""
    n_columns = table.X.shape[1]
    if isinstance(views[0], int):
        if sum(views) != n_columns:
            raise InputError(
                f"views have to add up to the columns; data.views = {views} for {n_columns} "
                "columns; correct them"
            )
        return np.split(np.arange(n_columns), np.cumsum(views)[:-1])
    if table.feature_names is None:
        raise InputError(
            f"columns of these data have no names; data.views = {views}; give numbers of columns"
        )
    number = {name: i for i, name in enumerate(table.feature_names)}
    for name in (name for view in views for name in view):
        registry.refuse_unknown(name, number, f"no such column; data.views: {name!r}")
    return [np.asarray([number[name] for name in view]) for view in views]


def _select(
    table: tables.Table, rows: Sequence[int] | None, keep: Mapping[str, Any]
) -> tables.Table:
    """Rows by their place, and of them those with the values to keep."""
    if rows is not None:
        first, end = rows
        if end > table.X.shape[0]:
            raise InputError(
                f"there are fewer rows; data.rows = {list(rows)} of {table.X.shape[0]}; lower it"
            )
        table = table.rows(np.arange(first, end))
    for name, values in keep.items():
        require(name, table, "data.keep")
        kept = {str(v) for v in values}
        table = table.rows(np.asarray([str(v) in kept for v in table.labelings[name]]))
        if not table.X.shape[0]:
            raise InputError(f"no row is left; data.keep.{name} = {values}; name existing labels")
    return table


def load_data(
    model: ModelFile, parameters: Mapping[str, Any] | None = None, seed: int | None = None
) -> tables.Table:
    """Load, select, label and transform the data that a model file names, as `load_selected` does.

    Returns
    -------
    Table
    """
    data, table = model.data, load_selected(model, parameters, seed)
    if data.standardize:
        table.X = tables.scaler(table.X).transform(table.X)
    if data.components is not None:
        table = _components(data.components, table)
    return table


def load_selected(
    model: ModelFile, parameters: Mapping[str, Any] | None = None, seed: int | None = None
) -> tables.Table:
    """Load, select and label the data that a model file names, in their own units.

    Parameters
    ----------
    model : ModelFile
        The file.
    parameters : mapping, optional
        Parameters of the generator or loader; those of the file's ``data.parameters`` by default.
    seed : int, optional
        Seed of the generator; the file's by default.

    Returns
    -------
    Table

    Raises
    ------
    nrprob.exceptions.InputError
        If the data cannot be read or are not what the file says; its subclass `DataUnavailable`
        if they are not on this machine.
    """
    data = model.data
    given = data.parameters if parameters is None else parameters
    # Empty cells are unknown labels in a column that is used for wanted labels alone.
    used = {*model.known_names, model.classes, *(one.of for one in data.labelings.values())}
    partial = {model.wanted.labeling} - used if model.wanted else set()
    table = _read(
        data,
        {name: value for name, value in given.items() if name not in SELECTORS},
        data.seed if seed is None else seed,
        partial,
    )
    if data.image_shape is not None:
        if math.prod(data.image_shape) != table.X.shape[1]:
            raise InputError(
                f"an image has as many pixels as there are columns; data.image_shape = "
                f"{list(data.image_shape)} for {table.X.shape[1]}; correct it"
            )
        table.image_shape = data.image_shape
    table = _select(table, given.get("rows", data.rows), given.get("keep", data.keep))
    if data.views:
        table.views = _cut_views(data.views, table)
    for name, labeling in data.labelings.items():
        require(labeling.of, table, f"data.labelings.{name}.of")
        _derive(table, name, labeling.of, labeling.groups)
    for name in model.known_names:
        require(name, table, "known")
    of = model.drawn | {f"measures.{name}": measure for name, measure in model.measures.items()}
    for place, named in of.items():
        if named.labeling is not None:
            require(named.labeling, table, f"{place}.labeling")
    tables.require_numbers(table)
    if data.binarize is not None:
        table.X = (table.X > data.binarize).astype(np.int8)
    return table
