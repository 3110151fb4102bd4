"""Docstring entries that estimators share, written once.

A line ``<name>`` in the docstring of a class stands for the whole entry of the parameter or
attribute of that name, with the default of the class.
"""

from __future__ import annotations

import inspect
import re

# name -> type, and description
SHARED = {
    "n_clusters": ("int", "Number of clusters."),
    "beta": (
        "float or None",
        """Inverse temperature, from 1e-9 to 1e12. None, or infinity, lets it grow until the labels
        are hard; a number stops there, with soft memberships (or, for the hard solvers, charges
        n H(C)/beta).""",
    ),
    "compression": (
        "float",
        """Weight of H(C), from 0 to 10**6: 1 charges I(C;X), which is the information bottleneck; 0
        charges -H(C|X), which is information distortion. The larger it is, the more unequal are the
        sizes of clusters, and above 1 some clusters vanish.""",
    ),
    "features": (
        '{"auto", "multinomial", "bernoulli", "gaussian"}',
        """Model of the features. "auto" takes 0/1 data as bernoulli, other non-negative integers as
        multinomial (rows are divided by their sums) and all else as gaussian (spherical, with the
        mean variance of the columns as its fixed variance; standardise columns beforehand unless
        they share a scale).""",
    ),
    "binarize": ("float or None", "Threshold above which a feature counts as 1."),
    "solver": (
        '{"anneal", "sequential", "batched", "agglomerative"}',
        'How to optimise; all but "anneal" give hard labels.',
    ),
    "cooling": (
        "float",
        "Factor between successive inverse temperatures of an annealing, from 1.01 to 10**6.",
    ),
    "noise": (
        "float",
        "Size of the perturbation of log memberships at every temperature, from 0 to 10.",
    ),
    "n_init": ("int", "Number of restarts, at most 10**6; the best by objective is kept."),
    "max_iter": (
        "int",
        'Most updates per temperature, sweeps ("sequential") or steps ("batched"); at most 10**6.',
    ),
    "tol": (
        "float",
        "Change of memberships below which a temperature has converged, from 0 to 1.",
    ),
    "random_state": (
        "int, RandomState instance or None",
        "Determines all that is drawn at random.",
    ),
    "verbose": ("int", "Print progress if positive; at most 1000."),
    "labels_": ("ndarray of shape (n_samples,)", "Cluster of every row."),
    "membership_": (
        "ndarray of shape (n_samples, n_clusters)",
        "p(cluster given row); rows sum to 1.",
    ),
    "n_clusters_": ("int", "Number of clusters that hold rows."),
    "objective_": (
        "float",
        "The minimised objective, in nats of the whole data set, of the best restart.",
    ),
    "objective_trace_": (
        "ndarray",
        """Objective of the best restart after every temperature, sweep or step; the last entry is
        ``objective_``, which after an annealing to hard labels is that of the labels.""",
    ),
    "n_iter_": ("int", "Updates, sweeps, steps or merges."),
    "converged_": ("bool", "Whether the best restart converged."),
    "beta_": ("float", "Inverse temperature at the end; infinite for hard labels."),
    "critical_beta_": (
        "float",
        """Inverse temperature at which clusters first separate, 1 / (largest eigenvalue of the
        linearised update). Where a fit has no use for it, it is computed when first asked for, and
        the fitted rows are kept until then.""",
    ),
    "linkage_": (
        "ndarray of shape (n_merges, 4)",
        """Merges in SciPy's form, with the information lost so far as height ("agglomerative"
        only).""",
    ),
    "merge_costs_": (
        "ndarray of shape (n_merges,)",
        'What each merge added to the objective ("agglomerative" only).',
    ),
    "cluster_centers_": (
        "ndarray of shape (n_clusters, n_features)",
        "Means of the rows by membership; that of all rows for a cluster without rows.",
    ),
    "restarts_": (
        "xarray.Dataset",
        "Labels, objective and convergence of all restarts, built on first access.",
    ),
    "n_features_in_": ("int", "Number of features."),
    "feature_names_in_": ("ndarray", "Names of the columns, if ``X`` was a frame."),
    "classes_": (
        "ndarray",
        "Sorted labels seen in ``y``, if there were any; cluster i is class ``classes_[i]``.",
    ),
}


def filled(doc: str, cls: type) -> str:
    """Docstring of a class with the shared entries in their places."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }

    def entry(result: re.Match[str]) -> str:
        indent, name = result.groups()  # from Python 3.13 on, docstrings come without theirs
        kind, text = SHARED[name]
        default = f", default={defaults[name]!r}".replace("'", '"') if name in defaults else ""
        lines = [f"{name} : {kind}{default}", *(f"    {line.strip()}" for line in text.split("\n"))]
        return "\n".join(indent + line for line in lines)

    return re.sub(r"^( *)<(\w+)>$", entry, doc, flags=re.M)
