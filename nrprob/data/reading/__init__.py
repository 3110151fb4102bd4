"""Read tables from files, and detect how a file stores its table."""
