"""Out-of-core rows: sources, blocks and sums over them."""
