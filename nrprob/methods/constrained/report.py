"""Report of accepted pairs and of the description length that each saves."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nrprob.methods.constrained.label_codes import savings
from nrprob.methods.constrained.problem import ConstrainedProblem, Described

if TYPE_CHECKING:
    import pandas as pd

_KINDS = ("must_link", "cannot_link")


@dataclass
class Report:
    """What became of the given pairs.

    Attributes
    ----------
    pairs : must-links and cannot-links, (p, 2) rows each, as given
    hard : whether all of them had to be kept
    """

    problem: ConstrainedProblem
    result: Described
    pairs: tuple[np.ndarray, np.ndarray]
    hard: bool

    def __post_init__(self):
        # A fitted model, and its pickle, do not hold the rows.
        self.problem = copy.copy(self.problem)
        del self.problem.data

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """A line for every given pair."""
        import pandas as pd

        problem, result, node = self.problem, self.result, self.problem.parts.node
        if self.hard:
            # Each pair once, as rows; then what must be kept for other reasons.
            keys = [np.sort(p, axis=1) for p in self.pairs]
            kept = [np.unique(p[p[:, 0] != p[:, 1]], axis=0) for p in keys]
            others = problem.parts.must, problem.parts.cannot
            links, apart = (
                np.concatenate([kept[i], *(o.rows for o in others[i] if o.source != kind)])
                for i, kind in enumerate(_KINDS)
            )
        else:
            on = result.link_on, result.apart_on
            keys = [np.sort(node[p], axis=1) for p in self.pairs]
            kept = [problem.link.nodes[on[0]], problem.apart.nodes[on[1]]]
            links, apart = problem.kept(on)
        saved = savings(
            result.labels, problem.place, links, apart, result.weights, len(kept[0]), len(kept[1])
        )
        same = [result.labels[p[:, 0]] == result.labels[p[:, 1]] for p in self.pairs]
        lines = []
        for i, kind in enumerate(_KINDS):
            nats = {tuple(p): v for p, v in zip(kept[i].tolist(), saved[i].tolist(), strict=True)}
            for pair, key, together in zip(
                self.pairs[i].tolist(), map(tuple, keys[i].tolist()), same[i].tolist(), strict=True
            ):
                satisfied = together if i == 0 else not together
                # A pair that the others imply costs no flag.
                implied = satisfied and (
                    node[pair[0]] == node[pair[1]] if i == 0 else self.hard or self._forced(key)
                )
                lines.append((kind, *pair, satisfied, implied or key in nats, nats.get(key, 0.0)))
        columns = ["kind", "i", "j", "satisfied", "accepted", "nats"]
        return pd.DataFrame(lines, columns=columns)

    def _forced(self, key: tuple[int, int]) -> bool:
        """Whether components must be apart in any case."""
        return bool((self.problem.parts.edges == key).all(1).any())
