"""Alternative clustering: clusters unlike known groups, or two simultaneous clusterings."""
