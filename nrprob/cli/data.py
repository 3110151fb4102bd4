"""Load features and labels for the command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nrprob.batch.registry import METHODS
from nrprob.cli.options import Column, DataOptions
from nrprob.cli.terminal import TableError, print_note, print_warning
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    import numpy as np

    from nrprob.batch.tables import Table
    from nrprob.data.preparation.prepare import Prepared
    from nrprob.data.reading.conversion import Problem, ReadingRecord

__all__ = [
    "LoadedData",
    "check_groups",
    "refuse_covariates",
    "check_sparse",
    "command_line",
    "has_text_or_missing",
    "load_data",
]


@dataclass
class LoadedData:
    """Features, known structure, and labelings for comparison.

    Attributes
    ----------
    table : features of the n rows, and all labelings (n,)
    known : argument ``known`` of estimators; None without known structure
    names : names of the labelings in ``known``
    y : (n,) partial labels as integers, -1 where unknown; None without labels
    classes : names of the classes; ``classes[i]`` is the label that is i in ``y``
    origin : entries of ``result.json`` about the data: command, files, preparation
    notes, warnings : messages about the preparation of the data
    """

    table: Table
    known: Any = None
    names: list[str] = field(default_factory=list)
    y: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def covariates(self) -> np.ndarray | None:
        """Known continuous covariates, one column each; None without any."""
        return _covariates(self.known)

    def print_notes(self) -> None:
        """Print the messages about the preparation of the data."""
        for line in self.notes:
            print_note(line)
        for line in self.warnings:
            print_warning(line)


def _covariates(known: Any) -> np.ndarray | None:
    """Continuous covariates (n, n_covariates): the columns of floats of the known structure.

    The result is None without such columns.
    """
    import numpy as np

    if hasattr(known, "select_dtypes"):
        values = known.select_dtypes("float").to_numpy()
        return values if values.size else None
    known = np.asarray(known)
    return known if known.ndim == 2 and known.dtype.kind == "f" else None


def load_data(options: DataOptions, mixed: bool = True) -> LoadedData:
    """Read the features, and the columns of the options --known, --compare and --labels.

    ``mixed`` states whether the method takes text and missing values. Otherwise text becomes binary
    columns.

    Raises
    ------
    nrprob.exceptions.InputError
        If a file or a column cannot be read; or if --missing is "keep", and the method does not
        take missing values.
    """
    import numpy as np
    import pandas as pd
    import scipy.sparse

    from nrprob.batch import formats, tables
    from nrprob.data.annotated import describe_counts, is_annotated, rows_of
    from nrprob.data.frames import is_frame
    from nrprob.data.preparation.prepare import prepare_table
    from nrprob.data.preparation.record import as_option
    from nrprob.data.reading.conversion import ReadingRecord
    from nrprob.data.reading.options import ReadingOptions
    from nrprob.files import digest

    if options.missing == "keep" and not mixed:
        able = ", ".join(name for name, entry in METHODS.items() if entry.capabilities.mixed)
        raise InputError(
            "the method takes no missing values; got --missing keep; pass --missing drop or "
            f"--missing mean, or use {able}"
        )
    # Read every file once, then the features and all label columns.
    files = dict.fromkeys([options.data, *(file for file, _ in options.label_columns)])
    record = ReadingRecord(has_options=True)
    sources = {}
    for file in files:
        is_data = file.resolve() == options.data.resolve()
        sources[file] = tables.read_contents(
            file,
            options.reading if is_data else ReadingOptions(),
            record,
            exclude=options.categorical,
        )
        if is_data:
            column_units = dict(record.units)  # label columns of other files may have equal names
    problems = _split_problems(record, options)
    X, row_names, names = _read_rows(options, sources[options.data])
    n, scaled = X.shape[0], options.standardize
    label_values = {
        place: _read_column(sources[place[0]], place, n) for place in options.label_columns
    }
    units = not is_annotated(sources[options.data])  # in AnnData, all genes have one unit
    if not units:
        cells = rows_of(sources[options.data], **options.part)
        record.notes += filter(None, [describe_counts(cells, as_options=True)])
    known = _name_columns(options.labelings["known"], label_values)
    if scipy.sparse.issparse(X):
        tables.check_values(tables.Table(X, names))
        X, scaled = tables.fit_scaler(X).transform(X) if scaled is True else X, False
    # Prepare the features: as a table with text and missing values if the method takes them, else
    # as numbers.
    known_table = _combine_known(known, getattr(X, "index", None))
    settings: dict[str, Any] = {
        "known": known_table, "log": options.log, "standardize": scaled, "names": names,
        "say": as_option, "units": units, "chosen": bool(options.columns),
    }  # fmt: skip

    def prepare_features(features: Any) -> Prepared:
        if mixed:
            ready = prepare_table(features, missing=options.missing or "keep", **settings)
            # Effects of covariates need complete numeric columns.
            if _covariates(ready.known) is None or not has_text_or_missing(ready.X):
                return ready
        return prepare_table(
            features, categories="indicators", missing=options.missing or "error", **settings
        )

    hint = formats.reading_hint(options.data, options.reading)
    ready = _prepare_or_refuse(prepare_features, X, problems, mixed, hint)
    ready.notes[:0] = record.notes
    ready.warnings[:0] = record.warnings
    # Rows may have been left out; select the same rows of names and labelings.
    rows = ready.rows_
    if row_names is None and len(rows) < n:
        row_names = np.arange(n)
    identifier = options.id
    if options.id is None and ready.identifiers_ and isinstance(X.index, pd.RangeIndex):
        # The first column that identifies rows.
        name = identifier = ready.identifiers_[0]
        row_names = X[name].to_numpy()
        ready.notes.append(f"{name!r} names the rows of the results; --id names another column")
    table = tables.Table(
        ready.frame if mixed and is_frame(X) else ready.X,
        None if names is None else ready.feature_names_,
        row_names=None if row_names is None else row_names[rows],
        identifier=identifier or "row",
    )
    data = LoadedData(table, ready.known, notes=ready.notes, warnings=ready.warnings)
    # Known labelings and labelings for comparison become labelings of the table; continuous
    # covariates do not.
    labels = {
        name: values
        for name, values in known.items()
        if values.ndim == 1 and not _is_measured(ready.known, name)
    }
    data.names = list(labels)
    compared = _name_columns(options.labelings["compare"], label_values, known)
    for name, values in (labels | compared).items():
        where = f"--{'known' if name in labels else 'compare'} {name}"
        groups = values[rows]
        if name in labels and known_table is not None:
            groups = ready.known[name].to_numpy() if is_frame(ready.known) else ready.known
        elif options.missing != "error" and (n_missing := int(pd.isna(groups).sum())):
            groups = np.where(pd.isna(groups), "(missing)", pd.Series(groups).astype(str))
            data.notes.append(f"{where}: rows without a value ({n_missing}) form a separate group")
        table.labelings[name] = tables.as_labels(groups, where)
    for place in options.labelings["labels"]:
        data.y, data.classes = _encode_classes(label_values[place][rows])
        if not data.classes:
            raise InputError(
                f"no row has a label; column {place[1]} of --labels holds only empty cells or -1; "
                "name another column, or leave the option out"
            )
    used = {*ready.feature_names_, *(column for column, _ in ready.logarithms_.values())}
    data.origin = {
        "command": command_line(),
        "files": {str(file): digest(file) for file in files},
        "prepared": {
            "missing": options.missing,
            "features": ready.feature_names_,
            "kinds": ready.kinds_,
            "known": list(known),
            "rows_left_out": np.setdiff1d(np.arange(n), rows).tolist(),
            "scales": ready.scales_,
            "logarithms": ready.logarithms_,
            "indicators": ready.indicators_,
            "units": {n: unit for n, unit in column_units.items() if n in used},
            "notes": ready.notes,
            "warnings": ready.warnings,
        },
    }
    if data.y is not None:
        n_labelled = int((data.y >= 0).sum())
        data.origin["partial_labels"] = {"rows": n_labelled, "classes": data.classes}
    return data


def _split_problems(record: ReadingRecord, options: DataOptions) -> list[Problem]:
    """Return the problems of feature columns; record warnings about label columns instead.

    Label columns with problems are read as text. Problems of unused columns are ignored.
    """
    problems = []
    unused = {*options.drop, *([] if options.id is None else [options.id])}
    for problem in record.problems:
        names = {*problem.columns} - unused
        if names & {name for _, name in options.label_columns}:
            record.warnings.append(f"labels are read as text; got {problem.got}")
        elif names and (not options.columns or names & {*options.columns}):
            problems.append(problem)
    return problems


def _prepare_or_refuse(
    prepare: Callable[[Any], Prepared], X: Any, problems: list[Problem], mixed: bool, hint: str
) -> Prepared:
    """Prepare the features ``X`` by ``prepare``, or raise one error with all problems of the table.

    ``problems`` were found when the file was read. To find further problems, the columns with
    known problems are left out. ``mixed`` states whether the method takes text. ``hint`` ends the
    error; it states what may be wrong with the reading of the file.

    Raises
    ------
    TableError
        If the table has problems; the error names a command that settles them.
    """
    from nrprob.data.preparation.columns import MOST_VALUES
    from nrprob.data.preparation.record import (
        MissingValues,
        NoFeatureLeft,
        UnfitColumns,
        as_option,
        unfit_columns,
    )
    from nrprob.data.reading.conversion import Problem, as_command_options

    missing: list[str] = []
    while True:
        names = [name for problem in problems for name in problem.columns]
        try:
            ready = prepare(X.drop(columns=names) if names else X)
        except UnfitColumns as error:
            problems = [*problems, *error.problems]
            continue
        except MissingValues as error:
            missing.append(str(error))
        except ValueError as error:
            if not problems and isinstance(error, NoFeatureLeft) and hint:
                raise InputError(f"{error}; {hint}") from None
            if not problems:
                raise
        break
    if not problems and not missing:
        return ready
    texts = "text" if mixed else f"text of up to {MOST_VALUES} values"
    lines = [str(unfit_columns(problems, texts, as_option))] if problems else []
    if missing:
        problems = [*problems, Problem("", "", [], {"missing": ["drop"]})]
    message = "\n".join([*lines, *missing, *[hint] * bool(hint)])
    raise TableError(message, f"{command_line()} {as_command_options(problems)}")


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["nrprob", *sys.argv[1:]])


def _read_rows(
    options: DataOptions, source: Any
) -> tuple[Any, np.ndarray | None, list[str] | None]:
    """Return the features, the names of the rows, and the names of the features.

    The names are None if the file has none. ``source`` are the contents of the data file.
    """
    from nrprob.batch import tables
    from nrprob.data.annotated import feature_names_of, matrix_of, rows_of
    from nrprob.data.frames import is_frame

    if is_frame(source):
        ids = [] if options.id is None else [options.id]
        feature_columns = options.columns or [
            c for c in source if c not in {*options.drop, *options.data_labels, *ids}
        ]
        index = source.index if options.id is None else source[options.id]
        return _set_kinds(source[feature_columns], options), index.to_numpy(), feature_columns
    names, row_names = None, None
    if isinstance(source, Mapping):
        X = tables.find_matrix(source, options.data)
        if options.names is not None:
            names = _feature_names(options.names, source, options.data, X.shape[1])
    else:
        cells = rows_of(source, **options.part)
        X, names, row_names = matrix_of(cells), feature_names_of(cells), source.obs_names.to_numpy()
    if names is not None:
        X, names = tables.select_columns(X, names, options.columns, options.drop, options.data)
    return X, row_names, names


def has_text_or_missing(X: Any) -> bool:
    """Whether the dense table ``X``, an array or a frame, has text columns or missing values."""
    import numpy as np
    import pandas as pd

    is_text = hasattr(X, "columns") and bool((X.dtypes == "category").any())
    return is_text or bool(np.asarray(pd.isna(X)).any())


def _set_kinds(frame: Any, options: DataOptions) -> Any:
    """Convert the columns named by --categorical and --ordered to pandas categories."""
    import pandas as pd

    kinds = {name: pd.CategoricalDtype() for name in options.categorical}
    kinds |= {name: pd.CategoricalDtype(ordered=True) for name in options.ordered}
    return frame.astype({name: kind for name, kind in kinds.items() if name in frame})


def _feature_names(
    place: Column, source: Mapping[str, Any], data: Path, n_features: int
) -> list[str]:
    """Read the feature names of a matrix, from a column of a file or from the lines of a text file.

    ``place`` is the file and the name of the column, which is empty for a text file. ``source`` has
    the contents of the data file ``data``.
    """
    from nrprob.batch import tables

    file, column = place
    if column:
        source = source if file.resolve() == data.resolve() else tables.read_contents(file)
        names = [str(name) for name in tables.read_column(source, column, file).tolist()]
    else:
        names = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    if len(names) != n_features or len(set(names)) < n_features:
        raise InputError(
            f"--feature-names must hold one distinct name per column; got {len(names)} names "
            f"({len(set(names))} distinct) for {n_features} columns; correct the names"
        )
    return names


def _read_column(source: Any, place: Column, n: int) -> np.ndarray:
    """Read a column (n,) of a file; raise InputError if it does not have ``n`` values.

    ``place`` is the file and the name of the column. ``source`` has the contents of the file.
    """
    from nrprob.batch import tables

    file, column = place
    values = tables.read_column(source, column, file)
    if len(values) != n:
        raise InputError(
            f"{column} of {file} does not match the data; {len(values)} values for {n} rows; "
            "give one value per row, in the same order"
        )
    return values


def _name_columns(
    places: list[Column],
    read: dict[Column, np.ndarray],
    others: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Return the values of the columns ``places`` by the name of the column.

    ``read`` has the values by file and name of the column. If a name occurs twice, or among
    ``others``, "file:column" replaces the name.
    """
    result: dict[str, np.ndarray] = {}
    for file, column in places:
        name = column if column not in {*result, *others} else f"{file}:{column}"
        result[name] = read[file, column]
    return result


