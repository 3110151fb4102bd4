r"""Additive statistics of rows, and objectives that are sums of cell costs.

Almost every method scores a partition of n rows by

.. math:: F(W) = \sum_t \lambda_t \sum_{a} g_t(S_a), \qquad
    S_a = \sum_{x} W(x, a) \, s(x).

- A *cell* a is a cluster, or the intersection of a cluster and a known group.
- W(x, a) is the mass of row x in cell a: 1 or 0 for a hard partition, a membership for a soft one.
- s(x) are the *additive statistics* of a row: its features (and products of two features for
  covariances), followed by a 1 whose sum is the mass of the cell. See `rows` and `gaussians`.
- g is a *cell cost* in nats: a conditional entropy (`costs`), a Gaussian entropy (`gaussians`), or
  the description length of the rows of a cell (`codes`).
- lambda_t is the weight of term t; `terms` evaluates F, its gradient, and its change when a row
  moves.

For example, let p(y|a) be estimated from counts T_y. Then the cost g = -sum_y T_y log(T_y / T)
gives F = n H(Y|C) for clusters C, which differs from -n I(C;Y) by a constant. The same cost on the
cells of clusters and known groups Z gives n H(Y|C,Z), and thereby the conditional information
I(C;Y|Z).

The engines of `nrprob.engines` optimise any such sum.
"""
