"""The command ``nrprob fit``: cluster the rows of a file, conditioned on known structure."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nrprob.cli import validation
from nrprob.cli.data import check_groups, check_known, check_sparse, read_given
from nrprob.cli.options import (
    Alpha,
    Columns,
    Data,
    Drop,
    Known,
    Layer,
    Missing,
    Names,
    Number,
    Obsm,
    Seed,
    Standardize,
    Test,
    as_number,
    ask,
    level,
)
from nrprob.cli.output import Force, Out, find_place, remove_others
from nrprob.cli.single import show
from nrprob.cli.terminal import in_one_line, note, working
from nrprob.cli.validation import in_options
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    from nrprob.batch.registry import Method

__all__ = ["fit"]


@in_one_line(in_options)
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
    k: Number = None,
    out: Out = None,
    force: Force = False,
    columns: Columns = None,
    drop: Drop = None,
    feature_names: Names = None,
    layer: Layer = None,
    obsm: Obsm = None,
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
    plot: Annotated[bool, Option(help="Draw summary.png.")] = True,
    test: Test = False,
    alpha: Alpha = None,
) -> None:
    """Cluster the rows of a file, beyond what is known about them."""
    from nrprob.batch import registry
    from nrprob.batch.formats import EVIDENCE, PICTURE, RESULTS
    from nrprob.batch.plan import check_seed

    chosen = None if method.lower() == "auto" else registry.method(method)
    if isinstance(chosen, registry.Rival):
        raise InputError(
            f"external estimators are for model files; --method {method}; choose a method of "
            "`nrprob methods`"
        )
    number = as_number(k)
    named = {"random_state": seed, "features": features, "solver": solver, "n_init": n_init}
    parameters = {name: value for name, value in named.items() if value is not None}
    parameters |= _settings(settings or [])
    check_seed(parameters.get("random_state"), "--seed")
    at = level(alpha, test)
    if test and labels:
        raise InputError(
            f"clusters that are told labels have no test; --test with --labels {labels}; leave one "
            "of them out"
        )
    options = {"known": known or [], "compare": compare or [], "labels": [labels] if labels else []}
    part = {"layer": layer, "obsm": obsm}
    asked = ask(data, options, columns, drop, feature_names, part, standardize, missing)
    drawn = PICTURE if plot else None
    place = find_place(out, force, [*RESULTS, *[PICTURE] * plot, *[EVIDENCE] * (plot and test)])
    # From here on, classes of estimators are imported.
    if chosen and number == "auto":
        _check_finds_number(chosen, method)
    if known and chosen and not chosen.capabilities.known:
        raise InputError(
            f"{method} takes no known structure; --known {known[0]}; "
            "use --method auto, or --compare to see how they agree"
        )
    validation.check_parameters(registry.short_name(method) if chosen else None, parameters)
    with working(f"reading {data.name}"):
        given = read_given(asked)
    table = given.table
    given.tell()
    if given.y is not None:
        legend = ", ".join(f"{c} = {name}" for c, name in enumerate(given.classes))
        note(f"wanted classes: {legend}")
    counted = chosen is None or "n_clusters" in chosen.parameters
    validation.check_n_clusters(number, given.table.X.shape[0], 2 if counted else 1)
    if chosen is not None:
        check_sparse(given, registry.short_name(method))
    # Where groups have another name, columns of numbers may be probabilities of them.
    labelled = chosen is not None and chosen.capabilities.known_as == "known"
    if labelled and chosen and "continuous" not in chosen.capabilities.known:
        able = [n for n, m in registry.METHODS.items() if "continuous" in m.capabilities.known]
        instead = " or ".join(f"--method {name}" for name in able)
        check_known(given, f"{method} takes no continuous covariates", instead)
    if labelled or chosen is None:
        check_groups(given, registry.short_name(method) if chosen else None)
    z = given.known
    from nrprob.batch import fit_files, fits
    from nrprob.batch.fit_result import FitResult

    recommended: dict[str, Any] = {}
    if chosen is None:
        from nrprob.advice import recommend

        fixed = number if isinstance(number, int) else 2
        model = recommend(table.X, known=z, y=given.y, n_clusters=fixed)
        method, chosen = registry.entry(type(model))
        recommended = model.get_params(deep=False)
        note(model.reason_)
        if number == "auto":
            _check_finds_number(chosen, method)
    parameters = recommended | _clusters(chosen, number) | parameters
    with place.claimed() as folder:
        with working(f"fitting {chosen.class_name}"):
            fitted, estimator = fits.fit_method(
                method, parameters, table.X, z, y=given.y, where="--set "
            )
        fits.score_fit(fitted, table.labelings, fits.default_measures([*table.labelings]))
        result = FitResult(
            "", table, given.names, [fitted], origin=given.origin, measured=given.measured
        )
        if test:
            from nrprob.batch.fit_result import check_clusters

            with working("testing the clusters"), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result.tested = check_clusters(estimator, table.X, z, alpha=at, alert=result.alert)
            messages = [*fitted.warnings, *(str(one.message) for one in caught)]
            fitted.warnings = list(dict.fromkeys(messages))
        with working("writing the results"):
            fit_files.save_fit(result, folder, drawn)
            remove_others(folder, result.files)
    show(result)


def _check_finds_number(chosen: Method, method: str) -> None:
    from nrprob.batch.registry import METHODS

    if not chosen.capabilities.finds_number:
        able = ", ".join(name for name, one in METHODS.items() if one.capabilities.finds_number)
        raise InputError(
            f"the number of clusters is found where rows that are held out can be scored; --k auto "
            f"with {method}; pass a number, or use one of {able}"
        )


def _clusters(chosen: Method, number: int | str | None) -> dict[str, Any]:
    """The parameter of the estimator that says how many clusters there are."""
    if "max_clusters" in chosen.load()._get_param_names():
        return {} if number in (None, "auto") else {"max_clusters": number}
    return {"n_clusters": 2 if number is None else number}


def _settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parameters that --set names."""
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"a setting is NAME=VALUE; --set {setting}; add the value")
        parameters[name.strip()] = _value(text.strip())
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
