"""`ConditionalMixture` vs a plain vectorised NumPy version of the same algorithm.

Both compute their initial values (k-means in three metrics, of all rows and of aligned groups),
warm up half of them with balanced groups, run EM from all, and select by the objective. The
thresholds are 2 s for 1000 rows, 20 columns, 5 clusters and 5 known groups with 60 restarts, and 5
times the speed of NumPy. Compilation is not counted; the first fit is reported separately.

With many rows the comparison is `GaussianMixture(covariance_type="tied", n_init=10)`, and the
threshold is three times its CPU seconds. These clusters overlap, so EM needs many iterations; the
objective is compared with a search without successive halving.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from common import arguments, console, header, interleave, show, timed, verdict  # isort: skip

import numpy as np

WARM, SWEEPS = 30, 5


def data(
    n: int, d: int, k: int, n_groups: int, seed: int = 0, apart: float = 2.5
) -> tuple[np.ndarray, np.ndarray]:
    """Rows with correlated noise around cluster centres, shifted by their known group."""
    rng = np.random.default_rng(seed)
    c, z = rng.integers(k, size=n), rng.integers(n_groups, size=n)
    noise = rng.normal(size=(n, d)) @ rng.normal(size=(d, d))
    return apart * rng.normal(size=(k, d))[c] + 3 * rng.normal(size=(n_groups, d))[z] + noise, z


def kmeans(y: np.ndarray, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One k-means run from k-means++ centres: labels and centres."""
    centres = y[rng.integers(len(y))][None]
    while len(centres) < k:
        far = ((y[:, None] - centres) ** 2).sum(2).min(1)
        centres = np.vstack([centres, y[rng.choice(len(y), p=far / far.sum())]])
    labels = None
    for _ in range(50):
        new = (0.5 * (centres**2).sum(1) - y @ centres.T).argmin(1)
        if labels is not None and (new == labels).all():
            break
        labels = new
        hit = np.eye(k)[labels]
        size = hit.sum(0)[:, None]
        centres = np.where(size > 0, hit.T @ y / np.maximum(size, 1), centres)
    return labels, centres


