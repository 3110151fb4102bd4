"""Rule that stops chains once label-invariant quantities have converged.

The rule is checked after 500, 1,000, 2,000, ... draws of each chain. The numbers double, so there
are few checks, and the checks bias the result little. A quantity has converged if its
rank-normalised R-hat is below 1.01 and its bulk effective sample size is at least 400 (Vehtari,
Gelman, Simpson, Carpenter and Buerkner, 2021). The log density needs a tail effective sample size
of at least 100 as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nrprob.methods.bayes.draws import MAX_LABELS, thin_draws

if TYPE_CHECKING:
    import pandas as pd

MONITORED = "log_density", "n_clusters", "n_components", "largest_share", "vi"
CLUSTERS = tuple(name for name in MONITORED if name != "n_components")
_UNMERGED = "log_density", "n_components"  # quantities that are defined before merging
_MAX_R_HAT, _MIN_BULK, _MIN_TAIL = 1.01, 400, 100
_MAX_DISTANCE_RATIO = 1.05  # largest value of "vi_between_chains"; above 1.01 since it is noisy
_FIRST_LOOK = 500  # draws of each chain before the first check
_LAST_RESTART = 1000  # number of draws up to which the first half of the run counts as warm-up
_DRAWS_PER_CHAIN = 256  # thinned draws for quantities that the rule does not use


def look_sizes(max_samples: int) -> Iterator[int]:
    """Numbers of draws of each chain after which the rule is checked, up to ``max_samples``."""
    size = _FIRST_LOOK
    while size < max_samples:
        yield size
        size *= 2
    yield max_samples


def count_discarded(n_draws: int, n_warm: int, thinning: int) -> int:
    """Number of draws of each chain, out of ``n_draws``, that count as warm-up.

    The first half of all iterations is warm-up, of which ``n_warm`` were before the first draw.
    Above `_LAST_RESTART` draws, the number stays the same.
    """
    n_draws = min(n_draws, _LAST_RESTART)
    return max(n_draws * thinning - n_warm, 0) // (2 * thinning)


def has_settled(draws: dict[str, np.ndarray]) -> bool:
    """Whether the quantities that are defined before merging have converged."""
    table = _summarise_traces({name: draws[name] for name in _UNMERGED})
    return bool((shortfalls(table) <= 1).all())


def diagnose_chains(draws: dict[str, np.ndarray], labels: np.ndarray) -> pd.DataFrame:
    """Convergence diagnostics of the chains, from label-invariant quantities.

    `MONITORED` quantities use all draws. Other quantities of `nrprob.posterior.diagnose` use evenly
    spaced draws. The point estimate ``labels`` (n,) is the reference clustering. The last row
    compares distances between draws of different chains with distances within chains.
    """
    import pandas as pd

    from nrprob.posterior import chain_distances, diagnose

    n_chains = len(draws["log_density"])
    limit = np.clip(MAX_LABELS // labels.size, 16 * n_chains, _DRAWS_PER_CHAIN * n_chains)
    some = thin_draws(draws["labels"], int(limit))
    traces = draws | _partition_traces(draws["labels"], labels)
    table = _summarise_traces({name: traces[name] for name in MONITORED})
    others = diagnose(some, labels, random_state=0).drop(index=list(MONITORED), errors="ignore")
    table = pd.concat([table, others]).rename_axis("quantity")
    distances = chain_distances(some)
    within = distances.diagonal().mean()
    between = distances[~np.eye(len(distances), dtype=bool)].mean()
    if between > 0:
        ratio = np.sqrt(between / within) if within > 0 else np.inf
        table.loc["vi_between_chains", ["mean", "r_hat"]] = between, ratio
    return table


def has_converged(table: pd.DataFrame, quantities: tuple[str, ...] = MONITORED) -> bool:
    """Whether ``quantities`` in the table of `diagnose_chains` have converged, and chains agree."""
    distance_ratio = table["r_hat"].get("vi_between_chains", 1.0)
    monitored = (shortfalls(table.loc[list(quantities)]) <= 1).all()
    return bool(monitored and distance_ratio < _MAX_DISTANCE_RATIO)


def shortfalls(table: pd.DataFrame) -> pd.Series:
    """Factors by which the number of draws has to grow, one for each quantity.

    Parameters
    ----------
    table : DataFrame
        R-hat and effective sample sizes of quantities.

    Returns
    -------
    Series
        Factors, at most 1 for quantities that have converged. R-hat minus 1 is assumed to fall in
        inverse proportion to the number of draws. The factor is infinite if the quantity is
        constant in each chain but differs between chains, or if there are too few draws.
    """
    r_hat = table["r_hat"]
    factors = np.maximum(_MIN_BULK / table["ess_bulk"], (r_hat - 1) / (_MAX_R_HAT - 1))
    # Tails of counts and shares may be single values; only the log density is continuous.
    tail = (_MIN_TAIL / table["ess_tail"]).where(table.index == "log_density", 0)
    return np.maximum(factors, tail).fillna(np.inf)


def describe_shortfall(table: pd.DataFrame) -> str:
    """State the quantity that is farthest from convergence, and how many draws are missing."""
    factors = shortfalls(table.loc[list(MONITORED)])
    name, factor = str(factors.idxmax()), factors.max()
    if factor <= 1:
        ratio = table["r_hat"]["vi_between_chains"]
        return f"draws of different chains that are {ratio:.3f} times as far apart as within chains"
    r_hat, bulk, tail = table.loc[name, ["r_hat", "ess_bulk", "ess_tail"]]
    state = f"R-hat {r_hat:.3f}, bulk ESS {bulk:.0f} and tail ESS {tail:.0f} of {name}"
    if np.isinf(factor):
        return f"{state}, so that chains are in different modes or have too few draws"
    rounded = float(f"{factor:.2g}")  # "g" alone would print 120 as 1.2e+02
    return f"{state}, so that about {rounded:,g} times as many draws are needed"


def _summarise_traces(traces: dict[str, np.ndarray]) -> pd.DataFrame:
    import pandas as pd

    from nrprob.posterior.convergence import summarise_trace

    return pd.DataFrame({name: summarise_trace(trace) for name, trace in traces.items()}).T


def _partition_traces(labels: np.ndarray, reference: np.ndarray) -> dict[str, np.ndarray]:
    """Traces (chain, draw) of two label-invariant quantities of ``labels`` (chain, draw, n).

    The quantities are the share of the largest cluster, and the variation of information to
    ``reference`` (n,).
    """
    from nrprob.posterior import label_free

    step = max(MAX_LABELS // labels[:, 0].size, 1)
    parts = [
        label_free(labels[:, i : i + step], reference, pairs=0, random_state=0)
        for i in range(0, labels.shape[1], step)
    ]
    return {
        name: np.concatenate([part[name] for part in parts], 1) for name in ("largest_share", "vi")
    }
