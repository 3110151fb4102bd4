"""The command ``nrprob explore``: one clustering after another, until a test fails."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nrprob.cli.annotated_file import WriteH5ad, check_annotated_file, write_annotated_file
from nrprob.cli.cluster_names import parse_cluster_names, report_names, require_all_names
from nrprob.cli.data import check_groups, has_text_or_missing, load_data, refuse_covariates
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
from nrprob.cli.single import show_scores
from nrprob.cli.terminal import (
    get_console,
    in_one_line,
    print_note,
    print_result,
    print_warning,
    record_warnings,
    show_spinner,
)
from nrprob.cli.validation import (
    check_at_least,
    check_choice,
    check_n_clusters,
    in_options_of_explore,
)
from nrprob.exceptions import InputError, SingleFeatureWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nrprob.batch.fit_result import FitResult
    from nrprob.cli.data import LoadedData
    from nrprob.successive import Exploration

__all__ = ["explore"]


@in_one_line(in_options_of_explore)
def explore(
    data: Data,
    known: Known = None,
    compare: Annotated[
        list[str] | None,
        Option(
            help="Labeling to compare the clusters with: a COLUMN of DATA, or FILE:COLUMN; not "
            "used in the fits."
        ),
    ] = None,
    k: Number = None,
    n: Annotated[
        int | None,
        Option(
            "--n-clusterings",
            help="Number of clusterings; by default as many as the test supports.",
        ),
    ] = None,
    criterion: Annotated[
        str,
        Option(
            help="Test that each clustering must pass: structure (clusters explain held-out rows "
            "better than a single component) or gap (low density between clusters)."
        ),
    ] = "structure",
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
    seed: Seed = 0,
    missing: Missing = None,
    log: Log = None,
    standardize: Standardize = None,
    names: Annotated[
        list[str] | None,
        Option(
            "--names",
            help="Names of the clusters 0, 1, ... of a clustering, separated by commas. Repeat the "
            "option for every clustering, in their order.",
        ),
    ] = None,
    plot: Annotated[bool, Option(help="Draw plots.")] = True,
    write_h5ad: WriteH5ad = False,
    test: Test = False,
    alpha: Alpha = None,
) -> None:
    """Find successive clusterings, each given all earlier ones, until a test rejects the next."""
    from nrprob.batch.formats import RESULTS
    from nrprob.batch.plan import check_seed

    # Check the options, before data are read and slow packages are imported.
    check_seed(seed, "--seed")
    number = parse_n_clusters(k)
    cluster_names = [parse_cluster_names([text], number) for text in names or []]
    for clustering in cluster_names:
        require_all_names(clustering, number)
    check_choice(("structure", "gap"), criterion, "--criterion")
    level = significance_level(alpha, test or n is None)
    if n is not None:
        check_at_least(1, n, "--n-clusterings")
    columns_of = {"known": known or [], "compare": compare or [], "labels": []}
    part = {"layer": layer, "obsm": obsm}
    options = read_options(
        data, columns_of, columns, drop, categorical, ordered, feature_names, part, log,
        standardize, missing, id, parse_reading(sep, decimal, encoding, na_values, sheet),
    )  # fmt: skip
    # Read the data, and check that `explore` can cluster them.
    check_annotated_file(data, write_h5ad, out, force)
    output = find_output(out, force, RESULTS)
    with show_spinner(f"reading {data.name}"):
        loaded = load_data(options)
    loaded.print_notes()
    check_n_clusters(number, loaded.table.X.shape[0])
    refuse_covariates(loaded, "explore takes no continuous covariates", "`nrprob fit`")
    check_groups(loaded)
    if n is None:
        _check_testable(loaded)
    from nrprob.batch.fit_files import save_exploration
    from nrprob.batch.fit_result import exploration_results
    from nrprob.data.copies import ignore_reported_copies
    from nrprob.successive import search_clusterings

    # Search, test and write while the output folder is locked.
    with output.claim_folder() as folder:
        with show_spinner("fitting clustering 1") as report, record_warnings() as warned:
            warnings.simplefilter("ignore", SingleFeatureWarning)  # `FitResult.alert` says this
            result = search_clusterings(
                loaded.table.X, n_clusters=number, n_clusterings=n, known=loaded.known,
                criterion=criterion, alpha=level, random_state=seed, report=report,
                announce=print_note, notes=loaded.notes,
            )  # fmt: skip
        loaded.origin["warnings"] = list(dict.fromkeys(map(in_options_of_explore, warned)))
        # The search has tested the clusterings, unless the user has named their number.
        step = "computing confidences" if n is None else "testing the clusterings"
        with (
            show_spinner(step if test else "writing the results"),
            ignore_reported_copies(loaded.notes),
        ):
            runs = exploration_results(
                result,
                loaded.table,
                loaded.names,
                loaded.origin,
                loaded.covariates,
                level if test else None,
                cluster_names,
            )
        with show_spinner("writing the results"):
            files = save_exploration(result, runs, folder, plot)
            if write_h5ad:
                files += write_annotated_file(data, folder, result, loaded, cluster_names)
            remove_others(folder, files)
    if len(cluster_names) > len(runs):
        print_warning(
            f"--names is given {len(cluster_names)} times for {len(runs)} "
            f"clustering{'s' * (len(runs) != 1)}; the names of the others are not used"
        )
    for run in runs:
        report_names(run.cluster_names, run.fits[0].n_clusters)
        if run.alert:
            print_result(f"warning: {run.title}: {run.alert}")
    _show_exploration(result, runs)
    for path in files:
        print_result(f"wrote {path}")


def _check_testable(loaded: LoadedData) -> None:
    """Raise InputError if the features have no test that could end the search.

    Counts and binary features have no test; the user must then state the number of clusterings.
    This check runs before JAX is loaded.
    """
    import numpy as np
    from scipy import sparse

    from nrprob.data.feature_types import kind_of

    X = loaded.table.X
    if not sparse.issparse(X):
        if has_text_or_missing(X) or kind_of(np.asarray(X)) == "real":
            return
        X = np.asarray(X)
    raise InputError(
        "--n-clusterings must be given if the features have no test; got no number for "
        f"{kind_of(X)} features; pass for example --n-clusterings 2"
    )


def _show_exploration(result: Exploration, runs: Sequence[FitResult]) -> None:
    """Print one line per clustering, the agreement with labelings, and why the search ended."""
    from rich import box
    from rich.table import Table

    from nrprob.batch.fits import cluster_sizes

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("#")
    table.add_column("method", no_wrap=True)
    table.add_column("rows by cluster")
    tested = bool(result.evidence_)
    withheld = all(evidence.p_structure_ is None for evidence in result.evidence_)
    heads = ("held-out gain",) if withheld else ("p of structure", "p of gap")
    for name in heads if tested else ():
        table.add_column(name, justify="right", no_wrap=True)
    # The last column is the largest mutual information with a known or earlier labeling.
    information, first = result.table, result.known_.shape[1]
    if first + len(result.estimators_) > 1:
        table.add_column("mutual information", justify="right", no_wrap=True)
    for r, model in enumerate(result.estimators_):
        sizes = ", ".join(map(str, cluster_sizes(model.labels_)))
        line = [str(r + 1), type(model).__name__, sizes]
        if tested:
            evidence = result.evidence_[r]
            line += [_format_p_value(evidence.p_structure_), _format_p_value(evidence.p_gap_)]
            if withheld:
                line[-2:] = [f"{evidence.gain_[evidence.distinct_].mean():+.3f}"]
        if first + len(result.estimators_) > 1:
            before = information.iloc[first + r, : first + r]
            line.append(f"{before.max():.3f}" if len(before) else "–")
        table.add_row(*line)
    get_console().print(table)
    show_scores({str(r): run.fits[0].scores for r, run in enumerate(runs, 1)}, runs[0].known)
    for number, run in enumerate(runs, 1):
        tests = result.evidence_[number - 1 : number]
        for text in tests if run.tested is None else run.tested.said:
            print_result(f"{number}: {text}")
    ending = f"no further clustering, since {result.reason_}" if tested else result.reason_
    print_result(ending)
    if result.failure_ is not None:
        print_warning("the search was interrupted by an error; earlier clusterings are kept")


def _format_p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
