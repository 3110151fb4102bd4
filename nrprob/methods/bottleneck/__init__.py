"""Information bottleneck: plain, with side information, and conditional."""
