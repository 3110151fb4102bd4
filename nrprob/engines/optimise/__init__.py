"""Optimisers of partitions: annealing, reassignment, merging, splitting, and their iterations."""
