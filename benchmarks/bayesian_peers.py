"""`MDLMixture` at default settings, and other mixtures with an unknown number of components.

Peers are scikit-learn's `BayesianGaussianMixture`, its `GaussianMixture` with BIC over four
covariances, R's mclust (Debian package r-cran-mclust), a NumPyro mixture by NUTS with labels summed
out, and pyrichlet's Gibbs sampler of a Dirichlet process. Peers that are not installed are left out
with a reason. All methods get standardised rows.

The table has the adjusted Rand index of the point estimate, the probability of the true number of
clusters, CPU seconds, and effective draws of the number of clusters per CPU second (NaN if the
number is constant). Without a posterior, the probability is 1 or 0; for BIC it is the weight
exp(BIC / 2) of the true number. The point estimate of a sampler minimises the expected variation of
information, and clusters of fewer than max(3, 2 % of n) rows are not counted, for every method.

    python benchmarks/bayesian_peers.py --seeds 3 --out peers.csv
    python benchmarks/bayesian_peers.py --only iris wine --methods ours mclust
"""

from __future__ import annotations

from common import console, header, show  # isort: skip  (pins BLAS before numpy)

import argparse
import csv
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

from nrprob.posterior import point_estimate

MOST = 10  # components that peers may use
SIMULATED = [(k, d) for d in (2, 10, 50) for k in (1, 3, 5, 8)]
PER_CLUSTER, APART = 60, 5.0  # rows of every simulated cluster; least distance in sd
NUTS_DRAWS, GIBBS_DRAWS = 500, 1500
MOST_NUTS_COLUMNS = 13  # NUTS of ten full covariances takes too long in more columns
FIELDS = ("data", "seed", "method", "ari", "p_true", "k", "cpu", "ess_per_s", "note")


class Data(NamedTuple):
    """Standardised rows (n, d), classes (n,) or None, and the true number of clusters."""

    X: np.ndarray
    classes: np.ndarray | None
    k: int


class Fit(NamedTuple):
    """Labels (n,) of the point estimate, P(k), the number of effective draws of k, and a note."""

    labels: np.ndarray
    p_true: float
    ess: float = np.nan
    note: str = ""


class Absent(Exception):
    """A peer or a data set is not installed."""


# Data


