"""Partitions as random variables: what draws of labels say, whoever drew them.

Every function takes draws of labels as an array of whole numbers ``(chain, draw, observation)`` or
``(draw, observation)``. A DataArray is read by the names of its dimensions, ``chain``, ``draw`` and
one more, in any order. Of a Dataset, or of the posterior of an InferenceData or DataTree,
the variable ``labels`` or the only one is read: of others, pass the one you mean. Samplers that sum
labels out return probabilities of them: `draw_labels` makes draws of labels of these.

Cluster names mean nothing across draws (label switching), so each summary is a property of the
partition alone, or names clusters after one reference partition (`relabel`).

Examples
--------
Two chains that agree, under other names, on all but the last sample.

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
from nrprob.posterior.merging import MergePath, merge_path
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
    "merge_path",
    "MergePath",
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
