"""ResidualSpectral: time and memory on 20,000 x 50,000 counts, and real text vs a baseline.

The baseline is tf-idf, 30 singular vectors, rows of unit length, subtraction of the mean of each
known group, and k-means. The second column uses log counts in the baseline, which separates the
effect of log counts from the effect of the method. Text needs NRPROB_DATA.
"""

from __future__ import annotations

from common import arguments, console, header, show, timed, verdict

# isort: split
import numpy as np
from realdata_text import Pair, newsgroups, web_pages
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics import normalized_mutual_info_score as nmi
from sparse_memory import peak

from nrprob import ResidualSpectral
from nrprob.exceptions import DataUnavailable

MEMBER, CONSENSUS, MEMORY = 5.0, 40.0, 1.0  # s, s, GB
GAIN, KNOWN, LOSS, LOSSES = 0.10, 0.05, 0.05, 2
SEEDS = 3


def corpus(n: int, m: int, draws: int, k: int, groups: int, seed: int = 0):
    """CSR counts, hidden labels and known labels.

    Some words of a row come from the block of its hidden cluster, with little influence; some from
    the block of its known group, with much influence; and the rest from all words, the first ones
    most often.
    """
    rng = np.random.default_rng(seed)
    hidden, known = rng.integers(k, size=n), rng.integers(groups, size=n)
    block = m // (4 * max(k, groups))
    few, many = draws // 10, draws // 4
    words = [
        block * hidden[:, None] + rng.integers(block, size=(n, few)),
        m // 4 + block * known[:, None] + rng.integers(block, size=(n, many)),
        (m * rng.random((n, draws - few - many)) ** 2).astype(int),
    ]
    row = np.repeat(np.arange(n), draws)
    ones = np.ones(row.size)
    x = sparse.csr_array((ones, (row, np.hstack(words).ravel())), shape=(n, m))
    return x, hidden, known


def one_liner(pair: Pair, damp: bool, seed: int) -> np.ndarray:
    """Labels, from the whole vocabulary."""
    x = sparse.csr_array(pair.X, dtype=float)
    df = np.bincount(x.indices, minlength=x.shape[1])
    if damp:
        x.data = 1 + np.log(x.data)
    x = x @ sparse.diags_array(np.log((1 + x.shape[0]) / (1 + df)) + 1)
    x = sparse.diags_array(1 / np.sqrt((x**2).sum(1))) @ x
    s = TruncatedSVD(30, random_state=seed).fit_transform(x)
    s /= np.maximum(np.linalg.norm(s, axis=1, keepdims=True), 1e-12)
    for group in np.unique(pair.known):
        s[pair.known == group] -= s[pair.known == group].mean(0)
    return KMeans(pair.n_clusters, n_init=10, random_state=seed).fit_predict(s)


def labelings(pair: Pair, seed: int) -> dict[str, np.ndarray]:
    """Labels of all methods."""

    def fit(**parameters):
        model = ResidualSpectral(pair.n_clusters, random_state=seed, **parameters)
        return model.fit_predict(pair.X, known=pair.known)

    return {
        "one-liner": one_liner(pair, False, seed),
        "damped": one_liner(pair, True, seed),
        "across 1.5, 20": fit(members=[("across", 1.5, 20)]),
        "within 1, 10": fit(members=1),
        "scatter": fit(consensus="scatter"),
        "consensus": fit(),
    }


def size(quick: bool) -> None:
    n, m = (2000, 5000) if quick else (20_000, 50_000)
    x, hidden, known = corpus(n, m, 81, 10, 5)
    before = peak()
    times, result = {}, {}
    # The first fit compiles; the second has the time of all later fits of this size.
    for name, members in (("member, first", 1), ("member", 1), ("consensus", 32)):
        model = ResidualSpectral(10, members=members, random_state=0)
        times[name] = timed(lambda m=model: m.fit(x, known=known))
        result[name] = adjusted_rand_score(hidden, model.labels_)
    bars = {"member": MEMBER, "consensus": CONSENSUS}
    rows = [
        # CPU time, which is at least the wall time of an idle machine.
        (name, t.wall, t.cpu, *(verdict(t.cpu, bars[name]) if name in bars else ("", "")))
        for name, t in times.items()
    ]
    rows.append(("peak memory of the process, GB", peak(), "", *verdict(peak(), MEMORY)))
    rows.append(("before the first fit, GB", before, "", "", ""))
    show(f"{n} x {m}, {x.nnz} entries, float64", ("", "wall s", "CPU s", "bar", ""), rows)
    scores = ", ".join(f"{name} {value:.3f}" for name, value in result.items())
    console.print(f"adjusted Rand index with the hidden labels: {scores}")


def text(quick: bool) -> None:
    scores: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for seed in range(1 if quick else SEEDS):
        for pair in (*web_pages(), *newsgroups(seed)):
            for name, labels in labelings(pair, seed).items():
                both = nmi(pair.target, labels), nmi(pair.known, labels)
                scores.setdefault(pair.name, {}).setdefault(name, []).append(both)
    names = list(next(iter(scores.values())))
    mean = {p: {m: np.mean(v, 0) for m, v in row.items()} for p, row in scores.items()}

    def table(of: int) -> list[tuple]:
        rows: list[tuple] = []
        for p, row in scores.items():
            spread = [np.array(row[m])[:, of] for m in names]
            rows.append((p, *(f"{v.mean():.3f} ± {v.std():.3f}" for v in spread)))
        means = [np.mean([row[m][of] for row in mean.values()]) for m in names]
        return [*rows, ("mean", *(f"{v:.3f}" for v in means))]

    show("NMI with what is sought, mean and deviation over seeds", ("", *names), table(0))
    show("NMI with the known labeling", ("", *names), table(1))
    ours = np.array([row["consensus"] for row in mean.values()])
    plain = np.array([row["one-liner"] for row in mean.values()])[:, 0]
    damped = np.array([row["damped"] for row in mean.values()])[:, 0]
    gain = ours[:, 0] - plain
    rows = [
        ("gain over the one-liner", gain.mean(), *verdict(gain.mean(), GAIN, at_least=True)),
        ("of which over the damped one", (ours[:, 0] - damped).mean(), "", ""),
        ("mean NMI with the known labeling", ours[:, 1].mean(), *verdict(ours[:, 1].mean(), KNOWN)),
        ("pairs that lose", (gain < -LOSS).sum(), *verdict((gain < -LOSS).sum(), LOSSES)),
    ]
    show("consensus", ("", "", "bar", ""), rows)


def main(quick: bool) -> None:
    header("ResidualSpectral")
    size(quick)
    try:
        text(quick)
    except DataUnavailable as error:
        console.print(f"no text: {error}")


if __name__ == "__main__":
    main(arguments(__doc__).quick)
