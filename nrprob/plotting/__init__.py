"""Plots of a clustering and of the known structure.

Every mark that carries a value has a number or a label as well. Groups are distinguished by markers
or hatches as well as by colours, and the colours can be read with colour blindness. matplotlib is
imported where it is used.
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
