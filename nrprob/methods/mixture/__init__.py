"""Mixtures by expectation maximisation."""
