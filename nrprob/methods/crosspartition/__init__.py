"""Cross-partition clustering: clusters that several subsets of the rows share."""
