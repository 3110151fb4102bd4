"""Optimisers of partitions; none of them depends on a method."""
