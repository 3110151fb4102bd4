"""The command ``nrprob fit``: the rows of a file clustered, beyond what is known about them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nrprob.cli.given import (
    Columns,
    Data,
    Drop,
    Known,
    Missing,
    Out,
    Seed,
    Standardize,
    listed,
    read_given,
)
from nrprob.cli.single import show
from nrprob.cli.terminal import in_one_line, note, working
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    from nrprob.batch.registry import Method

__all__ = ["fit"]


@in_one_line()
def fit(
    data: Data,
    known: Known = None,
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
    out: Out = Path("results"),
    columns: Columns = None,
    drop: Drop = None,
    features: Annotated[
        str | None, Option(help="auto, multinomial, bernoulli or gaussian.")
    ] = None,
    solver: Annotated[
        str | None, Option(help="anneal, sequential, batched or agglomerative.")
    ] = None,
    n_init: Annotated[int | None, Option(help="Number of restarts.")] = None,
    seed: Seed = 0,
    missing: Missing = "error",
    standardize: Standardize = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Any other parameter of the method."),
    ] = None,
    picture: Annotated[bool, Option(help="Draw summary.png.")] = True,
) -> None:
    """Cluster the rows of a file, beyond what is known about them."""
    from nrprob.batch import fits, registry, single
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
        given = read_given(data, options, listed(columns), listed(drop), standardize, missing)
    table = given.table
    given.tell()
    if given.y is not None:
        legend = ", ".join(f"{c} = {name}" for c, name in enumerate(given.classes))
        note(f"wanted classes: {legend}")
    z = given.known
    if chosen is None:
        from nrprob.advice import recommend

        model = recommend(table.X, known=z, y=given.y, n_clusters=parameters["n_clusters"])
        method, chosen = registry.entry(type(model))
        parameters = model.get_params(deep=False) | parameters
        note(model.reason_)
    with working(f"fitting {chosen.class_name}"):
        fitted = fits.fit_method(method, parameters, table.X, z, y=given.y, where="--set ")
    fits.score(fitted, table.labelings, fits.default_measures([*table.labelings]))
    result = single.Single("", table, given.names, [fitted], origin=given.origin)
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
