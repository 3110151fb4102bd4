"""Clustering under must-link and cannot-link pairs."""
