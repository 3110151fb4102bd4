"""Rows that lie somewhere else than in memory: where they come from, and sums over them."""
