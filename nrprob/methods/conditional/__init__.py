"""Clustering given known structure: conditional mixtures and residual spectral clustering."""
