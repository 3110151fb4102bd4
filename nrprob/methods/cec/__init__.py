"""Cross-entropy clustering with a few labels, and what it is compared with."""
