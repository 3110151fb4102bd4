"""Markov chain Monte Carlo over partitions; no kernel depends on a method."""
