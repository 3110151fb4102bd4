"""What estimators have in common: input, restarts, fitted state, new rows."""
