"""Base classes of estimators: input, restarts, fitted state, prediction."""
