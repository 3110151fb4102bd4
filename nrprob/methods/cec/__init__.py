"""Cross-entropy clustering with labels of some rows, and the methods it is compared with."""
