"""Alternative clustering: clusters that differ from known groups, or two clusterings at once."""
