"""Additive statistics of rows, and what a cell of rows costs."""
