"""Fit the conditional mixture to a table by the joint EM.

`fit_table` searches with held group effects, which are equal to the group means. `fit_table` then
decides between forms of the model: location effects or none; subtracted group means, or effects
that are fitted jointly with the clusters; common shares of the clusters, or shares by known group.

F is the objective that the joint EM maximises; see `joint`. Sizes: n samples in B blocks of r
samples (see `joint`), n' samples of a subsample, K clusters, S restarts.
"""

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
from nrprob.methods.conditional.table_starts import (
    initial_labels,
    start_kinds,
    unconditional_labels,
)
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import bucket_size
from nrprob.statistics.weighted import ledoit_wolf_intensity, row_mean, row_products

LOCATION_RIDGE = 50.0  # precision lambda_B of location effects, in samples
_PSEUDO, _TAU_WEIGHT, _TAU_SCALE = 1.0, 2.0, 0.25  # see `TiltRidge`
_SCREENING_STEPS = 12  # EM steps of all screened joint fits; then only the best continue
_JOINT_LEADERS = 2  # joint fits from k-means of the residuals that continue
# Tables with a larger `TableData.cost_of_step` are searched by successive halving.
_LARGE = 1 << 18
_SAMPLE, _SAMPLE_EACH = 4096, 256  # size of the subsample: in all or per cluster, the larger
_SAMPLE_STEPS = 10  # EM steps of all restarts on the subsample
_LEADERS = 3  # restarts that continue with all samples
_SAME = 0.95  # adjusted Rand index from which on two restarts count as equal
_SMALL_GROUP = 10  # smaller groups do not count in margin and penalty
SMALL_MEDIAN = 20  # median group size below which group means are poor estimates
MARGIN_FACTOR = 1.5  # margins that a joint fit has to gain over subtracted means
# Decrease of the mean entropy of the memberships that is required for shares by group: absolute, in
# units of log K, or relative.
_CLEARER, _CLEARER_SHARE = 0.1, 0.3
EQUAL_CLUSTERS = 0.95  # clusters count as equal above this mean entropy of memberships over log K
# If the gain of location effects, divided by their degrees of freedom, is between these bounds, the
# joint fits decide again about location effects.
_DOUBTFUL = (0.5, 2.0)


def make_problem(
    data: TableData, n_clusters: int, *, covariance: str, ridge: float, location: bool,
    tol: float, max_iter: int,
) -> Problem:  # fmt: skip
    """Arrange a table in blocks, and compute the hyperparameters of its fit.

    Parameters
    ----------
    data : the table
    n_clusters : number of clusters
    covariance : form of the error covariance: "tied", "diag" or "spherical"
    ridge : factor of the Ledoit-Wolf ridge
    location : whether the layout has a design of location effects
    tol, max_iter : convergence criterion, and maximum number of EM steps
    """
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
            shrinkage = ledoit_wolf_intensity(one_component.completed, mass)
            nu0 = ridge_weight(shrinkage, dof, ridge, d)
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
    """Results of S restarts of one form of the model.

    Attributes
    ----------
    best : final state of the restart with the largest objective
    labels : (S, n) labels of every restart
    objective : (S,) maximised objectives F
    converged : (S,) whether a restart converged
    n_iter : (S,) numbers of EM steps
    """

    best: Ends
    labels: np.ndarray
    objective: np.ndarray
    converged: np.ndarray
    n_iter: np.ndarray


def search(problem: Problem, starts: np.ndarray, warm: np.ndarray, form: Form) -> SearchResult:
    """Run all restarts of one form of the model.

    Parameters
    ----------
    problem : layout and settings
    starts : (S, B, r, K) initial memberships
    warm : (S,) whether a warm-up comes first
    form : form of the model
    """
    ends = problem.run(starts, [form] * len(starts), warm)
    return _search_result(problem, ends, np.arange(len(starts)))


def _search_result(problem: Problem, ends: Ends, chosen: np.ndarray) -> SearchResult:
    """Collect the results of the restarts with the indices ``chosen`` from their final states."""
    objective = ends.objective[chosen]
    return SearchResult(
        ends.pick(int(chosen[objective.argmax()])), problem.labels(ends)[chosen], objective,
        np.asarray(ends.converged)[chosen], np.asarray(ends.n_iter)[chosen],
    )  # fmt: skip


