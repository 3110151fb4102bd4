"""Posteriors over clusterings."""
