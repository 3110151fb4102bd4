"""Load the data of a model file, and assemble the arguments of its fits.

A `nrprob.batch.tables.Table` holds the features of rows, and labelings of the rows by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.batch import registry, tables
from nrprob.batch.plan import Experiment
from nrprob.batch.schema import SELECTORS, Data, ModelFile
from nrprob.batch.splits import Parts, TargetLabels, sample_labels, sample_pairs, split_rows
from nrprob.exceptions import InputError

__all__ = ["Inputs", "assemble_inputs", "known_array", "load_data", "load_selected"]


def known_array(labelings: Sequence[np.ndarray]) -> np.ndarray | None:
    """Combine known labelings (n,) into the argument ``known`` of `fit`.

    Returns None without labelings, the labeling itself if there is only one, and an integer array
    (n, n_labelings) if there are several.
    """
    if not labelings:
        return None
    if len(labelings) == 1:
        return labelings[0]
    return np.column_stack([np.unique(z, return_inverse=True)[1] for z in labelings])


def _merge_groups(
    table: tables.Table, name: str, source: str, groups: Mapping[str, Sequence[Any]]
) -> np.ndarray:
    """Make a labeling (n,) by merging values of the labeling ``source`` of a table into groups.

    ``groups`` maps the name of every group to the values that it merges. ``name`` is the name of
    the new labeling, for messages. Raises InputError if a value belongs to no group.
    """
    labels = [str(v) for v in table.labelings[source]]
    group_of = {str(value): group for group, values in groups.items() for value in values}
    missing = sorted(set(labels) - set(group_of))
    if missing:
        raise InputError(
            f"every value of {source!r} must belong to a group; data.labelings.{name} has no group "
            f"for {', '.join(missing)}; add these values to a group, or leave their rows out with "
            "data.keep"
        )
    return np.asarray([group_of[v] for v in labels])


def _check_labeling(name: str, table: tables.Table, where: str) -> None:
    """Raise InputError if a table has no labeling ``name``.

    ``where`` is the key of the model file that names the labeling, for the message.
    """
    if name not in table.labelings:
        advice = (
            registry.suggest_name(name, table.labelings) if table.labelings else "define it first"
        )
        raise InputError(f"no labeling of that name; {where} = {name!r}; {advice}")


def _read_source(
    data: Data, parameters: Mapping[str, Any], seed: int | None, partial: Collection[str]
) -> tables.Table:
    """Read, load or generate the data that a model file names.

    ``parameters`` are the arguments of the loader or generator, and ``seed`` is the seed of the
    generator. The labelings named in ``partial`` may have missing labels.
    """
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
            labels = tables.as_labels(z, f"column {name!r}", is_partial=name in partial)
            table.labelings[name] = labels
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:  # one message for all columns
        raise InputError("\n".join(mistakes))
    return table


def _drop_columns(drop: Sequence[str], table: tables.Table) -> tables.Table:
    """Return a table without the columns that ``drop`` names; at least one column must stay."""
    if not drop:
        return table
    names = table.feature_names or []
    for name in drop:
        registry.refuse_unknown(name, names, f"no such column; data.drop: {name!r}")
    rest = [i for i, name in enumerate(names) if name not in drop]
    if not rest:
        raise InputError(f"no column is left; data.drop = {list(drop)}; drop fewer columns")
    return replace(table, X=table.X[:, rest], feature_names=[names[i] for i in rest])


def _weight_terms(X: Any) -> Any:
    """Replace counts of terms (n, m) by tf-idf weights, and scale the rows to unit length."""
    from sklearn.feature_extraction.text import TfidfTransformer

    if X.min() < 0:
        raise InputError(
            f"tf-idf weights need counts; data.tfidf = true for features down to {X.min():g}; "
            "leave tfidf out"
        )
    weights = TfidfTransformer().fit_transform(X)
    return weights if scipy.sparse.issparse(X) else weights.toarray()


def _reduce_to_components(components: float, table: tables.Table) -> tables.Table:
    """Replace the features by their leading principal components.

    ``components`` is the number of components, or the share of the variance that the components
    must explain.
    """
    from sklearn.decomposition import PCA

    if scipy.sparse.issparse(table.X):
        raise InputError(
            f"principal components need dense rows; data.components = {components} for sparse "
            "rows; leave components out"
        )
    X = np.asarray(table.X, float)
    if (X == X[:1]).all():
        raise InputError(
            f"rows that are all equal have no principal components; data.components = "
            f"{components}; leave components out"
        )
    if components > min(X.shape):
        raise InputError(
            f"there are fewer principal components; data.components = {components} for at most "
            f"{min(X.shape)}; lower components"
        )
    X = PCA(components, svd_solver="full").fit_transform(X)
    names = [f"component {i + 1}" for i in range(X.shape[1])]
    return replace(table, X=X, feature_names=names, image_shape=None)


def _view_columns(views: Sequence[Any], table: tables.Table) -> list[np.ndarray]:
    """List the indices of the columns of every view, one array per view.

    ``views`` has the number of adjacent columns, or the list of column names, of every view.
    """
    n_columns = table.X.shape[1]
    if isinstance(views[0], int):
        if sum(views) != n_columns:
            raise InputError(
                f"the numbers of columns of the views must add up to all columns; data.views = "
                f"{views} for {n_columns} columns; correct the numbers"
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
    """Select rows of a table by position and by label.

    ``rows`` are the first position and the end of a range, or None for all rows. ``keep`` maps
    names of labelings to the labels whose rows are kept.
    """
    if rows is not None:
        first, end = rows
        if end > table.X.shape[0]:
            raise InputError(
                f"there are fewer rows; data.rows = {list(rows)} for {table.X.shape[0]} rows; "
                "lower the end of the range"
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
    """Load the data of a model file with `load_selected`, and transform the features.

    The model file may request tf-idf weights, standardised features or principal components. See
    `load_selected` for the arguments.
    """
    data, table = model.data, load_selected(model, parameters, seed)
    if data.tfidf:
        table.X = _weight_terms(table.X)
    if data.standardize:
        table.X = tables.fit_scaler(table.X).transform(table.X)
    if data.components is not None:
        table = _reduce_to_components(data.components, table)
    return table


def load_selected(
    model: ModelFile, parameters: Mapping[str, Any] | None = None, seed: int | None = None
) -> tables.Table:
    """Load the data of a model file, select rows, and add labelings, without standardisation.

    If the model file requests it, the features are binarised. ``parameters`` are the arguments of
    the loader or generator, and possibly ``rows`` and ``keep``; ``seed`` is the seed of the
    generator. By default, both come from the model file.

    Raises InputError if the data cannot be read or do not match the file. Raises its subclass
    `DataUnavailable` if the data are not on this machine.
    """
    data = model.data
    parameters = data.parameters if parameters is None else parameters
    # In a column that only serves as target labels, an empty cell is an unknown label.
    used = {*model.known_names, model.classes, *(z.of for z in data.labelings.values())}
    partial = {model.partial_labels.labeling} - used if model.partial_labels else set()
    table = _read_source(
        data,
        {name: value for name, value in parameters.items() if name not in SELECTORS},
        data.seed if seed is None else seed,
        partial,
    )
    if data.image_shape is not None:
        if math.prod(data.image_shape) != table.X.shape[1]:
            raise InputError(
                f"an image must have as many pixels as the data have columns; data.image_shape = "
                f"{list(data.image_shape)} for {table.X.shape[1]} columns; correct image_shape"
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


@dataclass
class Inputs:
    """Arguments of a fit, and held-out rows.

    Attributes
    ----------
    X, X_test : features of the n fitted rows (n, m) and of the test rows; for a method that takes
        views, lists with the features of every view. Without a split, both are all rows
    known, known_test : known structure of the fitted rows and of the test rows, as a keyword
        argument of `fit`; empty without known structure
    y : target labels (n,) of the fitted rows, -1 where unknown; None if the method gets no labels
    pairs : must-links and cannot-links, as keyword arguments of `fit`
    target : sampled target labels; None if the model file has no table ``partial_labels``
    parts : parts of the split; None without a split
    """

    X: Any
    X_test: Any
    known: Mapping[str, Any]
    known_test: Mapping[str, Any]
    y: np.ndarray | None = None
    pairs: Mapping[str, np.ndarray] = field(default_factory=dict)
    target: TargetLabels | None = None
    parts: Parts | None = None

    def spread(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """Put values (n, ...) of the fitted rows at their positions among all rows.

        All other rows get the value ``fill``.
        """
        if self.parts is None:
            return values
        out = np.full((self.parts.part.size, *values.shape[1:]), fill, values.dtype)
        out[self.parts.fitted] = values
        return out


def assemble_inputs(model: ModelFile, table: tables.Table, cell: Experiment) -> Inputs:
    """Assemble the arguments of a planned fit (``cell``) from its data set (``table``).

    Sampled target labels, splits and pairs depend on the data set and the run only, so they are the
    same for all methods of a run. Raises InputError if the data have too few rows.
    """
    method, seed = registry.find_method(cell.name), (cell.seed, cell.run)
    known: dict[str, Any] = {}
    if model.known_names:
        labelings = [table.labelings[name] for name in model.known_names]
        known = method.capabilities.keywords(known_array(labelings))
    # Sample the labelled rows, or split the rows and standardise on the fitted rows.
    inputs = Inputs(table.X, table.X, known, known)
    if cell.partial_labels is not None:
        inputs.target = sample_labels(
            table.labelings[cell.partial_labels["labeling"]], cell.partial_labels, seed
        )
        if cell.partial_labels["use_labels"] and inputs.target.labelled.any():
            inputs.y = inputs.target.y
    if cell.split is not None:
        parts = inputs.parts = split_rows(table.labelings[cell.split["labeling"]], cell.split, seed)
        inputs.y = parts.y if cell.split["use_labels"] else None
        test = parts.mask("test")
        inputs.X, inputs.X_test = table.X[parts.fitted], table.X[test]
        inputs.known = {name: values[parts.fitted] for name, values in known.items()}
        inputs.known_test = {name: values[test] for name, values in known.items()}
        if cell.split["standardize"]:
            scaler = tables.fit_scaler(inputs.X)
            inputs.X = scaler.transform(inputs.X)
            inputs.X_test = scaler.transform(inputs.X_test) if test.any() else inputs.X_test
    # Sample pairs among the labelled rows, and divide the columns into views.
    if cell.constraints is not None and method.capabilities.pairs:
        assert model.classes is not None
        labels = table.labelings[model.classes]
        rows = np.arange(labels.size)
        if inputs.parts is not None:
            labels, rows = labels[inputs.parts.fitted], np.flatnonzero(inputs.parts.y >= 0)
        inputs.pairs = sample_pairs(labels, rows, cell.constraints, seed)
    if table.views is not None and method.capabilities.views:
        inputs.X, inputs.X_test = (
            [X[:, columns] for columns in table.views] for X in (inputs.X, inputs.X_test)
        )
    return inputs
