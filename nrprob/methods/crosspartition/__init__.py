"""Cross-partition clustering: clusters that several subsets share."""
