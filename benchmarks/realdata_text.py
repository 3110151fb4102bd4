"""Pairs of labelings of real text; one is known and the other is sought.

`pairs(seed)` yields them. Pairs of web pages are fixed; pairs of newsgroups are sampled for every
seed. `nrprob.datasets.load` reads the data, so NRPROB_DATA may name their folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from realdata_pairs import Pair

from nrprob.datasets import load, make_crossed_counts, make_dialect_counts

# Area of the known groups -> area of the sought groups.
CROSSED = (
    ("comp", "rec"),
    ("rec", "comp"),
    ("sci", "politics"),
    ("politics", "sci"),
    ("rec", "sci"),
    ("sci", "rec"),
)


@cache
def _load(name: str) -> Any:
    return load(name)


def _pair(name: str, X: Any, known: np.ndarray, target: np.ndarray, random: bool = True) -> Pair:
    return Pair(name, X, known, target, np.unique(target).size, "counts", random)


def web_pages() -> Iterator[Pair]:
    """Pages by university and type, with either known."""
    data = _load("webkb")
    university, page = data.labelings["university"], data.labelings["page_type"]
    yield _pair("webkb university > page", data.X, university, page, random=False)
    yield _pair("webkb page > university", data.X, page, university, random=False)


def newsgroups(seed: int) -> Iterator[Pair]:
    """Joined articles of two areas, one of which is known; and articles in four dialects."""
    data = _load("newsgroups20")
    group, area = data.labelings["group"], data.labelings["area"]

    def members(name: str) -> list[str]:
        return sorted(set(group[area == name].tolist()))

    for i, (known, sought) in enumerate(CROSSED):
        X, labels = make_crossed_counts(
            data.X, group, members(known), members(sought), random_state=100 * seed + i
        )
        yield _pair(f"ng {known} > {sought}", X, *labels.T)
    # Three articles of the known area for each article of the other, so that the known one
    # dominates.
    X, labels = make_crossed_counts(
        data.X, group, members("rec"), members("politics"), 450,
        n_known=3, random_state=100 * seed + 50,
    )  # fmt: skip
    yield _pair("ng 3 rec > politics", X, *labels.T)
    X, labels = make_dialect_counts(data.X, area, random_state=100 * seed + 60)
    yield _pair("ng dialect > area", X, *labels.T)


def pairs(seed: int = 0) -> Iterator[Pair]:
    """All pairs of one seed."""
    yield from web_pages()
    yield from newsgroups(seed)
