"""Optimisers and samplers of partitions; none of them depends on a method."""
