"""Fit the conditional mixture to a table: starts, search, and choice of effects and shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import entr, softmax

from nrprob.methods.conditional.discrete_block import TiltRidge
from nrprob.methods.conditional.fitted_table import FittedTable
from nrprob.methods.conditional.gaussian_block import Ridge
from nrprob.methods.conditional.joint_search import Ends, Form, Problem
from nrprob.methods.conditional.one_component import (
    effect_variance,
    ridge_weight,
)
from nrprob.methods.conditional.optima import distinct_optima
from nrprob.methods.conditional.shares import BY_GROUP, FREE, UNIFORM
from nrprob.methods.conditional.solver import free_weights_improve
from nrprob.methods.conditional.starts import stratified_sample
from nrprob.methods.conditional.table import lay_out_table
from nrprob.methods.conditional.table_data import TableData
from nrprob.methods.conditional.table_starts import initial_labels, unconditional_labels
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import bucket_size
from nrprob.statistics.weighted import row_mean, row_products

LOCATION_RIDGE = 50.0  # precision lambda_B of location effects, in samples
_PSEUDO, _TAU_WEIGHT, _TAU_SCALE = 1.0, 2.0, 0.25  # see `TiltRidge`
_SCREENING_STEPS = 12  # of the fits without known groups, before the best goes on
_LARGE = 1 << 18  # samples x (numbers + values) x clusters above which restarts are halved
_SAMPLE, _SAMPLE_EACH = 4096, 256  # samples of the search: at least, and for every cluster
_SAMPLE_STEPS = 10
_LEADERS = 3  # restarts that go on with all samples
_SAME = 0.95  # adjusted Rand index of restarts of which one goes on
_SMALL_GROUP = 10  # samples below which a group does not count in margin and penalty
MARGIN_FACTOR = 1.5
CLEARER = 0.1  # of log K: fall of the memberships' mean entropy
EQUAL_CLUSTERS = 0.95  # mean entropy of memberships, over log K, above which clusters are equal
_DOUBTFUL = (0.5, 2.0)  # gain of location effects, in degrees of freedom, that is checked again


def make_problem(
    data: TableData, n_clusters: int, *, covariance: str, ridge: float, location: bool,
    tol: float, max_iter: int,
) -> Problem:  # fmt: skip
    """Lay out a table, with its hyperparameters."""
    gaussian_ridge = means = sigma = None
    table, layout = lay_out_table(
        data.x, data.columns, data.groups, data.n_groups,
        data.location_matrix if location else None, mass=data.mass, labels=data.labels,
    )  # fmt: skip
    if data.one_component is not None and data.x is not None:
        one_component, d = data.one_component, data.x.shape[1]
        dof = max(data.total - len(np.unique(data.groups)), 1)
        width = bucket_size(d, 1 << 20)
        nu0, tau0, mass = data.nu0, data.tau0, data.mass
        if nu0 is None:
            nu0 = ridge_weight(one_component.completed, dof, ridge, mass)
        if tau0 is None:
            tau0 = effect_variance(one_component, data.groups, mass)
        target = np.ones(width)
        target[:d] = 1 if data.target is None else data.target
        rounding = np.zeros((width, width))
        if data.rounding is not None:
            rounding[:d, :d] = data.rounding
        gaussian_ridge = Ridge(
            np.asarray(float(nu0)), np.asarray(d + 2.0), np.asarray(float(tau0)),
            np.asarray(LOCATION_RIDGE), target, rounding,
        )  # fmt: skip
        sigma = np.eye(width)
        sigma[:d, :d] = one_component.covariance + 1e-9 * np.trace(
            one_component.covariance
        ) / d * np.eye(d)
        means = np.zeros((len(table.sizes), width))
        means[: data.n_groups, :d] = one_component.means
    tilt_ridge = None
    if data.columns:
        tilt_ridge = TiltRidge(*(np.asarray(a) for a in (_PSEUDO, _TAU_WEIGHT, _TAU_SCALE)))
    return Problem(
        table, layout, gaussian_ridge, tilt_ridge, means, sigma, n_clusters, covariance, tol,
        max_iter,
    )  # fmt: skip


# Search


@dataclass
class SearchResult:
    """Restarts of one form of the model.

    Attributes
    ----------
    best : the restart of the largest objective
    labels, objective, converged, n_iter : (S, n), (S,), (S,), (S,) of all restarts
    """

    best: Ends
    labels: np.ndarray
    objective: np.ndarray
    converged: np.ndarray
    n_iter: np.ndarray


def search(problem: Problem, starts: np.ndarray, warm: np.ndarray, form: Form) -> SearchResult:
    """Run all restarts from memberships (S, B, r, K), and keep the best."""
    ends = problem.run(starts, [form] * len(starts), warm)
    return _search_result(problem, ends, np.arange(len(starts)))


def _search_result(problem: Problem, ends: Ends, chosen: np.ndarray) -> SearchResult:
    objective = ends.objective[chosen]
    return SearchResult(
        ends.pick(int(chosen[objective.argmax()])), problem.labels(ends)[chosen], objective,
        np.asarray(ends.converged)[chosen], np.asarray(ends.n_iter)[chosen],
    )  # fmt: skip


def _distinct_clusters(problem: Problem, ends: Ends) -> SearchResult:
    """Restarts whose clusters differ; all if there are none.

    With many small groups, clusters may become equal, and the objective may favour this.
    """
    n_restarts = len(ends.objective)
    entropy = [mean_entropy(problem, ends.pick(i)) for i in range(n_restarts)]
    distinct = np.flatnonzero(np.array(entropy) <= EQUAL_CLUSTERS)
    return _search_result(problem, ends, distinct if len(distinct) else np.arange(n_restarts))


def sample_leaders(
    sample: Problem, part: TableData, data: TableData, labels: np.ndarray, warm: np.ndarray,
    form: Form,
) -> list[np.ndarray]:  # fmt: skip
    """Memberships (n, K) of all samples by the best distinct restarts on a sample of them."""
    starts = sample.from_labels(labels)
    ends = sample.run(starts, [form] * len(starts), warm, max_iter=_SAMPLE_STEPS)
    k = sample.n_clusters
    memberships = []
    for i in distinct_optima(sample.labels(ends), -ends.objective, k, _SAME, _LEADERS):
        fitted = FittedTable.from_state(ends.pick(i).state, part, form.location)
        log_p = fitted.log_joint(data.x, data.columns, data.groups)
        memberships.append(softmax(log_p, axis=1))
    return memberships


def mean_entropy(problem: Problem, end: Ends) -> float:
    """Mean entropy of the memberships, as a part of log K."""
    r = problem.layout.from_blocks(np.asarray(end.state.r))
    if r.shape[1] == 1:
        return 0.0
    entropy = row_mean(entr(r).sum(1), problem.sample_mass)
    return float(entropy / np.log(r.shape[1]))


def choose_free_shares(problem: Problem, uniform: SearchResult, free: SearchResult) -> bool:
    """Whether common fitted shares pay for themselves and leave the memberships clear."""
    k = problem.n_clusters
    labels = [result.labels[result.objective.argmax()] for result in (uniform, free)]
    entropy = [mean_entropy(problem, result.best) * np.log(max(k, 2)) for result in (uniform, free)]
    table = cross_table(labels[0], labels[1], (k, k), problem.sample_mass)
    gain = free.objective.max() - uniform.objective.max()
    return bool(free_weights_improve(gain, entropy, table, k, table.sum(), np))


# Choice of group effects and shares


def location_freedom(data: TableData) -> float:
    """Effective degrees of freedom of the location effects."""
    q = data.location_matrix
    if q is None or data.x is None:
        return 0.0
    eigenvalues = np.maximum(np.linalg.eigvalsh(row_products(q, data.mass)), 0)
    return float(data.x.shape[1] * (eigenvalues / (eigenvalues + LOCATION_RIDGE)).sum())


def thresholds(data: TableData, n_clusters: int) -> tuple[float, float]:
    """Margin of joint effects and penalty on shares by group, in nats.

    Half a logarithm for each degree of freedom, over known groups of at least 10 samples.
    """
    size = data.group_sizes
    logs = np.log(size[size >= _SMALL_GROUP])
    d = 0 if data.x is None else data.x.shape[1]
    margin = 0.5 * min(n_clusters - 1, d) * (logs.sum() - logs.max()) if logs.size else 0.0
    return float(margin), float(0.5 * (n_clusters - 1) * logs.sum())


@dataclass
class Candidates:
    """Fits among which effects and shares are chosen, all with the same location effects.

    Attributes
    ----------
    subtracted : group effects held at the means of the groups
    equal, by_group : effects fitted with the clusters, with common shares and shares by group
    """

    subtracted: Ends
    equal: SearchResult
    by_group: SearchResult

    @property
    def best_joint(self) -> float:
        """Largest objective of the joint fits."""
        return max(float(fit.objective.max()) for fit in (self.equal, self.by_group))


def joint_candidates(
    data: TableData, problem: Problem, subtracted: Ends, form: Form, exponents: Any,
    rng: np.random.Generator,
) -> Candidates:  # fmt: skip
    """Fit effects with the clusters, from a few starts.

    ``form`` has random or fixed effects, and the location effects and common shares of the fits.
    The starts are few on purpose: with many, fits are searches in which clusters and known groups
    coincide, and their objective is large.
    """
    # 1. A start that does not use the known groups.
    absent = Form(False, False, True, location=form.location)
    r = problem.from_labels(unconditional_labels(data, problem.n_clusters, exponents, rng))
    ends = problem.run(r, [absent] * len(r), max_iter=_SCREENING_STEPS)
    r = np.asarray(ends.pick(int(ends.objective.argmax())).state.r)[None]
    ends = problem.run(r, [absent])
    # 2. Common shares, from the fit with subtracted means and from 1.
    starts = np.concatenate([np.asarray(subtracted.state.r)[None], np.asarray(ends.state.r)])
    equal = problem.run(starts, [form] * 2)
    # 3. Shares by group, from all fits so far.
    starts = np.concatenate([np.asarray(equal.state.r), starts])
    by_group = problem.run(starts, [form._replace(shares=BY_GROUP)] * len(starts))
    return Candidates(
        subtracted, _distinct_clusters(problem, equal), _distinct_clusters(problem, by_group)
    )


def choose_effects(
    data: TableData, problem: Problem, candidates: Candidates, effects: str, weights: str
) -> tuple[str, dict[str, float]]:
    """Choose "subtracted", "equal" or "by_group", with the gains that decide.

    Group effects are fitted with the clusters if that raises the objective by 1.5 margins. Shares
    by group have to raise it by their penalty as well, and to make the memberships clearer. Both
    are compared with the subtraction directly. Small groups are never subtracted: their means hold
    a large part of every sample. Discrete columns do not need a subtraction in any case.
    """
    k = problem.n_clusters
    margin, penalty = thresholds(data, k)
    sizes = data.group_sizes
    sizes = sizes[sizes > 0]
    f_s, f_p, f_v = (
        float(end.state.objective)
        for end in (candidates.subtracted, candidates.equal.best, candidates.by_group.best)
    )
    e_s = mean_entropy(problem, candidates.subtracted)
    e_v = mean_entropy(problem, candidates.by_group.best)
    record = {
        "gain_equal": f_p - f_s, "gain_by_group": f_v - f_s, "margin": margin,
        "shares_penalty": penalty, "entropy_subtracted": e_s, "entropy_by_group": e_v,
    }  # fmt: skip
    if weights == "by_group":
        return "by_group", record
    fixed_shares = weights in ("uniform", "free")
    small = bool(np.median(sizes) < _SMALL_GROUP)
    if effects != "auto" or small or data.x is None:
        price = 0.5 * k * np.log(len(sizes)) if small else penalty
        taken = f_v - (f_p if small or effects != "auto" else f_s) > price
        return "by_group" if taken and not fixed_shares else "equal", record
    clearer = e_s - e_v > CLEARER
    if not fixed_shares and f_v - f_s > MARGIN_FACTOR * margin + penalty and clearer:
        return "by_group", record
    return "equal" if f_p - f_s > MARGIN_FACTOR * margin else "subtracted", record


@dataclass
class Decision:
    """The chosen fit of a table.

    Attributes
    ----------
    kind : "subtract", "random" or "fixed"
    weights : "uniform", "free" or "by_group"
    location : whether numbers have location effects
    problem : layout of the samples
    restarts : restarts of the chosen form
    search : restarts with held group effects; None where these were run elsewhere
    gains : objectives and thresholds of the choices, in nats
    """

    kind: str
    weights: str
    location: bool
    problem: Problem
    restarts: SearchResult
    search: SearchResult | None
    gains: dict[str, float]

    @property
    def end(self) -> Ends:
        """The best restart."""
        return self.restarts.best


@dataclass(frozen=True)
class Choices:
    """Settings of the user that bound the choices.

    Attributes
    ----------
    effects : "auto", "subtract", "fixed" or "random"
    weights : "auto", "uniform", "free" or "by_group"
    location : "auto" or whether there are location effects
    exponents : metrics of the starts
    """

    effects: str = "auto"
    weights: str = "auto"
    location: Any = "auto"
    exponents: Any = (0.0, 0.5, 1.0)

    @property
    def subtracts(self) -> bool:
        """Whether no joint fits are wanted."""
        return self.effects == "subtract"

    @property
    def joint_form(self) -> Form:
        """Form of the joint fits with common shares."""
        shares = FREE if self.weights == "free" else UNIFORM
        return Form(False, self.effects == "fixed", False, shares)


def decide_effects(
    data: TableData, problem: Problem, subtracted: dict[bool, Ends], location: bool,
    doubtful: float, choices: Choices, rng: np.random.Generator,
) -> tuple[str, str, bool, SearchResult | None, dict[str, float]]:  # fmt: skip
    """Kind of the effects, shares, location, the fits (None to subtract), and gains.

    ``subtracted`` are the fits with held effects by their location effects, of which ``location``
    was chosen; ``doubtful`` degrees of freedom are given where this choice has to be checked by the
    joint fits, else 0.
    """

    def fit_with(location):
        form = choices.joint_form._replace(location=location)
        return joint_candidates(data, problem, subtracted[location], form, choices.exponents, rng)

    candidates = fit_with(location)
    chosen, record = choose_effects(data, problem, candidates, choices.effects, choices.weights)
    if chosen != "subtracted" and doubtful > 0:
        other = fit_with(not location)
        plain, located = (candidates, other) if not location else (other, candidates)
        if (located.best_joint - plain.best_joint > doubtful) != location:
            location, candidates = not location, other
            chosen, record = choose_effects(
                data, problem, candidates, choices.effects, choices.weights
            )
    if chosen == "subtracted":
        return "subtract", "uniform", location, None, record
    kind = "fixed" if choices.effects == "fixed" else "random"
    common = "free" if choices.weights == "free" else "uniform"
    restarts = candidates.by_group if chosen == "by_group" else candidates.equal
    return kind, "by_group" if chosen == "by_group" else common, location, restarts, record


def fit_table(
    data: TableData, n_clusters: int, choices: Choices, *, covariance: str, ridge: float,
    n_init: int, tol: float, max_iter: int, rng: np.random.Generator,
    initial: np.ndarray | None = None, successive_halving: bool = True,
    set_aside: Callable[[Problem, SearchResult, Form], bool] | None = None,
) -> Decision | None:  # fmt: skip
    """Search with held group effects, then choose location effects, group effects and shares.

    ``initial`` labels (n,), if there are some, take the place of the first start. Large tables are
    searched by successive halving. ``set_aside`` tells after the first search whether samples have
    to be set aside; the result is None then.
    """
    width = sum(c.n_values for c in data.columns) + (0 if data.x is None else data.x.shape[1])
    large = data.n_samples * width * n_clusters > _LARGE
    part, chosen = data, np.arange(data.n_samples)
    if successive_halving and large:
        chosen = stratified_sample(data.groups, max(_SAMPLE, _SAMPLE_EACH * n_clusters), rng)[0]
        part = data.take(chosen)
    labels, warm = initial_labels(part, n_clusters, n_init, choices.exponents, rng)
    if initial is not None:
        labels[0], warm[0] = initial[chosen], False
    possible = choices.location is not False and data.location is not None
    problem = make_problem(
        data, n_clusters, covariance=covariance, ridge=ridge, location=possible, tol=tol,
        max_iter=max_iter,
    )  # fmt: skip
    if part is data:
        starts = problem.from_labels(labels)

        def search_all(form):
            return search(problem, starts, warm, form)
    else:
        sample = make_problem(
            part, n_clusters, covariance=covariance, ridge=ridge, location=possible, tol=tol,
            max_iter=max_iter,
        )  # fmt: skip

        def search_all(form):
            leaders = sample_leaders(sample, part, data, labels, warm, form)
            starts = np.stack([problem.layout.to_blocks(r) for r in leaders])
            return search(problem, starts, np.zeros(len(starts), bool), form)

    shares = FREE if choices.weights == "free" else UNIFORM
    options = ((False, True) if choices.location == "auto" else (True,)) if possible else (False,)
    searches = {}
    for location in options:
        form = Form(True, False, False, shares, location)
        searches[location] = search_all(form)
        if len(searches) == 1 and set_aside and set_aside(problem, searches[location], form):
            return None
    # Location effects have to gain their effective degrees of freedom (an AIC).
    gain, freedom, location = 0.0, location_freedom(data), options[0]
    if len(searches) == 2:
        gain = float(searches[True].objective.max() - searches[False].objective.max())
        location = gain > freedom
    record = {"gain_location": gain, "freedom_location": freedom}
    kind, weights, joint = "subtract", "free" if shares == FREE else "uniform", None
    if not choices.subtracts and data.n_groups > 1 and n_clusters > 1:
        low, high = _DOUBTFUL
        doubtful = freedom if len(searches) == 2 and low * freedom < gain < high * freedom else 0.0
        subtracted = {key: result.best for key, result in searches.items()}
        kind, weights, location, joint, more = decide_effects(
            data, problem, subtracted, location, doubtful, choices, rng
        )
        record |= more
        if joint is None and shares == FREE:
            weights = "free"
    result = searches[location]
    if joint is None and choices.weights == "auto":
        free = search_all(Form(True, False, False, FREE, location))
        if choose_free_shares(problem, result, free):
            result, weights = free, "free"
    return Decision(
        kind, weights, location, problem, result if joint is None else joint, result, record
    )
