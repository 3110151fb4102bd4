"""Summaries of posterior draws of partitions, for any sampler.

Every function takes draws of labels as an integer array ``(chain, draw, observation)`` or ``(draw,
observation)``. In a DataArray, the dimensions are ``chain``, ``draw`` and one more, in any order.
From a Dataset, or from the group ``partition`` or ``posterior`` of an InferenceData or DataTree,
the functions read the variable ``labels`` or the only variable. If there are several variables and
none is called ``labels``, pass one of them. From a fitted `nrprob.MDLMixture`, the functions read
the clusters, which are ``labels`` of ``posterior_``. For samplers that sum the labels out and
return the probabilities of the labels, `draw_labels` samples labels.

Labels have no meaning across draws (label switching). So each summary is a property of the
partition alone, or uses the labels of one reference partition (`relabel`).

The blocks of a partition that is drawn from a mixture are components. `clusters` merges the
components that are not separated by a dip of the density. `cluster_path` computes the posterior of
the number of clusters for all depths of the dip.

Examples
--------
Two chains have two draws each. All four draws are the same partition with other labels, except
that one draw assigns the third sample to the first cluster.

>>> import numpy as np
>>> from nrprob.posterior import coclustering, n_clusters, point_estimate
>>> draws = np.array([[[0, 0, 1, 1], [4, 4, 2, 2]], [[7, 7, 7, 3], [1, 1, 0, 0]]])
>>> coclustering(draws)[0]
array([1.  , 1.  , 0.25, 0.  ])
>>> point_estimate(draws, loss="vi", random_state=0)
array([0, 0, 1, 1])
>>> n_clusters(draws)["probability"].to_dict()
{2: 1.0}
"""

from nrprob.posterior.allocations import draw_labels
from nrprob.posterior.balls import CredibleBall, credible_ball
from nrprob.posterior.convergence import chain_distances, diagnose, label_free, n_clusters
from nrprob.posterior.estimates import point_estimate
from nrprob.posterior.export import to_arviz
from nrprob.posterior.losses import expected_loss
from nrprob.posterior.merging import ClusterPath, Clusters, cluster_path, clusters
from nrprob.posterior.pictures import plot_coclustering, plot_n_clusters
from nrprob.posterior.relabelling import align, relabel
from nrprob.posterior.similarity import coclustering
from nrprob.posterior.stability import StableClusters, stable_clusters

__all__ = [
    "coclustering",
    "point_estimate",
    "expected_loss",
    "credible_ball",
    "CredibleBall",
    "clusters",
    "Clusters",
    "cluster_path",
    "ClusterPath",
    "stable_clusters",
    "StableClusters",
    "n_clusters",
    "label_free",
    "diagnose",
    "chain_distances",
    "relabel",
    "align",
    "plot_coclustering",
    "plot_n_clusters",
    "draw_labels",
    "to_arviz",
]
