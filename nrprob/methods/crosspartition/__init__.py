"""Cross-partition clustering: themes shared by several subsets."""
