"""Plots of a clustering and of the known structure.

Plots show values also as numbers or labels. Groups differ in marker or hatch as well as in colour,
and the colours are distinguishable with colour blindness. matplotlib is imported on first use.
"""

from nrprob.plotting.annealing import plot_annealing
from nrprob.plotting.centroids import plot_centroids
from nrprob.plotting.contingency import plot_contingency
from nrprob.plotting.features import plot_top_features
from nrprob.plotting.hierarchy import plot_hierarchy
from nrprob.plotting.model_selection import plot_by_n_clusters
from nrprob.plotting.scatter import plot_alternatives, plot_residuals
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
