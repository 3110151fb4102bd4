"""Docstring entries that estimators share.

A line ``<name>`` in the docstring of a class is replaced by the shared entry of the parameter or
attribute ``name``. The entry of a parameter states its default value in this class.
"""

from __future__ import annotations

import inspect
import re

# name -> type, and description
SHARED = {
    "n_clusters": ("int", "Number of clusters."),
    "beta": (
        "float or None",
        """Final inverse temperature. With None or infinity, annealing continues until the labels
        are hard. At a finite value, memberships stay soft; solvers with hard labels then add
        n H(C)/beta to the objective, with H(C) the entropy of the cluster sizes. From 1e-9 to
        1e12.""",
    ),
    "compression": (
        "float",
        """Weight of the entropy H(C) of the cluster sizes in the compression term
        compression H(C) - H(C|X). 1 gives I(C;X), the information bottleneck; 0 gives -H(C|X),
        information distortion. A larger weight makes cluster sizes more unequal, and above 1 some
        clusters vanish. From 0 to 10**6.""",
    ),
    "features": (
        '{"auto", "multinomial", "bernoulli", "gaussian"}',
        """Distribution of the features. "auto" chooses "bernoulli" for 0/1 data, "multinomial" for
        other non-negative integers, and "gaussian" otherwise. "multinomial" divides rows by their
        sums. "gaussian" is spherical, with the mean variance of the features; standardise features
        on different scales beforehand.""",
    ),
    "binarize": (
        "float or None",
        "Threshold of binary features: larger values become 1, others 0. None keeps X unchanged.",
    ),
    "solver": (
        '{"anneal", "sequential", "batched", "agglomerative"}',
        'Optimisation algorithm; all but "anneal" give hard labels.',
    ),
    "cooling": (
        "float",
        "Factor between successive inverse temperatures of an annealing. From 1.01 to 10**6.",
    ),
    "noise": (
        "float",
        "Size of the random perturbation of log memberships at each temperature. From 0 to 10.",
    ),
    "polish": (
        "bool",
        """Whether a local search improves the hard labels of the best restart: afterwards, no move
        of one row to another cluster lowers the objective. The published algorithms do not
        include this search. It is left out for soft labels, soft known groups, covariates, sparse
        rows with residual coordination, rows that are stored or distributed over devices, and rows
        of more than 2**25 entries.""",
    ),
    "n_init": (
        "int",
        "Number of restarts; the fit retains the restart of the smallest objective. At most 10**6.",
    ),
    "max_iter": (
        "int",
        """Maximum number of updates per temperature, of sweeps ("sequential") or of steps
        ("batched"). At most 10**6.""",
    ),
    "tol": (
        "float",
        "A temperature has converged when memberships change by less than this. From 0 to 1.",
    ),
    "random_state": (
        "int, RandomState instance or None",
        "Seed or generator of all random numbers; an integer makes fits repeatable.",
    ),
    "verbose": ("int", "Prints progress if positive. At most 1000."),
    "labels_": ("ndarray of shape (n_samples,)", "Cluster of each sample."),
    "membership_": (
        "ndarray of shape (n_samples, n_clusters)",
        "p(cluster given sample); rows sum to 1.",
    ),
    "n_clusters_": ("int", "Number of nonempty clusters."),
    "objective_": (
        "float",
        "Minimised objective of the best restart, in nats for all samples.",
    ),
    "objective_trace_": (
        "ndarray",
        """Objective of the best restart after each temperature, sweep or step. The last entry is
        ``objective_``; after annealing to hard labels, it is the objective of the labels.""",
    ),
    "n_iter_": ("int", "Number of updates, sweeps, steps or merges."),
    "converged_": ("bool", "Whether the best restart converged."),
    "beta_": ("float", "Final inverse temperature; infinite for hard labels."),
    "critical_beta_": (
        "float",
        """Inverse temperature at which clusters first separate: 1 / (largest eigenvalue of the
        linearised update). A fit that does not need this value computes it at first access, and
        keeps the rows until then.""",
    ),
    "linkage_": (
        "ndarray of shape (n_merges, 4)",
        """Merges in the format of SciPy; heights are the cumulative loss of information
        ("agglomerative" only).""",
    ),
    "merge_costs_": (
        "ndarray of shape (n_merges,)",
        'Increase of the objective by each merge ("agglomerative" only).',
    ),
    "cluster_centers_": (
        "ndarray of shape (n_clusters, n_features)",
        "Cluster means, weighted by membership. An empty cluster has the mean of all samples.",
    ),
    "restarts_": (
        "xarray.Dataset",
        "Labels, objective and convergence of all restarts.",
    ),
    "n_features_in_": ("int", "Number of features."),
    "feature_names_in_": ("ndarray", "Column names, if ``X`` was a frame."),
    "classes_": (
        "ndarray",
        "Sorted labels in ``y``, if there were any; cluster i is class ``classes_[i]``.",
    ),
}


def fill_shared_entries(doc: str, cls: type) -> str:
    """Replace the lines ``<name>`` in the docstring of a class by the shared entries."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }

    def format_entry(match: re.Match[str]) -> str:
        indent, name = match.groups()  # Python 3.13 removes the indent of docstrings
        kind, text = SHARED[name]
        default = f", default={defaults[name]!r}".replace("'", '"') if name in defaults else ""
        lines = [f"{name} : {kind}{default}", *(f"    {line.strip()}" for line in text.split("\n"))]
        return "\n".join(indent + line for line in lines)

    return re.sub(r"^( *)<(\w+)>$", format_entry, doc, flags=re.M)
