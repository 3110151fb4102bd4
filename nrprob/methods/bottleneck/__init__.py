"""Information bottlenecks: alone, with side information, and given what is known."""