def aligned(y: np.ndarray, z: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """K-means of every group, with clusters matched to common centres."""
    from scipy.optimize import linear_sum_assignment

    groups = np.unique(z)
    result = [kmeans(y[z == g], k, rng) for g in groups]
    sizes = [np.bincount(labels, minlength=k) for labels, _ in result]
    common = result[rng.integers(len(groups))][1]
    for _ in range(6):
        names, sums, total = [], np.zeros_like(common), np.zeros((k, 1))
        for (_, centres), size in zip(result, sizes, strict=True):
            cost = size[:, None] * ((centres[:, None] - common) ** 2).sum(2)
            name = linear_sum_assignment(cost)[1]
            names.append(name)
            sums[name] += size[:, None] * centres
            total[name] += size[:, None]
        common = np.where(total > 0, sums / np.maximum(total, 1), common)
    labels = np.empty(len(y), int)
    for g, name, (own, _) in zip(groups, names, result, strict=True):
        labels[z == g] = name[own]
    return labels


def fit_numpy(
    x: np.ndarray, z: np.ndarray, k: int, each: int = 5, max_iter: int = 300, tol: float = 1e-3
) -> np.ndarray:
    """Objectives of all restarts, in nats."""
    from sklearn.covariance import ledoit_wolf_shrinkage

    rng = np.random.default_rng(0)
    n, d = x.shape
    share = np.eye(z.max() + 1)[z]
    sizes = share.sum(0)
    r = x - share @ (share.T @ x / sizes[:, None])
    dof = n - sizes.size
    weight = dof / n
    r /= math.sqrt(weight)
    unit = math.sqrt((r**2).mean())
    r /= unit
    shrinkage = min(ledoit_wolf_shrinkage(r, assume_centered=True), 0.99)
    nu0 = 3 * dof * shrinkage / (1 - shrinkage)
    scatter = weight * r.T @ r
    variances, turn = np.linalg.eigh(scatter / dof)
    first = variances.mean()
    variances = (dof * variances + nu0 * first) / (dof + nu0)
    labels = []
    for power in (0, 0.5, 1):
        y = r @ turn / variances ** (power / 2)
        labels += [kmeans(y, k, rng)[0] for _ in range(each)]
        labels += [aligned(y, z, k, rng) for _ in range(each)]
    start = 0.95 * np.eye(k)[np.array(labels)] + 0.05 / k
    eye = np.eye(d)

    def maximise(w, s0):
        size = w.sum(1)[..., None]
        b = w.swapaxes(1, 2) @ r / np.maximum(size, 1e-10)
        between = weight * (size * b).swapaxes(1, 2) @ b
        sigma = (scatter - between + nu0 * s0[:, None, None] * eye) / (dof + nu0)
        s0 = d / np.trace(np.linalg.inv(sigma), axis1=1, axis2=2)
        return b, sigma, s0

    def expect(b, sigma, u, balanced):
        root = np.linalg.inv(np.linalg.cholesky(sigma))
        white, own = r @ root.swapaxes(1, 2), b @ root.swapaxes(1, 2)
        q = (white**2).sum(2)[..., None] - 2 * white @ own.swapaxes(1, 2)
        q += (own**2).sum(2)[:, None]
        logits = -0.5 * q
        for _ in range(SWEEPS if balanced else 0):
            shifted = logits + share @ u
            w = np.exp(shifted - shifted.max(2, keepdims=True))
            w /= w.sum(2, keepdims=True)
            p = share.T @ w / sizes[:, None]
            u = u - math.log(k) - np.log(np.maximum(p, 1e-30))
        shifted = logits + share @ u if balanced else logits
        top = shifted.max(2, keepdims=True)
        w = np.exp(shifted - top)
        total = w.sum(2, keepdims=True)
        return w / total, u, (top + np.log(total))[..., 0].sum(1)

    def value(sigma, s0, free):
        log_det = np.linalg.slogdet(sigma)[1]
        trace = np.trace(np.linalg.inv(sigma), axis1=1, axis2=2)
        ridge = 0.5 * (s0 * trace - d + log_det - d * np.log(s0))
        whole = log_det + 2 * d * math.log(unit)
        gauss = weight * free - dof * math.log(k) - dof / 2 * (d * math.log(2 * math.pi) + whole)
        return nu0 * ridge - gauss

    def run(w, steps, balanced):
        """EM until all restarts have converged; converged restarts are skipped."""
        s = len(w)
        u = np.zeros((s, sizes.size, k))
        s0, objective = np.full(s, first), np.full(s, np.inf)
        active = np.arange(s)
        for _ in range(steps):
            b, sigma, s0[active] = maximise(w[active], s0[active])
            new, u[active], free = expect(b, sigma, u[active], balanced)
            reached = value(sigma, s0[active], free)
            change = abs(new - w[active]).max((1, 2))
            done = (change <= tol) & (abs(reached - objective[active]) <= tol)
            w[active], objective[active] = new, reached
            active = active[~done]
            if not active.size:
                break
        return w, objective

    warmed = run(start.copy(), WARM, True)[0]
    return run(np.concatenate([start, warmed]), max_iter, False)[1]


def many_rows(quick: bool) -> list[tuple]:
    """Compare with scikit-learn's mixture of as many clusters, and with the thresholds."""
    from sklearn.mixture import GaussianMixture

    from nrprob import ConditionalMixture

    rows: list[Any] = []
    bars = []
    for n in (10_000,) if quick else (10_000, 100_000):
        for apart in (1.0, 0.5):
            x, z = data(n, 20, 5, 5, apart=apart)
            model = ConditionalMixture(5, random_state=0)
            first = timed(partial(model.fit, x, known=z))
            plain = GaussianMixture(5, covariance_type="tied", n_init=10, random_state=0)
            calls = {"ours": partial(model.fit, x, known=z), "theirs": partial(plain.fit, x)}
            result = interleave(calls, 1 if quick else 3)
            ours, theirs = result["ours"].cpu, result["theirs"].cpu
            whole = ConditionalMixture(5, successive_halving=False, random_state=0)
            slow = timed(partial(whole.fit, x, known=z)).cpu if n < 50_000 else np.nan
            above = model.objective_ - getattr(whole, "objective_", np.nan)
            name = f"n={n} apart {apart}"
            rows.append((name, first.cpu, ours, theirs, ours / theirs, slow, above))
            bars.append((f"{name}: ratio", ours / theirs, *verdict(ours / theirs, 3.0)))
    columns = (
        "rows",
        "first fit",
        "nrprob",
        "sklearn",
        "ratio",
        "all restarts, first",
        "objective above",
    )
    show(
        "Many rows, d=20 K=5 L=5 (CPU s); objective in nats above that without successive halving",
        columns,
        rows,
    )
    return bars


def main() -> None:
    quick = arguments(__doc__).quick
    header("ConditionalMixture")
    from nrprob import ConditionalMixture

    repeats = 1 if quick else 3
    sizes: list[tuple[int, int, int, int]] = [(1000, 20, 5, 5)]
    if not quick:
        sizes += [(300, 10, 3, 4), (1000, 30, 10, 15)]
    rows: list[Any] = []
    for n, d, k, n_groups in sizes:
        x, z = data(n, d, k, n_groups)
        model = ConditionalMixture(k, weights="uniform", random_state=0)
        first = timed(partial(model.fit, x, known=z))
        objectives: list[float] = []
        calls = {
            "ours": partial(model.fit, x, known=z),
            "theirs": lambda x=x, z=z, k=k, out=objectives: out.append(fit_numpy(x, z, k).min()),
        }
        result = interleave(calls, repeats)
        ours, theirs = result["ours"], result["theirs"]
        rows.append(
            (f"n={n} d={d} K={k} L={n_groups}", first.wall, ours.wall, ours.cpu, theirs.wall,
             theirs.cpu, theirs.wall / ours.wall, model.objective_,
             model.objective_ - min(objectives))
        )  # fmt: skip
    show(
        "60 restarts, best of a few (s); objectives in nats",
        (
            "size",
            "first fit",
            "nrprob",
            "CPU",
            "NumPy",
            "CPU",
            "ratio",
            "objective",
            "above NumPy's",
        ),
        rows,
    )
    bars = [("seconds", rows[0][2], *verdict(rows[0][2], 2.0))]
    bars.append(("times faster", rows[0][6], *verdict(rows[0][6], 5.0, at_least=True)))
    worst = max(row[8] for row in rows)
    bars.append(("objective above NumPy's, nats", worst, *verdict(worst, 0.01)))
    bars += many_rows(quick)
    show("Bars", ("what", "found", "bar", ""), bars)
    console.print("A fit also makes the starts, and lays out and checks the data.")


if __name__ == "__main__":
    main()
