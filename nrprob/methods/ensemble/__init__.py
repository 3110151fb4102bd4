"""Consensus of clusterings: of one clustering per known group, or of given labelings."""
