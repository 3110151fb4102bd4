"""Markov chain Monte Carlo over partitions; no kernel knows a method."""
