"""Cross-partition clustering: themes that several subsets share."""
