"""Options of the commands that cluster a file, validated before the file is read.

The module imports no package that loads slowly, so that the command reports a wrong name at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nrprob.cli.validation import check_at_least
from nrprob.data.reading.options import ReadingOptions, parse_options
from nrprob.exceptions import InputError

__all__ = [
    "Alpha",
    "Categorical",
    "DataOptions",
    "Columns",
    "Data",
    "Decimal",
    "Drop",
    "Encoding",
    "Id",
    "Known",
    "Layer",
    "Missing",
    "NaValues",
    "Names",
    "Number",
    "Obsm",
    "Ordered",
    "Seed",
    "Sep",
    "Sheet",
    "Log",
    "Standardize",
    "Test",
    "parse_n_clusters",
    "parse_reading",
    "read_options",
    "significance_level",
    "split_names",
]

# Options of `nrprob fit` and `nrprob explore`.
Data = Annotated[
    Path,
    Argument(
        help="Data: a CSV, TSV, TXT (also compressed), Excel, ODS, Parquet, NPZ or H5AD file."
    ),
]
Known = Annotated[
    list[str] | None,
    Option(
        help="Known structure that the clusters should not repeat: a COLUMN of DATA, or "
        "FILE:COLUMN (FILE:KEY for NPZ, a column of obs for H5AD). Repeat for several columns."
    ),
]
Columns = Annotated[
    list[str] | None,
    Option(
        help="Feature columns, separated by commas, or repeated; by default all columns that no "
        "other option names."
    ),
]
Categorical = Annotated[
    list[str] | None,
    Option(
        help="Categorical columns, separated by commas, or repeated; by default inferred from the "
        "values."
    ),
]
Ordered = Annotated[
    list[str] | None,
    Option(help="Ordered columns, such as ratings; by default inferred from the values."),
]
Drop = Annotated[
    list[str] | None, Option(help="Columns to leave out, separated by commas, or repeated.")
]
Names = Annotated[
    str | None,
    Option(
        help="Feature names of an NPZ file: a text file with one name per line, FILE:COLUMN, or a "
        "KEY of DATA."
    ),
]
Id = Annotated[
    str | None,
    Option(
        "--id",
        help="Column with a name for every row, which labels.csv and the page show; not a feature.",
    ),
]
Sep = Annotated[
    str | None,
    Option(
        help="Separator of the columns of a text file: comma, semicolon, tab, space, pipe or a "
        "character; detected by default."
    ),
]
Decimal = Annotated[
    str | None,
    Option(help="Decimal separator, comma or point; by default every column decides."),
]
Encoding = Annotated[
    str | None,
    Option(help="Encoding of a text file, such as cp1252 or utf-16; detected by default."),
]
NaValues = Annotated[
    list[str] | None,
    Option(
        "--na-values",
        help="Texts that stand for missing values, separated by commas, or repeated. Empty cells, "
        "and NA, ?, - and the like in columns of numbers, are missing in any case.",
    ),
]
Sheet = Annotated[
    str | None,
    Option(help="Sheet of a spreadsheet, by name or number; by default the first with content."),
]
Layer = Annotated[
    str | None, Option(help="Layer of an H5AD file that holds the features; X by default.")
]
Obsm = Annotated[str | None, Option(help="Entry of obsm of an H5AD file that holds the features.")]
Number = Annotated[
    str | None,
    Option(
        "--k",
        help="Number of clusters, or auto; 2 by default. For mdl_mixture, the maximum number.",
    ),
]
Seed = Annotated[int | None, Option(help="Random seed, for a repeatable run.")]
Missing = Annotated[
    str | None,
    Option(
        help="Missing values: keep, error, drop (leave out the rows) or mean (impute the mean of "
        "the column); by default keep if the method takes missing values, else error."
    ),
]
Log = Annotated[
    list[str] | None,
    Option(
        help="Columns to replace by their logarithms, separated by commas, or repeated; auto takes "
        "skewed columns whose logarithms form Gaussian clusters better."
    ),
]
Standardize = Annotated[
    bool | None,
    Option(
        "--standardize/--no-standardize",
        help="Scale features to mean 0 and standard deviation 1; by default if the standard "
        "deviations of a table differ by a factor of ten.",
    ),
]
Test = Annotated[
    bool,
    Option(
        "--test", help="Test the significance of the clusters, and compute a confidence per row."
    ),
]
Alpha = Annotated[
    float | None,
    Option(help="Significance level of the tests; 0.05 by default."),
]

Column = tuple[Path, str]  # a file, and the name of a column


@dataclass
class DataOptions:
    """Files and columns of features and labelings, as the options name them.

    Attributes
    ----------
    data : data file
    labelings : columns (file and name) of each of the options "known", "compare" and "labels"
    columns, drop : features to use (empty for all), and features to leave out
    categorical, ordered : features that the user declares as categorical or ordered
    names : file and column of the feature names; the column is empty for a text file
    part : argument ``layer`` or ``obsm`` of `nrprob.rows_of`; empty for X
    log, standardize, missing : as in `nrprob.prepare`; ``missing`` is None by default
    id : column with the names of the rows; None without one
    reading : how the files are to be read
    """

    data: Path
    labelings: dict[str, list[Column]]
    columns: list[str]
    drop: list[str]
    categorical: list[str]
    ordered: list[str]
    names: Column | None
    part: dict[str, str]
    log: str | list[str]
    standardize: bool | str
    missing: str | None
    id: str | None = None
    reading: ReadingOptions = field(default_factory=ReadingOptions)

    @property
    def label_columns(self) -> list[Column]:
        """Columns of all labelings, without repetitions."""
        return list(
            dict.fromkeys(column for columns in self.labelings.values() for column in columns)
        )

    @property
    def data_labels(self) -> list[str]:
        """Label columns in the data file."""
        return [name for file, name in self.label_columns if file.resolve() == self.data.resolve()]


def read_options(
    data: Path,
    labelings: dict[str, list[str]],
    columns: list[str] | None,
    drop: list[str] | None,
    categorical: list[str] | None,
    ordered: list[str] | None,
    names: str | None,
    part: dict[str, str | None],
    log: list[str] | None,
    standardize: bool | None,
    missing: str | None,
    id: str | None = None,
    reading: ReadingOptions | None = None,
) -> DataOptions:
    """Parse the options, and check the names of columns against the files.

    ``labelings`` has the texts of --known, --compare and --labels, by option. ``reading`` states
    how text files and spreadsheets are to be read. The other arguments are the values of the
    options with their names, as the user has typed them.

    Raises
    ------
    nrprob.exceptions.InputError
        If a file or a column does not exist.
    """
    from nrprob.batch import formats

    if missing not in (None, "keep", "error", "drop", "mean"):
        raise InputError(
            f"--missing must be keep, error, drop or mean; got {missing!r}; pass for example "
            "--missing drop"
        )
    # Split the texts of the options into files and column names.
    reading = reading or ReadingOptions()
    available = {data: formats.column_names(data, reading)}
    hints = {data: formats.reading_hint(data, reading)}
    options = DataOptions(
        data,
        {
            option: [_parse_column(text, data) for text in texts]
            for option, texts in labelings.items()
        },
        split_names(columns),
        split_names(drop),
        split_names(categorical),
        split_names(ordered),
        None if names is None else _parse_names(names, data),
        {kind: name for kind, name in part.items() if name is not None},
        "auto" if log == ["auto"] else split_names(log),
        "auto" if standardize is None else standardize,
        missing,
        id,
        reading,
    )
    # Check the features: the part of an H5AD file, the columns of a table, or a named matrix.
    for kind, name in options.part.items():
        formats.require_part(data, kind, name)
    if len(options.part) > 1:
        raise InputError(
            "features come from a layer or from obsm; got --layer and --obsm; leave one of them out"
        )
    _check_kinds(options)
    if formats.is_table(data):
        ids = [id] if id is not None else []
        named = [*options.columns, *options.drop, *options.categorical, *options.ordered, *ids]
        formats.require_columns(named, available[data], data, hints[data])
        unused = {*options.drop, *options.data_labels, *ids}
        if not options.columns and not set(available[data]) - unused:
            raise InputError(
                f"no feature column is left; {data}; drop fewer columns, or name features with "
                "--columns"
            )
    elif (options.columns or options.drop) and options.names is None:
        if data.suffix == ".npz":
            raise InputError(
                f"columns of an NPZ file have no names; {data}; name them with --feature-names, or "
                "leave out columns of the array itself"
            )
    if id is not None and not formats.is_table(data):
        raise InputError(
            f"--id names a column of a table; got --id {id} for {data}; leave the option out"
        )
    # Check the columns of labelings and of feature names.
    for option, places in options.labelings.items():
        for file, name in places:
            if places.count((file, name)) > 1:
                raise InputError(
                    f"an option must name a column only once; got --{option} {file}:{name} more "
                    "than once; leave out the repetitions"
                )
    others = [
        *options.label_columns,
        *([options.names] if options.names and options.names[1] else []),
    ]
    for file, name in others:
        if file not in available:
            # The reading options state how the data file is to be read.
            available[file] = formats.column_names(file)
        formats.require_columns([name], available[file], file, hints.get(file, ""))
    return options


def parse_reading(
    sep: str | None, decimal: str | None, encoding: str | None, na_values: list[str] | None,
    sheet: str | None,
) -> ReadingOptions:  # fmt: skip
    """Parse the options that say how a text file or a spreadsheet is to be read."""
    return parse_options(sep, decimal, encoding, split_names(na_values), sheet)


def _check_kinds(options: DataOptions) -> None:
    """Raise InputError for unsuitable columns of --categorical and --ordered.

    A column is unsuitable if it is declared twice with different types, or if it is not a feature.
    """
    from nrprob.batch import formats

    kinds = {"--categorical": options.categorical, "--ordered": options.ordered}
    for option, names in kinds.items():
        if names and not formats.is_table(options.data):
            raise InputError(
                f"{option} needs a table with named columns; got {option} {names[0]} for "
                f"{options.data}; leave the option out"
            )
        for name in names:
            others = [other for other in kinds if other != option and name in kinds[other]]
            others += ["--drop"] * (name in options.drop)
            others += ["--known, --compare or --labels"] * (name in options.data_labels)
            if others:
                raise InputError(
                    f"only one of these options may name a column; got {name} in {option} and "
                    f"{others[0]}; remove the column from one of them"
                )


def parse_n_clusters(k: str | None) -> int | str | None:
    """Parse the text of --k: a number, "auto", or None without the option.

    Raises
    ------
    nrprob.exceptions.InputError
        If --k is neither "auto" nor a positive integer.
    """
    if k is None or k == "auto":
        return k
    try:
        number = int(k)
    except ValueError:
        raise InputError(
            f"--k must be a number or auto; got {k!r}; pass for example --k 3"
        ) from None
    check_at_least(1, number, "--k")
    return number


def significance_level(alpha: float | None, tested: bool) -> float:
    """Return the significance level of the tests: the value of --alpha, or 0.05 without it.

    ``tested`` states whether a test is requested.

    Raises
    ------
    nrprob.exceptions.InputError
        If --alpha is not a probability, or no test is requested.
    """
    if alpha is None:
        return 0.05
    if not 0 <= alpha <= 1:
        raise InputError(f"--alpha must be a probability; got {alpha}; pass a number from 0 to 1")
    if not tested:
        raise InputError(
            f"--alpha is the significance level of --test; got --alpha {alpha} without --test; add "
            "--test"
        )
    return alpha


def split_names(texts: list[str] | None) -> list[str]:
    """Split texts at commas, and drop repeated names."""
    parts = ",".join(texts or []).split(",")
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _parse_column(text: str, data: Path) -> Column:
    """Split FILE:COLUMN; without FILE, the column is in the data file."""
    file, _, column = text.rpartition(":")
    if not column:
        raise InputError(
            f"a labeling is FILE:COLUMN; got {text!r}; name the column after the colon"
        )
    return (Path(file) if file else data), column


def _parse_names(text: str, data: Path) -> Column:
    """Parse the text of --feature-names: a text file (with an empty column name), or a column."""
    if data.suffix != ".npz":
        raise InputError(
            f"the columns of {data} have names already; got --feature-names {text}; leave the "
            "option out"
        )
    lines = Path(text)
    return (lines, "") if lines.is_file() else _parse_column(text, data)