def standardise(X: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1."""
    return (X - X.mean(0)) / X.std(0)


def simulate(k: int, d: int, seed: int) -> Data:
    """Gaussian clusters with different covariances, at least five standard deviations apart."""
    rng = np.random.default_rng([4001, k, d, seed])
    centres = rng.normal(size=(k, d))
    if k > 1:
        distance = np.linalg.norm(centres[:, None] - centres, axis=2)[np.triu_indices(k, 1)]
        centres *= APART / distance.min()
    z = np.repeat(np.arange(k), PER_CLUSTER if k > 1 else 3 * PER_CLUSTER)
    scale = rng.uniform(0.7, 1.0, size=(k, d))
    X = centres[z] + scale[z] * rng.normal(size=(len(z), d))
    return Data(standardise(X @ (np.eye(d) + rng.normal(size=(d, d)) / (2 * np.sqrt(d)))), z, k)


def faithful() -> Data:
    """Eruptions of Old Faithful (272 x 2), which R has; they have no classes."""
    text = run_r("write.csv(faithful, row.names = FALSE)")
    X = np.array([row.split(",") for row in text.strip().splitlines()[1:]], float)
    return Data(standardise(X), None, 2)


def penguins() -> Data:
    from nrprob.datasets import load
    from nrprob.exceptions import DataUnavailable

    try:
        data = load("penguins")
    except DataUnavailable as error:
        raise Absent(str(error)) from error
    classes = np.unique(data.labelings["species"], return_inverse=True)[1]
    return Data(standardise(np.asarray(data.X, float)), classes, 3)


def cancer() -> Data:
    """First ten principal components of the standardised breast cancer data."""
    X, classes = load_breast_cancer(return_X_y=True)
    return Data(standardise(PCA(10).fit_transform(standardise(X))), classes, 2)


def sklearn_data(load: Callable[..., Any], k: int) -> Data:
    X, classes = load(return_X_y=True)
    return Data(standardise(X), classes, k)


DATA: dict[str, Callable[[int], Data]] = {
    "iris": lambda seed: sklearn_data(load_iris, 3),
    "wine": lambda seed: sklearn_data(load_wine, 3),
    "penguins": lambda seed: penguins(),
    "faithful": lambda seed: faithful(),
    "cancer": lambda seed: cancer(),
    **{
        f"k={k}, d={d}": lambda seed, k=k, d=d: simulate(k, d, seed)  # type: ignore[misc]
        for k, d in SIMULATED
    },
}


# Methods


def count(labels: np.ndarray) -> int:
    """Number of clusters that are not small."""
    sizes = np.unique(labels, return_counts=True)[1]
    return int((sizes >= max(3, 0.02 * len(labels))).sum())


def effective_draws(k: np.ndarray) -> float:
    """Effective draws of a number (chain, draw); NaN if it is constant."""
    import arviz

    return float(arviz.ess(k.astype(float))) if np.ptp(k) else np.nan


def summarise_draws(draws: np.ndarray, data: Data, note: str = "") -> Fit:
    """Point estimate, P(k) and effective draws from labels (chain, draw, n)."""
    k = np.array([[count(labels) for labels in chain] for chain in draws])
    thin = draws[:, :: max(draws.shape[1] // 250, 1)]
    labels = point_estimate(thin, loss="vi", random_state=0)
    return Fit(labels, float((k == data.k).mean()), effective_draws(k), note)


def fit_ours(data: Data, seed: int) -> Fit:
    from nrprob import MDLMixture

    model = MDLMixture(random_state=seed).fit(data.X)
    k = model.posterior_["n_clusters"].values
    note = "" if model.converged_ else "not converged"
    return Fit(model.labels_, float((k == data.k).mean()), effective_draws(k), note)


def fit_variational(data: Data, seed: int) -> Fit:
    model = BayesianGaussianMixture(n_components=MOST, max_iter=1000, n_init=5, random_state=seed)
    labels = model.fit_predict(data.X)
    return Fit(labels, float(count(labels) == data.k))


def fit_bic(data: Data, seed: int) -> Fit:
    models = {
        (k, kind): GaussianMixture(k, covariance_type=kind, n_init=5, random_state=seed).fit(data.X)
        for k in range(1, MOST + 1)
        for kind in ("full", "tied", "diag", "spherical")
    }
    bic = {key: model.bic(data.X) for key, model in models.items()}
    best = min(bic, key=lambda key: bic[key])
    by_k = np.array([min(v for key, v in bic.items() if key[0] == k) for k in range(1, MOST + 1)])
    weight = np.exp(-(by_k - by_k.min()) / 2)
    labels = models[best].predict(data.X)
    return Fit(labels, float(weight[data.k - 1] / weight.sum()), note=best[1])


def run_r(program: str) -> str:
    """Standard output of an R program."""
    if shutil.which("Rscript") is None:
        raise Absent("R is not installed")
    result = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, check=False)
    if result.returncode:
        raise Absent(result.stderr.strip().splitlines()[-1])
    return result.stdout


def fit_mclust(data: Data, seed: int) -> Fit:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        np.savetxt(path, data.X, delimiter=",")
        text = run_r(
            f"suppressMessages(library(mclust)); set.seed({seed}); "
            f"X <- as.matrix(read.csv('{path}', header = FALSE)); "
            f"m <- Mclust(X, G = 1:{MOST}, verbose = FALSE); "
            "cat(apply(m$BIC, 1, max, na.rm = TRUE), '\\n'); cat(m$classification, '\\n'); "
            "cat(m$modelName)"
        )
    bic, labels, name = text.strip().splitlines()
    values = np.array(bic.split(), float)  # mclust's BIC is maximised
    weight = np.exp((values - values.max()) / 2)
    return Fit(
        np.array(labels.split(), int), float(weight[data.k - 1] / weight.sum()), note=name.strip()
    )


def fit_nuts(data: Data, seed: int) -> Fit:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    n, d = data.X.shape
    if d > MOST_NUTS_COLUMNS:
        raise Absent(f"{d} columns")

    def components() -> tuple[Any, Any]:
        w = numpyro.sample("w", dist.Dirichlet(jnp.full(MOST, 1 / MOST)))
        means = numpyro.sample("means", dist.Normal(0, 2).expand([MOST, d]).to_event(2))
        scale = numpyro.sample("scale", dist.LogNormal(-0.7, 0.7).expand([MOST, d]).to_event(2))
        root = numpyro.sample("root", dist.LKJCholesky(d, 1.0).expand([MOST]).to_event(1))
        return w, dist.MultivariateNormal(means, scale_tril=scale[..., None] * root)

    def model(X: Any) -> None:
        w, normal = components()
        mixture = dist.MixtureSameFamily(dist.Categorical(w), normal)
        numpyro.sample("x", mixture.expand([n]), obs=X)

    def log_joint(draw: dict[str, Any], X: Any) -> Any:
        tril = draw["scale"][..., None] * draw["root"]
        normal = dist.MultivariateNormal(draw["means"], scale_tril=tril)
        return jnp.log(draw["w"]) + normal.log_prob(X[:, None])

    mcmc = MCMC(
        NUTS(model), num_warmup=NUTS_DRAWS, num_samples=NUTS_DRAWS, num_chains=2,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(seed), jnp.asarray(data.X))
    draws = mcmc.get_samples(group_by_chain=True)
    logits = jax.vmap(jax.vmap(lambda draw: log_joint(draw, data.X)))(draws)
    labels = jax.random.categorical(jax.random.key(seed + 1), logits)
    return summarise_draws(np.asarray(labels), data)


def fit_gibbs(data: Data, seed: int) -> Fit:
    try:
        from pyrichlet.mixture_models import DirichletProcessMixture
    except ImportError as error:
        raise Absent("pyrichlet is not installed") from error
    chains = []
    for chain in range(2):
        model = DirichletProcessMixture(
            psi_prior=0.5 * np.eye(data.X.shape[1]), nu_prior=data.X.shape[1] + 2,
            lambda_prior=0.1, total_iter=GIBBS_DRAWS, burn_in=GIBBS_DRAWS // 3,
            rng=2 * seed + chain,
        )  # fmt: skip
        model.fit_gibbs(data.X)
        chains.append([np.unique(p["d"], return_inverse=True)[1] for p in model.sim_params])
    shortest = min(map(len, chains))
    return summarise_draws(np.array([chain[-shortest:] for chain in chains]), data)


METHODS: dict[str, Callable[[Data, int], Fit]] = {
    "ours": fit_ours,
    "variational": fit_variational,
    "BIC": fit_bic,
    "mclust": fit_mclust,
    "NUTS": fit_nuts,
    "pyrichlet": fit_gibbs,
}


def cpu_seconds() -> float:
    """CPU seconds of this process and its children."""
    return sum(os.times()[:4])


def score(name: str, seed: int, method: str) -> dict[str, Any]:
    """Score of a method on a data set."""
    empty = {"data": name, "seed": seed, "method": method} | dict.fromkeys(FIELDS[3:], "")
    try:
        data = DATA[name](seed)
        begin = cpu_seconds()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = METHODS[method](data, seed)
    except Absent as error:
        return empty | {"note": f"left out: {error}"}
    seconds = cpu_seconds() - begin
    ari = np.nan
    if data.classes is not None:
        ari = adjusted_rand_score(data.classes, fit.labels)
    return empty | {
        "ari": ari, "p_true": fit.p_true, "k": count(fit.labels), "cpu": seconds,
        "ess_per_s": fit.ess / seconds, "note": fit.note,
    }  # fmt: skip


def report(rows: list[dict[str, str]]) -> None:
    """Show means over seeds."""
    lines = []
    for name in DATA:
        for method in METHODS:
            part = [r for r in rows if (r["data"], r["method"]) == (name, method)]
            if not part:
                continue
            scored = [row for row in part if row["ari"] != ""]
            mean = {
                key: float(np.mean([float(row[key]) for row in scored])) if scored else np.nan
                for key in FIELDS[3:8]
            }
            numbers = "/".join(row["k"] for row in scored)
            notes = ", ".join(sorted({row["note"] for row in part if row["note"]}))
            lines.append(
                (name, method, mean["ari"], mean["p_true"], numbers, mean["cpu"],
                 mean["ess_per_s"], notes)
            )  # fmt: skip
    columns = ("data", "method", "ARI", "P(true k)", "k", "CPU s", "ESS of k / CPU s", "note")
    show("Mixtures with an unknown number of components, means over seeds", columns, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="iris, two methods, one seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(DATA), default=list(DATA))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--out", type=Path, help="CSV file of the scores; they are not repeated")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.only, options.methods = 1, ["iris"], ["ours", "variational"]
    header("mixtures with an unknown number of components")
    rows: list[dict[str, str]] = []
    if options.out and options.out.exists():
        rows = [*csv.DictReader(options.out.open(newline=""))]
    done = {(row["data"], row["seed"], row["method"]) for row in rows}
    for name in options.only:
        for seed in range(options.seeds):
            for method in options.methods:
                if (name, str(seed), method) in done:
                    continue
                row = {key: str(value) for key, value in score(name, seed, method).items()}
                rows.append(row)
                console.print(*(f"{row[key]:.12}" for key in FIELDS))
                if options.out:
                    is_new = not options.out.exists()
                    with options.out.open("a", newline="") as file:
                        writer = csv.DictWriter(file, FIELDS)
                        if is_new:
                            writer.writeheader()
                        writer.writerow(row)
    report(rows)


if __name__ == "__main__":
    main()
