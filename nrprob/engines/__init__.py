r"""Optimisers and samplers of partitions, for objectives that are sums of cell costs.

An engine minimises an objective F of this form, or samples partitions with the density exp(-F):

.. math:: F = \sum_t \lambda_t \sum_{\text{cells } a} g_t(S_a), \qquad S_a = \sum_{x \in a} s(x),

as defined in `nrprob.statistics`. A cell a is a cluster, or a cluster within a known group. s(x)
are the additive statistics of row x, and S_a is their sum over the rows of cell a. g_t is the cell
cost and lambda_t the weight of term t. For soft partitions, S_a is weighted by the masses W(x, a)
of the rows in the cells. No engine depends on a method.

Shapes of arrays: n rows, in B blocks of r rows; p statistics of a row, the last of which is 1;
S restarts; K clusters; ``groups`` known groups (1 without known structure). "Rows" are samples.
Rows, clusters and groups beyond the data are *padding*, which lets one compiled program serve
several sizes.

======================== ===================================== ==================================
engine                   evaluates                             result
======================== ===================================== ==================================
`optimise.anneal`        dF/dW for masses W(x, c)              deterministic annealing
`optimise.reassign`      change of F when a row moves          local optimum under single moves
`optimise.merge`         change of F when two clusters merge   agglomeration, linkage matrices
`optimise.splitting`     derivative of the update              clusters split one at a time
`sample`                 change of F when a row moves          draws of the partition, by MCMC
======================== ===================================== ==================================

`batching` runs several fits in one compiled program, and `sharding` distributes rows over devices.
`placement` chooses the device of a program, and `programs` the options of the compiler.
"""