def _distinct_clusters(problem: Problem, ends: Ends) -> SearchResult:
    """Leave out restarts in which the memberships are nearly equal for all clusters.

    If all restarts are of this type, none is left out. With many small groups, the objective may
    favour equal clusters.
    """
    n_restarts = len(ends.objective)
    entropy = [mean_entropy(problem, ends.pick(i)) for i in range(n_restarts)]
    distinct = np.flatnonzero(np.array(entropy) <= EQUAL_CLUSTERS)
    return _search_result(problem, ends, distinct if len(distinct) else np.arange(n_restarts))


def sample_leaders(
    sample: Problem, part: TableData, data: TableData, labels: np.ndarray, warm: np.ndarray,
    form: Form,
) -> list[np.ndarray]:  # fmt: skip
    """Memberships (n, K) of all samples under each of the best distinct restarts on a subsample.

    Parameters
    ----------
    sample : layout and settings of the subsample
    part : the table of the subsample
    data : the whole table
    labels : (S, n') initial labels of the subsample
    warm : (S,) whether a warm-up comes first
    form : form of the model
    """
    starts = sample.from_labels(labels)
    ends = sample.run(starts, [form] * len(starts), warm, max_iter=_SAMPLE_STEPS)
    k = sample.n_clusters
    memberships = []
    for i in distinct_optima(sample.labels(ends), -ends.objective, k, _SAME, _LEADERS):
        fitted = FittedTable.from_state(ends.pick(i).state, part, form.location)
        log_p = fitted.log_joint(data.x, data.columns, data.groups)
        r = softmax(log_p, axis=1)
        if data.labels is not None:
            labelled = data.labels >= 0
            r[labelled] = data.labels[labelled, None] == np.arange(k)
        memberships.append(r)
    return memberships


def mean_entropy(problem: Problem, end: Ends) -> float:
    """Mean entropy of the memberships of the restart ``end``, divided by log K; from 0 to 1."""
    r = problem.layout.from_blocks(np.asarray(end.state.r))
    if r.shape[1] == 1:
        return 0.0
    entropy = row_mean(entr(r).sum(1), problem.sample_mass)
    return float(entropy / np.log(r.shape[1]))


def is_clearer(before: float, after: float) -> bool:
    """Whether the mean entropy of the memberships falls enough for shares by group.

    The entropy, divided by log K, has to fall from ``before`` to ``after`` by more than 0.1, or by
    more than 30 %. The relative criterion applies to clusters whose entropy is small already.
    """
    return before - after > _CLEARER or after < (1 - _CLEARER_SHARE) * before


def choose_free_shares(problem: Problem, uniform: SearchResult, free: SearchResult) -> bool:
    """Whether common fitted shares are better than equal shares.

    ``uniform`` and ``free`` are the restarts with equal and with fitted shares. The criteria are
    the gain and the entropy of the memberships, as in `free_weights_improve`.
    """
    k = problem.n_clusters
    labels = [result.labels[result.objective.argmax()] for result in (uniform, free)]
    entropy = [mean_entropy(problem, result.best) * np.log(max(k, 2)) for result in (uniform, free)]
    table = cross_table(labels[0], labels[1], (k, k), problem.sample_mass)
    gain = free.objective.max() - uniform.objective.max()
    return bool(free_weights_improve(gain, entropy, table, k, table.sum(), np))


# Choice of group effects and shares


def location_freedom(data: TableData) -> float:
    """Effective degrees of freedom of the location effects of a table.

    The ridge penalty of the location effects reduces the number. The number is 0 without location
    effects.
    """
    q = data.location_matrix
    if q is None or data.x is None:
        return 0.0
    eigenvalues = np.maximum(np.linalg.eigvalsh(row_products(q, data.mass)), 0)
    return float(data.x.shape[1] * (eigenvalues / (eigenvalues + LOCATION_RIDGE)).sum())


def thresholds(data: TableData, n_clusters: int) -> tuple[float, float]:
    """Thresholds in nats for joint fits: margin of joint effects, and penalty on shares by group.

    Every parameter of a group costs half the log of the group size, as in BIC. The sums run over
    known groups z of n_z >= 10 samples. K is the number of clusters, and d is the number of numeric
    columns:

        margin = min(K - 1, d) (sum_z log n_z - max_z log n_z) / 2

        penalty = (K - 1) sum_z log n_z / 2
    """
    size = data.group_sizes
    logs = np.log(size[size >= _SMALL_GROUP])
    d = 0 if data.x is None else data.x.shape[1]
    margin = 0.5 * min(n_clusters - 1, d) * (logs.sum() - logs.max()) if logs.size else 0.0
    return float(margin), float(0.5 * (n_clusters - 1) * logs.sum())


