"""Posterior distributions over clusterings.

Shapes of arrays: n samples, or n' with padding; b new samples; m features; d features after
constant and linearly dependent ones are dropped; p sufficient statistics of a sample, of which the
first q belong to its features; K slots of clusters, of which k are occupied; C classes; S draws; G
values of a grid; ``groups`` known groups.

In models and samplers, a *cluster* is one component of the mixture; components are merged into
larger clusters only after sampling. The *slot* of a cluster is its index in arrays (K, ...). A
*cell* is the set of samples of one cluster in one known group, and ``cells`` (groups, K, p) are the
sums of their statistics. A *code* maps the statistics of a cell to a description length in nats,
which is minus a log probability. A(k) is the part of a description length that depends only on the
number k of occupied clusters. A *target* is the distribution that a sampler draws from.
"""
