"""Clustering under pairs that must or must not be together."""
