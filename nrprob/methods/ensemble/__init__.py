"""Consensus of clusterings of the known groups."""
