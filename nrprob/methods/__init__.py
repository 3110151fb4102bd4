"""One file per family of methods: its terms, and its estimators."""
