"""The model of a labelled partition: target distribution, predictions, leave-one-out score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.design import Design
from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target, make_target, occupied
from nrprob.methods.bayes.concentrations import classes_drawn, sizes_drawn
from nrprob.methods.bayes.full_covariance import SeparateTarget
from nrprob.methods.bayes.hierarchical_covariance import SHRINKAGE, SIZES, begin_shrunk
from nrprob.methods.bayes.hyperparameters import GRID, Prior, usual
from nrprob.methods.bayes.shared_covariance import TiedTarget, begin_tied
from nrprob.methods.bayes.six_move_target import MixtureTarget, log_joint, make_mixture_target
from nrprob.methods.bayes.student_t import scaled
from nrprob.methods.bayes.yeo_johnson import transformed
from nrprob.statistics.codes import (
    BinaryCode,
    CellCode,
    CountCode,
    NormalWishart,
    code_term,
    count_tables,
    label_code,
    normal_inverse_gamma,
    normal_inverse_wishart,
    normal_nml,
)
from nrprob.statistics.groups import group_sums
from nrprob.statistics.rows import padded_count

_NEAR, _SEARCHED = 20, 5000  # partners of a row, and rows that they are looked for in
LONGER = 10  # times the most counts of a row, that new rows may have
_OF_SIZES, _OF_CLASSES = 1.0, 0.5  # concentrations that are not drawn
_HEAVIEST = 0.3  # weight of the code of clusters without regard to known groups


class NewRows(NamedTuple):
    """Statistics (b, p) of new rows, their class unknown, and their known groups (b,)."""

    x: Any
    group: Any


@dataclass(frozen=True)
class MixtureCode:
    """How a partition of rows, some with a class, is coded.

    Attributes
    ----------
    energy : "nml" or "conjugate"
    covariance : "diag", "full", "shrunk" or "tied"
    power : that the density of real rows given their clusters is raised to
    errors : "gaussian" or "t"
    transformation : "identity" or "yeo-johnson"
    floor : smallest standard deviation of a cluster, in units of the feature's (nml)
    concentration : of the sizes of clusters (conjugate)
    class_concentration : of the classes of a cluster (conjugate); as the one of sizes None where it
        is drawn, if other numbers are; else that stands for .5, and for 1 of sizes
    kappa, shape, scale : of the normal-inverse-gamma prior (conjugate), None where these are drawn
    unordered : whether names of clusters are not sent
    features : "gaussian", "multinomial" or "bernoulli"; of the others, rows are as they came
    feature_concentration : of their probabilities in a cell (conjugate)
    coordination : weight of the code of clusters without regard to known groups; None for "auto"
    """

    energy: str
    covariance: str
    floor: float
    concentration: float | None
    class_concentration: float | None
    kappa: float | None
    shape: float | None
    scale: float | None
    unordered: bool
    features: str = "gaussian"
    feature_concentration: float = 0.5
    coordination: float | None = None
    power: float = 1.0
    errors: str = "gaussian"
    transformation: str = "identity"

    def _moments(self, X: np.ndarray, design: Design | None = None) -> list[np.ndarray]:
        """Moments of rows (n, m) that cells need, what is known, and weights if rows have any."""
        if self.features != "gaussian":
            return [X]
        weight = [np.ones((len(X), 1))] if self.errors == "t" else []
        if self.covariance == "tied":
            known = [] if design is None or design.columns is None else [design.columns]
            return [X, *known, *weight]
        if self.covariance == "diag":
            return [X, X * X, *weight]
        first, second = np.triu_indices(X.shape[1])
        return [X, X[:, first] * X[:, second], *weight]

    def statistics(
        self, X: np.ndarray, codes: np.ndarray, n_classes: int, design: Design | None = None
    ) -> np.ndarray:
        """Statistics (n, p) of rows and of their classes, -1 where unknown."""
        classes = (codes[:, None] == np.arange(n_classes)).astype(float)
        return np.concatenate([*self._moments(X, design), classes], 1)

    def new_rows(self, X: np.ndarray, n_classes: int, design: Design | None = None) -> NewRows:
        """Rows (b, m) to be predicted, and what is known of them."""
        x = self.statistics(X, np.full(len(X), -1), n_classes, design)
        group = np.zeros(len(x), np.int32) if design is None else design.codes
        return NewRows(np.concatenate([x, np.ones((len(x), 1))], 1), group)

    def _grid(self, grouped: bool) -> Prior:
        """Grids of the numbers of the prior, of one value where they are given."""
        kappa, shape, scale = self.kappa, self.shape, self.scale
        grid = GRID if grouped else GRID._replace(group_precision=GRID.group_precision[-1:])
        if self.covariance == "shrunk":
            grid = grid._replace(freedom=SHRINKAGE, variance=SIZES)
        if kappa is not None:
            grid = grid._replace(centre_precision=np.asarray([kappa]))
        if shape is not None:
            grid = grid._replace(freedom=np.asarray([2.0 * shape - 2]))
        if shape is not None and scale is not None:
            grid = grid._replace(variance=np.asarray([scale / (shape - 1)]))
        return grid

    @property
    def _sizes_given(self) -> float:
        """Concentration of the sizes where it is not drawn."""
        return _OF_SIZES if self.concentration is None else self.concentration

    @property
    def _classes_given(self) -> float:
        """Concentration of the classes where it is not drawn."""
        return _OF_CLASSES if self.class_concentration is None else self.class_concentration

    @property
    def draws_prior(self) -> bool:
        """Whether numbers of the prior are drawn beside the partition."""
        given = self.kappa, self.shape, self.scale
        drawn = self.covariance in ("tied", "shrunk") or None in given
        drawn = drawn or self.power < 1 or self.errors == "t" or self.transformation != "identity"
        return self.features == "gaussian" and self.energy == "conjugate" and drawn

    def target(
        self,
        X: np.ndarray,
        codes: np.ndarray,
        n_classes: int,
        max_clusters: int,
        design: Design | None = None,
    ) -> Any:
        """Distribution over partitions of rows (n, m) with classes (n,).

        The terms are those of the features (unless clusters share their covariance), of the sizes
        and, if there are classes, of these. Where something is known real rows have offsets; of
        others every cell of a cluster and a known group has a code of its own, with a last term for
        the clusters.

        Returns
        -------
        Target, or a `PriorTarget` where numbers of the prior are drawn
        """
        n = X.shape[0]
        nml = self.energy == "nml"
        group = design.codes if design is not None and design.n_groups > 1 else None
        labels, sizes = label_code(
            n,
            max_clusters,
            concentration=None if nml else self._sizes_given,
            unordered=self.unordered,
        )
        terms, discrete = [code_term(labels)], self.features != "gaussian"
        if discrete or self.covariance != "tied":
            features = self._discrete(X) if discrete else self._features(X)
            terms.insert(0, code_term(features, by_group=discrete and group is not None))
        if n_classes:
            tables = count_tables(n_classes, n + 1, None if nml else self._classes_given)
            width = sum(part.shape[1] for part in self._moments(X, design))
            terms.append(code_term(CountCode(*tables, width, width + n_classes, single=True)))
        x = self.statistics(X, codes, n_classes, design)
        if discrete and group is not None and self.coordination != 0:
            weight = self.coordination
            if weight is None:
                weight = _weight(features, np.column_stack([x, np.ones(n)]), group)
            terms.append(code_term(features, weight=weight))
        partners = _near(_on_sphere(X) if self.features == "multinomial" else X)
        if not self.draws_prior:
            own = group if discrete else None
            return make_target(terms, sizes, x, partners=partners, group=own)
        grid = self._grid(design is not None and design.has_structure)
        prior, power, t = usual(grid), self.power, self.errors == "t"
        result: Any
        if self.covariance == "tied":
            sent = frozenset({"data", "parameters"})  # by what is no term: a sum over clusters
            plain = make_target(terms, sizes, x, partners=partners, group=group, sent=sent)
            columns = None if design is None else design.columns
            both = X if columns is None else np.concatenate([X, columns], 1)
            q, m = both.shape[1] - X.shape[1], X.shape[1]
            result = TiedTarget(plain, both.T @ both, prior, grid, m, np.float64(power), t, q)
            result = begin_tied(result) if q else result
        else:
            plain = make_target(terms, sizes, x, partners=partners)
            if self.covariance == "shrunk":
                result = begin_shrunk(plain, X, prior, grid)
            else:
                result = SeparateTarget(plain, prior, grid).at(prior)
        if self.transformation == "yeo-johnson" and X.size:
            wide = np.pad(X, ((0, result.x.shape[0] - n), (0, 0)))
            result = transformed(result, wide, np.float64(power))
        if t:
            width = sum(part.shape[1] for part in self._moments(X, design))
            result = scaled(result, X.shape[1], width, power)
        if self.concentration is None:
            result = sizes_drawn(result, n, max_clusters, unordered=self.unordered)
        if n_classes and self.class_concentration is None:
            result = classes_drawn(result, n, n_classes)
        return result

    def _features(self, X: np.ndarray) -> CellCode:
        """Code of the features of a cluster."""
        m, room = X.shape[1], X.shape[0] + 1  # for a row to come
        if self.energy == "nml":
            width = np.ptp(X, axis=0)
            return normal_nml(room, np.minimum(self.floor, 0.4 * width), width / 2, width)
        if self.draws_prior:
            one = np.float64(1)  # for what `SeparateTarget` fills in
            full, t = self.covariance != "diag", self.errors == "t"
            return NormalWishart(one, one, one, m, full, np.float64(self.power), t)
        kappa, shape, scale = map(float, (self.kappa, self.shape, self.scale))  # type: ignore[arg-type]
        if self.covariance == "diag":
            return normal_inverse_gamma(room, m, kappa=kappa, shape=shape, scale=scale)
        # The marginal of one feature is the normal-inverse-gamma one of the same parameters.
        return normal_inverse_wishart(room, m, kappa=kappa, nu=2 * shape + m - 1, scale=2 * scale)

    def _discrete(self, X: np.ndarray) -> CellCode:
        """Code of the counts, or of the zeros and ones, of a cell."""
        m, prior = X.shape[1], None if self.energy == "nml" else self.feature_concentration
        if self.features == "multinomial":
            return CountCode(*count_tables(m, room(X), prior), 0, m)
        return BinaryCode(*count_tables(2, len(X) + 1, prior), 0, m)

    def mixture_target(
        self, X: np.ndarray, codes: np.ndarray, n_classes: int, max_clusters: int
    ) -> MixtureTarget:
        """Distribution over mixtures, their parameters included; (n, m) rows, (n,) classes.

        Under the conjugate prior it is that of `target`, before parameters are integrated out.
        """
        width = np.ptp(X, axis=0)
        prior: dict[str, Any] = {"low": np.minimum(self.floor, 0.4 * width)}
        if self.energy == "conjugate":
            prior = {
                "kappa": self.kappa,
                "shape": self.shape,
                "scale": self.scale,
                "concentration": self._sizes_given,
                "class_concentration": self._classes_given,
            }
        classes = (codes[:, None] == np.arange(n_classes)).astype(float)
        return make_mixture_target(
            X, classes, max_clusters=max_clusters, energy=self.energy,
            unordered=self.unordered, **prior,
        )  # fmt: skip


def room(X: np.ndarray) -> int:
    """Counts that the code of a cell has room for: all of ``X``, and a row to come."""
    total = X.sum(1)
    return int(total.sum() + LONGER * max(total.max(initial=0), 1))


@jit_by_size()
def _gain(code: CellCode, cells: jax.Array) -> jax.Array:
    """Nats that cells (groups, p) are shorter by than all of them as one."""
    return code(cells.sum(0)) - code(cells).sum()


def _weight(code: CellCode, x: np.ndarray, group: np.ndarray) -> float:
    """Weight at which known groups, told as clusters, gain half of what telling them costs."""
    cells = group_sums(x, group)
    more = padded_count(len(cells), x.size) - len(cells)
    gain = float(_gain(code, np.pad(cells, ((0, more), (0, 0)))))
    size = cells[:, -1]
    entropy = float(size @ np.log(size.sum() / size))
    return min(_HEAVIEST, 0.5 * entropy / gain) if gain > 0 else _HEAVIEST


def _on_sphere(X: np.ndarray) -> np.ndarray:
    """Roots of proportions, whose distances are those of Hellinger."""
    return np.sqrt(X / np.maximum(X.sum(1, keepdims=True), 1))


def _near(X: np.ndarray) -> np.ndarray:
    """Rows (n, q) near each of ``X`` (n, d): the nearest ones of all, or of evenly spaced ones."""
    from sklearn.neighbors import NearestNeighbors

    n = len(X)
    if n < 2 or not X.size:
        return np.zeros((n, 1), int)
    some = np.unique(np.linspace(0, n - 1, _SEARCHED).round().astype(int))
    if n <= _SEARCHED:
        return NearestNeighbors(n_neighbors=min(_NEAR, n - 1)).fit(X).kneighbors()[1]
    return some[NearestNeighbors(n_neighbors=_NEAR).fit(X[some]).kneighbors(X)[1]]


# Prediction


class _Blocks(NamedTuple):
    """What a draw says of new rows: ``cost`` (K, b) of joining, ``new`` the slot that may open."""

    cost: jax.Array
    here: jax.Array
    new: jax.Array


def _of_classes(target: Any) -> tuple[Any, ...]:
    """The term of the classes, if there are any: after those of the features and of the sizes."""
    rest = getattr(target, "without_features", None)
    terms = target.terms[1:] if rest is None else rest.terms
    return tuple(t for t in terms[1:2] if getattr(t.cost, "single", False))


def _counted_once(target: Any) -> Any:
    """The distribution without what counts rows again, to have a weight, which is no density."""
    if not isinstance(target, Target):
        return target
    return replace(target, terms=(*target.terms[:2], *_of_classes(target)))


def _at(target: Any, draw: Draw) -> tuple[Any, jax.Array]:
    """The distribution given what was drawn beside the labels, and these."""
    return target.given(draw) if len(draw) > 1 else target, draw["labels"]


def _joining(target: Any, labels: jax.Array, rows: NewRows) -> tuple[_Blocks, jax.Array]:
    cells = target.cells(labels)
    here = occupied(cells)
    k, most = here.sum(), target.n_slots
    opened = target.sizes[jnp.minimum(k + 1, most)] - target.sizes[k]
    new = (jnp.arange(most) == jnp.argmin(here)) & ~here & jnp.isfinite(opened)
    cost = target.joining(cells, *rows) + jnp.where(new, opened, 0)[:, None]
    return _Blocks(cost, here, new), cells


@jit_by_size()
def best_blocks(target: Any, draws: Draw, rows: NewRows) -> jax.Array:
    """Blocks (S, b) of draws that new rows are most probable in, among those that there are."""

    def one(draw):
        blocks, _ = _joining(*_at(target, draw), rows)
        return jnp.where(blocks.here[:, None], blocks.cost, jnp.inf).argmin(0)

    return jax.lax.map(one, draws)


@jit_by_size("rule")
def class_probabilities(
    target: Any, draws: Draw, n_draws: jax.Array, rows: NewRows, *, rule: str
) -> jax.Array:
    """p(class | row), averaged over draws of partitions.

    Parameters
    ----------
    target : Target
        With a term of the classes.
    draws : ``labels`` (S, n') and what was drawn beside them; the first ``n_draws`` are used
    rows : NewRows
    rule : "joint" weighs draws by p(row | draw), "cond" does not

    Returns
    -------
    (b, C)
    """

    def one(draw):
        now, labels = _at(target, draw)
        code: Any = _of_classes(now)[0].cost
        blocks, cells = _joining(now, labels, rows)
        cost = jnp.where((blocks.here | blocks.new)[:, None], blocks.cost, jnp.inf)
        least = cost.min(0)
        p = jnp.exp(-code.prepare_join(cells.sum(0).T)) @ jnp.exp(least - cost)
        return jnp.log(p) - least  # (C, b)

    return _average(one, draws, n_draws, rule).T


@jit_by_size("rule")
def cluster_probabilities(
    target: Any,
    draws: Draw,
    n_draws: jax.Array,
    rows: NewRows,
    reference: jax.Array,
    *,
    rule: str,
) -> jax.Array:
    """p(cluster of a reference partition | row), averaged over draws of partitions.

    A block stands for the clusters in ``reference`` (n', C), one-hot, that its rows lie in.
    """

    def one(draw):
        labels = draw["labels"]
        blocks, cells = _joining(*_at(target, draw), rows)
        cost = jnp.where(blocks.here[:, None], blocks.cost, jnp.inf)
        least = cost.min(0)
        member = (labels == jnp.arange(target.n_slots)[:, None]) * target.x[:, -1]
        share = member @ reference / jnp.maximum(cells.sum(0)[:, -1:], 1)
        p = share.T @ jnp.exp(least - cost)
        return jnp.log(p) - least

    return _average(one, draws, n_draws, rule).T


@jit_by_size("rule")
def mixture_probabilities(
    draws: dict[str, jax.Array], n_draws: jax.Array, x: jax.Array, *, rule: str
) -> jax.Array:
    """p(class | row), averaged over draws of mixtures with their parameters; (b, C).

    Parameters
    ----------
    draws : arrays with a leading axis of draws, of which the first ``n_draws`` are used
    x : (b, d) features of new rows
    rule : as for `class_probabilities`
    """
    return _average(lambda draw: log_joint(draw, x).T, draws, n_draws, rule).T


@jit_by_size()
def log_densities(target: Any, draws: Draw, n_draws: jax.Array, rows: NewRows) -> jax.Array:
    """Log of p(row), averaged over draws of partitions; (b,), arguments as above.

    Under a draw the row falls into a block, or a new one, as the code of the sizes says. Where the
    features are coded by normalised maximum likelihood, their part is what the row adds to it.
    """

    def one(draw):
        given, labels = _at(target, draw)
        given = _counted_once(given)
        blocks, cells = _joining(given, labels, rows)
        if isinstance(given, Target):
            own = replace(given, terms=given.terms[:1]).joining(cells, *rows)
        else:
            own = given.features_of(cells, *rows)
        real = (blocks.here | blocks.new)[:, None]
        into = jax.nn.log_softmax(jnp.where(real, own - blocks.cost, -jnp.inf), axis=0)
        return jax.nn.logsumexp(into - own, axis=0)

    result = jax.lax.map(one, draws)
    used = jnp.arange(len(result))[:, None] < n_draws
    return jax.nn.logsumexp(jnp.where(used, result, -jnp.inf), axis=0) - jnp.log(n_draws)


def _average(one: Any, draws: Any, n_draws: jax.Array, rule: str) -> jax.Array:
    """Average of ``one(draw)``, log p (C, b) up to a constant of the row, over the draws."""

    def at(s):
        return jax.tree.map(lambda a: a[s], draws)

    shape = jax.eval_shape(one, at(0)).shape
    # The largest log p so far is carried along, so that nothing under- or overflows.
    begin = jnp.full(shape[1], -jnp.inf), jnp.zeros(shape)

    def add(s, carry):
        most, total = carry
        log_p = one(at(s))
        if rule == "cond":
            log_p = jax.nn.log_softmax(log_p, axis=0)
        new = jnp.maximum(most, log_p.max(0))
        old = jnp.where(jnp.isfinite(most), jnp.exp(most - new), 0)
        return new, total * old + jnp.exp(log_p - new)

    _, total = jax.lax.fori_loop(0, n_draws, add, begin)
    return total / total.sum(0)


@jit_by_size()
def leave_one_out(target: Any, draws: jax.Array) -> jax.Array:
    """Log p(class | features, all else) of every labelled row, (n',); 0 where there is no label.

    Draws given all labels are turned into draws without the row's own by their weights
    1 / p(class | draw): the average is harmonic.
    """
    code: Any = _of_classes(target)[0].cost

    def one(labels):
        cells = target.cells(labels)[0]
        own = target.x[:, code.first : code.stop]
        less = (cells[labels] - target.x)[:, code.first : code.stop]
        wide = jnp.zeros((target.x.shape[1], less.shape[0])).at[code.first : code.stop].set(less.T)
        log_p = jax.nn.log_softmax(-code.prepare_join(wide), axis=0)
        return -(log_p * own.T).sum(0)

    costs = jax.lax.map(one, draws)
    return jnp.log(draws.shape[0]) - jax.nn.logsumexp(costs, axis=0)
