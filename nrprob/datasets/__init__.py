"""Data sets with several known clusterings, drawn from the models of the source papers."""

from nrprob.datasets.generators import (
    bayes_precision,
    make_binary_partitions,
    make_multinomial_2d,
)

__all__ = ["bayes_precision", "make_binary_partitions", "make_multinomial_2d"]
