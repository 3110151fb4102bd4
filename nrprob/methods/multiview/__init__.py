"""Joint clustering of several views of the same rows."""
