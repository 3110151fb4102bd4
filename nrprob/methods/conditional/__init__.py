"""Clusters conditional on known structure: residual mixtures and residual spectral clustering."""
