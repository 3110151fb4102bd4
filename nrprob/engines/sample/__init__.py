"""Markov chain Monte Carlo over partitions, independent of particular methods."""
