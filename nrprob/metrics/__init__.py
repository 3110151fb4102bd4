"""Compare partitions: agreement, independence, and the quality of their clusters.

Labels are compared for equality only, so they may have any hashable type.
"""

from nrprob.metrics.memberships import soft_jaccard_index
from nrprob.metrics.partitions import (
    IndependenceTest,
    adjusted_rand_index,
    contingency,
    fowlkes_mallows_index,
    hubert_difference,
    hubert_gamma,
    independence_test,
    jaccard_index,
    matched_accuracy,
    matching_rate,
    normalized_mutual_information,
    pair_f_measure,
    predictive_rate,
    purity,
    rand_index,
    variation_of_information,
)
from nrprob.metrics.quality import dunn_index, silhouette_width, vector_quantization_error
from nrprob.metrics.relations import is_coarsening, is_consistent, is_proportional
from nrprob.metrics.solutions import mean_dissimilarity, pairwise_agreement, score_solutions

__all__ = [
    "IndependenceTest",
    "adjusted_rand_index",
    "contingency",
    "dunn_index",
    "fowlkes_mallows_index",
    "hubert_difference",
    "hubert_gamma",
    "independence_test",
    "is_coarsening",
    "is_consistent",
    "is_proportional",
    "jaccard_index",
    "matched_accuracy",
    "matching_rate",
    "mean_dissimilarity",
    "normalized_mutual_information",
    "pair_f_measure",
    "pairwise_agreement",
    "predictive_rate",
    "purity",
    "rand_index",
    "score_solutions",
    "silhouette_width",
    "soft_jaccard_index",
    "variation_of_information",
    "vector_quantization_error",
]
