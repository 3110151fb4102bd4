"""Constrained model-based clustering."""
