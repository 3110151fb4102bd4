"""Posterior distributions over clusterings.

Shapes of arrays: n samples, or n' with padding; b new samples; m features of the user, d of them
after constant and dependent ones are dropped; p statistics of a sample; K slots of clusters, of
which k are occupied; C classes; S draws; G values of a grid; ``groups`` known groups. A *cell* is
the set of samples of one cluster in one known group, and ``cells`` (groups, K, p) are the sums of
their statistics. A *code* maps the statistics of a cell to a description length in nats, minus a
log probability. A(k) is the part of a description length that depends only on the number k of
occupied clusters.
"""
