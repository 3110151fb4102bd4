"""Several views of the same rows, clustered together."""
