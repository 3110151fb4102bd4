"""The command ``nrprob fit``: the rows of a file clustered, beyond what is known about them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from nrprob.cli.single import show
from nrprob.cli.terminal import in_one_line, note, working
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    import numpy as np

    from nrprob.batch.registry import Method
    from nrprob.batch.tables import Table

__all__ = ["fit"]


@in_one_line()
def fit(
    data: Annotated[Path, Argument(help="Rows: a CSV, TSV, Parquet or NPZ file.")],
    known: Annotated[
        list[str] | None,
        Option(
            help="What is known, FILE:COLUMN (FILE:KEY for NPZ; COLUMN alone is one of DATA). "
            "Repeat for several labelings."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        Option(help="Wanted labels of some rows, FILE:COLUMN; empty or -1 where unknown."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        Option(help="A labeling to compare the result with, FILE:COLUMN; never used to fit."),
    ] = None,
    method: Annotated[
        str, Option(help="See `nrprob methods`; auto looks at the data, and says why.")
    ] = "auto",
    k: Annotated[
        int | None,
        Option("--k", help="Number of clusters, 2 by default; the most, where it is sampled."),
    ] = None,
    out: Annotated[Path, Option(help="Folder to write to.")] = Path("results"),
    columns: Annotated[
        str | None, Option(help="Feature columns, separated by commas; default all numeric.")
    ] = None,
    drop: Annotated[str | None, Option(help="Columns to leave out, separated by commas.")] = None,
    features: Annotated[
        str | None, Option(help="auto, multinomial, bernoulli or gaussian.")
    ] = None,
    solver: Annotated[
        str | None, Option(help="anneal, sequential, batched or agglomerative.")
    ] = None,
    n_init: Annotated[int | None, Option(help="Number of restarts.")] = None,
    seed: Annotated[int | None, Option(help="Makes the run repeatable.")] = 0,
    standardize: Annotated[
        bool, Option(help="Give every feature mean 0 and standard deviation 1.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Any other parameter of the method."),
    ] = None,
    picture: Annotated[bool, Option(help="Draw summary.png.")] = True,
) -> None:
    """Cluster the rows of a file, beyond what is known about them."""
    from nrprob.batch import fits, registry, single, sources
    from nrprob.files import try_write

    chosen = None if method.lower() == "auto" else registry.method(method)
    named = {"features": features, "solver": solver, "n_init": n_init}
    parameters = _parameters(chosen, k, seed, named, settings or [])
    if known and chosen and not chosen.takes_known:
        raise InputError(
            f"{method} takes no known structure; --known {known[0]}; "
            "use --method auto, or --compare to see how they agree"
        )
    shown = "summary.png" if picture else None
    for name in single.names(shown):
        try_write(out / name)
    with working(f"reading {data.name}"):
        options = {"known": known or [], "compare": compare or []}
        options["labels"] = [labels] if labels else []
        given = _read(data, options, _listed(columns), _listed(drop), standardize)
    table = given.table
    if table.left_out:
        note(f"not numeric and left out: {', '.join(table.left_out)}")
    if given.y is not None:
        legend = ", ".join(f"{c} = {name}" for c, name in enumerate(given.classes))
        note(f"wanted classes: {legend}")
    if len(given.known) > 1 and any(z.ndim > 1 for z in given.known):
        raise InputError(
            "several --known have to be labelings, one column each; one of them is a matrix; "
            "give the matrix alone"
        )
    z = sources.known_array(given.known)
    if chosen is None:
        from nrprob.advice import recommend

        model = recommend(table.X, known=z, y=given.y, n_clusters=parameters["n_clusters"])
        method, chosen = registry.entry(type(model))
        parameters = model.get_params(deep=False) | parameters
        note(model.reason_)
    with working(f"fitting {chosen.class_name}"):
        fitted = fits.fit_method(method, parameters, table.X, z, y=given.y, where="--set ")
    fits.score(fitted, table.labelings, fits.default_measures([*table.labelings]))
    result = single.Single("", table, given.names, [fitted])
    with working("writing the results"):
        single.save(result, out, shown)
    show(result)


def _parameters(
    chosen: Method | None,
    k: int | None,
    seed: int | None,
    named: dict[str, Any],
    settings: Sequence[str],
) -> dict[str, Any]:
    """Parameters of the estimator; ``chosen`` is None where the data are to choose it."""
    from nrprob.batch.plan import check_seed

    parameters: dict[str, Any] = {"random_state": seed}
    if chosen is not None and hasattr(chosen.load()(), "max_clusters"):
        parameters |= {} if k is None else {"max_clusters": k}
    else:
        parameters["n_clusters"] = 2 if k is None else k
    parameters |= {name: value for name, value in named.items() if value is not None}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"a setting is NAME=VALUE; --set {setting}; add the value")
        parameters[name.strip()] = _value(text.strip())
    check_seed(parameters["random_state"], "--seed")
    return parameters


def _value(text: str) -> Any:
    """Value of --set: TOML where it is, else the text as it stands."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