@dataclass
class Candidates:
    """Fits from which `choose_effects` selects one; all have location effects, or none has.

    Attributes
    ----------
    subtracted : fit with held group effects, which are the group means
    equal : joint fits with common shares
    by_group : joint fits with shares by group
    free : objective of a joint fit with fitted common shares, which starts at the clusters of the
        best fit with shares by group
    """

    subtracted: Ends
    equal: SearchResult
    by_group: SearchResult
    free: float

    @property
    def best_joint(self) -> float:
        """Largest objective of the joint fits."""
        return max(float(fit.objective.max()) for fit in (self.equal, self.by_group))


def joint_candidates(
    data: TableData, problem: Problem, subtracted: Ends, form: Form, exponents: Any,
    rng: np.random.Generator,
) -> Candidates:  # fmt: skip
    """Fit group effects jointly with the clusters, from a few initial values.

    Few of the initial values ignore the known groups. More of them would be harmful: some would
    lead to clusters that coincide with known groups, which can have a large objective.

    Parameters
    ----------
    data : the table
    problem : layout and settings
    subtracted : fit whose group effects are held at the group means
    form : `Form` of the joint fits in which all known groups have the same cluster shares
    exponents : whitening exponents of the k-means that ignores known groups
    rng : random number generator
    """
    # 1. A fit without group effects, from k-means that does not use the known groups.
    absent = Form(False, False, True, location=form.location)
    r = problem.from_labels(unconditional_labels(data, problem.n_clusters, exponents, rng))
    ends = problem.run(r, [absent] * len(r), max_iter=_SCREENING_STEPS)
    r = np.asarray(ends.pick(int(ends.objective.argmax())).state.r)[None]
    ends = problem.run(r, [absent])
    # 2. A few steps of fits with shares by group, from k-means of the residuals, once per type of
    #    initial labels. The fit with subtracted means can be far from the clusters if the shares
    #    differ between groups.
    shares_by_group = form._replace(shares=BY_GROUP)
    n_kinds = len(start_kinds(data, problem.n_clusters, exponents))
    labels, _ = initial_labels(data, problem.n_clusters, n_kinds, exponents, rng)
    r = problem.from_labels(labels)
    screened = problem.run(r, [shares_by_group] * len(r), max_iter=_SCREENING_STEPS)
    leaders = distinct_optima(
        problem.labels(screened), -screened.objective, problem.n_clusters, _SAME, _JOINT_LEADERS
    )
    # 3. Joint fits with common shares, from the fit with subtracted means and from steps 1 and 2.
    states = subtracted.state.r[None], ends.state.r, screened.state.r[leaders]
    starts = _distinct_starts(problem, np.concatenate([*map(np.asarray, states)]))
    starts = problem.leave_out_hopeless(starts, form)
    equal = problem.run(starts, [form] * len(starts))
    # 4. Joint fits with shares by group, from all fits so far.
    starts = _distinct_starts(problem, np.concatenate([np.asarray(equal.state.r), starts]))
    starts = problem.leave_out_hopeless(starts, shares_by_group)
    ends = problem.run(starts, [shares_by_group] * len(starts))
    by_group = _distinct_clusters(problem, ends)
    # 5. The same clusters with common shares: the clusters may just be of unequal sizes.
    free = objective_of_common_shares(problem, by_group.best, form)
    return Candidates(subtracted, _distinct_clusters(problem, equal), by_group, free)


def _distinct_starts(problem: Problem, starts: np.ndarray) -> np.ndarray:
    """Leave out entries of ``starts`` that have the same clusters as an earlier entry.

    ``starts`` (S, B, r, K) are initial memberships.
    """
    labels = np.stack([problem.layout.from_blocks(r).argmax(1) for r in starts])
    order = np.zeros(len(starts))
    return starts[distinct_optima(labels, order, problem.n_clusters, _SAME, len(starts))]


