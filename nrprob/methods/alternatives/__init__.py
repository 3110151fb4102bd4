"""Clusterings that are unlike a known one, and pairs of clusterings that are unlike each other."""