@dataclass
class _Given:
    """What a fit is given, and what it is compared with.

    Attributes
    ----------
    table : rows, and all labelings of them
    known, names : what is known; the names of those of them that are labelings
    y, classes : wanted labels, -1 where unknown, and the names of the classes; None for none
    """

    table: Table
    known: list[np.ndarray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    y: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)


def _read(
    data: Path,
    options: dict[str, list[str]],
    columns: list[str],
    drop: list[str],
    standardize: bool,
) -> _Given:
    """Read the rows, and the columns that the options --known, --compare and --labels name."""
    from nrprob.batch import sources, tables

    places = {option: [_place(text, data) for text in texts] for option, texts in options.items()}
    if data.suffix != ".npz":
        everything = [place for group in places.values() for place in group]
        drop += [column for file, column in everything if file.resolve() == data.resolve()]
    table = tables.read(data, columns=columns, drop=drop)
    sources.require_numbers(table)
    if standardize:
        table.X = tables.scaler(table.X).transform(table.X)
    given = _Given(table)

    def read(option: str, file: Path, column: str) -> np.ndarray:
        values, n = tables.read_column(file, column), table.X.shape[0]
        if len(values) != n:
            raise InputError(
                f"--{option} {column} does not go with the data; {len(values)} values for {n} "
                "rows; give one value per row, in the same order"
            )
        return values

    def label(option: str, file: Path, column: str, values: np.ndarray) -> str:
        name = column if column not in table.labelings else f"{file}:{column}"
        table.labelings[name] = tables.as_labels(values, f"--{option} {column}")
        return name

    for place in places["known"]:
        values = read("known", *place)
        # A float matrix is continuous known structure: what to do is the method's business.
        if values.ndim == 1:
            given.names.append(label("known", *place, values))
            values = table.labelings[given.names[-1]]
        given.known.append(values)
    for place in places["compare"]:
        label("compare", *place, read("compare", *place))
    for place in places["labels"]:
        given.y, given.classes = _classes(read("labels", *place))
    return given


def _place(text: str, data: Path) -> tuple[Path, str]:
    """Split FILE:COLUMN; a bare COLUMN is one of DATA."""
    file, _, column = text.rpartition(":")
    if not column:
        raise InputError(f"a labeling is FILE:COLUMN; {text!r}; name the column after the colon")
    return (Path(file) if file else data), column


def _classes(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Partial labels as integers with -1 where unknown, and the names of the classes."""
    import numpy as np
    import pandas as pd

    unknown = pd.isna(values) | np.isin(np.asarray(values, dtype=str), ("", "-1", "-1.0"))
    # A column of whole numbers with gaps is read as real numbers: 1.0 is the class "1".
    names = pd.Series([f"{v:g}" if isinstance(v, float) else str(v) for v in values], dtype=object)
    y, classes = pd.factorize(names.mask(unknown), sort=True)
    return y, classes.tolist()
