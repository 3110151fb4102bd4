"""Pictures of a clustering beside the structure that was known.

Every mark that carries a value is also a number or a label. Groups are told apart by marks or by
hatches as well as by colours, and colours are ones that people with colour-blindness can read.
matplotlib is imported where it is used.
"""

from nrprob.plotting.annealing import plot_annealing
from nrprob.plotting.centroids import plot_centroids
from nrprob.plotting.contingency import plot_contingency
from nrprob.plotting.features import plot_top_features
from nrprob.plotting.hierarchy import plot_hierarchy
from nrprob.plotting.numbers import plot_by_n_clusters
from nrprob.plotting.rows import plot_alternatives, plot_residuals
from nrprob.plotting.subsets import plot_members

__all__ = [
    "plot_alternatives",
    "plot_annealing",
    "plot_by_n_clusters",
    "plot_centroids",
    "plot_contingency",
    "plot_hierarchy",
    "plot_members",
    "plot_residuals",
    "plot_top_features",
]