def objective_of_common_shares(
    problem: Problem, end: Ends, form: Form, max_iter: int | None = None
) -> float:
    """Objective of the fit with common fitted shares that starts at the clusters of ``end``."""
    r = np.asarray(end.state.r)[None]
    return float(problem.run(r, [form._replace(shares=FREE)], max_iter=max_iter).objective[0])


def penalty_over_common(penalty: float, n_clusters: int, total: float) -> float:
    """Penalty on cluster shares by known group, less the penalty on common shares, in nats.

    ``penalty`` is the penalty on shares by group from `thresholds`, and ``total`` the number of
    samples or the sum of their weights.
    """
    return penalty - 0.5 * (n_clusters - 1) * float(np.log(total))


def choose_effects(
    data: TableData, problem: Problem, candidates: Candidates, effects: str, weights: str
) -> tuple[str, dict[str, float]]:
    """Select the form of group effects and shares: one of the candidate fits.

    With effects="auto", the fit with subtracted means is the default. A joint fit with common
    shares has to raise the objective by 1.5 margins (see `thresholds`). The joint fit is not
    selected if the gain of fitted common shares over equal shares exceeds the penalty on fitted
    shares. A joint fit with shares by group has to raise the objective by 1.5 margins plus the
    penalty. The fit with shares by group also has to lower the mean entropy of the memberships, and
    its gain over fitted common shares has to exceed the difference of the penalties.

    Means are never subtracted if the median group has fewer than 20 samples, because every sample
    is then a large part of the mean. For such small groups, and if the user chose joint effects,
    only the gain of shares by group over common shares counts. This gain has to exceed K log(L) / 2
    nats for L small groups (median below 20 samples), else the penalty of `thresholds`. Tables with
    only discrete columns have no means to subtract, so a joint fit is selected. The fit with shares
    by group then has to raise the objective of the fit ``subtracted`` by the penalty.

    Parameters
    ----------
    data : the table
    problem : layout and settings
    candidates : the fits
    effects, weights : parameters that the user set, as in `Choices`

    Returns
    -------
    chosen : {"subtracted", "equal", "by_group"}
    record : dict of gains and thresholds in nats, and of mean entropies
    """
    k = problem.n_clusters
    margin, penalty = thresholds(data, k)
    sizes = data.group_sizes
    sizes = sizes[sizes > 0]
    subtracted, equal, by_group = (
        float(end.state.objective)
        for end in (candidates.subtracted, candidates.equal.best, candidates.by_group.best)
    )
    entropy_subtracted = mean_entropy(problem, candidates.subtracted)
    entropy_by_group = mean_entropy(problem, candidates.by_group.best)
    gain_equal, gain_by_group = equal - subtracted, by_group - subtracted
    record = {
        "gain_equal": gain_equal, "gain_by_group": gain_by_group, "margin": margin,
        "shares_penalty": penalty, "entropy_subtracted": entropy_subtracted,
        "entropy_by_group": entropy_by_group, "gain_over_common": by_group - candidates.free,
        "penalty_over_common": penalty_over_common(penalty, k, data.total),
    }  # fmt: skip
    if weights == "by_group":
        return "by_group", record
    fixed_shares = weights in ("uniform", "free")
    small = bool(np.median(sizes) < SMALL_MEDIAN)
    # 1. Means are not subtracted: choose between the two joint fits.
    never_subtracts = effects != "auto" or small
    if never_subtracts or data.x is None:
        gain = by_group - (equal if never_subtracts else subtracted)
        required_gain = 0.5 * k * np.log(len(sizes)) if small else penalty
        return "by_group" if gain > required_gain and not fixed_shares else "equal", record
    # 2. Otherwise a joint fit has to gain enough over subtracted means.
    required_gain = MARGIN_FACTOR * margin
    clearer = is_clearer(entropy_subtracted, entropy_by_group)
    # Fitted common shares may lower the entropy as much as shares by group, with fewer parameters.
    clearer &= record["gain_over_common"] > record["penalty_over_common"]
    if not fixed_shares and gain_by_group > required_gain + penalty and clearer:
        return "by_group", record
    # Fitted common shares may explain the gain. Subtracted means then suffice, with free weights.
    common_penalty = penalty - record["penalty_over_common"]
    unequal = not fixed_shares and candidates.free - equal > common_penalty
    return "equal" if gain_equal > required_gain and not unequal else "subtracted", record


