"""Clustering by minimum description length: several views, pairs, labels and known groups."""