def _combine_known(known: dict[str, np.ndarray], index: Any) -> Any:
    """Combine known columns, given by name, into one frame with this index.

    A known matrix is returned unchanged; without known columns, the result is None.
    """
    import pandas as pd

    if not known:
        return None
    matrices = [values for values in known.values() if values.ndim > 1]
    if matrices and len(known) > 1:
        raise InputError(
            "a known matrix must be the only --known; got "
            f"{', '.join(known)}; pass only the matrix, or its columns one by one"
        )
    return matrices[0] if matrices else pd.DataFrame(known, index=index)


def _is_measured(known: Any, name: str) -> bool:
    """Whether the known column ``name`` is a continuous covariate, since it holds floats."""
    return hasattr(known, "columns") and known[name].dtype.kind == "f"


def _encode_classes(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Encode partial labels (n,) as integers, -1 where unknown.

    Returns the integers (n,) and the names of the classes. A label is unknown if it is missing,
    blank or -1.
    """
    import pandas as pd

    from nrprob.data.labels import are_blank, are_minus_one

    unknown = pd.isna(values) | are_blank(values) | are_minus_one(values)
    # A column of integers with missing values is read as floats: 1.0 is the class "1".
    names = pd.Series([f"{v:g}" if isinstance(v, float) else str(v) for v in values], dtype=object)
    y, classes = pd.factorize(names.mask(unknown), sort=True)
    return y, classes.tolist()


def check_sparse(data: LoadedData, method: str) -> None:
    """Raise InputError if the features are sparse and the method needs dense features."""
    is_sparse = getattr(data.table.X, "format", None) is not None
    if is_sparse and not METHODS[method].capabilities.sparse:
        able = ", ".join(name for name, entry in METHODS.items() if entry.capabilities.sparse)
        raise InputError(
            f"{method} takes no sparse matrix; got --method {method} with sparse rows; store the "
            f"rows as a dense matrix, or use one of {able}"
        )


def refuse_covariates(data: LoadedData, why: str, instead: str) -> None:
    """Raise InputError if the known structure has continuous covariates.

    In the message, ``why`` states which command or method takes labels only, and ``instead`` what
    to use instead.
    """
    if data.known is not None and data.covariates is not None:
        names = data.origin["prepared"]["known"]
        columns = ", ".join(f"--known {name}" for name in names if name not in data.names)
        raise InputError(
            f"{why}; got floats in {columns}; cut the values into groups, or use {instead}"
        )


def check_groups(data: LoadedData, method: str | None = None) -> None:
    """Raise ValueError for a known labeling in which every row is a separate group.

    A method may allow such labelings; see `nrprob.estimator.capabilities.Capabilities`.
    """
    from nrprob.data.labels import refuse_own_groups

    allowed = method is not None and METHODS[method].capabilities.singleton_groups
    if data.covariates is None and not allowed:
        for name in data.names:
            labels = data.table.labelings[name].tolist()
            refuse_own_groups(len(set(labels)), len(labels), f"; --known {name}")
