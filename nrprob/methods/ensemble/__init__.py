"""Consensus of separate clusterings, one within each known group."""
