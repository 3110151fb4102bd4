"""The command ``nrprob fit``: cluster the rows of a file, conditioned on known structure."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from nrprob.cli import validation
from nrprob.cli.annotated_file import WriteH5ad, check_annotated_file, write_annotated_file
from nrprob.cli.cluster_names import parse_cluster_names, report_names, require_all_names
from nrprob.cli.data import check_groups, check_sparse, load_data, refuse_covariates
from nrprob.cli.options import (
    Alpha,
    Categorical,
    Columns,
    Data,
    Decimal,
    Drop,
    Encoding,
    Id,
    Known,
    Layer,
    Log,
    Missing,
    Names,
    NaValues,
    Number,
    Obsm,
    Ordered,
    Seed,
    Sep,
    Sheet,
    Standardize,
    Test,
    parse_n_clusters,
    parse_reading,
    read_options,
    significance_level,
)
from nrprob.cli.output import Force, Out, find_output, remove_others
from nrprob.cli.single import show_fit
from nrprob.cli.terminal import in_one_line, print_note, show_spinner
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
        Option(
            help="Partial labels of rows: a COLUMN of DATA, or FILE:COLUMN; empty or -1 where "
            "unknown."
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        Option(
            help="Labeling to compare the clusters with: a COLUMN of DATA, or FILE:COLUMN; not "
            "used in the fit."
        ),
    ] = None,
    method: Annotated[
        str,
        Option(help="Method, see `nrprob methods`; auto chooses from the data and says why."),
    ] = "auto",
    k: Number = None,
    out: Out = None,
    force: Force = False,
    columns: Columns = None,
    drop: Drop = None,
    categorical: Categorical = None,
    ordered: Ordered = None,
    id: Id = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    na_values: NaValues = None,
    sheet: Sheet = None,
    feature_names: Names = None,
    layer: Layer = None,
    obsm: Obsm = None,
    features: Annotated[
        str | None,
        Option(help="Distribution of the features: auto, multinomial, bernoulli or gaussian."),
    ] = None,
    solver: Annotated[
        str | None, Option(help="Algorithm: anneal, sequential, batched or agglomerative.")
    ] = None,
    n_init: Annotated[int | None, Option(help="Number of restarts.")] = None,
    seed: Seed = 0,
    missing: Missing = None,
    log: Log = None,
    standardize: Standardize = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Any other parameter of the method."),
    ] = None,
    names: Annotated[
        list[str] | None,
        Option(
            "--names",
            help="Names of the clusters 0, 1, ... on the page and in labels.csv, separated by "
            "commas, or repeated. Repeat the fit with the same seed to name its clusters.",
        ),
    ] = None,
    plot: Annotated[bool, Option(help="Draw summary.png.")] = True,
    write_h5ad: WriteH5ad = False,
    test: Test = False,
    alpha: Alpha = None,
) -> None:
    """Cluster the rows of a file, conditioned on known structure."""
    from nrprob.batch import registry
    from nrprob.batch.formats import EVIDENCE, PICTURE, RESULTS
    from nrprob.batch.plan import check_seed

    chosen = None if method.lower() == "auto" else registry.find_method(method)
    if isinstance(chosen, registry.ExternalMethod):
        raise InputError(
            f"estimators of other packages need a model file; got --method {method}; choose a "
            "method of `nrprob methods`, or write a model file for `nrprob run`"
        )
    number = parse_n_clusters(k)
    cluster_names = parse_cluster_names(names, number)
    named = {"random_state": seed, "features": features, "solver": solver, "n_init": n_init}
    parameters = {name: value for name, value in named.items() if value is not None}
    parameters |= _parse_settings(settings or [])
    check_seed(parameters.get("random_state"), "--seed")
    level = significance_level(alpha, test)
    if test and labels:
        raise InputError(
            f"a clustering with partial labels has no test; got --test and --labels {labels}; "
            "leave one of them out"
        )
    columns_of = {
        "known": known or [],
        "compare": compare or [],
        "labels": [labels] if labels else [],
    }
    part = {"layer": layer, "obsm": obsm}
    options = read_options(
        data, columns_of, columns, drop, categorical, ordered, feature_names, part, log,
        standardize, missing, id, parse_reading(sep, decimal, encoding, na_values, sheet),
    )  # fmt: skip
    check_annotated_file(data, write_h5ad, out, force)
    picture = PICTURE if plot else None
    output = find_output(out, force, [*RESULTS, *[PICTURE] * plot, *[EVIDENCE] * (plot and test)])
    # From here on, classes of estimators are imported.
    if chosen is None or "max_clusters" not in chosen.parameters:  # else --k is the largest number
        require_all_names(cluster_names, number)
    if chosen and number == "auto":
        _check_finds_number(chosen, method, data)
    if known and chosen and not chosen.capabilities.known:
        raise InputError(
            f"{method} takes no known structure; got --known {known[0]}; "
            "use --method auto, or --compare to measure the agreement with the clusters"
        )
    validation.check_parameters(registry.short_name(method) if chosen else None, parameters)
    with show_spinner(f"reading {data.name}"):
        loaded = load_data(options, chosen is None or chosen.capabilities.mixed)
    table = loaded.table
    loaded.print_notes()
    if loaded.y is not None:
        legend = ", ".join(f"{c} = {name}" for c, name in enumerate(loaded.classes))
        print_note(f"classes of the partial labels: {legend}")
    # Check what the method takes: the number of clusters, sparse rows, covariates, known groups.
    counted = chosen is None or "n_clusters" in chosen.parameters
    validation.check_n_clusters(number, loaded.table.X.shape[0], 2 if counted else 1)
    if chosen is not None:
        check_sparse(loaded, registry.short_name(method))
    # If the keyword of the estimator is not `known`, columns of floats may be probabilities of
    # the groups, and are not refused.
    labelled = chosen is not None and chosen.capabilities.known_as == "known"
    if labelled and chosen and "continuous" not in chosen.capabilities.known:
        able = [n for n, m in registry.METHODS.items() if "continuous" in m.capabilities.known]
        instead = " or ".join(f"--method {name}" for name in able)
        refuse_covariates(loaded, f"{method} takes no continuous covariates", instead)
    if labelled or chosen is None:
        check_groups(loaded, registry.short_name(method) if chosen else None)
    z = loaded.known
    from nrprob.batch import fit_files, fits
    from nrprob.batch.fit_result import FitResult
    from nrprob.data.copies import unreported

    # Choose the estimator, unless the user has named it.
    recommended: dict[str, Any] = {}
    if chosen is None:
        from nrprob.advice import choose_estimator
        from nrprob.data.annotated import name_features

        fixed = number if isinstance(number, int) else 2
        model = choose_estimator(
            table.X, known=z, y=loaded.y, n_clusters=fixed, name=name_features(**part)
        )
        method, chosen = registry.find_entry(type(model))
        validation.check_parameters(method, parameters)
        recommended = model.get_params(deep=False)
        print_note(model.reason_)
        if number == "auto":
            _check_finds_number(chosen, method, data)
    # Fit, test and write while the output folder is locked.
    parameters = recommended | _cluster_parameters(chosen, number) | parameters
    with output.claim_folder() as folder:
        with show_spinner(f"fitting {chosen.class_name}"):
            fitted, estimator = fits.fit_method(
                method, parameters, table.X, z, y=loaded.y, where="--set "
            )
        fits.score_fit(
            fitted, table.labelings, fits.default_measures([*table.labelings], loaded.names)
        )
        result = FitResult(
            "", table, loaded.names, [fitted], origin=loaded.origin, measured=loaded.covariates,
            cluster_names=cluster_names,
        )  # fmt: skip
        if test:
            from nrprob.batch.fit_result import check_clusters

            # Tests may take longer than the fit, so the labels are written first.
            labels_file = fit_files.save_labels(result, folder)[0]
            try:
                with (
                    show_spinner("testing the clusters"),
                    warnings.catch_warnings(record=True) as caught,
                ):
                    warnings.simplefilter("always")
                    result.tested = check_clusters(
                        estimator, table.X, z, alpha=level, alert=result.alert,
                        title_cluster=result.title_cluster,
                    )  # fmt: skip
            except KeyboardInterrupt:
                print_note(f"the tests were interrupted; the labels are in {labels_file}")
                raise Exit(130) from None
            fitted.warnings += [str(w.message) for w in caught]
        messages = unreported(fitted.warnings, loaded.notes)
        fitted.warnings = list(dict.fromkeys(map(in_options, messages)))
        with show_spinner("writing the results"):
            fit_files.save_fit(result, folder, picture)
            if write_h5ad:
                result.files += write_annotated_file(
                    data, folder, estimator, loaded, [cluster_names]
                )
            remove_others(folder, result.files)
    report_names(cluster_names, fitted.n_clusters)
    show_fit(result)


def _check_finds_number(chosen: Method, method: str, data: Path) -> None:
    """Raise InputError if a method cannot estimate the number of clusters, as --k auto requires.

    ``chosen`` is the registry entry of the method, ``method`` the name for the message, and
    ``data`` the file of the features.
    """
    from nrprob.batch.registry import METHODS

    if not chosen.capabilities.finds_number:
        able = ", ".join(name for name, entry in METHODS.items() if entry.capabilities.finds_number)
        if data.suffix.lower() == ".h5ad":
            able += "; for counts of cells, cluster principal components: --obsm X_pca"
        raise InputError(
            "--k auto needs a method that estimates the number of clusters from held-out rows; "
            f"got --k auto with {method}; pass a number, or use one of {able}"
        )


def _cluster_parameters(chosen: Method, number: int | str | None) -> dict[str, Any]:
    """Return the value ``number`` of --k as a parameter of the estimator, by name.

    The name is ``max_clusters`` if the estimator has this parameter, else ``n_clusters``.
    """
    if "max_clusters" in chosen.load()._get_param_names():
        return {} if number in (None, "auto") else {"max_clusters": number}
    return {"n_clusters": 2 if number is None else number}


def _parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse the texts NAME=VALUE of --set; return the values by name."""
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"a setting is NAME=VALUE; got --set {setting}; add the value")
        parameters[name.strip()] = _parse_value(text.strip())
    return parameters


def _parse_value(text: str) -> Any:
    """Parse a value of --set as TOML; text that is not valid TOML is returned unchanged."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
