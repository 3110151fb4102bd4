"""Additive statistics of rows, and costs of cells."""
