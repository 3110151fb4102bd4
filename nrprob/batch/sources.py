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

__all__ = ["known_array", "load_data", "load_selected"]


def known_array(labelings: Sequence[np.ndarray]) -> np.ndarray | None:
    """Argument `known` of `fit`: None, one labeling, or integer columns for several."""
    if not labelings:
        return None
    if len(labelings) == 1:
        return labelings[0]
    return np.column_stack([np.unique(z, return_inverse=True)[1] for z in labelings])


def _merge_groups(
    table: tables.Table, name: str, source: str, groups: Mapping[str, Sequence[Any]]
) -> np.ndarray:
    """Labels that merge the values of another labeling into groups."""
    labels = [str(v) for v in table.labelings[source]]
    group_of = {str(value): group for group, values in groups.items() for value in values}
    missing = sorted(set(labels) - set(group_of))
    if missing:
        raise InputError(
            f"every value of {source!r} belongs to a group; data.labelings.{name} has none for "
            f"{', '.join(missing)}; add them to a group, or leave their rows out with data.keep"
        )
    return np.asarray([group_of[v] for v in labels])


def _check_labeling(name: str, table: tables.Table, where: str) -> None:
    """Refuse a labeling that the data do not have; `where` names the place."""
    if name not in table.labelings:
        advice = registry.nearest(name, table.labelings) if table.labelings else "define it first"
        raise InputError(f"no labeling of that name; {where} = {name!r}; {advice}")


def _read_source(
    data: Data, parameters: Mapping[str, Any], seed: int | None, partial: Collection[str]
) -> tables.Table:
    """Rows and labelings; the ``partial`` labelings may have empty cells."""
    if data.loader is not None:
        return _drop_columns(data.drop, tables.load_set(data.loader, parameters))
    if data.generator is not None:
        return tables.generate_set(data.generator, parameters, seed)
    assert data.file is not None
    table = tables.read_table(
        data.file, columns=data.columns, drop=data.drop, labelings=data.label_columns
    )
    mistakes: list[str] = []
    for name, z in table.labelings.items():
        try:
            convert = tables.partial_labels if name in partial else tables.as_labels
            table.labelings[name] = convert(z, f"column {name!r}")
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:  # all columns at once
        raise InputError("\n".join(mistakes))
    return table


def _drop_columns(drop: Sequence[str], table: tables.Table) -> tables.Table:
    if not drop:
        return table
    names = table.feature_names or []
    for name in drop:
        registry.refuse_unknown(name, names, f"no such column; data.drop: {name!r}")
    rest = [i for i, name in enumerate(names) if name not in drop]
    if not rest:
        raise InputError(f"no column is left; data.drop = {list(drop)}; drop fewer")
    return replace(table, X=table.X[:, rest], feature_names=[names[i] for i in rest])


def _reduce_to_components(components: float, table: tables.Table) -> tables.Table:
    """Leading principal components: a number of them, or enough for a share of the variance."""
    from sklearn.decomposition import PCA

    if scipy.sparse.issparse(table.X):
        raise InputError(
            f"principal components are of dense rows; data.components = {components} of a sparse "
            "table; leave it out"
        )
    X = np.asarray(table.X, float)
    if (X == X[:1]).all():
        raise InputError(
            f"rows that are all alike have no components; data.components = {components}; leave "
            "it out"
        )
    if components > min(X.shape):
        raise InputError(
            f"there are not so many principal components; data.components = {components} for at "
            f"most {min(X.shape)}; lower it"
        )
    X = PCA(components, svd_solver="full").fit_transform(X)
    names = [f"component {i + 1}" for i in range(X.shape[1])]
    return replace(table, X=X, feature_names=names, image_shape=None)


def _view_columns(views: Sequence[Any], table: tables.Table) -> list[np.ndarray]:
    """Indices of the columns of every view."""
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
    index = {name: i for i, name in enumerate(table.feature_names)}
    for name in (name for view in views for name in view):
        registry.refuse_unknown(name, index, f"no such column; data.views: {name!r}")
    return [np.asarray([index[name] for name in view]) for view in views]


def _select_rows(
    table: tables.Table, rows: Sequence[int] | None, keep: Mapping[str, Any]
) -> tables.Table:
    """Rows of a range that have the values to keep."""
    if rows is not None:
        first, end = rows
        if end > table.X.shape[0]:
            raise InputError(
                f"there are fewer rows; data.rows = {list(rows)} of {table.X.shape[0]}; lower it"
            )
        table = table.rows(np.arange(first, end))
    for name, values in keep.items():
        _check_labeling(name, table, "data.keep")
        table = table.rows(np.isin(table.labelings[name].astype(str), [str(v) for v in values]))
        if not table.X.shape[0]:
            raise InputError(f"no row is left; data.keep.{name} = {values}; name existing labels")
    return table


def load_data(
    model: ModelFile, parameters: Mapping[str, Any] | None = None, seed: int | None = None
) -> tables.Table:
    """Load and transform the data of a model file, after `load_selected`."""
    data, table = model.data, load_selected(model, parameters, seed)
    if data.standardize:
        table.X = tables.fit_scaler(table.X).transform(table.X)
    if data.components is not None:
        table = _reduce_to_components(data.components, table)
    return table


def load_selected(
    model: ModelFile, parameters: Mapping[str, Any] | None = None, seed: int | None = None
) -> tables.Table:
    """Load, select and label the data of a model file, in their own units.

    ``parameters`` and ``seed`` of the generator or loader are by default those of the file. Raises
    InputError if the data cannot be read or do not fit the file, and its subclass `DataUnavailable`
    if they are not on this machine.
    """
    data = model.data
    parameters = data.parameters if parameters is None else parameters
    # An empty cell is an unknown label in columns that hold target labels only.
    used = {*model.known_names, model.classes, *(z.of for z in data.labelings.values())}
    partial = {model.wanted.labeling} - used if model.wanted else set()
    table = _read_source(
        data,
        {name: value for name, value in parameters.items() if name not in SELECTORS},
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
    table = _select_rows(
        table, parameters.get("rows", data.rows), parameters.get("keep", data.keep)
    )
    if data.views:
        table.views = _view_columns(data.views, table)
    for name, labeling in data.labelings.items():
        _check_labeling(labeling.of, table, f"data.labelings.{name}.of")
        table.labelings[name] = _merge_groups(table, name, labeling.of, labeling.groups)
    for name in model.known_names:
        _check_labeling(name, table, "known")
    users = model.sampling | {f"measures.{name}": m for name, m in model.measures.items()}
    for place, user in users.items():
        if user.labeling is not None:
            _check_labeling(user.labeling, table, f"{place}.labeling")
    tables.check_values(table)
    if data.binarize is not None:
        table.X = (table.X > data.binarize).astype(np.int8)
    return table
