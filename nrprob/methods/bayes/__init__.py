"""Posterior distributions over clusterings."""
