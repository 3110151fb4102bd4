r"""Additive statistics of samples, and objectives that are sums of cell costs.

Almost every method scores a partition of n samples by

.. math:: F(W) = \sum_t \lambda_t \sum_{a} g_t(S_a), \qquad
    S_a = \sum_{x} W(x, a) \, s(x).

- A *cell* a is a cluster, or the intersection of a cluster and a known group.
- W(x, a) is the mass of sample x in cell a. The mass is 1 or 0 for a hard partition, and a
  membership probability for a soft partition.
- s(x) are the *additive statistics* of sample x: its features (and products of two features for
  covariances), followed by a 1. The sum of the ones is the mass of the cell. See `rows` and
  `gaussians`.
- S_a are the statistics of cell a: the weighted sum of the statistics of its samples.
- g_t is a *cell cost* in nats: a conditional entropy (`costs`), a Gaussian entropy (`gaussians`),
  or the description length of the samples of a cell (`codes`).
- lambda_t is the weight of term t. The module `terms` computes F, its gradient, and its change when
  a sample moves to another cluster.

For example, let the distribution p(y|a) of a symbol y in cell a be estimated from counts T_y with
the sum T. The cost g = -sum_y T_y log(T_y / T) gives F = n H(Y|C) for clusters C. F differs from
-n I(C;Y) by a constant. The same cost on the cells of clusters and known groups Z gives n H(Y|C,Z),
and thereby the conditional mutual information I(C;Y|Z).

The engines of `nrprob.engines` optimise any such sum.
"""
