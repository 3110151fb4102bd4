"""The command ``nrprob explore``: successive clusterings while there is evidence."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nrprob.cli.data import check_groups, check_known, read_given
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
from nrprob.cli.single import show_scores
from nrprob.cli.terminal import console, heard, in_one_line, say, warn, working
from nrprob.cli.validation import (
    check_at_least,
    check_choice,
    check_n_clusters,
    in_options,
)
from nrprob.exceptions import InputError, SingleFeatureWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nrprob.batch.fit_result import FitResult
    from nrprob.cli.data import Given
    from nrprob.successive import Exploration

__all__ = ["explore"]


@in_one_line(in_options)
def explore(
    data: Data,
    known: Known = None,
    compare: Annotated[
        list[str] | None,
        Option(help="A labeling to compare the results with, FILE:COLUMN; never used to fit."),
    ] = None,
    k: Number = None,
    n: Annotated[
        int | None,
        Option(
            "--n-clusterings", help="How many clusterings; by default until a test finds no more."
        ),
    ] = None,
    criterion: Annotated[
        str, Option(help="The test that every clustering has to pass: structure or gap.")
    ] = "structure",
    out: Out = None,
    force: Force = False,
    columns: Columns = None,
    drop: Drop = None,
    feature_names: Names = None,
    layer: Layer = None,
    obsm: Obsm = None,
    seed: Seed = 0,
    missing: Missing = "error",
    standardize: Standardize = None,
    plot: Annotated[bool, Option(help="Draw plots.")] = True,
    test: Test = False,
    alpha: Alpha = None,
) -> None:
    """Find clusterings one after another, each new to all before, while there is evidence."""
    from nrprob.batch.formats import RESULTS
    from nrprob.batch.plan import check_seed

    check_seed(seed, "--seed")
    number = as_number(k)
    check_choice(("structure", "gap"), criterion, "--criterion")
    at = level(alpha, test or n is None)
    if n is not None:
        check_at_least(1, n, "--n-clusterings")
    options = {"known": known or [], "compare": compare or [], "labels": []}
    part = {"layer": layer, "obsm": obsm}
    asked = ask(data, options, columns, drop, feature_names, part, standardize, missing)
    place = find_place(out, force, RESULTS)
    with working(f"reading {data.name}"):
        given = read_given(asked)
    given.tell()
    check_n_clusters(number, given.table.X.shape[0])
    check_known(given, "explore takes no continuous covariates", "`nrprob fit`")
    check_groups(given)
    if n is None:
        _check_testable(given)
    from nrprob.batch.fit_files import save_exploration
    from nrprob.batch.fit_result import exploration_results
    from nrprob.successive import explore as search

    with place.claimed() as folder:
        with working("looking for clusterings"), heard() as warned:
            warnings.simplefilter("ignore", SingleFeatureWarning)  # the result says it first
            result = search(
                given.table.X, n_clusters=number, n_clusterings=n, known=given.known,
                criterion=criterion, alpha=at, random_state=seed,
            )  # fmt: skip
        given.origin["warnings"] = list(dict.fromkeys(warned))
        with working("testing the clusters" if test else "writing the results"):
            runs = exploration_results(
                result, given.table, given.names, given.origin, given.measured, at if test else None
            )
        with working("writing the results"):
            files = save_exploration(result, runs, folder, plot)
            remove_others(folder, files)
    for run in runs:
        if run.alert:
            say(f"warning: {run.title}: {run.alert}")
    _show(result, runs)
    for path in files:
        say(f"wrote {path}")


def _check_testable(given: Given) -> None:
    """Refuse rows of which no test says when to stop, unless a number is given."""
    from scipy import sparse

    from nrprob.data.feature_types import no_cloud

    X = given.table.X
    kind = "a sparse matrix" if sparse.issparse(X) else no_cloud(X)
    if kind is not None:
        raise InputError(
            f"--n-clusterings is required where no test says when to stop; got {kind}, and "
            "clusters are tested in dense continuous data only; pass for example --n-clusterings 2"
        )


def _show(result: Exploration, runs: Sequence[FitResult]) -> None:
    """Print a line for every clustering, what agrees with it, and why there are no more."""
    from rich import box
    from rich.table import Table

    from nrprob.batch.fits import cluster_sizes

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("#")
    table.add_column("method", no_wrap=True)
    table.add_column("rows by cluster")
    tested = bool(result.evidence_)
    for name in ("p of structure", "p of gap") if tested else ():
        table.add_column(name, justify="right", no_wrap=True)
    # What it shares at most with any labeling before it.
    information, first = result.table, result.known_.shape[1]
    if first + len(result.estimators_) > 1:
        table.add_column("nats shared", justify="right", no_wrap=True)
    for r, model in enumerate(result.estimators_):
        sizes = ", ".join(map(str, cluster_sizes(model.labels_)))
        line = [str(r + 1), type(model).__name__, sizes]
        if tested:
            own = result.evidence_[r]
            line += [_short(own.p_structure_), _short(own.p_gap_)]
        if first + len(result.estimators_) > 1:
            before = information.iloc[first + r, : first + r]
            line.append(f"{before.max():.3f}" if len(before) else "–")
        table.add_row(*line)
    console().print(table)
    show_scores({str(r): run.fits[0].scores for r, run in enumerate(runs, 1)}, runs[0].known)
    for number, run in enumerate(runs, 1):
        own = result.evidence_[number - 1 : number]
        for text in own if run.tested is None else run.tested.said:
            say(f"{number}: {text}")
    say(f"no more, since {result.reason_}" if tested else result.reason_)
    if result.failure_ is not None:
        warn("the search did not end by itself; what was found before is kept")


def _short(p: float | None) -> str:
    if p is None:
        return "–"
    return "< .001" if p < 0.001 else f"{p:.2g}"
