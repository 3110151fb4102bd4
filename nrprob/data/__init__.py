"""User input: tables, labels, known structure, preparation and out-of-core storage."""
