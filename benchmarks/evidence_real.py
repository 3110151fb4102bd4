"""p-values of `nrprob.evidence` on real tables, with one or all labelings known.

If one of two labelings is known, the other is sought, with its number of clusters given. If all
labelings are known, no further structure is recorded, and the fit has two clusters. Data from
NRPROB_DATA.
"""

from __future__ import annotations

import argparse
import time
import warnings

from common import console, header, show  # isort: skip  (pins BLAS before numpy)

import numpy as np
from realdata_pairs import HOPELESS, TABULAR, prepared, tabular_pairs
from sklearn.metrics import normalized_mutual_info_score

from nrprob import ConditionalMixture, evidence
from nrprob.evidence.inputs import TooFewRows

# Data set, and labelings that are all known.
CONTROLS = (
    ("penguins", "species", "sex"),
    ("crabs", "species", "sex"),
    ("vowel", "speaker", "vowel"),
    ("webkb", "university", "page_type"),
    ("cmu_faces_32x30", "person", "pose"),
    ("iris", "species"),
    ("wine", "cultivar"),
    ("vertebral", "class3"),
)


def line(name: str, X: np.ndarray, known: np.ndarray, k: int, target: np.ndarray | None) -> tuple:
    """Tests of a fit, and its agreement with the sought labels."""
    start = time.process_time()
    model = ConditionalMixture(k, random_state=0).fit(X, known=known)
    nmi = "" if target is None else normalized_mutual_info_score(target, model.labels_)
    try:
        result = evidence.test(model, X, known=known, random_state=0)
        values = result.p_structure_, result.p_gap_
        structure, gap = ("not shown" if p is None else p for p in values)
    except TooFewRows:
        structure = gap = "too few samples"
    console.print(f"{name}: {structure}, {gap}")
    return name, len(X), k, structure, gap, nmi, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="penguins only")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    header("evidence on real tables")
    pairs = tuple(p for p in TABULAR + HOPELESS if not chosen.quick or p[0] == "penguins")
    table = [
        line(pair.name, pair.X, pair.known, pair.n_clusters, pair.target)
        for pair in tabular_pairs(pairs)
    ]
    for name, *labelings in CONTROLS:
        if chosen.quick and name != "penguins":
            continue
        X, given, _ = prepared(name)
        known = np.column_stack([given[z] for z in labelings])
        table.append(line(f"{name}, all known: {' x '.join(labelings)}", X, known, 2, None))
    columns = "known > sought", "rows", "K", "p of structure", "p of gap", "NMI", "CPU s"
    show("Evidence", columns, table)


if __name__ == "__main__":
    main()
