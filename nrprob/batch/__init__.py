"""Runs described by files: which data, what is known, which method, what to report."""
