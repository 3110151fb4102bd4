"""Table of the must-link and cannot-link pairs that were passed to a fit.

For every pair, the table states whether the labels satisfy the pair, and whether the fit accepted
the pair as correct. The table also has the increase in nats of the length of the code words if the
pair is removed.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nrprob.methods.mdl.label_codes import pair_savings
from nrprob.methods.mdl.problem import ConstrainedProblem, Described

if TYPE_CHECKING:
    import pandas as pd

_KINDS = ("must_link", "cannot_link")


@dataclass
class Report:
    """Outcome of the must-link and cannot-link pairs that were passed to a fit.

    Attributes
    ----------
    problem : hard and soft pairs of the fit, without the description length, which has the data
    result : description of the best labels
    pairs : must-links and cannot-links as the user passed them, each an array (p, 2) of
        row indices of p pairs
    hard : whether the fit had to satisfy all pairs
    """

    problem: ConstrainedProblem
    result: Described
    pairs: tuple[np.ndarray, np.ndarray]
    hard: bool

    def __post_init__(self):
        # Fitted models and their pickles do not store the data.
        self.problem = copy.copy(self.problem)
        del self.problem.length

    @functools.cached_property
    def pair_table(self) -> pd.DataFrame:
        """DataFrame with one row per pair that was passed to the fit.

        ``kind`` is the type of the pair, "must_link" or "cannot_link"; ``i`` and ``j`` are the
        indices of its rows. ``satisfied`` states whether the labels satisfy the pair, and
        ``accepted`` whether the fit accepted the pair as correct. ``nats`` is the increase of the
        length of the code words if this pair is removed. ``nats`` is 0 for pairs that are not
        accepted or follow from other pairs.
        """
        import pandas as pd

        problem, result, node = self.problem, self.result, self.problem.parts.node
        # Retained pairs by type, and all links that determine the words.
        if self.hard:
            # Distinct pairs of rows, followed by the pairs that limits and labels imply.
            keys = [np.sort(p, axis=1) for p in self.pairs]
            retained = [np.unique(p[p[:, 0] != p[:, 1]], axis=0) for p in keys]
            others = problem.parts.must, problem.parts.cannot
            links, apart = (
                np.concatenate([retained[i], *(o.rows for o in others[i] if o.source != kind)])
                for i, kind in enumerate(_KINDS)
            )
        else:
            on = result.link_on, result.apart_on
            keys = [np.sort(node[p], axis=1) for p in self.pairs]
            retained = [problem.link.nodes[on[0]], problem.apart.nodes[on[1]]]
            links, apart = problem.retained_pairs(on)
        # Nats that each retained pair saves; then one line per given pair.
        saved = pair_savings(
            result.labels,
            problem.positions,
            links,
            apart,
            result.weights,
            len(retained[0]),
            len(retained[1]),
        )
        same = [result.labels[p[:, 0]] == result.labels[p[:, 1]] for p in self.pairs]
        lines = []
        for i, kind in enumerate(_KINDS):
            nats = {
                tuple(p): v for p, v in zip(retained[i].tolist(), saved[i].tolist(), strict=True)
            }
            for pair, key, together in zip(
                self.pairs[i].tolist(), map(tuple, keys[i].tolist()), same[i].tolist(), strict=True
            ):
                satisfied = together if i == 0 else not together
                # A pair implied by other pairs has no flag.
                implied = satisfied and (
                    node[pair[0]] == node[pair[1]]
                    if i == 0
                    else self.hard or self._always_apart(key)
                )
                lines.append((kind, *pair, satisfied, implied or key in nats, nats.get(key, 0.0)))
        columns = ["kind", "i", "j", "satisfied", "accepted", "nats"]
        return pd.DataFrame(lines, columns=columns)

    def _always_apart(self, key: tuple[int, int]) -> bool:
        """Whether a hard cannot-link separates two must-link components with indices ``key``."""
        return bool((self.problem.parts.edges == key).all(1).any())