@dataclass
class Decision:
    """Selected fit of a table, and the form of its model.

    Attributes
    ----------
    kind : form of the group effects: "subtract", "random" or "fixed"
    weights : form of the shares: "uniform", "free" or "by_group"
    location : whether there are location effects
    problem : layout and settings
    restarts : restarts of the selected form
    search : restarts with held group effects; None if `solver.solve_residuals` computed these
    gains : gains and thresholds of the choices, in nats, and mean entropies of the memberships
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
        """Final state of the best restart."""
        return self.restarts.best

    @property
    def form(self) -> Form:
        """Selected form of the model."""
        shares = {"uniform": UNIFORM, "free": FREE, "by_group": BY_GROUP}[self.weights]
        held, fixed = self.kind == "subtract", self.kind == "fixed"
        return Form(held, fixed, False, shares, self.location)


@dataclass(frozen=True)
class Choices:
    """Settings of the user that restrict the form of the model.

    Attributes
    ----------
    effects : "auto", "subtract", "fixed" or "random"
    weights : "auto", "uniform", "free" or "by_group"
    location : "auto", or whether there are location effects
    exponents : whitening exponents of the initial k-means
    """

    effects: str = "auto"
    weights: str = "auto"
    location: Any = "auto"
    exponents: Any = (0.0, 0.5, 1.0)

    @property
    def subtracts(self) -> bool:
        """Whether the user chose subtracted group means, so that there are no joint fits."""
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
    """Choose between subtracted means and joint fits, and the form of the shares.

    Parameters
    ----------
    data : the table
    problem : layout and settings
    subtracted : fits with held group effects, without (False) and with (True) location effects
    location : whether the search with held effects chose location effects
    doubtful : degrees of freedom of the location effects if the joint fits have to decide again
        about location effects; else 0
    choices : settings of the user
    rng : random number generator

    Returns
    -------
    kind : {"subtract", "random", "fixed"}
    weights : {"uniform", "free", "by_group"}
    location : whether there are location effects
    restarts : the selected joint fits; None for subtracted means
    gains : dict of gains and thresholds
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

    Large tables are searched by successive halving.

    Parameters
    ----------
    data : the table
    n_clusters : number of clusters
    choices : settings of the user
    covariance, ridge, tol, max_iter : as in `make_problem`
    n_init : number of restarts
    rng : random number generator
    initial : (n,) labels that replace the first initial labels
    successive_halving : whether to search large tables by successive halving
    set_aside : function that is called after the first search, and returns whether there are
        outliers to set aside

    Returns
    -------
    Decision or None
        None if ``set_aside`` returns True.
    """
    part, chosen = data, np.arange(data.n_samples)
    if successive_halving and data.cost_of_step(n_clusters) > _LARGE:
        chosen = stratified_sample(data.groups, max(_SAMPLE, _SAMPLE_EACH * n_clusters), rng)[0]
        # The first steps only select restarts. They are fast on a table without missing numbers.
        part = data.take(chosen).impute()
    # 1. Initial labels.
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

    # 2. Search with held group effects, without and with location effects.
    shares = FREE if choices.weights == "free" else UNIFORM
    options = ((False, True) if choices.location == "auto" else (True,)) if possible else (False,)
    searches = {}
    for location in options:
        form = Form(True, False, False, shares, location)
        searches[location] = search_all(form)
        if len(searches) == 1 and set_aside and set_aside(problem, searches[location], form):
            return None
    # 3. Location effects have to gain their effective degrees of freedom, as in AIC.
    gain, freedom, location = 0.0, location_freedom(data), options[0]
    if len(searches) == 2:
        gain = float(searches[True].objective.max() - searches[False].objective.max())
        location = gain > freedom
    record = {"gain_location": gain, "freedom_location": freedom}
    kind, weights, joint = "subtract", "free" if shares == FREE else "uniform", None
    # 4. Joint fits of group effects and clusters.
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
    # 5. Free common shares, if group means are subtracted.
    result = searches[location]
    if joint is None and choices.weights == "auto":
        free = search_all(Form(True, False, False, FREE, location))
        if choose_free_shares(problem, result, free):
            result, weights = free, "free"
    return Decision(
        kind, weights, location, problem, result if joint is None else joint, result, record
    )
