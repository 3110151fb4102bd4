"""Cross-entropy clustering with partial labels, and baseline methods."""
