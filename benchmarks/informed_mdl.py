"""`MDLMultiView` with known groups, pairs and labels: accuracy and numbers of clusters.

Every case has the criterion of its figure; see `CASES`. The data are simulated from fresh seeds,
except wine. ARI is the adjusted Rand index of the clusters of the first view. Kraft sums, and
optima on tiny data by enumeration, are tests.
"""

from __future__ import annotations

from common import header, show, timed, verdict

# isort: split
import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from nrprob import MDLMultiView
from nrprob.datasets import InformedViews, make_essential_sources, make_informed_views
from nrprob.metrics import adjusted_rand_index

SOURCES = ("view 2", "view 1", "known", "pairs", "labels")
MAX_CLUSTERS = 6
Row = tuple[str, str, str, str]


class Settings(NamedTuple):
    """Seeds of the data, which are the seeds of the fits too, and restarts of a fit."""

    seeds: tuple[int, ...]
    n_init: int


# Simulated data


def views_of_clusters(
    clusters: Sequence[np.ndarray], distance: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Views of up to three clusters in three features, with means at equal distances."""
    means = distance / np.sqrt(2) * np.eye(3)
    return [means[z] + rng.normal(size=(z.size, 3)) for z in clusters]


def balanced_clusters(n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(n) % k)


class OblongViews(NamedTuple):
    """Round clusters, their image under a linear map, and the image of clusters with new noise."""

    plain: np.ndarray
    mapped: np.ndarray
    mapped_noise: np.ndarray
    clusters: np.ndarray


def oblong_views(seed: int) -> OblongViews:
    """Three clusters of 100 samples at distance 5, and a map with condition number 8."""
    rng = np.random.default_rng([seed, 1])
    clusters = balanced_clusters(300, 3, rng)
    plain, other = views_of_clusters([clusters, clusters], 5, rng)
    left, right = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    linear = left * np.geomspace(8**-0.5, 8**0.5, 3) @ right
    return OblongViews(plain, plain @ linear, other @ linear, clusters)


def tree_views(seed: int, n_views: int = 12) -> tuple[list[np.ndarray], np.ndarray]:
    """Views whose clusters follow a random tree, and their clusters (n, n_views).

    Every view after the first has a random earlier view as parent. Its clusters are the parent's
    with permuted labels, of which 15 % are then sampled uniformly.
    """
    rng = np.random.default_rng([seed, 2])
    clusters = [balanced_clusters(500, 3, rng)]
    for v in range(1, n_views):
        z = rng.permutation(3)[clusters[rng.integers(v)]]
        clusters.append(np.where(rng.random(500) < 0.15, rng.integers(3, size=500), z))
    return views_of_clusters(clusters, 4, rng), np.stack(clusters, axis=1)


NOISE_VIEWS, INDEPENDENT_VIEW = {2, 3}, 4


def views_with_noise(seed: int) -> list[np.ndarray]:
    """Two views of three clusters, two noise views, and a view of two independent clusters."""
    rng = np.random.default_rng([seed, 3])
    clusters = balanced_clusters(200, 3, rng)
    independent = balanced_clusters(200, 2, rng)
    *informative, last = views_of_clusters([clusters, clusters, independent], 4, rng)
    return [*informative, *(rng.normal(size=(200, d)) for d in (3, 6)), last]


# Fits


def fit_views(
    views: Sequence[np.ndarray],
    seed: int,
    n_init: int,
    *,
    n_clusters: Any = "auto",
    covariance: str = "isotropic",
    constraints: str = "hard",
    y: np.ndarray | None = None,
    **given: np.ndarray,
) -> tuple[MDLMultiView, bool]:
    """Fitted model, and whether `fit` warned that two views are copies."""
    model = MDLMultiView(
        n_clusters, covariance=covariance, max_clusters=MAX_CLUSTERS, n_init=n_init,
        constraints=constraints, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        model.fit(list(views), y, **given)
    return model, any("canonical correlation" in str(w.message) for w in issued)


def fit_without(
    data: InformedViews, removed: Sequence[str], seed: int, n_init: int, **parameters: Any
) -> tuple[float, tuple[int, ...]]:
    """ARI of the target view, and numbers of clusters, without the removed sources.

    Without the first view, the second view is the target.
    """
    kept_views = [v for v in range(len(data.views)) if f"view {v + 1}" not in removed]
    given: dict[str, np.ndarray] = {}
    if "known" not in removed:
        given["known"] = data.known
    if "pairs" not in removed:
        given["must_link"] = data.must_link
    if "labels" not in removed:
        given["y"] = data.y
    model, _ = fit_views([data.views[v] for v in kept_views], seed, n_init, **parameters, **given)
    ari = adjusted_rand_index(data.clusters[:, kept_views[0]], model.alternatives_[:, 0])
    return ari, tuple(model.n_clusters_)


@cache
def planted_fit(removed: tuple[str, ...], seed: int, n_init: int) -> tuple[float, tuple[int, ...]]:
    """Fit of planted views, which two cases use."""
    return fit_without(make_informed_views(random_state=seed), removed, seed, n_init)


# Rows of tables


def row(what: str, value: float, bar: float | None = None, *, at_least: bool = True) -> Row:
    """Row of a mean, with its criterion if there is one."""
    judged = ("", "") if bar is None else verdict(value, bar, at_least=at_least)
    return what, f"{value:.3f}", *judged


def share_row(what: str, hits: Sequence[bool], bar: float | None = None) -> Row:
    """Row of the number of fits with a property; ``bar`` is the least share."""
    n, total = sum(map(bool, hits)), len(hits)
    if bar is None:
        return what, f"{n} of {total}", "", ""
    least = int(np.ceil(bar * total - 1e-9))
    return what, f"{n} of {total}", f">= {least}", verdict(n, least, at_least=True)[1]


def paired_row(what: str, first: Sequence[float], second: Sequence[float], bar: float) -> Row:
    """Row of the mean of ``first - second`` and its standard error."""
    difference = np.subtract(first, second)
    error = difference.std(ddof=1) / np.sqrt(difference.size) if difference.size > 1 else np.nan
    mean = difference.mean()
    return what, f"{mean:+.3f} +- {error:.3f}", *verdict(mean, bar, at_least=True)


# Cases


def essential(settings: Settings) -> Iterator[Row]:
    """Essential sources, two clusters per view given."""
    for removed in ((), *((s,) for s in SOURCES)):
        scores = [
            fit_without(
                make_essential_sources(random_state=seed), removed, seed, max(settings.n_init, 10),
                n_clusters=2,
            )[0]
            for seed in settings.seeds
        ]  # fmt: skip
        if removed:
            yield row(f"ARI without {removed[0]}", np.mean(scores), 0.2, at_least=False)
        else:
            yield row("ARI with all sources", np.mean(scores), 0.95)


def planted(settings: Settings) -> Iterator[Row]:
    """Planted views of four features, isotropic covariance, number of clusters estimated."""
    both = ("pairs", "labels")
    scores = {
        removed: [planted_fit(removed, seed, settings.n_init)[0] for seed in settings.seeds]
        for removed in ((), *((s,) for s in SOURCES), both)
    }
    everything = scores[()]
    yield row("ARI with all sources", np.mean(everything), 0.9)
    for view in ("view 1", "view 2"):
        yield row(f"ARI without {view}", np.mean(scores[(view,)]))
        yield paired_row(f"loss of ARI without {view}", everything, scores[(view,)], 0.15)
    yield row("ARI without known", np.mean(scores[("known",)]), 0.6, at_least=False)
    for source in both:
        yield row(f"ARI without {source}", np.mean(scores[(source,)]))
    yield row("ARI without pairs and labels", np.mean(scores[both]))
    yield paired_row("gain of ARI by pairs and labels", everything, scores[both], 0.0)


def soft(settings: Settings) -> Iterator[Row]:
    """Planted views of two features at separation 2.6; 5 of 15 must-links are wrong."""
    scores: dict[str, list[float]] = {}
    for seed in settings.seeds:
        data = make_informed_views(
            n_features=2, separation=2.6, wrong_links=1 / 3, random_state=seed
        )
        for name, removed, constraints in (
            ("no", ("pairs",), "hard"), ("soft", (), "soft"), ("hard", (), "hard")
        ):  # fmt: skip
            score, _ = fit_without(data, removed, seed, settings.n_init, constraints=constraints)
            scores.setdefault(name, []).append(score)
    for name, values in scores.items():
        yield row(f"ARI with {name} pairs", np.mean(values))
    yield paired_row("gain of ARI by soft pairs", scores["soft"], scores["no"], -0.02)


def number(settings: Settings) -> Iterator[Row]:
    """Estimated number of clusters of planted views, isotropic covariance."""
    sizes = [planted_fit((), seed, settings.n_init)[1] for seed in settings.seeds]
    yield share_row("3 clusters in the first view", [k[0] == 3 for k in sizes], 0.9)
    yield share_row("3 clusters in both views", [k == (3, 3) for k in sizes])


def wine(settings: Settings) -> Iterator[Row]:
    """Wine in two views, full covariance per cluster, for at most three seeds of the fit."""
    X, cultivar = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    sizes, scores = [], []
    for seed in settings.seeds[:3]:
        model, _ = fit_views([X[:, :6], X[:, 6:]], seed, settings.n_init, covariance="full_cluster")
        sizes.append(tuple(model.n_clusters_))
        scores.append([adjusted_rand_index(cultivar, z) for z in model.alternatives_.T])
    yield share_row("3 clusters in both views", [k == (3, 3) for k in sizes], 1.0)
    for v, score in enumerate(np.mean(scores, axis=0)):
        yield row(f"ARI of view {v + 1} with the cultivar", score)


def maps(settings: Settings) -> Iterator[Row]:
    """A view and its image under an invertible map, each alone, pooled full covariance."""
    sizes, scores, isotropic = [], [], []
    for seed in settings.seeds:
        data = oblong_views(seed)
        plain, mapped = (
            fit_views([x], seed, settings.n_init, covariance="full")[0]
            for x in (data.plain, data.mapped)
        )
        sizes.append((plain.n_clusters_[0], mapped.n_clusters_[0]))
        scores.append(adjusted_rand_index(data.clusters, mapped.alternatives_[:, 0]))
        model, _ = fit_views([data.mapped], seed, settings.n_init)
        isotropic.append(model.n_clusters_[0])
    yield share_row("equal numbers of clusters", [a == b for a, b in sizes], 1.0)
    yield share_row("3 clusters after the map", [b == 3 for _, b in sizes])
    yield row("ARI after the map", np.mean(scores))
    yield share_row("3 clusters after the map, isotropic covariance", [k == 3 for k in isotropic])


def copies(settings: Settings) -> Iterator[Row]:
    """A view and its image under an invertible map, together, pooled full covariance."""
    warned, stacked, scores = [], [], []
    for seed in settings.seeds:
        data = oblong_views(seed)
        pair = [data.plain, data.mapped]
        warned.append(fit_views(pair, seed, settings.n_init, covariance="full")[1])
        model, _ = fit_views([np.hstack(pair)], seed, settings.n_init, covariance="full")
        stacked.append(model.n_clusters_[0])
        scores.append(adjusted_rand_index(data.clusters, model.alternatives_[:, 0]))
    yield share_row("warnings about copies", warned, 1.0)
    yield share_row("3 clusters of the stacked views", [k == 3 for k in stacked], 0.9)
    yield row("ARI of the stacked views", np.mean(scores))


def oblong(settings: Settings) -> Iterator[Row]:
    """Two views with separate noise, the second after the map, pooled full covariance."""
    sizes, warned, scores = [], [], []
    for seed in settings.seeds:
        data = oblong_views(seed)
        model, warning = fit_views(
            [data.plain, data.mapped_noise], seed, settings.n_init, covariance="full"
        )
        sizes.append(tuple(model.n_clusters_))
        warned.append(warning)
        scores.append([adjusted_rand_index(data.clusters, z) for z in model.alternatives_.T])
    yield share_row("3 clusters in both views", [k == (3, 3) for k in sizes], 0.9)
    yield share_row("no warning about copies", [not w for w in warned])
    for v, score in enumerate(np.mean(scores, axis=0)):
        yield row(f"ARI of view {v + 1}", score)


def many(settings: Settings) -> Iterator[Row]:
    """12 views of 500 samples along a random tree, isotropic covariance, at most three seeds."""
    seconds, exact, together, alone = [], [], [], []
    for seed in settings.seeds[:3]:
        views, clusters = tree_views(seed)
        fits: list[MDLMultiView] = []

        def fit_all(views=views, seed=seed, fits=fits) -> None:
            fits.append(fit_views(views, seed, settings.n_init)[0])

        seconds.append(timed(fit_all))
        (model,) = fits
        exact.append(sum(k == 3 for k in model.n_clusters_))
        together.append(mean_ari(clusters, model.alternatives_))
        single = [fit_views([x], seed, settings.n_init)[0].alternatives_[:, 0] for x in views]
        alone.append(mean_ari(clusters, np.stack(single, axis=1)))
    # The first fit includes compilation.
    yield row("CPU seconds of the slowest fit", max(t.cpu for t in seconds), 60, at_least=False)
    yield row("wall-clock seconds of the slowest fit", max(t.wall for t in seconds))
    yield row("views with 3 clusters, of 12", np.mean(exact))
    yield row("ARI, mean of all views", np.mean(together))
    yield row("ARI of fits of single views", np.mean(alone))
    yield paired_row("gain of ARI over single views", together, alone, 0.0)


def mean_ari(clusters: np.ndarray, labels: np.ndarray) -> float:
    return float(
        np.mean([adjusted_rand_index(a, b) for a, b in zip(clusters.T, labels.T, strict=True)])
    )


def irrelevant(settings: Settings) -> Iterator[Row]:
    """Two informative views, two noise views and an independent view, isotropic covariance."""
    models = [
        fit_views(views_with_noise(seed), seed, settings.n_init)[0] for seed in settings.seeds
    ]
    reported = [set(m.uninformative_views_) for m in models]
    unlinked = [set(m.unlinked_views_) for m in models]
    for v in sorted(NOISE_VIEWS):
        yield share_row(f"noise view {v} reported", [v in views for views in reported], 0.95)
    yield share_row("no other view reported", [views <= NOISE_VIEWS for views in reported])
    yield share_row(
        "independent view reported as unlinked", [INDEPENDENT_VIEW in v for v in unlinked], 0.9
    )
    yield share_row("informative views linked", [not views & {0, 1} for views in unlinked])
    yield share_row(
        "numbers of clusters 3, 3, 1, 1, 2",
        [tuple(m.n_clusters_) == (3, 3, 1, 1, 2) for m in models],
    )


CASES: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "essential": essential,
    "planted": planted,
    "soft": soft,
    "number": number,
    "wine": wine,
    "maps": maps,
    "copies": copies,
    "oblong": oblong,
    "many": many,
    "irrelevant": irrelevant,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds, two restarts")
    parser.add_argument("--seeds", type=int, default=20, help="data sets per case")
    parser.add_argument("--first-seed", type=int, default=2000)
    parser.add_argument("--n-init", type=int, default=4, help="restarts of a fit")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    n_seeds, n_init = (2, 2) if options.quick else (options.seeds, options.n_init)
    settings = Settings(tuple(range(options.first_seed, options.first_seed + n_seeds)), n_init)
    header("one description length for views, known groups, pairs and labels")
    for name in options.only:
        start = time.process_time()
        rows = list(CASES[name](settings))
        seconds = time.process_time() - start
        title = f"{name}: {(CASES[name].__doc__ or '').rstrip('.')} ({seconds:.0f} CPU seconds)"
        show(title, ("", "value", "criterion", ""), rows)


if __name__ == "__main__":
    main()
