"""Alternative clusterings: different from a known one, or two different ones at once."""
