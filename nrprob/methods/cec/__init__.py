"""Cross-entropy clustering with partial labels, and the methods it is compared with."""
