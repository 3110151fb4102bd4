"""Consensus of clusterings that were found within the known groups."""
