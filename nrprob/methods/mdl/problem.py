"""Description length of the labels of one table under hard and soft must-links and cannot-links.

The description may ignore a soft pair. Flags mark the soft pairs that the description retains.
`nrprob.methods.mdl.label_codes` defines the code words of the labels. Sizes: n rows, p pairs of a
type, k clusters.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from nrprob.links import Components
from nrprob.methods.mdl.informed_length import InformedLength
from nrprob.methods.mdl.label_codes import code_words, flags_length, pair_savings
from nrprob.methods.mdl.linked_words import transmission_order
from nrprob.methods.mdl.soft_pairs import SoftPairs


@dataclass
class Described:
    """Labels of n rows, and the parts of their description length.

    Attributes
    ----------
    labels : (n,) clusters of the rows
    lengths : parts of the description length in nats. "words" are the code words of the labels,
        "features" the features given the labels, and "flags" the flags of retained pairs. With
        known classes, "classes" are the classes given the labels
    weights : (k,) cluster probabilities of the code words
    link_on : mask of the soft must-links that the description retains
    apart_on : mask of the soft cannot-links that the description retains
    """

    labels: np.ndarray
    lengths: dict[str, float]
    weights: np.ndarray
    link_on: np.ndarray
    apart_on: np.ndarray

    @property
    def length(self) -> float:
        """Total description length in nats: the sum of ``lengths``."""
        return float(sum(self.lengths.values()))


@dataclass
class ConstrainedProblem:
    """Description length of the labels of n rows under hard and soft must-links and cannot-links.

    Attributes
    ----------
    length : objective of the search for labels (n, 1). For each type of soft pairs, this objective
        retains either all satisfied pairs or none; `describe_labels` also drops single pairs
    parts : components of the hard must-links, and hard cannot-links between these components
    link, apart : soft must-links and soft cannot-links
    k : number of clusters
    positions : (n,) position of every row in the order in which code words are transmitted
    """

    length: InformedLength
    parts: Components
    link: SoftPairs
    apart: SoftPairs
    k: int = field(init=False)
    positions: np.ndarray = field(init=False)

    def __post_init__(self):
        parts = self.parts
        self.k = self.length.sizes[0]
        order = transmission_order(
            parts.n_nodes, self.link.nodes, parts.edges, self.apart.nodes
        )  # fmt: skip
        rows = np.lexsort((np.arange(parts.node.size), order[parts.node]))
        self.positions = np.empty(rows.size, np.int64)
        self.positions[rows] = np.arange(rows.size)

    def permits(self, labels: np.ndarray) -> bool:
        """Whether labels (n,) satisfy all hard must-links and cannot-links."""
        must, cannot = labels[self.parts.must_rows], labels[self.parts.cannot_rows]
        return bool((must[:, 0] == must[:, 1]).all() and (cannot[:, 0] != cannot[:, 1]).all())

    def describe_labels(self, labels: np.ndarray) -> Described:
        """Description of labels (n,) that retains soft pairs if they shorten the description."""
        length, columns = self.length, labels[:, None]
        on, words, flags, weights = self._choose_pairs(labels)
        if length.target.groups is None:
            words += length.word_complexity(length.n_clusters(0, columns))
        else:  # words given the known groups
            words = length.root(0, columns)
        lengths = {
            "words": words,
            "features": length.feature_length(0, columns) + length.constant,
            "flags": flags,
        }
        if length.target.classes is not None:
            lengths["classes"] = length.class_length(columns)
        return Described(labels, lengths, weights, *on)

    def retained_pairs(self, on: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Must-links and cannot-links of the code, two arrays (p, 2) of row indices.

        In each array, retained soft pairs come first, then hard pairs. ``on`` has two masks: of the
        retained soft must-links, and of the retained soft cannot-links.
        """
        return (
            np.concatenate([self.link.rows[on[0]], self.parts.must_rows]),
            np.concatenate([self.apart.rows[on[1]], self.parts.cannot_rows]),
        )

    def _choose_pairs(
        self, labels: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], float, float, np.ndarray]:
        """Choose the soft pairs that the description of labels (n,) retains.

        Returns
        -------
        on : two masks, of the retained soft must-links and of the retained soft cannot-links
        length : length of the code words, without the parametric complexity of the weights
        flags : length of the flags
        weights : (k,) cluster probabilities of the code words
        """
        same = [labels[p.rows[:, 0]] == labels[p.rows[:, 1]] for p in (self.link, self.apart)]
        satisfied = same[0], ~same[1]

        def evaluate_choice(on):
            result = code_words(labels, self.k, self.positions, *self.retained_pairs(on))
            flags = sum(flags_length(int(a.sum()), a.size) for a in on)
            return on, result.length, flags, result.weights

        def choice_length(choice):
            return choice[1] + choice[2]

        # For each type, all satisfied pairs or none.
        none = np.zeros_like(satisfied[0]), np.zeros_like(satisfied[1])
        options = [
            (some, no) if some.any() else (no,) for some, no in zip(satisfied, none, strict=True)
        ]
        choices = itertools.product(*options)
        best = min(map(evaluate_choice, choices), key=choice_length)
        # Drop single pairs that save less than their flags cost. A flag has a cost only if fewer
        # than half of the pairs of its type are retained.
        while True:
            on = best[0]
            flag_cost = [_flag_cost(int(a.sum()), a.size) for a in on]
            if max(flag_cost) <= 0:
                return best
            saved = pair_savings(
                labels,
                self.positions,
                *self.retained_pairs(on),
                best[3],
                int(on[0].sum()),
                int(on[1].sum()),
            )
            excess = [cost - gain for cost, gain in zip(flag_cost, saved, strict=True)]
            top = max(e.max(initial=-1) for e in excess)
            if top <= 0:
                return best

            def drop_pairs(drop, on=on):
                fewer = []
                for a, out in zip(on, drop, strict=True):
                    a = a.copy()
                    a[np.flatnonzero(a)[out]] = False
                    fewer.append(a)
                return evaluate_choice(tuple(fewer))

            tries = [drop_pairs([e > 0 for e in excess]), drop_pairs([e == top for e in excess])]
            new = min(tries, key=choice_length)
            if not choice_length(new) < choice_length(best):
                return best
            best = new


def _flag_cost(n_kept: int, n: int) -> float:
    """Increase of `flags_length` from ``n_kept - 1`` to ``n_kept`` retained pairs out of ``n``."""
    return flags_length(n_kept, n) - flags_length(n_kept - 1, n) if n_kept else 0.0
