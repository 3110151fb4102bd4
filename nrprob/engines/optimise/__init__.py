"""Optimisers of partitions; none of them knows a method."""
