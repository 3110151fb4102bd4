"""Clusters of what known structure leaves of the rows."""
